//! The port: accepts connections, detects their protocol, applies the limits, and closes connections gracefully.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, HeaderName, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rondel_admin::gateway::{Peer, PeerNames};
use rondel_admin::{Engine, Limit};
use rondel_core::forwarded::TrustedProxies;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::drain::UnreadBody;
use crate::limits::HttpLimits;
use crate::origin::ProxiedOrigin;
use crate::peers::{Connection, OpenConnection, OpenRequest, Peers, StallReason};
use crate::preface::{HttpVersion, detect_version};
use crate::sending_body::{SendingBody, release_at_end};
use crate::tls::Tls;

/// How often an idle HTTP/2 connection is pinged.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(10);
/// How long the client may take to answer a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The path of executors' streams, which stay open as long as the executors live. All other answers have a time limit.
const SESSION_PATH: &str = "/rondel.v1.Gateway/Session";
/// Maximum size of the headers of an HTTP/2 request, in bytes.
const HEADER_LIST_LEN_MAX: u32 = 64 * 1024;
/// Maximum size of the read buffer of an HTTP/1 connection, in bytes. A request head that does not fit is refused.
const HTTP1_BUFFER_LEN_MAX: usize = 64 * 1024;
/// Maximum size of the send buffer of an HTTP/2 stream, in bytes.
const HTTP2_SEND_BUFFER_LEN_MAX: usize = 64 * 1024;
/// How many bytes a client may send on an HTTP/2 stream before the server has read them.
const HTTP2_STREAM_WINDOW: u32 = 256 * 1024;
/// How many bytes a client may send on all streams of an HTTP/2 connection before the server has read them.
const HTTP2_CONNECTION_WINDOW: u32 = 512 * 1024;
/// How long requests in flight may take after the port has been closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a connection could not be accepted, for example because no file handle was left. It ends early if another connection ends.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The settings of a port: its TLS, its limits, and the proxies that it trusts.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// With certificates, the port accepts only TLS.
    pub tls: Option<Arc<Tls>>,
    /// The limits for one client, and for all of them.
    pub limits: HttpLimits,
    /// The proxies whose headers with the client's address are trusted.
    pub trusted_proxies: TrustedProxies,
    /// The engine, which counts how often a limit was reached.
    pub engine: Option<Engine>,
}

/// Serves until `shutdown`. Then it accepts no further connections, waits up to 30 seconds for the requests in flight, aborts the remaining
/// ones, and returns. Streams such as followed logs and executors' sessions must be ended by their owners.
pub async fn serve(listener: TcpListener, app: Router, shutdown: CancellationToken) {
    serve_on(listener, Port::default(), app, shutdown).await;
}

/// Like [`serve`], with the settings of the port.
pub async fn serve_on(listener: TcpListener, port: Port, app: Router, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let peers = Peers::new(port.limits, port.trusted_proxies, port.engine);
    let abort = CancellationToken::new();
    let _abort_at_end = abort.clone().drop_guard();
    loop {
        let connection = tokio::select! {
            () = shutdown.cancelled() => break,
            connection = accept(&listener, &peers) => connection,
        };
        let Some((stream, peer, open_connection)) = connection else { continue };
        let (app, shutdown, abort) = (app.clone(), shutdown.clone(), abort.clone());
        let (peers, acceptor) = (Arc::clone(&peers), port.tls.as_deref().map(Tls::acceptor));
        connections.spawn(async move {
            let client = ClientConnection { peer: peer.ip(), names: None, connection: open_connection.0.clone(), peers };
            tokio::select! {
                () = abort.cancelled() => {}
                () = open_connection.0.wait_for_eviction() => tracing::debug!(target: "http", %peer, "connection made room for another"),
                result = serve_connection(stream, client, acceptor, app, shutdown) => {
                    if let Err(error) = result {
                        tracing::debug!(target: "http", %peer, error, "connection ended");
                    }
                }
            }
            drop(open_connection);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(target: "http", connection_count = connections.len(), "connections did not end in time");
    }
    abort.cancel();
    connections.wait().await;
}

type AcceptedConnection = (TcpStream, SocketAddr, OpenConnection);

/// Accepts the next connection. Without room for it, closes it immediately, so that later connections do not wait behind it, and returns
/// `None`. The same is returned for an error of `accept`, which concerns only one connection or is temporary.
async fn accept(listener: &TcpListener, peers: &Arc<Peers>) -> Option<AcceptedConnection> {
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, peers.admit(peer.ip())?)),
        Err(error) => {
            if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                if peers.may_log() {
                    tracing::warn!(target: "http", %error, "cannot accept a connection; logged once a minute");
                }
                peers.make_room(ACCEPT_DELAY).await;
            }
            None
        }
    }
}

/// The client of a connection.
#[derive(Clone, Debug)]
struct ClientConnection {
    peer: std::net::IpAddr,
    names: Option<PeerNames>,
    connection: Connection,
    peers: Arc<Peers>,
}

