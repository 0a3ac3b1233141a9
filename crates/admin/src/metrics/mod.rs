//! Metrics for operators: counted in memory where the events occur, and formatted only when they are read, by `exposition`.
//!
//! Rare events, whose counts are 0 in a quiet cluster, are counted by [`crate::Counters`] alone, and read from there.

mod histogram;
mod jobs;
mod labelled;
mod lateness;
mod limits;
mod namespaces;
mod xxl;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rondel_core::outcome::{NextStep, Outcome};
use rondel_core::{JobId, NamespaceId, Run, RunId, RunStatus, Timestamp};
use rondel_store::ledger::{AttemptEnd, EndOutcome};

use crate::definitions::CompiledDefinition;
use crate::dispatch::ReadyRun;

pub(crate) use histogram::{Histogram, HistogramSnapshot};
pub(crate) use jobs::{JobSeries, JobSeriesTable, JobSnapshot};
pub use labelled::label_name;
pub(crate) use labelled::{LabelledCounts, LabelledRuns};
pub(crate) use lateness::RecentLateness;
pub use limits::Limit;
pub(crate) use limits::Limits;
pub(crate) use namespaces::{FireOutcome, NamespaceCounts, Namespaces};
pub(crate) use xxl::XxlCalls;
pub use xxl::{XxlCall, XxlOutcome};

/// The metrics of one node since its start.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// The delay between the due instant of a scheduled fire and its release.
    pub(crate) fire_lateness: Histogram,
    /// The delay between the due instant of a run and its sending.
    pub(crate) run_queue: Histogram,
    /// Duration of handlers.
    pub(crate) run_duration: Histogram,
    /// The delay between the sending of a run and the executor's acceptance.
    pub(crate) accept_delay: Histogram,
    /// The delay between the sending of a run and the executor's refusal.
    pub(crate) refuse_delay: Histogram,
    pub(crate) tick: Histogram,
    pub(crate) scan: Histogram,
    /// Time until a batch of results is durable.
    pub(crate) results_written: Histogram,
    /// Answers of the API and the console, by the first digit of their status.
    pub(crate) requests: [AtomicU64; 5],
    pub(crate) request_duration: Histogram,
    /// How often the port turned a client away or disconnected it.
    pub(crate) limits: Limits,
    /// Calls by XXL-JOB executors.
    pub(crate) xxl: XxlCalls,
    pub(crate) log_bytes: AtomicU64,
    pub(crate) log_lines_dropped: AtomicU64,
    /// Messages that a channel or a failure webhook accepted.
    pub(crate) alerts_delivered: AtomicU64,
    /// Failed tries to deliver a message that is tried again.
    pub(crate) alerts_refused: AtomicU64,
    /// Messages that are not tried any more: they were refused permanently, or are too old.
    pub(crate) alerts_given_up: AtomicU64,
    /// The number of runs that executors have.
    pub(crate) runs_active: AtomicU64,
    /// The number of runs that are due and wait.
    pub(crate) runs_queued: AtomicU64,
    pub(crate) runs_in_memory: RunsInMemory,
    /// When the last scan that could claim fires completed; until the first such scan, when the node started.
    scanned_at_ms: AtomicI64,
}

/// The number of open runs in each place of the node's memory.
#[derive(Debug, Default)]
pub(crate) struct RunsInMemory {
    /// Waiting in the time ring.
    pub(crate) ring: AtomicU64,
    /// Waiting for earlier runs of their job, by its overlap policy.
    pub(crate) gates: AtomicU64,
    /// Waiting for a shared limit.
    pub(crate) limits: AtomicU64,
    /// Waiting for an executor.
    pub(crate) parked: AtomicU64,
    /// Adopted, and waiting until executors have reported which of these runs they have.
    pub(crate) roll_call: AtomicU64,
}

