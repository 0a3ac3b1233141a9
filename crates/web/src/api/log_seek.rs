//! Finds a line of a log by its number. The sizes of the chunks show which chunk has the line, so no other chunk is read.

use rondel_core::{Run, RunId, Timestamp};
use rondel_store::logs::ChunkSize;
use rondel_store::{Store, StoreError};

use super::lines::{self, LineFilter, Lines, LogRange, Position};
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};
use crate::query::Reader;

/// How many chunk sizes are read from the store at a time, and kept in memory.
const SIZE_READ_COUNT: u32 = 10_000;

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

/// The size of an attempt's log, in chunks and lines. A log may have very many chunks, so their sizes are read in parts, and only those of the
/// last part are kept.
#[derive(Clone, Debug)]
pub(crate) struct Extent {
    run: RunId,
    /// Where each part of the sizes begins; never empty.
    part_starts: Vec<Position>,
    /// The sizes in the last part.
    last_sizes: Vec<ChunkSize>,
    /// The position before the last chunk that has a missing chunk before it.
    before_newest_gap: Option<Position>,
    /// The position after the last line.
    end: Position,
}

/// The position at which a page begins, and its maximum number of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWindow {
    pub(crate) from: Position,
    pub(crate) limit: usize,
}

impl Seek {
    /// The page ends with the last line, even if its lines are so long that it has fewer than its limit.
    pub(crate) const END: Self = Self::Before(u64::MAX);

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

    /// The line that the page must have, however long its lines are; 0 for none.
    fn required_line(self, line_count: u64) -> u64 {
        match self {
            Self::Tail(_) | Self::From(_) => 0,
            Self::Before(line) => line.saturating_sub(1).min(line_count),
            Self::Around(line) => line.min(line_count),
        }
    }

    /// The line before which the page ends, also if a filter leaves it fewer lines than its limit.
    const fn before_line(self) -> Option<u64> {
        match self {
            Self::Before(line) => Some(line),
            Self::Tail(_) | Self::From(_) | Self::Around(_) => None,
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
        let start = Position::before_first_line(attempt);
        let (part_starts, last_sizes) = (Vec::new(), Vec::new());
        let mut extent = Self { run: run.id, part_starts, last_sizes, before_newest_gap: None, end: start };
        loop {
            let sizes = extent.read_sizes(store, extent.end).await?;
            let is_last = sizes.len() < usize::try_from(SIZE_READ_COUNT).unwrap_or(usize::MAX);
            extent.add_part(sizes);
            if is_last {
                break;
            }
        }
        if let Some(before_gap) = extent.before_newest_gap.filter(|_| !lines::is_settled(run, attempt, now)) {
            // A missing chunk may still arrive, so the lines after it have no final number yet and are not counted.
            let chunk_after_gap = store.log_chunks(run.id, attempt, before_gap.last_chunk(), 1).await?;
            if chunk_after_gap.first().is_some_and(|chunk| lines::is_fresh(chunk, now)) {
                extent.end = before_gap;
            }
        }
        Ok(extent)
    }

    async fn read_sizes(&self, store: &dyn Store, from: Position) -> Result<Vec<ChunkSize>, StoreError> {
        store.log_sizes(self.run, from.attempt, from.last_chunk(), SIZE_READ_COUNT).await
    }

    /// Counts the lines of the next part of the chunks.
    fn add_part(&mut self, sizes: Vec<ChunkSize>) {
        self.part_starts.push(self.end);
        for size in &sizes {
            if self.end.is_before_gap(size.sequence) {
                self.before_newest_gap = Some(self.end);
            }
            self.end = self.end.after_chunk(size);
        }
        self.last_sizes = sizes;
    }

    /// How many lines there are.
    pub(crate) const fn line_count(&self) -> u64 {
        self.end.line_count()
    }

    /// The window for a seek parameter.
    pub(crate) async fn window(&self, store: &dyn Store, seek: Seek, limit: usize) -> Result<PageWindow, StoreError> {
        let (line, limit) = seek.first_line(self.line_count(), limit);
        let part = self.part_starts.iter().enumerate().rfind(|(_, start)| start.line_count() < line);
        let from = match part {
            Some(_) if line > self.line_count() => self.end,
            Some((index, start)) if index + 1 == self.part_starts.len() => start.before_line(line, &self.last_sizes),
            Some((_, start)) => start.before_line(line, &self.read_sizes(store, *start).await?),
            None => self.end,
        };
        Ok(PageWindow { from, limit })
    }

    /// Reads the page for a seek parameter; returns the position at which it begins, and its lines. The size of a page is limited. If its lines
    /// are so long that it would end before the line that it must have, it gets fewer lines before that line. A search of a bounded part of the
    /// log continues with the next page instead.
    pub(crate) async fn read_page(
        &self,
        store: &dyn Store,
        run: &Run,
        (seek, mut limit): (Seek, usize),
        line_filter: &LineFilter,
        now: Timestamp,
    ) -> Result<(Position, Lines), StoreError> {
        let required_line = if line_filter.matches_all() { seek.required_line(self.line_count()) } else { 0 };
        loop {
            let window = self.window(store, seek, limit).await?;
            let (before_line, bytes_max) = (seek.before_line(), lines::TEXT_BYTES_MAX);
            let range = LogRange { from: window.from, before_line, line_filter, limit: window.limit, bytes_max };
            let page = lines::read(store, run, range, now).await?;
            let end_line = page.position.line_count();
            if end_line >= required_line || page.is_drained || limit <= 1 {
                return Ok((window.from, page));
            }
            let read_count = usize::try_from(end_line.saturating_sub(window.from.line_count())).unwrap_or(usize::MAX);
            limit = read_count.saturating_mul(2).min(limit / 2).max(1);
        }
    }
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
            let end = Position::before_first_line(1);
            let (part_starts, last_sizes) = (Vec::new(), Vec::new());
            let run = RunId::new(1);
            let mut extent = Extent { run, part_starts, last_sizes, before_newest_gap: None, end };
            extent.add_part(sizes(sequences));
            let line_count = extent.before_newest_gap.map(|position| position.line_count());
            assert_eq!(line_count, expected, "{sequences:?}");
        }
    }
}
