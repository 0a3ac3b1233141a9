//! Conversions between days since 1970 and dates, optimised for speed: a search performs them millions of times.

/// A date of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Date {
    pub(super) year: i32,
    /// January is 1.
    pub(super) month: u32,
    pub(super) day: u32,
    /// Days since 1 January 1970.
    pub(super) epoch_day: i32,
}

/// Days from 1 March of the year 0 to 1970-01-01.
const TO_EPOCH: i32 = 719_468;
/// Days in 400 years.
const CYCLE: u32 = 146_097;

impl Date {
    /// The date of a day; `None` before March of the year 0. The arithmetic is that of Neri and Schneider, "Euclidean affine functions and their
    /// application to calendar algorithms": years begin in March, so that the length of February does not matter.
    pub(super) fn of_epoch_day(epoch_day: i32) -> Option<Self> {
        let quarter_days = u32::try_from(epoch_day.checked_add(TO_EPOCH)?).ok()?.checked_mul(4)? + 3;
        let (century, day_of_century) = (quarter_days / CYCLE, quarter_days % CYCLE / 4);
        let scaled_days = 2_939_745 * u64::from(4 * day_of_century + 3);
        let (year_of_century, fraction) = (scaled_days >> 32, scaled_days & u64::from(u32::MAX));
        let day_of_year = u32::try_from(fraction / 2_939_745 / 4).ok()?;
        let months = 2_141 * day_of_year + 197_913;
        let (month, day) = (months >> 16, (months & 0xFFFF) / 2_141 + 1);
        let year = i32::try_from(100 * century).ok()? + i32::try_from(year_of_century).ok()?;
        let (year, month) = if month > 12 { (year + 1, month - 12) } else { (year, month) };
        Some(Self { year, month, day, epoch_day })
    }

    /// The first day of a month; `None` before March of the year 0.
    pub(super) fn first_of(year: i32, month: u32) -> Option<Self> {
        let (years, months) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
        let years = u32::try_from(years).ok()?;
        let days = 365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5;
        Some(Self { year, month, day: 1, epoch_day: i32::try_from(days).ok()? - TO_EPOCH })
    }

    /// The weekday of the first of its month; Sunday is 0.
    pub(super) fn first_weekday(self) -> u32 {
        // 1970 began on a Thursday. The 260,000 weeks (about 5,000 years) that are added keep the number positive.
        let days = i64::from(self.epoch_day) + 4 - i64::from(self.day - 1) + 7 * 260_000;
        u32::try_from(days % 7).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use chrono::{Datelike as _, NaiveDate};

    use super::*;

    #[test]
    fn each_day_of_three_centuries_equals_that_of_chrono() {
        let mut date = NaiveDate::from_ymd_opt(1900, 1, 1).unwrap();
        while date.year() < 2205 {
            let epoch_day = date.to_epoch_days();
            let expected = Date { year: date.year(), month: date.month(), day: date.day(), epoch_day };
            assert_eq!(Date::of_epoch_day(epoch_day), Some(expected));
            let first = date.with_day(1).unwrap();
            assert_eq!(expected.first_weekday(), first.weekday().num_days_from_sunday(), "{date}");
            if date == first {
                assert_eq!(Date::first_of(date.year(), date.month()), Some(expected));
            }
            date = date.succ_opt().unwrap();
        }
        assert_eq!(Date::of_epoch_day(i32::MIN), None);
    }
}
