//! JSON bodies: their type, size and time, and a JSON pointer for everything that is wrong in one.

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::Segment;

use crate::app::Web;
use crate::problem::{Code, Complaint, Problem};

/// A body that is declared as JSON.
#[derive(Clone, Debug)]
pub(crate) struct JsonBody(pub(crate) Bytes);

/// The same, or nothing.
#[derive(Clone, Debug)]
pub(crate) struct OptionalJsonBody(pub(crate) Option<Bytes>);

/// A body of any type: a file.
#[derive(Clone, Debug)]
pub(crate) struct TextBody(pub(crate) Bytes);

impl FromRequest<Web> for TextBody {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        collect(request, web).await.map(Self)
    }
}

impl FromRequest<Web> for JsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        if is_json(request.headers()) { Ok(Self(collect(request, web).await?)) } else { Err(undeclared()) }
    }
}

impl FromRequest<Web> for OptionalJsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = collect(request, web).await?;
        match (bytes.is_empty(), is_json) {
            (true, _) => Ok(Self(None)),
            (false, true) => Ok(Self(Some(bytes))),
            (false, false) => Err(undeclared()),
        }
    }
}

fn undeclared() -> Problem {
    Problem::new(Code::UnsupportedMediaType, "send \"Content-Type: application/json\"")
}

/// `application/json`, or a type that ends in `+json` as a merge patch has.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

async fn collect(request: Request, web: &Web) -> Result<Bytes, Problem> {
    let len_max = web.config.body_len_max;
    collect_up_to(request, web, len_max).await
}

/// A body of at most so many bytes.
pub(crate) async fn collect_up_to(request: Request, web: &Web, len_max: usize) -> Result<Bytes, Problem> {
    let too_large = || Problem::new(Code::BodyTooLarge, format!("a body has at most {len_max} bytes"));
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared.is_some_and(|len| len > len_max) {
        return Err(too_large());
    }
    match tokio::time::timeout(web.config.body_timeout, to_bytes(request.into_body(), len_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => Err(too_large()),
        Ok(Err(_)) => Err(Problem::new(Code::InvalidJson, "the body broke off")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, "the body did not arrive in time")),
    }
}

/// Whether a body ended at its bound, rather than broke off.
fn is_too_large(error: &axum::Error) -> bool {
    let error: &dyn std::error::Error = error;
    std::iter::successors(Some(error), |error| error.source()).any(|error| error.to_string() == "length limit exceeded")
}

/// Reads a whole body as `T`.
pub(crate) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| refuse("", &error))?;
    reader.end().map_err(|error| syntax(&error))?;
    Ok(value)
}

/// Reads `T` out of a value that lies at `pointer` in the body.
pub(crate) fn read_value<T: DeserializeOwned>(pointer: &str, value: serde_json::Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| refuse(pointer, &error))
}

/// A refusal of the value at `pointer`.
pub(crate) fn refuse_value(pointer: &str, message: impl Into<String>) -> Problem {
    Problem::of_complaints(Code::InvalidBody, vec![Complaint::body(pointer, "invalid_value", message)])
}

fn syntax(error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    Problem::new(Code::InvalidJson, format!("{} at line {line}, column {column}", reason(error)))
}

fn refuse(base: &str, error: &serde_path_to_error::Error<serde_json::Error>) -> Problem {
    let inner = error.inner();
    if !matches!(inner.classify(), Category::Data) {
        return syntax(inner);
    }
    let mut pointer = base.to_owned();
    for segment in error.path() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } => push(&mut pointer, key),
            Segment::Enum { variant } => push(&mut pointer, variant),
            Segment::Unknown => {}
        }
    }
    let message = reason(inner);
    // The path ends at the object whose field is missing or given twice: the sentence has the field's name.
    let named = |kind: &str| message.strip_prefix(kind)?.strip_prefix(" field `")?.strip_suffix('`');
    let code = if message.starts_with("unknown field `") {
        "unknown_field"
    } else if let Some(name) = named("missing") {
        push(&mut pointer, name);
        "missing_field"
    } else if let Some(name) = named("duplicate") {
        push(&mut pointer, name);
        "duplicate_field"
    } else {
        "invalid_value"
    };
    Problem::of_complaints(Code::InvalidBody, vec![Complaint::body(pointer, code, message)])
}

/// The error's sentence without the place that `serde_json` puts behind it.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) if error.line() > 0 => text[..end].to_owned(),
        _ => text,
    }
}

fn push(pointer: &mut String, key: &str) {
    pointer.push('/');
    pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
}
