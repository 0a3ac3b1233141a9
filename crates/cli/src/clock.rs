//! The current time, and the distance of an instant from it as text.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::SecondsFormat;
use rondel_core::Timestamp;

/// The current time by this machine's clock: for display, never for the engine.
pub(crate) fn now() -> Timestamp {
    chrono::Utc::now().into()
}

static SHOWS_UTC: AtomicBool = AtomicBool::new(false);

/// Chooses whether times are shown in UTC or in the zone of this machine; set once, before anything is printed.
pub(crate) fn set_display_in_utc(is_utc: bool) {
    SHOWS_UTC.store(is_utc, Ordering::Relaxed);
}

/// An instant for display, in the zone that [`set_display_in_utc`] has chosen and with the zone's offset.
pub(crate) fn local_text(at: Timestamp) -> String {
    let local_time =
        at.to_utc().filter(|_| !SHOWS_UTC.load(Ordering::Relaxed)).map(|utc| utc.with_timezone(&chrono::Local));
    match local_time {
        Some(local_time) if local_time.offset().local_minus_utc() != 0 => {
            local_time.to_rfc3339_opts(SecondsFormat::AutoSi, false)
        }
        _ => at.to_string(),
    }
}

/// The distance of an instant from now: `in 12s`, `3m ago`, `now`.
pub(crate) fn relative_text(at: Timestamp, now: Timestamp) -> String {
    let (time_until, time_since) = (at.since(now), now.since(at));
    if time_until >= Duration::from_secs(1) {
        format!("in {}", rough_text(time_until))
    } else if time_since >= Duration::from_secs(1) {
        format!("{} ago", rough_text(time_since))
    } else {
        "now".to_owned()
    }
}

/// A length in its two largest units: `850ms`, `12s`, `3m5s`, `2h`, `5d4h`.
pub(crate) fn rough_text(length: Duration) -> String {
    let seconds = length.as_secs();
    let units = [("d", seconds / 86_400), ("h", seconds / 3600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let Some(largest_index) = units.iter().position(|(_, count)| *count > 0) else {
        return format!("{}ms", length.subsec_millis());
    };
    let shown_units = units.iter().skip(largest_index).take(2).filter(|(_, count)| *count > 0);
    shown_units.map(|(unit, count)| format!("{count}{unit}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_read_well() {
        let now = Timestamp::from_secs(1_000_000);
        for (seconds, text) in
            [(0, "now"), (12, "in 12s"), (-185, "3m5s ago"), (7200, "in 2h"), (-446_400, "5d4h ago"), (3601, "in 1h")]
        {
            assert_eq!(relative_text(Timestamp::from_secs(1_000_000 + seconds), now), text);
        }
        assert_eq!(rough_text(Duration::from_millis(850)), "850ms");
    }
}
