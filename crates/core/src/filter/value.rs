//! The values of a filter's terms.

use std::time::Duration;

use chrono::{Days, NaiveDate, NaiveDateTime, NaiveTime, TimeZone as _};

use crate::cron::Tz;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The units of lengths, the longest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
/// The longest length that a filter may name: a thousand years.
const LENGTH_MAX_MS: u64 = 1000 * 366 * 86_400_000;

/// A name, in which `*` stands for any number of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Whether it is a name without a `*`.
    #[must_use]
    pub fn is_name(&self) -> bool {
        !self.0.contains('*')
    }

    /// The longest part of the pattern without a `*`. Every matching name contains it.
    #[must_use]
    pub fn longest_part(&self) -> &str {
        self.0.split('*').max_by_key(|part| part.len()).unwrap_or_default()
    }

    /// Whether it matches a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, after_star)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut remaining_name) = name.strip_prefix(first) else { return false };
        let Some((middle, last)) = after_star.rsplit_once('*') else { return remaining_name.ends_with(after_star) };
        for part in middle.split('*') {
            let Some(at) = remaining_name.find(part) else { return false };
            remaining_name = &remaining_name[at + part.len()..];
        }
        remaining_name.ends_with(last)
    }
}

/// A condition on a label: its key and, if given, its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelTest {
    pub key: String,
    /// The value that the label must have; `None` for any.
    pub value: Option<String>,
}

impl LabelTest {
    /// Whether a job with this label passes.
    #[must_use]
    pub fn matches(&self, key: &str, value: &str) -> bool {
        self.key == key && self.value.as_deref().is_none_or(|wanted| wanted == value)
    }
}

/// A bound of a period, as written in a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstantBound {
    /// This long before now.
    Ago(Duration),
    /// The current day, on the clock of the reader's zone.
    Today,
    /// The day before the current one.
    Yesterday,
    /// A day, on the clock of the reader's zone.
    Day(NaiveDate),
    /// A date and time, on the clock of the reader's zone.
    Local(NaiveDateTime),
    /// An instant.
    At(Timestamp),
}

impl InstantBound {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "today" => return Some(Self::Today),
            "yesterday" => return Some(Self::Yesterday),
            _ => {}
        }
        if let Some(length) = length(text) {
            return Some(Self::Ago(length));
        }
        let is_known = |at: Timestamp| (Timestamp::EPOCH..Timestamp::MAX).contains(&at);
        if let Ok(at) = text.parse::<Timestamp>() {
            return is_known(at).then_some(Self::At(at));
        }
        let in_years = |date: NaiveDate| (1970..=9998).contains(&chrono::Datelike::year(&date));
        if let Ok(date) = NaiveDate::parse_from_str(text, "%Y-%m-%d") {
            return in_years(date).then_some(Self::Day(date));
        }
        let formats = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"];
        let local = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())?;
        in_years(local.date()).then_some(Self::Local(local))
    }

    /// The instant that the bound means at `now`, by the clock of `zone`; for a day, the first instant of that day.
    #[must_use]
    pub fn first_instant(self, now: Timestamp, zone: Tz) -> Timestamp {
        match self {
            Self::Ago(length) => now.saturating_sub(length),
            Self::At(at) => at,
            Self::Local(local) => instant(local, zone).unwrap_or(now),
            Self::Today | Self::Yesterday | Self::Day(_) => {
                self.day(now, zone).and_then(|day| instant(day.and_time(NaiveTime::MIN), zone)).unwrap_or(now)
            }
        }
    }

    /// The instant that the bound means at `now`, by the clock of `zone`; for a day, the last instant of that day.
    #[must_use]
    pub fn last_instant(self, now: Timestamp, zone: Tz) -> Timestamp {
        let Some(day) = self.day(now, zone) else { return self.first_instant(now, zone) };
        let next_day = day.checked_add_days(Days::new(1)).and_then(|day| instant(day.and_time(NaiveTime::MIN), zone));
        next_day
            .unwrap_or_else(|| self.first_instant(now, zone).saturating_add(DAY))
            .saturating_sub(Duration::from_millis(1))
    }

    fn day(self, now: Timestamp, zone: Tz) -> Option<NaiveDate> {
        let today = || now.to_utc().map(|now| now.with_timezone(&zone).date_naive());
        match self {
            Self::Today => today(),
            Self::Yesterday => today()?.pred_opt(),
            Self::Day(day) => Some(day),
            Self::Ago(_) | Self::Local(_) | Self::At(_) => None,
        }
    }
}

