//! Finds a line of a log by its number. The sizes of the chunks show which chunk has the line, so no other chunk is read.

use rondel_core::{Run, Timestamp};
use rondel_store::logs::{ChunkSize, is_gap_before};
use rondel_store::{Store, StoreError};

use super::lines::{self, Position};
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::Reader;

/// How many chunk sizes are read from the store at a time.
const SIZE_READ_COUNT: u32 = 10_000;
/// Maximum number of chunks of an attempt that are counted. A log of the maximum size has fewer.
const CHUNK_COUNT_MAX: usize = 100_000;

/// The place in a log at which a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seek {
    /// The page begins this many lines before the end.
    Tail(u64),
    /// The page begins with this line.
    From(u64),
    /// The page ends right before this line.
    Before(u64),
    /// This line is in the middle of the page.
    Around(u64),
}

/// The size of an attempt's log, in chunks and lines.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    attempt: i32,
    sizes: Vec<ChunkSize>,
    /// How many lines there are.
    pub(crate) line_count: u64,
}

/// The position at which a page begins, and its maximum number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWindow {
    pub(crate) from: Position,
    pub(crate) limit: usize,
}

impl Seek {
    /// Reads the parameters that name a position, of which a query may have one.
    pub(crate) fn from_query(reader: &mut Reader) -> Option<Self> {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(line) if line >= 1 => Ok(u64::from(line)),
            _ => Err(format!("{text:?} is not a whole number of 1 or more")),
        };
        let parameter = |name, about| Parameter::number(name, 1..=u32::MAX).about(about);
        let tail_count = parameter("tail", "Begins this many lines before the end.");
        let from_line = parameter("from_line", "Begins with this line.");
        let before_line = parameter("before", "Returns the lines right before this line.");
        let around_line = parameter("around", "Returns the lines on both sides of this line.");
        let mut seek_in_query = None;
        let mut read_parameter = |parameter, seek: fn(u64) -> Self| {
            let has_seek = seek_in_query.is_some();
            let line = reader.parsed(parameter, |text| match number(text)? {
                _ if has_seek => Err("give only one of tail, from_line, before and around".to_owned()),
                line => Ok(line),
            });
            seek_in_query = seek_in_query.or(line.map(seek));
        };
        read_parameter(tail_count, Self::Tail);
        read_parameter(from_line, Self::From);
        read_parameter(before_line, Self::Before);
        read_parameter(around_line, Self::Around);
        seek_in_query
    }

    /// The first line of a page of at most `limit` lines, and the maximum number of lines of that page.
    pub(crate) fn first_line(self, line_count: u64, limit: usize) -> (u64, usize) {
        let count = u64::try_from(limit).unwrap_or(u64::MAX);
        match self {
            Self::Tail(tail) => (line_count.saturating_sub(tail) + 1, limit),
            Self::From(line) => (line, limit),
            Self::Before(line) => {
                let end_line = line.min(line_count.saturating_add(1)).max(1);
                let first_line_of_page = end_line.saturating_sub(count).max(1);
                (first_line_of_page, usize::try_from(end_line - first_line_of_page).unwrap_or(limit))
            }
            Self::Around(line) => {
                let last_start = line_count.saturating_sub(count).saturating_add(1);
                (line.saturating_sub(count / 2).min(last_start).max(1), limit)
            }
        }
    }

    /// Whether the page also has a fixed end. Such a page cannot be streamed.
    pub(crate) const fn has_end(self) -> bool {
        matches!(self, Self::Before(_) | Self::Around(_))
    }
}

/// Refuses a query that has both a cursor and a seek parameter, and a query for a stream with a fixed end.
pub(crate) fn check_start(seek: Option<Seek>, has_cursor: bool, is_streamed: bool) -> Result<(), Problem> {
    let Some(seek) = seek else { return Ok(()) };
    let message = match (has_cursor, is_streamed && seek.has_end()) {
        (true, _) => "cannot be combined with tail, from_line, before or around: give one of them",
        (_, true) => "has an end: a stream begins with tail or from_line",
        _ => return Ok(()),
    };
    let parameter = match (has_cursor, seek) {
        (true, _) => "after",
        (_, Seek::Before(_)) => "before",
        _ => "around",
    };
    Err(Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query(parameter, "invalid_value", message)]))
}

