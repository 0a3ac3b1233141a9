//! Fires of another scheduler, as they were observed there.

use async_trait::async_trait;
use rondel_core::shadow::compare::OldFire;
use rondel_core::{JobId, NamespaceId, Timestamp};

use crate::error::Result;

/// The most fires that one call stores.
pub const SHADOW_BATCH_MAX: usize = 1_000;
/// The longest name of a source, in characters.
pub const SHADOW_SOURCE_LEN_MAX: usize = 64;
/// The longest name of an executor there, in characters; the rest is cut off.
pub const SHADOW_EXECUTOR_LEN_MAX: usize = 255;

/// A fire of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowFire {
    /// The job here.
    pub job: JobId,
    /// What was observed.
    pub fire: OldFire,
}

/// What was observed of a source so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowSpan {
    /// When its first fire was sent, by its number.
    pub first_at: Timestamp,
    /// When its last fire was sent, by its number.
    pub last_at: Timestamp,
    /// The highest number.
    pub last_id: i64,
}

/// Observed fires of other schedulers.
#[async_trait]
pub trait ShadowFires {
    /// Stores fires of a source, at most [`SHADOW_BATCH_MAX`]. One whose number is known stays as it is. Answers how many were new.
    async fn add_shadow_fires(&self, namespace: NamespaceId, source: &str, fires: &[ShadowFire]) -> Result<u64>;

    /// The fires of a job in a source that were sent in a range, in order, at most `limit`.
    async fn shadow_fires(
        &self,
        of: (NamespaceId, &str),
        job: JobId,
        range: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<OldFire>>;

    /// What was observed of a source; `None` where that is nothing.
    async fn shadow_span(&self, namespace: NamespaceId, source: &str) -> Result<Option<ShadowSpan>>;

    /// Removes about `limit` fires that were sent before an instant. Answers how many.
    async fn forget_shadow_fires(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
