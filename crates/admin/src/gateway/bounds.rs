//! Limits on what an executor reports about itself: every field of a hello is stored, kept in memory and listed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rondel_core::{AppId, ExecutorId, Timestamp, TokenId, name, plain};
use rondel_proto::v1;
use tonic::Status;

/// Maximum number of streams that executors with one token may open within a second.
const HELLO_RATE_MAX: u32 = 100;
const SLOTS_MAX: u32 = 100_000;
const HANDLER_COUNT_MAX: usize = 1_000;
const LABEL_COUNT_MAX: usize = 100;
const LABEL_NAME_LEN_MAX: usize = 100;
/// The longest value of a label, in bytes.
pub const LABEL_VALUE_LEN_MAX: usize = 200;
const SECRET_LEN_MAX: usize = 256;
const VERSION_LEN_MAX: usize = 100;
/// Maximum total size of the handlers and labels of one executor, in bytes.
const ROW_BYTES_MAX: usize = 64 * 1024;
/// Maximum total size of the rows of those executors of an app that use the same token, in bytes.
const APP_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Size of a row without its handlers and labels, in bytes.
const ROW_OVERHEAD: usize = 256;
/// How long after its last hello the row of an offline executor still counts.
const ROW_COUNTS_FOR: Duration = Duration::from_secs(3600);
/// Maximum number of characters that are shown of a rejected value.
const EXCERPT_LEN_MAX: usize = 60;

/// Rejects a hello with a field that is malformed or too large.
pub(super) fn check(hello: &v1::Hello) -> Result<(), Status> {
    for (field, value) in [("namespace", &hello.namespace), ("app", &hello.app), ("name", &hello.name)] {
        name::check(value).map_err(|message| field_error(field, &truncate(&message, 4 * EXCERPT_LEN_MAX)))?;
    }
    if hello.incarnation <= 0 {
        return Err(field_error("incarnation", &format!("{} is not a positive number", hello.incarnation)));
    }
    if !(1..=SLOTS_MAX).contains(&hello.slots) {
        return Err(field_error("slots", &format!("{} is outside 1 to {SLOTS_MAX}", hello.slots)));
    }
    for (field, secret) in [("secret", &hello.secret), ("predecessor_secret", &hello.predecessor_secret)] {
        if secret.len() > SECRET_LEN_MAX {
            return Err(field_error(field, &format!("{} bytes; at most {SECRET_LEN_MAX} are accepted", secret.len())));
        }
    }
    check_len("sdk_version", &hello.sdk_version, VERSION_LEN_MAX)?;
    check_visible("sdk_version", &hello.sdk_version)?;
    super::message_bounds::check_attempts(&hello.held, &hello.finished)?;
    let counts = [
        ("handlers", hello.handlers.len(), HANDLER_COUNT_MAX),
        ("handler_infos", hello.handler_infos.len(), HANDLER_COUNT_MAX),
        ("labels", hello.labels.len(), LABEL_COUNT_MAX),
    ];
    for (field, count, max) in counts {
        if count > max {
            return Err(field_error(field, &format!("there are {count}; at most {max} are accepted")));
        }
    }
    for handler in &hello.handlers {
        name::check_handler(handler)
            .map_err(|message| field_error("handlers", &truncate(&message, 4 * EXCERPT_LEN_MAX)))?;
    }
    #[expect(clippy::iter_over_hash_type, reason = "any label that is too long is a reason to refuse")]
    for (name, value) in &hello.labels {
        check_len("labels", name, LABEL_NAME_LEN_MAX)?;
        check_len(&format!("labels: {name}"), value, LABEL_VALUE_LEN_MAX)?;
        check_visible("labels", name)?;
        check_visible("labels", value)?;
    }
    let bytes = row_bytes(hello);
    if bytes > ROW_BYTES_MAX {
        let message = format!("together with the labels they take {bytes} bytes; at most {ROW_BYTES_MAX} are accepted");
        return Err(field_error("handlers", &message));
    }
    Ok(())
}

fn check_len(field: &str, value: &str, len_max: usize) -> Result<(), Status> {
    if value.len() <= len_max {
        return Ok(());
    }
    let excerpt = truncate(value, EXCERPT_LEN_MAX);
    Err(field_error(field, &format!("{excerpt:?} has {} bytes; at most {len_max} are accepted", value.len())))
}

/// Rejects text that a terminal would interpret, or that imitates another text.
fn check_visible(field: &str, value: &str) -> Result<(), Status> {
    if !value.contains(plain::is_control_or_invisible) {
        return Ok(());
    }
    let excerpt = truncate(value, EXCERPT_LEN_MAX);
    Err(field_error(field, &format!("{excerpt:?} has control or invisible characters; remove them")))
}

fn field_error(field: &str, message: &str) -> Status {
    Status::invalid_argument(format!("{field}: {message}"))
}

