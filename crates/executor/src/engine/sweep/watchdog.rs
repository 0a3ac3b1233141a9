//! Watches whether the handlers' runtime still polls tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// How often a task is sent to the handlers' runtime.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// If the task has not run after this long, every thread of that runtime is blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct RuntimeWatchdog {
    /// When the last task was sent, and whether it has run.
    pending_check: Option<(Instant, Arc<AtomicBool>)>,
    has_warned: bool,
}

impl RuntimeWatchdog {
    pub(super) fn check(&mut self, handler_runtime: &Handle, tracker: &TaskTracker, now: Instant) {
        if let Some((sent_at, has_answered)) = &self.pending_check {
            let elapsed = now.duration_since(*sent_at);
            if !has_answered.load(Ordering::Relaxed) {
                if elapsed >= BLOCKED_AFTER && !std::mem::replace(&mut self.has_warned, true) {
                    tracing::error!(
                        "handlers block every thread of the runtime: no other handler can continue until one of them awaits"
                    );
                }
                return;
            }
            self.has_warned = false;
            if elapsed < CHECK_PERIOD {
                return;
            }
        }
        let has_answered = Arc::new(AtomicBool::new(false));
        let answer = Arc::clone(&has_answered);
        tracker.spawn_on(async move { answer.store(true, Ordering::Relaxed) }, handler_runtime);
        self.pending_check = Some((now, has_answered));
    }
}
