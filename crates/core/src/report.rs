//! Reports over days and months: when the weekly report is sent and which days it covers, what counts as on time, and how
//! messages of failed runs are folded: parts that differ from run to run become a placeholder.

use std::time::Duration;

use chrono::Days;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alert::deadline::Deadline;
use crate::calendar::Weekday;
use crate::cron::{Tz, parse_zone};
use crate::field_error::FieldError;
use crate::local;
use crate::notice::cut;
use crate::time::Timestamp;
use crate::{name, sketch::Sketch};

/// The longest folded message, in bytes of UTF-8.
pub const FOLDED_BYTES_MAX: usize = 200;
/// Maximum number of folded messages of a job and app that are counted separately on a day; further ones are counted together.
pub const FOLDED_COUNT_MAX: usize = 10;
/// The key under which further messages are counted together.
pub const REST_KEY: i64 = 0;
/// A fire that begins no later than this after its planned instant is on time, unless the report names another bound.
pub const ON_TIME_DEFAULT: Duration = Duration::from_secs(10);
/// Placeholder for numbers, ids and instants in a folded message.
const PLACEHOLDER: char = '#';
/// Maximum number of bytes of a message that are folded; the rest is ignored.
const READ_BYTES_MAX: usize = 2_000;

/// When the report of a namespace is sent, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReportSchedule", description = "When the weekly report of a namespace is sent, and where.")]
pub struct ReportSchedule {
    /// The day of the week.
    pub weekday: Weekday,
    /// The time of day, `HH:MM`.
    pub time: String,
    /// The zone of the time and of the seven days that the report covers.
    #[serde(default = "utc")]
    pub zone: String,
    /// The channel that it is sent to.
    pub channel: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

impl ReportSchedule {
    /// Checks the schedule.
    ///
    /// # Errors
    ///
    /// Each invalid field, with the values that it accepts.
    pub fn check(&self) -> Result<(), Vec<FieldError>> {
        let mut errors = Vec::new();
        if let Err((field, message)) = self.deadline() {
            errors.push(FieldError::new(format!("/{field}"), message));
        }
        if let Err(error) = name::check(&self.channel) {
            errors
                .push(FieldError::new("/channel", format!("{:?} is not the name of a channel: {error}", self.channel)));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    /// When it is next sent after an instant. If the clock skips the local time on that day, it is sent at the first instant
    /// after the gap; if the clock shows the time twice, at the first of the two instants.
    #[must_use]
    pub fn next_after(&self, after: Timestamp) -> Option<Timestamp> {
        self.deadline().ok()?.next_after(after, |_| true)
    }

    /// The seven whole days before the day of `at`, in the zone: their beginning and their end.
    #[must_use]
    pub fn days_before(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let zone: Tz = parse_zone(&self.zone).unwrap_or(Tz::UTC);
        let day = local::time_at(zone, at).date();
        let start = |day: chrono::NaiveDate| local::instant(zone, day.and_time(chrono::NaiveTime::MIN));
        (day.checked_sub_days(Days::new(7)).map_or(at, start), start(day))
    }

    fn deadline(&self) -> Result<Deadline, (&'static str, String)> {
        Deadline::parse(&self.time, &self.zone, &[self.weekday])
    }
}

/// The shares of runs that succeeded and of fires that were on time, in per mille; `None` if there were none to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerMilleShares {
    /// Runs that succeeded, of all that were not cancelled; skipped fires count as not succeeded.
    pub succeeded: Option<u32>,
    /// Scheduled fires whose handler began within the bound; fires that were skipped before they began count as late.
    pub on_time: Option<u32>,
}

impl PerMilleShares {
    /// Computes the shares from the counts of a period: runs that succeeded, runs that failed in any way, and fires
    /// that were skipped; and from the lateness of all that began, with the number of skipped fires that did not begin.
    #[must_use]
    pub fn of(
        (succeeded_count, failed_count, skipped_count): (u64, u64, u64),
        (lateness, not_begun_count): (&Sketch, u64),
        bound: Duration,
    ) -> Self {
        Self {
            succeeded: per_mille(succeeded_count, succeeded_count + failed_count + skipped_count),
            on_time: per_mille(lateness.count_within(bound), lateness.count() + not_begun_count),
        }
    }
}

/// The share in per mille, rounded down, so that 1,000 means all of them.
fn per_mille(part: u64, total: u64) -> Option<u32> {
    let share = (u128::from(part) * 1_000).checked_div(u128::from(total))?;
    u32::try_from(share).ok()
}

/// Folds a message: numbers, ids, instants and addresses, which differ from run to run, become `#`; white space and
/// control characters become one space. The result has at most [`FOLDED_BYTES_MAX`] bytes.
///
/// ```
/// use rondel_core::report::fold;
///
/// assert_eq!(fold("order 4711 failed after 3.5s"), "order # failed after #s");
/// assert_eq!(fold("no row 550e8400-e29b-41d4-a716-446655440000 at 2026-11-22T10:00:00Z"), "no row # at #");
/// ```
#[must_use]
pub fn fold(message: &str) -> String {
    let mut folded_message = String::with_capacity(message.len().min(FOLDED_BYTES_MAX * 2));
    let message = &message[..message.floor_char_boundary(READ_BYTES_MAX)];
    let words = message.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    for (index, word) in words.enumerate() {
        if index > 0 {
            folded_message.push(' ');
        }
        fold_word(word, &mut folded_message);
    }
    cut(&folded_message, FOLDED_BYTES_MAX)
}

/// The key of a folded message: the same on all servers, and never [`REST_KEY`].
#[must_use]
pub fn fold_key(folded_message: &str) -> i64 {
    // FNV-1a.
    let hash = folded_message
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    i64::try_from(hash >> 1).unwrap_or(1).max(1)
}

fn fold_word(word: &str, folded_message: &mut String) {
    if !word.bytes().any(|byte| byte.is_ascii_digit()) {
        folded_message.push_str(word);
        return;
    }
    let mut remaining_text = word;
    let mut follows_value = false;
    while let Some(first_char) = remaining_text.chars().next() {
        let length = remaining_text.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(remaining_text.len());
        if length == 0 {
            // A character that joins two numbers (of a date, a time, an address or an id) belongs to them.
            let is_joiner = follows_value && matches!(first_char, '-' | ':' | '.' | '+' | ',');
            let (_, text_after) = remaining_text.split_at(first_char.len_utf8());
            let token_end = text_after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(text_after.len());
            let next_token = &text_after[..token_end];
            if !(is_joiner && (is_value(next_token) || next_token.starts_with(|c: char| c.is_ascii_digit()))) {
                folded_message.push(first_char);
                follows_value = false;
            }
            remaining_text = text_after;
            continue;
        }
        let (token, text_after) = remaining_text.split_at(length);
        if is_value(token) {
            if !follows_value {
                folded_message.push(PLACEHOLDER);
            }
            follows_value = true;
        } else {
            fold_digits(token, folded_message);
            // A value ends with its unit, as `3.5s` does.
            follows_value = false;
        }
        remaining_text = text_after;
    }
}

/// Whether a token is a number, a hexadecimal id, or one of the two halves of an instant.
fn is_value(token: &str) -> bool {
    let has_digit = token.bytes().any(|byte| byte.is_ascii_digit());
    let is_hex = token.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = token.bytes().all(|byte| byte.is_ascii_digit());
    let is_instant_part = token.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'T' | b'Z'));
    let is_hex_number = token.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    has_digit && (is_number || is_instant_part || is_hex_number || is_hex && token.len() >= 4)
}

