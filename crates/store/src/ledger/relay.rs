//! Fences by way of other servers: the roll call of a server that has no stream to an executor which another one hears.

use async_trait::async_trait;
use rondel_core::{ExecutorId, NodeId, RunId, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// A question to an executor: what has it in hand, now that it takes nothing more of these leases?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRequest {
    /// The server that asks.
    pub asker: NodeId,
    /// Whom.
    pub executor: ExecutorId,
    /// When: one question of a server to an executor differs from the next by that.
    pub asked_at: Timestamp,
    /// The leases, which have ended.
    pub leases: Vec<LeaseToken>,
}

/// What the executor answered to the server that hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayedAnswer {
    /// The server that asked.
    pub asker: NodeId,
    /// Who answered.
    pub executor: ExecutorId,
    /// When it was asked.
    pub asked_at: Timestamp,
    /// Its name at the server that hears it.
    pub name: String,
    /// The attempts that it had in hand, or whose results.
    pub held: Vec<(RunId, i32)>,
}

/// Carries fences to executors that another server hears, and their answers back.
#[async_trait]
pub trait Relay {
    /// Stores questions, each in the place of an earlier one to the same executor. Those of all servers from before `forget` are
    /// removed.
    async fn ask_fences(&self, requests: &[FenceRequest], forget: Timestamp) -> Result<()>;

    /// Questions of other servers since `since` without an answer, to executors that have an open stream to the node of `token`, at
    /// most `limit`.
    async fn fence_requests(&self, token: LeaseToken, since: Timestamp, limit: u32) -> Result<Vec<FenceRequest>>;

    /// Stores answers. The first answer to a question stays.
    async fn answer_fences(&self, answers: &[RelayedAnswer], now: Timestamp) -> Result<()>;

    /// The answers to the questions of `asker`, at most `limit`. They stay until the next question, so that one that is lost on its
    /// way is read again.
    async fn fence_answers(&self, asker: NodeId, since: Timestamp, limit: u32) -> Result<Vec<RelayedAnswer>>;
}
