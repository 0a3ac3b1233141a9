//! Malicious clients against a real server: each is answered or disconnected, no other client waits for it, and the
//! server's memory stays within its bound.

use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use rondel_tests::{Answer, Api, Backend, ScratchDb, Server, scratch};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// How much more memory a server may take under attack.
const GROWTH_MAX_KIB: u64 = 64 * 1024;
const LIMIT: Duration = Duration::from_secs(60);

struct Target {
    _db: ScratchDb,
    server: Server,
    address: String,
    rss_kib: u64,
}

impl Target {
    async fn start() -> Self {
        let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
        let mut server = Server::start(&db).await;
        server.api().get("/api/v1/jobs").await.expect(200);
        let address = server.url().strip_prefix("http://").expect("plain HTTP").to_owned();
        let rss_kib = rss_kib(server.process().id());
        Self { _db: db, server, address, rss_kib }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.expect("connect")
    }

    async fn http2(&self, tasks: &mut JoinSet<()>) -> SendRequest<Bytes> {
        let (client, connection) = h2::client::handshake(self.connect().await).await.expect("a handshake");
        tasks.spawn(async move {
            connection.await.ok();
        });
        client
    }

    /// Asserts that other clients are served promptly, and that the server's memory is within its bound.
    async fn assert_unharmed(&mut self) {
        // On a busy machine one of several calls may be slow. If calls waited for the attacker, each of them would be
        // slow.
        let mut took = Vec::new();
        while took.len() < 3 && took.iter().all(|took| *took >= Duration::from_secs(2)) {
            let began_at = Instant::now();
            self.server.api().get("/api/v1/jobs").await.expect(200);
            took.push(began_at.elapsed());
        }
        assert!(took.iter().any(|took| *took < Duration::from_secs(2)), "others wait: {took:?}");
        let now = rss_kib(self.server.process().id());
        assert!(now < self.rss_kib + GROWTH_MAX_KIB, "{} KiB before, {now} KiB now", self.rss_kib);
        let log = self.server.process().stderr();
        assert!(!log.contains("panicked") && !log.contains(" 500 "), "{log}");
    }
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a resident set");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Reads until the server closes the connection, for at most half a minute.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await.expect("the server lets go").ok();
    String::from_utf8_lossy(&answer).into_owned()
}

/// CVE-2023-44487: requests that the client resets before they are answered.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_cost_their_own_connection() {
    let mut target = Target::start().await;
    let mut tasks = JoinSet::new();
    let mut refusal_count = 0;
    for _ in 0..5 {
        let mut client = target.http2(&mut tasks).await;
        for _ in 0..10_000 {
            let request = Request::get("http://server/api/v1/jobs").body(()).expect("a request");
            let sent = async {
                client = client.clone().ready().await?;
                client.send_request(request, false)
            };
            match timeout(LIMIT, sent).await.expect("the server goes on") {
                Ok((_, mut stream)) => stream.send_reset(h2::Reason::CANCEL),
                Err(_) => {
                    refusal_count += 1;
                    break;
                }
            }
        }
    }
    assert_eq!(refusal_count, 5, "each connection is ended that does nothing else");
    target.assert_unharmed().await;
}

