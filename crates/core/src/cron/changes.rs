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
    /// Skipped, and fired once at the change instead.
    OnceAfter,
    /// Skipped, and not fired.
    Skipped,
    /// Shown twice, and fired the first time.
    First,
    /// Shown twice, and fired the second time.
    Second,
    /// Shown twice, and fired both times.
    Both,
}

pub(super) fn clock_changes(
    fields: &Fields,
    zone: Tz,
    rule: ResolvedRule,
    (from, to): (Timestamp, Timestamp),
) -> Vec<ClockChange> {
    let spans = spans::spans_of(zone);
    let first = spans.index_at(from.second());
    let pairs = spans.all().get(first..).unwrap_or_default().windows(2);
    let pairs = pairs.take_while(|pair| pair[1].start <= to.second());
    let touched = pairs.filter_map(|pair| {
        let (before, start, after) = (pair[0].offset, pair[1].start, pair[1].offset);
        // The local times that the clock shows twice, or never.
        let (low, high) = (start + before.min(after), start + before.max(after));
        let found = fields.at_or_after(low).filter(|found| *found < high)?;
        let effect = match (after > before, rule.fires_first, rule.fires_second) {
            (true, ..) if rule.fires_after_gap => ClockEffect::OnceAfter,
            (true, ..) => ClockEffect::Skipped,
            (false, true, true) => ClockEffect::Both,
            (false, true, false) => ClockEffect::First,
            (false, false, _) => ClockEffect::Second,
        };
        Some(ClockChange { at: Timestamp::from_secs(start), local: wall_time(found), effect })
    });
    touched.take(CHANGE_COUNT_MAX).collect()
}

fn wall_time(local: WallSeconds) -> NaiveDateTime {
    DateTime::from_timestamp(local, 0).unwrap_or_default().naive_utc()
}
