//! Timeouts, cancels, silence and the drain.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel::{Cancel, JobError, Params, Timing};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::result::Status as End;
use rondel_proto::v1::server_message::Body as ToExecutor;
use rondel_proto::v1::{self, Cancels, Fence, RefusedWhy, Trigger};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fake::{EPOCH, FakeServer, NODE, trigger};
use super::{RunningExecutor, builder, quick};

/// Stops when asked.
async fn responsive(cancel: Cancel) -> Result<(), JobError> {
    cancel.cancelled().await;
    Ok(cancel.check()?)
}

/// Never stops on its own.
async fn unresponsive() {
    std::future::pending::<()>().await;
}

fn cancel(run_id: i64) -> ToExecutor {
    ToExecutor::Cancels(Cancels { cancels: vec![v1::Cancel { run_id, attempt: 1, by: "alice".to_owned() }] })
}

#[tokio::test]
async fn a_cancelled_run_names_the_user() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(
        builder(&server).handler("responsive", responsive).handler("unresponsive", unresponsive),
    );
    server.trigger_all(vec![trigger(1, "responsive"), trigger(2, "unresponsive")]).await;
    server.reply(2, Kind::Started).await;
    server.send(cancel(1)).await;
    server.send(cancel(2)).await;
    let (responsive, unresponsive) = (server.result(1).await, server.result(2).await);
    assert_eq!((responsive.status(), responsive.message.as_str()), (End::Cancelled, "cancelled by alice"));
    assert_eq!(unresponsive.status(), End::Cancelled);
    assert_eq!(unresponsive.message, "cancelled by alice; aborted because it did not stop within 300ms");
    executor.stop().await;
}

#[tokio::test]
async fn a_run_that_waits_for_a_slot_is_cancelled_without_a_start() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("unresponsive", unresponsive).slots(1));
    server.trigger_all(vec![trigger(1, "unresponsive"), trigger(2, "unresponsive")]).await;
    server.reply(2, Kind::Accepted).await;
    server.send(cancel(2)).await;
    let result = server.result(2).await;
    assert_eq!((result.status(), result.started_at_ms), (End::Cancelled, 0));
    executor.crash().await;
}

#[tokio::test]
async fn a_run_beyond_its_time_is_stopped() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(
        builder(&server).handler("responsive", responsive).handler("unresponsive", unresponsive),
    );
    let timed = |run_id, handler| Trigger { timeout_ms: 100, ..trigger(run_id, handler) };
    server.trigger_all(vec![timed(1, "responsive"), timed(2, "unresponsive")]).await;
    let (responsive, unresponsive) = (server.result(1).await, server.result(2).await);
    assert_eq!(
        (responsive.status(), responsive.message.as_str(), responsive.retryable),
        (End::TimedOut, "timed out after 100ms", true)
    );
    assert_eq!(unresponsive.status(), End::TimedOut);
    assert!(unresponsive.finished_at_ms - unresponsive.started_at_ms >= 400, "{unresponsive:?}");
    executor.stop().await;
}

#[tokio::test]
async fn tasks_of_a_run_end_with_it() {
    let gone = Arc::new(Notify::new());
    struct OnDrop(Arc<Notify>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let handler = {
        let gone = Arc::clone(&gone);
        move || {
            let guard = OnDrop(Arc::clone(&gone));
            async move {
                rondel::spawn(async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                });
            }
        }
    };
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("spawn", handler));
    server.trigger(trigger(1, "spawn")).await;
    server.result(1).await;
    tokio::time::timeout(super::LIMIT, gone.notified()).await.unwrap();
    executor.stop().await;
}

/// A handler that returns once it is notified.
fn work_until(go: &Arc<Notify>) -> impl Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + use<> {
    let go = Arc::clone(go);
    move || {
        let go = Arc::clone(&go);
        Box::pin(async move { go.notified().await })
    }
}

#[tokio::test]
async fn a_drain_lets_running_ones_finish_and_takes_no_more() {
    let go = Arc::new(Notify::new());
    let work = work_until(&go);
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("work", work).slots(1));
    server.trigger_all(vec![trigger(1, "work"), trigger(2, "work")]).await;
    server.reply(1, Kind::Started).await;
    executor.begin_stop();
    server.find(|body| matches!(body, Body::Draining(_)).then_some(())).await;
    // The run that waited for a slot is refused, and so is a trigger that arrives now.
    assert_eq!(server.reply(2, Kind::Refused).await.refused(), RefusedWhy::Draining);
    server.trigger(trigger(3, "work")).await;
    assert_eq!(server.reply(3, Kind::Refused).await.refused(), RefusedWhy::Draining);
    go.notify_one();
    executor.stop().await;
    assert_eq!(server.result(1).await.status(), End::Succeeded);
    server.wait_for_session_end().await;
}

