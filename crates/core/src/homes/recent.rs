//! The recent fires of a job: a decaying count, in which each fire weighs half as much after every half-life.

use std::time::Duration;

use crate::id::{JobId, NodeId};
use crate::time::Timestamp;

/// After this time, a fire counts half as much.
pub const HALF_LIFE: Duration = Duration::from_secs(600);

/// Ages and factors, for databases that cannot compute powers. A store multiplies a count by the factor of the first age that exceeds
/// the age of the count. [`DECAY_WHOLE`] is a factor of one; a count older than all of these ages is 0.
pub const DECAY_STEPS: [(Duration, u64); 8] = [
    (Duration::from_secs(40), 256),
    (Duration::from_secs(300), 211),
    (Duration::from_secs(600), 152),
    (Duration::from_secs(900), 108),
    (Duration::from_secs(1_200), 76),
    (Duration::from_secs(1_800), 45),
    (Duration::from_secs(2_400), 23),
    (Duration::from_secs(3_600), 8),
];
/// The factor of a count that has not decayed.
pub const DECAY_WHOLE: u64 = 256;

/// The load that each job has in addition to its recent fires, in thousandths of a fire. Because of it, the jobs that
/// seldom fire are spread evenly over the nodes, too.
const IDLE_JOB_LOAD: u64 = 10;

/// A decaying count of fires.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::homes::{HALF_LIFE, RecentFires};
///
/// let at = Timestamp::from_secs(1_800_000_000);
/// let count = RecentFires::default().with_fires(2, at);
/// assert_eq!(count.thousandths_at(at), 2_000);
/// assert_eq!(count.thousandths_at(at + HALF_LIFE), 1_000);
/// assert_eq!(count.with_fires(1, at + HALF_LIFE).thousandths_at(at + HALF_LIFE), 2_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentFires {
    /// The count at `counted_at`, in thousandths of a fire.
    pub thousandths: u64,
    /// When it was counted last.
    pub counted_at: Timestamp,
}

impl Default for RecentFires {
    fn default() -> Self {
        Self { thousandths: 0, counted_at: Timestamp::EPOCH }
    }
}

impl RecentFires {
    /// The count as of now, in thousandths of a fire.
    #[must_use]
    pub fn thousandths_at(self, now: Timestamp) -> u64 {
        let half_lives = now.since(self.counted_at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        let factor = (-half_lives).exp2();
        // Fractions of a thousandth are dropped, and no count comes near the limits of these types.
        let thousandths = f64::from(u32::try_from(self.thousandths).unwrap_or(u32::MAX)) * factor;
        Duration::from_secs_f64(thousandths).as_secs()
    }

    /// Adds this many fires.
    #[must_use]
    pub fn with_fires(self, fires: u64, now: Timestamp) -> Self {
        let thousandths = self.thousandths_at(now).saturating_add(fires.saturating_mul(1_000));
        Self { thousandths: thousandths.min(u32::MAX.into()), counted_at: now.max(self.counted_at) }
    }

    /// The count as of now, as a store computes it with [`DECAY_STEPS`]: multiplied by [`DECAY_WHOLE`].
    #[must_use]
    pub fn stepped_at(self, now: Timestamp) -> u64 {
        let step = DECAY_STEPS.iter().find(|(age, _)| self.counted_at > now - *age);
        step.map_or(0, |(_, factor)| factor * self.thousandths)
    }
}

/// A job, as a strategy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobShare {
    pub job: JobId,
    /// Its recent fires, in thousandths.
    pub recent_fires: u64,
}

impl JobShare {
    pub(super) const fn load(&self) -> u64 {
        self.recent_fires + IDLE_JOB_LOAD
    }
}

/// A living node that takes jobs, as a strategy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    pub node: NodeId,
    /// Its share under [`ClaimStrategy::Weight`](super::ClaimStrategy::Weight); a node with 0 gets nothing, unless all have 0.
    pub weight: u32,
    /// How many jobs it is home to.
    pub job_count: u64,
    /// The recent fires of the jobs that it is home to, in thousandths.
    pub recent_fires: u64,
}

impl NodeShare {
    pub(super) const fn load(&self) -> u64 {
        self.recent_fires.saturating_add(IDLE_JOB_LOAD.saturating_mul(self.job_count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_of(period: Duration, over: Duration) -> RecentFires {
        let begin = Timestamp::from_secs(1_800_000_000);
        let mut count = RecentFires::default();
        let mut now = begin;
        while now.since(begin) < over {
            now = now + period;
            count = count.with_fires(1, now);
        }
        count
    }

    #[test]
    fn a_count_approaches_the_rate_of_the_period_and_fades() {
        let hour = Duration::from_secs(3_600);
        let each_second = count_of(Duration::from_secs(1), hour * 3);
        // One fire a second over 600 s / ln 2. Rounding drops less than a thousandth of a fire in each step.
        assert!((864_000..867_000).contains(&each_second.thousandths), "{each_second:?}");
        let hourly = count_of(hour, hour * 30);
        assert!((1_010..1_020).contains(&hourly.thousandths), "{hourly:?}");
        let later = |count: RecentFires, after| count.thousandths_at(count.counted_at + after);
        assert_eq!(later(hourly, hour * 3), 0);
        assert!((13_000..14_000).contains(&later(each_second, hour)));
        assert_eq!(later(hourly, Duration::ZERO), hourly.thousandths);
        assert_eq!(hourly.thousandths_at(hourly.counted_at - hour), hourly.thousandths, "the clock stepped back");
        assert_eq!(RecentFires::default().with_fires(u64::MAX, Timestamp::MAX).thousandths, u64::from(u32::MAX));
    }

    #[test]
    fn the_steps_of_a_store_follow_the_curve() {
        let at = Timestamp::from_secs(1_800_000_000);
        let count = RecentFires { thousandths: 1_000_000, counted_at: at };
        for seconds in 0..3_600 {
            let now = at + Duration::from_secs(seconds);
            let (stepped, exact) = (count.stepped_at(now) / DECAY_WHOLE, count.thousandths_at(now));
            assert!(stepped * 2 >= exact && exact * 2 + 1 >= stepped, "after {seconds} s: {stepped} for {exact}");
        }
        assert_eq!(count.stepped_at(at) / DECAY_WHOLE, 1_000_000);
        assert_eq!(count.stepped_at(at + Duration::from_secs(3_600)), 0);
    }
}
