//! Jobs through the API.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use rondel_core::Timestamp;
use rondel_store::Store;
use rondel_store::catalog::Declared;
use rondel_web::WebConfig;
use serde_json::{Value, json};

use crate::harness::{Answer, Server};
use crate::holding::HoldingStore;

async fn send_if(server: &Server, method: &str, path: &str, if_match: &str, body: Value) -> Answer {
    let request = server.request(method, path).header("content-type", "application/json");
    let request = request.header("if-match", if_match);
    server.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn a_job_is_created_read_changed_and_deleted() {
    let server = Server::start().await;
    let body =
        json!({"name": "a.b", "app": "x", "handler": "h", "schedule": {"cron": "0 0 0 1 1 ?"}, "timeout": "90s"});
    let answer = server.with_body("POST", "/api/v1/jobs", &body).await;
    assert_eq!(answer.headers["location"], "/api/v1/jobs/a.b");
    assert_eq!(answer.headers["etag"], "\"v1\"");
    let job = answer.expect(201);
    assert_eq!((&job["timeout"], &job["version"], &job["namespace"]), (&json!("1m30s"), &json!(1), &json!("default")));
    assert!(job["next_fire_at"].as_str().unwrap().ends_with("-01-01T00:00:00Z"), "{job}");
    assert_eq!(server.with_body("POST", "/api/v1/jobs", &body).await.expect(409)["code"], "job_exists");

    let changed = json!({"app": "x", "handler": "other"});
    let answer = server.with_body("PUT", "/api/v1/jobs/a.b", changed).await;
    assert_eq!(answer.headers["etag"], "\"v2\"");
    let job = answer.expect(200);
    assert_eq!((&job["handler"], &job["schedule"], &job["name"]), (&json!("other"), &Value::Null, &json!("a.b")));

    let renamed = json!({"name": "c", "app": "x", "handler": "other"});
    assert_eq!(server.with_body("PUT", "/api/v1/jobs/a.b", renamed).await.expect(200)["name"], "c");
    server.get("/api/v1/jobs/a.b").await.expect(404);
    assert_eq!(server.get("/api/v1/jobs/c").await.expect(200)["last_run"], Value::Null);

    assert_eq!(server.bare("DELETE", "/api/v1/jobs/c").await.status, 204);
    server.bare("DELETE", "/api/v1/jobs/c").await.expect(404);
}

#[tokio::test]
async fn a_patch_changes_only_its_fields() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "x", "handler": "h", "params": {"keep": 1, "drop": 2}, "retry": {"max": 3}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let patch = json!({"params": {"drop": null}, "retry": {"backoff": "1s"}, "route": "first"});
    let job = server.with_body("PATCH", "/api/v1/jobs/a", patch).await.expect(200);
    assert_eq!(job["params"], json!({"keep": 1}));
    assert_eq!(job["retry"], json!({"max": 3, "backoff": "1s"}));
    assert_eq!((&job["route"], &job["version"]), (&json!("first"), &json!(2)));
    let job = server.with_body("PATCH", "/api/v1/jobs/a", json!({"route": null})).await.expect(200);
    assert_eq!(job["route"], "round");
    for (patch, pointer) in [
        (json!([]), ""),
        (json!({"handler": null}), "/handler"),
        (json!({"nosuch": 1}), "/nosuch"),
        (json!({"schedule": {"cron": 1}}), "/schedule/cron"),
        (json!({"schedule": {"nosuch": 1}}), "/schedule/nosuch"),
    ] {
        let problem = server.with_body("PATCH", "/api/v1/jobs/a", &patch).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{patch}: {problem:#}");
    }
}

#[tokio::test]
async fn an_instant_in_the_past_runs_once_however_often_it_is_sent() {
    let server = Server::start().await;
    server.job("a").await;
    let once = json!({"app": "x", "handler": "h", "schedule": {"at": "2020-01-01T00:00:00Z", "if_past": "run"}});
    let first = server.with_body("PUT", "/api/v1/jobs/a", &once).await.expect(200)["schedule"]["at"].clone();
    assert_ne!(first, once["schedule"]["at"], "it was moved to the instant of saving");
    for method in ["PUT", "PATCH"] {
        // The resolved instant is a millisecond later than the save, so this waits until it has passed.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let again = server.with_body(method, "/api/v1/jobs/a", &once).await.expect(200);
        assert_eq!(again["schedule"]["at"], first, "{method}");
    }
}

#[tokio::test]
async fn an_instant_in_the_past_does_not_run_again_when_its_definition_is_restored() {
    let server = Server::start().await;
    let schedule = json!({"at": "2020-01-01T00:00:00Z", "if_past": "run"});
    let once = json!({"name": "a", "app": "x", "handler": "h", "schedule": schedule});
    let ran_at = server.with_body("POST", "/api/v1/jobs", &once).await.expect(201)["schedule"]["at"].clone();
    // The resolved instant is a millisecond later than the save, so this waits until it has passed.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let edit = json!({"app": "x", "handler": "h"});
    server.with_body("PUT", "/api/v1/jobs/a", &edit).await.expect(200);
    let restored = server.with_body("POST", "/api/v1/jobs/a/restore", json!({"version": 1})).await.expect(200);
    assert_eq!((&restored["schedule"]["at"], &restored["version"]), (&ran_at, &json!(3)), "{restored}");

    declare_as_saved(&server, "a").await;
    server.with_body("PUT", "/api/v1/jobs/a", &edit).await.expect(200);
    let reset = server.bare("POST", "/api/v1/jobs/a/reset").await.expect(200);
    assert_eq!((&reset["schedule"]["at"], &reset["version"]), (&ran_at, &json!(5)), "{reset}");
}

/// Makes the saved definition of a job its declaration in code.
async fn declare_as_saved(server: &Server, name: &str) {
    let store = server.engine.store();
    let namespace = store.namespace("default").await.unwrap().unwrap().id;
    let record = store.job(namespace, name).await.unwrap().unwrap();
    let declared = Declared { spec: record.spec, declared_at: server.engine.now(), undeclared_at: None };
    assert!(store.declare_job(record.id, &declared).await.unwrap());
}

#[tokio::test]
async fn a_paused_job_stays_paused_when_its_declaration_is_restored() {
    let server = Server::start().await;
    server.job("a").await;
    declare_as_saved(&server, "a").await;
    let paused = server.bare("POST", "/api/v1/jobs/a/pause").await.expect(200);
    assert_eq!(paused["declared"]["drift"], json!([]), "a pause is no edit");
    let edit = json!({"description": "edited", "timeout": "1m"});
    let edited = server.with_body("PATCH", "/api/v1/jobs/a", edit).await.expect(200);
    assert_eq!(edited["declared"]["drift"], json!(["description", "timeout"]));
    let reset = server.bare("POST", "/api/v1/jobs/a/reset").await.expect(200);
    assert_eq!((&reset["description"], &reset["enabled"]), (&json!(""), &json!(false)), "{reset}");
    assert_eq!(reset["declared"]["drift"], json!([]));
    let again = server.bare("POST", "/api/v1/jobs/a/reset").await.expect(200);
    assert_eq!(again["version"], reset["version"], "nothing is saved where nothing changes");
}

#[tokio::test]
async fn a_restored_version_that_changes_nothing_keeps_the_queued_runs_of_a_paused_job() {
    let server = Server::start().await;
    let schedule = json!({"every": "1s"});
    let job = json!({"name": "a", "app": "app", "handler": "h", "schedule": schedule, "queue_timeout": "1h"});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    // A run whose instant is long enough ago that the answer of a pause waits for its end.
    let due_run = async {
        loop {
            let runs = server.get("/api/v1/runs?job=a").await.expect(200)["items"].clone();
            if let [.., oldest] = &runs.as_array().unwrap()[..]
                && oldest["fire_at"].as_str().unwrap().parse::<Timestamp>().unwrap() + Duration::from_secs(1)
                    < server.engine.now()
            {
                return oldest["id"].as_str().unwrap().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let run = tokio::time::timeout(Duration::from_secs(30), due_run).await.unwrap();
    server.bare("POST", "/api/v1/jobs/a/pause?queued=run").await.expect(200);
    let restored = server.with_body("POST", "/api/v1/jobs/a/restore", json!({"version": 1})).await.expect(200);
    assert_eq!((&restored["version"], &restored["enabled"]), (&json!(2), &json!(false)));
    assert_eq!(server.get(&format!("/api/v1/runs/{run}")).await.expect(200)["status"], "pending");
}

/// The second call has already read the job when the first one saves it.
#[tokio::test]
async fn an_instant_in_the_past_runs_once_though_two_calls_meet() {
    let store = HoldingStore::new();
    let server = Server::start_on(Arc::clone(&store) as Arc<dyn Store>, WebConfig::default()).await;
    let once = |name: &str| {
        let schedule = json!({"at": "2020-01-01T00:00:00Z", "if_past": "run"});
        json!({"name": name, "app": "app", "handler": "h", "schedule": schedule})
    };
    for (name, method, path, body, read) in [
        ("a", "PUT", "/api/v1/jobs/a", once("a"), "job"),
        ("b", "POST", "/api/v1/jobs/apply", json!([once("b")]), "listed_jobs_named"),
    ] {
        server.job(name).await;
        store.hold(read);
        let mut second = Box::pin(server.with_body(method, path, &body));
        tokio::select! {
            answer = &mut second => unreachable!("it waits: {}", answer.text()),
            () = store.reached.notified() => {}
        }
        server.with_body(method, path, &body).await.expect(200);
        let job = format!("/api/v1/jobs/{name}");
        let first = server.get(&job).await.expect(200)["schedule"]["at"].clone();
        store.released.notify_one();
        second.await.expect(200);
        let again = server.get(&job).await.expect(200)["schedule"]["at"].clone();
        assert_eq!(again, first, "{method} {path}");
    }
}

#[tokio::test]
async fn if_match_guards_every_change() {
    let server = Server::start().await;
    server.job("a").await;
    let put = || json!({"app": "x", "handler": "h"});
    for (method, path, body) in [
        ("PUT", "/api/v1/jobs/a", put()),
        ("PATCH", "/api/v1/jobs/a", json!({"handler": "i"})),
        ("POST", "/api/v1/jobs/a/pause", Value::Null),
        ("POST", "/api/v1/jobs/a/resume", Value::Null),
        ("DELETE", "/api/v1/jobs/a", Value::Null),
    ] {
        for tag in ["\"v9\"", "W/\"v1\"", "\"else\"", "\"v7\", \"v8\""] {
            let answer = send_if(&server, method, path, tag, body.clone()).await;
            assert_eq!(answer.headers["etag"], "\"v1\"", "{method} {tag}");
            let problem = answer.expect(412);
            assert_eq!((&problem["code"], &problem["current_version"]), (&json!("version_mismatch"), &json!(1)));
        }
        assert_eq!(send_if(&server, method, path, "v1", body).await.expect(400)["code"], "invalid_header");
    }
    send_if(&server, "PUT", "/api/v1/jobs/a", "\"v1\"", put()).await.expect(200);
    send_if(&server, "PUT", "/api/v1/jobs/a", "\"v1\"", put()).await.expect(412);
    send_if(&server, "PUT", "/api/v1/jobs/a", "*", put()).await.expect(200);
    let current = server.get("/api/v1/jobs/a").await.headers["etag"].to_str().unwrap().to_owned();
    let answer = send_if(&server, "DELETE", "/api/v1/jobs/a", &format!("\"v1\", {current}"), Value::Null).await;
    assert_eq!(answer.status, 204);
}

#[tokio::test]
async fn pause_and_resume_switch_the_schedule() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "x", "handler": "h", "schedule": {"cron": "0 0 0 1 1 ?"}});
    let created = server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let paused = server.bare("POST", "/api/v1/jobs/a/pause").await.expect(200);
    assert_eq!((&paused["enabled"], &paused["next_fire_at"]), (&json!(false), &Value::Null));
    let again = server.bare("POST", "/api/v1/jobs/a/pause").await.expect(200);
    assert_eq!(again["version"], paused["version"]);
    let resumed = server.bare("POST", "/api/v1/jobs/a/resume").await.expect(200);
    assert_eq!((&resumed["enabled"], &resumed["next_fire_at"]), (&json!(true), &created["next_fire_at"]));
}

#[tokio::test]
async fn pages_have_no_gaps() {
    let server = Server::start().await;
    let names: Vec<String> = (0..25).map(|n| format!("job-{n:02}")).collect();
    for name in names.iter().rev() {
        server.job(name).await;
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs?limit=7".to_owned();
    loop {
        let page = server.get(&path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        server.get(&format!("/api/v1/jobs?q=job&cursor={next}")).await.expect(422);
        server.get(&format!("/api/v1/runs?cursor={next}")).await.expect(422);
        path = format!("/api/v1/jobs?limit=7&cursor={next}");
    }
    assert_eq!(seen, names);
    let page = server.get("/api/v1/jobs?limit=25").await.expect(200);
    assert_eq!(page["next_cursor"], Value::Null, "a full last page is the last");
    let page = server.get("/api/v1/jobs?q=b-1&app=app").await.expect(200);
    assert_eq!(page["items"].as_array().unwrap().len(), 10);
}

#[tokio::test]
async fn apps_come_with_jobs_or_by_themselves() {
    let server = Server::start().await;
    server.job("a").await;
    assert_eq!(server.with_body("POST", "/api/v1/apps", json!({"name": "app"})).await.status, 200);
    assert_eq!(server.with_body("POST", "/api/v1/apps", json!({"name": "b"})).await.status, 201);
    let problem = server.with_body("POST", "/api/v1/apps", json!({"name": "B"})).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/name");
    let apps = server.get("/api/v1/apps").await.expect(200);
    let names: Vec<_> = apps["items"].as_array().unwrap().iter().map(|app| app["name"].clone()).collect();
    assert_eq!(names, [json!("app"), json!("b")]);
}

#[tokio::test]
async fn the_cluster_is_shown() {
    let server = Server::start().await;
    let nodes = server.get("/api/v1/nodes").await.expect(200);
    assert_eq!((&nodes["items"][0]["status"], &nodes["items"][0]["is_this"]), (&json!("active"), &json!(true)));
    assert_eq!(server.get("/api/v1/executors").await.expect(200)["items"], json!([]));
    let ready = server.get("/readyz").await.expect(200);
    assert_eq!((&ready["status"], &ready["checks"]["lease_held"]), (&json!("ready"), &json!(true)));
}

#[tokio::test]
async fn changes_of_an_edit_are_shown() {
    let server = Server::start().await;
    let script = |last: &str| json!({"script": format!("echo one\n{last}\n")});
    let job = json!({"name": "a", "app": "x", "handler": "shell", "params": script("echo two")});
    server.with_body("POST", "/api/v1/jobs", job).await.expect(201);
    let path = "/api/v1/jobs/a/versions/diff";
    assert_eq!(server.get(path).await.expect(200)["changes"], json!([]));
    server
        .with_body("PATCH", "/api/v1/jobs/a", json!({"params": script("echo 2"), "enabled": false}))
        .await
        .expect(200);
    let diff = server.get(path).await.expect(200);
    assert_eq!((&diff["from"], &diff["to"]), (&json!(1), &json!(2)));
    assert_eq!(diff["changes"][0], json!({"pointer": "/enabled", "from": true, "to": false}));
    assert!(diff["text"].as_str().unwrap().contains("  echo one\n- echo two\n+ echo 2\n"), "{diff:#}");
    let refusal = server.get(&format!("{path}?to=3")).await.expect(422);
    assert_eq!(refusal["errors"][0]["parameter"], "to");
}

/// No version of a script is lost: more than thirty versions are listed, and each can be restored.
#[tokio::test]
async fn every_version_of_a_script_is_kept_and_can_be_put_back() {
    let server = Server::start().await;
    let script = |number: usize| json!({"script": format!("echo one\necho {number}\n")});
    let body = json!({"name": "a", "app": "x", "handler": "shell", "params": script(1)});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    for number in 2..=35 {
        server.with_body("PATCH", "/api/v1/jobs/a", json!({"params": script(number)})).await.expect(200);
    }
    let mut listed = Vec::new();
    let mut path = "/api/v1/jobs/a/versions".to_owned();
    loop {
        let page = server.get(&path).await.expect(200);
        listed.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/jobs/a/versions?cursor={next}");
    }
    let versions: Vec<_> = listed.iter().map(|item| item["version"].as_i64().unwrap()).collect();
    assert_eq!(versions, (1..=35).rev().collect::<Vec<_>>());
    assert_eq!(listed[34]["definition"]["params"], script(1));

    server.bare("POST", "/api/v1/jobs/a/pause").await.expect(200);
    let restore = |version: i64| json!({ "version": version });
    let back = server.with_body("POST", "/api/v1/jobs/a/restore", restore(6)).await.expect(200);
    assert_eq!((&back["params"], &back["version"], &back["enabled"]), (&script(6), &json!(37), &json!(false)));
    let same = server.with_body("POST", "/api/v1/jobs/a/restore", restore(6)).await.expect(200);
    assert_eq!(same["version"], 37, "nothing is saved where nothing changes");
    let none = server.with_body("POST", "/api/v1/jobs/a/restore", restore(99)).await.expect(422);
    assert_eq!(none["errors"][0]["pointer"], "/version");
    assert!(none["errors"][0]["message"].as_str().unwrap().contains("the newest is 37"), "{none}");
    server.with_body("POST", "/api/v1/jobs/a/restore", json!({})).await.expect(422);
    let request = server.request("POST", "/api/v1/jobs/a/restore").header("content-type", "application/json");
    let stale = request.header("if-match", "\"v3\"").body(restore(2).to_string().into()).unwrap();
    assert_eq!(server.send(stale).await.status, 412);
}
