//! The state shared by the calls of executors, and a link for each executor.
//!
//! Every server keeps a link to every registered executor, whichever server the executor registered with: the store has all registrations.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_admin::xxl::{Address, allowed_address};
use rondel_admin::{Engine, Lifecycle, Until};
use rondel_core::{AppId, ExecutorId, NamespaceId, NodeId, Run, RunId, Timestamp, TokenId};
use rondel_outgoing::BuildError;
use rondel_store::xxl::{XxlExecutor, XxlRun, XxlRunState};
use rondel_store::{LeaseToken, StoreError};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::by_hand::{BeatOutcome, Beats};
use crate::client::Client;
use crate::config::XxlConfig;
use crate::lines::LineLimit;
use crate::link::{Identity, Link, LinkHandle, Presence};
use crate::pruning::pruning_loop;
use crate::refresh_state::{REGISTERED_FOR, RefreshState, is_removed_by_hand};
use crate::registrations::Registrations;
use crate::room::Room;
use crate::tokens::Tokens;
use crate::wire;
use crate::writes::Writes;

const REFRESH_PERIOD: Duration = Duration::from_secs(1);
const LEASE_CHECK_PERIOD: Duration = Duration::from_millis(200);
/// Maximum number of executors of all apps.
const EXECUTOR_COUNT_MAX: u32 = 10_000;
/// After a start of the servers, an executor is expected to register again only if its last registration is at most
/// this old.
const EXPECTED_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of an executor's attempts that are read to find out whether it has runs.
const ATTEMPT_COUNT_MAX: u32 = 1_000;
/// Why an executor registered by hand gets no runs although it answers.
const TOKEN_ENDED_REASON: &str = "the token that it was added with has expired or was revoked; configure the executor with a new one, and add the address \
     again with that token";
/// Maximum total size of the bodies being read, in KiB. The bodies for one app get at most half of it.
const BODIES_KIB_MAX: usize = 64 * 1024;

/// State shared by the links and the bridge.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) config: XxlConfig,
    pub(crate) client: Client,
    pub(crate) log_limit: Arc<LineLimit>,
    pub(crate) writes: Writes,
    /// The nodes that hold their leases, sorted by id.
    living_nodes: Mutex<Vec<NodeId>>,
    lifecycle: Lifecycle,
}

impl Shared {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.lifecycle.hard.clone();
        // Calls are large futures, and each layer around an unboxed one would copy it once more.
        let task = Box::pin(task);
        self.lifecycle.spawn("xxl call", Until::Done, async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Whether this node asks the executor about an attempt and reads its log. The responsible node is the sender of the attempt or, if the
    /// sender is gone, the living node with the lowest id.
    pub(crate) fn is_responsible_for(&self, run: &XxlRun) -> bool {
        let own_node = self.engine.token().node;
        let living_nodes = self.living_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        run.node == own_node
            || !living_nodes.contains(&run.node)
                && living_nodes.first().is_none_or(|first_node| own_node <= *first_node)
    }

    /// Whether another server sent the attempt, and that server lives. That server reports the end of the attempt, because later runs of
    /// the job may be waiting there for that end.
    pub(crate) fn is_of_another_server(&self, run: &XxlRun) -> bool {
        let living_nodes = self.living_nodes.lock().unwrap_or_else(PoisonError::into_inner);
        run.node != self.engine.token().node && living_nodes.contains(&run.node)
    }

    /// Waits until this server holds this lease; false if the server has lost the lease. Executors cannot refuse the requests of a server
    /// that stood still for longer than its lease, so a request to run an attempt is sent only after this check.
    pub(crate) async fn wait_for_lease(&self, lease: LeaseToken) -> bool {
        while !self.engine.holds(lease) {
            if self.engine.has_lost(lease) {
                return false;
            }
            tokio::time::sleep(LEASE_CHECK_PERIOD).await;
        }
        true
    }

    async fn refresh_living_nodes(&self) -> Result<(), StoreError> {
        let now = self.engine.now();
        let nodes = self.engine.store().nodes().await?;
        let living_nodes = nodes.into_iter().filter(|node| node.lease_until > now).map(|node| node.id).collect();
        *self.living_nodes.lock().unwrap_or_else(PoisonError::into_inner) = living_nodes;
        Ok(())
    }

    pub(crate) fn log_store_failure(&self, operation: &'static str, error: &StoreError) {
        self.log_limit.log_store_failure(operation, error);
    }
}

/// The app that a token is for.
#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) id: AppId,
    pub(crate) name: String,
    pub(crate) namespace: NamespaceId,
    pub(crate) token: TokenId,
}

