//! Silences, each of which holds back messages until it ends.

use serde::{Deserialize, Serialize};

use super::rule::{Condition, RuleSpec, SubjectKind};
use super::subject::Subject;
use crate::time::Timestamp;

/// Which messages a silence holds back: those that match all of the given parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SilenceSpec {
    /// Incidents of this rule.
    pub rule: Option<String>,
    /// Incidents about this job.
    pub job: Option<String>,
    /// Incidents about this app and its jobs.
    pub app: Option<String>,
}

/// Holds back the messages that match `spec`, until `ends_at`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Which messages it holds back.
    pub spec: SilenceSpec,
    pub ends_at: Timestamp,
    /// Whether it comes from a maintenance window, which holds back no messages about servers and tokens.
    pub is_maintenance: bool,
}

impl Silence {
    /// Whether it holds back messages of this rule about this subject.
    pub(super) fn matches(&self, rule: &RuleSpec, subject: &Subject) -> bool {
        self.spec.matches(&rule.name, subject) && !(self.is_maintenance && is_about_servers(&rule.condition))
    }
}

/// Whether a condition is about servers or tokens. The kind of a subject does not show this, because a group of servers is a group.
const fn is_about_servers(condition: &Condition) -> bool {
    matches!(
        condition,
        Condition::NodeLost {}
            | Condition::LoopFailing { .. }
            | Condition::TokenExpiring { .. }
            | Condition::CertificateExpiring { .. }
            | Condition::DiskLow { .. }
    )
}

impl SilenceSpec {
    /// Whether it holds back messages of this rule about this subject.
    #[must_use]
    pub fn matches(&self, rule: &str, subject: &Subject) -> bool {
        let is_job = |job: &str| subject.kind == SubjectKind::Job && subject.name == job;
        let is_app = |app: &str| {
            let own_app = (subject.kind == SubjectKind::App).then_some(subject.name.as_str());
            subject.app.as_deref().or(own_app) == Some(app)
        };
        self.rule.as_deref().is_none_or(|name| name == rule)
            && self.job.as_deref().is_none_or(is_job)
            && self.app.as_deref().is_none_or(is_app)
    }
}
