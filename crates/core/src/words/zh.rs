//! Cron expressions in Chinese.

use super::cron_parts::{Days, Parts, TimeOfDay, time_text};
use super::shape::{Shape, join_words, range_words};
use crate::cron::LAST_YEAR;

const WEEKDAYS: [&str; 7] = ["周一", "周二", "周三", "周四", "周五", "周六", "周日"];

pub(super) fn sentence(parts: &Parts) -> String {
    let (time, is_clock) = match &parts.time {
        TimeOfDay::Clock(times) => {
            let times: Vec<String> =
                times.iter().map(|&(hour, minute, second)| time_text(hour, minute, second)).collect();
            (join_words(&times, "、", "和"), true)
        }
        TimeOfDay::Pace { seconds, minutes, hours } => (pace_text(seconds, minutes, hours), false),
    };
    let days = format!("{}{}", years_text(&parts.years), days_text(parts, is_clock));
    if days.is_empty() { time } else { format!("{days} {time}") }
}

fn pace_text(seconds: &Shape, minutes: &Shape, hours: &Shape) -> String {
    if let (Some(minute), Some(second)) = (minutes.only_number(), seconds.only_number())
        && let Some(hourly_text) = hourly_text(hours, minute, second)
    {
        return hourly_text;
    }
    format!("{}{}", hours_text(hours), within_hour_text(seconds, minutes))
}

/// Describes a schedule that fires once in each of many hours.
fn hourly_text(hours: &Shape, minute: u32, second: u32) -> Option<String> {
    match hours {
        Shape::All if (minute, second) == (0, 0) => Some("每小时".to_owned()),
        Shape::Step { from, step, wraps_around: true, .. } if (*from, minute, second) == (0, 0, 0) => {
            Some(format!("每{step}小时"))
        }
        Shape::Step { from, step, wraps_around: true, .. } => {
            Some(format!("从{}起每{step}小时", time_text(*from, minute, second)))
        }
        Shape::Step { from, to, step, wraps_around: false } => {
            let (first_time, last_time) = (time_text(*from, minute, second), time_text(*to, minute, second));
            Some(format!("{first_time}至{last_time} 每{step}小时"))
        }
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] => {
                let (first_time, last_time) = (time_text(*from, minute, second), time_text(*to, minute, second));
                Some(format!("{first_time}至{last_time} 每小时"))
            }
            _ => None,
        },
        Shape::All => None,
    }
}

fn within_hour_text(seconds: &Shape, minutes: &Shape) -> String {
    let at_second = match seconds.only_number() {
        Some(0) => String::new(),
        Some(second) => format!("的第{second}秒"),
        None => return seconds_in_minutes_text(seconds, minutes),
    };
    match minutes {
        Shape::All => format!("每分钟{at_second}"),
        Shape::Step { from, step, wraps_around: true, .. } => {
            let start_text = if *from == 0 { String::new() } else { format!("从第{from}分起") };
            format!("{start_text}每{step}分钟{at_second}")
        }
        other => format!("{}{at_second}", units_text(other, ("小时", "分", "分钟"))),
    }
}

fn seconds_in_minutes_text(seconds: &Shape, minutes: &Shape) -> String {
    let seconds_text = match seconds {
        Shape::All => "每秒".to_owned(),
        Shape::Step { from, step, wraps_around: true, .. } => {
            let start_text = if *from == 0 { String::new() } else { format!("从第{from}秒起") };
            format!("{start_text}每{step}秒")
        }
        other => units_text(other, ("分钟", "秒", "秒")),
    };
    match minutes {
        Shape::All => seconds_text,
        Shape::Step { from, to, step, .. } => {
            format!("每小时第{from}分至第{to}分每隔{step}分的那一分钟内，{seconds_text}")
        }
        Shape::Ranges(ranges) => format!("每小时的第{}分内，{seconds_text}", numbers_text(ranges)),
    }
}

/// Describes the numbers of a unit within a larger one: `每小时的第5、10至20分`.
fn units_text(shape: &Shape, (larger_unit, unit, length_unit): (&str, &str, &str)) -> String {
    match shape {
        Shape::All => format!("每{length_unit}"),
        Shape::Step { from, to, step, .. } => {
            format!("每{larger_unit}第{from}{unit}至第{to}{unit}每{step}{length_unit}")
        }
        Shape::Ranges(ranges) => format!("每{larger_unit}的第{}{unit}", numbers_text(ranges)),
    }
}

