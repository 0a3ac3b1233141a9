//! Histograms of durations: two atomic additions per observation, and no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of buckets for lateness, in milliseconds: from on time to an outage.
pub(crate) const LATENESS_ENDS_MS: &[u64] =
    &[1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000];
/// Upper ends of buckets for the duration of handlers, in milliseconds: up to a day.
pub(crate) const WORK_ENDS_MS: &[u64] = &[
    1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 14_400_000,
    86_400_000,
];
/// Upper ends of buckets for steps of the engine and answers of the API, in milliseconds.
pub(crate) const STEP_ENDS_MS: &[u64] = &[1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000];

/// A histogram of durations.
#[derive(Debug)]
pub(crate) struct Histogram {
    ends_ms: &'static [u64],
    /// One count per bucket, and a last count for durations beyond every end.
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HistogramSnapshot {
    /// The upper end of each bucket in seconds, with the number of durations in this bucket alone (not cumulative). The last end is infinite.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum_seconds: f64,
    pub(crate) count: u64,
}

impl Histogram {
    pub(crate) fn new(ends_ms: &'static [u64]) -> Self {
        let counts = (0..=ends_ms.len()).map(|_| AtomicU64::new(0)).collect();
        Self { ends_ms, counts, sum_us: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, length: Duration) {
        let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.ends_ms.partition_point(|end| end.saturating_mul(1_000) < micros);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }

    /// The upper ends of the buckets, in milliseconds. The last bucket has no end and is left out.
    pub(crate) const fn ends_ms(&self) -> &'static [u64] {
        self.ends_ms
    }

    /// The number of durations in each bucket.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn read(&self) -> HistogramSnapshot {
        let ends = self.ends_ms.iter().map(|end| Duration::from_millis(*end).as_secs_f64());
        let ends = ends.chain(std::iter::once(f64::INFINITY));
        let buckets: Vec<(f64, u64)> =
            ends.zip(self.counts.iter().map(|count| count.load(Ordering::Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum_seconds = Duration::from_micros(self.sum_us.load(Ordering::Relaxed)).as_secs_f64();
        HistogramSnapshot { buckets, sum_seconds, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_falls_into_the_bucket_that_ends_with_it() {
        let histogram = Histogram::new(&[1, 10]);
        for us in [0, 1_000, 1_001, 10_000, 10_001] {
            histogram.observe(Duration::from_micros(us));
        }
        let read = histogram.read();
        let counts: Vec<u64> = read.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!((counts.as_slice(), read.count), ([2, 2, 1].as_slice(), 5));
        assert!((read.sum_seconds - 0.022_002).abs() < 1e-9, "{read:?}");
    }
}
