//! From hello to acknowledgement, and the answers that triggers get.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use rondel::{Cancel, JobError, Params, Progress, RunContext, Shard, shard};
use rondel_proto::v1::executor_message::Body;
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::result::Status as End;
use rondel_proto::v1::server_message::Body as ToExecutor;
use rondel_proto::v1::{Fence, ProbeReplies, Probes, RefusedWhy, Trigger};
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

use super::fake::{EPOCH, FakeServer, NODE, trigger};
use super::{RunningExecutor, builder};

async fn double(Params(n): Params<i64>) -> Result<i64, JobError> {
    Ok(n * 2)
}

#[tokio::test]
async fn hello_trigger_result_ack() {
    let server = FakeServer::start().await;
    let builder = builder(&server).handler("double", double).label("zone", "a").weight(3).slots(9);
    let executor = RunningExecutor::start(builder);
    let hello = server.hello(0).await;
    assert_eq!((hello.namespace.as_str(), hello.app.as_str(), hello.name.as_str()), ("default", "app", "tester"));
    assert_eq!((hello.weight, hello.slots, hello.handlers.as_slice()), (3, 9, &["double".to_owned()][..]));
    assert_eq!(hello.labels.get("zone").map(String::as_str), Some("a"));
    let [info] = hello.handler_infos.as_slice() else { panic!("{:?}", hello.handler_infos) };
    let schema: serde_json::Value = serde_json::from_str(&info.params_schema).unwrap();
    assert_eq!((info.name.as_str(), &schema["type"]), ("double", &"integer".into()));
    assert!(hello.incarnation > 0 && hello.predecessor == 0 && hello.sdk_version.starts_with("rondel-rust/"));
    assert_eq!(server.authorizations(), ["Bearer secret"]);

    server.trigger(Trigger { params: "21".to_owned(), ..trigger(1, "double") }).await;
    let result = server.result(1).await;
    assert_eq!((result.status(), result.result.as_str(), result.job_id), (End::Succeeded, "42", 1));
    assert!(result.message.is_empty() && !result.retryable);
    assert!(result.started_at_ms >= 1_800_000_000_000, "by the server's clock");
    assert!(result.finished_at_ms >= result.started_at_ms);
    server.reply(1, Kind::Accepted).await;
    executor.stop().await;
    assert_eq!(server.count_results(1), 1, "acknowledged, so not sent again");
}

#[tokio::test]
async fn errors_are_failures_of_their_kind() {
    async fn fail(Params(kind): Params<String>) -> Result<(), JobError> {
        match kind.as_str() {
            "io" => Err(std::io::Error::other("disk on fire"))?,
            "terminal" => return Err(JobError::terminal("never")),
            "skip" => return Err(JobError::skip("nothing to do")),
            _ => panic!("what is {kind}?"),
        }
        Ok(())
    }
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("fail", fail));
    for (run_id, (kind, status, message, retryable)) in [
        ("\"io\"", End::Failed, "disk on fire", true),
        ("\"terminal\"", End::Failed, "never", false),
        ("\"skip\"", End::Skipped, "nothing to do", false),
        ("\"x\"", End::Failed, "panicked: what is x?", true),
        ("5", End::Failed, "params: invalid type: integer `5`, expected a string at line 1 column 1", false),
    ]
    .into_iter()
    .enumerate()
    {
        let run_id = i64::try_from(run_id).unwrap() + 1;
        server.trigger(Trigger { params: kind.to_owned(), ..trigger(run_id, "fail") }).await;
        let result = server.result(run_id).await;
        assert_eq!((result.status(), result.message.as_str(), result.retryable), (status, message, retryable));
    }
    executor.stop().await;
}

