//! The engine's clock: the database's time, advanced between heartbeats by the host's boot-time clock.
//!
//! When the answer with the database's time arrives, the database's clock shows that time or a later one. This clock assumes exactly the time
//! in the answer. It is therefore slow by at most the latency of the answer, and never fast. No decision depends on a node's wall clock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_failpoint::mutant::{self, Mutant};
use rustix::time::{ClockId, clock_gettime};

/// How many readings are kept. The clock uses their highest offset.
const READING_COUNT: usize = 8;
/// How much the offset in use may exceed the highest offset that the newest reading allows, before this counts as a step back.
const SLACK_MICROS: i64 = 20_000;
/// The smallest step ahead that is recorded for [`Clock::may_have_stepped_ahead_within`].
const STEP_AHEAD_MICROS: i64 = 1_000_000;

/// Microseconds since the host booted, suspensions included.
#[must_use]
pub fn boot_micros() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000)
}

/// The source of a node's time since boot. A node measures its lease with this time, and extrapolates the database's time with it.
#[derive(Clone, Default)]
pub enum BootClock {
    /// The host's boot-time clock.
    #[default]
    Host,
    /// Another clock, in microseconds. In the simulation, each node has a clock that runs at its own pace.
    Given(Arc<dyn Fn() -> i64 + Send + Sync>),
}

impl BootClock {
    /// Microseconds since this node's host booted.
    #[must_use]
    pub fn micros(&self) -> i64 {
        match self {
            Self::Host => boot_micros(),
            Self::Given(clock) => clock(),
        }
    }
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "Host",
            Self::Given(_) => "Given",
        })
    }
}

/// The engine's estimate of the database's time.
#[derive(Debug, Default)]
pub struct Clock {
    boot: BootClock,
    /// The database's time minus the boot-time clock, in microseconds.
    offset_micros: AtomicI64,
    /// For each of the last readings, the lowest offset that the reading allows, in microseconds.
    lowest_offsets: Mutex<VecDeque<i64>>,
    /// When the database's clock was last seen to step ahead, by the boot-time clock in microseconds; 0 if never.
    stepped_ahead_at: AtomicI64,
}

impl Clock {
    /// A clock with one reading of the database's clock, which arrived just now.
    #[must_use]
    pub fn starting_at(database_now: Timestamp, boot: BootClock) -> Self {
        let clock = Self { boot, ..Self::default() };
        let now = clock.boot_micros();
        clock.observe(database_now, now, now);
        clock
    }

    /// Microseconds since this node's host booted.
    #[must_use]
    pub fn boot_micros(&self) -> i64 {
        self.boot.micros()
    }

    /// Converts an instant of the database's clock to the boot-time clock.
    fn boot_micros_at(&self, at: Timestamp) -> i64 {
        at.as_millis().saturating_mul(1_000).saturating_sub(self.offset_micros.load(Ordering::Relaxed))
    }

