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
        let mut newest_by_job = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if newest_by_job.len() < JOB_COUNT_MAX || newest_by_job.contains_key(&job) {
            let newest_success = newest_by_job.entry(job).or_insert((namespace, fire_at));
            newest_success.1 = newest_success.1.max(fire_at);
        }
    }

    /// Removes and returns all noted successes, keyed by their namespaces.
    pub(super) fn take(&self) -> BTreeMap<NamespaceId, Vec<(JobId, Timestamp)>> {
        let newest_by_job = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut successes_by_namespace: BTreeMap<NamespaceId, Vec<(JobId, Timestamp)>> = BTreeMap::new();
        let mut sorted_successes: Vec<_> = newest_by_job.into_iter().collect();
        sorted_successes.sort_unstable();
        for (job, (namespace, fire_at)) in sorted_successes {
            successes_by_namespace.entry(namespace).or_default().push((job, fire_at));
        }
        successes_by_namespace
    }
}