/// The instant of a local time. If the clock shows it twice, the first instant counts; if the clock skips it, the time an hour
/// later counts.
fn instant(local: NaiveDateTime, zone: Tz) -> Option<Timestamp> {
    let hour_later = local.checked_add_signed(chrono::TimeDelta::hours(1));
    let at = zone.from_local_datetime(&local).earliest();
    let at = at.or_else(|| hour_later.and_then(|hour_later| zone.from_local_datetime(&hour_later).earliest()))?;
    Some(Timestamp::from_millis(at.timestamp_millis()))
}

/// One side of a range of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub length: Duration,
    /// Whether the length itself passes.
    pub is_inclusive: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LengthRange {
    /// Longer than this.
    pub over: Option<Bound>,
    /// Shorter than this.
    pub under: Option<Bound>,
}

impl LengthRange {
    /// Whether every length passes.
    #[must_use]
    pub const fn is_unbounded(self) -> bool {
        self.over.is_none() && self.under.is_none()
    }

    /// The least and the greatest length in whole milliseconds that pass.
    #[must_use]
    pub fn millis_range(self) -> (i64, i64) {
        let bound_millis =
            |bound: Bound, step: i64| crate::time::millis(bound.length) + if bound.is_inclusive { 0 } else { step };
        (
            self.over.map_or(i64::MIN, |over| bound_millis(over, 1)),
            self.under.map_or(i64::MAX, |under| bound_millis(under, -1)),
        )
    }

    /// Adds a bound such as `>5m` or `<=1s`. Returns false if the text is not a bound, or if the range
    /// already has a bound on that side.
    pub(super) fn add(&mut self, text: &str) -> bool {
        let Some((sign, bound_text)) = text.chars().next().map(|sign| (sign, &text[sign.len_utf8()..])) else {
            return false;
        };
        let (is_inclusive, length_text) =
            bound_text.strip_prefix('=').map_or((false, bound_text), |length_text| (true, length_text));
        let Some(length) = length(length_text) else { return false };
        let bound = match sign {
            '>' | '＞' => &mut self.over,
            '<' | '＜' => &mut self.under,
            _ => return false,
        };
        bound.replace(Bound { length, is_inclusive }).is_none()
    }
}

/// Reads a length such as `90s`, `1h30m`, `250ms` or `7d`; `None` for any other text.
pub(super) fn length(text: &str) -> Option<Duration> {
    let (mut remaining_text, mut sum) = (text, 0_u64);
    while !remaining_text.is_empty() {
        let digit_count = remaining_text.find(|c: char| !c.is_ascii_digit())?;
        let number = remaining_text[..digit_count].parse::<u64>().ok()?;
        remaining_text = &remaining_text[digit_count..];
        let unit_len = remaining_text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(remaining_text.len());
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == &remaining_text[..unit_len])?;
        sum = number.checked_mul(*unit).and_then(|part| sum.checked_add(part))?;
        remaining_text = &remaining_text[unit_len..];
    }
    (!text.is_empty() && sum <= LENGTH_MAX_MS).then(|| Duration::from_millis(sum))
}

/// Writes a length so that [`length`] reads it back.
pub(super) fn write_length(length: Duration) -> String {
    let mut millis_left = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    if millis_left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in UNITS.iter().filter(|(unit, _)| *unit != "w") {
        if millis_left >= *size {
            text.push_str(&format!("{}{unit}", millis_left / size));
            millis_left %= size;
        }
    }
    text
}
