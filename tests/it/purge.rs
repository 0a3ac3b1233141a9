//! Old runs are deleted while new ones fire.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::json;

use crate::journal::{Journal, seconds};
use crate::on_each_database;

async fn old_runs_go_while_jobs_fire(db: ScratchDb) {
    let server = Server::start_with(&db, &["--retention", "3s"]).await;
    let api = server.api();
    let journal = Journal::new();
    let job = |name: &str, schedule| json!({"name": name, "app": "files", "handler": "shell", "params": journal.params(""), "schedule": schedule, "misfire": {"policy": "all", "max": 100}});
    api.post("/api/v1/jobs", job("each-second", json!({"every": "1s"}))).await.expect(201);
    let broadcast = json!({"name": "everywhere", "app": "files", "handler": "shell", "route": "broadcast",
        "params": {"argv": ["true"]}, "schedule": {"every": "2s"}});
    api.post("/api/v1/jobs", broadcast).await.expect(201);
    let _agent = Agent::start(&server, "files").await;

    let lines = wait_until(Duration::from_secs(60), "fifteen seconds of lines", async || {
        let lines = journal.lines();
        if lines.len() >= 15 { Ok(lines) } else { Err(lines) }
    })
    .await;
    let fires = journal.by_fire();
    assert!(fires.values().all(|lines| lines.len() == 1), "a fire ran twice: {fires:?}");
    let instants: Vec<i64> = fires.keys().map(|fire| seconds(fire)).collect();
    assert!(instants.windows(2).all(|pair| pair[1] - pair[0] == 1), "a hole: {instants:?}");

    let limit = Duration::from_secs(60);
    for path in ["", "/logs"] {
        wait_until(limit, "the first run is gone", async || {
            let found = api.get(&format!("/api/v1/runs/{}{path}", lines[0].run)).await;
            if found.status == 404 { Ok(()) } else { Err(found) }
        })
        .await;
    }
    // Three seconds of retention, one until the next pass, five of look-ahead; the rest is for a slow machine.
    wait_until(limit, "few runs are left", async || {
        let left = api.runs("each-second").await;
        if (1..15).contains(&left.len()) { Ok(()) } else { Err(left) }
    })
    .await;
    let left = wait_until(limit, "few broadcasts are left", async || {
        let left = api.runs("everywhere").await;
        let wholes = left.iter().filter(|run| run["shard_index"].is_null()).count();
        if (1..8).contains(&wholes) { Ok(left) } else { Err(left) }
    })
    .await;
    assert!(left.iter().all(|run| run["shard_index"].is_null() || run["shard_index"] == 0), "{left:#?}");
}
on_each_database!(old_runs_go_while_jobs_fire);
