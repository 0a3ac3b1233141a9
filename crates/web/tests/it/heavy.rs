//! Heavy work is limited: pages by their bytes, exports and applied lists by their number, and unread answers by their bytes. Streams end
//! when their caller loses its rights.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::Response;
use bytes::Bytes;
use rondel_core::TokenId;
use rondel_store::Store;
use rondel_web::{HttpLimits, WebConfig};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::harness::Server;
use crate::holding::HoldingStore;
use crate::visitor::Visitor;

struct TestUser {
    id: TokenId,
    secret: String,
}

async fn create_user(server: &Server, name: &str, role: &str) -> TestUser {
    let body = json!({"kind": "api", "name": name, "grants": [{"role": role}]});
    let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    let text = |key: &str| created[key].as_str().unwrap().to_owned();
    TestUser { id: text("id").parse().unwrap(), secret: text("token") }
}

/// Sends a request, and does not read the body of the answer.
async fn send_request(server: &Server, who: &TestUser, method: &str, path: &str, body: Option<Value>) -> Response {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("authorization", format!("Bearer {}", who.secret));
    let request = match body {
        Some(_) => request.header("content-type", "application/json").header("accept", "application/x-ndjson"),
        None => request,
    };
    let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
    server.app.clone().oneshot(request.body(body).unwrap()).await.unwrap()
}

