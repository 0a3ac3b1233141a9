//! The data of charts: counts with distributions per namespace, app and job in buckets of time, and the jobs that are failing.
//!
//! [`Stats::roll_up`](crate::Stats::roll_up) computes them from the ledger, each run once, together with the counts per job and hour.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{AppId, JobId, NamespaceId, Run, RunId, RunStatus, Timestamp};

use crate::error::Result;
use crate::upkeep::CountedRun;

rondel_core::plain_word_enum! {
    /// The kind of owner whose runs are counted together.
    pub PointKind {
        /// All runs of a namespace.
        Namespace = "namespace",
        /// All runs of an app.
        App = "app",
        /// The runs of one job.
        Job = "job",
    }
}

impl PointKind {
    /// The lengths of the buckets in which the runs of an owner of this kind are counted.
    #[must_use]
    pub const fn steps(self) -> &'static [Step] {
        match self {
            Self::Namespace | Self::App => &[Step::Minute, Step::QuarterHour, Step::Hour],
            Self::Job => &[Step::Hour, Step::Day],
        }
    }

    /// How long counts in buckets of this length are kept. Short buckets serve only charts of the last hours, and the buckets of jobs are
    /// numerous.
    #[must_use]
    pub const fn kept_for(self, step: Step) -> Duration {
        let days = match (self, step) {
            (_, Step::Minute) => 1,
            (_, Step::QuarterHour) => 15,
            (Self::Job, Step::Hour) => 60,
            (Self::Namespace | Self::App, Step::Hour) | (_, Step::Day) => 400,
        };
        Duration::from_secs(days * 24 * 3_600)
    }
}

/// Numbers of runs by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    pub succeeded: u64,
    pub failed: u64,
    /// Runs that exceeded their timeout.
    pub timed_out: u64,
    pub cancelled: u64,
    /// Runs whose end is not known.
    pub unknown: u64,
    pub skipped: u64,
}

impl Verdicts {
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.succeeded + self.cancelled + self.skipped + self.failure_count()
    }

    /// Runs that failed, timed out, or whose end is not known.
    #[must_use]
    pub const fn failure_count(&self) -> u64 {
        self.failed + self.timed_out + self.unknown
    }

    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            timed_out: self.timed_out + other.timed_out,
            cancelled: self.cancelled + other.cancelled,
            unknown: self.unknown + other.unknown,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// The outcomes of the runs of one owner that were planned in one bucket of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatPoint {
    /// The id of the namespace, app or job.
    pub owner: i64,
    /// When the bucket begins.
    pub at: Timestamp,
    /// How they ended.
    pub verdicts: Verdicts,
    /// How long their handlers took.
    pub durations: Sketch,
    /// How much later than planned the handlers of scheduled runs began; only first attempts count.
    pub lateness: Sketch,
}

/// How much of each point to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PointDetail {
    /// Everything.
    #[default]
    Whole,
    /// Only the verdicts: durations and lateness are empty.
    Verdicts,
    /// Like [`Verdicts`](Self::Verdicts), summed over intervals of this length, aligned to the epoch. Each point is at the beginning of its
    /// interval, even if that is before the range.
    VerdictsPer(Duration),
}

#[derive(Clone, Copy, Debug)]
pub struct PointQuery<'a> {
    pub kind: PointKind,
    /// The ids of the namespaces, apps or jobs.
    pub owners: &'a [i64],
    /// The length of the buckets; one of [`PointKind::steps`].
    pub step: Step,
    /// Only buckets that begin at or after this instant.
    pub from: Timestamp,
    /// Only buckets that begin before this instant.
    pub to: Timestamp,
    /// Maximum number of points that one statement returns. A statement reads at most 512 owners, and returns points in
    /// the order of owner and time.
    pub limit: u32,
    pub detail: PointDetail,
}

/// How the newest counted runs of a job ended, in the order of their planned instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestOutcomes {
    pub job: JobId,
    pub namespace: NamespaceId,
    /// The app of its newest counted run.
    pub app: AppId,
    /// The planned instant of the newest run that succeeded.
    pub succeeded_at: Option<Timestamp>,
    /// The planned instant of the newest run that failed, timed out, or whose end is unknown.
    pub failed_at: Option<Timestamp>,
    /// The planned instant of the first unsuccessful run since the last success; `None` while the newest run succeeded.
    pub failing_since: Option<Timestamp>,
    /// Number of runs since then that failed, timed out, or whose end is unknown.
    pub streak: u64,
}

