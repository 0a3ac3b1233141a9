//! Scripts that the server stores: saving them in versions, restoring and deleting them.

use rondel_core::script::ScriptSpec;
use rondel_core::words::counted;
use rondel_core::{FieldError, NamespaceId, ScriptId, name};
use rondel_store::StoreError;
use rondel_store::scripts::{ScriptChange, ScriptDeleted, ScriptRecord, ScriptSaved, ScriptVersion};
use sha2::{Digest as _, Sha256};

use crate::identity::tokens::hex;
use crate::node::Node;

/// Maximum number of scripts in a namespace.
pub const SCRIPT_COUNT_MAX: u32 = 1_000;

/// Why a change of a script was refused.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The document is invalid.
    #[error("the script has {}, the first is {}", counted(.0.len(), "error"), .0.first().map_or_else(String::new, ToString::to_string))]
    Invalid(Vec<FieldError>),
    /// Another caller changed the script first.
    #[error("the script was changed meanwhile, its version is {version}")]
    Conflict {
        /// The script's current version; 0 if it was deleted.
        version: i64,
    },
    /// The script is in use and cannot be deleted.
    #[error("the script is used by {}", counted(*.job_count, "job"))]
    Used {
        /// The names of some of the jobs that use the script.
        jobs: Vec<String>,
        /// How many jobs use the script.
        job_count: u64,
    },
    /// The namespace has reached its maximum number of scripts.
    #[error("the namespace has {SCRIPT_COUNT_MAX} scripts, the maximum")]
    TooMany,
    /// There is no such script.
    #[error("there is no such script")]
    NotFound,
    /// The script has no such version, or it is no longer kept.
    #[error("version {0} is not kept")]
    NoVersion(i64),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedScript {
    /// The script as it is stored after the save.
    pub record: ScriptRecord,
    /// Whether the script was created.
    pub is_new: bool,
}

/// SHA-256 of a source, in hex.
#[must_use]
pub fn hash(source: &str) -> String {
    hex(&Sha256::digest(source.as_bytes()))
}

/// Saves a version of a script. If `spec` equals the newest version, no new version is created.
///
/// # Errors
/// [`ScriptError::Invalid`], [`ScriptError::Conflict`], [`ScriptError::TooMany`], the store's.
pub async fn save(
    node: &Node,
    (namespace, script_name): (NamespaceId, &str),
    spec: &ScriptSpec,
    expected_version: Option<i64>,
    author: &str,
) -> Result<SavedScript, ScriptError> {
    let mut errors = spec.check();
    errors.extend(name::check(script_name).err().map(|message| FieldError::new("/name", message)));
    if !errors.is_empty() {
        return Err(ScriptError::Invalid(errors));
    }
    let hash = hash(&spec.source);
    let stored_script = node.store().script(namespace, script_name).await?;
    if stored_script.is_none() {
        let all_scripts = node.store().scripts(namespace, None, SCRIPT_COUNT_MAX).await?;
        if u32::try_from(all_scripts.len()).is_ok_and(|count| count >= SCRIPT_COUNT_MAX) {
            return Err(ScriptError::TooMany);
        }
    }
    let signature = signature(spec, stored_script.as_ref(), &hash);
    if let Some(record) = stored_script.filter(|record| is_same(record, spec, &hash))
        && expected_version.is_none_or(|version| version == record.newest.version)
    {
        return Ok(SavedScript { record, is_new: false });
    }
    let spec = &ScriptSpec { signature, ..spec.clone() };
    let change = ScriptChange {
        id: ScriptId::new(node.new_id()),
        namespace,
        name: script_name,
        expected_version,
        spec,
        hash: &hash,
        kept_count: node.shared().config.script_versions,
        author,
        now: node.now(),
    };
    match node.store().save_script(change).await? {
        ScriptSaved::Created(record) => Ok(SavedScript { record, is_new: true }),
        ScriptSaved::Changed(record) => Ok(SavedScript { record, is_new: false }),
        ScriptSaved::Conflict(version) => Err(ScriptError::Conflict { version }),
        ScriptSaved::OtherLanguage(language) => {
            let message = format!("is {language}, which cannot be changed: create another script for another language");
            Err(ScriptError::Invalid(vec![FieldError::new("/language", message)]))
        }
    }
}

