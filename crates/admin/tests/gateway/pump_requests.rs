//! Root runs of pumps that users have requested, and pumps in maintenance windows.

use std::time::Duration;

use rondel_admin::jobs::{self, RunRequest};
use rondel_core::maintenance::{FiresInside, MaintenanceWindow};
use rondel_core::run::RunJob;
use rondel_core::{AppId, JobSpec, MaintenanceId, Run, RunId, RunStatus, Timestamp, Trigger};
use rondel_store::alerts::MaintenanceRecord;
use rondel_store::catalog::JobRecord;
use rondel_store::{Alerts as _, Claim as _, Cluster, MemStore, Pumps as _, Runs as _};
use serde_json::json;

use super::pumps::{Worker, all_dealt, config, create_pump, wait_until};
use super::world::{NAMESPACE, World, create, runs, store};

/// An open root run of a version.
async fn open_root(world: &World, version: i64) -> Option<Run> {
    let is_asked_for = |run: &Run| run.is_root() && run.job_version == version && !run.status.is_terminal();
    runs(world).await.into_iter().find(is_asked_for)
}

#[tokio::test]
async fn an_edit_leaves_a_planned_run_of_a_pump_and_continues_the_open_one() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({})).await;
    let worker = Worker::start(&world, "a", 1).await;
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let at = Some(world.engine.now() + Duration::from_secs(3600));
    let request = RunRequest { at, ..RunRequest::by(Trigger::Manual) };
    let planned = jobs::request_run(&world.engine, &job, request).await.unwrap();
    let spec = JobSpec { description: "edited".to_owned(), ..job.spec.clone() };
    jobs::change(&world.engine, &job, spec, None, "test").await.unwrap();
    wait_until("it goes on under the new definition", async || {
        let is_now = |root: Run| root.fire_at < planned.fire_at;
        open_root(&world, 2).await.is_some_and(is_now) && all_dealt(&world, &job, &[&worker]).await
    })
    .await;
    let planned = world.store.runs(&[planned.id]).await.unwrap().remove(0);
    assert_eq!((planned.status, planned.cancel_by), (RunStatus::Waiting, None));
    world.die().await;
}

#[tokio::test]
async fn an_edit_keeps_the_parameters_of_a_run_by_hand() {
    let world = World::start_on(store(), config()).await;
    let pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s", "until": "empty"});
    let yearly = json!({"cron": "0 0 0 1 1 ?"});
    let job = create(&world, json!({"pump": pump, "schedule": yearly, "params": {"day": "today"}})).await;
    let worker = Worker::start(&world, "a", 1).await;
    let params = jobs::run_params(&world.engine, &job, &json!({"day": "yesterday"})).unwrap();
    let request = RunRequest { params, ..RunRequest::by(Trigger::Manual) };
    let first = jobs::request_run(&world.engine, &job, request).await.unwrap();
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let spec = JobSpec { description: "edited".to_owned(), ..job.spec.clone() };
    jobs::change(&world.engine, &job, spec, None, "test").await.unwrap();
    wait_until("it goes on under the new definition", async || open_root(&world, 2).await.is_some()).await;
    let root = open_root(&world, 2).await.unwrap();
    assert_eq!((root.params.is_some(), root.params), (true, first.params));
    world.die().await;
}

#[tokio::test]
async fn a_run_by_hand_is_continued_after_each_edit() {
    let world = World::start_on(store(), config()).await;
    let until_next_year = json!({"cron": "0 0 0 2 1 ?"});
    let pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s", "until": until_next_year});
    let mut job = create(&world, json!({"pump": pump, "schedule": {"cron": "0 0 0 1 1 ?"}})).await;
    let worker = Worker::start(&world, "a", 1).await;
    jobs::request_run(&world.engine, &job, RunRequest::by(Trigger::Manual)).await.unwrap();
    for version in [2, 3] {
        wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
        let spec = JobSpec { description: version.to_string(), ..job.spec.clone() };
        job = jobs::change(&world.engine, &job, spec, None, "test").await.unwrap();
        wait_until("it goes on under the new definition", async || open_root(&world, version).await.is_some()).await;
        assert_eq!(open_root(&world, version).await.unwrap().trigger, Trigger::Manual);
    }
    world.die().await;
}

/// A run by hand goes on while its job is paused, and keeps its definition when the job is edited: groups of that definition must not get items
/// of another one.
#[tokio::test]
async fn an_edit_of_a_paused_pump_does_not_change_a_run_by_hand() {
    let world = World::start_on(store(), config()).await;
    let until_next_year = json!({"cron": "0 0 0 2 1 ?"});
    let pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s", "until": until_next_year});
    let job = create(&world, json!({"pump": pump, "schedule": {"cron": "0 0 0 1 1 ?"}})).await;
    let worker = Worker::start(&world, "a", 1).await;
    jobs::request_run(&world.engine, &job, RunRequest::by(Trigger::Manual)).await.unwrap();
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let paused = jobs::set_enabled(&world.engine, &job, false, "test").await.unwrap();
    let mut spec = paused.spec.clone();
    spec.pump.as_mut().unwrap().items = serde_json::from_value(json!({"count": 4})).unwrap();
    let edited = jobs::change(&world.engine, &paused, spec, None, "test").await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(all_dealt(&world, &job, &[&worker]).await, "the items of the run's own definition");
    let resumed = jobs::set_enabled(&world.engine, &edited, true, "test").await.unwrap();
    wait_until("it goes on under the new definition", async || open_root(&world, resumed.version).await.is_some())
        .await;
    world.die().await;
}

