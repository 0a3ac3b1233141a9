//! Jobs and runs that move to another home.

use async_trait::async_trait;
use rondel_core::homes::RecentFires;
use rondel_core::{JobId, NodeId, RunId, Timestamp};

use crate::cluster::{HomeMove, LeaseToken};
use crate::error::Result;

/// An open run that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsentRun {
    /// The run.
    pub run: RunId,
    /// Its job.
    pub job: JobId,
    /// When it may start.
    pub due_at: Timestamp,
}

/// A job at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobAtHome {
    /// The job.
    pub job: JobId,
    /// Its recent fires.
    pub recent_fires: RecentFires,
}

/// What a node is home to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeLoad {
    /// The node.
    pub node: NodeId,
    /// Its jobs that fire.
    pub job_count: u64,
    /// Their recent fires, in thousandths of a fire, by the [steps](rondel_core::homes::DECAY_STEPS) of a count's age.
    pub recent_fires: u64,
}

/// What went to other homes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedJobs {
    /// The jobs, by id.
    pub jobs: Vec<JobId>,
    /// Their open runs, by id.
    pub runs: Vec<RunId>,
}

/// Moves jobs and runs to other homes.
#[async_trait]
pub trait Move {
    /// Gives own runs that were never sent to another living node, and their jobs with them: a job goes with all that is open
    /// of it here, or stays where it is, since a job has one home. It stays where anything of it is open that is not among
    /// `runs`, or that may have been sent. Of a job that is at home there already, just the pending runs go. They wait in
    /// the store, where the other node's scan finds them. Answers which went.
    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>>;

    /// The same of whole jobs whose home the node is. A job stays, too, where it has an open run with a later attempt, or one
    /// that is due before `not_before`.
    /// The runs wait in the store, where the other node's scan finds them. Answers the runs that went, and the jobs.
    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs>;

    /// Own open runs that were not sent (pending without a mark, or waiting), by id after `after`, at most `limit`.
    async fn unsent(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>>;

    /// Jobs that this node is home to, by id after `after`, at most `limit`.
    async fn jobs_at(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobAtHome>>;

    /// What these nodes are home to, as of now; a node is left out where that is nothing.
    async fn home_loads(&self, homes: &[NodeId], now: Timestamp) -> Result<Vec<HomeLoad>>;

    /// Makes jobs that a dead node is home to homeless, where nothing of that node's is open, so that every node sees them;
    /// at most `limit`. The node is one that was fenced ([`adopt`](crate::Adopt::adopt)). Answers how many they were.
    async fn free_jobs(&self, token: LeaseToken, dead: NodeId, limit: u32) -> Result<u64>;
}
