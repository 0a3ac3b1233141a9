//! Reads the instant of a question as users type it: a time of day, a day with a time, a length of time ago, or an instant.

use chrono::{Days, NaiveDate, NaiveDateTime, NaiveTime};

use super::moment::instants;
use crate::cron::Tz;
use crate::local;
use crate::time::{Timestamp, parse_duration};

/// Words for a day, and how many days ago it is.
const DAYS: [(&str, u64); 6] = [("today", 0), ("yesterday", 1), ("今天", 0), ("昨天", 1), ("前天", 2), ("昨日", 1)];

/// The instants that a question means on the clock of a zone: `02:30` (the last one), `yesterday 02:30`, `2026-11-21 02:30`, `3h ago`,
/// `now`, or an instant with its offset. Two if the clock shows the time twice, none if the clock skips the time; `None` for any other text,
/// and outside of the years 1970 to 2199.
///
/// ```
/// use rondel_core::cron::Tz;
/// use rondel_core::words::asked_instants;
///
/// let now = "2026-11-22T01:00:00Z".parse()?;
/// let asked = |text| asked_instants(Tz::Europe__Berlin, text, now).map(|found| found[0].to_string());
/// assert_eq!(asked("01:30").as_deref(), Some("2026-11-22T00:30:00Z"));
/// assert_eq!(asked("02:30").as_deref(), Some("2026-11-21T01:30:00Z"));
/// assert_eq!(asked("yesterday 02:30").as_deref(), Some("2026-11-21T01:30:00Z"));
/// assert_eq!(asked("2026-11-20T02:30:00Z").as_deref(), Some("2026-11-20T02:30:00Z"));
/// assert_eq!(asked("3h ago").as_deref(), Some("2026-11-21T22:00:00Z"));
/// assert_eq!(asked("soon"), None);
/// # Ok::<(), rondel_core::TimeError>(())
/// ```
#[must_use]
pub fn asked_instants(zone: Tz, text: &str, now: Timestamp) -> Option<Vec<Timestamp>> {
    let text = text.trim();
    let lower_text = text.to_lowercase();
    if matches!(lower_text.as_str(), "now" | "现在") {
        return Some(vec![now]);
    }
    if let Some(at) = parse_ago(&lower_text, now) {
        return Some(vec![at]);
    }
    // A text with an offset is an instant; one without is a time on the clock of the zone.
    if text.len() > 16
        && let Ok(at) = text.parse::<Timestamp>()
    {
        return is_in_range(at).then(|| vec![at]);
    }
    let local_now = local::time_at(zone, now);
    if let Some(time) = time_of_day(&lower_text) {
        return last_shown(zone, time, (local_now, now));
    }
    instants_showing(zone, day_and_time(&lower_text, local_now.date()).or_else(|| date_and_time(text))?)
}

/// The instants at which the clock shows this local time.
fn instants_showing(zone: Tz, local: NaiveDateTime) -> Option<Vec<Timestamp>> {
    instants(zone, &local.format("%Y-%m-%dT%H:%M:%S%.f").to_string())
}

fn is_in_range(at: Timestamp) -> bool {
    (Timestamp::EPOCH..Timestamp::from_secs(7_258_118_400)).contains(&at)
}

/// Reads a length of time ago: `3h ago`, `3h 前`.
fn parse_ago(text: &str, now: Timestamp) -> Option<Timestamp> {
    let length = text.strip_suffix("ago").or_else(|| text.strip_suffix('前'))?;
    let at = now.saturating_sub(parse_duration(length.trim()).ok()?);
    is_in_range(at).then_some(at)
}

/// Reads a day in words, with or without a time: `yesterday 02:30`. Without a time, it is midnight.
fn day_and_time(text: &str, today: NaiveDate) -> Option<NaiveDateTime> {
    let (time_text, days_back) =
        DAYS.iter().find_map(|(word, days_back)| Some((text.strip_prefix(word)?, *days_back)))?;
    let time = match time_text.trim() {
        "" => NaiveTime::MIN,
        time_text => time_of_day(time_text)?,
    };
    Some(today.checked_sub_days(Days::new(days_back))?.and_time(time))
}