/// Serves XXL-JOB executors. Clones share their state.
#[derive(Clone, Debug)]
pub struct Bridge(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    links: Mutex<BTreeMap<ExecutorId, LinkHandle>>,
    pub(crate) tokens: Tokens<App>,
    pub(crate) registrations: Registrations,
    pub(crate) body_room: Room,
    pub(crate) refresh_requested: Notify,
    /// The last answers of executors registered by hand.
    beats: Mutex<Beats>,
}

impl Bridge {
    /// Starts the bridge; it ends with the lifecycle.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn start(engine: Engine, config: XxlConfig, lifecycle: &Lifecycle) -> Result<Self, BuildError> {
        let client = Client::new(&config)?;
        let log_limit = Arc::new(LineLimit::default());
        let (writes, receivers) = Writes::new();
        receivers.start(&engine, &log_limit, lifecycle);
        let shared = Arc::new(Shared {
            engine,
            config,
            client,
            log_limit,
            writes,
            living_nodes: Mutex::default(),
            lifecycle: lifecycle.clone(),
        });
        let body_room = Room::new(BODIES_KIB_MAX);
        let (links, tokens, refresh_requested) = (Mutex::default(), Tokens::default(), Notify::new());
        let (registrations, beats) = (Registrations::default(), Mutex::default());
        let bridge =
            Self(Arc::new(Inner { shared, links, tokens, registrations, body_room, refresh_requested, beats }));
        let (loop_bridge, stop) = (bridge.clone(), lifecycle.hard.clone());
        lifecycle.spawn("xxl", Until::Hard, async move {
            stop.run_until_cancelled(loop_bridge.registration_loop()).await;
        });
        let (engine, log_limit) = (bridge.0.shared.engine.clone(), Arc::clone(&bridge.0.shared.log_limit));
        let stop = lifecycle.hard.clone();
        lifecycle.spawn("xxl forget", Until::Hard, async move {
            stop.run_until_cancelled(pruning_loop(&engine, &log_limit)).await;
        });
        Ok(bridge)
    }

    /// The paths that the bridge serves, without the method at the end.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.0.shared.config.prefixes().into_iter().map(|prefix| format!("{prefix}/api")).collect()
    }

    async fn registration_loop(&self) {
        let mut ticker = interval(REFRESH_PERIOD);
        ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut state = RefreshState::default();
        loop {
            tokio::select! {
                _ = ticker.tick() => {}
                () = self.0.refresh_requested.notified() => {}
            }
            if let Err(error) = self.refresh_and_expect(&mut state).await {
                state.note_failure(Instant::now());
                self.0.shared.log_store_failure("read registrations", &error);
            }
        }
    }

    /// Refreshes the links and, after the first refresh, finds the executors that are expected back.
    async fn refresh_and_expect(&self, state: &mut RefreshState) -> Result<(), StoreError> {
        self.refresh_links(state).await?;
        if state.is_before_first_refresh() {
            state.note_expected_executors(self.executors_with_runs().await?, Instant::now());
        }
        Ok(())
    }

    /// The executors that have runs and do not register in time. A user has removed them, or their registration has ended, or ends before
    /// the next one is due: they may have had no server to register with. The latter are left out if another server has run for long enough
    /// to receive the registrations of all executors.
    async fn executors_with_runs(&self) -> Result<Vec<XxlExecutor>, StoreError> {
        let mut executors = Vec::new();
        let engine = &self.0.shared.engine;
        let (own_node, now) = (engine.token().node, engine.now());
        let registered_since = now - REGISTERED_FOR;
        let nodes = engine.store().nodes().await?;
        let has_older_server = nodes
            .iter()
            .any(|node| node.id != own_node && node.lease_until > now && node.started_at < registered_since);
        let last_seen_range = registered_since - EXPECTED_WITHIN..registered_since + REGISTERED_FOR / 3;
        let is_candidate = |executor: &XxlExecutor| {
            is_removed_by_hand(executor) || !has_older_server && last_seen_range.contains(&executor.last_seen_at)
        };
        let known_executors = engine.store().xxl_executors(Timestamp::EPOCH, EXECUTOR_COUNT_MAX).await?;
        for executor in known_executors.into_iter().filter(is_candidate) {
            if self.has_open_runs(executor.id).await? {
                executors.push(executor);
            }
        }
        Ok(executors)
    }

    /// Whether an executor has attempts whose runs are open, according to the store.
    async fn has_open_runs(&self, executor: ExecutorId) -> Result<bool, StoreError> {
        let store = self.0.shared.engine.store();
        let mut open_rows = store.unsettled_xxl(executor, ATTEMPT_COUNT_MAX).await?;
        open_rows.retain(|row| row.state == XxlRunState::Open);
        if open_rows.is_empty() {
            return Ok(false);
        }
        let run_ids: Vec<RunId> = open_rows.iter().map(|row| row.run).collect();
        let runs = store.runs(&run_ids).await?;
        // The row of an attempt stays open if its executor was lost, so the run's status decides.
        let is_running = |row: &XxlRun| {
            let is_same_attempt = |run: &Run| run.id == row.run && run.attempt == row.attempt;
            runs.iter().any(|run| is_same_attempt(run) && !run.status.is_terminal())
        };
        Ok(open_rows.iter().any(is_running))
    }

    /// Opens links to executors that have registered, updates the existing links, and ends those to executors that have not registered for
    /// too long.
    async fn refresh_links(&self, state: &mut RefreshState) -> Result<(), StoreError> {
        self.0.shared.refresh_living_nodes().await?;
        let engine = &self.0.shared.engine;
        let registered_since = engine.now() - REGISTERED_FOR;
        let registered_executors = engine.store().xxl_executors(registered_since, EXECUTOR_COUNT_MAX).await?;
        let executors = self.with_registered_by_hand(state, registered_executors).await?;
        if state.is_reporting_read_due(Instant::now()) {
            let reporting_executors =
                engine.store().xxl_executors_with_unsettled_ends(registered_since, EXECUTOR_COUNT_MAX).await?;
            state.note_reporting_executors(reporting_executors, Instant::now());
        }
        let executors = state.with_expected_executors(state.with_reporting_executors(executors), Instant::now());
        let may_expire = state.may_expire(Instant::now());
        let mut unlinked_executors = Vec::new();
        let client = &self.0.shared.client;
        {
            let registered_ids: HashSet<ExecutorId> = executors.iter().map(|executor| executor.id).collect();
            let mut links = self.links();
            links.retain(|_, handle| !handle.event_sender.is_closed());
            let is_gone = |id: &ExecutorId| may_expire && !registered_ids.contains(id);
            for handle in links.iter().filter(|(id, _)| is_gone(id)).map(|(_, handle)| handle) {
                handle
                    .presence_sender
                    .send_if_modified(|presence| std::mem::replace(presence, Presence::Gone) != Presence::Gone);
            }
            for executor in executors {
                let Some(handle) = links.get(&executor.id) else {
                    unlinked_executors.push(executor);
                    continue;
                };
                let new_presence = if executor.left_at.is_some() { Presence::Leaving } else { Presence::Here };
                // A link that is ending is not revived: it is replaced once it has ended.
                let set_if_changed = |presence: &mut Presence| {
                    *presence != Presence::Gone && std::mem::replace(presence, new_presence) != new_presence
                };
                handle.presence_sender.send_if_modified(set_if_changed);
                handle.peer_sender.send_if_modified(|peer| {
                    let has_new_token = peer.token != executor.token;
                    if has_new_token && let Ok(address) = Address::parse(&executor.address) {
                        *peer = client.peer(executor.app, &address, &executor.token);
                    }
                    has_new_token
                });
            }
        }
        if unlinked_executors.is_empty() {
            return Ok(());
        }
        let namespaces = engine.store().namespaces().await?;
        let mut apps: HashMap<NamespaceId, Vec<rondel_store::catalog::App>> = HashMap::new();
        for executor in unlinked_executors {
            let Some(namespace) = namespaces.iter().find(|namespace| namespace.id == executor.namespace) else {
                continue;
            };
            let known_apps = match apps.entry(namespace.id) {
                Entry::Occupied(known_apps) => known_apps.into_mut(),
                Entry::Vacant(vacant_entry) => vacant_entry.insert(engine.store().apps(namespace.id).await?),
            };
            let app = known_apps.iter().find(|app| app.id == executor.app);
            if let Some(app) = app {
                self.open_link(&executor, &namespace.name, &app.name);
            }
        }
        Ok(())
    }

    /// Adds the executors registered by hand that answer. Their sign-offs are ignored: they stay until a user removes them or their token
    /// ends, and after that until their attempts are done.
    async fn with_registered_by_hand(
        &self,
        state: &mut RefreshState,
        mut executors: Vec<XxlExecutor>,
    ) -> Result<Vec<XxlExecutor>, StoreError> {
        let engine = &self.0.shared.engine;
        let executors_by_hand = engine.store().xxl_registered_by_hand(None, EXECUTOR_COUNT_MAX).await?;
        let (executors_by_hand, busy_ids) = {
            let links = self.links();
            let has_attempts = |id: ExecutorId| links.get(&id).is_some_and(LinkHandle::has_attempts);
            // The link of an expected executor may not be open yet.
            let expected_ids = state.expected_ids(Instant::now());
            let may_have_attempts = |id: ExecutorId| has_attempts(id) || expected_ids.contains(&id);
            let executors_by_hand = state.by_hand_with_removed(executors_by_hand, engine.now(), may_have_attempts);
            let busy_ids: HashSet<ExecutorId> =
                executors_by_hand.iter().map(|executor| executor.id).filter(|id| has_attempts(*id)).collect();
            (executors_by_hand, busy_ids)
        };
        let now = Instant::now();
        let positions: HashMap<ExecutorId, usize> = (executors.iter().map(|executor| executor.id)).zip(0..).collect();
        let due_executors = {
            let mut beats = self.beats();
            let due_executors = beats.take_due(&executors_by_hand, now);
            for mut executor in executors_by_hand {
                let is_busy = busy_ids.contains(&executor.id) || beats.has_runs(executor.id);
                if beats.is_leaving(executor.id, now) && is_busy {
                    executor.left_at = executor.left_at.or(Some(engine.now()));
                } else if !beats.is_available(executor.id, now) {
                    continue;
                }
                match positions.get(&executor.id) {
                    Some(position) if executor.left_at.is_none() => executors[*position].left_at = None,
                    // A user has removed the executor, or its token has ended, but it has also registered itself: that registration counts.
                    Some(_) => {}
                    None => executors.push(executor),
                }
            }
            due_executors
        };
        for executor in due_executors {
            self.check_registered_by_hand(executor);
        }
        Ok(executors)
    }

    /// Checks whether an executor registered by hand answers.
    fn check_registered_by_hand(&self, executor: XxlExecutor) {
        let bridge = self.clone();
        let id = executor.id;
        self.0.shared.spawn(async move {
            let is_refused = bridge.refuses_callbacks(executor.app, &executor.token).await;
            let (outcome, reason) = match bridge.call_beat(&executor).await {
                Ok(()) if is_refused => {
                    let has_runs = bridge.has_open_runs(id).await.unwrap_or_else(|error| {
                        bridge.0.shared.log_store_failure("read attempts", &error);
                        true
                    });
                    let reason = format!("{}: {TOKEN_ENDED_REASON}", executor.address);
                    (BeatOutcome::TokenEnded { has_runs }, Some(reason))
                }
                Ok(()) => (BeatOutcome::Available, None),
                Err(reason) => (BeatOutcome::NoAnswer, Some(reason)),
            };
            if bridge.beats().note_answer(id, outcome, Instant::now()) {
                bridge.0.refresh_requested.notify_one();
            }
            if let Some(reason) = reason
                && let Some(count) = bridge.0.shared.log_limit.count(&format!("by hand {id}"))
            {
                tracing::warn!(reason, count, "an executor of XXL-JOB that is registered by hand is not available");
            }
        });
    }

    /// `Ok` if the executor accepts calls with its token, else the reason why not. Its callbacks may be refused nevertheless.
    async fn call_beat(&self, executor: &XxlExecutor) -> Result<(), String> {
        let shared = &self.0.shared;
        // The networks may have changed since its registration.
        let address = allowed_address(&executor.address, &shared.config.networks)?;
        let peer = shared.client.peer(executor.app, &address, &executor.token);
        let answer =
            shared.client.ask(&peer, "beat", wire::empty_body()).await.map_err(|error| error.message().to_owned())?;
        if answer.is_success() { Ok(()) } else { Err(format!("{}: {}", executor.address, answer.message_or_code())) }
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.0.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_link(&self, executor: &XxlExecutor, namespace: &str, app: &str) {
        let Ok(address) = Address::parse(&executor.address) else { return };
        let identity = Identity {
            id: executor.id,
            app: executor.app,
            namespace_name: namespace.to_owned(),
            app_name: app.to_owned(),
            name: address.name(),
        };
        let peer = self.0.shared.client.peer(executor.app, &address, &executor.token);
        let (link, handle) = Link::new(&self.0.shared, identity, peer);
        if executor.left_at.is_some() {
            handle.presence_sender.send_replace(Presence::Leaving);
        }
        self.links().insert(executor.id, handle);
        let lifecycle = &self.0.shared.lifecycle;
        lifecycle.spawn("xxl link", Until::Done, link.run(lifecycle.hard.clone()));
    }

    pub(crate) fn links(&self) -> MutexGuard<'_, BTreeMap<ExecutorId, LinkHandle>> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
