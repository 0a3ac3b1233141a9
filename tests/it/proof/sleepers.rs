//! A server that is paused for longer than its lease, at the worst places or anywhere, and then wakes. Its further
//! actions are refused.

use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, Server, Signal, scratch, wait_until};

use super::fixture::{Chance, Journal, Worker, create_mixed_jobs, judge_all, print};

const JOB_COUNT: usize = 100;
/// Three leases, but much less than the time after which an executor closes the stream of a silent server (three heartbeats
/// and a second): what the sleeper sends when it wakes must arrive, so that it can be refused.
const SLEEP: Duration = Duration::from_millis(6_200);
/// The jobs are shared by their hashes, so that the sleeper has a part of them.
const LEASE: [&str; 8] = ["--lease", "2s", "--beat", "500ms", "--heartbeat", "4s", "--claim-strategy", "id_hash"];

/// Waits until the process has stopped itself.
async fn wait_until_stopped(server: &mut Server) {
    let id = server.process().id();
    wait_until(Duration::from_secs(40), "the server stops at its failpoint", async || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if stat.contains(") T ") { Ok(()) } else { Err(stat) }
    })
    .await;
}

/// The number of refused actions: triggers refused by executors, and statements refused by the store.
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
    // Created after the workers start and through the other server: the sleeper may stop at the first fires.
    create_mixed_jobs(&other.api(), JOB_COUNT, 40).await;
    if place.is_none() {
        journal.wait_for_starts(2 * JOB_COUNT).await;
        tokio::time::sleep(chance.millis(1_500)).await;
        sleeper.process().signal(Signal::STOP);
    }
    wait_until_stopped(&mut sleeper).await;
    tokio::time::sleep(SLEEP).await;
    sleeper.process().signal(Signal::CONT);
    journal.wait_for_starts(3 * JOB_COUNT).await;
    let report = judge_all(&other.api().recording(journal.folder()), &journal, Rules::default()).await;
    let refused = count_refused(&[&sleeper, &other]).await;
    let what = place.unwrap_or_else(|| "anywhere".to_owned());
    print(&format!(
        "{backend}, asleep at {what}: {} triggers and {} statements refused; {report}",
        refused.triggers, refused.statements
    ));
    report.assert_clean();
    Some(refused)
}

/// The sums of the counters of all nodes. Each node reports only its own.
async fn count_refused(servers: &[&Server]) -> Refused {
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

/// The sleeper stops between the lease check and the stream, within the claim's transaction, or anywhere. The checker
/// verifies that at-most-once runs begin once. The first two places show that an action that comes too late is refused.
async fn sleepers(backend: Backend) {
    let Some(mut at_send) = wakes_too_late(backend, Some("send.checked")).await else { return };
    // An executor may have closed the stream by then, because the sleeper did not answer its ping. Then no trigger arrives
    // that could be refused.
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
