//! Pump jobs over the wire: groups are sent, items dealt, handed over and fenced, root runs begin and end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_admin::EngineConfig;
use rondel_core::homes::Switch;
use rondel_core::pump::Item;
use rondel_core::{Reason, Run, RunId, RunStatus};
use rondel_proto::v1;
use rondel_proto::v1::executor_message::Body as Up;
use rondel_proto::v1::server_message::Body as Down;
use rondel_store::catalog::JobRecord;
use rondel_store::{Cluster as _, Pumps as _, Runs as _};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::world::{LIMIT, Line, World, begun_replies, create, hello, runs, store};

/// What a worker has: its groups by run and attempt, each with its last order.
#[derive(Debug, Default)]
struct WorkerState {
    groups: BTreeMap<(i64, i32), Group>,
    /// Whether it answers no order.
    ignores_orders: bool,
    /// Whether it finds no rows in any item.
    finds_no_rows: bool,
    /// Every item that it has ever had, with the epoch.
    epochs: Vec<(String, i64)>,
}

#[derive(Debug, Default)]
struct Group {
    job: i64,
    order: v1::PumpOrder,
    released: BTreeMap<String, i64>,
}

/// An executor that works for groups of a pump.
pub(super) struct Worker {
    state: Arc<Mutex<WorkerState>>,
    /// Messages that it sends without a request of the server.
    unasked: mpsc::UnboundedSender<Up>,
    task: JoinHandle<()>,
}

impl Worker {
    pub(super) async fn start(world: &World, name: &str, incarnation: i64) -> Self {
        Self::dial(world, hello(name, incarnation)).await
    }

    /// Starts a worker with a label.
    async fn start_in(world: &World, zone: &str, name: &str, incarnation: i64) -> Self {
        let labels = [("zone".to_owned(), zone.to_owned())].into();
        Self::dial(world, v1::Hello { labels, ..hello(name, incarnation) }).await
    }

    async fn dial(world: &World, hello: v1::Hello) -> Self {
        let line = world.dial(Some(&world.token), hello).await.unwrap().beat();
        let state = Arc::new(Mutex::new(WorkerState::default()));
        let (unasked, to_send) = mpsc::unbounded_channel();
        #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
        let task = tokio::spawn(work(line, Arc::clone(&state), to_send));
        Self { state, unasked, task }
    }

