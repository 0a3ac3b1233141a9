//! Which due jobs without a living home this node takes: the jobs that the strategy assigns to it, and, after [`LEFT_TO_OTHERS_FOR`], jobs that no
//! node has taken. The latter is needed because nodes may have different lists of the living nodes, so that each node may leave a job to another
//! node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rondel_core::homes::{ClaimStrategy, JobShare, NodeShare};
use rondel_core::{JobId, NodeId, Timestamp};
use rondel_store::ledger::DueJob;

/// How long a job is left to the node that the strategy assigns it to.
const LEFT_TO_OTHERS_FOR: Duration = Duration::from_secs(2);
/// A job that was not seen for this long was taken, or is not due any more.
const FORGET_AFTER: Duration = Duration::from_secs(10);
/// Maximum number of jobs that are remembered; further jobs are left to other nodes until there is room.
const REMEMBERED_JOBS_MAX: usize = 200_000;

/// The jobs that were left to other nodes, each with the instants at which it was first and last seen.
#[derive(Debug, Default)]
pub(crate) struct LeftToOthers(HashMap<JobId, (Timestamp, Timestamp)>);

impl LeftToOthers {
    /// Picks the jobs that the node `own_node` may take now from due jobs without a living home.
    pub(crate) fn pick_takeable_jobs(
        &mut self,
        due_jobs: Vec<DueJob>,
        strategy: ClaimStrategy,
        (own_node, node_shares): (NodeId, &[NodeShare]),
        now: Timestamp,
    ) -> Vec<DueJob> {
        if strategy == ClaimStrategy::Default {
            return due_jobs;
        }
        let share = |due: &DueJob| JobShare { job: due.job, recent_fires: due.recent_fires.thousandths_at(now) };
        let jobs: Vec<JobShare> = due_jobs.iter().map(share).collect();
        let assigned_homes = strategy.deal(&jobs, node_shares);
        due_jobs
            .into_iter()
            .zip(assigned_homes)
            .filter(|(due, assigned_home)| self.may_take(due.job, *assigned_home, own_node, now))
            .map(|(due, _)| due)
            .collect()
    }

    fn may_take(&mut self, job: JobId, assigned_home: Option<NodeId>, own_node: NodeId, now: Timestamp) -> bool {
        if assigned_home.is_none_or(|home| home == own_node) {
            self.0.remove(&job);
            return true;
        }
        if self.0.len() >= REMEMBERED_JOBS_MAX && !self.0.contains_key(&job) {
            return false;
        }
        let (first_seen_at, last_seen_at) = self.0.entry(job).or_insert((now, now));
        *last_seen_at = now;
        now.since(*first_seen_at) >= LEFT_TO_OTHERS_FOR
    }

    /// Forgets jobs that were not seen for [`FORGET_AFTER`].
    pub(crate) fn forget_jobs_of_others(&mut self, now: Timestamp) {
        self.0.retain(|_, (_, last_seen_at)| now.since(*last_seen_at) < FORGET_AFTER);
    }
}

/// How often this node tried to claim a job, and how often another node was first.
#[derive(Debug, Default)]
pub(crate) struct ClaimCounts {
    tried_count: AtomicU64,
    lost_count: AtomicU64,
    /// How many jobs this node has become the home of since its jobs were last counted.
    gained_count: AtomicU64,
    /// The recent fires of these jobs, in thousandths.
    gained_fires: AtomicU64,
}

impl ClaimCounts {
    pub(crate) fn add(&self, tried_count: usize, won_count: usize, gained_jobs: &[JobShare]) {
        let add = |to: &AtomicU64, count: usize| to.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        add(&self.tried_count, tried_count);
        add(&self.lost_count, tried_count.saturating_sub(won_count));
        add(&self.gained_count, gained_jobs.len());
        self.gained_fires.fetch_add(gained_jobs.iter().map(|job| job.recent_fires).sum(), Ordering::Relaxed);
    }

    /// Resets the gains, because this node's jobs were counted.
    pub(crate) fn reset_gains(&self) {
        self.gained_count.store(0, Ordering::Relaxed);
        self.gained_fires.store(0, Ordering::Relaxed);
    }

    /// How many claims were tried, and how many were lost.
    pub(crate) fn tried_and_lost(&self) -> (u64, u64) {
        (self.tried_count.load(Ordering::Relaxed), self.lost_count.load(Ordering::Relaxed))
    }

