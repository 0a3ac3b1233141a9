//! Reads a run's log line by line from its chunks, beginning at a position.

use std::str::FromStr;
use std::time::Duration;

use rondel_core::log_line::LineSeverity;
use rondel_core::{Run, Timestamp};
use rondel_store::logs::{ChunkSize, LogChunk, LogLine, is_gap_before};
use rondel_store::{Store, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long after the end of a run its last lines may still arrive.
const SETTLE_DELAY: Duration = Duration::from_secs(1);
/// How long to wait for a missing chunk if later chunks are already stored.
const GAP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of chunks in one read from the store.
const CHUNK_COUNT_MAX: u32 = 32;
/// Maximum bytes of text in one page, and the approximate number of bytes decoded at a time. A page has at least one line.
pub(crate) const TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum number of chunks that one call searches for matching lines: enough for a whole log of the usual maximum size.
const SEARCHED_CHUNKS_MAX: usize = 256;
/// Maximum length of the text to search for, in bytes.
pub(crate) const CONTAINS_BYTES_MAX: usize = 256;

/// The position of a reader. The reader has read all chunks up to `chunk`, `skip` lines of the chunk after that, and `seq` lines in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    #[serde(rename = "t")]
    pub(crate) attempt: i32,
    #[serde(rename = "c")]
    chunk: i64,
    #[serde(rename = "k")]
    skip: usize,
    #[serde(rename = "s")]
    seq: u64,
}

/// Selects lines that have one of the levels and one of the severities, and contain the text, ignoring case.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineFilter {
    /// The levels to select; empty for any.
    pub(crate) levels: Vec<Level>,
    pub(crate) contains: Option<String>,
    /// The severities to select; empty for any.
    pub(crate) severities: Vec<LineSeverity>,
}

/// The level of a line, or the stream that it was printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(&'static str);

pub(super) use rondel_store::logs::LEVELS;

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = LEVELS.iter().find(|level| **level == text);
        level.map(|level| Self(level)).ok_or_else(|| format!("{text:?} is none of {}", LEVELS.join(", ")))
    }
}

impl LineFilter {
    /// Checks the caller's search text and converts it to lower case.
    pub(crate) fn parse_contains(text: &str) -> Result<String, String> {
        if text.is_empty() || text.len() > CONTAINS_BYTES_MAX {
            return Err(format!("is to be a text of 1 to {CONTAINS_BYTES_MAX} bytes"));
        }
        Ok(text.to_lowercase())
    }

    pub(super) fn matches_all(&self) -> bool {
        self.levels.is_empty() && self.contains.is_none() && self.severities.is_empty()
    }

    pub(super) fn matches(&self, line: &LogLine) -> bool {
        let has_level = self.levels.is_empty() || self.levels.iter().any(|level| level.0 == line.level);
        let has_severity =
            |severities: &[LineSeverity]| severities.contains(&LineSeverity::of(&line.level, &line.text));
        has_level
            && (self.severities.is_empty() || has_severity(&self.severities))
            && self.contains.as_ref().is_none_or(|text| line.text.to_lowercase().contains(text))
    }
}

/// A line as the API shows it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "LogLine")]
pub(crate) struct Line {
    /// The number of the line in its attempt, counted from 1.
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    #[schemars(extend("enum" = LEVELS))]
    pub(crate) level: String,
    pub(crate) line: String,
    attempt: i32,
    /// How severe the line is: given by the level of a logged line, and by the text of a printed one.
    #[schemars(extend("enum" = LineSeverity::WORDS))]
    pub(crate) severity: &'static str,
}

/// The lines that were read, and the position after them.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) lines: Vec<Line>,
    pub(crate) position: Position,
    /// Whether no further line can currently be read.
    pub(crate) is_drained: bool,
    /// The total length of the lines' texts, in bytes.
    text_bytes: usize,
}

impl Position {
    /// The position before the first line of an attempt.
    pub(crate) const fn before_first_line(attempt: i32) -> Self {
        Self { attempt, chunk: -1, skip: 0, seq: 0 }
    }

    /// The position before line `line` (counted from 1). This position is the end of a chunk before that line, and the next chunks have these
    /// sizes. Their end if they have fewer lines.
    pub(super) fn before_line(self, line: u64, sizes: &[ChunkSize]) -> Self {
        let mut position = self;
        for size in sizes {
            if line <= position.seq + size.line_count {
                let skip = usize::try_from(line.saturating_sub(position.seq + 1)).unwrap_or(usize::MAX);
                // The reader does not wait for a chunk that is missing before this chunk: the position is already past it.
                return Self { chunk: size.sequence - 1, skip, seq: line.saturating_sub(1), ..self };
            }
            position = position.after_chunk(size);
        }
        position
    }

    /// The position after the next chunk, which has this size; this position is the end of a chunk.
    pub(super) const fn after_chunk(self, size: &ChunkSize) -> Self {
        Self { attempt: self.attempt, chunk: size.sequence, skip: 0, seq: self.seq + size.line_count }
    }

    /// The number of the last chunk that the reader has read completely; −1 for none.
    pub(super) const fn last_chunk(&self) -> i64 {
        self.chunk
    }

    /// How many lines the reader has read.
    pub(crate) const fn line_count(&self) -> u64 {
        self.seq
    }

