//! Cron expressions in English.

use super::cron_parts::{Days, Parts, TimeOfDay, time_text};
use super::shape::{Shape, join_words, range_words};
use crate::cron::LAST_YEAR;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const NTH: [&str; 6] = ["", "first", "second", "third", "fourth", "fifth"];

pub(super) fn sentence(parts: &Parts) -> String {
    let (time, is_clock) = match &parts.time {
        TimeOfDay::Clock(times) => {
            let times: Vec<String> =
                times.iter().map(|&(hour, minute, second)| time_text(hour, minute, second)).collect();
            (format!("at {}", join_words(&times, ", ", " and ")), true)
        }
        TimeOfDay::Pace { seconds, minutes, hours } => (pace_text(seconds, minutes, hours), false),
    };
    let days = days_text(parts, is_clock);
    let separator = match days.as_str() {
        "" => "",
        _ if is_clock && !is_range_of_weekdays(&parts.days) => " ",
        _ => ", ",
    };
    format!("{time}{separator}{days}{}", years_text(&parts.years))
}

fn is_range_of_weekdays(days: &Days) -> bool {
    matches!(days, Days::OfWeek(Shape::Ranges(ranges)) if matches!(ranges.as_slice(), [(from, to)] if (to + 7 - from) % 7 > 1))
}

fn pace_text(seconds: &Shape, minutes: &Shape, hours: &Shape) -> String {
    if let (Some(minute), Some(second)) = (minutes.only_number(), seconds.only_number())
        && let Some(hourly_text) = hourly_text(hours, minute, second)
    {
        return hourly_text;
    }
    format!("{}{}", within_hour_text(seconds, minutes), hours_text(hours))
}

/// Describes a schedule that fires once in each of many hours.
fn hourly_text(hours: &Shape, minute: u32, second: u32) -> Option<String> {
    match hours {
        Shape::All if (minute, second) == (0, 0) => Some("every hour".to_owned()),
        Shape::Step { from, step, wraps_around: true, .. } if (*from, minute, second) == (0, 0, 0) => {
            Some(format!("every {step} hours"))
        }
        Shape::Step { from, step, wraps_around: true, .. } => {
            Some(format!("every {step} hours from {}", time_text(*from, minute, second)))
        }
        Shape::Step { from, to, step, wraps_around: false } => {
            let (first_time, last_time) = (time_text(*from, minute, second), time_text(*to, minute, second));
            Some(format!("every {step} hours from {first_time} to {last_time}"))
        }
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] => {
                let (first_time, last_time) = (time_text(*from, minute, second), time_text(*to, minute, second));
                Some(format!("every hour from {first_time} to {last_time}"))
            }
            _ => None,
        },
        Shape::All => None,
    }
}

fn within_hour_text(seconds: &Shape, minutes: &Shape) -> String {
    let at_second = match seconds.only_number() {
        Some(0) => String::new(),
        Some(second) => format!(" at second {second}"),
        None => return seconds_in_minutes_text(seconds, minutes),
    };
    match minutes {
        Shape::All => format!("every minute{at_second}"),
        Shape::Step { from, step, wraps_around: true, .. } => {
            let start_text = if *from == 0 { String::new() } else { format!(" from minute {from}") };
            format!("every {step} minutes{start_text}{at_second}")
        }
        other => format!("{}{at_second}", units_text(other, "minute", "hour")),
    }
}

fn seconds_in_minutes_text(seconds: &Shape, minutes: &Shape) -> String {
    let seconds_text = match seconds {
        Shape::All => "every second".to_owned(),
        Shape::Step { from, step, wraps_around: true, .. } => {
            let start_text = if *from == 0 { String::new() } else { format!(" from second {from}") };
            format!("every {step} seconds{start_text}")
        }
        other => units_text(other, "second", "minute"),
    };
    match minutes {
        Shape::All => seconds_text,
        Shape::Step { from, to, step, .. } => {
            format!("{seconds_text}, in every {} minute from {from} to {to} of each hour", ordinal(*step))
        }
        Shape::Ranges(ranges) => {
            let unit = if minutes.only_number().is_some() { "minute" } else { "minutes" };
            format!("{seconds_text}, in {unit} {} of each hour", numbers_text(ranges))
        }
    }
}

/// Describes the numbers of a unit within a larger one: `at minutes 5 and 10 to 20 of each hour`.
fn units_text(shape: &Shape, unit: &str, larger_unit: &str) -> String {
    match shape {
        Shape::All => format!("every {unit}"),
        Shape::Step { from, to, step, .. } => {
            format!("every {step} {unit}s from {unit} {from} to {to} of each {larger_unit}")
        }
        Shape::Ranges(ranges) => {
            let plural_s = if shape.only_number().is_some() { "" } else { "s" };
            format!("at {unit}{plural_s} {} of each {larger_unit}", numbers_text(ranges))
        }
    }
}

fn hours_text(hours: &Shape) -> String {
    match hours {
        Shape::All => String::new(),
        Shape::Step { from, to, step, .. } => format!(", in every {} hour from {from} to {to}", ordinal(*step)),
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] => format!(" from {} to {}", time_text(*from, 0, 0), time_text(*to, 59, 0)),
            _ => format!(", in the hours {}", numbers_text(ranges)),
        },
    }
}

