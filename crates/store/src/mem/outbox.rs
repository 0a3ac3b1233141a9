//! Webhooks, and messages that have not been delivered.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::{NamespaceId, OutboxId, RunId, Timestamp};

use super::{MemStore, State, to_usize};
use crate::outbox::{FailureWebhook, OutboxItem, RunMessage, TakeOutbox, is_failure, may_be_reported, reports_skip};
use crate::{Outbox, Result};

#[async_trait]
impl Outbox for MemStore {
    async fn failure_webhook(&self, namespace: NamespaceId) -> Result<Option<FailureWebhook>> {
        Ok(self.state().webhooks.get(&namespace).cloned())
    }

    async fn put_failure_webhook(&self, namespace: NamespaceId, webhook: &FailureWebhook) -> Result<bool> {
        let mut state = self.state();
        if let Some(stored_webhook) = state.webhooks.get_mut(&namespace) {
            (stored_webhook.url, stored_webhook.updated_at) = (webhook.url.clone(), webhook.updated_at);
            return Ok(false);
        }
        state.webhooks.insert(namespace, webhook.clone());
        Ok(true)
    }

    async fn delete_failure_webhook(&self, namespace: NamespaceId) -> Result<bool> {
        Ok(self.state().webhooks.remove(&namespace).is_some())
    }

    async fn take_outbox(&self, now: Timestamp, take: TakeOutbox<'_>) -> Result<Vec<OutboxItem>> {
        let mut state = self.state();
        let is_due = |item: &&OutboxItem| item.held_until <= now && !take.excluded_namespaces.contains(&item.namespace);
        let mut due_items: Vec<(Timestamp, OutboxId, NamespaceId)> =
            state.outbox.values().filter(is_due).map(|item| (item.held_until, item.id, item.namespace)).collect();
        due_items.sort_unstable();
        let mut counts: BTreeMap<NamespaceId, u32> = BTreeMap::new();
        let mut taken_items: Vec<OutboxItem> = Vec::new();
        for (_, id, namespace) in due_items {
            let has_turn = counts.contains_key(&namespace) || counts.len() < to_usize(take.namespace_max);
            let count = if has_turn { counts.entry(namespace).or_default() } else { continue };
            if let Some(item) = state.outbox.get_mut(&id).filter(|_| *count < take.messages_per_namespace_max) {
                *count += 1;
                item.held_until = now + take.hold;
                taken_items.push(item.clone());
            }
        }
        taken_items.sort_by_key(|item| item.id);
        Ok(taken_items)
    }

    async fn drop_outbox(&self, ids: &[OutboxId]) -> Result<()> {
        self.state().outbox.retain(|id, _| !ids.contains(id));
        Ok(())
    }

    async fn postpone_outbox(&self, item: &OutboxItem, try_count: i32, due_at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let stored_item =
            state.outbox.get_mut(&item.id).filter(|stored_item| stored_item.held_until == item.held_until);
        if let Some(stored_item) = stored_item {
            (stored_item.try_count, stored_item.held_until) = (try_count, due_at);
        }
        Ok(())
    }

    async fn forget_outbox(&self, namespace: NamespaceId, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let is_old = |item: &&OutboxItem| item.namespace == namespace && item.created_at < before;
        let old_ids: Vec<OutboxId> =
            state.outbox.values().filter(is_old).map(|item| item.id).take(to_usize(limit)).collect();
        for id in &old_ids {
            state.outbox.remove(id);
        }
        Ok(u64::try_from(old_ids.len()).unwrap_or(u64::MAX))
    }
}

impl State {
    /// Writes the alert event and the dead letter of a run. If the run's namespace has a webhook, also writes a message for a run that
    /// failed, or that was skipped for a reason that its job wants reported.
    pub(super) fn add_message(&mut self, id: RunId, now: Timestamp) {
        self.add_alert_event(id);
        let Some(run) = self.runs.get(&id).filter(|run| may_be_reported(run.status)) else { return };
        if !self.webhooks.contains_key(&run.namespace) || self.broadcast_of(run).is_some() {
            return;
        }
        let version = self.jobs.get(&run.job).and_then(|job| job.versions.get(&run.job_version));
        let spec = version.and_then(|version| serde_json::to_string(&version.spec).ok()).unwrap_or_default();
        if !is_failure(run.status) && !run.reason.is_some_and(|reason| reports_skip(&spec, reason)) {
            return;
        }
        let namespace_name = self.namespaces.iter().find(|namespace| namespace.id == run.namespace);
        let message = RunMessage {
            run: id,
            namespace: run.namespace,
            namespace_name: namespace_name.map(|namespace| namespace.name.clone()).unwrap_or_default(),
            app_name: self.apps.get(&run.app).map(|app| app.name.clone()).unwrap_or_default(),
            job_name: self.jobs.get(&run.job).map(|job| job.record.spec.name.clone()).unwrap_or_default(),
            status: run.status,
            reason: run.reason,
            detail: run.detail.clone(),
            attempt: run.attempt,
            trigger: run.trigger,
            fire_at: run.fire_at,
            started_at: run.started_at,
            finished_at: run.finished_at,
            executor: run.executor.clone(),
            message: run.message.clone(),
            span: run.span_end_at.map(|last| (last, run.span_count)),
        };
        let item = OutboxItem {
            id: OutboxId::new(id.get()),
            namespace: run.namespace,
            kind: message.kind().to_owned(),
            run: Some(id),
            payload: message.payload(now),
            try_count: 0,
            created_at: now,
            held_until: now,
        };
        self.outbox.entry(item.id).or_insert(item);
    }
}