impl Metrics {
    /// The metrics of a node that starts now.
    pub(crate) fn starting_at(now: Timestamp) -> Self {
        Self {
            fire_lateness: Histogram::new(histogram::LATENESS_ENDS_MS),
            run_queue: Histogram::new(histogram::LATENESS_ENDS_MS),
            run_duration: Histogram::new(histogram::WORK_ENDS_MS),
            accept_delay: Histogram::new(histogram::STEP_ENDS_MS),
            refuse_delay: Histogram::new(histogram::STEP_ENDS_MS),
            tick: Histogram::new(histogram::STEP_ENDS_MS),
            scan: Histogram::new(histogram::STEP_ENDS_MS),
            results_written: Histogram::new(histogram::STEP_ENDS_MS),
            requests: Default::default(),
            request_duration: Histogram::new(histogram::STEP_ENDS_MS),
            limits: Limits::default(),
            xxl: XxlCalls::default(),
            log_bytes: AtomicU64::new(0),
            log_lines_dropped: AtomicU64::new(0),
            alerts_delivered: AtomicU64::new(0),
            alerts_refused: AtomicU64::new(0),
            alerts_given_up: AtomicU64::new(0),
            runs_active: AtomicU64::new(0),
            runs_queued: AtomicU64::new(0),
            runs_in_memory: RunsInMemory::default(),
            scanned_at_ms: AtomicI64::new(now.as_millis()),
        }
    }
}

/// The count, in the type of the counters.
pub(crate) fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Data about an ended attempt that the metrics need in addition to its [`AttemptEnd`].
#[derive(Clone, Debug)]
pub(crate) struct CountedRun {
    definition: Arc<CompiledDefinition>,
    /// Whether the run represents a whole fire of which no part was ever sent.
    is_unsent_fire: bool,
    trigger: rondel_core::Trigger,
    fire_at: Timestamp,
    /// Whether the run is not a shard of a larger fire.
    is_whole_fire: bool,
}

impl CountedRun {
    /// The data of a run of which no attempt was sent, as far as this node knows.
    pub(crate) fn of(run: &Run, definition: &Arc<CompiledDefinition>) -> Self {
        let is_unsent_fire = run.attempt == 1 && (run.is_root() || is_whole(run, definition));
        let is_whole_fire = run.is_root() || run.shard_total.is_none_or(|total| total <= 1);
        let (trigger, fire_at) = (run.trigger, run.fire_at);
        Self { definition: Arc::clone(definition), is_unsent_fire, trigger, fire_at, is_whole_fire }
    }

    /// The job and the planned instant of a fire that succeeded, if the job has expectations. A run that still awaits its children, one of
    /// `awaiting_runs`, has not succeeded yet.
    pub(crate) fn expected_success(
        &self,
        end_outcome: &EndOutcome,
        awaiting_runs: &[(JobId, RunId)],
    ) -> Option<(NamespaceId, JobId, Timestamp)> {
        let definition = &self.definition;
        let has_ended =
            matches!(end_outcome, EndOutcome::Stored(NextStep::Verdict { status: RunStatus::Succeeded, .. }, _));
        let has_succeeded = has_ended && !awaiting_runs.iter().any(|(job, _)| *job == definition.id);
        let is_expected = definition.job.expect.is_some() && self.is_whole_fire;
        (has_succeeded && is_expected).then_some((definition.namespace, definition.id, self.fire_at))
    }

    /// The job, if it is a pump job.
    pub(crate) fn pump_job(&self) -> Option<JobId> {
        self.definition.job.pump.is_some().then_some(self.definition.id)
    }

    pub(crate) fn of_ready(ready: &ReadyRun) -> Self {
        let counted_run = Self::of(&ready.run, &ready.definition);
        Self { is_unsent_fire: counted_run.is_unsent_fire && !ready.was_sent, ..counted_run }
    }
}

/// Whether the run is the only one of its fire. A fire with a single shard does not count: its shard has the same fields, but the fire has
/// its own row.
fn is_whole(run: &Run, definition: &CompiledDefinition) -> bool {
    let has_shards = definition.job.is_sharded() || definition.job.pump.is_some();
    run.shard_index == 0 && run.shard_total == Some(1) && !has_shards
}

impl Metrics {
    /// Sets the number of runs that executors have, and the number of runs that are due and wait.
    pub(crate) fn show_runs(&self, active: u64, queued: u64) {
        self.runs_active.store(active, Ordering::Relaxed);
        self.runs_queued.store(queued, Ordering::Relaxed);
    }

