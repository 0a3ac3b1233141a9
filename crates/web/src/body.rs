//! JSON bodies: checks their type, size and arrival time, and reports each error with a JSON pointer.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::pin::Pin;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use rondel_admin::Limit;
use rondel_core::shape::{self, Document, ShapeError};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::limits::{CallerKey, Share};
use crate::openapi::{HandlerInputs, Input, Patch, RequestBodyDoc, schema_of};
use crate::problem::{Code, Complaint, Problem};
use crate::state::Web;
use crate::yaml::{MAP_NODE_COUNT, NODE_COUNT_MAX};

/// While a body arrives, its bytes are counted in steps of at least this size.
const BODY_PIECE_LEN: usize = 64 * 1024;

/// A body that is declared as JSON and must be a `T`. The handler parses it with `read`, after its own first checks.
pub(crate) struct JsonBody<T> {
    pub(crate) bytes: Bytes,
    body_type: PhantomData<fn() -> T>,
}

/// An optional JSON body for a `T`.
pub(crate) struct OptionalJsonBody<T> {
    bytes: Option<Bytes>,
    body_type: PhantomData<fn() -> T>,
}

/// A JSON merge patch of a `T`.
pub(crate) struct PatchBody<T> {
    pub(crate) bytes: Bytes,
    body_type: PhantomData<fn() -> T>,
}

/// A body of any content type, such as an uploaded file.
#[derive(Clone, Debug)]
pub(crate) struct TextBody(pub(crate) Bytes);

impl<T: DeserializeOwned + JsonSchema + 'static> JsonBody<T> {
    pub(crate) fn read(&self) -> Result<T, Problem> {
        read(&self.bytes)
    }
}

impl<T: DeserializeOwned + Default + JsonSchema + 'static> OptionalJsonBody<T> {
    /// The parsed body, or the default of `T` if there is none.
    pub(crate) fn read(&self) -> Result<T, Problem> {
        self.bytes.as_ref().map_or_else(|| Ok(T::default()), |bytes| read(bytes))
    }
}

/// The codes with which a body can be refused before it is parsed, on any route.
const BODY_REFUSALS: [Code; 3] = [Code::InvalidJson, Code::RequestTimeout, Code::BodyTooLarge];

impl Input for TextBody {
    fn describe(inputs: &mut HandlerInputs) {
        let media_types = &["text/calendar", "text/csv", "text/plain"];
        inputs.body = Some(RequestBodyDoc { media_types, schema: schema_of::<String>(), is_required: true });
        inputs.refusals.extend(BODY_REFUSALS);
        inputs.refusals.push(Code::InvalidBody);
    }
}

impl<T: JsonSchema> Input for JsonBody<T> {
    fn describe(inputs: &mut HandlerInputs) {
        inputs.body =
            Some(RequestBodyDoc { media_types: &["application/json"], schema: schema_of::<T>(), is_required: true });
        inputs.refusals.extend(BODY_REFUSALS);
        inputs.refusals.extend([Code::UnsupportedMediaType, Code::InvalidBody]);
    }
}

impl<T: JsonSchema> Input for PatchBody<T> {
    fn describe(inputs: &mut HandlerInputs) {
        JsonBody::<T>::describe(inputs);
        let media_types = &["application/json", "application/merge-patch+json"];
        inputs.body = Some(RequestBodyDoc { media_types, schema: schema_of::<Patch<T>>(), is_required: true });
    }
}

impl<T> FromRequest<Web> for PatchBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let JsonBody { bytes, body_type } = JsonBody::from_request(request, web).await?;
        Ok(Self { bytes, body_type })
    }
}

impl<T: JsonSchema> Input for OptionalJsonBody<T> {
    fn describe(inputs: &mut HandlerInputs) {
        JsonBody::<T>::describe(inputs);
        inputs.body =
            Some(RequestBodyDoc { media_types: &["application/json"], schema: schema_of::<T>(), is_required: false });
    }
}

impl FromRequest<Web> for TextBody {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        collect_body(request, web).await.map(Self)
    }
}

impl<T> FromRequest<Web> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        if is_json(request.headers()) {
            Ok(Self { bytes: collect_body(request, web).await?, body_type: PhantomData })
        } else {
            Err(content_type_problem())
        }
    }
}

