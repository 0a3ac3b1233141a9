//! A server that takes its next lease while an executor connects, or while the database fails.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rondel_admin::{EngineConfig, jobs};
use rondel_core::{RunStatus, Timestamp};
use rondel_store::{Cluster as _, Executors as _, MemStore, Result, Store, StoreError};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tonic::Code;

use super::world::{LIMIT, World, begun_replies, create, hello, runs, store, success_result};

/// A store that, once armed, steps its clock back when the next session is stored, and answers only after the node has taken another lease.
#[derive(Debug)]
struct LateSessionStore {
    inner: Arc<MemStore>,
    is_armed: AtomicBool,
    /// How far the clock has stepped back, in milliseconds.
    back_ms: Arc<AtomicI64>,
    /// Whether a session waits for the next lease.
    waits: AtomicBool,
    rejoined: Notify,
}

impl LateSessionStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let done = effect.await;
        if name == "open_session" && self.is_armed.swap(false, Ordering::SeqCst) {
            self.waits.store(true, Ordering::SeqCst);
            self.back_ms.store(2_000, Ordering::SeqCst);
            timeout(LIMIT, self.rejoined.notified()).await.ok();
        }
        // A node asks for the time once it has its next lease.
        if name == "now" && self.waits.swap(false, Ordering::SeqCst) {
            self.rejoined.notify_one();
        }
        done
    }
}

rondel_store::delegate_store!(LateSessionStore);

/// A store whose clock is behind by this many milliseconds.
fn store_set_back_by(back_ms: &Arc<AtomicI64>) -> Arc<MemStore> {
    let (began, back) = (Instant::now(), Arc::clone(back_ms));
    let clock = move || {
        let elapsed = i64::try_from(began.elapsed().as_millis()).unwrap_or(0);
        Timestamp::from_millis(1_000_000_000 + elapsed - back.load(Ordering::SeqCst))
    };
    Arc::new(MemStore::new(Arc::new(clock)))
}

