//! The pump jobs of a seed, and the requests of users about them.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::jobs::RunRequest;
use rondel_admin::{Engine, jobs};
use rondel_core::{JobSpec, NamespaceId, Timestamp, Trigger};
use rondel_store::catalog::JobRecord;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::faults::Hosts;
use crate::rng::{SeededRng, mix};
use crate::world::World;

pub(super) const NAMESPACE: NamespaceId = NamespaceId::new(1);
/// Salt that keeps the draw of requests independent of other draws of the same seed.
const REQUEST_SALT: u64 = 0x0050_3e41;
/// Maximum number of items in a definition.
const ITEMS_MAX: u64 = 9;

/// Draws the jobs; their schedules end at `end`.
pub(super) fn draw(rng: &mut SeededRng, end: Timestamp) -> Vec<JobSpec> {
    (0..rng.between(1, 2)).map(|index| spec(rng, index, end)).collect()
}

fn spec(rng: &mut SeededRng, index: u64, end: Timestamp) -> JobSpec {
    let items = items(rng, 3);
    let mut pump = json!({
        "items": items,
        "groups": rng.between(1, 3),
        "threads": rng.between(1, 4),
        "fetch": *rng.pick(&[3, 10, 500]),
        "batch": *rng.pick(&[1, 1, 3]),
        "mode": *rng.pick(&["sleep", "not_sleep"]),
        "idle": *rng.pick(&["200ms", "500ms", "1s"]),
        "hand_over": *rng.pick(&["14s", "14s", "18s"]),
    });
    if rng.happens(200_000) {
        pump["per_executor"] = json!(1);
    }
    if rng.happens(200_000) {
        pump["pause"] = json!("100ms");
    }
    let mut job = json!({
        "name": format!("p{index}"), "app": "app0", "handler": "h",
        "retry": {"max": 3, "backoff": *rng.pick(&["100ms", "500ms"])},
    });
    match rng.below(6) {
        0..=2 => {}
        3 => pump["until"] = json!("empty"),
        4 => {
            pump["until"] = json!("empty");
            job["schedule"] = json!({"every": *rng.pick(&["8s", "13s", "20s"]), "end_at": end.to_string()});
        }
        _ => {
            pump["until"] = json!({"cron": "15,35,55 * * * * ?", "time_zone": "UTC"});
            job["schedule"] = json!({"cron": "0,20,40 * * * * ?", "time_zone": "UTC", "end_at": end.to_string()});
        }
    }
    job["pump"] = pump;
    serde_json::from_value(job).unwrap_or_else(|error| unreachable!("a bad draw: {error}"))
}

fn items(rng: &mut SeededRng, count_min: u64) -> Value {
    let count = rng.between(count_min, ITEMS_MAX);
    let first_number = rng.below(3);
    (first_number..first_number + count).map(|item| json!({"name": format!("i{item}")})).collect()
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
    Edit,
    Switch,
    Cancel,
    Run,
}

/// Edits, pauses, cancels and starts pumps at random times, on any server that is up.
pub(super) async fn send_requests(hosts: Hosts, names: Vec<String>, seed: u64) {
    let world = Arc::clone(&hosts.world);
    let mut rng = SeededRng::new(mix(seed ^ REQUEST_SALT));
    while world.is_faulty() && world.profile.has_edits {
        sleep(rng.millis(800, 7_000)).await;
        if !world.is_faulty() {
            return;
        }
        let kind = match rng.below(10) {
            0..=3 => RequestKind::Edit,
            4..=6 => RequestKind::Switch,
            7 => RequestKind::Cancel,
            _ => RequestKind::Run,
        };
        let (name, items) = (rng.pick(&names).clone(), items(&mut rng, 3));
        let Some((engine, process)) = hosts.nodes[rng.index(hosts.nodes.len())].engine() else { continue };
        let (done_sender, done_receiver) = oneshot::channel();
        let task_world = Arc::clone(&world);
        let task = async move {
            perform(&task_world, &engine, kind, (&name, items)).await;
            done_sender.send(()).ok();
        };
        world.tracker.spawn(process.confine(Box::pin(task)));
        timeout(Duration::from_secs(10), done_receiver).await.ok();
    }
}

async fn perform(world: &World, engine: &Engine, kind: RequestKind, (name, items): (&str, Value)) {
    let Ok(Some(record)) = engine.store().job(NAMESPACE, name).await else { return };
    world.record("wish", record.id.get(), || format!("{kind:?} {name} {items}"));
    let is_done = match kind {
        RequestKind::Edit => edit(engine, &record, items).await,
        RequestKind::Switch => jobs::set_enabled(engine, &record, !record.spec.enabled, "user").await.is_ok(),
        RequestKind::Cancel => engine.cancel_runs(&record, None, "user", None).await.is_ok(),
        RequestKind::Run if has_end(&record) => {
            jobs::request_run(engine, &record, RunRequest::by(Trigger::Api)).await.is_ok()
        }
        RequestKind::Run => false,
    };
    world.record("wish answered", record.id.get(), || format!("{kind:?} {is_done}"));
}

/// Whether the job's root runs end on their own.
pub(super) fn has_end(record: &JobRecord) -> bool {
    record.spec.pump.as_ref().is_some_and(|pump| pump.until.is_some())
}

async fn edit(engine: &Engine, record: &JobRecord, items: Value) -> bool {
    let mut spec = record.spec.clone();
    if let (Some(pump), Ok(items)) = (spec.pump.as_mut(), serde_json::from_value(items)) {
        pump.items = items;
        pump.groups = pump.groups.min(3);
    }
    jobs::change(engine, record, spec, Some(record.version), "user").await.is_ok()
}

/// Switches a job on once all faults have ended. If it is on but its last root run was cancelled, it is switched off
/// first.
pub(super) async fn revive(engine: &Engine, record: &JobRecord, is_cancelled: bool) {
    let record_when_off = match record.spec.enabled && is_cancelled {
        true => jobs::set_enabled(engine, record, false, "user").await.ok(),
        false => Some(record.clone()),
    };
    let Some(record_when_off) = record_when_off else { return };
    let Ok(record_when_on) = jobs::set_enabled(engine, &record_when_off, true, "user").await else { return };
    // Its schedule may have ended while it was off.
    if !record.spec.enabled && has_end(&record_when_on) && record_when_on.spec.schedule.is_some() {
        jobs::request_run(engine, &record_when_on, RunRequest::by(Trigger::Api)).await.ok();
    }
}
