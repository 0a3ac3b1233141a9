//! Begins a transaction, and completes the beginning even if the caller is dropped.
//!
//! The future of a caller can be dropped while the database begins its transaction: a client disconnects, or a time limit ends. The drivers
//! of PostgreSQL and MySQL then return the session to the pool while it is in the transaction, without a rollback. Single statements of the
//! next callers would then run in that transaction. They would not be committed, would keep their locks, and would be lost when the
//! database ends the idle transaction.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sqlx::pool::PoolConnection;
use sqlx::{Any, SqlStr, Transaction};
use tokio::runtime::Handle;

use super::pools::{LivePools, Pools};

type BeginResult = sqlx::Result<Transaction<'static, Any>>;

/// A transaction that begins in a session. If the caller is dropped, the transaction still begins, and is then rolled back.
pub(super) struct BeginTransaction {
    begin_future: Option<Pin<Box<dyn Future<Output = BeginResult> + Send>>>,
    /// The store's pools, and those among them that the session is from.
    pools: (Arc<LivePools>, Arc<Pools>),
}

impl BeginTransaction {
    pub(super) fn new(session: PoolConnection<Any>, statement: SqlStr, pools: (Arc<LivePools>, Arc<Pools>)) -> Self {
        Self { begin_future: Some(Transaction::begin(session, Some(statement))), pools }
    }
}

impl Future for BeginTransaction {
    type Output = BeginResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BeginResult> {
        let Some(begin_future) = &mut self.begin_future else { return Poll::Pending };
        let poll_result = begin_future.as_mut().poll(context);
        if poll_result.is_ready() {
            self.begin_future = None;
        }
        poll_result
    }
}

impl Drop for BeginTransaction {
    fn drop(&mut self) {
        let (Some(begin_future), Ok(runtime)) = (self.begin_future.take(), Handle::try_current()) else { return };
        // A session that was given up before the database has answered would return to the pool, and be inside the transaction once the
        // answer comes. If there is no answer, all sessions are therefore replaced: those of replaced pools are closed when they return.
        // Like the pool's own tasks, this task is not registered with the process's task tracker: it ends within the answer timeout, and
        // closing the pool waits for it.
        let (live_pools, pools) = (Arc::clone(&self.pools.0), Arc::clone(&self.pools.1));
        drop(runtime.spawn(async move { live_pools.answer(&pools, begin_future).await }));
    }
}
