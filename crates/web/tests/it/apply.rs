//! Lists of jobs: applying and exporting them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use rondel_store::{MemStore, Result, Store, StoreError};
use rondel_web::WebConfig;
use serde_json::{Value, json};

use crate::harness::{Answer, Server, clock};

fn job(name: &str, mut change: Value) -> Value {
    let mut job = json!({"name": name, "app": "x", "handler": "h"});
    job.as_object_mut().unwrap().append(change.as_object_mut().unwrap());
    job
}

async fn apply(server: &Server, query: &str, jobs: Value) -> Answer {
    server.with_body("POST", &format!("/api/v1/jobs/apply{query}"), jobs).await
}

fn actions(answer: &Value) -> Vec<(String, String)> {
    let item = |item: &Value| (item["name"].as_str().unwrap().to_owned(), item["action"].as_str().unwrap().to_owned());
    answer["items"].as_array().unwrap().iter().map(item).collect()
}

#[track_caller]
fn check(answer: &Value, expected: &[(&str, &str)]) {
    let found = actions(answer);
    let found: Vec<_> = found.iter().map(|(name, action)| (name.as_str(), action.as_str())).collect();
    assert_eq!(found, expected, "{answer:#}");
}

#[tokio::test]
async fn an_applied_list_needs_no_further_change() {
    let server = Server::start().await;
    server.job("old").await;
    server.with_body("POST", "/api/v1/jobs", job("elsewhere", json!({"app": "y"}))).await.expect(201);
    let jobs = json!([
        job("child", json!({"schedule": {"after": ["parent"]}})),
        job("parent", json!({"schedule": {"cron": "0 0 2 * * ?"}})),
    ]);
    let planned = apply(&server, "?dry_run=true", jobs.clone()).await.expect(200);
    check(&planned, &[("child", "created"), ("parent", "created")]);
    assert_eq!(planned["items"][1]["fires"]["appearing"]["count"], 7, "{planned:#}");
    server.get("/api/v1/jobs/parent").await.expect(404);
    let entry = server.get("/api/v1/audit?action=job.apply&limit=1").await.expect(200)["items"][0].clone();
    assert_eq!(entry["after"], json!({"dry_run": true}), "{entry:#}");

    let created = apply(&server, "", jobs.clone()).await.expect(200);
    check(&created, &[("child", "created"), ("parent", "created")]);
    assert_eq!(created["summary"], json!({"created": 2, "changed": 0, "unchanged": 0, "removed": 0, "failed": 0}));
    assert_eq!(server.get("/api/v1/jobs/parent").await.expect(200)["children"], json!(["child"]));
    let again = apply(&server, "", jobs.clone()).await.expect(200);
    check(&again, &[("child", "unchanged"), ("parent", "unchanged")]);
    assert_eq!(server.get("/api/v1/jobs/parent").await.expect(200)["version"], 1);

    let changed = json!([
        job("child", json!({"schedule": {"after": ["parent"]}})),
        job("parent", json!({"schedule": {"cron": "0 0 3 * * ?"}})),
    ]);
    let planned = apply(&server, "?dry_run=true&prune_app=x", changed.clone()).await.expect(200);
    check(&planned, &[("child", "unchanged"), ("parent", "changed")]);
    let parent = &planned["items"][1];
    assert_eq!(parent["changes"], json!([{"pointer": "/schedule/cron", "from": "0 0 2 * * ?", "to": "0 0 3 * * ?"}]));
    assert_eq!(
        (&parent["fires"]["vanishing"]["count"], &parent["fires"]["appearing"]["count"]),
        (&json!(7), &json!(7))
    );
    assert!(parent["fires"]["vanishing"]["first"][0].as_str().unwrap().ends_with("T02:00:00Z"), "{parent}");
    let created = apply(&server, "", changed).await.expect(200);
    assert_eq!((&created["items"][1]["action"], &created["items"][1]["version"]), (&json!("changed"), &json!(2)));
}

#[tokio::test]
async fn jobs_missing_from_the_list_are_deleted_only_on_request() {
    let server = Server::start().await;
    let jobs =
        json!([job("a", json!({})), job("b", json!({"schedule": {"after": ["a"]}})), job("c", json!({"app": "y"}))]);
    apply(&server, "", jobs).await.expect(200);
    let keep = json!([job("k", json!({}))]);
    check(&apply(&server, "", keep.clone()).await.expect(200), &[("k", "created")]);
    // `b` follows from `a`, so it must be removed first.
    check(
        &apply(&server, "?prune_app=x", keep).await.expect(200),
        &[("k", "unchanged"), ("b", "removed"), ("a", "removed")],
    );
    server.get("/api/v1/jobs/a").await.expect(404);
    server.get("/api/v1/jobs/c").await.expect(200);

    apply(&server, "", json!([job("p", json!({})), job("q", json!({"app": "y", "schedule": {"after": ["p"]}}))]))
        .await
        .expect(200);
    let problem = apply(&server, "?prune_app=x", json!([job("k", json!({}))])).await.expect(422);
    assert!(
        problem["errors"][0]["message"].as_str().unwrap().ends_with("a job follows from it: p -> q"),
        "{problem:#}"
    );
    server.get("/api/v1/jobs/p").await.expect(200);
    assert_eq!(
        apply(&server, "?prune_app=nosuch", json!([job("k", json!({}))])).await.expect(404)["code"],
        "app_not_found"
    );
}

