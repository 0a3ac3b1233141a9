//! At some instants more jobs are due than servers can claim in the usual look-ahead. This module computes when servers start
//! to claim the fires of such an instant.

use std::time::Duration;

use crate::time::Timestamp;

/// A future instant that is the next fire of many jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseInstant {
    pub at: Timestamp,
    /// How many of its fires are not claimed yet.
    pub job_count: u64,
}

/// How early and how fast servers claim fires before their instants.
#[derive(Clone, Copy, Debug)]
pub struct ClaimPace {
    /// All fires must be claimed at least this long before their instant.
    pub lead: Duration,
    /// How many jobs a server is assumed to claim per second; 0 counts as 1.
    pub jobs_per_second: u32,
}

/// The instants whose fires servers must start to claim at `now`, so that all of them are claimed in time. `instants` must be
/// in ascending order: the fires of each instant are claimed after those of all earlier ones.
#[must_use]
pub fn instants_to_claim(instants: &[DenseInstant], pace: ClaimPace, now: Timestamp) -> Vec<Timestamp> {
    let mut job_count = 0_u64;
    let mut last_index = None;
    for (index, instant) in instants.iter().enumerate() {
        job_count = job_count.saturating_add(instant.job_count);
        let millis = job_count.saturating_mul(1_000) / u64::from(pace.jobs_per_second.max(1));
        let begins_at = instant.at - pace.lead - Duration::from_millis(millis);
        if begins_at <= now {
            last_index = Some(index);
        }
    }
    // If one instant cannot wait, no earlier instant can wait either.
    instants.iter().take(last_index.map_or(0, |last| last + 1)).map(|instant| instant.at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(instants: &[(i64, u64)], now: i64) -> Vec<i64> {
        let instants: Vec<DenseInstant> = instants
            .iter()
            .map(|(at, job_count)| DenseInstant { at: Timestamp::from_secs(*at), job_count: *job_count })
            .collect();
        let pace = ClaimPace { lead: Duration::from_secs(3), jobs_per_second: 100 };
        instants_to_claim(&instants, pace, Timestamp::from_secs(now)).iter().map(|at| at.second()).collect()
    }

    #[test]
    fn the_claim_of_an_instant_begins_as_early_as_its_jobs_are_many() {
        for (instants, now, expected) in [
            (vec![], 100, vec![]),
            (vec![(110, 100)], 105, vec![]),
            (vec![(110, 100)], 106, vec![110]),
            (vec![(150, 1_000)], 136, vec![]),
            (vec![(150, 1_000)], 137, vec![150]),
            // Fires that are claimed no longer count, so the rest can wait longer.
            (vec![(150, 500)], 137, vec![]),
            (vec![(150, 500)], 142, vec![150]),
            // The later instant is claimed after the earlier one, whose claims must therefore begin sooner.
            (vec![(150, 1_000), (151, 1_000)], 127, vec![]),
            (vec![(150, 1_000), (151, 1_000)], 128, vec![150, 151]),
            (vec![(110, 700), (190, 100)], 100, vec![110]),
            (vec![(90, 10)], 100, vec![90]),
        ] {
            assert_eq!(claimed(&instants, now), expected, "{instants:?} at {now}");
        }
    }

    #[test]
    fn a_pace_of_nothing_is_one_job_a_second() {
        let instants = [DenseInstant { at: Timestamp::from_secs(100), job_count: 10 }];
        let pace = ClaimPace { lead: Duration::ZERO, jobs_per_second: 0 };
        assert_eq!(instants_to_claim(&instants, pace, Timestamp::from_secs(89)), []);
        assert_eq!(instants_to_claim(&instants, pace, Timestamp::from_secs(90)).len(), 1);
    }
}
