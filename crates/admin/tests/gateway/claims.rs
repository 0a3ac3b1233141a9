//! Which results of an executor are accepted: those of attempts that were sent to it, and no others of its app.

use std::time::Duration;

use rondel_core::{Run, RunId, RunStatus};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::result_ack::Kind;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::Runs as _;
use serde_json::{Value, json};

use super::world::{LIMIT, Line, NAMESPACE, World, begun_replies, create, hello, request, runs, success_result};

/// A run that does not exist.
const NO_RUN: i64 = 1;

/// The executor `a`, which holds the first run of a job, and `b`, which holds none.
async fn two_executors(more: Value) -> (World, Line, v1::Trigger, Line) {
    let world = World::start().await;
    let job = create(&world, more).await;
    let mut a = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let trigger = a.trigger().await;
    a.send(begun_replies(&trigger)).await;
    // `b` has a different handler: no run of the job is sent to it.
    let other = v1::Hello { handlers: vec!["other".to_owned()], ..hello("b", 2) };
    let b = world.dial(Some(&world.token), other).await.unwrap();
    (world, a.beat(), trigger, b.beat())
}

fn result(run_id: i64, attempt: i32, status: v1::result::Status) -> v1::Result {
    v1::Result { run_id, attempt, status: status.into(), started_at_ms: 1, ..v1::Result::default() }
}

/// The acknowledgements of these results. A result for a run that does not exist follows them: its acknowledgement comes last.
async fn acks_of(line: &mut Line, results: Vec<v1::Result>) -> Vec<Kind> {
    line.send(Up::Results(v1::Results { results })).await;
    let last = vec![result(NO_RUN, 1, v1::result::Status::Succeeded)];
    line.send(Up::Results(v1::Results { results: last })).await;
    let mut kinds = Vec::new();
    loop {
        let acks = line.receive(|body| if let Down::ResultAcks(acks) = body { Some(acks.acks) } else { None }).await;
        for ack in acks {
            if ack.run_id == NO_RUN {
                return kinds;
            }
            kinds.push(ack.kind());
        }
    }
}

/// Reports a result, and checks that it is stored.
async fn check_stored(line: &mut Line, result: v1::Result) {
    line.send(Up::Results(v1::Results { results: vec![result] })).await;
    assert_eq!(line.ack().await.kind(), Kind::Stored);
}

async fn run(world: &World, id: i64) -> Run {
    world.store.runs(&[RunId::new(id)]).await.unwrap().remove(0)
}

