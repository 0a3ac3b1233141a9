//! What keeps the store in order and in bounds: jobs that stand still are set going again, old runs go, executors that
//! nobody has heard of for long are forgotten.
//!
//! Each call is one bounded transaction; who has much to remove calls again, with a pause between.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{JobId, NodeId, RunId, Timestamp};

use crate::Result;

/// A job whose next fire is not set although it should be, or which waits for the end of a run that is over or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StuckJob {
    /// The job.
    pub job: JobId,
    /// Its definition.
    pub version: i64,
    /// The run whose end will give the next fire, if there is one and it is open still.
    pub follows: Option<RunId>,
}

/// Healing, and removal of what is old.
#[async_trait]
pub trait Upkeep {
    /// Begins a pass of a chore that one node does per period. False where any node began one not long ago: less than
    /// seven tenths of the period, so that passes neither double nor drift.
    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool>;

    /// Jobs that should fire and that no scan can see, because their next fire is not set: at most `limit`. Of the jobs
    /// that wait for a run, one call looks at some thousand and the next goes on behind them.
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>>;

    /// Sets the next fire of such a job, if it still stands as it was seen; `None` says that it rightly has none, or not
    /// before the run that it follows ends.
    async fn heal_job(&self, seen: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool>;

    /// Gives jobs whose home is none of these nodes no home, so that the scans of all of them see them; at most `limit`.
    /// Answers how many they were.
    async fn free_homeless(&self, nodes: &[NodeId], limit: u32) -> Result<u64>;

    /// Removes runs whose verdict was made before `finished_before`, the oldest first, with their attempts, logs and
    /// requests to cancel; at most `limit`. A broadcast goes as a whole: its shards first, its own row last. Answers how
    /// many runs went; 0 means that none is left.
    async fn purge(&self, finished_before: Timestamp, limit: u32) -> Result<u64>;

    /// Forgets sessions and executors that no node has heard since `seen_before`, at most `limit` of each. Answers how
    /// many rows went; 0 means that none is left.
    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64>;
}

/// How long after a pass nobody begins another one.
pub(crate) fn away(period: Duration) -> Duration {
    period * 7 / 10
}
