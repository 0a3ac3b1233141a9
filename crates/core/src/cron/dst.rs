//! Turns wall-clock times into instants, and decides what happens to times that a zone's clock skips or shows twice.
//!
//! Within a span of one offset, wall-clock times and instants differ by that offset and nothing else. So the search goes
//! span by span and checks the neighbours of each span. If the clock was set forward at the start of a span, the times just
//! before were skipped: a *gap*. If it was set back, the end of one span and the start of the next show the same times: a *fold*.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::search::{DAY, Fields, WallSeconds};
use super::spans::{self, Span, SteadyStretch, UtcSeconds};
use super::zone::Tz;
use crate::time::Timestamp;

/// The form of an expression's hour field. It decides how clock changes are treated under [`Gap::Auto`] and [`Fold::Auto`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum HourForm {
    /// Fixed hours: each wall-clock time fires once, whatever the clock skips or repeats.
    WallClock,
    /// A wildcard, a range or a step: a skipped time does not fire, and a repeated time fires twice.
    Interval,
}

/// What a schedule does when the clock of its zone changes.
///
/// ```
/// use rondel_core::cron::{CronExpr, DstRule, Gap, parse_zone};
///
/// let half_past_two = CronExpr::parse("0 30 2 * * ?")?;
/// let (zone, after) = (parse_zone("America/New_York")?, "2026-03-07T12:00:00Z".parse()?);
/// // On 8 March the clock goes from 02:00 to 03:00.
/// let catch_up = half_past_two.next_after(zone, DstRule::default(), after);
/// assert_eq!(catch_up, Some("2026-03-08T07:00:00Z".parse()?));
/// let skipped = half_past_two.next_after(zone, DstRule { gap: Gap::Skip, ..DstRule::default() }, after);
/// assert_eq!(skipped, Some("2026-03-09T06:30:00Z".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DstRule {
    /// For times that the clock skips.
    pub gap: Gap,
    /// For times that the clock shows twice.
    pub overlap: Fold,
}

/// What happens to times that the clock skips when it is set forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "DstGap")]
pub enum Gap {
    /// `next_valid` if the expression names fixed hours, `skip` if its hours are a wildcard, a range or a step.
    #[default]
    Auto,
    /// All skipped times together fire once, at the first instant after the gap.
    NextValid,
    /// They do not fire.
    Skip,
}

/// What happens to times that the clock shows twice when it is set back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "DstOverlap")]
pub enum Fold {
    /// `first` if the expression names fixed hours, `both` if its hours are a wildcard, a range or a step.
    #[default]
    Auto,
    /// They fire the first time.
    First,
    /// They fire the second time.
    Second,
    /// They fire both times.
    Both,
}

/// A [`DstRule`] with `auto` replaced by what it means for the expression.
#[derive(Clone, Copy)]
pub(super) struct ResolvedRule {
    /// Whether the times that the clock skips fire, together and once, after the gap.
    pub(super) fires_after_gap: bool,
    /// Whether a time that the clock shows twice fires the first time.
    pub(super) fires_first: bool,
    /// Whether a time that the clock shows twice fires the second time.
    pub(super) fires_second: bool,
}

impl DstRule {
    pub(super) fn resolve(self, hour_form: HourForm) -> ResolvedRule {
        let wall_clock = hour_form == HourForm::WallClock;
        let fires_after_gap = match self.gap {
            Gap::Auto => wall_clock,
            Gap::NextValid => true,
            Gap::Skip => false,
        };
        let (fires_first, fires_second) = match self.overlap {
            Fold::Auto => (true, !wall_clock),
            Fold::First => (true, false),
            Fold::Second => (false, true),
            Fold::Both => (true, true),
        };
        ResolvedRule { fires_after_gap, fires_first, fires_second }
    }
}

/// 1969-12-30, before any zone's 1970 begins.
const SEARCH_FROM: UtcSeconds = -2 * 86_400;
/// 2200-01-03, after any zone's 2199 has ended.
const SEARCH_TO: UtcSeconds = 7_258_291_200;
/// In seconds; more than any zone's offset from UTC.
const OFFSET_BOUND: i64 = 2 * 86_400;

