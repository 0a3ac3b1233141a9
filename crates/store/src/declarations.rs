//! The sets of jobs that executors' code declares.

use async_trait::async_trait;
use rondel_core::{AppId, JobId, Timestamp};

use crate::catalog::Declared;
use crate::error::Result;

/// The jobs that executors of one build declare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSet {
    /// Its identity, and when it was seen.
    pub header: DeclaredSetHeader,
    /// The definitions, as a JSON array.
    pub specs: String,
}

/// A set without its definitions: its identity, and when it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSetHeader {
    pub app: AppId,
    /// SHA-256 of the definitions, in hex.
    pub hash: String,
    /// When an executor first declared it.
    pub first_seen_at: Timestamp,
    /// When a node last had an executor that declares it.
    pub last_seen_at: Timestamp,
}

#[async_trait]
pub trait Declarations {
    /// Stores a job's declaration in code, in place of its earlier declaration. The job's definition stays unchanged. `false` if there is
    /// no such job.
    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool>;

    /// Records that no code declares these jobs any more, as of `since`. Jobs for which that is recorded already, and jobs that no code
    /// ever declared, stay unchanged. Returns how many changed.
    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64>;

    /// Records that a set was seen at `now`, and stores it if it is new.
    async fn record_declared_set(&self, app: AppId, hash: &str, specs: &str, now: Timestamp) -> Result<()>;

    /// The headers of the sets that were seen since `since`, sorted by app and hash.
    async fn declared_set_headers(&self, since: Timestamp) -> Result<Vec<DeclaredSetHeader>>;

    /// Every set of an app, the most recently seen first.
    async fn declared_sets(&self, app: AppId) -> Result<Vec<DeclaredSet>>;

    /// Removes a set, unless it was seen after the header's `last_seen_at`.
    async fn forget_declared_set(&self, header: &DeclaredSetHeader) -> Result<()>;
}
