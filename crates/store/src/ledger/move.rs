//! Jobs and runs that move to another home.

use async_trait::async_trait;
use rondel_core::homes::RecentFires;
use rondel_core::{JobId, NodeId, RunId, Timestamp};

use crate::cluster::{HomeMove, LeaseToken};
use crate::error::Result;

/// An open run that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentRun {
    pub run: RunId,
    pub job: JobId,
    pub due_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobAtHome {
    pub job: JobId,
    /// The decaying count of its recent fires.
    pub recent_fires: RecentFires,
}

/// The load of a node as a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeLoad {
    pub node: NodeId,
    /// Number of its jobs that have a next fire.
    pub job_count: u64,
    /// Recent fires of those jobs, in thousandths of a fire. The count of each job is reduced in [steps](rondel_core::homes::DECAY_STEPS)
    /// as it ages.
    pub recent_fires: u64,
}

/// The jobs and runs that moved to other homes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedJobs {
    /// Sorted by id.
    pub jobs: Vec<JobId>,
    /// Their open runs, sorted by id.
    pub runs: Vec<RunId>,
}

#[async_trait]
pub trait Move {
    /// Hands over runs of the lease `token` that were never sent, with their jobs, to another living node. A job has one home, so it moves
    /// with all of its open runs of this node or not at all: it stays if it has an open run that is not among `runs`, that may have been
    /// sent, or that is a shard. If the job's home is already the other node, only its pending runs move. The runs that moved wait in the
    /// store, where the other node's scan finds them. If such a run is due, its row records a wait, so that the run does not count as
    /// missed. Returns the runs that moved.
    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>>;

    /// Like [`hand_over`](Self::hand_over), for whole jobs whose home this node is. A job also stays if one of its open runs is past its
    /// first attempt, or is due before `not_before`. The runs wait in the store, where the other node's scan finds them. Returns the runs
    /// and the jobs that moved.
    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs>;

    /// Open runs of the lease `token` that were not sent (pending without a mark, or waiting), with ids above `after`,
    /// sorted by id, at most `limit`.
    async fn unsent_runs(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>>;

    /// Like [`unsent_runs`](Self::unsent_runs), for all runs of these jobs at once.
    async fn unsent_runs_of_jobs(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<UnsentRun>>;

    /// Jobs whose home is this node, with ids above `after`, sorted by id, at most `limit`.
    async fn jobs_of_home(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobAtHome>>;

    /// The homes of these jobs, sorted by the jobs' ids; a job without a home has the node 0, and a deleted job is left
    /// out.
    async fn homes_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<(JobId, NodeId)>>;

    /// The loads of these nodes as homes, as of `now`. Nodes that are the home of no job are left out.
    async fn home_loads(&self, homes: &[NodeId], now: Timestamp) -> Result<Vec<HomeLoad>>;

    /// Frees at most `limit` jobs whose home is this dead node, so that any node may claim them. A job keeps its home while the node owns
    /// an open run of it. The node must be fenced ([`adopt`](crate::Adopt::adopt)). Returns how many jobs changed.
    async fn free_jobs(&self, token: LeaseToken, dead_node: NodeId, limit: u32) -> Result<u64>;
}
