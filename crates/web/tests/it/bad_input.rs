//! Every invalid input is refused with a code and the place of the error.

use std::time::Duration;

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::stream;
use rondel_web::{HttpLimits, WebConfig};
use serde_json::{Value, json};

use crate::harness::Server;

/// The body of a job. `~` in it stands for the fields that are required besides the name.
fn job(rest: &str) -> String {
    rest.replacen('~', r#""app": "a", "handler": "h""#, 1)
}

#[tokio::test]
async fn bodies_are_refused_with_a_pointer() {
    let server = Server::start().await;
    for (body, status, code, pointer, kind) in [
        ("", 400, "invalid_json", None, ""),
        ("{", 400, "invalid_json", None, ""),
        ("{\"name\": \"a\",}", 400, "invalid_json", None, ""),
        (r#"{"name": "a", ~} x"#, 400, "invalid_json", None, ""),
        (r#"{"name": "\ud800", ~}"#, 400, "invalid_json", None, ""),
        ("\u{feff}{}", 400, "invalid_json", None, ""),
        ("[]", 422, "invalid_body", Some(""), "invalid_value"),
        (r#"["arr1", "work", "shell"]"#, 422, "invalid_body", Some(""), "invalid_value"),
        (r#"{"name": 1, nope"#, 400, "invalid_json", None, ""),
        (r#"{"name": "a", ~, "retry": [3, "1s"]}"#, 422, "invalid_body", Some("/retry"), "invalid_value"),
        (r#"{"name": "a", ~, "misfire": ["once"]}"#, 422, "invalid_body", Some("/misfire"), "invalid_value"),
        (r#"{"name": "a", ~, "schedule": ["0 0 0 * * ?"]}"#, 422, "invalid_body", Some("/schedule/0"), "invalid_value"),
        ("null", 422, "invalid_body", Some(""), "invalid_value"),
        ("{}", 422, "invalid_body", Some("/name"), "missing_field"),
        (r#"{"name": "a", "app": "b"}"#, 422, "invalid_body", Some("/handler"), "missing_field"),
        (r#"{"name": 1, ~}"#, 422, "invalid_body", Some("/name"), "invalid_value"),
        (r#"{"name": "a", "name": "b", ~}"#, 422, "invalid_body", Some("/name"), "duplicate_field"),
        (r#"{"name": "a", ~, "x/y~": 1}"#, 422, "invalid_body", Some("/x~1y~0"), "unknown_field"),
        (r#"{"name": "A", ~}"#, 422, "invalid_body", Some("/name"), "invalid_value"),
        (r#"{"name": "a\u0000", ~}"#, 422, "invalid_body", Some("/name"), "invalid_value"),
        (r#"{"name": "<script>", ~}"#, 422, "invalid_body", Some("/name"), "invalid_value"),
        (r#"{"name": "search", ~}"#, 422, "invalid_body", Some("/name"), "invalid_value"),
        (r#"{"name": "a", ~, "timeout": 30}"#, 422, "invalid_body", Some("/timeout"), "invalid_value"),
        (r#"{"name": "a", ~, "timeout": "30"}"#, 422, "invalid_body", Some("/timeout"), "invalid_value"),
        (r#"{"name": "a", ~, "timeout": "0s"}"#, 422, "invalid_body", Some("/timeout"), "invalid_value"),
        (r#"{"name": "a", ~, "route": "nosuch"}"#, 422, "invalid_body", Some("/route"), "invalid_value"),
        (r#"{"name": "a", ~, "enabled": "yes"}"#, 422, "invalid_body", Some("/enabled"), "invalid_value"),
        (r#"{"name": "a", ~, "retry": {"max": -1}}"#, 422, "invalid_body", Some("/retry/max"), "invalid_value"),
        (r#"{"name": "a", ~, "retry": {"tries": 1}}"#, 422, "invalid_body", Some("/retry/tries"), "unknown_field"),
        (
            r#"{"name": "a", ~, "retry": {"backoff": "x"}}"#,
            422,
            "invalid_body",
            Some("/retry/backoff"),
            "invalid_value",
        ),
        (r#"{"name": "a", ~, "schedule": 1}"#, 422, "invalid_body", Some("/schedule"), "invalid_value"),
        (r#"{"name": "a", ~, "schedule": {}}"#, 422, "invalid_body", Some("/schedule"), "invalid_value"),
        (r#"{"name": "a", ~, "schedule": {"cron": 1}}"#, 422, "invalid_body", Some("/schedule/cron"), "invalid_value"),
        (r#"{"name": "a", ~, "schedule": {"tz": "x"}}"#, 422, "invalid_body", Some("/schedule/tz"), "unknown_field"),
        (
            r#"{"name": "a", ~, "schedule": [{"every": "1s"}, {"evry": "1s"}]}"#,
            422,
            "invalid_body",
            Some("/schedule/1/evry"),
            "unknown_field",
        ),
        (
            r#"{"name": "a", ~, "schedule": {"cron": "99 * * * * ?"}}"#,
            422,
            "invalid_body",
            Some("/schedule/cron"),
            "invalid_value",
        ),
        (
            r#"{"name": "a", ~, "schedule": {"cron": "0 0 0 * * ?", "time_zone": "Mars/X"}}"#,
            422,
            "invalid_body",
            Some("/schedule/time_zone"),
            "invalid_value",
        ),
        (
            r#"{"name": "a", ~, "schedule": {"at": "2001-01-01T00:00:00Z"}}"#,
            422,
            "invalid_body",
            Some("/schedule/at"),
            "invalid_value",
        ),
    ] {
        let answer = server.with_body("POST", "/api/v1/jobs", job(body)).await;
        assert_eq!(answer.headers["content-type"], "application/problem+json", "{body}");
        let problem = answer.expect(status);
        assert_eq!(problem["code"], code, "{body}: {problem:#}");
        assert_eq!(problem["errors"][0]["pointer"].as_str(), pointer, "{body}: {problem:#}");
        assert_eq!(problem["errors"][0]["code"].as_str().unwrap_or_default(), kind, "{body}: {problem:#}");
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{body}");
    }
    assert_eq!(server.get("/api/v1/jobs").await.expect(200)["items"], json!([]), "nothing half made");
}

#[tokio::test]
async fn syntax_errors_have_a_place() {
    let server = Server::start().await;
    let problem = server.with_body("POST", "/api/v1/jobs", "{\n  \"name\": nope}").await.expect(400);
    assert!(problem["detail"].as_str().unwrap().contains("line 2, column"), "{problem}");
}

/// Sends an array to every route of the OpenAPI document that takes a JSON body.
#[tokio::test]
async fn an_array_is_no_object_on_any_route() {
    let server = Server::start().await;
    server.job("a").await;
    let document: Value = serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    let mut refused_count = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            if operation["requestBody"]["content"]["application/json"].is_null() {
                continue;
            }
            let path: String = path
                .split('/')
                .map(|part| if part.starts_with('{') { "a" } else { part })
                .collect::<Vec<_>>()
                .join("/");
            let body = r#"["a", "a", "shell", [], {}]"#;
            let answer = server.with_body(&method.to_uppercase(), &path, body).await;
            assert!(answer.status.is_client_error(), "{method} {path}: {}", answer.status);
            if answer.status == 422 {
                refused_count += 1;
                let problem = answer.expect(422);
                assert_eq!(problem["code"], "invalid_body", "{method} {path}: {problem:#}");
                let message = problem["errors"][0]["message"].as_str().unwrap();
                assert!(message.starts_with("expected an object"), "{method} {path}: {problem:#}");
            }
        }
    }
    // The other routes refuse the call for another reason, such as a missing object.
    assert!(refused_count >= 12, "{refused_count}");
}

#[tokio::test]
async fn everything_that_is_wrong_is_in_one_answer() {
    let server = Server::start().await;
    let body = json!({
        "name": "A", "app": 7, "colour": "red", "timeout": "soon", "priority": 12, "retry": ["3"],
        "schedule": {"cron": "99 * * * * ?", "tz": "UTC"},
    });
    let problem = server.with_body("POST", "/api/v1/jobs", body).await.expect(422);
    let errors = problem["errors"].as_array().unwrap();
    let mut found: Vec<_> =
        errors.iter().map(|error| (error["pointer"].as_str().unwrap(), error["code"].as_str().unwrap())).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("/app", "invalid_value"),
            ("/colour", "unknown_field"),
            ("/handler", "missing_field"),
            ("/name", "invalid_value"),
            ("/priority", "invalid_value"),
            ("/retry", "invalid_value"),
            ("/schedule/cron", "invalid_value"),
            ("/schedule/tz", "unknown_field"),
            ("/timeout", "invalid_value"),
        ],
        "{problem:#}"
    );
    assert!(problem["detail"].as_str().unwrap().ends_with("(the first of 9 errors)"), "{problem:#}");
    // The same holds for a change of a job, and for a body that is not a job.
    server.job("a").await;
    let patch = json!({"retry": {"max": -1}, "timout": "1m", "priority": 12});
    let problem = server.with_body("PATCH", "/api/v1/jobs/a", patch).await.expect(422);
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(3), "{problem:#}");
    let problem = server.with_body("POST", "/api/v1/jobs/a/runs", json!({"parms": 1, "wait": true})).await;
    assert_eq!(problem.expect(422)["errors"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn errors_of_a_list_carry_their_index_and_equal_ones_are_one() {
    let server = Server::start().await;
    let mut jobs: Vec<Value> =
        (0..150).map(|index| json!({"name": format!("j{index}"), "app": "a", "handler": "h", "tz": "UTC"})).collect();
    jobs[3]["priority"] = json!(12);
    jobs.push(json!(["arr1", "work", "shell"]));
    jobs.push(json!({"name": "Z", "app": "a", "handler": "h"}));
    let problem = server.with_body("POST", "/api/v1/jobs/apply", Value::from(jobs)).await.expect(422);
    let errors = problem["errors"].as_array().unwrap();
    let of = |pointer: &str| errors.iter().find(|error| error["pointer"] == pointer).cloned().unwrap_or_default();
    assert_eq!((errors.len(), &of("/0/tz")["count"]), (4, &json!(150)), "{problem:#}");
    assert_eq!(of("/0/tz")["indexes"].as_array().map(Vec::len), Some(100));
    for (pointer, index) in [("/3/priority", 3), ("/150", 150), ("/151/name", 151)] {
        assert_eq!((&of(pointer)["indexes"], &of(pointer)["count"]), (&json!([index]), &json!(1)), "{problem:#}");
    }
    assert!(problem["detail"].as_str().unwrap().ends_with("(the first of 153 errors)"), "{problem:#}");
}

#[tokio::test]
async fn queries_are_refused_by_name() {
    let server = Server::start().await;
    server.job("a").await;
    for (path, status, code, parameter) in [
        ("/api/v1/jobs?limit=0", 422, "invalid_query", "limit"),
        ("/api/v1/jobs?limit=201", 422, "invalid_query", "limit"),
        ("/api/v1/jobs?limit=ten", 422, "invalid_query", "limit"),
        ("/api/v1/jobs?limit=1&limit=2", 422, "invalid_query", "limit"),
        ("/api/v1/jobs?offset=1", 422, "invalid_query", "offset"),
        ("/api/v1/jobs?q=%00", 422, "invalid_query", "q"),
        ("/api/v1/jobs?q=is:nosuch", 422, "invalid_query", "q"),
        ("/api/v1/jobs/a?%3Cb%3E=1", 422, "invalid_query", "<b>"),
        ("/api/v1/runs?status=done", 422, "invalid_query", "status"),
        ("/api/v1/runs?status=failed,,running", 422, "invalid_query", "status"),
        ("/api/v1/nodes?x=1", 422, "invalid_query", "x"),
        ("/api/v1/jobs?cursor=x", 422, "invalid_cursor", "cursor"),
        ("/api/v1/runs?cursor=eyJsIjoiIiwiYSI6IiJ9", 422, "invalid_cursor", "cursor"),
    ] {
        let problem = server.get(path).await.expect(status);
        assert_eq!(problem["code"], code, "{path}: {problem:#}");
        assert_eq!(problem["errors"][0]["parameter"], parameter, "{path}: {problem:#}");
    }
}

/// If the server ignored the body or the condition, the call would have another outcome than its caller asked for.
#[tokio::test]
async fn a_change_refuses_a_body_and_conditions_that_it_does_not_read() {
    let server = Server::start().await;
    server.job("a").await;
    let pause = "/api/v1/jobs/a/pause";
    for body in ["", "{}", " {\n} ", "null"] {
        server.with_body("POST", pause, body).await.expect(200);
    }
    for body in [r#"{"queued": "run"}"#, "[]", "queued=run"] {
        let problem = server.with_body("POST", pause, body).await.expect(422);
        assert_eq!(
            (&problem["code"], &problem["errors"][0]["pointer"]),
            (&json!("invalid_body"), &json!("")),
            "{body}"
        );
        assert!(problem["detail"].as_str().unwrap().contains("queued"), "{problem:#}");
    }
    server.with_body("DELETE", "/api/v1/jobs/a", r#"{"queued": "run"}"#).await.expect(422);
    for (method, path, header) in [
        ("DELETE", "/api/v1/namespaces/c", "if-match"),
        ("PATCH", "/api/v1/users/c", "if-match"),
        ("PUT", "/api/v1/calendars/c", "if-none-match"),
    ] {
        let request = server.request(method, path).header(header, "\"v1\"");
        let problem = server.send(request.body(Body::empty()).unwrap()).await.expect(400);
        assert_eq!(problem["code"], "invalid_header", "{method} {path}: {problem:#}");
        assert!(problem["detail"].as_str().unwrap().starts_with(header), "{problem:#}");
    }
    let request = server.request("PUT", "/api/v1/calendars/c").header("content-type", "application/json");
    let request = request.header("if-match", "\"v1\"").body(json!({"rule": {"weekdays": ["mon"]}}).to_string().into());
    let problem = server.send(request.unwrap()).await.expect(412);
    assert!(problem["detail"].as_str().unwrap().contains("leave out If-Match"), "{problem:#}");
    let bulk = json!({"action": "cancel", "ids": ["abc"]});
    let problem = server.with_body("POST", "/api/v1/runs:bulk", bulk).await.expect(422);
    assert!(problem["errors"][0]["message"].as_str().unwrap().contains("\"abc\" is not an id"), "{problem:#}");
    for (path, action) in [("/api/v1/runs:bulk", "cancel"), ("/api/v1/jobs:bulk", "pause")] {
        let problem = server.with_body("POST", path, json!({"action": action, "q": "is:nosuch"})).await.expect(422);
        assert_eq!((&problem["code"], &problem["errors"][0]["pointer"]), (&json!("invalid_body"), &json!("/q")));
    }
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let server = Server::start().await;
    let long = "a".repeat(5000);
    for (path, code) in [
        ("/api/v1/jobs/nosuch", "job_not_found"),
        ("/api/v1/jobs/a%00", "job_not_found"),
        ("/api/v1/jobs/%ff", "job_not_found"),
        ("/api/v1/jobs/%3Cscript%3E", "job_not_found"),
        (&format!("/api/v1/jobs/{long}"), "job_not_found"),
        ("/api/v1/runs/1", "run_not_found"),
        ("/api/v1/runs/x", "run_not_found"),
        ("/api/v1/runs/-1", "run_not_found"),
        ("/api/v1/runs/99999999999999999999", "run_not_found"),
        ("/api/v1/runs/1/logs", "run_not_found"),
        ("/api/v1/runs?job=nosuch", "job_not_found"),
        ("/api/v1/jobs?app=nosuch", "app_not_found"),
        ("/api/v1/jobs?namespace=nosuch", "namespace_not_found"),
        ("/api/v1/jobs?namespace=%00", "namespace_not_found"),
        ("/api/v1/nodes?namespace=", "namespace_not_found"),
        ("/api/v1/nosuch", "not_found"),
        ("/api", "not_found"),
        ("/nosuch", "not_found"),
    ] {
        let problem = server.get(path).await.expect(404);
        assert_eq!(problem["code"], code, "{path}: {problem:#}");
        assert!(problem.to_string().len() < 1500, "{path}");
    }
}

#[tokio::test]
async fn methods_and_types_are_named() {
    let server = Server::start().await;
    let answer = server.bare("DELETE", "/api/v1/jobs").await;
    assert_eq!(answer.headers["allow"], "GET,HEAD,POST");
    assert_eq!(answer.expect(405)["code"], "method_not_allowed");
    for content_type in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let mut request = server.request("POST", "/api/v1/jobs");
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let answer = server.send(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(answer.expect(415)["code"], "unsupported_media_type", "{content_type:?}");
    }
    let request = server.request("POST", "/api/v1/jobs").header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(server.send(request.body(Body::from("{}")).unwrap()).await.expect(422)["code"], "invalid_body");
}

#[tokio::test]
async fn large_and_deep_bodies_are_refused() {
    let server = Server::start().await;
    let huge = format!("\"{}\"", "x".repeat(2 * 1024 * 1024));
    let answer = server.with_body("POST", "/api/v1/jobs", &huge).await;
    assert_eq!(answer.expect(413)["code"], "body_too_large");
    // The same body again, without a declared length.
    let pieces = (0..40).map(|_| Ok::<_, std::convert::Infallible>("x".repeat(64 * 1024)));
    let request = server.request("POST", "/api/v1/jobs").header("content-type", "application/json");
    let answer = server.send(request.body(Body::from_stream(stream::iter(pieces))).unwrap()).await;
    assert_eq!(answer.expect(413)["code"], "body_too_large");
    let deep = format!(r#"{{"name": "a", "params": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(server.with_body("POST", "/api/v1/jobs", &deep).await.expect(400)["code"], "invalid_json");
    let name = json!({"name": "A".repeat(900_000), "app": "a", "handler": "h"});
    let problem = server.with_body("POST", "/api/v1/jobs", name).await.expect(422);
    assert!(problem.to_string().len() < 5000);
    let long = format!(r#"{{"name": "a", "app": "a", "handler": "h", "params": "{}"}}"#, "x".repeat(70_000));
    let problem = server.with_body("POST", "/api/v1/jobs", &long).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/params");
}

#[tokio::test]
async fn a_body_that_never_arrives_times_out() {
    let limits = HttpLimits { body_timeout: Duration::from_millis(50), ..HttpLimits::default() };
    let config = WebConfig { limits, ..WebConfig::default() };
    let server = Server::start_with(config).await;
    let request = server.request("POST", "/api/v1/jobs").header("content-type", "application/json");
    let never = stream::pending::<Result<String, std::convert::Infallible>>();
    let answer = server.send(request.body(Body::from_stream(never)).unwrap()).await;
    assert_eq!(answer.expect(408)["code"], "request_timeout");
}

#[tokio::test]
async fn too_many_requests_are_refused() {
    let server = Server::start_with(WebConfig {
        limits: HttpLimits { requests: 0, ..HttpLimits::default() },
        ..WebConfig::default()
    })
    .await;
    let answer = server.get("/api/v1/jobs").await;
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(answer.expect(503)["code"], "overloaded");
}

#[tokio::test]
async fn markup_and_odd_texts_come_back_as_they_are() {
    let server = Server::start().await;
    let text = "<script>alert(1)</script> \u{0} \u{202e} \u{2028} ' -- ' 🦀";
    let body = json!({"name": "a", "app": "a", "handler": "h", "description": text, "params": {text: text}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let answer = server.get("/api/v1/jobs/a").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let job: Value = answer.expect(200);
    assert_eq!((&job["description"], &job["params"][text]), (&json!(text), &json!(text)));
}

/// A cursor with another position in it, as a caller could compose it.
fn with_position(cursor: &Value, position: Value) -> String {
    let bytes = URL_SAFE_NO_PAD.decode(cursor.as_str().unwrap()).unwrap();
    let mut cursor: Value = serde_json::from_slice(&bytes).unwrap();
    cursor["a"] = position;
    URL_SAFE_NO_PAD.encode(cursor.to_string())
}

#[tokio::test]
async fn positions_of_composed_cursors_are_checked() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        let job = json!({"name": name, "app": "a", "handler": "h", "schedule": {"every": "1h"}});
        server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    }
    for (path, position) in [
        ("/api/v1/reports?by=job&limit=1", json!("a\u{0}")),
        ("/api/v1/jobs?limit=1", json!("a\u{0}")),
        ("/api/v1/jobs/a/fires?limit=1", json!([i64::MIN, i64::MAX])),
        ("/api/v1/jobs/a/fires?limit=1", json!([0, 4_000_000_000_000_i64])),
    ] {
        let first = server.get(path).await.expect(200);
        let cursor = with_position(&first["next_cursor"], position);
        let problem = server.get(&format!("{path}&cursor={cursor}")).await.expect(422);
        assert_eq!(problem["code"], "invalid_cursor", "{path}");
    }
}