#[tokio::test]
async fn only_the_planned_removals_are_made() {
    let server = Server::start().await;
    apply(&server, "", json!([job("keep", json!({})), job("old", json!({}))])).await.expect(200);
    let list = json!([job("keep", json!({"handler": "other"}))]);
    let planned = apply(&server, "?prune_app=x&dry_run=true", list.clone()).await.expect(200);
    check(&planned, &[("keep", "changed"), ("old", "removed")]);
    let as_planned = format!("?prune_app=x&removals={}", planned["removals"].as_str().unwrap());
    apply(&server, "", json!([job("later", json!({}))])).await.expect(200);
    let problem = apply(&server, &as_planned, list.clone()).await.expect(422);
    assert_eq!(problem["errors"][0]["parameter"], "removals", "{problem:#}");
    for (name, handler) in [("keep", "h"), ("old", "h"), ("later", "h")] {
        assert_eq!(server.get(&format!("/api/v1/jobs/{name}")).await.expect(200)["handler"], handler, "{name}");
    }
    assert_eq!(server.bare("DELETE", "/api/v1/jobs/later").await.status, 204);
    check(&apply(&server, &as_planned, list.clone()).await.expect(200), &[("keep", "changed"), ("old", "removed")]);
    // A plan that removes nothing is no consent to remove anything either.
    let planned = apply(&server, "?prune_app=x&dry_run=true", list.clone()).await.expect(200);
    let as_planned = format!("?prune_app=x&removals={}", planned["removals"].as_str().unwrap());
    apply(&server, "", json!([job("later", json!({}))])).await.expect(200);
    apply(&server, &as_planned, list.clone()).await.expect(422);
    assert_eq!(apply(&server, "?dry_run=true", list).await.expect(200)["removals"], Value::Null);
}

#[tokio::test]
async fn one_bad_job_keeps_all_from_being_saved() {
    let server = Server::start().await;
    let jobs = json!([
        job("good", json!({})),
        job("bad", json!({"schedule": {"cron": "0 0 24 * * ?"}})),
        job("good", json!({})),
        job("orphan", json!({"schedule": {"after": ["missing"]}})),
    ]);
    let problem = apply(&server, "", jobs).await.expect(422);
    let pointers: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|it| it["pointer"].as_str().unwrap()).collect();
    assert_eq!(pointers, ["/1/schedule/cron", "/2/name", "/3/schedule/after/0"], "{problem:#}");
    server.get("/api/v1/jobs/good").await.expect(404);
    let problem = apply(&server, "", json!([job("x", json!({"nosuch": 1})), {"name": "y"}])).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/0/nosuch", "{problem:#}");
    assert_eq!(problem["errors"][1]["pointer"], "/1/app", "{problem:#}");
    let circle =
        json!([job("a", json!({"schedule": {"after": ["b"]}})), job("b", json!({"schedule": {"after": ["a"]}}))]);
    let problem = apply(&server, "", circle).await.expect(422);
    assert!(problem["errors"][0]["message"].as_str().unwrap().contains("after itself"), "{problem:#}");
    for (body, status) in [("[]", 422), ("{", 400), ("[1]", 422), ("null", 422)] {
        let request = server.request("POST", "/api/v1/jobs/apply").header("content-type", "application/json");
        assert_eq!(server.send(request.body(Body::from(body)).unwrap()).await.status, status, "{body}");
    }
}

async fn apply_yaml(server: &Server, text: &str) -> Answer {
    let request = server.request("POST", "/api/v1/jobs/apply").header("content-type", "application/yaml");
    server.send(request.body(Body::from(text.to_owned())).unwrap()).await
}

#[tokio::test]
async fn yaml_is_understood_and_complaints_have_lines() {
    let server = Server::start().await;
    let text = "- &base\n  name: a\n  app: x\n  handler: h\n---\n<<: {app: x, handler: h}\nname: b\nretry: {max: 2}\n";
    check(&apply_yaml(&server, text).await.expect(200), &[("a", "created"), ("b", "created")]);
    let problem =
        apply_yaml(&server, "name: a\napp: x\nhandler: h\nschedule:\n  cron: 99 * * * * ?\n").await.expect(422);
    let message = problem["errors"][0]["message"].as_str().unwrap();
    assert!(message.ends_with("(line 5, column 9)"), "{message}");
    let problem = apply_yaml(&server, "name: a\n  app: [\n").await.expect(400);
    assert_eq!(problem["code"], "invalid_yaml");
    assert!(problem["detail"].as_str().unwrap().starts_with("line 2"), "{problem:#}");
}

