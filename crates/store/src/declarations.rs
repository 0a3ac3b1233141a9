//! The sets of jobs that executors' code declares.

use async_trait::async_trait;
use rondel_core::{AppId, JobId, Timestamp};

use crate::catalog::Declared;
use crate::error::Result;

/// The jobs that executors of one build declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSet {
    /// The mark that it is known by.
    pub mark: DeclaredMark,
    /// The definitions, as a JSON array.
    pub specs: String,
}

/// That a set was seen, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredMark {
    /// The app.
    pub app: AppId,
    /// SHA-256 of the definitions, in hex.
    pub hash: String,
    /// When an executor first declared it.
    pub first_seen_at: Timestamp,
    /// When a node last had an executor that declares it.
    pub last_seen_at: Timestamp,
}

/// The sets of jobs that executors' code declares.
#[async_trait]
pub trait Declarations {
    /// Remembers what code declares of a job, in the place of what it declared before; the definition stays as it is.
    /// False where there is no such job.
    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool>;

    /// Notes of these jobs that since then no code declares them any more; nothing of those of which that is known, or
    /// which no code ever declared. Answers of how many it was noted.
    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64>;

    /// Notes that a set is seen at `now`; one that is new is kept.
    async fn see_declared_set(&self, app: AppId, hash: &str, specs: &str, now: Timestamp) -> Result<()>;

    /// The marks of the sets that were seen since `since`, by app and hash.
    async fn declared_marks(&self, since: Timestamp) -> Result<Vec<DeclaredMark>>;

    /// Every set of an app, the one that was seen last first.
    async fn declared_sets(&self, app: AppId) -> Result<Vec<DeclaredSet>>;

    /// Forgets a set, unless it was seen after `last_seen_at`.
    async fn forget_declared_set(&self, mark: &DeclaredMark) -> Result<()>;
}
