//! Calls with an idempotency key, and the rate limit of tokens.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use rondel_store::{MemStore, Result, Store, StoreError};
use rondel_web::{Rate, WebConfig, route_table};
use serde_json::json;

use crate::harness::{Answer, Server, clock};
use crate::holding::HoldingStore;
use crate::matrix::{OBJECTS, World};

/// A store that loses the answers to chosen calls. The calls take effect.
#[derive(Debug)]
struct AnswerLosingStore {
    inner: MemStore,
    /// The names of the calls, in the order in which they are made. Each loses one answer.
    calls: Mutex<Vec<&'static str>>,
}

impl AnswerLosingStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let answer = effect.await;
        let mut calls = self.calls.lock().unwrap();
        if calls.first() != Some(&name) {
            return answer;
        }
        calls.remove(0);
        Err(StoreError::lost_answer(name))
    }
}

rondel_store::delegate_store!(AnswerLosingStore);

async fn post(server: &Server, path: &str, key: &str, body: &str) -> Answer {
    let request = server.request("POST", path).header("content-type", "application/json");
    server.send(request.header("idempotency-key", key).body(Body::from(body.to_owned())).unwrap()).await
}

#[tokio::test]
async fn a_call_with_a_key_is_made_once() {
    let server = Server::start().await;
    server.job("a").await;
    let path = "/api/v1/jobs/a/runs";
    let first = post(&server, path, "\"k1\"", "{}").await;
    let again = post(&server, path, "k1", "{}").await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert!(!first.headers.contains_key("idempotency-replayed"));
    assert_eq!(again.headers["location"], first.headers["location"]);
    assert_eq!(again.headers["content-type"], "application/json");
    assert_eq!((again.status, &again.bytes), (first.status, &first.bytes));
    let run = first.expect(201);
    let other = post(&server, path, "k2", "{}").await.expect(201);
    assert_ne!(run["id"], other["id"]);
    let runs = server.get("/api/v1/runs?job=a").await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 2, "{runs}");

    // The same key with another body, path or query.
    assert_eq!(post(&server, path, "k1", "{\"params\": 1}").await.expect(422)["code"], "key_reused");
    assert_eq!(post(&server, "/api/v1/jobs", "k1", "{}").await.expect(422)["code"], "key_reused");
    let elsewhere = post(&server, "/api/v1/jobs/a/runs?namespace=default", "k1", "{}").await;
    assert_eq!(elsewhere.expect(422)["code"], "key_reused");
    for key in ["", "\"\"", "with space", &"x".repeat(256)] {
        assert_eq!(post(&server, path, key, "{}").await.expect(400)["code"], "invalid_header", "{key:?}");
    }
}

/// `POST` routes that only answer a question change nothing, so a key has no meaning there.
const READ_ONLY_POSTS: [&str; 5] =
    ["/api/v1/schedules/preview", "/api/v1/alert-rules/preview", "/job-code", "/job-params", "/job-yaml"];

#[tokio::test]
async fn every_route_that_changes_something_stores_a_key_or_refuses_it() {
    let world = Box::pin(World::new()).await;
    let (mut stored_count, mut refused_count) = (0, 0);
    let routes =
        route_table().into_iter().filter(|route| !route.method.is_safe() && !READ_ONLY_POSTS.contains(&route.path));
    for (number, route) in routes.enumerate() {
        let things = world.create_objects("root", OBJECTS[0]).await;
        let mut answers = Vec::new();
        let key = format!("k{number}");
        for key in [key.as_str(), key.as_str(), "no key"] {
            let mut request = world.request(&route, "root", &things).await;
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
            answers.push(world.server.send(request).await);
        }
        let place = format!("{} {}: {} {}", route.method, route.path, answers[0].status, answers[0].text());
        if answers[0].status == 400 {
            assert!(answers[0].text().contains("Idempotency-Key"), "{place}");
            assert!(answers[0].text().contains(&key), "{place}");
            refused_count += 1;
        } else {
            let is_replayed = answers[1].headers.contains_key("idempotency-replayed");
            assert_eq!(is_replayed, answers[0].status.is_success(), "{place}");
            assert_eq!(answers[2].status, 400, "{place}: the key is read");
            stored_count += 1;
        }
    }
    assert!(stored_count > 10 && refused_count > 20, "{stored_count} {refused_count}");
}

#[tokio::test]
async fn a_refused_call_can_be_corrected() {
    let server = Server::start().await;
    assert_eq!(post(&server, "/api/v1/jobs", "k", "{}").await.status, 422);
    let body = json!({"name": "a", "app": "x", "handler": "h"}).to_string();
    post(&server, "/api/v1/jobs", "k", &body).await.expect(201);
    // Without the key, this would be a conflict: the job exists.
    post(&server, "/api/v1/jobs", "k", &body).await.expect(201);
}

#[tokio::test]
async fn two_concurrent_calls_are_made_once() {
    let server = Server::start().await;
    server.job("a").await;
    let path = "/api/v1/jobs/a/runs";
    let calls = (0..8).map(|_| post(&server, path, "k", "{}"));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| [201, 409].contains(&answer.status.as_u16())));
    let runs = server.get("/api/v1/runs?job=a").await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
}

