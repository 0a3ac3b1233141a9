//! The port: connections are taken, told apart, bounded, and ended gracefully.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rondel_admin::gateway::{Peer, PeerNames};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::preface::{Version, sniff};
use crate::tls::Tls;

const CONNECTION_COUNT_MAX: usize = 10_000;
/// How long a client may take to send the first bytes, or the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// How often a quiet HTTP/2 connection is asked whether it lives, and how long it may take to answer.
const KEEP_ALIVE_PERIOD: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const HTTP2_STREAM_COUNT_MAX: u32 = 256;
const HEADER_LIST_LEN_MAX: u32 = 64 * 1024;
/// How long requests in flight may take after the port was closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long no connection is taken after one could not be, for want of file handles.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then takes no further connection, lets the requests in flight end, and returns. Whatever
/// streams must end for that (followed logs, executors' sessions) their owners have to end.
pub async fn serve(listener: TcpListener, app: Router, shutdown: CancellationToken) {
    serve_tls(listener, None, app, shutdown).await;
}

/// The same; with certificates, under TLS and nothing else.
pub async fn serve_tls(listener: TcpListener, tls: Option<Arc<Tls>>, app: Router, shutdown: CancellationToken) {
    let connections = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(CONNECTION_COUNT_MAX));
    let kill = CancellationToken::new();
    let _kill_at_end = kill.clone().drop_guard();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let Some((stream, peer, permit)) = accepted else { continue };
        let (app, shutdown, kill) = (app.clone(), shutdown.clone(), kill.clone());
        let acceptor = tls.as_deref().map(Tls::acceptor);
        connections.spawn(async move {
            tokio::select! {
                () = kill.cancelled() => {}
                ended = connection((stream, peer), acceptor, app, shutdown) => {
                    if let Err(error) = ended {
                        tracing::debug!(target: "http", %peer, error, "connection ended");
                    }
                }
            }
            drop(permit);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, connections.wait()).await.is_err() {
        tracing::warn!(target: "http", connection_count = connections.len(), "connections did not end in time");
    }
    kill.cancel();
    connections.wait().await;
}

type Accepted = (TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

/// The next connection, once there is room for it. An error of `accept` is one connection's, or passes.
async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> Option<Accepted> {
    let permit = Arc::clone(permits).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, permit)),
        Err(error) => {
            if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                tracing::warn!(target: "http", %error, "cannot take a connection");
                tokio::time::sleep(ACCEPT_DELAY).await;
            }
            None
        }
    }
}

async fn connection(
    (stream, peer): (TcpStream, SocketAddr),
    acceptor: Option<TlsAcceptor>,
    app: Router,
    shutdown: CancellationToken,
) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let peer = Peer(peer.ip());
    let Some(acceptor) = acceptor else { return spoken(stream, (peer, None), app, shutdown).await };
    let shaken = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        shaken = tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)) => shaken,
    };
    let stream = shaken.map_err(|_| "TLS did not begin in time".to_owned())?.map_err(|error| error.to_string())?;
    let names = stream.get_ref().1.peer_certificates().and_then(|certificates| certificates.first()).map(names);
    spoken(stream, (peer, names), app, shutdown).await
}

/// What a certificate that was checked is made out to.
fn names(certificate: &CertificateDer<'_>) -> PeerNames {
    let read = webpki::EndEntityCert::try_from(certificate);
    PeerNames(read.map(|one| one.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default())
}

async fn spoken<S>(
    stream: S,
    (peer, names): (Peer, Option<PeerNames>),
    app: Router,
    shutdown: CancellationToken,
) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let sniffed = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        sniffed = tokio::time::timeout(HEADER_TIMEOUT, sniff(stream)) => sniffed,
    };
    let sniffed = sniffed.map_err(|_| "nothing was sent in time".to_owned())?;
    let (stream, version) = sniffed.map_err(|error| error.to_string())?;
    let app = app.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if let Some(names) = &names {
            request.extensions_mut().insert(names.clone());
        }
        request
    });
    let builder = builder(version);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(|error| error.to_string())
}

fn builder(version: Version) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_PERIOD)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(HTTP2_STREAM_COUNT_MAX)
        .max_header_list_size(HEADER_LIST_LEN_MAX);
    match version {
        Version::Http1 => builder.http1_only(),
        Version::Http2 => builder.http2_only(),
    }
}
