//! SIGTERM: a server and an agent finish their runs.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, millis, wait_at_most, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::on_each_database;

async fn wait_for_begin(journal: &Journal) {
    wait_until(Duration::from_secs(20), "the run has begun", async || {
        let lines = journal.lines();
        if lines.is_empty() { Err(lines) } else { Ok(()) }
    })
    .await;
}

fn slow_job(journal: &Journal) -> Value {
    let params = journal.params("sleep 3; echo done");
    json!({"name": "slow", "app": "files", "handler": "shell", "params": params})
}

/// A stopping agent finishes its run, and the server has the verdict.
async fn an_agent_finishes_its_run(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    api.post("/api/v1/jobs", slow_job(&journal)).await.expect(201);
    let mut agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    wait_for_begin(&journal).await;
    assert!(agent.stop().await.success());
    let runs = api.runs("slow").await;
    assert_eq!((&runs[0]["status"], &runs[0]["attempt"]), (&json!("succeeded"), &json!(1)), "{runs:#?}");
}
on_each_database!(an_agent_finishes_its_run);

/// A stopping server waits for the run's result. After a restart the result is in the ledger, and nothing ran twice.
async fn a_server_waits_for_a_result(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journal = Journal::new();
    server.api().post("/api/v1/jobs", slow_job(&journal)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    server.api().post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    wait_for_begin(&journal).await;
    assert!(server.stop().await.success());
    server.restart().await;
    let runs = server.api().runs("slow").await;
    assert_eq!((&runs[0]["status"], &runs[0]["attempt"]), (&json!("succeeded"), &json!(1)), "{runs:#?}");
    assert_eq!(journal.lines().len(), 1);
}
on_each_database!(a_server_waits_for_a_result);

/// If a server is stopped while a run is busy, the waiting runs count as never sent: none of them counts as lost, and those
/// of an at-most-once job run on the next server.
async fn unsent_runs_are_never_lost(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = |name: &str, command: &str, delivery: &str| {
        json!({
            "name": name, "app": "files", "handler": "shell", "params": journal.params(command), "schedule": {"every": "1s"},
            "delivery": delivery, "queue_timeout": "5m", "misfire": {"tolerance": "5m"},
        })
    };
    for delivery in ["at_least_once", "at_most_once"] {
        api.post("/api/v1/jobs", job(&format!("busy-{delivery}"), "sleep 4", delivery)).await.expect(201);
        api.post("/api/v1/jobs", job(&format!("quick-{delivery}"), "true", delivery)).await.expect(201);
    }
    let agent = Agent::start(&server, "files").await;
    wait_until(Duration::from_secs(20), "runs that wait behind a busy one", async || {
        let runs = server.api().runs("busy-at_most_once").await;
        let is = |status: &str| runs.iter().any(|run| run["status"] == status);
        if is("running") && runs.len() > 3 { Ok(()) } else { Err(runs) }
    })
    .await;
    assert!(server.stop().await.success());
    drop(agent);
    server.restart().await;
    // No executor has the open runs, so the server must not wait for a report about them. It would wait 30 s for a
    // silent executor.
    wait_at_most(Duration::from_secs(25), "no run is in anybody's hands", async || {
        let runs = server.api().all("/api/v1/runs", &[]).await;
        let running: Vec<Value> = runs.into_iter().filter(|run| run["status"] == "running").collect();
        if running.is_empty() { Ok(()) } else { Err(running) }
    })
    .await;
    let runs = wait_until(Duration::from_secs(20), "what waited goes on", async || {
        let runs = server.api().all("/api/v1/runs", &[]).await;
        if runs.iter().any(|run| run["status"] == "pending") { Ok(runs) } else { Err(runs) }
    })
    .await;
    let lost_runs: Vec<&Value> = runs.iter().filter(|run| run["attempt"] != 1 || run["status"] == "unknown").collect();
    assert!(lost_runs.is_empty(), "{lost_runs:#?}");
}
on_each_database!(unsent_runs_are_never_lost);

/// Fires that waited for an executor when their server stopped are not missed: the next server keeps them for their
/// queue timeout, even if they are later than the tolerance of the misfire policy.
async fn runs_that_waited_in_time_are_not_missed(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journal = Journal::new();
    let job = json!({
        "name": "patient", "app": "files", "handler": "shell", "params": journal.params("true"),
        "schedule": {"every": "1s"}, "queue_timeout": "5m", "misfire": {"policy": "skip", "tolerance": "2s"},
    });
    server.api().post("/api/v1/jobs", job).await.expect(201);
    // Later fires have rows too, and may become due while no server runs. A run that has just become due may not wait
    // for an executor yet.
    let due_at = |run: &Value| millis(run["due_at"].as_str().expect("an instant")).expect("in UTC");
    let is_due = |run: &Value| due_at(run) + 2_000 <= wall_clock_ms();
    let waiting = wait_until(Duration::from_secs(30), "fires that wait for an executor", async || {
        let due: Vec<Value> = server.api().runs("patient").await.into_iter().filter(is_due).collect();
        if due.len() >= 8 { Ok(due) } else { Err(due) }
    })
    .await;
    let waiting: Vec<Value> = waiting.into_iter().map(|run| run["id"].clone()).collect();
    assert!(server.stop().await.success());
    server.restart().await;
    let _agent = Agent::start(&server, "files").await;
    wait_until(Duration::from_secs(60), "what had waited has run", async || {
        let runs = server.api().all("/api/v1/runs", &[]).await;
        let is_unfinished = |run: &Value| waiting.contains(&run["id"]) && run["status"] != "succeeded";
        let unfinished_runs: Vec<Value> = runs.into_iter().filter(is_unfinished).collect();
        if unfinished_runs.is_empty() { Ok(()) } else { Err(unfinished_runs) }
    })
    .await;
}
on_each_database!(runs_that_waited_in_time_are_not_missed);

/// A server is away for longer than executors continue runs with `on_silence` "stop", and for less than they continue other
/// runs. A continued run ends in its first attempt. A stopped run is sent again without having failed.
async fn a_server_comes_back_to_runs_that_went_on(db: ScratchDb) {
    let options = ["--heartbeat", "1s", "--silence", "3s", "--lost-after", "13s", "--continue-max", "40s"];
    let mut server = Server::start_with(&db, &options).await;
    let journal = Journal::new();
    let job = |name: &str, delivery: &str, on_silence: Value| {
        json!({
            "name": name, "app": "files", "handler": "shell", "params": journal.params("sleep 22; echo done"),
            "delivery": delivery, "on_silence": on_silence,
        })
    };
    for (name, delivery, on_silence) in [
        ("goes-on", "at_least_once", json!("continue")),
        ("once", "at_most_once", Value::Null),
        ("stops", "at_least_once", Value::Null),
    ] {
        server.api().post("/api/v1/jobs", job(name, delivery, on_silence)).await.expect(201);
    }
    let _agent = Agent::start(&server, "files").await;
    for name in ["goes-on", "once", "stops"] {
        for _ in 0..2 {
            server.api().post(&format!("/api/v1/jobs/{name}/runs"), json!({})).await.expect(201);
        }
    }
    wait_until(Duration::from_secs(20), "three runs are noted as running", async || {
        let runs = running(&server).await;
        if runs.len() == 3 { Ok(()) } else { Err(runs) }
    })
    .await;
    let running_runs = running(&server).await;
    server.kill().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    server.restart().await;
    wait_until(Duration::from_secs(120), "every run has succeeded", async || {
        let runs = server.api().all("/api/v1/runs", &[]).await;
        if runs.iter().all(|run| run["status"] == "succeeded") { Ok(()) } else { Err(runs) }
    })
    .await;
    for run in running_runs {
        let ended_run =
            server.api().get(&format!("/api/v1/runs/{}", run["id"].as_str().expect("an id"))).await.expect(200);
        // A run that was stopped in the silence has not failed, and has not used up a retry.
        let attempt = if run["job"] == "stops" { 2 } else { 1 };
        assert_eq!(ended_run["attempt"], json!(attempt), "{ended_run:#}");
    }
}

async fn running(server: &Server) -> Vec<Value> {
    let runs = server.api().all("/api/v1/runs", &[]).await;
    runs.into_iter().filter(|run| run["status"] == "running").collect()
}
on_each_database!(a_server_comes_back_to_runs_that_went_on);