#[tokio::test]
async fn a_repeated_trigger_is_answered_and_not_run() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let (calls, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (calls, go) = (Arc::clone(&calls), Arc::clone(&go));
        move || {
            let (calls, go) = (Arc::clone(&calls), Arc::clone(&go));
            async move {
                calls.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
            }
        }
    };
    let executor = RunningExecutor::start(builder(&server).handler("wait", handler));
    server.trigger_all(vec![trigger(1, "wait"), trigger(1, "wait")]).await;
    server.trigger(trigger(1, "wait")).await;
    // The run has not ended, so a repeated trigger is accepted again.
    server.wait_for_replies(1, Kind::Accepted, 3).await;
    go.notify_one();
    server.wait_for_results(1, 1).await;
    // The run has finished: a repeated trigger is answered by the result, both before and after the acknowledgement.
    server.trigger(trigger(1, "wait")).await;
    server.wait_for_results(1, 2).await;
    server.set_acks(true);
    server.wait_for_results(1, 3).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let before = server.count_results(1);
    server.trigger(trigger(1, "wait")).await;
    server.wait_for_results(1, before + 1).await;
    // Another attempt of the same run is new work.
    server.trigger(Trigger { attempt: 2, ..trigger(1, "wait") }).await;
    server.wait_for_replies(1, Kind::Accepted, 4).await;
    go.notify_one();
    executor.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn triggers_that_cannot_run_are_refused_with_the_reason() {
    let server = FakeServer::start().await;
    let go = Arc::new(Notify::new());
    let handler = {
        let go = Arc::clone(&go);
        move || {
            let go = Arc::clone(&go);
            async move { go.notified().await }
        }
    };
    let executor = RunningExecutor::start(builder(&server).handler("wait", handler).slots(1));
    server.trigger(trigger(100, "missing")).await;
    assert_eq!(server.reply(100, Kind::Refused).await.refused(), RefusedWhy::NoHandler);
    // With one slot, the executor accepts five runs: one that runs, and four that wait.
    let numbered = |run_id| Trigger { fence_n: 10 + run_id, ..trigger(run_id, "wait") };
    server.trigger_all((1..=6).map(numbered).collect()).await;
    let full = server.reply(6, Kind::Refused).await;
    assert_eq!((full.refused(), full.fence_n), (RefusedWhy::Full, 16), "it names the trigger");
    server.reply(5, Kind::Accepted).await;
    server.send(ToExecutor::Fence(Fence { node_id: NODE, node_epoch: EPOCH })).await;
    server.trigger(trigger(7, "wait")).await;
    assert_eq!(server.reply(7, Kind::Refused).await.refused(), RefusedWhy::Fenced);
    // The answer to the fence lists every run that is here.
    let answer = server.find(|body| match body {
        Body::FenceReply(reply) => Some(reply.clone()),
        _ => None,
    });
    let answer = answer.await;
    assert_eq!((answer.node_id, answer.node_epoch, answer.finished.len()), (NODE, EPOCH, 0));
    assert_eq!(answer.held.iter().map(|held| held.run_id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for run_id in 1..=5 {
        go.notify_one();
        server.result(run_id).await;
    }
    executor.stop().await;
}

/// A server may adopt runs that another server sent, so the answer to its fence lists these, too.
#[tokio::test]
async fn a_fence_of_any_node_is_answered_with_everything() {
    let server = FakeServer::start().await;
    server.set_acks(false);
    let executor = RunningExecutor::start(builder(&server).handler("double", double));
    server.trigger(Trigger { params: "21".to_owned(), ..trigger(1, "double") }).await;
    server.result(1).await;
    server.send(ToExecutor::Fence(Fence { node_id: NODE + 1, node_epoch: 8 })).await;
    let answer = server.find(|body| match body {
        Body::FenceReply(reply) => Some(reply.clone()),
        _ => None,
    });
    let answer = answer.await;
    assert_eq!((answer.node_id, answer.node_epoch, answer.held.len()), (NODE + 1, 8, 0));
    assert_eq!(answer.finished.iter().map(|one| one.run_id).collect::<Vec<_>>(), [1]);
    // The result follows on this stream, and triggers of this server's own lease are still accepted.
    server.wait_for_results(1, 2).await;
    server.trigger(Trigger { params: "4".to_owned(), ..trigger(2, "double") }).await;
    assert_eq!(server.result(2).await.result, "8");
    server.set_acks(true);
    executor.stop().await;
}

/// A server whose protocol is older does not understand the executor's replies, so the executor ends the session and
/// dials again.
#[tokio::test]
async fn an_older_server_is_left_until_it_is_newer() {
    let server = FakeServer::start().await;
    server.change_welcome(|welcome| welcome.protocol = 0);
    let executor = RunningExecutor::start(builder(&server).handler("double", double));
    assert_eq!(server.hello(0).await.protocol, rondel_proto::PROTOCOL);
    server.hello(1).await;
    server.change_welcome(|welcome| welcome.protocol = rondel_proto::PROTOCOL);
    server.hello(2).await;
    server.trigger(Trigger { params: "4".to_owned(), ..trigger(2, "double") }).await;
    assert_eq!(server.result(2).await.result, "8");
    executor.stop().await;
}

#[tokio::test]
async fn lasting_runs_are_announced_and_short_ones_are_not() {
    let (go, begun) = (Arc::new(Notify::new()), Arc::new(OnceLock::new()));
    let lasting = {
        let (go, begun) = (Arc::clone(&go), Arc::clone(&begun));
        move |progress: Progress| {
            let (go, begun) = (Arc::clone(&go), Arc::clone(&begun));
            async move {
                begun.get_or_init(Instant::now);
                progress.set(1, 2);
                go.notified().await;
            }
        }
    };
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("short", double).handler("lasting", lasting));
    server.hello(0).await;
    // On a busy machine, one of these runs may last long enough to be announced.
    let short_ones = 1..=5;
    for run_id in short_ones.clone() {
        server.trigger(Trigger { params: "4".to_owned(), ..trigger(run_id, "short") }).await;
        server.result(run_id).await;
    }
    let sent = Instant::now();
    server.trigger(trigger(9, "lasting")).await;
    let started = server.reply(9, Kind::Started).await;
    // The reply states when the run started, not when it was announced, which is 100 ms later.
    let begun_after = *begun.get().unwrap() - sent;
    assert!(u128::try_from(started.started_after_ms).unwrap() <= begun_after.as_millis() + 1, "{started:?}");
    let progress = server.reply(9, Kind::Progress).await;
    assert_eq!((progress.done, progress.total), (1, 2));
    go.notify_one();
    server.result(9).await;
    executor.stop().await;
    let announced = |run_id: i64| {
        server.seen().iter().any(|body| match body {
            Body::Replies(replies) => {
                replies.replies.iter().any(|reply| reply.run_id == run_id && reply.kind() == Kind::Started)
            }
            _ => false,
        })
    };
    assert!(announced(9) && !short_ones.clone().all(announced));
}

#[tokio::test]
async fn progress_is_sent_again_to_a_server_that_comes_back() {
    async fn work(progress: Progress, cancel: Cancel) {
        progress.set(1, 2);
        cancel.cancelled().await;
    }
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("work", work));
    server.trigger(trigger(1, "work")).await;
    server.reply(1, Kind::Progress).await;
    server.forget_seen();
    server.disconnect().await;
    server.hello(1).await;
    let progress = server.reply(1, Kind::Progress).await;
    assert_eq!((progress.done, progress.total), (1, 2));
    executor.crash().await;
}

