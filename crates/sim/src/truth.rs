//! What really happened, seen from outside: what handlers did, what executors received, what callers requested.

use std::collections::{BTreeMap, BTreeSet};

use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::{JobId, NodeId, Reason, RunId, RunStatus, Timestamp};
use rondel_proto::v1;

/// A handler that began.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) job: JobId,
    pub(crate) fire_at: Timestamp,
    pub(crate) due_at: Timestamp,
    /// The number of the executor in the world.
    pub(crate) executor: usize,
    /// The number of the executor's process.
    pub(crate) incarnation: i64,
    /// The node and epoch of the lease under which it was sent.
    pub(crate) origin: (i64, i64),
    /// The highest epoch of that node whose triggers this incarnation had to refuse.
    pub(crate) fenced_epoch: Option<i64>,
    /// The fencing token that the handler got, as its term and number.
    pub(crate) fencing_token: (i64, i64),
    pub(crate) at_most_once: bool,
    /// When the handler began, by the database's clock without its steps back.
    pub(crate) began_at: Timestamp,
    /// Milliseconds since the world began.
    pub(crate) began_ms: u64,
    /// When it ended, in milliseconds since the world began; `None` while it runs.
    pub(crate) ended_ms: Option<u64>,
    /// How the handler ended; `None` if its process died first.
    pub(crate) end_status: Option<v1::result::Status>,
}

/// A result that a server has acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct AckedResult {
    pub(crate) run: RunId,
    pub(crate) attempt: i32,
    pub(crate) status: v1::result::Status,
    pub(crate) kind: v1::result_ack::Kind,
    /// Whether the executor stopped the run because no server answered, or handed it back when it drained.
    pub(crate) is_silenced: bool,
    /// Whether a group of a pump left rows that failed for good, or its last select failed.
    pub(crate) is_unfinished: bool,
}

/// A requested run whose id was returned to the caller.
#[derive(Clone, Debug)]
pub(crate) struct RequestedRun {
    pub(crate) run: RunId,
    pub(crate) job: JobId,
}

/// A request that switched a job off, or on again, and that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobSwitch {
    pub(crate) job: JobId,
    pub(crate) enabled: bool,
    /// The version of the job that this change made. It gives the order of changes whose answers were late.
    pub(crate) version: i64,
    /// When the request was sent, by the database's clock.
    pub(crate) asked_at: Timestamp,
    /// When its answer came, by the database's clock.
    pub(crate) answered_at: Timestamp,
}

#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) starts: Vec<Start>,
    pub(crate) acked_results: Vec<AckedResult>,
    pub(crate) requested_runs: Vec<RequestedRun>,
    pub(crate) job_switches: Vec<JobSwitch>,
    /// Jobs with a requested change whose answer never came: the change may have been made.
    pub(crate) uncertain_jobs: Vec<JobId>,
    /// The pauses of executors: incarnation, beginning and end, in milliseconds since the world began.
    pub(crate) executor_pauses: Vec<(i64, u64, u64)>,
    /// The planned times without any server, by the database's clock.
    pub(crate) server_outages: Vec<(Timestamp, Timestamp)>,
    /// When servers read the row of an attempt that another server may have saved, by the database's clock. With pages of two
    /// rows, a server finds such a run only seconds after the run's instant. This applies to the owner, and to each server to
    /// which the run is handed over. A server also checks only every few seconds whether another server has saved the end of
    /// an attempt, after which the next attempt may begin.
    pub(crate) row_reads: BTreeMap<(RunId, i32), Vec<Timestamp>>,
    /// The verdicts in the store.
    pub(crate) verdicts: BTreeMap<RunId, (RunStatus, Option<Reason>, i32)>,
    /// Runs whose provisional verdict was replaced by a late result. What followed from the first verdict stays.
    pub(crate) corrected_runs: BTreeSet<RunId>,
    /// Leases that were fenced, by node and epoch. For each, when it was fenced, in milliseconds since the world began, and the number of its
    /// fencer in the world.
    pub(crate) fenced_leases: BTreeMap<(NodeId, i64), (u64, usize)>,
    /// When a node other than the fencer of a lease first took over some of its runs, because the adoption had taken too long; in milliseconds
    /// since the world began. The fencer counts the limits that jobs share, and does not know these runs.
    pub(crate) split_adoption_ms: Option<u64>,
    /// Maintenance windows, with their final ends.
    pub(crate) windows: Vec<MaintenanceWindow>,
    /// Violations, recorded as soon as they are seen.
    pub(crate) violations: Vec<String>,
}

impl Truth {
    pub(crate) fn violate(&mut self, rule: &str, description: &str) {
        self.violations.push(format!("{rule}: {description}"));
    }
}
