//! Begins a transaction, and completes the beginning even if the caller is dropped.
//!
//! The future of a caller can be dropped while the database begins its transaction: a client disconnects, or a time limit ends. The drivers
//! of PostgreSQL and MySQL then return the session to the pool while it is in the transaction, without a rollback. Single statements of the
//! next callers would then run in that transaction. They would not be committed, would keep their locks, and would be lost when the
//! database ends the idle transaction.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Any, SqlStr, Transaction};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a transaction may take to begin after its caller was dropped. After this time the pool checks the session, and closes it if the
/// check fails.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);

type BeginResult = sqlx::Result<Transaction<'static, Any>>;

/// A transaction that begins in a session. If the caller is dropped, the transaction still begins, and is then rolled back.
pub(super) struct BeginTransaction(Option<Pin<Box<dyn Future<Output = BeginResult> + Send>>>);

impl BeginTransaction {
    pub(super) fn new(session: PoolConnection<Any>, statement: SqlStr) -> Self {
        Self(Some(Transaction::begin(session, Some(statement))))
    }
}

impl Future for BeginTransaction {
    type Output = BeginResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BeginResult> {
        let Some(begin_future) = &mut self.0 else { return Poll::Pending };
        let poll_result = begin_future.as_mut().poll(context);
        if poll_result.is_ready() {
            self.0 = None;
        }
        poll_result
    }
}

impl Drop for BeginTransaction {
    fn drop(&mut self) {
        // Like the pool's own tasks, this task is not registered with the process's task tracker: it ends within the limit, and closing the
        // pool waits for it.
        if let (Some(begin_future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(timeout(BEGIN_TIMEOUT, begin_future)));
        }
    }
}