    /// Records a scan that could claim fires.
    pub(crate) fn record_scan(&self, now: Timestamp) {
        self.scanned_at_ms.store(now.as_millis(), Ordering::Relaxed);
    }

    pub(crate) fn scanned_at(&self) -> Timestamp {
        Timestamp::from_millis(self.scanned_at_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn count_answer(&self, status: u16, length: Duration) {
        if let Some(count) = self.requests.get(usize::from(status / 100).saturating_sub(1)) {
            add(count, 1);
        }
        self.request_duration.observe(length);
    }

    /// Counts a run that is sent to an executor.
    pub(crate) fn count_sent(&self, ready: &ReadyRun, now: Timestamp) {
        let run = &ready.run;
        self.run_queue.observe(now.since(run.due_at));
        if run.attempt == 1 && !ready.was_sent && is_whole(run, &ready.definition) {
            ready.definition.counts.count_fires(run.trigger, FireOutcome::Dispatched, 1);
        }
    }

    /// Counts the end of an attempt, if it was stored.
    pub(crate) fn count_end(&self, attempt_end: &AttemptEnd, counted_run: &CountedRun, end_outcome: &EndOutcome) {
        let EndOutcome::Stored(next_step, _) = end_outcome else { return };
        let counts = &counted_run.definition.counts;
        match next_step {
            NextStep::Retry { reason, .. } => counts.count_retry(*reason),
            NextStep::Verdict { status, .. } => {
                counts.count_run(*status);
                if let Some(label_counts) = &counted_run.definition.labelled_counts {
                    label_counts.count_run(*status);
                }
                if let Some(series) = &counted_run.definition.job_series {
                    series.record_verdict(*status, attempt_end.finished_at);
                }
            }
        }
        if attempt_end.executor.is_none()
            && counted_run.is_unsent_fire
            && let Some(outcome) = FireOutcome::of_unsent(attempt_end.outcome)
        {
            counts.count_fires(counted_run.trigger, outcome, 1);
        }
        // The real end of a lost run is unknown, so its duration is not observed.
        if let Some(started_at) = attempt_end.started_at.filter(|_| !matches!(attempt_end.outcome, Outcome::Lost(_))) {
            self.run_duration.observe(attempt_end.finished_at.since(started_at));
        }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::Reason;
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    #[test]
    fn the_only_shard_of_a_fire_is_no_further_fire() {
        let metrics = Metrics::starting_at(Timestamp::EPOCH);
        for (spec, expected) in [(json!({}), 1), (json!({"shards": 1}), 0), (json!({"route": "broadcast"}), 0)] {
            let definition = definition(&spec);
            let mut sent = ready(5, &definition);
            (sent.run.shard_index, sent.run.shard_total) = (0, Some(1));
            metrics.count_sent(&sent, Timestamp::from_secs(6));
            let count: u64 = definition.counts.read_fires().map(|(.., count)| count).sum();
            assert_eq!((count, CountedRun::of_ready(&sent).is_unsent_fire), (expected, expected == 1), "{spec}");
        }
    }

    #[test]
    fn a_run_that_awaits_its_children_meets_no_expectation_yet() {
        let ready = ready(9, &definition(&json!({"over": "children", "expect": {"no_success_for": "1h"}})));
        let counted = CountedRun::of_ready(&ready);
        let ended = |status, reason| EndOutcome::Stored(NextStep::Verdict { status, reason }, None);
        let (run, succeeded) = (&ready.run, ended(RunStatus::Succeeded, None));
        let expected = Some((run.namespace, run.job, run.fire_at));
        assert_eq!(counted.expected_success(&succeeded, &[]), expected);
        assert_eq!(counted.expected_success(&succeeded, &[(JobId::new(2), run.id)]), expected);
        assert_eq!(counted.expected_success(&succeeded, &[(run.job, run.id)]), None);
        let skipped = ended(RunStatus::Skipped, Some(Reason::NoExecutor));
        assert_eq!(counted.expected_success(&skipped, &[]), None);
    }
}
