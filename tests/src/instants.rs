//! Instants and lengths as the API writes them, as milliseconds.

/// Milliseconds since 1970 of an RFC 3339 instant in UTC (`2026-03-08T07:00:00Z`, `….250Z`); none for anything else.
#[must_use]
pub fn millis(instant: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| instant.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    // Days from 1970 by the civil calendar: March is the first month, so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let seconds = days * 86_400 + number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?;
    let fraction = instant.get(19..)?.strip_suffix('Z')?;
    let fraction = match fraction.strip_prefix('.') {
        None if fraction.is_empty() => 0,
        Some(digits) => format!("{digits:0<3}").get(..3)?.parse().ok()?,
        None => return None,
    };
    Some(seconds * 1_000 + fraction)
}

/// Milliseconds of a length such as `250ms`, `1s`, `1m 30s` or `1h30m`; none for anything else.
#[must_use]
pub fn length_millis(text: &str) -> Option<i64> {
    let mut total = 0;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let (number, behind) = rest.split_at(digits);
        let unit_len = behind.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_len);
        let factor = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total += number.parse::<i64>().ok()? * factor;
        rest = behind.trim_start();
    }
    Some(total)
}

/// The current time by this host's wall clock, which journals use too.
#[expect(clippy::disallowed_methods, reason = "ground truth is the wall clock")]
#[must_use]
pub fn wall_clock_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The instant this far ahead, by this host's clock, in the form that the API reads.
///
/// # Panics
/// If the program `date` is missing.
#[must_use]
pub fn instant_in(length: std::time::Duration) -> String {
    instant_at(wall_clock_ms() + i64::try_from(length.as_millis()).expect("short"))
}

/// The instant this many milliseconds after 1970, in the form that the API reads.
///
/// # Panics
/// If the program `date` is missing.
#[must_use]
pub fn instant_at(ms: i64) -> String {
    let at = format!("@{}.{:03}", ms / 1_000, ms % 1_000);
    let output = std::process::Command::new("date").args(["-u", "-d", &at, "+%Y-%m-%dT%H:%M:%S.%3NZ"]).output();
    String::from_utf8_lossy(&output.expect("date runs").stdout).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_lengths_are_read() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-03-08T07:00:00Z", Some(1_772_953_200_000)),
            ("2028-02-29T23:59:59.5Z", Some(1_835_481_599_500)),
            ("2028-02-29T23:59:59.123456Z", Some(1_835_481_599_123)),
            ("2028-02-29T23:59:59+01:00", None),
            ("soon", None),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
        for (text, expected) in [
            ("1s", Some(1_000)),
            ("250ms", Some(250)),
            ("1m 30s", Some(90_000)),
            ("1h30m", Some(5_400_000)),
            ("x", None),
        ] {
            assert_eq!(length_millis(text), expected, "{text}");
        }
    }
}
