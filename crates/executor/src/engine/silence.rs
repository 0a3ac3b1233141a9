//! How long no server has answered: after that, what must not run twice stops, for its successor may run elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What holds where neither the builder nor a server says anything.
const SILENCE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Silence {
    configured: Option<Duration>,
    base: Instant,
    /// By the last welcome; 0 until there is one: an executor that was never welcomed holds no runs.
    limit_ms: AtomicU64,
    /// Since `base`.
    heard_ms: AtomicU64,
}

impl Silence {
    pub(crate) fn new(configured: Option<Duration>) -> Self {
        Self { configured, base: Instant::now(), limit_ms: AtomicU64::new(0), heard_ms: AtomicU64::new(0) }
    }

    pub(crate) fn welcomed(&self, silence_ms: u32) {
        let told = if silence_ms == 0 { SILENCE } else { Duration::from_millis(silence_ms.into()) };
        self.limit_ms.store(as_ms(self.configured.unwrap_or(told)).max(1), Ordering::Relaxed);
        self.heard();
    }

    pub(crate) fn heard(&self) {
        self.heard_ms.store(as_ms(self.base.elapsed()), Ordering::Relaxed);
    }

    /// The length of the silence, where it is too long.
    pub(crate) fn exceeded(&self) -> Option<Duration> {
        let limit = self.limit_ms.load(Ordering::Relaxed);
        let silent = as_ms(self.base.elapsed()).saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        (limit > 0 && silent >= limit).then(|| Duration::from_millis(limit))
    }
}

fn as_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_word() {
        let silence = Silence::new(None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(silence.exceeded(), None, "nobody has spoken yet");
        silence.welcomed(3_000);
        tokio::time::advance(Duration::from_secs(2)).await;
        silence.heard();
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(silence.exceeded(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(silence.exceeded(), Some(Duration::from_secs(3)));
    }
}
