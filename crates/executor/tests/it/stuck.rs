//! Handlers that hold their thread: the executor goes on beside them.

use std::sync::{Arc, Mutex, mpsc};

use rondel::State;
use rondel_proto::v1::Trigger;
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::result::Status as End;
use tokio_util::sync::CancellationToken;

use super::builder;
use super::fake::{FakeServer, trigger};

/// What a handler waits for without letting go of its thread.
type Gate = Arc<Mutex<mpsc::Receiver<()>>>;

async fn holding(State(gate): State<Gate>) {
    // An error means that the test is over: just as good.
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
    let executor = builder(&server).state(gate).handler("holding", holding).handler("quick", quick).slots(1);
    let executor = executor.build().unwrap();
    let until = stop.clone().cancelled_owned();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(executor.run_until(until))
    });
    server.trigger_all(vec![Trigger { timeout_ms: 100, ..trigger(1, "holding") }, trigger(2, "quick")]).await;
    let stuck = server.result(1).await;
    assert_eq!(stuck.status(), End::TimedOut);
    assert!(stuck.message.contains("timed out after 100ms; the handler does not yield"), "{}", stuck.message);
    assert!(server.log(1).iter().any(|line| line.level == "error" && line.text.contains("does not yield")));
    // The other one waits for the slot; heartbeats report it.
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
