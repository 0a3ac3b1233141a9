//! Who started what, and in which order it stops. Nothing runs that is not on the tracker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Two tokens and one tracker: `soft` asks (take nothing new, finish what is in hand), `hard` insists.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// Cancelled first: loops that take new work end.
    pub soft: CancellationToken,
    /// Cancelled last: everything ends.
    pub hard: CancellationToken,
    tracker: TaskTracker,
    failed: Arc<AtomicBool>,
}

/// Which of the tokens ends a task; before that, its end is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Ends when asked.
    Soft,
    /// Goes on through the drain.
    Hard,
    /// May end at any time.
    Done,
}

impl Lifecycle {
    /// A lifecycle with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a task. If it ends (or panics) before it was told to, everything is asked to stop and
    /// [`Lifecycle::has_failed`] says so: half a server is worse than none.
    pub fn spawn(&self, name: &'static str, until: Until, task: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard { name, until, lifecycle: self.clone() };
        self.tracker.spawn(async move {
            let guard = guard;
            task.await;
            drop(guard);
        });
    }

    /// Waits until every task has ended.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Whether a task ended that should not have.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

struct Guard {
    name: &'static str,
    until: Until,
    lifecycle: Lifecycle,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let told = match self.until {
            Until::Soft => self.lifecycle.soft.is_cancelled() || self.lifecycle.hard.is_cancelled(),
            Until::Hard => self.lifecycle.hard.is_cancelled(),
            Until::Done => !std::thread::panicking(),
        };
        if !told {
            tracing::error!(task = self.name, "a task ended that should not have; stopping");
            self.lifecycle.failed.store(true, Ordering::Relaxed);
            self.lifecycle.soft.cancel();
        }
    }
}
