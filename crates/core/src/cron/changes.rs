//! The changes of a zone's clock that affect a fire, and their effects, so that users are warned in advance.

use chrono::{DateTime, NaiveDateTime};

use super::dst::ResolvedRule;
use super::search::{Fields, WallSeconds};
use super::spans;
use super::zone::Tz;
use crate::time::Timestamp;

/// Maximum number of changes that are listed.
const CHANGE_COUNT_MAX: usize = 12;

/// A change of a zone's clock that affects a fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockChange {
    /// When the clock is changed.
    pub at: Timestamp,
    /// The first planned local time that the clock skips or shows twice.
    pub local: NaiveDateTime,
    /// The effect of the change on that time.
    pub effect: ClockEffect,
}

/// The effect of a clock change on times that the clock skips or shows twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEffect {
    /// The clock skips the times, and they fire once at the change instead.
    OnceAfter,
    /// The clock skips the times, and they do not fire.
    Skipped,
    /// The clock shows the times twice, and they fire the first time.
    First,
    /// The clock shows the times twice, and they fire the second time.
    Second,
    /// The clock shows the times twice, and they fire both times.
    Both,
}

pub(super) fn clock_changes(
    fields: &Fields,
    zone: Tz,
    rule: ResolvedRule,
    (from, to): (Timestamp, Timestamp),
) -> Vec<ClockChange> {
    let spans = spans::spans_of(zone);
    let first_index = spans.index_at(from.second());
    let span_pairs = spans.as_slice().get(first_index..).unwrap_or_default().windows(2);
    let span_pairs = span_pairs.take_while(|pair| pair[1].start <= to.second());
    let clock_changes = span_pairs.filter_map(|pair| {
        let (offset_before, start, offset_after) = (pair[0].offset, pair[1].start, pair[1].offset);
        // The local times that the clock shows twice, or never.
        let (low_time, high_time) = (start + offset_before.min(offset_after), start + offset_before.max(offset_after));
        let first_fire = fields.at_or_after(low_time).filter(|first_fire| *first_fire < high_time)?;
        let effect = match (offset_after > offset_before, rule.fires_first, rule.fires_second) {
            (true, ..) if rule.fires_after_gap => ClockEffect::OnceAfter,
            (true, ..) => ClockEffect::Skipped,
            (false, true, true) => ClockEffect::Both,
            (false, true, false) => ClockEffect::First,
            (false, false, _) => ClockEffect::Second,
        };
        Some(ClockChange { at: Timestamp::from_secs(start), local: wall_time(first_fire), effect })
    });
    clock_changes.take(CHANGE_COUNT_MAX).collect()
}

fn wall_time(local: WallSeconds) -> NaiveDateTime {
    DateTime::from_timestamp(local, 0).unwrap_or_default().naive_utc()
}
