//! The sets of jobs that executors' code declares, and the declarations of single jobs.

use std::cmp::Reverse;

use async_trait::async_trait;
use rondel_core::{AppId, JobId, Timestamp};

use crate::catalog::Declared;
use crate::declarations::{DeclaredSet, DeclaredSetHeader};
use crate::mem::MemStore;
use crate::{Declarations, Result};

#[async_trait]
impl Declarations for MemStore {
    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool> {
        let mut state = self.state();
        let stored_job = state.jobs.get_mut(&id).filter(|stored_job| !stored_job.is_deleted);
        Ok(stored_job.map(|stored_job| stored_job.record.declared = Some(declared.clone())).is_some())
    }

    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64> {
        let mut state = self.state();
        let mut count = 0;
        for id in ids {
            let stored_job = state.jobs.get_mut(id).filter(|stored_job| !stored_job.is_deleted);
            let declaration = stored_job.and_then(|stored_job| stored_job.record.declared.as_mut());
            if let Some(declaration) = declaration.filter(|declaration| declaration.undeclared_at.is_none()) {
                declaration.undeclared_at = Some(since);
                count += 1;
            }
        }
        Ok(count)
    }

    async fn record_declared_set(&self, app: AppId, hash: &str, specs: &str, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        let set = state.declared.entry((app, hash.to_owned())).or_insert_with(|| DeclaredSet {
            header: DeclaredSetHeader { app, hash: hash.to_owned(), first_seen_at: now, last_seen_at: now },
            specs: specs.to_owned(),
        });
        set.header.last_seen_at = set.header.last_seen_at.max(now);
        Ok(())
    }

    async fn declared_set_headers(&self, since: Timestamp) -> Result<Vec<DeclaredSetHeader>> {
        let state = self.state();
        let seen_sets = state.declared.values().filter(|set| set.header.last_seen_at >= since);
        Ok(seen_sets.map(|set| set.header.clone()).collect())
    }

    async fn declared_sets(&self, app: AppId) -> Result<Vec<DeclaredSet>> {
        let state = self.state();
        let mut sets: Vec<DeclaredSet> = state.declared.values().filter(|set| set.header.app == app).cloned().collect();
        sets.sort_by_key(|set| (Reverse(set.header.last_seen_at), set.header.hash.clone()));
        Ok(sets)
    }

    async fn forget_declared_set(&self, header: &DeclaredSetHeader) -> Result<()> {
        let mut state = self.state();
        let key = (header.app, header.hash.clone());
        if state.declared.get(&key).is_some_and(|set| set.header.last_seen_at <= header.last_seen_at) {
            state.declared.remove(&key);
        }
        Ok(())
    }
}
