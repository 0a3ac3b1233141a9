//! Handlers that block their threads: the executor continues to work.

use std::sync::{Arc, Mutex, mpsc};

use rondel::{State, Timing};
use rondel_proto::v1::Trigger;
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::result::Status as End;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::fake::{FakeServer, trigger};
use super::{RunningExecutor, builder};

/// A handler that waits for a message on this receiver blocks its thread meanwhile.
type Gate = Arc<Mutex<mpsc::Receiver<()>>>;

async fn blocks_its_thread(State(gate): State<Gate>) {
    // An error means that the test has ended, and the handler returns, too.
    gate.lock().unwrap().recv().ok();
}

async fn quick() -> Result<u32, rondel::JobError> {
    Ok(7)
}

#[tokio::test]
async fn a_handler_that_holds_the_only_thread_gets_its_verdict_and_keeps_its_slot() {
    let server = FakeServer::start().await;
    let (open, gate) = mpsc::channel();
    let gate: Gate = Arc::new(Mutex::new(gate));
    let stop = CancellationToken::new();
    let executor =
        builder(&server).state(gate).handler("blocks_its_thread", blocks_its_thread).handler("quick", quick).slots(1);
    let executor = executor.build().unwrap();
    let until = stop.clone().cancelled_owned();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(executor.run_until(until))
    });
    server.trigger_all(vec![Trigger { timeout_ms: 100, ..trigger(1, "blocks_its_thread") }, trigger(2, "quick")]).await;
    let stuck = server.result(1).await;
    assert_eq!(stuck.status(), End::TimedOut);
    assert!(stuck.message.contains("timed out after 100ms; the handler does not yield"), "{}", stuck.message);
    assert!(server.log(1).iter().any(|line| line.level == "error" && line.text.contains("does not yield")));
    // The second run waits for the slot; heartbeats report it.
    server.forget_seen();
    let waits =
        |body: &Body| matches!(body, Body::Heartbeat(beat) if (beat.running, beat.queued) == (1, 1)).then_some(());
    server.find(waits).await;
    open.send(()).unwrap();
    let done = server.result(2).await;
    assert_eq!((done.status(), done.result.as_str()), (End::Succeeded, "7"));
    stop.cancel();
    tokio::task::spawn_blocking(move || thread.join()).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_blocking_handler_that_does_not_return_gets_its_verdict_and_keeps_its_slot() {
    struct OnDrop(Arc<Notify>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let gone = Arc::new(Notify::new());
    let blocking = {
        let gone = Arc::clone(&gone);
        move |State(gate): State<Gate>| {
            gate.lock().unwrap().recv().ok();
            let guard = OnDrop(Arc::clone(&gone));
            rondel::spawn(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
        }
    };
    let server = FakeServer::start().await;
    let (open, gate) = mpsc::channel();
    let gate: Gate = Arc::new(Mutex::new(gate));
    // Results are not sent again within the test, so a second result would come from the handler's return.
    let timing = Timing { resend_after: super::LIMIT, ..super::quick() };
    let builder = builder(&server).state(gate).blocking_handler("blocking", blocking).handler("quick", quick);
    let running = RunningExecutor::start(builder.slots(1).timing(timing));
    server.trigger_all(vec![Trigger { timeout_ms: 100, ..trigger(1, "blocking") }, trigger(2, "quick")]).await;
    let stuck = server.result(1).await;
    assert_eq!(stuck.status(), End::TimedOut);
    let message = "timed out after 100ms; the blocking handler does not return and cannot be aborted";
    assert!(stuck.message.starts_with(message), "{}", stuck.message);
    assert_eq!(server.count_results(2), 0, "it waits for the slot");
    open.send(()).unwrap();
    let done = server.result(2).await;
    assert_eq!((done.status(), done.result.as_str()), (End::Succeeded, "7"));
    // The run has ended, so a task that its handler spawns now is aborted.
    tokio::time::timeout(super::LIMIT, gone.notified()).await.unwrap();
    running.stop().await;
    assert_eq!(server.count_results(1), 1);
}
