//! Namespaces, apps, jobs and their versions, tokens.

use async_trait::async_trait;
use rondel_core::{AppId, JobId, JobSpec, NamespaceId, Timestamp, TokenId};
use sqlx::any::AnyRow;

use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, transact};
use crate::catalog::{
    App, Changed, Definition, JobChange, JobQuery, JobRecord, Namespace, NewJob, TokenKind, TokenRecord,
};
use crate::settle::clean_name;
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
             job_due.next_fire_at_ms, job.created_at_ms, job.updated_at_ms FROM job \
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
const READ_JOB_BY_ID: Statement =
    Statement { name: "read_job_by_id", text: select_job!("WHERE job.id = ? AND job.retired = 0") };
const LIST_JOBS: Statement = Statement {
    name: "list_jobs",
    text: select_job!(
        "WHERE job.namespace_id = ? AND job.retired = 0 AND job.name > ? AND {instr}(job.name, ?) > 0 \
         ORDER BY job.name LIMIT ?"
    ),
};
const LIST_JOBS_OF_APP: Statement = Statement {
    name: "list_jobs_of_app",
    text: select_job!(
        "WHERE job.namespace_id = ? AND job.retired = 0 AND job.name > ? AND {instr}(job.name, ?) > 0 \
         AND job.app_id = ? ORDER BY job.name LIMIT ?"
    ),
};
const READ_JOB_NAMES: Statement =
    Statement { name: "read_job_names", text: "SELECT id, name FROM job WHERE id {in_list}" };
const READ_DEFINITIONS: Statement = Statement {
    name: "read_definitions",
    text: "SELECT job_version.job_id, job_version.version, job.namespace_id, namespace.name, job_version.app_id, \
           job_version.spec, job.anchor_at_ms FROM {rows:ii} \
           JOIN job_version ON job_version.job_id = v.column1 AND job_version.version = v.column2 \
           JOIN job ON job.id = job_version.job_id JOIN namespace ON namespace.id = job.namespace_id",
};
const INSERT_JOB: Statement = Statement {
    name: "insert_job",
    text: "INSERT {ignore} INTO job (id, namespace_id, name, app_id, version, anchor_at_ms, created_at_ms, \
           updated_at_ms) VALUES (?, ?, ?, ?, 1, ?, ?, ?) {or_ignore}",
};
pub(super) const INSERT_VERSION: Statement = Statement {
    name: "insert_version",
    text: "INSERT INTO job_version (job_id, version, app_id, spec, author, created_at_ms) VALUES (?, ?, ?, ?, ?, ?)",
};
const INSERT_DUE: Statement = Statement {
    name: "insert_due",
    text: "INSERT INTO job_due (job_id, next_fire_at_ms, version, home, term) VALUES (?, ?, 1, 0, 0)",
};
const INSERT_TOKEN: Statement = Statement {
    name: "insert_token",
    text: "INSERT {ignore} INTO api_token (id, kind, name, namespace_id, hash, created_at_ms, expires_at_ms) \
           VALUES (?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const READ_TOKEN: Statement = Statement {
    name: "read_token",
    text: "SELECT id, kind, name, namespace_id, hash, created_at_ms, expires_at_ms FROM api_token WHERE hash = ?",
};
const FIND_ADMIN_TOKEN: Statement =
    Statement { name: "find_admin_token", text: "SELECT id FROM api_token WHERE kind = 'admin' LIMIT 1" };

