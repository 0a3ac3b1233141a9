//! Reads jobs with their definitions: by name, by id, and in pages.

use async_trait::async_trait;
use rondel_core::graph::Edge;
use rondel_core::{AppId, JobId, NamespaceId, Timestamp};
use serde::Deserialize;
use sqlx::any::AnyRow;

use crate::catalog::{Definition, DeletedJob, JobQuery, JobRecord, ListedJob, UnreadableJob, VersionRecord};
use crate::sql::calendars::{read_pin, read_pinned_rule};
use crate::sql::catalog::parents::{READ_CHILD_NAMES, READ_GRAPH, edge, names};
use crate::sql::catalog::versions::declared;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};
use crate::{Catalog, Result, StoreError};

macro_rules! select_job {
    ($rest:literal) => {
        concat!(
            "SELECT job.id, job.namespace_id, job.app_id, job.version, job_version.spec, job.anchor_at_ms, \
             COALESCE(job_due.held_from_ms, job_due.next_fire_at_ms) AS next_fire_at_ms, job.created_at_ms, job.updated_at_ms, job.calendar_id, job.calendar_version, \
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
const READ_DELETED_JOB: Statement = Statement {
    name: "read_deleted_job",
    text: "SELECT id, app_id, updated_at_ms FROM job WHERE namespace_id = ? AND name = ? AND retired <> 0 \
           ORDER BY updated_at_ms DESC, id DESC LIMIT 1",
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
pub(in crate::sql) const LIST_JOBS_OF_APP: Statement = Statement {
    name: "list_jobs_of_app",
    text: select_job!(
        "WHERE job.app_id = ? AND +job.namespace_id = ? AND job.retired = 0 AND job.name > ? \
         AND {instr}(job.name, ?) > 0 ORDER BY job.name LIMIT ?"
    ),
};
const LIST_JOBS_OF_APPS: Statement = Statement {
    name: "list_jobs_of_apps",
    text: select_job!(
        "WHERE job.app_id {in_list} AND job.namespace_id = ? AND job.retired = 0 AND job.name > ? \
         AND {instr}(job.name, ?) > 0 ORDER BY job.name LIMIT ?"
    ),
};
pub(in crate::sql) const READ_JOB_NAMES: Statement =
    Statement { name: "read_job_names", text: "SELECT id, name FROM job WHERE id {in_list}" };
const READ_DEFINITIONS: Statement = Statement {
    name: "read_definitions",
    text: "SELECT job_version.job_id, job_version.version, job.namespace_id, namespace.name, job_version.app_id, \
           job_version.spec, job_version.created_at_ms, job.anchor_at_ms, calendar_version.expanded FROM {rows:ii} \
           JOIN job_version ON job_version.job_id = v.column1 AND job_version.version = v.column2 \
           JOIN job ON job.id = job_version.job_id JOIN namespace ON namespace.id = job.namespace_id \
           LEFT JOIN calendar_version ON calendar_version.calendar_id = job_version.calendar_id \
           AND calendar_version.version = job_version.calendar_version",
};
pub(in crate::sql) const READ_VERSIONS: Statement = Statement {
    name: "read_versions",
    text: "SELECT job_version.version, job_version.spec, calendar_version.expanded, job_version.author, \
           job_version.created_at_ms FROM job_version \
           LEFT JOIN calendar_version ON calendar_version.calendar_id = job_version.calendar_id \
           AND calendar_version.version = job_version.calendar_version \
           WHERE job_version.job_id = ? AND job_version.created_at_ms <= ? AND job_version.version >= \
           COALESCE((SELECT MAX(held.version) FROM job_version held WHERE held.job_id = ? \
           AND held.created_at_ms <= ?), 0) ORDER BY job_version.version DESC LIMIT ?",
};

#[async_trait]
impl Catalog for SqlStore {
    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB).int(namespace.get()).text(name)).await?.as_ref().map(job).transpose()
    }

    async fn deleted_job(&self, namespace: NamespaceId, name: &str) -> Result<Option<DeletedJob>> {
        let row = self.row(Query::new(&READ_DELETED_JOB).int(namespace.get()).text(name)).await?;
        row.as_ref().map(deleted_job).transpose()
    }

    async fn listed_jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<ListedJob>> {
        let apps: Option<Vec<AppId>> = match (&query.within, query.app) {
            (None, app) => app.map(|app| vec![app]),
            (Some(within), None) => Some(within.clone()),
            (Some(within), Some(app)) => Some(within.iter().copied().filter(|app_id| *app_id == app).collect()),
        };
        let page = match apps.as_deref() {
            None => Query::new(&LIST_JOBS),
            Some([]) => return Ok(Vec::new()),
            Some([app]) => Query::new(&LIST_JOBS_OF_APP).int(app.get()),
            Some(apps) => Query::new(&LIST_JOBS_OF_APPS).list(apps.iter().map(|app| app.get())),
        };
        let page = page
            .int(namespace.get())
            .text(query.after_name.as_deref().unwrap_or_default())
            .text(query.name_contains.as_deref().unwrap_or_default())
            .int(query.limit.into());
        self.rows(page).await?.iter().map(listed_job).collect()
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let jobs = self.listed_jobs(namespace, query).await?;
        Ok(jobs.into_iter().filter_map(ListedJob::into_record).collect())
    }

    async fn listed_jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<ListedJob>> {
        let mut jobs = Vec::with_capacity(names.len());
        for chunk in names.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_JOBS_NAMED).int(namespace.get()).words(chunk);
            for row in self.rows(query).await? {
                jobs.push(listed_job(&row)?);
            }
        }
        jobs.sort_by(|a, b| a.name().cmp(b.name()));
        jobs.dedup_by(|a, b| a.id() == b.id());
        Ok(jobs)
    }

    async fn jobs_named(&self, namespace: NamespaceId, names: &[&str]) -> Result<Vec<JobRecord>> {
        let jobs = self.listed_jobs_named(namespace, names).await?;
        Ok(jobs.into_iter().filter_map(ListedJob::into_record).collect())
    }

    async fn jobs_by_id(&self, ids: &[JobId]) -> Result<Vec<JobRecord>> {
        let mut jobs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOBS_BY_ID).list(chunk.iter().map(|id| id.get()))).await? {
                jobs.extend(listed_job(&row)?.into_record());
            }
        }
        jobs.sort_by_key(|job| job.id);
        Ok(jobs)
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
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let mut definitions = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK_MAX) {
            let query =
                Query::new(&READ_DEFINITIONS).rows(chunk, |query, (job, version)| query.int(job.get()).int(*version));
            for row in self.rows(query).await? {
                match definition(&row) {
                    Ok(definition) => definitions.push(definition),
                    // A newer server may have saved this definition. The other definitions are still returned.
                    Err(error @ StoreError::Corrupt { .. }) => {
                        tracing::error!(%error, "the definition of a job cannot be read");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        // A batch is filled up with copies of one of its rows, so the result may contain a definition several times.
        definitions.sort_by_key(|definition| (definition.job, definition.version));
        definitions.dedup_by_key(|definition| (definition.job, definition.version));
        Ok(definitions)
    }

    async fn versions(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<VersionRecord>> {
        let query = Query::new(&READ_VERSIONS).int(job.get()).at(to).int(job.get()).at(from.min(to)).int(limit.into());
        self.rows(query).await?.iter().map(version).collect()
    }

    async fn edges(&self, namespace: NamespaceId) -> Result<Vec<Edge>> {
        self.rows(Query::new(&READ_GRAPH).int(namespace.get())).await?.iter().map(edge).collect()
    }

    async fn child_names(&self, job: JobId) -> Result<Vec<String>> {
        names(&self.rows(Query::new(&READ_CHILD_NAMES).int(job.get())).await?)
    }
}

impl Tx<'_> {
    pub(in crate::sql) async fn job_by_id(&mut self, id: JobId) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB_BY_ID).int(id.get())).await?.as_ref().map(job).transpose()
    }
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
        calendar: read_pin(&mut columns)?,
        declared: declared(&mut columns)?,
    })
}

