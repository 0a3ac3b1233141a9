//! The states of jobs: in the API, as filters, and in the console.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, RunId};
use rondel_store::ledger::RunAtExecutor;
use rondel_store::{MemStore, Result, Store};
use rondel_web::WebConfig;
use serde_json::{Value, json};

use crate::harness::{Server, clock};
use crate::visitor::Visitor;

const FAILED: Outcome = Outcome::Failed { retryable: false };

async fn create(server: &Server, name: &str, more: Value) -> Value {
    let mut job = json!({"name": name, "app": "app", "handler": "handler"});
    if let (Some(job), Value::Object(more)) = (job.as_object_mut(), more) {
        job.extend(more);
    }
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201)
}

async fn state(server: &Server, name: &str) -> String {
    let job = server.get(&format!("/api/v1/jobs/{name}")).await.expect(200);
    job["state"].as_str().unwrap().to_owned()
}

/// Records that an executor has the run, like the server does for runs that take longer than a second.
async fn begin(server: &Server, run: RunId) {
    let at = server.engine.now();
    let in_hand = RunAtExecutor { run, attempt: 1, executor_id: ExecutorId::new(77), executor: "one".to_owned(), at };
    server.engine.store().note_running(server.engine.token(), &[in_hand]).await.unwrap();
}

/// Waits until a job has a run, and returns the newest one.
async fn run_of(server: &Server, job: &str) -> RunId {
    for _ in 0..600 {
        let runs = server.get(&format!("/api/v1/runs?job={job}")).await.expect(200);
        if let Some(id) = runs["items"][0]["id"].as_str() {
            return id.parse().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("job {job} did not fire within 30 s")
}

#[tokio::test]
async fn a_job_has_the_first_state_that_holds() {
    let server = Server::start().await;
    let fresh = create(&server, "fresh", json!({"schedule": {"cron": "0 0 3 1 1 ? 2099"}})).await;
    assert_eq!(fresh["state"], "waiting");
    let soon = (server.engine.now() + Duration::from_secs(1)).to_string();
    create(&server, "once", json!({"schedule": {"at": soon}})).await;
    for name in ["failing", "running", "paused", "manual"] {
        server.job(name).await;
    }
    create(&server, "child", json!({"schedule": {"after": ["manual"]}})).await;
    server.finish(server.trigger("failing").await, FAILED).await;
    begin(&server, server.trigger("running").await).await;
    assert_eq!(server.bare("POST", "/api/v1/jobs/paused/pause").await.expect(200)["state"], "paused");
    server.finish(server.trigger("manual").await, Outcome::Succeeded).await;
    let run = run_of(&server, "once").await;
    assert_eq!(state(&server, "once").await, "waiting", "its only run is open");
    server.finish(run, Outcome::Succeeded).await;

    let listed = server.get("/api/v1/jobs").await.expect(200);
    let listed: Vec<(&str, &str)> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (job["name"].as_str().unwrap(), job["state"].as_str().unwrap()))
        .collect();
    let expected = [
        ("child", "waiting"),
        ("failing", "error"),
        ("fresh", "waiting"),
        ("manual", "waiting"),
        ("once", "complete"),
        ("paused", "paused"),
        ("running", "running"),
    ];
    assert_eq!(listed, expected);
    for (name, expected) in expected {
        assert_eq!(state(&server, name).await, expected, "{name}");
    }
    for (q, names) in [
        ("is:error", vec!["failing"]),
        ("is:running", vec!["running"]),
        ("is:complete", vec!["once"]),
        ("is:waiting", vec!["child", "fresh", "manual"]),
        ("is:error,complete", vec!["failing", "once"]),
        ("-is:waiting%20-is:paused", vec!["failing", "once", "running"]),
    ] {
        let found = server.get(&format!("/api/v1/jobs?q={q}")).await.expect(200);
        let found: Vec<&str> =
            found["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{q}");
    }
}

#[tokio::test]
async fn trouble_stays_the_state_until_a_run_succeeds() {
    let server = Server::start().await;
    server.job("nightly").await;
    server.finish(server.trigger("nightly").await, FAILED).await;
    server.count_runs().await;
    let next = server.trigger("nightly").await;
    begin(&server, next).await;
    assert_eq!(state(&server, "nightly").await, "error", "it runs again");
    server.bare("POST", "/api/v1/jobs/nightly/pause").await.expect(200);
    assert_eq!(state(&server, "nightly").await, "error", "it is off");
    server.finish(next, Outcome::Succeeded).await;
    assert_eq!(state(&server, "nightly").await, "paused", "before the success is counted");
    server.count_runs().await;
    assert_eq!(state(&server, "nightly").await, "paused");
}

#[tokio::test]
async fn the_console_shows_the_state_in_colour_only_for_an_error() {
    let server = Server::start().await;
    for name in ["failing", "off", "fresh"] {
        server.job(name).await;
    }
    server.finish(server.trigger("failing").await, FAILED).await;
    server.bare("POST", "/api/v1/jobs/off/pause").await.expect(200);
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, error, paused, waiting) in [("en", "error", "paused", "waiting"), ("zh", "出错", "已暂停", "等待中")]
    {
        visitor.language = language;
        let list = visitor.get("/jobs").await.text();
        for (class, word) in [("job-state s-failed", error), ("job-state", paused), ("job-state", waiting)] {
            let shown = list.split("<span class=\"status ").skip(1).filter(|part| {
                part.starts_with(&format!("{class}\"")) && part.contains(&format!("<span>{word}</span>"))
            });
            assert_eq!(shown.count(), 1, "{word}: {list}");
        }
        for (name, word) in [("failing", error), ("off", paused), ("fresh", waiting)] {
            let page = visitor.get(&format!("/jobs/{name}")).await.text();
            let head = page.split("<div class=\"actions\">").next().unwrap();
            assert!(head.contains("class=\"status job-state"), "{head}");
            assert!(head.contains(&format!("<span>{word}</span></span>")), "{head}");
        }
    }
}

/// A store that counts how often states are read.
#[derive(Debug)]
struct CountingStore {
    store: MemStore,
    read_count: AtomicUsize,
}

impl CountingStore {
    fn inner(&self) -> &MemStore {
        &self.store
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "job_activity" {
            self.read_count.fetch_add(1, Relaxed);
        }
        effect.await
    }
}

rondel_store::delegate_store!(CountingStore);

/// The states of all jobs on a page are read in one call. The page reads jobs twice, so it makes two calls.
#[tokio::test]
async fn the_states_of_a_page_are_read_together() {
    let store = Arc::new(CountingStore { store: MemStore::new(Arc::new(clock)), read_count: AtomicUsize::new(0) });
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    let jobs: Vec<Value> =
        (0..120).map(|n| json!({"name": format!("job-{n:03}"), "app": "app", "handler": "handler"})).collect();
    server.with_body("POST", "/api/v1/jobs/apply", Value::Array(jobs)).await.expect(200);
    let page = server.get("/api/v1/jobs?limit=100").await.expect(200);
    let items = page["items"].as_array().unwrap();
    assert_eq!((items.len(), items.iter().all(|job| job["state"] == "waiting")), (100, true));
    assert_eq!(store.read_count.load(Relaxed), 2, "16 jobs at first, then the others");
    let visitor = Visitor::signed_in(&server).await;
    assert_eq!(visitor.get("/jobs").await.status, 200);
    assert_eq!(store.read_count.load(Relaxed), 3);
}
