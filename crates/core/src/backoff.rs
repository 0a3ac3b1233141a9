//! How long to wait before the next try: doubled each time, up to a limit.

use std::time::Duration;

/// The wait after `failed_count` failed tries: `first` after one, twice as long after each further one, and at most `max`. Without a
/// failure there is no wait.
///
/// ```
/// use std::time::Duration;
/// use rondel_core::backoff::backoff;
///
/// let (first, max) = (Duration::from_secs(10), Duration::from_secs(60));
/// let waits: Vec<u64> = (0..6).map(|failed| backoff(first, max, failed).as_secs()).collect();
/// assert_eq!(waits, [0, 10, 20, 40, 60, 60]);
/// ```
#[must_use]
pub fn backoff(first: Duration, max: Duration, failed_count: u32) -> Duration {
    let Some(doublings) = failed_count.checked_sub(1) else { return Duration::ZERO };
    let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(max)
}

/// The wait with jitter, so that callers that failed together do not all try again together: from half of the wait (`chance` 0) up to the
/// whole wait (`chance` 1).
#[must_use]
pub fn with_jitter(wait: Duration, chance: f64) -> Duration {
    multiply(wait, 0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

/// The wait times a positive factor; the longest duration if the product is longer.
pub(crate) fn multiply(wait: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(wait.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_doubles_up_to_its_limit_however_often() {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(5));
        let waits: Vec<u128> = (0..9).map(|failed| backoff(first, max, failed).as_millis()).collect();
        assert_eq!(waits, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        for failed in [31, 32, 33, 34, 64, u32::MAX] {
            assert_eq!(backoff(first, max, failed), max, "{failed}");
            assert_eq!(backoff(Duration::ZERO, max, failed), Duration::ZERO);
        }
        assert_eq!(backoff(max, first, 1), first, "the limit holds from the first wait on");
    }

    #[test]
    fn a_spread_wait_is_from_half_to_whole() {
        let wait = Duration::from_secs(4);
        let spread = |chance| with_jitter(wait, chance).as_millis();
        assert_eq!([spread(0.0), spread(0.5), spread(1.0), spread(-1.0), spread(9.0)], [2000, 3000, 4000, 2000, 4000]);
    }

    #[test]
    fn the_longest_wait_stays_the_longest() {
        assert_eq!(multiply(Duration::MAX, 1.1), Duration::MAX);
        assert_eq!(multiply(Duration::from_secs(10), 1.1), Duration::from_secs(11));
        assert_eq!(with_jitter(Duration::MAX, 1.0), Duration::MAX);
        assert_eq!(backoff(Duration::MAX, Duration::MAX, 2), Duration::MAX);
    }
}