impl<T> FromRequest<Web> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, web: &Web) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let bytes = collect_body(request, web).await?;
        match (bytes.is_empty(), is_json) {
            (true, _) => Ok(Self { bytes: None, body_type: PhantomData }),
            (false, true) => Ok(Self { bytes: Some(bytes), body_type: PhantomData }),
            (false, false) => Err(content_type_problem()),
        }
    }
}

fn content_type_problem() -> Problem {
    Problem::new(Code::UnsupportedMediaType, "send \"Content-Type: application/json\"")
}

/// Whether the content type is `application/json`, or ends in `+json` like that of a merge patch.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json" || (media_type.starts_with("application/") && media_type.ends_with("+json"))
}

/// The bytes of the body. They have all arrived: the gate waits for them.
async fn collect_body(request: Request, web: &Web) -> Result<Bytes, Problem> {
    collect_within(request, web.config.body_len_max).await
}

/// The bytes of a body that has arrived, if it has at most `len_max`.
pub(crate) async fn collect_within(request: Request, len_max: usize) -> Result<Bytes, Problem> {
    let bytes = to_bytes(request.into_body(), usize::MAX).await.map_err(|_| interrupted_body_problem())?;
    if bytes.len() > len_max { Err(too_large_problem(len_max)) } else { Ok(bytes) }
}

fn too_large_problem(len_max: usize) -> Problem {
    Problem::new(Code::BodyTooLarge, format!("a body has at most {len_max} bytes"))
}

fn interrupted_body_problem() -> Problem {
    Problem::new(Code::InvalidJson, "the body broke off")
}

/// The maximum length of a body, and the caller and the address towards whose limits the body counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyBound {
    pub(crate) len_max: usize,
    pub(crate) caller: Option<CallerKey>,
    pub(crate) address: IpAddr,
}

impl BodyBound {
    fn report(self, web: &Web, limit: Limit) {
        match self.caller {
            Some(caller) => web.engine.note_limit_reached(limit, &caller),
            None => web.engine.note_limit_reached(limit, &self.address),
        }
    }
}

/// A body's share of the memory for all bodies. Each counted piece takes two shares: one from the limit of the caller, one from the limit
/// for all bodies.
pub(crate) type BodyShare = Vec<Share<Option<CallerKey>>>;

/// Waits for a body. With an authenticated caller, its bytes count towards the limits of the caller and the server as they arrive.
pub(crate) async fn collect_up_to(
    request: Request,
    web: &Web,
    bound: BodyBound,
) -> Result<(Bytes, BodyShare), Problem> {
    let len_max = bound.len_max;
    let declared_len =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if declared_len.is_some_and(|len| len > len_max) {
        return Err(too_large_problem(len_max));
    }
    let timeout = web.config.limits.body_timeout;
    tokio::time::timeout(timeout, read_pieces(request.into_body(), declared_len, web, bound)).await.unwrap_or_else(
        |_| {
            bound.report(web, Limit::BodyTimeout);
            Err(Problem::new(Code::RequestTimeout, "the body did not arrive in time"))
        },
    )
}

async fn read_pieces(
    mut body: Body,
    declared_len: Option<usize>,
    web: &Web,
    bound: BodyBound,
) -> Result<(Bytes, BodyShare), Problem> {
    let (tally, size) = (&web.permits.body_bytes, web.config.limits.body_size);
    // Reserves the declared length in one step, since a growing buffer leaves holes of half its size in the heap. The operating system
    // provides the memory only as bytes arrive.
    let reserved_len = declared_len.filter(|_| bound.caller.is_some()).unwrap_or_default();
    let (mut bytes, mut shares, mut counted_len) = (BytesMut::with_capacity(reserved_len), Vec::new(), 0);
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(data) = frame.map_err(|_| interrupted_body_problem())?.into_data() else { continue };
        if bytes.len() + data.len() > bound.len_max {
            return Err(too_large_problem(bound.len_max));
        }
        bytes.extend_from_slice(&data);
        // Bodies without an authenticated caller are not counted: their length and their number have other limits.
        if let Some(caller) = bound.caller.filter(|_| bytes.len() > counted_len) {
            let count = (bytes.len() - counted_len).max(BODY_PIECE_LEN);
            let (caller_share, total_share) =
                (tally.take(Some(caller), count, size / 2), tally.take(None, count, size));
            let (Some(caller_share), Some(total_share)) = (caller_share, total_share) else {
                bound.report(web, Limit::BodySize);
                return Err(Problem::overloaded("too many bytes of requests are being received; try again", 1));
            };
            shares.extend([caller_share, total_share]);
            counted_len += count;
        }
    }
    Ok((bytes.freeze(), shares))
}

