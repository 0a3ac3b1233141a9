//! A caller with a role on only one app can neither learn anything about other apps of the namespace nor do anything to them.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use rondel_admin::auth::Token;
use rondel_core::access::{Grant, Role};
use rondel_core::outcome::Outcome;
use rondel_core::{JobSpec, RunId};
use rondel_store::access::{TokenKind, TokenRecord};
use rondel_store::catalog::Declared;
use serde_json::{Value, json};

use crate::harness::{Answer, Server};
use crate::visitor::Visitor;

/// A caller with this role on the app `mine`. The namespace also has the app `theirs`.
pub(crate) struct ScopedCaller<'s> {
    server: &'s Server,
    bearer: String,
    pub(crate) token: String,
}

impl<'s> ScopedCaller<'s> {
    pub(crate) async fn new(server: &'s Server, role: &str) -> Self {
        for app in ["mine", "theirs"] {
            server.with_body("POST", "/api/v1/apps", json!({"name": app})).await;
        }
        let grants = json!([{"role": role, "namespace": "default", "app": "mine"}]);
        let body = json!({"kind": "api", "name": "scoped", "grants": grants});
        let created = server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
        let text = |field: &str| created[field].as_str().unwrap().to_owned();
        Self { server, bearer: format!("Bearer {}", text("token")), token: text("id") }
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: Value) -> Answer {
        let request = Request::builder().method(method).uri(path).header("authorization", &self.bearer);
        let request = request.header("content-type", "application/json");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        self.server.send(request.body(body).unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, Value::Null).await
    }

    /// The same caller, signed in with a browser.
    pub(crate) async fn visitor(&self) -> Visitor<'s> {
        let link = self.ask("POST", "/api/v1/sign-in-links", Value::Null).await.expect(201);
        let token = link["path"].as_str().unwrap().strip_prefix("/sign-in?token=").unwrap().to_owned();
        let mut visitor = Visitor::new(self.server);
        let answer = visitor.post("/sign-in", &format!("token={token}&next=/jobs")).await;
        visitor.cookie = answer.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        visitor
    }
}

pub(crate) async fn job(server: &Server, name: &str, app: &str, more: Value) {
    let mut body = json!({"name": name, "app": app, "handler": "h"});
    body.as_object_mut().unwrap().append(more.clone().as_object_mut().unwrap());
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
}

pub(crate) fn follows(parent: &str) -> Value {
    json!({"schedule": {"after": [parent]}})
}

#[tokio::test]
async fn a_silence_by_a_role_for_one_app_matches_no_later_job_of_another_app() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    job(&server, "nightly", "mine", json!({})).await;
    let ends_at = server.engine.now() + Duration::from_secs(3600);
    let silence = json!({"job": "nightly", "ends_at": ends_at});
    let created = scoped.ask("POST", "/api/v1/silences", silence.clone()).await.expect(201);
    let whole = server.with_body("POST", "/api/v1/silences", silence).await.expect(201);
    assert_eq!((&created["app"], &whole["app"]), (&json!("mine"), &Value::Null));
    for app in ["theirs", "nosuch"] {
        let silence = json!({"job": "nightly", "app": app, "ends_at": ends_at});
        scoped.ask("POST", "/api/v1/silences", silence).await.expect(403);
    }
}

#[tokio::test]
async fn silences_do_not_show_which_rules_about_other_apps_exist() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "operator").await;
    for (name, app) in [("of-mine", "mine"), ("of-theirs", "theirs")] {
        let rule = json!({"scope": {"app": app}, "condition": {"failed": {}}});
        server.with_body("PUT", &format!("/api/v1/alert-rules/{name}"), rule).await.expect(201);
    }
    let ends_at = server.engine.now() + Duration::from_secs(3600);
    let mut warning_counts = Vec::new();
    for rule in ["of-mine", "of-theirs", "nosuch"] {
        let silence = json!({"rule": rule, "app": "mine", "ends_at": ends_at});
        let created = scoped.ask("POST", "/api/v1/silences", silence).await.expect(201);
        warning_counts.push(created["warnings"].as_array().unwrap().len());
        server.with_body("POST", "/api/v1/silences", json!({"rule": rule, "ends_at": ends_at})).await.expect(201);
    }
    assert_eq!(warning_counts, [0, 1, 1], "a hidden rule is like one that does not exist");
    let listed = scoped.get("/api/v1/silences").await.expect(200)["items"].clone();
    let without_app = listed.as_array().unwrap().iter().filter(|silence| silence["app"].is_null());
    let mut rules: Vec<&str> = without_app.map(|silence| silence["rule"].as_str().unwrap()).collect();
    rules.sort_unstable();
    assert_eq!(rules, ["nosuch", "of-mine"], "{listed}");
}