/// Any server may have taken over a run of a fenced lease, so a refusal might reach no server that has it.
#[tokio::test]
async fn a_drain_hands_waiting_runs_of_a_fenced_lease_back_by_their_results() {
    let go = Arc::new(Notify::new());
    let work = work_until(&go);
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("work", work).slots(1));
    server.trigger_all(vec![trigger(1, "work"), trigger(2, "work")]).await;
    server.reply(1, Kind::Started).await;
    server.send(ToExecutor::Fence(Fence { node_id: NODE, node_epoch: EPOCH })).await;
    server.find(|body| matches!(body, Body::FenceReply(_)).then_some(())).await;
    server.set_acks(false);
    executor.begin_stop();
    let handed_back = server.result(2).await;
    assert_eq!((handed_back.status(), handed_back.started_at_ms), (End::Failed, 0));
    assert!(handed_back.shutting_down && handed_back.message == "stopped: the executor is shutting down");
    server.wait_for_results(2, 2).await;
    server.set_acks(true);
    go.notify_one();
    executor.stop().await;
    assert_eq!(server.result(1).await.status(), End::Succeeded);
}

#[tokio::test]
async fn a_drain_ends_runs_that_do_not_end() {
    let server = FakeServer::start().await;
    let builder = builder(&server).handler("unresponsive", unresponsive).drain_grace(Duration::from_millis(200));
    let executor = RunningExecutor::start(builder);
    server.trigger(trigger(1, "unresponsive")).await;
    server.reply(1, Kind::Started).await;
    executor.stop().await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.retryable), (End::Failed, true));
    assert!(result.message.starts_with("stopped: the executor is shutting down"), "{result:?}");
}

#[tokio::test]
async fn a_verdict_of_a_handler_that_has_not_read_the_drain_is_kept() {
    async fn decide(Params(skips): Params<bool>) -> Result<(), JobError> {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Err(if skips { JobError::skip("nothing to do") } else { JobError::terminal("no such region") })
    }
    let server = FakeServer::start().await;
    let timing = Timing { cancel_grace: Duration::from_secs(60), ..quick() };
    let builder = builder(&server).handler("decide", decide).timing(timing).drain_grace(Duration::from_millis(10));
    let executor = RunningExecutor::start(builder);
    let with = |run_id, params: &str| Trigger { params: params.to_owned(), ..trigger(run_id, "decide") };
    server.trigger_all(vec![with(1, "true"), with(2, "false")]).await;
    server.reply(2, Kind::Accepted).await;
    executor.stop().await;
    let (skipped, failed) = (server.result(1).await, server.result(2).await);
    assert_eq!((skipped.status(), skipped.message.as_str()), (End::Skipped, "nothing to do"));
    assert_eq!((failed.status(), failed.message.as_str(), failed.retryable), (End::Failed, "no such region", false));
}

#[tokio::test]
async fn without_any_answer_serial_runs_stop_and_others_continue() {
    let server = FakeServer::start().await;
    let timing = Timing { silence_max: Some(Duration::from_millis(500)), ..quick() };
    let executor = RunningExecutor::start(builder(&server).handler("unresponsive", unresponsive).timing(timing));
    let serial = Trigger { serial: true, ..trigger(1, "unresponsive") };
    let once = Trigger { at_most_once: true, ..trigger(2, "unresponsive") };
    server.trigger_all(vec![serial, once, trigger(3, "unresponsive")]).await;
    server.reply(3, Kind::Accepted).await;
    server.set_heartbeat_replies(false);
    for run_id in [1, 2] {
        let result = server.result(run_id).await;
        assert_eq!((result.status(), result.retryable), (End::Failed, true));
        assert!(result.message.starts_with("stopped: no server answered for 500ms"), "{result:?}");
    }
    assert_eq!(server.count_results(3), 0);
    executor.crash().await;
}