#[tokio::test]
async fn a_broadcast_shard_is_known_far_away_and_in_tasks() {
    async fn far_away() -> (u32, u32) {
        rondel::spawn(async { (shard::index(), shard::total()) }).await.unwrap()
    }
    async fn work(shard: Shard, run: RunContext) -> Result<(u32, u32, u32, i64, i64), JobError> {
        let (index, total) = rondel::spawn(far_away()).await?;
        Ok((index, total, shard.index, run.fencing_token().term, run.fencing_token().n))
    }
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("work", work));
    let sharded = Trigger { shard_index: 2, shard_total: 3, fence_term: 5, fence_n: 6, ..trigger(1, "work") };
    server.trigger(sharded).await;
    assert_eq!(server.result(1).await.result, "[2,3,2,5,6]");
    executor.stop().await;
}

#[tokio::test]
async fn blocking_handlers_run_in_their_pool() {
    fn sum(Params(numbers): Params<Vec<i64>>) -> Result<i64, JobError> {
        assert_eq!((shard::index(), shard::total()), (0, 1));
        if numbers.is_empty() { panic!("no numbers") } else { Ok(numbers.iter().sum()) }
    }
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).blocking_handler("sum", sum).blocking_threads(1));
    server.trigger(Trigger { params: "[1,2,3]".to_owned(), ..trigger(1, "sum") }).await;
    server.trigger(Trigger { params: "[]".to_owned(), ..trigger(2, "sum") }).await;
    assert_eq!(server.result(1).await.result, "6");
    assert_eq!(server.result(2).await.message, "panicked: no numbers");
    executor.stop().await;
}

/// With fewer threads than slots, a handler would wait for a thread while its timeout is already running.
#[tokio::test]
async fn each_slot_has_a_thread_for_a_blocking_handler() {
    fn meet() {
        static RUNNING: (Mutex<u32>, Condvar) = (Mutex::new(0), Condvar::new());
        let mut count = RUNNING.0.lock().unwrap();
        *count += 1;
        RUNNING.1.notify_all();
        let waited = RUNNING.1.wait_timeout_while(count, super::LIMIT, |count| *count < 40).unwrap();
        assert!(!waited.1.timed_out(), "the others wait for a thread");
    }
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).blocking_handler("meet", meet).slots(40));
    for run in 1..=40 {
        server.trigger(Trigger { job_id: run, ..trigger(run, "meet") }).await;
    }
    for run in 1..=40 {
        assert_eq!(server.result(run).await.message, "", "run {run}");
    }
    executor.stop().await;
}