impl NewestOutcomes {
    pub(crate) const fn of(run: &CountedRun) -> Self {
        Self {
            job: run.job,
            namespace: run.namespace,
            app: run.app,
            succeeded_at: None,
            failed_at: None,
            failing_since: None,
            streak: 0,
        }
    }

    /// Takes the verdict of a run into account; `before` is the verdict of this run that was taken into account earlier. Verdicts arrive
    /// only approximately in the order in which runs ended, so a success that was planned before the newest failure does not end a streak.
    pub(crate) fn note(&mut self, run: &CountedRun, before: Option<RunStatus>) {
        let was_counted = before.and_then(decides_failing) == Some(true);
        match run.status {
            RunStatus::Succeeded => {
                self.succeeded_at = self.succeeded_at.max(Some(run.fire_at));
                if self.failed_at.is_none_or(|failed_at| failed_at <= run.fire_at) {
                    (self.failing_since, self.streak) = (None, 0);
                }
            }
            RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown => {
                self.failed_at = self.failed_at.max(Some(run.fire_at));
                if self.succeeded_at.is_none_or(|succeeded_at| succeeded_at <= run.fire_at) {
                    let since = self.failing_since.map_or(run.fire_at, |since| since.min(run.fire_at));
                    let increment = u64::from(!was_counted);
                    (self.failing_since, self.streak) = (Some(since), self.streak.saturating_add(increment));
                }
            }
            RunStatus::Pending
            | RunStatus::Waiting
            | RunStatus::Running
            | RunStatus::Cancelled
            | RunStatus::Skipped => {}
        }
        (self.namespace, self.app) = (run.namespace, run.app);
    }

    /// Whether this run failed, and a run that was planned later has succeeded.
    pub(crate) fn is_outdated_failure(&self, run: &CountedRun) -> bool {
        decides_failing(run.status) == Some(true) && self.succeeded_at.is_some_and(|at| run.fire_at < at)
    }
}

/// The facts about a job's runs and its schedule from which the state of the job follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobActivity {
    pub job: JobId,
    /// Whether its newest verdict is a failure; cancelled and skipped runs do not count.
    pub is_failing: bool,
    /// Whether one of its runs or shards is `running`.
    pub is_running: bool,
    /// Whether none of its runs is open and its schedule will not fire again.
    pub is_over: bool,
}

/// Whether a job with this newest verdict is failing; `None` if the verdict does not show that.
#[must_use]
pub(crate) const fn decides_failing(status: RunStatus) -> Option<bool> {
    match status {
        RunStatus::Succeeded => Some(false),
        RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown => Some(true),
        RunStatus::Pending | RunStatus::Waiting | RunStatus::Running | RunStatus::Cancelled | RunStatus::Skipped => {
            None
        }
    }
}

/// Counts of runs that ended without success, among the newest rows of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnsuccessfulCounts {
    /// The counts by job and status, the greatest first. Cancelled runs are left out.
    pub counts: Vec<UnsuccessfulRuns>,
    /// Whether older rows were not read.
    pub is_cut: bool,
}

impl UnsuccessfulCounts {
    /// How many rows are read instead of these `row_count`, if cancelled runs take the place of older rows. Expects the counts of cancelled
    /// runs too.
    pub(crate) fn greater_row_count(&self, row_count: u32) -> Option<u32> {
        let cancelled_runs = self.counts.iter().filter(|runs| runs.status == RunStatus::Cancelled);
        let cancelled_count: u64 = cancelled_runs.map(|runs| runs.count).sum();
        let is_too_small = self.is_cut && cancelled_count > u64::from(row_count / 2);
        is_too_small.then(|| row_count.saturating_mul(CANCELLED_ROWS_FACTOR))
    }

    /// Leaves out the cancelled runs.
    pub(crate) fn without_cancelled(mut self) -> Self {
        self.counts.retain(|runs| runs.status != RunStatus::Cancelled);
        self
    }
}

/// If more than half of the rows that [`Rollups::unsuccessful_runs`] reads are cancelled runs, it reads this many times as many rows.
const CANCELLED_ROWS_FACTOR: u32 = 10;

/// How often a job's runs ended with one status other than success, among the newest rows of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsuccessfulRuns {
    pub job: JobId,
    /// How they ended.
    pub status: RunStatus,
    /// Whether they were skipped because no executor was available.
    pub had_no_executor: bool,
    /// Number of rows.
    pub count: u64,
    pub newest: RunId,
}

