//! `Idempotency-Key`: a repeated call is not made again; its client gets the answer of the first call.
//!
//! A call with a key is stored before it is made, and its answer afterwards, so that every server of the cluster finds both. The call runs
//! in a task of its own: if the client disconnects, the call continues to its end. While it runs, the server renews the call's row. If the
//! server dies, the call has no answer, and a minute later it can be made again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use rondel_core::TokenId;
use rondel_core::error_chain::chain;
use rondel_store::StoreError;
use rondel_store::request_keys::{CallState, KeyedCall, StoredAnswer};
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;
use tracing::{Instrument as _, Span};

use crate::body::collect_within;
use crate::call::{AdmittedCaller, quoted_input};
use crate::parameter::Parameter;
use crate::problem::{Code, Problem, panic_response};
use crate::state::Web;

/// The header `Idempotency-Key`, as the OpenAPI document describes it.
pub(crate) const KEY_PARAMETER: Parameter = Parameter::pattern("Idempotency-Key", "^[!-~]{1,255}$")
    .about("The call is executed only once: for 24 hours, the same call with the same key gets the same answer.");
/// The codes with which a call with a key can be refused.
pub(crate) const KEY_REFUSALS: [Code; 6] = [
    Code::InvalidHeader,
    Code::InvalidJson,
    Code::RequestTimeout,
    Code::KeyInFlight,
    Code::BodyTooLarge,
    Code::KeyReused,
];
const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED_HEADER: HeaderName = HeaderName::from_static("idempotency-replayed");
const KEY_LEN_MAX: usize = 255;
/// Maximum length of the body of a call with a key, in bytes.
const BODY_LEN_MAX: usize = 1024 * 1024;
/// Maximum length of a stored answer, in bytes.
const ANSWER_LEN_MAX: usize = 1024 * 1024;
/// A call that has no answer and was not renewed for this long counts as abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// How often the row of a call is renewed while the call is made.
const RENEWAL_PERIOD: Duration = Duration::from_secs(15);
/// How often storing the end of a call is tried.
const END_TRY_COUNT: u32 = 5;
/// The pause after the first try to store the end of a call. Each further pause is twice as long.
const END_RETRY_DELAY: Duration = Duration::from_millis(500);
/// The headers that are stored with an answer.
const STORED_HEADERS: [HeaderName; 3] = [CONTENT_TYPE, ETAG, LOCATION];

/// Layer around a `POST` route, inside its gate: only callers with the route's permission can use a key.
pub(crate) async fn apply_key(State(web): State<Web>, request: Request, next: Next) -> Response {
    match idempotency_key(request.headers()) {
        Ok(None) => next.run(request).await,
        Ok(Some(key)) => match run_once(&web, key, request, next).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        Err(problem) => problem.into_response(),
    }
}

/// Layer around a change whose answers are not stored. Refuses the header: a client that relied on it would make the call twice.
pub(crate) async fn refuse_key(request: Request, next: Next) -> Response {
    let Some(value) = request.headers().get(KEY_HEADER) else { return next.run(request).await };
    let value = quoted_input(&String::from_utf8_lossy(value.as_bytes()));
    let detail = format!(
        "Idempotency-Key {value}: {} {} stores no answers, so a repeated call would be made again; leave the header out",
        request.method(),
        request.uri().path()
    );
    Problem::new(Code::InvalidHeader, detail).into_response()
}

/// The key, if the request has one: quoted as in the IETF draft, or bare as most clients send it.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let invalid_key_problem = || {
        let message = format!("Idempotency-Key is one value of 1 to {KEY_LEN_MAX} visible characters");
        Problem::new(Code::InvalidHeader, message)
    };
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(invalid_key_problem());
    }
    let text = value.to_str().map_err(|_| invalid_key_problem())?.trim();
    let key = text.strip_prefix('"').and_then(|unclosed_text| unclosed_text.strip_suffix('"')).unwrap_or(text);
    let is_valid = (1..=KEY_LEN_MAX).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid { Ok(Some(key.to_owned())) } else { Err(invalid_key_problem()) }
}

