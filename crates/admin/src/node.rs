//! The state that all parts of a running node share. It starts nothing and decides nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rondel_core::calendar::Rule;
use rondel_core::edit::EDIT_CUTOFF;
use rondel_core::homes::Switch;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{AppId, FieldError, Job, JobSpec, Run, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::cluster::LoopReport;
use rondel_store::ledger::RunQuery;
use rondel_store::{LeaseToken, Store, StoreError};
use tokio::sync::{Notify, mpsc};

use crate::background::LoopBoard;
use crate::clock::Clock;
use crate::cluster::{
    DatabaseTrouble, DatabaseWatch, DepartureBoard, LostHistory, MaintenanceBoard, Membership, SwitchBoard,
};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::declared::{DeclarationBoard, DeclarationProblem};
use crate::definitions::{CompiledDefinitions, DefinitionKey, Definitions};
use crate::dispatch::results::ResultLanes;
use crate::dispatch::results::foreign::ForeignQueue;
use crate::dispatch::{self, Event};
use crate::gateway::{LogReader, LogReaders, SentRuns};
use crate::identity::lookups::{LookupError, Lookups};
use crate::identity::sign_in::SignedIn;
use crate::identity::tokens::Principal;
use crate::log_limit::LogLimit;
use crate::metrics::{Limit, Metrics, XxlCall, XxlOutcome};
use crate::progress::{Progress, ProgressBoard};
use crate::pumps::PumpBoard;
use crate::registry::{OnlineExecutor, OnlineName, Registry};
use crate::rules::NotedSuccesses;
use crate::scheduler::command::TickCommand;
use crate::scheduler::in_memory::{AwaitingRuns, InMemory};
use crate::scheduler::share::ClaimCounts;

/// Maximum number of shards of one broadcast that a cancel request reaches.
const SHARD_COUNT_MAX: u32 = 10_000;

/// The state that the loops share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) config: EngineConfig,
    pub(crate) clock: Arc<Clock>,
    pub(crate) membership: Membership,
    pub(crate) definitions: Definitions,
    pub(crate) in_memory: InMemory,
    pub(crate) awaiting: AwaitingRuns,
    pub(crate) registry: Registry,
    pub(crate) progress: ProgressBoard,
    pub(crate) log_readers: LogReaders,
    pub(crate) sent_runs: SentRuns,
    pub(crate) log_limit: LogLimit,
    pub(crate) lookups: Lookups,
    pub(crate) counters: Counters,
    pub(crate) metrics: Metrics,
    pub(crate) noted_successes: NotedSuccesses,
    pub(crate) declared: DeclarationBoard,
    pub(crate) pumps: PumpBoard,
    pub(crate) results: ResultLanes,
    pub(crate) foreign: ForeignQueue,
    /// Makes the next scan begin immediately.
    pub(crate) scan_poke: Notify,
    /// Whether a job's next fire was set to an instant long past, so that the scan must read its whole backlog.
    pub(crate) must_read_whole_backlog: AtomicBool,
    /// Makes the loop that adopts runs begin its next round immediately.
    pub(crate) adopt_poke: Notify,
    pub(crate) tick: mpsc::Sender<TickCommand>,
    pub(crate) events: mpsc::Sender<Event>,
    /// Makes the next beat begin immediately.
    pub(crate) beat_poke: Notify,
    pub(crate) database: DatabaseWatch,
    pub(crate) switches: SwitchBoard,
    pub(crate) maintenance: MaintenanceBoard,
    pub(crate) departing: DepartureBoard,
    pub(crate) claims: ClaimCounts,
    /// Reports of the loops' last ticks.
    pub(crate) loops: Arc<LoopBoard>,
    /// No job is due before this instant, because the database's clock stepped back; in milliseconds.
    pub(crate) quiet_until_ms: AtomicI64,
    /// The latest due instant of a run whose trigger was sent; in milliseconds.
    pub(crate) sent_until_ms: AtomicI64,
    pub(crate) draining: AtomicBool,
    /// Whether ended leases are fenced, and their open runs are adopted or being adopted.
    pub(crate) adoption_begun: AtomicBool,
    /// The epoch under which all open runs of earlier leases have been adopted; 0 while some are being adopted.
    pub(crate) all_adopted_epoch: AtomicI64,
}

impl Shared {
    /// Records that all open runs of earlier leases are adopted.
    pub(crate) fn note_all_adopted(&self, token: LeaseToken) {
        self.all_adopted_epoch.store(token.epoch, Ordering::Release);
    }

    /// Records that open runs are being adopted.
    pub(crate) fn note_adopting(&self) {
        self.all_adopted_epoch.store(0, Ordering::Release);
    }

    /// Whether runs of earlier leases may still have to be adopted.
    pub(crate) fn is_adopting(&self) -> bool {
        self.all_adopted_epoch.load(Ordering::Acquire) != self.membership.token().epoch
    }

