//! The engine: its loops put together, and the handle that the edges hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rondel_core::calendar::Rule;
use rondel_core::homes::Switch;
use rondel_core::run::BROADCAST;
use rondel_core::{AppId, FieldError, Job, JobSpec, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::ledger::RunQuery;
use rondel_store::{LeaseToken, Store, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use crate::alert::AlertLoop;
use crate::clock::Clock;
use crate::cluster::{
    AdoptLoop, AppSwitches, BeatLoop, DatabaseTrouble, DatabaseWatch, Departing, Membership, MoveLoop, join, leave,
};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::declared::{Board, DeclarationProblem, DeclareLoop};
use crate::definitions::{Compiled, Definitions, Key};
use crate::dispatch::results::{ResultLanes, ResultLoop};
use crate::dispatch::steps::{STEP_CAPACITY, StepLoop};
use crate::dispatch::{self, DispatchLoop, Event};
use crate::gateway::{GatewayService, LogLoop, LogReader, LogReaders, LogWriter, Pass, SentRuns, Service};
use crate::housekeeping::HousekeepingLoop;
use crate::lifecycle::{Lifecycle, Until};
use crate::metrics::{self, Limit, Metrics};
use crate::progress::{Progress, ProgressBoard};
use crate::registry::{OnlineExecutor, OnlineName, Registry};
use crate::scheduler::heal::HealLoop;
use crate::scheduler::in_memory::{Awaiting, InMemory};
use crate::scheduler::scan::ScanLoop;
use crate::scheduler::share::ClaimCounts;
use crate::scheduler::tick::{Command, TickLoop};

const EVENT_CAPACITY: usize = 4_096;
const COMMAND_CAPACITY: usize = 1_024;
/// Shards of one broadcast that a cancel reaches.
const SHARD_COUNT_MAX: u32 = 10_000;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A living node has this node's name.
    #[error("another server is running as node {name:?}; give each its own --node-name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the loops share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: EngineConfig,
    pub(crate) clock: Clock,
    pub(crate) membership: Membership,
    pub(crate) definitions: Definitions,
    pub(crate) in_memory: InMemory,
    pub(crate) awaiting: Awaiting,
    pub(crate) registry: Registry,
    pub(crate) progress: ProgressBoard,
    pub(crate) log_readers: LogReaders,
    pub(crate) sent_runs: SentRuns,
    pub(crate) counters: Counters,
    pub(crate) metrics: Metrics,
    pub(crate) declared: Board,
    pub(crate) results: ResultLanes,
    pub(crate) scan_poke: Notify,
    pub(crate) adopt_poke: Notify,
    pub(crate) tick: mpsc::Sender<Command>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) beat_poke: Notify,
    pub(crate) database: DatabaseWatch,
    pub(crate) apps: AppSwitches,
    pub(crate) departing: Departing,
    pub(crate) claims: ClaimCounts,
    /// Until when jobs are quiet, since the database's clock stepped back; in milliseconds.
    quiet_until_ms: AtomicI64,
    pub(crate) draining: AtomicBool,
    /// What was open when this node started has been looked for.
    adopted: AtomicBool,
}

impl Shared {
    /// The scan may begin: what it claims comes after what was open already.
    pub(crate) fn note_adopted(&self) {
        if !self.adopted.swap(true, Ordering::AcqRel) {
            self.scan_poke.notify_one();
        }
    }

    pub(crate) fn has_adopted(&self) -> bool {
        self.adopted.load(Ordering::Acquire)
    }

    /// Puts durable open runs into the ring, unless they are in memory already.
    pub(crate) async fn put(&self, runs: Vec<Run>) {
        let new = self.in_memory.admit(runs);
        if !new.is_empty() {
            // A closed ring means that the process ends: the runs are durable.
            drop(self.tick.send(Command::Put(new)).await);
        }
    }

    /// The same of runs some of which may be another home's: that one finds them.
    pub(crate) async fn put_own(&self, runs: Vec<Run>) {
        let token = self.membership.token();
        self.put(runs.into_iter().filter(|run| (run.node, run.node_epoch) == (token.node, token.epoch)).collect())
            .await;
    }