/// Makes the call of a new key. A repeated call gets the stored answer, or is refused while the first call is in progress.
async fn run_once(web: &Web, key: String, request: Request, next: Next) -> Result<Response, Problem> {
    if request.headers().get(ACCEPT).is_some_and(|accept| accept.as_bytes() == b"application/x-ndjson") {
        let message = "an answer that is sent line by line is not stored: leave out Idempotency-Key or Accept";
        return Err(Problem::new(Code::InvalidHeader, message));
    }
    let (parts, body) = request.into_parts();
    let body = collect_within(Request::from_parts(parts.clone(), body), BODY_LEN_MAX).await?;
    let target = parts.uri.path_and_query().map_or("", |target| target.as_str());
    // The scope is the token's id and not the `Authorization` header, since the header for one token can be written in many ways.
    let caller = parts.extensions.get::<AdmittedCaller>().map(|admitted| &admitted.caller);
    let token = caller.and_then(|caller| caller.token);
    // The fingerprint contains the caller's rights: a caller who has lost a role does not get the stored answer.
    let rights = caller.map(|caller| format!("{:?}", caller.rights)).unwrap_or_default();
    let scope = digest(&[&token.map_or(0, TokenId::get).to_be_bytes()]);
    let fingerprint = digest(&[parts.method.as_str().as_bytes(), target.as_bytes(), &body, rights.as_bytes()]);
    let keyed_call = KeyedCall { scope: &scope, key: &key, fingerprint: &fingerprint };
    let store = web.engine.store();
    let now = web.engine.now();
    match store.begin_call(keyed_call, now, now - ABANDONED_AFTER).await? {
        CallState::New => {}
        CallState::Answered(stored_answer) => return Ok(replay_answer(stored_answer)),
        CallState::InFlight => {
            let problem =
                Problem::new(Code::KeyInFlight, "the same call is in progress; repeat it later to get its answer");
            return Err(problem.with_header(RETRY_AFTER, HeaderValue::from_static("1")));
        }
        CallState::KeyReused => {
            return Err(Problem::new(
                Code::KeyReused,
                "use a new key for a new call, and after the roles of the caller have changed",
            ));
        }
    }
    // The task holds the shares and permits of the request until the call ends. Otherwise clients could exceed their limits by
    // disconnecting.
    let extensions = parts.extensions.clone();
    let request = Request::from_parts(parts, Body::from(body));
    let (answer_sender, answer_receiver) = oneshot::channel();
    let task = {
        let web = web.clone();
        async move {
            let keyed_call = KeyedCall { scope: &scope, key: &key, fingerprint: &fingerprint };
            // Fails if the client has disconnected, which is fine.
            answer_sender.send(make_call(&web, keyed_call, request, next).await).ok();
            drop(extensions);
        }
    };
    web.engine.spawn("keyed call", task.instrument(Span::current()));
    answer_receiver.await.map_err(|_| Problem::internal("the task of a call with a key ended without an answer"))
}

/// Makes a call whose row is stored, and stores its end.
async fn make_call(web: &Web, call: KeyedCall<'_>, request: Request, next: Next) -> Response {
    let store = web.engine.store();
    let answer_future = async {
        let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(panic_response);
        with_stored_answer(response).await
    };
    let (response, stored_answer) = with_renewal(answer_future, || store.renew_call(call, web.engine.now())).await;
    if let Err(error) = store_end(|| store.end_call(call, stored_answer.as_ref())).await {
        tracing::error!(target: "http", error = %chain(&error), "cannot store the answer of a call with a key: if the call is repeated after a minute, it is made again");
    }
    response
}

/// Waits for the answer of a call, and renews its row meanwhile. A failed renewal is ignored: the next one follows soon.
async fn with_renewal<T, R>(call: impl Future<Output = T>, renew: impl Fn() -> R) -> T
where
    R: Future<Output = Result<(), StoreError>>,
{
    tokio::select! {
        answer = call => answer,
        never = renew_forever(renew) => match never {},
    }
}

