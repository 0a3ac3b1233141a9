//! The store in memory, for tests of code that uses a store. It gives the same answers as the databases.
//!
//! It is simple rather than fast. Every call scans all rows under one lock.

mod access;
mod alert_rows;
mod alerts;
mod calendars;
mod catalog;
mod changes;
mod channel_rows;
mod channels;
mod cluster;
mod declarations;
mod executors;
mod heal;
mod logs;
mod outbox;
mod pumps;
mod reports;
mod request_keys;
mod rollups;
mod run;
mod saved_filters;
mod script_rows;
mod scripts;
mod shadow;
mod stats;
mod traces;
mod upkeep;
mod xxl;
mod xxl_rows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_core::calendar::Rule;
use rondel_core::graph::Edge;
use rondel_core::homes::{RecentFires, Switch};
use rondel_core::run::Attempt;
use rondel_core::{
    AppId, CalendarId, ExecutorId, JobId, JobSpec, NamespaceId, NodeId, OutboxId, Run, RunId, RunStatus, Timestamp,
    TraceParent,
};
use rondel_failpoint::mutant::{self, Mutant};

use crate::LeaseToken;
use crate::calendars::CalendarRecord;
use crate::catalog::{App, JobRecord, Namespace, PinnedCalendar};
use crate::cluster::{ExecutorRecord, JoinRequest, Node, Session};
use crate::declarations::DeclaredSet;
use crate::follow::EndedRun;
use crate::ledger::{FenceRequest, LimitName, RelayedAnswer, lease_of_home};
use crate::outbox::{FailureWebhook, OutboxItem};
use crate::reports::{FailureGain, FailureKey, ScheduledReport};
use crate::rollups::{NewestOutcomes, PointKey, StatPoint};

type Clock = dyn Fn() -> Timestamp + Send + Sync;

/// The store in memory, with a clock that tests set.
pub struct MemStore {
    clock: Arc<Clock>,
    is_single_server: bool,
    state: Mutex<State>,
}

impl MemStore {
    /// An empty store. `clock` takes the place of the database's clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        let default = Namespace { id: NamespaceId::new(1), name: "default".to_owned() };
        let state = State { namespaces: vec![default], ..State::default() };
        Self { clock, is_single_server: false, state: Mutex::new(state) }
    }

    /// Makes it a store for a single server, whose next start does not wait for the end of a lease, as on SQLite.
    #[must_use]
    pub fn of_single_server(self) -> Self {
        Self { is_single_server: true, ..self }
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("MemStore").field("jobs", &state.jobs.len()).field("runs", &state.runs.len()).finish()
    }
}

/// The unique key of a run.
type RunKey = (JobId, Timestamp, i64, i32);

fn key(run: &Run) -> RunKey {
    (run.job, run.fire_at, run.cause, run.shard_index)
}

#[derive(Default)]
struct State {
    namespaces: Vec<Namespace>,
    apps: BTreeMap<AppId, App>,
    jobs: BTreeMap<JobId, StoredJob>,
    /// Jobs whose newest definition counts as unreadable.
    unreadable_jobs: BTreeSet<JobId>,
    calendars: BTreeMap<CalendarId, CalendarRecord>,
    /// The rules of every version that a calendar ever had.
    calendar_rules: BTreeMap<(CalendarId, i64), Rule>,
    scripts: BTreeMap<(NamespaceId, String), script_rows::StoredScript>,
    due: BTreeMap<JobId, DueRow>,
    access: access::AccessRows,
    nodes: BTreeMap<NodeId, StoredNode>,
    executors: BTreeMap<ExecutorId, ExecutorRecord>,
    sessions: BTreeMap<(NodeId, ExecutorId), Session>,
    /// When the last stream between each node and executor was opened.
    opened_at: BTreeMap<(NodeId, ExecutorId), Timestamp>,
    runs: BTreeMap<RunId, Run>,
    keys: HashMap<RunKey, RunId>,
    attempts: BTreeMap<(RunId, i32), Attempt>,
    /// Jobs that are or were pump jobs.
    pumps: BTreeSet<JobId>,
    pump_items: BTreeMap<JobId, BTreeMap<String, rondel_core::pump::Item>>,
    /// Runs with a request to cancel or to end them.
    cancels: BTreeSet<RunId>,
    /// For each key of a job, the run that has it, or that had it last.
    trigger_keys: HashMap<(JobId, String), RunId>,
    /// The node that counts the runs of each limit.
    limit_homes: BTreeMap<LimitName, NodeId>,
    /// The requests to fence that other servers relay, by asker and executor, each with its answer if there is one.
    fence_requests: BTreeMap<(NodeId, ExecutorId), (FenceRequest, Option<RelayedAnswer>)>,
    logs: BTreeMap<logs::ChunkKey, logs::StoredChunk>,
    webhooks: BTreeMap<NamespaceId, FailureWebhook>,
    /// A message is due when its `held_until` has passed.
    outbox: BTreeMap<OutboxId, OutboxItem>,
    channel_rows: channel_rows::ChannelRows,
    alert_rows: alert_rows::AlertRows,
    /// Runs that failed for good and were not acknowledged, each with its namespace, job and instant.
    dead_letters: BTreeMap<RunId, (NamespaceId, JobId, Timestamp)>,
    /// When the last pass of each housekeeping task began.
    passes: BTreeMap<String, Timestamp>,
    /// The number of runs and the sum of their durations in milliseconds, by job, hour and verdict.
    stats: BTreeMap<(JobId, Timestamp, RunStatus), (i64, i64)>,
    failures: BTreeMap<FailureKey, FailureGain>,
    report_schedules: BTreeMap<NamespaceId, ScheduledReport>,
    /// Runs that must be counted later or counted again, with the verdict under which they were counted before.
    stat_open: BTreeMap<RunId, Option<RunStatus>>,
    /// The last run that the counts have reached.
    stat_cursor: Option<RunId>,
    points: BTreeMap<PointKey, StatPoint>,
    /// How the newest counted runs of each job ended.
    newest_outcomes: BTreeMap<JobId, NewestOutcomes>,
    /// The switches of apps that are not active.
    app_switches: BTreeMap<AppId, Switch>,
    /// The switches of executors, by app and name, with the instant of each.
    executor_switches: BTreeMap<(AppId, String), (Switch, Timestamp)>,
    declared: BTreeMap<(AppId, String), DeclaredSet>,
    /// The observed fires of other schedulers, by namespace, source and number.
    shadow_fires: BTreeMap<(NamespaceId, String, i64), crate::shadow::ShadowFire>,
    /// The saved filters, by the id of their owner.
    saved_filters: BTreeMap<i64, Vec<crate::saved_filters::SavedFilter>>,
    xxl: xxl_rows::XxlRows,
    /// The calls with idempotency keys, by scope and key.
    calls: BTreeMap<(String, String), request_keys::StoredCall>,
    /// The spans that requested runs, keyed by the runs.
    traces: BTreeMap<RunId, TraceParent>,
    parents: Vec<Edge>,
    /// Runs that got their verdict in the batch that is being written.
    ended_runs: Vec<EndedRun>,
}

