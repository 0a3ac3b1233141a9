//! Answers with a JSON body.

use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode};

use crate::problem::Problem;

pub(crate) fn json_response(status: StatusCode, body: &impl serde::Serialize) -> Result<Response, Problem> {
    let text = serde_json::to_vec(body)
        .map_err(|error| Problem::internal(format!("an answer cannot be written as JSON: {error}")))?;
    let content_type = [(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok((status, content_type, text).into_response())
}
