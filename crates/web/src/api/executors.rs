//! Executors: those online, and those seen recently.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use axum::response::Response;
use futures_util::future::{try_join, try_join3};
use http::StatusCode;
use rondel_admin::{OnlineExecutor, OnlineName, given_name};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::homes::Switch;
use rondel_core::{AppId, ExecutorId, Timestamp, name};
use rondel_store::cluster::{ExecutorRecord, Switches};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::page::{Page, PageQuery};
use super::page_builder::PageBuilder;
use crate::answer::json_response;
use crate::body::{JsonBody, refuse_value};
use crate::call::{Call, quoted_input};
use crate::cursor::{Listing, cut_to_page};
use crate::openapi::Doc;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::routes::Routes;

/// How long an executor stays in the list after it was last seen.
const OFFLINE_LISTED_LENGTH: Duration = Duration::from_secs(3600);
/// A report of another node about its executors is ignored once it is older than this.
const REPORT_AGE_MAX: Duration = Duration::from_secs(30);

/// Maximum number of an app's executors that may be switched off. It is checked without a lock: concurrent callers can exceed it.
const SWITCH_COUNT_MAX: usize = 1_000;
/// Placeholder for the id of an executor that is listed only because of its switch.
const NO_INCARNATION: ExecutorId = ExecutorId::new(0);

/// A process that runs jobs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Executor")]
pub(crate) struct ExecutorJson {
    pub(crate) id: ExecutorId,
    pub(crate) name: String,
    pub(crate) app: String,
    #[schemars(extend("enum" = ["online", "draining", "offline"]))]
    pub(crate) status: &'static str,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) weight: u32,
    pub(crate) slots: u32,
    /// How many runs it has, by its last heartbeat to this server; null if it has no stream to this server.
    pub(crate) running: Option<u32>,
    pub(crate) handlers: Vec<String>,
    pub(crate) sdk_version: String,
    /// When its stream to this server was opened.
    pub(crate) connected_at: Option<Timestamp>,
    /// When it was last heard from; for an executor that is listed only for its switch, when the switch was set.
    pub(crate) last_seen_at: Timestamp,
    /// Its switch. It belongs to the executor's name, and survives restarts of the executor and of the servers.
    #[schemars(with = "Switch")]
    pub(crate) state: &'static str,
    /// Since when the switch is set; null for `active`.
    pub(crate) state_since: Option<Timestamp>,
    /// How many runs it has, according to the database or to its last heartbeat, whichever is greater.
    pub(crate) run_count: u64,
    /// Triggers that the executor has not answered although it sends heartbeats: runs go to other executors first. Null if it answers,
    /// or if it has no stream to this server.
    pub(crate) unanswered_triggers: Option<UnansweredJson>,
}

/// Triggers that an executor left unanswered.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UnansweredTriggers")]
pub(crate) struct UnansweredJson {
    /// How many triggers in a row it left unanswered.
    count: u32,
    /// When the first of them was sent.
    since: Timestamp,
}

/// A position in the list of executors: app, name and incarnation.
pub(crate) type ExecutorPosition = (String, String, ExecutorId);

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/executors",
            View,
            list,
            Doc::new(
                "List executors",
                "Executors that are online, were seen within the last hour, or have a switch other than `active`.",
            )
            .json::<Page<ExecutorJson>>(200, "The executors."),
        )
        .put(
            "/api/v1/executors/{name}/state",
            Operate,
            set_state,
            Doc::new(
                "Set the state of an executor",
                "`draining`: the executor gets no new runs and finishes those that it has. `stopped`: the runs that it has are \
                 cancelled as well. The switch belongs to the name and applies to all jobs, until it is set to `active`. Every \
                 server applies it within a second.",
            )
            .json::<ExecutorJson>(200, "The executor.")
            .example(json!({"app": "billing", "state": "draining"})),
        )
}

/// The body of a request that sets the switch of an executor.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NewExecutorState {
    /// The executor's app; required if executors of several apps have the name.
    #[serde(default)]
    app: Option<String>,
    /// The new state of the switch.
    state: Switch,
}

async fn set_state(
    call: Call,
    Named(name, ..): Named<path::Executor>,
    body: JsonBody<NewExecutorState>,
) -> Result<Response, Problem> {
    let NewExecutorState { app, state } = body.read()?;
    let (executor, _) = set_switch(&call, (&name, app.as_deref()), state).await?;
    json_response(StatusCode::OK, &executor)
}

