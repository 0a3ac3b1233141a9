//! Histograms of lengths of time: counts in fixed buckets on a logarithmic scale. They can be added exactly, in any order, so that rollups
//! can be built in batches and summed over hours and jobs.
//!
//! The width of a bucket is at most an eighth of its start, and a quantile is the middle of a bucket: its error is at most a sixteenth.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::time::{Timestamp, millis};

/// Each power of two has 2^`BITS` buckets.
const BITS: u32 = 3;
/// Longer lengths count as this one: 400 days in milliseconds.
const VALUE_MAX: u64 = 400 * 24 * 3_600_000;

/// Counts of lengths, in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sketch {
    /// Each bucket with its count, in ascending order. A sorted list, because pages read thousands of sketches with tens of buckets each,
    /// and building a tree for each one would take most of a page's time.
    counts: Vec<(u32, u64)>,
}

impl Sketch {
    /// Counts one length.
    pub fn add(&mut self, length: Duration) {
        let value = u64::try_from(millis(length)).unwrap_or(0);
        self.count_from(0, bucket(value), 1);
    }

    /// Adds the counts of the other sketch.
    pub fn merge(&mut self, other: &Self) {
        // Both lists are in ascending order, so each bucket is searched from the index of the previous one.
        let mut index = 0;
        for (bucket, count) in &other.counts {
            index = self.count_from(index, *bucket, *count);
        }
    }

    /// Adds to the count of a bucket whose place is at `index` or after it; returns its index.
    fn count_from(&mut self, mut index: usize, bucket: u32, count: u64) -> usize {
        while self.counts.get(index).is_some_and(|(counted_bucket, _)| *counted_bucket < bucket) {
            index += 1;
        }
        match self.counts.get_mut(index) {
            Some((counted_bucket, sum)) if *counted_bucket == bucket => *sum = sum.saturating_add(count),
            _ => self.counts.insert(index, (bucket, count)),
        }
        index
    }

    /// How many lengths it has counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// How many of the counted lengths do not exceed `length`, within the width of a bucket.
    #[must_use]
    pub fn count_within(&self, length: Duration) -> u64 {
        let last_bucket = bucket(u64::try_from(millis(length)).unwrap_or(0));
        self.counts.iter().take_while(|(bucket, _)| *bucket <= last_bucket).map(|(_, count)| count).sum()
    }

    /// The quantile at `per_mille` (500 is the median), within the width of a bucket; `None` if nothing is counted.
    #[must_use]
    pub fn quantile(&self, per_mille: u32) -> Option<Duration> {
        let count = self.count();
        // The rank of the value that is looked for, counted from 1.
        let rank = (u128::from(count) * u128::from(per_mille.min(1_000))).div_ceil(1_000).max(1);
        let mut cumulative_count = 0_u128;
        for (bucket, count) in &self.counts {
            cumulative_count += u128::from(*count);
            if cumulative_count >= rank {
                return Some(Duration::from_millis(bucket_middle(*bucket)));
            }
        }
        None
    }

    /// Whether nothing is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// The stored form: pairs `bucket:count`, separated by spaces.
impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (bucket, count)) in self.counts.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            write!(f, "{separator}{bucket}:{count}")?;
        }
        Ok(())
    }
}

impl FromStr for Sketch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut counts: Vec<(u32, u64)> = Vec::new();
        for pair in text.split_ascii_whitespace() {
            let bucket_error = || format!("{pair:?} is not a bucket with its count, in ascending order");
            let (bucket, count) = pair.split_once(':').ok_or_else(bucket_error)?;
            let bucket = bucket.parse().map_err(|_| bucket_error())?;
            if counts.last().is_some_and(|(last, _)| *last >= bucket) {
                return Err(bucket_error());
            }
            counts.push((bucket, count.parse().map_err(|_| bucket_error())?));
        }
        Ok(Self { counts })
    }
}