    fn with<T>(&self, look: impl FnOnce(&mut WorkerState) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The items that it has now, with their epochs.
    fn items(&self) -> Vec<(String, i64)> {
        self.with(|state| {
            let groups = state.groups.values();
            let held = groups.flat_map(|group| group.order.items.iter().filter(|item| !item.release));
            held.map(|item| (item.name.clone(), item.epoch)).collect()
        })
    }

    pub(super) fn group_count(&self) -> usize {
        self.with(|state| state.groups.len())
    }

    /// A report without items makes the server look at the pump again.
    pub(super) fn report_nothing(&self) {
        let group = self.with(|state| state.groups.iter().next().map(|(key, group)| (*key, group.job)));
        let ((run_id, attempt), job_id) = group.unwrap();
        let report = v1::PumpReport { run_id, attempt, job_id, ..v1::PumpReport::default() };
        self.unasked.send(Up::PumpReports(v1::PumpReports { reports: vec![report] })).unwrap();
    }

    /// Makes one of its groups fail: the group releases its items with `done` rows done, and ends. Returns its run and attempt, and the
    /// names of the items.
    pub(super) fn fail_group(&self, done: u64) -> ((i64, i32), Vec<String>) {
        let (key, group) = self.with(|state| state.groups.pop_last()).unwrap();
        let reports = vec![report_of_release(key, &group, done)];
        self.unasked.send(Up::PumpReports(v1::PumpReports { reports })).unwrap();
        self.unasked.send(result(&group, v1::result::Status::Failed, key.0, key.1)).unwrap();
        (key, group.order.items.into_iter().map(|item| item.name).collect())
    }

    pub(super) fn announce_shutdown(&self) {
        self.unasked.send(Up::Draining(v1::Draining {})).unwrap();
    }

    /// Releases the items of its groups without an order. The groups do not end.
    pub(super) fn release_all(&self) {
        let report = |(key, group): (&(i64, i32), &Group)| report_of_release(*key, group, 0);
        let reports = self.with(|state| state.groups.iter().map(report).collect());
        self.unasked.send(Up::PumpReports(v1::PumpReports { reports })).unwrap();
    }

    fn die(&self) {
        self.task.abort();
    }
}

async fn work(mut line: Line, state: Arc<Mutex<WorkerState>>, mut to_send: mpsc::UnboundedReceiver<Up>) {
    loop {
        let answers = tokio::select! {
            body = line.receive_forever() => answers(&mut state.lock().unwrap_or_else(PoisonError::into_inner), body),
            Some(body) = to_send.recv() => vec![body],
        };
        for answer in answers {
            line.send(answer).await;
        }
    }
}

fn answers(state: &mut WorkerState, body: Down) -> Vec<Up> {
    match body {
        Down::Triggers(triggers) => {
            for trigger in &triggers.triggers {
                let group = Group { job: trigger.job_id, ..Group::default() };
                state.groups.insert((trigger.run_id, trigger.attempt), group);
            }
            triggers.triggers.iter().map(begun_replies).collect()
        }
        Down::PumpOrders(orders) => orders.orders.iter().flat_map(|order| replies_to_order(state, order)).collect(),
        Down::Cancels(cancels) => {
            let ends = cancels.cancels.iter().filter_map(|cancel| {
                let group = state.groups.remove(&(cancel.run_id, cancel.attempt))?;
                Some(result(&group, v1::result::Status::Cancelled, cancel.run_id, cancel.attempt))
            });
            ends.collect()
        }
        _ => Vec::new(),
    }
}

/// Obeys an order, and releases requested items immediately.
fn replies_to_order(state: &mut WorkerState, order: &v1::PumpOrder) -> Vec<Up> {
    let key = (order.run_id, order.attempt);
    let (ignores_orders, finds_no_rows) = (state.ignores_orders, state.finds_no_rows);
    state.epochs.extend(order.items.iter().map(|item| (item.name.clone(), item.epoch)));
    let Some(group) = state.groups.get_mut(&key) else { return Vec::new() };
    group.order = order.clone();
    if ignores_orders {
        return Vec::new();
    }
    let progress = |item: &v1::PumpItem| v1::PumpProgress {
        name: item.name.clone(),
        epoch: item.epoch,
        sequence: 1 + i64::from(item.release),
        fetches: 1,
        rows: 3,
        done: 3,
        dry: finds_no_rows,
        checkpoint: format!("{} at {}", item.name, item.epoch),
        released: item.release,
        ..v1::PumpProgress::default()
    };
    let items: Vec<_> = order.items.iter().map(progress).collect();
    for item in order.items.iter().filter(|item| item.release) {
        group.released.insert(item.name.clone(), item.epoch);
    }
    let report = v1::PumpReport {
        run_id: key.0,
        attempt: key.1,
        job_id: group.job,
        term: order.term,
        number: order.number,
        items,
    };
    let mut answers = vec![Up::PumpReports(v1::PumpReports { reports: vec![report] })];
    if order.r#yield {
        answers.push(result(group, v1::result::Status::Yielded, key.0, key.1));
        state.groups.remove(&key);
    }
    answers
}

/// The report of a group that has released its items with `done` rows done.
fn report_of_release((run_id, attempt): (i64, i32), group: &Group, done: u64) -> v1::PumpReport {
    let progress = |item: &v1::PumpItem| v1::PumpProgress {
        name: item.name.clone(),
        epoch: item.epoch,
        sequence: 9,
        done,
        released: true,
        ..v1::PumpProgress::default()
    };
    let items = group.order.items.iter().map(progress).collect();
    v1::PumpReport { run_id, attempt, job_id: group.job, items, ..v1::PumpReport::default() }
}

fn result(group: &Group, status: v1::result::Status, run_id: i64, attempt: i32) -> Up {
    let result = v1::Result { run_id, attempt, job_id: group.job, status: status.into(), ..v1::Result::default() };
    Up::Results(v1::Results { results: vec![result] })
}

/// Settings with a silence so short that items are fenced soon.
pub(super) fn config() -> EngineConfig {
    EngineConfig { silence: Duration::from_millis(500), ..EngineConfig::default() }
}

pub(super) async fn create_pump(world: &World, more: serde_json::Value) -> JobRecord {
    let mut pump = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s"});
    pump.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    create(world, json!({"pump": pump})).await
}

async fn items(world: &World, job: &JobRecord) -> Vec<Item> {
    world.store.pump_items(job.id).await.unwrap()
}

