//! A year of a calendar, day by day.

use chrono::{Datelike as _, NaiveDate, NaiveTime};

use crate::calendar::Calendar;

/// How much of a day is in a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayPart {
    /// All of it.
    Whole,
    /// Some of its times.
    Some,
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YearDay {
    /// Which month, from 1.
    pub month: u32,
    /// Which day of the month, from 1.
    pub day: u32,
    /// Which day of the week: Monday is 0.
    pub weekday: u32,
    /// How much of it is in the calendar.
    pub part: DayPart,
    /// The calendar's name for the day, if it has one.
    pub name: Option<String>,
}

/// The days of a year; empty for a year that is out of range.
///
/// ```
/// use rondel_core::calendar::{Calendar, Rule};
/// use rondel_core::year::{DayPart, year};
///
/// let rule: Rule = serde_json::from_str(r#"{"weekdays": ["mon"]}"#)?;
/// let days = year(&Calendar::of_rule("mondays", &rule).expect("a valid rule"), 2026);
/// assert_eq!(days.len(), 365);
/// assert_eq!(days.iter().filter(|day| day.part == DayPart::Whole).count(), 52);
/// assert_eq!((days[4].day, days[4].weekday, days[4].part), (5, 0, DayPart::Whole));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn year(calendar: &Calendar, year: i32) -> Vec<YearDay> {
    let first_day = NaiveDate::from_ymd_opt(year, 1, 1);
    let days = first_day.into_iter().flat_map(|first_day| first_day.iter_days().take_while(|day| day.year() == year));
    days.map(|day| YearDay {
        month: day.month(),
        day: day.day(),
        weekday: day.weekday().num_days_from_monday(),
        part: part_of_day(calendar, day),
        name: calendar.day_name(day).map(str::to_owned),
    })
    .collect()
}

fn part_of_day(calendar: &Calendar, day: NaiveDate) -> DayPart {
    let mut at = day.and_time(NaiveTime::MIN);
    let is_start_inside = calendar.has(at);
    // Membership changes only at edges, so it is enough to check these.
    while at.date() == day {
        if calendar.has(at) != is_start_inside {
            return DayPart::Some;
        }
        at = calendar.next_edge(at);
    }
    if is_start_inside { DayPart::Whole } else { DayPart::Nothing }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_day_of_the_year_is_there_with_its_part() {
        let rule =
            r#"{"any": [{"days": ["2024-02-29"]}, {"all": [{"days": ["2024-03-01"]}, {"times": ["09:00-17:00"]}]}]}"#;
        let calendar = Calendar::of_rule("c", &serde_json::from_str(rule).unwrap()).unwrap();
        let days = year(&calendar, 2024);
        assert_eq!((days.len(), year(&calendar, 2026).len()), (366, 365));
        let ends = [days.first().unwrap(), days.last().unwrap()].map(|day| (day.month, day.day));
        assert_eq!(ends, [(1, 1), (12, 31)]);
        let part = |month, day| days.iter().find(|one| (one.month, one.day) == (month, day)).unwrap().part;
        assert_eq!((part(2, 28), part(2, 29), part(3, 1)), (DayPart::Nothing, DayPart::Whole, DayPart::Some));
        let night = Calendar::of_rule("n", &serde_json::from_str(r#"{"times": ["00:00-24:00"]}"#).unwrap()).unwrap();
        assert!(year(&night, 2024).iter().all(|day| day.part == DayPart::Whole));
        assert_eq!(year(&calendar, i32::MAX).len(), 0);
    }
}
