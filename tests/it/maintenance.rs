//! Maintenance windows: no fire that is planned inside a window begins before the window's end, each such fire has a verdict, and a
//! server that is killed inside a window knows it after a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, wait_until, wall_clock_ms};
use serde_json::{Value, json};

use crate::journal::{Journal, check_against_ledger, seconds};
use crate::on_each_database;

/// How far ahead the windows begin, in seconds. Fires of these few jobs are claimed at most 5 s ahead, so no fire
/// inside a window is claimed yet when the windows are planned.
const LEAD_S: i64 = 15;
const LENGTH_S: i64 = 20;
const KINDS: [&str; 2] = ["skip", "hold"];

/// Plans a window of whole seconds for an app, nearer than the API allows.
fn plan(db: &ScratchDb, id: usize, kind: &str, (starts, ends): (i64, i64)) {
    db.sql(&format!(
        "INSERT INTO maintenance (id, namespace_id, app_id, starts_at_ms, ends_at_ms, fires, reason, author, created_at_ms) \
         SELECT {id}, namespace_id, id, {starts}000, {ends}000, '{kind}', 'moving', 'ann', {starts}000 FROM app WHERE name = '{kind}'"
    ));
}

async fn no_fire_inside_of_a_window_begins_before_its_end(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    let journals = KINDS.map(|_| Journal::new());
    let mut agents = Vec::new();
    for (kind, journal) in KINDS.iter().zip(&journals) {
        let starts = format!("echo $RONDEL_FIRE_AT $(date +%s%3N) >> {}", journal.starts().display());
        let job = json!({
            "name": kind, "app": kind, "handler": "shell", "params": journal.params(&starts), "schedule": {"every": "1s"},
            "misfire": {"policy": "all", "max": 3}, "overlap": {"policy": "allow"},
        });
        server.api().post("/api/v1/jobs", job).await.expect(201);
        agents.push(Agent::start_with(&server, kind, &[]).await);
    }
    wait_for_fire_after(&journals, 0).await;
    let from = wall_clock_ms() / 1000 + LEAD_S;
    let window = (from, from + LENGTH_S);
    for (index, kind) in KINDS.iter().enumerate() {
        plan(&db, index + 1, kind, window);
    }
    clock_at(from + 3).await;
    server.kill().await;
    server.restart().await;
    let api = server.api();
    let entry = api.get("/api/v1/jobs/hold/why").await.expect(200).to_string();
    let listed = api.get("/api/v1/maintenance").await.expect(200);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}; {entry}");
    wait_for_fire_after(&journals, window.1 + 3).await;
    for kind in KINDS {
        api.post(&format!("/api/v1/jobs/{kind}/pause"), json!({})).await.expect(200);
    }
    for (kind, journal) in KINDS.iter().zip(&journals) {
        let runs = every_verdict(&api, kind).await;
        check_against_ledger(&journal.lines(), &runs);
        check(kind, journal, &runs, window);
    }
    drop(agents);
}
on_each_database!(no_fire_inside_of_a_window_begins_before_its_end);

fn check(kind: &str, journal: &Journal, runs: &[Value], (from, to): (i64, i64)) {
    let mut verdicts: BTreeMap<i64, &Value> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["reason"] != "paused") {
        let first = seconds(run["fire_at"].as_str().expect("an instant"));
        let last = run["span_end_at"].as_str().map_or(first, seconds);
        for instant in first..=last {
            let before = verdicts.insert(instant, run);
            assert!(before.is_none(), "{kind}: {instant} is recorded twice: {before:?} and {run}");
        }
    }
    let inside: Vec<(&i64, &&Value)> = verdicts.range(from..to).collect();
    assert_eq!(inside.len(), usize::try_from(to - from).expect("short"), "{kind}: each fire inside has a verdict");
    let skipped = inside.iter().filter(|(_, run)| run["status"] == "skipped");
    assert!(skipped.clone().all(|(_, run)| run["reason"] == "maintenance"), "{kind}: {inside:#?}");
    let ran: Vec<i64> = inside.iter().filter(|(_, run)| run["status"] == "succeeded").map(|(at, _)| **at).collect();
    match kind {
        "skip" => assert_eq!(ran, [] as [i64; 0], "{kind}"),
        _ => assert_eq!(ran, [to - 3, to - 2, to - 1], "{kind}: the newest three, by the misfire policy"),
    }
    let rows = inside.iter().filter_map(|(_, run)| run["id"].as_str()).collect::<std::collections::BTreeSet<_>>().len();
    assert!(rows <= 8, "{kind}: spans are one row: {rows}");
    for (fire_at, began_ms) in journal.read_starts() {
        let is_inside = (from..to).contains(&fire_at);
        assert!(!is_inside || began_ms >= to * 1000, "{kind}: the fire of {fire_at} began at {began_ms}");
    }
}

async fn clock_at(second: i64) {
    wait_until(Duration::from_secs(120), "the window", async || {
        let now = wall_clock_ms() / 1000;
        if now >= second { Ok(()) } else { Err(second - now) }
    })
    .await;
}

/// Waits until each job has run a fire later than this.
async fn wait_for_fire_after(journals: &[Journal], instant: i64) {
    wait_until(Duration::from_secs(120), "each job fires", async || {
        let last = |journal: &Journal| journal.by_fire().keys().last().map_or(0, |fire| seconds(fire));
        let seen: Vec<i64> = journals.iter().map(last).collect();
        if seen.iter().all(|seen| *seen > instant) { Ok(()) } else { Err((seen, instant)) }
    })
    .await;
}

async fn every_verdict(api: &Api, job: &str) -> Vec<Value> {
    wait_until(Duration::from_secs(60), "every run has a verdict", async || {
        let runs = api.runs(job).await;
        let open: Vec<&Value> = runs.iter().filter(|run| run["finished_at"].is_null()).collect();
        if open.is_empty() { Ok(runs.clone()) } else { Err(format!("{open:#?}")) }
    })
    .await
}