/// A run as a chart shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartRun {
    pub id: RunId,
    pub job: JobId,
    pub app: AppId,
    /// The planned instant.
    pub fire_at: Timestamp,
    pub status: RunStatus,
    /// When the handler began.
    pub started_at: Option<Timestamp>,
    /// When the verdict was made.
    pub finished_at: Option<Timestamp>,
    /// The executor that has or had it.
    pub executor: Option<String>,
    /// Number of fires that it stands for.
    pub span_count: i64,
    /// The last of those fires, if there are several.
    pub span_end_at: Option<Timestamp>,
    /// The broadcast of which it is a shard, or the run that it follows from.
    pub parent: Option<RunId>,
}

impl From<&Run> for ChartRun {
    fn from(run: &Run) -> Self {
        Self {
            id: run.id,
            job: run.job,
            app: run.app,
            fire_at: run.fire_at,
            status: run.status,
            started_at: run.started_at,
            finished_at: run.finished_at,
            executor: run.executor.clone(),
            span_count: run.span_count,
            span_end_at: run.span_end_at,
            parent: run.parent,
        }
    }
}

/// Open runs of one job that are late, or that take a long time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenJob {
    pub job: JobId,
    /// The first of these runs in the order of their ids.
    pub run: RunId,
    /// The earliest planned instant of these runs. A run that follows from others, belongs to a backfill or makes up for a missed fire counts
    /// by the instant at which it was due.
    pub fire_at: Timestamp,
    /// The earliest instant at which the handler of one of these runs began; `None` if none has begun.
    pub started_at: Option<Timestamp>,
}

/// Selects open runs.
#[derive(Clone, Copy, Debug)]
pub struct OpenQuery {
    pub namespace: NamespaceId,
    pub status: RunStatus,
    /// Only runs that are due no later than this instant.
    pub due_by: Timestamp,
    /// Only runs that were planned no later than this instant and have not begun after it.
    pub begun_by: Timestamp,
    /// Whether only first attempts are selected.
    pub first_attempts_only: bool,
    /// Maximum number of jobs per node, separately for its current lease and for its earlier leases.
    pub limit: u32,
}

/// A job whose next fire is in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComingJob {
    pub job: JobId,
    /// The version of its newest definition.
    pub version: i64,
    pub app: AppId,
    /// Its first fire that has no row.
    pub next_fire_at: Timestamp,
}