async fn wait_for_run(world: &World, what: &str, wanted: impl Fn(&Run) -> bool) -> Run {
    let found = async {
        loop {
            if let Some(run) = runs(world).await.into_iter().find(&wanted) {
                return run;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| unreachable!("{what}"))
}

#[tokio::test]
async fn attempts_that_never_began_are_not_added_to_a_run() {
    let (world, mut a, trigger, mut b) = two_executors(json!({"retry": {"max": 3}})).await;
    let invented = || {
        [0, -1, -2, i32::MIN, 2, 7].map(|attempt| result(trigger.run_id, attempt, v1::result::Status::Failed)).to_vec()
    };
    assert_eq!(acks_of(&mut b, invented()).await, [Kind::NoSuchRun; 6]);
    assert_eq!(acks_of(&mut a, invented()).await, [Kind::NoSuchRun; 6], "nor by the executor that holds the run");
    a.send(success_result(&trigger)).await;
    assert_eq!(a.ack().await.kind(), Kind::Stored);
    assert_eq!(acks_of(&mut b, invented()).await, [Kind::NoSuchRun; 6], "nor when the run has ended");
    assert!(world.store.attempts(RunId::new(trigger.run_id)).await.unwrap().is_empty());
    world.end().await;
}

#[tokio::test]
async fn a_run_behind_a_serial_one_is_not_ended_by_an_executor_that_does_not_have_it() {
    let (world, mut a, trigger, mut b) = two_executors(json!({"overlap": {"policy": "serial"}})).await;
    let job = world.engine.store().job(NAMESPACE, "j").await.unwrap().unwrap();
    request(&world, &job).await;
    let behind = wait_for_run(&world, "it waits", |run| run.id.get() != trigger.run_id).await;
    for line in [&mut b, &mut a] {
        let forged = vec![result(behind.id.get(), 1, v1::result::Status::Succeeded)];
        let answers = acks_of(line, forged).await;
        assert!(!answers.contains(&Kind::Stored), "{answers:?}");
        assert_eq!(run(&world, behind.id.get()).await.status, RunStatus::Pending);
    }
    // When its turn comes, the executor that receives the run ends it.
    a.send(success_result(&trigger)).await;
    let next = a.trigger().await;
    assert_eq!(next.run_id, behind.id.get());
    check_stored(&mut a, result(next.run_id, 1, v1::result::Status::Succeeded)).await;
    world.end().await;
}

#[tokio::test]
async fn a_retry_that_waits_is_not_ended_and_its_earlier_attempt_stays_as_it_was() {
    let (world, mut a, trigger, mut b) = two_executors(json!({"retry": {"max": 3, "backoff": "1h"}})).await;
    let failed = v1::Result { retryable: true, ..result(trigger.run_id, 1, v1::result::Status::Failed) };
    check_stored(&mut a, failed).await;
    let before = world.store.attempts(RunId::new(trigger.run_id)).await.unwrap();
    let forged = [1, 2].map(|attempt| result(trigger.run_id, attempt, v1::result::Status::Succeeded)).to_vec();
    for line in [&mut b, &mut a] {
        let answers = acks_of(line, forged.clone()).await;
        assert!(!answers.contains(&Kind::Stored), "{answers:?}");
    }
    let waiting = run(&world, trigger.run_id).await;
    assert_eq!((waiting.status, waiting.attempt), (RunStatus::Waiting, 2));
    assert_eq!(world.store.attempts(waiting.id).await.unwrap(), before);
    world.end().await;
}

#[tokio::test]
async fn the_root_of_a_broadcast_and_a_skipped_run_are_not_ended_by_an_executor() {
    let (world, mut a, trigger, mut b) =
        two_executors(json!({"route": "broadcast", "overlap": {"policy": "discard"}})).await;
    let root = wait_for_run(&world, "a root", Run::is_root).await;
    let job = world.engine.store().job(NAMESPACE, "j").await.unwrap().unwrap();
    request(&world, &job).await;
    let skipped = wait_for_run(&world, "it is skipped", |run| run.status == RunStatus::Skipped).await;
    for (id, status) in [(root.id, RunStatus::Running), (skipped.id, RunStatus::Skipped)] {
        for line in [&mut a, &mut b] {
            let forged = vec![result(id.get(), 1, v1::result::Status::Succeeded)];
            assert_eq!(acks_of(line, forged).await, [Kind::NoSuchRun], "{id}");
        }
        assert_eq!(run(&world, id.get()).await.status, status);
    }
    a.send(success_result(&trigger)).await;
    assert_eq!(a.ack().await.kind(), Kind::Stored);
    world.end().await;
}

/// The stream of `a` has just ended, and another process connects with the name `a`.
#[tokio::test]
async fn an_equal_name_without_the_secret_takes_over_nothing() {
    let (world, a, trigger, _b) = two_executors(json!({})).await;
    drop(a);
    let mut thief = world.dial(Some(&world.token), hello("a", 9)).await.unwrap();
    let forged = || vec![result(trigger.run_id, 1, v1::result::Status::Succeeded)];
    assert_eq!(acks_of(&mut thief, forged()).await, [Kind::NoSuchRun]);
    wait_for_run(&world, "its row names its executor", |run| run.executor_id.is_some()).await;
    assert_eq!(acks_of(&mut thief, forged()).await, [Kind::NoSuchRun]);
    let held = vec![v1::RunRef { run_id: trigger.run_id, attempt: 1, ..v1::RunRef::default() }];
    let mut back = world.dial(Some(&world.token), v1::Hello { held, ..hello("a", 1) }).await.unwrap();
    check_stored(&mut back, result(trigger.run_id, 1, v1::result::Status::Succeeded)).await;
    world.end().await;
}
