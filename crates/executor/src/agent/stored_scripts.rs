//! Scripts that the server stores. The server is asked for the hash at the start of each run, and each text is cached by
//! its hash, so that it is sent only once.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use rondel_core::script::{ScriptRef, signed_text};
use rondel_proto::v1::ScriptReply;

use super::script::Script;
use super::signature::{ScriptKey, hash};
use crate::extract::{Cancel, Log};
use crate::job_error::JobError;
use crate::lifecycle::lock;
use crate::run::RunContext;

/// How many texts are cached on disk.
const FILE_COUNT_MAX: usize = 256;
/// How many texts are cached in memory, if there is no folder.
const TEXT_COUNT_MAX: usize = 32;
/// The length of a hash in hex.
const HASH_LEN: usize = 64;

/// A cache of the scripts that have been run, and the public keys. If there are keys, one of them must have signed each
/// script.
#[derive(Debug)]
pub(super) struct StoredScripts {
    cache: Cache,
    keys: Vec<ScriptKey>,
}

impl StoredScripts {
    pub(super) fn open(folder: Option<&Path>, keys: Vec<ScriptKey>) -> io::Result<Self> {
        let cache = match folder {
            Some(folder) => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                Cache::Folder(folder.to_owned())
            }
            None => Cache::Memory(Mutex::default()),
        };
        Ok(Self { cache, keys })
    }

    /// Returns the text to run: the given text, or the one that the server stores under the given name.
    pub(super) async fn text(
        &self,
        script: Script,
        run: &RunContext,
        cancel: &Cancel,
        log: &Log,
    ) -> Result<String, JobError> {
        match script {
            Script::Text(text) if self.keys.is_empty() => Ok(text),
            Script::Text(_) => Err(JobError::terminal(
                "this agent runs only signed scripts of the server (--script-key), not text that comes with a job",
            )),
            Script::Stored(script_ref) => {
                let fetch = async {
                    let (reply, text) = self.find(&script_ref, run, log).await?;
                    let ScriptReply { name, version, hash, .. } = reply;
                    log.info(format!("script {name}, version {version}, SHA-256 {hash}"));
                    Ok(text)
                };
                tokio::select! {
                    result = fetch => result,
                    () = cancel.cancelled() => Err(JobError::failed("stopped before its script was fetched")),
                }
            }
        }
    }

    /// Returns the server's reply about the script, and the script's text.
    async fn find(
        &self,
        script_ref: &ScriptRef,
        run: &RunContext,
        log: &Log,
    ) -> Result<(ScriptReply, String), JobError> {
        let reply = self.ask(script_ref, run, false).await?;
        match self.cache.get(&reply.hash) {
            CacheLookup::Text(text) => return Ok((reply, text)),
            CacheLookup::Changed => log.warn("the text of the script was changed on this host; it is fetched again"),
            CacheLookup::Missing => {}
        }
        // This reply replaces the first one: by now another version may be the newest.
        let mut reply = self.ask(script_ref, run, true).await?;
        let text = std::mem::take(&mut reply.source);
        let actual_hash = hash(text.as_bytes());
        if actual_hash != reply.hash {
            return Err(JobError::failed(format_args!(
                "the text of the script {script_ref} has the SHA-256 {actual_hash}, but the server names {}",
                reply.hash
            )));
        }
        if let Err(error) = self.cache.put(&reply.hash, &text) {
            tracing::warn!(%error, "cannot cache the text of a script; it is fetched again for the next run");
        }
        Ok((reply, text))
    }

    async fn ask(&self, script_ref: &ScriptRef, run: &RunContext, with_source: bool) -> Result<ScriptReply, JobError> {
        let reply = run.setup().script_requests.ask(run.key(), with_source).await;
        let reply = reply.ok_or_else(|| {
            JobError::failed(format_args!(
                "no server has answered the request for the script {script_ref}; is the server an older version?"
            ))
        })?;
        self.check(script_ref, run, &reply).map(|()| reply)
    }

    fn check(&self, script_ref: &ScriptRef, run: &RunContext, reply: &ScriptReply) -> Result<(), JobError> {
        if !reply.error.is_empty() {
            return Err(JobError::terminal(&reply.error));
        }
        let is_requested =
            reply.name == script_ref.name && script_ref.version.is_none_or(|version| version == reply.version);
        if !is_requested || reply.language != run.handler() || !is_hash(&reply.hash) {
            return Err(JobError::failed(format_args!("the server has returned another script than {script_ref}")));
        }
        if self.keys.is_empty() {
            return Ok(());
        }
        let text = signed_text(run.namespace(), &reply.name, &reply.language, &reply.hash);
        let script_description = format!("version {} of the script {:?}", reply.version, reply.name);
        if reply.signature.is_empty() {
            Err(JobError::terminal(format_args!(
                "{script_description} is not signed, but this agent runs only signed scripts (--script-key)"
            )))
        } else if self.keys.iter().any(|key| key.has_signed(&text, &reply.signature)) {
            Ok(())
        } else {
            Err(JobError::terminal(format_args!(
                "the signature of {script_description} was not made with a key that this agent knows (--script-key), or is of another text, name or namespace"
            )))
        }
    }
}

/// Whether the text is a valid hash, and so a safe file name.
fn is_hash(text: &str) -> bool {
    text.len() == HASH_LEN && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[derive(Debug)]
enum Cache {
    Folder(PathBuf),
    Memory(Mutex<BTreeMap<String, String>>),
}

#[derive(Debug, PartialEq, Eq)]
enum CacheLookup {
    Text(String),
    /// The cached text did not have the hash under which it was stored. Its file, if it has one, was removed.
    Changed,
    Missing,
}

impl Cache {
    fn get(&self, expected_hash: &str) -> CacheLookup {
        let text = match self {
            Self::Folder(folder) => std::fs::read(folder.join(expected_hash)).ok(),
            Self::Memory(texts) => lock(texts).get(expected_hash).map(|text| text.clone().into_bytes()),
        };
        let Some(text) = text else { return CacheLookup::Missing };
        if hash(&text) == expected_hash
            && let Ok(text) = String::from_utf8(text)
        {
            return CacheLookup::Text(text);
        }
        if let Self::Folder(folder) = self
            && let Err(error) = std::fs::remove_file(folder.join(expected_hash))
        {
            tracing::warn!(%error, file = expected_hash, "cannot remove the changed text of a script");
        }
        CacheLookup::Changed
    }

    fn put(&self, hash: &str, text: &str) -> io::Result<()> {
        match self {
            Self::Folder(folder) => {
                make_room(folder)?;
                // The file appears under its name only when complete; a file or link already there is replaced, not
                // written to.
                let mut file = tempfile::Builder::new().permissions(private_permissions()).tempfile_in(folder)?;
                file.write_all(text.as_bytes())?;
                file.persist(folder.join(hash)).map(drop).map_err(|error| error.error)
            }
            Self::Memory(texts) => {
                let mut texts = lock(texts);
                if texts.len() >= TEXT_COUNT_MAX {
                    texts.pop_first();
                }
                texts.insert(hash.to_owned(), text.to_owned());
                Ok(())
            }
        }
    }
}

fn private_permissions() -> std::fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o600)
}

/// Removes the oldest files, so that there is room for one more.
fn make_room(folder: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        files.push((entry.metadata()?.modified()?, entry.path()));
    }
    files.sort();
    for (_, path) in files.iter().rev().skip(FILE_COUNT_MAX - 1) {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
