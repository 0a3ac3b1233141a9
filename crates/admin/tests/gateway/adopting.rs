//! A server that takes over runs while the database fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::reason::WaitFor;
use rondel_core::{Run, RunStatus};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::result_ack::Kind;
use rondel_store::catalog::JobRecord;
use rondel_store::{Cluster as _, MemStore, Result, Store, StoreError};
use serde_json::json;
use tokio::time::timeout;

use super::world::{LIMIT, Line, World, create, hello, request, runs, store, success_result};

/// A store that performs the first adoption but returns no answer. It may also fail the first read of a roll call.
#[derive(Debug)]
struct LostAdoptionStore {
    inner: Arc<MemStore>,
    is_lost: AtomicBool,
    /// Set once the planned failure of a roll call's read has happened, and from the start if none is planned.
    is_failure_done: AtomicBool,
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
            is_failure_done: AtomicBool::new(!fails_roll_call),
            is_reading: AtomicBool::new(false),
            may_fail: AtomicBool::new(false),
        }
    }

    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "sessions_that_may_have_carried" && !self.is_failure_done.load(Ordering::SeqCst) {
            self.is_reading.store(true, Ordering::SeqCst);
            wait_until_set(&self.may_fail).await;
            self.is_failure_done.store(true, Ordering::SeqCst);
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

/// A run that waits for its next attempt goes before the later runs of its job, even if the answer to its adoption was lost.
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
    assert!(lost.is_failure_done.load(Ordering::SeqCst));
    world.die().await;
}

/// A store whose answers about fences are lost while `loses` is set.
#[derive(Debug)]
struct LostFences {
    inner: Arc<MemStore>,
    loses: AtomicBool,
}

impl LostFences {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let done = effect.await;
        if name == "orphaned_jobs" && self.loses.load(Ordering::SeqCst) {
            return Err(StoreError::no_answer(name));
        }
        done
    }
}

rondel_store::delegate_store!(LostFences);

/// A server that fences a dead one and gets no answer.
struct Heir {
    world: World,
    lost: Arc<LostFences>,
    /// The executor of the second job.
    line: Line,
    /// The trigger of the run that the executor of the dead server has.
    first: v1::Trigger,
    /// A job under the same limit.
    second: JobRecord,
}

impl Heir {
    /// Starts two servers and kills the one that counts a limit of `max` runs. One of these runs is at an executor.
    async fn of_limit(max: u32) -> Self {
        let inner = store();
        let dies = World::start_on(Arc::clone(&inner), server_config("a")).await;
        let lost = Arc::new(LostFences { inner: Arc::clone(&inner), loses: AtomicBool::new(false) });
        let as_store = Arc::clone(&lost) as Arc<dyn Store>;
        let world = World::start_behind(Arc::clone(&inner), as_store, server_config("b")).await;
        let limited = |name: &str| json!({"name": name, "handler": name, "concurrency": {"key": "db", "max": max}});
        let mut line = dies.dial(Some(&dies.token), with_handler("first", hello("x", 1))).await.unwrap().beat();
        request(&dies, &create(&dies, limited("first")).await).await;
        let first = line.trigger().await;
        let begun = async {
            while !world.engine.readiness().knows_open_runs {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(LIMIT, begun).await.is_ok(), "the heir does not begin");

        let dead = dies.engine.token();
        lost.loses.store(true, Ordering::SeqCst);
        dies.die().await;
        let fenced = async {
            while !inner.nodes().await.unwrap().iter().any(|node| node.id == dead.node && node.epoch > dead.epoch) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(LIMIT, fenced).await.is_ok(), "the dead server is not fenced");
        let line = world.dial(Some(&world.token), with_handler("second", hello("y", 2))).await.unwrap().beat();
        let second = create(&world, limited("second")).await;
        Self { world, lost, line, first, second }
    }

    /// The run of the second job.
    async fn run_of_second(&self) -> Run {
        let mut found = runs(&self.world).await;
        found.retain(|run| run.job == self.second.id);
        found.remove(0)
    }

    /// Whether the executor of the second job gets a run within this time.
    async fn sends_within(&mut self, limit: Duration) -> bool {
        timeout(limit, self.line.trigger()).await.is_ok()
    }
}

/// The configuration of a server with a short lease.
fn server_config(name: &str) -> EngineConfig {
    EngineConfig {
        node_name: name.to_owned(),
        lease: Duration::from_secs(1),
        beat: Duration::from_millis(200),
        ..EngineConfig::default()
    }
}

fn with_handler(handler: &str, hello: v1::Hello) -> v1::Hello {
    v1::Hello { handlers: vec![handler.to_owned()], ..hello }
}

/// The fence makes the server the home of a dead server's limits. Until it knows the runs that have places under them, it starts none.
#[tokio::test]
async fn a_shared_limit_holds_though_the_answer_to_a_fence_was_lost() {
    let mut heir = Box::pin(Heir::of_limit(1)).await;
    request(&heir.world, &heir.second).await;
    assert!(!heir.sends_within(Duration::from_secs(4)).await, "the first run has the only place");
    heir.lost.loses.store(false, Ordering::SeqCst);
    let hello = with_handler("first", hello("x", 1));
    let executor = heir.world.dial(Some(&heir.world.token), hello).await.unwrap().beat();
    let begins = async {
        loop {
            executor.send(success_result(&heir.first)).await;
            if heir.sends_within(Duration::from_millis(200)).await {
                return;
            }
        }
    };
    assert!(timeout(LIMIT, begins).await.is_ok(), "the place is free");
    heir.world.die().await;
}

/// A store that lists the nodes slowly: a server that starts looks for dead nodes before its first beat has read any.
#[derive(Debug)]
struct SlowNodes {
    inner: Arc<MemStore>,
}

impl SlowNodes {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "nodes" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(SlowNodes);

/// A server that fenced a dead one, and died before it had taken over the runs, still counts the limits of the dead server after its restart.
#[tokio::test]
async fn a_shared_limit_holds_though_the_heir_restarts_after_the_fence() {
    let Heir { world, second, .. } = Box::pin(Heir::of_limit(1)).await;
    let inner = Arc::clone(&world.store);
    world.die().await;
    let as_store = Arc::new(SlowNodes { inner: Arc::clone(&inner) }) as Arc<dyn Store>;
    let world = World::start_behind(inner, as_store, server_config("b")).await;
    let mut line = world.dial(Some(&world.token), with_handler("second", hello("z", 3))).await.unwrap().beat();
    request(&world, &second).await;
    assert!(timeout(Duration::from_secs(4), line.trigger()).await.is_err(), "the first run has the only place");
    world.die().await;
}

/// A run that waits until all open runs are known, and is cancelled meanwhile, does not start once they are known.
#[tokio::test]
async fn a_run_that_is_cancelled_during_an_adoption_does_not_start() {
    let mut heir = Box::pin(Heir::of_limit(2)).await;
    request(&heir.world, &heir.second).await;
    assert!(!heir.sends_within(Duration::from_secs(2)).await, "not all open runs are known");
    heir.world.engine.cancel_run(heir.run_of_second().await.id, "test").await.unwrap();
    heir.lost.loses.store(false, Ordering::SeqCst);
    assert!(!heir.sends_within(Duration::from_secs(4)).await, "it was cancelled");
    assert_eq!(heir.run_of_second().await.status, RunStatus::Cancelled);
    heir.world.die().await;
}