/// The bucket of a value. Each small value has a bucket of its own.
fn bucket(value: u64) -> u32 {
    let value = value.min(VALUE_MAX);
    let Some(exponent) = value.checked_ilog2().filter(|exponent| *exponent > BITS) else {
        return u32::try_from(value).unwrap_or(0);
    };
    let offset = u32::try_from((value >> (exponent - BITS)) & ((1 << BITS) - 1)).unwrap_or(0);
    ((exponent - BITS + 1) << BITS) + offset
}

/// The value in the middle of a bucket.
fn bucket_middle(bucket: u32) -> u64 {
    let (octave, offset) = (bucket >> BITS, u64::from(bucket & ((1 << BITS) - 1)));
    if octave < 2 {
        return u64::from(bucket);
    }
    let shift = (octave - 1).min(u64::BITS - BITS - 2);
    let bucket_start = ((1 << BITS) + offset) << shift;
    bucket_start + (1 << shift) / 2
}

crate::plain_word_enum! {
    /// The length of a bucket of time in which runs are counted together. The shortest comes first.
    pub Step {
        Minute = "1m",
        /// 15 minutes.
        QuarterHour = "15m",
        Hour = "1h",
        /// 1 day, in UTC.
        Day = "1d",
    }
}

impl Step {
    #[must_use]
    pub const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 60,
            Self::QuarterHour => 900,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        })
    }

    /// The beginning of the bucket that an instant lies in.
    #[must_use]
    pub fn floor(self, at: Timestamp) -> Timestamp {
        at.floor(self.length())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sketch(values: &[u64]) -> Sketch {
        let mut sketch = Sketch::default();
        values.iter().for_each(|value| sketch.add(Duration::from_millis(*value)));
        sketch
    }

    #[test]
    fn small_values_are_exact_and_nothing_has_no_quantile() {
        assert_eq!(Sketch::default().quantile(500), None);
        let ten = sketch(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let quantile = |per_mille| ten.quantile(per_mille).unwrap().as_millis();
        assert_eq!((quantile(0), quantile(500), quantile(950), quantile(1_000)), (1, 5, 10, 10));
    }

    #[test]
    fn values_within_a_length_are_counted() {
        let ten = sketch(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        let within = |millis| ten.count_within(Duration::from_millis(millis));
        assert_eq!((within(0), within(4), within(10), within(1_000)), (0, 4, 10, 10));
    }

    #[test]
    fn a_bucket_begins_an_instant_of_its_length() {
        let at = Timestamp::from_secs(1_900_000_899);
        for step in Step::ALL {
            let floor = step.floor(at);
            assert!(floor <= at && at.since(floor) < step.length() && millis(step.length()) > 0);
            assert_eq!(floor.as_millis() % millis(step.length()), 0);
        }
    }

    #[test]
    fn a_text_that_is_not_a_sketch_is_refused() {
        for text in ["1", "a:1", "1:b", "1:2,3:4", "2:1 1:1", "1:1 1:1"] {
            assert!(text.parse::<Sketch>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_quantile_is_within_a_sixteenth(value in 0_u64..VALUE_MAX) {
            let found = u64::try_from(sketch(&[value]).quantile(990).unwrap().as_millis()).unwrap();
            prop_assert!(found.abs_diff(value) <= value / 16 + 1, "{value} is shown as {found}");
        }

        #[test]
        fn joined_sketches_are_the_sketch_of_all(
            one in prop::collection::vec(0_u64..10_000_000, 0..40),
            two in prop::collection::vec(0_u64..10_000_000, 0..40),
        ) {
            let mut joined = sketch(&one);
            joined.merge(&sketch(&two));
            let all: Vec<u64> = one.into_iter().chain(two).collect();
            prop_assert_eq!(&joined, &sketch(&all));
            prop_assert_eq!(joined.to_string().parse::<Sketch>().unwrap(), joined);
        }
    }
}
