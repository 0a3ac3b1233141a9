//! Runs that this node is giving, or has just given, to another one: nothing of this process starts them any more.
//!
//! A run is put here before the transaction that gives it begins. Whoever reads the store before that commits may take it
//! for its own still; here it is stopped. A run that stayed after all is found by the standing query for strays.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rondel_core::{RunId, Timestamp};

/// How long after it was due nobody can have it in mind any more.
const KEPT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Departing(Mutex<HashMap<RunId, Timestamp>>);

impl Departing {
    /// These are on their way, each with the instant at which it is due.
    pub(crate) fn begin(&self, runs: impl IntoIterator<Item = (RunId, Timestamp)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(runs);
    }

    /// These stay after all.
    pub(crate) fn stay(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            known.remove(&run);
        }
    }

    /// Forgets those that were due long ago.
    pub(crate) fn forget(&self, now: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|_, due_at| *due_at + KEPT > now);
    }

    pub(crate) fn has(&self, run: RunId) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !known.is_empty() && known.contains_key(&run)
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
}
