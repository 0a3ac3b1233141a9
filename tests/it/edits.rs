//! Edits of a job that is firing: what is acknowledged is what runs.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, seconds};
use crate::on_each_database;

fn now_seconds() -> i64 {
    let output = std::process::Command::new("date").arg("+%s").output().expect("date runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("seconds")
}

async fn some_lines(journal: &Journal, more_than: usize) {
    wait_until(Duration::from_secs(30), "more lines", async || {
        let count = journal.lines().len();
        if count > more_than { Ok(()) } else { Err(count) }
    })
    .await;
}

/// Paused, changed and deleted jobs don't fire what was claimed before; resumed ones fire what is still ahead.
async fn claimed_fires_follow_the_definition(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let (old, new) = (Journal::new(), Journal::new());
    let job = |journal: &Journal| json!({"name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"}});
    api.post("/api/v1/jobs", job(&old)).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&old, 2).await;

    api.put("/api/v1/jobs/j", job(&new)).await.expect(200);
    let changed_at = now_seconds();
    some_lines(&new, 3).await;
    let late: Vec<_> = old.lines().into_iter().filter(|line| seconds(&line.fire_at) > changed_at + 1).collect();
    assert!(late.is_empty(), "ran under the old definition after {changed_at}: {late:?}");

    api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
    let paused_at = now_seconds();
    // Three seconds of fires were claimed when the job was paused: wait until all of them are past.
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_seconds() > paused_at + 6 { Ok(()) } else { Err(()) }
    })
    .await;
    let late: Vec<_> = new.lines().into_iter().filter(|line| seconds(&line.fire_at) > paused_at + 1).collect();
    assert!(late.is_empty(), "ran while paused since {paused_at}: {late:?}");
    let runs = api.runs("j").await;
    let skipped = |reason: &str| runs.iter().any(|run| run["status"] == "skipped" && run["reason"] == reason);
    assert!(skipped("paused"), "{runs:#?}");

    api.post("/api/v1/jobs/j/resume", json!({})).await.expect(200);
    let count = new.lines().len();
    some_lines(&new, count + 2).await;
    let doubles: Vec<_> = new.by_fire().into_values().filter(|lines| lines.len() > 1).collect();
    assert!(doubles.is_empty(), "{doubles:?}");

    api.delete("/api/v1/jobs/j").await.expect(204);
    let deleted_at = now_seconds();
    wait_until(Duration::from_secs(20), "what was claimed is past", async || {
        if now_seconds() > deleted_at + 6 { Ok(()) } else { Err(()) }
    })
    .await;
    let late: Vec<_> = new.lines().into_iter().filter(|line| seconds(&line.fire_at) > deleted_at + 1).collect();
    assert!(late.is_empty(), "ran after it was deleted at {deleted_at}: {late:?}");
    assert_eq!(api.get("/api/v1/jobs/j").await.status, 404);
}
on_each_database!(claimed_fires_follow_the_definition);

/// Pausing and resuming at once loses no fire and runs none twice: settled rows are reopened.
async fn a_quick_pause_and_resume_loses_nothing(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&journal, 2).await;
    for _ in 0..10 {
        api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
        api.post("/api/v1/jobs/j/resume", json!({})).await.expect(200);
    }
    let count = journal.lines().len();
    some_lines(&journal, count + 8).await;
    let fires = journal.by_fire();
    assert!(fires.values().all(|lines| lines.len() == 1), "{fires:?}");
    let instants: Vec<i64> = fires.keys().map(|fire| seconds(fire)).collect();
    let skipped: Vec<Value> = api.runs("j").await.into_iter().filter(|run| run["status"] == "skipped").collect();
    for pair in instants.windows(2) {
        for missing in pair[0] + 1..pair[1] {
            // Only a fire that came due in the instant between pause and resume may be missing, and it has a verdict.
            let has_verdict = |run: &Value| seconds(run["fire_at"].as_str().unwrap_or_default()) == missing;
            assert!(skipped.iter().any(has_verdict), "the fire of {missing} is lost: {instants:?}");
        }
    }
}
on_each_database!(a_quick_pause_and_resume_loses_nothing);
