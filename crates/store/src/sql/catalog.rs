//! Namespaces, apps, jobs and their versions.

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::time::millis;
use rondel_core::{AppId, JobId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::calendars::{pinned, pins};
use super::catalog_versions::{NewVersion, declared, json};
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, transact};
use crate::catalog::{
    App, Changed, Created, Declared, Definition, Deleted, JobChange, JobDeletion, JobQuery, JobRecord, Namespace,
    NamespaceDeleted, NewJob, VersionRecord,
};
use crate::{Catalog, Result};

const READ_NAMESPACE: Statement =
    Statement { name: "read_namespace", text: "SELECT id, name FROM namespace WHERE name = ?" };
const READ_NAMESPACES: Statement =
    Statement { name: "read_namespaces", text: "SELECT id, name FROM namespace ORDER BY name" };
const READ_APP: Statement =
    Statement { name: "read_app", text: "SELECT id, namespace_id, name FROM app WHERE namespace_id = ? AND name = ?" };
const READ_APPS: Statement = Statement {
    name: "read_apps",
    text: "SELECT id, namespace_id, name FROM app WHERE namespace_id = ? ORDER BY name",
};
const INSERT_APP: Statement = Statement {
    name: "insert_app",
    text: "INSERT {ignore} INTO app (id, namespace_id, name, created_at_ms) VALUES (?, ?, ?, ?) {or_ignore}",
};

macro_rules! select_job {
    ($rest:literal) => {
        concat!(
            "SELECT job.id, job.namespace_id, job.app_id, job.version, job_version.spec, job.anchor_at_ms, \
             job_due.next_fire_at_ms, job.created_at_ms, job.updated_at_ms, job.calendar_id, job.calendar_version, \
             job.declared, job.declared_at_ms, job.undeclared_at_ms FROM job \
             JOIN job_version ON job_version.job_id = job.id AND job_version.version = job.version \
             JOIN job_due ON job_due.job_id = job.id ",
            $rest
        )
    };
}

const READ_JOB: Statement = Statement {
    name: "read_job",
    text: select_job!("WHERE job.namespace_id = ? AND job.name = ? AND job.retired = 0"),
};
const READ_JOBS_NAMED: Statement = Statement {
    name: "read_jobs_named",
    text: select_job!("WHERE job.namespace_id = ? AND job.retired = 0 AND job.name IN ({words})"),
};
const READ_JOB_BY_ID: Statement =
    Statement { name: "read_job_by_id", text: select_job!("WHERE job.id = ? AND job.retired = 0") };
const READ_JOBS_BY_ID: Statement =
    Statement { name: "read_jobs_by_id", text: select_job!("WHERE job.id {in_list} AND job.retired = 0") };
const LIST_JOBS: Statement = Statement {
    name: "list_jobs",
    text: select_job!(
        "WHERE job.namespace_id = ? AND job.retired = 0 AND job.name > ? AND {instr}(job.name, ?) > 0 \
         ORDER BY job.name LIMIT ?"
    ),
};
const LIST_JOBS_OF_APPS: Statement = Statement {
    name: "list_jobs_of_apps",
    text: select_job!(
        "WHERE job.namespace_id = ? AND job.retired = 0 AND job.name > ? AND {instr}(job.name, ?) > 0 \
         AND job.app_id {in_list} ORDER BY job.name LIMIT ?"
    ),
};
pub(super) const READ_JOB_NAMES: Statement =
    Statement { name: "read_job_names", text: "SELECT id, name FROM job WHERE id {in_list}" };
const INSERT_JOB: Statement = Statement {
    name: "insert_job",
    text: "INSERT {ignore} INTO job (id, namespace_id, name, app_id, version, anchor_at_ms, created_at_ms, \
           updated_at_ms, declared, declared_at_ms, calendar_id, calendar_version) \
           VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const INSERT_DUE: Statement = Statement {
    name: "insert_due",
    text: "INSERT INTO job_due (job_id, next_fire_at_ms, is_over, delay_ms, version, home, term) \
           VALUES (?, ?, ?, ?, 1, 0, 0)",
};

