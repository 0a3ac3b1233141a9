//! The engine: its loops put together, and the handle that the edges hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

use rondel_core::calendar::Rule;
use rondel_core::homes::Switch;
use rondel_core::{AppId, FieldError, Job, JobSpec, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::cluster::LoopReport;
use rondel_store::{LeaseToken, Store, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use crate::alert::AlertLoop;
use crate::background::{Background, LoopBoard, drive};
use crate::clock::Clock;
use crate::cluster::{
    AdoptLoop, AppSwitches, BeatLoop, DatabaseTrouble, DatabaseWatch, Departing, MoveLoop, join, leave,
};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::declared::{Board, DeclarationProblem, DeclareLoop};
use crate::definitions::{Compiled, Definitions, Key};
use crate::dispatch::DispatchLoop;
use crate::dispatch::persist::{STEP_CAPACITY, StepLoop};
use crate::dispatch::results::foreign::{ForeignLoop, ForeignQueue};
use crate::dispatch::results::{ResultLanes, ResultLoop};
use crate::gateway::{GatewayService, LogLoop, LogReader, LogReaders, Pass, SentRuns, Service, log_queue};
use crate::housekeeping::HousekeepingLoop;
use crate::lifecycle::{Lifecycle, Until};
use crate::log_limit::LogLimit;
use crate::metrics::{self, Limit, Metrics};
use crate::node::Shared;
use crate::progress::{Progress, ProgressBoard};
use crate::registry::{OnlineExecutor, OnlineName, Registry};
use crate::scheduler::heal::HealLoop;
use crate::scheduler::in_memory::{Awaiting, InMemory};
use crate::scheduler::scan::ScanLoop;
use crate::scheduler::share::ClaimCounts;
use crate::scheduler::tick::{Command, TickLoop};

const EVENT_CAPACITY: usize = 4_096;
const COMMAND_CAPACITY: usize = 1_024;

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

/// Starts the loops of a node.
struct Start<'a> {
    lifecycle: &'a Lifecycle,
    shared: &'a Arc<Shared>,
}

impl Start<'_> {
    fn background<B: Background + 'static>(&self, until: Until, background: B) {
        let stop = match until {
            Until::Hard => &self.lifecycle.hard,
            Until::Soft | Until::Done => &self.lifecycle.soft,
        };
        self.lifecycle.spawn(B::NAME, until, drive(background, Arc::clone(self.shared), stop.clone()));
    }
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
        let logs = log_queue();
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
            log_limit: LogLimit::default(),
            counters: Counters::default(),
            metrics: Metrics::default(),
            declared: Board::default(),
            results,
            foreign: ForeignQueue::default(),
            scan_poke: Notify::new(),
            adopt_poke: Notify::new(),
            tick,
            events: events.clone(),
            beat_poke: Notify::new(),
            database: DatabaseWatch::default(),
            apps: AppSwitches::default(),
            departing: Departing::default(),
            claims: ClaimCounts::default(),
            loops: LoopBoard::default(),
            quiet_until_ms: AtomicI64::new(0),
            draining: AtomicBool::new(false),
            adopted: AtomicBool::new(false),
        });
        let hard = &lifecycle.hard;
        let start = Start { lifecycle, shared: &shared };
        start.background(Until::Hard, BeatLoop::new(Arc::clone(&shared)));
        let dispatch = DispatchLoop::new(Arc::clone(&shared), event_queue, steps);
        lifecycle.spawn("dispatch", Until::Hard, dispatch.run(hard.clone()));
        let step_loop = StepLoop::new(Arc::clone(&shared), step_queue, events.clone());
        lifecycle.spawn("steps", Until::Hard, step_loop.run(hard.clone()));
        lifecycle.spawn("foreign results", Until::Hard, ForeignLoop::new(Arc::clone(&shared)).run(hard.clone()));
        for lane in lanes {
            let result_loop = ResultLoop::new(Arc::clone(&shared), lane, events.clone());
            lifecycle.spawn("results", Until::Hard, result_loop.run(hard.clone()));
        }
        let log_loop = LogLoop::new(Arc::clone(&shared), Arc::clone(&logs));
        lifecycle.spawn("logs", Until::Hard, log_loop.run(hard.clone()));
        start.background(Until::Soft, TickLoop::new(Arc::clone(&shared), commands, events.clone()));
        start.background(Until::Soft, ScanLoop::new(Arc::clone(&shared)));
        start.background(Until::Soft, AdoptLoop::new(Arc::clone(&shared)));
        start.background(Until::Soft, MoveLoop::new(Arc::clone(&shared)));
        start.background(Until::Soft, HousekeepingLoop::new(Arc::clone(&shared)));
        start.background(Until::Soft, AlertLoop::new(Arc::clone(&shared)));
        let gateway = GatewayService::new(Arc::clone(&shared), events, logs, lifecycle.clone());
        let engine = Self { shared: Arc::clone(&shared), gateway, lifecycle: lifecycle.clone() };
        start.background(Until::Soft, HealLoop::new(engine.clone()));
        start.background(Until::Soft, DeclareLoop::new(engine.clone()));
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
        let (outgoing, _) = self.gateway.open(messages, (peer, None), &Pass::everywhere()).await?;
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

    /// What came of the last tick of each of this node's loops.
    #[must_use]
    pub fn loops(&self) -> Vec<LoopReport> {
        self.shared.loops.reports()
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
