//! The trait `AuditLog` for the store in memory.

use async_trait::async_trait;

use crate::Result;
use crate::access::{AuditEntry, AuditLog, AuditQuery, INCOMPLETE, stored_document};
use crate::mem::{MemStore, to_usize};

#[async_trait]
impl AuditLog for MemStore {
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut entry = entry.clone();
        entry.before = entry.before.as_deref().map(stored_document);
        entry.after = entry.after.as_deref().map(stored_document);
        self.state().access.audit.insert(entry.id, entry);
        Ok(())
    }

    async fn complete_audit(&self, entry: &AuditEntry) -> Result<bool> {
        let mut state = self.state();
        let open_entry = state.access.audit.get_mut(&entry.id);
        let Some(open_entry) = open_entry.filter(|open_entry| open_entry.after.as_deref() == Some(INCOMPLETE)) else {
            return Ok(false);
        };
        let AuditEntry { object, namespace, verdict, before, after, .. } = entry.clone();
        open_entry.before = before.as_deref().map(stored_document);
        open_entry.after = after.as_deref().map(stored_document);
        (open_entry.object, open_entry.namespace, open_entry.verdict) = (object, namespace, verdict);
        Ok(true)
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        let state = self.state();
        let is_equal = |filter: &Option<String>, text: &str| filter.as_deref().is_none_or(|wanted| wanted == text);
        let is_wanted = |entry: &&AuditEntry| {
            is_equal(&query.actor, &entry.actor)
                && is_equal(&query.action, &entry.action)
                && is_equal(&query.object, &entry.object)
                && query.namespace.is_none() | (query.namespace == entry.namespace)
                && query.verdict.is_none_or(|verdict| entry.verdict == verdict)
                && query.from.is_none_or(|from| entry.id.get() >= rondel_core::IdGen::first_at(from))
                && query.to.is_none_or(|to| entry.id.get() < rondel_core::IdGen::first_at(to))
                && query.after.is_none_or(|after| entry.id < after)
        };
        Ok(state.access.audit.values().rev().filter(is_wanted).take(to_usize(query.limit)).cloned().collect())
    }
}
