//! Texts that break programs, in every field of the API that takes text, on every database: each is refused with a message
//! or stored unchanged, and the server never fails.

use rondel_tests::{Api, Method, ScratchDb, Server};
use serde_json::{Value, json};

use crate::on_each_database;

/// The texts as JSON.
const TEXTS: &[&str] = &[
    r#""a\u0000b""#,
    r#""\ud800""#,
    r#""\udfff\ud800""#,
    "\"\u{202e}gpj.exe\u{2066}\u{200f}\"",
    "\"\u{feff}\u{2028}\u{2029}\u{0085}\"",
    r#""\u0001\u001b[31m\u007f""#,
    "\"\u{1f980}\u{10ffff}\u{fdd0}\"",
    "\"' OR 1=1; -- \\\\ % _ \\\" ${jndi:x} {{7*7}} <script>\"",
    "\"Zalgo\u{0301}\u{0302}\u{0303}\u{0304}\"",
    "\"\"",
    "\" \"",
    "\"\\n\\r\\t\"",
];
/// Bodies with a text at `~`.
const BODIES: &[(&str, &str, &str)] = &[
    ("POST", "/jobs", r#"{"name": ~, "app": "a", "handler": "h"}"#),
    ("POST", "/jobs", r#"{"name": "odd", "app": ~, "handler": "h"}"#),
    ("POST", "/jobs", r#"{"name": "odd", "app": "a", "handler": ~}"#),
    ("PATCH", "/jobs/plain", r#"{"description": ~}"#),
    ("PATCH", "/jobs/plain", r#"{"params": {"a": ~, "b": [~]}}"#),
    ("PATCH", "/jobs/plain", r#"{"params": ~}"#),
    ("PATCH", "/jobs/plain", r#"{"schedule": {"cron": ~}}"#),
    ("PATCH", "/jobs/plain", r#"{"schedule": {"cron": "@daily", "time_zone": ~}}"#),
    ("PATCH", "/jobs/plain", r#"{"schedule": {"after": [~]}}"#),
    ("PATCH", "/jobs/plain", r#"{"select": {"labels": [~], "executors": [~]}}"#),
    ("PATCH", "/jobs/plain", r#"{"concurrency": {"key": ~, "max": 1}}"#),
    ("PATCH", "/jobs/plain", r#"{"calendar": {"name": ~}}"#),
    ("PATCH", "/jobs/plain", r#"{~: 1}"#),
    ("POST", "/jobs/apply", r#"[{"name": "plain", "app": "a", "handler": "h", "description": ~}]"#),
    ("POST", "/jobs/plain/runs", r#"{"params": {~: ~}}"#),
    ("POST", "/jobs/plain/cancel", r#"{"reason": ~}"#),
    ("POST", "/jobs/plain/cancel", r#"{"fire_at": ~}"#),
    ("POST", "/runs/RUN/cancel", r#"{"reason": ~}"#),
    ("PUT", "/calendars/odd", r#"{"description": ~, "rule": {"days": [{"date": "2026-12-24", "name": ~}]}}"#),
    ("PUT", "/calendars/odd", r#"{"rule": {"calendar": ~}}"#),
    ("POST", "/schedules/preview", r#"{"schedule": {"cron": ~}}"#),
    ("POST", "/apps", r#"{"name": ~}"#),
    ("PUT", "/apps/a/state", r#"{"state": ~}"#),
    ("PUT", "/executors/a/state", r#"{"state": "draining", "app": ~}"#),
    ("POST", "/runs/RUN/retry", r#"{"only": ~}"#),
    ("PUT", "/namespaces/default/failure-webhook", r#"{"url": ~}"#),
    ("POST", "/namespaces", r#"{"name": ~}"#),
    ("POST", "/tokens", r#"{"kind": "api", "name": ~, "grants": [{"role": "viewer"}]}"#),
    ("POST", "/tokens", r#"{"kind": "api", "name": "t", "grants": [{"role": "viewer", "namespace": ~}]}"#),
    (
        "POST",
        "/tokens",
        r#"{"kind": "executor", "name": "t", "grants": [{"role": "executor", "namespace": "default", "app": ~}]}"#,
    ),
    ("POST", "/users", r#"{"name": ~}"#),
    ("POST", "/users", r#"{"name": "odd", "display_name": ~, "password": ~}"#),
    ("PATCH", "/users/plain", r#"{"display_name": ~}"#),
    ("POST", "/users/plain/password", r#"{"password": ~}"#),
    ("POST", "/silences", r#"{"job": ~, "ends_at": "2001-01-01T00:00:00Z"}"#),
    ("PUT", "/reports/schedule", r#"{"channel": ~}"#),
];
/// Texts of the same kinds, percent-encoded for a URL.
const WORDS: &[&str] =
    &["%00", "a%00b", "%ff%fe", "%e2%80%ae", "%f0%9f%a6%80", "%27%3b--", "%ed%a0%80", "%2e%2e%2f", "%0a", "%25"];
const PATHS: &[(&str, &str)] = &[
    ("GET", "/jobs/~"),
    ("DELETE", "/jobs/~"),
    ("GET", "/runs/~"),
    ("GET", "/calendars/~"),
    ("PUT", "/nodes/~/state"),
    ("PUT", "/apps/~/state"),
    ("PUT", "/executors/~/state"),
    ("GET", "/apps/~/handlers"),
    ("DELETE", "/namespaces/~"),
    ("GET", "/namespaces/~/failure-webhook"),
    ("GET", "/users/~"),
    ("DELETE", "/tokens/~"),
    ("DELETE", "/sessions/~"),
    ("GET", "/jobs?q=~"),
    ("GET", "/jobs?app=~"),
    ("GET", "/jobs?namespace=~"),
    ("GET", "/jobs?cursor=~"),
    ("GET", "/jobs?~=1"),
    ("GET", "/runs?job=~"),
    ("GET", "/runs?status=~"),
    ("GET", "/runs/RUN/logs?contains=~"),
    ("GET", "/runs/RUN/logs?level=~"),
    ("GET", "/jobs/export?name=~"),
    ("GET", "/jobs/plain/why?at=~"),
    ("GET", "/audit?actor=~"),
    ("GET", "/audit?object=~"),
    ("GET", "/audit?action=~"),
    ("GET", "/audit?in=~"),
    ("GET", "/channels/~"),
    ("PUT", "/channels/~"),
    ("DELETE", "/channels/~"),
    ("GET", "/channels/~/deliveries"),
    ("DELETE", "/alert-rules/~"),
    ("GET", "/scripts/~"),
    ("GET", "/incidents?job=~"),
    ("GET", "/runs?q=~"),
    ("DELETE", "/apps/a/addresses?address=~"),
];

on_each_database!(no_text_breaks_the_server);

async fn no_text_breaks_the_server(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    api.post("/api/v1/jobs", json!({"name": "plain", "app": "a", "handler": "h"})).await.expect(201);
    api.post("/api/v1/users", json!({"name": "plain"})).await.expect(201);
    let run =
        api.post("/api/v1/jobs/plain/runs", json!({})).await.expect(201)["id"].as_str().expect("an id").to_owned();
    for text in TEXTS {
        for (method, path, body) in BODIES {
            send(&api, method, &path.replace("RUN", &run), &body.replace('~', text)).await;
        }
    }
    // A very long text, and bytes that are not UTF-8.
    let long = format!("\"{}\"", "\u{1f980}".repeat(60_000));
    for (method, path, body) in BODIES {
        send(&api, method, &path.replace("RUN", &run), &body.replace('~', &long)).await;
        let whole = body.replace('~', "\"\u{fffd}\"").into_bytes();
        let broken: Vec<u8> = whole.split(|byte| *byte == 0xef).collect::<Vec<_>>().join(&b"\xff\xc0"[..]);
        bytes(&api, method, &path.replace("RUN", &run), broken).await;
    }
    for word in WORDS {
        for (method, path) in PATHS {
            let path = path.replace("RUN", &run).replace('~', word);
            send(&api, method, &path, r#"{"state": "active"}"#).await;
        }
    }
    let log = server.process().stderr();
    assert!(!log.contains("could not be written"), "{log}");
    // Everything that was stored can be read.
    for path in ["/jobs", "/runs", "/calendars", "/users", "/tokens", "/audit?limit=200"] {
        api.get(&format!("/api/v1{path}")).await.expect(200);
    }
}

async fn send(api: &Api, method: &str, path: &str, body: &str) {
    bytes(api, method, path, body.as_bytes().to_vec()).await;
}

async fn bytes(api: &Api, method: &str, path: &str, body: Vec<u8>) {
    let asked = String::from_utf8_lossy(&body).chars().take(300).collect::<String>();
    let method: Method = method.parse().expect("a method");
    let request = api.request(method.clone(), &format!("/api/v1{path}"));
    let answer = api.answer(request.header("content-type", "application/json").body(body)).await;
    let is_problem = answer.body["code"].is_string() || answer.status < 400;
    let code = answer.body["code"].as_str().map_or(Value::Null, Value::from);
    assert!(answer.status < 500 && is_problem, "{method} {path} {asked}: {} {code}: {:#}", answer.status, answer.body);
}
