//! How an attempt ended, as it is reported to the server.

use std::time::Duration;

use rondel_core::RunStatus;
use rondel_core::run::RESULT_LEN_MAX;
use rondel_proto::v1;
use serde::Serialize;

use crate::job_error::{JobError, JobErrorKind};
use crate::masks::Masks;

/// The longest message in bytes. A message is one line.
const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// The ending of a handler, made from the `()` or the `Result` that it returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub(crate) status: RunStatus,
    pub(crate) message: String,
    /// JSON text.
    pub(crate) result: Option<String>,
    pub(crate) retryable: bool,
    /// If the run was stopped because no server answered: how long none had answered.
    pub(crate) silent_for: Option<Duration>,
    /// Whether this is the ending of a group of a pump job that yields: the group has released its items, and other
    /// groups continue with them.
    pub(crate) is_yielded: bool,
    /// Whether a group of a pump job ended with rows that failed for good, or after a failed select.
    pub(crate) is_unfinished: bool,
}

impl Ending {
    pub(crate) fn succeeded() -> Self {
        Self::new(RunStatus::Succeeded, "", false)
    }

    pub(crate) fn new(status: RunStatus, message: impl Into<String>, retryable: bool) -> Self {
        Self {
            status,
            message: message.into(),
            result: None,
            retryable,
            silent_for: None,
            is_yielded: false,
            is_unfinished: false,
        }
    }

    /// The ending of a group of a pump job that yields. The server decides what follows; without the server's
    /// decision, the run counts as cancelled.
    pub(crate) fn yielded(message: impl Into<String>) -> Self {
        Self { is_yielded: true, ..Self::new(RunStatus::Cancelled, message, false) }
    }

    /// Prepares the ending for sending: the message becomes one masked line of bounded length without NUL, and
    /// the result is masked.
    pub(crate) fn sanitize(mut self, masks: &Masks) -> Self {
        self.message = one_line(&masks.apply(&self.message));
        self.result = self.result.map(|result| masks.apply_json(&result).into_owned());
        self
    }

    pub(crate) fn wire_status(&self) -> v1::result::Status {
        if self.is_yielded {
            return v1::result::Status::Yielded;
        }
        match self.status {
            RunStatus::Succeeded => v1::result::Status::Succeeded,
            RunStatus::TimedOut => v1::result::Status::TimedOut,
            RunStatus::Cancelled => v1::result::Status::Cancelled,
            RunStatus::Skipped => v1::result::Status::Skipped,
            // Of these, an executor reports only `Failed`.
            RunStatus::Failed | RunStatus::Unknown | RunStatus::Pending | RunStatus::Waiting | RunStatus::Running => {
                v1::result::Status::Failed
            }
        }
    }
}

impl From<JobError> for Ending {
    fn from(error: JobError) -> Self {
        let (status, retryable) = match error.kind {
            JobErrorKind::Retryable => (RunStatus::Failed, true),
            JobErrorKind::Terminal => (RunStatus::Failed, false),
            JobErrorKind::Skip => (RunStatus::Skipped, false),
        };
        Self::new(status, error.message, retryable)
    }
}

/// What a handler may return: `()`, or `Result<T, E>` with a `T` that becomes the run's result as JSON.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "not `()` and not a suitable `Result`",
    note = "return `()` or `Result<T, E>` where `T: serde::Serialize` and `E: Into<JobError>`"
)]
pub trait IntoEnding {
    /// Turns the value into the run's ending.
    fn into_ending(self) -> Ending;
}

impl IntoEnding for () {
    fn into_ending(self) -> Ending {
        Ending::succeeded()
    }
}

impl<T: Serialize, E: Into<JobError>> IntoEnding for Result<T, E> {
    fn into_ending(self) -> Ending {
        match self {
            Ok(value) => with_result(&value),
            Err(error) => error.into().into(),
        }
    }
}

fn with_result(value: &impl Serialize) -> Ending {
    match serde_json::to_string(value) {
        Ok(result_json) if result_json == "null" => Ending::succeeded(),
        Ok(result_json) if result_json.len() > RESULT_LEN_MAX => JobError::terminal(format_args!(
            "the result is {} bytes of JSON; a run may return at most {RESULT_LEN_MAX}",
            result_json.len()
        ))
        .into(),
        Ok(result_json) => Ending { result: Some(result_json), ..Ending::succeeded() },
        Err(error) => JobError::terminal(format_args!("the result cannot be written as JSON: {error}")).into(),
    }
}

fn one_line(text: &str) -> String {
    let line = text.trim().replace(['\n', '\r', '\t'], " ").replace('\0', "\u{fffd}");
    if line.len() <= MESSAGE_BYTES_MAX {
        return line;
    }
    let end = line.floor_char_boundary(MESSAGE_BYTES_MAX - '…'.len_utf8());
    format!("{}…", &line[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_json() {
        assert_eq!(().into_ending().result, None);
        assert_eq!(Ok::<_, JobError>(()).into_ending().result, None);
        assert_eq!(Ok::<_, JobError>(vec![1, 2]).into_ending().result.as_deref(), Some("[1,2]"));
        let big = Ok::<_, JobError>("x".repeat(RESULT_LEN_MAX)).into_ending();
        assert_eq!((big.status, big.retryable), (RunStatus::Failed, false));
    }

    #[test]
    fn messages_are_one_bounded_line() {
        assert_eq!(one_line(" a\nb\0c "), "a b\u{fffd}c");
        let long = one_line(&"ä".repeat(5_000));
        assert!(long.len() <= MESSAGE_BYTES_MAX && long.ends_with('…'));
    }
}
