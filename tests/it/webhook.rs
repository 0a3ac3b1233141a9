//! Who wants to hear of failed runs hears of each, once, even from behind a server that fails at first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rondel_tests::{Agent, Backend, ScratchDb, Server, scratch, wait_until};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::on_each_database;

/// A request that came.
#[derive(Clone, Debug)]
struct Call {
    headers: BTreeMap<String, String>,
    body: String,
    answered: u16,
}

/// An HTTP server that answers 500 to the first request and 200 to all others.
struct Receiver {
    url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    server: JoinHandle<()>,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Receiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}/hook?key=1", listener.local_addr().expect("an address"));
        let calls = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&calls);
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accept");
                serve(stream, &kept).await;
            }
        });
        Self { url, calls, server }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Reads one request, keeps it, answers it, and closes.
async fn serve(mut stream: TcpStream, calls: &Mutex<Vec<Call>>) {
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let (head, mut body) = loop {
        let count = stream.read(&mut chunk).await.expect("read");
        assert!(count > 0, "the request broke off");
        bytes.extend_from_slice(&chunk[..count]);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break (String::from_utf8_lossy(&bytes[..end]).into_owned(), bytes[end + 4..].to_vec());
        }
    };
    let mut lines = head.lines();
    assert_eq!(lines.next(), Some("POST /hook?key=1 HTTP/1.1"));
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let len: usize = headers["content-length"].parse().expect("a length");
    while body.len() < len {
        let count = stream.read(&mut chunk).await.expect("read");
        assert!(count > 0, "the body broke off");
        body.extend_from_slice(&chunk[..count]);
    }
    let answered = {
        let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = if calls.is_empty() { 500 } else { 200 };
        calls.push(Call { headers, body: String::from_utf8(body).expect("text"), answered });
        answered
    };
    let answer = format!("HTTP/1.1 {answered} Answer\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.expect("write");
    stream.shutdown().await.ok();
}

#[track_caller]
fn check_signature(call: &Call, secret: &str) {
    let key = BASE64_STANDARD.decode(secret.strip_prefix("whsec_").expect("the prefix")).expect("base64");
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length");
    let (id, timestamp) = (&call.headers["webhook-id"], &call.headers["webhook-timestamp"]);
    mac.update(format!("{id}.{timestamp}.{}", call.body).as_bytes());
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    assert_eq!(call.headers["webhook-signature"], format!("v1,{signature}"));
}

fn data(call: &Call) -> Value {
    let body: Value = serde_json::from_str(&call.body).expect("JSON");
    assert_eq!(body["type"], "run.failed");
    body["data"].clone()
}

async fn each_failed_run_is_told_once(db: ScratchDb) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&db, &["--outgoing-allow", "127.0.0.1"]).await;
    let api = server.api();
    let hook = "/api/v1/namespaces/default/failure-webhook";
    let made = api.put(hook, json!({"url": receiver.url})).await.expect(201);
    let secret = made["secret"].as_str().expect("a secret, this once").to_owned();
    let job = |name: &str, script: &str| {
        json!({"name": name, "app": "files", "handler": "shell", "params": {"argv": ["sh", "-c", script]},
            "retry": {"max": 1, "backoff": "100ms"}})
    };
    api.post("/api/v1/jobs", job("fails", "exit 3")).await.expect(201);
    api.post("/api/v1/jobs", job("works", "true")).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let trigger = async |name: &str| {
        let run = api.post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
        run["id"].as_str().expect("an id").to_owned()
    };
    let ends = async |run: &str, verdict: &str| {
        wait_until(Duration::from_secs(30), "the run has its verdict", async || {
            let run = api.get(&format!("/api/v1/runs/{run}")).await.expect(200);
            if run["status"] == verdict { Ok(()) } else { Err(run) }
        })
        .await;
    };
    let comes = async |count: usize| {
        wait_until(Duration::from_secs(30), "the receiver is called", async || {
            let calls = receiver.calls();
            if calls.len() >= count { Ok(calls) } else { Err(calls) }
        })
        .await
    };

    let works = trigger("works").await;
    let first = trigger("fails").await;
    ends(&first, "failed").await;
    ends(&works, "succeeded").await;
    let calls = comes(2).await;
    // Whatever else was to be told about the first run would come before this.
    let second = trigger("fails").await;
    ends(&second, "failed").await;
    comes(3).await;

    let told: Vec<Value> = receiver.calls().iter().map(data).collect();
    let runs: Vec<&str> = told.iter().filter_map(|data| data["run_id"].as_str()).collect();
    assert_eq!(runs, [first.as_str(), first.as_str(), second.as_str()], "{told:#?}");
    let answers: Vec<u16> = receiver.calls().iter().map(|call| call.answered).collect();
    assert_eq!(answers, [500, 200, 200]);
    assert_eq!(calls[0].headers["webhook-id"], calls[1].headers["webhook-id"]);
    assert_eq!(calls[0].body, calls[1].body);
    for call in receiver.calls() {
        check_signature(&call, &secret);
        assert_eq!(call.headers["content-type"], "application/json");
    }
    assert_eq!((&told[0]["job"], &told[0]["status"]), (&json!("fails"), &json!("failed")));
    assert_eq!((&told[0]["attempt"], &told[0]["namespace"]), (&json!(2), &json!("default")));
    assert!(api.get(hook).await.expect(200).get("secret").is_none());
}
on_each_database!(each_failed_run_is_told_once);

/// A name that leads inside is found out when it is resolved; an address at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_leads_inside_is_refused_by_name() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let receiver = Receiver::start().await;
    let mut server = Server::start(&db).await;
    let api = server.api();
    let hook = "/api/v1/namespaces/default/failure-webhook";
    let refused = api.put(hook, json!({"url": receiver.url})).await.expect(422);
    let sentence = "127.0.0.1 is a loopback address, which the setting outgoing_allow does not name";
    assert_eq!(
        (&refused["errors"][0]["pointer"], &refused["errors"][0]["message"]),
        (&json!("/url"), &json!(sentence))
    );
    let named = receiver.url.replace("127.0.0.1", "localhost");
    api.put(hook, json!({"url": named})).await.expect(201);
    let job = json!({"name": "fails", "app": "files", "handler": "shell", "params": {"argv": ["false"]}});
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs/fails/runs", json!({})).await.expect(201);
    let line = server.process().wait_for_line(Duration::from_secs(30), "a loopback address").await;
    assert!(line.contains("outgoing_allow") && receiver.calls().is_empty(), "{line}");
}
