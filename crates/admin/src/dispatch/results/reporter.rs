//! Which results are accepted from an executor: results of attempts that were sent to it, or to a predecessor whose journal it has.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::is_provisional;
use rondel_core::reason::WaitFor;
use rondel_core::run::Attempt;
use rondel_core::{AppId, ExecutorId, Reason, Run, RunStatus, Timestamp};
use rondel_store::LeaseToken;

use crate::dispatch::event::SessionHandle;

/// If a run was settled before its row named an executor, its result is deferred for this long after the handler's end: the home may still
/// write the name.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// Maximum number of processes with the same predecessor that an executor answers for.
pub(crate) const SIBLING_COUNT_MAX: u32 = 16;

/// An executor that reports results.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    pub(crate) session: SessionHandle,
    pub(crate) app: AppId,
    pub(crate) name: String,
    /// The processes whose results it may report: its predecessors, the newest first, and then their other successors (siblings).
    pub(crate) lineage: Arc<[ExecutorId]>,
}

/// The known facts about the run of a result, if this node does not have the run in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportedRun<'a> {
    pub(crate) run: &'a Run,
    /// The row of the reported attempt, if a later attempt has begun.
    pub(crate) ended_attempt: Option<&'a Attempt>,
    /// The executor to which this node sent the reported attempt; `None` if this node did not send the attempt, or does not remember it.
    pub(crate) sent_to: Option<ExecutorId>,
}

/// The decision about a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultDecision {
    Taken,
    /// The attempt was not sent to this executor.
    Refused,
    /// Only the home knows whether the attempt was sent to this executor, and writes that to the row within seconds. The result is not
    /// answered, so that it comes again.
    Deferred,
}

impl Reporter {
    pub(crate) fn as_executor(&self) -> (ExecutorId, String) {
        (self.session.executor, self.name.clone())
    }

    /// Whether the reporter may report an attempt that was sent to `executor`. A name proves nothing: two processes may share it.
    pub(crate) fn may_report_for(&self, executor: ExecutorId) -> bool {
        self.session.executor == executor || self.lineage.contains(&executor)
    }

