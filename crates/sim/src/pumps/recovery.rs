//! The recovery after all faults have ended: each item gets an owner, and each row is executed (P2). Then the pumps are
//! ended.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_admin::{Engine, jobs as catalog};
use rondel_core::pump::{Item, Pump, Until};
use rondel_core::{Reason, Run, Timestamp};
use rondel_store::catalog::JobRecord;
use rondel_store::{Catalog as _, Pumps as _};
use tokio::time::sleep;

use super::jobs::{NAMESPACE, revive};
use super::truth::Row;
use crate::faults::Hosts;
use crate::rng::SeededRng;
use crate::world::{World, lock};

const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// The time in which servers start, adopt and send, in addition to the hand-over and to the loss of an executor.
const MARGIN: Duration = Duration::from_secs(20);
/// The silence after which servers count an executor as lost.
const LOST_AFTER: Duration = Duration::from_secs(6);
/// How long after the failure of the last root run the next one begins.
const AFTER_FAILURE: Duration = Duration::from_secs(62);
/// How long it may take to execute every row: with a row that hangs, retries, and a pump that begins late.
const ROWS_WITHIN: Duration = Duration::from_secs(200);
/// Items may still change owners for this long after all rows are executed.
const CALM_AFTER: Duration = Duration::from_secs(40);
/// How long no item may change its owner after that.
const CALM_FOR: Duration = Duration::from_secs(15);

/// The state of a pump job, as last read from the store.
struct PumpSnapshot {
    record: JobRecord,
    pump: Pump,
    roots: Vec<Run>,
    items: BTreeMap<String, Item>,
}

impl PumpSnapshot {
    async fn read(world: &World, name: &str) -> Option<Self> {
        let record = world.store.job(NAMESPACE, name).await.ok().flatten()?;
        let pump = record.spec.compile().ok()?.pump?;
        let roots = world.store.pump_roots(record.id, Timestamp::MAX, 8).await.ok()?;
        let items = world.store.pump_items(record.id).await.ok()?;
        let items = items.into_iter().map(|item| (item.name.clone(), item)).collect();
        Some(Self { record, pump: Pump::clone(&pump), roots, items })
    }

    fn is_cancelled(&self) -> bool {
        let is_requested = |run: &Run| run.cancel_reason.or(run.reason) == Some(Reason::Requested);
        self.roots.first().is_some_and(is_requested)
    }

    /// Switches the job on, or starts it again if its last root run was cancelled: a user's request may take effect
    /// late.
    async fn revive(&self, hosts: &Hosts) {
        let is_over = self.is_cancelled() && !self.has_open_root();
        if let Some(engine) = any_engine(hosts).filter(|_| is_over || !self.record.spec.enabled) {
            revive(&engine, &self.record, is_over).await;
        }
    }

    fn has_open_root(&self) -> bool {
        self.roots.iter().any(|run| !run.status.is_terminal() && run.cancel_by.is_none())
    }

    fn was_interrupted(&self) -> bool {
        self.roots.first().is_some_and(|run| run.status.is_terminal() && run.cancel_reason != Some(Reason::Dry))
    }

    /// The items that no executor holds at their current epochs.
    fn unheld_items(&self, world: &World) -> Vec<String> {
        let truth = lock(&world.pumps);
        let is_held = |name: &&String| {
            let Some(item) = self.items.get(*name) else { return false };
            let hold = truth.holds.get(&(self.record.id, (*name).clone()));
            hold.is_some_and(|hold| {
                item.owner == Some(hold.owner) && item.epoch == hold.epoch && item.asked_at.is_none()
            })
        };
        self.pump.items.keys().filter(|name| !is_held(name)).cloned().collect()
    }

    /// The items with rows that are not executed yet.
    fn unfinished_items(&self, world: &World) -> Vec<String> {
        let now_ms = world.elapsed_ms();
        let mut truth = lock(&world.pumps);
        let has_rows = |name: &&String| {
            let item_key = (self.record.id, (*name).clone());
            let is_left = |row: &Row| row.arrives_ms <= now_ms && row.done_ms.is_none();
            let gives_up = self.pump.until != Until::Stopped;
            truth.rows(&item_key).iter().any(|row| is_left(row) && !(gives_up && row.is_given_up()))
        };
        self.pump.items.keys().filter(has_rows).cloned().collect()
    }

    /// Whether all rows of the job must be executed in the end.
    fn requires_all_rows(&self, world: &World) -> bool {
        match self.pump.until {
            Until::Stopped => true,
            Until::Empty if self.record.spec.schedule.is_none() => true,
            // If a clock steps ahead, the schedule ends before the last rows arrive; an interrupted pump waits for its
            // next fire.
            Until::Empty => !world.profile.has_clock_faults && !self.was_interrupted(),
            Until::At(_) => false,
        }
    }
}

/// Any server that is up.
fn any_engine(hosts: &Hosts) -> Option<Engine> {
    hosts.nodes.iter().find_map(|node| Some(node.engine()?.0))
}

