//! Fences relayed through other servers, for the roll call of a server that has no stream to an executor.

use async_trait::async_trait;
use rondel_core::{ExecutorId, NodeId, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A request to an executor to report which runs it has. Once the executor has received the request, it accepts no run under these leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRequest {
    pub asker: NodeId,
    pub executor: ExecutorId,
    /// When the server made the request. This instant distinguishes the requests of one server to one executor.
    pub asked_at: Timestamp,
    /// The leases, all of which have ended.
    pub leases: Vec<LeaseToken>,
}

/// The answer of an executor, as stored by the server that has its stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedAnswer {
    /// The server that asked.
    pub asker: NodeId,
    pub executor: ExecutorId,
    pub asked_at: Timestamp,
    /// The executor's name at the server that has its stream.
    pub name: String,
    /// The attempts that the executor had, or whose results it had.
    pub held: Vec<(RunId, i32)>,
}

/// Relays fences to executors whose streams end at other servers, and relays their answers back.
#[async_trait]
pub trait Relay {
    /// Stores requests. Each replaces the server's stored request to the same executor, even one of a later instant: the clock may have
    /// stepped back while the server started again. A request that is stored again keeps its answer. Removes the requests of all servers
    /// from before `forget_before`.
    async fn ask_fences(&self, requests: &[FenceRequest], forget_before: Timestamp) -> Result<()>;

    /// Unanswered requests that other servers made since `since`, to executors that have an open stream to the node of
    /// `token`. At most `limit`.
    async fn fences_to_relay(&self, token: LeaseToken, since: Timestamp, limit: u32) -> Result<Vec<FenceRequest>>;

    /// Stores answers. The first answer to a request stays.
    async fn answer_fences(&self, answers: &[RelayedAnswer], now: Timestamp) -> Result<()>;

    /// The answers to the requests that `asker` made since `since`, at most `limit`. An answer stays until the next
    /// request, so that it can be read again if it is lost in transit.
    async fn fence_answers(&self, asker: NodeId, since: Timestamp, limit: u32) -> Result<Vec<RelayedAnswer>>;
}
