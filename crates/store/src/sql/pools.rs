//! The sessions of a store with its database. All of them are replaced if a statement gets no answer.
//!
//! The database ends each statement within the statement's timeout. If no answer has come some time after that, the other end of the
//! connection is gone without notice: its machine lost power, a network lost the packets, or the address leads to another server by now.
//! TCP detects this after a quarter of an hour or never. A commit may take any time, for example until a standby has it. It is given up
//! only when the sessions are replaced.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sqlx::AnyPool;
use sqlx::any::AnyConnectOptions;
use tokio::sync::watch;
use tokio::time::timeout;

use super::session::{ANSWER_MARGIN, Sessions};

/// The sessions in use.
pub(super) struct Pools {
    /// The sessions that write. On SQLite there is one.
    pub(super) write: AnyPool,
    pub(super) read: AnyPool,
    /// Whether other pools have replaced these; all work in these then ends.
    is_replaced: watch::Sender<bool>,
}

impl Pools {
    /// Awaits work in these sessions. The work ends with an error if the sessions are replaced.
    async fn until_replaced<T>(&self, work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
        let mut replacements = self.is_replaced.subscribe();
        tokio::select! {
            result = work => result,
            _ = replacements.wait_for(|is_replaced| *is_replaced) => Err(no_answer_error()),
        }
    }
}

/// The sessions of a store, in pools that are replaced by new ones if the database does not answer.
pub(super) struct LivePools {
    current: RwLock<Arc<Pools>>,
    sessions: Sessions,
    options: AnyConnectOptions,
    /// The number of sessions that write, and the number of other sessions that read. The second number is 0 if the same sessions write and
    /// read.
    sizes: (u32, u32),
    /// Maximum time until the answer to a statement; `None` if the database is a file.
    answer_timeout: Option<Duration>,
}

impl fmt::Debug for LivePools {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LivePools").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl LivePools {
    /// Opens the pools. Sessions are opened when they are needed.
    pub(super) fn open(
        (sessions, options): (Sessions, AnyConnectOptions),
        sizes: (u32, u32),
        statement_timeout: Option<Duration>,
    ) -> Self {
        let current_pools = RwLock::new(Arc::new(pools(&sessions, &options, sizes)));
        let answer_timeout = statement_timeout.map(|timeout| timeout + ANSWER_MARGIN);
        Self { current: current_pools, sessions, options, sizes, answer_timeout }
    }

    pub(super) fn current_pools(&self) -> Arc<Pools> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Awaits the answer to a statement.
    pub(super) async fn answer<T>(
        &self,
        pools: &Arc<Pools>,
        work: impl Future<Output = sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let Some(limit) = self.answer_timeout else { return work.await };
        match timeout(limit, pools.until_replaced(work)).await {
            Ok(result) => result,
            Err(_) => {
                self.replace(pools, limit);
                Err(no_answer_error())
            }
        }
    }

    /// Awaits the answer to a commit, which may take any time.
    pub(super) async fn commit(
        &self,
        pools: &Arc<Pools>,
        work: impl Future<Output = sqlx::Result<()>>,
    ) -> sqlx::Result<()> {
        if self.answer_timeout.is_none() { work.await } else { pools.until_replaced(work).await }
    }

    /// Replaces these pools, which do not answer, by new ones, if they are still in use.
    fn replace(&self, silent_pools: &Arc<Pools>, limit: Duration) {
        let mut current_pools = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current_pools, silent_pools) {
            return;
        }
        tracing::warn!(?limit, "the database did not answer a statement in time; replacing all connections");
        *current_pools = Arc::new(pools(&self.sessions, &self.options, self.sizes));
        drop(current_pools);
        silent_pools.is_replaced.send_replace(true);
        // A pool whose `close` was called gives out no session and drops those that are returned. That does not require awaiting the
        // future.
        drop(silent_pools.write.close());
        drop(silent_pools.read.close());
    }
}

fn pools(sessions: &Sessions, options: &AnyConnectOptions, (write_size, read_size): (u32, u32)) -> Pools {
    let write = sessions.pool(write_size).connect_lazy_with(options.clone());
    let read = match read_size {
        0 => write.clone(),
        size => sessions.pool(size).connect_lazy_with(options.clone()),
    };
    Pools { write, read, is_replaced: watch::Sender::new(false) }
}

/// The error of a statement whose sessions were given up, as if its connection had broken.
fn no_answer_error() -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "the database does not answer"))
}
