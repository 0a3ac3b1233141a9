//! A run's events become its log, which is on the stream before the run's result.

use rondel::{JobError, Log};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::reply::Kind;

use super::fake::{FakeServer, trigger};
use super::{RunningExecutor, builder};

async fn talk(log: Log) -> Result<(), JobError> {
    for n in 0..3_000 {
        tracing::info!(n, "a line that is long enough to fill a few chunks of the log");
    }
    rondel::spawn(async { tracing::warn!(cause = "none", "from a task") }).await?;
    log.error("the last line");
    Ok(())
}

#[tokio::test]
async fn all_lines_come_before_the_result() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("talk", talk));
    server.trigger(trigger(1, "talk")).await;
    server.result(1).await;
    let mut lines_before = 0;
    for body in server.seen() {
        match body {
            Body::Logs(logs) => lines_before += logs.chunks.iter().map(|chunk| chunk.lines.len()).sum::<usize>(),
            Body::Results(_) => break,
            _ => {}
        }
    }
    assert_eq!(lines_before, 3_002);
    let log = server.log(1);
    assert_eq!(log[7].text, "a line that is long enough to fill a few chunks of the log n=7");
    assert_eq!((log[3_000].level.as_str(), log[3_000].text.as_str()), ("warn", "from a task cause=none"));
    assert_eq!((log[3_001].level.as_str(), log[3_001].text.as_str()), ("error", "the last line"));
    assert!(log[0].at_ms >= 1_800_000_000_000, "by the server's clock");
    executor.stop().await;
}

#[tokio::test]
async fn lines_arrive_during_the_run() {
    let server = FakeServer::start().await;
    let handler = || async {
        tracing::info!("begun");
        std::future::pending::<()>().await;
    };
    let executor = RunningExecutor::start(builder(&server).handler("talk", handler));
    server.trigger(trigger(1, "talk")).await;
    server.find(|body| matches!(body, Body::Logs(_)).then_some(())).await;
    assert_eq!(server.log(1)[0].text, "begun");
    assert_eq!(server.count_results(1), 0);
    executor.crash().await;
}

#[tokio::test]
async fn unanswered_lines_go_again_on_the_next_session_before_the_result() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let go = std::sync::Arc::new(tokio::sync::Notify::new());
    let handler = {
        let go = std::sync::Arc::clone(&go);
        move || {
            let go = std::sync::Arc::clone(&go);
            async move {
                tracing::info!("before the break");
                go.notified().await;
                tracing::info!("after the break");
            }
        }
    };
    let executor = RunningExecutor::start(builder(&server).handler("talk", handler));
    server.trigger(trigger(1, "talk")).await;
    server.reply(1, Kind::Accepted).await;
    server.find(|body| matches!(body, Body::Logs(_)).then_some(())).await;
    server.disconnect().await;
    server.forget_seen();
    server.hello(1).await;
    server.set_acks(true);
    go.notify_one();
    server.result(1).await;
    let seen = server.seen();
    let result_at = seen.iter().position(|body| matches!(body, Body::Results(_))).unwrap();
    let last_log_at = seen.iter().rposition(|body| matches!(body, Body::Logs(_))).unwrap();
    assert!(last_log_at < result_at);
    let texts: Vec<String> = server.log(1).into_iter().map(|line| line.text).collect();
    assert_eq!(texts, ["before the break", "after the break"]);
    executor.stop().await;
}

#[tokio::test]
async fn a_panic_is_in_the_log() {
    let server = FakeServer::start().await;
    let handler = || async {
        assert!(rondel::run::current().is_none(), "out of luck");
    };
    let executor = RunningExecutor::start(builder(&server).handler("panic", handler));
    server.trigger(trigger(1, "panic")).await;
    assert_eq!(server.result(1).await.message, "panicked: out of luck");
    let log = server.log(1);
    assert_eq!((log[0].level.as_str(), log[0].text.as_str()), ("error", "panicked: out of luck"));
    executor.stop().await;
}
