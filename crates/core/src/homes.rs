//! Which node a job's home is to be: the claim strategies of a cluster, and its switches.
//!
//! Correctness never rests on what stands here: locks, epochs and unique keys decide who won. A strategy only keeps the
//! nodes out of each other's way, and shares the jobs out.

use crate::id::{JobId, NodeId};
use crate::word_enum::words;

words! {
    /// Where a job without a living home goes.
    ClaimStrategy {
        /// To the node that comes first.
        Default = "default",
        /// To the node that the hash of the job's id chooses among those that live.
        IdHash = "id_hash",
        /// To the node that is home to the fewest jobs.
        LeastCount = "least_count",
        /// To the node that the hash chooses, each with a share by its weight.
        Weight = "weight",
    }
}

words! {
    /// The switch of a node, or of an app.
    Switch {
        /// It works.
        Active = "active",
        /// It finishes what it has in hand, and takes nothing new.
        Draining = "draining",
        /// As draining, and what is in hand is to end too.
        Stopped = "stopped",
    }
}

/// A living node that takes jobs, as a strategy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShare {
    /// The node.
    pub node: NodeId,
    /// Its share where the strategy is [`ClaimStrategy::Weight`]; who has 0 gets nothing, unless all have.
    pub weight: u32,
    /// How many jobs it is home to.
    pub job_count: u64,
}

impl ClaimStrategy {
    /// Whether jobs move when nodes come: the others leave every job where it is.
    #[must_use]
    pub const fn rebalances(self) -> bool {
        !matches!(self, Self::Default)
    }

    /// Where each of these jobs, which have no living home, is to go: one answer per job, `None` for the node that comes first.
    /// Nodes that see the same jobs and seats answer the same.
    ///
    /// ```
    /// use rondel_core::homes::{ClaimStrategy, NodeShare};
    /// use rondel_core::{JobId, NodeId};
    ///
    /// let seat = |node| NodeShare { node: NodeId::new(node), weight: 1, job_count: 0 };
    /// let homes = ClaimStrategy::LeastCount.deal(&[JobId::new(1), JobId::new(2)], &[seat(1), seat(2)]);
    /// assert!(homes[0].is_some() && homes[0] != homes[1]);
    /// assert_eq!(ClaimStrategy::Default.deal(&[JobId::new(1)], &[seat(1), seat(2)]), [None]);
    /// ```
    #[must_use]
    pub fn deal(self, jobs: &[JobId], seats: &[NodeShare]) -> Vec<Option<NodeId>> {
        match self {
            Self::Default => vec![None; jobs.len()],
            Self::IdHash => jobs.iter().map(|job| by_hash(*job, seats, |_| 1)).collect(),
            Self::Weight => jobs.iter().map(|job| by_hash(*job, seats, |seat| seat.weight)).collect(),
            Self::LeastCount => by_count(jobs, seats),
        }
    }

    /// Where each of these jobs goes when its home leaves: somewhere, whatever the strategy. `None` where there is no seat.
    #[must_use]
    pub fn give_away(self, jobs: &[JobId], seats: &[NodeShare]) -> Vec<Option<NodeId>> {
        match self {
            Self::Default => Self::LeastCount.deal(jobs, seats),
            _ => self.deal(jobs, seats),
        }
    }

    /// Which of the jobs that `this` is home to belong elsewhere, and where. A strategy that counts gives away no more than
    /// brings the counts level, and leaves small differences alone: what is given must not come back.
    #[must_use]
    pub fn misplaced(self, this: NodeId, jobs: &[JobId], seats: &[NodeShare]) -> Vec<(JobId, NodeId)> {
        match self {
            Self::Default => Vec::new(),
            Self::IdHash | Self::Weight => {
                let owners = self.deal(jobs, seats);
                let elsewhere = jobs.iter().zip(owners).filter_map(|(job, owner)| Some((*job, owner?)));
                elsewhere.filter(|(_, owner)| *owner != this).collect()
            }
            Self::LeastCount => surplus(this, jobs, seats),
        }
    }
}

/// Rendezvous: every node draws a number for the job, the highest wins. When a node comes or goes, only its own share
/// moves; a remainder would move nearly all. Ids are hashed first, since they differ mostly in their time bits.
fn by_hash(job: JobId, seats: &[NodeShare], weight: impl Fn(&NodeShare) -> u32) -> Option<NodeId> {
    let all_zero = seats.iter().all(|seat| weight(seat) == 0);
    let draw = |seat: &NodeShare| {
        let weight = if all_zero { 1 } else { weight(seat) };
        // −weight / ln(u) for u uniform in (0, 1): the winners are shared out by weight.
        let number = mix(mix(job.get().unsigned_abs()) ^ seat.node.get().unsigned_abs());
        let uniform = (f64::from(u32::try_from(number >> 32).unwrap_or(0)) + 0.5) / 4_294_967_296.0;
        (weight > 0).then(|| -f64::from(weight) / uniform.ln())
    };
    let drawn = seats.iter().filter_map(|seat| Some((draw(seat)?, seat.node)));
    drawn.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, node)| node)
}

