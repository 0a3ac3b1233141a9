//! One executor: its host with the disk, and the process that is started there repeatedly.

mod ahead;
mod group;
mod handler;
mod reports;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel::pump::mailbox::LastReports;
use rondel::table::{LinkItem, RunKey, RunTable, TableLink as _, TableRun as _};
use rondel_core::RunId;
use rondel_core::backoff::{backoff, with_jitter};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::server_message::Body as Down;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::handler::{result, stop_status, without_start};
use crate::link::{Arrival, Link, RefusedFences, RunHandle, StopCause};
use crate::node::{NodeHost, Stream};
use crate::process::Process;
use crate::truth::{AckedResult, Start};
use crate::world::{World, lock};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RESEND_AFTER: Duration = Duration::from_secs(1);
const SWEEP_PERIOD: Duration = Duration::from_millis(100);
const AHEAD_MAX_MS: u32 = 1_000;
const ANNOUNCE_AFTER: Duration = Duration::from_millis(500);
/// Stands for the time of the last message while no server has been heard yet. Until then, silence is not measured.
const NEVER_HEARD_MS: i64 = i64::MIN;

/// The current instant of the clock that the run table uses.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// The data that outlives a process, if there is a data directory.
#[derive(Debug, Default)]
struct Disk {
    results: BTreeMap<RunKey, v1::Result>,
    /// The number of the newest process.
    incarnation: i64,
    /// The last earlier process that a server welcomed; 0 once a server has welcomed the newest one.
    predecessor: i64,
    is_welcomed: bool,
}

pub(crate) struct ExecutorHost {
    /// The number of this executor in the world.
    pub(crate) index: usize,
    pub(crate) name: String,
    world: Arc<World>,
    nodes: Vec<Arc<NodeHost>>,
    pub(crate) app: String,
    slots: u32,
    /// Whether results outlive the process.
    has_disk: bool,
    disk: Mutex<Disk>,
    start_count: Mutex<i64>,
    running: Mutex<Option<Arc<Executor>>>,
}

/// One process on a host.
pub(crate) struct Executor {
    host: Arc<ExecutorHost>,
    process: Arc<Process>,
    incarnation: i64,
    predecessor: i64,
    table: Mutex<RunTable<RunHandle, Link>>,
    refused_fences: RefusedFences,
    /// The reports of its groups of pump jobs.
    reports: LastReports,
    /// When any server was last heard, in milliseconds since the world began.
    heard_ms: Mutex<i64>,
    /// The length of silence after which runs with `on_silence: stop` are stopped, from the last welcome.
    silence_limit: Mutex<Duration>,
    /// How many silences were too long and ended with a welcome. Messages on a stream that was opened before the end of
    /// the last such silence are ignored.
    silence_count: Mutex<u64>,
    next_link: Mutex<u64>,
    hello_count: AtomicU64,
    /// Notified when a run came ahead of its instant.
    ahead_wake: Notify,
}

impl ExecutorHost {
    pub(crate) fn new(world: &Arc<World>, index: usize, nodes: &[Arc<NodeHost>]) -> Arc<Self> {
        let mut rng = world.rng();
        let app = if index < world.profile.app_count { index } else { rng.index(world.profile.app_count) };
        let drawn_slots = u32::try_from(rng.between(1, 6)).unwrap_or(1);
        let slots = world.profile.slots.unwrap_or(drawn_slots);
        let has_disk = rng.happens(600_000);
        drop(rng);
        Arc::new(Self {
            index,
            name: format!("x{index}"),
            world: Arc::clone(world),
            nodes: nodes.to_vec(),
            app: format!("app{app}"),
            slots,
            has_disk,
            disk: Mutex::default(),
            start_count: Mutex::default(),
            running: Mutex::default(),
        })
    }

