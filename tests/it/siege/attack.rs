//! The attacks by one address. They are bounded in number, and end with the test.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use rondel_tests::wait_until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;

use super::wire::connect;

/// The pause between two steps of an attack, because the good callers use the same machine.
const PAUSE: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Attack {
    server_address: Arc<str>,
    client_ip: IpAddr,
    parts: JoinSet<()>,
    /// The number of parts of the attack that have taken effect.
    effective_count: Arc<AtomicUsize>,
    started_count: usize,
}

impl Attack {
    pub(super) fn new(server_address: &str, client_ip: IpAddr) -> Self {
        Self {
            server_address: server_address.into(),
            client_ip,
            parts: JoinSet::new(),
            effective_count: Arc::default(),
            started_count: 0,
        }
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(&mut self, part: impl FnOnce(Arc<str>, Arc<AtomicUsize>) -> F) {
        self.started_count += 1;
        self.parts.spawn(part(Arc::clone(&self.server_address), Arc::clone(&self.effective_count)));
    }

    pub(super) async fn wait_until_effective(&self) {
        wait_until(LIMIT, "the attack is in effect", async || {
            let effective_count = self.effective_count.load(Ordering::Relaxed);
            if effective_count >= self.started_count { Ok(()) } else { Err((effective_count, self.started_count)) }
        })
        .await;
    }

    pub(super) async fn end(mut self) {
        self.parts.shutdown().await;
    }

    /// Sends forms without their last byte, over HTTP/2. A refused form is sent again.
    pub(super) fn half_sent_bodies(&mut self, connections: usize, streams: usize) {
        let client_ip = self.client_ip;
        for _ in 0..connections {
            self.spawn(|server_address, effective_count| async move {
                let mut is_counted = false;
                loop {
                    if let Some(mut client) = http2(&server_address, client_ip).await {
                        let mut open_streams = Vec::new();
                        for _ in 0..streams {
                            let request = Request::post("http://server/sign-in")
                                .header("content-type", "application/x-www-form-urlencoded")
                                .header("origin", "http://server");
                            let Ok(ready) = client.ready().await else { break };
                            client = ready;
                            let send_result = client.send_request(request.body(()).expect("a request"), false);
                            let Ok((answer, mut body)) = send_result else { break };
                            body.send_data(Bytes::from_static(b"name=ann&pass"), false).ok();
                            open_streams.push((answer, body));
                        }
                        count_effective(&mut is_counted, &effective_count);
                        tokio::time::sleep(Duration::from_secs(2)).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }

    /// Opens connections and sends nothing. Connections that the server closes are opened again.
    pub(super) fn idle_connections(&mut self, count: usize) {
        let client_ip = self.client_ip;
        self.spawn(|server_address, effective_count| async move {
            let (mut open_streams, mut is_counted) = (std::collections::VecDeque::new(), false);
            loop {
                if let Ok(stream) = connect(&server_address, client_ip).await {
                    open_streams.push_back(stream);
                }
                if open_streams.len() >= count {
                    count_effective(&mut is_counted, &effective_count);
                    open_streams.pop_front();
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
    }

    /// Sends request after request on a connection, and hardly reads the answers.
    pub(super) fn slow_readers(&mut self, count: usize, path: &str, token: Option<&str>) {
        let client_ip = self.client_ip;
        let bearer = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request: Arc<str> = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{bearer}\r\n").repeat(16).into();
        for _ in 0..count {
            let request = Arc::clone(&request);
            self.spawn(|server_address, effective_count| async move {
                let mut is_counted = false;
                loop {
                    if let Ok(mut stream) = connect(&server_address, client_ip).await {
                        stream.write_all(request.as_bytes()).await.ok();
                        count_effective(&mut is_counted, &effective_count);
                        // Reads a byte now and then, until the server closes the connection.
                        while stream.read_u8().await.is_ok() {
                            tokio::time::sleep(Duration::from_millis(500)).await;
                        }
                    }
                    count_effective(&mut is_counted, &effective_count);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            });
        }
    }

    /// Sends requests with made-up tokens, a new one each time, as fast as they are answered.
    pub(super) fn made_up_tokens(&mut self, connections: usize) {
        let client_ip = self.client_ip;
        for connection in 0..connections {
            self.spawn(move |server_address, effective_count| async move {
                let (mut is_counted, mut number) = (false, 0_u32);
                loop {
                    if let Ok(mut stream) = connect(&server_address, client_ip).await {
                        let mut answer = [0; 4096];
                        loop {
                            number += 1;
                            let token = format!("rondel_pat_{connection:032x}{number:032x}");
                            let request = format!(
                                "GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n"
                            );
                            let send_result = stream.write_all(request.as_bytes()).await;
                            if send_result.is_err() || !matches!(stream.read(&mut answer).await, Ok(1..)) {
                                break;
                            }
                            count_effective(&mut is_counted, &effective_count);
                        }
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }

    /// Opens streams and resets them before they are answered.
    pub(super) fn stream_floods(&mut self, count: usize) {
        self.flood(count, || Request::get("http://server/sign-in"));
    }

    /// Opens streams of executors with an unknown token.
    pub(super) fn gateway_floods(&mut self, count: usize) {
        self.flood(count, || {
            Request::post("http://server/rondel.v1.Gateway/Session")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("authorization", "Bearer rondel_exec_nobody")
        });
    }

    fn flood(&mut self, count: usize, request: fn() -> http::request::Builder) {
        let client_ip = self.client_ip;
        for _ in 0..count {
            self.spawn(|server_address, effective_count| async move {
                let mut is_counted = false;
                loop {
                    if let Some(mut client) = http2(&server_address, client_ip).await {
                        let mut number = 0_u32;
                        while let Ok(ready) = client.ready().await {
                            client = ready;
                            let send_result = client.send_request(request().body(()).expect("a request"), false);
                            let Ok((_, mut body)) = send_result else { break };
                            number += 1;
                            if number.is_multiple_of(2) {
                                body.send_reset(h2::Reason::CANCEL);
                            }
                            if number.is_multiple_of(20) {
                                count_effective(&mut is_counted, &effective_count);
                                tokio::time::sleep(PAUSE).await;
                            }
                        }
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
    }
}

fn count_effective(is_counted: &mut bool, effective_count: &AtomicUsize) {
    if !*is_counted {
        *is_counted = true;
        effective_count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn http2(server_address: &str, client_ip: IpAddr) -> Option<SendRequest<Bytes>> {
    let (client, connection) = h2::client::handshake(connect(server_address, client_ip).await.ok()?).await.ok()?;
    #[expect(clippy::disallowed_methods, reason = "it ends with its connection")]
    tokio::spawn(async move {
        connection.await.ok();
    });
    Some(client)
}
