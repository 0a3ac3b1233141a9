//! The time zone in which a page shows instants: the user's own, that of the job, or UTC.
//!
//! It is chosen once per request ([`Zones::scope`]), so that all parts of the page use the same zone.

use std::cell::Cell;
use std::future::Future;

use chrono::{Datelike as _, Timelike as _};
use http::HeaderMap;
use rondel_core::cron::{Tz, parse_zone};
use rondel_core::words::asked_instants;
use rondel_core::{JobSpec, Timestamp};

use super::schedule_text::schedules;
use super::texts::Texts;
use crate::cookies;

/// The cookie with the clock that the user chose.
pub(crate) const CLOCK_COOKIE: &str = "rondel_times";
/// The cookie with the time zone of the browser. The script writes it.
const ZONE_COOKIE: &str = "rondel_zone";

rondel_core::plain_word_enum! {
    /// The clock on which instants are shown.
    #[derive(Default)]
    pub(crate) Clock {
        Job = "job",
        #[default]
        Mine = "mine",
        Utc = "utc",
    }
}

impl Clock {
    pub(crate) const fn name(self, t: &Texts) -> &'static str {
        match self {
            Self::Job => t.clock_job,
            Self::Mine => t.clock_mine,
            Self::Utc => t.clock_utc,
        }
    }
}

/// The time zones that matter for a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zones {
    clock: Clock,
    /// The browser's zone; `None` until the script has reported it.
    zone_of_user: Option<Tz>,
    /// The zone of the job that the page is about.
    zone_of_job: Cell<Option<Tz>>,
}

tokio::task_local! {
    static ZONES: Zones;
}

impl Zones {
    pub(crate) fn new(headers: &HeaderMap) -> Self {
        let clock = cookies::read(headers, CLOCK_COOKIE).and_then(Clock::from_word).unwrap_or_default();
        let zone_of_user = cookies::read(headers, ZONE_COOKIE).and_then(|zone| parse_zone(zone).ok());
        Self { clock, zone_of_user, zone_of_job: Cell::new(None) }
    }

    /// Runs the future of an answer, so that these zones apply to all instants in it.
    pub(crate) async fn scope<F: Future>(self, answer: F) -> F::Output {
        ZONES.scope(self, answer).await
    }

    /// The zones of the current request; UTC outside of a request.
    fn current() -> Self {
        ZONES.try_with(Clone::clone).unwrap_or_else(|_| Self { clock: Clock::Utc, ..Self::default() })
    }

    /// The zone in which the chosen clock shows instants of a job. `zone_of_job` is the zone of the job.
    fn shown_zone(&self, zone_of_job: Option<Tz>) -> Tz {
        match self.clock {
            Clock::Utc => Tz::UTC,
            Clock::Mine => self.zone_of_user.unwrap_or(Tz::UTC),
            Clock::Job => zone_of_job.or(self.zone_of_user).unwrap_or(Tz::UTC),
        }
    }
}

/// Sets the job that the page is about. If the user chose the job's clock, instants are shown in its zone.
pub(crate) fn set_job(spec: &JobSpec) {
    let zone = zone_of(spec);
    ZONES.try_with(|zones| zones.zone_of_job.set(Some(zone))).ok();
}

/// The zone of a job's first schedule, else UTC.
pub(crate) fn zone_of(spec: &JobSpec) -> Tz {
    let zone = schedules(spec).first().and_then(|schedule| schedule.time_zone.as_deref());
    zone.and_then(|zone| parse_zone(zone).ok()).unwrap_or(Tz::UTC)
}

/// The clock that the user chose, and the zone that this means on the current page.
pub(crate) fn clock_and_zone() -> (Clock, Tz) {
    let zones = Zones::current();
    (zones.clock, zones.shown_zone(zones.zone_of_job.get()))
}

/// The zone in which a page about many jobs shows instants of this job.
pub(crate) fn zone_for_job(spec: &JobSpec) -> Tz {
    Zones::current().shown_zone(Some(zone_of(spec)))
}

/// The zone of the job that the page is about.
pub(crate) fn job_zone() -> Option<Tz> {
    Zones::current().zone_of_job.get()
}

/// The last part of a zone's name, as users write it.
pub(crate) fn short_zone_name(zone: Tz) -> String {
    zone.name().rsplit('/').next().unwrap_or_default().replace('_', " ")
}

