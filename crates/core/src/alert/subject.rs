//! The subjects of rules, incidents and silences.

use super::rule::SubjectKind;

/// What an incident is about. Two subjects are the same if they have the same kind and id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub kind: SubjectKind,
    /// The id of the job, app, namespace, node or token; 0 for a group.
    pub id: i64,
    pub name: String,
    /// For a job, the name of its app; for a group of a rule about one app, the name of that app; otherwise `None`.
    pub app: Option<String>,
}
