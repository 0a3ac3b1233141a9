//! `Idempotency-Key`: a call that is sent again gets its first answer, and is not made again.
//!
//! A call with a key is stored before it is made, and then with its answer, so that any server of the cluster finds it.
//! If a server dies in between, the call has no answer, and can be made again a minute later.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rondel_core::TokenId;
use rondel_store::request_keys::{CallState, KeptAnswer, KeyedCall};
use sha2::{Digest as _, Sha256};

use crate::body::collect_within;
use crate::call::{Admitted, quoted};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::state::Web;

/// The header `Idempotency-Key`, as the OpenAPI document describes it.
pub(crate) const PARAMETER: Parameter = Parameter::pattern("Idempotency-Key", "^[!-~]{1,255}$")
    .about("Makes the call once: the same call with the same key, within 24 hours, gets the same answer.");
/// The codes with which a call with a key can be refused.
pub(crate) const REFUSALS: [Code; 6] = [
    Code::InvalidHeader,
    Code::InvalidJson,
    Code::RequestTimeout,
    Code::KeyInFlight,
    Code::BodyTooLarge,
    Code::KeyReused,
];
const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const KEY_LEN_MAX: usize = 255;
/// Maximum length of the body of a call with a key, in bytes.
const BODY_LEN_MAX: usize = 1024 * 1024;
/// Maximum length of an answer that is kept, in bytes.
const ANSWER_LEN_MAX: usize = 1024 * 1024;
/// A call without an answer for this long counts as abandoned by its server.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(60);
/// The headers that are kept with an answer.
const KEPT: [HeaderName; 3] = [CONTENT_TYPE, ETAG, LOCATION];

/// Layer around a `POST`, inside its gate: only a caller who may make the call can use a key.
pub(crate) async fn keyed(State(web): State<Web>, request: Request, next: Next) -> Response {
    match key(request.headers()) {
        Ok(None) => next.run(request).await,
        Ok(Some(key)) => match once(&web, key, request, next).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        Err(problem) => problem.into_response(),
    }
}

/// Layer around a change whose answer is not kept. It refuses the header, since a client that relied on the key would make the call twice.
pub(crate) async fn unkeyed(request: Request, next: Next) -> Response {
    let Some(value) = request.headers().get(KEY) else { return next.run(request).await };
    let value = quoted(&String::from_utf8_lossy(value.as_bytes()));
    let detail = format!(
        "Idempotency-Key {value}: {} {} keeps no answers, so a call that is sent again is made again; leave the header out",
        request.method(),
        request.uri().path()
    );
    Problem::new(Code::InvalidHeader, detail).into_response()
}

/// The key, if there is one: quoted as in the draft of the IETF, or bare as most clients send it.
fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let wrong = || {
        let message = format!("Idempotency-Key is one value of 1 to {KEY_LEN_MAX} visible characters");
        Problem::new(Code::InvalidHeader, message)
    };
    let mut values = headers.get_all(KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong());
    }
    let text = value.to_str().map_err(|_| wrong())?.trim();
    let key = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let is_good = (1..=KEY_LEN_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good { Ok(Some(key.to_owned())) } else { Err(wrong()) }
}

async fn once(web: &Web, key: String, request: Request, next: Next) -> Result<Response, Problem> {
    if request.headers().get(ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/x-ndjson") {
        let message = "an answer that comes line by line is not kept: leave Idempotency-Key or Accept out";
        return Err(Problem::new(Code::InvalidHeader, message));
    }
    let (parts, body) = request.into_parts();
    let body = collect_within(Request::from_parts(parts.clone(), body), BODY_LEN_MAX).await?;
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    // The scope is the token's id, since the header that carries the token can be written in many ways.
    let caller = parts.extensions.get::<Admitted>().map(|admitted| &admitted.caller);
    let token = caller.and_then(|caller| caller.token);
    // The fingerprint contains the caller's roles: a caller who loses a role does not get the answer again.
    let rights = caller.map(|caller| format!("{:?}", caller.rights)).unwrap_or_default();
    let scope = digest(&[&token.map_or(0, TokenId::get).to_be_bytes()]);
    let fingerprint = digest(&[parts.method.as_str().as_bytes(), target.as_bytes(), &body, rights.as_bytes()]);
    let call = KeyedCall { scope: &scope, key: &key, fingerprint: &fingerprint };
    let store = web.engine.store();
    let now = web.engine.now();
    match store.begin_call(call, now, now - GIVEN_UP_AFTER).await? {
        CallState::New => {}
        CallState::Answered(kept) => return Ok(replay(kept)),
        CallState::InFlight => {
            let problem = Problem::new(Code::KeyInFlight, "the same call is being made; ask again for its answer");
            return Err(problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")));
        }
        CallState::Other => {
            return Err(Problem::new(
                Code::KeyReused,
                "use a new key for a new call, and after the roles of the caller have changed",
            ));
        }
    }
    // If the caller hangs up, the call has no answer; after [`GIVEN_UP_AFTER`] the next request with this key makes it again.
    let response = next.run(Request::from_parts(parts, Body::from(body))).await;
    let (response, kept) = keep(response).await;
    store.end_call(call, kept.as_ref()).await?;
    Ok(response)
}

/// Hashes each part with its length, so that the same bytes divided in another way have another hash.
fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parts of an answer that are kept. A refusal is not kept: nothing was done, and the call may be corrected and made again. A failure
/// of the server and an answer that is too long are not kept either.
async fn keep(response: Response) -> (Response, Option<KeptAnswer>) {
    if !response.status().is_success() {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let bytes: Bytes = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => bytes,
        Err(_) => {
            let problem = Problem::new(Code::Internal, "the log of the server has the cause under this request id");
            return (problem.with_cause("an answer broke off".to_owned()).into_response(), None);
        }
    };
    let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() <= ANSWER_LEN_MAX);
    let headers: BTreeMap<&str, &str> =
        KEPT.iter().filter_map(|name| Some((name.as_str(), parts.headers.get(name)?.to_str().ok()?))).collect();
    let kept = text.map(|text| KeptAnswer {
        status: parts.status.as_u16(),
        headers: serde_json::to_string(&headers).unwrap_or_default(),
        body: text.to_owned(),
    });
    (Response::from_parts(parts, Body::from(bytes)), kept)
}

fn replay(kept: KeptAnswer) -> Response {
    let mut response = Response::new(Body::from(kept.body));
    *response.status_mut() = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let headers: BTreeMap<String, String> = serde_json::from_str(&kept.headers).unwrap_or_default();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_quoted_or_bare() {
        let read = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(KEY, HeaderValue::from_static(value));
            key(&headers).ok().flatten()
        };
        assert_eq!(read("\"8e03978e\"").as_deref(), Some("8e03978e"));
        assert_eq!(read("8e03978e").as_deref(), Some("8e03978e"));
        assert_eq!((read(""), read("\"\""), read("a b")), (None, None, None));
        assert!(key(&HeaderMap::new()).is_ok_and(|key| key.is_none()));
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