async fn list(call: Call<PageQuery>) -> Result<Response, Problem> {
    let listing = Listing::new("executors", call.namespace.id);
    let after_position =
        call.query.cursor.as_deref().map(|cursor| listing.position::<ExecutorPosition>(cursor)).transpose()?;
    let (items, next) = page(&call, after_position.clone(), call.query.limit).await?;
    let (mut page, mut last) = (PageBuilder::new(call.query.limit), after_position);
    for item in items {
        let position = (item.app.clone(), item.name.clone(), item.id);
        if !page.add(&item)? {
            return page.answer(last.map(|last| listing.cursor(last)));
        }
        last = Some(position);
    }
    page.answer(next.map(|last| listing.cursor(last)))
}

/// Sets the switch of the executors with this name. Returns one of them, and the previous switch.
pub(crate) async fn set_switch<Q>(
    call: &Call<Q>,
    (name, app): (&str, Option<&str>),
    switch: Switch,
) -> Result<(ExecutorJson, Switch), Problem> {
    let stable_name = given_name(name);
    let not_found = || {
        let detail = match app {
            Some(app) => format!("there is no executor {} of app {}", quoted_input(name), quoted_input(app)),
            None => format!("there is no executor {}", quoted_input(name)),
        };
        Problem::new(Code::NotFound, detail)
    };
    name::check(stable_name).map_err(|_| not_found())?;
    let store = call.engine().store();
    let switches = store.switches().await?;
    let mut candidates = listed_executors(call, &switches, call.engine().now() - OFFLINE_LISTED_LENGTH).await?;
    candidates.retain(|executor| {
        given_name(&executor.position.1) == stable_name && app.is_none_or(|app| executor.position.0 == app)
    });
    let apps: BTreeMap<String, AppId> =
        candidates.into_iter().map(|executor| (executor.position.0, executor.app)).collect();
    if apps.len() > 1 {
        let apps: Vec<&str> = apps.keys().map(String::as_str).collect();
        return Err(refuse_value("/app", format!("executors of {} have this name; name one app", apps.join(", "))));
    }
    let (app_name, app) = apps.into_iter().next().ok_or_else(not_found)?;
    call.check(Some(app), not_found)?;
    let switch_before = switches.of_executor(app, stable_name).map_or(Switch::Active, |executor| executor.switch);
    let switched_off_count = switches.executors.iter().filter(|executor| executor.app == app).count();
    if switch_before == Switch::Active && switch != Switch::Active && switched_off_count >= SWITCH_COUNT_MAX {
        let message = format!("{SWITCH_COUNT_MAX} executors of app {app_name} are switched off, which is the most");
        return Err(refuse_value("/state", format!("{message}; activate some of them, or drain the app")));
    }
    call.note.before(&json!({"app": app_name, "state": switch_before.as_str()}));
    call.note.changed_to(&json!({"app": app_name, "state": switch.as_str()}));
    store.set_executor_switch(app, stable_name, switch, call.engine().now()).await?;
    call.engine().poke_beat();
    match find(call, name, Some(&app_name)).await? {
        Some((_, executor)) => Ok((executor, switch_before)),
        // The executor was listed only because it was switched off. Now that it is active, it is no longer listed.
        None => Ok((ExecutorJson::of_switch(stable_name.to_owned(), app_name, call.engine().now()), switch_before)),
    }
}

/// The switches of executors, and how many runs each executor holds.
pub(crate) struct Fleet {
    pub(crate) switches: Switches,
    run_counts: HashMap<AppId, HashMap<String, u64>>,
}

impl Fleet {
    pub(crate) async fn read<Q>(call: &Call<Q>) -> Result<Self, Problem> {
        let store = call.engine().store();
        let mut run_counts: HashMap<AppId, HashMap<String, u64>> = HashMap::new();
        let (counts, switches) = try_join(store.count_running_by_executor(call.namespace.id), store.switches()).await?;
        for executor_runs in counts {
            run_counts.entry(executor_runs.app).or_default().insert(executor_runs.executor, executor_runs.count);
        }
        Ok(Self { switches, run_counts })
    }

    /// How many runs the executors of an app hold.
    pub(crate) fn run_count_of_app(&self, app: AppId) -> u64 {
        self.run_counts.get(&app).map_or(0, |counts| counts.values().sum())
    }

    /// Adds the executor's switch, and the number of runs that it holds.
    fn with_switch_and_runs(&self, executor: ExecutorJson, app: AppId) -> ExecutorJson {
        let counts_of_app = self.run_counts.get(&app);
        let run_count = counts_of_app.and_then(|counts| counts.get(&executor.name)).copied().unwrap_or(0);
        let switch = self.switches.of_executor(app, given_name(&executor.name));
        ExecutorJson {
            state: switch.map_or(Switch::Active, |switch| switch.switch).as_str(),
            state_since: switch.map(|switch| switch.set_at),
            run_count: run_count.max(executor.running.map_or(0, u64::from)),
            last_seen_at: match switch {
                Some(switch) if executor.id == NO_INCARNATION => switch.set_at,
                _ => executor.last_seen_at,
            },
            ..executor
        }
    }
}

