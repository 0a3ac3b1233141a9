//! The database's clock, nodes with their leases, executors with their sessions.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, NamespaceId, NodeId, Timestamp};

use crate::Result;

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
    /// Where executors reach it, if it was told.
    pub advertise_url: Option<String>,
    /// Version of the program.
    pub server_version: String,
    /// The database admits one server alone (SQLite's file lock is held): take the lease even from a living one.
    pub take_over: bool,
}

/// The answer to a [`JoinRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The lease is taken under a new epoch.
    Joined {
        /// What to act under.
        token: LeaseToken,
        /// Differs from that of every other living node: what ids are made with.
        ordinal: i64,
    },
    /// A living node has the name; its lease ends then.
    Living {
        /// By the database's clock.
        lease_until: Timestamp,
        /// The epoch of that lease: unchanged but later `lease_until` means that it is really alive.
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
}

impl Node {
    /// Whether its lease holds at `now`.
    #[must_use]
    pub fn is_living(&self, now: Timestamp) -> bool {
        self.lease_until > now
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
    /// When it was first seen.
    pub first_seen_at: Timestamp,
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
    /// Whether the stream is open, as far as the node has said.
    pub open: bool,
}

/// The clock, nodes, executors.
#[async_trait]
pub trait Cluster {
    /// The database's clock: what "now" means to every node.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether only one server can use this database at a time.
    fn is_single_server(&self) -> bool;

    /// Takes the lease of the node with this name under the next epoch, if it is not held.
    async fn join(&self, request: &JoinRequest) -> Result<Join>;

    /// Prolongs the lease to now + `lease` and answers the database's clock; `None` where the epoch is gone.
    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Timestamp>>;

    /// Gives the lease back: it ends now. Does nothing where the epoch is gone.
    async fn release(&self, token: LeaseToken) -> Result<()>;

    /// Every node, by id.
    async fn nodes(&self) -> Result<Vec<Node>>;

    /// Remembers an executor and that it has a stream to this node; both may exist already. `last_seen_at` is now.
    async fn open_session(&self, token: LeaseToken, executor: &ExecutorRecord) -> Result<()>;

    /// Says in one statement that the node hears these executors.
    async fn beat_sessions(&self, token: LeaseToken, executors: &[ExecutorId]) -> Result<()>;

    /// Says that the stream is closed.
    async fn close_session(&self, token: LeaseToken, executor: ExecutorId) -> Result<()>;

    /// Every session that a node has said it heard since `since`, open or closed.
    async fn sessions(&self, since: Timestamp) -> Result<Vec<Session>>;

    /// The executors of a namespace seen since `since`, by app and name.
    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>>;
}
