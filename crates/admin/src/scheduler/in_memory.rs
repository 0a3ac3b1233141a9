//! Which open runs this process has in memory, so that the standing query for strays never takes one up twice.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use rondel_core::{JobId, Run, RunId};
use rondel_store::LeaseToken;

/// Each with its attempt and the epoch that it stands under: the late word of an earlier attempt is none about the one that is
/// here, and what is left in memory of a lease that is over is none of what was taken over from it.
#[derive(Debug, Default)]
pub(crate) struct InMemory(Mutex<HashMap<RunId, OpenRun>>);

#[derive(Clone, Copy, Debug)]
struct OpenRun {
    attempt: i32,
    epoch: i64,
    /// As of when the misfire policy judges it, by the boot-time clock in microseconds.
    judged_as_of: i64,
}

/// Open runs of this node that await their children. No executor has them; their place in the gate of their job is
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

    /// Which of these are none of them.
    pub(crate) fn missing(&self, mut runs: Vec<RunId>) -> Vec<RunId> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|run| !known.contains_key(run));
        runs
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
    /// Keeps of `runs` those that were not in memory under their lease, which are from now on.
    pub(crate) fn admit(&self, runs: Vec<Run>) -> Vec<Run> {
        self.admit_as_of(runs, 0)
    }

    /// The same of runs that the misfire policy judges as of this instant of the boot-time clock.
    pub(crate) fn admit_as_of(&self, runs: Vec<Run>, judged_as_of: i64) -> Vec<Run> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_new = |run: &Run| {
            let is_new = known.get(&run.id).is_none_or(|known| known.epoch < run.node_epoch);
            if is_new {
                known.insert(run.id, OpenRun { attempt: run.attempt, epoch: run.node_epoch, judged_as_of });
            }
            is_new
        };
        runs.into_iter().filter(|run| is_new(run)).collect()
    }

    /// As of when the misfire policy judges the run.
    pub(crate) fn judged_as_of(&self, run: RunId) -> Option<i64> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&run).map(|known| known.judged_as_of)
    }

    /// Whether this attempt of the run is here.
    pub(crate) fn has(&self, run: &Run) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&run.id).is_some_and(|known| known.attempt == run.attempt)
    }

    /// Which of these are not in memory.
    pub(crate) fn missing(&self, runs: impl IntoIterator<Item = RunId>) -> Vec<RunId> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|run| !known.contains_key(run)).collect()
    }

    /// These have ended, or belong to another node, or wait in the store.
    pub(crate) fn forget(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            known.remove(&run);
        }
    }

    /// These of this lease are dropped; what was taken over from it since stays.
    pub(crate) fn forget_of(&self, runs: impl IntoIterator<Item = (RunId, LeaseToken)>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (run, lease) in runs {
            if known.get(&run).is_some_and(|known| known.epoch <= lease.epoch) {
                known.remove(&run);
            }
        }
    }

    /// Whether the run is here, under a later lease than this one.
    pub(crate) fn is_newer(&self, run: RunId, lease: LeaseToken) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&run).is_some_and(|known| known.epoch > lease.epoch)
    }

    /// Whether a later attempt of the run than this one is here.
    pub(crate) fn has_later(&self, run: RunId, attempt: i32) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&run).is_some_and(|known| known.attempt > attempt)
    }

    /// What is here turned out to be at a later attempt by now.
    pub(crate) fn renew<'a>(&self, runs: impl IntoIterator<Item = &'a Run>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            known.entry(run.id).and_modify(|known| known.attempt = run.attempt);
        }
    }

    /// Whether this attempt of the run, or an earlier one, is here.
    pub(crate) fn has_through(&self, run: RunId, attempt: i32) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&run).is_some_and(|known| known.attempt <= attempt)
    }

    /// This attempt is over, and a later one exists. Whether it, or one before it, was here: a later one stays.
    pub(crate) fn forget_through(&self, run: RunId, attempt: i32) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_over = known.get(&run).is_some_and(|known| known.attempt <= attempt);
        is_over && known.remove(&run).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;

    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    #[test]
    fn the_late_word_of_an_earlier_attempt_is_none_about_a_later_one() {
        let known = InMemory::default();
        let first = run_due_at(Timestamp::from_secs(1));
        let second = Run { attempt: 2, ..first.clone() };
        assert_eq!(known.admit(vec![first.clone()]).len(), 1);
        assert!(known.has(&first) && !known.has(&second));
        assert_eq!(
            known.admit(vec![second.clone()]).len(),
            0,
            "it is here until its first attempt is known to be over"
        );
        assert!(known.has_through(first.id, 1) && !known.has_through(first.id, 0));
        assert!(known.forget_through(first.id, 1), "the store has a second");
        assert!(!known.forget_through(first.id, 1), "nothing is here any more");
        assert!(!known.has_later(first.id, 1), "nor a later one");
        assert_eq!(known.admit(vec![second.clone()]).len(), 1);
        assert!(!known.forget_through(first.id, 1) && known.missing([first.id]).is_empty());
        assert!(known.has_later(first.id, 1) && !known.has_later(first.id, 2));

        known.forget([first.id]);
        assert_eq!(known.admit(vec![first.clone()]).len(), 1);
        known.renew([&second]);
        assert!(!known.forget_through(first.id, 1));
        known.renew([&run_due_at(Timestamp::from_secs(2))]);
        assert_eq!(known.len(), 1);
    }

    #[test]
    fn what_is_left_of_a_lease_that_is_over_hides_nothing_that_was_taken_over_from_it() {
        let known = InMemory::default();
        let before = run_due_at(Timestamp::from_secs(1));
        let after = Run { node_epoch: 2, ..before.clone() };
        let lease = |epoch| LeaseToken { node: before.node, epoch };
        assert_eq!(known.admit(vec![before.clone()]).len(), 1);
        assert_eq!(known.admit(vec![after.clone()]).len(), 1);
        assert_eq!(known.admit(vec![before.clone(), after.clone()]).len(), 0);
        assert!(known.is_newer(before.id, lease(1)) && !known.is_newer(before.id, lease(2)));
        known.forget_of([(before.id, lease(1))]);
        assert_eq!(known.len(), 1, "the one of before is dropped where it was");
        known.forget_of([(before.id, lease(2))]);
        assert_eq!(known.len(), 0);
    }
}
