//! The engine: starts the loops of a node, and provides the handle for its callers.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::Duration;

use rondel_core::fires::{FireHistory, Range, Why};
use rondel_core::{AppId, NamespaceId, Run, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::CancelOutcome;
use rondel_store::{Store, StoreError};
use tokio::sync::{Notify, mpsc};
use tokio_stream::Stream;
use tonic::Status;

use crate::background::{Background, drive};
use crate::cancel::{self, CancelledRuns};
use crate::channels::{ChannelLoop, WatchdogLoop};
use crate::clock::Clock;
use crate::cluster::{
    AdoptLoop, BeatLoop, DatabaseWatch, DepartureBoard, MaintenanceBoard, MoveLoop, StartError, SwitchBoard, join,
    leave,
};
use crate::conceal;
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::declared::{DeclarationBoard, DeclareLoop};
use crate::definitions::Definitions;
use crate::dispatch::DispatchLoop;
use crate::dispatch::persist::{STEP_CAPACITY, StepLoop};
use crate::dispatch::results::foreign::{ForeignLoop, ForeignQueue};
use crate::dispatch::results::{ResultLanes, ResultLoop};
use crate::exposition;
use crate::failure_webhook::{self, SavedWebhook, TestSend, WebhookError, WebhookLoop};
use crate::fires;
use crate::gateway::{ExecutorAccess, GatewayService, LogLoop, LogReaders, SentRuns, Service, log_queue};
use crate::host::HostLoop;
use crate::housekeeping::{self, DutyType, HousekeepingLoop};
use crate::identity::lookups::Lookups;
use crate::lifecycle::{Lifecycle, Until};
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::node::{Node, Shared};
use crate::progress::ProgressBoard;
use crate::pumps::{PumpBoard, PumpLoop};
use crate::registry::Registry;
use crate::reports::ReportLoop;
use crate::rules::{NotedSuccesses, RuleLoop};
use crate::scheduler::heal::HealLoop;
use crate::scheduler::in_memory::{AwaitingRuns, InMemory};
use crate::scheduler::scan::ScanLoop;
use crate::scheduler::share::ClaimCounts;
use crate::scheduler::tick::TickLoop;

const EVENT_CAPACITY: usize = 4_096;
const COMMAND_CAPACITY: usize = 1_024;

/// Starts the loops of a node.
struct LoopStarter<'a> {
    lifecycle: &'a Lifecycle,
    shared: &'a Arc<Shared>,
}

impl LoopStarter<'_> {
    fn start_background<B: Background + 'static>(&self, until: Until, background: B) {
        let stop = match until {
            Until::Hard => &self.lifecycle.hard,
            Until::Soft | Until::Done => &self.lifecycle.soft,
        };
        let board = (Arc::clone(&self.shared.loops), Arc::clone(&self.shared.clock));
        let shared = Arc::clone(self.shared);
        let holds_lease = move || shared.membership.holds_lease();
        self.lifecycle.spawn(B::NAME, until, drive(background, board, holds_lease, stop.clone()));
    }

    fn start_housekeeping(&self) {
        self.start_duty::<housekeeping::Stats>();
        self.start_duty::<housekeeping::OldStats>();
        self.start_duty::<housekeeping::Purge>();
        self.start_duty::<housekeeping::Traces>();
        self.start_duty::<housekeeping::Logs>();
        self.start_duty::<housekeeping::Calls>();
        self.start_duty::<housekeeping::Messages>();
        self.start_duty::<housekeeping::Tokens>();
        self.start_duty::<housekeeping::Executors>();
        self.start_duty::<housekeeping::Nodes>();
    }

    fn start_duty<T: DutyType + 'static>(&self) {
        self.start_background(Until::Soft, HousekeepingLoop::<T>::new(Arc::clone(self.shared)));
    }
}

/// The handle of a running engine: its [`Node`], and the means to serve and stop it.
#[derive(Clone, Debug)]
pub struct Engine {
    node: Node,
    gateway: GatewayService,
    lifecycle: Lifecycle,
}

