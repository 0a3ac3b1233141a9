//! The runs that follow from a run, in the API and on its page. Also cancels with a reason, and searches in logs.

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_core::access::{Grant, Role};
use rondel_core::outcome::Outcome;
use rondel_core::{RunId, Timestamp};
use rondel_store::access::{TokenKind, TokenRecord};
use rondel_store::logs::{LogChunk, LogLine};
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::{Visitor, location};

/// Creates a diamond of four jobs (`a` → `b`, `c` → `d`) and runs it to its end.
async fn run_diamond(server: &Server) -> RunId {
    for (name, after) in [("a", json!(null)), ("b", json!(["a"])), ("c", json!(["a"])), ("d", json!(["b", "c"]))] {
        let schedule = if after.is_null() { json!(null) } else { json!({ "after": after }) };
        let body = json!({"name": name, "app": "x", "handler": "h", "schedule": schedule});
        server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    }
    let root = server.trigger("a").await;
    for job in ["a", "b", "c", "d"] {
        let runs = server.get(&format!("/api/v1/runs?job={job}")).await.expect(200);
        server.finish(runs["items"][0]["id"].as_str().unwrap().parse().unwrap(), Outcome::Succeeded).await;
    }
    root
}

fn drawn_branches(tree: &Value) -> Vec<(u64, &str, &str)> {
    let items = tree["items"].as_array().unwrap().iter();
    items.map(|item| (item["depth"].as_u64().unwrap(), item["job"].as_str().unwrap(), text(&item["kind"]))).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

#[tokio::test]
async fn a_fire_is_shown_as_a_tree() {
    let server = Server::start().await;
    let root = run_diamond(&server).await;
    let shown = server.get(&format!("/api/v1/runs/{root}")).await.expect(200);
    let children: Vec<_> = shown["children"].as_array().unwrap().iter().collect();
    let expected = [("b", "child", "succeeded"), ("c", "child", "succeeded")];
    let found: Vec<_> =
        children.iter().map(|item| (text(&item["job"]), text(&item["kind"]), text(&item["status"]))).collect();
    assert_eq!(found, expected);
    assert_eq!((shown["root"].clone(), &shown["parent"]), (json!(root), &json!(null)));

    let b = text(&children[0]["id"]).to_owned();
    let again = server.bare("POST", &format!("/api/v1/runs/{b}/retry")).await.expect(201);
    assert_eq!((&again["root"], &again["parent"]), (&again["id"], &json!(b)));
    let expected = [(0, "a", "-"), (1, "b", "child"), (2, "d", "child"), (2, "b", "retry"), (1, "c", "child")];
    for run in [&root.to_string(), &b] {
        let tree = server.get(&format!("/api/v1/runs/{run}/tree")).await.expect(200);
        assert_eq!(drawn_branches(&tree), expected);
        assert_eq!((&tree["items"][2]["after"], &tree["has_more"]), (&json!(["b", "c"]), &json!(false)));
        assert_eq!(tree["items"][2]["parent"], json!(b));
    }
    let own = server.get(&format!("/api/v1/runs/{}/tree", text(&again["id"]))).await.expect(200);
    assert_eq!(drawn_branches(&own), [(0, "b", "-")]);
    assert_eq!(server.get("/api/v1/runs/77/tree").await.expect(404)["code"], "run_not_found");

    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{b}")).await.text();
    let lines: Vec<&str> = page.split("<li class=\"in-").skip(1).map(|part| &part[..1]).collect();
    assert_eq!(lines, ["0", "1", "2", "2", "1"], "{page}");
    assert!(page.contains("in-1 shown\"") && page.contains("child · after b, c"), "{page}");
    assert!(page.contains(&format!("First run of the fire</dt><dd><a href=\"/runs/{root}\">")), "{page}");
    let alone = visitor.get(&format!("/runs/{}", text(&again["id"]))).await.text();
    assert!(!alone.contains("id=\"tree\""), "{alone}");
}

#[tokio::test]
async fn a_cancel_may_have_a_reason() {
    let server = Server::start().await;
    server.job("a").await;
    let visitor = Visitor::signed_in(&server).await;
    let run = server.trigger("a").await;
    let page = visitor.get(&format!("/runs/{run}")).await.text();
    assert!(page.contains("name=\"reason\" maxlength=\"150\""), "{page}");
    let refusal = visitor.post(&format!("/runs/{run}/cancel"), &format!("reason={}", "x".repeat(151))).await;
    assert_eq!(refusal.status, 422);
    location(&visitor.post(&format!("/runs/{run}/cancel"), "reason=%20disk+%3Cfull%3E").await);
    let shown = server.get(&format!("/api/v1/runs/{run}")).await.expect(200);
    let by = text(&shown["cancel_requested_by"]);
    assert!(by.ends_with(": disk <full>"), "{by}");
}

#[tokio::test]
async fn a_log_is_searched_on_the_page() {
    let server = Server::start().await;
    server.job("a").await;
    let run = server.trigger("a").await;
    let line = |number: i64| LogLine {
        at: Timestamp::from_secs(1_800_000_000 + number),
        level: "info".to_owned(),
        text: if number % 300 == 7 { format!("needle & {number}") } else { format!("hay {number}") },
    };
    for sequence in 0..6 {
        let lines = (0..200).map(|number| line(sequence * 200 + number)).collect();
        server.engine.store().append_logs(&[LogChunk { run, attempt: 1, sequence, lines }]).await.unwrap();
    }
    server.finish(run, Outcome::Succeeded).await;
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get(&format!("/runs/{run}?contains=NEEDLE+%26")).await.text();
    assert!(page.contains("value=\"NEEDLE &#38;\""), "{page}");
    assert_eq!(page.matches("needle &amp; ").count(), 4, "{page}");
    assert!(!page.contains("hay "), "{page}");
    assert!(
        page.contains(&format!("href=\"/runs/{run}?attempt=1&amp;line=308#L308\"")),
        "a found line leads to those around it: {page}"
    );
    assert_eq!(visitor.get(&format!("/runs/{run}?contains={}", "x".repeat(300))).await.status, 422);
    assert!(visitor.get(&format!("/runs/{run}?contains=")).await.text().contains("hay 1"));
}

#[tokio::test]
async fn a_job_reports_that_no_executor_has_its_handler() {
    let server = Server::start().await;
    server.job("a").await;
    let mut visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/a").await.text();
    assert!(page.contains("No online executor of app app has handler handler"), "{page}");
    visitor.language = "zh";
    assert!(visitor.get("/jobs/a").await.text().contains("在线执行器都没有处理器 handler"));
}

#[tokio::test]
async fn wrong_declarations_are_listed() {
    let server = Server::start().await;
    server.job("a").await;
    let none = server.get("/api/v1/apps/app/declaration-problems").await.expect(200);
    assert_eq!(none, json!({"items": [], "next_cursor": null}));
    server.get("/api/v1/apps/nosuch/declaration-problems").await.expect(404);
}

#[tokio::test]
async fn parameters_of_a_form_may_come_in_fields() {
    let server = Server::start().await;
    let visitor = Visitor::signed_in(&server).await;
    let form = "name=a&app=x&handler=h&kind=none&retry_max=0&retry_backoff=1s&params=%7B%22kept%22%3A1%7D&params_by=fields\
        &param.text.table=t&param.json.rows=";
    assert_eq!(location(&visitor.post("/jobs", &format!("{form}3")).await), "/jobs/a");
    let job = server.get("/api/v1/jobs/a").await.expect(200);
    assert_eq!(job["params"], json!({"kept": 1, "table": "t", "rows": 3}));
    let refusal = visitor.post("/jobs", &format!("{form}many")).await;
    assert!(refusal.status == 422 && refusal.text().contains("id=\"error-params\""), "{}", refusal.text());
    let part = visitor.post("/job-params", form).await;
    assert!(part.status == 200 && part.text().contains("id=\"params\"") && !part.text().contains("<html"));
}

/// A caller who may see only one app sees only the runs of that app in a tree, and no runs below a hidden run.
#[tokio::test]
async fn hidden_runs_are_not_in_the_tree() {
    let server = Server::start().await;
    let job = |name: &str, app: &str, after: Value| {
        let schedule = if after.is_null() { after } else { json!({ "after": after }) };
        json!({"name": name, "app": app, "handler": "h", "schedule": schedule})
    };
    for body in [job("a", "seen", json!(null)), job("b", "seen", json!(["a"])), job("c", "hidden", json!(["a"]))] {
        server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    }
    for (name, app, parent) in [("d", "seen", "c"), ("e", "hidden", "b")] {
        server.with_body("POST", "/api/v1/jobs", job(name, app, json!([parent]))).await.expect(201);
    }
    let root = server.trigger("a").await;
    for job in ["a", "b", "c", "d", "e"] {
        let runs = server.get(&format!("/api/v1/runs?job={job}")).await.expect(200);
        server.finish(runs["items"][0]["id"].as_str().unwrap().parse().unwrap(), Outcome::Succeeded).await;
    }
    let all = server.get(&format!("/api/v1/runs/{root}/tree")).await.expect(200);
    assert_eq!(all["items"].as_array().map(Vec::len), Some(5), "{all:#}");

    let namespace = rondel_core::NamespaceId::new(1);
    let app = server.engine.store().app(namespace, "seen").await.unwrap().unwrap().id;
    let token = Token::generate();
    let record = token.record(server.engine.new_id(), TokenKind::Api, server.engine.now());
    let grants = vec![Grant { role: Role::Viewer, namespace: Some(namespace), app: Some(app) }];
    server.engine.store().add_token(&TokenRecord { name: "narrow".to_owned(), grants, ..record }).await.unwrap();
    let ask = |path: String| {
        let request = Request::builder().uri(path).header("authorization", format!("Bearer {}", token.reveal()));
        server.send(request.body(Body::empty()).unwrap())
    };
    let tree = ask(format!("/api/v1/runs/{root}/tree")).await.expect(200);
    assert_eq!(drawn_branches(&tree), [(0, "a", "-"), (1, "b", "child")]);
    let shown = ask(format!("/api/v1/runs/{root}")).await.expect(200);
    assert_eq!(shown["children"].as_array().map(Vec::len), Some(1), "{shown:#}");
    ask("/api/v1/apps/hidden/declaration-problems".to_owned()).await.expect(404);
    ask("/api/v1/apps/seen/declaration-problems".to_owned()).await.expect(200);
}
