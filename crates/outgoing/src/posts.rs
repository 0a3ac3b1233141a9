//! A client for many small POST requests to the same hosts. Compared to [`Outgoing`](crate::Outgoing), it parses no URL per request, follows
//! no redirects, and speaks only HTTP/1.1.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::str::FromStr as _;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name as HostName;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use reqwest::dns::{Addrs, Name, Resolve};
use rondel_core::outgoing::AllowedAddresses;
use tower::Service;
use tower::util::MapFuture;

use crate::resolve::{GuardedResolver, SystemResolver};
use crate::{BuildError, CONNECT_TIMEOUT, Url, check_host, root_cause, tls};

const JSON: HeaderValue = HeaderValue::from_static("application/json;charset=UTF-8");

/// The client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct PostClient {
    client: Client<Connector, Full<Bytes>>,
    allowed_addresses: AllowedAddresses,
    user_agent: HeaderValue,
}

/// Makes connections, TLS included, within [`CONNECT_TIMEOUT`]. Nothing of a request is sent before its connection is made.
type Connector = MapFuture<Https, fn(Connecting) -> Connecting>;
type Https = HttpsConnector<HttpConnector<NameResolver>>;
type Connecting = <Https as Service<Uri>>::Future;

fn with_timeout(connecting: Connecting) -> Connecting {
    Box::pin(async {
        let timeout_error = |_| Err(io::Error::new(io::ErrorKind::TimedOut, "not established in time").into());
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(timeout_error)
    })
}

/// A URL to which requests may be sent: if its host is an address, that address is allowed.
#[derive(Clone, Debug)]
pub struct Target {
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at the end.
    path: String,
}

/// The answer to a request.
#[derive(Debug)]
pub struct PostResponse {
    pub status: StatusCode,
    pub body: Bytes,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The request was not sent.
    #[error("{0}")]
    NotSent(String),
    /// The request may have been received.
    #[error("{0}")]
    Unclear(String),
    /// The request may have been received; the answer has more than this number of bytes.
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
}

impl PostClient {
    /// A client that uses the host's resolver, and keeps idle connections for `idle_timeout`.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn new(
        allowed_addresses: AllowedAddresses,
        user_agent: &'static str,
        idle_timeout: Duration,
    ) -> Result<Self, BuildError> {
        Self::with_resolver(allowed_addresses, user_agent, idle_timeout, Arc::new(SystemResolver))
    }

    /// Like [`new`](Self::new), with another resolver; its answers are checked as well.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn with_resolver(
        allowed_addresses: AllowedAddresses,
        user_agent: &'static str,
        idle_timeout: Duration,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, BuildError> {
        let mut http = HttpConnector::new_with_resolver(NameResolver(Arc::new(GuardedResolver::new(
            resolver,
            allowed_addresses.clone(),
        ))));
        // The TLS connector uses this connector for both schemes, so it must accept https URLs too.
        http.enforce_http(false);
        http.set_nodelay(true);
        let https = HttpsConnectorBuilder::new().with_tls_config(tls::client_config()?).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(idle_timeout)
            .pool_timer(TokioTimer::new())
            .build(MapFuture::new(https.wrap_connector(http), with_timeout as fn(Connecting) -> Connecting));
        Ok(Self { client, allowed_addresses, user_agent: HeaderValue::from_static(user_agent) })
    }

    /// Prepares requests to URLs below `url`. The addresses of a host name are checked when a request is sent.
    ///
    /// # Errors
    /// A message, if the URL contains an address that is not allowed, or if its scheme is not HTTP or HTTPS.
    pub fn target(&self, url: &Url) -> Result<Target, String> {
        check_host(url, &self.allowed_addresses).map_err(|refusal| refusal.to_string())?;
        let uri = Uri::from_str(url.as_str()).map_err(|error| error.to_string())?;
        let path = uri.path().trim_end_matches('/').to_owned();
        match (uri.scheme(), uri.authority()) {
            (Some(scheme), Some(authority)) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => {
                Ok(Target { scheme: scheme.clone(), authority: authority.clone(), path })
            }
            _ => Err(format!("{url} is not an HTTP URL")),
        }
    }

    /// Sends JSON to a path below the target, and reads the answer, whatever its status.
    ///
    /// # Errors
    /// [`PostError`].
    pub async fn send(
        &self,
        target: &Target,
        path: &str,
        (header, value): (HeaderName, HeaderValue),
        body: Vec<u8>,
        limits: Limits,
    ) -> Result<PostResponse, PostError> {
        let path = PathAndQuery::from_maybe_shared(Bytes::from(format!("{}/{path}", target.path)));
        let path = path.map_err(|error| PostError::NotSent(error.to_string()))?;
        let uri = Uri::builder().scheme(target.scheme.clone()).authority(target.authority.clone()).path_and_query(path);
        let uri = uri.build().map_err(|error| PostError::NotSent(error.to_string()))?;
        let mut request = Request::new(Full::new(Bytes::from(body)));
        (*request.method_mut(), *request.uri_mut()) = (Method::POST, uri);
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(USER_AGENT, self.user_agent.clone());
        headers.insert(header, value);
        let answer = async {
            let (head, body) = self.client.request(request).await.map_err(|error| post_error(&error))?.into_parts();
            let body = Limited::new(body, limits.len_max).collect().await;
            let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
                Some(_) => PostError::TooLong(limits.len_max),
                None => PostError::Unclear(root_cause(&*error)),
            })?;
            Ok(PostResponse { status: head.status, body: body.to_bytes() })
        };
        let timeout_error = |_| Err(PostError::Unclear("no answer in time".to_owned()));
        tokio::time::timeout(limits.timeout, answer).await.unwrap_or_else(timeout_error)
    }
}

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Timeout for connecting, sending, and reading the answer.
    pub timeout: Duration,
    /// Maximum length of the answer's body, in bytes.
    pub len_max: usize,
}

fn post_error(error: &ClientError) -> PostError {
    let cause_text = root_cause(error);
    if error.is_connect() {
        PostError::NotSent(format!("no connection: {cause_text}"))
    } else {
        PostError::Unclear(cause_text)
    }
}

/// Resolves names for the connector.
#[derive(Clone)]
struct NameResolver(Arc<GuardedResolver>);

impl std::fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NameResolver")
    }
}

impl Service<HostName> for NameResolver {
    type Response = Addrs;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Addrs, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: HostName) -> Self::Future {
        match Name::from_str(name.as_str()) {
            Ok(name) => self.0.resolve(name),
            Err(error) => {
                let error = io::Error::other(error.to_string());
                Box::pin(async { Err(error.into()) })
            }
        }
    }
}
