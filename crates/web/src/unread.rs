//! Refuses a change if its route does not read the body, or a condition about a version (such as `If-Match`). If the server ignored them,
//! the change would not be the one that the caller asked for.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::HeaderMap;
use http::header::{IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};

use crate::body::{collect_within, refuse_value};
use crate::call::quoted_input;
use crate::openapi::HandlerInputs;
use crate::problem::{Code, Problem};

/// The inputs that a route reads from requests for a change.
#[derive(Clone, Debug)]
pub(crate) struct ReadInputs {
    has_body: bool,
    has_version: bool,
    /// The names of the route's query parameters, joined by commas.
    parameters: String,
}

impl ReadInputs {
    pub(crate) fn new(inputs: &HandlerInputs) -> Self {
        let parameters: Vec<&str> = inputs.query.iter().map(|parameter| parameter.name).collect();
        Self {
            has_body: inputs.body.is_some(),
            has_version: inputs.headers.iter().any(|header| header.name == "If-Match"),
            parameters: parameters.join(", "),
        }
    }

    fn check_conditions(&self, headers: &HeaderMap) -> Result<(), Problem> {
        for (name, is_read) in [(IF_MATCH, self.has_version), (IF_NONE_MATCH, false), (IF_UNMODIFIED_SINCE, false)] {
            let Some(value) = headers.get(&name).filter(|_| !is_read) else { continue };
            let value = quoted_input(&String::from_utf8_lossy(value.as_bytes()));
            let detail =
                format!("{name} {value}: this call does not read it and would change the object anyway; leave it out");
            return Err(Problem::new(Code::InvalidHeader, detail));
        }
        Ok(())
    }

    /// The request, if its body is empty, `{}` or `null`: many clients send one of these with every `POST`.
    async fn without_body(&self, request: Request) -> Result<Request, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = collect_within(Request::from_parts(parts.clone(), body), usize::MAX).await?;
        let text = bytes.trim_ascii();
        let object_fields = text.strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
        if text.is_empty()
            || text == b"null"
            || object_fields.is_some_and(|object_fields| object_fields.trim_ascii().is_empty())
        {
            return Ok(Request::from_parts(parts, Body::from(bytes)));
        }
        Err(refuse_value("", format!("this call takes no body; it has the query parameters {}", self.parameters)))
    }
}

/// Layer around a change, inside its gate, which has already waited for the body.
pub(crate) async fn refuse_unread(State(read_inputs): State<ReadInputs>, request: Request, next: Next) -> Response {
    if let Err(problem) = read_inputs.check_conditions(request.headers()) {
        return problem.into_response();
    }
    if read_inputs.has_body {
        return next.run(request).await;
    }
    match read_inputs.without_body(request).await {
        Ok(request) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}
