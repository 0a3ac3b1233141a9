//! Whose log lines are taken: an executor writes into the runs that it has, or had until not long ago, and into each only
//! so much.
//!
//! The run's row names its executor about a second after the start; until then only its home knows. Logs may arrive at
//! another node than the home, after the result, and after a retry on another executor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rondel_core::run::Attempt;
use rondel_core::{AppId, ExecutorId, Run, RunId, Timestamp};

/// For how long after the end of an attempt its lines are taken: an executor that was cut off brings them late.
const LATE_FOR: Duration = Duration::from_secs(3600);
/// How long before its instant a run may be in an executor's hands.
const SENT_AHEAD: Duration = Duration::from_secs(1);
/// For how long an answer is good.
const GOOD_FOR: Duration = Duration::from_secs(30);
/// How much text one run may log by one server.
pub(super) const RUN_BYTES_MAX: usize = 100 * 1024 * 1024;
/// Attempts and runs that are remembered.
const COUNT_MAX: usize = 50_000;

/// An attempt in the hands of an executor.
pub(super) type Hand = (RunId, i32, ExecutorId);

/// Which executor this node sent a run to last. Bounded: the older half is forgotten.
#[derive(Debug, Default)]
pub(crate) struct SentRuns(Mutex<[HashMap<RunId, (i32, ExecutorId)>; 2]>);

impl SentRuns {
    pub(crate) fn note(&self, run: RunId, attempt: i32, executor: ExecutorId) {
        let mut halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if halves[0].len() >= COUNT_MAX {
            halves.swap(0, 1);
            halves[0].clear();
        }
        halves[0].insert(run, (attempt, executor));
    }

    pub(crate) fn get(&self, run: RunId) -> Option<(i32, ExecutorId)> {
        let halves = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        halves.iter().find_map(|half| half.get(&run)).copied()
    }
}

/// What is known of a run when lines of it come.
pub(super) struct Known<'a> {
    pub(super) run: &'a Run,
    /// The attempts before; only looked at for lines of one of them.
    pub(super) attempts: &'a [Attempt],
    /// Who this node sent it to.
    pub(super) sent: Option<(i32, ExecutorId)>,
}

impl Known<'_> {
    /// Whether lines of this attempt by an executor of the app are taken.
    pub(super) fn may_log(&self, app: AppId, (_, attempt, executor): Hand, now: Timestamp) -> bool {
        let is_late = |finished_at: Option<Timestamp>| finished_at.is_some_and(|at| at + LATE_FOR < now);
        let run = self.run;
        if run.app != app || attempt > run.attempt {
            return false;
        }
        if attempt < run.attempt {
            let its = self.attempts.iter().find(|one| one.attempt == attempt);
            return its.is_some_and(|one| one.executor_id == Some(executor) && !is_late(one.finished_at));
        }
        let sent_to = self.sent.filter(|(sent, _)| *sent == attempt).map(|(_, executor)| executor);
        match (run.executor_id, sent_to) {
            (_, Some(id)) if id == executor => !is_late(run.finished_at),
            (Some(id), _) => id == executor && !is_late(run.finished_at),
            (None, Some(_)) => false,
            // Another node may have sent it.
            (None, None) => !run.status.is_terminal() && run.due_at <= now + SENT_AHEAD,
        }
    }
}

/// What becomes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Whole,
    /// The run's log is full: this is said once, in the place of these lines.
    LastWord,
    Nothing,
}

/// Recent answers, and how many bytes each run has logged on this node.
#[derive(Debug, Default)]
pub(super) struct LogRights {
    good: HashMap<Hand, Timestamp>,
    bytes: HashMap<RunId, usize>,
}

