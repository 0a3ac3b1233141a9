//! One attempt of a run, for its handler and for the executor's tasks.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rondel_core::{JobId, RunId, Timestamp, TraceParent};
use rondel_proto::v1::Trigger;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::stop::{StopCause, StopCell};
use crate::engine::silence_limit;
use crate::lifecycle::lock;
use crate::log::RunLog;
use crate::masks::Masks;
use crate::pump::OrderMailbox;
use crate::pump::group::Limits;
use crate::setup::Setup;
use crate::shard::Shard;
use crate::table::RunKey;

/// The longest grace of a run that is stopped because no server answers. After the length of silence at which the run
/// stops, servers wait at least this long before they give up the run and start its successor.
const SILENCE_GRACE_MAX: Duration = Duration::from_secs(10);

/// A token that rises with each start of the job's runs, across servers and executors. Pass it to your own store, and
/// let the store refuse a token that is lower than one that it has seen: that protects against a run that was given up
/// as lost but is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken {
    /// Rises when another server takes over the job, and when the job's server acquires a new lease.
    pub term: i64,
    /// Rises with each start within a term.
    pub n: i64,
}

/// The run in which a handler is called. Cheap to clone.
///
/// ```
/// # use rondel::{RunContext, TestRun};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn export(run: RunContext) -> Result<String, rondel::JobError> {
///     Ok(format!("{} #{} due {}", run.job(), run.attempt(), run.fire_at()))
/// }
/// let fire_at = "2026-03-08T07:00:00Z".parse().unwrap();
/// let outcome = TestRun::of(export).job("export").fire_at(fire_at).run().await;
/// assert_eq!(outcome.result(), Some(&"export #1 due 2026-03-08T07:00:00Z".into()));
/// # }
/// ```
#[derive(Clone)]
pub struct RunContext {
    inner: Arc<Inner>,
}

struct Inner {
    key: RunKey,
    trigger: Trigger,
    setup: Arc<Setup>,
    log: Arc<RunLog>,
    stop: StopCell,
    progress: ProgressCell,
    /// The params with their secrets filled in; unset if they name no secret.
    resolved_params: OnceLock<String>,
    /// Tasks that end with the run; `None` once it has ended.
    tasks: Mutex<Option<Vec<AbortHandle>>>,
    /// Whether a blocking handler has begun on its thread, where it cannot be aborted.
    is_on_blocking_thread: AtomicBool,
    arrived_at: Instant,
    /// When the handler began, by this host's clock and by the server's.
    start_times: OnceLock<(Instant, Timestamp)>,
    /// The run's own span, if this program exports it.
    exported_span: OnceLock<TraceParent>,
    /// The mailbox for orders, if the run is a group of a pump job.
    order_mailbox: Option<Arc<OrderMailbox>>,
}

#[derive(Default)]
struct ProgressCell {
    is_reported: AtomicBool,
    /// Whether the run is in [`Setup::progressed_runs`].
    is_listed: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl RunContext {
    /// The id of the run, the same in all its attempts.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.inner.key.run
    }

    /// The number of the attempt, from 1.
    #[must_use]
    pub fn attempt(&self) -> i32 {
        self.inner.key.attempt
    }