#[tokio::test]
async fn probes_ask_for_jobs_that_are_not_here() {
    let server = FakeServer::start().await;
    let executor = RunningExecutor::start(builder(&server).handler("wait", std::future::pending::<()>).slots(2));
    server.trigger(Trigger { job_id: 5, ..trigger(1, "wait") }).await;
    server.reply(1, Kind::Accepted).await;
    server.send(ToExecutor::Probes(Probes { probe_id: 9, job_ids: vec![4, 5, 6] })).await;
    let free = server
        .find(|body| match body {
            Body::ProbeReplies(ProbeReplies { probe_id: 9, free_job_ids }) => Some(free_job_ids.clone()),
            _ => None,
        })
        .await;
    assert_eq!(free, [4, 6]);
    executor.crash().await;
}

#[tokio::test]
async fn a_refused_hello_is_tried_again() {
    let server = FakeServer::start().await;
    server.refuse(Some(Status::failed_precondition("no app \"app\" in namespace \"default\"")));
    let executor = RunningExecutor::start(builder(&server).handler("double", double));
    server.hello(2).await;
    server.refuse(None);
    server.trigger(Trigger { params: "1".to_owned(), ..trigger(1, "double") }).await;
    server.result(1).await;
    executor.stop().await;
}

#[tokio::test]
async fn servers_that_a_welcome_names_are_dialled_once() {
    let (first, second) = (FakeServer::start_as(1).await, FakeServer::start_as(2).await);
    first.change_welcome(|welcome| welcome.servers = vec![first.url() + "/", second.url()]);
    let executor = RunningExecutor::start(builder(&first).handler("double", double));
    let (one, two) = (first.hello(0).await, second.hello(0).await);
    assert_eq!(one.incarnation, two.incarnation);
    second.trigger(Trigger { params: "4".to_owned(), ..trigger(1, "double") }).await;
    assert_eq!(second.result(1).await.result, "8");
    assert_eq!(first.count_results(1), 0);
    executor.stop().await;
}

/// A server refuses a second stream by another URL, because runs that come on the first one may be missing in the second hello.
#[tokio::test]
async fn a_hello_names_the_nodes_that_have_a_stream() {
    let (first, second) = (FakeServer::start_as(1).await, FakeServer::start_as(2).await);
    second.refuse(Some(Status::unavailable("not yet")));
    let executor = RunningExecutor::start(builder(&first).server(second.url()).handler("work", async || {}));
    first.trigger(trigger(1, "work")).await;
    first.result(1).await;
    // The number of hellos that the second server has had by now is not known; the executor keeps dialling it.
    let mut number = 0;
    let named = loop {
        let hello = second.hello(number).await;
        if !hello.connected_nodes.is_empty() {
            break hello.connected_nodes;
        }
        number += 1;
    };
    assert_eq!(named, [1]);
    executor.crash().await;
}

/// A URL of a load balancer leads to a server that is connected by its own URL. Each hello costs that server several reads.
#[tokio::test]
async fn another_url_of_a_connected_server_is_dialled_rarely() {
    let (first, second) = (FakeServer::start_as(1).await, FakeServer::start_as(2).await);
    second.refuse(Some(Status::already_exists("connected by another URL")));
    let executor = RunningExecutor::start(builder(&first).server(second.url()).handler("double", double));
    first.hello(0).await;
    second.hello(4).await;
    let before = second.hello_count();
    tokio::time::sleep(Duration::from_secs(2)).await;
    // After nine refusals the URL is dialled only every 30 s; otherwise about thirty more hellos would follow. Refusals
    // from before the first server had welcomed the executor are not among the nine.
    assert!(second.hello_count() <= before + 10, "{} after {before}", second.hello_count());
    executor.crash().await;
}

/// A server is connected by the URL of a load balancer, and that stream is lost: the server's own URL is dialled at once, and often until
/// the server has given up the broken stream.
#[tokio::test]
async fn another_url_is_dialled_when_a_server_is_lost() {
    let (first, other) = (FakeServer::start_as(1).await, FakeServer::start_as(3).await);
    let second = FakeServer::start_as(2).await;
    second.refuse(Some(Status::already_exists("connected by another URL")));
    let builder = builder(&first).server(other.url()).server(second.url()).handler("double", double);
    let executor = RunningExecutor::start(builder);
    first.hello(0).await;
    other.hello(0).await;
    second.hello(4).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = second.hello_count();
    first.refuse(Some(Status::unavailable("it restarts")));
    first.disconnect().await;
    tokio::time::timeout(Duration::from_secs(8), second.hello(before + 4)).await.unwrap();
    executor.crash().await;
}
