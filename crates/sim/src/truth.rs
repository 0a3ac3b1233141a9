//! What really happened, seen from outside: what handlers did, what executors received, what callers asked for.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::{JobId, Reason, RunId, RunStatus, Timestamp};
use rondel_proto::v1;

/// A handler that began.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) job: JobId,
    pub(crate) fire_at: Timestamp,
    pub(crate) due_at: Timestamp,
    pub(crate) executor: usize,
    pub(crate) incarnation: i64,
    /// Under which lease it was sent.
    pub(crate) origin: (i64, i64),
    /// The highest epoch of that node which this incarnation had to refuse.
    pub(crate) fenced: Option<i64>,
    pub(crate) fence: (i64, i64),
    pub(crate) at_most_once: bool,
    /// By the database's clock: the latest that it ever showed.
    pub(crate) at: Timestamp,
    /// Milliseconds since the world began.
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: Option<u64>,
    /// How the handler ended; `None` where its process died first.
    pub(crate) ended: Option<v1::result::Status>,
}

/// A result for which a server has answered.
#[derive(Clone, Debug)]
pub(crate) struct Acked {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) status: v1::result::Status,
    pub(crate) kind: v1::result_ack::Kind,
    /// The executor stopped it since no server answered.
    pub(crate) is_silenced: bool,
    /// A group of a pump left rows that failed for good, or its last select failed.
    pub(crate) is_unfinished: bool,
}

/// A requested run whose caller got the answer that it exists.
#[derive(Clone, Debug)]
pub(crate) struct Requested {
    pub(crate) run: RunId,
    pub(crate) job: JobId,
}

/// A job was switched off, or on again, and the caller got the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switched {
    pub(crate) job: JobId,
    pub(crate) enabled: bool,
    /// When it was asked for, and when the answer came, by the database's clock.
    pub(crate) asked_at: Timestamp,
    pub(crate) answered_at: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) starts: Vec<Start>,
    pub(crate) acked: Vec<Acked>,
    pub(crate) requested: Vec<Requested>,
    pub(crate) switched: Vec<Switched>,
    /// Jobs with a request for a change, of which the answer never came: it may have been made.
    pub(crate) uncertain: Vec<JobId>,
    /// When executors stood still, and how long, in milliseconds since the world began.
    pub(crate) stops: Vec<(i64, u64, u64)>,
    /// When no server was there, by the database's clock; where that was planned.
    pub(crate) servers_away: Vec<(Timestamp, Timestamp)>,
    /// When a server first read the row of a run that another one may have saved, by the database's clock: with pages of two
    /// rows, its owner finds such a run seconds after its instant.
    pub(crate) first_read: BTreeMap<RunId, Timestamp>,
    /// Verdicts, as the store gave them.
    pub(crate) verdicts: BTreeMap<RunId, (RunStatus, Option<Reason>, i32)>,
    /// Runs whose verdict was provisional until the true one came late: what followed from the first one stays.
    pub(crate) corrected: BTreeSet<RunId>,
    /// Maintenance windows, with the ends that they had in the end.
    pub(crate) windows: Vec<MaintenanceWindow>,
    /// What is wrong, as soon as it is seen.
    pub(crate) violations: Vec<String>,
}

impl Truth {
    pub(crate) fn violate(&mut self, rule: &str, what: &str) {
        self.violations.push(format!("{rule}: {what}"));
    }
}
