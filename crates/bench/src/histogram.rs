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
        let index = bucket_index(micros);
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] += 1;
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

    /// The duration in microseconds that at least `permille` thousandths of the durations do not exceed, rounded up to the end of
    /// its bucket.
    pub(crate) fn quantile(&self, permille: u64) -> u64 {
        let wanted_count = (self.count * permille).div_ceil(1_000).max(1);
        let mut seen_count = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen_count += count;
            if seen_count >= wanted_count {
                return bucket_max(index).min(self.max);
            }
        }
        self.max
    }
}

/// The index of the bucket of a duration. Values below 128 have a bucket each; from there on, each doubling has 64 buckets.
fn bucket_index(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(FINE_BITS + 1);
    let index = (u64::from(shift) << FINE_BITS) + (micros >> shift);
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The longest duration that belongs to a bucket, in microseconds.
fn bucket_max(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index >> FINE_BITS).saturating_sub(1);
    let leading_bits = index - (shift << FINE_BITS);
    ((leading_bits + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values() {
        let mut previous_index = 0;
        for micros in (0..5_000).chain([1 << 20, (1 << 20) + 1, 77_777_777, 1 << 40]) {
            let index = bucket_index(micros);
            assert!(index >= previous_index && bucket_max(index) >= micros, "{micros}");
            assert!(index == 0 || bucket_max(index - 1) < micros, "{micros}");
            assert!(bucket_max(index) - micros <= micros / 64, "{micros}");
            previous_index = index;
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
