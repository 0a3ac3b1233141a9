//! The database's clock, nodes with their leases, executors with their sessions.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::homes::{ClaimStrategy, Switch};
use rondel_core::{AppId, ExecutorId, IdGen, JobId, NamespaceId, NodeId, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::{Result, StoreError, Trouble};
pub use crate::streams::StreamEnd;
pub use crate::switches::{ExecutorSwitch, Switches};

/// What a node acts under: lost when its epoch is no longer the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    /// The node.
    pub node: NodeId,
    /// Rises each time the node's lease is taken anew.
    pub epoch: i64,
}

/// A request for a node's lease.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The node's name: the same at each of its starts.
    pub name: String,
    /// How long a lease lasts.
    pub lease: Duration,
    /// Where executors reach it, if it is configured.
    pub advertise_url: Option<String>,
    /// Version of the program.
    pub server_version: String,
    /// The database admits one server alone (SQLite's file lock is held): take the lease even from a living one.
    pub take_over: bool,
    /// The lease of this name that the caller has held until now: it may take the next one before that has ended.
    pub held: Option<LeaseToken>,
}

/// A lease that was prolonged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The database's clock.
    pub now: Timestamp,
    /// The end of the lease in the database before.
    pub before: Timestamp,
    /// Its end since.
    pub until: Timestamp,
}

impl JoinRequest {
    /// The epoch after `stored`, and after the one that the caller has held: a database that went back in time has forgotten that,
    /// and executors have not.
    pub(crate) fn epoch_after(&self, stored: LeaseToken) -> i64 {
        let held = self.held.filter(|held| held.node == stored.node).map_or(0, |held| held.epoch);
        stored.epoch.max(held) + 1
    }

    /// The id of a node that has no row: the one that it had, unless another one has that now; else the next one.
    pub(crate) fn new_id(&self, newest: i64, is_taken: impl Fn(NodeId) -> bool) -> NodeId {
        let held = self.held.map(|held| held.node).filter(|node| !is_taken(*node));
        held.unwrap_or_else(|| NodeId::new(newest + 1))
    }

    /// When the leases up to `before` ended, the last of them and the one before as in their row; `None` where it lives, and
    /// is another's. Where the database's clock has stepped back an earlier one may have the later end.
    pub(crate) fn ended_at(
        &self,
        before: LeaseToken,
        (last, prior): (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_own = self.held == Some(before);
        let ended_at = if is_own { last } else { last.min(now) };
        (is_own || last <= now || self.take_over).then(|| ended_at.max(prior))
    }
}

/// The ordinal of the next lease, after so many: the next in turn that no living node has. A node that starts anew does not go
/// on with the one it had: where the database's clock has stepped back since, it would make ids that are there already.
pub(crate) fn next_ordinal(lease_count: i64, is_taken: impl Fn(i64) -> bool) -> i64 {
    let in_turn = |step: i64| lease_count.wrapping_add(step).rem_euclid(IdGen::ORDINAL_COUNT);
    (0..IdGen::ORDINAL_COUNT).map(in_turn).find(|ordinal| !is_taken(*ordinal)).unwrap_or_default()
}

/// How many leases these nodes have taken, and those that are forgotten: the newest is never among them, and ids count up.
pub(crate) fn lease_count(nodes: impl Iterator<Item = LeaseToken>) -> i64 {
    let (newest, again) =
        nodes.fold((0, 0), |(newest, again), token| (token.node.get().max(newest), again + token.epoch - 1));
    newest + again
}

/// Of several sessions between the same two the one that was heard last, by node and executor.
pub(crate) fn newest_of_each(mut sessions: Vec<Session>) -> Vec<Session> {
    sessions.sort_by_key(|session| (session.token.node, session.executor, std::cmp::Reverse(session.last_seen_at)));
    sessions.dedup_by_key(|session| (session.token.node, session.executor));
    sessions
}

/// The answer to a [`JoinRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The lease is taken under a new epoch.
    Joined {
        /// What to act under.
        token: LeaseToken,
        /// Differs from those of every other living node and of the leases before: what ids are made with.
        ordinal: i64,
    },
    /// A living node has the name; its lease ends then.
    Living {
        /// By the database's clock. Later than it was: the node is really alive.
        lease_until: Timestamp,
        /// The epoch of that lease, or a later one where another node has adopted its runs.
        epoch: i64,
    },
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its identity across restarts.
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its newest epoch.
    pub epoch: i64,
    /// Until when it may act, by the database's clock; at most now for a dead one.
    pub lease_until: Timestamp,
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

/// What a node reports with each beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its process is on its way out: it takes nothing new, and inherits nothing.
    pub is_leaving: bool,
    /// How it shares out the jobs that have no living home.
    pub claim_strategy: ClaimStrategy,
    /// Its share, where the strategy goes by weight.
    pub weight: u32,
    /// How many jobs it is home to, by its last count …
    pub job_count: u64,
    /// … and their recent fires, in thousandths of a fire.
    pub recent_fires: u64,
    /// How far its host's wall clock is ahead of the database's, in milliseconds; negative where it is behind.
    pub skew_ms: i64,
    /// How many times it tried to claim a job since its process started …
    pub claims_tried: u64,
    /// … and how many of those another node had locked or moved.
    pub claims_lost: u64,
    /// How many of its statements were refused since then because its epoch was gone.
    pub refused_count: u64,
    /// 99 of 100 fires of the last minutes were released so many milliseconds after their instants, or sooner; none where there
    /// was no fire.
    pub lateness_p99_ms: Option<u64>,
    /// What came of its loops' last ticks.
    pub loops: Vec<LoopReport>,
}

