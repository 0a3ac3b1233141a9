//! The handler `http`: one request, with limits on the response.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::TraceParent;
use rondel_core::outgoing::AllowedAddresses;
use rondel_core::time::{format_duration, parse_duration};
use rondel_outgoing::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use rondel_outgoing::{
    CONNECT_TIMEOUT, Method, Options, Outgoing, RequestBuilder, RequestError, Response, Url, refusal,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::error::ExecutorError;
use crate::extract::{Cancel, Log};
use crate::job_error::JobError;
use rondel_core::error_chain::chain;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const MAX_BODY_BYTES_DEFAULT: usize = 1024 * 1024;
/// The largest `max_body_bytes` a job may set: the whole response is held in memory.
const MAX_BODY_BYTES_MAX: usize = 64 * 1024 * 1024;
const REDIRECTS_MAX: usize = 10;
/// The header that names the trace of a request.
const TRACE_HEADER: &str = "traceparent";

/// How many bytes of a body the log shows, at most.
const LOGGED_BODY_BYTES_MAX: usize = 2 * 1024;

/// Maximum length of a secret, in bytes.
const SECRET_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpParams {
    url: String,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    body: Option<Value>,
    expect_status: Option<Value>,
    timeout: Option<String>,
    max_body_bytes: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(super) struct HttpResult {
    status: u16,
    body_bytes: usize,
}

/// A status, or a class of statuses, that counts as success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedStatus {
    Code(u16),
    /// All statuses with this first digit, such as 2 for 200 to 299.
    Class(u16),
}

/// The client for the URLs of the params, limited to public addresses and `allowed_addresses`.
pub(super) fn client(allowed_addresses: AllowedAddresses) -> Result<Outgoing, ExecutorError> {
    let user_agent = concat!("rondel-agent/", env!("CARGO_PKG_VERSION"));
    let options = Options { allowed_addresses, redirect_count_max: REDIRECTS_MAX, user_agent };
    Outgoing::new(options).map_err(|error| ExecutorError::HttpClient(error.into()))
}

/// Adds the header `traceparent`, which makes the request a part of the run's trace, unless the job sets this header
/// itself.
pub(super) fn with_trace_header(mut params: HttpParams, parent: Option<TraceParent>) -> HttpParams {
    let has_trace_header = params.headers.keys().any(|name| name.eq_ignore_ascii_case(TRACE_HEADER));
    if let Some(parent) = parent.filter(|_| !has_trace_header) {
        params.headers.insert(TRACE_HEADER.to_owned(), parent.to_string());
    }
    params
}

pub(super) async fn run(
    client: Outgoing,
    params: HttpParams,
    cancel: Cancel,
    log: Log,
) -> Result<HttpResult, JobError> {
    tokio::select! {
        // The request is polled first, because a request that has been answered must not be stopped.
        biased;
        result = request(&client, &params, &log) => result,
        () = cancel.cancelled() => Err(JobError::failed("stopped")),
    }
}

async fn request(client: &Outgoing, params: &HttpParams, log: &Log) -> Result<HttpResult, JobError> {
    let timeout = match &params.timeout {
        Some(text) => parse_duration(text).map_err(|error| param_error("timeout", error))?,
        None => TIMEOUT_DEFAULT,
    };
    let statuses = match &params.expect_status {
        Some(value) => expected_statuses(value)?,
        None => vec![ExpectedStatus::Class(2)],
    };
    let body_bytes_max = body_bytes_max(params)?;
    let request = build_request(client, params)?.timeout(timeout);
    let started_at = Instant::now();
    log.info(format!("{} {}", method(params)?, params.url));
    // The URL is removed from the error: its encoding there may differ from that in the params, and a secret in it
    // would then not be masked. The log already has the URL as given.
    let to_job_error = |error: RequestError| {
        if let Some(refusal_error) = refusal(&error) {
            return param_error("url", refusal_error);
        }
        if error.is_timeout() && error.is_connect() {
            return JobError::failed(format_args!("no connection within {}", format_duration(CONNECT_TIMEOUT)));
        }
        if error.is_timeout() {
            return JobError::failed(format_args!("no answer within {}", format_duration(timeout)));
        }
        JobError::failed(chain(&error.without_url()))
    };
    let mut response = request.send().await.map_err(to_job_error)?;
    if let Some(origin) = redirect_origin(&params.url, response.url()) {
        log_redirect(&origin, &method(params)?, log);
    }
    let status = response.status();
    let body = read_body(&mut response, body_bytes_max).await;
    let body = body.map_err(|error| error.into_job_error(to_job_error))?;
    log.info(format!("{status}, {} bytes in {} ms", body.len(), started_at.elapsed().as_millis()));
    log_body(&body, log);
    if statuses.iter().any(|expected_status| expected_status.matches(status.as_u16())) {
        return Ok(HttpResult { status: status.as_u16(), body_bytes: body.len() });
    }
    let expected_texts: Vec<String> = statuses.iter().map(ToString::to_string).collect();
    Err(JobError::failed(format_args!("status {}, expected {}", status.as_u16(), expected_texts.join(" or "))))
}

/// The origin of the URL that answered, if it is not the job's own URL. The path is left out, because it could show a
/// secret in an encoding that is not masked.
fn redirect_origin(requested_url: &str, answer_url: &Url) -> Option<String> {
    let mut requested_url = Url::parse(requested_url).ok()?;
    // The URL of an answer has neither a fragment nor credentials.
    requested_url.set_fragment(None);
    requested_url.set_username("").and_then(|()| requested_url.set_password(None)).ok()?;
    (requested_url != *answer_url).then(|| answer_url.origin().ascii_serialization())
}

fn log_redirect(origin: &str, method: &Method, log: &Log) {
    if *method == Method::POST {
        log.warn(format!("redirected to {origin}: unless by 307 or 308, the POST became a GET without its body"));
    } else if [Method::GET, Method::HEAD].contains(method) {
        log.info(format!("redirected to {origin}"));
    } else {
        log.warn(format!("redirected to {origin}: if by 303, the {method} became a GET without its body"));
    }
}

fn body_bytes_max(params: &HttpParams) -> Result<usize, JobError> {
    let bytes_max = params.max_body_bytes.unwrap_or(MAX_BODY_BYTES_DEFAULT);
    if bytes_max > MAX_BODY_BYTES_MAX {
        return Err(param_error(
            "max_body_bytes",
            format_args!("{bytes_max} bytes; at most {MAX_BODY_BYTES_MAX} can be requested"),
        ));
    }
    Ok(bytes_max)
}

fn build_request(client: &Outgoing, params: &HttpParams) -> Result<RequestBuilder, JobError> {
    let url = Url::parse(&params.url).map_err(|error| param_error("url", error))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(param_error("url", "neither http nor https"));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &params.headers {
        let header_name =
            HeaderName::try_from(name).map_err(|error| param_error("headers", format_args!("{name:?}: {error}")))?;
        let value =
            HeaderValue::try_from(value).map_err(|error| param_error("headers", format_args!("{name:?}: {error}")))?;
        headers.insert(header_name, value);
    }
    let body = match &params.body {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(json) => {
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            Some(json.to_string())
        }
    };
    let request = client.request(method(params)?, url).map_err(|error| param_error("url", error))?.headers(headers);
    Ok(body.into_iter().fold(request, RequestBuilder::body))
}

fn method(params: &HttpParams) -> Result<Method, JobError> {
    let method_name = params.method.as_deref().unwrap_or("GET").to_ascii_uppercase();
    method_name.parse().map_err(|_| param_error("method", format_args!("{method_name:?} is not a method")))
}

fn param_error(field: &str, reason: impl std::fmt::Display) -> JobError {
    JobError::terminal(format_args!("params: {field}: {reason}"))
}

/// Why a body could not be read.
enum BodyError {
    TooLarge(usize),
    Read(RequestError),
}

impl BodyError {
    fn into_job_error(self, read_error: impl FnOnce(RequestError) -> JobError) -> JobError {
        match self {
            Self::TooLarge(bytes_max) => {
                JobError::failed(format_args!("the answer is larger than {bytes_max} bytes (max_body_bytes)"))
            }
            Self::Read(error) => read_error(error),
        }
    }
}

async fn read_body(response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, BodyError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Read)? {
        if body.len() + chunk.len() > bytes_max {
            return Err(BodyError::TooLarge(bytes_max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Logs the beginning of a body. Secrets are hidden before the body is cut; otherwise the log would show the first
/// part of a secret at the cut.
fn log_body(body: &[u8], log: &Log) {
    let first_bytes = |len: usize| &body[..body.len().min(len)];
    let searched_bytes = first_bytes(LOGGED_BODY_BYTES_MAX + SECRET_BYTES_MAX);
    let (logged_text, omitted_bytes) = match log.buffer().masks().apply(&String::from_utf8_lossy(searched_bytes)) {
        Cow::Borrowed(_) => {
            let logged_bytes = first_bytes(LOGGED_BODY_BYTES_MAX);
            (String::from_utf8_lossy(logged_bytes).into_owned(), body.len() - logged_bytes.len())
        }
        Cow::Owned(mut masked_text) => {
            let omitted_bytes =
                masked_text.len().saturating_sub(LOGGED_BODY_BYTES_MAX) + body.len() - searched_bytes.len();
            masked_text.truncate(masked_text.floor_char_boundary(LOGGED_BODY_BYTES_MAX));
            (masked_text, omitted_bytes)
        }
    };
    if !logged_text.is_empty() {
        log.info(logged_text);
    }
    if omitted_bytes > 0 {
        log.info(format!("… {omitted_bytes} more bytes"));
    }
}

impl ExpectedStatus {
    fn matches(self, status: u16) -> bool {
        match self {
            Self::Code(code) => status == code,
            Self::Class(first_digit) => status / 100 == first_digit,
        }
    }
}

impl std::fmt::Display for ExpectedStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "{code}"),
            Self::Class(first_digit) => write!(f, "{first_digit}xx"),
        }
    }
}

fn expected_statuses(value: &Value) -> Result<Vec<ExpectedStatus>, JobError> {
    let syntax_error =
        || param_error("expect_status", format_args!("{value} is not a status such as 200, \"2xx\" or a list of them"));
    let parse_status = |value: &Value| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_ascii_lowercase);
        let first_digit = text.strip_suffix("xx").and_then(|digit| digit.parse().ok());
        let class = first_digit.filter(|first_digit| (1..=5).contains(first_digit)).map(ExpectedStatus::Class);
        let code = text.parse().ok().filter(|code| (100..=599).contains(code)).map(ExpectedStatus::Code);
        class.or(code).ok_or_else(syntax_error)
    };
    match value {
        Value::Array(values) if values.is_empty() => Err(syntax_error()),
        Value::Array(values) => values.iter().map(parse_status).collect(),
        other_value => Ok(vec![parse_status(other_value)?]),
    }
}

#[cfg(test)]
mod tests;
