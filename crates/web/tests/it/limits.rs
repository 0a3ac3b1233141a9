//! One client cannot block the others: the resources that it can occupy are limited, and refusals cost little.

use std::time::Duration;

use axum::body::Body;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use rondel_core::forwarded::TrustedProxies;
use rondel_store::access::AuditQuery;
use rondel_web::{HttpLimits, Port, Rate, WebConfig, serve_on};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::harness::{Answer, Server};

const LIMIT: Duration = Duration::from_secs(20);

async fn token(server: &Server, name: &str, role: &str) -> String {
    let body = json!({"kind": "api", "name": name, "grants": [{"role": role}]});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    created["token"].as_str().unwrap().to_owned()
}

async fn get_as(server: &Server, authorization: String, path: &str) -> Answer {
    let request = http::Request::get(path).header("authorization", authorization);
    server.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn the_rate_goes_by_the_caller_and_not_by_the_text_of_the_header() {
    let rate = Some(Rate { per_second: 1, burst: 4 });
    let server = Server::start_with(WebConfig { rate, ..WebConfig::default() }).await;
    let secret = server.admin.reveal().to_owned();
    let mut statuses = Vec::new();
    for scheme in ["Bearer", "bEarer", "BEARER", "bearer ", "beArer", "beaRer"] {
        statuses.push(get_as(&server, format!("{scheme} {secret}"), "/api/v1/apps").await.status.as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    // Another caller is still admitted.
    let other = format!("Bearer {}", server.executor.reveal());
    assert_eq!(get_as(&server, other, "/api/v1/apps").await.status, 403);
}

#[tokio::test]
async fn a_call_over_the_rate_leaves_no_row() {
    let rate = Some(Rate { per_second: 1, burst: 2 });
    let server = Server::start_with(WebConfig { rate, ..WebConfig::default() }).await;
    let entries =
        async || server.engine.store().audit(&AuditQuery { limit: 200, ..AuditQuery::default() }).await.unwrap().len();
    server.job("a").await;
    assert_eq!(server.bare("POST", "/api/v1/jobs/a/pause").await.status, 200);
    let before = entries().await;
    for _ in 0..20 {
        assert_eq!(server.bare("POST", "/api/v1/jobs/a/pause").await.status, 429);
    }
    assert_eq!(entries().await, before);
    // An executor's token may do nothing here, and each refusal would be a row in the audit log. The rate limits these rows as well.
    let executor = format!("Bearer {}", server.executor.reveal());
    for _ in 0..20 {
        get_as(&server, executor.clone(), "/api/v1/jobs").await;
    }
    assert_eq!(entries().await, before + 2);
}

/// A route that only answers a question changes nothing, so its answer is not stored, even if the request has a key.
#[tokio::test]
async fn a_preview_with_a_key_is_not_kept() {
    let server = Server::start().await;
    let viewer = token(&server, "eye", "viewer").await;
    for cron in ["0 3 * * *", "0 4 * * *"] {
        let request =
            http::Request::post("/api/v1/schedules/preview").header("authorization", format!("Bearer {viewer}"));
        let request = request.header("content-type", "application/json").header("idempotency-key", "k");
        let body = json!({"schedule": {"cron": cron}}).to_string();
        let answer = server.send(request.body(Body::from(body)).unwrap()).await;
        assert!(!answer.headers.contains_key("idempotency-replayed"));
        // If the first answer had been stored, this call would be refused because its key was used for another call.
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test]
async fn one_viewer_does_not_hold_all_event_streams() {
    let limits = HttpLimits { live_streams: 4, live_streams_per_caller: 2, ..HttpLimits::default() };
    let config = WebConfig { limits, ..WebConfig::default() };
    let shutdown = config.shutdown.clone();
    let server = Server::start_with(config).await;
    let viewer = format!("Bearer {}", token(&server, "eye", "viewer").await);
    let listen = |authorization: String| get_as(&server, authorization, "/api/v1/events");
    let admin = format!("Bearer {}", server.admin.reveal());
    let (first, second, ()) = tokio::join!(listen(viewer.clone()), listen(viewer.clone()), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let refusal = listen(viewer.clone()).await;
        assert_eq!((refusal.status.as_u16(), &refusal.headers["retry-after"]), (503, &"10".parse().unwrap()));
        let refusal = refusal.json();
        assert!(refusal["detail"].as_str().unwrap().contains("a caller may have 2 event streams"), "{refusal}");
        let (others, ()) = tokio::join!(listen(admin), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            shutdown.cancel();
        });
        assert_eq!(others.status, 200);
    });
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    let text = server.get("/metrics").await.text();
    assert!(text.contains("rondel_http_limited_total{limit=\"live_streams_per_caller\"} 1"), "{text}");
}

/// A server with these limits, listening on its own port.
struct ListeningServer {
    server: Server,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
    serving: tokio::task::JoinHandle<()>,
}

impl ListeningServer {
    async fn start(limits: HttpLimits, trusted: &[&str]) -> Self {
        let server = Server::start_with(WebConfig { limits: limits.clone(), ..WebConfig::default() }).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let trusted_proxies = TrustedProxies::parse(trusted).unwrap();
        let port = Port { limits, trusted_proxies, engine: Some(server.engine.clone()), ..Port::default() };
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let serving = tokio::spawn(serve_on(listener, port, server.app.clone(), shutdown.clone()));
        Self { server, address, shutdown, serving }
    }

    async fn connect(&self, begin: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(begin.as_bytes()).await.unwrap();
        stream
    }

    /// Sends a request on a new connection. Returns the answer as far as it was read.
    async fn call(&self, request: &str) -> String {
        read_to_end(&mut self.connect(request).await).await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(LIMIT, self.serving).await.unwrap().unwrap();
    }
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap().ok();
    String::from_utf8_lossy(&answer).into_owned()
}

fn form(headers: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "POST /sign-in HTTP/1.1\r\nhost: here\r\norigin: http://here\r\nconnection: close\r\n{headers}\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {len}\r\n\r\n{body}"
    )
}

/// A form whose last bytes are never sent.
fn incomplete_form() -> String {
    let form = form("", "name=ann&password=x");
    form[..form.len() - 5].to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn half_sent_bodies_hold_no_permit() {
    // The timeout is so long that the bodies remain incomplete during the whole test.
    let limits = HttpLimits {
        requests: 8,
        requests_reserved: 2,
        bodies_per_address: 16,
        body_timeout: Duration::from_secs(600),
        ..HttpLimits::default()
    };
    let listening = ListeningServer::start(limits, &[]).await;
    let half = incomplete_form();
    let mut slow = Vec::new();
    for _ in 0..40 {
        slow.push(listening.connect(&half).await);
    }
    // The limit of the address admits 16 requests. The others are refused, in any order.
    let mut answers: FuturesUnordered<_> = slow.iter_mut().map(read_to_end).collect();
    for _ in 0..40 - 16 {
        let refusal = answers.next().await.unwrap();
        assert!(refusal.starts_with("HTTP/1.1 503") && refusal.contains("too many bodies"), "{refusal}");
    }
    let probe = listening.call("GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(probe.starts_with("HTTP/1.1 200"), "{probe}");
    let wrong = listening.call(&form("", "name=ann&password=wrong+horse")).await;
    assert!(wrong.starts_with("HTTP/1.1 401"), "{wrong}");
    let bearer = listening.server.admin.reveal();
    let head =
        format!("GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {bearer}\r\n\r\n");
    let answer = listening.call(&head).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answers.next().now_or_never().is_none(), "the half-sent bodies are still waited for");
    drop(answers);
    drop(slow);
    listening.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_sent_form_is_dropped() {
    let limits = HttpLimits { body_timeout: Duration::from_secs(1), ..HttpLimits::default() };
    let listening = ListeningServer::start(limits, &[]).await;
    let late = listening.call(&incomplete_form()).await;
    assert!(late.starts_with("HTTP/1.1 408"), "{late}");
    listening.stop().await;
}

/// The audit entry of a change is stored just before the change is made, and not while its body is still arriving.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_arrives_leaves_no_row() {
    let limits = HttpLimits { body_timeout: Duration::from_secs(1), ..HttpLimits::default() };
    let listening = ListeningServer::start(limits, &[]).await;
    let bearer = listening.server.admin.reveal();
    let answer = listening
        .call(&format!(
            "POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {bearer}\r\n\
             content-type: application/json\r\ncontent-length: 100\r\n\r\n{{"
        ))
        .await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let entries = listening.server.get("/api/v1/audit").await.expect(200);
    assert_eq!(entries["items"], json!([]));
    listening.stop().await;
}

/// After a refusal before the body was read, either the connection remains usable, or the answer announces that it closes.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_body_does_not_end_the_connection_unannounced() {
    let listening = ListeningServer::start(HttpLimits::default(), &[]).await;
    let post = |headers: &str, len: usize| {
        format!(
            "POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer unknown\r\ncontent-type: application/json\r\n\
             {headers}content-length: {len}\r\n\r\n"
        )
    };
    // The body arrives after the request was refused.
    let mut stream = listening.connect(&post("", 60_000)).await;
    tokio::task::yield_now().await;
    stream.write_all(&[b' '; 60_000]).await.unwrap();
    let last = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(last.as_bytes()).await.unwrap();
    let answers = read_to_end(&mut stream).await;
    assert!(answers.starts_with("HTTP/1.1 401") && answers.contains("HTTP/1.1 200"), "{answers}");
    for (headers, len) in [("", 1_000_000), ("expect: 100-continue\r\n", 100)] {
        let answer = listening.call(&post(headers, len)).await;
        let head = answer.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 401") && head.contains("connection: close\r\n"), "{answer}");
    }
    listening.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_address_make_room() {
    let limits = HttpLimits { connections: 40, connections_per_address: 8, ..HttpLimits::default() };
    let listening = ListeningServer::start(limits, &[]).await;
    let bearer = listening.server.admin.reveal();
    let head = format!("GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {bearer}\r\n\r\n");
    let mut known = listening.connect(&head).await;
    let mut answer = [0; 4096];
    assert!(timeout(LIMIT, known.read(&mut answer)).await.unwrap().unwrap() > 0);
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(listening.connect("").await);
    }
    let probe = listening.call("GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(probe.starts_with("HTTP/1.1 200"), "{probe}");
    assert_eq!(read_to_end(&mut idle[0]).await, "", "the oldest one was closed");
    known.write_all(head.as_bytes()).await.unwrap();
    let count = timeout(LIMIT, known.read(&mut answer)).await.unwrap().unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200"), "an authenticated connection stays");
    drop((idle, known));
    listening.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_trusted_names_the_client() {
    for (trusted, headers, expected) in [
        (&[][..], "x-forwarded-for: 203.0.113.7\r\n", "127.0.0.1"),
        (&["127.0.0.0/8"][..], "x-forwarded-for: 1.2.3.4, 203.0.113.7\r\n", "203.0.113.7"),
        (&["127.0.0.0/8"][..], "forwarded: for=203.0.113.7;proto=http\r\n", "203.0.113.7"),
        (&["127.0.0.0/8"][..], "forwarded: for=1.2.3.4\r\nx-forwarded-for: 203.0.113.7\r\n", "127.0.0.1"),
    ] {
        let listening = ListeningServer::start(HttpLimits::default(), trusted).await;
        let wrong = listening.call(&form(headers, "name=ann&password=wrong+horse")).await;
        assert!(wrong.starts_with("HTTP/1.1 401"), "{wrong}");
        let entries: Value = listening.server.get("/api/v1/audit").await.expect(200);
        assert_eq!(entries["items"][0]["address"], expected, "{trusted:?} {headers}");
        listening.stop().await;
    }
}

/// Which origin a form must have. Only a trusted proxy may state the scheme and host that browsers use.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_trusted_names_the_origin() {
    for (trusted, headers, status) in [
        (&[][..], "x-forwarded-proto: https\r\n", "401"),
        (&["127.0.0.0/8"][..], "x-forwarded-proto: https\r\n", "403"),
        (&[][..], "x-forwarded-host: elsewhere\r\n", "401"),
        (&["127.0.0.0/8"][..], "x-forwarded-host: elsewhere\r\n", "403"),
    ] {
        let listening = ListeningServer::start(HttpLimits::default(), trusted).await;
        let answer = listening.call(&form(headers, "name=ann&password=wrong+horse")).await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{trusted:?} {headers}: {answer}");
        listening.stop().await;
    }
}

/// Behind a proxy, the attempts of each client are counted separately.
#[tokio::test(flavor = "multi_thread")]
async fn sign_ins_behind_a_proxy_are_counted_by_client() {
    let listening = ListeningServer::start(HttpLimits::default(), &["127.0.0.1"]).await;
    let user = json!({"name": "ann", "password": "correct horse", "grants": [{"role": "viewer"}]});
    listening.server.with_body("POST", "/api/v1/users", user).await.expect(201);
    let attempt = async |client: &str, name: &str, password: &str| {
        let body = format!("name={name}&password={password}");
        let answer = listening.call(&form(&format!("x-forwarded-for: {client}\r\n"), &body)).await;
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(attempt("203.0.113.1", "ann", "correct+horse").await, "303");
    for number in 0..60 {
        attempt("203.0.113.9", &format!("name{number}"), "x").await;
    }
    assert_eq!(attempt("203.0.113.9", "bob", "x").await, "429");
    assert_eq!(attempt("203.0.113.2", "ann", "correct+horse").await, "303", "another client of the same proxy");
    for _ in 0..11 {
        attempt("203.0.113.8", "ann", "wrong+horse").await;
    }
    assert_eq!(attempt("203.0.113.3", "ann", "correct+horse").await, "429", "an address that ann never came from");
    assert_eq!(attempt("203.0.113.1", "ann", "correct+horse").await, "303", "one that she came from");
    listening.stop().await;
}

#[tokio::test]
async fn browsers_keep_to_https_where_it_is_advertised() {
    let server = Server::start_with(WebConfig { tls: true, hsts: true, ..WebConfig::default() }).await;
    let link = server.bare("POST", "/api/v1/sign-in-links").await.expect(201);
    let token = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap();
    let request = http::Request::post("/sign-in").header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("host", "here").header("origin", "https://here").header("accept", "text/html");
    let answer = server.send(request.body(Body::from(format!("token={token}"))).unwrap()).await;
    let cookie = answer.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.starts_with("__Host-rondel_session=") && cookie.ends_with("; Secure"), "{cookie}");
    assert_eq!(answer.headers["strict-transport-security"], "max-age=31536000");
    let plain = Server::start().await.get("/sign-in").await;
    assert!(!plain.headers.contains_key("strict-transport-security"));
}
