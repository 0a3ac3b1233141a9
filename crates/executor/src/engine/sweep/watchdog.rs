//! Watches whether the handlers' runtime still polls tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

/// How often a task is sent to the handlers' runtime.
const PERIOD: Duration = Duration::from_secs(1);

/// If the task has not run after this long, every thread of that runtime is blocked.
const BLOCKED_MIN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub(super) struct RuntimeWatchdog {
    /// When the last task was sent, and whether it has run.
    sent: Option<(Instant, Arc<AtomicBool>)>,
    has_warned: bool,
}

impl RuntimeWatchdog {
    pub(super) fn check(&mut self, handlers: &Handle, tracker: &TaskTracker, now: Instant) {
        if let Some((sent_at, answered)) = &self.sent {
            let since = now.duration_since(*sent_at);
            if !answered.load(Ordering::Relaxed) {
                if since >= BLOCKED_MIN && !std::mem::replace(&mut self.has_warned, true) {
                    tracing::error!(
                        "handlers block every thread of the runtime: no other handler can continue until one of them awaits"
                    );
                }
                return;
            }
            self.has_warned = false;
            if since < PERIOD {
                return;
            }
        }
        let answered = Arc::new(AtomicBool::new(false));
        let answer = Arc::clone(&answered);
        tracker.spawn_on(async move { answer.store(true, Ordering::Relaxed) }, handlers);
        self.sent = Some((now, answered));
    }
}