    /// The name of the job that the run belongs to.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.inner.trigger.job
    }

    /// The id of the job that the run belongs to.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        JobId::new(self.inner.trigger.job_id)
    }

    /// The job's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.inner.trigger.namespace
    }

    /// The handler's name.
    #[must_use]
    pub fn handler(&self) -> &str {
        &self.inner.trigger.handler
    }

    /// The run's planned instant.
    #[must_use]
    pub fn fire_at(&self) -> Timestamp {
        Timestamp::from_millis(self.inner.trigger.fire_at_ms)
    }

    /// When this attempt was to start: `fire_at`, or later by jitter, backoff or queueing.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        Timestamp::from_millis(self.inner.trigger.due_at_ms)
    }

    /// Why the run exists: `cron`, `manual`, `api`, …
    #[must_use]
    pub fn trigger(&self) -> &str {
        &self.inner.trigger.trigger
    }

    /// The part of the fire's work that this run does.
    #[must_use]
    pub fn shard(&self) -> Shard {
        Shard::from_wire(self.inner.trigger.shard_index, self.inner.trigger.shard_total)
    }

    /// The shard's name, if the job names its shards.
    #[must_use]
    pub fn shard_name(&self) -> Option<&str> {
        let name = self.inner.trigger.shard_name.as_str();
        (!name.is_empty()).then_some(name)
    }

    /// The parameters that the job's definition gives this shard alone, as JSON text.
    pub(crate) fn shard_params(&self) -> &str {
        let params = self.inner.trigger.shard_params.as_str();
        if params.is_empty() { "null" } else { params }
    }

    /// The fencing token of this start of the run, for your own store.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        FencingToken { term: self.inner.trigger.fence_term, n: self.inner.trigger.fence_n }
    }

    /// How long the attempt may take; `None` for no limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        u64::try_from(self.inner.trigger.timeout_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis)
    }

    /// When the attempt's timeout ends; `None` for no limit.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let started_at = self.inner.start_times.get().map_or(self.inner.arrived_at, |(started_at, _)| *started_at);
        self.timeout().and_then(|timeout| started_at.checked_add(timeout))
    }

    /// The parent span for requests that the handler makes, to be sent as `traceparent`. It is the run's own span if
    /// the program exports traces, else the server's; `None` if the run is not traced.
    #[must_use]
    pub fn traceparent(&self) -> Option<TraceParent> {
        self.inner.exported_span.get().copied().or_else(|| self.server_span())
    }

    /// The run's parameters as JSON text, with secrets filled in; `null` if there are none.
    #[must_use]
    pub fn params(&self) -> &str {
        let params = self.inner.resolved_params.get().unwrap_or(&self.inner.trigger.params);
        if params.trim().is_empty() { "null" } else { params }
    }

    /// The value of this type that was given to the builder with [`state`](crate::Builder::state); `None` if there is
    /// none.
    #[must_use]
    pub fn state<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.inner.setup.states.get()
    }
}

// Used by the executor itself, not by handlers.
impl RunContext {
    pub(crate) fn new(setup: &Arc<Setup>, trigger: Trigger, link_id: u64) -> Self {
        let key = RunKey::new(trigger.run_id, trigger.attempt);
        let log = RunLog::new(key, link_id, setup.shipping.clone(), setup.log_limit);
        let order_mailbox = trigger.pump.is_some().then(Arc::default);
        Self {
            inner: Arc::new(Inner {
                key,
                trigger,
                setup: Arc::clone(setup),
                log,
                stop: StopCell::default(),
                progress: ProgressCell::default(),
                resolved_params: OnceLock::new(),
                tasks: Mutex::new(Some(Vec::new())),
                is_on_blocking_thread: AtomicBool::new(false),
                arrived_at: Instant::now(),
                start_times: OnceLock::new(),
                exported_span: OnceLock::new(),
                order_mailbox,
            }),
        }
    }

    pub(crate) fn key(&self) -> RunKey {
        self.inner.key
    }

    pub(crate) fn log(&self) -> &Arc<RunLog> {
        &self.inner.log
    }

    pub(crate) fn setup(&self) -> &Arc<Setup> {
        &self.inner.setup
    }

    pub(crate) fn log_line(&self, level: &'static str, text: &str) {
        self.inner.log.push(level, self.inner.setup.clock.now(), text);
    }

    pub(crate) fn masks(&self) -> &Masks {
        self.inner.log.masks()
    }

    pub(crate) fn tracker(&self) -> &TaskTracker {
        &self.inner.setup.lifecycle.tracker
    }

