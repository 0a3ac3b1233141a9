//! Which node becomes the home of a job: the claim strategies of a cluster, and the switches of nodes and apps.
//!
//! Correctness never rests on this module: locks, epochs and unique keys decide which node won. A strategy only distributes the
//! jobs, and keeps nodes from competing for the same job.

use crate::id::{JobId, NodeId};
use crate::word_enum::word_enum;

mod recent;

pub use recent::{DECAY_STEPS, DECAY_WHOLE, HALF_LIFE, JobShare, NodeShare, RecentFires};

word_enum! {
    /// Which server becomes the home of a job that has no living home.
    ClaimStrategy {
        /// The server that claims it first.
        Default = "default",
        /// The living server that the hash of the job's id selects.
        IdHash = "id_hash",
        /// The server whose jobs have the fewest recent fires.
        LeastCount = "least_count",
        /// As `id_hash`, but each server gets a share of the jobs in proportion to its weight.
        Weight = "weight",
    }
}

word_enum! {
    /// The switch of a server, an app or an executor.
    Switch {
        /// It works normally.
        Active = "active",
        /// It gets no new runs, and runs that executors have continue. A server gives its jobs to other servers.
        Draining = "draining",
        /// As `draining`. The runs of an app or an executor are also cancelled. A server also sends its executors to other servers, and their
        /// runs continue.
        Stopped = "stopped",
    }
}

impl ClaimStrategy {
    /// Whether jobs move when a node joins; otherwise each job stays at its home until that node leaves.
    #[must_use]
    pub const fn rebalances(self) -> bool {
        !matches!(self, Self::Default)
    }

    /// Whether it depends on the jobs that nodes already have.
    #[must_use]
    pub const fn depends_on_load(self) -> bool {
        matches!(self, Self::LeastCount)
    }

    /// The new home of each of these jobs, none of which has a living home. `None` leaves a job to the node that claims it first.
    /// `nodes` are the nodes to choose from: nodes that see the same jobs and the same `nodes` get the same result.
    ///
    /// ```
    /// use rondel_core::homes::{ClaimStrategy, JobShare, NodeShare};
    /// use rondel_core::{JobId, NodeId};
    ///
    /// let share = |node| NodeShare { node: NodeId::new(node), weight: 1, job_count: 0, recent_fires: 0 };
    /// let job = |job, recent_fires| JobShare { job: JobId::new(job), recent_fires };
    /// // A job with nine recent fires weighs more than two with one each.
    /// let homes = ClaimStrategy::LeastCount.deal(&[job(1, 9_000), job(2, 1_000), job(3, 1_000)], &[share(1), share(2)]);
    /// assert!(homes[0] != homes[1] && homes[1] == homes[2]);
    /// assert_eq!(ClaimStrategy::Default.deal(&[job(1, 0)], &[share(1), share(2)]), [None]);
    /// ```
    #[must_use]
    pub fn deal(self, jobs: &[JobShare], nodes: &[NodeShare]) -> Vec<Option<NodeId>> {
        match self {
            Self::Default => vec![None; jobs.len()],
            Self::IdHash => jobs.iter().map(|job| home_by_hash(job.job, nodes, |_| 1)).collect(),
            Self::Weight => jobs.iter().map(|job| home_by_hash(job.job, nodes, |share| share.weight)).collect(),
            Self::LeastCount => homes_by_load(jobs, nodes),
        }
    }

    /// The new home of each of these jobs when its current home leaves. Every strategy names one; `None` only if `nodes` is
    /// empty.
    #[must_use]
    pub fn deal_on_leave(self, jobs: &[JobShare], nodes: &[NodeShare]) -> Vec<Option<NodeId>> {
        match self {
            Self::Default => Self::LeastCount.deal(jobs, nodes),
            _ => self.deal(jobs, nodes),
        }
    }

    /// The jobs of `own_node` that belong to another node, each with that node. `least_count` moves only as many jobs as are needed to
    /// level the loads, and ignores small differences. A node that gives jobs away stays at or above the average, and a node that takes
    /// jobs stays at or below it, so no job moves back.
    #[must_use]
    pub fn misplaced(self, own_node: NodeId, jobs: &[JobShare], nodes: &[NodeShare]) -> Vec<(JobId, NodeId)> {
        match self {
            Self::Default => Vec::new(),
            Self::IdHash | Self::Weight => {
                let owners = self.deal(jobs, nodes);
                let moves = jobs.iter().zip(owners).filter_map(|(job, owner)| Some((job.job, owner?)));
                moves.filter(|(_, owner)| *owner != own_node).collect()
            }
            Self::LeastCount => jobs_to_give_away(own_node, jobs, nodes),
        }
    }
}

