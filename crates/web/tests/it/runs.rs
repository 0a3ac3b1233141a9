//! Runs through the API.

use axum::body::Body;
use rondel_core::outcome::Outcome;
use serde_json::{Value, json};

use crate::harness::Server;
use crate::visitor::{Visitor, location};

#[tokio::test]
async fn a_run_is_asked_for_and_shown() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "x", "handler": "h", "params": {"from": "job"}});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let answer = server.bare("POST", "/api/v1/jobs/a/runs").await;
    let location = answer.headers["location"].to_str().unwrap().to_owned();
    let run = answer.expect(201);
    assert_eq!(location, format!("/api/v1/runs/{}", run["id"].as_str().unwrap()));
    assert_eq!((&run["job"], &run["trigger"], &run["status"]), (&json!("a"), &json!("api"), &json!("pending")));
    assert_eq!((&run["shard_index"], &run["shard_total"]), (&json!(0), &json!(1)));
    assert_eq!(run["params"], json!({"from": "job"}));
    let shown = server.get(&location).await.expect(200);
    assert_eq!((&shown["id"], &shown["attempts"][0]["attempt"]), (&run["id"], &json!(1)));

    let own = server.with_body("POST", "/api/v1/jobs/a/runs", json!({"params": [1, null]})).await.expect(201);
    assert_eq!(own["params"], json!([1, null]));
    for client in ["cli", "console"] {
        let request = server.request("POST", "/api/v1/jobs/a/runs").header("rondel-client", client);
        assert_eq!(server.send(request.body(Body::empty()).unwrap()).await.expect(201)["trigger"], "manual");
    }
    let problem = server.with_body("POST", "/api/v1/jobs/a/runs", json!({"param": 1})).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/param");
    server.bare("POST", "/api/v1/jobs/nosuch/runs").await.expect(404);
    let last = server.get("/api/v1/jobs/a").await.expect(200);
    assert_eq!(last["last_run"]["status"], "pending");
}

#[tokio::test]
async fn items_of_the_list_have_the_fields_that_scripts_expect() {
    let server = Server::start().await;
    server.job("a").await;
    let id = server.trigger("a").await;
    let page = server.get("/api/v1/runs?job=a&status=pending,running").await.expect(200);
    let item = page["items"][0].as_object().unwrap();
    let mut keys: Vec<_> = item.keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "attempt",
        "due_at",
        "executor",
        "finished_at",
        "fire_at",
        "id",
        "job",
        "message",
        "reason",
        "shard_index",
        "shard_total",
        "started_at",
        "status",
        "trigger",
    ];
    assert_eq!(keys, expected);
    assert_eq!(item["id"], id.to_string());
    assert_eq!(server.get("/api/v1/runs?status=failed").await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_terminal_run_is_repeated() {
    let server = Server::start().await;
    server.job("a").await;
    let first = server.with_body("POST", "/api/v1/jobs/a/runs", json!({"params": {"n": 1}})).await.expect(201);
    let id = first["id"].as_str().unwrap();
    let retry = format!("/api/v1/runs/{id}/retry");
    assert_eq!(server.bare("POST", &retry).await.expect(409)["code"], "run_not_finished");
    server.finish(id.parse().unwrap(), Outcome::Succeeded).await;
    let over = server.get(&format!("/api/v1/runs/{id}")).await.expect(200);
    assert_eq!((&over["status"], &over["message"]), (&json!("succeeded"), &json!("<b>done</b>")));
    assert_eq!(over["result"], json!({"n": 1.5}));
    let second = server.bare("POST", &retry).await.expect(201);
    assert_ne!(second["id"], first["id"]);
    assert_eq!((&second["parent"], &second["params"]), (&first["id"], &first["params"]));
    let cancel = server.bare("POST", &format!("/api/v1/runs/{id}/cancel")).await.expect(409);
    assert_eq!(cancel["code"], "run_finished");
    server.bare("DELETE", "/api/v1/jobs/a").await;
    assert_eq!(server.bare("POST", &retry).await.expect(409)["code"], "job_deleted");
    assert_eq!(server.get(&format!("/api/v1/runs/{id}")).await.expect(200)["job"], "a");
}

#[tokio::test]
async fn params_of_the_job_are_repeated_as_they_were() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "x", "handler": "h", "params": "old"});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let id = server.trigger("a").await;
    server.finish(id, Outcome::Failed { retryable: false }).await;
    server.with_body("PATCH", "/api/v1/jobs/a", json!({"params": "new"})).await.expect(200);
    let again = server.bare("POST", &format!("/api/v1/runs/{id}/retry")).await.expect(201);
    assert_eq!(again["params"], "old");
}

/// The names of the fields determine how their values are read: no executor is needed for the schema, and other parameters of the job are
/// kept.
#[tokio::test]
async fn params_sent_in_fields_make_a_run() {
    let server = Server::start().await;
    let params = json!({"table": "old", "rows": 1, "other": [true]});
    let body = json!({"name": "a", "app": "x", "handler": "h", "params": params});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let visitor = Visitor::signed_in(&server).await;
    let sent = "param.text.table=a%0D%0Ab&param.json.rows=&param.json.flag=true";
    let run = location(&visitor.post("/jobs/a/runs", sent).await);
    let run = server.bare("GET", &format!("/api/v1{run}")).await.expect(200);
    assert_eq!(run["params"], json!({"table": "a\nb", "other": [true], "flag": true}));
    let refusal = visitor.post("/jobs/a/runs", "param.json.rows=many").await;
    assert!(refusal.status == 422 && refusal.text().contains("/params/rows"), "{}", refusal.text());
}

