//! Instants in words.

use chrono::{LocalResult, NaiveDateTime, TimeZone as _};

use crate::cron::Tz;
use crate::local;
use crate::time::Timestamp;

/// The local time of an instant, with its zone: `2026-11-20 02:30 Europe/Berlin`. Seconds and milliseconds are left out if they are 0. If the
/// clock shows the time twice, its offset follows the time.
///
/// ```
/// use rondel_core::cron::Tz;
/// use rondel_core::words::instant_text;
///
/// let at = "2026-11-20T18:30:00Z".parse()?;
/// assert_eq!(instant_text(Tz::UTC, at), "2026-11-20 18:30 UTC");
/// assert_eq!(instant_text(Tz::Asia__Shanghai, at), "2026-11-21 02:30 Asia/Shanghai");
///
/// let (first, second) = ("2026-10-25T00:30:00Z".parse()?, "2026-10-25T01:30:00Z".parse()?);
/// assert_eq!(instant_text(Tz::Europe__Berlin, first), "2026-10-25 02:30+02:00 Europe/Berlin");
/// assert_eq!(instant_text(Tz::Europe__Berlin, second), "2026-10-25 02:30+01:00 Europe/Berlin");
/// # Ok::<(), rondel_core::TimeError>(())
/// ```
#[must_use]
pub fn instant_text(zone: Tz, at: Timestamp) -> String {
    let format = match at.as_millis() {
        millis if millis % 60_000 == 0 => "%Y-%m-%d %H:%M",
        millis if millis % 1_000 == 0 => "%Y-%m-%d %H:%M:%S",
        _ => "%Y-%m-%d %H:%M:%S%.3f",
    };
    let local = local::time_at(zone, at);
    let offset = match zone.from_local_datetime(&local) {
        LocalResult::Ambiguous(first, second) => {
            let instant = if first.timestamp_millis() == at.as_millis() { first } else { second };
            instant.format("%:z").to_string()
        }
        LocalResult::Single(_) | LocalResult::None => String::new(),
    };
    format!("{}{offset} {}", local.format(format), zone.name())
}

/// The instants at which the zone's clock shows a time that is written as `2026-11-21T02:30`, with or without seconds: two if
/// the clock shows it twice, and none if the clock skips it. `None` for text that is not a date and time, or outside of the
/// years 1970 to 2199.
///
/// ```
/// use rondel_core::cron::Tz;
/// use rondel_core::words::instants;
///
/// let shown = |text| instants(Tz::Europe__Berlin, text).map(|found| found.len());
/// assert_eq!(shown("2026-11-21T02:30"), Some(1));
/// assert_eq!(shown("2026-10-25T02:30:00"), Some(2));
/// assert_eq!(shown("2026-03-29T02:30"), Some(0));
/// assert_eq!(shown("02:30"), None);
/// ```
#[must_use]
pub fn instants(zone: Tz, text: &str) -> Option<Vec<Timestamp>> {
    let parse = |format| NaiveDateTime::parse_from_str(text, format).ok();
    let local = parse("%Y-%m-%dT%H:%M").or_else(|| parse("%Y-%m-%dT%H:%M:%S%.f"))?;
    let to_timestamp = |at: chrono::DateTime<Tz>| Timestamp::from_millis(at.timestamp_millis());
    let found_instants = match zone.from_local_datetime(&local) {
        LocalResult::Single(at) => vec![to_timestamp(at)],
        LocalResult::Ambiguous(first, second) => vec![to_timestamp(first), to_timestamp(second)],
        LocalResult::None => Vec::new(),
    };
    let printable_range = Timestamp::EPOCH..Timestamp::from_secs(7_258_118_400);
    let is_in_range = printable_range.contains(&Timestamp::from_millis(local.and_utc().timestamp_millis()));
    (is_in_range && found_instants.iter().all(|at| printable_range.contains(at))).then_some(found_instants)
}
