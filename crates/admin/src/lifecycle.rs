//! Who started what, and in which order it stops. Nothing runs that is not on the tracker.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A task, as a [`Wrap`] gets it.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What every task is put into before it is spawned: the simulation stops and kills a node by it.
#[derive(Clone)]
struct Wrap(Arc<dyn Fn(Task) -> Task + Send + Sync>);

impl fmt::Debug for Wrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wrap")
    }
}

/// Two tokens and one tracker: `soft` asks (take nothing new, finish what is in hand), `hard` insists.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// Cancelled first: loops that take new work end.
    pub soft: CancellationToken,
    /// Cancelled last: everything ends.
    pub hard: CancellationToken,
    tracker: TaskTracker,
    failed: Arc<AtomicBool>,
    wrap: Option<Wrap>,
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

    /// A lifecycle whose tasks are each put into what `wrap` makes of them.
    #[must_use]
    pub fn with_tasks_in(wrap: Arc<dyn Fn(Task) -> Task + Send + Sync>) -> Self {
        Self { wrap: Some(Wrap(wrap)), ..Self::default() }
    }

    /// Runs a task. If it ends (or panics) before it was asked to, everything is asked to stop and
    /// [`Lifecycle::has_failed`] answers so: half a server is worse than none.
    pub fn spawn(&self, name: &'static str, until: Until, task: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard { name, until, lifecycle: self.clone() };
        let guarded = async move {
            let guard = guard;
            task.await;
            drop(guard);
        };
        match &self.wrap {
            None => drop(self.tracker.spawn(guarded)),
            Some(Wrap(wrap)) => drop(self.tracker.spawn(wrap(Box::pin(guarded)))),
        }
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
        let was_asked = match self.until {
            Until::Soft => self.lifecycle.soft.is_cancelled() || self.lifecycle.hard.is_cancelled(),
            Until::Hard => self.lifecycle.hard.is_cancelled(),
            Until::Done => !std::thread::panicking(),
        };
        if !was_asked {
            tracing::error!(task = self.name, "a task ended that should not have; stopping");
            self.lifecycle.failed.store(true, Ordering::Relaxed);
            self.lifecycle.soft.cancel();
        }
    }
}
