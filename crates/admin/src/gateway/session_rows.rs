//! The streams of one executor to this node share one row in the store. Only the last of these streams ends the row.
//!
//! Two hellos of an executor may be in flight to the store at the same time, and the later hello may be stored first. If the earlier stream then
//! ended the row, the row would state that nothing is sent to the executor any more, although the later stream lives: a server that adopts this
//! node's runs would not ask that executor about them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::{ExecutorId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

#[derive(Debug, Default)]
pub(super) struct SessionRows(Mutex<HashMap<ExecutorId, Row>>);

#[derive(Debug, Default)]
struct Row {
    /// Streams whose session is being stored, or that are open.
    stream_count: usize,
    /// The newest opening that the store has confirmed: the one in the row.
    opened_at: Option<Timestamp>,
}

/// A stream's share in the row, from before its session is stored until after the dispatcher has dropped the stream.
#[derive(Debug)]
pub(super) struct RowShare {
    rows: Arc<SessionRows>,
    executor: ExecutorId,
}

impl SessionRows {
    pub(super) fn share(self: &Arc<Self>, executor: ExecutorId) -> RowShare {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.entry(executor).or_default().stream_count += 1;
        drop(rows);
        RowShare { rows: Arc::clone(self), executor }
    }
}

impl RowShare {
    /// Records that the store has confirmed the opening of the session at this time.
    pub(super) fn record_opened(&self, at: Timestamp) {
        let mut rows = self.rows.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(self.executor).or_default();
        row.opened_at = row.opened_at.max(Some(at));
    }

    /// Ends the share. Returns the opening that is in the row, so that the caller can end the row; `None` while the executor has, or is
    /// opening, another stream here.
    pub(super) fn end(self) -> Option<Timestamp> {
        let rows = self.rows.0.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.get(&self.executor)?;
        let is_last = row.stream_count == 1 || mutant::on(Mutant::EachStreamEndsTheRow);
        row.opened_at.filter(|_| is_last)
    }
}

impl Drop for RowShare {
    fn drop(&mut self) {
        let mut rows = self.rows.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = rows.get_mut(&self.executor) {
            row.stream_count -= 1;
            if row.stream_count == 0 {
                rows.remove(&self.executor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ExecutorId = ExecutorId::new(1);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_last_stream_ends_the_newest_row() {
        let rows = Arc::new(SessionRows::default());
        let (earlier, later) = (rows.share(ONE), rows.share(ONE));
        later.record_opened(at(5));
        earlier.record_opened(at(6));
        assert_eq!(earlier.end(), None, "the later stream lives, or is being opened");
        assert_eq!(later.end(), Some(at(6)), "and the row has the earlier one's opening");
        assert!(rows.0.lock().unwrap().is_empty(), "ended streams leave no entry");
    }

    #[test]
    fn a_stream_that_was_never_stored_ends_no_row() {
        let rows = Arc::new(SessionRows::default());
        assert_eq!(rows.share(ONE).end(), None);
        let (open, other) = (rows.share(ONE), rows.share(ExecutorId::new(2)));
        open.record_opened(at(1));
        drop(rows.share(ONE));
        assert_eq!(other.end(), None);
        assert_eq!(open.end(), Some(at(1)));
    }
}
