//! Executors: who is online, and who was a while ago.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use axum::response::Response;
use http::StatusCode;
use rondel_admin::OnlineExecutor;
use rondel_core::{AppId, ExecutorId, Timestamp};
use rondel_store::cluster::ExecutorRecord;
use schemars::JsonSchema;
use serde::Serialize;

use super::Page;
use crate::call::Call;
use crate::frame::json;
use crate::problem::Problem;

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
}

pub(super) async fn list(call: Call) -> Result<Response, Problem> {
    json(StatusCode::OK, &Page { items: all(&call).await?, next_cursor: None })
}

/// Those that are online, and those that were until not long ago.
pub(crate) async fn all<Q>(call: &Call<Q>) -> Result<Vec<ExecutorJson>, Problem> {
    let store = call.engine().store();
    let now = call.engine().now();
    let online = call.engine().online_executors();
    let mut items: Vec<ExecutorJson> = online
        .into_iter()
        .filter(|one| one.namespace == call.namespace.id && call.sees(one.app))
        .map(ExecutorJson::from)
        .collect();
    let apps = store.apps(call.namespace.id).await?;
    let apps: HashMap<AppId, String> = apps.into_iter().map(|app| (app.id, app.name)).collect();
    let elsewhere = store.sessions(now - FRESH_FOR).await?;
    let elsewhere: HashSet<ExecutorId> =
        elsewhere.iter().filter(|session| session.is_open()).map(|session| session.executor).collect();
    let mut records = store.executors(call.namespace.id, now - SHOWN_FOR).await?;
    records.retain(|record| call.sees(record.app));
    // The newest start of a name comes first: the ones before it are history, unless they live.
    records.sort_by_key(|record| std::cmp::Reverse(record.last_seen_at));
    let ids: HashSet<ExecutorId> = items.iter().map(|item| item.id).collect();
    let mut names: HashSet<(String, String)> = items.iter().map(|item| (item.app.clone(), item.name.clone())).collect();
    for record in records {
        let app = apps.get(&record.app).cloned().unwrap_or_else(|| record.app.to_string());
        let is_online = elsewhere.contains(&record.id);
        let is_new_name = names.insert((app.clone(), record.name.clone()));
        if !ids.contains(&record.id) && (is_online || is_new_name) {
            items.push(from_record(record, app, is_online));
        }
    }
    items.sort_by(|a, b| (&a.app, &a.name, a.id).cmp(&(&b.app, &b.name, b.id)));
    Ok(items)
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
    }
}
