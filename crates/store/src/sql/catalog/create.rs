//! Creates jobs, one at a time or many at once.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::time::millis;
use rondel_core::{CalendarId, JobId, NamespaceId};

use crate::catalog::{Declared, JobCreated, JobRecord, NewJob, PinnedCalendar};
use crate::parents::check_all;
use crate::settle::clean_name;
use crate::sql::calendars::bind_pin;
use crate::sql::catalog::parents::INSERT_PARENTS;
use crate::sql::catalog::versions::{NewVersion, json};
use crate::sql::query::{CHUNK_MAX, Query, Statement};
use crate::sql::{SqlStore, Tx, is_duplicate_key, transact};
use crate::{CreateJobs, Result};

const INSERT_JOB: Statement = Statement {
    name: "insert_job",
    text: "INSERT {ignore} INTO job (id, namespace_id, name, app_id, version, anchor_at_ms, created_at_ms, \
           updated_at_ms, declared, declared_at_ms, calendar_id, calendar_version) \
           VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const INSERT_DUE_ROW: Statement = Statement {
    name: "insert_due",
    text: "INSERT INTO job_due (job_id, next_fire_at_ms, is_over, delay_ms, version, home, term) \
           VALUES (?, ?, ?, ?, 1, 0, 0)",
};
const INSERT_JOBS: Statement = Statement {
    name: "insert_jobs",
    text: "INSERT INTO job (id, namespace_id, name, app_id, version, anchor_at_ms, created_at_ms, updated_at_ms, \
           declared, declared_at_ms, calendar_id, calendar_version) {values:iitiiiiitiii}",
};
const INSERT_VERSIONS: Statement = Statement {
    name: "insert_versions",
    text: "INSERT INTO job_version (job_id, version, app_id, spec, author, created_at_ms, calendar_id, \
           calendar_version) {values:iiittiii}",
};
const INSERT_DUE_ROWS: Statement = Statement {
    name: "insert_dues",
    text: "INSERT INTO job_due (job_id, next_fire_at_ms, is_over, delay_ms, version, home, term) {values:iiiiiii}",
};

/// Maximum number of jobs that one transaction creates. Longer lists are split into parts whose sizes are powers of two, so that few
/// different texts are prepared. An INSERT cannot be filled up to a power of two by repeating a row, because the repeated row would violate
/// a key.
const JOB_CHUNK_MAX: usize = CHUNK_MAX;

const _: () = assert!(JOB_CHUNK_MAX.is_power_of_two());

#[async_trait]
impl CreateJobs for SqlStore {
    async fn create_job(&self, job: NewJob) -> Result<JobCreated> {
        transact!(self, "create_job", |tx| tx.create_job(&job).await)
    }

    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<JobCreated>> {
        let mut outcomes = Vec::with_capacity(jobs.len());
        let mut remaining_jobs = jobs;
        while !remaining_jobs.is_empty() {
            let count =
                if remaining_jobs.len() >= JOB_CHUNK_MAX { JOB_CHUNK_MAX } else { 1 << remaining_jobs.len().ilog2() };
            let (chunk, tail) = remaining_jobs.split_at(count);
            if self.create_chunk(chunk).await? {
                outcomes.extend(chunk.iter().map(created_job));
            } else {
                // One of these jobs cannot be created. Creating each separately finds out which.
                for job in chunk {
                    outcomes.push(self.create_job(job.clone()).await?);
                }
            }
            remaining_jobs = tail;
        }
        Ok(outcomes)
    }
}

