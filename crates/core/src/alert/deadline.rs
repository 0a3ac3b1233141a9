//! Deadlines such as `06:00 Europe/Berlin`: computes their instants, and the earliest planned instant of a run that
//! counts for a deadline.

use std::time::Duration;

use chrono::{Datelike, Days, NaiveDate, NaiveTime};

use crate::calendar::Weekday;
use crate::cron::{Tz, parse_zone};
use crate::local;
use crate::time::Timestamp;

/// A search for the next deadline covers this many days. A calendar that contains none of them counts as empty.
const SEARCH_DAYS: u32 = 400;

/// A time of day in a zone, on some days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    time: NaiveTime,
    zone: Tz,
    /// One bit for each day of the week, Monday first.
    weekdays: u8,
}

impl Deadline {
    /// Parses a deadline; empty `weekdays` mean every day.
    ///
    /// # Errors
    /// The name of the invalid field, and a sentence that describes the expected form.
    pub fn parse(time: &str, zone: &str, weekdays: &[Weekday]) -> Result<Self, (&'static str, String)> {
        let wrong_time = || ("time", format!("{time:?} is not a time of day: expected HH:MM from 00:00 to 23:59"));
        let time = match time.len() {
            5 => NaiveTime::parse_from_str(time, "%H:%M").map_err(|_| wrong_time())?,
            _ => return Err(wrong_time()),
        };
        let zone = parse_zone(zone).map_err(|error| ("zone", error.to_string()))?;
        let bits = weekdays.iter().map(|day| 1 << (*day as u8)).fold(0, |bits, bit: u8| bits | bit);
        Ok(Self { time, zone, weekdays: if bits == 0 { 0x7f } else { bits } })
    }

    /// The next deadline after an instant, on one of its weekdays that `has_day` accepts; `None` if the next 400 days have
    /// none. If the clock skips the local time on that day, the deadline is the first instant after the gap. If the clock shows
    /// the time twice, the deadline is the first of the two instants.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, has_day: impl Fn(NaiveDate) -> bool) -> Option<Timestamp> {
        let mut day = local::time_at(self.zone, after).date().pred_opt()?;
        for _ in 0..SEARCH_DAYS {
            let is_wanted_weekday = self.weekdays & (1 << day.weekday().num_days_from_monday()) != 0;
            if is_wanted_weekday && has_day(day) {
                let at = self.instant_on(day);
                if at > after {
                    return Some(at);
                }
            }
            day = day.succ_opt()?;
        }
        None
    }

    /// The earliest planned instant of a run that counts for the deadline at `at`: the same time on the day before.
    #[must_use]
    pub fn counts_from(&self, at: Timestamp) -> Timestamp {
        let day = local::time_at(self.zone, at).date();
        day.checked_sub_days(Days::new(1)).map_or(at - Duration::from_secs(24 * 3600), |day| self.instant_on(day))
    }

    fn instant_on(&self, day: NaiveDate) -> Timestamp {
        local::instant(self.zone, day.and_time(self.time))
    }
}

/// The local time in a zone, to the minute, such as `2026-11-23 06:00`; `None` for an unknown zone.
#[must_use]
pub fn minute_text(zone: &str, at: Timestamp) -> Option<String> {
    Some(local::time_at(parse_zone(zone).ok()?, at).format("%Y-%m-%d %H:%M").to_string())
}
