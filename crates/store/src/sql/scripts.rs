//! Scripts: their rows, the rows of the jobs that use them, and the lock that saving such a job and deleting its script
//! have in common.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::script::ScriptRef;
use rondel_core::{AppId, JobId, JobSpec, NamespaceId, ScriptId};
use sqlx::any::AnyRow;

use super::query::{Query, Reader, Statement};
use super::{SqlStore, Tx, failure, transact};
use crate::scripts::{SCRIPT_JOB_COUNT_SHOWN, ScriptChange, ScriptDeleted, ScriptRecord, ScriptSaved, ScriptVersion};
use crate::settle::clean_name;
use crate::{Result, Scripts};

macro_rules! select_script {
    ($rest:literal) => {
        concat!(
            "SELECT script.id, script.namespace_id, script.name, script.language, script.created_at_ms, \
             script_version.version, script_version.hash, script_version.size_bytes, script_version.note, \
             script_version.signature, script_version.author, script_version.created_at_ms FROM script \
             JOIN script_version ON script_version.script_id = script.id \
             AND script_version.version = script.version ",
            $rest
        )
    };
}

const READ_SCRIPT: Statement =
    Statement { name: "read_script", text: select_script!("WHERE script.namespace_id = ? AND script.name = ?") };
const LIST_SCRIPTS: Statement = Statement {
    name: "list_scripts",
    text: select_script!("WHERE script.namespace_id = ? AND script.name > ? ORDER BY script.name LIMIT ?"),
};
const READ_SCRIPT_VERSION: Statement = Statement {
    name: "read_script_version",
    text: "SELECT version, hash, size_bytes, note, signature, author, created_at_ms, source FROM script_version \
           WHERE script_id = ? AND version = ?",
};
const LIST_SCRIPT_VERSIONS: Statement = Statement {
    name: "list_script_versions",
    text: "SELECT version, hash, size_bytes, note, signature, author, created_at_ms FROM script_version \
           WHERE script_id = ? AND version < ? ORDER BY version DESC LIMIT ?",
};
const LOCK_SCRIPT: Statement = Statement {
    name: "lock_script",
    text: "SELECT id, version, language FROM script WHERE namespace_id = ? AND name = ? {for_update}",
};
const FIND_SCRIPT_VERSION: Statement = Statement {
    name: "find_script_version",
    text: "SELECT version FROM script_version WHERE script_id = ? AND version = ?",
};
const INSERT_SCRIPT: Statement = Statement {
    name: "insert_script",
    text: "INSERT {ignore} INTO script (id, namespace_id, name, language, version, created_at_ms, updated_at_ms) \
           VALUES (?, ?, ?, ?, 1, ?, ?) {or_ignore}",
};
const UPDATE_SCRIPT: Statement = Statement {
    name: "update_script",
    text: "UPDATE script SET version = ?, updated_at_ms = ? WHERE id = ? AND version = ?",
};
const INSERT_SCRIPT_VERSION: Statement = Statement {
    name: "insert_script_version",
    text: "INSERT INTO script_version (script_id, version, source, hash, size_bytes, note, signature, author, \
           created_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
/// Versions that jobs use are kept.
const FORGET_SCRIPT_VERSIONS: Statement = Statement {
    name: "forget_script_versions",
    text: "DELETE FROM script_version WHERE script_id = ? AND version <= ? AND version NOT IN \
           (SELECT version FROM script_use WHERE namespace_id = ? AND script_name = ?)",
};
const DELETE_SCRIPT: Statement =
    Statement { name: "delete_script", text: "DELETE FROM script WHERE id = ? AND version = ?" };
const DELETE_SCRIPT_VERSIONS: Statement =
    Statement { name: "delete_script_versions", text: "DELETE FROM script_version WHERE script_id = ?" };
const COUNT_SCRIPT_JOBS: Statement = Statement {
    name: "count_script_users",
    text: "SELECT COUNT(*) FROM script_use WHERE namespace_id = ? AND script_name = ?",
};
pub(super) const LIST_SCRIPT_JOBS: Statement = Statement {
    name: "list_script_users",
    text: "SELECT job.name FROM script_use JOIN job ON job.id = script_use.job_id WHERE script_use.namespace_id = ? \
           AND script_use.script_name = ? AND job.name > ? ORDER BY job.name LIMIT ?",
};
const LIST_SCRIPT_JOBS_OF_APPS: Statement = Statement {
    name: "list_script_users_of_apps",
    text: "SELECT job.name FROM script_use JOIN job ON job.id = script_use.job_id WHERE script_use.namespace_id = ? \
           AND script_use.script_name = ? AND job.name > ? AND +job.app_id {in_list} ORDER BY job.name LIMIT ?",
};
const INSERT_SCRIPT_USE: Statement = Statement {
    name: "insert_script_use",
    text: "INSERT INTO script_use (job_id, namespace_id, script_name, version) VALUES (?, ?, ?, ?)",
};
const DELETE_SCRIPT_USE: Statement =
    Statement { name: "delete_script_use", text: "DELETE FROM script_use WHERE job_id = ?" };

#[async_trait]
impl Scripts for SqlStore {
    async fn script(&self, namespace: NamespaceId, name: &str) -> Result<Option<ScriptRecord>> {
        self.row(Query::new(&READ_SCRIPT).int(namespace.get()).text(name)).await?.as_ref().map(script).transpose()
    }

    async fn scripts(&self, namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Result<Vec<ScriptRecord>> {
        let query = Query::new(&LIST_SCRIPTS).int(namespace.get()).text(after_name.unwrap_or_default());
        self.rows(query.int(limit.into())).await?.iter().map(script).collect()
    }

    async fn script_version(&self, id: ScriptId, number: i64) -> Result<Option<(ScriptVersion, String)>> {
        let row = self.row(Query::new(&READ_SCRIPT_VERSION).int(id.get()).int(number)).await?;
        row.map(|row| {
            let mut columns = Reader::new(&row, "script_version");
            Ok((version(&mut columns)?, columns.text("source")?))
        })
        .transpose()
    }

    async fn script_versions(&self, id: ScriptId, before: Option<i64>, limit: u32) -> Result<Vec<ScriptVersion>> {
        let query = Query::new(&LIST_SCRIPT_VERSIONS).int(id.get()).int(before.unwrap_or(i64::MAX)).int(limit.into());
        self.rows(query).await?.iter().map(|row| version(&mut Reader::new(row, "script_version"))).collect()
    }

    async fn save_script(&self, change: ScriptChange<'_>) -> Result<ScriptSaved> {
        transact!(self, "save_script", |tx| tx.save_script(change).await)
    }

    async fn delete_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
    ) -> Result<ScriptDeleted> {
        transact!(self, "delete_script", |tx| {
            let Some(locked_script) = tx.lock_script(namespace, name).await? else {
                return Ok(ScriptDeleted::NotFound);
            };
            if expected_version.is_some_and(|expected| expected != locked_script.version) {
                return Ok(ScriptDeleted::Conflict(locked_script.version));
            }
            let query = jobs_that_use(namespace, name, None).int(SCRIPT_JOB_COUNT_SHOWN.into());
            let job_names = tx.rows(query).await?.iter().map(job_name).collect::<Result<Vec<_>>>()?;
            if !job_names.is_empty() {
                let count_row = tx.row(Query::new(&COUNT_SCRIPT_JOBS).int(namespace.get()).text(name)).await?;
                let count = count_row.map(|row| Reader::new(&row, "script_use").int("count")).transpose()?;
                let count = count.and_then(|count| u64::try_from(count).ok()).unwrap_or_default();
                return Ok(ScriptDeleted::Used(job_names, count));
            }
            tx.execute(Query::new(&DELETE_SCRIPT_VERSIONS).int(locked_script.id.get())).await?;
            tx.execute_all(Query::new(&DELETE_SCRIPT).int(locked_script.id.get()).int(locked_script.version), 1)
                .await?;
            Ok(ScriptDeleted::Deleted)
        })
    }

    async fn jobs_with_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>> {
        let query = match within {
            None => jobs_that_use(namespace, name, after_name),
            Some([]) => return Ok(Vec::new()),
            Some(apps) => Query::new(&LIST_SCRIPT_JOBS_OF_APPS)
                .int(namespace.get())
                .text(name)
                .text(after_name.unwrap_or_default())
                .list(apps.iter().map(|app| app.get())),
        };
        self.rows(query.int(limit.into())).await?.iter().map(job_name).collect()
    }
}

/// A script whose row is locked until the commit.
struct LockedScript {
    id: ScriptId,
    version: i64,
    language: String,
}

impl Tx<'_> {
    async fn lock_script(&mut self, namespace: NamespaceId, name: &str) -> Result<Option<LockedScript>> {
        let query = Query::new(&LOCK_SCRIPT).int(namespace.get()).text(name);
        let Some(row) = self.row(query).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "script");
        let (id, version) = (ScriptId::new(columns.int("id")?), columns.int("version")?);
        Ok(Some(LockedScript { id, version, language: columns.text("language")? }))
    }

    async fn save_script(&mut self, change: ScriptChange<'_>) -> Result<ScriptSaved> {
        let mut script = self.lock_script(change.namespace, change.name).await?;
        if script.is_none() {
            if change.expected_version.is_some_and(|expected| expected != 0) {
                return Ok(ScriptSaved::Conflict(0));
            }
            let insert = Query::new(&INSERT_SCRIPT)
                .int(change.id.get())
                .int(change.namespace.get())
                .text(change.name)
                .text(&change.spec.language)
                .at(change.now)
                .at(change.now);
            if self.execute(insert).await? == 1 {
                self.add_script_version(change.id, 1, change).await?;
                return self.read_script(change).await.map(ScriptSaved::Created);
            }
            // Another caller inserted the script first.
            script = self.lock_script(change.namespace, change.name).await?;
        }
        let Some(script) = script else { return Err(failure::unexpected_count("insert_script", 1, 0)) };
        if change.expected_version.is_some_and(|expected| expected != script.version) {
            return Ok(ScriptSaved::Conflict(script.version));
        }
        if script.language != change.spec.language {
            return Ok(ScriptSaved::OtherLanguage(script.language));
        }
        let version = script.version + 1;
        let update = Query::new(&UPDATE_SCRIPT).int(version).at(change.now).int(script.id.get()).int(script.version);
        self.execute_all(update, 1).await?;
        self.add_script_version(script.id, version, change).await?;
        let query =
            Query::new(&FORGET_SCRIPT_VERSIONS).int(script.id.get()).int(version - i64::from(change.kept_count));
        self.execute(query.int(change.namespace.get()).text(change.name)).await?;
        self.read_script(change).await.map(ScriptSaved::Changed)
    }

    async fn add_script_version(&mut self, id: ScriptId, version: i64, change: ScriptChange<'_>) -> Result<()> {
        let insert = Query::new(&INSERT_SCRIPT_VERSION)
            .int(id.get())
            .int(version)
            .text(&change.spec.source)
            .text(change.hash)
            .int(i64::try_from(change.spec.source.len()).unwrap_or(i64::MAX))
            .text(&change.spec.note)
            .opt_text(change.spec.signature.as_deref())
            .text(&clean_name(change.author))
            .at(change.now);
        self.execute_all(insert, 1).await
    }

    async fn read_script(&mut self, change: ScriptChange<'_>) -> Result<ScriptRecord> {
        let row = self.row(Query::new(&READ_SCRIPT).int(change.namespace.get()).text(change.name)).await?;
        row.as_ref().map_or_else(|| Err(failure::unexpected_count("read_script", 1, 0)), script)
    }

    /// Locks the scripts that definitions use. Each pair has a new definition and the definition that it replaces. Returns a script that
    /// does not exist and that the replaced definition did not name.
    pub(super) async fn lock_scripts<'s>(
        &mut self,
        namespace: NamespaceId,
        specs: impl Iterator<Item = (&'s JobSpec, Option<&'s JobSpec>)> + Send,
    ) -> Result<Option<ScriptRef>> {
        let mut used_scripts: BTreeSet<(ScriptRef, bool)> = BTreeSet::new();
        for (spec, spec_before) in specs {
            let Some(script_ref) = spec.script() else { continue };
            let is_new = spec_before.and_then(JobSpec::script).as_ref() != Some(&script_ref);
            used_scripts.insert((script_ref, is_new));
        }
        for (script_ref, is_new) in used_scripts {
            let locked_script = self.lock_script(namespace, &script_ref.name).await?;
            let has_version = match (&locked_script, script_ref.version) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(script), Some(version)) => {
                    let find_query = Query::new(&FIND_SCRIPT_VERSION).int(script.id.get()).int(version);
                    self.row(find_query).await?.is_some()
                }
            };
            if !has_version && is_new {
                return Ok(Some(script_ref));
            }
        }
        Ok(None)
    }

    /// Records the script that a definition uses, in place of the script that `before` uses.
    pub(super) async fn write_script_use(
        &mut self,
        (namespace, job): (NamespaceId, JobId),
        spec: Option<&JobSpec>,
        before: Option<&JobSpec>,
    ) -> Result<()> {
        if before.and_then(JobSpec::script).is_some() {
            self.execute(Query::new(&DELETE_SCRIPT_USE).int(job.get())).await?;
        }
        let Some(script_ref) = spec.and_then(JobSpec::script) else { return Ok(()) };
        let insert = Query::new(&INSERT_SCRIPT_USE).int(job.get()).int(namespace.get()).text(&script_ref.name);
        self.execute_all(insert.int(script_ref.version.unwrap_or(0)), 1).await
    }
}

fn jobs_that_use(namespace: NamespaceId, name: &str, after_name: Option<&str>) -> Query {
    Query::new(&LIST_SCRIPT_JOBS).int(namespace.get()).text(name).text(after_name.unwrap_or_default())
}

fn job_name(row: &AnyRow) -> Result<String> {
    Reader::new(row, "job").text("name")
}

fn script(row: &AnyRow) -> Result<ScriptRecord> {
    let mut columns = Reader::new(row, "script");
    Ok(ScriptRecord {
        id: ScriptId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        name: columns.text("name")?,
        language: columns.text("language")?,
        created_at: columns.at("created_at_ms")?,
        newest: version(&mut columns)?,
    })
}

fn version(columns: &mut Reader<'_>) -> Result<ScriptVersion> {
    Ok(ScriptVersion {
        version: columns.int("version")?,
        hash: columns.text("hash")?,
        size: u64::try_from(columns.int("size_bytes")?).unwrap_or_default(),
        note: columns.text("note")?,
        signature: columns.opt_text("signature")?,
        author: columns.text("author")?,
        created_at: columns.at("created_at_ms")?,
    })
}