/// One after the other to the node that has the fewest by then; the jobs in the order of their hashes.
fn by_count(jobs: &[JobId], seats: &[NodeShare]) -> Vec<Option<NodeId>> {
    let mut counts: Vec<(u64, NodeId)> = seats.iter().map(|seat| (seat.job_count, seat.node)).collect();
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|index| (mix(jobs[*index].get().unsigned_abs()), jobs[*index]));
    let mut homes = vec![None; jobs.len()];
    for index in order {
        if let Some(poorest) = counts.iter_mut().min() {
            homes[index] = Some(poorest.1);
            poorest.0 += 1;
        }
    }
    homes
}

/// Differences up to this part of the average are left alone …
const SLACK_PART: u64 = 20;
/// … and those up to so many jobs.
const SLACK_COUNT: u64 = 2;

fn surplus(this: NodeId, jobs: &[JobId], seats: &[NodeShare]) -> Vec<(JobId, NodeId)> {
    let Some(own) = seats.iter().find(|seat| seat.node == this) else { return Vec::new() };
    let count = u64::try_from(seats.len()).unwrap_or(1).max(1);
    let level = seats.iter().map(|seat| seat.job_count).sum::<u64>() / count;
    if own.job_count <= level + (level / SLACK_PART).max(SLACK_COUNT) {
        return Vec::new();
    }
    let mut left = own.job_count - level;
    let mut order: Vec<JobId> = jobs.to_vec();
    order.sort_by_key(|job| (mix(job.get().unsigned_abs()), *job));
    let mut jobs = order.into_iter();
    let mut given = Vec::new();
    for poor in seats.iter().filter(|seat| seat.job_count < level) {
        let room = left.min(level - poor.job_count);
        left -= room;
        given.extend(jobs.by_ref().take(usize::try_from(room).unwrap_or(usize::MAX)).map(|job| (job, poor.node)));
    }
    given
}