    pub(crate) fn start(self: &Arc<Self>) {
        let mut running = lock(&self.running);
        if running.as_ref().is_some_and(|executor| !executor.process.is_dead()) {
            return;
        }
        let mut start_count = lock(&self.start_count);
        *start_count += 1;
        let incarnation = *start_count * 1_000 + i64::try_from(self.index).unwrap_or(0) + 1;
        drop(start_count);
        let mut table = RunTable::new(usize::try_from(self.slots).unwrap_or(1), RESEND_AFTER, self.has_disk);
        let mut predecessor = 0;
        if self.has_disk {
            let mut disk = lock(&self.disk);
            predecessor = if disk.is_welcomed { disk.incarnation } else { disk.predecessor };
            (disk.incarnation, disk.predecessor, disk.is_welcomed) = (incarnation, predecessor, false);
            disk.results.values().for_each(|result| table.outbox.restore(result.clone()));
        }
        let executor = Arc::new(Executor {
            host: Arc::clone(self),
            process: Process::new(),
            incarnation,
            predecessor,
            table: Mutex::new(table),
            refused_fences: RefusedFences::default(),
            reports: LastReports::default(),
            heard_ms: Mutex::new(NEVER_HEARD_MS),
            silence_limit: Mutex::new(Duration::from_secs(15)),
            silence_count: Mutex::default(),
            next_link: Mutex::new(1),
            hello_count: AtomicU64::new(0),
            ahead_wake: Notify::new(),
        });
        *running = Some(Arc::clone(&executor));
        drop(running);
        self.world.record("executor starts", incarnation, || self.name.clone());
        for node in &self.nodes {
            let (dialler, node) = (Arc::clone(&executor), Arc::clone(node));
            executor.spawn(async move { dialler.dial(node).await });
        }
        let sweeper = Arc::clone(&executor);
        executor.spawn(async move { sweeper.sweep().await });
        // Needed even if no run is sent ahead: a server whose clock stepped back sends due runs with a delay.
        let starter = Arc::clone(&executor);
        executor.spawn(async move { starter.begin_due_loop().await });
        let reporter = Arc::clone(&executor);
        executor.spawn(async move { reporter.report_loop().await });
    }

    /// Drops the running executor. The executor and this host refer to each other, and would never be freed
    /// otherwise.
    pub(crate) fn drop_running(&self) {
        lock(&self.running).take();
    }

    pub(crate) fn start_later(self: &Arc<Self>, delay: Duration) {
        let host = Arc::clone(self);
        self.world.tracker.spawn(async move {
            sleep(delay).await;
            host.start();
        });
    }

    pub(crate) fn kill(&self) {
        let Some(executor) = lock(&self.running).take() else { return };
        self.world.record("executor is killed", executor.incarnation, String::new);
        executor.process.kill();
        let now = self.world.elapsed_ms();
        let mut truth = self.world.truth();
        let is_open = |start: &&mut Start| start.incarnation == executor.incarnation && start.ended_ms.is_none();
        truth.starts.iter_mut().filter(is_open).for_each(|start| start.ended_ms = Some(now));
        drop(truth);
        lock(&self.world.pumps).end_executions(executor.incarnation, now);
    }

    pub(crate) fn pause_for(&self, length: Duration) {
        let running = lock(&self.running).clone();
        let Some(executor) = running.filter(|executor| executor.process.is_running()) else { return };
        self.world.record("executor stops", executor.incarnation, || format!("for {length:?}"));
        let from = self.world.elapsed_ms();
        let length_ms = u64::try_from(length.as_millis()).unwrap_or(0);
        self.world.truth().executor_pauses.push((executor.incarnation, from, from + length_ms));
        self.world.pause_for(&executor.process, length);
    }

    pub(crate) fn resume(&self) {
        if let Some(executor) = lock(&self.running).as_ref() {
            executor.process.resume();
        }
    }
}