/// Reads a whole body as `T`.
pub(crate) fn read<T: DeserializeOwned + JsonSchema + 'static>(bytes: &[u8]) -> Result<T, Problem> {
    deserialize("", parse(bytes)?)
}

/// Reads `T` from a value that is at `pointer` in the body.
pub(crate) fn read_value<T: DeserializeOwned + JsonSchema + 'static>(
    pointer: &str,
    value: serde_json::Value,
) -> Result<T, Problem> {
    deserialize(pointer, value.into())
}

pub(crate) fn read_document<T: DeserializeOwned + JsonSchema + 'static>(document: Document) -> Result<T, Problem> {
    deserialize("", document)
}

/// Parses a whole body as JSON, whatever its structure.
pub(crate) fn parse(bytes: &[u8]) -> Result<Document, Problem> {
    if value_count(bytes) > NODE_COUNT_MAX {
        return Err(refuse_value("", format!("has more than {NODE_COUNT_MAX} values")));
    }
    serde_json::from_slice(bytes).map_err(|error| syntax_problem(&error))
}

/// Upper bound for the number of values in a JSON text, including keys. Values are counted before parsing, since a value of two bytes takes
/// a hundred times that in memory.
fn value_count(bytes: &[u8]) -> usize {
    let (mut count, mut is_in_string, mut is_escaped) = (1, false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b',' | b':' | b'[' => count += 1,
            b'{' => count += MAP_NODE_COUNT,
            _ => {}
        }
    }
    count
}

fn deserialize<T: DeserializeOwned + JsonSchema + 'static>(pointer: &str, document: Document) -> Result<T, Problem> {
    shape::read(document).map_err(|shape_errors| {
        let complaints = shape_errors.errors.iter().map(|error| shape_complaint(pointer, error)).collect();
        Problem::of_some_complaints(Code::InvalidBody, complaints, shape_errors.count)
    })
}

/// The API's complaint about a value that does not have the shape of its type.
pub(crate) fn shape_complaint(parent_pointer: &str, error: &ShapeError) -> Complaint {
    Complaint::body(format!("{parent_pointer}{}", error.pointer), error.kind.as_str(), error.message.as_str())
}

/// A refusal of the value at `pointer`.
pub(crate) fn refuse_value(pointer: &str, message: impl Into<String>) -> Problem {
    Problem::of_complaints(Code::InvalidBody, vec![Complaint::body(pointer, "invalid_value", message)])
}

fn syntax_problem(error: &serde_json::Error) -> Problem {
    let (line, column) = (error.line(), error.column());
    Problem::new(Code::InvalidJson, format!("{} at line {line}, column {column}", syntax_reason(error)))
}

/// The error's message without the position that `serde_json` appends. Text that is nested too deeply gets a message of its own.
fn syntax_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        _ if text.starts_with("recursion limit exceeded") => "more than 127 arrays and objects are nested".to_owned(),
        Some(end) if error.line() > 0 => text[..end].to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn values_are_counted_outside_of_texts() {
        for (text, count) in [
            ("1", 1),
            ("[1,2]", 3),
            (r#""a,b:[{""#, 1),
            (r#"{"a\\":1,"\",,":[]}"#, 1 + MAP_NODE_COUNT + 4),
            (r#"[{},{}]"#, 3 + 2 * MAP_NODE_COUNT),
        ] {
            assert_eq!(value_count(text.as_bytes()), count, "{text}");
        }
    }

    #[test]
    fn a_text_of_many_small_values_is_refused() {
        let many = |one: &str| read::<Value>(format!("[{}1]", one.repeat(2_000_000)).as_bytes());
        for one in ["{},", "[],", "0,", r#"{"":0},"#] {
            assert!(many(one).unwrap_err().detail().contains("more than"), "{one}");
        }
        let text = format!("[\"{}\"]", "[{,:".repeat(1_000_000));
        assert!(read::<Value>(text.as_bytes()).is_ok(), "text is no value");
    }
}
