//! JSON bodies: their type, size and time, and a JSON pointer for everything that is wrong in one.

use std::marker::PhantomData;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_path_to_error::Segment;

use crate::app::Web;
use crate::openapi::{BodyForm, Input, Patch, Taken, schema_of};
use crate::problem::{Code, Complaint, Problem};

/// A body that is declared as JSON, and is to be a `T`. The handler reads it, once it knows what comes before that.
pub(crate) struct JsonBody<T> {
    pub(crate) bytes: Bytes,
    is: PhantomData<fn() -> T>,
}

/// The same, or nothing.
pub(crate) struct OptionalJsonBody<T> {
    bytes: Option<Bytes>,
    is: PhantomData<fn() -> T>,
}

/// A JSON merge patch of a `T`.
pub(crate) struct PatchBody<T> {
    pub(crate) bytes: Bytes,
    is: PhantomData<fn() -> T>,
}

/// A body of any type: a file.
#[derive(Clone, Debug)]
pub(crate) struct TextBody(pub(crate) Bytes);

impl<T: DeserializeOwned> JsonBody<T> {
    pub(crate) fn read(&self) -> Result<T, Problem> {
        read(&self.bytes)
    }
}

impl<T: DeserializeOwned + Default> OptionalJsonBody<T> {
    /// What it says; what holds without it where there is none.
    pub(crate) fn read(&self) -> Result<T, Problem> {
        self.bytes.as_ref().map_or_else(|| Ok(T::default()), |bytes| read(bytes))
    }
}

/// What any body can be refused for before it is read.
const NOT_TAKEN: [Code; 3] = [Code::InvalidJson, Code::RequestTimeout, Code::BodyTooLarge];

impl Input for TextBody {
    fn tell(taken: &mut Taken) {
        let media = &["text/calendar", "text/csv", "text/plain"];
        taken.body = Some(BodyForm { media, schema: schema_of::<String>(), is_required: true });
        taken.refusals.extend(NOT_TAKEN);
        taken.refusals.push(Code::InvalidBody);
    }
}

impl<T: JsonSchema> Input for JsonBody<T> {
    fn tell(taken: &mut Taken) {
        taken.body = Some(BodyForm { media: &["application/json"], schema: schema_of::<T>(), is_required: true });
        taken.refusals.extend(NOT_TAKEN);
        taken.refusals.extend([Code::UnsupportedMediaType, Code::InvalidBody]);
    }
}

impl<T: JsonSchema> Input for PatchBody<T> {
    fn tell(taken: &mut Taken) {
        JsonBody::<T>::tell(taken);
        let media = &["application/json", "application/merge-patch+json"];
        taken.body = Some(BodyForm { media, schema: schema_of::<Patch<T>>(), is_required: true });
    }
}

impl<T> FromRequest<Web> for PatchBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let JsonBody { bytes, is } = JsonBody::from_request(request, web).await?;
        Ok(Self { bytes, is })
    }
}

impl<T: JsonSchema> Input for OptionalJsonBody<T> {
    fn tell(taken: &mut Taken) {
        JsonBody::<T>::tell(taken);
        taken.body = Some(BodyForm { media: &["application/json"], schema: schema_of::<T>(), is_required: false });
    }
}

impl FromRequest<Web> for TextBody {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        collect(request, web).await.map(Self)
    }
}

impl<T> FromRequest<Web> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        if is_json(request.headers()) {
            Ok(Self { bytes: collect(request, web).await?, is: PhantomData })
        } else {
            Err(undeclared())
        }
    }
}

impl<T> FromRequest<Web> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = collect(request, web).await?;
        match (bytes.is_empty(), is_json) {
            (true, _) => Ok(Self { bytes: None, is: PhantomData }),
            (false, true) => Ok(Self { bytes: Some(bytes), is: PhantomData }),
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