    pub(crate) fn blocking_permits(&self) -> &Arc<Semaphore> {
        &self.inner.setup.blocking_permits
    }

    /// How long all servers may be silent before the run stops, because another executor may then get the same work;
    /// `None` if the run continues. `limit` is the executor's limit, which the job can raise.
    pub(crate) fn silence_limit(&self, limit: Duration) -> Option<Duration> {
        silence_limit(&self.inner.trigger, limit)
    }

    pub(crate) fn set_params(&self, params: String) {
        // A run's params are resolved once, before its handler starts.
        self.inner.resolved_params.get_or_init(|| params);
    }

    /// The server's span from which the run was sent.
    pub(crate) fn server_span(&self) -> Option<TraceParent> {
        self.inner.trigger.traceparent.parse().ok()
    }

    #[cfg(feature = "opentelemetry")]
    pub(crate) fn set_exported_span(&self, exported_parent: TraceParent) {
        self.inner.exported_span.get_or_init(|| exported_parent);
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.inner.exported_span.get().is_some()
    }
}

// The start and the end of the attempt.
impl RunContext {
    /// Marks the handler as begun, unless it already is. Returns when it began, by this host's clock and by the
    /// server's.
    pub(crate) fn set_started(&self) -> (Instant, Timestamp) {
        let server_now = || self.inner.setup.clock.now_not_before(self.due_at());
        *self.inner.start_times.get_or_init(|| (Instant::now(), server_now()))
    }

    /// When the handler began, by the server's clock; `None` before that.
    pub(crate) fn started_at(&self) -> Option<Timestamp> {
        self.inner.start_times.get().map(|(_, started_at)| *started_at)
    }

    /// How long the handler has been running; `None` before it begins.
    pub(crate) fn running_for(&self) -> Option<Duration> {
        self.inner.start_times.get().map(|(started_at, _)| started_at.elapsed())
    }

    /// The delay between the trigger's arrival and the handler's start; zero before the start.
    pub(crate) fn start_delay(&self) -> Duration {
        let arrived_at = self.inner.arrived_at;
        self.inner.start_times.get().map_or(Duration::ZERO, |(started_at, _)| started_at.duration_since(arrived_at))
    }

    /// How long the run may take to end once it must stop. A cancelled group of a pump job may take as long as the
    /// hand-over of its items may take.
    pub(crate) fn stop_grace(&self) -> Duration {
        let grace = self.inner.setup.timing.cancel_grace;
        match (self.stop_cause(), self.pump_limits()) {
            (Some(StopCause::Cancelled { .. }), Some(limits)) => limits.hand_over,
            (Some(StopCause::Silence { .. }), _) => grace.min(SILENCE_GRACE_MAX),
            _ => grace,
        }
    }

    /// Whether the run should have ended: its timeout has passed, or it must stop. Callers add the ordinary grace. A
    /// cancelled group of a pump job has a longer grace, so this becomes true only when the difference between the two
    /// graces has passed since the stop.
    pub(crate) fn should_end(&self, now: Instant) -> bool {
        let extra_grace = self.stop_grace().saturating_sub(self.inner.setup.timing.cancel_grace);
        self.inner.stop.set_at().is_some_and(|at| now >= at + extra_grace)
            || self.deadline().is_some_and(|deadline| now >= deadline)
    }

    pub(crate) fn stop(&self, cause: StopCause) {
        self.inner.stop.set(cause);
    }

    pub(crate) fn stop_cause(&self) -> Option<&StopCause> {
        self.inner.stop.cause()
    }

    pub(crate) async fn wait_until_stopped(&self) {
        self.inner.stop.wait_until_stopped().await;
    }

    /// The cause of the stop, if there is one; marks it as read by the handler.
    pub(crate) fn read_stop_cause(&self) -> Option<&StopCause> {
        self.inner.stop.read_by_handler()
    }

    /// Whether the handler has read that it must stop.
    pub(crate) fn has_read_stop(&self) -> bool {
        self.inner.stop.is_read()
    }

