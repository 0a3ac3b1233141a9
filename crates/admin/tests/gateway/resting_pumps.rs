//! A pump for which nothing is in progress is not read repeatedly.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rondel_core::homes::Switch;
use rondel_store::{Cluster as _, MemStore, Result, Store};
use serde_json::json;

use super::pumps::{Worker, all_dealt, config, create_pump, wait_until};
use super::world::{World, store};

/// A store that counts how often the list of pumps was read since rows of a pump were last read.
#[derive(Debug)]
struct WatchedStore {
    inner: Arc<MemStore>,
    looks: AtomicI64,
}

impl WatchedStore {
    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        match name {
            "pump_jobs" => drop(self.looks.fetch_add(1, Ordering::SeqCst)),
            "pump_items" | "pump_roots" | "runs_below" => self.looks.store(0, Ordering::SeqCst),
            _ => {}
        }
        effect.await
    }
}

rondel_store::delegate_store!(WatchedStore);

#[tokio::test]
async fn an_idle_pump_is_not_read_until_something_is_noticed() {
    let inner = store();
    let watched = Arc::new(WatchedStore { inner: Arc::clone(&inner), looks: AtomicI64::new(0) });
    let world = World::start_behind(inner, Arc::clone(&watched) as Arc<dyn Store>, config()).await;
    let rests = async || watched.looks.load(Ordering::SeqCst) >= 4;
    let job = create_pump(&world, json!({})).await;
    let first = Worker::start(&world, "a", 1).await;
    wait_until("one executor has all", async || all_dealt(&world, &job, &[&first]).await).await;
    wait_until("the pump rests", rests).await;

    let second = Worker::start(&world, "b", 2).await;
    wait_until("both have half", async || {
        all_dealt(&world, &job, &[&first, &second]).await && first.group_count() == 2 && second.group_count() == 2
    })
    .await;
    wait_until("the pump rests again", rests).await;

    world.store.set_executor_switch(job.app, "a", Switch::Draining, world.engine.now()).await.unwrap();
    world.engine.poke_beat();
    wait_until("the second has all", async || all_dealt(&world, &job, &[&second]).await && first.group_count() == 0)
        .await;
    wait_until("the pump rests anew", rests).await;
    world.die().await;
}
