//! A year of a calendar, day by day, as people look at it.

use chrono::{Datelike as _, NaiveDate, NaiveTime};

use crate::calendar::Calendar;

/// How much of a day is in a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Some of its times.
    Some,
    /// Nothing of it.
    Nothing,
}

/// A day of a year.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YearDay {
    /// Which month, from 1.
    pub month: u32,
    /// Which day of the month, from 1.
    pub day: u32,
    /// Which day of the week: Monday is 0.
    pub weekday: u32,
    /// How much of it is in the calendar.
    pub part: Part,
    /// What the calendar calls it.
    pub name: Option<String>,
}

/// The days of a year; none of a year that cannot be told.
///
/// ```
/// use rondel_core::calendar::{Calendar, Rule};
/// use rondel_core::year::{Part, year};
///
/// let rule: Rule = serde_json::from_str(r#"{"weekdays": ["mon"]}"#)?;
/// let days = year(&Calendar::of_rule("mondays", &rule).expect("a valid rule"), 2026);
/// assert_eq!(days.len(), 365);
/// assert_eq!(days.iter().filter(|day| day.part == Part::Whole).count(), 52);
/// assert_eq!((days[4].day, days[4].weekday, days[4].part), (5, 0, Part::Whole));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn year(calendar: &Calendar, year: i32) -> Vec<YearDay> {
    let first = NaiveDate::from_ymd_opt(year, 1, 1);
    let days = first.into_iter().flat_map(|first| first.iter_days().take_while(|day| day.year() == year));
    days.map(|day| YearDay {
        month: day.month(),
        day: day.day(),
        weekday: day.weekday().num_days_from_monday(),
        part: part(calendar, day),
        name: calendar.day_name(day).map(str::to_owned),
    })
    .collect()
}

fn part(calendar: &Calendar, day: NaiveDate) -> Part {
    let mut at = day.and_time(NaiveTime::MIN);
    let begins_in = calendar.has(at);
    // Membership changes at these times alone.
    while at.date() == day {
        if calendar.has(at) != begins_in {
            return Part::Some;
        }
        at = calendar.next_edge(at);
    }
    if begins_in { Part::Whole } else { Part::Nothing }
}
