//! The database's clock, nodes with their leases, executors with their sessions.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::homes::{ClaimStrategy, Switch};
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, NodeId, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{DatabaseTroubleKind, Result, StoreError};
pub use crate::lease::{Join, JoinRequest, LeaseToken, Renewal};
pub(crate) use crate::lease::{distinct_end, lease_count, next_ordinal};
pub use crate::streams::StreamEnd;
pub use crate::switches::{ExecutorSwitch, Switches};

/// Keeps one session for each node and executor: the one on which the node heard the executor last. Sorts by node and executor.
pub(crate) fn newest_of_each(mut sessions: Vec<Session>) -> Vec<Session> {
    sessions.sort_by_key(|session| (session.token.node, session.executor, std::cmp::Reverse(session.last_seen_at)));
    sessions.dedup_by_key(|session| (session.token.node, session.executor));
    sessions
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its identity across restarts.
    pub id: NodeId,
    pub name: String,
    /// Its newest epoch.
    pub epoch: i64,
    /// The end of its lease, by the database's clock. For a dead node it has passed, unless the clock has stepped back.
    pub lease_until: Timestamp,
    /// Whether another node has fenced its last lease. A fenced node is dead, even if the clock has stepped back to before the end of that
    /// lease.
    pub is_fenced: bool,
    /// The home of the limits of that lease: the node that fenced it, or the node that has since taken over the fencer. `None` if the lease
    /// is not fenced, or if a server of an earlier version fenced it, because such a server does not store its id here.
    pub fenced_by: Option<NodeId>,
    /// Where executors reach it.
    pub advertise_url: Option<String>,
    /// Version of its program.
    pub server_version: String,
    /// When this epoch began.
    pub started_at: Timestamp,
    /// Its switch, as set by users.
    pub switch: Switch,
    /// Its last report.
    pub report: NodeReport,
}

/// The report of a node, sent with each beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether the process is shutting down. It then takes no new work and adopts nothing.
    pub is_leaving: bool,
    /// How it distributes the jobs that have no living home.
    pub claim_strategy: ClaimStrategy,
    /// Its weight, for the strategy `weight`.
    pub weight: u32,
    /// Number of jobs whose home it is, by its last count.
    pub job_count: u64,
    /// Recent fires of those jobs, in thousandths of a fire.
    pub recent_fires: u64,
    /// How far its host's wall clock is ahead of the database's, in milliseconds; negative if it is behind.
    pub skew_ms: i64,
    /// Number of its attempts to claim a job since its process started.
    pub claims_tried: u64,
    /// Number of those attempts that failed because another node had locked or moved the job.
    pub claims_lost: u64,
    /// Number of its statements since its process started that were refused because its epoch was no longer current.
    pub refused_count: u64,
    /// 99th percentile of the lateness of the fires of the last minutes, in milliseconds; `None` if there was no fire.
    pub lateness_p99_ms: Option<u64>,
    pub loops: Vec<LoopReport>,
}

/// The report of one of a node's loops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopReport {
    /// The loop: `scan`, `adopt`, `purge` …
    pub name: String,
    /// When its last tick ended, by the database's clock.
    pub ticked_at: Option<Timestamp>,
    /// How long that tick took, in milliseconds.
    pub took_ms: u64,
    /// When a tick last found work.
    pub did_at: Option<Timestamp>,
    /// Number of ticks since the process started.
    pub tick_count: u64,
    /// Number of items handled since the process started: fires claimed, runs taken over, rows removed, messages sent.
    pub done_count: u64,
    /// Number of ticks that failed since the process started.
    pub failed_count: u64,
    /// Number of consecutive failed ticks up to the last one.
    pub failed_in_a_row: u64,
    /// Since when every tick has failed; `None` if the last one succeeded.
    pub failing_since: Option<Timestamp>,
    /// The error of the last failed tick.
    pub error: Option<String>,
    /// The measurements of the loop `host`; `None` for the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<crate::host::HostReport>,
}

impl Default for NodeReport {
    fn default() -> Self {
        Self {
            is_leaving: false,
            claim_strategy: ClaimStrategy::Default,
            weight: 1,
            job_count: 0,
            recent_fires: 0,
            skew_ms: 0,
            claims_tried: 0,
            claims_lost: 0,
            refused_count: 0,
            lateness_p99_ms: None,
            loops: Vec::new(),
        }
    }
}

/// A move of a job to another home, with its open runs, none of which was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeMove {
    pub job: JobId,
    /// All open runs of the job that its home knows. If the store has another open run of the job, the job stays.
    pub runs: Vec<RunId>,
    /// The new home.
    pub to: NodeId,
}

