//! Instants and durations as the whole product writes them.
//!
//! An instant is a [`Timestamp`]: milliseconds since 1970 in UTC, the granularity of every `_at_ms` column. Lengths are
//! [`std::time::Duration`]. Neither reads a clock: decisions get the current instant as an argument.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

/// An instant in UTC with millisecond granularity.
///
/// ```
/// use rondel_core::Timestamp;
///
/// let at: Timestamp = "2026-03-08T07:00:00Z".parse()?;
/// assert_eq!(at.as_millis(), 1_772_953_200_000);
/// assert_eq!(at.to_string(), "2026-03-08T07:00:00Z");
/// # Ok::<(), rondel_core::TimeError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

/// A text that is not an instant or a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// Not RFC 3339.
    #[error("{0:?} is not an RFC 3339 instant such as 2026-03-08T07:00:00Z")]
    Instant(String),
    /// Not a duration.
    #[error("{0:?} is not a duration such as 30s, 5m or 1h30m")]
    Duration(String),
}

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// Later than every instant that a schedule can give (the end of the year 9999).
    pub const MAX: Self = Self(253_402_300_799_999);

    /// The instant `millis` milliseconds after the start of 1970.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// The instant `seconds` seconds after the start of 1970.
    #[must_use]
    pub const fn from_secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The whole second that this instant lies in, as seconds since 1970.
    #[must_use]
    pub const fn second(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// This instant, or the next whole second if it lies between two.
    #[must_use]
    pub const fn ceil_second(self) -> Self {
        Self::from_secs(self.0.saturating_add(999).div_euclid(1000))
    }

    /// This instant, rounded down to a multiple of `length` since 1970.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use rondel_core::Timestamp;
    /// let at: Timestamp = "2026-03-01T10:59:59Z".parse()?;
    /// assert_eq!(at.floor(Duration::from_secs(4 * 3_600)), "2026-03-01T08:00:00Z".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn floor(self, length: Duration) -> Self {
        let length = millis(length).max(1);
        Self(self.0.div_euclid(length).saturating_mul(length))
    }

    /// The length from `earlier` to `self`; zero if `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// `self + length`, stopping at the ends of the range.
    #[must_use]
    pub fn saturating_add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(millis(length)))
    }

    /// `self - length`, stopping at the ends of the range.
    #[must_use]
    pub fn saturating_sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(millis(length)))
    }

    /// This instant for calendar arithmetic; `None` outside the calendar's range.
    #[must_use]
    pub fn to_utc(self) -> Option<DateTime<Utc>> {
        DateTime::from_timestamp_millis(self.0)
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(at: DateTime<Utc>) -> Self {
        Self(at.timestamp_millis())
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, length: Duration) -> Self {
        self.saturating_add(length)
    }
}

impl std::ops::Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, length: Duration) -> Self {
        self.saturating_sub(length)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_utc() {
            Some(at) if self.0.rem_euclid(1000) == 0 => f.write_str(&at.to_rfc3339_opts(SecondsFormat::Secs, true)),
            Some(at) => f.write_str(&at.to_rfc3339_opts(SecondsFormat::Millis, true)),
            None => write!(f, "{}ms", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let at = DateTime::parse_from_rfc3339(text).map_err(|_| TimeError::Instant(text.to_owned()))?;
        Ok(Self(at.timestamp_millis()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The earlier of two instants, each of which may be absent; `None` if both are.
#[must_use]
pub fn earlier_of(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A length in whole milliseconds, as SQL and the wire carry it.
#[must_use]
pub fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

/// Reads a duration such as `"30s"`, `"5m"`, `"1h30m"`.
///
/// # Errors
/// [`TimeError::Duration`] for anything else, a bare number included: the unit is part of the value.
pub fn parse_duration(text: &str) -> Result<Duration, TimeError> {
    // The parts are added here, because `humantime` panics for some sums that are too long: 18446744073709551615s1000ms.
    let add = |sum: Duration, part: &str| {
        // `humantime` takes a bare 0, which is a duration only if it is the whole text.
        let has_unit = part != "0" || text == "0";
        sum.checked_add(humantime::parse_duration(part).ok().filter(|_| has_unit)?)
    };
    duration_parts(text).try_fold(Duration::ZERO, add).ok_or_else(|| TimeError::Duration(text.to_owned()))
}

/// The numbers of a duration, each with its unit: `"1h"` and `"30m"` for `"1h30m"`. Each part ends before the first digit after a letter.
fn duration_parts(text: &str) -> impl Iterator<Item = &str> {
    let mut remaining_text = Some(text);
    std::iter::from_fn(move || {
        let text = remaining_text?;
        let unit_start = text.find(char::is_alphabetic).unwrap_or(text.len());
        let end = text[unit_start..].find(|c: char| c.is_ascii_digit()).map(|digit| unit_start + digit);
        remaining_text = end.map(|end| &text[end..]);
        Some(&text[..end.unwrap_or(text.len())])
    })
}

/// Writes a duration so that [`parse_duration`] reads it back, without spaces: `"1h30m"`. Days are its longest unit: a month of
/// `humantime` has 30.44 days, and `"40days"` would come back as `"1month9days13h26m24s"`.
#[must_use]
pub fn format_duration(length: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let days = length.as_secs() / DAY;
    let length_within_day = length - Duration::from_secs(days * DAY);
    let days_text = match days {
        0 => return humantime::format_duration(length_within_day).to_string().replace(' ', ""),
        1 => "1day".to_owned(),
        _ => format!("{days}days"),
    };
    if length_within_day.is_zero() {
        days_text
    } else {
        days_text + &humantime::format_duration(length_within_day).to_string().replace(' ', "")
    }
}

/// `#[serde(with = "…")]` for durations written as text.
pub mod duration_text {
    use super::{Duration, format_duration, parse_duration};
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes `"30s"`.
    ///
    /// # Errors
    /// The error of the serializer.
    pub fn serialize<S: Serializer>(length: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*length))
    }

    /// Reads a duration such as `"30s"`.
    ///
    /// # Errors
    /// A text that is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_up_to_the_second() {
        for (millis, second) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (-1, 0), (-1000, -1)] {
            assert_eq!(Timestamp::from_millis(millis).ceil_second(), Timestamp::from_secs(second), "{millis}");
        }
    }

    #[test]
    fn an_absent_instant_is_not_the_earlier_one() {
        let (one, two) = (Timestamp::from_secs(1), Timestamp::from_secs(2));
        for (a, b, earlier) in [(Some(two), Some(one), Some(one)), (Some(two), None, Some(two)), (None, None, None)] {
            assert_eq!((earlier_of(a, b), earlier_of(b, a)), (earlier, earlier));
        }
    }

    #[test]
    fn durations_are_read_back() {
        for text in ["30s", "5m", "1h30m", "250ms", "1day", "2days", "40days", "400days6h", "366days"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["", "30", "-1s", "s", "1 fortnight"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn parts_of_a_duration_are_added_and_too_long_a_sum_is_refused() {
        for (text, ms) in [("1h 30m", 5_400_000), ("1 h30m 1.5s", 5_401_500), (" 1m5 ms ", 60_005), ("0", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text:?}");
        }
        for text in ["1h0", "5m 0", "0 0"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_duration(&format!("{}s", u64::MAX)), Ok(Duration::from_secs(u64::MAX)));
        for end in ["1000ms", " 999999999ns 1ns", "1s", "s", "1", "µs"] {
            let text = format!("{}s{end}", u64::MAX);
            assert_eq!(parse_duration(&text), Err(TimeError::Duration(text)));
        }
    }
}