/// The last instants, not in the future, at which the clock showed a time of day: two if it showed the time twice.
fn last_shown(zone: Tz, time: NaiveTime, (local_now, now): (NaiveDateTime, Timestamp)) -> Option<Vec<Timestamp>> {
    let today = local_now.date().and_time(time);
    if today <= local_now {
        return instants_showing(zone, today);
    }
    // If the clock was set back, it may have shown this time already, and show it again later.
    let past_instants: Vec<Timestamp> = instants_showing(zone, today)?.into_iter().filter(|at| *at <= now).collect();
    if past_instants.is_empty() {
        instants_showing(zone, today.checked_sub_days(Days::new(1))?)
    } else {
        Some(past_instants)
    }
}

fn time_of_day(text: &str) -> Option<NaiveTime> {
    let parse = |format| NaiveTime::parse_from_str(text, format).ok();
    parse("%H:%M").or_else(|| parse("%H:%M:%S%.f"))
}

/// Reads a date, with or without a time: `2026-11-21 02:30`, or with a `T` between them. Without a time, it is midnight.
fn date_and_time(text: &str) -> Option<NaiveDateTime> {
    let parse = |format| NaiveDateTime::parse_from_str(text, format).ok();
    let formats = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f"];
    let date = || NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().map(|date| date.and_time(NaiveTime::MIN));
    formats.into_iter().find_map(parse).or_else(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(zone: Tz, text: &str) -> Option<Vec<String>> {
        let now = "2026-03-29T10:00:00Z".parse().unwrap();
        Some(asked_instants(zone, text, now)?.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn typed_times_are_read_on_the_clock_of_the_zone() {
        for (text, expected) in [
            ("08:00", "2026-03-29T00:00:00Z"),
            ("今天 08:00", "2026-03-29T00:00:00Z"),
            ("昨天 02:30", "2026-03-27T18:30:00Z"),
            ("Yesterday", "2026-03-27T16:00:00Z"),
            ("2026-03-01", "2026-02-28T16:00:00Z"),
            ("2026-03-01 02:30:15", "2026-02-28T18:30:15Z"),
            ("2026-03-01T02:30:00+01:00", "2026-03-01T01:30:00Z"),
            ("90min ago", "2026-03-29T08:30:00Z"),
            ("now", "2026-03-29T10:00:00Z"),
        ] {
            assert_eq!(asked(Tz::Asia__Shanghai, text), Some(vec![expected.to_owned()]), "{text}");
        }
    }

    #[test]
    fn a_time_that_was_shown_before_the_clock_was_set_back_is_the_last_one() {
        // The clock shows 02:15 for the second time.
        let now = "2026-10-25T01:15:00Z".parse().unwrap();
        for (text, expected) in [
            ("02:30", vec!["2026-10-25T00:30:00Z"]),
            ("02:10", vec!["2026-10-25T00:10:00Z", "2026-10-25T01:10:00Z"]),
            ("01:59", vec!["2026-10-24T23:59:00Z"]),
            ("03:00", vec!["2026-10-24T01:00:00Z"]),
        ] {
            let found = asked_instants(Tz::Europe__Berlin, text, now).unwrap();
            assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn clock_changes_and_nonsense_are_distinguished() {
        assert_eq!(asked(Tz::Europe__Berlin, "2026-03-29 02:30"), Some(Vec::new()), "the clock skips it");
        assert_eq!(asked(Tz::Europe__Berlin, "2025-10-26 02:30").map(|found| found.len()), Some(2));
        for text in
            ["", "soon", "25:00", "yesterday at noon", "1969-01-01", "+9999-01-01 00:00", "ago", "999999years ago"]
        {
            assert_eq!(asked(Tz::UTC, text), None, "{text}");
        }
    }
}