#[tokio::test]
async fn a_cancel_is_noted() {
    let server = Server::start().await;
    server.job("a").await;
    let id = server.trigger("a").await;
    let run = server.bare("POST", &format!("/api/v1/runs/{id}/cancel")).await.expect(202);
    assert_eq!(run["cancel_requested_by"], "token:admin");
}

#[tokio::test]
async fn pages_have_no_gaps() {
    let server = Server::start().await;
    server.job("a").await;
    server.job("b").await;
    let mut created = Vec::new();
    for _ in 0..15 {
        created.push(server.trigger("a").await.to_string());
        server.trigger("b").await;
    }
    created.reverse();
    let mut seen = Vec::new();
    let mut path = "/api/v1/runs?job=a&limit=4".to_owned();
    loop {
        let page = server.get(&path).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        let other = server.get(&format!("/api/v1/runs?job=b&cursor={next}")).await.expect(422);
        assert_eq!(other["code"], "invalid_cursor");
        path = format!("/api/v1/runs?job=a&limit=4&cursor={next}");
        // A run that is created in the meantime belongs before the first page.
        server.trigger("a").await;
    }
    assert_eq!(seen, created);
}

#[tokio::test]
async fn a_broadcast_shows_its_shards() {
    let server = Server::start().await;
    let body = json!({"name": "a", "app": "x", "handler": "h", "route": "broadcast"});
    server.with_body("POST", "/api/v1/jobs", body).await.expect(201);
    let run = server.bare("POST", "/api/v1/jobs/a/runs").await.expect(201);
    assert_eq!((&run["shard_index"], &run["shard_total"]), (&Value::Null, &Value::Null));
    assert_eq!(run["shards"], json!([]));
}

/// At most one open run of a job has a given key. The caller of the second trigger chooses what happens.
#[tokio::test]
async fn a_trigger_with_a_key_is_refused_kept_or_replaced() {
    let server = Server::start().await;
    server.job("a").await;
    let ask = async |body: Value| server.with_body("POST", "/api/v1/jobs/a/runs", body).await;
    let first = ask(json!({"key": "order-1"})).await.expect(201);
    assert_eq!(first["key"], "order-1");
    let refusal = ask(json!({"key": "order-1"})).await.expect(409);
    assert_eq!(refusal["code"], "trigger_key_in_use");
    let id = first["id"].as_str().unwrap();
    assert!(refusal["detail"].as_str().unwrap().contains(id), "{refusal}");
    let kept = ask(json!({"key": "order-1", "if_open": "keep"})).await.expect(200);
    assert_eq!(kept["id"], first["id"]);
    assert_eq!(ask(json!({"key": "order-2"})).await.expect(201)["key"], "order-2");
    let second = ask(json!({"key": "order-1", "if_open": "replace"})).await.expect(201);
    assert_ne!(second["id"], first["id"]);
    let replaced = server.get(&format!("/api/v1/runs/{id}")).await.expect(200);
    assert!(!replaced["cancel_requested_by"].is_null() || replaced["status"] == "cancelled", "{replaced}");
    // A repeat takes the key of its run again, unless another open run has it.
    server.finish(second["id"].as_str().unwrap().parse().unwrap(), Outcome::Succeeded).await;
    let retry = format!("/api/v1/runs/{}/retry", second["id"].as_str().unwrap());
    assert_eq!(server.bare("POST", &retry).await.expect(201)["key"], "order-1");
    assert_eq!(server.bare("POST", &retry).await.expect(409)["code"], "trigger_key_in_use");
    for (body, pointer) in [
        (json!({"key": "a b"}), "/key"),
        (json!({"key": ""}), "/key"),
        (json!({"key": "x".repeat(201)}), "/key"),
        (json!({"if_open": "keep"}), "/if_open"),
    ] {
        assert_eq!(ask(body).await.expect(422)["errors"][0]["pointer"], pointer);
    }
}

/// A run can be triggered for a later instant. Until then it is listed as planned and can be cancelled.
#[tokio::test]
async fn a_run_is_triggered_for_a_later_instant() {
    let server = Server::start().await;
    server.job("a").await;
    let ask = async |at: &str| server.with_body("POST", "/api/v1/jobs/a/runs", json!({"at": at})).await;
    let run = ask("+10m").await.expect(201);
    assert_eq!((&run["status"], &run["fire_at"]), (&json!("waiting"), &run["due_at"]));
    let at: rondel_core::Timestamp = run["fire_at"].as_str().unwrap().parse().unwrap();
    let ahead = at.since(server.engine.now());
    assert!(ahead.as_secs() > 500 && ahead.as_secs() <= 600, "{ahead:?}");
    let again = ask(run["fire_at"].as_str().unwrap()).await.expect(201);
    assert_eq!(again["fire_at"], run["fire_at"], "two runs of one instant");
    for bad in ["2020-01-01T00:00:00Z", "tomorrow", "10m", "+9999d", ""] {
        assert_eq!(ask(bad).await.expect(422)["errors"][0]["pointer"], "/at", "{bad}");
    }
    let visitor = Visitor::signed_in(&server).await;
    let page = visitor.get("/jobs/a").await.text();
    assert!(page.contains("Planned"), "{page}");
    let posted = visitor.post("/jobs/a/runs", "at=%2B1h").await;
    assert!(visitor.get(&location(&posted)).await.text().contains("Planned"));
    let refusal = visitor.post("/jobs/a/runs", "at=yesterday").await.text();
    assert!(refusal.contains("is not an instant"), "{refusal}");
    let cancel = format!("/api/v1/runs/{}/cancel", run["id"].as_str().unwrap());
    server.bare("POST", &cancel).await.expect(202);
}
