use async_trait::async_trait;
use rondel_core::{RunId, Timestamp, TraceParent};

use crate::error::Result;

/// Trace contexts of requested runs. Scheduled runs have none.
#[async_trait]
pub trait Traces {
    /// Stores the span of the request for a run before the run exists, so that the node that sends the run finds it.
    async fn note_trace(&self, run: RunId, parent: TraceParent) -> Result<()>;

    /// The spans stored for these runs; runs without one are left out.
    async fn traces(&self, runs: &[RunId]) -> Result<Vec<(RunId, TraceParent)>>;

    /// Removes at most `limit` spans that were stored before `before`, the oldest first. Returns how many.
    async fn forget_traces(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
