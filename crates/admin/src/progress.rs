//! The progress of running runs, as their handlers last reported it: in memory, on every node to which the executor is connected.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rondel_core::{ExecutorId, Run, RunId};

/// Maximum number of runs in the young generation. The whole board holds up to twice as many; the oldest are dropped first.
const YOUNG_COUNT_MAX: usize = 10_000;

/// The progress of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of items done.
    pub done: u64,
    /// The total number of items; 0 if it is unknown.
    pub total: u64,
}

/// The largest count that is kept, which is the largest integer that every JSON reader represents exactly.
const COUNT_MAX: u64 = (1 << 53) - 1;

impl Progress {
    /// An executor's report within bounds: `done` is at most the total, if the total is known.
    pub(crate) fn bounded(done: u64, total: u64) -> Self {
        let total = total.min(COUNT_MAX);
        Self { done: done.min(if total == 0 { COUNT_MAX } else { total }), total }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ProgressBoard(Mutex<Generations>);

/// An executor, and the run on which it reported. Reports by executors that do not have the run are kept separately, and never shown.
type Key = (ExecutorId, RunId);

#[derive(Debug, Default)]
struct Generations {
    /// The newest report of each run, with its attempt.
    young: HashMap<Key, (i32, Progress)>,
    old: HashMap<Key, (i32, Progress)>,
}

impl ProgressBoard {
    /// Stores the newest report of an executor on an attempt.
    pub(crate) fn report(&self, executor: ExecutorId, run: RunId, attempt: i32, progress: Progress) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.len() >= YOUNG_COUNT_MAX {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.old.remove(&(executor, run));
        generations.young.insert((executor, run), (attempt, progress));
    }

    /// Removes the report, once the executor has reported the end of the run.
    pub(crate) fn forget(&self, executor: ExecutorId, run: RunId) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations.young.remove(&(executor, run)).is_none() && !generations.old.is_empty() {
            generations.old.remove(&(executor, run));
        }
    }

    /// The progress of the run's current attempt, as reported by the executor that has it; `None` if the run has ended or nothing was
    /// reported.
    pub(crate) fn of(&self, run: &Run) -> Option<Progress> {
        if run.status.is_terminal() {
            return None;
        }
        let key = (run.executor_id?, run.id);
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = generations.young.get(&key).or_else(|| generations.old.get(&key));
        entry.filter(|(attempt, _)| *attempt == run.attempt).map(|(_, progress)| *progress)
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::RunStatus;

    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    const HOLDER: ExecutorId = ExecutorId::new(7);

    fn run(id: i64) -> Run {
        Run { id: RunId::new(id), executor_id: Some(HOLDER), ..run_due_at(rondel_core::Timestamp::EPOCH) }
    }

    #[test]
    fn reported_progress_does_not_exceed_its_total() {
        for ((done, total), expected) in [
            ((3, 4), (3, 4)),
            ((4, 4), (4, 4)),
            ((5, 4), (4, 4)),
            ((5, 0), (5, 0)),
            ((COUNT_MAX, 0), (COUNT_MAX, 0)),
            ((u64::MAX, 0), (COUNT_MAX, 0)),
            ((u64::MAX, u64::MAX), (COUNT_MAX, COUNT_MAX)),
        ] {
            assert_eq!(
                Progress::bounded(done, total),
                Progress { done: expected.0, total: expected.1 },
                "{done} of {total}"
            );
        }
    }

    #[test]
    fn only_the_present_attempt_of_an_open_run_is_shown_and_the_oldest_go() {
        let board = ProgressBoard::default();
        let progress = Progress { done: 1, total: 4 };
        let mut first = run(1);
        let stranger = ExecutorId::new(8);
        board.report(HOLDER, first.id, 1, progress);
        board.report(stranger, first.id, 1, Progress { done: 4, total: 4 });
        board.forget(stranger, first.id);
        assert_eq!(board.of(&first), Some(progress));
        first.attempt = 2;
        assert_eq!(board.of(&first), None);
        board.report(HOLDER, first.id, 2, progress);
        first.status = RunStatus::Succeeded;
        assert_eq!(board.of(&first), None);
        let many = i64::try_from(2 * YOUNG_COUNT_MAX).unwrap();
        (2..many + 2).for_each(|id| board.report(HOLDER, RunId::new(id), 1, progress));
        assert_eq!(board.of(&Run { attempt: 2, ..run(1) }), None);
        assert_eq!(board.of(&run(many + 1)), Some(progress));
        board.forget(HOLDER, RunId::new(many + 1));
        assert_eq!(board.of(&run(many + 1)), None);
    }
}