impl Deref for Engine {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Engine {
    /// Takes the node's lease and starts the loops. The loops that renew the lease, dispatch runs, and store results and logs end with the
    /// lifecycle's hard stop. All others end with its soft stop.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(store: Arc<dyn Store>, config: EngineConfig, lifecycle: &Lifecycle) -> Result<Self, StartError> {
        let membership = join(store.as_ref(), &config).await?;
        let clock = Clock::starting_at(store.now().await?, config.boot.clone());
        let metrics = Metrics::starting_at(clock.now());
        let (events, event_queue) = mpsc::channel(EVENT_CAPACITY);
        let (tick, commands) = mpsc::channel(COMMAND_CAPACITY);
        let (steps, step_queue) = mpsc::channel(STEP_CAPACITY);
        let logs = log_queue();
        let lane_count = if store.is_single_server() { 1 } else { config.lanes };
        let (results, lanes) = ResultLanes::new(lane_count);
        let definitions = Definitions::new(config.metrics_job_max, config.metrics_labels.clone());
        let shared = Arc::new(Shared {
            store,
            in_memory: InMemory::new(config.open_runs_max),
            config,
            clock: Arc::new(clock),
            membership,
            definitions,
            awaiting: AwaitingRuns::default(),
            registry: Registry::default(),
            progress: ProgressBoard::default(),
            log_readers: LogReaders::default(),
            sent_runs: SentRuns::default(),
            log_limit: LogLimit::default(),
            lookups: Lookups::default(),
            counters: Counters::default(),
            metrics,
            noted_successes: NotedSuccesses::default(),
            declared: DeclarationBoard::default(),
            pumps: PumpBoard::default(),
            results,
            foreign: ForeignQueue::default(),
            scan_poke: Notify::new(),
            must_read_whole_backlog: AtomicBool::new(false),
            adopt_poke: Notify::new(),
            tick,
            events: events.clone(),
            beat_poke: Notify::new(),
            database: DatabaseWatch::default(),
            switches: SwitchBoard::default(),
            maintenance: MaintenanceBoard::default(),
            departing: DepartureBoard::default(),
            claims: ClaimCounts::default(),
            loops: Arc::default(),
            quiet_until_ms: AtomicI64::new(0),
            sent_until_ms: AtomicI64::new(0),
            draining: AtomicBool::new(false),
            adoption_begun: AtomicBool::new(false),
            all_adopted_epoch: AtomicI64::new(0),
        });
        let hard_stop = &lifecycle.hard;
        let starter = LoopStarter { lifecycle, shared: &shared };
        starter.start_background(Until::Hard, BeatLoop::new(Arc::clone(&shared)));
        let dispatch_loop = DispatchLoop::new(Arc::clone(&shared), event_queue, steps);
        lifecycle.spawn("dispatch", Until::Hard, dispatch_loop.run(hard_stop.clone()));
        let step_loop = StepLoop::new(Arc::clone(&shared), step_queue, events.clone());
        lifecycle.spawn("steps", Until::Hard, step_loop.run(hard_stop.clone()));
        let foreign_loop = ForeignLoop::new(Arc::clone(&shared), events.clone());
        lifecycle.spawn("foreign results", Until::Hard, foreign_loop.run(hard_stop.clone()));
        for lane in lanes {
            let result_loop = ResultLoop::new(Arc::clone(&shared), lane, events.clone());
            lifecycle.spawn("results", Until::Hard, result_loop.run(hard_stop.clone()));
        }
        let log_loop = LogLoop::new(Arc::clone(&shared), Arc::clone(&logs));
        lifecycle.spawn("logs", Until::Hard, log_loop.run(hard_stop.clone()));
        starter.start_background(Until::Soft, TickLoop::new(Arc::clone(&shared), commands, events.clone()));
        starter.start_background(Until::Soft, ScanLoop::new(Arc::clone(&shared)));
        starter.start_background(Until::Soft, AdoptLoop::new(Arc::clone(&shared)));
        starter.start_background(Until::Soft, MoveLoop::new(Arc::clone(&shared)));
        starter.start_housekeeping();
        starter.start_background(Until::Soft, WebhookLoop::new(Arc::clone(&shared)));
        starter.start_background(Until::Soft, ChannelLoop::new(Arc::clone(&shared)));
        if shared.config.watchdog_url.is_some() {
            starter.start_background(Until::Soft, WatchdogLoop::new(Arc::clone(&shared)));
        }
        if !shared.config.host.is_empty() {
            starter.start_background(Until::Soft, HostLoop::new(Arc::clone(&shared)));
        }
        let gateway = GatewayService::new(Arc::clone(&shared), events, logs, lifecycle.clone());
        let node = Node::new(Arc::clone(&shared));
        starter.start_background(Until::Soft, HealLoop::new(node.clone()));
        starter.start_background(Until::Soft, DeclareLoop::new(node.clone()));
        starter.start_background(Until::Soft, RuleLoop::new(node.clone()));
        starter.start_background(Until::Soft, ReportLoop::new(node.clone()));
        starter.start_background(Until::Soft, PumpLoop::new(node.clone()));
        Ok(Self { node, gateway, lifecycle: lifecycle.clone() })
    }

    /// The node, without the means to stop it.
    #[must_use]
    pub const fn node(&self) -> &Node {
        &self.node
    }

    /// The outcome of each fire of a job in a range, and the position from which the next call continues. `visible_apps` lists the apps whose
    /// runs and definitions the caller may see; `None` means all.
    ///
    /// # Errors
    /// The store's.
    pub async fn fires(
        &self,
        record: &JobRecord,
        range: Range,
        visible_apps: Option<&[AppId]>,
    ) -> Result<FireHistory, StoreError> {
        fires::fires(&self.node, record, range, visible_apps).await
    }

    /// Why a job ran or did not run at an instant.
    ///
    /// # Errors
    /// The store's.
    pub async fn why(
        &self,
        record: &JobRecord,
        at: Timestamp,
        visible_apps: Option<&[AppId]>,
    ) -> Result<Why, StoreError> {
        fires::why(&self.node, record, at, visible_apps).await
    }