    /// The jobs gained since the last count, and the thousandths of their recent fires.
    pub(crate) fn gained_counts(&self) -> (u64, u64) {
        (self.gained_count.load(Ordering::Relaxed), self.gained_fires.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::homes::RecentFires;

    use super::*;

    fn due(job: i64) -> DueJob {
        let at = Timestamp::from_secs(100);
        DueJob {
            job: JobId::new(job),
            next_fire_at: at,
            held_from: None,
            version: 1,
            home: NodeId::new(0),
            term: 0,
            recent_fires: RecentFires::default(),
        }
    }

    fn jobs_taken(left: &mut LeftToOthers, strategy: ClaimStrategy, this: i64, second: i64) -> Vec<i64> {
        let node_share = |node| NodeShare { node: NodeId::new(node), weight: 1, job_count: 0, recent_fires: 0 };
        let jobs = (1..=20).map(due).collect();
        let node_shares = [node_share(1), node_share(2)];
        let taken =
            left.pick_takeable_jobs(jobs, strategy, (NodeId::new(this), &node_shares), Timestamp::from_secs(second));
        taken.iter().map(|due| due.job.get()).collect()
    }

    #[test]
    fn each_job_is_for_one_node_and_after_two_seconds_for_any() {
        let (mut one, mut two) = (LeftToOthers::default(), LeftToOthers::default());
        let (of_one, of_two) =
            (jobs_taken(&mut one, ClaimStrategy::IdHash, 1, 10), jobs_taken(&mut two, ClaimStrategy::IdHash, 2, 10));
        let mut all = [of_one.clone(), of_two].concat();
        all.sort_unstable();
        assert_eq!(all, (1..=20).collect::<Vec<_>>());
        assert_eq!(jobs_taken(&mut one, ClaimStrategy::IdHash, 1, 11), of_one);
        assert_eq!(jobs_taken(&mut one, ClaimStrategy::IdHash, 1, 12).len(), 20);
    }

    #[test]
    fn a_taken_job_that_is_due_again_is_left_to_others_again() {
        let mut one = LeftToOthers::default();
        let own = jobs_taken(&mut one, ClaimStrategy::IdHash, 1, 10);
        one.forget_jobs_of_others(Timestamp::from_secs(19));
        assert_eq!(one.0.len(), 20 - own.len());
        one.forget_jobs_of_others(Timestamp::from_secs(20));
        assert!(one.0.is_empty());
        assert_eq!(jobs_taken(&mut one, ClaimStrategy::IdHash, 1, 40), own);
    }

    /// The jobs that a dead node fired each second go to the node with the least load.
    #[test]
    fn jobs_are_distributed_by_their_recent_fires() {
        let now = Timestamp::from_secs(10_000);
        let busy = |job: i64| DueJob { recent_fires: RecentFires::default().with_fires(800, now), ..due(job) };
        let jobs = vec![busy(1), due(2), due(3), due(4), busy(5)];
        let node_share =
            |node, recent_fires| NodeShare { node: NodeId::new(node), weight: 1, job_count: 1, recent_fires };
        let node_shares = [node_share(1, 100_000), node_share(2, 1_600_000)];
        let taken = |this: i64| {
            let strategy = ClaimStrategy::LeastCount;
            let taken = LeftToOthers::default().pick_takeable_jobs(
                jobs.clone(),
                strategy,
                (NodeId::new(this), &node_shares),
                now,
            );
            taken.iter().map(|due| due.job.get()).collect::<Vec<_>>()
        };
        assert_eq!((taken(1), taken(2)), (vec![1, 5], vec![2, 3, 4]));
        let later = now + rondel_core::homes::HALF_LIFE * 20;
        let taken = LeftToOthers::default().pick_takeable_jobs(
            jobs.clone(),
            ClaimStrategy::LeastCount,
            (NodeId::new(2), &[node_share(1, 20), node_share(2, 0)]),
            later,
        );
        assert!(taken.len() >= 3, "what fired long ago weighs little: {taken:?}");
    }

    #[test]
    fn with_the_default_strategy_a_node_takes_all_due_jobs() {
        assert_eq!(jobs_taken(&mut LeftToOthers::default(), ClaimStrategy::Default, 2, 10).len(), 20);
    }
}