#[async_trait]
impl Catalog for SqlStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        self.row(Query::new(&READ_NAMESPACE).text(name)).await?.as_ref().map(namespace).transpose()
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.rows(Query::new(&READ_NAMESPACES)).await?.iter().map(namespace).collect()
    }

    async fn create_namespace(&self, namespace: &Namespace, now: Timestamp) -> Result<bool> {
        self.insert_namespace(namespace, now).await
    }

    async fn delete_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted> {
        self.remove_namespace(id).await
    }

    async fn app(&self, namespace: NamespaceId, name: &str) -> Result<Option<App>> {
        self.row(Query::new(&READ_APP).int(namespace.get()).text(name)).await?.as_ref().map(app).transpose()
    }

    async fn apps(&self, namespace: NamespaceId) -> Result<Vec<App>> {
        self.rows(Query::new(&READ_APPS).int(namespace.get())).await?.iter().map(app).collect()
    }

    async fn ensure_app(&self, id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> Result<App> {
        if let Some(app) = self.app(namespace, name).await? {
            return Ok(app);
        }
        transact!(self, "ensure_app", |tx| {
            tx.execute(Query::new(&INSERT_APP).int(id.get()).int(namespace.get()).text(name).at(now)).await?;
            match tx.row(Query::new(&READ_APP).int(namespace.get()).text(name)).await? {
                Some(row) => app(&row),
                None => Err(super::failure::refused("ensure_app", "the app was neither there nor could it be made")),
            }
        })
    }

    async fn create_job(&self, job: NewJob) -> Result<Created> {
        transact!(self, "create_job", |tx| tx.create_job(&job).await)
    }

    async fn create_jobs(&self, jobs: &[NewJob]) -> Result<Vec<Created>> {
        self.create_many(jobs).await
    }

    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>> {
        let mut jobs = Vec::with_capacity(names.len());
        for chunk in names.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_JOBS_NAMED).int(namespace.get()).words(chunk);
            for row in self.rows(query).await? {
                jobs.push(job(&row)?);
            }
        }
        jobs.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        jobs.dedup_by(|a, b| a.id == b.id);
        Ok(jobs)
    }

    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>> {
        self.read_edges(namespace).await
    }

    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB).int(namespace.get()).text(name)).await?.as_ref().map(job).transpose()
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let apps: Option<Vec<AppId>> = match (&query.within, query.app) {
            (None, app) => app.map(|app| vec![app]),
            (Some(within), None) => Some(within.clone()),
            (Some(within), Some(app)) => Some(within.iter().copied().filter(|one| *one == app).collect()),
        };
        let statement = if apps.is_some() { &LIST_JOBS_OF_APPS } else { &LIST_JOBS };
        let mut page = Query::new(statement)
            .int(namespace.get())
            .text(query.after_name.as_deref().unwrap_or_default())
            .text(query.name_contains.as_deref().unwrap_or_default());
        if let Some(apps) = apps {
            if apps.is_empty() {
                return Ok(Vec::new());
            }
            page = page.list(apps.iter().map(|app| app.get()));
        }
        self.rows(page.int(query.limit.into())).await?.iter().map(job).collect()
    }

    async fn job_names(&self, ids: &[JobId]) -> Result<Vec<(JobId, String)>> {
        let mut names = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOB_NAMES).list(chunk.iter().map(|id| id.get()))).await? {
                let mut columns = Reader::new(&row, "job");
                names.push((JobId::new(columns.int("id")?), columns.text("name")?));
            }
        }
        Ok(names)
    }

    async fn definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>> {
        self.read_definitions(keys).await
    }

    async fn change_job(&self, change: JobChange<'_>) -> Result<Changed> {
        self.save_change(change).await
    }

    async fn delete_job(&self, deletion: JobDeletion<'_>) -> Result<Deleted> {
        self.retire_job(deletion).await
    }

    async fn child_names(&self, job: JobId) -> Result<Vec<String>> {
        self.read_child_names(job).await
    }

    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>> {
        self.read_versions(job, (from, to), limit).await
    }

    async fn declare_job(&self, id: JobId, declared: &Declared) -> Result<bool> {
        self.write_declared(id, declared).await
    }

    async fn undeclare_jobs(&self, ids: &[JobId], since: Timestamp) -> Result<u64> {
        self.write_undeclared(ids, since).await
    }
}

impl Tx<'_> {
    /// A job that is not deleted.
    pub(super) async fn job_by_id(&mut self, id: JobId) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB_BY_ID).int(id.get())).await?.as_ref().map(job).transpose()
    }

    async fn create_job(&mut self, job: &NewJob) -> Result<Created> {
        if !job.spec.parents().is_empty() {
            self.lock_graph(job.namespace).await?;
        }
        let edges = match self.check_parents(job.id, job.namespace, &job.spec).await? {
            Ok(edges) => edges,
            Err(errors) => return Ok(Created::BadParents(errors)),
        };
        if !self.hold_calendar(job.calendar).await? {
            return Ok(Created::NoCalendar);
        }
        let declared = job.declared.as_ref().map(json).transpose()?;
        let insert = Query::new(&INSERT_JOB)
            .int(job.id.get())
            .int(job.namespace.get())
            .text(&job.spec.name)
            .int(job.app.get())
            .at(job.anchor)
            .at(job.now)
            .at(job.now)
            .opt_text(declared.as_deref())
            .opt_at(declared.is_some().then_some(job.now));
        if self.execute(pins(insert, job.calendar)).await? == 0 {
            return Ok(Created::NameTaken);
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
        let due = Query::new(&INSERT_DUE)
            .int(job.id.get())
            .opt_at(job.next_fire_at)
            .int(job.next_fire_at.is_none().into())
            .opt_int(job.delay.map(millis));
        self.execute_all(due, 1).await?;
        self.write_parents(job.id, &edges).await?;
        match self.job_by_id(job.id).await? {
            Some(record) => Ok(Created::Saved(Box::new(record))),
            None => Err(super::failure::unexpected_count("create_job", 1, 0)),
        }
    }
}

impl SqlStore {
    /// Those of these jobs that are not deleted, in the order of their ids.
    pub(super) async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        let mut jobs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOBS_BY_ID).list(chunk.iter().map(|id| id.get()))).await? {
                jobs.push(job(&row)?);
            }
        }
        jobs.sort_by_key(|job| job.id);
        Ok(jobs)
    }
}

fn namespace(row: &AnyRow) -> Result<Namespace> {
    let mut columns = Reader::new(row, "namespace");
    Ok(Namespace { id: NamespaceId::new(columns.int("id")?), name: columns.text("name")? })
}

fn app(row: &AnyRow) -> Result<App> {
    let mut columns = Reader::new(row, "app");
    Ok(App {
        id: AppId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        name: columns.text("name")?,
    })
}

fn job(row: &AnyRow) -> Result<JobRecord> {
    let mut columns = Reader::new(row, "job");
    Ok(JobRecord {
        id: JobId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        app: AppId::new(columns.int("app_id")?),
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        anchor: columns.at("anchor_at_ms")?,
        next_fire_at: columns.opt_at("next_fire_at_ms")?,
        created_at: columns.at("created_at_ms")?,
        updated_at: columns.at("updated_at_ms")?,
        calendar: pinned(&mut columns)?,
        declared: declared(&mut columns)?,
    })
}
