//! The bodies of both directions. Written bodies suit all protocol versions in use, and bodies of all these versions can be read.
//!
//! | | 2.2 | 2.3 to 3.2 | 3.3 to 3.4 | 3.5 |
//! |---|---|---|---|---|
//! | a callback's end | `executeResult` | `handleCode` | `handleCode` | `handleCode` |
//! | callbacks | an array | an array | an array | `callbackList` |
//! | an answer's payload | `content` | `content` | `data` | `data` |

use serde::Serialize;
use serde_json::{Map, Value, json};

/// A handler succeeded.
pub(crate) const CODE_SUCCESS: i32 = 200;
/// A handler failed.
pub(crate) const CODE_FAILED: i32 = 500;
/// A handler was stopped at its timeout.
pub(crate) const CODE_TIMED_OUT: i32 = 502;

/// Maximum number of callbacks per call.
const CALLBACK_COUNT_MAX: usize = 10_000;

/// An executor that registers or signs off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    /// The name of its app.
    pub(crate) app: String,
    pub(crate) address: String,
}

/// The end of an attempt, as a callback reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callback {
    pub(crate) log_id: i64,
    pub(crate) code: i32,
    pub(crate) message: Option<String>,
}

/// The body of the answer to a call that succeeded.
pub(crate) fn success() -> Vec<u8> {
    answer(CODE_SUCCESS, Some("Success"))
}

/// The body of the answer to a call that is refused.
pub(crate) fn refused(message: &str) -> Vec<u8> {
    answer(CODE_FAILED, Some(message))
}

fn answer(code: i32, message: Option<&str>) -> Vec<u8> {
    let body = json!({"code": code, "msg": message, "content": null, "data": null, "success": code == CODE_SUCCESS});
    body.to_string().into_bytes()
}

/// Reads the body of `registry` and `registryRemove`.
pub(crate) fn registration(body: &[u8]) -> Result<Registration, String> {
    let document = object(body)?;
    let field = |name: &str| match document.get(name) {
        Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Some(value) if !value.is_null() && !value.is_string() => Err(format!("{name}: {value} is not a text")),
        _ => Err(format!("Illegal Argument. {name} is missing")),
    };
    field("registryGroup")?;
    Ok(Registration { app: field("registryKey")?, address: field("registryValue")? })
}

/// Reads the body of `callback`.
pub(crate) fn callbacks(body: &[u8]) -> Result<Vec<Callback>, String> {
    let items = match parse(body)? {
        Value::Array(items) => items,
        Value::Object(mut document) => match document.remove("callbackList") {
            Some(Value::Array(items)) => items,
            _ => return Err("the body is neither a list of callbacks nor has one as callbackList".to_owned()),
        },
        _ => return Err("the body is not a list of callbacks".to_owned()),
    };
    if items.len() > CALLBACK_COUNT_MAX {
        return Err(format!(
            "{} callbacks are too many for one call; the maximum is {CALLBACK_COUNT_MAX}",
            items.len()
        ));
    }
    items
        .iter()
        .enumerate()
        .map(|(index, item)| callback(item).map_err(|message| format!("callback {index}: {message}")))
        .collect()
}

fn callback(item: &Value) -> Result<Callback, String> {
    let item = item.as_object().ok_or("it is not an object")?;
    let log_id = item.get("logId").and_then(integer).ok_or("logId is not a number")?;
    let result = item.get("executeResult").and_then(Value::as_object);
    // A callback without any code counts as failed, like one with an unknown code.
    let handle_code = item.get("handleCode").and_then(integer);
    let (code, message) = match handle_code {
        Some(code) => (Some(code), text(item, "handleMsg")),
        None => (
            result.and_then(|result| result.get("code")).and_then(integer),
            result.and_then(|result| text(result, "msg")).or_else(|| text(item, "handleMsg")),
        ),
    };
    Ok(Callback { log_id, code: code.map_or(CODE_FAILED, executor_code), message })
}

/// A code that an executor sent. Negative codes are reserved for the server, so a negative one counts as failed.
fn executor_code(code: i64) -> i32 {
    i32::try_from(code).ok().filter(|code| *code >= 0).unwrap_or(CODE_FAILED)
}

/// The request to run an attempt, with the fields of XXL-JOB: the timeout is in seconds, the date of the log in
/// milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunRequest {
    pub(crate) job_id: i32,
    pub(crate) executor_handler: String,
    pub(crate) executor_params: String,
    pub(crate) executor_block_strategy: &'static str,
    pub(crate) executor_timeout: i64,
    pub(crate) log_id: i64,
    pub(crate) log_date_time: i64,
    pub(crate) glue_type: &'static str,
    pub(crate) glue_source: String,
    /// A number that changes with the source.
    pub(crate) glue_updatetime: i64,
    pub(crate) broadcast_index: i32,
    pub(crate) broadcast_total: i32,
}

