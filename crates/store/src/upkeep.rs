//! What keeps the store in order and in bounds: jobs that stand still are set going again, old runs go, executors that
//! were not heard for long are forgotten.
//!
//! Each call is one bounded transaction; who has much to remove calls again, with a pause between.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::outcome::is_provisional;
use rondel_core::{AppId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::error::Result;

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

/// How many runs of a job ended in one way, of those planned for an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStat {
    /// When the hour begins.
    pub hour: Timestamp,
    /// Their verdict.
    pub status: RunStatus,
    /// Number of runs: a row for a span of missed fires counts each of them, and a sharded fire counts once.
    pub run_count: u64,
    /// How long their handlers took together.
    pub duration: Duration,
}

/// Removal of old runs.
#[async_trait]
pub trait Upkeep {
    /// Begins a pass of a chore that one node does per period. False where any node began one not long ago: less than
    /// seven tenths of the period, so that passes neither double nor drift.
    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool>;

    /// Removes runs whose verdict was made before `finished_before`, the oldest first, with their attempts, logs and
    /// requests to cancel; at most `limit`. A broadcast goes as a whole: its shards first, its own row last. Answers how
    /// many runs went; 0 means that none is left.
    async fn purge(&self, finished_before: Timestamp, limit: u32) -> Result<u64>;
}

/// Finds jobs that no scan sees although they should fire, and sets them going again.
#[async_trait]
pub trait Heal {
    /// Jobs that should fire and that no scan can see, because their next fire is not set: at most `limit`. Of the jobs
    /// that wait for a run, one call looks at some thousand and the next goes on behind them.
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>>;

    /// Sets the next fire of such a job, if it still stands as it was seen; `None` where it rightly has none, or not
    /// before the run that it follows ends.
    async fn heal_job(&self, seen: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool>;

    /// Gives jobs whose home is a node that was forgotten no home, so that the scans of all nodes see them; at most `limit`.
    /// Answers how many they were. A job without a next fire does not keep its home from being forgotten, and may be given
    /// one later.
    async fn free_homeless(&self, limit: u32) -> Result<u64>;
}

/// Counts of runs by job, hour and verdict.
#[async_trait]
pub trait Stats {
    /// Counts runs whose ids were made before `before` into the statistics, each once: the next `limit` of them by id, and as
    /// many of those that were open when they were passed and are not any more. Answers how many rows it looked at; 0 means
    /// that everything is counted. A provisional verdict that becomes the true one within a day is counted anew.
    async fn roll_up(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// What is counted of a job's runs that were planned from `from` on and before `to`, by hour and verdict.
    async fn job_stats(&self, job: JobId, from: Timestamp, to: Timestamp) -> Result<Vec<JobStat>>;

    /// Removes what was counted for hours before `before`; at most `limit` rows. Answers how many went.
    async fn forget_stats(&self, before: Timestamp, limit: u32) -> Result<u64>;
}

/// How long a verdict that a late result may replace is looked at again.
pub(crate) const RECOUNT_FOR: Duration = Duration::from_secs(24 * 3600);

/// What the statistics must know of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedRun {
    pub(crate) id: RunId,
    pub(crate) job: JobId,
    pub(crate) namespace: NamespaceId,
    pub(crate) app: AppId,
    /// 0 for a fire of the schedule.
    pub(crate) cause: i64,
    pub(crate) attempt: i32,
    pub(crate) fire_at: Timestamp,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<Reason>,
    /// A shard counts with its whole.
    pub(crate) is_shard: bool,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) span_count: i64,
}

impl CountedRun {
    /// As what it counts; `None` for a shard, and while it is open. The duration of one that no executor reported is not known.
    pub(crate) fn stat(&self) -> Option<JobStat> {
        if self.is_shard || !self.status.is_terminal() {
            return None;
        }
        let hour = Timestamp::from_secs(self.fire_at.second().div_euclid(3600) * 3600);
        let duration = self.duration().unwrap_or_default();
        let run_count = u64::try_from(self.span_count).unwrap_or(1);
        Some(JobStat { hour, status: self.status, run_count, duration })
    }

    /// How long its handler took, where an executor has reported that.
    pub(crate) fn duration(&self) -> Option<Duration> {
        let (started_at, finished_at) = (self.started_at?, self.finished_at?);
        (!is_provisional(self.status, self.reason)).then(|| finished_at.since(started_at))
    }

    /// How much later than planned its handler began. Of a later attempt, or of a run that a caller asked for, it means nothing.
    pub(crate) fn lateness(&self) -> Option<Duration> {
        let is_first = self.attempt == 1 && self.cause == 0;
        let started_at = self.started_at.filter(|_| is_first && !is_provisional(self.status, self.reason))?;
        Some(started_at.since(self.fire_at))
    }
}

impl From<&Run> for CountedRun {
    fn from(run: &Run) -> Self {
        Self {
            id: run.id,
            job: run.job,
            namespace: run.namespace,
            app: run.app,
            cause: run.cause,
            attempt: run.attempt,
            fire_at: run.fire_at,
            status: run.status,
            reason: run.reason,
            is_shard: run.shard_index >= 0 && run.shard_total.is_some_and(|total| total > 1),
            started_at: run.started_at,
            finished_at: run.finished_at,
            span_count: run.span_count,
        }
    }
}

/// How long after a pass no server begins another one.
pub(crate) fn away(period: Duration) -> Duration {
    period * 7 / 10
}