    /// Records that a job's next fire was set. The fire may be in the far past, if the end of the previous run was reported late.
    pub(crate) fn note_due(&self, at: Timestamp) {
        if at < self.clock.now() - self.config.look_ahead {
            self.must_read_whole_backlog.store(true, Ordering::Release);
        }
        self.scan_poke.notify_one();
    }

    /// Lets the scan begin. The scan waits for this, so that the fires that it claims come after the runs that were already open.
    pub(crate) fn note_adoption_begun(&self) {
        if !self.adoption_begun.swap(true, Ordering::AcqRel) {
            self.scan_poke.notify_one();
        }
    }

    pub(crate) fn has_begun_adoption(&self) -> bool {
        self.adoption_begun.load(Ordering::Acquire)
    }

    /// Puts durable open runs into the ring, unless they are already in memory.
    pub(crate) async fn put(&self, runs: Vec<Run>) {
        self.put_as_of(runs, self.clock.boot_micros()).await;
    }

    /// Like [`put`](Self::put), for runs that the misfire policy judges as of this instant of the boot-time clock.
    pub(crate) async fn put_as_of(&self, runs: Vec<Run>, judged_as_of: i64) {
        let new_runs = self.in_memory.admit_as_of(runs, judged_as_of, self.clock.now());
        if !new_runs.is_empty() {
            // The ring is closed only when the process ends. The runs are durable, so nothing is lost.
            drop(self.tick.send(TickCommand::Put(new_runs)).await);
        }
    }

    /// Some of these runs may have been left in the store for lack of room in memory. Puts the runs that were left into the ring, so that the
    /// tick ends them.
    pub(crate) async fn put_to_end(&self, runs: Vec<Run>) {
        let ending_runs = self.in_memory.admit_to_end(runs);
        if !ending_runs.is_empty() {
            // The ring is closed only when the process ends. The runs are durable, so nothing is lost.
            drop(self.tick.send(TickCommand::Put(ending_runs)).await);
        }
    }

    /// The instant at which the servers took up a run that is in memory; the misfire policy judges how late the run was at that instant.
    /// Time without the lease counts as an outage, so the result is never before the start of the present lease.
    pub(crate) fn taken_up_at(&self, run: RunId) -> Timestamp {
        let judged_as_of = self.in_memory.judged_as_of(run).unwrap_or_else(|| self.clock.boot_micros());
        self.clock.timestamp_at(judged_as_of.max(self.membership.held_since()))
    }

    /// Like [`put`](Self::put), but ignores runs of other homes, which find these runs themselves.
    pub(crate) async fn put_own(&self, runs: Vec<Run>) {
        let token = self.membership.token();
        self.put(runs.into_iter().filter(|run| (run.node, run.node_epoch) == (token.node, token.epoch)).collect())
            .await;
    }

    /// The shards of a broadcast that have no verdict yet, at most [`SHARD_COUNT_MAX`]; empty if `root` is not the run of a broadcast.
    pub(crate) async fn open_shards(&self, root: &Run) -> Result<Vec<Run>, StoreError> {
        if root.shard_index != ROOT_SHARD || root.shard_total.is_none() {
            return Ok(Vec::new());
        }
        let query = RunQuery { parent: Some(root.id), limit: SHARD_COUNT_MAX, ..RunQuery::default() };
        let mut shards = self.store.list_runs(root.namespace, &query).await?;
        shards.retain(|shard| !shard.status.is_terminal());
        Ok(shards)
    }

    /// The delay before a loop's first look. It makes nodes that start together look at different moments of the period.
    pub(crate) fn first_look_delay(&self, period: Duration) -> Duration {
        let token = self.membership.token();
        let epoch = i32::try_from(token.epoch).unwrap_or(i32::MAX);
        period.mul_f64(0.1 + 0.9 * dispatch::jitter(RunId::new(token.node.get()), epoch))
    }

    pub(crate) fn lane_count(&self) -> usize {
        if self.store.is_single_server() { 1 } else { self.config.lanes.max(1) }
    }

