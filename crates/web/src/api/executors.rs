//! Executors: who is online, and who was a while ago.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use axum::response::Response;
use rondel_admin::{OnlineExecutor, OnlineName};
use rondel_core::access::Permission::View;
use rondel_core::{AppId, ExecutorId, Timestamp};
use rondel_store::cluster::ExecutorRecord;
use schemars::JsonSchema;
use serde::Serialize;

use super::filling::Filling;
use super::page::{Page, PageQuery};
use crate::call::Call;
use crate::cursor::Listing;
use crate::openapi::Doc;
use crate::problem::Problem;
use crate::routes::Routes;

/// How long those that are gone are shown.
const SHOWN_FOR: Duration = Duration::from_secs(3600);
/// How fresh another node's word about its executor must be.
const FRESH_FOR: Duration = Duration::from_secs(30);

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
    /// Null where this node does not hear it.
    pub(crate) running: Option<u32>,
    pub(crate) handlers: Vec<String>,
    pub(crate) sdk_version: String,
    /// When its stream to this node was opened.
    pub(crate) connected_at: Option<Timestamp>,
    pub(crate) last_seen_at: Timestamp,
    /// The triggers that it left unanswered, though its heartbeats come: runs go to other executors first. Null for one that
    /// answers, or that this node does not hear.
    pub(crate) unanswered_triggers: Option<UnansweredJson>,
}

/// Triggers that an executor left unanswered.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UnansweredTriggers")]
pub(crate) struct UnansweredJson {
    /// How often in a row.
    count: u32,
    /// When the first of them was sent.
    since: Timestamp,
}

/// Where a list of executors stands: app, name and incarnation.
pub(crate) type Position = (String, String, ExecutorId);

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/executors",
        View,
        list,
        Doc::new("List executors", "Those online, and those seen within the last hour.")
            .json::<Page<ExecutorJson>>(200, "The executors."),
    )
}

async fn list(call: Call<PageQuery>) -> Result<Response, Problem> {
    let listing = Listing::new("executors", call.namespace.id);
    let after = call.query.cursor.as_deref().map(|cursor| listing.position::<Position>(cursor)).transpose()?;
    let (items, next) = page(&call, after.clone(), call.query.limit).await?;
    let (mut page, mut last) = (Filling::new(call.query.limit), after);
    for item in items {
        let position = (item.app.clone(), item.name.clone(), item.id);
        if !page.add(&item)? {
            return page.answer(last.map(|last| listing.cursor(last)));
        }
        last = Some(position);
    }
    page.answer(next.map(|last| listing.cursor(last)))
}

/// Those that are online, and those that were until not long ago, by app and name; and where the next page begins.
pub(crate) async fn page<Q>(
    call: &Call<Q>,
    after: Option<Position>,
    limit: u32,
) -> Result<(Vec<ExecutorJson>, Option<Position>), Problem> {
    let store = call.engine().store();
    let since = call.engine().now() - SHOWN_FOR;
    let mut all = shown(call, since).await?;
    all.sort_by(|a, b| a.position.cmp(&b.position));
    let mut chosen: Vec<Shown> =
        all.into_iter().filter(|one| after.as_ref().is_none_or(|after| one.position > *after)).collect();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = chosen.len() > limit;
    chosen.truncate(limit);
    let next = chosen.last().filter(|_| has_more).map(|last| last.position.clone());
    let ids: Vec<ExecutorId> = chosen.iter().filter(|one| !one.is_here).map(|one| one.position.2).collect();
    let records = store.executors_by_id(&ids, since).await?;
    let mut records: HashMap<ExecutorId, ExecutorRecord> =
        records.into_iter().map(|record| (record.id, record)).collect();
    let item = |one: Shown| {
        let (app, _, id) = one.position;
        // One that has gone since is on no page.
        match one.is_here {
            true => call.engine().online_executor(id).map(ExecutorJson::from),
            false => records.remove(&id).map(|record| from_record(record, app, one.is_elsewhere)),
        }
    };
    Ok((chosen.into_iter().filter_map(item).collect(), next))
}

/// An executor that a list shows.
struct Shown {
    position: Position,
    /// Whether it has a stream to this node, or to another one.
    is_here: bool,
    is_elsewhere: bool,
}

async fn shown<Q>(call: &Call<Q>, since: Timestamp) -> Result<Vec<Shown>, Problem> {
    let store = call.engine().store();
    let online = call.engine().online_names();
    let is_seen = |one: &OnlineName| one.namespace == call.namespace.id && call.sees(one.app);
    let mut all: Vec<Shown> = online
        .into_iter()
        .filter(is_seen)
        .map(|one| Shown { position: (one.app_name, one.name, one.id), is_here: true, is_elsewhere: false })
        .collect();
    let apps = store.apps(call.namespace.id).await?;
    let apps: HashMap<AppId, String> = apps.into_iter().map(|app| (app.id, app.name)).collect();
    let elsewhere = store.sessions(call.engine().now() - FRESH_FOR).await?;
    let elsewhere: HashSet<ExecutorId> =
        elsewhere.iter().filter(|session| session.is_open()).map(|session| session.executor).collect();
    let mut seen = store.seen_executors(call.namespace.id, since).await?;
    seen.retain(|one| call.sees(one.app));
    // The newest start of a name comes first: the ones before it are history, unless they live.
    seen.sort_by_key(|one| std::cmp::Reverse(one.last_seen_at));
    let ids: HashSet<ExecutorId> = all.iter().map(|one| one.position.2).collect();
    let mut names: HashSet<(String, String)> =
        all.iter().map(|Shown { position: (app, name, _), .. }| (app.clone(), name.clone())).collect();
    for one in seen {
        let app = apps.get(&one.app).cloned().unwrap_or_else(|| one.app.to_string());
        let is_elsewhere = elsewhere.contains(&one.id);
        let is_new_name = names.insert((app.clone(), one.name.clone()));
        if !ids.contains(&one.id) && (is_elsewhere || is_new_name) {
            all.push(Shown { position: (app, one.name, one.id), is_here: false, is_elsewhere });
        }
    }
    Ok(all)
}

impl From<OnlineExecutor> for ExecutorJson {
    fn from(executor: OnlineExecutor) -> Self {
        Self {
            id: executor.id,
            name: executor.name,
            app: executor.app_name,
            status: if executor.draining { "draining" } else { "online" },
            labels: executor.labels,
            weight: executor.weight,
            slots: executor.slots,
            running: Some(executor.running),
            handlers: executor.handlers,
            sdk_version: executor.sdk_version,
            connected_at: Some(executor.connected_at),
            last_seen_at: executor.last_seen_at,
            unanswered_triggers: executor.unanswered.map(|of| UnansweredJson { count: of.count, since: of.since }),
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
        unanswered_triggers: None,
    }
}
