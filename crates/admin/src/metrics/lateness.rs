//! Lateness of this node's recent fires: the growth of a histogram in the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

use rondel_core::Timestamp;

use super::Histogram;

/// Maximum age of the fires that count.
const AGE_MAX: Duration = Duration::from_secs(5 * 60);
/// How often the counts are stored for comparison.
const SNAPSHOT_PERIOD: Duration = Duration::from_secs(15);

/// Counts of a histogram at instants in the last minutes, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentLateness(VecDeque<(Timestamp, Vec<u64>)>);

impl RecentLateness {
    /// The 99th percentile of the lateness of recent fires, as the upper end of its bucket in milliseconds; `None` if there was no fire. If
    /// the percentile lies beyond the last bucket end, the result is that end plus one.
    pub(crate) fn p99_ms(&mut self, histogram: &Histogram, now: Timestamp) -> Option<u64> {
        let counts = histogram.counts();
        let Self(snapshots) = self;
        // After the clock was set back, the stored instants are meaningless.
        if snapshots.back().is_some_and(|(at, _)| *at > now) {
            snapshots.clear();
        }
        if snapshots.back().is_none_or(|(at, _)| now.since(*at) >= SNAPSHOT_PERIOD) {
            snapshots.push_back((now, counts.clone()));
        }
        while snapshots.len() > 1 && snapshots.get(1).is_some_and(|(at, _)| now.since(*at) >= AGE_MAX) {
            snapshots.pop_front();
        }
        let (_, older_counts) = snapshots.front()?;
        let count_by_bucket: Vec<u64> =
            counts.iter().zip(older_counts).map(|(now, before)| now.saturating_sub(*before)).collect();
        let total: u64 = count_by_bucket.iter().sum();
        let rank = (total * 99).div_ceil(100);
        let mut running_total = 0;
        let bucket = count_by_bucket.iter().position(|count| {
            running_total += count;
            running_total >= rank && running_total > 0
        })?;
        let ends = histogram.ends_ms();
        ends.get(bucket).copied().or_else(|| ends.last().map(|last| last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::histogram::LATENESS_ENDS_MS;
    use super::*;

    #[test]
    fn only_the_newest_fires_count() {
        let histogram = Histogram::new(LATENESS_ENDS_MS);
        let mut recent = RecentLateness::default();
        let at = |seconds: i64| Timestamp::from_secs(1_900_000_000 + seconds);
        assert_eq!(recent.p99_ms(&histogram, at(0)), None);
        for _ in 0..99 {
            histogram.observe(Duration::from_millis(3));
        }
        histogram.observe(Duration::from_secs(4));
        assert_eq!(recent.p99_ms(&histogram, at(20)), Some(5));
        histogram.observe(Duration::from_secs(4));
        assert_eq!(recent.p99_ms(&histogram, at(21)), Some(5_000), "two of 101");
        for second in (40..400).step_by(15) {
            recent.p99_ms(&histogram, at(second));
        }
        assert_eq!(recent.p99_ms(&histogram, at(400)), None, "no fire for more than five minutes");
        histogram.observe(Duration::from_secs(4_000));
        assert_eq!(recent.p99_ms(&histogram, at(401)), Some(600_001));
        assert!(recent.0.len() <= 23, "{}", recent.0.len());
    }
}
