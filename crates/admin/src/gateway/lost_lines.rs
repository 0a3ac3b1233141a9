//! Lines of a stream that were dropped because the queue to the store had no room. Their chunks are not acknowledged. As soon as there is room, a
//! mark is stored for each attempt, in place of the last of its dropped chunks.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rondel_core::{RunId, Timestamp};
use rondel_store::logs::{LogChunk, LogLine};

/// Maximum number of attempts that get a mark; the lines of further attempts are dropped without one.
const ATTEMPT_COUNT_MAX: usize = 5_000;
const MARK_LEVEL: &str = "warn";

/// The lines that an attempt has lost since its last mark.
#[derive(Clone, Copy, Debug, Default)]
struct LostCount {
    line_count: usize,
    /// The number of the last lost chunk.
    sequence: i64,
}

#[derive(Debug, Default)]
pub(super) struct LostLines(Mutex<BTreeMap<(RunId, i32), LostCount>>);

impl LostLines {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Counts the lost lines of a chunk; false if [`ATTEMPT_COUNT_MAX`] other attempts have lost lines already, so that this attempt gets no mark.
    pub(super) fn add(&self, chunk: &LogChunk) -> bool {
        let mut counts_by_attempt = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attempt = (chunk.run, chunk.attempt);
        if counts_by_attempt.len() >= ATTEMPT_COUNT_MAX && !counts_by_attempt.contains_key(&attempt) {
            return false;
        }
        let lost_count = counts_by_attempt.entry(attempt).or_default();
        lost_count.line_count += chunk.lines.len();
        lost_count.sequence = lost_count.sequence.max(chunk.sequence);
        true
    }

    /// A chunk with a mark for each attempt that has lost lines.
    pub(super) fn marks(&self, now: Timestamp) -> Vec<LogChunk> {
        let mark = |((run, attempt), lost): (&(RunId, i32), &LostCount)| {
            let text =
                format!("… {} lines were dropped here: the server could not store them in time", lost.line_count);
            let lines = vec![LogLine { at: now, level: MARK_LEVEL.to_owned(), text }];
            LogChunk { run: *run, attempt: *attempt, sequence: lost.sequence, lines }
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(mark).collect()
    }

    /// Forgets the lines whose marks are on their way into the store.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(run: i64, sequence: i64, line_count: usize) -> LogChunk {
        let line = LogLine { at: Timestamp::EPOCH, level: "info".to_owned(), text: "x".to_owned() };
        LogChunk { run: RunId::new(run), attempt: 1, sequence, lines: vec![line; line_count] }
    }

    #[test]
    fn a_notice_replaces_the_lost_lines_of_an_attempt_at_its_last_chunk() {
        let lost = LostLines::default();
        for chunk in [chunk(1, 4, 10), chunk(2, 7, 1), chunk(1, 5, 20)] {
            assert!(lost.add(&chunk));
        }
        let marks = lost.marks(Timestamp::from_secs(9));
        let found: Vec<_> = marks.iter().map(|mark| (mark.run.get(), mark.sequence, mark.lines.len())).collect();
        assert_eq!(found, [(1, 5, 1), (2, 7, 1)]);
        assert!(marks[0].lines[0].text.contains("30 lines were dropped here"), "{marks:?}");
        lost.clear();
        assert_eq!(lost.marks(Timestamp::EPOCH), []);
    }

    #[test]
    fn the_attempts_with_marks_are_bounded() {
        let lost = LostLines::default();
        let count = i64::try_from(ATTEMPT_COUNT_MAX).unwrap();
        assert!((0..count).all(|run| lost.add(&chunk(run, 0, 1))));
        assert!(!lost.add(&chunk(count, 0, 1)) && lost.add(&chunk(0, 1, 1)));
    }
}