async fn renew_forever<R>(renew: impl Fn() -> R) -> Infallible
where
    R: Future<Output = Result<(), StoreError>>,
{
    loop {
        tokio::time::sleep(RENEWAL_PERIOD).await;
        if let Err(error) = renew().await {
            tracing::warn!(target: "http", error = %chain(&error), "cannot renew a call with a key");
        }
    }
}

/// Stores the end of a call. Tries several times: without a stored answer, a repeated call would be made again.
async fn store_end<E>(end_call: impl Fn() -> E) -> Result<(), StoreError>
where
    E: Future<Output = Result<(), StoreError>>,
{
    let mut retry_delay = END_RETRY_DELAY;
    for _ in 1..END_TRY_COUNT {
        if end_call().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(retry_delay).await;
        retry_delay *= 2;
    }
    end_call().await
}

/// Hashes each part together with its length, so that the same bytes divided differently have another hash.
fn digest(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns an answer, and the copy of it to store. Refusals are not stored: nothing was done, so the client may correct the call and repeat
/// it. Server errors and answers that are too long are not stored either.
async fn with_stored_answer(response: Response) -> (Response, Option<StoredAnswer>) {
    if !response.status().is_success() {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let bytes: Bytes = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => bytes,
        Err(_) => {
            return (Problem::internal("an answer broke off").into_response(), None);
        }
    };
    let text = std::str::from_utf8(&bytes).ok().filter(|text| text.len() <= ANSWER_LEN_MAX);
    let headers: BTreeMap<&str, &str> = STORED_HEADERS
        .iter()
        .filter_map(|name| Some((name.as_str(), parts.headers.get(name)?.to_str().ok()?)))
        .collect();
    let stored_answer = text.map(|text| StoredAnswer {
        status: parts.status.as_u16(),
        headers: serde_json::to_string(&headers).unwrap_or_default(),
        body: text.to_owned(),
    });
    (Response::from_parts(parts, Body::from(bytes)), stored_answer)
}

fn replay_answer(stored_answer: StoredAnswer) -> Response {
    let mut response = Response::new(Body::from(stored_answer.body));
    *response.status_mut() = StatusCode::from_u16(stored_answer.status).unwrap_or(StatusCode::OK);
    let headers: BTreeMap<String, String> = serde_json::from_str(&stored_answer.headers).unwrap_or_default();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response.headers_mut().insert(REPLAYED_HEADER, HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn keys_are_quoted_or_bare() {
        let read = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(KEY_HEADER, HeaderValue::from_static(value));
            idempotency_key(&headers).ok().flatten()
        };
        assert_eq!(read("\"8e03978e\"").as_deref(), Some("8e03978e"));
        assert_eq!(read("8e03978e").as_deref(), Some("8e03978e"));
        assert_eq!((read(""), read("\"\""), read("a b")), (None, None, None));
        assert!(idempotency_key(&HeaderMap::new()).is_ok_and(|key| key.is_none()));
    }

    fn no_answer() -> Ready<Result<(), StoreError>> {
        ready(Err(StoreError::no_answer("a call")))
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_call_is_renewed_until_its_answer() {
        let renewals = AtomicU32::new(0);
        let renew = || {
            renewals.fetch_add(1, Ordering::Relaxed);
            no_answer()
        };
        let call = async {
            tokio::time::sleep(ABANDONED_AFTER * 2).await;
            7
        };
        assert_eq!(with_renewal(call, renew).await, 7);
        assert!((7..=8).contains(&renewals.load(Ordering::Relaxed)), "{renewals:?}");
        assert!(RENEWAL_PERIOD * 3 < ABANDONED_AFTER, "two renewals may fail");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_call_is_tried_again() {
        let tries = AtomicU32::new(0);
        let fail = |count: u32| {
            if tries.fetch_add(1, Ordering::Relaxed) < count { no_answer() } else { ready(Ok(())) }
        };
        assert!(store_end(|| fail(END_TRY_COUNT - 1)).await.is_ok());
        tries.store(0, Ordering::Relaxed);
        assert!(store_end(|| fail(END_TRY_COUNT)).await.is_err());
        assert_eq!(tries.load(Ordering::Relaxed), END_TRY_COUNT);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(digest(&[b"ab", b"c"]), digest(&[b"a", b"bc"]));
    }
}
