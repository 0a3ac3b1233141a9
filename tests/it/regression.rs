//! A database that goes back in time under a running server, as after a restored backup, or after a failover without the last
//! transactions.

use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, rondel, wait_until};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::journal::{Journal, check_against_ledger};
use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(60);

async fn history(server: &Server) -> Value {
    let ready = server.api().get("/readyz?verbose").await.expect(200);
    let details = ready["details"].as_array().cloned().unwrap_or_default();
    details.into_iter().find(|detail| detail["check"] == "history").unwrap_or_default()
}

/// How often the server has found that its database went back in time.
async fn regressions(api: &Api) -> i64 {
    let nodes = api.get("/api/v1/nodes").await.expect(200);
    nodes["items"][0]["counters"]["database_regressions"].as_i64().expect("a number")
}

/// The server's row is set back, first to its state a minute before and then to an earlier epoch. The server reports each regression, and
/// continues under an epoch that executors do not know yet.
async fn a_database_that_went_back_in_time_is_named(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"},
        "misfire": {"policy": "all", "max": 100},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    let more = async |count: usize| {
        let end = journal.lines().len() + count;
        wait_until(LIMIT, "more runs", async || if journal.lines().len() >= end { Ok(()) } else { Err(()) }).await;
    };
    more(2).await;
    assert_eq!(history(&server).await["ok"], json!(true));
    let epochs = [
        "UPDATE node SET lease_until_ms = lease_until_ms - 60000",
        "UPDATE node SET lease_until_ms = 0, prior_lease_until_ms = 0, epoch = 1",
    ];
    for statement in epochs {
        let before = regressions(&api).await;
        let mut changed_at = None;
        wait_until(LIMIT, "the regression is counted", async || {
            // A renewal that had already read the row overwrites the change. Then the change is made again.
            if changed_at.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(10)) {
                db.sql(statement);
                changed_at = Some(Instant::now());
            }
            let found = regressions(&api).await;
            if found > before { Ok(()) } else { Err(found) }
        })
        .await;
        more(3).await;
    }
    let epoch: i64 = db.sql("SELECT epoch FROM node").parse().expect("a number");
    assert!(epoch >= 3, "executors know epoch 2: {epoch}");
    let named = history(&server).await;
    assert!(named["message"].as_str().is_some_and(|text| text.contains("went back in time")), "{named}");
    let words = server.process().stderr();
    assert!(words.contains("the database went back in time"), "{words}");
    let token = server.token_file();
    let token = token.to_str().expect("a path");
    let doctor = rondel(&["doctor", "--server", server.url(), "--token-file", token], &[]).await;
    assert!(doctor.stdout.contains("went back in time"), "{doctor:?}");
    api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
    let runs = wait_until(LIMIT, "every run has a verdict", async || {
        let runs = api.runs("j").await;
        if runs.iter().all(|run| !run["finished_at"].is_null()) { Ok(runs) } else { Err(runs) }
    })
    .await;
    check_against_ledger(&journal.lines(), &runs);
}
on_each_database!(a_database_that_went_back_in_time_is_named);