/// Rendezvous hashing: every node draws a number for the job, and the highest number wins. When a node joins or leaves, only
/// the jobs of that node move; with `hash % node_count`, nearly all jobs would move. Ids are hashed first, since they differ mostly in
/// their time bits.
fn home_by_hash(job: JobId, nodes: &[NodeShare], weight: impl Fn(&NodeShare) -> u32) -> Option<NodeId> {
    let have_no_weight = nodes.iter().all(|share| weight(share) == 0);
    let draw = |share: &NodeShare| {
        let weight = if have_no_weight { 1 } else { weight(share) };
        // −weight / ln(u) for u uniform in (0, 1): each node wins jobs in proportion to its weight.
        let number = mix(mix(job.get().unsigned_abs()) ^ share.node.get().unsigned_abs());
        let uniform_number = (f64::from(u32::try_from(number >> 32).unwrap_or(0)) + 0.5) / 4_294_967_296.0;
        (weight > 0).then(|| -f64::from(weight) / uniform_number.ln())
    };
    let draws = nodes.iter().filter_map(|share| Some((draw(share)?, share.node)));
    draws.max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, node)| node)
}

/// Gives each job to the node with the least load so far, beginning with the job that has the most recent fires.
fn homes_by_load(jobs: &[JobShare], nodes: &[NodeShare]) -> Vec<Option<NodeId>> {
    let mut loads: Vec<(u64, NodeId)> = nodes.iter().map(|share| (share.load(), share.node)).collect();
    let mut job_order: Vec<usize> = (0..jobs.len()).collect();
    job_order.sort_by_key(|index| (std::cmp::Reverse(jobs[*index].load()), tie_order(&jobs[*index])));
    let mut homes = vec![None; jobs.len()];
    for index in job_order {
        if let Some(lightest_node) = loads.iter_mut().min() {
            homes[index] = Some(lightest_node.1);
            lightest_node.0 = lightest_node.0.saturating_add(jobs[index].load());
        }
    }
    homes
}

/// The order of jobs with the same load.
fn tie_order(job: &JobShare) -> (u64, JobId) {
    (mix(job.job.get().unsigned_abs()), job.job)
}

/// Differences of up to 1/`SLACK_PART` of the average load are ignored.
const SLACK_PART: u64 = 20;
/// Differences of up to the load of this many idle jobs are ignored too.
const SLACK_COUNT: u64 = 2;

/// The jobs that `own_node` gives away under `least_count`, each with the node that gets it.
fn jobs_to_give_away(own_node: NodeId, jobs: &[JobShare], nodes: &[NodeShare]) -> Vec<(JobId, NodeId)> {
    let Some(own_share) = nodes.iter().find(|share| share.node == own_node) else { return Vec::new() };
    let node_count = u64::try_from(nodes.len()).unwrap_or(1).max(1);
    let mean_load = nodes.iter().map(NodeShare::load).fold(0, u64::saturating_add) / node_count;
    let slack = (mean_load / SLACK_PART).max(SLACK_COUNT * JobShare { job: JobId::new(0), recent_fires: 0 }.load());
    if own_share.load() <= mean_load.saturating_add(slack) {
        return Vec::new();
    }
    let mut surplus_load = own_share.load() - mean_load;
    let mut spare_loads: Vec<(u64, NodeId)> =
        nodes.iter().map(|share| (mean_load.saturating_sub(share.load()), share.node)).collect();
    // Jobs are given away in the order of their hashes. If the heaviest went first, the surplus could be a single heavy job,
    // and a job that always has runs cannot be moved.
    let mut ordered_jobs: Vec<&JobShare> = jobs.iter().collect();
    ordered_jobs.sort_by_key(|job| tie_order(job));
    let mut moves = Vec::new();
    for job in ordered_jobs {
        let load = job.load();
        let Some(largest_spare) =
            spare_loads.iter_mut().max().filter(|largest_spare| load <= largest_spare.0 && load <= surplus_load)
        else {
            continue;
        };
        largest_spare.0 -= load;
        surplus_load -= load;
        moves.push((job.job, largest_spare.1));
    }
    moves
}

