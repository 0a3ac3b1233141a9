//! Which open runs this process has in memory, so that the standing query for strays never takes one up twice.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use rondel_core::{JobId, Run, RunId};

#[derive(Debug, Default)]
pub(crate) struct InMemory(Mutex<HashSet<RunId>>);

/// Open runs of this node that await their children. They are in nobody's hands; their place in the gate of their job is
/// all that is theirs here.
#[derive(Debug, Default)]
pub(crate) struct Awaiting(Mutex<BTreeMap<RunId, JobId>>);

impl Awaiting {
    pub(crate) fn admit(&self, runs: impl IntoIterator<Item = (JobId, RunId)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(runs.into_iter().map(|(job, run)| (run, job)));
    }

    /// Keeps of `runs` those that were not known, which are from now on.
    pub(crate) fn admit_new(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|run| known.insert(run.id, run.job).is_none()).collect()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(JobId, RunId)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(run, job)| (*job, *run)).collect()
    }

    /// These are over; answers those that were known.
    pub(crate) fn forget(&self, runs: Vec<(JobId, RunId)>) -> Vec<(JobId, RunId)> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|(_, run)| known.remove(run).is_some()).collect()
    }
}

impl InMemory {
    /// Keeps of `runs` those that were not in memory, which are from now on.
    pub(crate) fn admit(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|run| known.insert(run.id)).collect()
    }

    /// Which of these are not in memory.
    pub(crate) fn missing(&self, runs: impl IntoIterator<Item = RunId>) -> Vec<RunId> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|run| !known.contains(run)).collect()
    }

    /// These are over, or somebody else's, or wait in the store.
    pub(crate) fn forget(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            known.remove(&run);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
