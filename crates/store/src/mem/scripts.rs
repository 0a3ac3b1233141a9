//! The trait `Scripts` for the store in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::script::ScriptRef;
use rondel_core::{AppId, JobSpec, NamespaceId, ScriptId};

use super::script_rows::StoredScript;
use super::{MemStore, State, to_usize};
use crate::scripts::{SCRIPT_JOB_COUNT_SHOWN, ScriptChange, ScriptDeleted, ScriptRecord, ScriptSaved, ScriptVersion};
use crate::settle::clean_name;
use crate::{Result, Scripts};

#[async_trait]
impl Scripts for MemStore {
    async fn script(&self, namespace: NamespaceId, name: &str) -> Result<Option<ScriptRecord>> {
        Ok(self.state().script_record(namespace, name))
    }

    async fn scripts(&self, namespace: NamespaceId, after_name: Option<&str>, limit: u32) -> Result<Vec<ScriptRecord>> {
        let state = self.state();
        let scripts = state.scripts.iter().filter(|((owner, _), _)| *owner == namespace);
        let later_scripts = scripts.filter(|((_, name), _)| after_name.is_none_or(|after| name.as_str() > after));
        Ok(later_scripts
            .filter_map(|((_, name), script)| script.record((namespace, name)))
            .take(to_usize(limit))
            .collect())
    }

    async fn script_version(&self, id: ScriptId, version: i64) -> Result<Option<(ScriptVersion, String)>> {
        let state = self.state();
        Ok(state.script_of(id).and_then(|script| script.versions.get(&version)).cloned())
    }

    async fn script_versions(&self, id: ScriptId, before: Option<i64>, limit: u32) -> Result<Vec<ScriptVersion>> {
        let state = self.state();
        let Some(script) = state.script_of(id) else { return Ok(Vec::new()) };
        let older_versions = script.versions.range(..before.unwrap_or(i64::MAX)).rev();
        Ok(older_versions.take(to_usize(limit)).map(|(_, (version, _))| version.clone()).collect())
    }

    async fn save_script(&self, change: ScriptChange<'_>) -> Result<ScriptSaved> {
        let mut state = self.state();
        let key = (change.namespace, change.name.to_owned());
        let script_before = state.scripts.get(&key);
        let newest_version = script_before.map_or(0, StoredScript::newest_version);
        if change.expected_version.is_some_and(|expected| expected != newest_version) {
            return Ok(ScriptSaved::Conflict(newest_version));
        }
        if let Some(other) = script_before.filter(|script| script.language != change.spec.language) {
            return Ok(ScriptSaved::OtherLanguage(other.language.clone()));
        }
        let used_versions: Vec<i64> = state.versions_used_by_jobs(change.namespace, change.name);
        let script = state.scripts.entry(key).or_insert_with(|| StoredScript {
            id: change.id,
            language: change.spec.language.clone(),
            created_at: change.now,
            versions: BTreeMap::new(),
        });
        let version = new_version(&change, newest_version + 1);
        script.versions.insert(version.version, (version, change.spec.source.clone()));
        let last_removed_version = newest_version + 1 - i64::from(change.kept_count);
        script.versions.retain(|version, _| *version > last_removed_version || used_versions.contains(version));
        let record = state.script_record(change.namespace, change.name);
        let Some(record) = record else { return Ok(ScriptSaved::Conflict(0)) };
        Ok(if newest_version == 0 { ScriptSaved::Created(record) } else { ScriptSaved::Changed(record) })
    }

    async fn delete_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected_version: Option<i64>,
    ) -> Result<ScriptDeleted> {
        let mut state = self.state();
        let key = (namespace, name.to_owned());
        let Some(script) = state.scripts.get(&key) else { return Ok(ScriptDeleted::NotFound) };
        if expected_version.is_some_and(|expected| expected != script.newest_version()) {
            return Ok(ScriptDeleted::Conflict(script.newest_version()));
        }
        let mut job_names = state.job_names_of_script(namespace, name, None);
        if !job_names.is_empty() {
            let count = u64::try_from(job_names.len()).unwrap_or(u64::MAX);
            job_names.truncate(to_usize(SCRIPT_JOB_COUNT_SHOWN));
            return Ok(ScriptDeleted::Used(job_names, count));
        }
        state.scripts.remove(&key);
        Ok(ScriptDeleted::Deleted)
    }

    async fn jobs_with_script(
        &self,
        namespace: NamespaceId,
        name: &str,
        within: Option<&[AppId]>,
        after_name: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>> {
        let mut job_names = self.state().job_names_of_script(namespace, name, within);
        job_names.retain(|name| after_name.is_none_or(|after| name.as_str() > after));
        job_names.truncate(to_usize(limit));
        Ok(job_names)
    }
}

fn new_version(change: &ScriptChange<'_>, version: i64) -> ScriptVersion {
    ScriptVersion {
        version,
        hash: change.hash.to_owned(),
        size: u64::try_from(change.spec.source.len()).unwrap_or(u64::MAX),
        note: change.spec.note.clone(),
        signature: change.spec.signature.clone(),
        author: clean_name(change.author).into_owned(),
        created_at: change.now,
    }
}

impl State {
    fn script_record(&self, namespace: NamespaceId, name: &str) -> Option<ScriptRecord> {
        self.scripts.get(&(namespace, name.to_owned())).and_then(|script| script.record((namespace, name)))
    }

    fn script_of(&self, id: ScriptId) -> Option<&StoredScript> {
        self.scripts.values().find(|script| script.id == id)
    }

    fn job_names_of_script(&self, namespace: NamespaceId, name: &str, within: Option<&[AppId]>) -> Vec<String> {
        let jobs = self.living_jobs().filter(|job| job.namespace == namespace);
        let visible_jobs = jobs.filter(|job| within.is_none_or(|apps| apps.contains(&job.app)));
        let jobs_with_script = visible_jobs.filter(|job| job.spec.script().is_some_and(|script| script.name == name));
        let mut job_names: Vec<String> = jobs_with_script.map(|job| job.spec.name).collect();
        job_names.sort();
        job_names
    }

    /// The versions of a script to which jobs refer.
    fn versions_used_by_jobs(&self, namespace: NamespaceId, name: &str) -> Vec<i64> {
        let scripts = self.living_jobs().filter(|job| job.namespace == namespace).filter_map(|job| job.spec.script());
        scripts.filter(|script| script.name == name).filter_map(|script| script.version).collect()
    }

    /// A missing script to which the definition refers and the earlier definition (`before`) did not.
    pub(super) fn missing_script(
        &self,
        namespace: NamespaceId,
        spec: &JobSpec,
        before: Option<&JobSpec>,
    ) -> Option<ScriptRef> {
        let script_ref = spec.script().filter(|script| before.and_then(JobSpec::script).as_ref() != Some(script))?;
        let script = self.scripts.get(&(namespace, script_ref.name.clone()));
        let has_version = script
            .is_some_and(|script| script_ref.version.is_none_or(|version| script.versions.contains_key(&version)));
        (!has_version).then_some(script_ref)
    }

    pub(super) fn has_scripts(&self, namespace: NamespaceId) -> bool {
        self.scripts.keys().any(|(owner, _)| *owner == namespace)
    }
}
