//! Counts of durations in buckets that are never wider than a 64th of their values.

use serde::{Deserialize, Serialize};

/// log2 of the number of buckets between a power of two and the next one.
const FINE_BITS: u32 = 6;

/// Durations in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Histogram {
    /// How many durations each bucket has.
    buckets: Vec<u64>,
    count: u64,
    /// The longest duration, in microseconds.
    max: u64,
}

impl Histogram {
    pub(crate) fn record(&mut self, micros: u64) {
        let bucket = bucket(micros);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(micros);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (own_count, other_count) in self.buckets.iter_mut().zip(&other.buckets) {
            *own_count += other_count;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// The duration that at least `permille` thousandths of the values do not exceed, rounded up to the end of its
    /// bucket.
    pub(crate) fn quantile(&self, permille: u64) -> u64 {
        let wanted_count = (self.count * permille).div_ceil(1_000).max(1);
        let mut seen_count = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen_count += count;
            if seen_count >= wanted_count {
                return highest_value(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Values below 128 have a bucket each; from there on, each doubling has 64 buckets.
fn bucket(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(FINE_BITS + 1);
    let bucket = (u64::from(shift) << FINE_BITS) + (micros >> shift);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

fn highest_value(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> FINE_BITS).saturating_sub(1);
    let leading_bits = bucket - (shift << FINE_BITS);
    ((leading_bits + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values() {
        let mut before = 0;
        for micros in (0..5_000).chain([1 << 20, (1 << 20) + 1, 77_777_777, 1 << 40]) {
            let this = bucket(micros);
            assert!(this >= before && highest_value(this) >= micros, "{micros}");
            assert!(this == 0 || highest_value(this - 1) < micros, "{micros}");
            assert!(highest_value(this) - micros <= micros / 64, "{micros}");
            before = this;
        }
    }

    #[test]
    fn quantiles() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.quantile(500), histogram.max()), (0, 0));
        (1..=100).for_each(|micros| histogram.record(micros));
        assert_eq!([500, 990, 999, 1000].map(|permille| histogram.quantile(permille)), [50, 99, 100, 100]);
        let mut sum = Histogram::default();
        sum.add(&histogram);
        sum.record(1_000_000);
        assert_eq!((sum.count(), sum.quantile(500), sum.max()), (101, 51, 1_000_000));
    }
}
