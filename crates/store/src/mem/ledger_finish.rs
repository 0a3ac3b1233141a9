//! The end of attempts.

use rondel_core::outcome::After;
use rondel_core::reason::Detail;
use rondel_core::run::{Attempt, BROADCAST};
use rondel_core::{ExecutorId, JobId, Reason, Run, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::State;
use crate::LeaseToken;
use crate::ledger::{AttemptEnd, Finished};
use crate::settle::{self, CleanFinish, Judgement, Standing};

impl State {
    pub(super) fn finish(&mut self, finish: &AttemptEnd, now: Timestamp) -> Finished {
        let clean = CleanFinish::new(finish);
        let Some(run) = self.runs.get(&finish.run) else { return Finished::NoSuchRun };
        let standing = Standing {
            fire_at: run.fire_at,
            attempt: run.attempt,
            status: run.status,
            lost_count: run.lost_count,
            marked: run.marked_at.is_some(),
            cancel_asked: run.cancel_asked(),
            awaits_children: !run.status.is_terminal() && run.open_children.is_some(),
            owner: LeaseToken { node: run.node, epoch: run.node_epoch },
        };
        match settle::judge(standing, finish) {
            Judgement::NoSuchRun => Finished::NoSuchRun,
            Judgement::Duplicate => Finished::Duplicate,
            Judgement::NotOwner => Finished::NotOwner,
            Judgement::Superseded => {
                self.keep_superseded(&clean);
                Finished::Superseded
            }
            Judgement::Late(status, reason) => {
                let (trace, was_passed_over) = (run.trace.clone(), run.status == RunStatus::Skipped);
                self.end(&clean, status, reason);
                self.runs.entry(finish.run).and_modify(|run| run.trace = trace);
                if was_passed_over {
                    // An edit passed it over without a word to whoever follows it.
                    self.add_message(finish.run, now);
                    self.note_ended(finish.run, false);
                }
                self.count_shards(finish, 0, now);
                Finished::Late
            }
            Judgement::Ends(then @ After::Verdict { status, reason }) => {
                self.end(&clean, status, reason);
                self.add_message(finish.run, now);
                self.note_ended(finish.run, finish.policy.awaits_children);
                self.count_shards(finish, 1, now);
                Finished::Stored(then, None)
            }
            Judgement::Ends(then @ After::Again { due_at, reason, lost_count }) => {
                let run = self.retry(&clean, due_at, reason, lost_count);
                Finished::Stored(then, run.map(Box::new))
            }
        }
    }

    fn end(&mut self, clean: &CleanFinish<'_>, status: RunStatus, reason: Option<Reason>) {
        self.cancels.remove(&clean.finish.run);
        let Some(run) = self.runs.get_mut(&clean.finish.run) else { return };
        (run.status, run.reason) = (status, reason);
        if let Some(name) = &clean.executor {
            (run.executor, run.executor_id) = (Some(name.clone().into_owned()), clean.executor_id);
        }
        run.started_at = clean.started_at.or(run.started_at);
        run.finished_at = Some(clean.finish.finished_at);
        run.message = clean.message.clone().map(std::borrow::Cow::into_owned);
        run.result = clean.result.clone().map(std::borrow::Cow::into_owned);
        run.trace = clean.trace.clone().map(std::borrow::Cow::into_owned);
        run.detail = detail_of(clean).or(run.detail.take());
    }

    fn retry(&mut self, clean: &CleanFinish<'_>, due_at: Timestamp, reason: Reason, lost_count: i32) -> Option<Run> {
        let run = self.runs.get_mut(&clean.finish.run)?;
        let executor = clean.executor.clone().map(std::borrow::Cow::into_owned);
        let executor_id = if executor.is_some() { clean.executor_id } else { run.executor_id };
        let ended = Attempt {
            attempt: run.attempt,
            status: settle::attempt_status(clean.finish.outcome),
            reason: Some(reason),
            executor: executor.or(run.executor.take()),
            executor_id,
            started_at: clean.started_at.or(run.started_at),
            finished_at: Some(clean.finish.finished_at),
            message: clean.message.clone().map(std::borrow::Cow::into_owned),
            detail: detail_of(clean),
        };
        run.executor.clone_from(&ended.executor);
        self.attempts.entry((run.id, run.attempt)).or_insert(ended);
        (run.status, run.reason, run.lost_count) = (RunStatus::Waiting, Some(reason), lost_count);
        let next = run.attempt + i32::from(!mutant::on(Mutant::RetryKeepsAttempt));
        (run.attempt, run.due_at) = (next, due_at);
        (run.executor_id, run.marked_at) = (None::<ExecutorId>, None);
        (run.started_at, run.message) = (None, None);
        run.detail = detail_of(clean);
        Some(run.clone())
    }

    fn keep_superseded(&mut self, clean: &CleanFinish<'_>) {
        let kept = Attempt {
            attempt: clean.finish.attempt,
            status: settle::attempt_status(clean.finish.outcome),
            reason: None,
            executor: clean.executor.clone().map(std::borrow::Cow::into_owned),
            executor_id: clean.executor_id,
            started_at: clean.started_at,
            finished_at: Some(clean.finish.finished_at),
            message: clean.message.clone().map(std::borrow::Cow::into_owned),
            detail: detail_of(clean),
        };
        let known = self.attempts.get_mut(&(clean.finish.run, clean.finish.attempt));
        if let Some(known) = known.filter(|known| known.status == RunStatus::Unknown) {
            *known = Attempt { reason: known.reason, detail: known.detail.take(), ..kept };
        }
    }

    /// Counts the broadcast of a shard down, and gives it a verdict if this was its last one.
    fn count_shards(&mut self, finish: &AttemptEnd, closed_count: i32, now: Timestamp) {
        let Some(shard) = self.runs.get(&finish.run).filter(|run| run.shard_index != BROADCAST).cloned() else {
            return;
        };
        let is_sibling = |run: &&Run| (run.job, run.fire_at, run.cause) == (shard.job, shard.fire_at, shard.cause);
        let shards = self.runs.values().filter(is_sibling).filter(|run| run.shard_index != BROADCAST);
        let (shards, ends): (Vec<_>, Vec<Option<Timestamp>>) =
            shards.map(|run| ((run.status, run.reason), run.finished_at)).unzip();
        let parent = shard.parent.and_then(|parent| self.runs.get_mut(&parent));
        let is_broadcast = |run: &&mut Run| run.shard_index == BROADCAST && is_sibling(&&**run);
        let Some(broadcast) = parent.filter(is_broadcast) else { return };
        let Some(open_shards) = &mut broadcast.open_shards else { return };
        *open_shards = (*open_shards - closed_count * i32::from(!mutant::on(Mutant::NoShardCount))).max(0);
        let is_awaiting = broadcast.open_children.is_some();
        if *open_shards == 0
            && !is_awaiting
            && (!broadcast.status.is_terminal() || broadcast.status == RunStatus::Unknown)
        {
            let (id, is_first) = (broadcast.id, !broadcast.status.is_terminal());
            let whole = settle::fold(&shards, broadcast.cancel_by.as_deref());
            (broadcast.status, broadcast.reason, broadcast.message) = (whole.status, whole.reason, whole.message);
            broadcast.finished_at = ends.into_iter().flatten().max();
            self.cancels.remove(&id);
            if is_first {
                self.add_message(id, now);
                self.note_ended(id, finish.policy.awaits_children);
            }
        }
    }

    /// Moves a job whose next fire follows from a run that is over; answers whether it fires again.
    pub(super) fn delay(&mut self, job: JobId, now: Timestamp) -> bool {
        let Some(due) = self.due.get_mut(&job) else { return false };
        let Some(run) = due.follows.and_then(|run| self.runs.get(&run)).filter(|run| run.status.is_terminal()) else {
            return false;
        };
        let ended = (run.fire_at, run.finished_at.unwrap_or(now));
        let defined_at = self.jobs.get(&job).map_or(Timestamp::EPOCH, |job| job.record.updated_at);
        due.next_fire_at = due.delay.map(|delay| settle::delayed(ended, (delay, defined_at), now));
        (due.is_over, due.follows) = (due.next_fire_at.is_none(), None);
        due.next_fire_at.is_some()
    }
}

/// As it is read again from a row.
fn detail_of(clean: &CleanFinish<'_>) -> Option<Box<Detail>> {
    clean.detail.as_deref().map(|text| Box::new(Detail::from_json(text)))
}
