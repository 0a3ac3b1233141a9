//! Which log lines are accepted: an executor writes only into runs that it holds or held recently, and only a bounded
//! amount into each.
//!
//! The run's row names its executor about a second after the start; until then only the run's home knows the executor.
//! Logs may arrive at a node other than the home, after the result, and after a retry on another executor.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rondel_core::run::Attempt;
use rondel_core::{AppId, ExecutorId, NodeId, Run, RunId, Timestamp};

/// How long lines are accepted after the end of an attempt: a disconnected executor sends them late.
const LATE_LINES_FOR: Duration = Duration::from_secs(3600);
/// An executor may hold a run at most this long before the run is due.
const SENT_AHEAD: Duration = Duration::from_secs(1);
/// How long the decision that an attempt may log is cached.
const ALLOWED_FOR: Duration = Duration::from_secs(30);
/// Bytes of text that one run may log through one server.
pub(super) const RUN_BYTES_MAX: usize = 100 * 1024 * 1024;
/// Maximum number of cached attempts (those of the current batch are not counted), and of cached runs.
const CACHED_COUNT_MAX: usize = 50_000;

/// An attempt and the executor that claims to hold it.
pub(super) type HeldAttempt = (RunId, i32, ExecutorId);

/// The executor to which this node last sent each run. There are two generations of at most [`CACHED_COUNT_MAX`] runs; the older one is dropped
/// when the newer one is full.
#[derive(Debug, Default)]
pub(crate) struct SentRuns(Mutex<[HashMap<RunId, (i32, ExecutorId)>; 2]>);

impl SentRuns {
    pub(crate) fn record(&self, run: RunId, attempt: i32, executor: ExecutorId) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if generations[0].len() >= CACHED_COUNT_MAX {
            generations.swap(0, 1);
            generations[0].clear();
        }
        generations[0].insert(run, (attempt, executor));
    }

    pub(crate) fn get(&self, run: RunId) -> Option<(i32, ExecutorId)> {
        let generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().find_map(|generation| generation.get(&run)).copied()
    }

    /// The attempt of a run that this node sent, and the executor that it was sent to. `None` if that proves nothing about `executor`: another
    /// node that owns the run may have sent the attempt to `executor` after the executor of this node had refused it.
    pub(super) fn sent_attempt_for(
        &self,
        run: &Run,
        executor: ExecutorId,
        own_node: NodeId,
    ) -> Option<(i32, ExecutorId)> {
        self.get(run.id).filter(|(_, sent_to)| run.node == own_node || *sent_to == executor)
    }
}

/// The state of a run when lines of its log arrive.
pub(super) struct RunFacts<'a> {
    pub(super) run: &'a Run,
    /// The earlier attempts of which lines arrived with these.
    pub(super) attempts: &'a [Attempt],
    /// The attempt that this node sent, and the executor that it was sent to; `None` if that proves nothing about the executor that sends the
    /// lines.
    pub(super) sent_attempt: Option<(i32, ExecutorId)>,
}

impl RunFacts<'_> {
    /// Whether lines of this attempt are accepted from this executor of the app.
    pub(super) fn may_log(&self, app: AppId, (_, attempt, executor): HeldAttempt, now: Timestamp) -> bool {
        let is_late = |finished_at: Option<Timestamp>| finished_at.is_some_and(|at| at + LATE_LINES_FOR < now);
        let run = self.run;
        if run.app != app || attempt > run.attempt {
            return false;
        }
        if attempt < run.attempt {
            let ended_attempt = self.attempts.iter().find(|ended| ended.attempt == attempt);
            return ended_attempt
                .is_some_and(|ended| ended.executor_id == Some(executor) && !is_late(ended.finished_at));
        }
        let sent_to = self.sent_attempt.filter(|(sent, _)| *sent == attempt).map(|(_, executor)| executor);
        match (run.executor_id, sent_to) {
            (_, Some(id)) if id == executor => !is_late(run.finished_at),
            (Some(id), _) => id == executor && !is_late(run.finished_at),
            (None, Some(_)) => false,
            // Another node may have sent the run.
            (None, None) => !run.status.is_terminal() && run.due_at <= now + SENT_AHEAD,
        }
    }
}

/// The decision about a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkDecision {
    Accepted,
    /// The run's log is full: one line in place of the chunk reports this.
    FullNotice,
    Dropped,
}

