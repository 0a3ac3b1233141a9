//! A result is kept until a server has acknowledged it: across sessions, servers and restarts.

use std::sync::Arc;
use std::time::Duration;

use rondel::{ExecutorError, JobError};
use rondel_proto::v1::reply::Kind;
use tokio::sync::Notify;

use super::fake::{FakeServer, trigger};
use super::{RunningExecutor, builder};

async fn quick_one() -> Result<&'static str, JobError> {
    Ok("done")
}

fn waits_for(go: &Arc<Notify>) -> impl Fn() -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
    let go = Arc::clone(go);
    move || {
        let go = Arc::clone(&go);
        Box::pin(async move { go.notified().await })
    }
}

#[tokio::test]
async fn an_unanswered_result_is_sent_again() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let executor = RunningExecutor::start(builder(&server).handler("quick", quick_one));
    server.trigger(trigger(1, "quick")).await;
    server.wait_for_results(1, 3).await;
    server.set_acks(true);
    executor.stop().await;
}

#[tokio::test]
async fn a_reconnect_reports_held_runs_and_sends_results() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let go = Arc::new(Notify::new());
    let executor = RunningExecutor::start(builder(&server).handler("quick", quick_one).handler("wait", waits_for(&go)));
    server.trigger_all(vec![trigger(1, "quick"), trigger(2, "wait")]).await;
    server.result(1).await;
    server.forget_seen();
    server.disconnect().await;
    let hello = server.hello(1).await;
    assert_eq!(hello.incarnation, server.hello(0).await.incarnation);
    assert_eq!((hello.held[0].run_id, hello.held.len()), (2, 1));
    assert_eq!((hello.finished[0].run_id, hello.finished.len()), (1, 1));
    assert_eq!(server.result(1).await.result, "\"done\"");
    server.set_acks(true);
    go.notify_one();
    server.result(2).await;
    executor.stop().await;
}

#[tokio::test]
async fn a_result_is_sent_to_another_server_when_its_own_is_gone() {
    let (first, second) = (FakeServer::start_as(1).await, FakeServer::start_as(2).await);
    let go = Arc::new(Notify::new());
    let builder = builder(&first).server(second.url()).handler("wait", waits_for(&go));
    let executor = RunningExecutor::start(builder);
    second.hello(0).await;
    first.trigger(trigger(1, "wait")).await;
    first.reply(1, Kind::Accepted).await;
    first.refuse(Some(tonic::Status::unavailable("down")));
    first.disconnect().await;
    first.hello(1).await;
    go.notify_one();
    second.result(1).await;
    executor.stop().await;
}

#[tokio::test]
async fn a_result_that_one_server_does_not_answer_is_shown_to_another() {
    let (first, second) = (FakeServer::start_as(1).await, FakeServer::start_as(2).await);
    first.set_acks(false);
    let executor = RunningExecutor::start(builder(&first).server(second.url()).handler("quick", quick_one));
    second.hello(0).await;
    first.trigger(trigger(1, "quick")).await;
    first.result(1).await;
    second.result(1).await;
    executor.stop().await;
}

#[tokio::test]
async fn after_a_crash_the_journal_proves_the_predecessor_and_brings_its_results() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::start().await;
    server.set_acks(false);
    let start = || builder(&server).handler("quick", quick_one).data_dir(dir.path());
    let first = RunningExecutor::start(start());
    server.trigger_all(vec![trigger(1, "quick"), trigger(2, "quick")]).await;
    server.result(1).await;
    server.result(2).await;
    let dead = server.hello(0).await.incarnation;
    // The welcome is written to disk shortly after the results.
    let is_remembered = async {
        while !std::fs::read_to_string(dir.path().join("state.json")).unwrap().contains("\"welcomed\":true") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(super::LIMIT, is_remembered).await.unwrap();
    first.crash().await;
    server.forget_seen();
    server.set_acks(true);
    let second = RunningExecutor::start_after(start).await;
    let hello = server.hello(1).await;
    assert_eq!(hello.predecessor, dead);
    assert_ne!(hello.incarnation, dead);
    let finished: Vec<i64> = hello.finished.iter().map(|run| run.run_id).collect();
    assert_eq!(finished, [1, 2]);
    assert_eq!(server.result(1).await.result, "\"done\"");
    second.stop().await;
    // All results are acknowledged, so the next process has none to report.
    let third = RunningExecutor::start_after(start).await;
    let hello = server.hello(2).await;
    assert!(hello.finished.is_empty() && hello.predecessor > 0, "{hello:?}");
    third.stop().await;
}

#[tokio::test]
async fn a_data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("quick", quick_one).data_dir(dir.path()));
    server.hello(0).await;
    let second = builder(&server).data_dir(dir.path()).build();
    assert!(matches!(second, Err(ExecutorError::DataDirInUse { .. })), "{second:?}");
    executor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_runs_are_answered_in_batches() {
    // A busy machine may be slow, so there are up to three tries.
    let mut tries = Vec::new();
    while tries.len() < 3 && tries.iter().all(|took| *took >= Duration::from_secs(10)) {
        tries.push(thousands_of_runs().await);
    }
    assert!(tries.iter().any(|took| *took < Duration::from_secs(10)), "{tries:?}");
}

/// How long 10,000 runs take.
async fn thousands_of_runs() -> Duration {
    async fn noop() {}
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("noop", noop).slots(20_000));
    server.hello(0).await;
    let began = tokio::time::Instant::now();
    for batch in 0..20 {
        server.trigger_all((1..=500).map(|run| trigger(batch * 500 + run, "noop")).collect()).await;
    }
    server.result(10_000).await;
    executor.stop().await;
    let took = began.elapsed();
    let messages = server.seen().len();
    assert!(messages < 2_000, "{messages} messages for 20,000 items");
    took
}
