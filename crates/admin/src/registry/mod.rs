//! Who is online: a stream is a fact, so the registry is in memory, one per node. The store's session rows tell the
//! other nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{PoisonError, RwLock};

use rondel_core::{AppId, ExecutorId, NamespaceId, Timestamp};

/// An executor with a stream to this node.
#[derive(Clone, Debug)]
pub struct OnlineExecutor {
    /// Its incarnation.
    pub id: ExecutorId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its app.
    pub app: AppId,
    /// The app's name.
    pub app_name: String,
    /// Its stable name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// For the weight router.
    pub weight: u32,
    /// How many runs it takes at the same time.
    pub slots: u32,
    /// How many it has, by its last heartbeat.
    pub running: u32,
    /// What it can run.
    pub handlers: Vec<String>,
    /// Version of its SDK.
    pub sdk_version: String,
    /// When this stream was opened.
    pub connected_at: Timestamp,
    /// When it was last heard.
    pub last_seen_at: Timestamp,
    /// Whether it takes no more runs.
    pub draining: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Registry(RwLock<HashMap<ExecutorId, OnlineExecutor>>);

impl Registry {
    pub(crate) fn insert(&self, executor: OnlineExecutor) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(executor.id, executor);
    }

    pub(crate) fn remove(&self, id: ExecutorId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    pub(crate) fn get(&self, id: ExecutorId) -> Option<OnlineExecutor> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    pub(crate) fn heard(&self, id: ExecutorId, now: Timestamp, running: Option<u32>) {
        if let Some(executor) = self.0.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.last_seen_at = now;
            executor.running = running.unwrap_or(executor.running);
        }
    }

    pub(crate) fn set_draining(&self, id: ExecutorId) {
        if let Some(executor) = self.0.write().unwrap_or_else(PoisonError::into_inner).get_mut(&id) {
            executor.draining = true;
        }
    }

    pub(crate) fn heard_since(&self, since: Timestamp) -> Vec<ExecutorId> {
        let online = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut heard: Vec<_> =
            online.values().filter(|executor| executor.last_seen_at >= since).map(|executor| executor.id).collect();
        heard.sort_unstable();
        heard
    }

    /// Everyone online, by app and name.
    pub(crate) fn all(&self) -> Vec<OnlineExecutor> {
        let online = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = online.values().cloned().collect();
        all.sort_by(|a, b| (&a.app_name, &a.name, a.id).cmp(&(&b.app_name, &b.name, b.id)));
        all
    }
}