impl LogRights {
    /// Which of these have to be asked about.
    pub(super) fn unknown<'a>(&self, hands: impl Iterator<Item = &'a Hand>, now: Timestamp) -> Vec<Hand> {
        let is_known = |hand: &Hand| self.good.get(hand).is_some_and(|at| *at + GOOD_FOR > now);
        let mut unknown: Vec<Hand> = hands.filter(|hand| !is_known(hand)).copied().collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// Notes the answer about one of them: whether its lines are taken.
    pub(super) fn learn(&mut self, app: AppId, hand: Hand, known: Option<&Known<'_>>, now: Timestamp) -> bool {
        if self.good.len() >= COUNT_MAX {
            self.good.retain(|_, at| *at + GOOD_FOR > now);
        }
        if known.is_some_and(|known| known.may_log(app, hand, now)) && self.good.len() < COUNT_MAX {
            self.good.insert(hand, now);
            return true;
        }
        self.good.remove(&hand);
        false
    }

    /// Whether a chunk of so many bytes is taken.
    pub(super) fn take(&mut self, hand: &Hand, bytes: usize) -> Taken {
        if !self.good.contains_key(hand) {
            return Taken::Nothing;
        }
        if self.bytes.len() >= COUNT_MAX && !self.bytes.contains_key(&hand.0) {
            self.bytes.clear();
        }
        let logged = self.bytes.entry(hand.0).or_default();
        let before = *logged;
        *logged = before.saturating_add(bytes);
        match (before > RUN_BYTES_MAX, *logged > RUN_BYTES_MAX) {
            (_, false) => Taken::Whole,
            (false, true) => Taken::LastWord,
            (true, _) => Taken::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::RunStatus;

    use super::*;
    use crate::dispatch::tests_support::run_due_at;

    const APP: AppId = AppId::new(1);
    const MINE: ExecutorId = ExecutorId::new(7);
    const OTHERS: ExecutorId = ExecutorId::new(8);
    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn run(attempt: i32, status: RunStatus, executor: Option<ExecutorId>, finished_at: Option<Timestamp>) -> Run {
        Run { app: APP, attempt, status, executor_id: executor, finished_at, ..run_due_at(NOW) }
    }

    #[test]
    fn lines_are_taken_of_whoever_has_the_attempt_or_had_it_until_not_long_ago() {
        use RunStatus::{Pending, Running, Succeeded, Waiting};
        let (just_now, long_ago) = (Some(NOW - Duration::from_secs(60)), Some(NOW - Duration::from_secs(4_000)));
        let waiting = Run { due_at: NOW + Duration::from_secs(60), ..run(1, Pending, None, None) };
        for (run, sent, attempt, wanted) in [
            (run(1, Running, Some(MINE), None), None, 1, true),
            (run(1, Running, Some(OTHERS), None), None, 1, false),
            (run(1, Succeeded, Some(MINE), just_now), None, 1, true),
            (run(1, Succeeded, Some(MINE), long_ago), None, 1, false),
            (run(1, Succeeded, Some(OTHERS), just_now), None, 1, false),
            // The row names no executor: this node knows it, or another node does.
            (run(1, Pending, None, None), Some((1, MINE)), 1, true),
            (run(1, Pending, None, None), Some((1, OTHERS)), 1, false),
            (run(1, Pending, None, None), None, 1, true),
            (waiting, None, 1, false),
            (run(1, Succeeded, None, just_now), None, 1, false),
            (run(1, Succeeded, None, just_now), Some((1, MINE)), 1, true),
            (run(1, Succeeded, None, long_ago), Some((1, MINE)), 1, false),
            // It was handed back, and went on.
            (run(1, Running, Some(OTHERS), None), Some((1, MINE)), 1, true),
            // An earlier attempt, and one that is not there yet.
            (run(2, Waiting, None, None), None, 1, true),
            (run(3, Running, Some(OTHERS), None), None, 2, false),
            (run(1, Running, Some(MINE), None), None, 2, false),
        ] {
            let ended = |attempt, executor| Attempt {
                attempt,
                status: RunStatus::Unknown,
                reason: None,
                executor: None,
                executor_id: Some(executor),
                started_at: None,
                finished_at: just_now,
                message: None,
                detail: None,
            };
            let known = Known { run: &run, attempts: &[ended(1, MINE), ended(2, OTHERS)], sent };
            let hand = (RunId::new(1), attempt, MINE);
            assert_eq!(known.may_log(APP, hand, NOW), wanted, "{run:?} {sent:?} {attempt}");
            assert!(!known.may_log(AppId::new(2), hand, NOW));
        }
    }

    #[test]
    fn a_run_logs_only_so_much_and_the_answer_is_asked_for_again() {
        let mut rights = LogRights::default();
        let hand = (RunId::new(1), 1, MINE);
        let run = run(1, RunStatus::Running, Some(MINE), None);
        let known = Known { run: &run, attempts: &[], sent: None };
        assert_eq!(rights.take(&hand, 1), Taken::Nothing);
        rights.learn(APP, hand, Some(&known), NOW);
        assert_eq!(rights.unknown([&hand].into_iter(), NOW), []);
        assert_eq!(rights.unknown([&hand].into_iter(), NOW + GOOD_FOR), [hand]);
        let taken: Vec<Taken> = (0..4).map(|_| rights.take(&hand, RUN_BYTES_MAX / 2)).collect();
        assert_eq!(taken, [Taken::Whole, Taken::Whole, Taken::LastWord, Taken::Nothing]);
        rights.learn(APP, hand, None, NOW);
        assert_eq!(rights.take(&hand, 1), Taken::Nothing);
    }

    #[test]
    fn what_was_sent_last_is_remembered_and_bounded() {
        let sent = SentRuns::default();
        let count = i64::try_from(COUNT_MAX).unwrap();
        for id in 1..=count + 1 {
            sent.note(RunId::new(id), 1, MINE);
        }
        sent.note(RunId::new(1), 2, OTHERS);
        assert_eq!(sent.get(RunId::new(1)), Some((2, OTHERS)));
        assert_eq!(sent.get(RunId::new(2)), Some((1, MINE)));
        for id in count + 2..=2 * count + 2 {
            sent.note(RunId::new(id), 1, MINE);
        }
        assert_eq!(sent.get(RunId::new(2)), None);
    }
}
