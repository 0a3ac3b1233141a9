//! Renewals of the lease, against a store whose clock steps and whose rows change.

use std::sync::atomic::{AtomicI64, Ordering};

use rondel_core::NamespaceId;
use rondel_store::{Adopt as _, MemStore};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::engine::Engine;
use crate::jobs;
use crate::lifecycle::Lifecycle;

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A store with a running clock, and the number of milliseconds by which the test sets that clock ahead.
fn clocked_store() -> (Arc<dyn Store>, Arc<AtomicI64>) {
    let (started, ahead_ms) = (Instant::now(), Arc::new(AtomicI64::new(0)));
    let ahead = Arc::clone(&ahead_ms);
    let clock = move || {
        let elapsed = i64::try_from(started.elapsed().as_millis()).unwrap();
        Timestamp::from_millis(1_800_000_000_000 + elapsed + ahead.load(Ordering::Relaxed))
    };
    (Arc::new(MemStore::new(Arc::new(clock))), ahead_ms)
}

fn config_with_beat(beat: Duration) -> EngineConfig {
    EngineConfig { lease: Duration::from_secs(2), beat, ..EngineConfig::default() }
}

/// The server that had the name is dead, and its runs were taken over. Then the clock steps back to an instant within its lease.
#[tokio::test]
async fn runs_of_a_dead_server_are_taken_over_and_its_next_start_keeps_its_name() {
    let clock_ms = Arc::new(AtomicI64::new(1_000_000));
    let clock = Arc::clone(&clock_ms);
    let store = MemStore::new(Arc::new(move || Timestamp::from_millis(clock.load(Ordering::Relaxed))));
    let config = |name: &str, lease| EngineConfig {
        node_name: name.to_owned(),
        lease: Duration::from_secs(lease),
        ..EngineConfig::default()
    };
    let (ours, others) = (config("a", 5), config("b", 60));
    let dead = join(&store, &ours).await.unwrap().token();
    let other = join(&store, &others).await.unwrap().token();
    let starts = join(&store, &ours);
    tokio::pin!(starts);
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut starts).await.is_err(), "its lease holds");
    clock_ms.fetch_add(6_000, Ordering::Relaxed);
    store.orphaned_jobs(other, &[dead.node.into()], 10).await.unwrap();
    clock_ms.fetch_sub(4_000, Ordering::Relaxed);
    assert_eq!(starts.await.unwrap().token(), LeaseToken { epoch: dead.epoch + 2, ..dead });
}

/// A backup is restored under a running server: the server's row shows an earlier state.
#[tokio::test]
async fn a_database_that_went_back_in_time_is_noticed() {
    let (store, _) = clocked_store();
    let config = config_with_beat(Duration::from_millis(100));
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(engine.readiness().lost_history, None);
    let node = store.nodes().await.unwrap().remove(0);
    let before = store.now().await.unwrap();
    store.release(node.token(), Timestamp::EPOCH).await.unwrap();
    let after = store.now().await.unwrap();
    wait_until("it has noticed", || engine.readiness().lost_history.is_some()).await;
    let by = engine.readiness().lost_history.unwrap().by.unwrap();
    assert!(by >= node.lease_until.since(after) && by <= node.lease_until.since(before), "{by:?} at {after}");
    wait_until("it goes on under the next epoch", || engine.readiness().lease_held).await;
    let again = store.nodes().await.unwrap().remove(0);
    assert_eq!(again.token(), LeaseToken { epoch: node.epoch + 1, ..node.token() });
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// A connection to a database under load can take long to open although statements are answered.
#[tokio::test(start_paused = true)]
async fn the_diagnosis_of_a_late_answer_leaves_time_to_renew_the_lease() {
    let diagnosis = async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        7
    };
    let began = Instant::now();
    assert_eq!(within_lease(Duration::from_millis(1_500), diagnosis()).await, None);
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!(within_lease(Duration::from_secs(30), diagnosis()).await, Some(7));
    assert_eq!(within_lease(Duration::ZERO, diagnosis()).await, Some(7), "the lease has ended already");
}

/// The server slept through its lease, and meanwhile another one was started under its name.
#[tokio::test]
async fn a_server_whose_name_another_one_has_reports_that() {
    let (store, _) = clocked_store();
    let config = config_with_beat(Duration::from_millis(100));
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(&store), config.clone(), &lifecycle).await.unwrap();
    let other = EngineConfig { lease: Duration::from_secs(60), ..config };
    let taken = loop {
        let node = store.nodes().await.unwrap().remove(0);
        store.release(node.token(), Timestamp::EPOCH).await.unwrap();
        if let Join::Joined { token, .. } = store.join(&join_request(&other, store.as_ref())).await.unwrap() {
            break token;
        }
    };
    let failure = || engine.loops().into_iter().find(|one| one.name == "beat" && one.failing_since.is_some());
    wait_until("it has noticed", || failure().is_some()).await;
    store.renew(taken, other.lease).await.unwrap().unwrap();
    let error = || failure().and_then(|report| report.error).unwrap_or_default();
    wait_until("it names the cause", || error().contains("another server runs as node")).await;
    assert!(!engine.readiness().lease_held && engine.readiness().database.is_none());
    store.release(taken, Timestamp::EPOCH).await.unwrap();
    wait_until("it goes on", || engine.readiness().lease_held && failure().is_none()).await;
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}

/// The database's clock steps back by a minute: jobs do not fire until it has caught up, and no fire runs twice.
#[tokio::test]
async fn a_clock_that_steps_back_makes_jobs_quiet() {
    let (store, step_ms) = clocked_store();
    let config = config_with_beat(Duration::from_millis(200));
    let lifecycle = Lifecycle::new();
    let engine = Engine::start(Arc::clone(&store), config, &lifecycle).await.unwrap();
    let spec = json!({"name": "j", "app": "a", "handler": "h", "schedule": {"every": "1s"}});
    let namespace = NamespaceId::new(1);
    jobs::create(&engine, namespace, serde_json::from_value(spec).unwrap(), "test").await.unwrap();
    wait_until("it fires", || engine.runs_in_memory() > 0).await;
    assert_eq!(engine.readiness().quiet_until, None);

    let before = engine.now();
    step_ms.store(-60_000, Ordering::Relaxed);
    wait_until("it has noticed", || engine.readiness().quiet_until.is_some()).await;
    let quiet_until = engine.readiness().quiet_until.unwrap();
    assert!(quiet_until >= before && quiet_until < before + Duration::from_secs(21), "{before} {quiet_until}");
    assert!(engine.now() < before && engine.readiness().lease_held);
    let claimed = store.job(namespace, "j").await.unwrap().unwrap().next_fire_at;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(store.job(namespace, "j").await.unwrap().unwrap().next_fire_at, claimed, "nothing is claimed again");
    step_ms.store(0, Ordering::Relaxed);
    wait_until("it fires again", || engine.readiness().quiet_until.is_none()).await;
    lifecycle.soft.cancel();
    lifecycle.hard.cancel();
}