/// What came of the ticks of one of a node's loops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoopReport {
    /// The loop: `scan`, `adopt`, `purge` …
    pub name: String,
    /// When its last tick ended, by the database's clock.
    pub ticked_at: Option<Timestamp>,
    /// How long that took, in milliseconds.
    pub took_ms: u64,
    /// When it last found something to do.
    pub did_at: Option<Timestamp>,
    /// Since the process started: ticks …
    pub tick_count: u64,
    /// … what they did something about (fires claimed, runs taken over, rows removed, messages sent) …
    pub done_count: u64,
    /// … and ticks that failed …
    pub failed_count: u64,
    /// … of which so many in a row up to the last tick.
    pub failed_in_a_row: u64,
    /// Since when every tick has failed; none where the last one succeeded.
    pub failing_since: Option<Timestamp>,
    /// Why a tick failed last.
    pub error: Option<String>,
    /// What the loop `host` has measured; none for the others.
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

/// A job on its way to another home, with those of its open runs that were not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HomeMove {
    /// The job.
    pub job: JobId,
    /// All of its open runs, as its home knows them: with another one open the job stays.
    pub runs: Vec<RunId>,
    /// The node that is to be its home.
    pub to: NodeId,
}

impl Node {
    /// Whether its lease holds at `now`.
    #[must_use]
    pub fn is_living(&self, now: Timestamp) -> bool {
        self.lease_until > now
    }

    /// How it stands, in a word: `dead`, `leaving`, or its switch.
    #[must_use]
    pub fn status(&self, now: Timestamp) -> &'static str {
        match self.is_living(now) {
            false => "dead",
            true if self.report.is_leaving => "leaving",
            true => self.switch.as_str(),
        }
    }

    /// Whether it may be given jobs, and may take over what a dead node left.
    #[must_use]
    pub fn takes_jobs(&self, now: Timestamp) -> bool {
        self.is_living(now) && self.switch == Switch::Active && !self.report.is_leaving
    }

    /// What it acts under.
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
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// Its stable name.
    pub name: String,
    /// The incarnation before, if it proved one.
    pub predecessor: Option<ExecutorId>,
    /// Version of its SDK.
    pub sdk_version: String,
    /// Its labels, as a JSON object.
    pub labels: String,
    /// For the weight router.
    pub weight: u32,
    /// How many runs it takes at the same time.
    pub slots: u32,
    /// Names of its handlers, as a JSON array.
    pub handlers: String,
    /// SHA-256 of its secret, in hex; `None` for one that has none.
    pub secret_hash: Option<String>,
    /// When it was first seen.
    pub first_seen_at: Timestamp,
    /// When any node last heard of it.
    pub last_seen_at: Timestamp,
}

