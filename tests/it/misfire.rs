//! An outage of the server: the late runs and the skipped fires in the ledger follow the misfire policy.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_tests::{Agent, Api, ScratchDb, Server, wait_until};
use serde_json::{Value, json};

use crate::journal::{Journal, check_against_ledger, seconds};
use crate::on_each_database;
use crate::witness::Witness;

const OUTAGE: Duration = Duration::from_secs(20);
const TOLERANCE_MS: i64 = 5_000;
/// How long it may take on a busy machine to connect again, to start `sh` and to read the time with `date`.
const SLACK_MS: i64 = 3_000;
const POLICIES: [&str; 3] = ["skip", "once", "all"];

async fn an_outage_ends_in_the_misfire_policy(db: ScratchDb) {
    let witness = Witness::start();
    let mut server = Server::start(&db).await;
    let journals = POLICIES.map(|_| Journal::new());
    for (policy, journal) in POLICIES.iter().zip(&journals) {
        // The second word of each line of `starts`: the millisecond in which the handler began.
        let starts = format!("echo $RONDEL_FIRE_AT $(date +%s%3N) >> {}", journal.starts().display());
        let job = json!({
            "name": policy, "app": "files", "handler": "shell", "params": journal.params(&starts),
            "schedule": {"every": "1s"}, "misfire": {"policy": policy, "max": 100},
        });
        server.api().post("/api/v1/jobs", job).await.expect(201);
    }
    let data = tempfile::tempdir().expect("make a folder");
    let _agent = Agent::start_with(&server, "files", &["--data-dir", &data.path().display().to_string()]).await;
    lines(&journals, 3).await;
    server.kill().await;
    let killed_at = last_instant(&journals);
    tokio::time::sleep(OUTAGE).await;
    server.restart().await;
    wait_for_fire_after(&journals, killed_at + i64::try_from(OUTAGE.as_secs()).expect("short") + 8).await;
    let api = server.api();
    for policy in POLICIES {
        api.post(&format!("/api/v1/jobs/{policy}/pause"), json!({})).await.expect(200);
    }
    for (policy, journal) in POLICIES.iter().zip(&journals) {
        let runs = every_verdict(&api, policy).await;
        check_against_ledger(&journal.lines(), &runs);
        check(policy, journal, &runs, SLACK_MS + witness.worst_ms());
    }
}
on_each_database!(an_outage_ends_in_the_misfire_policy);

/// The outcome of each instant from the first to the last: it ran or was skipped, never both.
fn check(policy: &str, journal: &Journal, runs: &[Value], slack_ms: i64) {
    let mut instants: BTreeMap<i64, &Value> = BTreeMap::new();
    for run in runs.iter().filter(|run| run["reason"] != "paused") {
        let first = seconds(run["fire_at"].as_str().expect("an instant"));
        let last = run["span_end_at"].as_str().map_or(first, seconds);
        assert_eq!(run["span_count"].as_i64().unwrap_or(1), last - first + 1, "{run}");
        for instant in first..=last {
            let before = instants.insert(instant, run);
            assert!(before.is_none(), "{policy}: {instant} is recorded twice: {before:?} and {run}");
        }
    }
    let (first, last) = (*instants.keys().next().expect("it fired"), *instants.keys().last().expect("it fired"));
    let holes: Vec<i64> = (first..=last).filter(|second| !instants.contains_key(second)).collect();
    assert!(holes.is_empty(), "{policy}: no verdict for {holes:?}");

    let ran = |run: &Value| run["status"] == "succeeded";
    let recorded: Vec<i64> = instants.iter().filter(|(_, run)| ran(run)).map(|(instant, _)| *instant).collect();
    let mut began: Vec<i64> = journal.by_fire().keys().map(|fire| seconds(fire)).collect();
    began.retain(|instant| *instant <= last);
    assert_eq!(began, recorded, "{policy}: left: the journal; right: the ledger");

    let skipped = instants.values().filter(|run| run["status"] == "skipped");
    assert!(skipped.clone().all(|run| run["reason"] == "misfire"), "{policy}");
    let missed: Vec<i64> =
        instants.iter().filter(|(_, run)| run["status"] == "skipped").map(|(instant, _)| *instant).collect();
    assert!(missed.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{policy}: one stretch: {missed:?}");
    let spans: Vec<&Value> = runs.iter().filter(|run| run["span_count"].as_i64().unwrap_or(1) > 1).collect();
    let late_ms: BTreeMap<i64, i64> =
        journal.read_starts().into_iter().map(|(fire_at, start)| (fire_at, start - fire_at * 1000)).collect();
    match policy {
        "skip" => {
            assert_eq!(spans.len(), 1, "{spans:#?}");
            assert!(late_ms.values().all(|late| *late <= TOLERANCE_MS + slack_ms), "{late_ms:?}");
        }
        "once" => {
            assert_eq!(spans.len(), 1, "{spans:#?}");
            // The newest missed fire ran, later than the tolerance, and no fire after it is late.
            let newest = missed.last().expect("some were skipped") + 1;
            assert!(late_ms[&newest] >= TOLERANCE_MS, "{newest}: {late_ms:?}");
            let late = late_ms.iter().filter(|(_, late)| **late > TOLERANCE_MS + slack_ms);
            assert!(late.clone().all(|(at, _)| *at == newest), "{newest}: {late_ms:?}");
        }
        _ => {
            assert_eq!(skipped.count(), 0, "all ran");
            let order: Vec<i64> = journal.read_starts().into_iter().map(|(fire_at, _)| fire_at).collect();
            assert!(order.is_sorted(), "they ran in the order of their instants: {order:?}");
        }
    }
}

async fn lines(journals: &[Journal], count: usize) {
    wait_until(Duration::from_secs(60), "lines of each job", async || {
        let seen: Vec<usize> = journals.iter().map(|journal| journal.lines().len()).collect();
        if seen.iter().all(|seen| *seen >= count) { Ok(()) } else { Err(seen) }
    })
    .await;
}

fn last_instant(journals: &[Journal]) -> i64 {
    let last = |journal: &Journal| journal.by_fire().keys().last().map_or(0, |fire| seconds(fire));
    journals.iter().map(last).max().unwrap_or(0)
}

async fn wait_for_fire_after(journals: &[Journal], instant: i64) {
    wait_until(Duration::from_secs(90), "each job fires again", async || {
        let seen: Vec<i64> = journals.iter().map(|journal| last_instant(std::slice::from_ref(journal))).collect();
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