#[tokio::test]
async fn users_of_a_calendar_are_those_that_the_caller_sees() {
    let server = Server::start().await;
    let rule = json!({"rule": {"weekdays": ["mon"]}});
    server.with_body("PUT", "/api/v1/calendars/cal", &rule).await.expect(201);
    let scoped = ScopedCaller::new(&server, "viewer").await;
    let used = json!({"schedule": {"cron": "0 0 1 * * ?"}, "calendar": {"name": "cal", "rule": "only"}});
    for (name, app) in [("a-theirs", "theirs"), ("b-mine", "mine"), ("c-theirs", "theirs"), ("d-mine", "mine")] {
        job(&server, name, app, used.clone()).await;
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/calendars/cal/users?limit=1".to_owned();
    loop {
        let page = scoped.get(&path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/calendars/cal/users?limit=1&cursor={cursor}");
    }
    assert_eq!(seen, ["b-mine", "d-mine"], "each page is full, and none ends at a job of another app");
    let page = scoped.visitor().await.get("/calendars/cal").await.text();
    assert!(page.contains("b-mine") && page.contains("d-mine") && !page.contains("theirs"), "{page}");
    let all = server.get("/api/v1/calendars/cal/users").await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn refusals_name_no_job_of_another_app() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    job(&server, "parent", "mine", json!({})).await;
    job(&server, "own-child", "mine", follows("parent")).await;
    job(&server, "secret-child", "theirs", follows("parent")).await;
    let refusal = scoped.ask("DELETE", "/api/v1/jobs/parent", Value::Null).await.expect(409);
    let detail = refusal["detail"].as_str().unwrap();
    assert!(detail.contains("own-child, 1 in apps that you may not see") && !detail.contains("secret"), "{detail}");
    let renamed = scoped.ask("PATCH", "/api/v1/jobs/parent", json!({"name": "other"})).await.expect(409);
    assert!(!renamed.to_string().contains("secret"), "{renamed:#}");
    let detail = server.bare("DELETE", "/api/v1/jobs/parent").await.expect(409)["detail"].to_string();
    assert!(detail.contains("own-child, secret-child"), "{detail}");

    job(&server, "last", "mine", follows("secret-child")).await;
    let refusal = scoped.ask("PATCH", "/api/v1/jobs/parent", follows("last")).await.expect(422);
    let message = refusal["errors"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("after itself: last -> parent -> … -> last"), "{message}");
    let refusal = server.with_body("PATCH", "/api/v1/jobs/parent", follows("last")).await.expect(422);
    let message = refusal["errors"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("after itself: last -> parent -> secret-child -> last"), "{message}");

    let list = json!([{"name": "kept", "app": "mine", "handler": "h"}]);
    let refusal = scoped.ask("POST", "/api/v1/jobs/apply?prune_app=mine", list).await.expect(422);
    assert!(!refusal.to_string().contains("secret"), "{refusal:#}");
}

#[tokio::test]
async fn only_editors_of_the_app_may_reset_a_declared_job() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    let namespace = server.engine.store().namespace("default").await.unwrap().unwrap().id;
    let declare = async |name: &str, change: Value| {
        job(&server, name, "mine", json!({"description": "edited"})).await;
        let mut spec = json!({"name": name, "app": "mine", "handler": "h"});
        spec.as_object_mut().unwrap().append(change.clone().as_object_mut().unwrap());
        let spec: JobSpec = serde_json::from_value(spec).unwrap();
        let record = server.engine.store().job(namespace, name).await.unwrap().unwrap();
        let declared = Declared { spec, declared_at: server.engine.now(), undeclared_at: None };
        assert!(server.engine.store().declare_job(record.id, &declared).await.unwrap());
    };
    job(&server, "secret", "theirs", json!({})).await;
    declare("moved", json!({"app": "theirs"})).await;
    declare("follower", follows("secret")).await;
    declare("own", json!({})).await;
    for (name, status) in [("moved", 403), ("follower", 422), ("own", 200)] {
        scoped.ask("POST", &format!("/api/v1/jobs/{name}/reset"), Value::Null).await.expect(status);
    }
    let visitor = scoped.visitor().await;
    for (name, status) in [("moved", 403), ("follower", 422), ("own", 303)] {
        assert_eq!(visitor.post(&format!("/jobs/{name}/reset"), "").await.status, status, "{name}");
    }
    assert_eq!(server.get("/api/v1/jobs/moved").await.expect(200)["app"], "mine");
    assert_eq!(server.bare("POST", "/api/v1/jobs/moved/reset").await.expect(200)["app"], "theirs");
}

#[tokio::test]
async fn a_followed_log_ends_with_the_token_of_its_reader() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "viewer").await;
    job(&server, "a", "mine", json!({})).await;
    let run = server.trigger("a").await;
    let path = format!("/api/v1/runs/{run}/logs?follow=true");
    let (answer, ()) = tokio::join!(tokio::time::timeout(Duration::from_secs(30), scoped.get(&path)), async {
        server.bare("DELETE", &format!("/api/v1/tokens/{}", scoped.token)).await.expect(204);
    });
    let answer = answer.expect("the run goes on, and the stream does not");
    let end: Value = serde_json::from_str(answer.text().trim()).unwrap();
    assert_eq!(end["complete"], false, "{end}");
    assert_eq!(scoped.get(&path).await.status, 401);
}