/// Spreads the bits of a number over all of them (splitmix64).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{IdGen, Timestamp};

    fn seats(weights: &[(i64, u32, u64)]) -> Vec<NodeShare> {
        let seat = |&(node, weight, job_count)| NodeShare { node: NodeId::new(node), weight, job_count };
        weights.iter().map(seat).collect()
    }

    /// Ids as one node makes them in a row.
    fn jobs(count: usize) -> Vec<JobId> {
        let ids = IdGen::new(1);
        let now = Timestamp::from_secs(1_800_000_000);
        (0..count).map(|_| JobId::new(ids.next(now))).collect()
    }

    fn shares(homes: &[Option<NodeId>], seats: &[NodeShare]) -> Vec<usize> {
        seats.iter().map(|seat| homes.iter().filter(|home| **home == Some(seat.node)).count()).collect()
    }

    #[test]
    fn hashes_share_out_evenly_and_weights_by_weight() {
        let jobs = jobs(30_000);
        let seats = seats(&[(1, 1, 0), (2, 2, 0), (3, 0, 0), (9, 3, 0)]);
        let even = shares(&ClaimStrategy::IdHash.deal(&jobs, &seats), &seats);
        assert!(even.iter().all(|count| (7_200..7_800).contains(count)), "{even:?}");
        let weighted = shares(&ClaimStrategy::Weight.deal(&jobs, &seats), &seats);
        for (count, expected) in weighted.iter().zip([5_000_usize, 10_000, 0, 15_000]) {
            assert!(count.abs_diff(expected) < 300 && (expected > 0 || *count == 0), "{weighted:?}");
        }
    }

    #[test]
    fn who_has_no_weight_gets_nothing_unless_all_have_none() {
        let all_zero = seats(&[(1, 0, 0), (2, 0, 0)]);
        let shared = shares(&ClaimStrategy::Weight.deal(&jobs(1_000), &all_zero), &all_zero);
        assert!(shared.iter().all(|count| *count > 400), "{shared:?}");
        assert_eq!(ClaimStrategy::Weight.deal(&jobs(1), &[]), [None]);
    }

    #[test]
    fn the_fewest_come_first() {
        let seats = seats(&[(1, 1, 10), (2, 1, 4), (3, 1, 0)]);
        let dealt = ClaimStrategy::LeastCount.deal(&jobs(10), &seats);
        assert_eq!(shares(&dealt, &seats), [0, 3, 7]);
        // Nodes see pages in different orders.
        let mut jobs = jobs(10);
        let before: Vec<_> = jobs.iter().zip(&dealt).map(|(job, home)| (*job, *home)).collect();
        jobs.reverse();
        let again = ClaimStrategy::LeastCount.deal(&jobs, &seats);
        assert!(before.iter().rev().map(|(_, home)| *home).eq(again));
    }

    #[test]
    fn counts_are_brought_level_and_then_left_alone() {
        let own = jobs(100);
        let this = NodeId::new(1);
        let given = ClaimStrategy::LeastCount.misplaced(this, &own, &seats(&[(1, 1, 100), (2, 1, 0), (3, 1, 20)]));
        let to = |node| given.iter().filter(|(_, to)| *to == NodeId::new(node)).count();
        assert_eq!((to(2), to(3)), (40, 20));
        for counts in [[42, 40, 38], [40, 40, 40], [1, 0, 0]] {
            let seats = seats(&[(1, 1, counts[0]), (2, 1, counts[1]), (3, 1, counts[2])]);
            assert_eq!(ClaimStrategy::LeastCount.misplaced(this, &own, &seats), [], "{counts:?}");
        }
    }

    #[test]
    fn whoever_comes_first_is_told_nothing_and_gives_away_all_the_same() {
        let seats = seats(&[(2, 1, 0), (3, 1, 0)]);
        assert_eq!(ClaimStrategy::Default.misplaced(NodeId::new(1), &jobs(3), &seats), []);
        let homes = ClaimStrategy::Default.give_away(&jobs(4), &seats);
        assert_eq!(shares(&homes, &seats), [2, 2]);
    }

    proptest! {
        /// A node that comes or goes moves its own share and nothing else.
        #[test]
        fn only_the_share_of_who_comes_moves(count in 1_i64..8, weights in proptest::collection::vec(1_u32..5, 8)) {
            let all: Vec<NodeShare> = (1..=count).zip(&weights)
                .map(|(node, weight)| NodeShare { node: NodeId::new(node), weight: *weight, job_count: 0 }).collect();
            let (last, fewer) = all.split_last().unwrap();
            let jobs = jobs(300);
            for strategy in [ClaimStrategy::IdHash, ClaimStrategy::Weight] {
                let (before, after) = (strategy.deal(&jobs, fewer), strategy.deal(&jobs, &all));
                for (before, after) in before.iter().zip(&after) {
                    prop_assert!(before == after || *after == Some(last.node));
                }
                for seat in &all {
                    for (job, to) in strategy.misplaced(seat.node, &jobs, &all) {
                        prop_assert_ne!(to, seat.node);
                        prop_assert_eq!(strategy.deal(&[job], &all), [Some(to)]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_surplus_is_left_alone_up_to_the_slack() {
        let given = |counts: &[(i64, u64)]| {
            let seats: Vec<(i64, u32, u64)> = counts.iter().map(|&(node, count)| (node, 1, count)).collect();
            ClaimStrategy::LeastCount.misplaced(NodeId::new(1), &jobs(200), &self::seats(&seats))
        };
        let to = |given: &[(JobId, NodeId)], node| given.iter().filter(|(_, to)| *to == NodeId::new(node)).count();
        assert_eq!(given(&[(1, 12), (2, 8)]).len(), 0, "two more than the average of ten");
        assert_eq!(given(&[(1, 13), (2, 7)]).len(), 3);
        assert_eq!(given(&[(1, 84), (2, 76)]).len(), 0, "a twentieth of eighty");
        assert_eq!(given(&[(1, 85), (2, 75)]).len(), 5);
        let three = given(&[(1, 19), (2, 10), (3, 1)]);
        assert_eq!((three.len(), to(&three, 2), to(&three, 3)), (9, 0, 9), "who is at the average gets none");
        assert_eq!(given(&[(1, 9)]).len(), 0);
    }

    #[test]
    fn the_hash_of_the_id_knows_no_weights() {
        let jobs = jobs(2_000);
        let [equal, weighted] = [[(1, 1, 0), (2, 1, 0)], [(1, 0, 0), (2, 7, 0)]].map(|rows| seats(&rows));
        assert_eq!(ClaimStrategy::IdHash.deal(&jobs, &equal), ClaimStrategy::IdHash.deal(&jobs, &weighted));
        let without = shares(&ClaimStrategy::Weight.deal(&jobs, &weighted), &weighted);
        assert_eq!(without, [0, 2_000]);
        let zero = seats(&[(1, 0, 0), (2, 0, 0)]);
        assert_eq!(ClaimStrategy::Weight.deal(&jobs, &zero), ClaimStrategy::IdHash.deal(&jobs, &zero));
    }
}