/// Slowloris: heads and bodies that never end.
#[tokio::test(flavor = "multi_thread")]
async fn slow_senders_are_let_go() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let bearer = format!("authorization: Bearer {}", token.trim());
    let mut slow = JoinSet::new();
    for number in 0..400 {
        let mut stream = target.connect().await;
        let begin = match number % 4 {
            0 => String::new(),
            1 => "G".to_owned(),
            2 => "GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\nx-slow: ".to_owned(),
            _ => format!(
                "POST /api/v1/jobs HTTP/1.1\r\nhost: x\r\n{bearer}\r\ncontent-type: application/json\r\n\
                 content-length: 100000\r\n\r\n"
            ),
        };
        slow.spawn(async move {
            stream.write_all(begin.as_bytes()).await.ok();
            let began_at = Instant::now();
            let mut answer = Vec::new();
            let mut chunk = [0; 4096];
            loop {
                match timeout(Duration::from_secs(1), stream.read(&mut chunk)).await {
                    Ok(Ok(0) | Err(_)) => break,
                    Ok(Ok(count)) => answer.extend_from_slice(&chunk[..count]),
                    Err(_) if began_at.elapsed() > Duration::from_secs(40) => panic!("sender {number} is still there"),
                    // Sends a byte a second, to look alive.
                    Err(_) if number % 4 > 0 && stream.write_all(b"a").await.is_err() => break,
                    Err(_) => {}
                }
            }
            (number % 4, String::from_utf8_lossy(&answer).into_owned())
        });
    }
    // Meanwhile, other clients are served.
    target.assert_unharmed().await;
    while let Some(ended) = slow.join_next().await {
        let (kind, answer) = ended.expect("no sender is left");
        assert!(!answer.starts_with("HTTP/1.1 5"), "{answer}");
        if kind == 3 {
            assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request_timeout"), "{answer}");
        }
    }
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_headers_are_refused_and_not_kept() {
    let mut target = Target::start().await;
    let large = format!("x-large: {}\r\n", "a".repeat(8 * 1024 * 1024));
    let many: String = (0..20_000).map(|number| format!("x-{number}: a\r\n")).collect();
    let long_path = "a".repeat(2 * 1024 * 1024);
    for (path, headers) in [("/livez", &large), ("/livez", &many), (long_path.as_str(), &String::new())] {
        let mut stream = target.connect().await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        // The server may answer and close the connection before everything is sent.
        stream.write_all(head.as_bytes()).await.ok();
        let answer = read_to_end(&mut stream).await;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(matches!(status, "" | "400" | "414" | "431"), "{}", &answer[..answer.len().min(200)]);
    }
    let mut tasks = JoinSet::new();
    let mut client = target.http2(&mut tasks).await.ready().await.expect("room");
    let request = Request::get("http://server/livez").header("x-large", "a".repeat(4 * 1024 * 1024)).body(());
    let answer = match client.send_request(request.expect("a request"), true) {
        Ok((answer, _)) => timeout(LIMIT, answer).await.expect("an answer").map(|answer| answer.status().as_u16()),
        Err(error) => Err(error),
    };
    assert!(answer.as_ref().map_or(true, |status| *status == 431), "{answer:?}");
    target.assert_unharmed().await;
}

/// The client chooses the length that a message claims to have.
#[tokio::test(flavor = "multi_thread")]
async fn temporal_go_2025_3953_a_message_that_claims_4_gib_is_refused_with_a_sentence() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let mut tasks = JoinSet::new();
    for (bearer, begin, code) in [
        (token.trim(), &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3][..], "3"),
        // Compressed, with an encoding that was not negotiated.
        (token.trim(), &[1, 0xff, 0xff, 0xff, 0xff, 1, 2, 3][..], "13"),
        (token.trim(), &[7, 0, 0, 0, 1, 1][..], "13"),
        ("rondel_nobody", &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3][..], "16"),
    ] {
        let mut client = target.http2(&mut tasks).await.ready().await.expect("room");
        let request = Request::post("http://server/rondel.v1.Gateway/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {bearer}"));
        let (answer, mut body) = client.send_request(request.body(()).expect("a request"), false).expect("sent");
        body.send_data(Bytes::copy_from_slice(begin), false).expect("sent");
        let answer = timeout(LIMIT, answer).await.expect("an answer in time").expect("an answer");
        assert_eq!(answer.status(), 200, "gRPC has its own codes");
        let field = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (status, message) = (field("grpc-status"), field("grpc-message").unwrap_or_default());
        assert!(status.as_deref() == Some(code) && !message.is_empty(), "{begin:?}: {status:?} {message}");
    }
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_guesses_are_throttled_in_bounded_memory() {
    const GUESSES: usize = 10_000;
    let mut target = Target::start().await;
    let user = json!({"name": "ann", "password": "correct horse", "grants": [{"role": "admin"}]});
    target.server.api().post("/api/v1/users", user).await.expect(201);
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let url = format!("{}/sign-in", target.server.url());
    let origin = target.server.url().to_owned();
    let mut guessing = JoinSet::new();
    for lane in 0..8 {
        let (client, url, origin) = (client.clone(), url.clone(), origin.clone());
        guessing.spawn(async move {
            let mut statuses = Vec::new();
            for number in 0..GUESSES / 8 {
                // Half of the guesses are for one account, the others for one account each. Each comes from "another
                // address".
                let name = if lane % 2 == 0 { "ann".to_owned() } else { format!("user-{lane}-{number}") };
                let request = client
                    .post(&url)
                    .header("origin", &origin)
                    .header("x-forwarded-for", format!("203.0.113.{}", number % 250))
                    .header("content-type", "application/x-www-form-urlencoded")
                    .body(format!("name={name}&password=guess-{number}"));
                statuses.push(request.send().await.expect("an answer").status().as_u16());
            }
            statuses
        });
    }
    let statuses: Vec<u16> = guessing.join_all().await.concat();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    assert_eq!(count(401) + count(429), GUESSES, "nothing else is answered");
    assert!(count(401) <= 60, "{} guesses were judged", count(401));
    let denied = target.server.api().get("/api/v1/audit?action=session.create&limit=200").await.expect(200);
    assert!(denied["items"].as_array().expect("a list").len() <= 60, "the log is bounded too");
    target.assert_unharmed().await;
}

