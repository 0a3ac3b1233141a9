//! Recent changes, for live views. Runs are read by their ids, which rise with time, and jobs by the instant of their last save. Each read
//! uses one index, and nothing is written only for live views.

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// The state of a run, as far as live views need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSnapshot {
    pub id: RunId,
    pub namespace: NamespaceId,
    pub app: AppId,
    pub job: JobId,
    /// Its planned instant.
    pub fire_at: Timestamp,
    pub shard_index: i32,
    /// The status that readers see ([`Run::shown_status`]).
    pub status: RunStatus,
    /// The reason of that status.
    pub reason: Option<Reason>,
    /// The number of its present attempt, from 1.
    pub attempt: i32,
    /// When its present attempt is due.
    pub due_at: Timestamp,
    /// The executor that has or had its present attempt.
    pub executor: Option<String>,
}

impl From<&Run> for RunSnapshot {
    fn from(run: &Run) -> Self {
        Self {
            id: run.id,
            namespace: run.namespace,
            app: run.app,
            job: run.job,
            fire_at: run.fire_at,
            shard_index: run.shard_index,
            status: run.shown_status(),
            reason: run.reason,
            attempt: run.attempt,
            due_at: run.due_at,
            executor: run.present_executor().map(str::to_owned),
        }
    }
}

/// A job that was saved, or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedJob {
    pub id: JobId,
    pub namespace: NamespaceId,
    pub app: AppId,
    pub name: String,
    /// The version of its newest definition.
    pub version: i64,
    /// Whether it was deleted.
    pub is_deleted: bool,
    /// When it was saved or deleted.
    pub at: Timestamp,
}

/// Reads recent changes.
#[async_trait]
pub trait Changes {
    /// The runs with ids above `after`, in the order of their ids, at most `limit`.
    async fn snapshots_after(&self, after: RunId, limit: u32) -> Result<Vec<RunSnapshot>>;

    /// The current state of these runs; those that were removed are left out.
    async fn current_snapshots(&self, ids: &[RunId]) -> Result<Vec<RunSnapshot>>;

    /// Open runs of a lease, at most `limit` of each status.
    async fn snapshots_of_lease(&self, owner: LeaseToken, limit: u32) -> Result<Vec<RunSnapshot>>;

    /// The jobs that were last saved or deleted at `since` or later, in that order, at most `limit`.
    async fn jobs_saved(&self, since: Timestamp, limit: u32) -> Result<Vec<SavedJob>>;

    /// The names and namespaces of executors; those that were removed are left out.
    async fn executor_names(&self, ids: &[ExecutorId]) -> Result<Vec<(ExecutorId, NamespaceId, String)>>;
}