    /// Why a run of a job has its status, whatever triggered it.
    ///
    /// # Errors
    /// The store's.
    pub async fn why_run(
        &self,
        record: &JobRecord,
        run: &Run,
        visible_apps: Option<&[AppId]>,
    ) -> Result<Why, StoreError> {
        fires::why_run(&self.node, record, run, visible_apps).await
    }

    /// Why a job is in its present state. Explains the job's newest run that is due and open. If there is none, explains the job's last fire,
    /// or its last run if that is later than the fire. If there is none of these either, explains the job's next fire.
    ///
    /// # Errors
    /// The store's.
    pub async fn why_now(&self, record: &JobRecord, visible_apps: Option<&[AppId]>) -> Result<Why, StoreError> {
        fires::why_now(&self.node, record, visible_apps).await
    }

    /// Requests that a run be cancelled, and for a broadcast also all of its open shards. `actor` names the caller and the cause.
    ///
    /// # Errors
    /// The store's.
    pub async fn cancel_run(&self, run: RunId, actor: &str) -> Result<CancelOutcome, StoreError> {
        cancel::cancel_run(&self.node, run, actor).await
    }

    /// Requests that all open runs of a job be cancelled, or only those of the fire at `fire_at`; with `app`, only runs of that app.
    ///
    /// # Errors
    ///
    /// The store's. The cancellation of some runs may already have been requested.
    pub async fn cancel_runs(
        &self,
        record: &JobRecord,
        fire_at: Option<Timestamp>,
        actor: &str,
        app: Option<AppId>,
    ) -> Result<CancelledRuns, StoreError> {
        cancel::cancel_runs(&self.node, record, fire_at, actor, app).await
    }

    /// Removes from these runs the names of jobs that the caller may not see. The caller may see the jobs of the apps in `visible_apps`; with
    /// `None`, all jobs.
    ///
    /// # Errors
    /// The store's.
    pub async fn conceal(
        &self,
        namespace: NamespaceId,
        visible_apps: Option<&[AppId]>,
        runs: &mut [Run],
    ) -> Result<(), StoreError> {
        conceal::conceal(&self.node, namespace, visible_apps, runs).await
    }

    /// Sets the webhook to which failed runs of a namespace are reported.
    ///
    /// # Errors
    /// [`WebhookError`].
    pub async fn put_failure_webhook(&self, namespace: NamespaceId, url: &str) -> Result<SavedWebhook, WebhookError> {
        failure_webhook::put_failure_webhook(&self.node, namespace, url).await
    }

    /// Sends a test message to the failure webhook of a namespace; `None` if the namespace has none.
    ///
    /// # Errors
    /// The store's.
    pub async fn test_failure_webhook(&self, namespace: (NamespaceId, &str)) -> Result<Option<TestSend>, StoreError> {
        failure_webhook::test_failure_webhook(&self.node, namespace).await
    }

    /// All metrics in the text format of Prometheus ([`crate::METRICS_MEDIA_TYPE`]).
    ///
    /// # Errors
    /// If the text cannot be written.
    pub async fn metrics(&self) -> Result<String, std::fmt::Error> {
        exposition::gather(self.node.shared()).await
    }

    /// The gRPC service for executors, for the caller that owns the port.
    #[must_use]
    pub fn gateway(&self) -> Service {
        self.gateway.clone().into_service()
    }

    /// Serves an executor's stream that did not arrive by gRPC and whose token was already checked. `messages` are the executor's messages
    /// in order, the hello first. The receiver yields the messages for the executor, the welcome first; when it ends, the stream has ended.
    ///
    /// # Errors
    /// A status with the reason why the executor is refused.
    pub async fn open_session(
        &self,
        messages: impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Send + Unpin + 'static,
        peer: &str,
    ) -> Result<mpsc::Receiver<v1::ServerMessage>, Status> {
        let (outgoing, _) = self.gateway.open(messages, (peer, None), &ExecutorAccess::everywhere()).await?;
        Ok(outgoing)
    }

    /// Like [`open_session`](Self::open_session), for an executor that does not announce its handlers and accepts any handler.
    ///
    /// # Errors
    /// A status with the reason why the executor is refused.
    pub async fn open_session_of_any_handler(
        &self,
        messages: impl Stream<Item = Result<v1::ExecutorMessage, Status>> + Send + Unpin + 'static,
        peer: &str,
    ) -> Result<mpsc::Receiver<v1::ServerMessage>, Status> {
        let (outgoing, _) = self.gateway.open(messages, (peer, None), &ExecutorAccess::any_handler()).await?;
        Ok(outgoing)
    }

    /// Runs a task to its end, even if its caller stops waiting; a stop of the server waits for it. The task must not panic.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.lifecycle.spawn(name, Until::Done, task);
    }

    /// Leaves the cluster. The node's jobs move to other nodes, if there are any. The scan and the ring stop, executors are notified, and runs
    /// at executors get the time `grace` to end. When the results are durable, the lease is released. Other nodes find the runs that were not
    /// sent, since they are durable too.
    pub async fn drain(&self, grace: Duration) {
        leave::leave(self.node.shared(), &self.lifecycle, grace).await;
    }
}
