//! Scripts that the server keeps, with their versions, and the jobs that name them.
//!
//! Which script the newest definition of a job names stands beside the job, so that a script that is used is not deleted and a
//! version that is named is not forgotten. Saving such a job locks the script's row, as deleting the script does.

use async_trait::async_trait;
use rondel_core::script::ScriptSpec;
use rondel_core::{AppId, NamespaceId, ScriptId, Timestamp};

use crate::error::Result;

/// How many of the jobs that keep a script from being deleted are named.
pub const SCRIPT_USER_COUNT_SHOWN: u32 = 10;

/// A script, with what is known of its newest version beside the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptRecord {
    /// Its id.
    pub id: ScriptId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: String,
    /// What it is written in: the handler that runs it.
    pub language: String,
    /// When its first version was saved.
    pub created_at: Timestamp,
    /// Its newest version: what `If-Match` guards.
    pub newest: ScriptVersion,
}

/// A version of a script, without its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptVersion {
    /// Counted from 1.
    pub version: i64,
    /// SHA-256 of the source, in hex.
    pub hash: String,
    /// How many bytes the source has.
    pub size: u64,
    /// What it changes, in its author's words.
    pub note: String,
    /// A signature of it, in base64.
    pub signature: Option<String>,
    /// Who saved it.
    pub author: String,
    /// When it was saved.
    pub created_at: Timestamp,
}

/// A script to be saved, whether it exists or not.
#[derive(Clone, Copy, Debug)]
pub struct ScriptChange<'a> {
    /// Its id, where it does not exist.
    pub id: ScriptId,
    /// Its tenant.
    pub namespace: NamespaceId,
    /// Its name.
    pub name: &'a str,
    /// The version that the author saw, 0 for none; `None` to change whatever is there.
    pub expected_version: Option<i64>,
    /// What is saved, checked.
    pub spec: &'a ScriptSpec,
    /// SHA-256 of its source, in hex.
    pub hash: &'a str,
    /// How many versions are kept, beside those that jobs name.
    pub kept: u32,
    /// Who saves it.
    pub author: &'a str,
    /// The present.
    pub now: Timestamp,
}

/// What saving a script did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptSaved {
    /// It is there now, and was not before.
    Created(ScriptRecord),
    /// It has a new version.
    Changed(ScriptRecord),
    /// Another caller changed it first; its version now, 0 where it is gone.
    Conflict(i64),
    /// It is written in this other language, which stays.
    OtherLanguage(String),
}

/// What deleting a script did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptDeleted {
    /// It is gone, with its versions.
    Deleted,
    /// These jobs use it: the first [`SCRIPT_USER_COUNT_SHOWN`] by name, and how many they are.
    Used(Vec<String>, u64),
    /// Another caller changed it first; its version now.
    Conflict(i64),
    /// There is no such script.
    NotFound,
}

/// Scripts.
#[async_trait]
pub trait Scripts {
    /// A script by its name.
    async fn script(&self, namespace: NamespaceId, name: &str) -> Result<Option<ScriptRecord>>;

    /// Scripts of a namespace by name, after `after_name`, at most `limit`.
    async fn scripts(&self, namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Result<Vec<ScriptRecord>>;

    /// A version of a script that is kept, with its source.
    async fn script_version(&self, id: ScriptId, version: i64) -> Result<Option<(ScriptVersion, String)>>;

    /// The versions of a script that are kept, the newest first, before `before`, at most `limit`.
    async fn script_versions(&self, id: ScriptId, before: Option<i64>, limit: u32) -> Result<Vec<ScriptVersion>>;

    /// Saves a version of a script, and forgets those that are more than are kept and that no job names.
    async fn save_script(&self, change: ScriptChange<'_>) -> Result<ScriptSaved>;

    /// Deletes a script that no job uses.
    async fn delete_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
    ) -> Result<ScriptDeleted>;

    /// Names of jobs that use a script, in order, after `after_name`, at most `limit`; `within` keeps to the jobs of these apps.
    async fn script_users(
        &self,
        namespace: NamespaceId,
        name: &str,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>>;
}