    /// Converts an instant of the boot-time clock to the database's clock, by the offset that is now in use. If the database's clock has stepped
    /// since that instant, it showed a different time then. An instant later than now is converted to the present time.
    #[must_use]
    pub fn timestamp_at(&self, boot_micros: i64) -> Timestamp {
        let micros = self.boot_micros().saturating_sub(boot_micros);
        self.now() - Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// The current time, as an estimate of the database's.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        if mutant::on(Mutant::WallClock) {
            return self.estimated_now() + Duration::from_millis(900);
        }
        self.estimated_now()
    }

    fn estimated_now(&self) -> Timestamp {
        let micros = self.boot_micros().saturating_add(self.offset_micros.load(Ordering::Relaxed));
        Timestamp::from_millis(micros.div_euclid(1000))
    }

    /// How far this host's wall clock is ahead of the database's, in milliseconds; negative if it is behind. The skew is only reported to
    /// operators. A given clock has no wall clock, so the skew is 0.
    #[must_use]
    pub fn skew_ms(&self) -> i64 {
        match self.boot {
            BootClock::Host => {
                let wall = clock_gettime(ClockId::Realtime);
                let wall_ms = wall.tv_sec.saturating_mul(1_000).saturating_add(wall.tv_nsec / 1_000_000);
                wall_ms.saturating_sub(self.now().as_millis())
            }
            BootClock::Given(_) => 0,
        }
    }

    /// Adds a reading that was requested at `sent_at` and arrived at `received_at`, both by the boot-time clock in microseconds. Returns by how
    /// many milliseconds the database's clock stepped back, if it did.
    pub fn observe(&self, database_now: Timestamp, sent_at: i64, received_at: i64) -> Option<i64> {
        let reading = database_now.as_millis().saturating_mul(1000);
        let (lowest, highest) = (reading - received_at, reading - sent_at);
        let mut lowest_offsets = self.lowest_offsets.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let best_offset = lowest_offsets.iter().copied().max();
        // Before the first reading, a step ahead cannot be ruled out.
        if best_offset.is_none_or(|best| lowest > best + STEP_AHEAD_MICROS) {
            self.stepped_ahead_at.store(received_at, Ordering::Relaxed);
        }
        let step_back_ms = best_offset.filter(|best| *best > highest + SLACK_MICROS).map(|best| (best - lowest) / 1000);
        if step_back_ms.is_some() {
            lowest_offsets.clear();
        }
        if lowest_offsets.len() == READING_COUNT {
            lowest_offsets.pop_front();
        }
        lowest_offsets.push_back(lowest);
        let best_offset = lowest_offsets.iter().copied().max().unwrap_or(lowest);
        self.offset_micros.store(best_offset, Ordering::Relaxed);
        step_back_ms
    }

    /// Whether the database's clock may have stepped ahead within the last `length`. If so, the difference of two timestamps may be longer
    /// than the time that has passed between them. The start of this process counts as a step, since the process cannot know of earlier steps.
    #[must_use]
    pub fn may_have_stepped_ahead_within(&self, length: Duration) -> bool {
        let stepped_at = self.stepped_ahead_at.load(Ordering::Relaxed);
        let length = i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        stepped_at > 0 && self.boot_micros().saturating_sub(stepped_at) < length
    }

    /// The time until `at` in microseconds; 0 if `at` has passed.
    #[must_use]
    pub fn micros_until(&self, at: Timestamp) -> i64 {
        self.boot_micros_at(at).saturating_sub(self.boot_micros()).max(0)
    }

    /// Waits until `at`. Never wakes early. Wakes late by at most the timer's resolution, unless the database's clock steps ahead during the
    /// wait.
    pub async fn sleep_until(&self, at: Timestamp) {
        loop {
            let remaining = at.since(self.now());
            if remaining.is_zero() {
                return;
            }
            // The wait is bounded, so that a step of the database's clock is noticed during a long wait.
            tokio::time::sleep(remaining.min(Duration::from_secs(1))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_slow_answer_does_not_set_the_clock_back() {
        let clock = Clock::default();
        clock.observe(at(1_000_000), 0, 1_000);
        let before = clock.offset_micros.load(Ordering::Relaxed);
        // The database read its clock at 1 s, immediately after the request; the answer was in flight for two seconds.
        assert_eq!(clock.observe(at(1_001_000), 1_000_000, 3_000_000), None);
        assert_eq!(clock.offset_micros.load(Ordering::Relaxed), before);
    }

    #[test]
    fn steps_are_followed_both_ways() {
        let clock = Clock::default();
        clock.observe(at(1_000_000), 0, 1_000);
        let micros = Arc::new(AtomicI64::new(60_000_000));
        let given = Arc::clone(&micros);
        let boot = BootClock::Given(Arc::new(move || given.load(Ordering::Relaxed)));
        let clock = Clock::starting_at(at(1_000_000), boot);
        let within = |millis| clock.may_have_stepped_ahead_within(Duration::from_millis(millis));
        assert!(within(1), "what was before is not known");
        micros.store(70_000_000, Ordering::Relaxed);
        clock.observe(at(1_010_100), 70_000_000, 70_000_000);
        assert_eq!((within(10_001), within(10_000)), (true, false));
        clock.observe(at(1_020_000), 70_000_000, 70_000_000);
        assert!(within(1) && !within(0));
        assert_eq!(clock.observe(at(1_001_300), 1_000_000, 1_001_000), None);
        assert_eq!(clock.observe(at(4_601_000), 1_000_000, 1_001_000), None);
        assert_eq!(clock.offset_micros.load(Ordering::Relaxed), 4_601_000_000 - 1_001_000);
        let back = clock.observe(at(1_002_000), 2_000_000, 2_001_000);
        assert!(back.is_some_and(|millis| (3_599_000..=3_601_000).contains(&millis)), "{back:?}");
        assert_eq!(clock.offset_micros.load(Ordering::Relaxed), 1_002_000_000 - 2_001_000);
    }
}