/// A page of executors, ordered by app and name: those online, those seen within [`OFFLINE_LISTED_LENGTH`], and those that are switched
/// off. If there is a next page, also returns the position after which it begins.
pub(crate) async fn page<Q>(
    call: &Call<Q>,
    after_position: Option<ExecutorPosition>,
    limit: u32,
) -> Result<(Vec<ExecutorJson>, Option<ExecutorPosition>), Problem> {
    let store = call.engine().store();
    let seen_since = call.engine().now() - OFFLINE_LISTED_LENGTH;
    let fleet = Fleet::read(call).await?;
    let mut executors = listed_executors(call, &fleet.switches, seen_since).await?;
    executors.sort_by(|a, b| a.position.cmp(&b.position));
    let mut page_rows: Vec<ListedExecutor> = executors
        .into_iter()
        .filter(|listed| after_position.as_ref().is_none_or(|after_position| listed.position > *after_position))
        .collect();
    let last_position = cut_to_page(&mut page_rows, limit).map(|last| last.position.clone());
    let ids: Vec<ExecutorId> =
        page_rows.iter().filter(|listed| !listed.is_here).map(|listed| listed.position.2).collect();
    let records = store.executors_by_id(&ids, seen_since).await?;
    let mut records: HashMap<ExecutorId, ExecutorRecord> =
        records.into_iter().map(|record| (record.id, record)).collect();
    let item = |listed: ListedExecutor| {
        let (app, name, id) = listed.position;
        // An executor that went offline after the list was read is left out.
        let executor = match listed.is_here {
            true => call.engine().online_executor(id).map(ExecutorJson::from),
            false if id == NO_INCARNATION => Some(ExecutorJson::of_switch(name, app, call.engine().now())),
            false => records.remove(&id).map(|record| from_record(record, app, listed.is_elsewhere)),
        };
        executor.map(|executor| fleet.with_switch_and_runs(executor, listed.app))
    };
    Ok((page_rows.into_iter().filter_map(item).collect(), last_position))
}

/// The executor with this name: the one online, else the one seen last. Searches only `app` if it is given. Also returns the executor's
/// app.
pub(crate) async fn find<Q>(
    call: &Call<Q>,
    name: &str,
    app: Option<&str>,
) -> Result<Option<(AppId, ExecutorJson)>, Problem> {
    let store = call.engine().store();
    let seen_since = call.engine().now() - OFFLINE_LISTED_LENGTH;
    let fleet = Fleet::read(call).await?;
    let mut candidates = listed_executors(call, &fleet.switches, seen_since).await?;
    candidates.retain(|candidate| {
        given_name(&candidate.position.1) == given_name(name) && app.is_none_or(|app| candidate.position.0 == app)
    });
    candidates.sort_by_key(|candidate| (candidate.position.1 != name, !candidate.is_here, !candidate.is_elsewhere));
    let Some(candidate) = candidates.into_iter().next() else { return Ok(None) };
    let (app, name, id) = candidate.position;
    let executor = match candidate.is_here {
        true => call.engine().online_executor(id).map(ExecutorJson::from),
        false if id == NO_INCARNATION => Some(ExecutorJson::of_switch(name, app, call.engine().now())),
        false => {
            let record = store.executors_by_id(&[id], seen_since).await?.pop();
            record.map(|record| from_record(record, app, candidate.is_elsewhere))
        }
    };
    Ok(executor.map(|executor| (candidate.app, fleet.with_switch_and_runs(executor, candidate.app))))
}

/// The sorted stable names of the executors of an app.
pub(super) async fn executor_names<Q>(call: &Call<Q>, app: &str) -> Result<Vec<String>, Problem> {
    let switches = call.engine().store().switches().await?;
    let executors = listed_executors(call, &switches, call.engine().now() - OFFLINE_LISTED_LENGTH).await?;
    let executors_of_app = executors.iter().filter(|executor| executor.position.0 == app);
    let names: BTreeSet<String> =
        executors_of_app.map(|executor| given_name(&executor.position.1).to_owned()).collect();
    Ok(names.into_iter().collect())
}

struct ListedExecutor {
    position: ExecutorPosition,
    app: AppId,
    /// Whether it has a stream to this node.
    is_here: bool,
    /// Whether it has a stream to another node.
    is_elsewhere: bool,
}