/// The first fire strictly after an instant.
pub(super) fn next_after(fields: &Fields, zone: Tz, rule: ResolvedRule, after: Timestamp) -> Option<Timestamp> {
    let spans = spans::spans_of(zone);
    let from = after.second().clamp(SEARCH_FROM, SEARCH_TO) + 1;
    let mut index = spans.index_at(from);
    // In the middle of a span, far from both ends, its neighbours have no effect. Most searches end here.
    let SteadyStretch { offset, from: steady_from, to: steady_to } = spans.steady_stretch(index);
    if from >= steady_from
        && let Some(local_fire) = fields.at_or_after(from + offset)
        && local_fire - offset < steady_to
    {
        return Some(Timestamp::from_secs(local_fire - offset));
    }
    while index < spans.as_slice().len() {
        let view = SpanView::new(spans.as_slice(), index, rule);
        if let Some(gap) = view.gap
            && from <= view.start
            && fields.at_or_after(gap).is_some_and(|skipped_time| skipped_time < view.start + view.offset)
        {
            return Some(Timestamp::from_secs(view.start));
        }
        match fields.at_or_after(view.first_time.max(from + view.offset)) {
            Some(local_fire) if local_fire < view.end_time => {
                return Some(Timestamp::from_secs(local_fire - view.offset));
            }
            // The next span repeats earlier wall-clock times, so a match there may come first.
            _ if view.ends_in_fold => index += 1,
            Some(local_fire) => index = spans.index_at(local_fire - OFFSET_BOUND).max(index + 1),
            None => return None,
        }
    }
    None
}

/// The last fire strictly before an instant.
pub(super) fn prev_before(fields: &Fields, zone: Tz, rule: ResolvedRule, before: Timestamp) -> Option<Timestamp> {
    let spans = spans::spans_of(zone);
    let until = before.ceil_second().second().clamp(SEARCH_FROM, SEARCH_TO) - 1;
    let mut index = spans.index_at(until);
    loop {
        let view = SpanView::new(spans.as_slice(), index, rule);
        let local = fields.at_or_before((view.end_time - 1).min(until + view.offset));
        if let Some(local) = local.filter(|local| *local >= view.first_time) {
            return Some(Timestamp::from_secs(local - view.offset));
        }
        if let Some(gap) = view.gap
            && fields.at_or_before(view.start + view.offset - 1).is_some_and(|skipped_time| skipped_time >= gap)
        {
            return Some(Timestamp::from_secs(view.start));
        }
        let earlier_index = index.checked_sub(1)?;
        index =
            if view.starts_in_fold { earlier_index } else { spans.index_at(local? + OFFSET_BOUND).min(earlier_index) };
    }
}

/// How many fires lie after `after` and up to `until`. Whole days without a clock change are counted in one step each.
pub(super) fn count_between(fields: &Fields, zone: Tz, rule: ResolvedRule, after: Timestamp, until: Timestamp) -> u64 {
    let spans = spans::spans_of(zone);
    let mut count = 0;
    let mut cursor = after;
    while let Some(fire) = next_after(fields, zone, rule, cursor).filter(|fire| *fire <= until) {
        let view = SpanView::new(spans.as_slice(), spans.index_at(fire.second()), rule);
        let local = fire.second() + view.offset;
        let midnight = local - local.rem_euclid(DAY);
        let day_ends = Timestamp::from_secs(midnight + DAY - view.offset - 1);
        let is_whole = view.first_time <= midnight
            && midnight + DAY <= view.end_time
            && local == midnight + fields.first_second_of_day()
            && day_ends <= until;
        (count, cursor) = if is_whole { (count + fields.times_per_day(), day_ends) } else { (count + 1, fire) };
    }
    count
}

/// A span, and the wall-clock times in it at which a rule allows fires.
struct SpanView {
    start: UtcSeconds,
    offset: i64,
    /// The first wall-clock time that may fire.
    first_time: WallSeconds,
    /// The end of the wall-clock times that may fire, not included.
    end_time: WallSeconds,
    /// The start of the skipped times that fire at `start`; they end at `start + offset`.
    gap: Option<WallSeconds>,
    starts_in_fold: bool,
    ends_in_fold: bool,
}

impl SpanView {
    fn new(spans: &[Span], index: usize, rule: ResolvedRule) -> Self {
        let Span { start, offset } = spans[index];
        let offset_before = index.checked_sub(1).map_or(offset, |index| spans[index].offset);
        let (end, offset_after) =
            spans.get(index + 1).map_or((SEARCH_TO + OFFSET_BOUND, offset), |next| (next.start, next.offset));
        let (starts_in_fold, ends_in_fold) = (offset_before > offset, offset_after < offset);
        Self {
            start,
            offset,
            first_time: start + if starts_in_fold && !rule.fires_second { offset_before } else { offset },
            end_time: end + if ends_in_fold && !rule.fires_first { offset_after } else { offset },
            gap: (offset_before < offset && rule.fires_after_gap).then_some(start + offset_before),
            starts_in_fold,
            ends_in_fold,
        }
    }
}
