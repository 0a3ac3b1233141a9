//! Due jobs, claims, and requested runs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::dense::DenseInstant;
use rondel_core::homes::RecentFires;
use rondel_core::request::IfOpen;
use rondel_core::{JobId, NodeId, Run, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A row of the narrow table that the scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueJob {
    /// The job.
    pub job: JobId,
    /// The first fire without a row; where fires are held back, the instant at which the job is looked at again.
    pub next_fire_at: Timestamp,
    /// The first fire that a maintenance window holds back.
    pub held_from: Option<Timestamp>,
    /// The definition that it comes from.
    pub version: i64,
    /// The node that owns the job's open runs; 0 for none yet.
    pub home: NodeId,
    /// Rises at each change of home.
    pub term: i64,
    /// Its recent fires.
    pub recent_fires: RecentFires,
}

/// Which due jobs to read, or which of their instants.
#[derive(Clone, Copy, Debug)]
pub struct DueRange {
    /// Fires at or after this …
    pub from: Timestamp,
    /// … and at or before this.
    pub to: Timestamp,
    /// At most so many, the earliest first.
    pub limit: u32,
}

/// What one job gets in a claim.
#[derive(Clone, Debug)]
pub struct ClaimJob {
    /// The row as the scan read it: a claim that finds it changed has lost.
    pub seen: DueJob,
    /// Where `next_fire_at` moves to.
    pub next_fire_at: Option<Timestamp>,
    /// The first fire that a maintenance window holds back from then on.
    pub held_from: Option<Timestamp>,
    /// Its recent fires, with these.
    pub recent_fires: RecentFires,
    /// The rows of its fires, verdicts of missed spans among them.
    pub runs: Vec<Run>,
    /// The run among them whose end gives the next fire: only of a job with a fixed delay.
    pub follows: Option<RunId>,
}

/// What a claim won.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claimed {
    /// Jobs that this node has now, with their term.
    pub jobs: Vec<(JobId, i64)>,
    /// Runs of those jobs that were not inserted because a row with their key exists already.
    pub existing: Vec<RunId>,
    /// The lease did not hold: nothing was tried.
    pub is_refused: bool,
}

/// The lease in whose name a new run of a job stands whose home is this node. `leases` are the ends of the node's lease and
/// of the one before; they are equal once it is fenced, and no node adopts runs under the epoch of a fence.
pub(crate) fn lease_of_home(node: NodeId, epoch: i64, leases: (Timestamp, Timestamp)) -> LeaseToken {
    let is_fenced = leases.0 == leases.1;
    LeaseToken { node, epoch: epoch - i64::from(is_fenced) }
}

/// The instants of several homes as one list, in order, with the sums of their jobs.
pub(crate) fn by_instant(instants: impl IntoIterator<Item = DenseInstant>, limit: u32) -> Vec<DenseInstant> {
    let mut sums: BTreeMap<Timestamp, u64> = BTreeMap::new();
    for instant in instants {
        *sums.entry(instant.at).or_default() += instant.job_count;
    }
    let all = sums.into_iter().map(|(at, job_count)| DenseInstant { at, job_count });
    all.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

/// What became of a trigger with a key.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyedRun {
    /// The run is stored and has the key.
    Made(Run),
    /// The same; the run that had the key before is asked to end.
    Replaced(Run, RunId),
    /// This open run has the key: nothing is stored.
    Open(Run),
}

/// A place among the runs of a job, which are in the order of their planned instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnsentPlace {
    /// The planned instant.
    pub fire_at: Timestamp,
    /// What asked for it.
    pub cause: i64,
    /// Its shard.
    pub shard_index: i32,
}

impl UnsentPlace {
    /// The run's place.
    #[must_use]
    pub const fn of(run: &Run) -> Self {
        Self { fire_at: run.fire_at, cause: run.cause, shard_index: run.shard_index }
    }

    /// The place just before it.
    #[must_use]
    pub const fn before(run: &Run) -> Self {
        Self { shard_index: run.shard_index - 1, ..Self::of(run) }
    }
}

/// Claims due jobs and takes requested runs.
#[async_trait]
pub trait Claim {
    /// Jobs of these homes (0 among them for jobs without one) whose next fire is in the range, the earliest first.
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>>;

    /// Instants in the range at which at least so many jobs of one of these homes fire next, in order, with their number; at most
    /// as many instants as the limit of the range.
    async fn dense_instants(&self, homes: &[NodeId], range: DueRange, count_min: u32) -> Result<Vec<DenseInstant>>;

    /// Claims in one transaction: the lease must hold, each job must still be as it was seen, and another node that
    /// it is at home at must be fenced ([`adopt`](crate::Adopt::adopt)), with nothing of it open in that one's name; its `next_fire_at` moves on, its home becomes this node, its runs are inserted. What another node
    /// took drops out.
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed>;

    /// Own pending runs of a job after this place, in order.
    async fn unsent_of(&self, token: LeaseToken, job: JobId, after: UnsentPlace, limit: u32) -> Result<Vec<Run>>;

    /// Inserts a requested run, owned by the home of its job, be it dead (then it is adopted with whatever else
    /// is open of the job), else by `token`, which becomes the home. Answers the run as it is stored; the one that is there already where its key exists.
    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run>;

    /// The same for a run with a [key](Run::trigger_key), unless an open run of the job has that. Decided under the lock of the job: of
    /// callers at different servers one gets the key.
    async fn request_keyed_run(&self, token: LeaseToken, run: Run, if_open: IfOpen, now: Timestamp)
    -> Result<KeyedRun>;

    /// Inserts a fire that is cut already: the row of the whole, with its count of shards, and the shards, all or none. Their owner is as
    /// for [`request_run`](Self::request_run). Answers the rows as they are stored, the whole first.
    async fn request_shards(&self, token: LeaseToken, whole: Run, shards: Vec<Run>) -> Result<Vec<Run>>;
}
