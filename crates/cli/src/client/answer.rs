//! Turns an error of the server into the failure of the command.

use reqwest::StatusCode;
use serde::Deserialize;

use crate::exit::{Exit, Failure};
use crate::terminal::harmless_text;

/// The fields that are read from an `application/problem+json` document.
#[derive(Debug, Deserialize)]
struct Problem {
    title: String,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    request_id: String,
    #[serde(default)]
    errors: Vec<ProblemError>,
}

#[derive(Debug, Deserialize)]
struct ProblemError {
    #[serde(alias = "parameter", default)]
    pointer: String,
    message: String,
    #[serde(default)]
    indexes: Vec<usize>,
    #[serde(default)]
    count: Option<usize>,
}

/// One error of a problem document.
#[derive(Debug)]
pub(crate) struct AnswerError {
    /// The JSON pointer into the request's body, or the name of a parameter.
    pub(crate) pointer: String,
    /// The error, as a sentence.
    pub(crate) message: String,
    /// The indexes of the list items with this error; not all of them if there are many.
    pub(crate) indexes: Vec<usize>,
    /// How many items have this error.
    pub(crate) count: usize,
}

/// The failure for an answer other than success. `token_source` describes where the token of the call comes from; `None` if
/// no token was sent.
pub(crate) fn failure(status: StatusCode, body: &str, token_source: Option<&str>) -> Failure {
    let message = match serde_json::from_str::<Problem>(body) {
        // The request id leads to the cause in the server's log.
        Ok(problem) if status.is_server_error() && !problem.request_id.is_empty() => {
            format!("{} (request id {})", problem_sentence(&problem), harmless_text(&problem.request_id))
        }
        Ok(problem) => problem_sentence(&problem),
        Err(_) => format!("the server answered {status} without a reason"),
    };
    let hint = match (status, token_source) {
        (StatusCode::UNAUTHORIZED, None) => {
            "; no token was sent: rondel login keeps one, or give --token-file or RONDEL_TOKEN".to_owned()
        }
        (StatusCode::UNAUTHORIZED, Some(source)) => {
            format!(
                "; the token {source} is unknown or has ended: give another by --token-file, RONDEL_TOKEN or rondel login"
            )
        }
        (StatusCode::TOO_MANY_REQUESTS, _) => "; wait a little and try again".to_owned(),
        _ => String::new(),
    };
    let failure = Failure::new(exit_for_status(status), format!("{message}{hint}"));
    if is_temporary(status) { failure.temporary() } else { failure }
}

/// Whether the same call may succeed soon: the server, or a proxy in front of it, is stopping, starting or busy.
const fn is_temporary(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502..=504)
}

/// The errors of a problem document.
pub(crate) fn answer_errors(text: &str) -> Vec<AnswerError> {
    let problem: Option<Problem> = serde_json::from_str(text).ok();
    let answer_error = |error: ProblemError| AnswerError {
        pointer: error.pointer,
        message: harmless_text(&error.message).into_owned(),
        indexes: error.indexes,
        count: error.count.unwrap_or(1),
    };
    problem.into_iter().flat_map(|problem| problem.errors).map(answer_error).collect()
}

fn exit_for_status(status: StatusCode) -> Exit {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => Exit::Refused,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Auth,
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED | StatusCode::PRECONDITION_REQUIRED => Exit::Conflict,
        _ => Exit::Failed,
    }
}

fn problem_sentence(problem: &Problem) -> String {
    let error_text = |error: &ProblemError| {
        let separator = if error.pointer.is_empty() { "" } else { ": " };
        harmless_text(&format!("{}{separator}{}", error.pointer, error.message)).into_owned()
    };
    match problem.errors.as_slice() {
        [] if problem.detail.is_empty() => harmless_text(&problem.title).into_owned(),
        [] => harmless_text(&problem.detail).into_owned(),
        [single_error] => error_text(single_error),
        errors => {
            let lines: Vec<_> = errors.iter().map(|problem_error| format!("  {}", error_text(problem_error))).collect();
            format!("{}:\n{}", harmless_text(&problem.title), lines.join("\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_is_reported_once() {
        let one = r#"{"title":"The body is invalid","detail":"/schedule/cron: bad","errors":[{"pointer":"/schedule/cron","message":"bad"}]}"#;
        let two = r#"{"title":"The body is invalid","errors":[{"pointer":"/a","message":"x"},{"parameter":"b","message":"y"}]}"#;
        let none = r#"{"title":"There is no such job","detail":"no job \"x\"","errors":[]}"#;
        for (body, text) in
            [(one, "/schedule/cron: bad"), (two, "The body is invalid:\n  /a: x\n  b: y"), (none, "no job \"x\"")]
        {
            assert_eq!(problem_sentence(&serde_json::from_str(body).unwrap()), text);
        }
    }

    #[test]
    fn statuses_have_exit_codes() {
        for (status, code) in [
            (400, Exit::Refused),
            (401, Exit::Auth),
            (403, Exit::Auth),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (412, Exit::Conflict),
            (422, Exit::Refused),
            (500, Exit::Failed),
            (503, Exit::Failed),
        ] {
            assert_eq!(exit_for_status(StatusCode::from_u16(status).unwrap()), code, "{status}");
        }
    }
}
