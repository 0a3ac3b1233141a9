//! A second implementation of Quartz's cron, by brute force: it compares every minute with the fields. It has no search and no
//! zone rules, only the two zones of the tests.
#![expect(clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeSet;

const MINUTE: i64 = 60;
const DAY: i64 = 86_400;
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
/// 2026-03-29, 2026-10-25, 2027-03-28 and 2027-10-31, each 01:00 UTC.
pub(super) const BERLIN_CHANGES: [i64; 4] = [1_774_746_000, 1_792_890_000, 1_806_195_600, 1_824_944_400];

/// Seconds that a zone is ahead of UTC.
pub(super) fn offset(zone: &str, at: i64) -> i64 {
    match zone {
        "Asia/Shanghai" => 8 * 3600,
        "Europe/Berlin" => {
            let changes = BERLIN_CHANGES.iter().filter(|change| **change <= at).count();
            if changes % 2 == 1 { 7200 } else { 3600 }
        }
        other => panic!("no offsets of {other}"),
    }
}

/// A day of the calendar.
#[derive(Clone, Copy)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
    /// 1 is Sunday.
    weekday: i64,
    /// How many days its month has.
    len: i64,
}

impl Date {
    /// By days since 1970-01-01, a Thursday.
    fn of(days: i64) -> Self {
        let (mut year, mut left) = (1970, days);
        let year_len = |year: i64| if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) { 366 } else { 365 };
        while left >= year_len(year) {
            left -= year_len(year);
            year += 1;
        }
        let mut month = 1;
        let month_len = |month: i64| match month {
            2 => year_len(year) - 337,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        while left >= month_len(month) {
            left -= month_len(month);
            month += 1;
        }
        Self { year, month, day: left + 1, weekday: (days + 4).rem_euclid(7) + 1, len: month_len(month) }
    }

    /// The weekday of another day of its month.
    fn weekday_of(self, day: i64) -> i64 {
        (self.weekday - 1 + day - self.day).rem_euclid(7) + 1
    }

    /// The day from Monday to Friday that is nearest to a day, within the month.
    fn workday(self, day: i64) -> i64 {
        match self.weekday_of(day) {
            7 if day > 1 => day - 1,
            7 => day + 2,
            1 if day < self.len => day + 1,
            1 => day - 2,
            _ => day,
        }
    }

    fn has_day(self, field: &str) -> bool {
        field.split(',').any(|part| match part {
            "*" | "?" => true,
            "L" => self.day == self.len,
            "LW" => self.day == self.workday(self.len),
            _ => {
                if let Some(back) = part.strip_prefix("L-") {
                    self.day == self.len - number(back)
                } else if let Some(day) = part.strip_suffix('W') {
                    self.day == self.workday(number(day).min(self.len))
                } else {
                    values(part, 1, 31, &[]).contains(&self.day)
                }
            }
        })
    }

    fn has_weekday(self, field: &str) -> bool {
        field.split(',').any(|part| {
            if part == "*" || part == "?" {
                return true;
            }
            if part == "L" {
                return self.weekday == 7;
            }
            if let Some((weekday, which)) = part.split_once('#') {
                return self.weekday == named(weekday, &WEEKDAYS) && (self.day - 1) / 7 + 1 == number(which);
            }
            if let Some(weekday) = part.strip_suffix('L') {
                return self.weekday == named(weekday, &WEEKDAYS) && self.day + 7 > self.len;
            }
            values(part, 1, 7, &WEEKDAYS).contains(&self.weekday)
        })
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// Months and days of the week count from 1.
fn named(text: &str, names: &[&str]) -> i64 {
    names.iter().position(|name| *name == text).map_or_else(|| number(text), |at| i64::try_from(at).expect("few") + 1)
}

/// The values of one part of a field: `a`, `a-b`, `a/n`, `a-b/n`, `*` or `*/n`; a range may wrap around.
fn values(part: &str, min: i64, max: i64, names: &[&str]) -> BTreeSet<i64> {
    let (span, step) = part.split_once('/').map_or((part, None), |(span, step)| (span, Some(number(step))));
    let (from, to) = match span.split_once('-') {
        _ if matches!(span, "*" | "?" | "") => (min, max),
        Some((from, to)) => (named(from, names), named(to, names)),
        None if step.is_some() => (named(span, names), max),
        None => (named(span, names), named(span, names)),
    };
    let to = if to < from { to + max - min + 1 } else { to };
    let step = usize::try_from(step.unwrap_or(1)).expect("a step");
    (from..=to).step_by(step).map(|value| if value > max { value - (max - min + 1) } else { value }).collect()
}

fn field(text: &str, min: i64, max: i64, names: &[&str]) -> BTreeSet<i64> {
    text.split(',').flat_map(|part| values(part, min, max, names)).collect()
}

/// The instant in the form that the API reads.
pub(super) fn instant(at: i64) -> String {
    let (date, second) = (Date::of(at.div_euclid(DAY)), at.rem_euclid(DAY));
    let (hour, minute, second) = (second / 3600, second % 3600 / MINUTE, second % MINUTE);
    format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", date.year, date.month, date.day)
}

/// The instants of an expression in `after..=until`, in seconds.
pub(super) fn fires(expr: &str, zone: &str, after: i64, until: i64) -> Vec<i64> {
    let expr = expr.to_uppercase();
    let fields: Vec<&str> = expr.split_whitespace().collect();
    let (seconds, minutes) = (field(fields[0], 0, 59, &[]), field(fields[1], 0, 59, &[]));
    let (hours, months) = (field(fields[2], 0, 23, &[]), field(fields[4], 1, 12, &MONTHS));
    let years = fields.get(6).map(|text| field(text, 1970, 2199, &[]));
    let (mut found, mut known) = (Vec::new(), None);
    let mut at = after.div_euclid(MINUTE) * MINUTE;
    while at <= until {
        let local = at + offset(zone, at);
        let (day, second) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        let fits = match known {
            Some((of, fits)) if of == day => fits,
            _ => {
                let date = Date::of(day);
                let fits = months.contains(&date.month)
                    && years.as_ref().is_none_or(|years| years.contains(&date.year))
                    && date.has_day(fields[3])
                    && date.has_weekday(fields[5]);
                known = Some((day, fits));
                fits
            }
        };
        if fits && hours.contains(&(second / 3600)) && minutes.contains(&(second % 3600 / MINUTE)) {
            found.extend(seconds.iter().map(|second| at + second).filter(|at| *at > after && *at <= until));
        }
        at += MINUTE;
    }
    found
}

#[test]
fn the_reader_by_force_knows_known_days() {
    // 2026-11-23T00:00:00 in Shanghai, a Monday; the month ends on a Monday.
    let monday = 1_795_363_200;
    let first = |expr: &str| (fires(expr, "Asia/Shanghai", monday - 1, monday + 30 * DAY)[0] - monday) / DAY;
    assert_eq!(first("0 0 0 ? * MON"), 0);
    assert_eq!(first("0 0 0 L * ?"), 7);
    assert_eq!(first("0 0 0 L-2 * ?"), 5);
    assert_eq!(first("0 0 0 29W * ?"), 7, "the 29th is a Sunday");
    assert_eq!(first("0 0 0 28W * ?"), 4, "the 28th is a Saturday");
    assert_eq!(first("0 0 0 ? * 6#1"), 11);
    assert_eq!(first("0 0 0 ? * 5L"), 3);
    assert_eq!(first("0 0 0 ? * FRI-SUN"), 4);
}
