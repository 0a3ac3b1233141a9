//! Servers that die while they number attempts for XXL-JOB's executors, and while they store the ends of these
//! attempts.
//!
//! The executor is a stand-in. Its requests and their outcomes are written as a journal, which the checker judges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use rondel_tests::check::{self, Rules};
use rondel_tests::{Api, Backend, ScratchDb, Server, millis, scratch, wait_until};
use serde_json::{Value, json};

use super::fixture::{Chance, Journal, print, record_outcome, rounds, wait_until_settled};
use crate::xxl::stand_in::{Dialect, StandIn};

const APP: &str = "xxl";
const PLACES: [&str; 4] = ["send_xxl.written", "send_xxl.committed", "report_xxl.written", "report_xxl.committed"];
/// Deaths at each place.
const ROUNDS: usize = 3;
/// How long it may take to reach a place.
const REACH: Duration = Duration::from_secs(60);
/// If an executor does not have a run, the server waits before it decides: the callback may be on its way to a server
/// that is down.
const ARGS: [&str; 8] =
    ["--xxl-networks", "127.0.0.0/8", "--xxl-callback-timeout", "10s", "--lease", "2s", "--beat", "400ms"];

/// No fire is lost, no number is sent twice, no attempt begins twice, and each run has its verdict: that of the executor.
#[tokio::test]
async fn servers_die_where_attempts_are_numbered_and_their_ends_are_stored() {
    let Some(db) = scratch(Backend::Sqlite).await else { return };
    let (mut chance, journal) = (Chance::new(), Journal::new());
    let mut server = Server::start_with(&db, &ARGS).await;
    let api = server.api().recording(journal.folder());
    jobs(&api).await;
    let mut executor = StandIn::start(Dialect::Core34, server.url(), (APP, &token(&api).await)).await;
    executor.keep_registering();
    executor.wait_for("run", 10).await;
    let mut deaths: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..rounds().unwrap_or(ROUNDS) {
        for place in PLACES {
            if server.process().has_ended().is_none() {
                server.kill().await;
            }
            let armed = format!("{place}@{}", 1 + chance.below(4));
            if server.try_restart_with(&["--failpoint", &armed]).await {
                wait_until(REACH, &format!("a server dies at {armed}"), async || {
                    if server.process().has_ended().is_some() { Ok(()) } else { Err(executor.started_runs().len()) }
                })
                .await;
            }
            journal.keep_output("mortal", server.process());
            record_outcome(db.backend(), place, "died");
            *deaths.entry(place).or_default() += 1;
        }
    }
    server.restart().await;
    let before = executor.started_runs().len();
    executor.wait_for("run", before + 20).await;
    for job in api.all("/api/v1/jobs", &[]).await {
        let name = job["name"].as_str().expect("a name");
        api.post(&format!("/api/v1/jobs/{name}/pause?queued=run"), json!({})).await.expect(200);
    }
    wait_until_settled(&api).await;
    executor.wait_until_all_reported().await;
    write_journal(&api, &db, &executor, &journal).await;
    let report = check::check(&check::collect(&api, journal.folder()).await, Rules::default());
    print(&format!("{deaths:?}: {report}"));
    report.assert_clean();
    let begun = executor.started_runs();
    let ids: BTreeSet<i64> = begun.iter().map(|one| one.log_id).collect();
    assert_eq!(ids.len(), begun.len(), "a number was sent twice");
}

/// Creates jobs that fire each second, half of them with at-least-once delivery, the others with at-most-once
/// delivery. Some of them fail and are tried again.
async fn jobs(api: &Api) {
    for number in 0..8 {
        let delivery = if number % 2 == 0 { "at_least_once" } else { "at_most_once" };
        let (handler, retry) = match number {
            6 | 7 => ("fail", 1 - number % 2),
            _ => ("echo", 0),
        };
        let job = json!({
            "name": format!("job-{number}"), "app": APP, "handler": handler, "params": "x", "delivery": delivery,
            "retry": {"max": retry, "backoff": "500ms"}, "schedule": {"every": "1s"},
            "misfire": {"policy": "all", "max": 1000},
        });
        api.post("/api/v1/jobs", job).await.expect(201);
    }
}

async fn token(api: &Api) -> String {
    let grants = json!([{"role": "executor", "namespace": "default", "app": APP}]);
    let made = api.post("/api/v1/tokens", json!({"kind": "xxl", "name": APP, "grants": grants})).await.expect(201);
    made["token"].as_str().expect("a secret").to_owned()
}

/// Writes the attempts that the executor began, with the runs that its numbers stand for.
async fn write_journal(api: &Api, db: &ScratchDb, executor: &StandIn, journal: &Journal) {
    let rows = db.sql("SELECT log_id, run_id, attempt FROM xxl_run");
    let attempts: BTreeMap<i64, (String, i64)> = rows
        .lines()
        .filter_map(|line| {
            let mut columns = line.split('\t');
            Some((columns.next()?.parse().ok()?, (columns.next()?.to_owned(), columns.next()?.parse().ok()?)))
        })
        .collect();
    let runs = api.all("/api/v1/runs", &[]).await;
    let runs: BTreeMap<&str, &Value> = runs.iter().filter_map(|run| Some((run["id"].as_str()?, run))).collect();
    let (pid, mut text) = (executor.port(), String::new());
    for one in executor.started_runs() {
        let (run, attempt) = attempts.get(&one.log_id).expect("a number that was sent has a row");
        let row = runs.get(run.as_str()).expect("a run that was sent has a row");
        let fire_at_ms = row["fire_at"].as_str().and_then(millis).expect("an instant");
        let start = json!({
            "event": "start", "run": run, "attempt": attempt, "job": row["job"], "fire_at_ms": fire_at_ms, "pid": pid,
            "at_ms": one.at_ms,
        });
        writeln!(text, "{start}").expect("a text takes it");
        if let Some((at_ms, ok)) = one.end {
            let end = json!({"event": "end", "run": run, "attempt": attempt, "pid": pid, "at_ms": at_ms, "ok": ok});
            writeln!(text, "{end}").expect("a text takes it");
        }
    }
    std::fs::write(journal.folder().join("executor.jsonl"), text).expect("write the journal");
}
