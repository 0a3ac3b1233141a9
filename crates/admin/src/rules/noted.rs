//! Jobs with expectations that have succeeded since the last look.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use rondel_core::{JobId, NamespaceId, Timestamp};

/// Maximum number of jobs; successes of further jobs are found by the look itself.
const JOB_COUNT_MAX: usize = 50_000;

/// The newest success of each job.
#[derive(Debug, Default)]
pub(crate) struct NotedSuccesses(Mutex<HashMap<JobId, (NamespaceId, Timestamp)>>);

impl NotedSuccesses {
    pub(crate) fn add(&self, namespace: NamespaceId, job: JobId, fire_at: Timestamp) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < JOB_COUNT_MAX || noted.contains_key(&job) {
            let newest = noted.entry(job).or_insert((namespace, fire_at));
            newest.1 = newest.1.max(fire_at);
        }
    }

    /// Takes out all noted successes, keyed by their namespaces.
    pub(super) fn take(&self) -> BTreeMap<NamespaceId, Vec<(JobId, Timestamp)>> {
        let noted = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut by_namespace: BTreeMap<NamespaceId, Vec<(JobId, Timestamp)>> = BTreeMap::new();
        let mut all: Vec<_> = noted.into_iter().collect();
        all.sort_unstable();
        for (job, (namespace, fire_at)) in all {
            by_namespace.entry(namespace).or_default().push((job, fire_at));
        }
        by_namespace
    }
}
