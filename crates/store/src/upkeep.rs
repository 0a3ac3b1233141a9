//! Maintenance of the store: repairs stuck jobs, removes old runs, and counts runs.
//!
//! Each call is one bounded transaction. A caller that has more to remove calls again, after a pause.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::outcome::is_provisional;
use rondel_core::sketch::Step;
use rondel_core::{AppId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::error::Result;

/// A job whose next fire should be set but is not, or that waits for the end of a run that has ended or was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StuckJob {
    pub job: JobId,
    /// The version of its definition.
    pub version: i64,
    /// The open run whose end will set the next fire, if there is such a run.
    pub awaited_run: Option<RunId>,
}

/// Number of runs of a job that were planned for one hour and ended with one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobStat {
    /// When the hour begins.
    pub hour: Timestamp,
    pub status: RunStatus,
    /// Number of runs. A row for a span of missed fires counts each fire, and a sharded fire counts once.
    pub run_count: u64,
    /// Sum of the durations of their handlers.
    pub duration: Duration,
}

/// The outcome of one call of [`Upkeep::purge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeStep {
    /// Number of runs that were removed.
    pub removed_count: u64,
    /// The run after which the next call continues; `None` if no old run remains to be examined.
    pub next_after: Option<RunId>,
}

#[async_trait]
pub trait Upkeep {
    /// Begins a pass of a housekeeping task that one node performs once per period. `false` if any node began a pass less than seven tenths
    /// of the period ago. This bound prevents double passes, but lets a pass begin a little early, so that passes do not drift.
    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool>;

    /// Removes runs whose verdict was made before `finished_before`, the oldest first, with their attempts, logs and requests to cancel; at
    /// most `limit`. A broadcast is removed as a whole: its shards first, its own row last. The first run of a fire and the runs that
    /// follow from it stay while one of them is open. The newest of the old root runs of a pump job stays, with its groups: it shows that the
    /// pump has ended and must not begin again. A call examines the next runs after `after`. A pass begins after run 0 and continues
    /// with the answer of each call, so that it reads each run that stays only once per pass.
    async fn purge(&self, finished_before: Timestamp, after: RunId, limit: u32) -> Result<PurgeStep>;
}

/// Finds jobs that no scan sees although they should fire, and repairs them.
#[async_trait]
pub trait Heal {
    /// Jobs that should fire but have no next fire, and are therefore seen by no scan; at most `limit`. Among the jobs that wait for the end of a
    /// run, one call checks some thousands, and the next call continues after them.
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>>;

    /// Sets the next fire of a stuck job; `false` if the job has changed since it was read as stuck. `next_fire_at` is `None` if the job
    /// correctly has no next fire, or if the end of the run that it waits for will set one.
    async fn heal_job(&self, stuck_job: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool>;

    /// Removes the home of jobs whose home is a node that was removed, so that the scans of all nodes see these jobs; at most `limit`.
    /// Returns how many changed. A node can be removed while it is the home of a job without a next fire, and such a job can get a next
    /// fire later.
    async fn free_homeless(&self, limit: u32) -> Result<u64>;
}

#[async_trait]
pub trait Stats {
    /// Adds runs whose ids were made before `before` to the statistics, each once. A call takes the next `limit` runs by id, and examines a
    /// page of the runs that were open when an earlier call reached them. Returns how many runs it counted, and at least 1 if there are
    /// further pages; 0 means that everything is counted. A run whose provisional verdict is replaced by the true one within a day is
    /// counted again, and so is a skipped fire that an edit opened again. Failures that were planned before a counted success of their job
    /// are no longer dead letters.
    async fn roll_up(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// The counts of a job's runs that were planned from `from` on and before `to`, by hour and verdict.
    async fn job_stats(&self, job: JobId, from: Timestamp, to: Timestamp) -> Result<Vec<JobStat>>;

    /// Removes the counts of hours before `before`: at most `limit` rows, plus the rows of the other verdicts of the same jobs and hours.
    /// Returns how many were removed.
    async fn forget_stats(&self, before: Timestamp, limit: u32) -> Result<u64>;
}

/// If a late result replaces the verdict of a run that is at most this old, the statistics count the run again.
pub(crate) const RECOUNT_AGE_MAX: Duration = Duration::from_secs(24 * 3600);

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
    pub(crate) due_at: Timestamp,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<Reason>,
    /// Whether it is a shard. A shard is counted with its broadcast.
    pub(crate) is_shard: bool,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    /// How many fires the row stands for.
    pub(crate) span_count: i64,
}

impl CountedRun {
    /// The count that the run adds to; `None` for a shard and for an open run. The duration is 0 if no executor reported one.
    pub(crate) fn job_stat(&self) -> Option<JobStat> {
        if self.is_shard || !self.status.is_terminal() {
            return None;
        }
        let hour = Step::Hour.floor(self.fire_at);
        let duration = self.duration().unwrap_or_default();
        let run_count = u64::try_from(self.span_count).unwrap_or(1);
        Some(JobStat { hour, status: self.status, run_count, duration })
    }

    /// Whether it may get another verdict: its verdict is provisional, or an edit skipped it before it was due, so that a later edit can
    /// reopen it.
    pub(crate) fn may_change(&self) -> bool {
        let is_by_edit = matches!(self.reason, Some(Reason::Changed | Reason::Paused));
        let is_early = self.finished_at.is_some_and(|at| at < self.due_at);
        is_provisional(self.status, self.reason) || self.status == RunStatus::Skipped && is_by_edit && is_early
    }

    /// The duration of its handler, if an executor reported it.
    pub(crate) fn duration(&self) -> Option<Duration> {
        let (started_at, finished_at) = (self.started_at?, self.finished_at?);
        (!is_provisional(self.status, self.reason)).then(|| finished_at.since(started_at))
    }

    /// How much later than planned its handler began. `None` for a later attempt and for a requested run, for which lateness has no
    /// meaning.
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
            due_at: run.due_at,
            status: run.status,
            reason: run.reason,
            is_shard: run.shard_index >= 0 && run.shard_total.is_some_and(|total| total > 1),
            started_at: run.started_at,
            finished_at: run.finished_at,
            span_count: run.span_count,
        }
    }
}

/// The time after the beginning of a pass in which no server begins another one.
pub(crate) fn pass_gap(period: Duration) -> Duration {
    period * 7 / 10
}
