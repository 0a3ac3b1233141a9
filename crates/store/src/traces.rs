//! In which traces runs were asked for.

use async_trait::async_trait;
use rondel_core::{RunId, Timestamp, TraceParent};

use crate::error::Result;

/// Traces of requested runs; runs of a schedule have none here.
#[async_trait]
pub trait Traces {
    /// Notes the span that asks for a run, before the run is there: its sender finds it.
    async fn note_trace(&self, run: RunId, parent: TraceParent) -> Result<()>;

    /// What was noted for these runs; those without anything are left out.
    async fn traces(&self, runs: &[RunId]) -> Result<Vec<(RunId, TraceParent)>>;

    /// Forgets what was noted before, the oldest first, at most `limit`. Answers how many that were.
    async fn forget_traces(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