#[tokio::test]
async fn a_call_continues_after_its_client_hung_up() {
    let store = HoldingStore::new();
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    server.job("a").await;
    let path = "/api/v1/jobs/a/runs";
    store.hold("end_call");
    let has_hung_up = tokio::select! {
        _ = post(&server, path, "k", "{}") => false,
        () = store.reached.notified() => true,
    };
    assert!(has_hung_up);
    store.released.notify_one();
    tokio::time::timeout(Duration::from_secs(10), store.ended.notified()).await.unwrap();
    let again = post(&server, path, "k", "{}").await;
    assert_eq!(again.headers["idempotency-replayed"], "true");
    again.expect(201);
    let runs = server.get("/api/v1/runs?job=a").await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "{runs}");
}

/// The database stores the run, job, window, user, token, silence or channel, and only its answer is lost: after an error, the client would
/// create the object twice.
#[tokio::test]
async fn a_run_is_created_once_though_the_database_loses_its_answer() {
    let store = Arc::new(AnswerLosingStore { inner: MemStore::new(Arc::new(clock)), calls: Mutex::default() });
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    let lose = |calls: &[&'static str]| *store.calls.lock().unwrap() = calls.to_vec();
    server.job("a").await;
    let path = "/api/v1/jobs/a/runs";
    lose(&["request_run", "attempts"]);
    let plain = post(&server, path, "k1", "{}").await.expect(201);
    lose(&["request_keyed_run"]);
    let keyed = post(&server, path, "k2", "{\"key\": \"daily\"}").await.expect(201);
    assert_ne!(plain["id"], keyed["id"]);
    let runs = server.get("/api/v1/runs?job=a").await.expect(200);
    assert_eq!(runs["items"].as_array().unwrap().len(), 2, "{runs}");
    lose(&["create_job", "child_names"]);
    let body = json!({"name": "b", "app": "x", "handler": "h"}).to_string();
    assert_eq!(post(&server, "/api/v1/jobs", "k3", &body).await.expect(201)["version"], 1);
    let calendar = json!({"rule": {"weekdays": ["mon"]}});
    server.with_body("PUT", "/api/v1/calendars/mondays", calendar).await.expect(201);
    lose(&["create_job", "calendar"]);
    let schedule = json!({"cron": "0 0 9 * * ?"});
    let body = json!({"name": "c", "app": "x", "handler": "h", "schedule": schedule, "calendar": {"name": "mondays"}});
    assert_eq!(post(&server, "/api/v1/jobs", "k6", &body.to_string()).await.expect(201)["version"], 1);
    lose(&["add_maintenance"]);
    let body = json!({"length": "2h", "fires": "hold", "reason": "moving"}).to_string();
    post(&server, "/api/v1/maintenance", "k4", &body).await.expect(201);
    assert_eq!(server.get("/api/v1/maintenance").await.expect(200)["items"].as_array().unwrap().len(), 1);
    lose(&["create_account"]);
    server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": []})).await.expect(201);
    lose(&["add_token", "rotate_token"]);
    let token = json!({"kind": "api", "name": "once", "grants": [{"role": "viewer"}]});
    let mut created = server.with_body("POST", "/api/v1/tokens", token).await.expect(201);
    for overlap in ["0s", "1h"] {
        let path = format!("/api/v1/tokens/{}/rotate", created["id"].as_str().unwrap());
        created = server.with_body("POST", &path, json!({"overlap": overlap})).await.expect(201);
        assert!(created["token"].is_string(), "{created}");
        lose(&["rotate_token"]);
    }
    let hook = json!({"kind": "webhook", "secrets": {"url": "https://example.com/hook"}});
    for status in [201, 200] {
        lose(&["save_channel"]);
        let created = server.with_body("PUT", "/api/v1/channels/hook", &hook).await.expect(status);
        assert_eq!(created["signing_key"].is_string(), status == 201, "{created}");
    }
    lose(&["add_silence", "jobs_named"]);
    let ends_at = (server.engine.now() + Duration::from_secs(3_600)).to_string();
    let body = json!({"job": "a", "ends_at": ends_at}).to_string();
    post(&server, "/api/v1/silences", "k5", &body).await.expect(201);
    assert_eq!(server.get("/api/v1/silences").await.expect(200)["items"].as_array().unwrap().len(), 1);
    assert!(store.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_token_that_asks_too_often_waits() {
    let rate = Some(Rate { per_second: 1, burst: 3 });
    let server = Server::start_with(WebConfig { rate, ..WebConfig::default() }).await;
    let answers =
        [server.get("/api/v1/apps").await, server.get("/api/v1/apps").await, server.get("/api/v1/apps").await];
    let left: Vec<_> = answers.iter().map(|answer| answer.headers["ratelimit"].to_str().unwrap().to_owned()).collect();
    assert_eq!(left, ["\"token\";r=2;t=0", "\"token\";r=1;t=0", "\"token\";r=0;t=0"]);
    assert_eq!(answers[0].headers["ratelimit-policy"], "\"token\";q=3;w=3");
    let refusal = server.get("/api/v1/apps").await;
    assert_eq!(refusal.headers["retry-after"], "1");
    assert_eq!(refusal.expect(429)["code"], "rate_limited");
    // Unauthenticated callers are not counted, and health checks need no authentication.
    assert_eq!(server.send(http::Request::get("/api/v1/apps").body(Body::empty()).unwrap()).await.status, 401);
    assert_eq!(server.get("/livez").await.status, 200);
}
