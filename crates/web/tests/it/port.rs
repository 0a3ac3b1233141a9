//! The port.

use std::time::Duration;

use rondel_web::serve;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::Server;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn serves_http1_and_closes_silent_connections() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serving = serve(listener, server.app.clone(), shutdown.clone());
    let client = async {
        let silent = TcpStream::connect(address).await.unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        assert!(!text.to_lowercase().contains("\nserver:"), "{text}");
        shutdown.cancel();
        // The idle connection is closed instead of being left open.
        assert_eq!(stream.read(&mut answer).await.unwrap(), 0);
        drop(silent);
    };
    timeout(LIMIT, async { tokio::join!(serving, client) }).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn speaks_http2_with_prior_knowledge() {
    let server = Server::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let serving = serve(listener, server.app.clone(), shutdown.clone());
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The preface and an empty SETTINGS frame.
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame[3], 4, "the server's SETTINGS come first");
        drop(stream);
        shutdown.cancel();
    };
    timeout(LIMIT, async { tokio::join!(serving, client) }).await.unwrap();
}

#[tokio::test]
async fn carries_grpc() {
    let server = Server::start().await;
    let request = http::Request::builder().method("POST").uri("/rondel.v1.Gateway/NoSuch");
    let request = request.header("content-type", "application/grpc").body(axum::body::Body::empty());
    let answer = server.send(request.unwrap()).await;
    // 12 means unimplemented. The answer comes from the gRPC service, although the call has no token.
    assert_eq!((answer.status.as_u16(), answer.headers["grpc-status"].as_bytes()), (200, &b"12"[..]));
}
