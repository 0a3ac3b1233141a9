//! The one format of every error: RFC 9457 problem details, with a stable code and a list of complaints.

use std::any::Any;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use rondel_admin::jobs::JobError;
use rondel_core::FieldError;
use rondel_core::error_chain::chain;
use rondel_store::StoreError;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

pub(crate) use crate::code::Code;

/// The kinds of complaints.
const COMPLAINT_CODES: [&str; 7] = [
    "unknown_field",
    "missing_field",
    "duplicate_field",
    "invalid_value",
    "unknown_parameter",
    "repeated_parameter",
    "missing_parameter",
];
/// The columns of the store with definitions. During an upgrade they may have fields that only newer servers know.
const DEFINITION_COLUMNS: [&str; 4] = ["spec", "declared", "expanded", "rule_spec"];
/// Maximum number of complaints in one answer.
const COMPLAINT_COUNT_MAX: usize = 50;
/// Maximum length of the pointer or parameter in a complaint, in characters.
const PLACE_LEN_MAX: usize = 200;
/// Maximum length of the message in a complaint, in characters.
const MESSAGE_LEN_MAX: usize = 600;

/// An error in one place of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Complaint {
    /// A JSON pointer into the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pointer: Option<String>,
    /// The name of a query parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameter: Option<String>,
    /// The kind of the error.
    #[schemars(extend("enum" = COMPLAINT_CODES))]
    pub(crate) code: &'static str,
    /// A sentence: what was found, and what is expected.
    pub(crate) message: String,
    /// For a list: which of its items have this error, the first 100 of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100))]
    pub(crate) indexes: Vec<usize>,
    /// For a list: how many of its items have this error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<usize>,
}

impl Complaint {
    /// A complaint about the place in the body at `pointer`.
    pub(crate) fn body(pointer: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        let pointer = cut_text(pointer.into(), PLACE_LEN_MAX);
        let message = cut_text(message.into(), MESSAGE_LEN_MAX);
        Self { pointer: Some(pointer), parameter: None, code, message, indexes: Vec::new(), count: None }
    }

    /// A complaint about the query parameter `name`.
    pub(crate) fn query(name: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        let name = cut_text(name.into(), PLACE_LEN_MAX);
        let message = cut_text(message.into(), MESSAGE_LEN_MAX);
        Self { pointer: None, parameter: Some(name), code, message, indexes: Vec::new(), count: None }
    }
}

/// Cuts a text to `len_max` characters: messages repeat values from the caller, which may be long.
fn cut_text(mut text: String, len_max: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(len_max) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl From<FieldError> for Complaint {
    fn from(error: FieldError) -> Self {
        Self::body(error.pointer, "invalid_value", error.message)
    }
}

/// An error for the client. [`render`] turns it into a body, where the request's id and path are known.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<ProblemState>);

#[derive(Clone, Debug)]
struct ProblemState {
    code: Code,
    detail: String,
    errors: Vec<Complaint>,
    current_version: Option<i64>,
    has_instance: bool,
    headers: Vec<(HeaderName, HeaderValue)>,
    cause: Option<String>,
}

impl Problem {
    /// The refusal of a request because of overload, with the seconds to wait before a retry.
    pub(crate) fn overloaded(detail: &str, seconds: u64) -> Self {
        Self::new(Code::Overloaded, detail).with_header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// A problem with a sentence about this case.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemState {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            current_version: None,
            has_instance: true,
            headers: Vec::new(),
            cause: None,
        }))
    }

    /// An error of this server. Its cause is logged but never sent.
    pub(crate) fn internal(cause: impl Into<String>) -> Self {
        Self::new(Code::Internal, "the log of the server has the cause under this request id").with_cause(cause.into())
    }

    /// A problem with complaints about the body or the query. Its sentence is taken from the first complaint.
    pub(crate) fn of_complaints(code: Code, errors: Vec<Complaint>) -> Self {
        let count = errors.len();
        Self::of_some_complaints(code, errors, count)
    }

    /// Like `of_complaints`, but the list may have only some of the `count` errors.
    pub(crate) fn of_some_complaints(code: Code, mut errors: Vec<Complaint>, count: usize) -> Self {
        let location =
            |error: &Complaint| error.pointer.clone().or_else(|| error.parameter.clone()).unwrap_or_default();
        let first_error =
            errors.first().map(|error| format!("{}: {}", location(error), error.message)).unwrap_or_default();
        let detail = match count {
            0 | 1 => first_error,
            _ => format!("{first_error} (the first of {count} errors)"),
        };
        let mut problem = Self::new(code, detail.trim_start_matches(": "));
        errors.truncate(COMPLAINT_COUNT_MAX);
        problem.0.errors = errors;
        problem
    }

    /// The same refusal for a request that has the query parameter `name` as a field of its body.
    pub(crate) fn in_body(self, name: &str) -> Self {
        if self.0.code != Code::InvalidQuery {
            return self;
        }
        let ProblemState { errors, .. } = *self.0;
        let in_body = |complaint: Complaint| {
            let is_field = complaint.parameter.as_deref() == Some(name);
            if is_field { Complaint::body(format!("/{name}"), complaint.code, complaint.message) } else { complaint }
        };
        Self::of_complaints(Code::InvalidBody, errors.into_iter().map(in_body).collect())
    }

    /// Leaves the path out of the answer, so that the answer does not depend on whether the object exists.
    pub(crate) fn without_instance(mut self) -> Self {
        self.0.has_instance = false;
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.push((name, value));
        self
    }

    pub(crate) fn with_current_version(mut self, version: i64) -> Self {
        self.0.current_version = Some(version);
        self
    }

    /// Adds the cause, which is logged but never sent.
    pub(crate) fn with_cause(mut self, cause: String) -> Self {
        self.0.cause = Some(cause);
        self
    }

    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// The complaints. Each is about one place in the request.
    pub(crate) fn complaints(&self) -> &[Complaint] {
        &self.0.errors
    }

    pub(crate) const fn code(&self) -> Code {
        self.0.code
    }

    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.cause.as_deref()
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::of_store_error(&error)
    }
}

