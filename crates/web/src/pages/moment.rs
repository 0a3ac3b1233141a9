//! Instants and lengths as pages show them: absolute in UTC, and as seen from now.

use std::time::Duration;

use rondel_core::Timestamp;

use super::texts::Texts;

/// An instant on a page.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// For programs.
    pub(crate) iso: String,
    /// For readers, in UTC: the date, the time, and the milliseconds.
    pub(crate) date: String,
    pub(crate) time: String,
    pub(crate) millis: String,
    /// As seen from now.
    pub(crate) relative: String,
}

impl Moment {
    pub(crate) fn new(at: Timestamp, now: Timestamp, t: &Texts) -> Self {
        let iso = at.to_string();
        let text = at.to_utc().map(|at| at.format("%Y-%m-%d %H:%M:%S .%3f").to_string()).unwrap_or_default();
        let mut parts = text.split(' ').map(str::to_owned);
        let mut part = || parts.next().unwrap_or_default();
        Self { iso, date: part(), time: part(), millis: part(), relative: relative(at, now, t) }
    }
}

/// `in 5 s`, `5 s ago`.
fn relative(at: Timestamp, now: Timestamp, t: &Texts) -> String {
    if at > now { t.rel_in(coarse(at.since(now), t)) } else { t.rel_ago(coarse(now.since(at), t)) }
}

/// A length by its largest unit. The page's script counts on in the same words.
fn coarse(length: Duration, t: &Texts) -> String {
    let seconds = length.as_secs();
    let (count, unit) = match seconds {
        0..=89 => (seconds, t.unit_s),
        90..=5399 => ((seconds + 30) / 60, t.unit_min),
        5400..=129_599 => ((seconds + 1800) / 3600, t.unit_h),
        _ => ((seconds + 43_200) / 86_400, t.unit_d),
    };
    format!("{count} {unit}")
}

/// A length by its two largest units.
pub(crate) fn length(length: Duration, t: &Texts) -> String {
    let (millis, seconds) = (length.as_millis(), length.as_secs());
    match seconds {
        0 => format!("{millis} {}", t.unit_ms),
        1..=9 => format!("{}.{:02} {}", seconds, (millis % 1000) / 10, t.unit_s),
        10..=59 => format!("{}.{} {}", seconds, (millis % 1000) / 100, t.unit_s),
        60..=3599 => format!("{} {} {} {}", seconds / 60, t.unit_min, seconds % 60, t.unit_s),
        3600..=86_399 => format!("{} {} {} {}", seconds / 3600, t.unit_h, seconds % 3600 / 60, t.unit_min),
        _ => format!("{} {} {} {}", seconds / 86_400, t.unit_d, seconds % 86_400 / 3600, t.unit_h),
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
            (125_000, "2 min 5 s"),
            (7_260_000, "2 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(length(Duration::from_millis(millis), t), expected);
        }
    }

    #[test]
    fn an_instant_is_shown_absolute_and_from_now() {
        let (at, now) = (Timestamp::from_millis(1_800_000_000_123), Timestamp::from_secs(1_800_000_090));
        let moment = Moment::new(at, now, Lang::En.texts());
        assert_eq!(
            (moment.date.as_str(), moment.time.as_str(), moment.millis.as_str()),
            ("2027-01-15", "08:00:00", ".123")
        );
        assert_eq!(moment.relative, "89 s ago");
        assert_eq!(Moment::new(now, at, Lang::Zh.texts()).relative, "89 秒后");
    }
}
