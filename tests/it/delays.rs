//! Fixed delays and fixed rates: what the next fire is counted from.

use std::time::Duration;

use rondel_tests::{Agent, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::edits::some_lines;
use crate::journal::{Journal, seconds};
use crate::on_each_database;

/// Milliseconds since 1970 of an instant with or without a fraction.
fn millis(instant: &str) -> i64 {
    let fraction = instant.split_once('.').map_or("000", |(_, fraction)| fraction.trim_end_matches('Z'));
    seconds(instant) * 1000 + fraction.parse::<i64>().expect("milliseconds")
}

/// A delay of two seconds after runs of three: a start every five seconds.
async fn a_delay_begins_when_the_run_before_is_over(db: ScratchDb) {
    let server = Server::start(&db).await;
    let api = server.api();
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params("sleep 3"),
        "schedule": {"delay": "2s"},
    });
    let _agent = {
        api.post("/api/v1/apps", json!({"name": "files"})).await.expect(201);
        Agent::start(&server, "files").await
    };
    api.post("/api/v1/jobs", job).await.expect(201);
    wait_until(Duration::from_secs(60), "four starts", async || {
        let lines = journal.lines();
        if lines.len() >= 4 { Ok(()) } else { Err(lines) }
    })
    .await;
    let starts: Vec<i64> = journal.by_fire().keys().map(|fire_at| millis(fire_at)).collect();
    let gaps: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap >= 5_000), "{gaps:?} ms between starts");
    // The handler, a shell, takes its own time to begin and end.
    let instants = |run: &Value| (run["fire_at"].as_str().map(millis), run["finished_at"].as_str().map(millis));
    let mut runs: Vec<_> = api.runs("j").await.iter().map(instants).collect();
    runs.sort_unstable();
    let waits: Vec<_> = runs.windows(2).map(|pair| Some(pair[1].0? - pair[0].1?)).collect();
    assert!(waits.len() >= 3, "{runs:?}");
    let is_delay = |wait: &Option<i64>| wait.is_some_and(|wait| (2_000..2_500).contains(&wait));
    assert!(waits.iter().all(is_delay), "{waits:?} ms after the runs before");
    assert!(journal.by_fire().values().all(|lines| lines.len() == 1), "{:?}", journal.lines());
}
on_each_database!(a_delay_begins_when_the_run_before_is_over);

/// A fixed rate counts from the creation of the job, whatever happens later.
async fn a_rate_keeps_its_anchor(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "3s"},
    });
    server.api().post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&server, "files").await;
    some_lines(&journal, 1).await;
    server.stop().await;
    server.restart().await;
    let count = journal.lines().len();
    some_lines(&journal, count + 1).await;
    server.api().patch("/api/v1/jobs/j", json!({"description": "unrelated"})).await.expect(200);
    let count = journal.lines().len();
    some_lines(&journal, count + 1).await;
    let instants: Vec<i64> = journal.by_fire().keys().map(|fire_at| seconds(fire_at)).collect();
    assert!(instants.windows(2).all(|pair| (pair[1] - pair[0]) % 3 == 0), "not all on one grid of 3 s: {instants:?}");
}
on_each_database!(a_rate_keeps_its_anchor);
