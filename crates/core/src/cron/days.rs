//! Which days of a month fire: the day-of-month and day-of-week fields taken together.

use super::date::Date;
use super::error::{CronError, CronField};
use super::field::FieldSpec;
use super::token::Token;

/// Days 1 to 31.
pub(crate) const ALL_DAYS: u64 = 0xFFFF_FFFE;
/// Sunday to Saturday.
pub(crate) const ALL_WEEKDAYS: u64 = 0x7F;
/// Bits 0, 7, 14, 21 and 28. Multiplying the bits of one week by this repeats them over a month.
const WEEKS: u64 = 0x1020_4081;

const SUNDAY: u32 = 0;
const SATURDAY: u32 = 6;

/// Which days of a month fire. Weekdays count from 0, Sunday.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DayRule {
    /// The days of the month in `days` whose weekday is in `weekdays`.
    Both { days: u64, weekdays: u64 },
    /// The days of the month in `days`, and in addition all days whose weekday is in `weekdays`: Unix cron with both fields
    /// given.
    Either { days: u64, weekdays: u64 },
    /// `L`, `L-n`: this many days before the last day of the month.
    Last { days_before_last: u32 },
    /// `LW`, `L-nW`: the day from Monday to Friday nearest to the day of [`Last`](Self::Last).
    LastNearest { days_before_last: u32 },
    /// `nW`: the day from Monday to Friday nearest to day n.
    Nearest { day: u32 },
    /// `nL`: the last occurrence of this weekday in the month.
    LastOf { weekday: u32 },
    /// `n#k`: the k-th occurrence of this weekday in the month.
    NthOf { weekday: u32, nth: u32 },
}