/// Waits until each pump works again, and its rows are executed.
pub(super) async fn recover(hosts: &Hosts, names: &[String]) {
    let world = &hosts.world;
    while any_engine(hosts).is_none() {
        sleep(LOOK_PERIOD).await;
    }
    for name in names {
        if let Some(snapshot) = PumpSnapshot::read(world, name).await {
            snapshot.revive(hosts).await;
        }
    }
    for name in names {
        await_owners(hosts, name).await;
    }
    for name in names {
        await_executed(hosts, name).await;
    }
    sleep(CALM_AFTER).await;
    let deal_counts_before = lock(&world.pumps).deal_counts.clone();
    sleep(CALM_FOR).await;
    for name in names {
        // A pump that ends on its own is left out, because its root runs may still follow one another.
        let snapshot = PumpSnapshot::read(world, name).await.filter(|snapshot| snapshot.pump.until == Until::Stopped);
        let Some(job) = snapshot.map(|snapshot| snapshot.record.id) else { continue };
        let mut truth = lock(&world.pumps);
        let count = |counts: &BTreeMap<_, usize>| counts.get(&job).copied().unwrap_or(0);
        let change_count = count(&truth.deal_counts) - count(&deal_counts_before);
        if change_count > 0 {
            truth.violate(
                "P2 calm",
                &format!("{change_count} changes of items of {name} long after everything was well"),
            );
        }
    }
}

/// P2: each item of a working pump has an owner in time. Waits until this holds, or records a violation.
async fn await_owners(hosts: &Hosts, name: &str) {
    let world = &hosts.world;
    let began_at = tokio::time::Instant::now();
    let mut works_since = began_at;
    loop {
        let Some(snapshot) = PumpSnapshot::read(world, name).await else { return };
        let unheld_items = snapshot.unheld_items(world);
        let is_over = snapshot.pump.until != Until::Stopped && !snapshot.has_open_root();
        if unheld_items.is_empty() || is_over {
            return;
        }
        snapshot.revive(hosts).await;
        if !snapshot.has_open_root() {
            works_since = tokio::time::Instant::now();
        }
        let limit = snapshot.pump.limits.hand_over + LOST_AFTER + MARGIN;
        let is_late = works_since.elapsed() > limit || began_at.elapsed() > limit + AFTER_FAILURE;
        if is_late {
            let root = snapshot.roots.first().map(|run| (run.id, run.status, run.reason));
            let description = format!(
                "{unheld_items:?} of {name} have no owner that works, long after everything was well; root run {root:?}"
            );
            return lock(&world.pumps).violate("P2 owner", &description);
        }
        sleep(LOOK_PERIOD).await;
    }
}

/// P2: each row that has arrived is executed, and a pump that runs until it is empty ends as dry. Waits until this
/// holds, or records a violation.
async fn await_executed(hosts: &Hosts, name: &str) {
    let world = &hosts.world;
    let began_at = tokio::time::Instant::now();
    loop {
        let Some(snapshot) = PumpSnapshot::read(world, name).await else { return };
        if !snapshot.requires_all_rows(world) {
            return;
        }
        snapshot.revive(hosts).await;
        let (unfinished_items, newest_root) = (snapshot.unfinished_items(world), snapshot.roots.first());
        let is_over = snapshot.pump.until == Until::Stopped || newest_root.is_some_and(|run| run.status.is_terminal());
        if unfinished_items.is_empty() && is_over {
            return;
        }
        if began_at.elapsed() > ROWS_WITHIN {
            let root = newest_root.map(|run| (run.id, run.status, run.reason));
            let description = format!(
                "rows of {unfinished_items:?} of {name} are not executed, or it did not end; root run {root:?}"
            );
            return lock(&world.pumps).violate("P2 rows", &description);
        }
        sleep(LOOK_PERIOD).await;
    }
}

/// Ends the pumps: by a pause, a cancel or a deletion.
pub(super) async fn end(hosts: &Hosts, names: &[String], rng: &mut SeededRng) {
    for name in names {
        let kind = rng.below(3);
        loop {
            let (Some(snapshot), Some(engine)) = (PumpSnapshot::read(&hosts.world, name).await, any_engine(hosts))
            else {
                break;
            };
            let record = &snapshot.record;
            let is_done = match kind {
                // A run that was started by hand continues while its job is paused.
                0 | 1 => {
                    let is_paused = catalog::set_enabled(&engine, record, false, "user").await.is_ok();
                    let needs_cancel = kind == 1 || snapshot.pump.until != Until::Stopped;
                    is_paused && (!needs_cancel || engine.cancel_runs(record, None, "user", None).await.is_ok())
                }
                _ => catalog::delete(&engine, record, None, false, (None, "user")).await.is_ok(),
            };
            if is_done {
                break;
            }
            sleep(LOOK_PERIOD).await;
        }
    }
}
