//! Failed and skipped runs are reported to the failure webhook, each once, also where the receiver fails at first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use rondel_tests::{Agent, Api, Backend, ScratchDb, Server, scratch, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::on_each_database;
use crate::verdicts::{trigger, wait_for_verdict};
use crate::why::{cron_in, has_parts, past};

/// A received request.
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

/// Reads one request, stores it, answers it, and closes.
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

/// The messages about skipped runs, by run. A message that was sent repeatedly counts once.
fn skipped(calls: &[Call]) -> BTreeMap<String, Value> {
    let bodies = calls.iter().map(|call| serde_json::from_str::<Value>(&call.body).expect("JSON"));
    let skipped = bodies.filter(|body| body["type"] == "run.skipped").map(|body| body["data"].clone());
    skipped.map(|data| (data["run_id"].as_str().expect("an id").to_owned(), data)).collect()
}

async fn each_failed_run_is_reported_once(db: ScratchDb) {
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
    // Any further report about the first run would arrive before this.
    let second = trigger("fails").await;
    ends(&second, "failed").await;
    comes(3).await;

    let sent: Vec<Value> = receiver.calls().iter().map(data).collect();
    let runs: Vec<&str> = sent.iter().filter_map(|data| data["run_id"].as_str()).collect();
    assert_eq!(runs, [first.as_str(), first.as_str(), second.as_str()], "{sent:#?}");
    let answers: Vec<u16> = receiver.calls().iter().map(|call| call.answered).collect();
    assert_eq!(answers, [500, 200, 200]);
    assert_eq!(calls[0].headers["webhook-id"], calls[1].headers["webhook-id"]);
    assert_eq!(calls[0].body, calls[1].body);
    for call in receiver.calls() {
        check_signature(&call, &secret);
        assert_eq!(call.headers["content-type"], "application/json");
    }
    assert_eq!((&sent[0]["job"], &sent[0]["status"]), (&json!("fails"), &json!("failed")));
    assert_eq!((&sent[0]["attempt"], &sent[0]["namespace"]), (&json!(2), &json!("default")));
    assert!(api.get(hook).await.expect(200).get("secret").is_none());
}
on_each_database!(each_failed_run_is_reported_once);

/// Creates the jobs of the test about skips, except the job that misses a fire.
async fn create_skipping_jobs(api: &Api) {
    let shell = |name: &str, app: &str, script: &str, extra_fields: Value| {
        let mut job = json!({"name": name, "app": app, "handler": "shell", "params": {"argv": ["sh", "-c", script]}});
        job.as_object_mut().expect("an object").extend(extra_fields.as_object().expect("an object").clone());
        job
    };
    let (brief, discard) = (json!({"queue_timeout": "1s"}), json!({"policy": "discard"}));
    let limited = json!({"queue_timeout": "1s", "overlap": {"policy": "allow"}, "rate": {"max": 1, "per": "1h"}});
    for job in [
        shell("unserved", "empty", "true", brief),
        shell("unserved.quiet", "empty", "true", json!({"queue_timeout": "1s", "notify": {"skipped": []}})),
        shell("expires", "files", "true", limited),
        shell("overlaps", "files", "sleep 60", json!({"overlap": discard})),
        shell("overlaps.loud", "files", "sleep 60", json!({"overlap": discard, "notify": {"skipped": ["overlap"]}})),
        shell("fails", "files", "exit 3", json!({})),
    ] {
        api.post("/api/v1/jobs", job).await.expect(201);
    }
}

