//! Cells that tables of runs and of attempts share.

use std::time::Duration;

use rondel_core::Timestamp;
use serde_json::Value;

use crate::client::text_of;
use crate::clock;

/// Longer messages are cut in tables.
pub(super) const MESSAGE_LEN_MAX: usize = 60;

/// How long it took, or has taken so far; empty if it has not begun.
pub(super) fn took(run: &Value, now: Timestamp) -> String {
    let instant = |key: &str| run[key].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let Some(started) = instant("started_at") else { return String::new() };
    let took: Duration = instant("finished_at").unwrap_or(now).since(started);
    if took < Duration::from_secs(1) { format!("{}ms", took.as_millis()) } else { clock::rough(took) }
}

/// The message, cut to the width of a cell.
pub(super) fn message(run: &Value) -> String {
    let text = text_of(&run["message"]);
    match text.char_indices().nth(MESSAGE_LEN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
