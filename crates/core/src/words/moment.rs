//! Instants as people read them.

use crate::cron::Tz;
use crate::local;
use crate::time::Timestamp;

/// What the zone's clock shows at an instant, with the zone: `2026-11-20 02:30 Europe/Berlin`. Seconds and thirds are
/// left out where they are 0.
///
/// ```
/// use rondel_core::cron::Tz;
/// use rondel_core::words::moment;
///
/// let at = "2026-11-20T18:30:00Z".parse()?;
/// assert_eq!(moment(Tz::UTC, at), "2026-11-20 18:30 UTC");
/// assert_eq!(moment(Tz::Asia__Shanghai, at), "2026-11-21 02:30 Asia/Shanghai");
/// # Ok::<(), rondel_core::TimeError>(())
/// ```
#[must_use]
pub fn moment(zone: Tz, at: Timestamp) -> String {
    let form = match at.as_millis() {
        millis if millis % 60_000 == 0 => "%Y-%m-%d %H:%M",
        millis if millis % 1_000 == 0 => "%Y-%m-%d %H:%M:%S",
        _ => "%Y-%m-%d %H:%M:%S%.3f",
    };
    format!("{} {}", local::shown(zone, at).format(form), zone.name())
}
