//! Triggers that are sent ahead of their instants, as seen on the wire.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::{Cluster as _, Executors as _};
use serde_json::json;

use crate::world::{World, accepted_reply, create, hello};

fn on_time() -> v1::Hello {
    v1::Hello { ahead_max_ms: 1_000, slots: 16, ..hello("e1", 1) }
}

/// A trigger states how long its executor is to wait, so that no handler begins before its instant.
#[tokio::test]
async fn a_trigger_leaves_ahead_with_the_time_until_its_instant() {
    let world = World::start().await;
    let mut line = world.dial(Some(&world.token), on_time()).await.unwrap().beat();
    create(&world, json!({"schedule": {"every": "1s"}, "overlap": {"policy": "allow"}})).await;
    let mut ahead_count = 0;
    for _ in 0..4 {
        let trigger = line.trigger().await;
        let received_at = world.engine.now();
        let begins_at = received_at + Duration::from_micros(u64::try_from(trigger.start_in_us).unwrap());
        // The engine's time is truncated to whole milliseconds.
        let begins_at = begins_at + Duration::from_millis(1);
        assert!(begins_at >= Timestamp::from_millis(trigger.due_at_ms), "{trigger:?} at {received_at}");
        assert!(trigger.start_in_us <= 500_000, "{trigger:?}");
        ahead_count += i32::from(trigger.start_in_us > 0);
        line.send(accepted_reply(&trigger)).await;
    }
    assert!(ahead_count > 0, "on a busy machine one may be late, and not all");
    world.end().await;
}

/// An executor whose hello has no `ahead_max_ms` starts each run on receipt, so its triggers are sent at their instants.
#[tokio::test]
async fn an_executor_that_starts_at_once_gets_nothing_ahead() {
    let world = World::start().await;
    let mut line = world.dial(Some(&world.token), hello("e1", 1)).await.unwrap().beat();
    create(&world, json!({"schedule": {"every": "1s"}, "overlap": {"policy": "allow"}})).await;
    for _ in 0..2 {
        let trigger = line.trigger().await;
        assert_eq!(trigger.start_in_us, 0);
        assert!(world.engine.now() >= Timestamp::from_millis(trigger.due_at_ms), "{trigger:?}");
    }
    world.end().await;
}

/// A server that takes over the runs of a lease treats those that are due after the end of the lease as never sent. So the recorded end of
/// a lease that is given back, and of a stream that ends, is no earlier than the instants of the runs that were sent ahead.
#[tokio::test]
async fn a_run_sent_ahead_is_due_before_the_end_of_its_lease_and_stream() {
    assert!(ends_after_runs_sent_ahead().await);
    mutant::set(Some(Mutant::EndBeforeAhead));
    assert!(!ends_after_runs_sent_ahead().await);
    mutant::set(None);
}

async fn ends_after_runs_sent_ahead() -> bool {
    loop {
        if let Some(found) = stop_ahead_of_an_instant().await {
            return found;
        }
    }
}

/// Stops a server after it has sent a run ahead and before the run's instant. `None` if the instant came before the server had stopped, as
/// on a busy machine.
async fn stop_ahead_of_an_instant() -> Option<bool> {
    let world = World::start().await;
    let mut line = world.dial(Some(&world.token), on_time()).await.unwrap().beat();
    create(&world, json!({"schedule": {"every": "1s"}, "overlap": {"policy": "allow"}})).await;
    let due_at = loop {
        let trigger = line.trigger().await;
        let due_at = Timestamp::from_millis(trigger.due_at_ms);
        if world.engine.now() + Duration::from_millis(200) < due_at {
            break due_at;
        }
        line.send(accepted_reply(&trigger)).await;
    };
    world.engine.drain(Duration::ZERO).await;
    if world.engine.now() >= due_at {
        return None;
    }
    let nodes = world.store.nodes().await.unwrap();
    let sessions = world.store.sessions(Timestamp::EPOCH).await.unwrap();
    let ends_late_enough = nodes.iter().all(|node| node.lease_until >= due_at)
        && sessions.iter().all(|session| session.ended_at.is_none_or(|ended_at| ended_at >= due_at));
    Some(ends_late_enough)
}