impl Problem {
    pub(crate) fn of_store_error(error: &StoreError) -> Self {
        let cause = chain(error);
        if error.is_transient() {
            Self::new(Code::Unavailable, "the database did not answer; try again")
                .with_header(RETRY_AFTER, HeaderValue::from_static("1"))
                .with_cause(cause)
        } else if matches!(error, StoreError::Corrupt { column, .. } if DEFINITION_COLUMNS.contains(column)) {
            let detail =
                "this server cannot read the stored definition, which a newer server saved; upgrade this server";
            Self::new(Code::Unreadable, detail)
                .with_header(RETRY_AFTER, HeaderValue::from_static("60"))
                .with_cause(cause)
        } else {
            Self::internal(cause)
        }
    }
}

impl Problem {
    /// The list that was read, or an empty list if this server cannot read all of it. For a part of a page whose failure must not hide the
    /// other parts.
    pub(crate) fn unless_unreadable<T, E: Into<Self>>(result: Result<Vec<T>, E>) -> Result<Vec<T>, Self> {
        let result: Result<Vec<T>, Self> = result.map_err(Into::into);
        match result {
            Err(problem) if matches!(problem.code(), Code::Unreadable) => Ok(Vec::new()),
            result => result,
        }
    }

    /// The problem of changing or deleting a job that other jobs follow. It names those that the caller may see, and counts the others.
    pub(crate) fn of_parent_job(visible_children: &[&str], hidden_count: usize) -> Self {
        let mut jobs: Vec<String> = visible_children.iter().map(|name| (*name).to_owned()).collect();
        jobs.extend((hidden_count > 0).then(|| format!("{hidden_count} in apps that you may not see")));
        let jobs = jobs.join(", ");
        let detail = format!(
            "these jobs name it in their schedules: {jobs}; change or delete them first, or delete it with force=true"
        );
        Self::new(Code::JobIsParent, detail)
    }

    /// The problem for an error. It takes no account of the caller's rights, so it names no other jobs.
    pub(crate) fn of_job_error(error: &JobError) -> Self {
        match error {
            JobError::Invalid(errors) => {
                Self::of_complaints(Code::InvalidBody, errors.iter().cloned().map(Complaint::from).collect())
            }
            JobError::NameTaken => Self::new(Code::JobExists, "another job of the namespace has this name"),
            JobError::Conflict { version } => {
                Self::new(Code::VersionMismatch, format!("the job has version {version}"))
                    .with_current_version(*version)
            }
            JobError::IsParent { children } => Self::of_parent_job(&[], children.len()),
            JobError::KeyInUse(open_run) => {
                let ending_note = if open_run.is_asked_to_end() { ", and is asked to end" } else { "" };
                let detail = format!(
                    "run {} of the job has this key and is {}{ending_note}; wait for its end, or replace it",
                    open_run.id, open_run.status
                );
                Self::new(Code::TriggerKeyInUse, detail)
            }
            JobError::NotFound => Self::new(Code::JobNotFound, "the job was deleted meanwhile"),
            JobError::NotDeclared => Self::new(Code::JobNotDeclared, "there is no declaration to restore"),
            JobError::Store(error) => Self::of_store_error(error),
        }
    }
}

