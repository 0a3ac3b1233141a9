//! Runs that this node is giving, or has just given, to another one: nothing of this process starts them any more.
//!
//! A run is put here before the transaction that gives it begins. A node that reads the store before that commits may take it
//! for its own still; here it is stopped. A run that stayed after all is found by the standing query for strays.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_core::{RunId, Timestamp};

/// How long after it was due no part of the node can have it in memory any more.
const KEPT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Departing(Mutex<DepartingRun>);

#[derive(Debug, Default)]
struct DepartingRun {
    /// When each is due, and with which giving it went; without one it does not come back.
    runs: HashMap<RunId, (Timestamp, Option<Giving>)>,
    last: Giving,
}

/// One giving away of runs; a later one is the greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Giving(u64);

impl Departing {
    /// These are on their way, each with the instant at which it is due.
    pub(crate) fn begin(&self, runs: impl IntoIterator<Item = (RunId, Timestamp)>) {
        let mut known = self.lock();
        known.last.0 += 1;
        let giving = known.last;
        for (run, due_at) in runs {
            let (due, with) = known.runs.entry(run).or_insert((due_at, Some(giving)));
            (*due, *with) = (due_at, with.map(|_| giving));
        }
    }

    /// The same of runs that the dispatcher forgets as they go, while the ring may still have them: should they come back,
    /// what comes out of the ring could not be distinguished from what was taken over.
    pub(crate) fn begin_for_good(&self, runs: impl IntoIterator<Item = (RunId, Timestamp)>) {
        self.lock().runs.extend(runs.into_iter().map(|(run, due_at)| (run, (due_at, None))));
    }

    /// These stay after all.
    pub(crate) fn stay(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut known = self.lock();
        for run in runs {
            known.runs.remove(&run);
        }
    }

    /// The last giving up to now.
    pub(crate) fn last(&self) -> Giving {
        self.lock().last
    }

    /// These were taken over from whom they went to with this giving or one before it: they are this node's again.
    pub(crate) fn came_back(&self, runs: impl IntoIterator<Item = RunId>, last: Giving) {
        let mut known = self.lock();
        for run in runs {
            if known.runs.get(&run).is_some_and(|(_, giving)| giving.is_some_and(|giving| giving <= last)) {
                known.runs.remove(&run);
            }
        }
    }

    /// Forgets those that were due long ago.
    pub(crate) fn forget(&self, now: Timestamp) {
        self.lock().runs.retain(|_, (due_at, _)| *due_at + KEPT > now);
    }

    pub(crate) fn has(&self, run: RunId) -> bool {
        self.lock().runs.contains_key(&run)
    }

    fn lock(&self) -> MutexGuard<'_, DepartingRun> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_held_back_until_nobody_has_them_in_mind() {
        let departing = Departing::default();
        let at = Timestamp::from_secs(100);
        departing.begin([(RunId::new(1), at), (RunId::new(2), at)]);
        departing.stay([RunId::new(2)]);
        departing.forget(at + Duration::from_secs(4));
        assert_eq!((departing.has(RunId::new(1)), departing.has(RunId::new(2))), (true, false));
        departing.forget(at + KEPT);
        assert!(!departing.has(RunId::new(1)));
    }

    #[test]
    fn a_run_that_was_taken_over_starts_here_unless_it_was_given_again_meanwhile() {
        let departing = Departing::default();
        let at = Timestamp::from_secs(100);
        departing.begin([(RunId::new(1), at), (RunId::new(2), at)]);
        departing.begin_for_good([(RunId::new(3), at)]);
        let last = departing.last();
        departing.begin([(RunId::new(2), at)]);
        departing.came_back([1, 2, 3, 4].map(RunId::new), last);
        assert_eq!([1, 2, 3, 4].map(|run| departing.has(RunId::new(run))), [false, true, true, false]);
    }
}
