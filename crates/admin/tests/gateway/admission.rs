//! Which executors are admitted, and what the protocol guarantees with one node.

use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_admin::auth::Token;
use rondel_core::RunStatus;
use rondel_core::reason::words;
use rondel_core::words::Lang;
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::Runs as _;
use tonic::Code;

use super::world::{LIMIT, World, create, hello, request, runs, store, success_result};

async fn refusal(world: &World, token: Option<&Token>, hello: v1::Hello) -> (Code, String) {
    match world.dial(token, hello).await {
        Ok(_) => (Code::Ok, String::new()),
        Err(status) => (status.code(), status.message().to_owned()),
    }
}

#[tokio::test]
async fn an_executor_that_is_not_admitted_receives_the_reason() {
    let world = World::start().await;
    let token = Some(&world.token);
    let (code, _) = refusal(&world, None, hello("a", 1)).await;
    assert_eq!(code, Code::Unauthenticated);
    let (code, _) = refusal(&world, Some(&Token::generate()), hello("a", 1)).await;
    assert_eq!(code, Code::Unauthenticated);
    let unknown = v1::Hello { app: "nothing".to_owned(), ..hello("a", 1) };
    let (code, message) = refusal(&world, token, unknown).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.contains("\"nothing\""), "{message}");
    for (protocol, advice) in [(0, "update the executor's SDK"), (99, "update the server first")] {
        let (code, message) = refusal(&world, token, v1::Hello { protocol, ..hello("a", 1) }).await;
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains(advice) && message.contains(&format!("version {protocol}")), "{message}");
    }
    for (bad, field) in [
        (v1::Hello { slots: 0, ..hello("a", 1) }, "slots"),
        (v1::Hello { incarnation: 0, ..hello("a", 1) }, "incarnation"),
        (hello("<script>", 1), "name"),
    ] {
        let (code, message) = refusal(&world, token, bad).await;
        assert_eq!(code, Code::InvalidArgument);
        assert!(message.starts_with(field), "{message}");
    }
    world.end().await;
}

#[tokio::test]
async fn two_executors_that_claim_one_incarnation_are_refused() {
    let world = World::start().await;
    let mut first = world.dial(Some(&world.token), hello("a", 42)).await.unwrap();
    first.receive(|body| matches!(body, Down::Welcome(_)).then_some(())).await;
    for name in ["a", "b"] {
        let (code, message) = refusal(&world, Some(&world.token), hello(name, 42)).await;
        assert_eq!(code, Code::AlreadyExists, "{message}");
    }
    // The first stream stays open.
    first.send(Up::Heartbeat(v1::Heartbeat { sequence: 9, ..v1::Heartbeat::default() })).await;
    let sequence = first.receive(|body| match body {
        Down::HeartbeatReply(reply) => Some(reply.sequence),
        _ => None,
    });
    assert_eq!(sequence.await, 9);
    world.end().await;
}

