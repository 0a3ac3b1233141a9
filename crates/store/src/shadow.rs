//! Fires of another scheduler, as observed there.

use async_trait::async_trait;
use rondel_core::shadow::compare::OldFire;
use rondel_core::{JobId, NamespaceId, Timestamp};

use crate::error::Result;

/// Maximum number of fires that one call stores.
pub const SHADOW_BATCH_MAX: usize = 1_000;
/// Maximum length of a source's name, in characters.
pub const SHADOW_SOURCE_LEN_MAX: usize = 64;
/// Maximum length of an executor's name in the other scheduler, in characters. Longer names are cut.
pub const SHADOW_EXECUTOR_LEN_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowFire {
    /// The job in Rondel.
    pub job: JobId,
    /// The fire in the other scheduler.
    pub fire: OldFire,
}

/// The range of fires that were observed at a source so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowSpan {
    /// When the fire with the lowest number was sent.
    pub first_at: Timestamp,
    /// When the fire with the highest number was sent.
    pub last_at: Timestamp,
    /// The highest number of a fire.
    pub last_id: i64,
}

/// Observed fires of other schedulers.
#[async_trait]
pub trait ShadowFires {
    /// Stores fires of a source, at most [`SHADOW_BATCH_MAX`]. A fire whose number is already stored stays unchanged. Returns how many were
    /// new.
    async fn add_shadow_fires(&self, namespace: NamespaceId, source: &str, fires: &[ShadowFire]) -> Result<u64>;

    /// The fires of a job in a source that were sent from the first instant of `range` on and before the second, sorted by the instant at
    /// which they were sent, at most `limit`.
    async fn shadow_fires(
        &self,
        namespace_and_source: (NamespaceId, &str),
        job: JobId,
        range: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<OldFire>>;

    /// The range of fires that were observed at a source; `None` if there are none.
    async fn shadow_span(&self, namespace: NamespaceId, source: &str) -> Result<Option<ShadowSpan>>;

    /// Removes about `limit` fires that were sent before `before`, the oldest first. Returns how many were removed.
    async fn forget_shadow_fires(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