/// Makes the job a pump job whose window is open from the first of January to the end of the year.
async fn into_pump(world: &World, job: &JobRecord) -> JobRecord {
    let until_the_end_of_the_year = json!({"cron": "0 59 23 31 12 ?"});
    let pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s", "until": until_the_end_of_the_year});
    let yearly = json!({"cron": "0 0 0 1 1 ?"});
    let spec = json!({"name": "j", "app": "files", "handler": "h", "pump": pump, "schedule": yearly});
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    jobs::change(&world.engine, job, spec, None, "test").await.unwrap()
}

/// A job with shards, its open run, and a worker that has both shards. Then the job becomes a pump whose window is open.
async fn pump_with_run_from_before(world: &World) -> (JobRecord, Run, Worker) {
    let job = create(world, json!({"shards": 2})).await;
    let worker = Worker::start(world, "a", 1).await;
    let run = jobs::request_run(&world.engine, &job, RunRequest::by(Trigger::Manual)).await.unwrap();
    wait_until("both shards run", async || {
        worker.group_count() == 2 && runs(world).await.iter().all(|run| run.status == RunStatus::Running)
    })
    .await;
    (into_pump(world, &job).await, run, worker)
}

/// The open run is no root run of the pump: it goes on, and the pump begins after it.
#[tokio::test]
async fn a_run_with_shards_goes_on_when_its_job_becomes_a_pump_job() {
    let world = World::start_on(store(), config()).await;
    let (job, run, worker) = pump_with_run_from_before(&world).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let run = world.store.runs(&[run.id]).await.unwrap().remove(0);
    assert!(!run.status.is_terminal() && run.cancel_by.is_none(), "{run:?}");
    assert!(worker.group_count() == 2 && open_root(&world, 2).await.is_none());
    world.engine.cancel_run(run.id, "test").await.unwrap();
    wait_until("the pump begins", async || open_root(&world, 2).await.is_some()).await;
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    world.die().await;
}

/// The job had shards at the start of the window, and has fired too often since then for that run to be among the newest ones.
#[tokio::test]
async fn a_pump_begins_although_its_job_had_a_run_with_shards_at_the_planned_instant() {
    let world = World::start_on(store(), config()).await;
    let job = create(&world, json!({"shards": 2})).await;
    let start: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let token = world.store.nodes().await.unwrap().remove(0).token();
    for second in 0..10 {
        let of = RunJob { namespace: NAMESPACE, job: job.id, job_version: 1, app: job.app };
        let (id, fire_at) = (RunId::new(world.engine.new_id()), start + Duration::from_secs(second));
        let run = Run::new(id, of, fire_at, Trigger::Cron, (token.node, token.epoch)).for_all_shards();
        world.store.request_run(token, Run { status: RunStatus::Skipped, ..run }).await.unwrap();
    }
    into_pump(&world, &job).await;
    wait_until("the pump begins", async || open_root(&world, 2).await.is_some()).await;
    world.die().await;
}

#[tokio::test]
async fn a_run_with_shards_goes_on_when_its_job_is_deleted_as_a_pump_job() {
    let world = World::start_on(store(), config()).await;
    let (job, run, worker) = pump_with_run_from_before(&world).await;
    jobs::delete(&world.engine, &job, None, false, (None, "test")).await.unwrap();
    wait_until("it is forgotten as a pump job", async || world.store.pump_jobs().await.unwrap().is_empty()).await;
    let run = world.store.runs(&[run.id]).await.unwrap().remove(0);
    assert!(!run.status.is_terminal() && run.cancel_by.is_none(), "{run:?}");
    assert_eq!(worker.group_count(), 2);
    world.die().await;
}

#[tokio::test]
async fn a_pump_does_not_begin_in_a_maintenance_window() {
    let store = store();
    let now = <MemStore as Cluster>::now(&store).await.unwrap();
    let window = MaintenanceWindow {
        id: MaintenanceId::new(5),
        namespace: NAMESPACE,
        // The app of the first job.
        app: Some(AppId::new(7)),
        starts_at: now,
        ends_at: now + Duration::from_secs(3600),
        fires: FiresInside::Hold,
    };
    let (reason, author) = ("moving".to_owned(), "test".to_owned());
    let record = MaintenanceRecord { window, app_name: None, reason, author, created_at: now };
    assert!(store.add_maintenance(&record).await.unwrap());
    let world = World::start_on(store, config()).await;
    let held = create_pump(&world, json!({})).await;
    let pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s"});
    let other = create(&world, json!({"name": "k", "app": "other", "pump": pump})).await;
    // A look handles the jobs in the order of their ids.
    wait_until("the pump of another app begins", async || runs(&world).await.iter().any(|run| run.job == other.id))
        .await;
    assert!(runs(&world).await.iter().all(|run| run.job != held.id));
    world.die().await;
}