impl Tx<'_> {
    async fn create_job(&mut self, job: &NewJob) -> Result<JobCreated> {
        if !job.spec.parents().is_empty() {
            self.lock_graph(job.namespace).await?;
        }
        let edges = match self.check_parents(job.id, job.namespace, &job.spec).await? {
            Ok(edges) => edges,
            Err(errors) => return Ok(JobCreated::BadParents(errors)),
        };
        if !self.lock_pinned_calendar(job.calendar).await? {
            return Ok(JobCreated::NoCalendar);
        }
        if let Some(channel) = self.lock_expect_channels(job.namespace, std::iter::once((&job.spec, None))).await? {
            return Ok(JobCreated::NoChannel(channel));
        }
        if let Some(script) = self.lock_scripts(job.namespace, std::iter::once((&job.spec, None))).await? {
            return Ok(JobCreated::NoScript(script));
        }
        let declared_json = job.declared.as_ref().map(json).transpose()?;
        let insert = Query::new(&INSERT_JOB)
            .int(job.id.get())
            .int(job.namespace.get())
            .text(&job.spec.name)
            .int(job.app.get())
            .at(job.anchor)
            .at(job.now)
            .at(job.now)
            .opt_text(declared_json.as_deref())
            .opt_at(declared_json.is_some().then_some(job.now));
        if self.execute(bind_pin(insert, job.calendar)).await? == 0 {
            return Ok(JobCreated::NameTaken);
        }
        self.insert_version(NewVersion {
            job: job.id,
            version: 1,
            app: job.app,
            spec: &job.spec,
            calendar: job.calendar,
            author: &job.author,
            now: job.now,
        })
        .await?;
        let due_query = Query::new(&INSERT_DUE_ROW)
            .int(job.id.get())
            .opt_at(job.next_fire_at)
            .int(job.next_fire_at.is_none().into())
            .opt_int(job.delay.map(millis));
        self.execute_all(due_query, 1).await?;
        self.write_parents(job.id, &edges).await?;
        self.write_expect_checks((job.namespace, job.id), (None, &job.spec), job.now).await?;
        self.write_script_use((job.namespace, job.id), Some(&job.spec), None).await?;
        match self.job_by_id(job.id).await? {
            Some(record) => Ok(JobCreated::Saved(Box::new(record))),
            None => Err(crate::sql::failure::unexpected_count("create_job", 1, 0)),
        }
    }

    /// Creates all of these jobs; `false`, with nothing written, if one of them cannot be created.
    async fn create_chunk(&mut self, jobs: &[NewJob]) -> Result<bool> {
        let namespaces: BTreeSet<NamespaceId> = jobs.iter().map(|job| job.namespace).collect();
        for namespace in &namespaces {
            if jobs.iter().any(|job| job.namespace == *namespace && !job.spec.parents().is_empty()) {
                self.lock_graph(*namespace).await?;
            }
        }
        let calendars: BTreeSet<(i64, i64)> =
            jobs.iter().filter_map(|job| job.calendar).map(|pin| (pin.id.get(), pin.version)).collect();
        for (id, version) in calendars {
            if !self.lock_pinned_calendar(Some(PinnedCalendar { id: CalendarId::new(id), version })).await? {
                return Ok(false);
            }
        }
        for namespace in &namespaces {
            let specs = jobs.iter().filter(|job| job.namespace == *namespace).map(|job| (&job.spec, None));
            if self.lock_expect_channels(*namespace, specs.clone()).await?.is_some() {
                return Ok(false);
            }
            if self.lock_scripts(*namespace, specs).await?.is_some() {
                return Ok(false);
            }
        }
        let mut edges = Vec::new();
        for namespace in namespaces {
            let jobs: Vec<&NewJob> = jobs.iter().filter(|job| job.namespace == namespace).collect();
            match self.edges_of(namespace, &jobs).await? {
                Some(new_edges) => edges.extend(new_edges),
                None => return Ok(false),
            }
        }
        self.insert_jobs(jobs).await?;
        for edge_chunk in edges.chunks(JOB_CHUNK_MAX) {
            let insert = Query::new(&INSERT_PARENTS).rows(edge_chunk, |query, edge| {
                query.int(edge.child.get()).int(edge.parent.get()).text(edge.on.as_str())
            });
            self.execute(insert).await?;
        }
        Ok(true)
    }

    /// The edges of new jobs of one namespace. Each job may follow from those before it or from existing ones. `None` if a name is taken or
    /// a parent is refused.
    async fn edges_of(&mut self, namespace: NamespaceId, jobs: &[&NewJob]) -> Result<Option<Vec<Edge>>> {
        let mut names: Vec<&str> = jobs.iter().map(|job| job.spec.name.as_str()).collect();
        if !self.job_ids_by_name(namespace, &names).await?.is_empty() {
            return Ok(None);
        }
        if jobs.iter().all(|job| job.spec.parents().is_empty()) {
            return Ok(Some(Vec::new()));
        }
        names.clear();
        let parents = jobs.iter().flat_map(|job| job.spec.parents());
        names.extend(parents.map(|parent| parent.name).collect::<BTreeSet<_>>());
        let ids = self.job_ids_by_name(namespace, &names).await?;
        let edges = self.edges(namespace).await?;
        Ok(check_all(jobs.iter().map(|job| (job.id, &job.spec)), ids, edges))
    }

    async fn insert_jobs(&mut self, jobs: &[NewJob]) -> Result<()> {
        let mut documents = Vec::with_capacity(jobs.len());
        for job in jobs {
            documents.push((job, json(&job.spec)?, job.declared.as_ref().map(json).transpose()?));
        }
        type Document<'d> = (&'d NewJob, String, Option<String>);
        let size = self.size;
        let add_job = |query: Query, (job, _, declared_json): &Document<'_>| {
            let row = query.int(job.id.get()).int(job.namespace.get()).text(&job.spec.name).int(job.app.get()).int(1);
            let row = row.at(job.anchor).at(job.now).at(job.now);
            let row = row.opt_text(declared_json.as_deref()).opt_at(declared_json.is_some().then_some(job.now));
            bind_pin(row, job.calendar)
        };
        for (insert, chunk) in size.queries(&INSERT_JOBS, &documents, add_job) {
            self.execute_all(insert, chunk.len()).await?;
        }
        let add_version = |query: Query, (job, spec, _): &Document<'_>| {
            let row = query.int(job.id.get()).int(1).int(job.app.get()).text(spec).text(&clean_name(&job.author));
            bind_pin(row.at(job.now), job.calendar)
        };
        for (insert, chunk) in size.queries(&INSERT_VERSIONS, &documents, add_version) {
            self.execute_all(insert, chunk.len()).await?;
        }
        let pumps: Vec<JobId> = jobs.iter().filter(|job| job.spec.pump.is_some()).map(|job| job.id).collect();
        self.insert_pump_jobs(&pumps).await?;
        let insert = Query::new(&INSERT_DUE_ROWS).rows(jobs, |query, job| {
            let (next_fire_at, delay_ms) = (job.next_fire_at, job.delay.map(millis));
            let due_query = query.int(job.id.get()).opt_at(next_fire_at).int(next_fire_at.is_none().into());
            due_query.opt_int(delay_ms).int(1).int(0).int(0)
        });
        self.execute_all(insert, jobs.len()).await?;
        for job in jobs {
            self.write_expect_checks((job.namespace, job.id), (None, &job.spec), job.now).await?;
            self.write_script_use((job.namespace, job.id), Some(&job.spec), None).await?;
        }
        Ok(())
    }
}

impl SqlStore {
    /// Creates all of these jobs, or none; `false` if one cannot be created.
    async fn create_chunk(&self, jobs: &[NewJob]) -> Result<bool> {
        match transact!(self, "create_jobs", |tx| tx.create_chunk(jobs).await) {
            // Another caller took a name between the check and the insert.
            Err(error) if is_duplicate_key(&error) => Ok(false),
            result => result,
        }
    }
}

fn created_job(job: &NewJob) -> JobCreated {
    let to_declared = |spec| Declared { spec, declared_at: job.now, undeclared_at: None };
    JobCreated::Saved(Box::new(JobRecord {
        id: job.id,
        namespace: job.namespace,
        app: job.app,
        version: 1,
        spec: job.spec.clone(),
        anchor: job.anchor,
        next_fire_at: job.next_fire_at,
        calendar: job.calendar,
        declared: job.declared.clone().map(to_declared),
        created_at: job.now,
        updated_at: job.now,
    }))
}
