//! Starts the tasks of the process, and stops them in order. No task runs outside the tracker.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A task, as [`TaskWrapper`] receives it.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A wrapper for every task that is spawned: the simulation uses it to stop and kill a node.
#[derive(Clone)]
struct TaskWrapper(Arc<dyn Fn(Task) -> Task + Send + Sync>);

impl fmt::Debug for TaskWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskWrapper")
    }
}

/// Two tokens and one tracker: `soft` asks tasks to take no new work and finish what they have, `hard` stops them.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// Cancelled first: loops that take new work end.
    pub soft: CancellationToken,
    /// Cancelled last: everything ends.
    pub hard: CancellationToken,
    tracker: TaskTracker,
    /// Whether a task ended before it was asked to.
    has_failed: Arc<AtomicBool>,
    wrap: Option<TaskWrapper>,
}

/// When a task ends. A task that ends earlier than this has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Ends at the soft stop.
    Soft,
    /// Continues through the drain, until the hard stop.
    Hard,
    /// May end at any time.
    Done,
}

impl Lifecycle {
    /// A lifecycle without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A lifecycle whose tasks are each wrapped by `wrap`.
    #[must_use]
    pub fn with_tasks_in(wrap: Arc<dyn Fn(Task) -> Task + Send + Sync>) -> Self {
        Self { wrap: Some(TaskWrapper(wrap)), ..Self::default() }
    }

    /// Runs a task. If it ends or panics before it was asked to stop, all tasks are asked to stop and [`Lifecycle::has_failed`] becomes
    /// true: a server without one of its tasks is worse than no server.
    pub fn spawn(&self, name: &'static str, until: Until, task: impl Future<Output = ()> + Send + 'static) {
        let guard = TaskGuard { name, until, lifecycle: self.clone() };
        let guarded_task = async move {
            let guard = guard;
            task.await;
            drop(guard);
        };
        match &self.wrap {
            None => drop(self.tracker.spawn(guarded_task)),
            Some(TaskWrapper(wrap)) => drop(self.tracker.spawn(wrap(Box::pin(guarded_task)))),
        }
    }

    /// Waits until every task has ended.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Whether a task ended too early, or panicked.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

struct TaskGuard {
    name: &'static str,
    until: Until,
    lifecycle: Lifecycle,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let was_asked = match self.until {
            Until::Soft => self.lifecycle.soft.is_cancelled() || self.lifecycle.hard.is_cancelled(),
            Until::Hard => self.lifecycle.hard.is_cancelled(),
            Until::Done => !std::thread::panicking(),
        };
        if !was_asked {
            tracing::error!(task = self.name, "a task ended unexpectedly; stopping");
            self.lifecycle.has_failed.store(true, Ordering::Relaxed);
            self.lifecycle.soft.cancel();
        }
    }
}