/// The job's `on_silence` takes precedence over its overlap policy.
#[tokio::test]
async fn a_run_continues_without_any_answer_as_long_as_its_job_allows() {
    use rondel_proto::v1::OnSilence;
    let server = FakeServer::start().await;
    let timing = Timing { silence_max: Some(Duration::from_millis(300)), ..quick() };
    let began = Instant::now();
    let executor =
        RunningExecutor::start(builder(&server).handler("unresponsive", unresponsive).slots(4).timing(timing));
    let serial = |run_id| Trigger { serial: true, ..trigger(run_id, "unresponsive") };
    let goes_on =
        |run_id, silence_max_ms| Trigger { on_silence: OnSilence::Continue.into(), silence_max_ms, ..serial(run_id) };
    let stops = Trigger { on_silence: OnSilence::Stop.into(), ..trigger(4, "unresponsive") };
    server.trigger_all(vec![serial(1), goes_on(2, 600), goes_on(3, 0), stops]).await;
    server.reply(4, Kind::Accepted).await;
    // Acknowledgements count as answers, so the server sends none. After a second, the executor opens a new stream,
    // whose welcome ends the silence.
    server.set_heartbeat_replies(false);
    server.set_acks(false);
    for run_id in [1, 4] {
        let result = server.result(run_id).await;
        assert_eq!((result.status(), result.silent_ms), (End::Failed, 300), "{result:?}");
    }
    // On a busy machine, the longer silence and the grace may have passed, too.
    assert!(server.count_results(2) == 0 || began.elapsed() >= Duration::from_millis(900));
    let result = server.result(2).await;
    assert!(result.silent_ms >= 600, "{result:?}");
    assert_eq!(server.count_results(3), 0);
    executor.crash().await;
}

/// A paused process may resume when a slot becomes free, before it has noticed the silence.
#[tokio::test]
async fn a_run_that_waits_for_a_slot_does_not_begin_after_too_long_a_silence() {
    let server = FakeServer::start().await;
    let (through, begun) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (end, begin) = (Arc::clone(&through), Arc::clone(&begun));
    let busy = move || {
        let end = Arc::clone(&end);
        async move { end.notified().await }
    };
    let waiting = move || {
        begin.store(true, Ordering::Relaxed);
        async {}
    };
    let silence = Duration::from_millis(300);
    // The sweep comes too late, so only the free slot makes the executor check the silence.
    let timing = Timing { silence_max: Some(silence), sweep_period: Duration::from_secs(60), ..quick() };
    let builder = builder(&server).handler("busy", busy).handler("waiting", waiting).slots(1);
    let executor = RunningExecutor::start(builder.timing(timing));
    server.trigger_all(vec![trigger(1, "busy"), Trigger { serial: true, ..trigger(2, "waiting") }]).await;
    server.reply(2, Kind::Accepted).await;
    server.set_heartbeat_replies(false);
    tokio::time::sleep(silence * 2).await;
    through.notify_one();
    let result = server.result(2).await;
    assert!(result.message.starts_with("stopped: no server answered for 300ms"), "{result:?}");
    assert!(!begun.load(Ordering::Relaxed));
    assert_eq!(result.started_at_ms, 0, "the handler has not begun, so the run may be sent again");
    executor.crash().await;
}

/// A paused process may notice that its runs must stop at the moment when their handlers return. A handler that succeeded
/// without having read the request has succeeded. A handler that read the request may have stopped halfway, so it has not.
#[tokio::test]
async fn a_success_of_a_handler_that_has_not_read_the_stop_counts() {
    let server = FakeServer::start().await;
    let (reached, through) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reach, end) = (Arc::clone(&reached), Arc::clone(&through));
    let unaware = move || {
        let end = Arc::clone(&end);
        async move { end.notified().await }
    };
    let aware = move |cancel: Cancel| {
        let reach = Arc::clone(&reach);
        async move {
            cancel.cancelled().await;
            reach.notify_one();
        }
    };
    let timing =
        Timing { silence_max: Some(Duration::from_millis(500)), cancel_grace: Duration::from_secs(60), ..quick() };
    let builder = builder(&server).handler("unaware", unaware).handler("aware", aware);
    let executor = RunningExecutor::start(builder.timing(timing));
    let once = |run_id, handler| Trigger { at_most_once: true, ..trigger(run_id, handler) };
    server.trigger_all(vec![once(1, "unaware"), once(2, "aware")]).await;
    server.reply(1, Kind::Started).await;
    server.reply(2, Kind::Started).await;
    server.set_heartbeat_replies(false);
    reached.notified().await;
    through.notify_one();
    let (unaware, aware) = (server.result(1).await, server.result(2).await);
    assert_eq!(unaware.status(), End::Succeeded, "{unaware:?}");
    assert!(aware.message.starts_with("stopped: no server answered"), "{aware:?}");
    executor.crash().await;
}