/// How long no server may answer before a run stops, as in the SDK.
fn silence_limit(trigger: &v1::Trigger, limit: Duration) -> Option<Duration> {
    if trigger.pump.is_some() {
        return Some(limit);
    }
    match trigger.on_silence() {
        v1::OnSilence::Unspecified => (trigger.serial || trigger.at_most_once).then_some(limit),
        v1::OnSilence::Stop => Some(limit),
        v1::OnSilence::Continue if mutant::on(Mutant::ContinueWithoutEnd) => None,
        v1::OnSilence::Continue => {
            let max = u64::try_from(trigger.silence_max_ms).ok().filter(|max| *max > 0);
            max.map(|max| Duration::from_millis(max).max(limit))
        }
    }
}

impl Executor {
    fn world(&self) -> &Arc<World> {
        &self.host.world
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let confined = self.process.confine(Box::pin(task));
        self.world().tracker.spawn(confined);
    }

    async fn dial(self: Arc<Self>, node: Arc<NodeHost>) {
        let mut failed_count = 0_u32;
        loop {
            let began = Instant::now();
            if let Some(stream) = self.connect(&node).await {
                self.session(&node, stream).await;
            }
            if began.elapsed() > Duration::from_secs(2) {
                failed_count = 0;
            }
            failed_count += 1;
            let wait = backoff(Duration::from_millis(100), Duration::from_secs(2), failed_count);
            let share = self.world().rng().between(0, 100) as f64 / 100.0;
            sleep(with_jitter(wait, share)).await;
        }
    }

    async fn connect(&self, node: &Arc<NodeHost>) -> Option<Stream> {
        use crate::net::Direction;
        let net = &self.world().net;
        let is_cut = |direction| net.cut_until(self.host.index, node.index, direction).is_some();
        if is_cut(Direction::Up) || is_cut(Direction::Down) {
            sleep(CONNECT_TIMEOUT).await;
            return None;
        }
        node.accept(self.host.index)
    }

