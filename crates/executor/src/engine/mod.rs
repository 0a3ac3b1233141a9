//! The running executor: triggers become tasks, tasks become results, and loops do the periodic work.

mod ahead;
mod drain;
mod intake;
mod link;
pub(crate) mod loops;
mod pumps;
mod scripts;
mod silence;
mod sweep;
mod write_behind;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use rondel_proto::v1::{self, Fence, Hello, ProbeReplies, Probes, Triggers, Welcome};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{Instrument as _, Span};

use crate::attempt::{self, EndedAttempt};
use crate::catalog::Catalog;
use crate::host;
use crate::identity::Secret;
use crate::journal::{Journal, Predecessor};
use crate::lifecycle::lock;
use crate::run::{RunContext, StopCause};
use crate::session::Servers;
use crate::setup::Setup;
use crate::table::{LinkItem, RunKey, RunTable, TableLink as _};
use crate::trace;
use intake::{HeldRun, wire_result};
pub(crate) use link::Link;
pub(crate) use silence::{Silence, SilencePeriod, silence_limit};

/// A handler that still runs this long after its grace counts as stuck: a handler that yields would have been dropped at the
/// end of the grace.
const STUCK_MARGIN: Duration = Duration::from_secs(1);

/// How this executor identifies itself to servers.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) namespace: String,
    pub(crate) app: String,
    pub(crate) name: String,
    pub(crate) incarnation: i64,
    pub(crate) secret: Secret,
    pub(crate) predecessor: Predecessor,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) weight: u32,
    pub(crate) slots: u32,
}

pub(crate) struct Engine {
    pub(crate) setup: Arc<Setup>,
    catalog: Catalog,
    pub(crate) identity: Identity,
    pub(crate) servers: Servers,
    table: Mutex<RunTable<HeldRun, Link>>,
    journal: Option<Arc<Journal>>,
    /// Notified when the journal has work: results to write, acknowledged results to remove, or a welcome to store.
    journal_wake: Notify,
    /// Notified when a run has ended or a result was acknowledged: a drain may be waiting for it.
    settled_wake: Notify,
    /// Notified when a run arrived ahead of its instant.
    ahead_wake: Notify,
    next_link_id: AtomicU64,
    hello_count: AtomicU64,
    /// The runtime that handlers run on: the one that the executor was started on.
    handler_runtime: OnceLock<Handle>,
    /// The last problems reported for the declared jobs, so that each is logged once, whichever server reports it.
    logged_problems: Mutex<BTreeSet<String>>,
}