async fn serve_connection(
    stream: TcpStream,
    mut client: ClientConnection,
    acceptor: Option<TlsAcceptor>,
    app: Router,
    shutdown: CancellationToken,
) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let Some(acceptor) = acceptor else { return serve_stream(stream, client, app, shutdown).await };
    let handshake = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        handshake = tokio::time::timeout(client.peers.limits.header_timeout, acceptor.accept(stream)) => handshake,
    };
    let begin_error = |_| client.timeout_error("TLS did not begin in time");
    let stream = handshake.map_err(begin_error)?.map_err(|error| error.to_string())?;
    client.names =
        stream.get_ref().1.peer_certificates().and_then(|certificates| certificates.first()).map(certificate_names);
    serve_stream(stream, client, app, shutdown).await
}

impl ClientConnection {
    fn timeout_error(&self, reason: &str) -> String {
        self.peers.log_limit(Limit::HeaderTimeout, self.peer);
        reason.to_owned()
    }

    /// The host and scheme with which the browser reached the trusted proxy; `None` without such a proxy.
    fn proxied_origin(&self, headers: &HeaderMap) -> Option<ProxiedOrigin> {
        self.peers.trusted_proxies.contains(self.peer).then(|| ProxiedOrigin::from_headers(headers))
    }

    /// The address of a request's client. Behind a trusted proxy, the proxy's headers name it.
    fn address(&self, headers: &HeaderMap) -> Peer {
        let header_lines = |name: &HeaderName| -> Vec<&str> {
            headers.get_all(name).iter().map(|line| line.to_str().unwrap_or_default()).collect()
        };
        if !self.peers.trusted_proxies.contains(self.peer) {
            return Peer(self.peer);
        }
        Peer(self.peers.trusted_proxies.client(self.peer, &header_lines(&FORWARDED), &header_lines(&X_FORWARDED_FOR)))
    }

    async fn answer(self, app: Router, request: Request<Incoming>) -> Response<SendingBody> {
        let open_request = OpenRequest::new(self.connection.clone());
        let (request, unread_body, waits_for_continue) = UnreadBody::wrap(request);
        let is_http1 = request.version() < http::Version::HTTP_2;
        let mut request = request.map(Body::new);
        let is_session = request.uri().path() == SESSION_PATH;
        let (peer, proxied_origin) = (self.address(request.headers()), self.proxied_origin(request.headers()));
        let extensions = request.extensions_mut();
        extensions.insert(peer);
        if let Some(proxied_origin) = proxied_origin {
            extensions.insert(proxied_origin);
        }
        extensions.insert(self.connection);
        if let Some(names) = self.names {
            extensions.insert(names);
        }
        let mut response = match app.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        if is_http1 {
            unread_body.settle(waits_for_continue, &mut response).await;
        }
        release_at_end(response, open_request, is_session)
    }
}

/// The DNS names in a verified certificate.
fn certificate_names(certificate: &CertificateDer<'_>) -> PeerNames {
    let end_entity = webpki::EndEntityCert::try_from(certificate);
    PeerNames(
        end_entity.map(|certificate| certificate.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default(),
    )
}

async fn serve_stream<S>(
    stream: S,
    client: ClientConnection,
    app: Router,
    shutdown: CancellationToken,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let detected = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        detected = tokio::time::timeout(client.peers.limits.header_timeout, detect_version(stream)) => detected,
    };
    let detected = detected.map_err(|_| client.timeout_error("nothing was sent in time"))?;
    let (stream, version) = detected.map_err(|error| error.to_string())?;
    let builder = connection_builder(version, &client.peers.limits);
    let ClientConnection { peer, connection: connection_handle, peers, .. } = client.clone();
    let service = tower::service_fn(move |request| {
        let (client, app) = (client.clone(), app.clone());
        async move { Ok::<_, std::convert::Infallible>(client.answer(app, request).await) }
    });
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        stall_reason = connection_handle.wait_for_stall() => match stall_reason {
            StallReason::Idle => {
                connection.as_mut().graceful_shutdown();
                tokio::time::timeout(CLOSE_TIMEOUT, connection).await.unwrap_or(Ok(()))
            }
            StallReason::Answer => {
                peers.log_limit(Limit::WriteTimeout, peer);
                return Err("the client does not read its answer".to_owned());
            }
        }
    };
    result.map_err(|error| {
        // The header timeout also closes kept-alive connections that send no further request, so it is reported only if there was no
        // request at all.
        let is_header_timeout = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_timeout);
        if is_header_timeout && !connection_handle.has_served() {
            peers.log_limit(Limit::HeaderTimeout, peer);
        }
        error.to_string()
    })
}

fn connection_builder(version: HttpVersion, limits: &HttpLimits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HTTP1_BUFFER_LEN_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_PERIOD)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(limits.requests_per_connection)
        .max_header_list_size(HEADER_LIST_LEN_MAX)
        .initial_stream_window_size(HTTP2_STREAM_WINDOW)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
        .max_send_buf_size(HTTP2_SEND_BUFFER_LEN_MAX);
    match version {
        HttpVersion::Http1 => builder.http1_only(),
        HttpVersion::Http2 => builder.http2_only(),
    }
}
