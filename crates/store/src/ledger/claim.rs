//! Due jobs, claims, and requested runs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::dense::DenseInstant;
use rondel_core::homes::RecentFires;
use rondel_core::request::IfOpen;
use rondel_core::{JobId, NodeId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A row of `job_due`, the narrow table that the scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueJob {
    pub job: JobId,
    /// The first fire that no plan covers yet; after an edit it may have a row. While a maintenance window holds fires back, the instant at
    /// which the scan examines the job again.
    pub next_fire_at: Timestamp,
    /// The first fire that a maintenance window holds back; `None` if no window holds a fire back.
    pub held_from: Option<Timestamp>,
    /// The version of the definition that the next fire comes from.
    pub version: i64,
    /// The node that owns the job's open runs; 0 if none does yet.
    pub home: NodeId,
    /// Rises at each change of home.
    pub term: i64,
    /// The decaying count of its recent fires.
    pub recent_fires: RecentFires,
}

/// A range of instants in which a call searches for due jobs or for instants at which many jobs fire.
#[derive(Clone, Copy, Debug)]
pub struct DueRange {
    /// Only fires at or after this instant.
    pub from: Timestamp,
    /// Only fires at or before this instant.
    pub to: Timestamp,
    /// Maximum number of rows, the earliest first.
    pub limit: u32,
}

/// The changes that a claim makes to one job.
#[derive(Clone, Debug)]
pub struct ClaimJob {
    /// The row as the scan read it. If the row has changed since, the claim leaves the job out.
    pub expected_row: DueJob,
    /// The new `next_fire_at`.
    pub next_fire_at: Option<Timestamp>,
    /// The new `held_from`: the first fire that a maintenance window holds back.
    pub held_from: Option<Timestamp>,
    /// The decaying count of its recent fires, including those of this claim.
    pub recent_fires: RecentFires,
    /// The rows of its fires, including the rows that stand for spans of missed fires.
    pub runs: Vec<Run>,
    /// The one of these runs whose end sets the next fire; only for a job with a fixed delay.
    pub awaited_run: Option<RunId>,
}

/// Outcome of a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimResult {
    /// Jobs whose home is now this node, each with its [term](DueJob::term).
    pub jobs: Vec<(JobId, i64)>,
    /// Runs of those jobs that were not inserted because a row with their key exists already.
    pub existing: Vec<RunId>,
    /// Whether nothing was tried, because the lease is no longer valid.
    pub is_refused: bool,
}

/// The lease that owns a new run of a job whose home is `node`. `lease_ends` are the ends of the node's lease and of the lease before it;
/// they are equal once the lease is fenced. A fence raises the epoch, and no node adopts runs under the raised epoch. A run of a fenced node
/// therefore gets the epoch before the raised one.
pub(crate) fn lease_of_home(node: NodeId, epoch: i64, lease_ends: (Timestamp, Timestamp)) -> LeaseToken {
    let is_fenced = lease_ends.0 == lease_ends.1;
    LeaseToken { node, epoch: epoch - i64::from(is_fenced) }
}

/// Merges the instants of several homes into one sorted list, and keeps the first `limit`. Each instant has the number of its jobs at all
/// homes.
pub(crate) fn merge_by_instant(instants: impl IntoIterator<Item = DenseInstant>, limit: u32) -> Vec<DenseInstant> {
    let mut sums: BTreeMap<Timestamp, u64> = BTreeMap::new();
    for instant in instants {
        *sums.entry(instant.at).or_default() += instant.job_count;
    }
    let instants = sums.into_iter().map(|(at, job_count)| DenseInstant { at, job_count });
    instants.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

/// Outcome of a trigger with a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyedRun {
    /// The run is stored and has the key.
    Created(Run),
    /// The run is stored and has the key; the run that had it before gets a request to cancel.
    Replaced(Run, RunId),
    /// This open run has the key: nothing is stored.
    Open(Run),
}

/// Outcome of a request for a fire that is already split into shards.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestedShards {
    /// The rows as they are stored, the root run first. The root run has its key, if it has one.
    Created(Vec<Run>),
    /// This open run has the key of the root run: nothing is stored.
    KeyInUse(Box<Run>),
}

/// A position in the list of a job's runs, which is sorted by planned instant, cause and shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsentPlace {
    pub fire_at: Timestamp,
    /// The cause of the run.
    pub cause: i64,
    pub shard_index: i32,
}

impl UnsentPlace {
    #[must_use]
    pub const fn of(run: &Run) -> Self {
        Self { fire_at: run.fire_at, cause: run.cause, shard_index: run.shard_index }
    }

    /// The place just before the run.
    #[must_use]
    pub const fn before(run: &Run) -> Self {
        Self { shard_index: run.shard_index - 1, ..Self::of(run) }
    }
}

/// Claims due jobs and takes requested runs.
#[async_trait]
pub trait Claim {
    /// Jobs of these homes (0 for jobs without one) whose next fire is in the range, the earliest first.
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>>;

    /// Instants in the range at which at least `count_min` jobs of one of these homes fire next, sorted, with the
    /// number of jobs. Returns at most as many instants as the limit of the range.
    async fn dense_instants(&self, homes: &[NodeId], range: DueRange, count_min: u32) -> Result<Vec<DenseInstant>>;

    /// Which of these jobs have a row, whatever its cause, at or after the instant given for each.
    async fn jobs_with_rows_from(&self, jobs: &[(JobId, Timestamp)]) -> Result<Vec<JobId>>;

    /// The first and the last fire of each row of a job's own schedules whose planned instant is in this range, both ends included. Sorted, at
    /// most `limit`.
    async fn fires_with_rows(
        &self,
        job: JobId,
        range: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<(Timestamp, Timestamp)>>;

    /// Claims jobs in one transaction. The lease must be valid, and each job must still be as it was seen. If the job's home is another
    /// node, that node must be fenced ([`adopt`](crate::Adopt::adopt)) and own no open run of the job. The job's `next_fire_at` moves on,
    /// its home becomes this node, and its runs are inserted. Jobs that another node took are left out.
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult>;

    /// Pending runs of a job that the lease `token` owns, after this place and in the order of [`UnsentPlace`], at most
    /// `limit`.
    async fn unsent_runs_of_job(
        &self,
        token: LeaseToken,
        job: JobId,
        after: UnsentPlace,
        limit: u32,
    ) -> Result<Vec<Run>>;

    /// Inserts a requested run, owned by the job's home. If the home is dead, the run is adopted with the job's other open runs. If the job
    /// has no home, `token` owns the run and its node becomes the home. Returns the run as it is stored, or the existing run with the same
    /// key.
    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run>;

    /// Like [`request_run`](Self::request_run), for a run with a [key](Run::trigger_key). If an open run of the job has that key, `if_open`
    /// decides what happens. The decision is made under the job's lock, so of several callers at different servers only one gets the key.
    async fn request_keyed_run(&self, token: LeaseToken, run: Run, if_open: IfOpen, now: Timestamp)
    -> Result<KeyedRun>;

    /// Inserts a fire that is already split into shards, all rows or none: the root run, with its count of shards, and the shards. The
    /// owner is the same as in [`request_run`](Self::request_run). A root run with a [key](Run::trigger_key) gets this key, unless an open
    /// run of the job has it; that is decided like in [`request_keyed_run`](Self::request_keyed_run).
    async fn request_shards(&self, token: LeaseToken, root: Run, shards: Vec<Run>) -> Result<RequestedShards>;
}
