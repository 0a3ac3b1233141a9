//! Prints the attempts of a run.

use rondel_core::Timestamp;
use serde_json::Value;

use super::cells::{duration_text, message_text};
use crate::client::{Body, text_of, time_text};
use crate::exit::Failure;
use crate::format::{Format, FormatArgs};
use crate::output;
use crate::view::View;

const VIEW: View =
    View { name: "attempt", headers: &["ATTEMPT", "STATUS", "REASON", "EXECUTOR", "STARTED", "TOOK", "MESSAGE"], row };

/// Prints the attempts of a run that has more than one attempt. Prints nothing in other formats than tables, or with `--columns`.
pub(super) fn print(run: &Body, format: FormatArgs) -> Result<(), Failure> {
    if format.format != Format::Table || format.columns.is_some() {
        return Ok(());
    }
    let run = run.value()?;
    let attempts = run["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    if attempts.len() < 2 {
        return Ok(());
    }
    output::print_lines("\n")?;
    VIEW.print_items(attempts, format)
}

fn row(attempt: &Value, now: Timestamp) -> Vec<String> {
    vec![
        text_of(&attempt["attempt"]),
        text_of(&attempt["status"]),
        text_of(&attempt["reason"]),
        text_of(&attempt["executor"]),
        time_text(&attempt["started_at"], now),
        duration_text(attempt, now),
        message_text(attempt),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_attempt_is_a_line() {
        let attempt = json!({
            "attempt": 1, "status": "failed", "reason": "retry", "executor": "a1", "message": "exit code 3",
            "started_at": "2026-03-08T02:30:00Z", "finished_at": "2026-03-08T02:30:00.250Z",
        });
        let cells = row(&attempt, "2026-03-08T02:31:00Z".parse().unwrap());
        assert_eq!(cells[..4], ["1", "failed", "retry", "a1"]);
        assert!(cells[4].starts_with("2026-03-08T02:30:00Z"), "{}", cells[4]);
        assert_eq!(cells[5..], ["250ms", "exit code 3"]);
    }
}
