//! Converts an executor's log line to one that the server can store.

use rondel_core::Timestamp;
use rondel_proto::v1;
use rondel_store::logs::{LEVELS, LogLine};

/// The longest text of one line, in bytes. The SDK cuts lines at a quarter of it.
const TEXT_BYTES_MAX: usize = 64 * 1024;
/// The level that is stored for a line whose level is unknown.
const LEVEL_DEFAULT: &str = "info";

/// The instant of a line, or `now` if the executor states no instant, or an instant outside the range of the calendar.
pub(super) fn line_instant(at_ms: i64, now: Timestamp) -> Timestamp {
    let at = Timestamp::from_millis(at_ms);
    if at_ms != 0 && at.to_utc().is_some() { at } else { now }
}

/// The line with a known level, a valid instant, and a text of bounded length.
pub(super) fn bounded_line(line: v1::LogLine, now: Timestamp) -> LogLine {
    let level = LEVELS.into_iter().find(|level| *level == line.level).unwrap_or(LEVEL_DEFAULT);
    let mut text = line.text;
    if text.len() > TEXT_BYTES_MAX {
        let excess_len = text.len() - TEXT_BYTES_MAX;
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        text.push_str(&format!(" … ({excess_len} bytes more were dropped)"));
        text.shrink_to_fit();
    }
    LogLine { at: line_instant(line.at_ms, now), level: level.to_owned(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn line(at_ms: i64, level: &str, text: String) -> LogLine {
        bounded_line(v1::LogLine { at_ms, level: level.to_owned(), text }, NOW)
    }

    #[test]
    fn a_line_of_an_executor_is_kept_as_it_is() {
        let kept = LogLine { at: Timestamp::from_secs(7), level: "stderr".to_owned(), text: "a".to_owned() };
        assert_eq!(line(7_000, "stderr", "a".to_owned()), kept);
    }

    #[test]
    fn level_text_and_instant_are_bounded() {
        let cut = line(i64::MAX, &"L".repeat(14_000_000), "é".repeat(TEXT_BYTES_MAX));
        assert_eq!((cut.at, cut.level.as_str()), (NOW, LEVEL_DEFAULT));
        assert!(cut.text.len() < TEXT_BYTES_MAX + 64 && cut.text.ends_with("65536 bytes more were dropped)"));
        let without_instant = line(0, "evil\n", String::new());
        assert_eq!((without_instant.at, without_instant.level.as_str()), (NOW, LEVEL_DEFAULT));
    }
}
