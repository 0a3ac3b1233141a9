//! Namespaces, apps, jobs, tokens.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::edit::{FutureRow, Standing, plan_edit};
use rondel_core::run::BROADCAST;
use rondel_core::{AppId, Job, JobId, NamespaceId, NodeId, Reason, Run, RunId, RunStatus, Timestamp};

use super::{Due, MemStore, State, StoredJob, key, size};
use crate::catalog::{
    App, Changed, Definition, JobChange, JobQuery, JobRecord, Namespace, NewJob, TokenKind, TokenRecord,
};
use crate::settle::shard_of;
use crate::{Catalog, Result};

#[async_trait]
impl Catalog for MemStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        Ok(self.state().namespaces.iter().find(|namespace| namespace.name == name).cloned())
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(self.state().namespaces.clone())
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

    async fn create_job(&self, job: NewJob) -> Result<Option<JobRecord>> {
        let mut state = self.state();
        if state.job(job.namespace, &job.spec.name).is_some() {
            return Ok(None);
        }
        let record = JobRecord {
            id: job.id,
            namespace: job.namespace,
            app: job.app,
            version: 1,
            spec: job.spec,
            anchor: job.anchor,
            next_fire_at: job.next_fire_at,
            calendar: job.calendar,
            declared: None,
            created_at: job.now,
            updated_at: job.now,
        };
        let versions = BTreeMap::from([(1, (record.app, record.spec.clone()))]);
        let due = Due { next_fire_at: job.next_fire_at, version: 1, home: NodeId::new(0), term: 0 };
        state.due.insert(job.id, due);
        state.jobs.insert(job.id, StoredJob { record: record.clone(), is_deleted: false, versions });
        Ok(Some(record))
    }

    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        Ok(self.state().job(namespace, name))
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let state = self.state();
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(|job| job.namespace == namespace).collect();
        jobs.retain(|job| {
            query.app.is_none_or(|app| job.app == app)
                && query.name_contains.as_ref().is_none_or(|part| job.spec.name.contains(part))
                && query.after_name.as_ref().is_none_or(|name| job.spec.name > *name)
        });
        jobs.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        jobs.truncate(size(query.limit));
        Ok(jobs)
    }

    async fn job_names(&self, ids: &[JobId]) -> Result<Vec<(JobId, String)>> {
        let state = self.state();
        let name = |id: &JobId| Some((*id, state.jobs.get(id)?.record.spec.name.clone()));
        Ok(ids.iter().filter_map(name).collect())
    }

    async fn definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>> {
        let state = self.state();
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let definition = |(job, version): (JobId, i64)| {
            let stored = state.jobs.get(&job)?;
            let (app, spec) = stored.versions.get(&version)?;
            let namespace = state.namespaces.iter().find(|namespace| namespace.id == stored.record.namespace)?;
            Some(Definition {
                job,
                version,
                namespace: namespace.id,
                namespace_name: namespace.name.clone(),
                app: *app,
                spec: spec.clone(),
                anchor: stored.record.anchor,
                calendar: None,
            })
        };
        Ok(keys.into_iter().filter_map(definition).collect())
    }

    async fn change_job(&self, change: JobChange<'_>) -> Result<Changed> {
        let mut state = self.state();
        let Some(record) = state.living_job(change.id) else { return Ok(Changed::NotFound) };
        if change.expected_version.is_some_and(|version| version != record.version) {
            return Ok(Changed::Conflict(record.version));
        }
        if state.job(record.namespace, &change.spec.name).is_some_and(|other| other.id != change.id) {
            return Ok(Changed::NameTaken);
        }
        Ok(state.change(&record, &change))
    }

    async fn delete_job(
        &self,
        id: JobId,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<std::result::Result<bool, i64>> {
        let mut state = self.state();
        let Some(record) = state.living_job(id) else { return Ok(Ok(false)) };
        if expected_version.is_some_and(|version| version != record.version) {
            return Ok(Err(record.version));
        }
        let plan = plan_edit(None, standing(&record, now, &state.future(id, now), None));
        state.settle(&plan.settle, plan.reason, now);
        state.due.remove(&id);
        if let Some(stored) = state.jobs.get_mut(&id) {
            stored.is_deleted = true;
        }
        Ok(Ok(true))
    }

    async fn versions(
        &self,
        _job: JobId,
        _from: Timestamp,
        _to: Timestamp,
        _limit: u32,
    ) -> Result<Vec<crate::catalog::VersionRecord>> {
        Ok(Vec::new())
    }

    async fn add_token(&self, token: &TokenRecord) -> Result<()> {
        let mut state = self.state();
        if state.tokens.iter().all(|known| known.hash != token.hash) {
            state.tokens.push(token.clone());
        }
        Ok(())
    }

    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>> {
        Ok(self.state().tokens.iter().find(|token| token.hash == hash).cloned())
    }

    async fn has_admin_token(&self) -> Result<bool> {
        Ok(self.state().tokens.iter().any(|token| token.kind == TokenKind::Admin))
    }
}

