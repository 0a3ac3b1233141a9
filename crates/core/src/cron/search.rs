//! The search for matching wall-clock times, field by field with carry. It knows no zones: see [`dst`](super::dst).

use super::date::Date;
use super::days::DayRule;
use super::field::{Bits, FIRST_YEAR, LAST_YEAR};

/// A wall-clock time, as seconds since the wall-clock time 1970-01-01 00:00:00.
pub(super) type WallSeconds = i64;

pub(super) const DAY: i64 = 86_400;

/// A compiled expression. In the sets of seconds, minutes, hours and months, bit n stands for the value n. These sets are
/// never empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fields {
    pub(crate) seconds: u64,
    pub(crate) minutes: u64,
    pub(crate) hours: u64,
    pub(crate) months: u64,
    pub(crate) days: DayRule,
    pub(crate) years: Bits,
}

/// A time of day: hour, minute, second.
type Time = (u32, u32, u32);

impl Fields {
    /// The first match that is not before a wall-clock time.
    pub(super) fn at_or_after(&self, start: WallSeconds) -> Option<WallSeconds> {
        let WallTime { date, midnight, time } = WallTime::at(start)?;
        let (month, day) = ((date.year, date.month), date.day);
        if self.has_month(month) {
            let days = self.days.in_month_of(date);
            if days & (1 << day) != 0
                && let Some(time) = self.time_from(time)
            {
                return Some(midnight + seconds(time));
            }
            if let Some(later_day) = at_or_above(days, day + 1) {
                return Some(midnight + DAY * i64::from(later_day - day) + seconds(self.first_time()));
            }
        }
        self.first_after_month(month)
    }

    /// The last match that is not after a wall-clock time.
    pub(super) fn at_or_before(&self, start: WallSeconds) -> Option<WallSeconds> {
        let WallTime { date, midnight, time } = WallTime::at(start)?;
        let (month, day) = ((date.year, date.month), date.day);
        if self.has_month(month) {
            let days = self.days.in_month_of(date);
            if days & (1 << day) != 0
                && let Some(time) = self.time_until(time)
            {
                return Some(midnight + seconds(time));
            }
            if let Some(earlier_day) = at_or_below(days, day - 1) {
                return Some(midnight - DAY * i64::from(day - earlier_day) + seconds(self.last_time()));
            }
        }
        self.last_before_month(month)
    }

    /// How many times of day match on a matching day.
    pub(crate) fn times_per_day(&self) -> u64 {
        [self.hours, self.minutes, self.seconds].into_iter().map(|set| u64::from(set.count_ones())).product()
    }

    /// The first time of a matching day, in seconds after midnight.
    pub(super) fn first_second_of_day(&self) -> i64 {
        seconds(self.first_time())
    }

    fn first_after_month(&self, mut month: (i32, u32)) -> Option<WallSeconds> {
        loop {
            month = self.next_month(month)?;
            let first_day = Date::first_of(month.0, month.1)?;
            if let Some(day) = at_or_above(self.days.in_month_of(first_day), 1) {
                return Some(midnight(first_day) + DAY * i64::from(day - 1) + seconds(self.first_time()));
            }
        }
    }

    fn last_before_month(&self, mut month: (i32, u32)) -> Option<WallSeconds> {
        loop {
            month = self.prev_month(month)?;
            let first_day = Date::first_of(month.0, month.1)?;
            if let Some(day) = at_or_below(self.days.in_month_of(first_day), 31) {
                return Some(midnight(first_day) + DAY * i64::from(day - 1) + seconds(self.last_time()));
            }
        }
    }

    fn has_year(&self, year: i32) -> bool {
        u32::try_from(year - FIRST_YEAR).is_ok_and(|year| self.years.contains(year))
    }

    fn has_month(&self, (year, month): (i32, u32)) -> bool {
        self.months & (1 << month) != 0 && self.has_year(year)
    }

    fn next_month(&self, (year, month): (i32, u32)) -> Option<(i32, u32)> {
        if self.has_year(year)
            && let Some(month) = at_or_above(self.months, month + 1)
        {
            return Some((year, month));
        }
        let year = (year + 1..=LAST_YEAR).find(|year| self.has_year(*year))?;
        Some((year, self.months.trailing_zeros()))
    }

    fn prev_month(&self, (year, month): (i32, u32)) -> Option<(i32, u32)> {
        if self.has_year(year)
            && let Some(month) = at_or_below(self.months, month - 1)
        {
            return Some((year, month));
        }
        let year = (FIRST_YEAR..year).rev().find(|year| self.has_year(*year))?;
        Some((year, last(self.months)))
    }

    fn first_time(&self) -> Time {
        (self.hours.trailing_zeros(), self.minutes.trailing_zeros(), self.seconds.trailing_zeros())
    }

    fn last_time(&self) -> Time {
        (last(self.hours), last(self.minutes), last(self.seconds))
    }

    /// The first matching time of day that is not before the given one.
    fn time_from(&self, (hour, minute, second): Time) -> Option<Time> {
        let (_, first_minute, first_second) = self.first_time();
        if self.hours & (1 << hour) != 0 {
            if self.minutes & (1 << minute) != 0
                && let Some(second) = at_or_above(self.seconds, second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = at_or_above(self.minutes, minute + 1) {
                return Some((hour, minute, first_second));
            }
        }
        at_or_above(self.hours, hour + 1).map(|hour| (hour, first_minute, first_second))
    }

    /// The last matching time of day that is not after the given one.
    fn time_until(&self, (hour, minute, second): Time) -> Option<Time> {
        let (_, last_minute, last_second) = self.last_time();
        if self.hours & (1 << hour) != 0 {
            if self.minutes & (1 << minute) != 0
                && let Some(second) = at_or_below(self.seconds, second)
            {
                return Some((hour, minute, second));
            }
            if let Some(minute) = greatest_below(self.minutes, minute) {
                return Some((hour, minute, last_second));
            }
        }
        greatest_below(self.hours, hour).map(|hour| (hour, last_minute, last_second))
    }
}

/// A wall-clock time, split into date and time of day.
struct WallTime {
    date: Date,
    midnight: WallSeconds,
    time: Time,
}

impl WallTime {
    fn at(local: WallSeconds) -> Option<Self> {
        let date = Date::of_epoch_day(i32::try_from(local.div_euclid(DAY)).ok()?)?;
        let second = u32::try_from(local.rem_euclid(DAY)).ok()?;
        let time = (second / 3600, second / 60 % 60, second % 60);
        Some(Self { date, midnight: local - i64::from(second), time })
    }
}

fn midnight(date: Date) -> WallSeconds {
    i64::from(date.epoch_day) * DAY
}

fn seconds((hour, minute, second): Time) -> i64 {
    i64::from(hour * 3600 + minute * 60 + second)
}

/// The least element that is at least `value`; `value` is below 64.
fn at_or_above(set: u64, value: u32) -> Option<u32> {
    let higher_bits = set >> value;
    (higher_bits != 0).then(|| value + higher_bits.trailing_zeros())
}

/// The greatest element that is at most `value`; `value` is below 64.
fn at_or_below(set: u64, value: u32) -> Option<u32> {
    let lower_bits = set & (u64::MAX >> (63 - value));
    (lower_bits != 0).then(|| last(lower_bits))
}

/// The greatest element below `value`.
fn greatest_below(set: u64, value: u32) -> Option<u32> {
    at_or_below(set, value.checked_sub(1)?)
}

/// The greatest element of a set that has one.
fn last(set: u64) -> u32 {
    63 - set.leading_zeros()
}
