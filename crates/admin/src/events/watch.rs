//! A node's watch: reads the store while a client listens, and keeps recent events for a while.
//!
//! A look reads the store and finds the changes. The watch has no task: if the last look is a period old, the listener that finds this performs
//! the next look, and the other listeners share its events. That listener can be dropped during the look. The others lose no event then, since
//! the state changes only after all reads, without an await in between.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{AppId, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use rondel_store::changes::RunSnapshot;
use rondel_store::cluster::Session;
use rondel_store::{Store, StoreError};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::board::{Change, HeardExecutor, LastSnapshot, Snapshot};
use super::{Cursor, Event, EventKind};
use rondel_core::error_chain::chain;

/// How often the store is read while a client listens.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the open runs of every lease are read, to find runs that the other queries do not return.
const SWEEP_PERIOD: Duration = Duration::from_secs(10);
/// Maximum time between two looks. After a longer pause, listeners get the event `gap` instead of the changes made meanwhile.
const LOOK_GAP_MAX: Duration = Duration::from_secs(60);
/// How many events are kept for listeners that are slow or reconnect.
const KEPT_EVENT_COUNT: usize = 10_000;
/// Maximum number of events that a listener gets together.
const BATCH: usize = 500;
/// Maximum number of new runs that one look reads.
const RUN_LIMIT: u32 = 10_000;
/// Maximum number of jobs that one look reads.
const JOB_LIMIT: u32 = 2_000;
/// Maximum number of open runs of each status that a sweep reads per lease.
const SWEEP_LIMIT: u32 = 2_000;
/// An executor is online if it was heard this recently.
const ONLINE_WITHIN: Duration = Duration::from_secs(30);
/// Maximum difference between the times at which two nodes see the same event.
const NODE_SKEW_MAX: Duration = Duration::from_secs(15);

/// The recent events, for all listeners of a node.
#[derive(Debug)]
pub struct Events {
    /// Identifies the watch in cursors.
    id: i64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_snapshot: LastSnapshot,
    looked_at: Option<Instant>,
    swept_at: Option<Instant>,
    /// The kept events; their numbers are consecutive.
    recent_events: VecDeque<Arc<Event>>,
    /// The number of the newest event.
    last_number: u64,
    /// The instant since which no event is missing from `recent_events`; `None` before the first look.
    complete_since: Option<Timestamp>,
    app_names: HashMap<AppId, String>,
    has_logged_failure: bool,
}

/// A client's subscription.
#[derive(Clone, Debug)]
pub struct Listener {
    events: Arc<Events>,
    /// The position up to which the client listened before; `None` for a client that starts now.
    cursor: Option<Cursor>,
    /// The number of the last event that was delivered; `None` before listening has begun.
    last_delivered: Option<u64>,
}

/// Result of [`Listener::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenResult {
    /// Listening has started: from now on no event is missed.
    Begun {
        /// The position at which listening starts.
        cursor: Cursor,
        /// Whether events between the requested position and `cursor` may be missing.
        is_gap: bool,
    },
    /// Events in order, and the position after them.
    Events(Vec<Arc<Event>>, Cursor),
    /// No new events yet.
    Nothing,
    /// The listener was so slow that the next events are no longer kept.
    TooSlow,
}

impl Events {
    /// The watch of a node since its start; `id` is an id that this node generated.
    #[must_use]
    pub fn new(id: i64) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// Subscribes, from now on or from the position of an earlier cursor.
    #[must_use]
    pub fn listen(self: &Arc<Self>, cursor: Option<Cursor>) -> Listener {
        Listener { events: Arc::clone(self), cursor, last_delivered: None }
    }
}

impl Listener {
    /// Returns the next events; if there are none, waits until the next look is due and tries once more.
    pub async fn next(&mut self, store: &dyn Store, now: impl Fn() -> Timestamp) -> ListenResult {
        let result = self.take_events(store, now()).await;
        if result != ListenResult::Nothing {
            return result;
        }
        sleep(self.events.time_until_look().await).await;
        self.take_events(store, now()).await
    }