impl RunRequest {
    pub(crate) fn body(&self) -> Vec<u8> {
        // A type of strings and numbers can always be serialized.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The body of `/idleBeat` and `/kill`.
pub(crate) fn job_body(number: i32) -> Vec<u8> {
    json!({"jobId": number}).to_string().into_bytes()
}

/// The body of `/beat`: some executors require one.
pub(crate) fn empty_body() -> Vec<u8> {
    b"{}".to_vec()
}

/// The body of `/log`.
pub(crate) fn log_request(log_id: i64, sent_at_ms: i64, from_line: i64) -> Vec<u8> {
    let time_fields = format!(r#""logDateTim":{sent_at_ms},"logDateTime":{sent_at_ms}"#);
    format!(r#"{{{time_fields},"logId":{log_id},"fromLineNum":{from_line}}}"#).into_bytes()
}

/// The answer of an executor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) message: Option<String>,
    payload: Option<Value>,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        self.code == CODE_SUCCESS
    }

    /// The message, or the code if there is none.
    pub(crate) fn message_or_code(&self) -> String {
        let payload = self.payload.as_ref().and_then(Value::as_str).map(str::to_owned);
        let message = self.message.clone().filter(|message| !message.is_empty()).or(payload);
        message.unwrap_or_else(|| format!("code {}", self.code))
    }
}

/// Parses the answer of an executor: an object or, from the Go executor, a list with a callback.
pub(crate) fn executor_answer(body: &[u8]) -> Result<Answer, String> {
    let document = match parse(body)? {
        Value::Object(document) => document,
        Value::Array(items) => match items.into_iter().next() {
            Some(Value::Object(document)) => document,
            _ => return Err("the answer is an empty list".to_owned()),
        },
        _ => return Err("the answer is not an object".to_owned()),
    };
    let result = document.get("executeResult").and_then(Value::as_object);
    let code = ["code", "handleCode"].into_iter().find_map(|name| document.get(name).and_then(integer));
    let code = code.or_else(|| result.and_then(|result| result.get("code")).and_then(integer));
    let code = code.ok_or("the answer has no code")?;
    let message = text(&document, "msg").or_else(|| text(&document, "handleMsg"));
    let payload = ["data", "content"].into_iter().find_map(|name| document.get(name).filter(|value| !value.is_null()));
    Ok(Answer { code: executor_code(code), message, payload: payload.cloned() })
}

/// Maximum number of lines of a log that are taken from one answer. The limit on bytes does not suffice, because a short line takes much
/// more memory than its text.
const PAGE_LINE_COUNT_MAX: usize = 50_000;

/// The answer of pyxxl if it has no log file.
const NO_LOG: &str = "No such logid logs.";

/// Lines of a log, as one answer has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPage {
    pub(crate) lines: Vec<String>,
    /// The number of the line that follows these lines.
    pub(crate) next_line: i64,
}

/// Parses the answer to `/log`. An executor without new lines may answer in several ways: a page without lines, an earlier last line, or a
/// sentence about a missing file.
pub(crate) fn log_page(answer: &Answer, from_line: i64) -> LogPage {
    let empty_page = LogPage { lines: Vec::new(), next_line: from_line };
    let Some(page) = answer.payload.as_ref().and_then(Value::as_object).filter(|_| answer.is_success()) else {
        return empty_page;
    };
    let content = page.get("logContent").and_then(Value::as_str).unwrap_or_default();
    let to_line = page.get("toLineNum").and_then(integer).unwrap_or_default();
    let content = content.strip_suffix('\n').unwrap_or(content);
    if to_line < from_line || content.is_empty() || content == NO_LOG {
        return empty_page;
    }
    let mut lines: Vec<String> = Vec::new();
    for line in content.split('\n') {
        if lines.len() >= PAGE_LINE_COUNT_MAX {
            // The next page begins with this line.
            let line_count = i64::try_from(lines.len()).unwrap_or(i64::MAX);
            return LogPage { lines, next_line: from_line.saturating_add(line_count).min(to_line.saturating_add(1)) };
        }
        lines.push(line.trim_end_matches('\r').to_owned());
    }
    LogPage { lines, next_line: to_line.saturating_add(1) }
}

fn parse(body: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(body).map_err(|error| format!("the body is not JSON: {error}"))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, String> {
    match parse(body)? {
        Value::Object(document) => Ok(document),
        _ => Err("the body is not an object".to_owned()),
    }
}

/// Parses a number, or a string with a number.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn text(object: &Map<String, Value>, name: &str) -> Option<String> {
    object.get(name).and_then(Value::as_str).map(str::to_owned).filter(|text| !text.is_empty())
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