/// What an executor is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorProof {
    /// Its app.
    pub app: AppId,
    /// SHA-256 of its secret, in hex; `None` for one that has none.
    pub secret_hash: Option<String>,
    /// The incarnation that it proved to be its predecessor.
    pub predecessor: Option<ExecutorId>,
}

/// Which executor was seen when, without its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenExecutor {
    /// The incarnation.
    pub id: ExecutorId,
    /// Its app.
    pub app: AppId,
    /// Its stable name.
    pub name: String,
    /// When any node last heard of it.
    pub last_seen_at: Timestamp,
}

/// A stream between a node and an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The node's end.
    pub token: LeaseToken,
    /// The executor's end.
    pub executor: ExecutorId,
    /// The app of the executor.
    pub app: AppId,
    /// When the node last heard of it.
    pub last_seen_at: Timestamp,
    /// When the stream ended, or else the lease under which it was open; none while it is open, as far as the node has reported.
    pub ended_at: Option<Timestamp>,
    /// Whether the executor has ended in order: it has nothing in hand and takes nothing more.
    pub has_left: bool,
    /// The executor's process, if the node saw it on its own host.
    pub process: Option<HostProcess>,
}

/// A process of a host, which every other process of that host and pid namespace can look for. In the database it is its four
/// parts in decimal digits, with spaces between them.
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
        let wrong = || format!("{text:?} is no process: expected four numbers");
        let [boot_id, pid_namespace, pid, started_ticks] = text.split(' ').collect::<Vec<_>>()[..] else {
            return Err(wrong());
        };
        Ok(Self {
            boot_id: boot_id.parse().map_err(|_| wrong())?,
            pid_namespace: pid_namespace.parse().map_err(|_| wrong())?,
            pid: pid.parse().map_err(|_| wrong())?,
            started_ticks: started_ticks.parse().map_err(|_| wrong())?,
        })
    }
}

/// How many connections to the database are in use, and how many are open and wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// In use.
    pub busy: u32,
    /// Open and free.
    pub idle: u32,
}

/// The database's clock, and nodes with their leases.
#[async_trait]
pub trait Cluster {
    /// The database's clock: what "now" means to every node.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether only one server can use this database at a time.
    fn is_single_server(&self) -> bool;

    /// How its connections to the database are used now; `None` where it has none.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// What is wrong with the database, by the error that a call gave; may look itself, for at most a second.
    async fn trouble(&self, error: &StoreError) -> Trouble {
        let _: &StoreError = error;
        Trouble::Refuses
    }

    /// Takes the lease of the node with this name under the next epoch, if it is not held.
    async fn join(&self, request: &JoinRequest) -> Result<Join>;

    /// Prolongs the lease to now + `lease` and answers what it was; `None` where the epoch is gone, or where the clock
    /// has stepped back by more than a tenth of that beyond the last renewal: then the node is to take the next lease.
    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Renewal>>;

    /// Gives the lease back: it ends now. Where the database's clock stepped back it ends when that has come to where it was
    /// (`reached`): what was due by then may have been sent. Does nothing where the epoch is gone.
    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()>;

    /// Every node, by id.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// Stores what the node reports. Does nothing where the epoch is gone.
    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()>;

    /// Sets the switch of the node with this name; false where there is none.
    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool>;

    /// Sets the switch of an app; false where there is none with this id.
    async fn set_app_switch(&self, app: AppId, switch: Switch) -> Result<bool>;