/// The next piece of a body; `None` at the end.
async fn next_piece(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// The rest of a body, and whether it broke off.
async fn read_rest(body: &mut Body) -> (String, bool) {
    let mut text = String::new();
    while let Some(piece) = next_piece(body).await {
        match piece {
            Ok(piece) => text.push_str(&String::from_utf8_lossy(&piece)),
            Err(_) => return (text, true),
        }
    }
    (text, false)
}

fn jobs(from: usize, to: usize, params: &Value) -> Value {
    let job = |number| json!({"name": format!("j{number:05}"), "app": "app", "handler": "h", "params": params});
    (from..to).map(job).collect()
}

async fn create(server: &Server, count: usize, params_len: usize) {
    let params = json!({"text": "x".repeat(params_len)});
    for from in (0..count).step_by(20) {
        let list = jobs(from, count.min(from + 20), &params);
        server.with_body("POST", "/api/v1/jobs/apply", list).await.expect(200);
    }
}

async fn revoke(server: &Server, who: &TestUser) {
    assert!(server.engine.store().revoke_token(who.id, server.engine.now()).await.unwrap());
    // Waits until the rights of the caller are checked again.
    tokio::time::advance(Duration::from_secs(4)).await;
}

#[tokio::test(start_paused = true)]
async fn a_streamed_apply_ends_with_its_token() {
    let server = Server::start().await;
    for is_revoked in [false, true] {
        let editor = create_user(&server, &format!("editor-{is_revoked}"), "editor").await;
        let list = jobs(0, 1_200, &json!({"round": is_revoked}));
        let path = "/api/v1/jobs/apply";
        let mut body = send_request(&server, &editor, "POST", path, Some(list)).await.into_body();
        let first = String::from_utf8(next_piece(&mut body).await.unwrap().unwrap().to_vec()).unwrap();
        if is_revoked {
            revoke(&server, &editor).await;
        }
        let (text, _) = read_rest(&mut body).await;
        let lines: Vec<&str> = first.lines().chain(text.lines()).collect();
        let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        if is_revoked {
            assert_eq!(last["ended"]["code"], "unauthenticated", "{last}");
            let message = last["ended"]["message"].as_str().unwrap();
            let count = lines.len() - 1;
            assert!(message.contains(&format!("after {count} of 1200 jobs")) && count < 1_200, "{message}");
        } else {
            assert_eq!((&last["summary"]["created"], lines.len()), (&json!(1_200), 1_201), "{last}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_export_ends_with_its_token() {
    let server = Server::start().await;
    create(&server, 100, 20_000).await;
    for form in ["json", "yaml"] {
        let path = format!("/api/v1/jobs/export?format={form}");
        let viewer = create_user(&server, &format!("whole-{form}"), "viewer").await;
        let (whole, is_broken) =
            read_rest(&mut send_request(&server, &viewer, "GET", &path, None).await.into_body()).await;
        assert_eq!((whole.matches("j000").count(), is_broken), (100, false));
        let viewer = create_user(&server, &format!("part-{form}"), "viewer").await;
        let mut body = send_request(&server, &viewer, "GET", &path, None).await.into_body();
        assert!(next_piece(&mut body).await.unwrap().is_ok());
        revoke(&server, &viewer).await;
        let (text, is_broken) = read_rest(&mut body).await;
        assert!(is_broken && text.contains("the token or sign-in has ended"), "{text}");
        assert!(!text.contains("j000"), "no job after the end: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_export_of_the_audit_log_ends_with_its_token() {
    let server = Server::start().await;
    for number in 0..30 {
        server.job(&format!("job-{number}")).await;
    }
    let admin = create_user(&server, "boss", "admin").await;
    let request = http::Request::get("/api/v1/audit").header("accept", "application/x-ndjson");
    let request = request.header("authorization", format!("Bearer {}", admin.secret));
    let response = server.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let mut body = response.into_body();
    assert!(next_piece(&mut body).await.unwrap().is_ok());
    revoke(&server, &admin).await;
    let (text, _) = read_rest(&mut body).await;
    assert!(
        text.lines().count() == 1 && text.starts_with("{\"code\":\"unauthenticated\",\"complete\":false"),
        "{text}"
    );
}

#[tokio::test]
async fn a_page_ends_with_its_bytes() {
    let server = Server::start().await;
    create(&server, 60, 60_000).await;
    let (mut names, mut path, mut page_count) = (Vec::new(), "/api/v1/jobs?limit=200".to_owned(), 0);
    loop {
        let answer = server.get(&path).await;
        assert!(answer.bytes.len() <= 2 * 1024 * 1024 + 4096, "{} bytes", answer.bytes.len());
        let page = answer.expect(200);
        page_count += 1;
        names.extend(page["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/jobs?limit=200&cursor={cursor}");
    }
    let expected: Vec<String> = (0..60).map(|number| format!("j{number:05}")).collect();
    assert_eq!((names, page_count), (expected, 2));
    // A page of short rows is limited by its number of rows.
    let short = server.get("/api/v1/jobs?limit=30").await.expect(200);
    assert_eq!(short["items"].as_array().unwrap().len(), 30);
}

#[tokio::test]
async fn versions_of_a_job_are_bounded_by_their_bytes() {
    let server = Server::start().await;
    for round in 0..50 {
        let params = json!({"text": "x".repeat(60_000), "round": round});
        server.with_body("POST", "/api/v1/jobs/apply", jobs(0, 1, &params)).await.expect(200);
    }
    let path = "/api/v1/jobs/j00000/versions?limit=50";
    let first = server.get(path).await;
    assert!(first.bytes.len() <= 2 * 1024 * 1024 + 4096, "{} bytes", first.bytes.len());
    let first = first.expect(200);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = server.get(&format!("{path}&cursor={cursor}")).await.expect(200);
    let versions = [&first, &second].into_iter().flat_map(|page| page["items"].as_array().unwrap());
    let versions: Vec<i64> = versions.map(|version| version["version"].as_i64().unwrap()).collect();
    assert_eq!(versions, (1..=50).rev().collect::<Vec<_>>());
    assert!(second["next_cursor"].is_null());
}

fn refusal(response: &Response) -> (u16, bool) {
    (response.status().as_u16(), response.headers().contains_key("retry-after"))
}

#[tokio::test]
async fn exports_and_applies_are_few_at_a_time() {
    let limits =
        HttpLimits { exports: 3, exports_per_caller: 2, applies: 3, applies_per_caller: 2, ..HttpLimits::default() };
    let server = Server::start_with(WebConfig { limits, ..WebConfig::default() }).await;
    create(&server, 40, 20_000).await;
    let [ann, bob, eve] = [
        create_user(&server, "ann", "editor").await,
        create_user(&server, "bob", "editor").await,
        create_user(&server, "eve", "editor").await,
    ];
    for (method, path, list) in
        [("GET", "/api/v1/jobs/export", None), ("POST", "/api/v1/jobs/apply", Some(jobs(0, 600, &json!({}))))]
    {
        let call = async |who: &TestUser| send_request(&server, who, method, path, list.clone()).await;
        let (first, _second) = (call(&ann).await, call(&ann).await);
        assert_eq!(refusal(&call(&ann).await), (429, true), "{path}: a caller has two");
        let other = call(&bob).await;
        assert_eq!(other.status(), 200, "{path}: others have a place");
        assert_eq!(refusal(&call(&eve).await), (503, true), "{path}: the server has three");
        drop(first);
        assert_eq!(call(&ann).await.status(), 200, "{path}: a place is given back");
    }
    let text = server.get("/metrics").await.text();
    for limit in ["exports", "exports_per_caller", "applies", "applies_per_caller"] {
        assert!(text.contains(&format!("rondel_http_limited_total{{limit=\"{limit}\"}} 1")), "{limit}: {text}");
    }
}

/// The list is parsed to the end even if its client has disconnected. Until then it takes memory, so it is counted.
#[test]
fn a_list_keeps_its_place_until_it_is_parsed() {
    // Lists are parsed on the only thread for blocking work, which the test occupies.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let limits = HttpLimits { applies_per_caller: 1, ..HttpLimits::default() };
        let server = Server::start_with(WebConfig { limits, ..WebConfig::default() }).await;
        let editor = create_user(&server, "ann", "editor").await;
        let (finish, wait) = std::sync::mpsc::channel::<()>();
        let blocker = tokio::task::spawn_blocking(move || wait.recv());
        let apply = || send_request(&server, &editor, "POST", "/api/v1/jobs/apply", Some(jobs(0, 1, &json!({}))));
        assert!(tokio::time::timeout(Duration::from_secs(1), apply()).await.is_err(), "the list waits for the thread");
        let second = tokio::time::timeout(Duration::from_secs(5), apply()).await.expect("a refusal at once");
        assert_eq!(refusal(&second), (429, true));
        finish.send(()).unwrap();
        assert!(blocker.await.unwrap().is_ok());
        let accepted = async {
            loop {
                let answer = apply().await;
                if answer.status() != 429 {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let last = tokio::time::timeout(Duration::from_secs(60), accepted).await.expect("the place is given back");
        assert_eq!(last.status(), 200);
    });
}

#[tokio::test]
async fn downloads_of_runs_are_exports() {
    let limits = HttpLimits { exports: 1, ..HttpLimits::default() };
    let server = Server::start_with(WebConfig { limits, ..WebConfig::default() }).await;
    create(&server, 40, 20_000).await;
    let viewer = create_user(&server, "ann", "viewer").await;
    let visitor = Visitor::signed_in(&server).await;
    let export = send_request(&server, &viewer, "GET", "/api/v1/jobs/export", None).await;
    assert_eq!(export.status(), 200);
    let downloads = ["/export/runs.csv", "/export/runs.jsonl"];
    for path in downloads {
        let answer = visitor.get(path).await;
        assert_eq!((answer.status.as_u16(), answer.headers.contains_key("retry-after")), (503, true), "{path}");
    }
    drop(export);
    for path in downloads {
        assert_eq!(visitor.get(path).await.status, 200, "{path}: the place is free");
    }
}

#[tokio::test]
async fn answers_that_are_not_read_are_counted() {
    let limits = HttpLimits { answer_size: 4 * 1024 * 1024, ..HttpLimits::default() };
    let server = Server::start_with(WebConfig { limits, ..WebConfig::default() }).await;
    create(&server, 25, 50_000).await;
    let [ann, bob, eve] = [
        create_user(&server, "ann", "viewer").await,
        create_user(&server, "bob", "viewer").await,
        create_user(&server, "eve", "viewer").await,
    ];
    let list = async |who: &TestUser| send_request(&server, who, "GET", "/api/v1/jobs?limit=200", None).await;
    let first = list(&ann).await;
    assert_eq!(first.status(), 200);
    assert_eq!(refusal(&list(&ann).await), (429, true), "half of all is one caller's");
    let small = send_request(&server, &ann, "GET", "/api/v1/apps", None).await;
    assert_eq!(small.status(), 200, "short answers are not counted");
    let (_second, _third) = (list(&bob).await, list(&eve).await);
    let fourth = create_user(&server, "dan", "viewer").await;
    assert_eq!(refusal(&list(&fourth).await), (503, true), "all together have so much");
    drop(first);
    assert_eq!(list(&fourth).await.status(), 200);
    let text = server.get("/metrics").await.text();
    assert!(text.contains("rondel_http_limited_total{limit=\"answer_size\"} 2"), "{text}");
}

#[tokio::test]
async fn followed_logs_are_read_in_the_turns_of_their_caller() {
    let store = HoldingStore::new();
    let limits = HttpLimits { reads_per_caller: 1, ..HttpLimits::default() };
    let config = WebConfig { limits, ..WebConfig::default() };
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, config).await;
    server.job("a").await;
    let run = server.trigger("a").await;
    let [ann, bob] = [create_user(&server, "ann", "viewer").await, create_user(&server, "bob", "viewer").await];
    let path = format!("/api/v1/runs/{run}/logs?follow=true");
    let mut followed = send_request(&server, &ann, "GET", &path, None).await.into_body();
    store.hold("log_chunks");
    #[expect(clippy::disallowed_methods, reason = "the test ends it")]
    let reader = tokio::spawn(async move { next_piece(&mut followed).await.is_some() });
    store.reached.notified().await;
    let mut own = Box::pin(send_request(&server, &ann, "GET", "/api/v1/apps", None));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut own).await.is_err(), "the stream has the turn");
    assert_eq!(send_request(&server, &bob, "GET", "/api/v1/apps", None).await.status(), 200, "others have their own");
    store.released.notify_one();
    assert_eq!(own.await.status(), 200, "a stream that waits for lines has no turn");
    reader.abort();
}