    /// Judges a result by the run's row.
    ///
    /// A row names the executor about a second after the start, or before the start of an at-most-once run. Until then only the home's
    /// memory has the executor. If the home dies, the roll call finds the executor.
    pub(crate) fn judge_result(
        &self,
        (attempt, finished_at): (i32, Timestamp),
        reported_run: &ReportedRun<'_>,
        (own_lease, lost_after): (LeaseToken, Duration),
        now: Timestamp,
    ) -> ResultDecision {
        let run = reported_run.run;
        if run.app != self.app || !(1..=run.attempt).contains(&attempt) || run.is_root() {
            return ResultDecision::Refused;
        }
        let taken_if = |is_taken| if is_taken { ResultDecision::Taken } else { ResultDecision::Refused };
        let was_sent = reported_run.sent_to.is_some_and(|id| self.may_report_for(id));
        // An attempt that ended without an executor's name was lost with its home. Only an executor knows how it continued.
        let is_unclaimed = |status, reason| is_provisional(status, reason) && reason != Some(Reason::NotReceived);
        if attempt < run.attempt {
            let Some(ended_attempt) = reported_run.ended_attempt else { return ResultDecision::Refused };
            let is_unclaimed =
                || reported_run.sent_to.is_none() && is_unclaimed(ended_attempt.status, ended_attempt.reason);
            return taken_if(
                ended_attempt.executor_id.map_or_else(|| was_sent || is_unclaimed(), |id| self.may_report_for(id)),
            );
        }
        if let Some(id) = run.executor_id {
            return taken_if(self.may_report_for(id));
        }
        let is_home = own_lease == LeaseToken { node: run.node, epoch: run.node_epoch };
        if was_sent {
            return ResultDecision::Taken;
        }
        if run.status.is_terminal() {
            return match is_unclaimed(run.status, run.reason) {
                true => ResultDecision::Taken,
                // The run was settled before its row named an executor. Only the home knows to which executor it was sent.
                false if !is_home && now < finished_at + NAMED_WITHIN => ResultDecision::Deferred,
                false => ResultDecision::Refused,
            };
        }
        // A home that does not hear the executor never names it. The home is assumed not to hear it if the run has been due for long and
        // no other wait is noted.
        let waits_for = run.detail.as_ref().and_then(|detail| detail.waits_for);
        let has_noted_wait = waits_for.is_some_and(|what| what != WaitFor::Answer);
        let is_stuck = run.status == RunStatus::Pending && !has_noted_wait && run.due_at + lost_after < now;
        if !is_home && is_stuck { ResultDecision::Taken } else { ResultDecision::Deferred }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::NodeId;
    use rondel_core::reason::ReasonDetail;

    use super::*;
    use crate::dispatch::tests_support::{executor, run_due_at};

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const HOME: LeaseToken = LeaseToken { node: NodeId::new(1), epoch: 1 };
    const OTHER: LeaseToken = LeaseToken { node: NodeId::new(2), epoch: 1 };
    const LOST_AFTER: Duration = Duration::from_secs(30);

    /// Executor 7, which succeeded 6, which succeeded 5.
    fn reporter() -> Reporter {
        let (session, online, _stream) = executor(7, 1);
        Reporter {
            session,
            app: online.app,
            name: "me".to_owned(),
            lineage: [ExecutorId::new(6), ExecutorId::new(5)].into(),
        }
    }

    fn run(id: Option<i64>) -> Run {
        let executor = id.map(|_| "me".to_owned());
        Run { executor_id: id.map(ExecutorId::new), executor, ..run_due_at(NOW) }
    }

    fn claim(
        run: &Run,
        attempt: i32,
        ended_attempt: Option<&Attempt>,
        sent_to: Option<i64>,
        this: LeaseToken,
    ) -> ResultDecision {
        let reported = ReportedRun { run, ended_attempt, sent_to: sent_to.map(ExecutorId::new) };
        reporter().judge_result((attempt, NOW), &reported, (this, LOST_AFTER), NOW)
    }

    #[test]
    fn the_executor_that_the_row_names_and_its_proven_successor_report_a_run() {
        for (id, expected) in [
            (7, ResultDecision::Taken),
            (6, ResultDecision::Taken),
            (5, ResultDecision::Taken),
            (8, ResultDecision::Refused),
        ] {
            assert_eq!(claim(&run(Some(id)), 1, None, Some(7), HOME), expected, "{id}");
        }
        let foreign = Run { app: AppId::new(9), ..run(Some(7)) };
        assert_eq!(claim(&foreign, 1, None, None, HOME), ResultDecision::Refused);
    }

    #[test]
    fn no_executor_reports_an_attempt_that_never_began() {
        for attempt in [i32::MIN, -1, 0, 2] {
            assert_eq!(claim(&run(Some(7)), attempt, None, Some(7), HOME), ResultDecision::Refused, "{attempt}");
        }
        let root = Run { shard_index: rondel_core::run::ROOT_SHARD, status: RunStatus::Running, ..run(None) };
        assert_eq!(claim(&root, 1, None, None, OTHER), ResultDecision::Refused);
    }

    #[test]
    fn a_run_without_a_name_waits_for_its_home() {
        let detail = ReasonDetail { waits_for: Some(WaitFor::Run), ..ReasonDetail::default() };
        let overdue = Run { due_at: NOW - Duration::from_secs(31), ..run(None) };
        let behind = Run { detail: Some(Arc::new(detail)), ..overdue.clone() };
        let waiting = Run { status: RunStatus::Waiting, ..overdue.clone() };
        for (run, sent_to, this, expected) in [
            (run(None), Some(7), HOME, ResultDecision::Taken),
            (run(None), Some(5), HOME, ResultDecision::Taken),
            (run(None), Some(8), HOME, ResultDecision::Deferred),
            (run(None), None, HOME, ResultDecision::Deferred),
            (run(None), None, OTHER, ResultDecision::Deferred),
            (overdue.clone(), None, OTHER, ResultDecision::Taken),
            (overdue, None, HOME, ResultDecision::Deferred),
            (behind, None, OTHER, ResultDecision::Deferred),
            (waiting, None, OTHER, ResultDecision::Deferred),
        ] {
            assert_eq!(claim(&run, 1, None, sent_to, this), expected, "{run:?} {sent_to:?} {this:?}");
        }
    }

    #[test]
    fn a_verdict_without_a_name_is_corrected_where_it_is_unknown() {
        let over = |status, reason| Run { status, reason, ..run(None) };
        let skipped = over(RunStatus::Skipped, Some(Reason::Overlap));
        for (run, sent_to, this, expected) in [
            (skipped.clone(), None, HOME, ResultDecision::Refused),
            (skipped.clone(), Some(7), HOME, ResultDecision::Taken),
            (skipped, None, OTHER, ResultDecision::Deferred),
            (over(RunStatus::Unknown, Some(Reason::ExecutorLost)), None, OTHER, ResultDecision::Taken),
            (over(RunStatus::Unknown, Some(Reason::NotReceived)), None, HOME, ResultDecision::Refused),
        ] {
            assert_eq!(claim(&run, 1, None, sent_to, this), expected, "{run:?} {sent_to:?} {this:?}");
        }
        let reported = ReportedRun { run: &over(RunStatus::Skipped, None), ended_attempt: None, sent_to: None };
        let long_ago = (1, NOW - Duration::from_secs(31));
        assert_eq!(reporter().judge_result(long_ago, &reported, (OTHER, LOST_AFTER), NOW), ResultDecision::Refused);
    }

    #[test]
    fn an_earlier_attempt_is_reported_by_the_executor_that_had_it() {
        let ended_attempt = |id: Option<i64>, status, reason| Attempt {
            attempt: 1,
            status,
            reason: Some(reason),
            executor: None,
            executor_id: id.map(ExecutorId::new),
            started_at: None,
            finished_at: None,
            message: None,
            detail: None,
        };
        let second = Run { attempt: 2, ..run(Some(8)) };
        use RunStatus::Unknown;
        for (ended_attempt, sent_to, expected) in [
            (ended_attempt(Some(7), Unknown, Reason::ExecutorLost), None, ResultDecision::Taken),
            (ended_attempt(Some(8), Unknown, Reason::ExecutorLost), None, ResultDecision::Refused),
            (ended_attempt(None, Unknown, Reason::ExecutorLost), None, ResultDecision::Taken),
            (ended_attempt(None, Unknown, Reason::ExecutorLost), Some(8), ResultDecision::Refused),
            (ended_attempt(None, Unknown, Reason::NotReceived), None, ResultDecision::Refused),
            (ended_attempt(None, RunStatus::Failed, Reason::Retry), None, ResultDecision::Refused),
        ] {
            assert_eq!(
                claim(&second, 1, Some(&ended_attempt), sent_to, HOME),
                expected,
                "{ended_attempt:?} {sent_to:?}"
            );
        }
        assert_eq!(claim(&second, 1, None, Some(7), HOME), ResultDecision::Refused, "no such attempt");
    }
}