#[tokio::test]
async fn a_job_that_moved_leaves_its_past_behind() {
    let server = Server::start().await;
    job(&server, "moving", "theirs", json!({"params": {"key": "secret"}})).await;
    let old: RunId = server.trigger("moving").await;
    server.finish(old, Outcome::Succeeded).await;
    let scoped = ScopedCaller::new(&server, "editor").await;
    let moved = json!({"app": "mine", "params": {"key": null}});
    server.with_body("PATCH", "/api/v1/jobs/moving", moved).await.expect(200);
    let new = server.trigger("moving").await;

    for path in ["/api/v1/jobs/moving/versions", "/api/v1/runs?job=moving", "/api/v1/jobs/moving"] {
        let text = scoped.get(path).await.text();
        assert!(!text.contains("secret") && !text.contains(&old.to_string()), "{path}: {text}");
    }
    scoped.get("/api/v1/jobs/moving/versions/diff").await.expect(422);
    scoped.ask("POST", "/api/v1/jobs/moving/restore", json!({"version": 1})).await.expect(422);
    let visitor = scoped.visitor().await;
    let page = visitor.get("/jobs/moving").await.text();
    assert!(page.contains(&new.to_string()) && !page.contains(&old.to_string()), "{page}");
    // The list shows only the run since the job moved to this app.
    let page = visitor.get("/jobs").await.text();
    assert!(page.contains("aria-label=\"1 run: 1 Pending\"") && !page.contains(&old.to_string()), "{page}");
    assert_eq!(server.get("/api/v1/jobs/moving/versions").await.expect(200)["items"].as_array().unwrap().len(), 2);
    assert_eq!(server.get("/api/v1/runs?job=moving").await.expect(200)["items"].as_array().unwrap().len(), 2);
    assert!(server.get("/api/v1/jobs/moving/versions/diff").await.text().contains("secret"));
}