async fn listed_executors<Q>(
    call: &Call<Q>,
    switches: &Switches,
    since: Timestamp,
) -> Result<Vec<ListedExecutor>, Problem> {
    let store = call.engine().store();
    let online_executors = call.engine().online_names();
    let is_visible = |executor: &OnlineName| executor.namespace == call.namespace.id && call.may_view(executor.app);
    let mut executors: Vec<ListedExecutor> = online_executors
        .into_iter()
        .filter(is_visible)
        .map(|executor| ListedExecutor {
            position: (executor.app_name, executor.name, executor.id),
            app: executor.app,
            is_here: true,
            is_elsewhere: false,
        })
        .collect();
    let seen_executors = store.seen_executors(call.namespace.id, since);
    let sessions = store.sessions(call.engine().now() - REPORT_AGE_MAX);
    let (apps, sessions, mut seen_executors) =
        try_join3(store.apps(call.namespace.id), sessions, seen_executors).await?;
    let apps: HashMap<AppId, String> = apps.into_iter().map(|app| (app.id, app.name)).collect();
    let ids_elsewhere: HashSet<ExecutorId> =
        sessions.iter().filter(|session| session.is_open()).map(|session| session.executor).collect();
    seen_executors.retain(|executor| call.may_view(executor.app));
    // Sorted from the newest to the oldest: each name keeps its newest incarnation. An older incarnation is listed only if it is online.
    seen_executors.sort_by_key(|executor| std::cmp::Reverse(executor.last_seen_at));
    let ids: HashSet<ExecutorId> = executors.iter().map(|executor| executor.position.2).collect();
    let mut names: HashSet<(String, String)> =
        executors.iter().map(|ListedExecutor { position: (app, name, _), .. }| (app.clone(), name.clone())).collect();
    for executor in seen_executors {
        let app = apps.get(&executor.app).cloned().unwrap_or_else(|| executor.app.to_string());
        let is_elsewhere = ids_elsewhere.contains(&executor.id);
        let is_new_name = names.insert((app.clone(), executor.name.clone()));
        if !ids.contains(&executor.id) && (is_elsewhere || is_new_name) {
            executors.push(ListedExecutor {
                position: (app, executor.name, executor.id),
                app: executor.app,
                is_here: false,
                is_elsewhere,
            });
        }
    }
    // An executor that is switched off stays in the list, so that it can be activated even long after it was last seen.
    let stable_names: HashSet<(AppId, String)> =
        executors.iter().map(|executor| (executor.app, given_name(&executor.position.1).to_owned())).collect();
    for executor in
        switches.executors.iter().filter(|executor| !stable_names.contains(&(executor.app, executor.name.clone())))
    {
        if let Some(app) = apps.get(&executor.app).filter(|_| call.may_view(executor.app)) {
            let position = (app.clone(), executor.name.clone(), NO_INCARNATION);
            executors.push(ListedExecutor { position, app: executor.app, is_here: false, is_elsewhere: false });
        }
    }
    Ok(executors)
}

impl From<OnlineExecutor> for ExecutorJson {
    fn from(executor: OnlineExecutor) -> Self {
        Self {
            id: executor.id,
            name: executor.name,
            app: executor.app_name,
            status: if executor.is_draining { "draining" } else { "online" },
            labels: executor.labels,
            weight: executor.weight,
            slots: executor.slots,
            running: Some(executor.running),
            handlers: executor.handlers,
            sdk_version: executor.sdk_version,
            connected_at: Some(executor.connected_at),
            last_seen_at: executor.last_seen_at,
            state: Switch::Active.as_str(),
            state_since: None,
            run_count: 0,
            unanswered_triggers: executor
                .unanswered
                .map(|triggers| UnansweredJson { count: triggers.count, since: triggers.since }),
        }
    }
}

impl ExecutorJson {
    /// An executor that was not seen for so long that only its switch is known.
    fn of_switch(name: String, app: String, now: Timestamp) -> Self {
        Self {
            id: NO_INCARNATION,
            name,
            app,
            status: "offline",
            labels: BTreeMap::new(),
            weight: 1,
            slots: 0,
            running: None,
            handlers: Vec::new(),
            sdk_version: String::new(),
            connected_at: None,
            last_seen_at: now,
            state: Switch::Active.as_str(),
            state_since: None,
            run_count: 0,
            unanswered_triggers: None,
        }
    }
}

fn from_record(record: ExecutorRecord, app: String, is_online: bool) -> ExecutorJson {
    ExecutorJson {
        id: record.id,
        name: record.name,
        app,
        status: if is_online { "online" } else { "offline" },
        labels: serde_json::from_str(&record.labels).unwrap_or_default(),
        weight: record.weight,
        slots: record.slots,
        running: None,
        handlers: serde_json::from_str(&record.handlers).unwrap_or_default(),
        sdk_version: record.sdk_version,
        connected_at: None,
        last_seen_at: record.last_seen_at,
        state: Switch::Active.as_str(),
        state_since: None,
        run_count: 0,
        unanswered_triggers: None,
    }
}
