//! SIGTERM: a server and an agent finish what they have in hand.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::Journal;
use crate::on_each_database;

async fn begun(journal: &Journal) {
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

/// An agent that is told to stop finishes its run, and the server has the verdict.
async fn an_agent_finishes_its_run(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    api.post("/api/v1/jobs", slow_job(&journal)).await.expect(201);
    let mut agent = Agent::start(&server, "files").await;
    api.post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    begun(&journal).await;
    assert!(agent.stop().await.success());
    let runs = api.runs("slow").await;
    assert_eq!((&runs[0]["status"], &runs[0]["attempt"]), (&json!("succeeded"), &json!(1)), "{runs:#?}");
}
on_each_database!(an_agent_finishes_its_run);

/// A server that is told to stop waits for the run's result; after a restart it is in the ledger, and nothing ran twice.
async fn a_server_waits_for_a_result(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journal = Journal::new();
    server.api().post("/api/v1/jobs", slow_job(&journal)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    server.api().post("/api/v1/jobs/slow/runs", json!({})).await.expect(201);
    begun(&journal).await;
    assert!(server.stop().await.success());
    server.restart().await;
    let runs = server.api().runs("slow").await;
    assert_eq!((&runs[0]["status"], &runs[0]["attempt"]), (&json!("succeeded"), &json!(1)), "{runs:#?}");
    assert_eq!(journal.lines().len(), 1);
}
on_each_database!(a_server_waits_for_a_result);
