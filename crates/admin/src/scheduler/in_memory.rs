//! Which open runs this process has in memory, so that the standing query for strays never takes one up twice.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use rondel_core::{Run, RunId};

#[derive(Debug, Default)]
pub(crate) struct InMemory(Mutex<HashSet<RunId>>);

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
