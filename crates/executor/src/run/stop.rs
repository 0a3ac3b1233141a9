//! Why a run must stop. Only the first cause counts.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_core::RunStatus;
use rondel_core::time::format_duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ending::Ending;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopCause {
    /// A user or a program asked for the stop.
    Cancelled { by: String },
    /// The run's timeout has passed.
    TimedOut { timeout: Duration },
    /// No server answers, and the run must not continue while its successor runs elsewhere.
    Silence { length: Duration },
    /// The executor drains.
    Drained,
}

impl fmt::Display for StopCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled { by } if by.is_empty() => f.write_str("cancelled"),
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
            Self::TimedOut { timeout } => write!(f, "timed out after {}", format_duration(*timeout)),
            Self::Silence { length } => write!(f, "stopped: no server answered for {}", format_duration(*length)),
            Self::Drained => f.write_str("stopped: the executor is shutting down"),
        }
    }
}

impl StopCause {
    /// Whether the executor itself stopped the run, and not a user or the timeout. In that case, the handler's own
    /// ending counts if the handler had not read the request to stop, and the ending is a success, a skip or a failure
    /// that is not retried: such a handler has done its work.
    pub(crate) fn yields_to_handler(&self) -> bool {
        matches!(self, Self::Silence { .. } | Self::Drained)
    }

    /// The ending of the stopped run. It is `cancelled` only if a user or a program requested the stop. A run that the
    /// executor itself stopped has failed, so that the job's retries apply. `aborted_after` is the grace after which
    /// the handler was aborted, if it was.
    pub(crate) fn ending(&self, aborted_after: Option<Duration>) -> Ending {
        let (status, retryable) = match self {
            Self::Cancelled { .. } => (RunStatus::Cancelled, false),
            Self::TimedOut { .. } => (RunStatus::TimedOut, true),
            Self::Silence { .. } | Self::Drained => (RunStatus::Failed, true),
        };
        let message = match aborted_after {
            Some(grace) => format!("{self}; aborted because it did not stop within {}", format_duration(grace)),
            None => self.to_string(),
        };
        let silent_for = if let Self::Silence { length } = self { Some(*length) } else { None };
        Ending { silent_for, ..Ending::new(status, message, retryable) }
    }

    /// The ending of a run whose handler cannot be aborted and may never return. The handler blocks a thread of the runtime or,
    /// if it is a blocking handler, a thread of the pool.
    pub(crate) fn stuck_ending(&self, is_blocking: bool) -> Ending {
        let ending = self.ending(None);
        let reason = if is_blocking { "the blocking handler does not return" } else { "the handler does not yield" };
        let message = format!("{}; {reason} and cannot be aborted: it may still be at work", ending.message);
        Ending { message, ..ending }
    }
}

/// The cause of a run's stop: set once, read and awaited by many tasks.
#[derive(Debug, Default)]
pub(crate) struct StopCell {
    cause: OnceLock<(StopCause, Instant)>,
    token: CancellationToken,
    is_read: AtomicBool,
}

impl StopCell {
    pub(crate) fn set(&self, cause: StopCause) {
        if self.cause.set((cause, Instant::now())).is_ok() {
            self.token.cancel();
        }
    }

    pub(crate) fn cause(&self) -> Option<&StopCause> {
        self.cause.get().map(|(cause, _)| cause)
    }

    /// When the cause was set.
    pub(crate) fn set_at(&self) -> Option<Instant> {
        self.cause.get().map(|(_, at)| *at)
    }

    pub(crate) async fn wait_until_stopped(&self) {
        self.token.cancelled().await;
    }

    /// The cause, for the handler; marks it as read, because the handler may leave something undone from now on.
    pub(crate) fn read_by_handler(&self) -> Option<&StopCause> {
        let cause = self.cause()?;
        self.is_read.store(true, Ordering::Relaxed);
        Some(cause)
    }

    pub(crate) fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }
}