fn truncate(text: &str, len_max: usize) -> String {
    match text.char_indices().nth(len_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Identifies an executor in log lines before its hello is checked.
pub(super) fn executor_label(hello: &v1::Hello, peer: &str) -> String {
    let [namespace, app, name] =
        [&hello.namespace, &hello.app, &hello.name].map(|text| truncate(text, EXCERPT_LEN_MAX));
    format!("{namespace}/{app}/{name} at {peer}")
}

/// Approximate size of the handlers and labels in this executor's row, in bytes.
fn row_bytes(hello: &v1::Hello) -> usize {
    let handlers: usize = hello.handlers.iter().map(|handler| handler.len() + 3).sum();
    let labels: usize = hello.labels.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    handlers + labels
}

/// For each token, the start of its current second and the number of hellos since then.
#[derive(Debug, Default)]
pub(super) struct HelloRates(Mutex<HashMap<TokenId, (Timestamp, u32)>>);

impl HelloRates {
    /// Counts a hello, or rejects it.
    pub(super) fn admit(&self, token: TokenId, now: Timestamp) -> Result<(), Status> {
        let mut rates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in_this_second = |began: Timestamp| began <= now && now < began + Duration::from_secs(1);
        if !rates.contains_key(&token) {
            rates.retain(|_, (began, _)| is_in_this_second(*began));
        }
        let (window_start, count) = rates.entry(token).or_insert((now, 0));
        if !is_in_this_second(*window_start) {
            (*window_start, *count) = (now, 0);
        }
        *count += 1;
        if *count > HELLO_RATE_MAX {
            let message = format!(
                "more than {HELLO_RATE_MAX} executors with this token open a stream within a second; try again"
            );
            return Err(Status::unavailable(message));
        }
        Ok(())
    }
}

/// The rows of each app's executors that this server has admitted, with their sizes. They are counted per token, so that a token that floods the
/// app does not lock out other tokens.
#[derive(Debug, Default)]
pub(crate) struct AppRows(Mutex<HashMap<(AppId, Option<TokenId>), Rows>>);

type Rows = HashMap<ExecutorId, CountedRow>;

#[derive(Clone, Copy, Debug)]
struct CountedRow {
    bytes: usize,
    /// When the executor last sent a hello.
    hello_at: Timestamp,
}

impl AppRows {
    /// Counts the row of an executor, or rejects it if the app's rows would exceed the limit. Each start of an executor
    /// has its own row.
    pub(super) fn admit(
        &self,
        (app, token, executor): (AppId, Option<TokenId>, ExecutorId),
        hello: &v1::Hello,
        now: Timestamp,
        is_online: impl Fn(ExecutorId) -> bool,
    ) -> Result<(), Status> {
        let mut rows_by_owner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = rows_by_owner.entry((app, token)).or_default();
        let row = CountedRow { bytes: row_bytes(hello) + ROW_OVERHEAD, hello_at: now };
        let exceeds_limit = |rows: &HashMap<ExecutorId, CountedRow>| {
            let other_bytes = rows.iter().filter(|(id, _)| **id != executor).map(|(_, row)| row.bytes);
            other_bytes.sum::<usize>() + row.bytes > APP_BYTES_MAX
        };
        if exceeds_limit(rows) {
            rows.retain(|id, row| row.hello_at + ROW_COUNTS_FOR > now || is_online(*id));
        }
        if exceeds_limit(rows) {
            let (count, kib) = (rows.len(), APP_BYTES_MAX / 1024);
            let message = format!(
                "handlers: the {count} executors of app {:?} with this token that were started within the last hour fill the \
                 {kib} KiB that one app may take; try again later, or name fewer handlers and labels",
                hello.app
            );
            return Err(Status::resource_exhausted(message));
        }
        rows.insert(executor, row);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_a_terminal_obeys_is_refused() {
        assert!(check_visible("sdk_version", "0.2.0 表").is_ok());
        for text in ["1\u{1b}[2J", "1\n", "1\u{9b}", "1\u{202e}", "1\u{200d}"] {
            let refused = check_visible("sdk_version", text).unwrap_err();
            assert!(refused.message().starts_with("sdk_version: "), "{refused}");
        }
    }

    #[test]
    fn the_streams_that_a_token_opens_within_a_second_are_bounded() {
        let rates = HelloRates::default();
        let start = Timestamp::from_secs(1_800_000_000);
        let admitted = |token, now| (0..1_000).filter(|_| rates.admit(TokenId::new(token), now).is_ok()).count();
        assert_eq!((admitted(1, start), admitted(2, start)), (100, 100), "one does not lock out the other");
        assert_eq!(admitted(1, start + Duration::from_millis(999)), 0);
        assert_eq!(admitted(1, start + Duration::from_secs(1)), 100);
    }

    #[test]
    fn the_rows_of_an_app_are_bounded_and_free_after_an_hour() {
        let rows = AppRows::default();
        let start = Timestamp::from_secs(1_800_000_000);
        let large = v1::Hello { handlers: vec!["h".repeat(97); 600], ..v1::Hello::default() };
        let admit = |app, id, now, online: bool| {
            rows.admit((AppId::new(app), None, ExecutorId::new(id)), &large, now, |_| online)
        };
        let count = (1..).take_while(|id| admit(1, *id, start, false).is_ok()).count();
        assert!((250..300).contains(&count), "{count}");
        let refused = admit(1, 9_999, start, false).unwrap_err();
        assert!(refused.message().contains("one app may take"), "{refused}");
        assert!(admit(1, 1, start, false).is_ok(), "a counted executor reconnects");
        assert!(admit(2, 9_999, start, false).is_ok(), "another app has room");
        let with_another = (AppId::new(1), Some(TokenId::new(2)), ExecutorId::new(9_999));
        assert!(rows.admit(with_another, &large, start, |_| false).is_ok(), "so has another token of the app");
        let later = start + ROW_COUNTS_FOR;
        assert!(admit(1, 9_999, later, true).is_err(), "online executors still count");
        assert!(admit(1, 9_999, later, false).is_ok());
    }
}
