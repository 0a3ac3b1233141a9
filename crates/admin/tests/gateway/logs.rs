//! Log lines that the database stores late or not at all.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::outcome::{NextStep, NextStepPolicy, Outcome};
use rondel_core::run::RunJob;
use rondel_core::{IdGen, Run, RunId, Trigger};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::ledger::{AttemptEnd, EndOutcome, Finisher};
use rondel_store::{MemStore, Result, Store, StoreError};
use serde_json::json;

use super::world::{Line, World, create, hello, request, runs, store};

/// A store that fails calls to write logs with these errors first, and all such calls while it is down.
#[derive(Debug)]
struct FailingStore {
    inner: Arc<MemStore>,
    errors: Mutex<VecDeque<StoreError>>,
    is_down: AtomicBool,
}

impl FailingStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name != "append_logs" {
            return effect.await;
        }
        if self.is_down.load(Ordering::SeqCst) {
            return Err(no_answer());
        }
        let error = self.errors.lock().unwrap().pop_front();
        match error {
            Some(error) => Err(error),
            None => effect.await,
        }
    }
}

rondel_store::delegate_store!(FailingStore);

fn no_answer() -> StoreError {
    StoreError::no_answer("append_logs")
}

fn refusal() -> StoreError {
    StoreError::Corrupt { table: "run_log", column: "data", id: 7, message: "refused by the test".to_owned() }
}

fn failing_store(errors: impl IntoIterator<Item = StoreError>) -> Arc<FailingStore> {
    let errors = Mutex::new(errors.into_iter().collect());
    Arc::new(FailingStore { inner: store(), errors, is_down: AtomicBool::new(false) })
}

/// A world whose store first fails calls to write logs with these errors, and an executor that has a run.
async fn start(errors: impl IntoIterator<Item = StoreError>) -> (World, Line, v1::Trigger) {
    start_on(&failing_store(errors)).await
}

async fn start_on(failing: &Arc<FailingStore>) -> (World, Line, v1::Trigger) {
    let (inner, as_store) = (Arc::clone(&failing.inner), Arc::clone(failing) as Arc<dyn Store>);
    let world = World::start_behind(inner, as_store, EngineConfig::default()).await;
    let job = create(&world, json!({})).await;
    request(&world, &job).await;
    let mut line = world.dial(Some(&world.token), hello("e", 1)).await.unwrap();
    let trigger = line.trigger().await;
    (world, line, trigger)
}

/// A message with one chunk per number; each chunk has one line.
fn logs(trigger: &v1::Trigger, sequences: &[i64]) -> Up {
    let chunk = |sequence: &i64| v1::LogChunk {
        run_id: trigger.run_id,
        attempt: trigger.attempt,
        sequence: *sequence,
        lines: vec![v1::LogLine { text: sequence.to_string(), ..v1::LogLine::default() }],
        ..v1::LogChunk::default()
    };
    Up::Logs(v1::Logs { chunks: sequences.iter().map(chunk).collect() })
}

/// A message with chunks of these numbers, each nearly as large as a chunk may be.
fn long_logs(trigger: &v1::Trigger, sequences: Range<i64>) -> Up {
    let line = v1::LogLine { text: "x".repeat(60_000), ..v1::LogLine::default() };
    let (run_id, attempt) = (trigger.run_id, trigger.attempt);
    let chunk = |sequence| v1::LogChunk { run_id, attempt, sequence, lines: vec![line.clone(); 4], dropped: 0 };
    Up::Logs(v1::Logs { chunks: sequences.map(chunk).collect() })
}

/// The numbers of the chunks in the next acknowledgement.
async fn acked_sequences(line: &mut Line) -> Vec<i64> {
    line.receive(|body| match body {
        Down::LogAcks(acks) => Some(acks.acks.iter().map(|ack| ack.sequence).collect()),
        _ => None,
    })
    .await
}

async fn stored_sequences(world: &World, trigger: &v1::Trigger) -> Vec<i64> {
    let run = RunId::new(trigger.run_id);
    let chunks = rondel_store::Logs::log_chunks(world.store.as_ref(), run, trigger.attempt, -1, 10).await.unwrap();
    chunks.iter().map(|chunk| chunk.sequence).collect()
}

#[tokio::test]
async fn lines_wait_for_the_database_and_are_acknowledged_when_it_has_them() {
    let (world, mut line, trigger) = start([no_answer(), no_answer()]).await;
    line.send(logs(&trigger, &[0])).await;
    line.send(logs(&trigger, &[1])).await;
    let mut all = Vec::new();
    while !all.contains(&1) {
        all.extend(acked_sequences(&mut line).await);
    }
    assert_eq!((all, stored_sequences(&world, &trigger).await), (vec![0, 1], vec![0, 1]));
    drop(line);
    world.die().await;
}

#[tokio::test]
async fn a_chunk_that_the_database_refuses_is_dropped_alone_and_all_are_acknowledged_together() {
    // The first error is for both chunks together, the second for one of them alone.
    let (world, mut line, trigger) = start([refusal(), refusal()]).await;
    line.send(logs(&trigger, &[0, 1])).await;
    assert_eq!(acked_sequences(&mut line).await, [0, 1]);
    assert_eq!(stored_sequences(&world, &trigger).await, [1]);
    let metrics = world.engine.metrics().await.unwrap();
    assert!(metrics.contains("rondel_log_lines_dropped_total 1\n"), "{metrics}");
    line.send(logs(&trigger, &[2])).await;
    assert_eq!(
        (acked_sequences(&mut line).await, stored_sequences(&world, &trigger).await),
        (vec![2], vec![1, 2]),
        "logs go on"
    );
    drop(line);
    world.die().await;
}

