//! Instants and durations in pages: absolute, on the clock that the reader chose, and relative to now.

use std::time::Duration;

use rondel_core::cron::Tz;
use rondel_core::{JobSpec, Timestamp};

use super::texts::Texts;
use super::zones;

#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// In RFC 3339, for scripts.
    pub(crate) iso: String,
    /// The date, unless it is today.
    pub(crate) date: String,
    /// The date, even if it is today.
    pub(crate) day: String,
    /// The time of day, with seconds.
    pub(crate) time: String,
    /// The milliseconds, such as `.004`.
    pub(crate) millis: String,
    /// The instant in each known time zone, shown as a tooltip.
    pub(crate) title: String,
    /// The time zone in which the instant is shown.
    pub(crate) zone: &'static str,
    /// The zone, if it differs from that of the page.
    pub(crate) zone_note: Option<String>,
    /// The time from now, such as `89 s ago`.
    pub(crate) relative: String,
}

impl Moment {
    pub(crate) fn new(at: Timestamp, now: Timestamp, t: &Texts) -> Self {
        Self::in_zone(at, now, t, zones::clock_and_zone().1)
    }

    /// An instant of a job, for a list of many jobs. If the user chose the job's clock, the instant is shown in the job's zone, with the
    /// zone's name.
    pub(crate) fn of_job(at: Timestamp, now: Timestamp, t: &Texts, spec: &JobSpec) -> Self {
        let (page_zone, shown_zone) = (zones::clock_and_zone().1, zones::zone_for_job(spec));
        let zone_note = (shown_zone != page_zone).then(|| zones::short_zone_name(shown_zone));
        Self { zone_note, ..Self::in_zone(at, now, t, shown_zone) }
    }

    /// The time of day to the minute.
    pub(crate) fn minute(&self) -> &str {
        self.time.get(..5).unwrap_or_default()
    }

    /// The time of day, without the seconds if these are zero, as in schedules.
    pub(crate) fn short(&self) -> &str {
        self.time.strip_suffix(":00").unwrap_or(&self.time)
    }

    fn in_zone(at: Timestamp, now: Timestamp, t: &Texts, zone: Tz) -> Self {
        let (day, time, millis) = zones::time_parts(at, zone);
        let is_today = zones::time_parts(now, zone).0 == day;
        let date = if is_today { String::new() } else { day.clone() };
        Self {
            iso: at.to_string(),
            date,
            day,
            time,
            millis,
            title: zones::in_all_zones(at),
            zone: zone.name(),
            zone_note: None,
            relative: relative_text(at, now, t),
        }
    }
}

/// `in 5 s`, `5 s ago`.
fn relative_text(at: Timestamp, now: Timestamp, t: &Texts) -> String {
    if at > now { t.rel_in(in_largest_unit(at.since(now), t)) } else { t.rel_ago(in_largest_unit(now.since(at), t)) }
}

/// A duration in its largest unit. The page's script updates it and must use the same format.
fn in_largest_unit(length: Duration, t: &Texts) -> String {
    let seconds = length.as_secs();
    let (count, unit) = match seconds {
        0..=89 => (seconds, t.unit_s),
        90..=5399 => ((seconds + 30) / 60, t.unit_min),
        5400..=129_599 => ((seconds + 1800) / 3600, t.unit_h),
        _ => ((seconds + 43_200) / 86_400, t.unit_d),
    };
    format!("{count} {unit}")
}

/// A duration in its two largest units.
pub(crate) fn length_text(length: Duration, t: &Texts) -> String {
    let (millis, seconds) = (length.as_millis(), length.as_secs());
    let two_units = |first: u64, unit: &str, second: u64, unit_of_second: &str| match second {
        0 => format!("{first} {unit}"),
        _ => format!("{first} {unit} {second} {unit_of_second}"),
    };
    match seconds {
        0 => format!("{millis} {}", t.unit_ms),
        1..=9 => format!("{}.{:02} {}", seconds, (millis % 1000) / 10, t.unit_s),
        10..=59 => format!("{}.{} {}", seconds, (millis % 1000) / 100, t.unit_s),
        60..=3599 => two_units(seconds / 60, t.unit_min, seconds % 60, t.unit_s),
        3600..=86_399 => two_units(seconds / 3600, t.unit_h, seconds % 3600 / 60, t.unit_min),
        _ => two_units(seconds / 86_400, t.unit_d, seconds % 86_400 / 3600, t.unit_h),
    }
}

#[cfg(test)]
mod tests {
    use super::super::texts::Lang;
    use super::*;

    #[test]
    fn lengths_have_two_units_at_most() {
        let t = Lang::En.texts();
        for (millis, expected) in [
            (7, "7 ms"),
            (1_234, "1.23 s"),
            (59_990, "59.9 s"),
            (60_000, "1 min"),
            (125_000, "2 min 5 s"),
            (7_260_000, "2 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(length_text(Duration::from_millis(millis), t), expected);
        }
    }

    #[test]
    fn an_instant_is_shown_absolute_and_from_now() {
        let (at, now) = (Timestamp::from_millis(1_800_000_000_123), Timestamp::from_secs(1_800_000_090));
        let moment = Moment::new(at, now, Lang::En.texts());
        assert_eq!(
            (moment.day.as_str(), moment.time.as_str(), moment.millis.as_str()),
            ("2027-01-15", "08:00:00", ".123")
        );
        assert_eq!((moment.minute(), moment.short()), ("08:00", "08:00"));
        assert_eq!(moment.date, "", "today");
        assert_eq!(Moment::new(at, Timestamp::from_secs(1_800_086_400), Lang::En.texts()).date, "2027-01-15");
        assert_eq!(moment.relative, "89 s ago");
        assert_eq!(Moment::new(now, at, Lang::Zh.texts()).relative, "89 秒后");
    }
}
