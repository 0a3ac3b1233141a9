//! Triggers that an executor leaves unanswered while it keeps sending heartbeats.

use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::reason::{WaitFor, words};
use rondel_core::words::Lang;
use rondel_core::{Reason, Run, RunStatus};
use rondel_proto::v1;
use rondel_store::Runs as _;

use super::world::{LIMIT, World, accepted_reply, begun_replies, create, hello, request, runs, store, success_result};

async fn world() -> World {
    let config = EngineConfig { answer_within: Duration::from_secs(1), ..EngineConfig::default() };
    World::start_on(store(), config).await
}

/// Waits until the only run meets the condition.
async fn wait_for_run(world: &World, what: &str, wanted: impl Fn(&Run) -> bool) -> Run {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let run = runs(world).await.remove(0);
        if wanted(&run) {
            return run;
        }
        assert!(tokio::time::Instant::now() < deadline, "{what}: {run:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn waits_for(run: &Run) -> Option<WaitFor> {
    run.detail.as_deref().and_then(|detail| detail.waits_for)
}

#[tokio::test]
async fn a_trigger_that_is_never_answered_is_not_running_and_is_sent_again() {
    let world = world().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let ignored = line.trigger().await;
    let run = wait_for_run(&world, "its wait is reported", |run| waits_for(run) == Some(WaitFor::Answer)).await;
    assert_eq!((run.status, run.attempt), (RunStatus::Pending, 1));
    line.wait_for_end().await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (ignored.run_id, 2));
    let attempts = world.store.attempts(rondel_core::RunId::new(again.run_id)).await.unwrap();
    assert_eq!(attempts.iter().map(|attempt| attempt.reason).collect::<Vec<_>>(), [Some(Reason::NotReceived)]);
    line.send(success_result(&again)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

#[tokio::test]
async fn a_trigger_that_a_hello_lists_goes_on() {
    let world = world().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let ignored = line.trigger().await;
    line.wait_for_end().await;
    let held = vec![v1::RunRef { run_id: ignored.run_id, attempt: ignored.attempt, ..v1::RunRef::default() }];
    let mut line = world.dial(Some(&world.token), v1::Hello { held, ..hello("a", 1) }).await.unwrap().beat();
    let run = wait_for_run(&world, "it is stored as running", |run| run.status == RunStatus::Running).await;
    assert_eq!(run.attempt, 1);
    line.send(success_result(&ignored)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// Unanswered triggers do not end the stream of an executor that has answered one, or that sends no heartbeats.
#[tokio::test]
async fn an_executor_that_answered_or_is_silent_keeps_its_stream() {
    let world = world().await;
    let job = create(&world, serde_json::json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let unanswered = line.trigger().await;
    wait_for_run(&world, "its wait is reported", |run| waits_for(run) == Some(WaitFor::Answer)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    line.send(begun_replies(&unanswered)).await;
    let mut line = line.beat();
    wait_for_run(&world, "it is stored as running", |run| run.status == RunStatus::Running).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    line.send(success_result(&unanswered)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// However often its executor leaves it unanswered, a run ends at its queue timeout, with the true reason.
#[tokio::test]
async fn a_run_that_is_never_answered_ends_with_its_queue_time_and_names_the_executor() {
    let world = world().await;
    let job = create(&world, serde_json::json!({"queue_timeout": "4s"})).await;
    let ignores = async {
        loop {
            let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
            line.wait_for_end().await;
        }
    };
    let ends = async {
        request(&world, &job).await;
        wait_for_run(&world, "it ends", |run| run.status.is_terminal()).await
    };
    let run = tokio::select! {
        _ = ignores => unreachable!("it never gives up"),
        run = ends => run,
    };
    assert_eq!((run.status, run.reason), (RunStatus::Skipped, Some(Reason::NoExecutor)));
    assert!(run.attempt > 1, "it was sent again: {run:?}");
    let sentence = words::sentence(words::RunStatusFacts::of(&run), Lang::En).unwrap();
    assert!(sentence.ends_with(": a did not answer."), "{sentence}");
    let online = world.engine.online_executors();
    assert!(online.iter().all(|one| one.unanswered.is_some_and(|of| of.count > 1)), "{online:?}");
    world.end().await;
}

/// An accepted run does not count as running until the executor reports its start.
#[tokio::test]
async fn a_run_that_is_accepted_and_not_begun_waits_for_a_slot() {
    let world = world().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let queued = line.trigger().await;
    line.send(accepted_reply(&queued)).await;
    let run = wait_for_run(&world, "its wait is reported", |run| waits_for(run) == Some(WaitFor::Slot)).await;
    assert_eq!((run.status, run.started_at, run.executor.as_deref()), (RunStatus::Pending, None, Some("a")));
    line.send(begun_replies(&queued)).await;
    let run = wait_for_run(&world, "it is stored as running", |run| run.status == RunStatus::Running).await;
    assert!(run.started_at.is_some());
    line.send(success_result(&queued)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}