impl Node {
    /// Whether its lease holds at `now`. A fenced lease has ended, whatever the clock shows: no process acts under the epoch that the fence
    /// raised.
    #[must_use]
    pub fn is_living(&self, now: Timestamp) -> bool {
        !self.is_fenced && self.lease_until > now
    }

    /// Its status: `dead`, `leaving`, or its switch.
    #[must_use]
    pub fn status(&self, now: Timestamp) -> &'static str {
        match self.is_living(now) {
            false => "dead",
            true if self.report.is_leaving => "leaving",
            true => self.switch.as_str(),
        }
    }

    /// Whether it may get jobs, and adopt the runs of a dead node.
    #[must_use]
    pub fn takes_jobs(&self, now: Timestamp) -> bool {
        self.is_living(now) && self.switch == Switch::Active && !self.report.is_leaving
    }

    /// The lease that it acts under.
    #[must_use]
    pub const fn token(&self) -> LeaseToken {
        LeaseToken { node: self.id, epoch: self.epoch }
    }
}

/// An executor as it introduced itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutorRecord {
    /// The incarnation.
    pub id: ExecutorId,
    pub namespace: NamespaceId,
    pub app: AppId,
    /// Its stable name.
    pub name: String,
    /// The previous incarnation, if it proved one.
    pub predecessor: Option<ExecutorId>,
    pub sdk_version: String,
    /// Its labels, as a JSON object.
    pub labels: String,
    /// Its weight, for the weight router.
    pub weight: u32,
    /// Maximum number of concurrent runs.
    pub slots: u32,
    /// Names of its handlers, as a JSON array.
    pub handlers: String,
    /// SHA-256 of its secret, in hex; `None` if it has none.
    pub secret_hash: Option<String>,
    pub first_seen_at: Timestamp,
    /// When any node last heard it.
    pub last_seen_at: Timestamp,
}

/// The credentials of an executor, which a later hello must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorProof {
    pub app: AppId,
    /// SHA-256 of its secret, in hex; `None` if it has none.
    pub secret_hash: Option<String>,
    /// The incarnation that it proved to be its predecessor.
    pub predecessor: Option<ExecutorId>,
}

/// An executor and when it was last seen, without its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenExecutor {
    /// The incarnation.
    pub id: ExecutorId,
    pub app: AppId,
    pub name: String,
    /// When any node last heard it.
    pub last_seen_at: Timestamp,
}

/// A stream between a node and an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The lease of the node at one end of the stream.
    pub token: LeaseToken,
    /// The executor at the other end.
    pub executor: ExecutorId,
    pub app: AppId,
    /// When the node last heard the executor on this stream.
    pub last_seen_at: Timestamp,
    /// When the stream ended, or if that was not reported, when the lease under which the stream was open ended. `None` while the stream is
    /// open, as far as the store knows.
    pub ended_at: Option<Timestamp>,
    /// Whether the executor shut down cleanly: it has no run and takes none.
    pub has_left: bool,
    /// The executor's process, if the node saw it on its own host.
    pub process: Option<HostProcess>,
}

/// A process of a host, identified so that other processes of that host and pid namespace can check whether it still runs. The database
/// stores its four parts as decimal numbers, separated by spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostProcess {
    /// A random number, new at each boot of the host.
    pub boot_id: u128,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
    /// Its id in that namespace.
    pub pid: i32,
    /// When it started, in clock ticks since the boot.
    pub started_ticks: u64,
}

impl fmt::Display for HostProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.boot_id, self.pid_namespace, self.pid, self.started_ticks)
    }
}

impl FromStr for HostProcess {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let process_error = || format!("{text:?} is not a process: expected four numbers");
        let [boot_id, pid_namespace, pid, started_ticks] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err(process_error());
        };
        Ok(Self {
            boot_id: boot_id.parse().map_err(|_| process_error())?,
            pid_namespace: pid_namespace.parse().map_err(|_| process_error())?,
            pid: pid.parse().map_err(|_| process_error())?,
            started_ticks: started_ticks.parse().map_err(|_| process_error())?,
        })
    }
}

/// Numbers of connections to the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    pub busy: u32,
    /// Open, but not in use.
    pub idle: u32,
}

/// The database's clock, and nodes with their leases.
#[async_trait]
pub trait Cluster {
    /// The database's clock: what "now" means to every node.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether only one server can use this database at a time.
    fn is_single_server(&self) -> bool;