impl From<JobError> for Problem {
    fn from(error: JobError) -> Self {
        Self::of_job_error(&error)
    }
}

impl IntoResponse for Problem {
    /// An empty body with the problem as an extension. [`render`] writes the body.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() =
            StatusCode::from_u16(self.0.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        for (name, value) in &self.0.headers {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// An error (RFC 9457).
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
struct ProblemDocument<'a> {
    /// `urn:rondel:problem:` and the code.
    r#type: String,
    /// What the code means.
    title: &'static str,
    /// The status of the answer.
    #[schemars(range(min = 400, max = 599))]
    status: u16,
    /// A sentence about this error.
    detail: &'a str,
    /// The path; left out if the caller must not learn whether it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    /// The kind of the error, in a word that does not change between releases.
    #[schemars(schema_with = "code_schema")]
    code: &'static str,
    /// The id of the request in the server's log.
    request_id: &'a str,
    /// The current version, if the request named another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_version: Option<i64>,
    /// One entry for each error in the request.
    errors: &'a [Complaint],
}

fn code_schema(_: &mut SchemaGenerator) -> Schema {
    let code_names: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    schemars::json_schema!({"type": "string", "enum": code_names})
}

/// The schema of every error.
pub(crate) fn schema(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<ProblemDocument<'_>>()
}

/// Writes the body of a response that has a problem.
pub(crate) fn render(response: &mut Response, problem: &Problem, request_id: &str, path: &str) {
    let problem_state = &problem.0;
    let document = ProblemDocument {
        r#type: format!("urn:rondel:problem:{}", problem_state.code.as_str()),
        title: problem_state.code.title(),
        status: problem_state.code.status(),
        detail: &problem_state.detail,
        instance: problem_state.has_instance.then_some(path),
        code: problem_state.code.as_str(),
        request_id,
        current_version: problem_state.current_version,
        errors: &problem_state.errors,
    };
    let body = serde_json::to_vec(&document).unwrap_or_default();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    *response.body_mut() = Body::from(body);
}

/// The problem for a panic in a handler.
#[expect(clippy::needless_pass_by_value, reason = "tower-http's signature")]
pub(crate) fn panic_response(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text");
    Problem::internal(format!("panic: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    async fn rendered(problem: Problem) -> (Response, String) {
        let mut response = problem.clone().into_response();
        render(&mut response, &problem, "id", "/path");
        let body = std::mem::take(response.body_mut());
        let text = String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap();
        (response, text)
    }

    #[tokio::test]
    async fn causes_are_not_sent() {
        let message = "no JSON".to_owned();
        let problem = Problem::from(StoreError::Corrupt { table: "job_version", column: "version", id: 7, message });
        assert!(problem.cause().is_some_and(|cause| cause.contains("job_version")));
        let (response, text) = rendered(problem).await;
        assert_eq!(response.status(), 500);
        assert!(!text.contains("job_version") && text.contains("\"request_id\":\"id\""), "{text}");
    }

    #[tokio::test]
    async fn a_definition_of_a_newer_server_is_named_as_such() {
        let message = "unknown field `of_a_newer_server`".to_owned();
        let error = StoreError::Corrupt { table: "job", column: "spec", id: 7, message };
        let problem = Problem::from(error);
        assert!(Problem::unless_unreadable(Err::<Vec<u8>, _>(problem.clone())).is_ok_and(|read| read.is_empty()));
        assert!(Problem::unless_unreadable(Err::<Vec<u8>, _>(StoreError::no_answer("read"))).is_err());
        assert!(problem.cause().is_some_and(|cause| cause.contains("of_a_newer_server")));
        let (response, text) = rendered(problem).await;
        assert_eq!(response.status(), 503);
        assert!(text.contains("upgrade this server") && !text.contains("of_a_newer_server"), "{text}");
    }

    #[tokio::test]
    async fn long_complaints_are_cut() {
        let errors = vec![Complaint::body("/ä".repeat(1000), "invalid_value", "ö".repeat(100_000)); 1000];
        let (_, text) = rendered(Problem::of_complaints(Code::InvalidBody, errors)).await;
        assert!(text.len() < 100_000, "{}", text.len());
        assert!(text.contains("the first of 1000 errors"));
    }
}