/// Replaces the digits within a word: `node7` becomes `node#`.
fn fold_digits(token: &str, folded_message: &mut String) {
    let mut follows_digit = false;
    for c in token.chars() {
        let is_digit = c.is_ascii_digit();
        if !is_digit {
            folded_message.push(c);
        } else if !follows_digit && !folded_message.ends_with(PLACEHOLDER) {
            folded_message.push(PLACEHOLDER);
        }
        follows_digit = is_digit;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_same_failure_folds_to_the_same_message() {
        for (message, folded) in [
            ("exit status 1", "exit status #"),
            ("connect to 10.0.0.7:5432: refused", "connect to #: refused"),
            ("  line\tone\nline  two ", "line one line two"),
            ("run 7401234567890123 of node7 failed", "run # of node# failed"),
            ("sha 4f2a9c1e0b gone", "sha # gone"),
            ("at 0xdeadbeef", "at #"),
            ("2026-11-22 10:00:00.123+01:00 timeout", "# # timeout"),
            ("took 3.5s, allowed 3s", "took #s, allowed #s"),
            ("任务 42 失败", "任务 # 失败"),
            ("face the facade", "face the facade"),
            ("HTTP 503 from https://a1.example/v2/x?id=9", "HTTP # from https://a#.example/v#/x?id=#"),
            ("a\u{0}b\u{7}", "a b"),
            ("", ""),
        ] {
            assert_eq!(fold(message), folded, "{message}");
        }
    }

    #[test]
    fn a_week_has_seven_local_days_also_when_the_clock_changes() {
        let schedule = |zone: &str| ReportSchedule {
            weekday: Weekday::Mon,
            time: "02:30".to_owned(),
            zone: zone.to_owned(),
            channel: "mail".to_owned(),
        };
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (zone, after, next, from, to) in [
            // Summer time begins on Sunday, 29 March 2026: that week is an hour shorter.
            (
                "Europe/Berlin",
                "2026-03-26T00:00:00Z",
                "2026-03-30T00:30:00Z",
                "2026-03-22T23:00:00Z",
                "2026-03-29T22:00:00Z",
            ),
            // Summer time ends on Sunday, 25 October: that week is an hour longer.
            (
                "Europe/Berlin",
                "2026-10-20T00:00:00Z",
                "2026-10-26T01:30:00Z",
                "2026-10-18T22:00:00Z",
                "2026-10-25T23:00:00Z",
            ),
            ("UTC", "2026-11-23T02:30:00Z", "2026-11-30T02:30:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (
                "Asia/Shanghai",
                "2026-11-22T00:00:00Z",
                "2026-11-22T18:30:00Z",
                "2026-11-15T16:00:00Z",
                "2026-11-22T16:00:00Z",
            ),
        ] {
            let schedule = schedule(zone);
            let found = schedule.next_after(at(after)).unwrap();
            assert_eq!((found, schedule.days_before(found)), (at(next), (at(from), at(to))), "{zone} {after}");
        }
    }

    #[test]
    fn a_wrong_schedule_is_refused_by_its_fields() {
        let wrong = ReportSchedule {
            weekday: Weekday::Mon,
            time: "25:00".to_owned(),
            zone: "UTC".to_owned(),
            channel: "no name".to_owned(),
        };
        let errors = wrong.check().unwrap_err();
        let fields: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(fields, ["/time", "/channel"]);
        let elsewhere = ReportSchedule { time: "08:00".to_owned(), zone: "Mars/Base".to_owned(), ..wrong };
        assert_eq!(elsewhere.check().unwrap_err()[0].pointer, "/zone");
    }

    #[test]
    fn shares_are_rounded_down_and_absent_without_runs() {
        let mut lateness = Sketch::default();
        for millis in [0, 5, 900, 60_000] {
            lateness.add(Duration::from_millis(millis));
        }
        let kept = PerMilleShares::of((999, 1, 0), (&lateness, 0), Duration::from_secs(10));
        assert_eq!((kept.succeeded, kept.on_time), (Some(999), Some(750)));
        assert_eq!(PerMilleShares::of((9_999, 0, 1), (&lateness, 1), Duration::ZERO).succeeded, Some(999));
        let hour = Duration::from_secs(3_600);
        assert_eq!(PerMilleShares::of((1, 0, 4), (&lateness, 4), hour).on_time, Some(500));
        assert_eq!(
            PerMilleShares::of((1, 0, 4), (&lateness, 1), hour).on_time,
            Some(800),
            "three began and were skipped"
        );
        let none = PerMilleShares::of((0, 0, 0), (&Sketch::default(), 0), Duration::ZERO);
        assert_eq!(none, PerMilleShares::default());
    }

    proptest! {
        #[test]
        fn any_message_folds_within_bounds(message in "\\PC{0,400}") {
            let folded = fold(&message);
            prop_assert!(folded.len() <= FOLDED_BYTES_MAX);
            prop_assert!(!folded.bytes().any(|byte| byte.is_ascii_digit()), "{}", folded);
            prop_assert!(fold_key(&folded) != REST_KEY);
        }

        #[test]
        fn other_numbers_fold_to_the_same(one in 0_u64.., two in 0_u64..) {
            let message = |number: u64| fold(&format!("row {number}: order={number} at 10.0.0.{}", number % 256));
            prop_assert_eq!(message(one), message(two));
        }
    }
}
