//! Scripts that the server stores, with their versions, and the jobs that name them.
//!
//! The script that a job's newest definition names is stored with the job. This prevents the deletion of a script in use and the removal of
//! a version that a job names. Saving such a job locks the script's row, as deleting the script does.

use async_trait::async_trait;
use rondel_core::script::ScriptSpec;
use rondel_core::{AppId, NamespaceId, ScriptId, Timestamp};

use crate::error::Result;

/// Maximum number of jobs that a refusal to delete a script names.
pub const SCRIPT_JOB_COUNT_SHOWN: u32 = 10;

/// A script with its newest version, without the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRecord {
    pub id: ScriptId,
    pub namespace: NamespaceId,
    pub name: String,
    /// Its language: the handler that runs it.
    pub language: String,
    /// When its first version was saved.
    pub created_at: Timestamp,
    /// Its newest version. A save whose `If-Match` names another number is refused.
    pub newest: ScriptVersion,
}

/// A version of a script, without its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptVersion {
    /// Its number, from 1.
    pub version: i64,
    /// SHA-256 of the source, in hex.
    pub hash: String,
    /// Size of the source, in bytes.
    pub size: u64,
    /// The author's description of the change.
    pub note: String,
    /// A signature of the source, in base64.
    pub signature: Option<String>,
    /// Name of the caller that saved it.
    pub author: String,
    /// When it was saved.
    pub created_at: Timestamp,
}

/// A script to be saved, whether it exists or not.
#[derive(Clone, Copy, Debug)]
pub struct ScriptChange<'a> {
    /// The id to use if the script does not exist yet.
    pub id: ScriptId,
    pub namespace: NamespaceId,
    pub name: &'a str,
    /// The version that the author saw, 0 for none; `None` to overwrite any version.
    pub expected_version: Option<i64>,
    /// The script to save, validated.
    pub spec: &'a ScriptSpec,
    /// SHA-256 of its source, in hex.
    pub hash: &'a str,
    /// Number of versions to keep, in addition to the versions that jobs use.
    pub kept_count: u32,
    /// Name of the caller that saves it.
    pub author: &'a str,
    pub now: Timestamp,
}

/// Outcome of saving a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptSaved {
    /// The script is new.
    Created(ScriptRecord),
    /// It has a new version.
    Changed(ScriptRecord),
    /// Another caller changed it first; its current version, 0 if it was deleted.
    Conflict(i64),
    /// The script is written in this other language, which cannot change.
    OtherLanguage(String),
}

/// Outcome of deleting a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptDeleted {
    /// It is deleted, with its versions.
    Deleted,
    /// These jobs use it: the first [`SCRIPT_JOB_COUNT_SHOWN`] by name, and their number.
    Used(Vec<String>, u64),
    /// Another caller changed it first; its current version.
    Conflict(i64),
    /// There is no such script.
    NotFound,
}

#[async_trait]
pub trait Scripts {
    async fn script(&self, namespace: NamespaceId, name: &str) -> Result<Option<ScriptRecord>>;

    /// Scripts of a namespace, sorted by name, after `after_name`, at most `limit`.
    async fn scripts(&self, namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Result<Vec<ScriptRecord>>;

    /// A version of a script, with its source; `None` if the version is not kept.
    async fn script_version(&self, id: ScriptId, version: i64) -> Result<Option<(ScriptVersion, String)>>;

    /// The versions of a script that are kept, the newest first, before `before`, at most `limit`.
    async fn script_versions(&self, id: ScriptId, before: Option<i64>, limit: u32) -> Result<Vec<ScriptVersion>>;

    /// Saves a version of a script, and removes the versions beyond `kept_count` that no job uses.
    async fn save_script(&self, change: ScriptChange<'_>) -> Result<ScriptSaved>;

    /// Deletes a script that no job uses, if it has the expected version; `None` means any.
    async fn delete_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
    ) -> Result<ScriptDeleted>;

    /// Sorted names of jobs that use a script, after `after_name`, at most `limit`; `within` limits the result to jobs of these apps.
    async fn jobs_with_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>>;
}
