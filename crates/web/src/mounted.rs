//! Endpoints of another protocol beside the API. They authenticate their callers themselves, before their body is read.

use std::fmt::Debug;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use crate::limits::address;

/// A call of such an endpoint.
pub struct MountedCall {
    /// The last part of the path.
    pub name: String,
    /// The method.
    pub method: Method,
    /// The headers.
    pub headers: HeaderMap,
    /// The sender.
    pub client: Option<IpAddr>,
    /// The length of the body, where the sender declares it.
    pub len: Option<u64>,
    body: Body,
}

impl MountedCall {
    /// The value of a header, if it is there once, as text.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    }

    /// What reads the body, if it has at most so many bytes.
    #[must_use]
    pub fn into_body(self) -> BodyReader {
        let body = self.body;
        Box::new(move |len_max| Box::pin(async move { to_bytes(body, len_max).await.ok() }))
    }
}

impl Debug for MountedCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MountedCall").field("name", &self.name).field("client", &self.client).finish_non_exhaustive()
    }
}

/// Reads a body of at most so many bytes; `None` for one that is longer or does not arrive.
pub type BodyReader = Box<dyn FnOnce(usize) -> BodyRead + Send>;

/// A body that is being read.
pub type BodyRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// The answer: a status and JSON.
pub type MountedAnswer = (u16, Vec<u8>);

/// Endpoints that have their names as the last part of the path.
pub trait Mounted: Debug + Send + Sync {
    /// The paths before the names.
    fn paths(&self) -> Vec<String>;

    /// The names, where a path has other endpoints beside them.
    fn names(&self) -> &'static [&'static str];

    /// Answers a request of anything else beside such a path, which is not served.
    fn moved(&self, path: &str) -> MountedAnswer;

    /// Answers a call.
    fn call(&self, call: MountedCall) -> Pin<Box<dyn Future<Output = MountedAnswer> + Send + '_>>;
}

/// The routes of such endpoints. Below `/api` only their names are theirs: the rest is the API's.
pub(crate) fn routes(mounted: &Arc<dyn Mounted>) -> Router {
    let mut router = Router::new();
    for path in mounted.paths() {
        if path == "/api" {
            for name in mounted.names() {
                let named = Arc::clone(mounted);
                let call =
                    any(move |request: Request| async move { answer(&named, (*name).to_owned(), request).await });
                router = router.route(&format!("{path}/{name}"), call);
            }
        } else {
            let handler = any(call).with_state(Arc::clone(mounted));
            router = router.route(&format!("{path}/{{name}}"), handler);
            let beside = path.trim_end_matches("/api");
            let handler = any(moved).with_state(Arc::clone(mounted));
            router = router.route(&format!("{beside}/{{*rest}}"), handler);
        }
    }
    router
}

async fn call(State(mounted): State<Arc<dyn Mounted>>, Path(name): Path<String>, request: Request) -> Response {
    answer(&mounted, name, request).await
}

async fn moved(State(mounted): State<Arc<dyn Mounted>>, Path(rest): Path<String>) -> Response {
    in_json(mounted.moved(&rest))
}

async fn answer(mounted: &Arc<dyn Mounted>, name: String, request: Request) -> Response {
    let client = address(&request);
    let (head, body) = request.into_parts();
    let len = head.headers.get(CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    let call = MountedCall { name, method: head.method, headers: head.headers, client, len, body };
    in_json(mounted.call(call).await)
}

fn in_json((status, body): MountedAnswer) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, json, body).into_response()
}
