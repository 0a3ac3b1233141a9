//! Alerts about jobs, servers and tokens: rules, incidents, silences, and the function that decides about them.
//!
//! [`RuleSpec`] is a rule as users write it. The functions of [`judge`] turn facts about a job's runs, its counts or the servers into
//! [`Observation`]s, [`deadline`] computes when `06:00 Europe/Berlin` is, and [`decide`](decide()) turns the observations of a rule into
//! changes of incidents and the messages about them. [`sentence`] puts rules and incidents into words.

pub mod deadline;
mod decide;
pub mod disk;
pub mod expect;
mod incident;
pub mod judge;
mod rule;
pub mod sentence;
mod silence;
mod subject;

pub use self::decide::{Decision, MessageDraft, OpenIncidents, RuleView, acknowledge, decide};
pub use self::incident::{Incident, IncidentState};
pub use self::judge::{ConditionState, Observation};
pub use self::rule::{
    CHANNEL_COUNT_MAX, Condition, ConditionKind, DIGEST_MIN, Escalation, GROUP_OVER_DEFAULT, RuleSpec, STREAK_MAX,
    Scope, SubjectKind,
};
pub use self::silence::{Silence, SilenceSpec};
pub use self::subject::Subject;

#[cfg(test)]
mod decide_tests;
#[cfg(test)]
mod expect_tests;
#[cfg(test)]
mod tests;
