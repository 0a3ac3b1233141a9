//! Reads runs.

use async_trait::async_trait;
use rondel_core::run::Attempt;
use rondel_core::{AppId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::cluster::LeaseToken;
use crate::error::Result;

/// Maximum number of earlier attempts of a run that one call reads.
pub const ATTEMPT_COUNT_MAX: u32 = 100;

/// The state of a run that the tick reads just before it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCheck {
    pub id: RunId,
    pub status: RunStatus,
    pub attempt: i32,
    /// The version of the definition that it runs under.
    pub job_version: i64,
    pub has_recorded_start: bool,
    pub owner: LeaseToken,
    /// The caller that requested its cancellation, if any.
    pub cancel_by: Option<String>,
    /// Why the run is to be skipped if no executor has it: its job was paused or deleted.
    pub drop_for: Option<Reason>,
    /// The term of its job's home; 0 if the job was deleted.
    pub term: i64,
}

/// A page of a node's own open runs, in the order of their instants, then of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenPage {
    /// Only runs with this status.
    pub status: RunStatus,
    pub before: Timestamp,
    /// Only runs that are due after this instant, or due at it and with a higher id.
    pub after: (Timestamp, RunId),
    /// Maximum number of runs.
    pub limit: u32,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// Only runs of this job.
    pub job: Option<JobId>,
    /// Only runs planned up to this instant. Applies only together with `job`.
    pub until: Option<Timestamp>,
    /// Only runs of these apps, the ones that the caller may see. Ignored if `parent` is set.
    pub within: Option<Vec<AppId>>,
    /// Only runs with one of these statuses; empty for all.
    pub statuses: Vec<RunStatus>,
    /// Only runs of this broadcast.
    pub parent: Option<RunId>,
    /// Only runs after this one in the order of the page.
    pub after: Option<RunId>,
    /// Maximum number of runs.
    pub limit: u32,
}

/// Number of runs that an executor has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorRunCount {
    pub app: AppId,
    pub executor: String,
    pub count: u64,
}

#[async_trait]
pub trait Runs {
    /// The runs with these ids; ids without a run are left out.
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>>;

    /// Reads the state that the tick needs of these runs. Runs that do not exist are left out.
    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>>;

    /// The keys (due instant and id) of a page of the open runs of the lease `token`, the earliest first. The node has each of these runs
    /// in memory, or has yet to load it.
    async fn open_keys(&self, token: LeaseToken, page: OpenPage) -> Result<Vec<(Timestamp, RunId)>>;

    /// A page of a namespace's runs, newest first.
    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>>;

    /// Number of runs of a namespace that each executor has, as far as the store knows. A run that was sent within the last second or two
    /// may not be counted. The counts come in any order.
    async fn count_running_by_executor(&self, namespace: NamespaceId) -> Result<Vec<ExecutorRunCount>>;

    /// The runs of an app that the executor with this name has, as far as the store knows. At most `limit`.
    async fn running_runs_of_executor(
        &self,
        namespace: NamespaceId,
        app: AppId,
        executor: &str,
        limit: u32,
    ) -> Result<Vec<Run>>;

    /// The job's next fire after this one: the run with the next planned instant, or the next request for the same instant. A broadcast is
    /// represented by the row for all its shards.
    async fn next_fire_after(&self, run: &Run) -> Result<Option<Run>>;

    /// The runs that have one of these runs (at most a few hundred) as their parent: shards, children, and retries by hand. In the order of
    /// their ids, at most `limit`.
    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>>;

    /// The rows of a job's own schedule (cause 0, without shards) whose planned instants lie from `from` to `to`,
    /// sorted by instant, at most `limit`. They begin with the last row of an earlier instant if that row stands for a
    /// span that reaches `from`.
    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>>;

    /// The newest [`ATTEMPT_COUNT_MAX`] ended attempts of a run, sorted by number. The run's own `attempt` is the
    /// number of all its attempts.
    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>>;
}