pub(super) async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + LIMIT;
    while !is_so().await {
        assert!(tokio::time::Instant::now() < deadline, "not seen: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether every item has an owner, and the workers have the same items at the same epochs.
pub(super) async fn all_dealt(world: &World, job: &JobRecord, workers: &[&Worker]) -> bool {
    let rows: BTreeMap<String, i64> = items(world, job)
        .await
        .into_iter()
        .filter(|item| item.owner.is_some() && item.asked_at.is_none())
        .map(|item| (item.name, item.epoch))
        .collect();
    let mut held: Vec<(String, i64)> = workers.iter().flat_map(|worker| worker.items()).collect();
    held.sort();
    rows.len() == 8 && held == rows.into_iter().collect::<Vec<_>>()
}

async fn root(world: &World) -> Run {
    runs(world).await.into_iter().filter(Run::is_root).max_by_key(|run| run.id).unwrap()
}

#[tokio::test]
async fn items_are_dealt_and_shared_out_anew_when_an_executor_comes_or_is_switched_off() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({})).await;
    let first = Worker::start(&world, "a", 1).await;
    wait_until("one executor has all", async || all_dealt(&world, &job, &[&first]).await).await;
    assert_eq!(first.group_count(), 4);

    let second = Worker::start(&world, "b", 2).await;
    wait_until("both have half", async || {
        all_dealt(&world, &job, &[&first, &second]).await && first.group_count() == 2 && second.group_count() == 2
    })
    .await;
    let rows = items(&world, &job).await;
    assert!(rows.iter().all(|item| item.checkpoint.is_some()), "checkpoints go with their items: {rows:?}");
    let moved: Vec<Run> = runs(&world).await.into_iter().filter(|run| run.attempt > 1).collect();
    assert!(moved.iter().all(|run| run.reason == Some(Reason::Moved)), "{moved:?}");

    world.store.set_executor_switch(job.app, "a", Switch::Stopped, world.engine.now()).await.unwrap();
    world.engine.poke_beat();
    wait_until("the one that is switched off is empty", async || {
        first.group_count() == 0 && all_dealt(&world, &job, &[&second]).await
    })
    .await;
    assert_eq!(root(&world).await.status, RunStatus::Running);
    world.die().await;
}

/// The groups give their items back and wait, even if no other executor can take them.
#[tokio::test]
async fn the_groups_of_a_stopped_executor_yield_though_it_is_the_only_one() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({})).await;
    let only = Worker::start(&world, "a", 1).await;
    wait_until("it has all", async || all_dealt(&world, &job, &[&only]).await).await;
    let switch = async |to| {
        world.store.set_executor_switch(job.app, "a", to, world.engine.now()).await.unwrap();
        world.engine.poke_beat();
    };
    switch(Switch::Stopped).await;
    wait_until("its groups have left it", async || {
        only.group_count() == 0 && items(&world, &job).await.iter().all(|item| item.owner.is_none())
    })
    .await;
    let groups = async || {
        let runs = runs(&world).await;
        runs.into_iter().filter(|run| !run.is_root()).collect::<Vec<_>>()
    };
    wait_until("they wait for an executor", async || {
        let groups = groups().await;
        let has_yielded = |run: &Run| run.attempt > 1 && run.reason == Some(Reason::Moved);
        groups.len() == 4 && groups.iter().all(|run| !run.status.is_terminal() && has_yielded(run))
    })
    .await;
    assert_eq!(root(&world).await.status, RunStatus::Running);
    switch(Switch::Active).await;
    wait_until("it has all again", async || all_dealt(&world, &job, &[&only]).await).await;
    world.die().await;
}

/// The window ends when no rows are left. An edit does not end it.
#[tokio::test]
async fn a_pump_until_empty_goes_on_after_an_edit_within_its_window() {
    let world = World::start_on(store(), config()).await;
    let yearly = json!({"cron": "0 0 0 1 1 ?"});
    let items_of_8 = json!({"items": {"count": 8}, "groups": 4, "hand_over": "11s", "until": "empty"});
    let job = create(&world, json!({"pump": items_of_8, "schedule": yearly})).await;
    let worker = Worker::start(&world, "a", 1).await;
    let begin = rondel_admin::jobs::RunRequest::by(rondel_core::Trigger::Manual);
    let first = rondel_admin::jobs::request_run(&world.engine, &job, begin).await.unwrap();
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let spec = rondel_core::JobSpec { description: "edited".to_owned(), ..job.spec.clone() };
    rondel_admin::jobs::change(&world.engine, &job, spec, None, "test").await.unwrap();
    wait_until("it goes on under the new definition", async || {
        let root = root(&world).await;
        root.id != first.id && root.job_version == 2 && all_dealt(&world, &job, &[&worker]).await
    })
    .await;
    let ended = world.store.runs(&[first.id]).await.unwrap().remove(0);
    assert_eq!((ended.status, ended.cancel_reason), (RunStatus::Succeeded, Some(Reason::Changed)), "{ended:?}");
    world.die().await;
}

