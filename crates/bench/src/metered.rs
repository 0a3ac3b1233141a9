//! A wrapper around the store: it forwards every call, and records how long calls took, which fires were claimed, and
//! when their verdicts became durable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_core::{JobId, RunId, Timestamp};
use rondel_store::ledger::{AttemptEnd, ClaimJob, ClaimResult, EndOutcome, Ends, Finisher, RunCheck};
use rondel_store::{Result, SqlStore};
use tokio::time::Instant;

use crate::clock;
use crate::recorder::Window;

/// The durations of calls of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) call_count: u64,
    /// Rows passed to these calls; 0 where their number is not known.
    pub(crate) row_count: u64,
    /// The sum of the durations.
    pub(crate) total: Duration,
    /// The longest duration.
    pub(crate) max: Duration,
}

/// The fires of one instant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fires {
    /// Runs that were claimed for this instant.
    pub(crate) claimed_count: u64,
    /// Runs whose verdict became durable.
    pub(crate) durable_count: u64,
    /// How long after the instant the last verdict became durable, in microseconds.
    pub(crate) last_durable_micros: u64,
}

/// The observations. [`MeteredStore::begin`] clears only the timings of the calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics {
    /// The calls, by the method of the store.
    pub(crate) calls: BTreeMap<&'static str, Timing>,
    /// The fires, by their planned instants.
    pub(crate) fires: BTreeMap<Timestamp, Fires>,
    /// Verdicts that became durable, inside or outside of the window.
    pub(crate) stored_count: u64,
    /// Answers other than a stored verdict: duplicates, late results, refused ones, and ends that another attempt follows.
    pub(crate) other_answers: u64,
    /// Verdicts that became durable while the window was open.
    pub(crate) stored_in_window: u64,
    /// Claimed runs without a verdict, each with its planned instant.
    open_runs: HashMap<RunId, Timestamp>,
    window: Option<Window>,
    /// A job whose runs are not measured.
    ignored_job: Option<JobId>,
}

impl Metrics {
    /// The number of claimed runs without a verdict.
    pub(crate) fn open_count(&self) -> u64 {
        self.open_runs.len() as u64
    }
}

/// The store of the servers in a measurement.
#[derive(Debug)]
pub(crate) struct MeteredStore {
    inner: Arc<SqlStore>,
    metrics: Mutex<Metrics>,
}

impl MeteredStore {
    pub(crate) fn new(inner: Arc<SqlStore>) -> Self {
        Self { inner, metrics: Mutex::default() }
    }

    /// Opens the window: calls are counted from now on, and [`Metrics::stored_in_window`] rises only while the window lasts.
    pub(crate) fn begin(&self, window: Window) {
        let mut metrics = self.lock();
        metrics.calls.clear();
        metrics.window = Some(window);
    }

    /// Excludes the runs of this job.
    pub(crate) fn ignore_job(&self, job: JobId) {
        self.lock().ignored_job = Some(job);
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Metrics) -> T) -> T {
        read(&self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call and counts it under this name.
    async fn time_call<T>(
        &self,
        name: &'static str,
        row_count: usize,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let start = Instant::now();
        let result = call.await;
        let duration = start.elapsed();
        let mut metrics = self.lock();
        let timing = metrics.calls.entry(name).or_default();
        timing.call_count += 1;
        timing.row_count += row_count as u64;
        timing.total += duration;
        timing.max = timing.max.max(duration);
        result
    }

    fn inner(&self) -> &SqlStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, call: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.time_call(name, 0, call).await
    }

    fn note_claimed(&self, jobs: &[ClaimJob], result: &ClaimResult) {
        let mut metrics = self.lock();
        let won_jobs: HashMap<JobId, i64> = result.jobs.iter().copied().collect();
        let ignored_job = metrics.ignored_job;
        let is_counted =
            |job: &&ClaimJob| won_jobs.contains_key(&job.expected_row.job) && Some(job.expected_row.job) != ignored_job;
        for run in jobs.iter().filter(is_counted).flat_map(|job| &job.runs) {
            if !run.status.is_terminal() && !result.existing.contains(&run.id) {
                metrics.open_runs.insert(run.id, run.fire_at);
                metrics.fires.entry(run.fire_at).or_default().claimed_count += 1;
            }
        }
    }

    fn note_finished(&self, batch: &[AttemptEnd], outcomes: &[EndOutcome]) {
        let now = clock::now();
        let mut metrics = self.lock();
        let is_in_window = metrics.window.is_some_and(|window| window.contains(now));
        for (attempt_end, outcome) in batch.iter().zip(outcomes) {
            if Some(attempt_end.job) == metrics.ignored_job {
                continue;
            }
            if !matches!(outcome, EndOutcome::Stored(_, None)) {
                metrics.other_answers += 1;
                continue;
            }
            metrics.stored_count += 1;
            metrics.stored_in_window += u64::from(is_in_window);
            if let Some(fire_at) = metrics.open_runs.remove(&attempt_end.run) {
                let fires = metrics.fires.entry(fire_at).or_default();
                fires.durable_count += 1;
                let lateness_micros = u64::try_from(clock::micros_after(fire_at)).unwrap_or(0);
                fires.last_durable_micros = fires.last_durable_micros.max(lateness_micros);
            }
        }
    }
}

rondel_store::delegate_store!(MeteredStore {
    Claim {
        async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
            let result = self.time_call("claim", jobs.len(), self.inner.claim(token, jobs)).await?;
            self.note_claimed(jobs, &result);
            Ok(result)
        }
    }
    Finish {
        async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
            let ends = self.time_call("finish", batch.len(), self.inner.finish(finisher, batch)).await?;
            self.note_finished(batch, &ends.outcomes);
            Ok(ends)
        }
    }
    Dispatch {
        async fn note_running(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<()> {
            self.time_call("note_running", runs.len(), self.inner.note_running(token, runs)).await
        }
    }
    Runs {
        async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
            self.time_call("check_runs", ids.len(), self.inner.check_runs(ids)).await
        }
        async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
            self.time_call("runs", ids.len(), self.inner.runs(ids)).await
        }
    }
});