    pub(crate) fn set_on_blocking_thread(&self) {
        self.inner.is_on_blocking_thread.store(true, Ordering::Relaxed);
    }

    /// Whether the handler is a blocking one and has begun: it cannot be aborted.
    pub(crate) fn is_on_blocking_thread(&self) -> bool {
        self.inner.is_on_blocking_thread.load(Ordering::Relaxed)
    }

    /// Whether the sweep reports the verdict of a run whose handler cannot be aborted. A test run has no sweep.
    pub(crate) fn has_sweep(&self) -> bool {
        self.inner.setup.shipping.is_some()
    }

    /// Registers a task that is aborted when the run ends. If the run has already ended, the task is aborted immediately: a
    /// handler that could not be aborted may still spawn tasks.
    pub(crate) fn register_task(&self, task: AbortHandle) {
        let mut tasks = lock(&self.inner.tasks);
        let Some(tasks) = tasks.as_mut() else { return task.abort() };
        if tasks.len() == tasks.capacity() {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(task);
    }

    pub(crate) fn end_tasks(&self) {
        let tasks = lock(&self.inner.tasks).take();
        for task in tasks.into_iter().flatten() {
            task.abort();
        }
    }
}

// The groups of pump jobs.
impl RunContext {
    /// The mailbox for the group's orders; `None` for an ordinary run.
    pub(crate) fn order_mailbox(&self) -> Option<&Arc<OrderMailbox>> {
        self.inner.order_mailbox.as_ref()
    }

    pub(crate) fn pump_limits(&self) -> Option<Limits> {
        self.inner.trigger.pump.as_ref().map(Limits::from)
    }
}

// The progress that handlers report.
impl RunContext {
    pub(crate) fn set_progress(&self, done_count: u64, total_count: u64) {
        let cell = &self.inner.progress;
        cell.done.store(done_count, Ordering::Relaxed);
        cell.total.store(total_count, Ordering::Relaxed);
        cell.is_reported.store(true, Ordering::Release);
        self.list_progress();
    }

    /// Lists the run among those whose progress is sent next, if its handler has reported progress.
    pub(crate) fn list_progress(&self) {
        let cell = &self.inner.progress;
        if cell.is_reported.load(Ordering::Acquire) && !cell.is_listed.swap(true, Ordering::AcqRel) {
            lock(&self.inner.setup.progressed_runs).push(self.key());
        }
    }

    /// Takes the newest numbers, for sending. If the handler sets new ones, the run is listed again.
    pub(crate) fn take_progress(&self) -> (u64, u64) {
        self.inner.progress.is_listed.store(false, Ordering::Release);
        self.progress().unwrap_or_default()
    }

    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let cell = &self.inner.progress;
        let numbers = || (cell.done.load(Ordering::Relaxed), cell.total.load(Ordering::Relaxed));
        cell.is_reported.load(Ordering::Acquire).then(numbers)
    }
}

impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("run_id", &self.run_id())
            .field("attempt", &self.attempt())
            .field("job", &self.job())
            .field("handler", &self.handler())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::{States, Timing};

    #[test]
    fn a_run_that_hears_no_server_ends_before_its_successor_begins() {
        let setup = |seconds| {
            let timing = Timing { cancel_grace: Duration::from_secs(seconds), ..Timing::default() };
            Arc::new(Setup::new(States::default(), timing))
        };
        let grace = |seconds, cause| {
            let run = RunContext::new(&setup(seconds), Trigger::default(), 0);
            run.stop(cause);
            run.stop_grace().as_secs()
        };
        let silence = || StopCause::Silence { length: Duration::from_secs(15) };
        assert_eq!((grace(60, silence()), grace(3, silence())), (SILENCE_GRACE_MAX.as_secs(), 3));
        assert_eq!((grace(60, StopCause::Drained), grace(3, StopCause::Drained)), (60, 3));
    }
}