#[tokio::test]
async fn an_item_that_is_not_given_back_is_fenced_and_its_owners_words_are_refused() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({"groups": 2})).await;
    let first = Worker::start(&world, "a", 1).await;
    wait_until("one executor has all", async || all_dealt(&world, &job, &[&first]).await).await;
    first.with(|state| state.ignores_orders = true);
    let second = Worker::start(&world, "b", 2).await;
    wait_until("what was asked back is fenced", async || {
        items(&world, &job).await.iter().filter(|item| item.epoch >= 3).count() == 4
    })
    .await;
    assert_eq!(first.group_count(), 2, "it has answered nothing");
    drop(second);
    world.die().await;
}

#[tokio::test]
async fn the_items_of_a_dead_executor_go_to_another_one() {
    let config = EngineConfig { lost_after: Duration::from_secs(2), ..config() };
    let world = World::start_on(store(), config).await;
    let job = create_pump(&world, json!({})).await;
    let (first, second) = (Worker::start(&world, "a", 1).await, Worker::start(&world, "b", 2).await);
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&first, &second]).await).await;
    first.die();
    wait_until("the other one has all", async || all_dealt(&world, &job, &[&second]).await).await;
    let mut dealt: Vec<(String, i64)> = first.with(|state| state.epochs.clone());
    let of_second = second.with(|state| state.epochs.clone());
    dealt.retain(|one| of_second.contains(one));
    assert_eq!(dealt, [], "no item was with both at one epoch");
    world.die().await;
}

