//! The sets of jobs that executors' code declares.

use async_trait::async_trait;
use rondel_core::{AppId, Timestamp};

use crate::Result;

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

/// Sets of declared jobs.
#[async_trait]
pub trait Declarations {
    /// Notes that a set is seen at `now`; one that is new is kept.
    async fn see_declared_set(&self, app: AppId, hash: &str, specs: &str, now: Timestamp) -> Result<()>;

    /// The marks of the sets that were seen since `since`, by app and hash.
    async fn declared_marks(&self, since: Timestamp) -> Result<Vec<DeclaredMark>>;

    /// Every set of an app, the one that was seen last first.
    async fn declared_sets(&self, app: AppId) -> Result<Vec<DeclaredSet>>;

    /// Forgets a set, unless it was seen after `last_seen_at`.
    async fn forget_declared_set(&self, mark: &DeclaredMark) -> Result<()>;
}
