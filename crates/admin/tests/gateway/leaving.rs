//! A server that leaves while its executors have runs, or while it renews its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::{RunId, RunStatus};
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::cluster::Node;
use rondel_store::{Cluster as _, MemStore, Result, Store};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::world::{LIMIT, World, begun_replies, create, hello, request, runs, store, success_result};

/// A server that leaves waits for the runs of executors, and forwards cancels to them until they have ended.
#[tokio::test]
async fn a_cancel_reaches_its_executor_while_the_server_leaves() {
    let world = World::start().await;
    let job = create(&world, json!({})).await;
    let mut line = world.dial(Some(&world.token), hello("a", 1)).await.unwrap().beat();
    request(&world, &job).await;
    let trigger = line.trigger().await;
    line.send(begun_replies(&trigger)).await;
    let cancelled = async {
        line.receive(|body| matches!(body, Down::Drain(_)).then_some(())).await;
        world.engine.cancel_run(RunId::new(trigger.run_id), "Bo").await.unwrap();
        let cancel = line.receive(|body| match body {
            Down::Cancels(cancels) => cancels.cancels.into_iter().next(),
            _ => None,
        });
        assert_eq!(cancel.await.run_id, trigger.run_id);
        line.send(success_result(&trigger)).await;
    };
    tokio::join!(world.engine.drain(LIMIT * 2), cancelled);
    world.die().await;
}

/// The end of a grace of `Duration::MAX` is beyond what an `Instant` can hold.
#[tokio::test]
async fn a_server_with_an_endless_grace_leaves_once_nothing_runs() {
    let world = World::start().await;
    timeout(LIMIT, world.engine.drain(Duration::MAX)).await.unwrap();
    world.die().await;
}

/// A store that, once armed, holds back the next renewal until the lease has been given back, but for half a second at most.
#[derive(Debug)]
struct LateRenewalStore {
    inner: Arc<MemStore>,
    is_armed: AtomicBool,
    begun: Notify,
    released: Notify,
}

impl LateRenewalStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "renew" && self.is_armed.swap(false, Ordering::SeqCst) {
            self.begun.notify_one();
            timeout(Duration::from_millis(500), self.released.notified()).await.ok();
        }
        let done = effect.await;
        if name == "release" {
            self.released.notify_one();
        }
        done
    }
}

rondel_store::delegate_store!(LateRenewalStore);

/// The lease is given back between two renewals, so that the node that starts next need not wait for its end.
#[tokio::test]
async fn a_renewal_in_progress_does_not_bring_back_a_lease_that_was_given_back() {
    let inner = store();
    let (begun, released) = (Notify::new(), Notify::new());
    let (as_inner, is_armed) = (Arc::clone(&inner), AtomicBool::new(false));
    let late = Arc::new(LateRenewalStore { inner: as_inner, is_armed, begun, released });
    let config = EngineConfig { beat: Duration::from_millis(100), ..EngineConfig::default() };
    let as_store = Arc::clone(&late) as Arc<dyn Store>;
    let world = World::start_behind(Arc::clone(&inner), as_store, config).await;
    late.is_armed.store(true, Ordering::SeqCst);
    timeout(LIMIT, late.begun.notified()).await.unwrap();
    world.engine.drain(Duration::ZERO).await;
    let given_back_by = world.engine.now();
    world.die().await;
    let nodes = inner.nodes().await.unwrap();
    let is_over = |node: &Node| node.lease_until < given_back_by + Duration::from_secs(1);
    assert!(nodes.iter().all(is_over), "{nodes:?} at {given_back_by}");
}

/// A store that is slow to record what runs wait for.
#[derive(Debug)]
struct SlowNotesStore(Arc<MemStore>);

impl SlowNotesStore {
    fn inner(&self) -> &MemStore {
        &self.0
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "note_waits" {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(SlowNotesStore);

/// If the wait of a run were not recorded, the next server would treat the run as missed.
#[tokio::test]
async fn a_run_that_waits_as_its_server_stops_is_left_with_its_wait() {
    let inner = store();
    let slow = Arc::new(SlowNotesStore(Arc::clone(&inner)));
    let world = World::start_behind(Arc::clone(&inner), slow, EngineConfig::default()).await;
    let job = create(&world, json!({"overlap": {"policy": "allow"}, "queue_timeout": "1h"})).await;
    for _ in 0..3 {
        request(&world, &job).await;
    }
    let all_wait = async {
        while !world.engine.metrics().await.unwrap().contains("rondel_open_runs{place=\"parked\"} 3") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, all_wait).await.unwrap();
    world.engine.drain(Duration::ZERO).await;
    for run in runs(&world).await {
        assert_eq!(run.status, RunStatus::Waiting);
        assert!(run.waits_for().is_some(), "{run:?}");
    }
    world.die().await;
}