/// The attempts that may log, as found recently, and the number of bytes each run has logged through this node.
#[derive(Debug, Default)]
pub(super) struct LogRights {
    /// When each of these attempts was last found to be allowed.
    allowed_at: HashMap<HeldAttempt, Timestamp>,
    /// The number of bytes that each run has logged through this node.
    bytes_by_run: HashMap<RunId, usize>,
}

impl LogRights {
    /// The attempts among these that are not cached as allowed to log. A full cache is emptied only here, so that the attempts of this batch stay
    /// in the cache until their chunks are decided.
    pub(super) fn attempts_to_check<'a>(
        &mut self,
        attempts: impl Iterator<Item = &'a HeldAttempt>,
        now: Timestamp,
    ) -> Vec<HeldAttempt> {
        if self.allowed_at.len() >= CACHED_COUNT_MAX {
            self.allowed_at.retain(|_, at| *at + ALLOWED_FOR > now);
        }
        if self.allowed_at.len() >= CACHED_COUNT_MAX {
            self.allowed_at.clear();
        }
        let is_known =
            |held_attempt: &HeldAttempt| self.allowed_at.get(held_attempt).is_some_and(|at| *at + ALLOWED_FOR > now);
        let mut unchecked_attempts: Vec<HeldAttempt> =
            attempts.filter(|held_attempt| !is_known(held_attempt)).copied().collect();
        unchecked_attempts.sort_unstable();
        unchecked_attempts.dedup();
        unchecked_attempts
    }

    /// Decides whether lines of this attempt are accepted, and caches a positive decision.
    pub(super) fn check_and_cache(
        &mut self,
        app: AppId,
        attempt: HeldAttempt,
        facts: Option<&RunFacts<'_>>,
        now: Timestamp,
    ) -> bool {
        if facts.is_some_and(|facts| facts.may_log(app, attempt, now)) {
            self.allowed_at.insert(attempt, now);
            return true;
        }
        self.allowed_at.remove(&attempt);
        false
    }

    /// Decides about a chunk of this many bytes, and counts the bytes for its run.
    pub(super) fn decide(&mut self, held_attempt: &HeldAttempt, bytes: usize) -> ChunkDecision {
        if !self.allowed_at.contains_key(held_attempt) {
            return ChunkDecision::Dropped;
        }
        if self.bytes_by_run.len() >= CACHED_COUNT_MAX && !self.bytes_by_run.contains_key(&held_attempt.0) {
            self.bytes_by_run.clear();
        }
        let logged_bytes = self.bytes_by_run.entry(held_attempt.0).or_default();
        let bytes_before = *logged_bytes;
        *logged_bytes = bytes_before.saturating_add(bytes);
        match (bytes_before > RUN_BYTES_MAX, *logged_bytes > RUN_BYTES_MAX) {
            (_, false) => ChunkDecision::Accepted,
            (false, true) => ChunkDecision::FullNotice,
            (true, _) => ChunkDecision::Dropped,
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
    fn lines_are_accepted_from_the_present_and_recent_holders_of_the_attempt() {
        use RunStatus::{Pending, Running, Succeeded, Waiting};
        let (just_now, long_ago) = (Some(NOW - Duration::from_secs(60)), Some(NOW - Duration::from_secs(4_000)));
        let waiting = Run { due_at: NOW + Duration::from_secs(60), ..run(1, Pending, None, None) };
        for (run, sent, attempt, wanted) in [
            (run(1, Running, Some(MINE), None), None, 1, true),
            (run(1, Running, Some(OTHERS), None), None, 1, false),
            (run(1, Succeeded, Some(MINE), just_now), None, 1, true),
            (run(1, Succeeded, Some(MINE), long_ago), None, 1, false),
            (run(1, Succeeded, Some(OTHERS), just_now), None, 1, false),
            // The row names no executor: only the node that sent the run knows it.
            (run(1, Pending, None, None), Some((1, MINE)), 1, true),
            (run(1, Pending, None, None), Some((1, OTHERS)), 1, false),
            (run(1, Pending, None, None), None, 1, true),
            (waiting, None, 1, false),
            (run(1, Succeeded, None, just_now), None, 1, false),
            (run(1, Succeeded, None, just_now), Some((1, MINE)), 1, true),
            (run(1, Succeeded, None, long_ago), Some((1, MINE)), 1, false),
            // The executor handed the run back, and the run continued on another one.
            (run(1, Running, Some(OTHERS), None), Some((1, MINE)), 1, true),
            // An earlier attempt, and one that does not exist yet.
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
            let facts = RunFacts { run: &run, attempts: &[ended(1, MINE), ended(2, OTHERS)], sent_attempt: sent };
            let held = (RunId::new(1), attempt, MINE);
            assert_eq!(facts.may_log(APP, held, NOW), wanted, "{run:?} {sent:?} {attempt}");
            assert!(!facts.may_log(AppId::new(2), held, NOW));
        }
    }

    #[test]
    fn a_run_logs_only_so_much_and_the_answer_is_asked_for_again() {
        let mut rights = LogRights::default();
        let held = (RunId::new(1), 1, MINE);
        let run = run(1, RunStatus::Running, Some(MINE), None);
        let facts = RunFacts { run: &run, attempts: &[], sent_attempt: None };
        assert_eq!(rights.decide(&held, 1), ChunkDecision::Dropped);
        rights.check_and_cache(APP, held, Some(&facts), NOW);
        assert_eq!(rights.attempts_to_check([&held].into_iter(), NOW), []);
        assert_eq!(rights.attempts_to_check([&held].into_iter(), NOW + ALLOWED_FOR), [held]);
        let taken: Vec<ChunkDecision> = (0..4).map(|_| rights.decide(&held, RUN_BYTES_MAX / 2)).collect();
        assert_eq!(
            taken,
            [ChunkDecision::Accepted, ChunkDecision::Accepted, ChunkDecision::FullNotice, ChunkDecision::Dropped]
        );
        rights.check_and_cache(APP, held, None, NOW);
        assert_eq!(rights.decide(&held, 1), ChunkDecision::Dropped);
    }

    #[test]
    fn lines_are_taken_however_many_attempts_log_at_once() {
        let mut rights = LogRights::default();
        let run = run(1, RunStatus::Running, Some(MINE), None);
        let facts = RunFacts { run: &run, attempts: &[], sent_attempt: None };
        let count = i64::try_from(CACHED_COUNT_MAX).unwrap();
        for id in 1..=count {
            rights.check_and_cache(APP, (RunId::new(id), 1, MINE), Some(&facts), NOW);
        }
        let attempts = [1, count + 1].map(|id| (RunId::new(id), 1, MINE));
        for held in rights.attempts_to_check(attempts.iter(), NOW) {
            assert!(rights.check_and_cache(APP, held, Some(&facts), NOW));
        }
        assert_eq!(attempts.map(|held| rights.decide(&held, 1)), [ChunkDecision::Accepted; 2]);
        assert!(rights.allowed_at.len() < CACHED_COUNT_MAX);
    }

    /// Executor 8 refused the run, which then moved to another node: that node sent it to executor 7.
    #[test]
    fn runs_that_this_node_sent_do_not_count_against_the_executor_of_the_next_owner() {
        let sent = SentRuns::default();
        let own = run(1, RunStatus::Pending, None, None);
        sent.record(own.id, 1, OTHERS);
        let (this, other) = (own.node, NodeId::new(9));
        let moved = Run { node: other, ..own.clone() };
        for (run, executor, is_known) in
            [(&own, MINE, true), (&own, OTHERS, true), (&moved, MINE, false), (&moved, OTHERS, true)]
        {
            let known = sent.sent_attempt_for(run, executor, this);
            assert_eq!(known, is_known.then_some((1, OTHERS)));
            let facts = RunFacts { run, attempts: &[], sent_attempt: known };
            assert_eq!(facts.may_log(APP, (run.id, 1, executor), NOW), executor == OTHERS || !is_known);
        }
    }

    #[test]
    fn the_newest_sent_runs_are_remembered_in_bounded_number() {
        let sent = SentRuns::default();
        let count = i64::try_from(CACHED_COUNT_MAX).unwrap();
        for id in 1..=count + 1 {
            sent.record(RunId::new(id), 1, MINE);
        }
        sent.record(RunId::new(1), 2, OTHERS);
        assert_eq!(sent.get(RunId::new(1)), Some((2, OTHERS)));
        assert_eq!(sent.get(RunId::new(2)), Some((1, MINE)));
        for id in count + 2..=2 * count + 2 {
            sent.record(RunId::new(id), 1, MINE);
        }
        assert_eq!(sent.get(RunId::new(2)), None);
    }
}