    async fn take_events(&mut self, store: &dyn Store, now: Timestamp) -> ListenResult {
        let id = self.events.id;
        let mut state = self.events.state.lock().await;
        if state.looked_at.is_none_or(|at| at.elapsed() >= PERIOD) {
            state.look(store, now).await;
        }
        let Some(last_number) = self.last_delivered else {
            // Before the store has been read once, there is no position to start from.
            if state.last_snapshot.seen_at.is_none() {
                return ListenResult::Nothing;
            }
            let (start_number, is_gap) = match self.cursor.map(|cursor| state.last_received_number(id, cursor)) {
                Some(Some(start_number)) => (start_number, false),
                Some(None) => (state.last_number, true),
                None => (state.last_number, false),
            };
            self.last_delivered = Some(start_number);
            return ListenResult::Begun { cursor: state.cursor(id, start_number), is_gap };
        };
        let Some(events) = state.events_after(last_number) else { return ListenResult::TooSlow };
        let Some(last_event) = events.last() else { return ListenResult::Nothing };
        self.last_delivered = Some(last_event.number);
        let cursor = Cursor { watch: id, number: last_event.number, at: last_event.at };
        ListenResult::Events(events, cursor)
    }
}

impl Events {
    /// Time until the next look is due.
    async fn time_until_look(&self) -> Duration {
        let looked_at = self.state.lock().await.looked_at;
        looked_at.map_or(PERIOD, |at| PERIOD.saturating_sub(at.elapsed()))
    }
}

impl State {
    fn cursor(&self, watch: i64, event_number: u64) -> Cursor {
        Cursor { watch, number: event_number, at: self.last_snapshot.seen_at.unwrap_or(Timestamp::EPOCH) }
    }

    /// The number of the last event that the cursor's client received; `None` if it cannot be determined.
    fn last_received_number(&self, watch: i64, cursor: Cursor) -> Option<u64> {
        let first_number = self.recent_events.front().map_or(self.last_number + 1, |event| event.number);
        if cursor.watch == watch {
            return (cursor.number <= self.last_number && cursor.number + 1 >= first_number).then_some(cursor.number);
        }
        // The cursor is from another node. Events that this node saw around the cursor's instant may be sent twice.
        let earliest_since = cursor.at - NODE_SKEW_MAX;
        self.complete_since.filter(|since| *since <= earliest_since)?;
        let later_event = self.recent_events.iter().find(|event| event.at >= earliest_since);
        Some(later_event.map_or(self.last_number, |event| event.number - 1))
    }

    /// The events after a number, at most [`BATCH`]; `None` if some of them are no longer kept.
    fn events_after(&self, last_number: u64) -> Option<Vec<Arc<Event>>> {
        let first_number = self.recent_events.front().map_or(self.last_number + 1, |event| event.number);
        let skipped_count = usize::try_from((last_number + 1).checked_sub(first_number)?).ok()?;
        Some(self.recent_events.iter().skip(skipped_count).take(BATCH).cloned().collect())
    }

    /// Reads the store, and adds the changes to the recent events. If the store does not answer, listeners wait.
    async fn look(&mut self, store: &dyn Store, now: Timestamp) {
        let is_stale = self.last_snapshot.seen_at.is_some_and(|seen_at| seen_at + LOOK_GAP_MAX < now);
        let empty_snapshot = LastSnapshot::default();
        let is_due = self.swept_at.is_none_or(|at| at.elapsed() >= SWEEP_PERIOD);
        let last_snapshot = if is_stale { &empty_snapshot } else { &self.last_snapshot };
        let needs_sweep = is_due || last_snapshot.seen_at.is_none();
        let read_all = async {
            let snapshot = read_snapshot(store, last_snapshot, now, needs_sweep).await?;
            let changes = last_snapshot.compare(&snapshot);
            let names = ChangeNames::read(store, &changes, &self.app_names).await?;
            Ok::<_, StoreError>((snapshot, changes, names))
        };
        let read_result = read_all.await;
        self.looked_at = Some(Instant::now());
        let (snapshot, changes, names) = match read_result {
            Ok(read_values) => read_values,
            Err(error) => {
                if !std::mem::replace(&mut self.has_logged_failure, true) {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot read the changes for listeners of events; trying again"
                    );
                }
                return;
            }
        };
        self.has_logged_failure = false;
        self.app_names.extend(names.app_names);
        if needs_sweep {
            self.swept_at = self.looked_at;
        }
        if is_stale {
            self.last_snapshot = empty_snapshot;
            self.complete_since = None;
            self.record(now, None, EventKind::Gap);
        }
        self.complete_since = self.complete_since.or(Some(now));
        self.last_snapshot.apply(snapshot, now);
        for change in changes {
            let kind = match change {
                Change::Run(snapshot) => {
                    let job = names.job_names.get(&snapshot.job).cloned().unwrap_or_default();
                    EventKind::Run { snapshot, job }
                }
                Change::Job(job) => EventKind::Job(job),
                Change::Executor(id, HeardExecutor { name, namespace, app }, is_online) => {
                    EventKind::Executor { id, name, namespace, app, is_online }
                }
                Change::Node(name, status) => EventKind::Node { name, status },
                Change::Gap => EventKind::Gap,
            };
            let app = kind.place().and_then(|(_, app)| self.app_names.get(&app).cloned());
            self.record(now, app, kind);
        }
    }

    fn record(&mut self, at: Timestamp, app: Option<String>, kind: EventKind) {
        self.last_number += 1;
        self.recent_events.push_back(Arc::new(Event { number: self.last_number, at, app, kind }));
        if self.recent_events.len() > KEPT_EVENT_COUNT
            && let Some(dropped) = self.recent_events.pop_front()
        {
            // Other events of that instant may be kept.
            self.complete_since = self.complete_since.max(Some(dropped.at + Duration::from_millis(1)));
        }
    }
}