#[tokio::test]
async fn an_account_has_a_bounded_number_of_tokens() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/users", json!({"name": "ann", "grants": [{"role": "viewer"}]})).await.expect(201);
    let store = server.engine.store();
    let owner = Some(store.account_by_name("ann").await.unwrap().unwrap().id);
    let mut bearer = String::new();
    for _ in 0..200 {
        let token = Token::generate();
        bearer = format!("Bearer {}", token.reveal());
        let grants = vec![Grant::everywhere(Role::Viewer)];
        let record = token.record(server.engine.new_id(), TokenKind::Api, server.engine.now());
        store.add_token(&TokenRecord { name: "one".to_owned(), owner, grants, ..record }).await.unwrap();
    }
    let ask = async |method: &str, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).header("authorization", &bearer);
        let request = request.header("content-type", "application/json");
        server.send(request.body(Body::from(body.to_string())).unwrap()).await
    };
    let new_token = json!({"kind": "api", "name": "one more", "grants": [{"role": "viewer"}]});
    assert_eq!(ask("POST", "/api/v1/tokens", new_token.clone()).await.expect(409)["code"], "too_many_tokens");
    let list = ask("GET", "/api/v1/tokens?limit=200", Value::Null).await.expect(200);
    let last = list["items"][199]["id"].as_str().unwrap().to_owned();
    ask("POST", &format!("/api/v1/tokens/{last}/rotate"), json!({})).await.expect(409);
    assert_eq!(server.with_body("POST", "/api/v1/tokens", new_token.clone()).await.status, 201, "others have room");
    ask("DELETE", &format!("/api/v1/tokens/{last}"), Value::Null).await.expect(204);
    ask("POST", "/api/v1/tokens", new_token).await.expect(201);
}

#[tokio::test]
async fn all_tokens_are_those_within_reach() {
    let server = Server::start().await;
    let scoped = ScopedCaller::new(&server, "admin").await;
    let make = async |name: &str, apps: &[&str]| {
        let grant = |app: &&str| json!({"role": "executor", "namespace": "default", "app": app});
        let grants: Vec<Value> = apps.iter().map(grant).collect();
        let body = json!({"kind": "executor", "name": name, "grants": grants});
        server.with_body("POST", "/api/v1/tokens", body).await.expect(201);
    };
    for (name, apps) in [("own", &["mine"][..]), ("theirs", &["theirs"]), ("both", &["mine", "theirs"])] {
        make(name, apps).await;
    }
    let list = scoped.get("/api/v1/tokens?all=true").await.expect(200);
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["own"]);
    let all = server.get("/api/v1/tokens?all=true").await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 6);
}

#[tokio::test]
async fn likely_secrets_in_a_run_are_for_editors() {
    let server = Server::start().await;
    let old = json!({"password": "hunter2", "argv": ["psql", "--password", "hunter2"], "rows": 7});
    job(&server, "a", "mine", json!({"params": old, "overrides": "all"})).await;
    let of_job = server.trigger("a").await;
    let own = json!({"params": {"argv": ["psql", "--token=hunter2"], "rows": 8}});
    let own = server.with_body("POST", "/api/v1/jobs/a/runs", own).await.expect(201);
    let own: RunId = own["id"].as_str().unwrap().parse().unwrap();
    server.with_body("PATCH", "/api/v1/jobs/a", json!({"params": {"password": null, "argv": null}})).await.expect(200);
    for (role, is_shown) in [("viewer", false), ("operator", false), ("editor", true)] {
        let scoped = ScopedCaller::new(&server, role).await;
        let visitor = scoped.visitor().await;
        for (run, rows) in [(of_job, 7), (own, 8)] {
            let shown = scoped.get(&format!("/api/v1/runs/{run}")).await;
            assert_eq!(shown.text().contains("hunter2"), is_shown, "{role}: {}", shown.text());
            assert_eq!(shown.expect(200)["params"]["rows"], rows);
            let page = visitor.get(&format!("/runs/{run}")).await.text();
            assert_eq!(page.contains("hunter2"), is_shown, "{role}");
            assert!(page.contains("psql"), "{role}: the rest is shown");
        }
    }
}