    /// Whether this process is leaving the cluster.
    pub(crate) fn is_leaving(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Records that the database's clock stepped back: no job is due until the clock reaches `until`.
    pub(crate) fn note_quiet(&self, until: Timestamp) {
        self.quiet_until_ms.fetch_max(until.as_millis(), Ordering::Relaxed);
    }

    /// The latest time that the database's clock has shown: now, unless it stepped back.
    pub(crate) fn latest_time(&self) -> Timestamp {
        self.quiet_until().unwrap_or_else(|| self.clock.now())
    }

    /// An edit of a job withdraws its fires that are due after this instant, unless they may have been sent. The runs of earlier fires are
    /// dropped by their owner, if the job is paused or deleted. Usually, the instant is the present. After a step back of the clock, it is
    /// [`EDIT_CUTOFF`] after the latest time that the clock had shown: edits leave alone all fires that were due before, even those that lie
    /// ahead again.
    pub(crate) fn fires_ahead_after(&self) -> Timestamp {
        let noted_until = Timestamp::from_millis(self.quiet_until_ms.load(Ordering::Relaxed));
        self.clock.now().max(noted_until + EDIT_CUTOFF)
    }

    /// Records that a trigger of a run that is due at this instant is about to be sent.
    pub(crate) fn note_sent(&self, due_at: Timestamp) {
        self.sent_until_ms.fetch_max(due_at.as_millis(), Ordering::Relaxed);
    }

    /// The latest due instant of any run that may have been sent: [`latest_time`](Self::latest_time), or later if a run was sent ahead.
    pub(crate) fn sent_until(&self) -> Timestamp {
        let noted_until = Timestamp::from_millis(self.sent_until_ms.load(Ordering::Relaxed));
        if mutant::on(Mutant::EndBeforeAhead) { self.latest_time() } else { self.latest_time().max(noted_until) }
    }

    pub(crate) fn quiet_until(&self) -> Option<Timestamp> {
        let noted_until = Timestamp::from_millis(self.quiet_until_ms.load(Ordering::Relaxed));
        (noted_until > self.clock.now()).then_some(noted_until)
    }
}

/// Whether a node can do its work, and the facts that decide it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub lease_held: bool,
    /// Whether all open runs of ended leases have been adopted.
    pub knows_open_runs: bool,
    /// Whether the node is shutting down.
    pub draining: bool,
    /// The trouble with the database, if the last beat got no answer.
    pub database: Option<DatabaseTrouble>,
    /// The loss of writes of this node by the database, if it happened within the last day.
    pub lost_history: Option<LostHistory>,
    pub switch: Switch,
    /// No job fires before this instant, because the database's clock stepped back; `None` if it did not, or has passed the instant.
    pub quiet_until: Option<Timestamp>,
}

/// A running node, for the services on top of it and for their callers.
#[derive(Clone, Debug)]
pub struct Node(Arc<Shared>);

impl Node {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    #[must_use]
    pub fn store(&self) -> &dyn Store {
        self.0.store.as_ref()
    }