fn hours_text(hours: &Shape) -> String {
    match hours {
        Shape::All => String::new(),
        Shape::Step { from, to, step, .. } => format!("{from}点至{to}点每隔{step}小时的那一小时内，"),
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] => format!("{}至{} ", time_text(*from, 0, 0), time_text(*to, 59, 0)),
            _ => format!("{}点内，", numbers_text(ranges)),
        },
    }
}

fn days_text(parts: &Parts, is_clock: bool) -> String {
    let months = months_text(&parts.months);
    let each_month = months.as_ref().map_or("每月".to_owned(), |months| format!("{months}的"));
    let of_months = months.as_ref().map_or(String::new(), |months| format!("{months}的"));
    match &parts.days {
        Days::Every => match (is_clock, months) {
            (true, months) => format!("{}每天", months.unwrap_or_default()),
            (false, months) => months.unwrap_or_default(),
        },
        Days::OfMonth(days) => days_of_month_text(days, &parts.months, &each_month),
        Days::OfWeek(weekdays) => format!("{of_months}{}", weekdays_text(weekdays)),
        Days::Both(days, weekdays) => {
            format!("{}中的{}", days_of_month_text(days, &parts.months, &each_month), weekday_list(weekdays))
        }
        Days::Either(days, weekdays) => {
            format!(
                "{}，以及{of_months}{}",
                days_of_month_text(days, &parts.months, &each_month),
                weekdays_text(weekdays)
            )
        }
        Days::Last { days_before_last: 0 } => format!("{each_month}最后一天"),
        Days::Last { days_before_last } => format!("{each_month}倒数第{}天", days_before_last + 1),
        Days::LastNearest { days_before_last: 0 } => format!("{each_month}最后一个工作日"),
        Days::LastNearest { days_before_last } => format!("{each_month}离倒数第{}天最近的工作日", days_before_last + 1),
        Days::Nearest { day } => format!("{each_month}离{day}日最近的工作日"),
        Days::LastOf { weekday } => format!("{each_month}最后一个{}", weekday_name(*weekday)),
        Days::NthOf { weekday, nth } => format!("{each_month}第{nth}个{}", weekday_name(*weekday)),
    }
}

fn days_of_month_text(days: &Shape, months: &Shape, each_month: &str) -> String {
    let day_text = |day: u32| format!("{day}日");
    match (days, days.only_number(), months.only_number()) {
        (_, Some(day), Some(month)) => format!("{month}月{day}日"),
        (Shape::Step { from, to, step, .. }, ..) => format!("{each_month}{from}日至{to}日每{step}天"),
        (Shape::Ranges(ranges), ..) => {
            format!("{each_month}{}", join_words(&range_words(ranges, day_text, "至"), "、", "和"))
        }
        (Shape::All, ..) => format!("{each_month}每天"),
    }
}

fn weekdays_text(weekdays: &Shape) -> String {
    match weekdays {
        Shape::Ranges(ranges) if matches!(ranges.as_slice(), [(from, to)] if (to + 7 - from) % 7 > 1) => {
            weekday_list(weekdays)
        }
        Shape::Ranges(_) => format!("每{}", weekday_list(weekdays)),
        Shape::All | Shape::Step { .. } => "每天".to_owned(),
    }
}

fn weekday_list(weekdays: &Shape) -> String {
    match weekdays {
        Shape::Ranges(ranges) => join_words(&range_words(ranges, weekday_name, "至"), "、", "和"),
        Shape::All | Shape::Step { .. } => "每天".to_owned(),
    }
}

fn months_text(months: &Shape) -> Option<String> {
    match months {
        Shape::Ranges(ranges) => Some(join_words(&range_words(ranges, |month| format!("{month}月"), "至"), "、", "和")),
        Shape::All | Shape::Step { .. } => None,
    }
}

fn years_text(years: &Shape) -> String {
    let last_year = LAST_YEAR.unsigned_abs();
    let year_text = |year: u32| format!("{year}年");
    match years {
        Shape::All => String::new(),
        Shape::Step { from, to, step, .. } if to + step > last_year => format!("自{from}年起每{step}年，"),
        Shape::Step { from, to, step, .. } => format!("{from}年至{to}年每{step}年，"),
        Shape::Ranges(ranges) => match ranges.as_slice() {
            [(from, to)] if *to == last_year && from < to => format!("自{from}年起，"),
            _ => format!("{}，", join_words(&range_words(ranges, year_text, "至"), "、", "和")),
        },
    }
}

fn numbers_text(ranges: &[(u32, u32)]) -> String {
    join_words(&range_words(ranges, |number| number.to_string(), "至"), "、", "和")
}

fn weekday_name(weekday: u32) -> String {
    usize::try_from(weekday).ok().and_then(|index| WEEKDAYS.get(index)).copied().unwrap_or_default().to_owned()
}