/// Mixes the bits of a number (splitmix64), so that similar numbers get unrelated results.
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

    fn nodes(weights: &[(i64, u32, u64)]) -> Vec<NodeShare> {
        let share =
            |&(node, weight, job_count)| NodeShare { node: NodeId::new(node), weight, job_count, recent_fires: 0 };
        weights.iter().map(share).collect()
    }

    /// Jobs with successive ids of one node.
    fn jobs(count: usize) -> Vec<JobShare> {
        let ids = IdGen::new(1);
        let now = Timestamp::from_secs(1_800_000_000);
        (0..count).map(|_| JobShare { job: JobId::new(ids.next(now)), recent_fires: 0 }).collect()
    }

    fn shares(homes: &[Option<NodeId>], nodes: &[NodeShare]) -> Vec<usize> {
        nodes.iter().map(|share| homes.iter().filter(|home| **home == Some(share.node)).count()).collect()
    }

    #[test]
    fn hashes_share_out_evenly_and_weights_by_weight() {
        let jobs = jobs(30_000);
        let nodes = nodes(&[(1, 1, 0), (2, 2, 0), (3, 0, 0), (9, 3, 0)]);
        let even = shares(&ClaimStrategy::IdHash.deal(&jobs, &nodes), &nodes);
        assert!(even.iter().all(|count| (7_200..7_800).contains(count)), "{even:?}");
        let weighted = shares(&ClaimStrategy::Weight.deal(&jobs, &nodes), &nodes);
        for (count, expected) in weighted.iter().zip([5_000_usize, 10_000, 0, 15_000]) {
            assert!(count.abs_diff(expected) < 300 && (expected > 0 || *count == 0), "{weighted:?}");
        }
    }

    #[test]
    fn nodes_without_weight_get_nothing_unless_none_has_weight() {
        let have_no_weight = nodes(&[(1, 0, 0), (2, 0, 0)]);
        let shared = shares(&ClaimStrategy::Weight.deal(&jobs(1_000), &have_no_weight), &have_no_weight);
        assert!(shared.iter().all(|count| *count > 400), "{shared:?}");
        assert_eq!(ClaimStrategy::Weight.deal(&jobs(1), &[]), [None]);
    }

    #[test]
    fn the_fewest_come_first() {
        let nodes = nodes(&[(1, 1, 10), (2, 1, 4), (3, 1, 0)]);
        let dealt = ClaimStrategy::LeastCount.deal(&jobs(10), &nodes);
        assert_eq!(shares(&dealt, &nodes), [0, 3, 7]);
        // Nodes may read the jobs in different orders. The result is the same.
        let mut jobs = jobs(10);
        let before: Vec<_> = jobs.iter().zip(&dealt).map(|(job, home)| (*job, *home)).collect();
        jobs.reverse();
        let again = ClaimStrategy::LeastCount.deal(&jobs, &nodes);
        assert!(before.iter().rev().map(|(_, home)| *home).eq(again));
    }

    #[test]
    fn counts_are_brought_level_and_then_left_alone() {
        let own = jobs(100);
        let this_node = NodeId::new(1);
        let given = ClaimStrategy::LeastCount.misplaced(this_node, &own, &nodes(&[(1, 1, 100), (2, 1, 0), (3, 1, 20)]));
        let to = |node| given.iter().filter(|(_, to)| *to == NodeId::new(node)).count();
        assert_eq!((to(2), to(3)), (40, 20));
        for counts in [[42, 40, 38], [40, 40, 40], [1, 0, 0]] {
            let nodes = nodes(&[(1, 1, counts[0]), (2, 1, counts[1]), (3, 1, counts[2])]);
            assert_eq!(ClaimStrategy::LeastCount.misplaced(this_node, &own, &nodes), [], "{counts:?}");
        }
    }

    #[test]
    fn the_default_strategy_moves_nothing_until_a_node_leaves() {
        let nodes = nodes(&[(2, 1, 0), (3, 1, 0)]);
        assert_eq!(ClaimStrategy::Default.misplaced(NodeId::new(1), &jobs(3), &nodes), []);
        let homes = ClaimStrategy::Default.deal_on_leave(&jobs(4), &nodes);
        assert_eq!(shares(&homes, &nodes), [2, 2]);
    }

    proptest! {
        /// If a node joins or leaves, only its own share of the jobs moves.
        #[test]
        fn only_the_share_of_a_new_node_moves(count in 1_i64..8, weights in proptest::collection::vec(1_u32..5, 8)) {
            let all: Vec<NodeShare> = (1..=count).zip(&weights)
                .map(|(node, weight)| NodeShare { node: NodeId::new(node), weight: *weight, job_count: 0, recent_fires: 0 }).collect();
            let (last, fewer) = all.split_last().unwrap();
            let jobs = jobs(300);
            for strategy in [ClaimStrategy::IdHash, ClaimStrategy::Weight] {
                let (before, after) = (strategy.deal(&jobs, fewer), strategy.deal(&jobs, &all));
                for (before, after) in before.iter().zip(&after) {
                    prop_assert!(before == after || *after == Some(last.node));
                }
                for share in &all {
                    for (job, to) in strategy.misplaced(share.node, &jobs, &all) {
                        prop_assert_ne!(to, share.node);
                        let job = JobShare { job, recent_fires: 0 };
                        prop_assert_eq!(strategy.deal(&[job], &all), [Some(to)]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_surplus_is_left_alone_up_to_the_slack() {
        let given = |counts: &[(i64, u64)]| {
            let nodes: Vec<(i64, u32, u64)> = counts.iter().map(|&(node, count)| (node, 1, count)).collect();
            ClaimStrategy::LeastCount.misplaced(NodeId::new(1), &jobs(200), &self::nodes(&nodes))
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

    /// The recent fires, in thousandths, of a job that fires each second.
    const EACH_SECOND: u64 = 866_000;

    #[test]
    fn a_job_of_each_second_and_a_thousand_of_each_year_are_dealt_by_their_fires() {
        let this_node = NodeId::new(1);
        let mut own = jobs(1_001);
        own[500].recent_fires = EACH_SECOND;
        // All jobs need a home: one node gets the busy job, the other node gets all jobs that hardly ever fire.
        let homes = ClaimStrategy::LeastCount.deal(&own, &nodes(&[(1, 1, 0), (2, 1, 0)]));
        let alone = homes[500];
        assert_eq!(homes.iter().filter(|home| **home == alone).count(), 1);
        // One node has all jobs and another joins: the busy job stays, since it would load the other node as much.
        let (one, other) = (share_of(1, &own), share_of(2, &[]));
        let given = ClaimStrategy::LeastCount.misplaced(this_node, &own, &[one, other]);
        assert_eq!(given.len(), 1_000);
        assert!(given.iter().all(|(job, to)| *job != own[500].job && *to == other.node));
        // Of two busy jobs one moves.
        own[700].recent_fires = EACH_SECOND;
        let given = ClaimStrategy::LeastCount.misplaced(this_node, &own, &[share_of(1, &own), other]);
        let busy = given.iter().filter(|(job, _)| [own[500].job, own[700].job].contains(job)).count();
        assert_eq!(busy, 1, "{}", given.len());
        // A new job goes to the node with the lowest load, even if that node is home to more jobs.
        let new = ClaimStrategy::LeastCount.deal(&jobs(1), &[share_of(1, &own[..600]), share_of(2, &jobs(5_000))]);
        assert_eq!(new, [Some(NodeId::new(2))]);
    }

    fn share_of(node: i64, jobs: &[JobShare]) -> NodeShare {
        NodeShare {
            node: NodeId::new(node),
            weight: 1,
            job_count: u64::try_from(jobs.len()).unwrap(),
            recent_fires: jobs.iter().map(|job| job.recent_fires).sum(),
        }
    }

    proptest! {
        /// For any recent fires of the jobs: the loads of the nodes become more equal, and no job moves twice.
        #[test]
        fn a_job_that_was_moved_does_not_come_back(weights in proptest::collection::vec((1_i64..5, 0_u64..1_000_000), 1..120)) {
            let jobs = jobs(weights.len());
            let mut at: Vec<(i64, JobShare)> = jobs.iter().zip(&weights)
                .map(|(job, (node, recent_fires))| (*node, JobShare { recent_fires: *recent_fires, ..*job })).collect();
            let jobs_of_node = |at: &[(i64, JobShare)], node| -> Vec<JobShare> {
                at.iter().filter(|(home, _)| *home == node).map(|(_, job)| *job).collect()
            };
            let nodes = |at: &[(i64, JobShare)]| -> Vec<NodeShare> { (1..5).map(|node| share_of(node, &jobs_of_node(at, node))).collect() };
            let most = |at: &[(i64, JobShare)]| nodes(at).iter().map(NodeShare::load).max();
            let mut moved: Vec<JobId> = Vec::new();
            // The nodes give jobs away one after the other, each with the loads that it sees at that time.
            for node in [1, 2, 3, 4, 1, 2, 3, 4] {
                let before = most(&at);
                let given = ClaimStrategy::LeastCount.misplaced(NodeId::new(node), &jobs_of_node(&at, node), &nodes(&at));
                for (job, to) in given {
                    prop_assert!(!moved.contains(&job), "a job moved twice");
                    moved.push(job);
                    let place = at.iter_mut().find(|(_, share)| share.job == job).unwrap();
                    place.0 = to.get();
                }
                prop_assert!(most(&at) <= before);
            }
        }
    }

    #[test]
    fn the_hash_of_the_id_knows_no_weights() {
        let jobs = jobs(2_000);
        let [equal, weighted] = [[(1, 1, 0), (2, 1, 0)], [(1, 0, 0), (2, 7, 0)]].map(|rows| nodes(&rows));
        assert_eq!(ClaimStrategy::IdHash.deal(&jobs, &equal), ClaimStrategy::IdHash.deal(&jobs, &weighted));
        let without = shares(&ClaimStrategy::Weight.deal(&jobs, &weighted), &weighted);
        assert_eq!(without, [0, 2_000]);
        let zero = nodes(&[(1, 0, 0), (2, 0, 0)]);
        assert_eq!(ClaimStrategy::Weight.deal(&jobs, &zero), ClaimStrategy::IdHash.deal(&jobs, &zero));
    }
}
