//! What runs wrote, in compressed chunks, so that it outlives the executor.

use async_trait::async_trait;
use rondel_core::{RunId, Timestamp};

use crate::Result;

/// A line of a run's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written, by the server's clock as the executor knows it.
    pub at: Timestamp,
    /// `trace` to `error`, or `stdout` and `stderr`.
    pub level: String,
    /// Text, never markup.
    pub text: String,
}

/// Some lines of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// The run.
    pub run: RunId,
    /// Its attempt.
    pub attempt: i32,
    /// Counts the chunks of the attempt from 0.
    pub sequence: i64,
    /// The lines.
    pub lines: Vec<LogLine>,
}

/// Logs of runs.
#[async_trait]
pub trait Logs {
    /// Keeps these chunks; those that are there already are left as they are. Chunks of runs that do not exist are
    /// dropped.
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()>;

    /// Chunks of an attempt after `after_sequence` (−1 for all), in order, at most `limit`.
    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>>;
}
