//! Definitions by job and version, compiled once. A definition never changes under its version, so nothing here is
//! ever stale.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::{AppId, Job, JobId, NamespaceId, Timestamp};
use rondel_store::catalog::Definition;
use rondel_store::{Store, StoreError};

/// Entries in the young half; the whole cache holds up to twice as many.
const YOUNG_MAX: usize = 50_000;

pub(crate) type Key = (JobId, i64);

/// A definition, ready for the engine.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) id: JobId,
    pub(crate) version: i64,
    pub(crate) namespace: NamespaceId,
    pub(crate) namespace_name: String,
    pub(crate) app: AppId,
    pub(crate) anchor: Timestamp,
    pub(crate) job: Job,
}

/// A bounded cache in two halves: what is used moves to the young half, and when that is full the old one goes.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    halves: Mutex<Halves>,
}

#[derive(Debug, Default)]
struct Halves {
    young: HashMap<Key, Arc<Compiled>>,
    old: HashMap<Key, Arc<Compiled>>,
}

impl Definitions {
    /// The definitions with these keys; those that do not exist or cannot be read are left out.
    pub(crate) async fn load(
        &self,
        store: &dyn Store,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<HashMap<Key, Arc<Compiled>>, StoreError> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for key in keys {
            if found.contains_key(&key) {
                continue;
            }
            match self.get(key) {
                Some(compiled) => drop(found.insert(key, compiled)),
                None => missing.push(key),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        for chunk in missing.chunks(500) {
            for definition in store.definitions(chunk).await? {
                if let Some(compiled) = compile(definition) {
                    let key = (compiled.id, compiled.version);
                    self.put(key, Arc::clone(&compiled));
                    found.insert(key, compiled);
                }
            }
        }
        Ok(found)
    }

    fn get(&self, key: Key) -> Option<Arc<Compiled>> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = halves.young.get(&key) {
            return Some(Arc::clone(compiled));
        }
        let compiled = halves.old.remove(&key)?;
        halves.young.insert(key, Arc::clone(&compiled));
        Some(compiled)
    }

    fn put(&self, key: Key, compiled: Arc<Compiled>) {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        if halves.young.len() >= YOUNG_MAX {
            halves.old = std::mem::take(&mut halves.young);
        }
        halves.young.insert(key, compiled);
    }
}

fn compile(definition: Definition) -> Option<Arc<Compiled>> {
    match definition.spec.compile() {
        Ok(job) => Some(Arc::new(Compiled {
            id: definition.job,
            version: definition.version,
            namespace: definition.namespace,
            namespace_name: definition.namespace_name,
            app: definition.app,
            anchor: definition.anchor,
            job,
        })),
        Err(errors) => {
            // Saved by a newer server, perhaps: this one cannot run it and must not pretend to.
            let error = errors.first().map(ToString::to_string).unwrap_or_default();
            tracing::error!(job = %definition.spec.name, job_id = %definition.job, error, "unreadable definition of job");
            None
        }
    }
}