/// The signature of a version. If `spec` has no signature, and its source and language are those of the newest version, that version's signature
/// is kept.
fn signature(spec: &ScriptSpec, stored_script: Option<&ScriptRecord>, hash: &str) -> Option<String> {
    let same_script = stored_script.filter(|record| record.language == spec.language && record.newest.hash == hash);
    spec.signature.clone().or_else(|| same_script?.newest.signature.clone())
}

fn is_same(record: &ScriptRecord, spec: &ScriptSpec, hash: &str) -> bool {
    let ScriptVersion { hash: newest_hash, note, signature, .. } = &record.newest;
    let is_signed_as_before = spec.signature.is_none() || spec.signature == *signature;
    record.language == spec.language
        && newest_hash == hash
        && is_signed_as_before
        && (spec.note.is_empty() || spec.note == *note)
}

/// Makes an older version the newest again: saves a new version with the source and signature of the older version.
///
/// # Errors
/// [`ScriptError::NoVersion`], those of [`save`].
pub async fn restore(
    node: &Node,
    record: &ScriptRecord,
    (version, note): (i64, Option<String>),
    expected_version: Option<i64>,
    author: &str,
) -> Result<SavedScript, ScriptError> {
    let (old_version, source) = version_of(node, record, version).await?;
    let note = note.unwrap_or_else(|| format!("version {version} restored"));
    let spec = ScriptSpec { language: record.language.clone(), source, note, signature: old_version.signature };
    save(node, (record.namespace, &record.name), &spec, expected_version, author).await
}

/// A version of a script with its source.
///
/// # Errors
/// [`ScriptError::NoVersion`], the store's.
pub async fn version_of(
    node: &Node,
    record: &ScriptRecord,
    version: i64,
) -> Result<(ScriptVersion, String), ScriptError> {
    node.store().script_version(record.id, version).await?.ok_or(ScriptError::NoVersion(version))
}

/// Deletes a script that no job uses.
///
/// # Errors
/// [`ScriptError::NotFound`], [`ScriptError::Used`], [`ScriptError::Conflict`], the store's.
pub async fn delete(
    node: &Node,
    (namespace, script_name): (NamespaceId, &str),
    expected_version: Option<i64>,
) -> Result<(), ScriptError> {
    match node.store().delete_script(namespace, script_name, expected_version).await? {
        ScriptDeleted::Deleted => Ok(()),
        ScriptDeleted::Used(jobs, job_count) => Err(ScriptError::Used { jobs, job_count }),
        ScriptDeleted::Conflict(version) => Err(ScriptError::Conflict { version }),
        ScriptDeleted::NotFound => Err(ScriptError::NotFound),
    }
}

/// Finds a script by its name. Returns `None` if there is none, or if the text cannot be a name.
///
/// # Errors
/// The store's.
pub async fn find(node: &Node, namespace: NamespaceId, script_name: &str) -> Result<Option<ScriptRecord>, StoreError> {
    // Text that cannot be a name is not looked up, so that unchecked text of a caller never reaches the database.
    if name::check(script_name).is_ok() { node.store().script(namespace, script_name).await } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;

    use super::*;

    #[test]
    fn a_new_note_leaves_the_source_signed() {
        let newest = ScriptVersion {
            version: 3,
            hash: hash("date"),
            size: 4,
            note: "first".to_owned(),
            signature: Some("q80=".to_owned()),
            author: "ann".to_owned(),
            created_at: Timestamp::EPOCH,
        };
        let record = ScriptRecord {
            id: ScriptId::new(1),
            namespace: NamespaceId::new(1),
            name: "a".to_owned(),
            language: "shell".to_owned(),
            created_at: Timestamp::EPOCH,
            newest,
        };
        let signed = |source: &str, own: Option<&str>, before: Option<&ScriptRecord>| {
            let (language, source) = ("shell".to_owned(), source.to_owned());
            let spec = ScriptSpec { language, source, note: "second".to_owned(), signature: own.map(str::to_owned) };
            signature(&spec, before, &hash(&spec.source))
        };
        assert_eq!(signed("date", None, Some(&record)).as_deref(), Some("q80="));
        assert_eq!(signed("date", Some("AAA="), Some(&record)).as_deref(), Some("AAA="));
        assert_eq!(signed("rm", None, Some(&record)), None, "another source");
        assert_eq!(signed("date", None, None), None);
    }
}
