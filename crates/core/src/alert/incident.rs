//! Incidents: the type, a new incident, and the runs that it keeps as examples.

use super::subject::Subject;
use crate::id::IncidentId;
use crate::notice::{RunSample, SAMPLE_COUNT_MAX};
use crate::time::Timestamp;
use crate::word_enum::word_enum;

word_enum! {
    /// The state of an incident.
    IncidentState ("Standing") {
        /// The rule holds.
        Firing = "firing",
        /// The rule no longer holds.
        Resolved = "resolved",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    pub id: IncidentId,
    /// What it is about.
    pub subject: Subject,
    /// The group that is reported in its place; `None` if the incident is reported itself.
    pub group: Option<IncidentId>,
    /// Whether it is open or resolved.
    pub state: IncidentState,
    /// Since when the rule holds.
    pub started_at: Timestamp,
    /// When the rule was last found to hold.
    pub seen_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
    /// How many occurrences it has, such as failed runs; for a group, the number of its subjects.
    pub count: u64,
    /// How many occurrences were reported.
    pub reported_count: u64,
    /// When it was first reported; `None` for a member of a group, while a silence holds its messages back, and while none of its
    /// channels exists.
    pub fired_at: Option<Timestamp>,
    /// When it was last reported to the channels of its rule.
    pub reported_at: Option<Timestamp>,
    /// When it was reported to the escalation channel.
    pub escalated_at: Option<Timestamp>,
    /// Who acknowledged it.
    pub acknowledged_by: Option<String>,
    pub acknowledged_at: Option<Timestamp>,
    /// How many messages were sent about it, which is also the number of the newest one.
    pub message_count: u32,
    /// When it is checked again; `None` once it is resolved.
    pub check_at: Option<Timestamp>,
    /// Its newest runs, the newest first, as examples for messages.
    pub samples: Vec<RunSample>,
}

pub(super) fn new_incident(
    id: IncidentId,
    subject: Subject,
    group: Option<IncidentId>,
    (started_at, now): (Timestamp, Timestamp),
) -> Incident {
    Incident {
        id,
        subject,
        group,
        state: IncidentState::Firing,
        started_at,
        seen_at: now,
        resolved_at: None,
        count: 0,
        reported_count: 0,
        fired_at: None,
        reported_at: None,
        escalated_at: None,
        acknowledged_by: None,
        acknowledged_at: None,
        message_count: 0,
        check_at: None,
        samples: Vec::new(),
    }
}

/// Puts the newer runs before the others, and drops the oldest beyond `SAMPLE_COUNT_MAX`. Both lists are sorted with the newest first.
pub(super) fn keep_samples(samples: &mut Vec<RunSample>, newer_samples: &[RunSample]) {
    for sample in newer_samples.iter().rev() {
        samples.retain(|known_sample| known_sample.run != sample.run);
        samples.insert(0, sample.clone());
    }
    samples.truncate(SAMPLE_COUNT_MAX);
}