/// Of two streams of one executor only the later counts. The other one is ended, even if messages still arrive on it.
#[tokio::test]
async fn a_stream_that_another_one_replaced_is_ended() {
    let config = EngineConfig { heartbeat: Duration::from_millis(200), ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let first = world.dial(Some(&world.token), hello("a", 42)).await.unwrap();
    let replaced = async {
        loop {
            match world.dial(Some(&world.token), hello("a", 42)).await {
                Ok(line) => return line.beat(),
                // The executor was heard recently on its first stream.
                Err(status) => assert_eq!(status.code(), Code::AlreadyExists),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut second = tokio::time::timeout(LIMIT, replaced).await.unwrap();
    first.beat().wait_for_end().await;
    // The second stream stays open.
    second.receive(|body| matches!(body, Down::HeartbeatReply(_)).then_some(())).await;
    let job = create(&world, serde_json::json!({})).await;
    request(&world, &job).await;
    let trigger = second.trigger().await;
    second.send(success_result(&trigger)).await;
    assert_eq!(second.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// An executor dials this server by a second URL, and has not closed the stream of the first one. Its runs on that stream may be missing in the
/// second hello.
#[tokio::test]
async fn a_second_stream_of_an_executor_does_not_replace_one_that_it_has_open() {
    let config = EngineConfig { heartbeat: Duration::from_millis(200), ..EngineConfig::default() };
    let world = World::start_on(store(), config).await;
    let mut first = world.dial(Some(&world.token), hello("a", 42)).await.unwrap();
    let node = first.receive(|body| match body {
        Down::Welcome(welcome) => Some(welcome.node_id),
        _ => None,
    });
    let node = node.await;
    // The server has not heard the executor for two heartbeats.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = v1::Hello { connected_nodes: vec![node + 1, node], ..hello("a", 42) };
    let (code, message) = refusal(&world, Some(&world.token), second).await;
    assert_eq!(code, Code::AlreadyExists, "{message}");
    let elsewhere = v1::Hello { connected_nodes: vec![node + 1], ..hello("a", 42) };
    assert_eq!(refusal(&world, Some(&world.token), elsewhere).await, (Code::Ok, String::new()));
    drop(first);
    world.end().await;
}

/// A result is durable before it is acknowledged; a repeated one is a duplicate; one for an unknown run is rejected.
#[tokio::test]
async fn results_are_durable_before_they_are_acknowledged_and_may_arrive_twice() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let trigger = line.trigger().await;
    line.send(success_result(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert_eq!(runs(&world).await[0].status, RunStatus::Succeeded);
    line.send(success_result(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Duplicate);
    line.send(success_result(&v1::Trigger { run_id: 5, ..trigger })).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::NoSuchRun);
    assert_eq!(world.engine.counters().get(rondel_admin::Count::ResultsUnknown), 1);
    world.end().await;
}

/// A broken stream is not a lost executor: held runs continue, and a trigger that never arrived gets another attempt.
#[tokio::test]
async fn a_new_stream_lists_held_runs_and_the_others_are_sent_again() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let held = line.trigger().await;
    request(&world, &job).await;
    let lost = line.trigger().await;
    drop(line);
    tokio::time::timeout(LIMIT, async {
        while !world.engine.online_executors().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let report = vec![v1::RunRef { run_id: held.run_id, attempt: held.attempt, ..v1::RunRef::default() }];
    let mut line = world.dial(Some(&world.token), v1::Hello { held: report, ..hello("a", 1) }).await.unwrap();
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (lost.run_id, 2));
    line.send(success_result(&held)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    line.send(success_result(&again)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert!(runs(&world).await.iter().all(|run| run.status == RunStatus::Succeeded));
    world.end().await;
}

/// A successor that proves its predecessor settles the predecessor's runs immediately, without thirty seconds of
/// silence.
#[tokio::test]
async fn a_successor_brings_the_journal_and_the_rest_is_known_to_be_lost() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let journaled = line.trigger().await;
    request(&world, &job).await;
    let died = line.trigger().await;
    drop(line);
    let finished = vec![v1::RunRef { run_id: journaled.run_id, attempt: journaled.attempt, ..v1::RunRef::default() }];
    let successor = v1::Hello { finished, ..super::world::successor("a", 2, 1) };
    let mut line = world.dial(Some(&world.token), successor).await.unwrap();
    line.send(success_result(&journaled)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    let again = line.trigger().await;
    assert_eq!((again.run_id, again.attempt), (died.run_id, 2));
    let attempts = world.store.attempts(rondel_core::RunId::new(died.run_id)).await.unwrap();
    assert_eq!(attempts.len(), 1);
    world.end().await;
}

/// A process that is killed before it is welcomed leaves its journal to the next process, which does not know of the
/// killed one.
#[tokio::test]
async fn a_journal_is_reported_after_two_restarts() {
    let world = World::start().await;
    let job = create(&world, serde_json::json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let journaled = line.trigger().await;
    drop(line);
    let finished = vec![v1::RunRef { run_id: journaled.run_id, attempt: journaled.attempt, ..v1::RunRef::default() }];
    let restarted =
        |incarnation| v1::Hello { finished: finished.clone(), ..super::world::successor("a", incarnation, 1) };
    drop(world.dial(Some(&world.token), restarted(2)).await.unwrap());
    let mut line = world.dial(Some(&world.token), restarted(3)).await.unwrap();
    line.send(success_result(&journaled)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// An executor that does not stop a run at its deadline receives a cancel in the name of the timeout; then the run is
/// closed, and its job continues.
#[tokio::test]
async fn a_run_that_continues_past_its_deadline_is_closed() {
    let (overdue_ask, overdue_timeout) = (Duration::from_secs(1), Duration::from_secs(3));
    let world =
        World::start_on(store(), EngineConfig { overdue_ask, overdue_timeout, ..EngineConfig::default() }).await;
    let job = create(&world, serde_json::json!({"timeout": "1s"})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let ignored = line.trigger().await;
    let started = v1::Reply {
        kind: v1::reply::Kind::Started.into(),
        run_id: ignored.run_id,
        attempt: ignored.attempt,
        ..v1::Reply::default()
    };
    line.send(Up::Replies(v1::Replies { replies: vec![started] })).await;
    request(&world, &job).await;
    let asked = line.receive(|body| match body {
        Down::Cancels(cancels) => cancels.cancels.into_iter().next(),
        _ => None,
    });
    let asked = asked.await;
    assert_eq!((asked.run_id, asked.by.contains("timeout")), (ignored.run_id, true), "{asked:?}");
    // The job is serial: its next run starts when this one is closed.
    let next = line.trigger().await;
    assert_ne!(next.run_id, ignored.run_id);
    let run = world.store.runs(&[rondel_core::RunId::new(ignored.run_id)]).await.unwrap().remove(0);
    assert_eq!(run.status, RunStatus::TimedOut);
    assert!(run.message.unwrap_or_default().contains("executor a did not stop it"));
    line.send(success_result(&next)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    // The late result of the closed run changes nothing.
    line.send(success_result(&ignored)).await;
    assert_ne!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// A run of a job that runs at most once ends with an unknown outcome if the executor does not stop it, and has no reason that names a lost
/// executor, since the executor was connected.
#[tokio::test]
async fn an_at_most_once_run_that_is_closed_past_its_deadline_does_not_blame_a_lost_executor() {
    let (overdue_ask, overdue_timeout) = (Duration::from_secs(1), Duration::from_secs(2));
    let world =
        World::start_on(store(), EngineConfig { overdue_ask, overdue_timeout, ..EngineConfig::default() }).await;
    let job = create(&world, serde_json::json!({"timeout": "1s", "delivery": "at_most_once"})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let ignored = line.trigger().await;
    let (run_id, attempt) = (ignored.run_id, ignored.attempt);
    let kind = v1::reply::Kind::Started.into();
    let started = v1::Reply { kind, run_id, attempt, ..v1::Reply::default() };
    line.send(Up::Replies(v1::Replies { replies: vec![started] })).await;
    // The job is serial: its next run starts when this one is closed.
    request(&world, &job).await;
    assert_ne!(line.trigger().await.run_id, run_id);
    let run = world.store.runs(&[rondel_core::RunId::new(run_id)]).await.unwrap().remove(0);
    assert_eq!((run.status, run.reason, run.attempt), (RunStatus::Unknown, None, 1));
    let sentence = |lang| words::sentence(words::RunStatusFacts::of(&run), lang).unwrap();
    let en = "Outcome unknown: it ran past its timeout of 1 s, and executor a never reported that it ended.";
    assert_eq!(sentence(Lang::En), en);
    assert_eq!(sentence(Lang::Zh), "结果未知：执行超过时限 1 秒，执行器 a 始终没有报告它已结束。");
    world.end().await;
}

/// Each field of a hello is bounded, since it is stored, kept in memory and listed.
#[tokio::test]
async fn hello_fields_are_bounded_and_the_refusal_names_field_value_and_bound() {
    let world = World::start().await;
    let token = Some(&world.token);
    let labels = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into_iter().collect();
    let names = |count: usize| (0..count).map(|n| format!("{n:099}")).collect::<Vec<String>>();
    let long = "x".repeat(1_000_000);
    for (bad, field, value, bound) in [
        (v1::Hello { labels: labels(&long, "v"), ..hello("a", 1) }, "labels:", "xxx…", "at most 100"),
        (v1::Hello { labels: labels("zone", &long), ..hello("a", 1) }, "labels: zone:", "xxx…", "at most 200"),
        (
            v1::Hello { labels: (0..101).map(|n| (n.to_string(), String::new())).collect(), ..hello("a", 1) },
            "labels:",
            "there are 101",
            "at most 100",
        ),
        (v1::Hello { sdk_version: long.clone(), ..hello("a", 1) }, "sdk_version:", "1000000 bytes", "at most 100"),
        (v1::Hello { handlers: vec![long.clone()], ..hello("a", 1) }, "handlers:", "xxx…", ""),
        (v1::Hello { handlers: names(1_001), ..hello("a", 1) }, "handlers:", "there are 1001", "at most 1000"),
        (v1::Hello { handlers: names(900), ..hello("a", 1) }, "handlers:", "91800 bytes", "at most 65536"),
        (hello(&long, 1), "name:", "xxx…", ""),
    ] {
        let (code, message) = refusal(&world, token, bad).await;
        assert_eq!(code, Code::InvalidArgument, "{message}");
        assert!(message.starts_with(field) && message.contains(value) && message.contains(bound), "{message}");
        assert!(message.len() < 500, "{}", message.len());
    }
    let full = v1::Hello {
        handlers: names(600),
        labels: labels(&"k".repeat(100), &"v".repeat(200)),
        sdk_version: "v".repeat(100),
        ..hello("a", 1)
    };
    assert_eq!(refusal(&world, token, full).await.0, Code::Ok);
    world.end().await;
}