impl State {
    fn app(&self, namespace: NamespaceId, name: &str) -> Option<App> {
        self.apps.values().find(|app| app.namespace == namespace && app.name == name).cloned()
    }

    fn living_jobs(&self) -> impl Iterator<Item = JobRecord> {
        self.jobs.values().filter(|stored| !stored.is_deleted).map(|stored| JobRecord {
            next_fire_at: self.due.get(&stored.record.id).and_then(|due| due.next_fire_at),
            ..stored.record.clone()
        })
    }

    fn living_job(&self, id: JobId) -> Option<JobRecord> {
        self.living_jobs().find(|job| job.id == id)
    }

    fn job(&self, namespace: NamespaceId, name: &str) -> Option<JobRecord> {
        self.living_jobs().find(|job| job.namespace == namespace && job.spec.name == name)
    }

    /// The rows that an edit is about; a marked one may have been sent.
    fn future(&self, job: JobId, now: Timestamp) -> Vec<FutureRow> {
        let is_unsent = |run: &&Run| match run.status {
            RunStatus::Pending | RunStatus::Waiting => run.marked_at.is_none(),
            RunStatus::Skipped => matches!(run.reason, Some(Reason::Changed | Reason::Paused)),
            _ => false,
        };
        let is_ahead = |run: &&Run| run.job == job && run.fire_at > now && run.cause == 0;
        let rows = self.runs.values().filter(is_ahead).filter(is_unsent);
        let rows = rows.filter(|run| run.shard_index == 0 || run.shard_index == BROADCAST);
        rows.map(|run| FutureRow { id: run.id, fire_at: run.fire_at, status: run.status }).collect()
    }

    fn settle(&mut self, runs: &[RunId], reason: Reason, now: Timestamp) {
        for id in runs {
            self.cancels.remove(id);
            if let Some(run) = self.runs.get_mut(id) {
                (run.status, run.reason, run.finished_at) = (RunStatus::Skipped, Some(reason), Some(now));
            }
        }
    }

    fn change(&mut self, record: &JobRecord, change: &JobChange<'_>) -> Changed {
        let job: &Job = change.job;
        let version = record.version + 1;
        let plan = plan_edit(
            Some(job),
            standing(record, change.now, &self.future(change.id, change.now), Some(change.before)),
        );
        self.settle(&plan.settle, plan.reason, change.now);
        for id in plan.keep.iter().chain(&plan.reopen) {
            let Some(run) = self.runs.get_mut(id) else { continue };
            self.keys.remove(&key(run));
            (run.job_version, run.app) = (version, change.app);
            (run.shard_index, run.shard_total) = shard_of(job);
            self.keys.insert(key(run), *id);
        }
        let home = self.due.get(&change.id).and_then(|due| self.nodes.get(&due.home)).map(|held| held.node.token());
        let mut reopened = Vec::new();
        for id in &plan.reopen {
            let Some(run) = self.runs.get_mut(id) else { continue };
            (run.status, run.reason, run.finished_at) = (RunStatus::Pending, None, None);
            (run.due_at, run.cancel_by) = (run.fire_at, None);
            if let Some(home) = home {
                (run.node, run.node_epoch) = (home.node, home.epoch);
            }
            reopened.push(run.clone());
        }
        reopened.sort_by_key(|run| (run.due_at, run.id));
        if let Some(due) = self.due.get_mut(&change.id) {
            (due.next_fire_at, due.version) = (plan.next_fire_at, version);
        }
        let saved = JobRecord {
            app: change.app,
            version,
            spec: change.spec.clone(),
            next_fire_at: plan.next_fire_at,
            updated_at: change.now,
            ..record.clone()
        };
        if let Some(stored) = self.jobs.get_mut(&change.id) {
            stored.record = saved.clone();
            stored.versions.insert(version, (change.app, change.spec.clone()));
        }
        Changed::Saved(Box::new(saved), reopened)
    }
}

const fn standing<'a>(
    record: &JobRecord,
    now: Timestamp,
    rows: &'a [FutureRow],
    before: Option<&'a Job>,
) -> Standing<'a> {
    Standing { anchor: record.anchor, now, rows, before, next_fire_at: record.next_fire_at, follows: None }
}
