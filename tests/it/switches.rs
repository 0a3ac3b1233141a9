//! Executors that are switched off by their names, across restarts of the executor and of the server.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::on_each_database;

async fn set(api: &Api, name: &str, state: &str) -> Value {
    api.put(&format!("/api/v1/executors/{name}/state"), json!({"state": state})).await.expect(200)
}

async fn executor(api: &Api, name: &str) -> Value {
    let listed = api.get("/api/v1/executors").await.expect(200);
    let mut its = listed["items"].as_array().expect("a list").iter().filter(|one| one["name"] == name);
    its.next().cloned().unwrap_or_default()
}

/// The executors that had successful runs due after `from`, and the number of these runs.
async fn since(api: &Api, from: &str) -> (BTreeSet<String>, usize) {
    let mut runs = api.runs("tick").await;
    runs.retain(|run| run["fire_at"].as_str().expect("a text") > from && run["status"] == "succeeded");
    (runs.iter().filter_map(|run| Some(run["executor"].as_str()?.to_owned())).collect(), runs.len())
}

/// Gives the switch two seconds to reach every server, and asserts that three fires after that run on these executors
/// alone.
async fn runs_on(api: &Api, expected: &[&str]) {
    let newest = async || {
        let runs = api.runs("tick").await;
        runs.iter().map(|run| run["fire_at"].as_str().expect("a text").to_owned()).max().unwrap_or_default()
    };
    let began = newest().await;
    wait_until(Duration::from_secs(20), "fires after the switch", async || {
        let now = newest().await;
        let count = api
            .runs("tick")
            .await
            .iter()
            .filter(|run| run["fire_at"].as_str().expect("a text") > began.as_str())
            .count();
        if count >= 3 { Ok(()) } else { Err(now) }
    })
    .await;
    let from = newest().await;
    let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
    wait_until(Duration::from_secs(30), "runs on these executors", async || {
        let (names, count) = since(api, &from).await;
        assert!(names.is_subset(&expected), "{names:?} instead of {expected:?}");
        if count >= 4 && names == expected { Ok(()) } else { Err((names, count)) }
    })
    .await;
}

/// A drained executor gets no new runs, finishes its run, and stays drained when it and the server restart.
async fn a_drained_executor_stays_so_until_it_is_activated(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
    let _one = Agent::start_named(&server, "files", "one", &[]).await;
    let mut two = Agent::start_named(&server, "files", "two", &[]).await;
    let slow = json!({
        "name": "slow", "app": "files", "handler": "shell", "params": journal.params("sleep 4"),
        "select": {"executors": ["two"]},
    });
    api.post("/api/v1/jobs", slow).await.expect(201);
    let tick = json!({
        "name": "tick", "app": "files", "handler": "shell", "params": {"argv": ["true"]}, "schedule": {"every": "1s"},
    });
    api.post("/api/v1/jobs", tick).await.expect(201);
    let run = api.post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    wait_until(Duration::from_secs(20), "the run has begun", async || {
        if journal.lines().is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    assert_eq!(set(&api, "two", "draining").await["state"], "draining");
    runs_on(&api, &["one"]).await;
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("a text"));
    wait_until(Duration::from_secs(20), "what it had in hand goes on", async || {
        let run = api.get(&path).await.expect(200);
        if run["status"] == "succeeded" { Ok(()) } else { Err(run) }
    })
    .await;
    wait_until(Duration::from_secs(20), "it is empty", async || {
        let executor = executor(&api, "two").await;
        if executor["run_count"] == 0 { Ok(()) } else { Err(executor) }
    })
    .await;

    // The switch stays set when both restart.
    two.kill().await;
    let mut two = Agent::start_named(&server, "files", "two", &[]).await;
    assert_eq!(executor(&api, "two").await["state"], "draining");
    runs_on(&api, &["one"]).await;
    server.stop().await;
    server.restart().await;
    let api = server.api();
    runs_on(&api, &["one"]).await;

    // A job that only this executor may run waits, and the reason names the switch.
    let run = api.post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("a text"));
    wait_until(Duration::from_secs(20), "the wait is noted", async || {
        let run = api.get(&path).await.expect(200);
        let why = api.get("/api/v1/jobs/slow/why").await.expect(200).to_string();
        let is_named = run.to_string().contains("drained") && why.contains("two is switched to draining");
        if is_named { Ok(()) } else { Err((run, why)) }
    })
    .await;
    assert_eq!(set(&api, "two", "active").await["state"], "active");
    wait_until(Duration::from_secs(30), "it runs once the executor is active", async || {
        let run = api.get(&path).await.expect(200);
        if run["status"] == "succeeded" { Ok(()) } else { Err(run) }
    })
    .await;
    two.stop().await;
}
on_each_database!(a_drained_executor_stays_so_until_it_is_activated);

/// The runs of a stopped executor are cancelled.
async fn a_stopped_executor_ends_its_runs(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = json!({
        "name": "long", "app": "files", "handler": "shell", "params": journal.params("sleep 60"),
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _one = Agent::start_named(&server, "files", "one", &[]).await;
    let run = api.post("/api/v1/jobs/long/runs", json!({})).await.expect(201);
    wait_until(Duration::from_secs(20), "the run has begun", async || {
        if journal.lines().is_empty() { Err("not yet") } else { Ok(()) }
    })
    .await;
    set(&api, "one", "stopped").await;
    let path = format!("/api/v1/runs/{}", run["id"].as_str().expect("a text"));
    wait_until(Duration::from_secs(20), "it is cancelled", async || {
        let run = api.get(&path).await.expect(200);
        if run["status"] == "cancelled" { Ok(()) } else { Err(run) }
    })
    .await;
    let run = api.get(&path).await.expect(200);
    assert!(run["message"].as_str().expect("a text").contains("the switch of its executor: stopped"), "{run}");
}
on_each_database!(a_stopped_executor_ends_its_runs);
