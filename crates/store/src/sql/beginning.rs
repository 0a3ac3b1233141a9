//! The beginning of a transaction, which does not stop halfway.
//!
//! A caller may be dropped while the database begins its transaction: a client disconnects, or a time limit ends. The drivers of PostgreSQL
//! and MySQL then give the session back to the pool inside of the transaction, without a rollback. What other callers write there by single
//! statements would not be committed: it would hold its locks, and would be lost when the database ends the idle transaction.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Any, SqlStr, Transaction};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a transaction whose caller is gone may take to begin. After this time, the session itself is given up.
const LIMIT: Duration = Duration::from_secs(5);

type Begun = sqlx::Result<Transaction<'static, Any>>;

/// A transaction that begins in a session. If its caller is dropped, it begins all the same, and is rolled back at once.
pub(super) struct Beginning(Option<Pin<Box<dyn Future<Output = Begun> + Send>>>);

impl Beginning {
    pub(super) fn new(session: PoolConnection<Any>, statement: SqlStr) -> Self {
        Self(Some(Transaction::begin(session, Some(statement))))
    }
}

impl Future for Beginning {
    type Output = Begun;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Begun> {
        let Some(work) = &mut self.0 else { return Poll::Pending };
        let begun = work.as_mut().poll(context);
        if begun.is_ready() {
            self.0 = None;
        }
        begun
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        // Not on the tracker of the process, as for the pool's own tasks: this ends by itself, and the end of the pool waits for it.
        if let (Some(work), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(timeout(LIMIT, work)));
        }
    }
}
