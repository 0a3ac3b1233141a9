//! The end of attempts, and what follows from it.

use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::outcome::NextStep;
use rondel_core::reason::ReasonDetail;
use rondel_core::run::Attempt;
use rondel_core::{ExecutorId, JobId, Reason, Run, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::ledger::{AttemptEnd, EndOutcome, Ends, Finisher};
use crate::mem::{MemStore, State};
use crate::rollups::decides_failing;
use crate::settle::{self, CleanEnd, Judgement, RunRow};
use crate::{Finish, LeaseToken, Result};

#[async_trait]
impl Finish for MemStore {
    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
        let now = self.now();
        let mut state = self.state();
        let outcomes: Vec<EndOutcome> = batch.iter().map(|attempt_end| state.finish(attempt_end, now)).collect();
        let duplicate_ends = batch.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == EndOutcome::Duplicate);
        let stored_runs = duplicate_ends.filter_map(|(attempt_end, _)| state.runs.get(&attempt_end.run));
        let awaiting_runs = stored_runs.filter(|run| run.awaits_children()).map(|run| (run.job, run.id)).collect();
        let mut ends = Ends { outcomes, awaiting_runs, ..Ends::default() };
        if !mutant::on(Mutant::NoFollowers) {
            state.follow_runs(finisher, &mut ends, now);
        }
        // Includes the jobs whose runs awaited their children and have ended now. A run that still awaits its children has not ended, and
        // sets no next fire.
        let delaying =
            batch.iter().filter(|attempt_end| attempt_end.policy.has_fixed_delay).map(|attempt_end| attempt_end.job);
        let jobs: Vec<JobId> = delaying.chain(ends.ended_parents.iter().map(|(job, _)| *job)).collect();
        ends.due_at = jobs.into_iter().filter_map(|job| state.set_delayed_fire(job, now)).min();
        Ok(ends)
    }
}

impl State {
    pub(in crate::mem) fn finish(&mut self, attempt_end: &AttemptEnd, now: Timestamp) -> EndOutcome {
        let clean_end = CleanEnd::new(attempt_end);
        let Some(run) = self.runs.get(&attempt_end.run) else { return EndOutcome::NoSuchRun };
        let row = RunRow {
            due_at: run.due_at,
            attempt: run.attempt,
            status: run.status,
            reason: run.reason,
            lost_count: run.lost_count,
            unreceived_count: self.unreceived_count(run),
            is_marked: run.marked_at.is_some(),
            may_have_begun: self.earlier_attempts(run).any(Attempt::may_have_begun),
            cancel_request_reason: run.cancel_request_reason(),
            awaits_children: !run.status.is_terminal() && run.open_children.is_some(),
            is_unexpanded: run.is_root() && run.shard_total.is_none(),
            owner: LeaseToken { node: run.node, epoch: run.node_epoch },
        };
        match settle::judge(row, attempt_end) {
            Judgement::NoSuchRun => EndOutcome::NoSuchRun,
            Judgement::Duplicate => EndOutcome::Duplicate,
            Judgement::NotOwner => EndOutcome::NotOwner,
            Judgement::UnderWay => EndOutcome::UnderWay,
            Judgement::Superseded => {
                // The servers gave this attempt up, so only an executor knows how it ended.
                if attempt_end.owner.is_none() {
                    self.keep_superseded(&clean_end);
                }
                EndOutcome::Superseded
            }
            Judgement::Late(status, reason) => {
                let (trace, was_skipped) = (run.trace.clone(), run.status == RunStatus::Skipped);
                self.end(&clean_end, status, reason);
                self.runs.entry(attempt_end.run).and_modify(|run| run.trace = trace);
                if decides_failing(status) != Some(true) {
                    self.dead_letters.remove(&attempt_end.run);
                }
                if was_skipped {
                    // The edit that skipped this run did not release the runs that follow from it.
                    self.add_message(attempt_end.run, now);
                    self.note_ended_run(attempt_end.run, false);
                }
                self.count_shards(attempt_end, 0, now);
                EndOutcome::Late
            }
            Judgement::Ends(next_step @ NextStep::Verdict { status, reason }) => {
                self.end(&clean_end, status, reason);
                self.add_message(attempt_end.run, now);
                self.note_ended_run(attempt_end.run, attempt_end.policy.awaits_children);
                self.count_shards(attempt_end, 1, now);
                EndOutcome::Stored(next_step, None)
            }
            Judgement::Ends(next_step @ NextStep::Retry { due_at, reason, lost_count }) => {
                let run = self.write_retry(&clean_end, due_at, reason, lost_count);
                EndOutcome::Stored(next_step, run.map(Box::new))
            }
        }
    }