impl DayRule {
    /// Reads Quartz's two day fields, of which exactly one must be `?`.
    pub(super) fn read_quartz(specs: [&FieldSpec; 2], tokens: [Token<'_>; 2]) -> Result<Self, CronError> {
        let [of_month, of_week] = tokens;
        match (of_month.text, of_week.text) {
            ("?", "?") => {
                Err(of_week.refuse(CronField::DayOfWeek, "? in one of day of month and day of week, not in both"))
            }
            ("?", _) => read_day_of_week(specs[1], of_week),
            (_, "?") => read_day_of_month(specs[0], of_month),
            _ => {
                read_day_of_month(specs[0], of_month)?;
                let allowed_items =
                    "? here or in day of month, as Quartz reads only one of the two: 0 0 8 * * ? or 0 0 8 ? * MON";
                Err(of_week.refuse(CronField::DayOfWeek, allowed_items))
            }
        }
    }

    /// Reads Unix cron's two day fields. If one starts with `*`, a day must match both fields; otherwise it must match at least
    /// one of them.
    pub(super) fn read_unix(specs: [&FieldSpec; 2], tokens: [Token<'_>; 2]) -> Result<Self, CronError> {
        let [days, weekdays] = [specs[0].read(tokens[0])?.bits_below_64(), specs[1].read(tokens[1])?.bits_below_64()];
        let has_star = tokens.iter().any(|token| token.text.starts_with('*'));
        Ok(if has_star { Self::Both { days, weekdays } } else { Self::Either { days, weekdays } })
    }

    /// The days of a date's month that fire, as bits 1 to 31.
    pub(super) fn in_month_of(&self, date: Date) -> u64 {
        let length = month_length(date.year, date.month);
        let valid_days = ALL_DAYS & ((1 << (length + 1)) - 1);
        if let Self::Both { days, weekdays: ALL_WEEKDAYS } = *self {
            return days & valid_days;
        }
        let month = Month { first: date.first_weekday(), length };
        let day_bit = |day: u32| if (1..=length).contains(&day) { 1 << day } else { 0 };
        match *self {
            Self::Both { days, weekdays } => days & month.days_on(weekdays) & valid_days,
            Self::Either { days, weekdays } => (days | month.days_on(weekdays)) & valid_days,
            Self::Last { days_before_last } => day_bit(length.saturating_sub(days_before_last)),
            Self::LastNearest { days_before_last } => day_bit(month.nearest(length.saturating_sub(days_before_last))),
            Self::Nearest { day } => day_bit(month.nearest(day)),
            Self::LastOf { weekday } => day_bit(length - (month.weekday(length) + 7 - weekday) % 7),
            Self::NthOf { weekday, nth } => day_bit(1 + (weekday + 7 - month.first) % 7 + 7 * (nth - 1)),
        }
    }
}

struct Month {
    /// The weekday of the first day; Sunday is 0.
    first: u32,
    length: u32,
}

impl Month {
    fn weekday(&self, day: u32) -> u32 {
        (self.first + day - 1) % 7
    }

    /// The bits of all days with one of these weekdays. Some bits beyond the month's end are set too.
    fn days_on(&self, weekdays: u64) -> u64 {
        let from_the_first = (weekdays >> self.first | weekdays << (7 - self.first)) & ALL_WEEKDAYS;
        (from_the_first * WEEKS) << 1
    }

    /// The day from Monday to Friday nearest to a day, never in another month; 0 if the month does not have that day.
    fn nearest(&self, day: u32) -> u32 {
        if day == 0 || day > self.length {
            return 0;
        }
        match self.weekday(day) {
            SATURDAY if day == 1 => 3,
            SATURDAY => day - 1,
            SUNDAY if day == self.length => day - 2,
            SUNDAY => day + 1,
            _ => day,
        }
    }
}

fn month_length(year: i32, month: u32) -> u32 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

fn read_day_of_month(spec: &FieldSpec, token: Token<'_>) -> Result<DayRule, CronError> {
    let uppercase = token.text.to_ascii_uppercase();
    if !uppercase.contains(['L', 'W']) {
        return Ok(DayRule::Both { days: spec.read(token)?.bits_below_64(), weekdays: ALL_WEEKDAYS });
    }
    if uppercase.contains(',') {
        return Err(token.refuse(CronField::DayOfMonth, "a single L, L-n, LW or nW, which cannot be part of a list"));
    }
    if let Some(text_after_l) = uppercase.strip_prefix('L') {
        return read_last_day(text_after_l).ok_or_else(|| {
            token.refuse(CronField::DayOfMonth, "L, LW, L-n or L-nW, where n is a number from 0 to 30")
        });
    }
    let day = token.text.strip_suffix(['W', 'w']).map(|text| Token { text, ..token }).and_then(Token::number);
    match day {
        Some(day @ 1..=31) => Ok(DayRule::Nearest { day }),
        _ => Err(token.refuse(CronField::DayOfMonth, "1W to 31W, L, L-n or LW")),
    }
}

/// Reads the text after an `L` in the day-of-month field.
fn read_last_day(text_after_l: &str) -> Option<DayRule> {
    let (text_after_l, is_nearest) =
        text_after_l.strip_suffix('W').map_or((text_after_l, false), |text_after_l| (text_after_l, true));
    let days_before_last = match text_after_l.strip_prefix('-') {
        Some(number) => Token::of_text(number).number().filter(|days| *days <= 30)?,
        None if text_after_l.is_empty() => 0,
        None => return None,
    };
    Some(if is_nearest { DayRule::LastNearest { days_before_last } } else { DayRule::Last { days_before_last } })
}

fn read_day_of_week(spec: &FieldSpec, token: Token<'_>) -> Result<DayRule, CronError> {
    let only_weekdays = |weekdays| DayRule::Both { days: ALL_DAYS, weekdays };
    if token.text.eq_ignore_ascii_case("L") {
        return Ok(only_weekdays(1 << SATURDAY));
    }
    let uppercase = token.text.to_ascii_uppercase();
    let before_last_mark = token.text.strip_suffix(['L', 'l']);
    if uppercase.contains(',') && (uppercase.contains('#') || uppercase.split(',').any(|item| item.ends_with('L'))) {
        return Err(token.refuse(CronField::DayOfWeek, "a single nL or n#k, which cannot be part of a list"));
    }
    if let Some(text) = before_last_mark {
        return Ok(DayRule::LastOf { weekday: read_weekday(spec, Token { text, ..token })? });
    }
    let Some((weekday, nth)) = token.split_once('#') else {
        // Bit 0 is Sunday, which Quartz counts as 1.
        return Ok(only_weekdays(spec.read(token)?.bits_below_64() >> 1));
    };
    let weekday = read_weekday(spec, weekday)?;
    match nth.number() {
        Some(nth @ 1..=5) => Ok(DayRule::NthOf { weekday, nth }),
        _ => Err(nth.refuse(CronField::DayOfWeek, "a number from 1 to 5 after #")),
    }
}

fn read_weekday(spec: &FieldSpec, token: Token<'_>) -> Result<u32, CronError> {
    if token.number().is_none() && token.text.len() > 3 {
        return Err(token.refuse(CronField::DayOfWeek, "1-7 or a name of three letters before L and #"));
    }
    Ok(spec.read_value(token)? - 1)
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike, NaiveDate};

    use super::*;

    #[test]
    fn months_are_as_long_as_in_the_calendar() {
        for year in [1970, 1999, 2000, 2023, 2024, 2096, 2100, 2199] {
            for month in 1..=12 {
                let next = NaiveDate::from_ymd_opt(if month == 12 { year + 1 } else { year }, month % 12 + 1, 1);
                assert_eq!(month_length(year, month), next.unwrap().pred_opt().unwrap().day(), "{year}-{month}");
            }
        }
    }

    #[test]
    fn the_nearest_weekday_stays_in_its_month() {
        // The weekday of the month's first day, the length of the month, a day, and the nearest day from Monday to Friday.
        for (first, length, day, nearest) in [
            (SATURDAY, 31, 1, 3),
            (SUNDAY, 31, 1, 2),
            (1, 31, 1, 1),
            (1, 28, 6, 5),
            (1, 28, 7, 8),
            (1, 28, 28, 26),
            (1, 30, 0, 0),
            (1, 30, 30, 30),
            (1, 30, 31, 0),
        ] {
            assert_eq!(Month { first, length }.nearest(day), nearest, "day {day} of {length} from {first}");
        }
    }
}
