//! The settings of a triggered run besides its parameters: a key, and an instant.

use std::time::Duration;

use crate::time::{Timestamp, format_duration, parse_duration};
use crate::word_enum::word_enum;

/// The longest key of a trigger, in bytes.
pub const KEY_LEN_MAX: usize = 200;
/// How far ahead a run may be triggered.
pub const AHEAD_MAX: Duration = Duration::from_secs(366 * 86_400);

word_enum! {
    /// What happens to a trigger if an open run of the job already has its key.
    IfOpen {
        /// It is refused.
        Refuse = "refuse",
        /// A new run gets the key, and the open one is asked to end.
        Replace = "replace",
        /// No run is created; the open run is returned.
        Keep = "keep",
    }
}

/// Checks the key of a trigger.
///
/// # Errors
/// A sentence that describes the allowed form.
///
/// ```
/// use rondel_core::request::check_key;
///
/// assert!(check_key("order-4711/mail").is_ok());
/// assert!(check_key("order 4711").is_err() && check_key("").is_err());
/// ```
pub fn check_key(key: &str) -> Result<(), String> {
    if !key.is_empty() && key.len() <= KEY_LEN_MAX && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let truncated_key: String = key.chars().take(KEY_LEN_MAX).collect();
    Err(format!("{truncated_key:?} is not a key: 1 to {KEY_LEN_MAX} visible ASCII characters without spaces"))
}

/// The instant of a run that a caller plans, such as `2026-03-08T07:00:00Z`, or `+10m` for ten minutes after now.
///
/// # Errors
/// A sentence, if the text has another form, or the instant has passed or is more than [`AHEAD_MAX`] ahead.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::request::parse_planned_at;
///
/// let now = Timestamp::from_secs(1_000);
/// assert_eq!(parse_planned_at("+10m", now), Ok(Timestamp::from_secs(1_600)));
/// assert_eq!(parse_planned_at("1970-01-01T01:00:00Z", now), Ok(Timestamp::from_secs(3_600)));
/// assert!(parse_planned_at("1970-01-01T00:00:00Z", now).is_err());
/// assert!(parse_planned_at("+400d", now).is_err() && parse_planned_at("10m", now).is_err());
/// ```
pub fn parse_planned_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let truncated_text: String = text.chars().take(60).collect();
    let format_error = || {
        format!("{truncated_text:?} is not an instant such as 2026-03-08T07:00:00Z, nor a time from now such as +10m")
    };
    let at = match text.strip_prefix('+') {
        Some(length) => {
            let length = parse_duration(length).map_err(|_| format_error())?;
            now + length.min(AHEAD_MAX + Duration::from_secs(1))
        }
        None => text.parse().map_err(|_| format_error())?,
    };
    if at < now {
        return Err(format!("{at} has passed: it is {now} now; leave it out to run immediately"));
    }
    if at > now + AHEAD_MAX {
        return Err(format!("{truncated_text:?} is more than {} ahead", format_duration(AHEAD_MAX)));
    }
    Ok(at)
}