    fn earlier_attempts(&self, run: &Run) -> impl Iterator<Item = &Attempt> {
        self.attempts.range((run.id, 1)..(run.id, run.attempt.max(1))).map(|(_, attempt)| attempt)
    }

    fn unreceived_count(&self, run: &Run) -> i32 {
        let unreceived_attempts = self.earlier_attempts(run).filter(|attempt| !attempt.may_have_begun());
        i32::try_from(unreceived_attempts.count()).unwrap_or(i32::MAX)
    }

    pub(in crate::mem) fn end(&mut self, clean_end: &CleanEnd<'_>, status: RunStatus, reason: Option<Reason>) {
        self.cancels.remove(&clean_end.end.run);
        let Some(run) = self.runs.get_mut(&clean_end.end.run) else { return };
        (run.status, run.reason) = (status, reason);
        if let Some(name) = &clean_end.executor {
            (run.executor, run.executor_id) = (Some(name.clone().into_owned()), clean_end.executor_id);
        }
        run.started_at = clean_end.started_at.or(run.started_at);
        run.finished_at = Some(clean_end.end.finished_at);
        run.message = clean_end.message.clone().map(std::borrow::Cow::into_owned);
        // A run that is cancelled while it awaits its children keeps the result of its handler.
        run.result = clean_end.result.clone().map(std::borrow::Cow::into_owned).or(run.result.take());
        run.trace = clean_end.trace.clone().map(std::borrow::Cow::into_owned);
        run.detail = detail_of(clean_end).or(run.detail.take());
    }

    fn write_retry(
        &mut self,
        clean_end: &CleanEnd<'_>,
        due_at: Timestamp,
        reason: Reason,
        lost_count: i32,
    ) -> Option<Run> {
        let run = self.runs.get_mut(&clean_end.end.run)?;
        let executor = clean_end.executor.clone().map(std::borrow::Cow::into_owned);
        let executor_id = if executor.is_some() { clean_end.executor_id } else { run.executor_id };
        let ended_attempt = Attempt {
            attempt: run.attempt,
            status: settle::attempt_status(clean_end.end.outcome),
            reason: Some(reason),
            executor: executor.or(run.executor.take()),
            executor_id,
            started_at: clean_end.started_at.or(run.started_at),
            finished_at: Some(clean_end.end.finished_at),
            message: clean_end.message.clone().map(std::borrow::Cow::into_owned),
            detail: detail_of(clean_end),
        };
        run.executor.clone_from(&ended_attempt.executor);
        self.attempts.entry((run.id, run.attempt)).or_insert(ended_attempt);
        (run.status, run.reason, run.lost_count) = (RunStatus::Waiting, Some(reason), lost_count);
        let next_attempt = run.attempt + i32::from(!mutant::on(Mutant::RetryKeepsAttempt));
        (run.attempt, run.due_at) = (next_attempt, due_at);
        (run.executor_id, run.marked_at) = (None::<ExecutorId>, None);
        (run.started_at, run.message) = (None, None);
        run.detail = detail_of(clean_end);
        if run.cancel_by.is_none() && reason != Reason::NotReceived {
            // An earlier request to end the run applied only while no executor had it. An executor had this attempt, so the request no
            // longer applies.
            run.cancel_reason = None;
            self.cancels.remove(&run.id);
        }
        Some(run.clone())
    }

    fn keep_superseded(&mut self, clean_end: &CleanEnd<'_>) {
        let superseded_attempt = Attempt {
            attempt: clean_end.end.attempt,
            status: settle::attempt_status(clean_end.end.outcome),
            reason: None,
            executor: clean_end.executor.clone().map(std::borrow::Cow::into_owned),
            executor_id: clean_end.executor_id,
            started_at: clean_end.started_at,
            finished_at: Some(clean_end.end.finished_at),
            message: clean_end.message.clone().map(std::borrow::Cow::into_owned),
            detail: detail_of(clean_end),
        };
        let stored_attempt = self.attempts.get_mut(&(clean_end.end.run, clean_end.end.attempt));
        if let Some(stored_attempt) =
            stored_attempt.filter(|stored_attempt| stored_attempt.status == RunStatus::Unknown)
        {
            *stored_attempt =
                Attempt { reason: stored_attempt.reason, detail: stored_attempt.detail.take(), ..superseded_attempt };
        }
    }
}

/// The detail as it is read back from its stored text.
fn detail_of(clean_end: &CleanEnd<'_>) -> Option<Arc<ReasonDetail>> {
    clean_end.detail.as_deref().map(|text| Arc::new(ReasonDetail::from_json(text)))
}
