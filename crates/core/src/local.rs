//! Conversions between instants and a zone's local times, for days and times of day; cron has its own, faster ones.

use chrono::{Duration, LocalResult, NaiveDateTime, TimeZone};

use crate::cron::Tz;
use crate::schedule::just_before;
use crate::time::Timestamp;

/// The local time of a zone at an instant.
pub(crate) fn time_at(zone: Tz, at: Timestamp) -> NaiveDateTime {
    let utc = at.to_utc().map(|at| at.naive_utc()).unwrap_or_default();
    zone.from_utc_datetime(&utc).naive_local()
}

/// The last instant before a zone's clock shows `edge`, a local time that is later than the one at `at`. If the clock is set
/// back in between to times before that of `at`, returns `at`: facts about the local times from `at` to `edge` need not hold
/// for those earlier times.
pub(crate) fn last_before(zone: Tz, at: Timestamp, edge: NaiveDateTime) -> Timestamp {
    let last_before_edge = just_before(instant(zone, edge)).max(at);
    let last_millis =
        zone.from_local_datetime(&time_at(zone, at)).latest().map(|last_instant| last_instant.timestamp_millis());
    let is_set_back = last_millis
        .is_some_and(|last_millis| at.as_millis() < last_millis && last_millis <= last_before_edge.as_millis());
    if is_set_back { at } else { last_before_edge }
}

/// The instant of a local time: the first one if the zone's clock shows it twice, and the first one after the gap if it never does.
pub(crate) fn instant(zone: Tz, local: NaiveDateTime) -> Timestamp {
    let at = |local: NaiveDateTime| match zone.from_local_datetime(&local) {
        LocalResult::Single(at) | LocalResult::Ambiguous(at, _) => Some(Timestamp::from_millis(at.timestamp_millis())),
        LocalResult::None => None,
    };
    if let Some(at) = at(local) {
        return at;
    }
    // A gap ends on a whole minute, and is never longer than a day.
    let minute = local - Duration::nanoseconds(local.and_utc().timestamp_nanos_opt().unwrap_or(0) % 60_000_000_000);
    (1..=1_440)
        .find_map(|minutes| at(minute + Duration::minutes(minutes)))
        .unwrap_or_else(|| Timestamp::from(local.and_utc()))
}
