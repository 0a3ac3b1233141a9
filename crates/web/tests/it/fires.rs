//! The account of fires, and the answers to "why" questions.

use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::Visitor;

/// The store's clock is in January 2027, so all instants in these tests are in the future.
const NOON: &str = "2030-01-16T12:00:00Z";

async fn create_daily_job(server: &Server) -> Value {
    let schedule = json!({"cron": "0 0 12 * * ?"});
    let body = json!({"name": "daily", "app": "a", "handler": "h", "schedule": schedule});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201)
}

#[tokio::test]
async fn upcoming_fires_are_listed_in_pages() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    let path = "/api/v1/jobs/daily/fires?from=2030-01-15T00:00:00Z&to=2030-01-20T00:00:00Z&limit=2";
    let mut instants = Vec::new();
    let mut page = server.get(path).await.expect(200);
    loop {
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2 && items.iter().all(|item| item["verdict"] == "planned"), "{page}");
        instants.extend(items.iter().map(|item| item["fire_at"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        page = server.get(&format!("{path}&cursor={cursor}")).await.expect(200);
    }
    let expected: Vec<String> = (15..20).map(|day| format!("2030-01-{day}T12:00:00Z")).collect();
    assert_eq!(instants, expected);
}

#[tokio::test]
async fn a_paused_job_is_reported_as_paused() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    server.bare("POST", "/api/v1/jobs/daily/pause").await.expect(200);
    let why = server.get(&format!("/api/v1/jobs/daily/why?at={NOON}")).await.expect(200);
    assert_eq!(why["fire"]["verdict"], "paused", "{why}");
    assert!(why["answer"]["en"].as_str().unwrap().contains("paused"), "{why}");
    assert!(why["answer"]["zh"].as_str().unwrap().contains("暂停"), "{why}");
}

#[tokio::test]
async fn where_nothing_was_planned_the_nearest_fires_are_named() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    let why = server.get("/api/v1/jobs/daily/why?at=2030-01-17T02:30:00Z").await.expect(200);
    assert_eq!(why["fire"], Value::Null);
    assert_eq!((&why["previous_fire_at"], &why["next_fire_at"]), (&json!(NOON), &json!("2030-01-17T12:00:00Z")));
}

#[tokio::test]
async fn definitions_are_listed_from_the_newest() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    for text in ["one", "two", "three"] {
        server.with_body("PATCH", "/api/v1/jobs/daily", json!({"description": text})).await.expect(200);
    }
    let mut seen = Vec::new();
    let mut path = "/api/v1/jobs/daily/versions?limit=2".to_owned();
    loop {
        let page = server.get(&path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|item| item["version"].as_i64().unwrap()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/api/v1/jobs/daily/versions?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, [4, 3, 2, 1]);
}

#[tokio::test]
async fn ranges_and_instants_are_checked() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    for (query, parameter) in [
        ("fires?from=yesterday", "from"),
        ("fires?from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z", "to"),
        ("fires?from=2030-01-01T00:00:00Z&to=2031-01-03T00:00:00Z", "to"),
        ("fires?to=0001-01-01T00:00:00Z", "to"),
        ("fires?limit=1001", "limit"),
        ("why?at=02:30", "at"),
        ("why?run=0", "run"),
        ("versions?limit=51", "limit"),
    ] {
        let problem = server.get(&format!("/api/v1/jobs/daily/{query}")).await.expect(422);
        assert_eq!(problem["errors"][0]["parameter"], parameter, "{query}: {problem}");
    }
    server.get("/api/v1/jobs/none/fires").await.expect(404);
    // Without an instant, the answer is about the last fire or, if there was none, the next one.
    let why = server.get("/api/v1/jobs/daily/why").await.expect(200);
    assert!(why["at"].is_string() && why["answer"]["en"].as_str().is_some_and(|text| !text.is_empty()), "{why}");
}

#[tokio::test]
async fn a_triggered_run_is_found_by_its_instant() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/jobs", json!({"name": "asked", "app": "a", "handler": "h"})).await.expect(201);
    let run = server.bare("POST", "/api/v1/jobs/asked/runs").await.expect(201);
    let at = run["fire_at"].as_str().unwrap();
    let second = format!("{}Z", at.split(['.', 'Z']).next().unwrap());
    for at in [at, &second] {
        let why = server.get(&format!("/api/v1/jobs/asked/why?at={at}")).await.expect(200);
        assert_eq!((&why["fire"]["run"], &why["at"]), (&run["id"], &run["fire_at"]), "{at}: {why}");
        assert!(why["answer"]["en"].as_str().unwrap().contains("triggered through the API: It"), "{why}");
        assert!(why["answer"]["zh"].as_str().unwrap().contains("（通过 API 触发）"), "{why}");
    }
    let why = server.get("/api/v1/jobs/asked/why?at=2030-01-17T02:30:00Z").await.expect(200);
    assert_eq!(why["fire"], Value::Null, "{why}");
}