/// Skips are reported by default unless they were intended: no executor, a misfire, an expiry. An overlap is reported if the
/// job asks for it.
async fn skipped_runs_are_reported_for_their_reasons(db: ScratchDb) {
    let receiver = Receiver::start().await;
    let args = ["--outgoing-allow", "127.0.0.1", "--advertise", "https://rondel.example.com"];
    let mut server = Server::start_with(&db, &args).await;
    let hook = "/api/v1/namespaces/default/failure-webhook";
    server.api().put(hook, json!({"url": receiver.url})).await.expect(201);
    let due_ms = wall_clock_ms() + 8_000;
    let missed = json!({"name": "missed", "app": "files", "handler": "shell", "params": {"argv": ["true"]},
        "misfire": {"policy": "skip", "tolerance": "1s"}, "schedule": {"cron": cron_in(8)}});
    server.api().post("/api/v1/jobs", missed).await.expect(201);
    server.stop().await;
    past(due_ms).await;
    server.restart().await;
    let api = server.api();
    create_skipping_jobs(&api).await;
    let _agent = Agent::start(&server, "files").await;

    let mut expected = BTreeMap::new();
    let missed = wait_until(Duration::from_secs(30), "the fire was missed", async || {
        let runs = api.runs("missed").await;
        runs.iter()
            .find(|run| run["reason"] == "misfire")
            .and_then(|run| run["id"].as_str())
            .map(str::to_owned)
            .ok_or(runs)
    })
    .await;
    let misfire = "its instant passed while no server was at work, and the job's misfire policy skips it.".to_owned();
    expected.insert(missed, ("files", "missed", "misfire", misfire));
    let unserved = trigger(&api, "unserved").await;
    expected.insert(
        unserved,
        ("empty", "unserved", "no_executor", "no executor of app empty was online for *s.".to_owned()),
    );
    let quiet = trigger(&api, "unserved.quiet").await;
    wait_for_verdict(&api, &trigger(&api, "expires").await).await;
    let expired = "it waited *s for the job's rate limit (1 per 1 h).".to_owned();
    expected.insert(trigger(&api, "expires").await, ("files", "expires", "expired", expired));
    trigger(&api, "overlaps").await;
    let overlapping = trigger(&api, "overlaps").await;
    let first = trigger(&api, "overlaps.loud").await;
    let overlap = format!("run {first} had not ended, and the job's overlap policy skips overlapping runs.");
    expected.insert(trigger(&api, "overlaps.loud").await, ("files", "overlaps.loud", "overlap", overlap));
    for run in expected.keys().chain([&quiet, &overlapping]) {
        assert_eq!(wait_for_verdict(&api, run).await["status"], "skipped", "run {run}");
    }
    // The messages about the skips are sent before the message about this run.
    let fails = trigger(&api, "fails").await;
    let calls = wait_until(Duration::from_secs(60), "every message has come", async || {
        let calls = receiver.calls();
        let has_marker = calls.iter().any(|call| call.body.contains(&fails));
        if has_marker && expected.keys().all(|run| skipped(&calls).contains_key(run)) { Ok(calls) } else { Err(calls) }
    })
    .await;

    let messages = skipped(&calls);
    assert_eq!(messages.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{messages:#?}");
    for (run, (app, job, reason, why)) in &expected {
        let data = &messages[run];
        let is = (&data["app"], &data["job"], &data["status"], &data["reason"]);
        assert_eq!(is, (&json!(app), &json!(job), &json!("skipped"), &json!(reason)), "{data:#}");
        assert_eq!(data["link"], format!("https://rondel.example.com/n/default/runs/{run}"), "{data:#}");
        let is_explained = has_parts(data["why"].as_str().unwrap_or_default(), &format!("Skipped: {why}"));
        assert!(is_explained, "{data:#}");
        let typed = match *reason {
            "no_executor" => data["detail"]["app"] == "empty" && data["detail"]["waited_ms"].is_u64(),
            "expired" => data["detail"]["waits_for"] == "limit" && data["detail"]["limit"]["max"] == 1,
            "overlap" => data["detail"]["run"] == json!(first),
            _ => true,
        };
        assert!(typed, "{data:#}");
    }
}
on_each_database!(skipped_runs_are_reported_for_their_reasons);

/// An internal address is refused immediately. A name that leads to one is refused when it is resolved.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_leads_inside_is_refused_by_name() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let receiver = Receiver::start().await;
    let mut server = Server::start(&db).await;
    let api = server.api();
    let hook = "/api/v1/namespaces/default/failure-webhook";
    let refusal = api.put(hook, json!({"url": receiver.url})).await.expect(422);
    let sentence = "127.0.0.1 is a loopback address, which the setting outgoing_allow does not name";
    assert_eq!(
        (&refusal["errors"][0]["pointer"], &refusal["errors"][0]["message"]),
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

/// The receiver of one namespace accepts connections and never answers. The reports of another namespace do not wait for
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_never_answers_holds_up_no_other_namespace() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let stuck = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let stuck_url = format!("http://{}/hook", stuck.local_addr().expect("an address"));
    let receiver = Receiver::start().await;
    let server = Server::start_with(&db, &["--outgoing-allow", "127.0.0.1"]).await;
    let api = server.api();
    let skipped_in = async |namespace: &str, url: &str| {
        let query = format!("?namespace={namespace}");
        api.post("/api/v1/namespaces", json!({ "name": namespace })).await.expect(201);
        api.put(&format!("/api/v1/namespaces/{namespace}/failure-webhook"), json!({ "url": url })).await.expect(201);
        api.post(&format!("/api/v1/apps{query}"), json!({"name": "unserved"})).await.expect(201);
        let job = json!({"name": "waits", "app": "unserved", "handler": "shell", "params": {"argv": ["true"]}, "queue_timeout": "1s"});
        api.post(&format!("/api/v1/jobs{query}"), job).await.expect(201);
        api.post(&format!("/api/v1/jobs/waits/runs{query}"), json!({})).await.expect(201);
    };
    skipped_in("slow", &stuck_url).await;
    let limit = Duration::from_secs(30);
    let (mut stuck, _) = tokio::time::timeout(limit, stuck.accept()).await.expect("it is called").expect("accept");
    skipped_in("quick", &receiver.url).await;
    let is_called = wait_until(limit, "the other namespace's receiver is called", async || {
        let calls = receiver.calls();
        if calls.is_empty() { Err("not called") } else { Ok(()) }
    });
    // The server gives the call up after 10 s.
    let is_given_up = async { while stuck.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
    tokio::select! {
        biased;
        () = is_called => {}
        () = is_given_up => assert!(!receiver.calls().is_empty(), "it waits for the call that is not answered"),
    }
}

/// A test message is sent immediately, with a signature, and the caller gets the receiver's answer.
#[tokio::test]
async fn a_test_message_is_answered_with_the_result() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let receiver = Receiver::start().await;
    let server = Server::start_with(&db, &["--outgoing-allow", "127.0.0.1"]).await;
    let api = server.api();
    let path = "/api/v1/namespaces/default/failure-webhook";
    let test = format!("{path}:test");
    api.post(&test, json!({})).await.expect(404);
    let secret = api.put(path, json!({"url": receiver.url})).await.expect(201)["secret"].clone();
    let refusal = api.post(&test, json!({})).await.expect(200);
    assert_eq!((&refusal["is_delivered"], &refusal["status"]), (&json!(false), &json!(500)), "{refusal}");
    assert!(refusal["error"].as_str().unwrap().contains("500") && refusal["latency_ms"].is_u64(), "{refusal}");
    let taken = api.post(&test, json!({})).await.expect(200);
    assert_eq!((&taken["is_delivered"], &taken["status"], &taken["error"]), (&json!(true), &json!(200), &json!(null)));
    let calls = receiver.calls();
    assert_eq!(calls.len(), 2, "each is sent once: {calls:?}");
    for call in &calls {
        check_signature(call, secret.as_str().unwrap());
        assert_eq!(serde_json::from_str::<Value>(&call.body).unwrap()["type"], "webhook.test");
    }
    drop(receiver);
    let lost = api.post(&test, json!({})).await.expect(200);
    assert_eq!((&lost["is_delivered"], &lost["status"]), (&json!(false), &json!(null)), "{lost}");
    assert!(!lost.to_string().contains("key=1"), "the address may hold a secret: {lost}");
}