/// An instant in a zone: date, time of day and milliseconds.
pub(crate) fn time_parts(at: Timestamp, zone: Tz) -> (String, String, String) {
    let Some(local) = at.to_utc().map(|at| at.with_timezone(&zone)) else { return Default::default() };
    // Formats without chrono's format strings: a page has thousands of instants, and parsing the format takes a tenth of the page's time.
    let date = format!("{:04}-{:02}-{:02}", local.year(), local.month(), local.day());
    let time = format!("{:02}:{:02}:{:02}", local.hour(), local.minute(), local.second());
    (date, time, format!(".{:03}", local.timestamp_subsec_millis()))
}

/// An instant in each known zone, one per line.
pub(crate) fn in_all_zones(at: Timestamp) -> String {
    let zones = Zones::current();
    let mut shown_zones: Vec<Tz> = Vec::new();
    for zone in [zones.zone_of_job.get(), zones.zone_of_user, Some(Tz::UTC)].into_iter().flatten() {
        if !shown_zones.contains(&zone) {
            shown_zones.push(zone);
        }
    }
    let line = |zone: &Tz| {
        let (date, time, millis) = time_parts(at, *zone);
        format!("{date} {time}{millis} {zone}")
    };
    shown_zones.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The instant that the user typed for the beginning or the end of a time span. If the clock shows the typed time twice, this is the first
/// of the two instants that lies in the future, else the first one.
pub(crate) fn typed_instant(zone: Tz, text: &str, now: Timestamp) -> Option<Timestamp> {
    let instants = asked_instants(zone, &text.replace('T', " "), now)?;
    let future_instant = instants.iter().find(|at| **at > now);
    future_instant.or_else(|| instants.first()).copied()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::COOKIE;

    use super::*;

    fn zones(cookie: &str) -> Zones {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(cookie).unwrap());
        Zones::new(&headers)
    }

    #[test]
    fn parts_of_an_instant_have_all_their_digits() {
        let at: Timestamp = "2026-03-01T23:02:03.004Z".parse().unwrap();
        let zone = parse_zone("Asia/Kathmandu").unwrap();
        let expected = ("2026-03-02".to_owned(), "04:47:03".to_owned(), ".004".to_owned());
        assert_eq!(time_parts(at, zone), expected);
    }

    #[test]
    fn of_a_time_that_the_clock_shows_twice_the_one_ahead_is_meant() {
        let zone = parse_zone("Europe/Berlin").unwrap();
        for (now, typed, expected) in [
            ("2026-10-24T22:00:00Z", "2026-10-25T02:30", "2026-10-25T00:30:00Z"),
            ("2026-10-25T01:15:00Z", "2026-10-25T02:30", "2026-10-25T01:30:00Z"),
            ("2026-10-25T02:00:00Z", "2026-10-25T02:30", "2026-10-25T00:30:00Z"),
            ("2026-10-25T01:15:00Z", "2026-10-25T04:00", "2026-10-25T03:00:00Z"),
        ] {
            let found = typed_instant(zone, typed, now.parse().unwrap());
            assert_eq!(found.map(|at| at.to_string()).as_deref(), Some(expected), "{now}");
        }
        assert_eq!(typed_instant(zone, "soon", Timestamp::EPOCH), None);
    }

    #[test]
    fn the_reader_s_zone_is_shown_once_it_is_known() {
        let job = parse_zone("America/New_York").ok();
        for (cookie, expected) in [
            ("a=b", "UTC"),
            ("rondel_zone=Europe/Berlin", "Europe/Berlin"),
            ("rondel_zone=Europe/Berlin; rondel_times=utc", "UTC"),
            ("rondel_zone=Europe/Berlin; rondel_times=job", "America/New_York"),
            ("rondel_zone=<script>; rondel_times=x", "UTC"),
        ] {
            assert_eq!(zones(cookie).shown_zone(job).name(), expected, "{cookie}");
        }
        assert_eq!(zones("rondel_times=job").shown_zone(None), Tz::UTC);
    }

    #[tokio::test]
    async fn a_tooltip_names_every_zone_once() {
        let at = Timestamp::from_millis(1_800_000_000_123);
        let spec: JobSpec = serde_json::from_value(serde_json::json!({
            "name": "a", "app": "b", "handler": "c",
            "schedule": {"cron": "0 0 1 * * ?", "time_zone": "Asia/Shanghai"},
        }))
        .unwrap();
        let shown = zones("rondel_zone=Europe/Berlin").scope(async {
            set_job(&spec);
            in_all_zones(at)
        });
        assert_eq!(
            shown.await,
            "2027-01-15 16:00:00.123 Asia/Shanghai\n2027-01-15 09:00:00.123 Europe/Berlin\n2027-01-15 08:00:00.123 UTC"
        );
        assert_eq!(in_all_zones(at), "2027-01-15 08:00:00.123 UTC");
        assert_eq!(short_zone_name(parse_zone("America/New_York").unwrap()), "New York");
    }
}