fn days_text(parts: &Parts, is_clock: bool) -> String {
    let months = months_text(&parts.months);
    let of_months = months.as_ref().map_or("of each month".to_owned(), |months| format!("of {months}"));
    let in_months = months.as_ref().map_or(String::new(), |months| format!(" in {months}"));
    match &parts.days {
        Days::Every => match (is_clock, months) {
            (true, _) => format!("every day{in_months}"),
            (false, Some(months)) => format!("in {months}"),
            (false, None) => String::new(),
        },
        Days::OfMonth(days) => days_of_month_text(days, &parts.months, &of_months),
        Days::OfWeek(weekdays) => format!("{}{in_months}", weekdays_text(weekdays)),
        Days::Both(days, weekdays) => {
            let month_days = days_of_month_text(days, &parts.months, &of_months);
            format!("{month_days} where it is {}", weekday_list(weekdays, " or "))
        }
        Days::Either(days, weekdays) => {
            let month_days = days_of_month_text(days, &parts.months, &of_months);
            format!("{month_days} and also on {}{in_months}", weekday_list(weekdays, " and "))
        }
        Days::Last { days_before_last: 0 } => format!("on the last day {of_months}"),
        Days::Last { days_before_last } => {
            format!("{} before the last day {of_months}", day_count_text(*days_before_last))
        }
        Days::LastNearest { days_before_last: 0 } => format!("on the last weekday {of_months}"),
        Days::LastNearest { days_before_last } => {
            format!("on the weekday nearest to {} before the last day {of_months}", day_count_text(*days_before_last))
        }
        Days::Nearest { day } => format!("on the weekday nearest to day {day} {of_months}"),
        Days::LastOf { weekday } => format!("on the last {} {of_months}", weekday_name(*weekday)),
        Days::NthOf { weekday, nth } => {
            let nth = NTH.get(usize::try_from(*nth).unwrap_or(0)).copied().unwrap_or_default();
            let condition = if nth == "fifth" { ", where there is one" } else { "" };
            format!("on the {nth} {} {of_months}{condition}", weekday_name(*weekday))
        }
    }
}

fn days_of_month_text(days: &Shape, months: &Shape, of_months: &str) -> String {
    match (days, days.only_number(), months.only_number()) {
        (_, Some(day), Some(month)) => format!("on {day} {}", month_name(month)),
        (_, Some(day @ 29..), None) if *months == Shape::All => format!("on day {day} of each month that has one"),
        (_, Some(day), None) => format!("on day {day} {of_months}"),
        (Shape::Step { from, to, step, .. }, ..) => {
            format!("on every {} day from {from} to {to} {of_months}", ordinal(*step))
        }
        (Shape::Ranges(ranges), ..) => format!("on days {} {of_months}", numbers_text(ranges)),
        (Shape::All, ..) => format!("on every day {of_months}"),
    }
}

fn weekdays_text(weekdays: &Shape) -> String {
    match weekdays {
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] if from == to => format!("every {}", weekday_name(*from)),
            [(from, to)] if (to + 7 - from) % 7 > 1 => format!("{} to {}", weekday_name(*from), weekday_name(*to)),
            _ => format!("on {}", weekday_list(weekdays, " and ")),
        },
        Shape::All | Shape::Step { .. } => "every day".to_owned(),
    }
}

fn weekday_list(weekdays: &Shape, last_separator: &str) -> String {
    match weekdays {
        Shape::Ranges(ranges) => join_words(&range_words(ranges, weekday_name, " to "), ", ", last_separator),
        Shape::All | Shape::Step { .. } => "any day".to_owned(),
    }
}

fn months_text(months: &Shape) -> Option<String> {
    match months {
        Shape::Ranges(ranges) => Some(join_words(&range_words(ranges, month_name, " to "), ", ", " and ")),
        Shape::All | Shape::Step { .. } => None,
    }
}

fn years_text(years: &Shape) -> String {
    let last_year = LAST_YEAR.unsigned_abs();
    match years {
        Shape::All => String::new(),
        Shape::Step { from, to, step, .. } if to + step > last_year => format!(", every {step} years from {from} on"),
        Shape::Step { from, to, step, .. } => format!(", every {step} years from {from} to {to}"),
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] if *to == last_year && from < to => format!(", from {from} on"),
            _ => format!(", in {}", numbers_text(ranges)),
        },
    }
}

fn numbers_text(ranges: &[(u32, u32)]) -> String {
    join_words(&range_words(ranges, |number| number.to_string(), " to "), ", ", " and ")
}

fn month_name(month: u32) -> String {
    name_at(&MONTHS, month.saturating_sub(1))
}

fn weekday_name(weekday: u32) -> String {
    name_at(&WEEKDAYS, weekday)
}

fn name_at(names: &[&str], index: u32) -> String {
    usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default().to_owned()
}

fn day_count_text(count: u32) -> String {
    if count == 1 { "1 day".to_owned() } else { format!("{count} days") }
}

fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}