/// The row of the executor's session states that its stream ended with the earlier lease, so nothing may be sent on that stream.
#[tokio::test]
async fn an_executor_that_connects_during_a_change_of_the_lease_connects_again() {
    let back_ms = Arc::new(AtomicI64::new(0));
    let inner = store_set_back_by(&back_ms);
    let late = Arc::new(LateSessionStore {
        inner: Arc::clone(&inner),
        is_armed: AtomicBool::new(false),
        back_ms,
        waits: AtomicBool::new(false),
        rejoined: Notify::new(),
    });
    let config = EngineConfig { beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(inner, Arc::clone(&late) as Arc<dyn Store>, config).await;
    late.is_armed.store(true, Ordering::SeqCst);
    let refused = world.dial(Some(&world.token), hello("a", 1)).await.map(|_| ());
    assert_eq!(refused.map_err(|status| status.code()), Err(Code::Unavailable));
    world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    world.die().await;
}

/// A store that performs some calls but returns no answer to them.
#[derive(Debug)]
struct InterruptedStore {
    inner: Arc<MemStore>,
    /// The next calls in their order, and whether each stays without an answer. A join counts only if it takes a lease.
    turns: Mutex<VecDeque<(&'static str, bool)>>,
}

impl InterruptedStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn epoch(&self) -> i64 {
        let nodes = self.inner.nodes().await.unwrap_or_default();
        nodes.first().map_or(0, |node| node.epoch)
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let before = self.epoch().await;
        let done = effect.await;
        let counts = name != "join" || self.epoch().await > before;
        let mut turns = self.turns.lock().unwrap();
        let is_turn = counts && turns.front().is_some_and(|(turn, _)| *turn == name);
        let fails = is_turn && turns.pop_front().is_some_and(|(_, fails)| fails);
        drop(turns);
        if fails { Err(StoreError::no_answer(name)) } else { done }
    }
}

rondel_store::delegate_store!(InterruptedStore);

/// Steps the clock back, so that the server needs another lease. Then the server makes the calls in `turns` in this order, and those marked
/// `true` get no answer. Waits until the server holds a lease again, at an epoch that is higher by `epochs`. Returns the last error of its
/// beat.
async fn beat_error_after_interruptions(lease: Duration, turns: &[(&'static str, bool)], epochs: i64) -> String {
    let back_ms = Arc::new(AtomicI64::new(0));
    let inner = store_set_back_by(&back_ms);
    let store = Arc::new(InterruptedStore { inner: Arc::clone(&inner), turns: Mutex::default() });
    let config = EngineConfig { lease, beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(inner, Arc::clone(&store) as Arc<dyn Store>, config).await;
    let before = store.epoch().await;
    store.turns.lock().unwrap().extend(turns);
    back_ms.store(i64::try_from(lease.as_millis()).unwrap() * 2, Ordering::SeqCst);
    let holds_again = async {
        while store.epoch().await != before + epochs || !world.engine.readiness().lease_held {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, holds_again).await.is_ok(), "at epoch {} of {before} + {epochs}", store.epoch().await);
    let beat = world.engine.loops().into_iter().find(|report| report.name == "beat");
    world.die().await;
    beat.and_then(|report| report.error).unwrap_or_default()
}

/// The server does not wait for a minute for the end of the lease that it took itself.
#[tokio::test]
async fn a_server_that_is_interrupted_after_it_took_a_lease_takes_the_next_one_at_once() {
    let lease = Duration::from_secs(60);
    let error = beat_error_after_interruptions(lease, &[("join", false), ("beat_sessions", true)], 2).await;
    assert!(error.contains("beat_sessions"), "{error}");
}

/// A server that does not know which lease it took waits until that lease ends. It does not mistake the later end of its own next lease for a
/// renewal by another server.
#[tokio::test]
async fn leases_that_a_server_took_without_an_answer_are_not_those_of_another_server() {
    let error = beat_error_after_interruptions(Duration::from_secs(2), &[("join", true), ("join", true)], 3).await;
    assert!(error.contains("that this server does not act under"), "{error}");
}

/// The row of a server is locked while another one takes over its runs, so the start of the server tries again. It does not mistake the lease
/// whose answer was lost for that of another server.
#[tokio::test]
async fn a_start_tries_again_if_the_database_does_not_answer() {
    let inner = store();
    let config =
        EngineConfig { lease: Duration::from_secs(1), beat: Duration::from_millis(200), ..EngineConfig::default() };
    World::start_on(Arc::clone(&inner), config.clone()).await.die().await;
    let turns = Mutex::new(VecDeque::from([("join", true)]));
    let store = Arc::new(InterruptedStore { inner: Arc::clone(&inner), turns });
    let world = World::start_behind(inner, Arc::clone(&store) as Arc<dyn Store>, config).await;
    assert_eq!((store.epoch().await, store.turns.lock().unwrap().len()), (3, 0));
    world.die().await;
}

/// The database has lost writes of a server, and fails again before the server has its next lease. The server takes another lease
/// nevertheless.
#[tokio::test]
async fn a_server_that_is_interrupted_as_the_database_went_back_takes_another_lease() {
    let inner = store_set_back_by(&Arc::default());
    let store = Arc::new(InterruptedStore { inner: Arc::clone(&inner), turns: Mutex::default() });
    let config =
        EngineConfig { lease: Duration::from_secs(60), beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(Arc::clone(&inner), Arc::clone(&store) as Arc<dyn Store>, config).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let node = inner.nodes().await.unwrap().remove(0);
    inner.release(node.token(), Timestamp::EPOCH).await.unwrap();
    store.turns.lock().unwrap().extend([("renew", false), ("nodes", true)]);
    let goes_on = async {
        while store.epoch().await == node.epoch || !world.engine.readiness().lease_held {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, goes_on).await.is_ok(), "it goes on under the lease that it had");
    assert!(store.turns.lock().unwrap().is_empty() && world.engine.readiness().lost_history.is_some());
    assert_eq!(store.epoch().await, node.epoch + 1);
    world.die().await;
}

/// The clock steps back, so that the server gives its lease up, and the database fails before the next one is taken. By the time that it answers
/// again, the clock would allow a renewal.
#[tokio::test]
async fn a_lease_that_was_given_up_is_not_renewed() {
    let back_ms = Arc::new(AtomicI64::new(0));
    let inner = store_set_back_by(&back_ms);
    let store = Arc::new(InterruptedStore { inner: Arc::clone(&inner), turns: Mutex::default() });
    let config =
        EngineConfig { lease: Duration::from_secs(5), beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(inner, Arc::clone(&store) as Arc<dyn Store>, config).await;
    let before = store.epoch().await;
    let fails = ("nodes", true);
    store.turns.lock().unwrap().extend([("renew", false), fails, fails, fails, fails]);
    // A lease is renewed if the clock has stepped back by less than a tenth of it.
    back_ms.store(800, Ordering::SeqCst);
    let goes_on = async {
        while store.epoch().await == before || !world.engine.readiness().lease_held {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, goes_on).await.is_ok(), "it goes on under the lease that it had given up");
    world.die().await;
}

/// A run is queued behind another one when the clock steps back to before its instant, and then its job is paused. It does not start when the
/// clock reaches its instant again.
#[tokio::test]
async fn a_pause_after_a_step_back_of_the_clock_skips_what_is_queued() {
    let back_ms = Arc::new(AtomicI64::new(0));
    // A step back of less than a tenth of the lease ends no lease.
    let config =
        EngineConfig { lease: Duration::from_secs(60), beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_on(store_set_back_by(&back_ms), config).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    let job = create(&world, json!({"schedule": {"every": "1s"}, "queue_timeout": "60s"})).await;
    let first = line.trigger().await;
    line.send(begun_replies(&first)).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let before = world.engine.now();
    back_ms.store(3_000, Ordering::SeqCst);
    let is_behind = async {
        while world.engine.now() + Duration::from_secs(1) > before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, is_behind).await.is_ok(), "the server has not seen the step");
    // The first run ends before the clock has reached the instant of the queued one.
    let (paused, ()) = tokio::join!(jobs::pause(&world.engine, &job, "li", None), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        line.send(success_result(&first)).await;
    });
    let (_, queued_runs) = paused.unwrap();
    assert!(queued_runs.dropped_count > 0, "{queued_runs:?}");
    let catches_up = async {
        while world.engine.now() < before + Duration::from_secs(2) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(LIMIT, catches_up).await.is_ok());
    let all_runs = runs(&world).await;
    let others = all_runs.iter().filter(|run| run.id.get() != first.run_id);
    let others: Vec<(Timestamp, RunStatus)> = others.map(|run| (run.fire_at, run.status)).collect();
    assert!(!others.is_empty() && others.iter().all(|(_, status)| *status == RunStatus::Skipped), "{others:?}");
    world.die().await;
}

/// A store that does not perform the first call that ends a session.
#[derive(Debug)]
struct UnendedStore {
    inner: Arc<MemStore>,
    has_failed: AtomicBool,
}

impl UnendedStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "close_session" && !self.has_failed.swap(true, Ordering::SeqCst) {
            return Err(StoreError::no_answer(name));
        }
        effect.await
    }
}

rondel_store::delegate_store!(UnendedStore);

/// A later roll call would wait for an executor whose row states that its stream is open.
#[tokio::test]
async fn the_end_of_a_session_is_stored_when_the_database_answers_again() {
    let inner = store();
    let unended = Arc::new(UnendedStore { inner: Arc::clone(&inner), has_failed: AtomicBool::new(false) });
    let as_store = Arc::clone(&unended) as Arc<dyn Store>;
    let world = World::start_behind(inner, as_store, EngineConfig::default()).await;
    let line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    drop(line);
    let is_ended = async {
        loop {
            let sessions = world.store.sessions(Timestamp::EPOCH).await.unwrap();
            if sessions.iter().any(|session| session.ended_at.is_some()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, is_ended).await.is_ok() && unended.has_failed.load(Ordering::SeqCst));
    world.die().await;
}

/// A store that ends no session.
#[derive(Debug)]
struct EndlessStore {
    inner: Arc<MemStore>,
}

impl EndlessStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "close_session" { Err(StoreError::no_answer(name)) } else { effect.await }
    }
}

rondel_store::delegate_store!(EndlessStore);

/// The server still tries to store the end of the stream.
#[tokio::test]
async fn an_ended_stream_takes_no_place_although_its_end_cannot_be_stored() {
    let inner = store();
    let as_store = Arc::new(EndlessStore { inner: Arc::clone(&inner) }) as Arc<dyn Store>;
    let config = EngineConfig { executor_streams_per_token: 1, ..EngineConfig::default() };
    let world = World::start_behind(inner, as_store, config).await;
    drop(world.dial(Some(&world.token), hello("a", 1)).await.unwrap());
    let connects = async {
        while world.dial(Some(&world.token), hello("b", 2)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(LIMIT, connects).await.is_ok());
    world.die().await;
}

#[tokio::test]
async fn a_stream_ends_for_its_executor_although_its_end_cannot_be_stored() {
    let inner = store();
    let as_store = Arc::new(EndlessStore { inner: Arc::clone(&inner) }) as Arc<dyn Store>;
    let world = World::start_behind(inner, as_store, EngineConfig::default()).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    line.hang_up();
    line.wait_for_end().await;
    world.die().await;
}

/// A store that, once armed, blocks the next lease of its server before the sessions move to it, until a session has ended.
#[derive(Debug)]
struct EndedMeanwhileStore {
    inner: Arc<MemStore>,
    is_armed: AtomicBool,
    /// Whether the server has its next lease, and the sessions have not moved.
    has_joined: AtomicBool,
    reached: Notify,
    ended: Notify,
}

impl EndedMeanwhileStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "beat_sessions" && self.has_joined.swap(false, Ordering::SeqCst) {
            self.reached.notify_one();
            timeout(LIMIT, self.ended.notified()).await.ok();
        }
        let done = effect.await;
        match name {
            "join" => self.has_joined.store(self.is_armed.swap(false, Ordering::SeqCst), Ordering::SeqCst),
            "close_session" => self.ended.notify_one(),
            _ => {}
        }
        done
    }
}

rondel_store::delegate_store!(EndedMeanwhileStore);

/// A stream ends after its server has listed the sessions that move to its next lease.
#[tokio::test]
async fn a_session_that_ends_while_its_server_takes_a_lease_does_not_stay_open() {
    let back_ms = Arc::new(AtomicI64::new(0));
    let inner = store_set_back_by(&back_ms);
    let store = Arc::new(EndedMeanwhileStore {
        inner: Arc::clone(&inner),
        is_armed: AtomicBool::new(false),
        has_joined: AtomicBool::new(false),
        reached: Notify::new(),
        ended: Notify::new(),
    });
    let config =
        EngineConfig { lease: Duration::from_secs(5), beat: Duration::from_millis(100), ..EngineConfig::default() };
    let world = World::start_behind(inner, Arc::clone(&store) as Arc<dyn Store>, config).await;
    let line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap();
    store.is_armed.store(true, Ordering::SeqCst);
    back_ms.store(10_000, Ordering::SeqCst);
    timeout(LIMIT, store.reached.notified()).await.unwrap();
    drop(line);
    let is_ended = async {
        loop {
            let sessions = world.store.sessions(Timestamp::EPOCH).await.unwrap();
            if world.engine.readiness().lease_held && sessions.iter().all(|session| session.ended_at.is_some()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(LIMIT, is_ended).await.is_ok());
    world.die().await;
}