    async fn session(self: &Arc<Self>, node: &NodeHost, (up, mut down): Stream) {
        let hello_ms = self.now_ms();
        let hello = v1::ExecutorMessage { body: Some(Body::Hello(self.hello())) };
        if up.send(hello).is_err() {
            return;
        }
        let Ok(Some(v1::ServerMessage { body: Some(Down::Welcome(welcome)) })) =
            timeout(CONNECT_TIMEOUT, down.recv()).await
        else {
            return;
        };
        let Some((link, silence_count)) = self.open_link(&welcome, &up, hello_ms) else { return };
        self.world().record("linked", self.incarnation, || format!("{} to n{}", self.host.name, node.index));
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms.into());
        let idle_timeout = heartbeat * 3 + Duration::from_secs(1);
        let mut beat = interval(heartbeat);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut sequence = 0;
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                biased;
                message = down.recv() => {
                    let Some(message) = message else { break };
                    heard = Instant::now();
                    let is_from_before = *lock(&self.silence_count) != silence_count;
                    if (self.is_silence_exceeded() || is_from_before) && !mutant::on(Mutant::NoSilenceRule) {
                        self.stop_runs_in_silence();
                        break;
                    }
                    self.heard_at(self.now_ms());
                    if let Some(body) = message.body {
                        self.handle_message(&link, body);
                    }
                }
                _ = beat.tick() => {
                    if heard.elapsed() > idle_timeout {
                        break;
                    }
                    sequence += 1;
                    let (running, queued) = lock(&self.table).load();
                    let beat = v1::Heartbeat { running, queued, sequence, ..v1::Heartbeat::default() };
                    if up.send(v1::ExecutorMessage { body: Some(Body::Heartbeat(beat)) }).is_err() {
                        break;
                    }
                }
            }
        }
        self.world().record("unlinked", self.incarnation, || format!("{} from n{}", self.host.name, node.index));
        lock(&self.table).remove_link(link.id, now());
    }

    fn hello(&self) -> v1::Hello {
        let (held, finished) = lock(&self.table).inventory();
        v1::Hello {
            namespace: "default".to_owned(),
            app: self.host.app.clone(),
            name: self.host.name.clone(),
            incarnation: self.incarnation,
            predecessor: self.predecessor,
            secret: self.incarnation.to_be_bytes().to_vec(),
            predecessor_secret: self.predecessor.to_be_bytes().to_vec(),
            weight: 1,
            slots: self.host.slots,
            handlers: vec!["h".to_owned()],
            protocol: rondel_proto::PROTOCOL,
            held,
            finished,
            ahead_max_ms: if self.world().profile.sends_ahead { AHEAD_MAX_MS } else { 0 },
            hello_number: self.hello_count.fetch_add(1, Ordering::Relaxed) + 1,
            ..v1::Hello::default()
        }
    }

    /// Opens a stream, and returns it with the number of silences before it. `None` if the node already has one.
    fn open_link(
        self: &Arc<Self>,
        welcome: &v1::Welcome,
        up: &tokio::sync::mpsc::UnboundedSender<v1::ExecutorMessage>,
        hello_ms: i64,
    ) -> Option<(Arc<Link>, u64)> {
        if self.is_silence_exceeded() && !mutant::on(Mutant::NoSilenceRule) {
            self.stop_runs_in_silence();
            *lock(&self.silence_count) += 1;
        }
        *lock(&self.silence_limit) = Duration::from_millis(welcome.silence_ms.into());
        // The server counts as heard when the hello was sent, because the welcome may have waited in the socket since.
        self.heard_at(hello_ms);
        let mut table = lock(&self.table);
        if table.outbox.links().any(|link| link.node_id == welcome.node_id) {
            return None;
        }
        welcome.fences.iter().for_each(|fence| table.fence(fence));
        let mut next = lock(&self.next_link);
        let id = *next;
        *next += 1;
        let refused_fences = Arc::clone(&self.refused_fences);
        let link = Arc::new(Link { id, node_id: welcome.node_id, up: up.clone(), refused_fences });
        self.repeat_reports(&link);
        table.add_link(&link, now());
        if self.host.has_disk {
            let mut disk = lock(&self.host.disk);
            (disk.is_welcomed, disk.predecessor) = (true, 0);
        }
        Some((link, *lock(&self.silence_count)))
    }

    /// Stops each run whose limit is shorter than the present silence.
    fn stop_runs_in_silence(self: &Arc<Self>) {
        let (limit, silent) = (*lock(&self.silence_limit), self.silence_length());
        self.stop(StopCause::Silence, |run| silence_limit(&run.trigger, limit).is_some_and(|limit| limit <= silent));
    }

    /// How long no server has been heard.
    fn silence_length(&self) -> Duration {
        let silent = self.now_ms() - *lock(&self.heard_ms);
        Duration::from_millis(u64::try_from(silent).unwrap_or(0))
    }

    /// Stops runs if no server has been heard for too long. This is also checked before each run begins, because the run
    /// may belong to another executor by now.
    fn enforce_silence_limit(self: &Arc<Self>) {
        if self.is_silence_exceeded() && !mutant::on(Mutant::NoSilenceRule) {
            self.stop_runs_in_silence();
        }
    }

    /// Whether no server has been heard for too long.
    fn is_silence_exceeded(&self) -> bool {
        let heard = *lock(&self.heard_ms);
        let silence = i64::try_from(lock(&self.silence_limit).as_millis()).unwrap_or(i64::MAX);
        heard != NEVER_HEARD_MS && self.now_ms() - heard >= silence
    }

    fn heard_at(&self, at_ms: i64) {
        let mut heard = lock(&self.heard_ms);
        *heard = at_ms.max(*heard);
    }

    fn now_ms(&self) -> i64 {
        i64::try_from(self.world().elapsed_ms()).unwrap_or(i64::MAX)
    }

    fn handle_message(self: &Arc<Self>, link: &Link, body: Down) {
        match body {
            Down::Triggers(triggers) => {
                self.world().record("triggers", self.incarnation, || {
                    let runs: Vec<_> = triggers.triggers.iter().map(|one| (one.run_id, one.attempt)).collect();
                    format!("{} of node {} epoch {}: {runs:?}", self.host.name, triggers.node_id, triggers.node_epoch)
                });
                let startable_runs = self.offer(link, triggers);
                self.begin(startable_runs);
                self.ahead_wake.notify_one();
            }
            Down::Cancels(cancels) => {
                for cancel in cancels.cancels {
                    let key = RunKey::new(cancel.run_id, cancel.attempt);
                    self.stop(StopCause::Cancelled, |run| run.key() == key);
                }
            }
            Down::ResultAcks(acks) => acks.acks.iter().for_each(|ack| self.record_ack(ack)),
            Down::Fence(fence) => {
                self.world().record("fence", self.incarnation, || format!("{} {fence:?}", self.host.name));
                let mut table = lock(&self.table);
                table.fence(&fence);
                table.answer_fence(link, &fence, now());
            }
            Down::Probes(probes) => {
                let free_job_ids = lock(&self.table).free_jobs(probes.job_ids);
                link.push(LinkItem::Probe(v1::ProbeReplies { probe_id: probes.probe_id, free_job_ids }));
            }
            Down::Welcome(_) | Down::HeartbeatReply(_) | Down::LogAcks(_) | Down::Drain(_) => {}
            Down::PumpOrders(orders) => self.pass_orders(orders),
            Down::DeclarationProblems(_) | Down::ScriptReply(_) => {}
        }
    }

    /// Ignores copies of triggers that were refused before. A server that sends such a run again gives its trigger
    /// another number.
    fn offer(&self, link: &Link, mut triggers: v1::Triggers) -> Vec<RunHandle> {
        triggers.triggers.retain(|trigger| !lock(&self.refused_fences).contains(&trigger.fence_n));
        let mut table = lock(&self.table);
        let origin = (triggers.node_id, triggers.node_epoch);
        let arrival = Arrival { origin, fenced_epoch: table.fenced_epoch(origin.0) };
        table.offer(link, triggers, &arrival, now())
    }

    fn record_ack(&self, ack: &v1::ResultAck) {
        let key = RunKey::new(ack.run_id, ack.attempt);
        let mut table = lock(&self.table);
        let unacked =
            table.outbox.unacked_result(key).map(|result| (result.status(), result.silent_ms > 0, result.unfinished));
        let Some((status, is_silenced, is_unfinished)) = unacked else { return };
        table.record_acks(std::slice::from_ref(ack), now());
        if table.get(key).is_none() {
            self.reports.forget(key);
        }
        drop(table);
        lock(&self.host.disk).results.remove(&key);
        self.world().record("acked", ack.run_id, || format!("{} {:?}", ack.attempt, ack.kind()));
        let (run, attempt) = (RunId::new(ack.run_id), ack.attempt);
        self.world().truth().acked_results.push(AckedResult {
            run,
            attempt,
            status,
            kind: ack.kind(),
            is_silenced,
            is_unfinished,
        });
    }

    fn begin(self: &Arc<Self>, runs: Vec<RunHandle>) {
        for run in runs {
            let executor = Arc::clone(self);
            self.spawn(async move { executor.run_handler(run.key()).await });
        }
    }

    fn stop(self: &Arc<Self>, cause: StopCause, is_match: impl Fn(&RunHandle) -> bool) {
        let make_result =
            |run: &RunHandle| without_start(result(&run.trigger, stop_status(cause), self.world().now()), cause);
        let running = lock(&self.table).stop(is_match, make_result, now());
        running.iter().for_each(|run| run.stop(cause));
        self.write_journal();
    }

    async fn sweep(self: Arc<Self>) {
        let mut period = interval(SWEEP_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            period.tick().await;
            let mut table = lock(&self.table);
            table.outbox.resend_due(now());
            table.refuse_expired(now());
            table.announce_started(now(), ANNOUNCE_AFTER);
            drop(table);
            self.enforce_silence_limit();
        }
    }
}
