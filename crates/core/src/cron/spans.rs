//! A zone as a table of spans of one offset each. The table is built from `chrono-tz` at the first use of the zone, and cached.
//! Finding the span of an instant is then a table lookup. The spans before and after it show how the clock changes at its ends.

use std::sync::OnceLock;

use chrono::{DateTime, Offset, TimeZone};

use super::zone::Tz;

/// Seconds since 1970, in UTC.
pub(super) type UtcSeconds = i64;

/// A stretch of time in which a zone's clock keeps one offset from UTC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Span {
    /// The first second; for the first span, a time before the search begins.
    pub(super) start: UtcSeconds,
    /// How many seconds the clock is ahead of UTC; negative if it is behind.
    pub(super) offset: i64,
}

/// A stretch in which a zone's clock keeps one offset from UTC, and shows each time once.
#[derive(Clone, Copy, Debug)]
pub(super) struct SteadyStretch {
    /// How many seconds the clock is ahead of UTC; negative if it is behind.
    pub(super) offset: i64,
    /// The first second.
    pub(super) from: UtcSeconds,
    /// The end, not included.
    pub(super) to: UtcSeconds,
}

/// The spans of a zone, from before the search begins; at least one.
#[derive(Debug)]
pub(super) struct Spans {
    /// Oldest first; neighbours differ in their offset.
    spans: Box<[Span]>,
    /// For each stretch of 2^`HINT_BITS` seconds, the index of the span in which the stretch begins.
    index_hints: Box<[usize]>,
}

/// 2^24 seconds are 194 days, in which a zone seldom changes its clock more than once: a lookup then visits one or two spans.
const HINT_BITS: u32 = 24;

/// 1969-12-01, before the search begins.
const SPANS_FROM: UtcSeconds = -31 * 86_400;
/// 2101-01-01: `chrono-tz` knows no change after 2099.
const SPANS_TO: UtcSeconds = 4_133_980_800;
/// The step, in seconds, in which a zone is searched for changes of its offset. It must be shorter than any span of any zone since 1970, so
/// that no change is missed; a test checks this.
pub(super) const STEP_SECONDS: i64 = 43_200;

/// Longer than any time that a clock skips or shows twice: the longest is a day.
const MARGIN: i64 = 2 * 86_400;

/// More than the number of zones in `chrono-tz`.
const ZONE_COUNT_MAX: usize = 1024;

static ZONES: [OnceLock<Spans>; ZONE_COUNT_MAX] = [const { OnceLock::new() }; ZONE_COUNT_MAX];

pub(super) fn spans_of(zone: Tz) -> &'static Spans {
    ZONES[zone as usize].get_or_init(|| Spans::new(find_spans(zone, STEP_SECONDS)))
}

impl Spans {
    fn new(spans: Box<[Span]>) -> Self {
        let stretches = (SPANS_FROM..SPANS_TO).step_by(1 << HINT_BITS);
        let index_hints =
            stretches.map(|at| spans.partition_point(|span| span.start <= at).saturating_sub(1)).collect();
        Self { spans, index_hints }
    }

    pub(super) fn as_slice(&self) -> &[Span] {
        &self.spans
    }

    /// The part of a span that its neighbours cannot affect; empty for a short span.
    pub(super) fn steady_stretch(&self, index: usize) -> SteadyStretch {
        let Some(&Span { start, offset }) = self.spans.get(index) else {
            return SteadyStretch { offset: 0, from: 1, to: 0 };
        };
        let to = self.spans.get(index + 1).map_or(SPANS_TO, |next| next.start);
        SteadyStretch { offset, from: start + MARGIN, to: to - MARGIN }
    }

    /// The index of the span that an instant lies in.
    pub(super) fn index_at(&self, at: UtcSeconds) -> usize {
        let stretch_index = usize::try_from((at - SPANS_FROM) >> HINT_BITS).unwrap_or(0);
        let mut index = self.index_hints.get(stretch_index).or(self.index_hints.last()).copied().unwrap_or(0);
        while self.spans.get(index + 1).is_some_and(|next| next.start <= at) {
            index += 1;
        }
        index
    }
}

/// Finds the spans of a zone by reading its offset once in each step.
pub(super) fn find_spans(zone: Tz, step: i64) -> Box<[Span]> {
    let mut last_span = Span { start: SPANS_FROM, offset: offset_at(zone, SPANS_FROM) };
    let mut spans = vec![last_span];
    let mut at = SPANS_FROM;
    while at < SPANS_TO {
        let next_at = at + step;
        let offset = offset_at(zone, next_at);
        if offset != last_span.offset {
            last_span = Span { start: first_change(zone, at, next_at), offset };
            spans.push(last_span);
        }
        at = next_at;
    }
    spans.into_boxed_slice()
}

/// The first second at which the offset of `late` applies; `early` has a different offset.
fn first_change(zone: Tz, mut early: UtcSeconds, mut late: UtcSeconds) -> UtcSeconds {
    let offset = offset_at(zone, late);
    while late - early > 1 {
        let middle = early.midpoint(late);
        if offset_at(zone, middle) == offset {
            late = middle;
        } else {
            early = middle;
        }
    }
    late
}

fn offset_at(zone: Tz, at: UtcSeconds) -> i64 {
    let at = DateTime::from_timestamp(at, 0).unwrap_or_default().naive_utc();
    zone.offset_from_utc_datetime(&at).fix().local_minus_utc().into()
}
