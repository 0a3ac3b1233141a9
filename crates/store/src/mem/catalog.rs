//! Namespaces, apps, jobs.

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::{AppId, JobId, NamespaceId, Timestamp};

use super::{MemStore, State, StoredVersion, size};
use crate::catalog::{
    App, Changed, Created, Declared, Definition, Deleted, JobChange, JobDeletion, JobQuery, JobRecord, Namespace,
    NamespaceDeleted, NewJob, VersionRecord,
};
use crate::settle::passed_row;
use crate::{Catalog, Result};

#[async_trait]
impl Catalog for MemStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        Ok(self.state().namespaces.iter().find(|namespace| namespace.name == name).cloned())
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        Ok(self.state().namespaces.clone())
    }

    async fn create_namespace(&self, namespace: &Namespace, _now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        if state.namespaces.iter().any(|known| known.name == namespace.name) {
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
        if has_jobs || state.calendars.values().any(|calendar| calendar.namespace == id) {
            return Ok(NamespaceDeleted::Used);
        }
        state.namespaces.retain(|namespace| namespace.id != id);
        state.apps.retain(|_, app| app.namespace != id);
        state.webhooks.remove(&id);
        state.outbox.retain(|_, item| item.namespace != id);
        state.access.leave(id);
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

    async fn create_job(&self, job: NewJob) -> Result<Created> {
        Ok(self.state().create_checked(job))
    }

    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<Created>> {
        let mut state = self.state();
        Ok(jobs.iter().map(|job| state.create_checked(job.clone())).collect())
    }

    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>> {
        let state = self.state();
        let is_wanted = |job: &JobRecord| job.namespace == namespace && names.contains(&job.spec.name.as_str());
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(is_wanted).collect();
        jobs.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        Ok(jobs)
    }

    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>> {
        Ok(self.state().edges(namespace))
    }

    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        Ok(self.state().job(namespace, name))
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let state = self.state();
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(|job| job.namespace == namespace).collect();
        jobs.retain(|job| {
            query.app.is_none_or(|app| job.app == app)
                && query.within.as_ref().is_none_or(|within| within.contains(&job.app))
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
            let held = stored.versions.get(&version)?;
            let namespace = state.namespaces.iter().find(|namespace| namespace.id == stored.record.namespace)?;
            Some(Definition {
                job,
                version,
                namespace: namespace.id,
                namespace_name: namespace.name.clone(),
                app: held.app,
                spec: held.spec.clone(),
                anchor: stored.record.anchor,
                calendar: state.pinned_rule(held.calendar),
            })
        };
        Ok(keys.into_iter().filter_map(definition).collect())
    }

    async fn change_job(&self, change: JobChange<'_>) -> Result<Changed> {
        let read_at = self.now().max(change.reached);
        let mut state = self.state();
        let Some(record) = state.living_job(change.id) else { return Ok(Changed::NotFound) };
        if change.expected_version.is_some_and(|version| version != record.version) {
            return Ok(Changed::Conflict(record.version));
        }
        if state.job(record.namespace, &change.spec.name).is_some_and(|other| other.id != change.id) {
            return Ok(Changed::NameTaken);
        }
        let children = state.child_names(change.id);
        if change.spec.name != record.spec.name && !children.is_empty() {
            return Ok(Changed::IsParent(children));
        }
        let edges = match state.check_parents(change.id, record.namespace, change.spec) {
            Ok(edges) => edges,
            Err(errors) => return Ok(Changed::BadParents(errors)),
        };
        if !state.has_calendar(change.calendar) {
            return Ok(Changed::NoCalendar);
        }
        state.write_parents(change.id, edges);
        Ok(state.change(&record, &change, read_at))
    }

    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<Deleted> {
        let JobDeletion { id, expected_version, before, spare, now, reached, leaves_followers } = deletion;
        let read_at = self.now().max(reached);
        let mut state = self.state();
        let Some(record) = state.living_job(id) else { return Ok(Deleted::NotFound) };
        if expected_version.is_some_and(|version| version != record.version) {
            return Ok(Deleted::Conflict(record.version));
        }
        let children = state.child_names(id);
        if !children.is_empty() && !leaves_followers {
            return Ok(Deleted::IsParent(children));
        }
        state.leave_followers(id);
        state.write_parents(id, Vec::new());
        let plan = state.plan(&record, (None, before), (now, now, read_at));
        state.settle(&plan.settle, plan.reason, now);
        state.skip_row(passed_row(&record, before, &plan, spare, now));
        state.due.remove(&id);
        if let Some(stored) = state.jobs.get_mut(&id) {
            stored.is_deleted = true;
        }
        Ok(Deleted::Done)
    }

    async fn child_names(&self, job: JobId) -> Result<Vec<String>> {
        Ok(self.state().child_names(job))
    }

    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>> {
        let state = self.state();
        let Some(stored) = state.jobs.get(&job) else { return Ok(Vec::new()) };
        let held = |(_, held): &(&i64, &StoredVersion)| held.created_at <= from.min(to);
        let first = stored.versions.iter().filter(held).map(|(version, _)| *version).max().unwrap_or_default();
        let known = stored.versions.range(first..).rev().filter(|(_, held)| held.created_at <= to);
        let record = |(version, held): (&i64, &StoredVersion)| VersionRecord {
            version: *version,
            spec: held.spec.clone(),
            calendar: state.pinned_rule(held.calendar),
            author: held.author.clone(),
            created_at: held.created_at,
        };
        Ok(known.take(size(limit)).map(record).collect())
    }

    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool> {
        let mut state = self.state();
        let stored = state.jobs.get_mut(&id).filter(|stored| !stored.is_deleted);
        Ok(stored.map(|stored| stored.record.declared = Some(declared.clone())).is_some())
    }

    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64> {
        let mut state = self.state();
        let mut count = 0;
        for id in ids {
            let stored = state.jobs.get_mut(id).filter(|stored| !stored.is_deleted);
            let declared = stored.and_then(|stored| stored.record.declared.as_mut());
            if let Some(declared) = declared.filter(|declared| declared.undeclared_at.is_none()) {
                declared.undeclared_at = Some(since);
                count += 1;
            }
        }
        Ok(count)
    }
}

impl State {
    fn create_checked(&mut self, job: NewJob) -> Created {
        if !self.has_calendar(job.calendar) {
            return Created::NoCalendar;
        }
        if self.job(job.namespace, &job.spec.name).is_some() {
            return Created::NameTaken;
        }
        let (id, edges) = (job.id, self.check_parents(job.id, job.namespace, &job.spec));
        let edges = match edges {
            Ok(edges) => edges,
            Err(errors) => return Created::BadParents(errors),
        };
        let record = self.create(job);
        self.write_parents(id, edges);
        Created::Saved(Box::new(record))
    }

    fn app(&self, namespace: NamespaceId, name: &str) -> Option<App> {
        self.apps.values().find(|app| app.namespace == namespace && app.name == name).cloned()
    }

    pub(super) fn living_jobs(&self) -> impl Iterator<Item = JobRecord> {
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
}