    /// Sets the switch of every executor of an app that has this stable name, now and later. A switch that is there already keeps
    /// its instant.
    async fn set_executor_switch(&self, app: AppId, name: &str, switch: Switch, at: Timestamp) -> Result<()>;

    /// Every switch that is not at [`Switch::Active`].
    async fn switches(&self) -> Result<Switches>;

    /// Removes nodes whose lease ended before `dead_since` and that own nothing: no open run, no job, no limit. The newest
    /// id stays, so that none is ever given twice. Answers how many went.
    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64>;
}

/// Executors with their sessions.
#[async_trait]
pub trait Executors {
    /// Remembers an executor and that it has a stream to this node; both may exist already. `last_seen_at` is now, and the answer is
    /// now. `None`, and nothing, where the id is that of an executor of another app, or of one with another secret. `process` is the
    /// executor's process, if the node sees it on its own host.
    async fn open_session(
        &self,
        token: LeaseToken,
        executor: &ExecutorRecord,
        process: Option<HostProcess>,
    ) -> Result<Option<Timestamp>>;

    /// Records in one statement that the node hears these executors. Streams outlive a lease: those that were opened under an
    /// earlier one are this one's from then on.
    async fn beat_sessions(&self, token: LeaseToken, executors: &[ExecutorId]) -> Result<()>;

    /// Records that the stream is closed, and that nothing is sent on it any more: now, or at the time that the node's clock has
    /// reached, whichever is later.
    async fn close_session(&self, token: LeaseToken, executor: ExecutorId, end: StreamEnd) -> Result<()>;

    /// The executor has ended in order, having nothing in hand: no node waits for it any more.
    async fn leave_sessions(&self, executor: ExecutorId) -> Result<()>;

    /// Every session that a node has reported as heard since `since`, open or closed.
    async fn sessions(&self, since: Timestamp) -> Result<Vec<Session>>;

    /// The sessions by which something may have been sent since `since`: those that a node heard since then, and those that
    /// ended after it or are open in a lease that does, as heard until that end. Where the database's clock stepped ahead, what
    /// was noted last may look older than what was sent.
    async fn witnesses(&self, since: Timestamp) -> Result<Vec<Session>>;

    /// The executors of a namespace seen since `since`, by app and name.
    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>>;

    /// What a hello of this incarnation, or of its successor, must prove; `None` for one that was never seen.
    async fn executor_proof(&self, id: ExecutorId) -> Result<Option<ExecutorProof>>;

    /// The incarnations of any app that proved this one to be their predecessor, the newest first, at most `limit`.
    async fn executor_successors(&self, id: ExecutorId, limit: u32) -> Result<Vec<ExecutorId>>;

    /// The executors of a namespace seen since `since`, by name alone: what lists page through.
    async fn seen_executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<SeenExecutor>>;

    /// Those of these incarnations that were seen since `since`, by app and name.
    async fn executors_by_id(&self, ids: &[ExecutorId], since: Timestamp) -> Result<Vec<ExecutorRecord>>;

    /// Forgets sessions and executors that no node has heard since `seen_before`, at most `limit` of each. Answers how
    /// many rows went; 0 means that none is left.
    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lease_has_an_ordinal_of_one_before() {
        let token = |node, epoch| LeaseToken { node: NodeId::new(node), epoch };
        let next = |leases: &[LeaseToken]| next_ordinal(lease_count(leases.iter().copied()), |_| false);
        assert_eq!([next(&[]), next(&[token(1, 1)])], [0, 1]);
        // One that starts anew, and then another that is new; nodes 1 and 2 are forgotten.
        assert_eq!([next(&[token(3, 1)]), next(&[token(3, 2)]), next(&[token(3, 2), token(4, 1)])], [3, 4, 5]);
        assert_eq!(next_ordinal(IdGen::ORDINAL_COUNT + 2, |ordinal| ordinal == 2), 3, "that one lives since long");
    }
}
