//! Maintenance windows: users plan some in some of the seeds, and sometimes end one early.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::maintenance::{FiresInside, MaintenanceWindow};
use rondel_core::{AppId, MaintenanceId, NamespaceId, Timestamp};
use rondel_store::alerts::MaintenanceRecord;
use rondel_store::{Alerts as _, Namespaces as _};
use tokio::time::sleep;

use crate::faults::Hosts;
use crate::profile::{Bounds, Profile};
use crate::rng::{SeededRng, mix};
use crate::world::World;

const NAMESPACE: NamespaceId = NamespaceId::new(1);
/// Salt that keeps the draw of windows independent of other draws of the same seed.
const WINDOW_SALT: u64 = 0x3a1d_77ce;
/// In how many of a million seeds windows are planned.
const SHARE_PPM: u64 = 250_000;
/// Minimum time until a window begins: fires are claimed this far ahead, and a server may not read the windows for
/// this long.
const LEAD: Duration = Duration::from_secs(8);

/// Whether windows are planned before the servers start. This is necessary if fires are claimed much further ahead than
/// a seed lasts, or if a step of the clock may exceed the lead.
fn is_planned_first(profile: &Profile) -> bool {
    profile.has_clock_faults || profile.bounds.dense_from != Bounds::usual().dense_from
}

/// Plans windows before any server runs.
pub(crate) async fn plan_first(world: &Arc<World>, seed: u64, end_max: Timestamp) {
    let mut rng = SeededRng::new(mix(seed ^ WINDOW_SALT));
    if !rng.happens(SHARE_PPM) || !is_planned_first(&world.profile) {
        return;
    }
    for _ in 0..rng.between(1, 2) {
        let starts_at = world.now() + rng.millis(1_000, 12_000);
        plan_window(world, &mut rng, (starts_at, end_max), None).await;
    }
}

/// Plans windows while faults happen, as far ahead as the API lets users plan them.
pub(crate) async fn plan_ahead(hosts: Hosts, seed: u64, end_max: Timestamp) {
    let world = &hosts.world;
    let mut rng = SeededRng::new(mix(seed ^ WINDOW_SALT));
    if !rng.happens(SHARE_PPM) || is_planned_first(&world.profile) {
        return;
    }
    for _ in 0..rng.between(1, 2) {
        sleep(rng.millis(0, 3_000)).await;
        let app = world.store.app(NAMESPACE, "app0").await.ok().flatten().map(|app| app.id);
        let app = app.filter(|_| rng.happens(400_000));
        let starts_at = world.latest_now() + LEAD + rng.millis(0, 4_000);
        let Some(window_id) = plan_window(world, &mut rng, (starts_at, end_max), app).await else { continue };
        if rng.happens(300_000) {
            let early_end_at = starts_at + rng.millis(0, 3_000);
            let world = Arc::clone(world);
            hosts.world.tracker.spawn(async move {
                sleep(early_end_at.since(world.now())).await;
                end_window(&world, window_id).await;
            });
        }
    }
}

async fn plan_window(
    world: &World,
    rng: &mut SeededRng,
    (starts_at, end_max): (Timestamp, Timestamp),
    app: Option<AppId>,
) -> Option<MaintenanceId> {
    let ends_at = (starts_at + rng.millis(500, 10_000)).min(end_max);
    let fires = *rng.pick(&[FiresInside::Skip, FiresInside::Hold]);
    if ends_at <= starts_at {
        return None;
    }
    let id = MaintenanceId::new(i64::try_from(world.truth().windows.len()).unwrap_or(0) + 1);
    let window = MaintenanceWindow { id, namespace: NAMESPACE, app, starts_at, ends_at, fires };
    world.record("window planned", id.get(), || format!("{window:?}"));
    world.truth().windows.push(window.clone());
    let (reason, author) = ("maintenance".to_owned(), "sim".to_owned());
    let record = MaintenanceRecord { window, app_name: None, reason, author, created_at: world.now() };
    world.store.add_maintenance(&record).await.ok().filter(|is_added| *is_added).map(|_| id)
}

async fn end_window(world: &World, id: MaintenanceId) {
    let now = world.now();
    world.record("window ended", id.get(), String::new);
    world.store.end_maintenance(NAMESPACE, id, now).await.ok();
    let mut truth = world.truth();
    for window in truth.windows.iter_mut().filter(|window| window.id == id) {
        window.ends_at = window.ends_at.min(now);
    }
}
