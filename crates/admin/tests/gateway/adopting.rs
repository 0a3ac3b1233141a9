//! A server that takes over runs while the database fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::reason::WaitFor;
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::result_ack::Kind;
use rondel_store::{MemStore, Result, Store, StoreError};
use serde_json::json;
use tokio::time::timeout;

use super::world::{LIMIT, World, create, hello, request, runs, store};

/// A store that performs the first adoption without an answer. It may also fail the first read of a roll call.
#[derive(Debug)]
struct LostAdoptionStore {
    inner: Arc<MemStore>,
    is_lost: AtomicBool,
    /// Whether the read of the roll call that is to fail has failed, or none is to fail.
    has_failed: AtomicBool,
    /// Whether that read has begun.
    is_reading: AtomicBool,
    /// Whether that read may fail now; until then it waits.
    may_fail: AtomicBool,
}

impl LostAdoptionStore {
    fn new(inner: &Arc<MemStore>, fails_roll_call: bool) -> Self {
        Self {
            inner: Arc::clone(inner),
            is_lost: AtomicBool::new(false),
            has_failed: AtomicBool::new(!fails_roll_call),
            is_reading: AtomicBool::new(false),
            may_fail: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "sessions_that_may_have_carried" && !self.has_failed.load(Ordering::SeqCst) {
            self.is_reading.store(true, Ordering::SeqCst);
            wait_until_set(&self.may_fail).await;
            self.has_failed.store(true, Ordering::SeqCst);
            return Err(StoreError::no_answer(name));
        }
        let done = effect.await;
        if name == "adopt" && !self.is_lost.swap(true, Ordering::SeqCst) {
            return Err(StoreError::no_answer(name));
        }
        done
    }
}

rondel_store::delegate_store!(LostAdoptionStore);

async fn wait_until_set(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A run that waits for its next attempt goes before the later runs of its job, also if the answer to its adoption was lost.
#[tokio::test]
async fn a_retry_keeps_its_turn_though_the_answer_to_its_adoption_was_lost() {
    let (inner, config) = (store(), EngineConfig { lease: Duration::from_secs(1), ..EngineConfig::default() });
    let config = EngineConfig { beat: Duration::from_millis(200), ..config };
    let world = World::start_on(Arc::clone(&inner), config.clone()).await;
    let job = create(&world, json!({"retry": {"max": 1, "backoff": "1h"}})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let first = line.trigger().await;
    let (run_id, attempt) = (first.run_id, first.attempt);
    let status = v1::result::Status::Failed.into();
    let failed = v1::Result { run_id, attempt, status, retryable: true, started_at_ms: 1, ..v1::Result::default() };
    line.send(Up::Results(v1::Results { results: vec![failed] })).await;
    assert_eq!(line.ack().await.kind(), Kind::Stored);
    world.die().await;

    // The next start of the server takes over the runs of its earlier lease.
    let lost = Arc::new(LostAdoptionStore::new(&inner, false));
    let world = World::start_behind(inner, Arc::clone(&lost) as Arc<dyn Store>, config).await;
    let line = world.dial(Some(&world.token), hello("b", 2)).await.unwrap().beat();
    request(&world, &job).await;
    assert!(timeout(LIMIT, wait_for_later_run(&world, run_id)).await.is_ok(), "the later run does not wait");
    assert!(lost.is_lost.load(Ordering::SeqCst));
    drop(line);
    world.die().await;
}

/// Waits until the run that was requested after this one waits for it.
async fn wait_for_later_run(world: &World, first: i64) {
    loop {
        let later = runs(world).await.into_iter().find(|run| run.id.get() != first);
        if later.is_some_and(|run| run.waits_for() == Some(WaitFor::Run)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The attempt of a run ends while its roll call cannot be prepared: the run goes before the later runs of its job nevertheless.
#[tokio::test]
async fn a_retry_keeps_its_turn_though_its_roll_call_came_too_late() {
    let (inner, config) = (store(), EngineConfig { lease: Duration::from_secs(1), ..EngineConfig::default() });
    let config = EngineConfig { beat: Duration::from_millis(200), ..config };
    let world = World::start_on(Arc::clone(&inner), config.clone()).await;
    // The row of a run that may run at most once names its executor from the beginning.
    let spec = json!({"delivery": "at_most_once", "retry": {"max": 1, "backoff": "1h"}});
    let job = create(&world, spec).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let first = line.trigger().await;
    world.die().await;

    let lost = Arc::new(LostAdoptionStore::new(&inner, true));
    let world = World::start_behind(inner, Arc::clone(&lost) as Arc<dyn Store>, config).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    assert!(timeout(LIMIT, wait_until_set(&lost.is_reading)).await.is_ok(), "no roll call");
    let (run_id, attempt) = (first.run_id, first.attempt);
    let status = v1::result::Status::Failed.into();
    let failed = v1::Result { run_id, attempt, status, retryable: true, started_at_ms: 1, ..v1::Result::default() };
    line.send(Up::Results(v1::Results { results: vec![failed] })).await;
    assert_eq!(line.ack().await.kind(), Kind::Stored);
    lost.may_fail.store(true, Ordering::SeqCst);
    request(&world, &job).await;
    assert!(timeout(LIMIT, wait_for_later_run(&world, run_id)).await.is_ok(), "the later run does not wait");
    assert!(lost.has_failed.load(Ordering::SeqCst));
    world.die().await;
}