    /// The store, as a shared handle.
    #[must_use]
    pub fn store_arc(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0.store)
    }

    /// The current time, by the database's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    #[must_use]
    pub fn new_id(&self) -> i64 {
        self.0.membership.latest_lease().ids.next(self.now())
    }

    #[must_use]
    pub fn token(&self) -> LeaseToken {
        self.0.membership.token()
    }

    /// Whether this node holds this lease now.
    #[must_use]
    pub fn holds(&self, lease: LeaseToken) -> bool {
        // In this order, because a new lease stores its token before it is held.
        self.0.membership.holds_lease() && self.0.membership.token() == lease
    }

    /// Whether this node knows that it will never hold this lease again.
    #[must_use]
    pub fn has_lost(&self, lease: LeaseToken) -> bool {
        !self.0.membership.is_current_lease(lease)
    }

    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.0.config.node_name
    }

    /// Executors with a stream to this node, sorted by app and name.
    #[must_use]
    pub fn online_executors(&self) -> Vec<OnlineExecutor> {
        self.0.registry.all()
    }

    /// The names of the executors with a stream to this node.
    #[must_use]
    pub fn online_names(&self) -> Vec<OnlineName> {
        self.0.registry.online_names()
    }

    /// A connected executor, with everything that its hello declared.
    #[must_use]
    pub fn online_executor(&self, id: rondel_core::ExecutorId) -> Option<OnlineExecutor> {
        self.0.registry.get(id)
    }

    /// Problems of the jobs that an app's code declares, as known from executors connected to this node.
    #[must_use]
    pub fn declaration_problems(&self, app: AppId) -> Vec<DeclarationProblem> {
        self.0.declared.problems(app)
    }

    pub(crate) fn declared(&self) -> &DeclarationBoard {
        &self.0.declared
    }

    pub(crate) fn lost_after(&self) -> Duration {
        self.0.config.lost_after
    }

    /// The instant since which this server has held its lease and received executors' messages.
    pub(crate) fn serves_since(&self) -> Timestamp {
        self.0.clock.timestamp_at(self.0.membership.held_since())
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        self.shared().config.heartbeat
    }

    /// The progress of an open run, as its handler last reported it.
    #[must_use]
    pub fn progress(&self, run: &Run) -> Option<Progress> {
        self.0.progress.of(run)
    }

    /// Returns a reader that is notified when this node stores lines of a run's log. Lines that other nodes store cause no notification.
    #[must_use]
    pub fn follow_log(&self, run: RunId) -> LogReader {
        self.0.log_readers.follow(run)
    }

    /// The number of open runs in this node's memory.
    #[must_use]
    pub fn runs_in_memory(&self) -> usize {
        self.0.in_memory.len()
    }

    /// The counts of this process since its start.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Counts an answered request.
    pub fn note_request(&self, status: u16, length: Duration) {
        self.0.metrics.count_answer(status, length);
    }

    /// Records that the port turned a client away or disconnected it: counted each time, logged at most once a minute for each limit.
    pub fn note_limit_reached(&self, limit: Limit, client: &dyn std::fmt::Display) {
        self.0.metrics.limits.record_reached(limit, client);
    }

    /// Counts calls of executors that speak XXL-JOB's protocol.
    pub fn count_xxl(&self, call: XxlCall, outcome: XxlOutcome, count: u64) {
        self.0.metrics.xxl.add(call, outcome, count);
    }

    /// Whether this node can do its work.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        Readiness {
            lease_held: self.0.membership.holds_lease(),
            knows_open_runs: self.0.has_begun_adoption() && !self.0.is_adopting(),
            draining: self.0.is_leaving(),
            database: self.0.database.trouble(),
            lost_history: self.0.database.lost_history(self.0.clock.now()),
            switch: self.0.membership.switch(),
            quiet_until: self.0.quiet_until(),
        }
    }

    /// The principal of the token in an `Authorization` header; `None` if there is no valid token. `client` is the address of the sender.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn bearer(
        &self,
        authorization: Option<&str>,
        client: Option<IpAddr>,
    ) -> Result<Option<Principal>, LookupError> {
        self.0.lookups.authenticate_bearer(self.store(), (authorization, client), self.now()).await
    }

    /// The sign-in to which a cookie belongs; `None` if there is none. `client` is the address that sent the cookie.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn signed_in(&self, cookie: &str, client: Option<IpAddr>) -> Result<Option<SignedIn>, LookupError> {
        self.0.lookups.authenticate_cookie(self.store(), (cookie, client), self.now()).await
    }

    /// Definitions, compiled with their calendars. Definitions that do not exist or cannot be read are omitted.
    pub(crate) async fn definitions(
        &self,
        keys: impl IntoIterator<Item = DefinitionKey>,
    ) -> Result<CompiledDefinitions, StoreError> {
        self.0.definitions.load(self.store(), keys).await
    }

    /// Like [`definitions`](Self::definitions), for a single use: definitions that were not in the cache are not added to it.
    pub(crate) async fn definitions_once(&self, keys: Vec<DefinitionKey>) -> Result<CompiledDefinitions, StoreError> {
        self.0.definitions.load_uncached(self.store(), keys).await
    }

    /// Compiles a definition with the rule of its calendar.
    pub(crate) fn compile(&self, spec: &JobSpec, calendar: Option<&Rule>) -> Result<Job, Vec<FieldError>> {
        self.0.definitions.compile_job(spec, calendar)
    }

    /// How long runs are kept after their verdict.
    pub(crate) fn retention(&self) -> Duration {
        self.0.config.retention
    }

    /// The report of the last tick of each of this node's loops.
    #[must_use]
    pub fn loops(&self) -> Vec<LoopReport> {
        self.0.loops.reports()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// The switch of an executor of an app, as the last beat read it. `name` may have the suffix that distinguishes the executor on this node.
    pub(crate) fn executor_switch(&self, app: AppId, name: &str) -> Switch {
        self.0.switches.of_executor(app, dispatch::given_name(name))
    }

    /// Makes the node read the switches now.
    pub fn poke_beat(&self) {
        self.0.beat_poke.notify_one();
    }

    /// Makes the scan look now.
    pub fn poke_scan(&self) {
        self.0.scan_poke.notify_one();
    }

    /// Puts durable open runs into the ring, so that they need not wait for the query for stray runs. Runs of other homes are ignored. If the
    /// ring takes no more commands now, that query finds the runs later.
    pub fn try_put_own(&self, runs: Vec<Run>) {
        let token = self.token();
        let own_runs = runs.into_iter().filter(|run| run.node == token.node && run.node_epoch == token.epoch).collect();
        let new_runs = self.0.in_memory.admit_as_of(own_runs, self.0.clock.boot_micros(), self.now());
        if new_runs.is_empty() {
            return;
        }
        let ids: Vec<RunId> = new_runs.iter().map(|run| run.id).collect();
        if self.0.tick.try_send(TickCommand::Put(new_runs)).is_err() {
            self.0.in_memory.forget(ids);
        }
    }

    /// Makes this node read the request to cancel a run now, if it owns the run.
    pub(crate) fn poke_cancels(&self, run: &Run) {
        if run.node == self.token().node {
            self.0.adopt_poke.notify_one();
        }
    }
}