#[tokio::test]
async fn a_mark_of_dropped_lines_without_a_line_beside_it_has_the_present_instant() {
    let (world, mut line, trigger) = start([]).await;
    let before = world.engine.now();
    let (run_id, attempt) = (trigger.run_id, trigger.attempt);
    let chunk = v1::LogChunk { run_id, attempt, dropped: 7, ..v1::LogChunk::default() };
    line.send(Up::Logs(v1::Logs { chunks: vec![chunk] })).await;
    assert_eq!(acked_sequences(&mut line).await, [0]);
    let run = RunId::new(run_id);
    let chunks = rondel_store::Logs::log_chunks(world.store.as_ref(), run, attempt, -1, 10).await.unwrap();
    let marks: Vec<_> = chunks.iter().flat_map(|chunk| &chunk.lines).collect();
    assert!(marks.iter().all(|mark| mark.at >= before && mark.text.contains("7 lines were dropped here")), "{marks:?}");
    assert_eq!(marks.len(), 1);
    drop(line);
    world.die().await;
}

/// While the database does not answer, two of these messages fit into the queue of a stream.
#[tokio::test]
async fn lines_without_room_leave_a_mark_and_are_acknowledged_with_it() {
    let failing = failing_store([]);
    let (world, mut line, trigger) = start_on(&failing).await;
    failing.is_down.store(true, Ordering::SeqCst);
    line.send(logs(&trigger, &[0])).await;
    line.wait_until_read(1).await;
    for first in [1, 7, 13] {
        line.send(long_logs(&trigger, first..first + 6)).await;
    }
    // By then, the wait of the third message for room has timed out.
    line.wait_until_read(2).await;
    failing.is_down.store(false, Ordering::SeqCst);
    let (mut acked, mut beat) = (Vec::new(), 2);
    while !acked.contains(&18) {
        beat += 1;
        for body in line.receive_until_read(beat).await {
            if let Down::LogAcks(acks) = body {
                acked.extend(acks.acks.iter().map(|ack| ack.sequence));
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(acked, (0..=12).chain([18]).collect::<Vec<i64>>());
    let run = RunId::new(trigger.run_id);
    let chunks = rondel_store::Logs::log_chunks(world.store.as_ref(), run, trigger.attempt, 12, 10).await.unwrap();
    let [mark] = &chunks[..] else { panic!("{} chunks", chunks.len()) };
    assert_eq!((mark.sequence, mark.lines.len()), (18, 1));
    assert!(mark.lines[0].text.contains("24 lines were dropped here"), "{}", mark.lines[0].text);
    drop(line);
    world.die().await;
}

/// After an outage, an executor sends the lines of many attempts that were followed by another one meanwhile.
#[tokio::test]
async fn lines_of_many_earlier_attempts_are_stored_together() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let (world, mut line, _trigger) = start([]).await;
    let Run { namespace, job, job_version, app, .. } = runs(&world).await.remove(0);
    let run_job = RunJob { namespace, job, job_version, app };
    let (token, now, executor) = (world.engine.token(), world.engine.now(), world.engine.online_executors()[0].id);
    let policy = NextStepPolicy {
        retry_max: 1,
        backoff: HOUR,
        backoff_max: HOUR,
        at_least_once: true,
        has_fixed_delay: false,
        awaits_children: false,
        is_pump: false,
    };
    let (mut ends, mut chunks) = (Vec::new(), Vec::new());
    for _ in 0..600 {
        let id = world.engine.new_id();
        let run = Run::new(RunId::new(id), run_job, now, Trigger::Api, (token.node, token.epoch));
        world.engine.store().request_run(token, Run { cause: id, due_at: now + HOUR, ..run }).await.unwrap();
        ends.push(AttemptEnd {
            run: RunId::new(id),
            job,
            attempt: 1,
            outcome: Outcome::Failed { retryable: true },
            policy,
            executor: Some((executor, "e".to_owned())),
            started_at: Some(now),
            finished_at: now,
            message: None,
            result: None,
            trace: None,
            detail: None,
            jitter: 0.5,
            owner: None,
            is_unsent: false,
            is_unfinished: false,
        });
        let lines = vec![v1::LogLine { text: "late".to_owned(), ..v1::LogLine::default() }];
        chunks.push(v1::LogChunk { run_id: id, attempt: 1, lines, ..v1::LogChunk::default() });
    }
    let finisher_ids = IdGen::new(1023);
    let stored = world.engine.store().finish(Finisher { token, ids: &finisher_ids }, &ends).await.unwrap();
    let has_another = |outcome: &EndOutcome| matches!(outcome, EndOutcome::Stored(NextStep::Retry { .. }, _));
    assert!(stored.outcomes.iter().all(has_another), "{:?}", stored.outcomes);
    line.send(Up::Logs(v1::Logs { chunks })).await;
    assert_eq!(acked_sequences(&mut line).await.len(), ends.len());
    for end in &ends {
        let chunks = world.engine.store().log_chunks(end.run, 1, -1, 10).await.unwrap();
        assert_eq!(chunks.len(), 1, "run {}", end.run);
    }
    drop(line);
    world.die().await;
}
