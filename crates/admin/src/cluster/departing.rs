//! Runs that this node is handing over, or has just handed over, to another node: this process must not start them any more.
//!
//! A run is put here before the transaction that hands it over begins. Until this transaction commits, the store still shows the run as this
//! node's, and the entry here keeps the run from starting. If the run stays with this node after all, the periodic query for strays finds it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rondel_core::{RunId, Timestamp};

/// An entry is kept for this long after the run was due: after that no part of the node can have the run in memory.
const KEPT_FOR: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct DepartureBoard(Mutex<DepartingRuns>);

#[derive(Debug, Default)]
struct DepartingRuns {
    /// For each run, the instant at which it is due, and its handover; the handover is `None` if the run never [comes
    /// back](DepartureBoard::note_returned).
    runs: HashMap<RunId, (Timestamp, Option<HandoverNumber>)>,
    last_handover: HandoverNumber,
}

/// The number of a handover of runs; a later handover has a greater number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HandoverNumber(u64);

impl DepartureBoard {
    /// Adds runs that are being handed over, each with the instant at which it is due. A handover that is final stays final.
    pub(crate) fn begin_handover(&self, runs: impl IntoIterator<Item = (RunId, Timestamp)>) {
        let mut departing = self.lock();
        departing.last_handover.0 += 1;
        let handover = departing.last_handover;
        for (run, due_at) in runs {
            let (known_due_at, known_handover) = departing.runs.entry(run).or_insert((due_at, Some(handover)));
            (*known_due_at, *known_handover) = (due_at, known_handover.map(|_| handover));
        }
    }

    /// Like [`begin_handover`](Self::begin_handover), for runs that the dispatcher forgets while the ring may still have them. They never [come
    /// back](Self::note_returned), because a run from the ring could not be distinguished from a run that this node has taken over again.
    pub(crate) fn begin_final_handover(&self, runs: impl IntoIterator<Item = (RunId, Timestamp)>) {
        self.lock().runs.extend(runs.into_iter().map(|(run, due_at)| (run, (due_at, None))));
    }

    /// Removes runs that stay after all.
    pub(crate) fn cancel_handover(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut departing = self.lock();
        for run in runs {
            departing.runs.remove(&run);
        }
    }

    /// The number of the last handover so far.
    pub(crate) fn last_handover(&self) -> HandoverNumber {
        self.lock().last_handover
    }

    /// Removes runs that this node has taken over from other nodes, except those that a handover later than `last_handover` includes.
    pub(crate) fn note_returned(&self, runs: impl IntoIterator<Item = RunId>, last_handover: HandoverNumber) {
        let mut departing = self.lock();
        for run in runs {
            if departing
                .runs
                .get(&run)
                .is_some_and(|(_, handover)| handover.is_some_and(|handover| handover <= last_handover))
            {
                departing.runs.remove(&run);
            }
        }
    }

    /// Forgets runs that were due at least [`KEPT_FOR`] ago.
    pub(crate) fn forget_old(&self, now: Timestamp) {
        self.lock().runs.retain(|_, (due_at, _)| *due_at + KEPT_FOR > now);
    }

    pub(crate) fn has(&self, run: RunId) -> bool {
        self.lock().runs.contains_key(&run)
    }

    fn lock(&self) -> MutexGuard<'_, DepartingRuns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_held_back_until_no_part_of_the_node_has_them() {
        let departing = DepartureBoard::default();
        let at = Timestamp::from_secs(100);
        departing.begin_handover([(RunId::new(1), at), (RunId::new(2), at)]);
        departing.cancel_handover([RunId::new(2)]);
        departing.forget_old(at + Duration::from_secs(4));
        assert_eq!((departing.has(RunId::new(1)), departing.has(RunId::new(2))), (true, false));
        departing.forget_old(at + KEPT_FOR);
        assert!(!departing.has(RunId::new(1)));
    }

    #[test]
    fn a_run_that_was_taken_over_starts_here_unless_it_was_given_again_meanwhile() {
        let departing = DepartureBoard::default();
        let at = Timestamp::from_secs(100);
        departing.begin_handover([(RunId::new(1), at), (RunId::new(2), at)]);
        departing.begin_final_handover([(RunId::new(3), at)]);
        let last = departing.last_handover();
        departing.begin_handover([(RunId::new(2), at)]);
        departing.note_returned([1, 2, 3, 4].map(RunId::new), last);
        assert_eq!([1, 2, 3, 4].map(|run| departing.has(RunId::new(run))), [false, true, true, false]);
    }
}
