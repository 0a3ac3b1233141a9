//! What rules and silences are about.

use super::rule::SubjectKind;

/// What an incident is about. Two subjects are the same if their kind and id are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub kind: SubjectKind,
    /// 0 for a group.
    pub id: i64,
    pub name: String,
    /// The name of its app, for a job.
    pub app: Option<String>,
}
