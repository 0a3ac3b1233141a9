//! The interface to endpoints of another protocol on the same port. They authenticate their callers themselves, before the body is read.

use std::fmt::Debug;
use std::net::IpAddr;
use std::pin::Pin;

use axum::body::{Body, to_bytes};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method};
use rondel_admin::gateway::OnAuthenticated;

/// A call of a mounted endpoint.
pub struct MountedCall {
    /// The last part of the path.
    pub name: String,
    pub method: Method,
    pub headers: HeaderMap,
    /// The address of the sender.
    pub client: Option<IpAddr>,
    /// The length of the body, if the sender declares it.
    pub len: Option<u64>,
    /// Called once the token is found valid: the call then no longer counts for its address, which many executors may share.
    pub on_authenticated: OnAuthenticated,
    pub(crate) body: Body,
}

impl MountedCall {
    /// The value of a header as text. `None` if the header is missing, not text, or present more than once.
    #[must_use]
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok())
    }

    /// Consumes the call, and returns a function that reads its body.
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

/// Reads a body of at most the given number of bytes. `None` if the body is longer or does not arrive completely.
pub type BodyReader = Box<dyn FnOnce(usize) -> BodyRead + Send>;

/// A body that is being read.
pub type BodyRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// The answer: a status and JSON text.
pub type MountedAnswer = (u16, Vec<u8>);

/// A group of endpoints; the last part of a request's path is the name of the endpoint.
pub trait Mounted: Debug + Send + Sync {
    /// The paths to which the names of endpoints are appended.
    fn paths(&self) -> Vec<String>;

    /// The names of the endpoints, for paths that also have other endpoints.
    fn names(&self) -> &'static [&'static str];

    /// The answer to a request for a path that begins like a mounted one but has no endpoint.
    fn not_served(&self, path: &str) -> MountedAnswer;

    fn call(&self, call: MountedCall) -> Pin<Box<dyn Future<Output = MountedAnswer> + Send + '_>>;
}
