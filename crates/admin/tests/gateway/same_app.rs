//! A malicious executor of the same app. It has the same token, but must not impersonate or succeed another executor,
//! and must not write to its logs.

use std::time::Duration;

use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::{Executors as _, Logs as _, Runs as _};
use serde_json::json;
use tonic::Code;

use super::world::{
    LIMIT, Line, World, begun_replies, create, hello, request, runs, secret, success_result, successor,
};

/// The executor `a`, which holds a run.
async fn with_a_run() -> (World, Line, v1::Trigger) {
    let world = World::start().await;
    let job = create(&world, json!({"overlap": {"policy": "allow"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    request(&world, &job).await;
    let trigger = line.trigger().await;
    line.send(begun_replies(&trigger)).await;
    (world, line, trigger)
}

async fn run(world: &World, trigger: &v1::Trigger) -> Run {
    world.store.runs(&[RunId::new(trigger.run_id)]).await.unwrap().remove(0)
}

/// Waits until everything sent before has been processed.
async fn round_trip(line: &mut Line) {
    line.send(Up::Heartbeat(v1::Heartbeat { sequence: 77, ..v1::Heartbeat::default() })).await;
    line.receive(|body| match body {
        Down::HeartbeatReply(reply) if reply.sequence == 77 => Some(()),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_living_executor_has_no_successor_without_its_secret() {
    let (world, mut line, trigger) = with_a_run().await;
    let claims = [
        v1::Hello { predecessor: 1, ..hello("a", 2) },
        v1::Hello { predecessor_secret: secret(2), ..successor("a", 3, 1) },
        v1::Hello { predecessor: 1, secret: Vec::new(), ..hello("a", 4) },
    ];
    for claim in claims {
        let mut thief = world.dial(Some(&world.token), claim).await.unwrap();
        round_trip(&mut thief).await;
        let got = tokio::time::timeout(Duration::from_millis(500), thief.trigger()).await;
        assert!(got.is_err(), "{got:?}");
        assert_eq!(run(&world, &trigger).await.attempt, 1);
    }
    // The forged executors count as other executors, with other names.
    let online = world.engine.online_executors();
    assert_eq!(online.iter().filter(|one| one.name == "a").count(), 1, "{online:?}");
    line.send(success_result(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// An executor with the secret is the successor, even before its predecessor's stream has ended.
#[tokio::test]
async fn the_secret_of_the_data_directory_proves_the_predecessor() {
    let (world, mut line, trigger) = with_a_run().await;
    line.send(Up::Draining(v1::Draining::default())).await;
    round_trip(&mut line).await;
    let mut heir = world.dial(Some(&world.token), successor("a", 2, 1)).await.unwrap();
    let again = heir.trigger().await;
    assert_eq!((again.run_id, again.attempt), (trigger.run_id, 2));
    heir.send(success_result(&again)).await;
    assert_eq!(heir.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// An executor with an old SDK has no secret: its next process becomes its successor once its stream has ended.
#[tokio::test]
async fn an_executor_without_a_secret_has_a_successor_once_it_is_gone() {
    let world = World::start().await;
    let job = create(&world, json!({})).await;
    let old = |incarnation, predecessor| v1::Hello { secret: Vec::new(), predecessor, ..hello("a", incarnation) };
    let mut line = world.dial(Some(&world.token), old(1, 0)).await.unwrap();
    request(&world, &job).await;
    let trigger = line.trigger().await;
    let mut thief = world.dial(Some(&world.token), old(2, 1)).await.unwrap();
    round_trip(&mut thief).await;
    assert_eq!(run(&world, &trigger).await.attempt, 1);
    drop((line, thief));
    let gone = async {
        while !world.engine.online_executors().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.unwrap();
    // The end of the stream is stored a moment after the executor leaves the list.
    let again = async {
        for incarnation in 3.. {
            let mut heir = world.dial(Some(&world.token), old(incarnation, 1)).await.unwrap();
            if let Ok(again) = tokio::time::timeout(Duration::from_secs(1), heir.trigger()).await {
                return again;
            }
        }
        unreachable!("the loop does not end")
    };
    let again = tokio::time::timeout(LIMIT, again).await.unwrap();
    assert_eq!((again.run_id, again.attempt), (trigger.run_id, 2));
    world.end().await;
}

#[tokio::test]
async fn an_incarnation_is_refused_without_its_secret() {
    let (world, line, trigger) = with_a_run().await;
    drop(line);
    let gone = async {
        while !world.engine.online_executors().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, gone).await.unwrap();
    for secret in [secret(2), Vec::new()] {
        let refused = world.dial(Some(&world.token), v1::Hello { secret, ..hello("a", 1) }).await.err().unwrap();
        assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
        assert!(refused.message().contains("secret"), "{refused}");
    }
    let held = vec![v1::RunRef { run_id: trigger.run_id, attempt: trigger.attempt, ..v1::RunRef::default() }];
    let mut back = world.dial(Some(&world.token), v1::Hello { held, ..hello("a", 1) }).await.unwrap();
    back.send(success_result(&trigger)).await;
    assert_eq!(back.ack().await.kind(), v1::result_ack::Kind::Stored);
    world.end().await;
}

/// The longest line that is stored uncut.
const LINE_BYTES: usize = 64 * 1024;

fn lines(trigger: &v1::Trigger, sequence: i64, text: &str) -> Up {
    let line = |text: &[u8]| {
        let text = String::from_utf8(text.to_vec()).unwrap();
        v1::LogLine { at_ms: 1, level: "info".to_owned(), text }
    };
    let lines = text.as_bytes().chunks(LINE_BYTES).map(line).collect();
    let (run_id, attempt) = (trigger.run_id, trigger.attempt);
    let chunk = v1::LogChunk { run_id, attempt, sequence, lines, dropped: 0 };
    Up::Logs(v1::Logs { chunks: vec![chunk] })
}

async fn log_ack(line: &mut Line) {
    line.receive(|body| matches!(body, Down::LogAcks(_)).then_some(())).await;
}

async fn logged_lines(world: &World, trigger: &v1::Trigger) -> Vec<String> {
    let chunks = world.store.log_chunks(RunId::new(trigger.run_id), trigger.attempt, -1, 1_000).await.unwrap();
    chunks.into_iter().flat_map(|chunk| chunk.lines).map(|line| line.text).collect()
}

#[tokio::test]
async fn log_lines_are_accepted_only_from_an_executor_that_holds_or_held_the_run() {
    let (world, mut line, trigger) = with_a_run().await;
    let mut other = world.dial(Some(&world.token), hello("b", 2)).await.unwrap();
    // Forged lines are sent before any row names the run's executor, while the run is running, and after it has ended.
    other.send(lines(&trigger, 100, "forged at once")).await;
    log_ack(&mut other).await;
    line.send(lines(&trigger, 0, "one")).await;
    log_ack(&mut line).await;
    let noted = async {
        while run(&world, &trigger).await.executor_id.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, noted).await.unwrap();
    other.send(lines(&trigger, 101, "forged while it runs")).await;
    log_ack(&mut other).await;
    line.send(success_result(&trigger)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    other.send(lines(&trigger, 102, "forged afterwards")).await;
    log_ack(&mut other).await;
    // The run's own executor may send lines after the result, if it could not send them before.
    line.send(lines(&trigger, 1, "two")).await;
    log_ack(&mut line).await;
    assert_eq!(logged_lines(&world, &trigger).await, ["one", "two"]);
    world.end().await;
}

/// After the stream broke, lines of the present attempt and of the abandoned one arrive on a new stream.
#[tokio::test]
async fn late_lines_of_an_earlier_attempt_are_accepted() {
    let (world, line, first) = with_a_run().await;
    drop(line);
    // The reconnected executor does not hold the run: the run is sent again, and lines of the first attempt follow.
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await;
    while line.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        line = world.dial(Some(&world.token), hello("a", 1)).await;
    }
    let mut line = line.unwrap();
    let second = line.trigger().await;
    assert_eq!((second.run_id, second.attempt), (first.run_id, 2));
    line.send(lines(&first, 0, "of the first")).await;
    log_ack(&mut line).await;
    line.send(lines(&second, 0, "of the second")).await;
    log_ack(&mut line).await;
    assert_eq!(logged_lines(&world, &first).await, ["of the first"]);
    assert_eq!(logged_lines(&world, &second).await, ["of the second"]);
    line.send(success_result(&second)).await;
    assert_eq!(line.ack().await.kind(), v1::result_ack::Kind::Stored);
    assert!(runs(&world).await.iter().all(|run| run.status == RunStatus::Succeeded));
    world.end().await;
}

/// The log of each run is bounded by the server, whatever limits the executor applies.
#[tokio::test]
async fn a_run_that_logs_without_end_is_cut_off() {
    let (world, mut line, trigger) = with_a_run().await;
    let text = "x".repeat(3 * LINE_BYTES);
    // Besides its text, a line counts for 64 bytes; besides its lines, a chunk counts for 256 bytes.
    let whole = 100 * 1024 * 1024 / (3 * (LINE_BYTES + 64) + 256);
    for sequence in 0..i64::try_from(whole).unwrap() + 5 {
        line.send(lines(&trigger, sequence, &text)).await;
        log_ack(&mut line).await;
    }
    let logged = logged_lines(&world, &trigger).await;
    assert_eq!(logged.len(), 3 * whole + 1, "whole chunks, and one line about the rest");
    let last = &logged[3 * whole];
    assert!(last.contains("this log is full (100 MiB)"), "{}", &last[..100.min(last.len())]);
    world.end().await;
}

/// The end of a stream does not mean that its executor has left. Runs of other servers may still be with it, even while
/// it is stopping.
#[tokio::test]
async fn only_an_executor_that_sends_goodbye_has_left() {
    let world = World::start().await;
    let has_left = async || {
        let sessions = world.store.sessions(Timestamp::EPOCH).await.unwrap();
        let its = sessions.iter().filter(|session| session.executor.get() == 1 && session.ended_at.is_some());
        its.map(|session| session.has_left).collect::<Vec<_>>()
    };
    let job = create(&world, json!({"overlap": {"policy": "allow"}})).await;
    let mut other = world.dial(Some(&world.token), hello("b", 2)).await.unwrap();
    let mut ends = async |goodbye: Option<Up>, expected: bool| {
        let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
        line.send(Up::Draining(v1::Draining::default())).await;
        round_trip(&mut line).await;
        if let Some(goodbye) = goodbye {
            line.send(goodbye).await;
        }
        line.hang_up();
        line.wait_for_end().await;
        let seen = async {
            while has_left().await != [expected] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, seen).await.unwrap();
        // When the next run is sent, the end of the stream has been processed completely.
        request(&world, &job).await;
        other.trigger().await;
        assert_eq!(has_left().await, [expected]);
    };
    ends(None, false).await;
    ends(Some(Up::Goodbye(v1::Goodbye {})), true).await;
    world.end().await;
}