/// Reads the rows of a look.
async fn read_snapshot(
    store: &dyn Store,
    last_snapshot: &LastSnapshot,
    now: Timestamp,
    needs_sweep: bool,
) -> Result<Snapshot, StoreError> {
    let nodes = store.nodes().await?;
    let mut runs: BTreeMap<RunId, RunSnapshot> = BTreeMap::new();
    let mut is_cut = false;
    if needs_sweep {
        for node in &nodes {
            let open_runs = store.snapshots_of_lease(node.token(), SWEEP_LIMIT).await?;
            is_cut |= may_be_cut(&open_runs, SWEEP_LIMIT);
            runs.extend(keyed_by_id(open_runs));
        }
    }
    let reread_ids = last_snapshot.runs_to_reread(now);
    if !reread_ids.is_empty() {
        runs.extend(keyed_by_id(store.current_snapshots(&reread_ids).await?));
    }
    let recent_runs = store.snapshots_after(last_snapshot.runs_after(now), RUN_LIMIT).await?;
    is_cut |= recent_runs.len() >= RUN_LIMIT as usize;
    runs.extend(keyed_by_id(recent_runs));
    let jobs = store.jobs_saved(last_snapshot.jobs_since(now), JOB_LIMIT).await?;
    is_cut |= jobs.len() >= JOB_LIMIT as usize;
    let sessions = store.sessions(now - ONLINE_WITHIN).await?;
    let nodes = nodes.into_iter().map(|node| (node.id, (node.name.clone(), node.status(now)))).collect();
    let executors = heard_executors(store, last_snapshot, &sessions).await?;
    Ok(Snapshot { runs: runs.into_values().collect(), reread_ids, jobs, executors, nodes, is_cut })
}

/// Whether open runs may be missing because at most `limit` of each status were read.
fn may_be_cut(open_runs: &[RunSnapshot], limit: u32) -> bool {
    let is_full = |status| open_runs.iter().filter(|run| run.status == status).count() >= limit as usize;
    [RunStatus::Pending, RunStatus::Waiting, RunStatus::Running].into_iter().any(is_full)
}

fn keyed_by_id(runs: Vec<RunSnapshot>) -> impl Iterator<Item = (RunId, RunSnapshot)> {
    runs.into_iter().map(|run| (run.id, run))
}

/// The executors to which some node has a stream.
async fn heard_executors(
    store: &dyn Store,
    last_snapshot: &LastSnapshot,
    sessions: &[Session],
) -> Result<BTreeMap<rondel_core::ExecutorId, HeardExecutor>, StoreError> {
    let open_sessions = || sessions.iter().filter(|session| session.is_open());
    let unknown_executors = last_snapshot.unknown_executors(open_sessions().map(|session| &session.executor));
    let names =
        if unknown_executors.is_empty() { Vec::new() } else { store.executor_names(&unknown_executors).await? };
    let names_by_id: HashMap<_, _> = names.into_iter().map(|(id, namespace, name)| (id, (namespace, name))).collect();
    let heard_executor = |session: &Session| {
        let known_executor = last_snapshot.executor(session.executor).cloned();
        let executor = known_executor.or_else(|| {
            let (namespace, name) = names_by_id.get(&session.executor)?.clone();
            Some(HeardExecutor { name, namespace, app: session.app })
        });
        Some((session.executor, executor?))
    };
    Ok(open_sessions().filter_map(heard_executor).collect())
}

