//! Reads jobs with their definitions: by name, by id, and in pages.

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::{JobId, NamespaceId, Timestamp};

use crate::catalog::{Definition, DeletedJob, JobQuery, JobRecord, ListedJob, UnreadableJob, VersionRecord};
use crate::mem::{MemStore, State, StoredVersion, to_usize};
use crate::{Catalog, Result, StoreError};

#[async_trait]
impl Catalog for MemStore {
    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        let state = self.state();
        match state.job(namespace, name) {
            Some(job) if state.unreadable_jobs.contains(&job.id) => Err(StoreError::Corrupt {
                table: "job",
                column: "spec",
                id: job.id.get(),
                message: "a newer server saved it".to_owned(),
            }),
            job => Ok(job),
        }
    }

    async fn deleted_job(&self, namespace: NamespaceId, name: &str) -> Result<Option<DeletedJob>> {
        let state = self.state();
        let deleted_jobs =
            state.jobs.values().filter(|stored_job| stored_job.is_deleted).map(|stored_job| &stored_job.record);
        let deleted_records = deleted_jobs.filter(|record| record.namespace == namespace && record.spec.name == name);
        let newest_record = deleted_records.max_by_key(|record| (record.updated_at, record.id));
        Ok(newest_record.map(|record| DeletedJob { id: record.id, app: record.app, deleted_at: record.updated_at }))
    }

    async fn listed_jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<ListedJob>> {
        let state = self.state();
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(|job| job.namespace == namespace).collect();
        jobs.retain(|job| {
            query.app.is_none_or(|app| job.app == app)
                && query.within.as_ref().is_none_or(|within| within.contains(&job.app))
                && query.name_contains.as_ref().is_none_or(|part| job.spec.name.contains(part))
                && query.after_name.as_ref().is_none_or(|name| job.spec.name > *name)
        });
        jobs.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        jobs.truncate(to_usize(query.limit));
        Ok(jobs.into_iter().map(|job| state.listed(job)).collect())
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let jobs = self.listed_jobs(namespace, query).await?;
        Ok(jobs.into_iter().filter_map(ListedJob::into_record).collect())
    }

    async fn listed_jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<ListedJob>> {
        let state = self.state();
        let is_wanted = |job: &JobRecord| job.namespace == namespace && names.contains(&job.spec.name.as_str());
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(is_wanted).collect();
        jobs.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        Ok(jobs.into_iter().map(|job| state.listed(job)).collect())
    }

    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>> {
        let jobs = self.listed_jobs_named(namespace, names).await?;
        Ok(jobs.into_iter().filter_map(ListedJob::into_record).collect())
    }

    async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        let state = self.state();
        let is_wanted = |job: &JobRecord| ids.contains(&job.id) && !state.unreadable_jobs.contains(&job.id);
        let mut jobs: Vec<JobRecord> = state.living_jobs().filter(is_wanted).collect();
        jobs.sort_by_key(|job| job.id);
        Ok(jobs)
    }

    async fn job_names(&self, ids: &[JobId]) -> Result<Vec<(JobId, String)>> {
        let state = self.state();
        let id_and_name = |id: &JobId| Some((*id, state.jobs.get(id)?.record.spec.name.clone()));
        Ok(ids.iter().filter_map(id_and_name).collect())
    }

    async fn definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>> {
        let state = self.state();
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let find_definition = |(job, version): (JobId, i64)| {
            let stored_job = state.jobs.get(&job)?;
            if version == stored_job.record.version && state.unreadable_jobs.contains(&job) {
                return None;
            }
            let stored_version = stored_job.versions.get(&version)?;
            let namespace = state.namespaces.iter().find(|namespace| namespace.id == stored_job.record.namespace)?;
            Some(Definition {
                job,
                version,
                namespace: namespace.id,
                namespace_name: namespace.name.clone(),
                app: stored_version.app,
                spec: stored_version.spec.clone(),
                saved_at: stored_version.created_at,
                anchor: stored_job.record.anchor,
                calendar: state.pinned_rule(stored_version.calendar),
            })
        };
        Ok(keys.into_iter().filter_map(find_definition).collect())
    }

    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>> {
        let state = self.state();
        let Some(stored_job) = state.jobs.get(&job) else { return Ok(Vec::new()) };
        let was_created_before =
            |(_, stored_version): &(&i64, &StoredVersion)| stored_version.created_at <= from.min(to);
        let first_version = stored_job
            .versions
            .iter()
            .filter(was_created_before)
            .map(|(version, _)| *version)
            .max()
            .unwrap_or_default();
        let versions = stored_job
            .versions
            .range(first_version..)
            .rev()
            .filter(|(_, stored_version)| stored_version.created_at <= to);
        let to_record = |(version, stored_version): (&i64, &StoredVersion)| VersionRecord {
            version: *version,
            spec: stored_version.spec.clone(),
            calendar: state.pinned_rule(stored_version.calendar),
            author: stored_version.author.clone(),
            created_at: stored_version.created_at,
        };
        Ok(versions.take(to_usize(limit)).map(to_record).collect())
    }

    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>> {
        Ok(self.state().edges(namespace))
    }

    async fn child_names(&self, job: JobId) -> Result<Vec<String>> {
        Ok(self.state().child_names(job))
    }
}

impl MemStore {
    /// Makes the newest definition of a job one that this server cannot read, as if a newer server had saved it.
    pub fn make_unreadable(&self, job: JobId) {
        self.state().unreadable_jobs.insert(job);
    }
}

impl State {
    fn listed(&self, job: JobRecord) -> ListedJob {
        if !self.unreadable_jobs.contains(&job.id) {
            return ListedJob::Readable(Box::new(job));
        }
        ListedJob::Unreadable(UnreadableJob {
            id: job.id,
            app: job.app,
            name: job.spec.name,
            app_name: job.spec.app,
            handler: job.spec.handler,
            version: job.version,
        })
    }

    pub(in crate::mem) fn living_jobs(&self) -> impl Iterator<Item = JobRecord> {
        self.jobs.values().filter(|stored_job| !stored_job.is_deleted).map(|stored_job| JobRecord {
            next_fire_at: self.due.get(&stored_job.record.id).and_then(|due| due.held_from.or(due.next_fire_at)),
            ..stored_job.record.clone()
        })
    }

    pub(super) fn living_job(&self, id: JobId) -> Option<JobRecord> {
        self.living_jobs().find(|job| job.id == id)
    }

    pub(super) fn job(&self, namespace: NamespaceId, name: &str) -> Option<JobRecord> {
        self.living_jobs().find(|job| job.namespace == namespace && job.spec.name == name)
    }
}
