//! The trait `Namespaces` for the store in memory.

use async_trait::async_trait;
use rondel_core::{AppId, NamespaceId, Timestamp};

use crate::catalog::{App, Namespace, NamespaceDeleted};
use crate::mem::{MemStore, State};
use crate::{Namespaces, Result};

#[async_trait]
impl Namespaces for MemStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        Ok(self.state().namespaces.iter().find(|namespace| namespace.name == name).cloned())
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(self.state().namespaces.clone())
    }

    async fn create_namespace(&self, namespace: &Namespace, _now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        if state.namespaces.iter().any(|other| other.name == namespace.name) {
            return Ok(false);
        }
        state.namespaces.push(namespace.clone());
        state.namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(true)
    }

    async fn delete_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted> {
        let mut state = self.state();
        if state.namespaces.iter().all(|namespace| namespace.id != id) {
            return Ok(NamespaceDeleted::NotFound);
        }
        let has_jobs = state.jobs.values().any(|job| job.record.namespace == id);
        let has_scripts = state.has_scripts(id);
        if has_jobs || has_scripts || state.calendars.values().any(|calendar| calendar.namespace == id) {
            return Ok(NamespaceDeleted::Used);
        }
        state.namespaces.retain(|namespace| namespace.id != id);
        state.apps.retain(|_, app| app.namespace != id);
        state.webhooks.remove(&id);
        state.outbox.retain(|_, item| item.namespace != id);
        state.channel_rows.remove_namespace(id);
        state.alert_rows.remove_namespace(id);
        state.xxl.executors.retain(|_, executor| executor.namespace != id);
        state.access.remove_namespace(id);
        Ok(NamespaceDeleted::Done)
    }

    async fn app(&self, namespace: NamespaceId, name: &str) -> Result<Option<App>> {
        Ok(self.state().app(namespace, name))
    }

    async fn apps(&self, namespace: NamespaceId) -> Result<Vec<App>> {
        let state = self.state();
        let mut apps: Vec<App> = state.apps.values().filter(|app| app.namespace == namespace).cloned().collect();
        apps.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(apps)
    }

    async fn ensure_app(&self, id: AppId, namespace: NamespaceId, name: &str, _now: Timestamp) -> Result<App> {
        let mut state = self.state();
        if let Some(app) = state.app(namespace, name) {
            return Ok(app);
        }
        let app = App { id, namespace, name: name.to_owned() };
        state.apps.insert(id, app.clone());
        Ok(app)
    }
}

impl State {
    pub(super) fn app(&self, namespace: NamespaceId, name: &str) -> Option<App> {
        self.apps.values().find(|app| app.namespace == namespace && app.name == name).cloned()
    }
}
