//! The server's time, advanced by this host's monotonic clock.
//!
//! A server's time is out of date by the time it arrives, so each sample is a lower bound. The highest of the last few
//! samples is the best estimate. Results carry instants of this clock, never of the host's own.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use rondel_core::Timestamp;
use tokio::time::Instant;

use crate::lifecycle::lock;

/// How many samples count: enough that one of them had a short transit, few enough to follow a server clock that is
/// set back.
const SAMPLES_MAX: usize = 12;

/// The assumed maximum lag of the estimate behind the server. The estimate lags by the transit time of the quickest of
/// the samples.
const LAG_MAX: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct ServerClock {
    created_at: Instant,
    state: Mutex<Samples>,
}

#[derive(Debug)]
struct Samples {
    /// Server time minus the time since `created_at`, in milliseconds.
    offsets: VecDeque<i64>,
    /// The highest of `offsets`; before the first sample, the offset of the host's clock.
    offset: i64,
}

impl ServerClock {
    /// A clock that shows the host's time until a server has sent its own.
    pub(crate) fn new() -> Self {
        let offset = host_now().as_millis();
        Self { created_at: Instant::now(), state: Mutex::new(Samples { offsets: VecDeque::new(), offset }) }
    }

    /// Adjusts the clock to the time of a server.
    pub(crate) fn observe(&self, server_now: Timestamp) {
        let offset = server_now.as_millis() - self.elapsed_ms();
        let mut state = lock(&self.state);
        if state.offsets.len() == SAMPLES_MAX {
            state.offsets.pop_front();
        }
        state.offsets.push_back(offset);
        state.offset = state.offsets.iter().copied().max().unwrap_or(offset);
    }

    pub(crate) fn now(&self) -> Timestamp {
        let offset = lock(&self.state).offset;
        Timestamp::from_millis(offset.saturating_add(self.elapsed_ms()))
    }

    /// The current time, for an event that cannot happen before `due_at`. If the estimate is before `due_at` by no more than
    /// its assumed lag, this returns `due_at`.
    pub(crate) fn now_not_before(&self, due_at: Timestamp) -> Timestamp {
        let now = self.now();
        if now < due_at && due_at.since(now) <= LAG_MAX { due_at } else { now }
    }

    fn elapsed_ms(&self) -> i64 {
        rondel_core::time::millis(self.created_at.elapsed())
    }
}

/// The host's wall clock. It stands in for the server's until the first welcome, and in tests without a server.
#[expect(clippy::disallowed_methods, reason = "the first estimate, before any server has sent the time")]
fn host_now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + since_epoch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_quickest_sample_counts_and_time_advances() {
        let clock = ServerClock::new();
        clock.observe(Timestamp::from_millis(1_000));
        clock.observe(Timestamp::from_millis(960));
        assert_eq!(clock.now(), Timestamp::from_millis(1_000));
        tokio::time::advance(Duration::from_millis(250)).await;
        assert_eq!(clock.now(), Timestamp::from_millis(1_250));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_set_back_is_followed() {
        let clock = ServerClock::new();
        clock.observe(Timestamp::from_secs(1_000));
        for _ in 0..SAMPLES_MAX {
            clock.observe(Timestamp::from_secs(500));
        }
        assert_eq!(clock.now(), Timestamp::from_secs(500));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_clocks_own_lag_is_compensated() {
        let clock = ServerClock::new();
        clock.observe(Timestamp::from_millis(1_000));
        assert_eq!(clock.now_not_before(Timestamp::from_millis(1_020)), Timestamp::from_millis(1_020));
        assert_eq!(clock.now_not_before(Timestamp::from_millis(1_900)), Timestamp::from_millis(1_000));
        assert_eq!(clock.now_not_before(Timestamp::from_millis(900)), Timestamp::from_millis(1_000));
    }
}
