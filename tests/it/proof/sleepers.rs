//! A server that sleeps through its lease and wakes: at the worst places, and anywhere. What it still does is refused.

use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, Server, Signal, scratch, wait_until};

use super::stage::{Chance, Journal, Worker, judged, mixed_jobs, print};

const JOB_COUNT: usize = 100;
/// Three leases, and much less than an executor waits for a silent server before it closes the stream (three heartbeats and a
/// second): what the sleeper writes to it when it wakes must arrive, to be refused.
const SLEEP: Duration = Duration::from_millis(6_200);
/// Shared out by hash, so that the sleeper has its part of the jobs.
const LEASE: [&str; 8] = ["--lease", "2s", "--beat", "500ms", "--heartbeat", "4s", "--claim-strategy", "id_hash"];

/// Waits until the process has stopped itself.
async fn asleep(server: &mut Server) {
    let id = server.process().id();
    wait_until(Duration::from_secs(40), "the server stops at its failpoint", async || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if stat.contains(") T ") { Ok(()) } else { Err(stat) }
    })
    .await;
}

/// How a system with a sleeper ended: what was refused, by the executors and by the store.
struct Refused {
    triggers: i64,
    statements: i64,
}

async fn wakes_too_late(backend: Backend, place: Option<&str>) -> Option<Refused> {
    let db = scratch(backend).await?;
    let mut chance = Chance::new();
    let journal = Journal::new();
    let other = Server::start_with(&db, &LEASE).await;
    let place = place.map(|place| format!("{place}@{}=stop", 10 + chance.below(10)));
    let args: Vec<&str> = place.iter().flat_map(|place| ["--failpoint", place.as_str()]).collect();
    let mut sleeper = Server::start_with(&db, &[&LEASE[..], &args].concat()).await;
    other.api().post("/api/v1/apps", serde_json::json!({"name": "proof"})).await.expect(201);
    let _workers = [
        Worker::start(&[&sleeper, &other], "one", &journal, None, &[]).await,
        Worker::start(&[&other, &sleeper], "two", &journal, None, &[]).await,
    ];
    // After the workers, and not by the sleeper: it may fall asleep at the first fires.
    mixed_jobs(&other.api(), JOB_COUNT, 40).await;
    if place.is_none() {
        journal.grows(2 * JOB_COUNT).await;
        tokio::time::sleep(chance.millis(1_500)).await;
        sleeper.process().signal(Signal::STOP);
    }
    asleep(&mut sleeper).await;
    tokio::time::sleep(SLEEP).await;
    sleeper.process().signal(Signal::CONT);
    journal.grows(3 * JOB_COUNT).await;
    let report = judged(&other.api().recording(journal.folder()), &journal, Rules::default()).await;
    let refused = refused(&[&sleeper, &other]).await;
    let what = place.unwrap_or_else(|| "anywhere".to_owned());
    print(&format!(
        "{backend}, asleep at {what}: {} triggers and {} statements refused; {report}",
        refused.triggers, refused.statements
    ));
    report.assert_clean();
    Some(refused)
}

/// The counters of all nodes, as each node reports its own.
async fn refused(servers: &[&Server]) -> Refused {
    let mut refused = Refused { triggers: 0, statements: 0 };
    for server in servers {
        let nodes = server.api().get("/api/v1/nodes").await.expect(200);
        let this = nodes["items"].as_array().into_iter().flatten().find(|node| node["is_this"] == true);
        let counter = |key: &str| this.and_then(|node| node["counters"][key].as_i64()).unwrap_or(0);
        refused.triggers += counter("triggers_fenced");
        refused.statements += counter("statements_refused");
    }
    refused
}

/// Between the lease check and the stream; within the claim's transaction; anywhere. At-most-once runs begin once, as the
/// checker sees. Each of the first two shows that what it holds back is refused when it comes.
async fn sleepers(backend: Backend) {
    let Some(mut at_send) = wakes_too_late(backend, Some("send.checked")).await else { return };
    // An executor whose ping a sleeper leaves unanswered may have closed the stream by then: nothing arrives, to be refused.
    for _ in 0..3 {
        if at_send.triggers == 0 {
            let Some(again) = wakes_too_late(backend, Some("send.checked")).await else { return };
            at_send = again;
        }
    }
    let Some(at_claim) = wakes_too_late(backend, Some("claim.written")).await else { return };
    let Some(anywhere) = wakes_too_late(backend, None).await else { return };
    assert!(at_send.triggers > 0, "no trigger was refused");
    let statements = at_send.statements + at_claim.statements + anywhere.statements;
    assert!(statements > 0, "no statement was refused");
}

#[tokio::test]
async fn on_postgres() {
    sleepers(Backend::Postgres).await;
}

#[tokio::test]
async fn on_mysql() {
    sleepers(Backend::Mysql).await;
}