#[tokio::test]
async fn a_pump_until_empty_ends_when_all_items_are_dry_and_a_paused_one_begins_anew() {
    let world = World::start_on(store(), config()).await;
    let job = create_pump(&world, json!({"until": "empty"})).await;
    let worker = Worker::start(&world, "a", 1).await;
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let first = root(&world).await;
    let paused = rondel_admin::jobs::set_enabled(&world.engine, &job, false, "test").await.unwrap();
    wait_until("the pause ends it", async || root(&world).await.status.is_terminal()).await;
    let ended = world.store.runs(&[first.id]).await.unwrap().remove(0);
    assert_eq!((ended.status, ended.cancel_reason), (RunStatus::Succeeded, Some(Reason::Paused)), "{ended:?}");
    wait_until("its items are free", async || items(&world, &job).await.iter().all(|item| item.owner.is_none())).await;

    worker.with(|state| state.finds_no_rows = true);
    rondel_admin::jobs::set_enabled(&world.engine, &paused, true, "test").await.unwrap();
    wait_until("it begins anew and ends dry", async || {
        let root = root(&world).await;
        root.id != first.id && root.status.is_terminal()
    })
    .await;
    let ended = root(&world).await;
    assert_eq!((ended.status, ended.cancel_reason), (RunStatus::Succeeded, Some(Reason::Dry)), "{ended:?}");
    let shards = world.store.runs_below(&[RunId::new(ended.id.get())], 9).await.unwrap();
    assert!(
        shards.iter().all(|run| (run.status, run.reason) == (RunStatus::Succeeded, Some(Reason::Dry))),
        "{shards:?}"
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(root(&world).await.id, ended.id, "it has nothing to do until it is started again");
    world.die().await;
}

/// An executor gets one group, however many slots it has. An executor that the job does not select gets none.
#[tokio::test]
async fn executors_have_as_many_groups_as_they_may_and_others_have_none() {
    let world = World::start_on(store(), config()).await;
    let of_zone = |zone: &str| json!({"labels": [format!("zone={zone}")]});
    let pump = json!({"items": {"count": 8}, "groups": 2, "per_executor": 1, "hand_over": "11s"});
    let job = create(&world, json!({"pump": pump, "select": of_zone("eu")})).await;
    let other = Worker::start_in(&world, "us", "a", 1).await;
    let first = Worker::start_in(&world, "eu", "b", 2).await;
    wait_until("the one of the zone has all", async || all_dealt(&world, &job, &[&first]).await).await;
    assert_eq!((first.group_count(), other.group_count()), (1, 0));
    let second = Worker::start_in(&world, "eu", "c", 3).await;
    wait_until("both of the zone have half", async || {
        second.group_count() == 1 && second.items().len() == 4 && all_dealt(&world, &job, &[&first, &second]).await
    })
    .await;
    assert_eq!((first.group_count(), second.group_count(), other.group_count()), (1, 1, 0));

    let spec = rondel_core::JobSpec { select: serde_json::from_value(of_zone("us")).unwrap(), ..job.spec.clone() };
    rondel_admin::jobs::change(&world.engine, &job, spec, None, "test").await.unwrap();
    wait_until("an edit gives them to the other zone", async || all_dealt(&world, &job, &[&other]).await).await;
    assert_eq!((first.group_count(), second.group_count(), other.group_count()), (0, 0, 1));
    world.die().await;
}

/// The pump begins at each instant of its schedule, and ends with the window that begins there.
#[tokio::test]
async fn a_pump_begins_and_ends_with_its_windows() {
    let world = World::start_on(store(), config()).await;
    let worker = Worker::start(&world, "a", 1).await;
    let [from, to] = ["3/6 * * * * ?", "2/6 * * * * ?"].map(|cron| json!({"cron": cron}));
    let items_of_8 = json!({"items": {"count": 8}, "groups": 2, "hand_over": "11s", "until": to});
    let job = create(&world, json!({"pump": items_of_8, "schedule": from})).await;
    let mut begun: Vec<Run> = Vec::new();
    for window in ["first", "second"] {
        wait_until(&format!("the {window} window begins"), async || {
            let roots: Vec<Run> = runs(&world).await.into_iter().filter(Run::is_root).collect();
            let newest = roots.into_iter().max_by_key(|run| run.id);
            let is_new = newest.is_some_and(|run| begun.iter().all(|other| other.id != run.id));
            is_new && all_dealt(&world, &job, &[&worker]).await
        })
        .await;
        begun.push(root(&world).await);
        let ended = async || world.store.runs(&[begun[begun.len() - 1].id]).await.unwrap().remove(0);
        wait_until(&format!("the {window} window is over"), async || ended().await.status.is_terminal()).await;
        let ended = ended().await;
        assert_eq!((ended.status, ended.cancel_reason), (RunStatus::Succeeded, Some(Reason::WindowOver)), "{ended:?}");
        assert_eq!(
            (ended.trigger, ended.fire_at.as_millis() % 6_000),
            (rondel_core::Trigger::Cron, 3_000),
            "{ended:?}"
        );
        assert!(ended.finished_at >= Some(ended.fire_at + Duration::from_secs(5)), "{ended:?}");
    }
    world.die().await;
}

#[tokio::test]
async fn another_server_goes_on_where_the_first_one_died() {
    let memory = store();
    let config = |name: &str| EngineConfig { node_name: name.to_owned(), ..config() };
    let world = World::start_on(Arc::clone(&memory), config("one")).await;
    let job = create_pump(&world, json!({})).await;
    let worker = Worker::start(&world, "a", 1).await;
    wait_until("all are dealt", async || all_dealt(&world, &job, &[&worker]).await).await;
    let before = items(&world, &job).await;
    world.die().await;
    let held = || {
        let run_ref =
            |(run_id, attempt): &(i64, i32)| v1::RunRef { run_id: *run_id, attempt: *attempt, ..v1::RunRef::default() };
        worker.with(|state| state.groups.keys().map(run_ref).collect::<Vec<_>>())
    };
    let world = World::start_on(Arc::clone(&memory), config("two")).await;
    let again = v1::Hello { held: held(), ..hello("a", 1) };
    let mut line = world.dial(Some(&world.token), again).await.unwrap().beat();
    let orders = loop {
        match line.receive_forever().await {
            Down::Fence(v1::Fence { node_id, node_epoch }) => {
                let reply = v1::FenceReply { node_id, node_epoch, held: held(), finished: Vec::new() };
                line.send(Up::FenceReply(reply)).await;
            }
            Down::PumpOrders(orders) => break orders,
            _ => {}
        }
    };
    assert!(!orders.orders.is_empty());
    let after = items(&world, &job).await;
    let owners =
        |items: &[Item]| items.iter().map(|item| (item.name.clone(), item.owner, item.epoch)).collect::<Vec<_>>();
    assert_eq!(owners(&after), owners(&before), "nothing changed hands");
    world.die().await;
}