/// Reads what charts and overviews show.
#[async_trait]
pub trait Rollups {
    /// Points of these owners, sorted by owner and time. Buckets without runs are left out.
    async fn points(&self, query: &PointQuery<'_>) -> Result<Vec<StatPoint>>;

    /// Removes points of buckets that began before `before`; at most `limit`. Returns how many were removed.
    async fn forget_points(&self, kind: PointKind, step: Step, before: Timestamp, limit: u32) -> Result<u64>;

    /// The jobs of a namespace whose newest runs failed, the longest streak first, at most `limit`; deleted jobs are left out.
    async fn failing_jobs(
        &self,
        namespace: NamespaceId,
        within: Option<&[AppId]>,
        limit: u32,
    ) -> Result<Vec<NewestOutcomes>>;

    /// Reads the newest `row_count` rows of a namespace, from run `since` on, that ended without success, and counts them by job and
    /// status. Cancelled runs are not counted. If they take the place of other rows, ten times as many rows are read.
    async fn unsuccessful_runs(
        &self,
        namespace: NamespaceId,
        since: RunId,
        row_count: u32,
    ) -> Result<UnsuccessfulCounts>;

    /// Runs of these jobs for a chart, planned from `from` on and before `to`, without shards. The runs come job by job in the order of
    /// `jobs`, the newest of each job first, at most `limit` of each.
    async fn chart_runs(&self, jobs: &[JobId], from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<ChartRun>>;

    /// Runs and shards of a namespace for a chart, the newest first, at most `limit`. Their ids are at least `ids.0` and below `ids.1`.
    async fn chart_runs_of_namespace(
        &self,
        namespace: NamespaceId,
        ids: (RunId, RunId),
        limit: u32,
    ) -> Result<Vec<ChartRun>>;

    /// Open runs of a namespace with this status, node by node and job by job, at most `limit`; shards are left out.
    async fn open_chart_runs(&self, namespace: NamespaceId, status: RunStatus, limit: u32) -> Result<Vec<ChartRun>>;

    /// The jobs that have the selected open runs, the earliest planned instant first; shards are left out.
    async fn open_jobs(&self, query: OpenQuery) -> Result<Vec<OpenJob>>;

    /// The activity of these jobs, from which their states follow. The newest verdict is searched for among the runs planned from `since`
    /// on and the last run before them. If these have no verdict, the verdicts that were rolled up count. Jobs that do not exist are left
    /// out.
    async fn job_activity(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<JobActivity>>;

    /// Jobs of a namespace whose next fire is before `to`, the earliest first, at most `limit`.
    async fn coming_jobs(&self, namespace: NamespaceId, to: Timestamp, limit: u32) -> Result<Vec<ComingJob>>;

    /// Jobs of a namespace that rightly have no next fire and were saved before `before`, the newest first, at most `limit`: with their
    /// version and when they were saved. Such a job is paused, has no schedule, follows other jobs, fires no more, or has a fixed delay
    /// that begins when its open run ends.
    async fn idle_jobs(
        &self,
        namespace: NamespaceId,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<(JobId, i64, Timestamp)>>;
}

/// An addition to a point. If a verdict replaces an earlier one, the count of the earlier verdict is negative.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gain {
    /// Additions to the counts of the verdicts, in the order of [`verdict_index`].
    pub(crate) verdicts: [i64; 6],
    pub(crate) durations: Sketch,
    pub(crate) lateness: Sketch,
}

impl Gain {
    /// The verdicts of a point after this gain.
    pub(crate) fn added_to(&self, before: Verdicts) -> Verdicts {
        let counts =
            [before.succeeded, before.failed, before.timed_out, before.cancelled, before.unknown, before.skipped];
        let mut sums = counts.into_iter().zip(self.verdicts).map(|(count, gain)| count.saturating_add_signed(gain));
        let mut next_sum = || sums.next().unwrap_or(0);
        Verdicts {
            succeeded: next_sum(),
            failed: next_sum(),
            timed_out: next_sum(),
            cancelled: next_sum(),
            unknown: next_sum(),
            skipped: next_sum(),
        }
    }
}

/// The owner, the kind of owner, the length of the bucket, and its beginning.
pub(crate) type PointKey = (i64, PointKind, Step, Timestamp);

/// The additions of a batch of runs.
#[derive(Debug, Default)]
pub(crate) struct Gains {
    pub(crate) points: BTreeMap<PointKey, Gain>,
    /// Verdicts by job, in the order in which they are counted. Each comes with the verdict under which its run was counted before; `None`
    /// if the run was not counted.
    pub(crate) pulses: BTreeMap<JobId, Vec<(CountedRun, Option<RunStatus>)>>,
}

impl Gains {
    /// Counts a run that has a verdict. `before` is the verdict under which the run was counted before.
    pub(crate) fn add(&mut self, run: &CountedRun, before: Option<RunStatus>) {
        let Some(stat) = run.job_stat() else { return };
        let count = i64::try_from(stat.run_count).unwrap_or(i64::MAX);
        let owners = [
            (run.namespace.get(), PointKind::Namespace),
            (run.app.get(), PointKind::App),
            (run.job.get(), PointKind::Job),
        ];
        for (owner, kind) in owners {
            for step in kind.steps() {
                let gain = self.points.entry((owner, kind, *step, step.floor(run.fire_at))).or_default();
                for (status, count) in [(Some(stat.status), count), (before, -count)] {
                    if let Some(index) = status.and_then(verdict_index) {
                        gain.verdicts[index] += count;
                    }
                }
                if let Some(duration) = run.duration() {
                    gain.durations.add(duration);
                }
                if let Some(lateness) = run.lateness() {
                    gain.lateness.add(lateness);
                }
            }
        }
        self.pulses.entry(run.job).or_default().push((*run, before));
    }
}

/// The index of a verdict in the counts of a point.
const fn verdict_index(status: RunStatus) -> Option<usize> {
    match status {
        RunStatus::Succeeded => Some(0),
        RunStatus::Failed => Some(1),
        RunStatus::TimedOut => Some(2),
        RunStatus::Cancelled => Some(3),
        RunStatus::Unknown => Some(4),
        RunStatus::Skipped => Some(5),
        RunStatus::Pending | RunStatus::Waiting | RunStatus::Running => None,
    }
}