/// The fields of a definition that servers of every version can read.
#[derive(Deserialize)]
struct DefinitionOutline {
    name: String,
    app: String,
    handler: String,
}

/// A job of a list. A newer server may have saved its definition; the other jobs are still returned.
fn listed_job(row: &AnyRow) -> Result<ListedJob> {
    match job(row) {
        Ok(record) => Ok(ListedJob::Readable(Box::new(record))),
        Err(error @ StoreError::Corrupt { column: "spec" | "declared", .. }) => {
            tracing::warn!(%error, "the definition of a job cannot be read");
            unreadable_job(row).map(ListedJob::Unreadable)
        }
        Err(error) => Err(error),
    }
}

fn unreadable_job(row: &AnyRow) -> Result<UnreadableJob> {
    let mut columns = Reader::new(row, "job");
    let id = JobId::new(columns.int("id")?);
    // The namespace is not needed, but columns are read in their order.
    columns.int("namespace_id")?;
    let (app, version) = (AppId::new(columns.int("app_id")?), columns.int("version")?);
    let DefinitionOutline { name, app: app_name, handler } = columns.json("spec")?;
    Ok(UnreadableJob { id, app, name, app_name, handler, version })
}

fn deleted_job(row: &AnyRow) -> Result<DeletedJob> {
    let mut columns = Reader::new(row, "job");
    Ok(DeletedJob {
        id: JobId::new(columns.int("id")?),
        app: AppId::new(columns.int("app_id")?),
        deleted_at: columns.at("updated_at_ms")?,
    })
}

fn definition(row: &AnyRow) -> Result<Definition> {
    let mut columns = Reader::new(row, "job_version");
    Ok(Definition {
        job: JobId::new(columns.int("job_id")?),
        version: columns.int("version")?,
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        namespace_name: columns.text("name")?,
        app: AppId::new(columns.int("app_id")?),
        spec: columns.json("spec")?,
        saved_at: columns.at("created_at_ms")?,
        anchor: columns.at("anchor_at_ms")?,
        calendar: read_pinned_rule(&mut columns)?,
    })
}

fn version(row: &AnyRow) -> Result<VersionRecord> {
    let mut columns = Reader::new(row, "job_version");
    Ok(VersionRecord {
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        calendar: read_pinned_rule(&mut columns)?,
        author: columns.text("author")?,
        created_at: columns.at("created_at_ms")?,
    })
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