impl Extent {
    /// Counts the lines of an attempt that a reader of the whole log would get now.
    pub(crate) async fn read(store: &dyn Store, run: &Run, attempt: i32, now: Timestamp) -> Result<Self, StoreError> {
        let mut sizes: Vec<ChunkSize> = Vec::new();
        loop {
            let after_sequence = sizes.last().map_or(-1, |size| size.sequence);
            let page = store.log_sizes(run.id, attempt, after_sequence, SIZE_READ_COUNT).await?;
            let is_last = page.len() < usize::try_from(SIZE_READ_COUNT).unwrap_or(usize::MAX);
            sizes.extend(page);
            if is_last || sizes.len() >= CHUNK_COUNT_MAX {
                break;
            }
        }
        if !lines::is_settled(run, attempt, now) {
            let gap = newest_gap(&sizes);
            // A missing chunk may still arrive, so the lines after it have no final number yet and are not counted.
            if let Some(gap_index) = gap {
                let before_sequence =
                    gap_index.checked_sub(1).and_then(|last| sizes.get(last)).map_or(-1, |size| size.sequence);
                let chunk_after_gap = store.log_chunks(run.id, attempt, before_sequence, 1).await?;
                if chunk_after_gap.first().is_some_and(|chunk| lines::is_fresh(chunk, now)) {
                    sizes.truncate(gap_index);
                }
            }
        }
        let line_count = sizes.iter().map(|size| size.line_count).sum();
        Ok(Self { attempt, sizes, line_count })
    }

    /// The page for a seek parameter.
    pub(crate) fn window(&self, seek: Seek, limit: usize) -> PageWindow {
        let (line, limit) = seek.first_line(self.line_count, limit);
        PageWindow { from: Position::before_line(line, self.attempt, &self.sizes), limit }
    }
}

/// The index of the last chunk that has a missing chunk before it.
fn newest_gap(sizes: &[ChunkSize]) -> Option<usize> {
    let (mut last_sequence, mut line_count, mut newest_index) = (-1, 0, None);
    for (index, size) in sizes.iter().enumerate() {
        if is_gap_before(size.sequence, last_sequence, line_count) {
            newest_index = Some(index);
        }
        (last_sequence, line_count) = (size.sequence, line_count + size.line_count);
    }
    newest_index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_begins_where_it_is_asked_to() {
        for (seek, expected) in [
            (Seek::Tail(10), (991, 100)),
            (Seek::Tail(5_000), (1, 100)),
            (Seek::From(400), (400, 100)),
            (Seek::Before(400), (300, 100)),
            (Seek::Before(31), (1, 30)),
            (Seek::Before(1), (1, 0)),
            (Seek::Before(9_000), (901, 100)),
            (Seek::Around(400), (350, 100)),
            (Seek::Around(3), (1, 100)),
            (Seek::Around(1_000), (901, 100)),
            (Seek::Around(9_000), (901, 100)),
        ] {
            assert_eq!(seek.first_line(1_000, 100), expected, "{seek:?}");
        }
        for seek in [Seek::Tail(10), Seek::Before(5), Seek::Around(5)] {
            assert_eq!(seek.first_line(0, 100).0, 1, "{seek:?}");
        }
    }

    #[test]
    fn the_newest_gap_is_found() {
        let sizes = |sequences: &[i64]| -> Vec<ChunkSize> {
            sequences.iter().map(|sequence| ChunkSize { sequence: *sequence, line_count: 1 }).collect()
        };
        for (sequences, expected) in
            [(&[][..], None), (&[0, 1, 2], None), (&[1, 2], Some(0)), (&[0, 2, 3], Some(1)), (&[0, 2, 4], Some(2))]
        {
            assert_eq!(newest_gap(&sizes(sequences)), expected, "{sequences:?}");
        }
    }
}
