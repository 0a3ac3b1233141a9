//! The executors that are online. Each node has a registry in memory, of the streams that are open to it; the other nodes read the store's
//! session rows.

mod schema_cost;
mod schemas;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rondel_core::name::takes_handler;
use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};

use crate::gateway::AppRows;

pub use schemas::ParamsSchema;
pub(crate) use schemas::{SchemaPool, Schemas, agreed};

/// An executor with a stream to this node.
#[derive(Clone, Debug)]
pub struct OnlineExecutor {
    /// Its incarnation.
    pub id: ExecutorId,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// The app's name.
    pub app_name: String,
    /// Its stable name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its weight, for the weight router.
    pub weight: u32,
    /// How many runs it takes concurrently.
    pub slots: u32,
    /// How long before a run's instant the executor takes its trigger; zero if it starts each run immediately.
    pub(crate) ahead_max: Duration,
    /// How many runs it has, by its last heartbeat.
    pub running: u32,
    /// The handlers that it has.
    pub handlers: Vec<String>,
    /// The schemas that its handlers declare for their parameters.
    pub(crate) params_schemas: Schemas,
    /// Version of its SDK.
    pub sdk_version: String,
    /// When this stream was opened.
    pub connected_at: Timestamp,
    /// When it was last heard.
    pub last_seen_at: Timestamp,
    /// Whether it takes no more runs.
    pub draining: bool,
    /// The triggers that it left unanswered; `None` after it has answered one.
    pub unanswered: Option<UnansweredTriggers>,
}

/// Triggers that an executor left unanswered while it kept sending heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredTriggers {
    /// How many of its streams in a row were ended for this reason.
    pub count: u32,
    /// When the first of these triggers was sent.
    pub since: Timestamp,
}

/// The names of an online executor.
#[derive(Clone, Debug)]
pub struct OnlineName {
    /// Its incarnation.
    pub id: ExecutorId,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// The app's name.
    pub app_name: String,
    /// Its stable name.
    pub name: String,
}

impl OnlineExecutor {
    /// Whether it has this handler: by name, or because it announces none and takes all, as executors of XXL-JOB do.
    #[must_use]
    pub fn has_handler(&self, handler: &str) -> bool {
        takes_handler(self.handlers.iter().map(String::as_str), handler)
    }

    /// Whether runs of this handler may go to it.
    pub(crate) fn takes(&self, handler: &str) -> bool {
        !self.draining && self.has_handler(handler)
    }
}

/// A handler of executors that are online.
#[derive(Clone, Debug)]
pub struct Handler {
    /// Its name.
    pub name: String,
    /// The names of the executors that have it.
    pub executors: Vec<String>,
    /// The schema of the handler's parameters, if all of these executors declare the same one.
    pub params_schema: Option<Arc<ParamsSchema>>,
}

#[derive(Debug, Default)]
pub(crate) struct Registry {
    online: RwLock<HashMap<ExecutorId, OnlineExecutor>>,
    pub(crate) schemas: SchemaPool,
    pub(crate) rows: AppRows,
}

impl Registry {
    pub(crate) fn insert(&self, executor: OnlineExecutor) {
        self.online.write().unwrap_or_else(PoisonError::into_inner).insert(executor.id, executor);
    }

    pub(crate) fn remove(&self, id: ExecutorId) {
        self.online.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    pub(crate) fn get(&self, id: ExecutorId) -> Option<OnlineExecutor> {
        self.online.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn is_online(&self, id: ExecutorId) -> bool {
        self.online.read().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    pub(crate) fn heard(&self, id: ExecutorId, now: Timestamp, running: Option<u32>) {
        if let Some(executor) = self.online.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.last_seen_at = now;
            executor.running = running.unwrap_or(executor.running);
        }
    }

    pub(crate) fn set_draining(&self, id: ExecutorId) {
        if let Some(executor) = self.online.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.draining = true;
        }
    }

    pub(crate) fn set_unanswered(&self, id: ExecutorId, unanswered: Option<UnansweredTriggers>) {
        if let Some(executor) = self.online.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.unanswered = unanswered;
        }
    }

    pub(crate) fn heard_since(&self, since: Timestamp) -> Vec<ExecutorId> {
        let online = self.online.read().unwrap_or_else(PoisonError::into_inner);
        let mut heard: Vec<_> =
            online.values().filter(|executor| executor.last_seen_at >= since).map(|executor| executor.id).collect();
        heard.sort_unstable();
        heard
    }

    /// The schema of a handler's parameters, if all executors of the app that have the handler and take runs declare the same. The outer
    /// `None` means that there is no such executor.
    pub(crate) fn params_schema(
        &self,
        namespace: NamespaceId,
        app: &str,
        handler: &str,
    ) -> Option<Option<Arc<ParamsSchema>>> {
        let online = self.online.read().unwrap_or_else(PoisonError::into_inner);
        let is_of_app = |one: &&OnlineExecutor| one.namespace == namespace && one.app_name == app;
        let mut takers = online.values().filter(is_of_app).filter(|one| one.takes(handler)).peekable();
        takers.peek()?;
        Some(agreed(takers.map(|one| one.params_schemas.get(handler))))
    }

    /// The handlers of an app, by name, with [`rondel_core::name::ANY_HANDLER`] for executors that announce none and take all. Executors
    /// may have very many handlers, so each of their lists is read once.
    pub(crate) fn handlers(&self, app: AppId) -> Vec<Handler> {
        let online = self.online.read().unwrap_or_else(PoisonError::into_inner);
        let mut takers: Vec<_> = online.values().filter(|one| one.app == app && !one.draining).collect();
        takers.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        let mut by_handler: BTreeMap<&String, Vec<&OnlineExecutor>> = BTreeMap::new();
        for taker in takers {
            for name in taker.handlers.iter().collect::<BTreeSet<_>>() {
                by_handler.entry(name).or_default().push(taker);
            }
        }
        let handler = |(name, takers): (&String, Vec<&OnlineExecutor>)| Handler {
            name: name.clone(),
            executors: takers.iter().map(|one| one.name.clone()).collect(),
            params_schema: agreed(takers.iter().map(|one| one.params_schemas.get(name))),
        };
        by_handler.into_iter().map(handler).collect()
    }

    /// The names of all online executors, without the rest of their hellos.
    pub(crate) fn names(&self) -> Vec<OnlineName> {
        let online = self.online.read().unwrap_or_else(PoisonError::into_inner);
        let name = |one: &OnlineExecutor| OnlineName {
            id: one.id,
            namespace: one.namespace,
            app: one.app,
            app_name: one.app_name.clone(),
            name: one.name.clone(),
        };
        online.values().map(name).collect()
    }

    /// All online executors, by app and name.
    pub(crate) fn all(&self) -> Vec<OnlineExecutor> {
        let online = self.online.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = online.values().cloned().collect();
        all.sort_by(|a, b| (&a.app_name, &a.name, a.id).cmp(&(&b.app_name, &b.name, b.id)));
        all
    }
}