    /// The current use of its database connections; `None` for a store without connections.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// Diagnoses the database from the error of a call. It may query the database for at most a second.
    async fn diagnose(&self, error: &StoreError) -> DatabaseTroubleKind {
        let _: &StoreError = error;
        DatabaseTroubleKind::RejectsStatement
    }

    /// Takes the lease of the node with this name under the next epoch, unless another server still has it.
    async fn join(&self, request: &JoinRequest) -> Result<Join>;

    /// Renews the lease to now + `lease`. `None` if the epoch is no longer current, or if the clock has stepped back by more than a tenth
    /// of `lease` since the last renewal. In both cases the node must take its next lease.
    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Renewal>>;

    /// Releases the lease: it ends now, or at `reached` if that is later. `reached` is the greater of two instants: the greatest time that
    /// the database's clock has shown, and the latest instant of a run that the node has sent ahead. Runs that were due by then may have
    /// been sent. Does nothing if the epoch is no longer current.
    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()>;

    /// Every node, sorted by id.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// Stores the report of the node. Does nothing if the epoch is no longer current.
    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()>;

    /// Sets the switch of the node with this name; `false` if there is no such node.
    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool>;

    /// Sets the switch of an app; `false` if there is no app with this id.
    async fn set_app_switch(&self, app: AppId, switch: Switch) -> Result<bool>;

    /// Sets the switch of every executor of an app that has this stable name, including executors that connect later. A switch that is
    /// already in this position keeps its instant.
    async fn set_executor_switch(&self, app: AppId, name: &str, switch: Switch, at: Timestamp) -> Result<()>;

    /// Every switch that is not at [`Switch::Active`].
    async fn switches(&self) -> Result<Switches>;

    /// Removes at most `limit` nodes whose lease ended before `dead_since` and that own nothing: no open run, no job with a next fire, no
    /// limit. The node with the newest id stays, so that no id is assigned twice. Returns how many were removed.
    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64>;
}

/// Executors with their sessions.
#[async_trait]
pub trait Executors {
    /// Stores an executor and its stream to this node, as seen now. Both may exist already. Returns when the session was opened. If the id
    /// belongs to an executor of another app or with another secret, stores nothing and returns `None`. `process` is the executor's
    /// process, if the node sees it on its own host.
    async fn open_session(
        &self,
        token: LeaseToken,
        executor: &ExecutorRecord,
        process: Option<HostProcess>,
    ) -> Result<Option<Timestamp>>;

    /// Records in one statement that the node hears these executors. Streams outlive a lease: sessions opened under an earlier lease move
    /// to this one.
    async fn beat_sessions(&self, token: LeaseToken, executors: &[ExecutorId]) -> Result<()>;

    /// Records that the stream is closed and carries nothing more. The session ends now, or at [`reached`](StreamEnd::reached) if that is
    /// later.
    async fn close_session(&self, token: LeaseToken, executor: ExecutorId, end: StreamEnd) -> Result<()>;

    /// Records that the executor shut down cleanly and has no run, so that no node still waits for it.
    async fn leave_sessions(&self, executor: ExecutorId) -> Result<()>;

    /// Every session, open or closed, on which a node has heard the executor since `since`.
    async fn sessions(&self, since: Timestamp) -> Result<Vec<Session>>;

    /// The sessions on which something may have been sent since `since`. A node has heard the executor on such a session since then, or the
    /// session has ended since then, or it is open under a lease that ends after `since`. The `last_seen_at` of each session is the
    /// latest of these instants, because the last recorded beat alone can look older than the last trigger that was sent if the database's
    /// clock has stepped ahead.
    async fn sessions_that_may_have_carried(&self, since: Timestamp) -> Result<Vec<Session>>;

    /// The executors of a namespace seen since `since`, sorted by app and name.
    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>>;

    /// The credentials that the hello of this incarnation, or of its successor, must match; `None` if this incarnation was never seen.
    async fn executor_proof(&self, id: ExecutorId) -> Result<Option<ExecutorProof>>;

    /// The incarnations, of any app, that proved this one to be their predecessor. The newest comes first; at most `limit`.
    async fn executor_successors(&self, id: ExecutorId, limit: u32) -> Result<Vec<ExecutorId>>;

    /// The executors of a namespace seen since `since`, without their details: lists page through these.
    async fn seen_executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<SeenExecutor>>;

    /// The executors with these ids that were seen since `since`, sorted by app and name.
    async fn executors_by_id(&self, ids: &[ExecutorId], since: Timestamp) -> Result<Vec<ExecutorRecord>>;

    /// Removes sessions and executors that no node has heard since `seen_before`, at most `limit` of each. Returns how many rows were
    /// removed; 0 means that none is left.
    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64>;
}
