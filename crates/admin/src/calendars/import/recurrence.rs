//! Recurrence rules of events. Only rules that give at most one day per year are supported.

use chrono::{Datelike as _, NaiveDate, Weekday};

use super::days::parse_date;

const YEAR_MAX: i32 = 2199;

/// `FREQ=YEARLY` with its parameters.
#[derive(Debug)]
pub(super) struct Recurrence {
    interval: i32,
    count: Option<u32>,
    until: Option<NaiveDate>,
    month: Option<u32>,
    month_day: Option<u32>,
    /// `4TH`: the fourth Thursday of the month; a negative number counts from the end of the month.
    weekday: Option<(i32, Weekday)>,
}

impl Recurrence {
    /// Parses a rule. Refuses a rule that does not give one day per year; the error names the part that is not supported.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut rule = Self { interval: 1, count: None, until: None, month: None, month_day: None, weekday: None };
        let mut is_yearly = false;
        for part in text.split(';').filter(|part| !part.trim().is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim().to_ascii_uppercase(), value.trim().to_ascii_uppercase());
            let excerpt: String = part.chars().take(60).collect();
            let error = || format!("{excerpt:?} in an RRULE is not understood");
            match key.as_str() {
                "FREQ" if value == "YEARLY" => is_yearly = true,
                "FREQ" => return Err(format!("an RRULE repeats {value}; only YEARLY is supported")),
                "INTERVAL" => {
                    rule.interval = value.parse().ok().filter(|years| (1..=1000).contains(years)).ok_or_else(error)?;
                }
                "COUNT" => rule.count = Some(value.parse().map_err(|_| error())?),
                "UNTIL" => {
                    let day = value.split_once('T').map_or(value.as_str(), |(day, _)| day);
                    rule.until = Some(parse_date(day).ok_or_else(error)?);
                }
                "BYMONTH" => {
                    let month = value.parse().ok().filter(|month| (1..=12).contains(month));
                    rule.month = Some(month.ok_or_else(error)?);
                }
                "BYMONTHDAY" => {
                    let day = value.parse().ok().filter(|day| (1..=31).contains(day));
                    rule.month_day = Some(day.ok_or_else(error)?);
                }
                "BYDAY" => rule.weekday = Some(parse_weekday(&value).ok_or_else(error)?),
                "WKST" => {}
                _ => return Err(error()),
            }
        }
        if rule.weekday.is_some() && (rule.month.is_none() || rule.month_day.is_some()) {
            return Err("BYDAY in an RRULE is supported only together with BYMONTH".to_owned());
        }
        if rule.month_day.is_some() && rule.month.is_none() {
            return Err("BYMONTHDAY in an RRULE without BYMONTH is a day of every month; add BYMONTH".to_owned());
        }
        if is_yearly { Ok(rule) } else { Err("an RRULE has no FREQ".to_owned()) }
    }

    /// The days on which the event begins, from `start` on and within `years` (first and last). Fails if neither the rule nor `years` ends the
    /// repetition.
    pub(super) fn start_days(&self, start: NaiveDate, years: Option<(i32, i32)>) -> Result<Vec<NaiveDate>, String> {
        if self.count.is_none() && self.until.is_none() && years.is_none() {
            return Err("repeats each year without end: give the years, as in years=2026..2030".to_owned());
        }
        let (first_year, last_year) = years.unwrap_or((start.year(), YEAR_MAX));
        let mut start_days = Vec::new();
        let mut days_left = self.count.unwrap_or(u32::MAX);
        let mut year = start.year();
        while year <= last_year.min(YEAR_MAX) && days_left > 0 {
            let day = self.day_in_year(year, start).filter(|day| *day >= start);
            if day.is_some_and(|day| self.until.is_some_and(|until| day > until)) {
                break;
            }
            // A year without the day (29 February, a fifth Monday) is skipped and does not use up `COUNT`.
            if let Some(day) = day {
                days_left -= 1;
                start_days.extend((year >= first_year).then_some(day));
            }
            year += self.interval;
        }
        Ok(start_days)
    }

    /// The day of this year on which the event begins; `None` if the year has no such day.
    fn day_in_year(&self, year: i32, start: NaiveDate) -> Option<NaiveDate> {
        let month = self.month.unwrap_or(start.month());
        match self.weekday {
            None => NaiveDate::from_ymd_opt(year, month, self.month_day.unwrap_or(start.day())),
            Some((nth, weekday)) if nth > 0 => {
                NaiveDate::from_weekday_of_month_opt(year, month, weekday, u8::try_from(nth).ok()?)
            }
            Some((nth, weekday)) => {
                let index = usize::try_from(-nth - 1).ok()?;
                (1..=5).rev().filter_map(|n| NaiveDate::from_weekday_of_month_opt(year, month, weekday, n)).nth(index)
            }
        }
    }
}

/// Parses a weekday such as `4TH` or `-1MO`.
fn parse_weekday(text: &str) -> Option<(i32, Weekday)> {
    let (nth_text, name) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let names = [
        ("MO", Weekday::Mon),
        ("TU", Weekday::Tue),
        ("WE", Weekday::Wed),
        ("TH", Weekday::Thu),
        ("FR", Weekday::Fri),
        ("SA", Weekday::Sat),
        ("SU", Weekday::Sun),
    ];
    let (_, weekday) = names.into_iter().find(|(short, _)| *short == name)?;
    let nth = nth_text.parse().ok().filter(|nth: &i32| (1..=5).contains(&nth.abs()))?;
    Some((nth, weekday))
}