/// Several runs may have the same instant. A question with the id of a run must be answered about that run.
#[tokio::test]
async fn a_run_is_asked_about_by_its_id() {
    let server = Server::start().await;
    for name in ["asked", "other"] {
        server.with_body("POST", "/api/v1/jobs", json!({"name": name, "app": "a", "handler": "h"})).await.expect(201);
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        let run = server.bare("POST", "/api/v1/jobs/asked/runs").await.expect(201);
        ids.push(run["id"].as_str().unwrap().to_owned());
    }
    for id in &ids {
        let why = server.get(&format!("/api/v1/jobs/asked/why?run={id}")).await.expect(200);
        assert_eq!(why["fire"]["run"], **id, "{why}");
        assert!(why["answer"]["en"].as_str().unwrap().contains("triggered through the API: It"), "{why}");
    }
    for query in [format!("asked/why?at={NOON}&run={}", ids[0]), format!("other/why?run={}", ids[0])] {
        let problem = server.get(&format!("/api/v1/jobs/{query}")).await.expect(422);
        assert_eq!(problem["errors"][0]["parameter"], "run", "{query}: {problem}");
    }
}

/// Many runs that are planned for later must not push the last run out of the answer.
#[tokio::test]
async fn a_later_fire_hides_no_run() {
    let server = Server::start().await;
    server.with_body("POST", "/api/v1/jobs", json!({"name": "asked", "app": "a", "handler": "h"})).await.expect(201);
    let run = server.bare("POST", "/api/v1/jobs/asked/runs").await.expect(201);
    for _ in 0..101 {
        let later = json!({"at": "+30d"});
        server.with_body("POST", "/api/v1/jobs/asked/runs", later).await.expect(201);
    }
    let why = server.get("/api/v1/jobs/asked/why").await.expect(200);
    assert_eq!(why["fire"]["run"], run["id"], "{why}");
}

#[tokio::test]
async fn runs_of_a_deleted_job_are_listed() {
    let server = Server::start().await;
    create_daily_job(&server).await;
    let run = server.bare("POST", "/api/v1/jobs/daily/runs").await.expect(201);
    let deleted = server.bare("DELETE", "/api/v1/jobs/daily").await.expect(200);
    assert_eq!(deleted["queued"]["dropped"], 1, "{deleted}");
    server.get("/api/v1/jobs/daily").await.expect(404);
    let page = server.get("/api/v1/runs?job=daily").await.expect(200);
    assert_eq!((&page["items"][0]["id"], &page["items"][0]["job"]), (&run["id"], &json!("daily")), "{page}");
    assert!(page["items"][0]["job_deleted_at"].is_string(), "{page}");
    let mut visitor = Visitor::signed_in(&server).await;
    for (language, words) in [("en", "The job daily was deleted at "), ("zh", "任务 daily 已于 ")] {
        visitor.language = language;
        let shown = visitor.get("/runs?job=daily").await.text();
        assert!(shown.contains(words) && shown.contains(run["id"].as_str().unwrap()), "{shown}");
    }
    // A new job with the name of a deleted one does not inherit its runs.
    create_daily_job(&server).await;
    let page = server.get("/api/v1/runs?job=daily").await.expect(200);
    assert_eq!(page["items"], json!([]));
    server.get("/api/v1/runs?job=unknown").await.expect(404);
}

#[tokio::test]
async fn parameters_of_the_agents_handlers_are_judged_without_executors() {
    let server = Server::start().await;
    for (handler, params, pointer) in [
        ("shell", json!(null), "/params"),
        ("shell", json!({}), "/params"),
        ("shell", json!({"argv": "date"}), "/params/argv"),
        ("shell", json!({"argv": ["date"], "argz": 1}), "/params/argz"),
        ("shell", json!({"argv": []}), "/params/argv"),
        ("shell", json!({"argv": [""]}), "/params/argv"),
        ("shell", json!({"argv": ["date"], "script": "date"}), "/params/argv"),
        ("python", json!({"script": "1", "interpreter": []}), "/params/interpreter"),
        ("shell", json!("date"), "/params"),
        ("GLUE_SHELL", json!("date"), "/params"),
        ("GLUE_PYTHON", json!({"param": "x"}), "/params/source"),
        ("GLUE_PHP", json!(null), "/params"),
        ("python", json!(null), "/params/script"),
        ("http", json!(null), "/params/url"),
        ("http", json!({"url": 7}), "/params/url"),
    ] {
        for schedule in [json!(null), json!({"every": "1h"})] {
            let job = json!({"name": "j", "app": "a", "handler": handler, "params": params, "schedule": schedule});
            let problem = server.with_body("POST", "/api/v1/jobs", job.clone()).await.expect(422);
            assert_eq!(problem["errors"][0]["pointer"], pointer, "{job}: {problem}");
        }
    }
    let secret = json!({"name": "s", "app": "a", "handler": "http", "params": {"url": "{{secret.URL}}"}});
    server.with_body("POST", "/api/v1/jobs", secret).await.expect(201);
    // This job gets its parameters only when it is triggered.
    let later = json!({"name": "l", "app": "a", "handler": "shell", "overrides": "all"});
    server.with_body("POST", "/api/v1/jobs", later).await.expect(201);
    let glue = json!({"name": "g", "app": "a", "handler": "GLUE_SHELL", "overrides": ["/source", "/param"]});
    server.with_body("POST", "/api/v1/jobs", glue).await.expect(201);
    let refusal = server.with_body("POST", "/api/v1/jobs/l/runs", json!({"params": {"argv": 7}})).await.expect(422);
    assert_eq!(refusal["errors"][0]["pointer"], "/params/argv", "{refusal}");
    server.with_body("POST", "/api/v1/jobs/l/runs", json!({"params": {"argv": ["date"]}})).await.expect(201);
}
