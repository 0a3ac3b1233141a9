//! What definitions a job has and had, and what code declares of it.

use rondel_core::{AppId, JobId, JobSpec, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::calendars::{pinned_rule, pins};
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, failure};
use crate::Result;
use crate::catalog::{Declared, Definition, PinnedCalendar, VersionRecord};
use crate::settle::clean_name;

const READ_DEFINITIONS: Statement = Statement {
    name: "read_definitions",
    text: "SELECT job_version.job_id, job_version.version, job.namespace_id, namespace.name, job_version.app_id, \
           job_version.spec, job.anchor_at_ms, calendar_version.expanded FROM {rows:ii} \
           JOIN job_version ON job_version.job_id = v.column1 AND job_version.version = v.column2 \
           JOIN job ON job.id = job_version.job_id JOIN namespace ON namespace.id = job.namespace_id \
           LEFT JOIN calendar_version ON calendar_version.calendar_id = job_version.calendar_id \
           AND calendar_version.version = job_version.calendar_version",
};
pub(super) const READ_VERSIONS: Statement = Statement {
    name: "read_versions",
    text: "SELECT job_version.version, job_version.spec, calendar_version.expanded, job_version.author, \
           job_version.created_at_ms FROM job_version \
           LEFT JOIN calendar_version ON calendar_version.calendar_id = job_version.calendar_id \
           AND calendar_version.version = job_version.calendar_version \
           WHERE job_version.job_id = ? AND job_version.created_at_ms <= ? AND job_version.version >= \
           COALESCE((SELECT MAX(held.version) FROM job_version held WHERE held.job_id = ? \
           AND held.created_at_ms <= ?), 0) ORDER BY job_version.version DESC LIMIT ?",
};
const INSERT_VERSION: Statement = Statement {
    name: "insert_version",
    text: "INSERT INTO job_version (job_id, version, app_id, spec, author, created_at_ms, calendar_id, \
           calendar_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
};
const DECLARE_JOB: Statement = Statement {
    name: "declare_job",
    text: "UPDATE job SET declared = ?, declared_at_ms = ?, undeclared_at_ms = ? WHERE id = ? AND retired = 0",
};
const UNDECLARE_JOBS: Statement = Statement {
    name: "undeclare_jobs",
    text: "UPDATE job SET undeclared_at_ms = ? WHERE id {in_list} AND retired = 0 AND declared IS NOT NULL \
           AND undeclared_at_ms IS NULL",
};

/// A definition that is saved.
pub(super) struct NewVersion<'a> {
    pub(super) job: JobId,
    pub(super) version: i64,
    pub(super) app: AppId,
    pub(super) spec: &'a JobSpec,
    pub(super) calendar: Option<PinnedCalendar>,
    pub(super) author: &'a str,
    pub(super) now: Timestamp,
}

impl SqlStore {
    pub(super) async fn read_definitions(&self, keys: &[(JobId, i64)]) -> Result<Vec<Definition>> {
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        let mut definitions = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(CHUNK_MAX) {
            let query =
                Query::new(&READ_DEFINITIONS).rows(chunk, |query, (job, version)| query.int(job.get()).int(*version));
            for row in self.rows(query).await? {
                definitions.push(definition(&row)?);
            }
        }
        // A batch is filled up with its last row.
        definitions.sort_by_key(|definition| (definition.job, definition.version));
        definitions.dedup_by_key(|definition| (definition.job, definition.version));
        Ok(definitions)
    }

    pub(super) async fn read_versions(
        &self,
        job: JobId,
        (from, to): (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<VersionRecord>> {
        let query = Query::new(&READ_VERSIONS).int(job.get()).at(to).int(job.get()).at(from.min(to)).int(limit.into());
        self.rows(query).await?.iter().map(version).collect()
    }

    pub(super) async fn write_declared(&self, id: JobId, declared: &Declared) -> Result<bool> {
        let query = Query::new(&DECLARE_JOB)
            .text(&json(&declared.spec)?)
            .at(declared.declared_at)
            .opt_at(declared.undeclared_at)
            .int(id.get());
        Ok(self.execute(query).await? > 0)
    }

    pub(super) async fn write_undeclared(&self, ids: &[JobId], since: Timestamp) -> Result<u64> {
        let mut ids = ids.to_vec();
        // In one order, so that no two servers that say the same wait for each other in a circle.
        ids.sort_unstable();
        let mut count = 0;
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&UNDECLARE_JOBS).at(since).list(chunk.iter().map(|id| id.get()));
            count += self.execute(query).await?;
        }
        Ok(count)
    }
}

impl Tx<'_> {
    pub(super) async fn insert_version(&mut self, new: NewVersion<'_>) -> Result<()> {
        let insert = Query::new(&INSERT_VERSION)
            .int(new.job.get())
            .int(new.version)
            .int(new.app.get())
            .text(&json(new.spec)?)
            .text(&clean_name(new.author))
            .at(new.now);
        self.execute_all(pins(insert, new.calendar), 1).await
    }
}

/// A definition as it is kept.
pub(super) fn json(spec: &JobSpec) -> Result<String> {
    serde_json::to_string(spec).map_err(|error| failure::refused("write_spec", &error.to_string()))
}

/// What code declares of a job, from its three columns.
pub(super) fn declared(columns: &mut Reader<'_>) -> Result<Option<Declared>> {
    let spec = columns.opt_json("declared")?;
    let (declared_at, undeclared_at) = (columns.opt_at("declared_at_ms")?, columns.opt_at("undeclared_at_ms")?);
    let declared = |(spec, declared_at)| Declared { spec, declared_at, undeclared_at };
    Ok(spec.zip(declared_at).map(declared))
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
        anchor: columns.at("anchor_at_ms")?,
        calendar: pinned_rule(&mut columns)?,
    })
}

fn version(row: &AnyRow) -> Result<VersionRecord> {
    let mut columns = Reader::new(row, "job_version");
    Ok(VersionRecord {
        version: columns.int("version")?,
        spec: columns.json("spec")?,
        calendar: pinned_rule(&mut columns)?,
        author: columns.text("author")?,
        created_at: columns.at("created_at_ms")?,
    })
}