    /// Whether chunks are missing between this position and the chunk `sequence`. False right before or inside that chunk: the lines before a
    /// chunk that is numbered by its first line stay fewer than its number, so the count of lines alone would show the same gap again.
    pub(super) fn is_before_gap(&self, sequence: i64) -> bool {
        if sequence == self.chunk.saturating_add(1) {
            return false;
        }
        let line_count_before = self.seq.saturating_sub(u64::try_from(self.skip).unwrap_or(u64::MAX));
        is_gap_before(sequence, self.chunk, line_count_before)
    }

    /// Whether this API can have issued this position for a run that has had `attempt_count` attempts.
    pub(crate) const fn is_plausible(&self, attempt_count: i32) -> bool {
        self.attempt >= 1 && self.attempt <= attempt_count && self.chunk >= -1
    }
}

/// Whether the log of the attempt is complete: no further line will arrive.
pub(crate) fn is_settled(run: &Run, attempt: i32, now: Timestamp) -> bool {
    attempt < run.attempt || (run.status.is_terminal() && run.finished_at.is_none_or(|end| now >= end + SETTLE_DELAY))
}

/// The part of a log to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRange<'a> {
    pub(crate) from: Position,
    /// The line before which the part ends; `None` for the end of the log.
    pub(crate) before_line: Option<u64>,
    pub(crate) line_filter: &'a LineFilter,
    /// Maximum number of lines.
    pub(crate) limit: usize,
    /// Maximum bytes of text.
    pub(crate) bytes_max: usize,
}

/// Reads at most `limit` lines and `bytes_max` bytes of text, and no line from `before_line` on. If few lines match the filter, a call may
/// end before it has found one; then `is_drained` is false and the caller continues at `position`.
pub(crate) async fn read(
    store: &dyn Store,
    run: &Run,
    range: LogRange<'_>,
    now: Timestamp,
) -> Result<Lines, StoreError> {
    let LogRange { from, line_filter, bytes_max, .. } = range;
    let mut searched_chunk_count = 0;
    let is_settled = is_settled(run, from.attempt, now);
    let mut page = Lines { lines: Vec::new(), position: from, is_drained: false, text_bytes: 0 };
    let mut chunk_count = 1;
    loop {
        let chunks = store.log_chunks(run.id, from.attempt, page.position.chunk, chunk_count).await?;
        if chunks.is_empty() {
            page.is_drained = true;
            return Ok(page);
        }
        chunk_count = next_count(&chunks, bytes_max);
        for chunk in chunks {
            if page.position.is_before_gap(chunk.sequence) && !is_settled && is_fresh(&chunk, now) {
                page.is_drained = true;
                return Ok(page);
            }
            if !page.add_chunk(chunk, range) {
                return Ok(page);
            }
            searched_chunk_count += 1;
            if searched_chunk_count >= SEARCHED_CHUNKS_MAX && !line_filter.matches_all() {
                return Ok(page);
            }
        }
    }
}

/// How many chunks to read next to fill a page, if the mean length of these chunks stays the same.
pub(super) fn next_count(chunks: &[LogChunk], bytes_max: usize) -> u32 {
    let bytes: usize = chunks.iter().flat_map(|chunk| &chunk.lines).map(|line| line.text.len()).sum();
    let count = bytes_max.saturating_mul(chunks.len()) / bytes.max(1);
    u32::try_from(count).unwrap_or(CHUNK_COUNT_MAX).clamp(1, CHUNK_COUNT_MAX)
}

/// Whether the chunk was written so recently that a chunk missing before it may still arrive.
pub(super) fn is_fresh(chunk: &LogChunk, now: Timestamp) -> bool {
    chunk.lines.last().is_some_and(|line| line.at + GAP_TIMEOUT > now)
}

impl Lines {
    /// Adds the lines of a chunk. `false` means that a limit was reached before the end of the chunk.
    fn add_chunk(&mut self, chunk: LogChunk, range: LogRange<'_>) -> bool {
        let LogRange { before_line, line_filter, limit, bytes_max, .. } = range;
        if self.position.is_before_gap(chunk.sequence) {
            // Moves the position past the missing chunks: even if the page ends within this chunk, the next call does not wait for them
            // again.
            (self.position.chunk, self.position.skip) = (chunk.sequence - 1, 0);
        }
        let skip = self.position.skip;
        for line in chunk.lines.into_iter().skip(skip) {
            if self.lines.len() >= limit || before_line.is_some_and(|line| self.position.seq + 1 >= line) {
                return false;
            }
            let is_match = line_filter.matches(&line);
            let text_bytes = self.text_bytes.saturating_add(line.text.len());
            if is_match && text_bytes > bytes_max && !self.lines.is_empty() {
                return false;
            }
            self.position.skip += 1;
            self.position.seq += 1;
            if !is_match {
                continue;
            }
            self.text_bytes = text_bytes;
            let (seq, attempt) = (self.position.seq, self.position.attempt);
            let severity = LineSeverity::of(&line.level, &line.text).as_str();
            self.lines.push(Line { seq, at: line.at, level: line.level, line: line.text, attempt, severity });
        }
        self.position.chunk = chunk.sequence;
        self.position.skip = 0;
        true
    }
}
