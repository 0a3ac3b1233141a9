//! Users switch executors off and on in some of the seeds; after the faults all executors are on.

use std::sync::Arc;

use rondel_core::NamespaceId;
use rondel_core::homes::Switch;
use rondel_store::{Cluster as _, Namespaces as _};
use tokio::time::sleep;

use crate::faults::Hosts;
use crate::rng::{SeededRng, mix};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
/// Salt that keeps the draw of switches independent of other draws of the same seed.
const SWITCH_SALT: u64 = 0x5717_c4e5;
/// In how many of a million seeds executors are switched off and on.
const SHARE_PPM: u64 = 250_000;

/// Switches executors off and on while faults happen.
pub(crate) async fn switch_executors(hosts: Hosts, seed: u64) {
    let world = Arc::clone(&hosts.world);
    let mut rng = SeededRng::new(mix(seed ^ SWITCH_SALT));
    if !rng.happens(SHARE_PPM) {
        return;
    }
    while world.is_faulty() {
        sleep(rng.millis(300, 3_000)).await;
        let executor = rng.index(hosts.executors.len());
        let switch = *rng.pick(&[Switch::Draining, Switch::Draining, Switch::Stopped, Switch::Active]);
        set_switch(&hosts, executor, switch).await;
    }
    for executor in 0..hosts.executors.len() {
        set_switch(&hosts, executor, Switch::Active).await;
    }
}

async fn set_switch(hosts: &Hosts, executor: usize, switch: Switch) {
    let (world, executor) = (&hosts.world, &hosts.executors[executor]);
    let Ok(Some(app)) = world.store.app(NAMESPACE, &executor.app).await else { return };
    world.record("executor switched", app.id.get(), || format!("{} {switch}", executor.name));
    world.store.set_executor_switch(app.id, &executor.name, switch, world.now()).await.ok();
}