#[tokio::test]
async fn an_export_applied_changes_nothing() {
    let server = Server::start().await;
    assert_eq!(server.get("/api/v1/jobs/export?format=yaml").await.text(), "[]\n");
    assert_eq!(server.get("/api/v1/jobs/export").await.expect(200), json!([]));
    let script = "#!/bin/sh\necho one\n\nif true; then\n  echo \"two: $1\"\nfi\n";
    let mut jobs = vec![
        job("a", json!({"params": {"script": script, "n": 1.5, "null": null}, "description": "日报: yes"})),
        job("b", json!({"schedule": [{"cron": "0 0 2 * * ?", "time_zone": "Asia/Shanghai"}, {"every": "5s"}]})),
        job("c", json!({"schedule": {"after": ["a"], "on": "either"}, "enabled": false, "retry": {"max": 3}})),
        job("d", json!({"schedule": {"at": "2020-01-01T00:00:00Z", "if_past": "run"}})),
    ];
    // Makes the export longer than one page.
    jobs.extend((0..450).map(|number| job(&format!("many-{number:03}"), json!({"params": number}))));
    apply(&server, "", Value::from(jobs.clone())).await.expect(200);
    // Applying the same list again changes nothing, although job `d` has already run.
    let again = apply(&server, "", Value::from(jobs)).await.expect(200);
    assert_eq!(again["summary"]["unchanged"], 454, "{:#}", again["summary"]);

    let yaml = server.get("/api/v1/jobs/export?format=yaml").await.text();
    assert!(yaml.starts_with("- name: a\n  app: x\n  handler: h\n"), "{yaml}");
    let again = apply_yaml(&server, &yaml).await.expect(200);
    assert_eq!(again["summary"]["unchanged"], 454, "{:#}", again["summary"]);
    let exported = server.get("/api/v1/jobs/export?app=x&format=json").await.expect(200);
    let again = apply(&server, "", exported).await.expect(200);
    assert_eq!(again["summary"]["unchanged"], 454, "{:#}", again["summary"]);
    let exported_job = server.get("/api/v1/jobs/export?name=c").await.expect(200);
    let c = json!([{"name": "c", "app": "x", "handler": "h", "schedule": {"after": ["a"], "on": "either"}, "retry": {"max": 3}, "enabled": false}]);
    assert_eq!(exported_job, c);
    server.get("/api/v1/jobs/export?name=nosuch").await.expect(404);
    server.get("/api/v1/jobs/export?format=xml").await.expect(422);
}

#[tokio::test]
async fn progress_comes_line_by_line() {
    let server = Server::start().await;
    let jobs = Value::from((0..3).map(|number| job(&format!("j{number}"), json!({}))).collect::<Vec<_>>());
    let request = server.request("POST", "/api/v1/jobs/apply").header("content-type", "application/json");
    let request = request.header("accept", "application/x-ndjson").body(Body::from(jobs.to_string())).unwrap();
    let text = server.send(request).await.text();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[3]["summary"]["created"], 3);
}

/// A store in which the first read of a calendar after each save of jobs fails.
#[derive(Debug)]
struct LostCalendarStore {
    inner: MemStore,
    has_saved: AtomicBool,
}

impl LostCalendarStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "calendar" && self.has_saved.swap(false, Ordering::SeqCst) {
            return Err(StoreError::no_answer(name));
        }
        let result = effect.await;
        if matches!(name, "create_job" | "create_jobs" | "change_job") {
            self.has_saved.store(true, Ordering::SeqCst);
        }
        result
    }
}

rondel_store::delegate_store!(LostCalendarStore);

/// A caller who reads that a saved job failed would save it again.
#[tokio::test]
async fn a_saved_job_whose_calendar_cannot_be_read_again_is_reported_as_saved() {
    let store = LostCalendarStore { inner: MemStore::new(Arc::new(clock)), has_saved: AtomicBool::new(false) };
    let store = Arc::new(store);
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    let calendar = json!({"rule": {"weekdays": ["tue"]}});
    server.with_body("PUT", "/api/v1/calendars/c", calendar).await.expect(201);
    let planned = |hour: u32| {
        let schedule = json!({"cron": format!("0 0 {hour} * * ?")});
        job("a", json!({"schedule": schedule, "calendar": {"name": "c", "rule": "only"}}))
    };
    let was_read_again = || !store.has_saved.load(Ordering::SeqCst);
    check(&apply(&server, "", json!([planned(1)])).await.expect(200), &[("a", "created")]);
    assert!(was_read_again());
    check(&apply(&server, "", json!([planned(2)])).await.expect(200), &[("a", "changed")]);
    assert!(was_read_again());
    let changed = server.with_body("PUT", "/api/v1/jobs/a", planned(3)).await.expect(200);
    assert!(was_read_again());
    assert_eq!(changed["version"], 3, "{changed}");
}