impl Engine {
    pub(crate) fn new(
        setup: Arc<Setup>,
        catalog: Catalog,
        identity: Identity,
        servers: Servers,
        journal: Option<(Journal, Vec<v1::Result>)>,
    ) -> Arc<Self> {
        let slots = usize::try_from(identity.slots).unwrap_or(usize::MAX);
        let mut table = RunTable::new(slots, setup.timing.resend_after, journal.is_some());
        let journal = journal.map(|(journal, results)| {
            results.into_iter().for_each(|result| table.outbox.restore(result));
            Arc::new(journal)
        });
        Arc::new(Self {
            setup,
            catalog,
            identity,
            servers,
            table: Mutex::new(table),
            journal,
            journal_wake: Notify::new(),
            settled_wake: Notify::new(),
            ahead_wake: Notify::new(),
            next_link_id: AtomicU64::new(1),
            hello_count: AtomicU64::new(0),
            handler_runtime: OnceLock::new(),
            logged_problems: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, RunTable<HeldRun, Link>> {
        lock(&self.table)
    }

    /// Makes handlers run on the runtime of the caller.
    pub(crate) fn run_handlers_here(&self) {
        self.handler_runtime.get_or_init(Handle::current);
    }
}

// Starting and ending runs.
impl Engine {
    fn start(self: &Arc<Self>, runs: Vec<HeldRun>) {
        for HeldRun(run) in runs {
            let engine = Arc::clone(self);
            let task = async move {
                let hard_stop = engine.setup.lifecycle.hard.clone();
                tokio::select! {
                    biased;
                    () = engine.run(run) => {}
                    () = hard_stop.cancelled() => {}
                }
            };
            self.setup.lifecycle.tracker.spawn_on(task, self.handler_runtime.get_or_init(Handle::current));
        }
    }

    async fn run(self: &Arc<Self>, run: RunContext) {
        let Some(handler) = self.catalog.handlers.get(run.handler()).cloned() else { return };
        self.enforce_silence_limit();
        rondel_failpoint::pass("executor.starting");
        let span = trace::span(&run);
        let execution = async {
            tracing::debug!("the run begins");
            let ended_attempt = attempt::execute(&run, handler).await;
            trace::record_end(&Span::current(), &run, &ended_attempt.ending);
            ended_attempt
        };
        let EndedAttempt { ending, started_at, finished_at } = execution.instrument(span).await;
        let result = wire_result(&run, &ending, (started_at.as_millis(), finished_at.as_millis()));
        rondel_failpoint::pass("executor.finished");
        let startable_runs = self.finish(&run, result);
        self.start(startable_runs);
        self.wake_waiters();
    }

    /// Records the end of a run, and returns the runs that can now start. A group's last report is sent before its
    /// result.
    fn finish(&self, run: &RunContext, result: v1::Result) -> Vec<HeldRun> {
        if run.order_mailbox().is_some() {
            self.send_reports();
        }
        let mut table = self.table();
        let startable_runs = table.finish(run.key(), result, now());
        let is_acked = !table.outbox.is_unacked(run.key());
        drop(table);
        if is_acked {
            self.setup.pump_reports.forget(run.key());
        }
        startable_runs
    }

    /// Stops all runs that match `is_match`, whether they run or wait for a slot.
    fn stop(&self, cause: &StopCause, is_match: impl Fn(&RunContext) -> bool) {
        let stopped_result =
            |run: &HeldRun| wire_result(run, &cause.ending(None), (0, self.setup.clock.now().as_millis()));
        for run in self.table().stop(|run: &HeldRun| is_match(run), stopped_result, now()) {
            run.stop(cause.clone());
        }
        self.wake_waiters();
    }

    /// If no server has answered for too long, stops the runs that must not continue in silence. This is also checked
    /// before each run begins: a paused process may resume just before that, when another executor already has the run.
    fn enforce_silence_limit(&self) {
        self.stop_runs_in_silence(self.setup.silence.exceeded_period(host::uptime()));
    }

    /// Stops each run whose own limit the silence has exceeded.
    fn stop_runs_in_silence(&self, silence: Option<SilencePeriod>) {
        let Some(SilencePeriod { limit, duration }) = silence else { return };
        self.stop(&StopCause::Silence { length: limit }, |run| run.silence_limit(limit) == Some(limit));
        // The message shows whole seconds, except for lengths under one second.
        let length = if duration < Duration::from_secs(1) { duration } else { Duration::from_secs(duration.as_secs()) };
        self.stop(&StopCause::Silence { length }, |run| {
            run.silence_limit(limit).is_some_and(|limit| limit <= duration)
        });
    }

    /// Reports a verdict for runs that should have ended but whose handlers block their threads. Aborts the tasks that these
    /// runs have spawned.
    fn end_stuck_runs(self: &Arc<Self>, now: Instant) {
        let mut table = self.table();
        let grace = self.setup.timing.cancel_grace + STUCK_MARGIN;
        let stuck_runs = table.take_stuck(now.into_std(), grace);
        for run in &stuck_runs {
            if run.stop_cause().is_none() {
                run.stop(StopCause::TimedOut { timeout: run.timeout().unwrap_or_default() });
            }
            let Some(cause) = run.stop_cause() else { continue };
            let ending = cause.stuck_ending(run.is_on_blocking_thread());
            run.log_line("error", &ending.message);
            run.end_tasks();
            let (_, started_at) = run.set_started();
            let started_and_finished_ms = (started_at.as_millis(), self.setup.clock.now().max(started_at).as_millis());
            table.conclude(run, wire_result(run, &ending, started_and_finished_ms), now.into_std());
        }
        let startable_runs = if stuck_runs.is_empty() { Vec::new() } else { table.take_startable(now.into_std()) };
        drop(table);
        for run in &stuck_runs {
            tracing::error!(
                run_id = %run.run_id(), job = run.job(), handler = run.handler(),
                "a handler does not yield: it holds its thread and its slot until it returns"
            );
        }
        if !stuck_runs.is_empty() {
            self.start(startable_runs);
            self.wake_waiters();
        }
    }

    /// Wakes the journal loop and a drain, after a result was made or acknowledged.
    fn wake_waiters(&self) {
        if self.journal.is_some() {
            self.journal_wake.notify_one();
        }
        self.settled_wake.notify_one();
    }
}

// Events from sessions.
impl Engine {
    pub(crate) fn hello(&self) -> Hello {
        let table = self.table();
        let (held, finished) = table.inventory();
        let connected_nodes = table.outbox.links().map(|link| link.node_id()).collect();
        drop(table);
        let identity = &self.identity;
        let (hello, left_out) = fit_hello(Hello {
            namespace: identity.namespace.clone(),
            app: identity.app.clone(),
            name: identity.name.clone(),
            incarnation: identity.incarnation,
            predecessor: identity.predecessor.incarnation,
            secret: identity.secret.bytes(),
            predecessor_secret: identity.predecessor.secret.bytes(),
            sdk_version: concat!("rondel-rust/", env!("CARGO_PKG_VERSION")).to_owned(),
            labels: identity.labels.clone().into_iter().collect(),
            weight: identity.weight,
            slots: identity.slots,
            handlers: self.catalog.handlers.keys().cloned().collect(),
            held,
            finished,
            declared: self.catalog.declared_jobs.clone(),
            handler_infos: self.catalog.handler_infos(),
            protocol: rondel_proto::PROTOCOL,
            process: if self.journal.is_none() { host::process() } else { None },
            ahead_max_ms: ahead::AHEAD_MAX_MS,
            hello_number: self.hello_count.fetch_add(1, Ordering::Relaxed) + 1,
            connected_nodes,
        });
        if !left_out.is_empty() {
            let left_out = left_out.join(" and ");
            tracing::warn!("this executor's hello is too large for one message; it leaves out {left_out}");
        }
        hello
    }

    /// Begins a session whose hello was sent at uptime `hello_at`; `None` if another session to the same node is alive.
    pub(crate) fn open_link(&self, welcome: &Welcome, hello_at: Duration) -> Option<Arc<Link>> {
        let now = now();
        self.stop_runs_in_silence(self.setup.silence.record_welcome(welcome.silence_ms, hello_at, host::uptime()));
        let mut table = self.table();
        if table.outbox.links().any(|link| link.node_id() == welcome.node_id) {
            return None;
        }
        welcome.fences.iter().for_each(|fence| table.fence(fence));
        let link = Link::new(self.next_link_id.fetch_add(1, Ordering::Relaxed), welcome.node_id);
        let link = Arc::new(link.with_silence_count(self.setup.silence.exceeded_count()));
        self.repeat_reports(&link);
        table.add_link(&link, now);
        // This server may lack the newest progress: progress is sent only on the streams that are open at that time.
        table.runs().for_each(|run| run.list_progress());
        drop(table);
        if let Some(journal) = &self.journal {
            journal.record_welcome();
            self.journal_wake.notify_one();
        }
        Some(link)
    }

    pub(crate) fn close_link(&self, link: &Link) {
        let logs = self.table().remove_link(link.id(), now());
        let Some(shipping) = &self.setup.shipping else { return };
        logs.into_iter().for_each(|log| shipping.mark_log(log));
    }

    /// Whether any server is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.table().outbox.links().next().is_some()
    }

    pub(crate) fn connected_nodes(&self) -> Vec<i64> {
        self.table().outbox.links().map(|link| link.node_id()).collect()
    }

    pub(crate) fn has_node(&self, node_id: i64) -> bool {
        self.table().outbox.links().any(|link| link.node_id() == node_id)
    }

    /// Records a message from a server. Returns false if this session must be reopened: no server answered for too
    /// long, either just before this message or earlier in the session, so other executors may have the runs that this
    /// server sent. In the first case, the runs that must not continue in silence are also stopped.
    pub(crate) fn record_heard(&self, link: &Link) -> bool {
        if link.silence_count != self.setup.silence.exceeded_count() {
            return false;
        }
        let exceeded_silence = self.setup.silence.record_heard(host::uptime());
        self.stop_runs_in_silence(exceeded_silence);
        exceeded_silence.is_none()
    }

    pub(crate) fn offer(self: &Arc<Self>, link: &Link, triggers: Triggers) {
        let is_ahead = triggers.triggers.iter().any(|trigger| trigger.start_in_us > 0);
        let startable_runs = self.table().offer(link, triggers, self.as_ref(), now());
        rondel_failpoint::pass("executor.accepted");
        self.start(startable_runs);
        if is_ahead {
            self.ahead_wake.notify_one();
        }
    }

    pub(crate) fn cancel(&self, cancels: &[v1::Cancel]) {
        for cancel in cancels {
            let key = RunKey::new(cancel.run_id, cancel.attempt);
            self.stop(&StopCause::Cancelled { by: cancel.by.clone() }, |run| run.key() == key);
        }
    }

    pub(crate) fn record_acks(&self, acks: &[v1::ResultAck]) {
        rondel_failpoint::pass("executor.acknowledged");
        self.table().record_acks(acks, now());
        self.forget_reports(acks);
        self.wake_waiters();
    }

    pub(crate) fn record_log_acks(&self, acks: &[v1::LogAck]) {
        self.table().record_log_acks(acks);
        self.settled_wake.notify_one();
    }

    pub(crate) fn fence(&self, link: &Link, fence: &Fence) {
        let mut table = self.table();
        table.fence(fence);
        table.answer_fence(link, fence, now());
    }

    pub(crate) fn probe(&self, link: &Link, probes: Probes) {
        let free_job_ids = self.table().free_jobs(probes.job_ids);
        link.push(LinkItem::Probe(ProbeReplies { probe_id: probes.probe_id, free_job_ids }));
    }

    /// Logs the problems of declared jobs. The server has registered the jobs for which it reports no problem.
    pub(crate) fn log_declaration_problems(&self, problems: &[v1::DeclarationProblem]) {
        let lines: BTreeSet<String> = problems
            .iter()
            .map(|problem| {
                format!(
                    "{:?}: {}{}{}",
                    problem.job,
                    problem.pointer,
                    if problem.pointer.is_empty() { "" } else { ": " },
                    problem.message
                )
            })
            .collect();
        let mut logged_problems = lock(&self.logged_problems);
        for line in lines.difference(&logged_problems) {
            tracing::error!("the server refused a job that this code declares: {line}");
        }
        *logged_problems = lines;
    }

    /// The numbers of running and of queued runs.
    pub(crate) fn load(&self) -> (u32, u32) {
        self.table().load()
    }
}

/// The current instant of the clock that the table uses.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// Drops the schemas of parameters if the hello would be larger than a server accepts: parameters are still checked when
/// a handler reads them. If that is not enough, also drops whether and when the held runs began. Returns the hello, and
/// what it leaves out.
fn fit_hello(mut hello: Hello) -> (Hello, Vec<&'static str>) {
    let is_too_large =
        |hello: &Hello| rondel_proto::encoded_len(hello) + HELLO_OVERHEAD > rondel_proto::MESSAGE_BYTES_MAX;
    let mut left_out = Vec::new();
    if is_too_large(&hello) && !hello.handler_infos.is_empty() {
        hello.handler_infos.clear();
        left_out.push("the schemas of its handlers' parameters");
    }
    if is_too_large(&hello) && !hello.held.is_empty() {
        // A run without these fields counts as begun, which is the safe assumption.
        for run in &mut hello.held {
            (run.not_begun, run.started_at_ms, run.running_ms) = (false, 0, 0);
        }
        left_out.push("when its runs began");
    }
    (hello, left_out)
}

/// Bytes that the message around a hello adds to the encoded size of the hello.
const HELLO_OVERHEAD: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// The hello of an executor that has the maximum of everything.
    #[test]
    fn the_largest_hello_fits_into_one_message() {
        let (run_id, started_at_ms, running_ms) = (i64::MAX, i64::MAX, i64::MAX);
        let largest = v1::RunRef { run_id, attempt: 1_000, not_begun: true, started_at_ms, running_ms };
        let refs = vec![largest; crate::table::INVENTORY_MAX / 2];
        let finished = vec![v1::RunRef { not_begun: false, started_at_ms: 0, running_ms: 0, ..largest }; refs.len()];
        let job = || v1::DeclaredJob { spec_json: "x".repeat(1024 * 1024 / 1_000) };
        let info = |n: usize| v1::HandlerInfo { name: format!("h{n}"), params_schema: "x".repeat(64 * 1024) };
        let hello = Hello {
            handlers: (0..600).map(|n| format!("{n:0100}")).collect(),
            held: refs,
            finished,
            declared: (0..1_000).map(|_| job()).collect(),
            handler_infos: (0..16).map(info).collect(),
            ..Hello::default()
        };
        let (fits, left_out) = fit_hello(hello.clone());
        assert!(rondel_proto::encoded_len(&fits) + HELLO_OVERHEAD <= rondel_proto::MESSAGE_BYTES_MAX);
        assert_eq!((fits.handler_infos.len(), fits.held.len(), fits.declared.len()), (0, hello.held.len(), 1_000));
        assert_eq!(left_out, ["the schemas of its handlers' parameters", "when its runs began"]);
        let without_schemas = Hello { handler_infos: Vec::new(), ..hello.clone() };
        assert_eq!(fit_hello(without_schemas).1, ["when its runs began"]);
        let usual = Hello { held: Vec::new(), finished: Vec::new(), declared: Vec::new(), ..hello };
        let (usual, left_out) = fit_hello(usual);
        assert_eq!((usual.handler_infos.len(), left_out.len()), (16, 0));
    }
}
