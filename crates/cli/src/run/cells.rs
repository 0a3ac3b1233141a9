//! Cells that tables of runs and of attempts share.

use std::time::Duration;

use rondel_core::reason::words::{RunStatusFacts, sentence, verdict_text};
use rondel_core::reason::{Reason, ReasonDetail};
use rondel_core::words::Lang;
use rondel_core::{RunStatus, Timestamp};
use serde_json::Value;

use crate::client::text_of;
use crate::clock;

/// Maximum number of characters of a message in a table; a longer message is cut.
pub(super) const MESSAGE_LEN_MAX: usize = 60;

/// How long a run or attempt took, or has taken so far; empty if it has not begun.
pub(super) fn duration_text(run: &Value, now: Timestamp) -> String {
    let instant = |key: &str| run[key].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let Some(started_at) = instant("started_at") else { return String::new() };
    let duration: Duration = instant("finished_at").unwrap_or(now).since(started_at);
    if duration < Duration::from_secs(1) { format!("{}ms", duration.as_millis()) } else { clock::rough_text(duration) }
}

/// The message of a run or attempt, or its reason in words if it has no message, cut to the width of a cell.
pub(crate) fn message_text(run: &Value) -> String {
    let text =
        Some(text_of(&run["message"])).filter(|text| !text.is_empty()).or_else(|| reason_text(run)).unwrap_or_default();
    match text.char_indices().nth(MESSAGE_LEN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The reason in words: why a run ended, or what it waits for.
fn reason_text(run: &Value) -> Option<String> {
    let status: RunStatus = run["status"].as_str()?.parse().ok()?;
    let reason: Option<Reason> = run["reason"].as_str().and_then(|code| code.parse().ok());
    let detail: ReasonDetail = serde_json::from_value(run["detail"].clone()).unwrap_or_default();
    match reason {
        Some(reason) if status.is_terminal() => Some(verdict_text((status, reason), &detail, Lang::En)),
        _ => {
            let attempt = run["attempt"].as_i64().and_then(|number| i32::try_from(number).ok()).unwrap_or(1);
            sentence(RunStatusFacts { status, reason, detail: Some(&detail), attempt }, Lang::En)
        }
    }
}