    /// The shards of a broadcast that have no verdict yet.
    pub(crate) async fn open_shards(&self, root: &Run) -> Result<Vec<Run>, StoreError> {
        if root.shard_index != BROADCAST || root.shard_total.is_none() {
            return Ok(Vec::new());
        }
        let query = RunQuery { parent: Some(root.id), limit: SHARD_COUNT_MAX, ..RunQuery::default() };
        let mut shards = self.store.list_runs(root.namespace, &query).await?;
        shards.retain(|shard| !shard.status.is_terminal());
        Ok(shards)
    }

    /// When a loop first looks: nodes that start together do so at different moments of the period.
    pub(crate) fn first_look(&self, period: Duration) -> Duration {
        let token = self.membership.token();
        let epoch = i32::try_from(token.epoch).unwrap_or(i32::MAX);
        period.mul_f64(0.1 + 0.9 * dispatch::jitter(RunId::new(token.node.get()), epoch))
    }

    pub(crate) fn lane_count(&self) -> usize {
        if self.store.is_single_server() { 1 } else { self.config.lanes.max(1) }
    }

    /// Whether this process is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The database's clock stepped back: nothing is due again before it has come to where it was.
    pub(crate) fn note_quiet(&self, until: Timestamp) {
        self.quiet_until_ms.fetch_max(until.as_millis(), Ordering::Relaxed);
    }

    /// The latest that the database's clock is known to have been: the present, unless it stepped back.
    pub(crate) fn reached(&self) -> Timestamp {
        self.quiet_until().unwrap_or_else(|| self.clock.now())
    }

    fn quiet_until(&self) -> Option<Timestamp> {
        let until = Timestamp::from_millis(self.quiet_until_ms.load(Ordering::Relaxed));
        (until > self.clock.now()).then_some(until)
    }
}

/// Whether a node does its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Its lease holds.
    pub lease_held: bool,
    /// What was open when it started is known to it.
    pub knows_open_runs: bool,
    /// It is on its way out.
    pub draining: bool,
    /// What is wrong with the database, where the last beat was not answered.
    pub database: Option<DatabaseTrouble>,
    /// The node's switch.
    pub switch: Switch,
    /// Jobs are quiet until then, because the database's clock stepped back.
    pub quiet_until: Option<Timestamp>,
}

/// The handle of a running engine.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    gateway: GatewayService,
    lifecycle: Lifecycle,
}

