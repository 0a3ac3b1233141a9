//! The last report of a group that ends while its pump is being checked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rondel_core::RunId;
use rondel_store::{MemStore, Pumps as _, Result, Runs as _, Store};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::pumps::{Worker, all_dealt, config, create_pump, wait_until};
use super::world::{LIMIT, World, store};

/// A store that, once armed, blocks the next look before it reads the groups.
#[derive(Debug)]
struct GatedStore {
    inner: Arc<MemStore>,
    is_armed: AtomicBool,
    reached: Notify,
    opened: Notify,
}

impl GatedStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if name == "runs_below" && self.is_armed.swap(false, Ordering::SeqCst) {
            self.reached.notify_one();
            self.opened.notified().await;
        }
        effect.await
    }
}

rondel_store::delegate_store!(GatedStore);

#[tokio::test]
async fn the_last_report_of_a_group_that_ends_during_a_look_counts() {
    let inner = store();
    let gate = (AtomicBool::new(false), Notify::new(), Notify::new());
    let gated = Arc::new(GatedStore { inner: Arc::clone(&inner), is_armed: gate.0, reached: gate.1, opened: gate.2 });
    let world = World::start_behind(inner, Arc::clone(&gated) as Arc<dyn Store>, config()).await;
    let job = create_pump(&world, json!({"groups": 2})).await;
    let worker = Worker::start(&world, "a", 1).await;
    wait_until("both groups have items", async || {
        let items = world.store.pump_items(job.id).await.unwrap();
        let owners: BTreeSet<_> = items.iter().filter_map(|item| item.owner).collect();
        owners.len() == 2 && all_dealt(&world, &job, &[&worker]).await
    })
    .await;

    gated.is_armed.store(true, Ordering::SeqCst);
    worker.report_nothing();
    timeout(LIMIT, gated.reached.notified()).await.unwrap();
    let ((run, attempt), names) = worker.fail_group(100);
    wait_until("its end is stored", async || world.store.runs(&[RunId::new(run)]).await.unwrap()[0].attempt > attempt)
        .await;
    gated.opened.notify_one();
    wait_until("the other group has its items", async || all_dealt(&world, &job, &[&worker]).await).await;
    let items = world.store.pump_items(job.id).await.unwrap();
    let done = |name: &String| items.iter().find(|item| item.name == *name).map_or(0, |item| item.total().done);
    assert!(!names.is_empty() && names.iter().all(|name| done(name) >= 100), "{names:?} {items:?}");
    world.die().await;
}