#[async_trait]
impl Catalog for SqlStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        self.row(Query::new(&READ_NAMESPACE).text(name)).await?.as_ref().map(namespace).transpose()
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.rows(Query::new(&READ_NAMESPACES)).await?.iter().map(namespace).collect()
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

    async fn create_job(&self, job: NewJob) -> Result<Option<JobRecord>> {
        transact!(self, "create_job", |tx| {
            let insert = Query::new(&INSERT_JOB)
                .int(job.id.get())
                .int(job.namespace.get())
                .text(&job.spec.name)
                .int(job.app.get())
                .at(job.anchor)
                .at(job.now)
                .at(job.now);
            if tx.execute(insert).await? == 0 {
                return Ok(None);
            }
            tx.insert_version(job.id, 1, job.app, &job.spec, (&job.author, job.now)).await?;
            tx.execute_all(Query::new(&INSERT_DUE).int(job.id.get()).opt_at(job.next_fire_at), 1).await?;
            tx.job_by_id(job.id).await
        })
    }

    async fn job(&self, namespace: NamespaceId, name: &str) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB).int(namespace.get()).text(name)).await?.as_ref().map(job).transpose()
    }

    async fn jobs(&self, namespace: NamespaceId, query: &JobQuery) -> Result<Vec<JobRecord>> {
        let statement = if query.app.is_some() { &LIST_JOBS_OF_APP } else { &LIST_JOBS };
        let mut page = Query::new(statement)
            .int(namespace.get())
            .text(query.after_name.as_deref().unwrap_or_default())
            .text(query.name_contains.as_deref().unwrap_or_default());
        if let Some(app) = query.app {
            page = page.int(app.get());
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

    async fn change_job(&self, change: JobChange<'_>) -> Result<Changed> {
        self.save_change(change).await
    }

    async fn delete_job(
        &self,
        id: JobId,
        expected_version: Option<i64>,
        now: Timestamp,
    ) -> Result<std::result::Result<bool, i64>> {
        self.retire_job(id, expected_version, now).await
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
        let kind = match token.kind {
            TokenKind::Admin => "admin",
            TokenKind::Executor => "executor",
        };
        let insert = Query::new(&INSERT_TOKEN)
            .int(token.id.get())
            .text(kind)
            .text(&clean_name(&token.name))
            .opt_int(token.namespace.map(NamespaceId::get))
            .text(&token.hash)
            .at(token.created_at)
            .opt_at(token.expires_at);
        self.execute(insert).await?;
        Ok(())
    }

    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>> {
        self.row(Query::new(&READ_TOKEN).text(hash)).await?.as_ref().map(token).transpose()
    }

    async fn has_admin_token(&self) -> Result<bool> {
        Ok(self.row(Query::new(&FIND_ADMIN_TOKEN)).await?.is_some())
    }
}

impl Tx<'_> {
    /// A job that is not deleted.
    pub(super) async fn job_by_id(&mut self, id: JobId) -> Result<Option<JobRecord>> {
        self.row(Query::new(&READ_JOB_BY_ID).int(id.get())).await?.as_ref().map(job).transpose()
    }

    /// `saved` is by whom and when.
    pub(super) async fn insert_version(
        &mut self,
        id: JobId,
        version: i64,
        app: AppId,
        spec: &JobSpec,
        saved: (&str, Timestamp),
    ) -> Result<()> {
        let spec = serde_json::to_string(spec)
            .map_err(|error| super::failure::refused("insert_version", &error.to_string()))?;
        let insert = Query::new(&INSERT_VERSION)
            .int(id.get())
            .int(version)
            .int(app.get())
            .text(&spec)
            .text(&clean_name(saved.0))
            .at(saved.1);
        self.execute_all(insert, 1).await
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
        spec: spec(&mut columns)?,
        anchor: columns.at("anchor_at_ms")?,
        next_fire_at: columns.opt_at("next_fire_at_ms")?,
        calendar: None,
        declared: None,
        created_at: columns.at("created_at_ms")?,
        updated_at: columns.at("updated_at_ms")?,
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
        spec: spec(&mut columns)?,
        anchor: columns.at("anchor_at_ms")?,
        calendar: None,
    })
}

fn spec(columns: &mut Reader<'_>) -> Result<JobSpec> {
    let text = columns.text("spec")?;
    serde_json::from_str(&text).map_err(|error| columns.corrupt("spec", error))
}

fn token(row: &AnyRow) -> Result<TokenRecord> {
    let mut columns = Reader::new(row, "api_token");
    Ok(TokenRecord {
        id: TokenId::new(columns.int("id")?),
        kind: match columns.text("kind")?.as_str() {
            "admin" => TokenKind::Admin,
            "executor" => TokenKind::Executor,
            other => return Err(columns.corrupt("kind", format!("{other:?} is not a kind of token"))),
        },
        name: columns.text("name")?,
        namespace: columns.opt_int("namespace_id")?.map(NamespaceId::new),
        hash: columns.text("hash")?,
        created_at: columns.at("created_at_ms")?,
        expires_at: columns.opt_at("expires_at_ms")?,
    })
}