impl Engine {
    /// Takes the node's lease and starts the loops. They end with the lifecycle: scan, tick and adoption when it is
    /// asked, the others when it insists.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(store: Arc<dyn Store>, config: EngineConfig, lifecycle: &Lifecycle) -> Result<Self, StartError> {
        let membership = join(store.as_ref(), &config).await?;
        let clock = Clock::starting_at(store.now().await?, config.boot.clone());
        let (events, event_queue) = mpsc::channel(EVENT_CAPACITY);
        let (tick, commands) = mpsc::channel(COMMAND_CAPACITY);
        let (steps, step_queue) = mpsc::channel(STEP_CAPACITY);
        let (logs, log_queue) = LogWriter::new();
        let lane_count = if store.is_single_server() { 1 } else { config.lanes };
        let (results, lanes) = ResultLanes::new(lane_count);
        let definitions = Definitions::new(config.metrics_job_max);
        let shared = Arc::new(Shared {
            store,
            config,
            clock,
            membership,
            definitions,
            in_memory: InMemory::default(),
            awaiting: Awaiting::default(),
            registry: Registry::default(),
            progress: ProgressBoard::default(),
            log_readers: LogReaders::default(),
            sent_runs: SentRuns::default(),
            counters: Counters::default(),
            metrics: Metrics::default(),
            declared: Board::default(),
            results,
            scan_poke: Notify::new(),
            adopt_poke: Notify::new(),
            tick,
            events: events.clone(),
            beat_poke: Notify::new(),
            database: DatabaseWatch::default(),
            apps: AppSwitches::default(),
            departing: Departing::default(),
            claims: ClaimCounts::default(),
            quiet_until_ms: AtomicI64::new(0),
            draining: AtomicBool::new(false),
            adopted: AtomicBool::new(false),
        });
        let (soft, hard) = (&lifecycle.soft, &lifecycle.hard);
        let beat = BeatLoop::new(Arc::clone(&shared));
        lifecycle.spawn("beat", Until::Hard, beat.run(hard.clone()));
        let dispatch = DispatchLoop::new(Arc::clone(&shared), event_queue, steps);
        lifecycle.spawn("dispatch", Until::Hard, dispatch.run(hard.clone()));
        let step_loop = StepLoop::new(Arc::clone(&shared), step_queue, events.clone());
        lifecycle.spawn("steps", Until::Hard, step_loop.run(hard.clone()));
        for lane in lanes {
            let result_loop = ResultLoop::new(Arc::clone(&shared), lane, events.clone());
            lifecycle.spawn("results", Until::Hard, result_loop.run(hard.clone()));
        }
        let log_loop = LogLoop::new(Arc::clone(&shared), log_queue);
        lifecycle.spawn("logs", Until::Hard, log_loop.run(hard.clone()));
        let tick_loop = TickLoop::new(Arc::clone(&shared), commands, events.clone());
        lifecycle.spawn("tick", Until::Soft, tick_loop.run(soft.clone()));
        let scan = ScanLoop::new(Arc::clone(&shared));
        lifecycle.spawn("scan", Until::Soft, scan.run(soft.clone()));
        let adopt = AdoptLoop::new(Arc::clone(&shared));
        lifecycle.spawn("adopt", Until::Soft, adopt.run(soft.clone()));
        let moves = MoveLoop::new(Arc::clone(&shared));
        lifecycle.spawn("moves", Until::Soft, moves.run(soft.clone()));
        let housekeeping = HousekeepingLoop::new(Arc::clone(&shared));
        lifecycle.spawn("housekeeping", Until::Soft, housekeeping.run(soft.clone()));
        let alert = AlertLoop::new(Arc::clone(&shared));
        lifecycle.spawn("alert", Until::Soft, alert.run(soft.clone()));
        let gateway = GatewayService::new(Arc::clone(&shared), events, logs, lifecycle.clone());
        let engine = Self { shared, gateway, lifecycle: lifecycle.clone() };
        lifecycle.spawn("heal", Until::Soft, HealLoop::new(engine.clone()).run(soft.clone()));
        lifecycle.spawn("declare", Until::Soft, DeclareLoop::new(engine.clone()).run(soft.clone()));
        Ok(engine)
    }

    /// What is remembered.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.shared.store.as_ref()
    }

    /// The same, to keep.
    #[must_use]
    pub fn store_arc(&self) -> Arc<dyn Store> {
        Arc::clone(&self.shared.store)
    }

    /// The present, by the database's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// A fresh id.
    #[must_use]
    pub fn new_id(&self) -> i64 {
        self.shared.membership.latest().ids.next(self.now())
    }

    /// What this node acts under.
    #[must_use]
    pub fn token(&self) -> LeaseToken {
        self.shared.membership.token()
    }

    /// This node's name.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.shared.config.node_name
    }

    /// Executors with a stream to this node, by app and name.
    #[must_use]
    pub fn online_executors(&self) -> Vec<OnlineExecutor> {
        self.shared.registry.all()
    }

    /// The names of the executors with a stream to this node.
    #[must_use]
    pub fn online_names(&self) -> Vec<OnlineName> {
        self.shared.registry.names()
    }

    /// One of them, with all that it said of itself.
    #[must_use]
    pub fn online_executor(&self, id: rondel_core::ExecutorId) -> Option<OnlineExecutor> {
        self.shared.registry.get(id)
    }

    /// What is wrong with the jobs that an app's code declares, as far as executors of it are connected to this node.
    #[must_use]
    pub fn declaration_problems(&self, app: AppId) -> Vec<DeclarationProblem> {
        self.shared.declared.problems(app)
    }

    pub(crate) fn declared(&self) -> &Board {
        &self.shared.declared
    }

    pub(crate) fn lost_after(&self) -> Duration {
        self.shared.config.lost_after
    }

    /// How far an open run is, by its handler's last word.
    #[must_use]
    pub fn progress(&self, run: &Run) -> Option<Progress> {
        self.shared.progress.of(run)
    }

    /// Hears when lines of a run's log are stored by this node; those that other nodes store are not heard of.
    #[must_use]
    pub fn follow_log(&self, run: RunId) -> LogReader {
        self.shared.log_readers.follow(run)
    }

    /// How many open runs are in this node's memory.
    #[must_use]
    pub fn runs_in_memory(&self) -> usize {
        self.shared.in_memory.len()
    }

    /// What this process has counted since its start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The same with everything else that operators watch, in the text format of Prometheus ([`METRICS_MEDIA_TYPE`]).
    ///
    /// # Errors
    /// Where the text cannot be put together.
    pub async fn metrics(&self) -> Result<String, std::fmt::Error> {
        metrics::gather(self).await
    }

    /// A request was answered.
    pub fn note_request(&self, status: u16, took: Duration) {
        self.shared.metrics.answered(status, took);
    }

    /// The port turned a client away, or ended it: counted each time, and logged at most once a minute for each limit.
    pub fn limit_reached(&self, limit: Limit, client: &dyn std::fmt::Display) {
        self.shared.metrics.limits.reached(limit, client);
    }

    /// Whether this node does its work.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            lease_held: self.shared.membership.holds(),
            knows_open_runs: self.shared.has_adopted(),
            draining: self.shared.is_leaving(),
            database: self.shared.database.trouble(),
            switch: self.shared.membership.switch(),
            quiet_until: self.shared.quiet_until(),
        }
    }

    /// The gRPC service for executors, for whoever owns the port.
    #[must_use]
    pub fn gateway(&self) -> Service {
        self.gateway.clone().into_service()
    }

    /// Takes an executor's stream that came by another way than gRPC, from one whose token was checked: its messages in
    /// order, the hello first. Answers what is said to it, the welcome first; the end of that is the end of the stream.
    ///
    /// # Errors
    /// A status that says why the executor is not let in.
    pub async fn open_session(
        &self,
        messages: impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Send + Unpin + 'static,
        peer: &str,
    ) -> Result<mpsc::Receiver<v1::ServerMessage>, Status> {
        let (outgoing, _) = self.gateway.open(messages, peer, &Pass::everywhere()).await?;
        Ok(outgoing)
    }

    /// Definitions, compiled with their calendars; those that do not exist or cannot be read are left out.
    pub(crate) async fn definitions(
        &self,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<HashMap<Key, Arc<Compiled>>, StoreError> {
        self.shared.definitions.load(self.store(), keys).await
    }

    /// A definition with the rule of its calendar, compiled.
    pub(crate) fn compile(&self, spec: &JobSpec, calendar: Option<&Rule>) -> Result<Job, Vec<FieldError>> {
        self.shared.definitions.job(spec, calendar)
    }

    /// How long runs are kept after their verdict.
    pub(crate) fn retention(&self) -> Duration {
        self.shared.config.retention
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Makes the node look at the switches now.
    pub fn poke_beat(&self) {
        self.shared.beat_poke.notify_one();
    }

    /// Makes the scan look now.
    pub fn poke_scan(&self) {
        self.shared.scan_poke.notify_one();
    }

    /// Hands over durable open runs, so that they need not wait for a standing query. Runs of another home are left.
    pub fn inject(&self, runs: Vec<Run>) {
        let token = self.token();
        let own = runs.into_iter().filter(|run| run.node == token.node && run.node_epoch == token.epoch).collect();
        let new = self.shared.in_memory.admit(own);
        if new.is_empty() {
            return;
        }
        let ids: Vec<RunId> = new.iter().map(|run| run.id).collect();
        if self.shared.tick.try_send(Command::Put(new)).is_err() {
            self.shared.in_memory.forget(ids);
        }
    }

    /// Makes the owner of a run look at the request to cancel it.
    pub(crate) fn poke_cancels(&self, run: &Run) {
        if run.node == self.token().node {
            self.shared.adopt_poke.notify_one();
        }
    }

    /// Leaves: its jobs go to other nodes, as far as there are any; the scan and the ring stop, executors are told, runs in
    /// their hands may end within `grace`, and their results become durable; then the lease is given back. What was not
    /// sent is durable and found by others.
    pub async fn drain(&self, grace: Duration) {
        leave::leave(&self.shared, &self.lifecycle, grace).await;
    }
}

/// An error with its causes on one line; a cause that the line already ends with is skipped.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}