struct StoredJob {
    record: JobRecord,
    is_deleted: bool,
    versions: BTreeMap<i64, StoredVersion>,
}

/// A row of `job_version`.
#[derive(Clone)]
struct StoredVersion {
    app: AppId,
    spec: JobSpec,
    calendar: Option<PinnedCalendar>,
    author: String,
    created_at: Timestamp,
}

/// A row of `job_due`.
#[derive(Clone, Copy)]
struct DueRow {
    next_fire_at: Option<Timestamp>,
    /// The first fire that a maintenance window holds back.
    held_from: Option<Timestamp>,
    /// Whether the job rightly has no next fire. If it has none and this is false, the job is stuck.
    is_over: bool,
    /// The length of its fixed delay.
    delay: Option<Duration>,
    /// The run whose end sets the next fire.
    awaited_run: Option<RunId>,
    version: i64,
    home: NodeId,
    /// Rises at each change of home.
    term: i64,
    recent_fires: RecentFires,
}

struct StoredNode {
    node: Node,
    /// Part of the ids that the node makes. No other living node has it.
    ordinal: i64,
    /// The end of the earlier leases. Equal to the end of the lease once another node has fenced the lease.
    prior_lease_until: Timestamp,
    /// The latest end among the leases that have been fenced.
    ended_at: Timestamp,
}

impl StoredNode {
    /// The lease that owns a new run of a job whose home is this node.
    fn lease_of_home(&self) -> LeaseToken {
        lease_of_home(self.node.id, self.node.epoch, (self.node.lease_until, self.prior_lease_until))
    }
}

impl State {
    /// Whether this node must wait before it joins again: its last lease is fenced, another node is alive, and not all open runs of that
    /// lease are taken over yet.
    fn is_being_taken_over(&self, stored_node: &StoredNode, request: &JoinRequest, now: Timestamp) -> bool {
        let node = &stored_node.node;
        // As in SQL, an unfenced fencer counts as alive even after its lease has ended, because it may return later than this node.
        let is_living = |other: &Node| other.is_living(now) || Some(other.id) == node.fenced_by && !other.is_fenced;
        let is_other_living = self.nodes.values().any(|other| other.node.id != node.id && is_living(&other.node));
        let is_orphan = |run: &Run| run.node == node.id && run.node_epoch < node.epoch && !run.status.is_terminal();
        stored_node.node.is_fenced
            && is_other_living
            && request.waits_for_takeover()
            && self.runs.values().any(is_orphan)
    }

    fn holds(&self, token: LeaseToken, now: Timestamp) -> bool {
        self.nodes
            .get(&token.node)
            .is_some_and(|stored_node| stored_node.node.epoch == token.epoch && stored_node.node.is_living(now))
    }

    /// Inserts a run unless its key or id exists.
    fn insert(&mut self, run: Run) -> bool {
        let is_known = self.keys.contains_key(&key(&run)) && !mutant::on(Mutant::NoUniqueKey);
        if is_known || self.runs.contains_key(&run.id) {
            return false;
        }
        self.keys.insert(key(&run), run.id);
        self.runs.insert(run.id, run);
        true
    }

    /// Closes the streams that are still recorded as open under a lease that has ended.
    fn end_sessions(&mut self, lease: LeaseToken, ended_at: Timestamp) {
        let is_of_lease = |token: LeaseToken| token.node == lease.node && token.epoch <= lease.epoch;
        let sessions = self.sessions.values_mut().filter(|session| is_of_lease(session.token));
        sessions.for_each(|session| session.ended_at = session.ended_at.or(Some(ended_at)));
    }

    /// An open run that this lease owns; `None` if the lease does not own the run, or the run has ended.
    fn own_open_run(&mut self, token: LeaseToken, id: RunId) -> Option<&mut Run> {
        let run = self.runs.get_mut(&id)?;
        (run.node == token.node && run.node_epoch == token.epoch && !run.status.is_terminal()).then_some(run)
    }
}

fn to_usize(limit: u32) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}
