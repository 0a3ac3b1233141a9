//! What changed of late, for those who watch: runs by their ids, which rise with time, jobs by the instant of their last
//! save. Read alone, and by an index each; nothing is written for the sake of watchers.

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// Where a run stands, as far as watchers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStand {
    /// The run.
    pub id: RunId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// Its job.
    pub job: JobId,
    /// When it was planned.
    pub fire_at: Timestamp,
    /// Which shard it is.
    pub shard_index: i32,
    /// Where it stands.
    pub status: RunStatus,
    /// Why it stands there.
    pub reason: Option<Reason>,
    /// Its attempt.
    pub attempt: i32,
    /// When it may start.
    pub due_at: Timestamp,
    /// The executor that has or had its present attempt.
    pub executor: Option<String>,
}

impl From<&Run> for RunStand {
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
    /// The job.
    pub id: JobId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// Its name.
    pub name: String,
    /// Its newest definition.
    pub version: i64,
    /// Whether it is gone.
    pub is_deleted: bool,
    /// When that was.
    pub at: Timestamp,
}

/// What changed.
#[async_trait]
pub trait Changes {
    /// The runs with higher ids, in the order of their ids, at most `limit`.
    async fn runs_after(&self, after: RunId, limit: u32) -> Result<Vec<RunStand>>;

    /// These runs as they stand now; those that are gone are left out.
    async fn runs_now(&self, ids: &[RunId]) -> Result<Vec<RunStand>>;

    /// Open runs of a lease, at most `limit` of each status.
    async fn runs_of_lease(&self, owner: LeaseToken, limit: u32) -> Result<Vec<RunStand>>;

    /// The jobs that were last saved or deleted at `since` or later, in that order, at most `limit`.
    async fn jobs_saved(&self, since: Timestamp, limit: u32) -> Result<Vec<SavedJob>>;

    /// The names and tenants of executors; those that are forgotten are left out.
    async fn executor_names(&self, ids: &[ExecutorId]) -> Result<Vec<(ExecutorId, NamespaceId, String)>>;
}
