//! Logs of runs, stored in compressed chunks so that they outlive the executor.

use async_trait::async_trait;
use rondel_core::{NamespaceId, RunId, Timestamp};

use crate::error::Result;

/// The levels of lines, and the outputs that lines were printed to.
pub const LEVELS: [&str; 7] = ["trace", "debug", "info", "warn", "error", "stdout", "stderr"];

/// The base of chunk numbers for a sender that does not count chunks: the number of a chunk is this plus the number of its first line,
/// counted from 1. A sender that stores only how far it has read can then send a chunk again under the same number.
pub const NUMBERED_BY_LINE: i64 = 1 << 41;

/// Whether chunks are missing before the chunk `sequence`. The reader has read `line_count` lines so far; `last` is the number of the last
/// chunk that it read, −1 for none.
///
/// # Example
/// ```
/// use rondel_store::logs::{NUMBERED_BY_LINE, is_gap_before};
///
/// assert!(!is_gap_before(3, 2, 40) && is_gap_before(4, 2, 40));
/// let by_line = |line| NUMBERED_BY_LINE + line;
/// assert!(!is_gap_before(by_line(41), by_line(31), 40) && is_gap_before(by_line(51), by_line(31), 40));
/// ```
#[must_use]
pub fn is_gap_before(sequence: i64, last: i64, line_count: u64) -> bool {
    match u64::try_from(sequence.saturating_sub(NUMBERED_BY_LINE)) {
        Ok(line) => line > line_count.saturating_add(1),
        Err(_) => sequence > last.saturating_add(1),
    }
}

/// A line of a run's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written, by the server's clock as the executor knows it.
    pub at: Timestamp,
    /// One of [`LEVELS`].
    pub level: String,
    /// Text, never markup.
    pub text: String,
}

/// Some lines of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    pub run: RunId,
    pub attempt: i32,
    /// The number of the chunk: either counted from 0 in the attempt, or derived from the chunk's first line (see [`NUMBERED_BY_LINE`]).
    pub sequence: i64,
    pub lines: Vec<LogLine>,
}

/// A chunk without its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSize {
    pub sequence: i64,
    /// How many lines it has.
    pub line_count: u64,
}

/// A range of runs by their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// Only runs after this one.
    pub after: RunId,
    /// Only runs up to this one.
    pub up_to: RunId,
    /// The current time; the line that replaces a removed log has this instant.
    pub now: Timestamp,
}

/// Outcome of [`Logs::remove_logs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedLogs {
    /// Number of runs whose logs were removed.
    pub runs: u64,
    /// The last run that was examined: the next call continues after it. `None` if there was none.
    pub last: Option<RunId>,
}

/// The line in place of a removed log of `count` lines.
pub(crate) fn removed_line(count: i64, at: Timestamp) -> LogLine {
    LogLine { at, level: "warn".to_owned(), text: format!("… {count} lines were removed by the log retention") }
}

#[async_trait]
pub trait Logs {
    /// Stores these chunks; existing ones stay unchanged. Chunks of runs that do not exist are dropped.
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()>;

    /// Chunks of an attempt after `after_sequence` (−1 for all), sorted by sequence, at most `limit`, and fewer if they
    /// are large. Empty only if there are none.
    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>>;

    /// The sizes of an attempt's chunks after `after_sequence` (−1 for all), sorted by sequence, at most `limit`. Their
    /// lines are not read; a reader uses the sizes to find a line by its number.
    async fn log_sizes(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<ChunkSize>>;

    /// The newest run whose log does not fit into `bytes` (the stored size) together with all newer logs of the namespace; `None` if all
    /// logs fit.
    async fn log_cut(&self, namespace: NamespaceId, bytes: u64) -> Result<Option<RunId>>;

    /// Removes the logs of ended runs of a namespace in `range`, the oldest first, and examines at most `limit` runs, and fewer if their logs
    /// are large. The log of each attempt is replaced by a line that reports the removal. Logs of open runs stay.
    async fn remove_logs(&self, namespace: NamespaceId, range: LogRange, limit: u32) -> Result<RemovedLogs>;
}
