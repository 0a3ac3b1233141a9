//! Delays between the tries of a message.

use std::time::Duration;

use rondel_core::Timestamp;

const DELAY_MIN: Duration = Duration::from_secs(5);
const DELAY_MAX: Duration = Duration::from_secs(3600);
/// A message that is not accepted within this time is given up.
pub(crate) const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The instant of the next try after `tried_count` tries; `None` to give up. The delay is 5 s, doubled with each try up to an hour, plus or
/// minus a quarter; `jitter` is from 0 to 1.
pub(crate) fn next_try(tried_count: i32, created_at: Timestamp, now: Timestamp, jitter: f64) -> Option<Timestamp> {
    let doublings = u32::try_from(tried_count.saturating_sub(1)).unwrap_or(0).min(16);
    let delay = (DELAY_MIN * 2_u32.pow(doublings)).min(DELAY_MAX);
    let due_at = now + delay.mul_f64(0.75 + jitter.clamp(0.0, 1.0) / 2.0);
    (due_at <= created_at + GIVE_UP_AFTER).then_some(due_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    #[track_caller]
    fn check_delay(tried_count: i32, jitter: f64, expected_ms: u64) {
        let due_at = next_try(tried_count, NOW, NOW, jitter);
        assert_eq!(due_at, Some(NOW + Duration::from_millis(expected_ms)));
    }

    #[test]
    fn delays_double_up_to_an_hour() {
        check_delay(1, 0.5, 5_000);
        check_delay(2, 0.5, 10_000);
        check_delay(5, 0.5, 80_000);
        check_delay(12, 0.5, 3_600_000);
        check_delay(i32::MAX, 0.5, 3_600_000);
        check_delay(1, 0.0, 3_750);
        check_delay(1, 1.0, 6_250);
    }

    #[test]
    fn a_day_is_enough() {
        let day = Duration::from_secs(24 * 3600);
        assert!(next_try(30, NOW, NOW + day - Duration::from_secs(7200), 0.5).is_some());
        assert_eq!(next_try(30, NOW, NOW + day - Duration::from_secs(60), 0.5), None);
    }
}