/// Only the server's clock decides when a token expires: the time in a client's request is ignored.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_token_stays_expired_whatever_time_the_client_claims() {
    let mut target = Target::start().await;
    let body = json!({"kind": "api", "name": "short", "grants": [{"role": "viewer"}], "expires_in": "2s"});
    let made = target.server.api().post("/api/v1/tokens", body).await.expect(201);
    let api = Api::new(target.server.url(), made["token"].as_str().expect("a secret"));
    api.get("/api/v1/jobs").await.expect(200);
    let over = rondel_tests::wait_until(Duration::from_secs(20), "the token is over", async || {
        let answer: Answer = api.get("/api/v1/jobs").await;
        if answer.status == 401 { Ok(()) } else { Err(answer.status) }
    });
    over.await;
    let mut stream = target.connect().await;
    let bearer = made["token"].as_str().expect("a secret");
    let head = format!(
        "GET /api/v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {bearer}\r\ndate: Thu, 01 Jan 2015 00:00:00 GMT\r\n\
         connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 401"));
    target.assert_unharmed().await;
}

/// Temporal CVE-2024-2689: text that is not UTF-8 led to a loop of crashes there.
#[tokio::test(flavor = "multi_thread")]
async fn temporal_cve_2024_2689_invalid_text_stops_no_other_caller() {
    let mut target = Target::start().await;
    let token = std::fs::read_to_string(target.server.token_file()).expect("a token");
    let mut tasks = JoinSet::new();
    // A hello whose namespace is the byte 0xff, and bytes that are not a message.
    for message in
        [&b"\x0a\x03\x0a\x01\xff"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f"]
    {
        let mut client = target.http2(&mut tasks).await.ready().await.expect("room");
        let request = Request::post("http://server/rondel.v1.Gateway/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {}", token.trim()));
        let (answer, mut body) = client.send_request(request.body(()).expect("a request"), false).expect("sent");
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        body.send_data([&[0][..], &length, message].concat().into(), false).expect("sent");
        let answer = timeout(LIMIT, answer).await.expect("an answer in time").expect("an answer");
        let status = answer.headers().get("grpc-status").map(|status| status.as_bytes().to_vec());
        assert!(status.is_some_and(|status| status != b"0"), "{message:?}: {:?}", answer.headers());
    }
    let odd = json!({"name": "a", "app": "a", "handler": "h", "description": "\u{0}\u{202e}\u{fffe}", "params": {"\u{0}": "\u{0}"}});
    let made = target.server.api().post("/api/v1/jobs", odd).await;
    assert!(matches!(made.status, 201 | 422), "{:#}", made.body);
    target.server.api().get("/api/v1/jobs").await.expect(200);
    target.assert_unharmed().await;
}
