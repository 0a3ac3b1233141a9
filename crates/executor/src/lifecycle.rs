//! The owner of every task: nothing that an executor starts outlives the executor.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Two signals, and a tracker of the tasks. `soft` ends the sessions and most loops; `hard` ends the loops that runs
/// depend on, and drops the runs at their current `await`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lifecycle {
    pub(crate) soft: CancellationToken,
    pub(crate) hard: CancellationToken,
    pub(crate) tracker: TaskTracker,
}

impl Lifecycle {
    /// Returns guards that trip both signals on drop: an executor whose future is dropped leaves no task behind.
    pub(crate) fn guard(&self) -> (DropGuard, DropGuard) {
        (self.soft.clone().drop_guard(), self.hard.clone().drop_guard())
    }
}

/// Spawns a task that belongs to no executor, because [`crate::spawn`] was called outside a run.
#[expect(clippy::disallowed_methods, reason = "the one place; outside a run there is no tracker to own the task")]
pub(crate) fn spawn_outside<F>(future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(future)
}

/// Waits until `at`; for ever if it is `None`.
pub(crate) async fn wait_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Locks for a short section. Poisoning is ignored: a panic under one of these locks leaves no inconsistent state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