/// The names that are sent with changes.
struct ChangeNames {
    job_names: HashMap<JobId, String>,
    app_names: HashMap<AppId, String>,
}

impl ChangeNames {
    async fn read(
        store: &dyn Store,
        changes: &[Change],
        app_names: &HashMap<AppId, String>,
    ) -> Result<Self, StoreError> {
        let mut jobs: Vec<JobId> = Vec::new();
        let mut places: Vec<(NamespaceId, AppId)> = Vec::new();
        for change in changes {
            match change {
                Change::Run(run) => {
                    jobs.push(run.job);
                    places.push((run.namespace, run.app));
                }
                Change::Job(job) => places.push((job.namespace, job.app)),
                Change::Executor(_, heard, _) => places.push((heard.namespace, heard.app)),
                Change::Node(..) | Change::Gap => {}
            }
        }
        jobs.sort_unstable();
        jobs.dedup();
        let jobs = if jobs.is_empty() { Vec::new() } else { store.job_names(&jobs).await? };
        let mut namespaces: Vec<NamespaceId> = places
            .into_iter()
            .filter(|(_, app)| !app_names.contains_key(app))
            .map(|(namespace, _)| namespace)
            .collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let mut apps = HashMap::new();
        for namespace in namespaces {
            apps.extend(store.apps(namespace).await?.into_iter().map(|app| (app.id, app.name)));
        }
        Ok(Self { job_names: jobs.into_iter().collect(), app_names: apps })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use rondel_core::homes::Switch;
    use rondel_core::run::RunJob;
    use rondel_core::{IdGen, Run, Trigger};
    use rondel_store::cluster::{Join, JoinRequest};
    use rondel_store::{Claim as _, Cluster as _, MemStore};

    use super::*;

    /// A store with one node, and a clock that the test sets, in seconds.
    async fn world() -> (MemStore, Arc<AtomicI64>) {
        let clock = Arc::new(AtomicI64::new(1_790_000_000));
        let read = Arc::clone(&clock);
        let store = MemStore::new(Arc::new(move || Timestamp::from_secs(read.load(Ordering::Relaxed))));
        let request = JoinRequest {
            name: "a".to_owned(),
            lease: Duration::from_secs(1_000_000),
            advertise_url: None,
            server_version: String::new(),
            may_take_over: false,
            held: None,
            waited_for_takeover: Duration::ZERO,
        };
        assert!(matches!(store.join(&request).await.unwrap(), Join::Joined { .. }));
        (store, clock)
    }

    async fn next(listener: &mut Listener, store: &MemStore, clock: &AtomicI64) -> ListenResult {
        tokio::time::advance(PERIOD).await;
        clock.fetch_add(1, Ordering::Relaxed);
        listener.next(store, || Timestamp::from_secs(clock.load(Ordering::Relaxed))).await
    }

    async fn switch(store: &MemStore, to: Switch) {
        assert!(store.set_node_switch("a", to).await.unwrap());
    }

    fn begun(next: &ListenResult) -> (Cursor, bool) {
        match next {
            ListenResult::Begun { cursor, is_gap } => (*cursor, *is_gap),
            other => unreachable!("{other:?}"),
        }
    }

    /// The statuses of nodes and the kinds of other events, and the cursor after them.
    fn names_of(next: ListenResult) -> (Vec<&'static str>, Cursor) {
        let ListenResult::Events(events, cursor) = next else { unreachable!("{next:?}") };
        let word = |event: &Arc<Event>| match &event.kind {
            EventKind::Node { status, .. } => status,
            other => other.name(),
        };
        (events.iter().map(word).collect(), cursor)
    }

    #[tokio::test(start_paused = true)]
    async fn all_listeners_hear_the_same_and_go_on_where_they_were() {
        let (store, clock) = world().await;
        let events = Arc::new(Events::new(7));
        let (mut one, mut two) = (events.listen(None), events.listen(None));
        let (start, is_gap) = begun(&next(&mut one, &store, &clock).await);
        assert_eq!((start.watch, start.number, is_gap), (7, 0, false));
        assert!(!begun(&next(&mut two, &store, &clock).await).1);
        assert_eq!(next(&mut one, &store, &clock).await, ListenResult::Nothing);
        switch(&store, Switch::Draining).await;
        let (heard, behind) = names_of(next(&mut one, &store, &clock).await);
        assert_eq!(heard, ["draining"]);
        assert_eq!(names_of(two.take_events(&store, behind.at).await).0, ["draining"], "without another look");
        switch(&store, Switch::Active).await;
        let mut back = events.listen(Some(behind));
        let (from, is_gap) = begun(&next(&mut back, &store, &clock).await);
        assert_eq!((from.number, is_gap), (behind.number, false));
        assert_eq!(names_of(next(&mut back, &store, &clock).await).0, ["active"]);
    }

    #[tokio::test(start_paused = true)]
    async fn possibly_missed_events_are_a_gap() {
        let (store, clock) = world().await;
        let events = Arc::new(Events::new(7));
        let mut first = events.listen(None);
        let (start, _) = begun(&next(&mut first, &store, &clock).await);
        switch(&store, Switch::Draining).await;
        let (_, behind) = names_of(next(&mut first, &store, &clock).await);
        // A cursor of another node: events around its time are sent again, if they are still kept.
        clock.fetch_add(16, Ordering::Relaxed);
        let elsewhere = Cursor { watch: 8, number: 99, at: Timestamp::from_secs(clock.load(Ordering::Relaxed)) };
        assert!(!begun(&next(&mut events.listen(Some(elsewhere)), &store, &clock).await).1);
        let long_ago = Cursor { at: start.at - Duration::from_secs(60), ..elsewhere };
        assert!(begun(&next(&mut events.listen(Some(long_ago)), &store, &clock).await).1);
        assert!(begun(&next(&mut events.listen(Some(Cursor { number: 1_000, ..behind })), &store, &clock).await).1);
        // No client listened for a long time.
        clock.fetch_add(i64::try_from(LOOK_GAP_MAX.as_secs()).unwrap() + 1, Ordering::Relaxed);
        assert_eq!(names_of(next(&mut first, &store, &clock).await).0, ["gap"]);
        assert_eq!(next(&mut first, &store, &clock).await, ListenResult::Nothing);
        // One event is dropped, and the others of its instant are kept.
        let (mut state, at) = (events.state.lock().await, Timestamp::from_secs(1_800_000_000));
        (0..=KEPT_EVENT_COUNT).for_each(|_| state.record(at, None, EventKind::Gap));
        let number = |at: Timestamp| state.last_received_number(7, Cursor { at: at + NODE_SKEW_MAX, ..elsewhere });
        assert_eq!(number(at), None);
        assert_eq!(number(at + Duration::from_millis(1)), Some(state.last_number));
    }

    #[tokio::test]
    async fn open_runs_that_a_look_leaves_out_are_a_gap() {
        let (store, clock) = world().await;
        let now = Timestamp::from_secs(clock.load(Ordering::Relaxed));
        let token = store.nodes().await.unwrap()[0].token();
        let of = RunJob { namespace: NamespaceId::new(1), job: JobId::new(1), job_version: 1, app: AppId::new(1) };
        let begun_at = now - Duration::from_secs(3_600);
        let add = async |number: u32| {
            let id = RunId::new(IdGen::first_at(begun_at) + i64::from(number));
            let fire_at = begun_at + Duration::from_millis(number.into());
            let run = Run::new(id, of, fire_at, Trigger::Manual, (token.node, token.epoch));
            assert_eq!(store.request_run(token, run).await.unwrap().id, id);
        };
        let is_cut = async || read_snapshot(&store, &LastSnapshot::default(), now, true).await.unwrap().is_cut;
        for number in 1..SWEEP_LIMIT {
            add(number).await;
        }
        assert!(!is_cut().await);
        add(SWEEP_LIMIT).await;
        assert!(is_cut().await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_listener_learns_that_it_is_too_slow() {
        let (store, clock) = world().await;
        let events = Arc::new(Events::new(7));
        let mut slow = events.listen(None);
        begun(&next(&mut slow, &store, &clock).await);
        {
            let mut state = events.state.lock().await;
            for _ in 0..KEPT_EVENT_COUNT {
                state.record(Timestamp::EPOCH, None, EventKind::Gap);
            }
        }
        let ListenResult::Events(heard, _) = slow.take_events(&store, Timestamp::EPOCH).await else { unreachable!() };
        assert_eq!(heard.len(), BATCH, "as many as fit are kept");
        let mut slower = Listener { last_delivered: Some(0), ..slow.clone() };
        events.state.lock().await.record(Timestamp::EPOCH, None, EventKind::Gap);
        assert_eq!(slower.take_events(&store, Timestamp::EPOCH).await, ListenResult::TooSlow);
        assert!(events.state.lock().await.recent_events.len() <= KEPT_EVENT_COUNT);
    }
}
