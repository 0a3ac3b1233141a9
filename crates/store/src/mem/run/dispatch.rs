//! Dispatch of open runs to executors: turning waiting runs into pending ones, marking, recording as running, and
//! expanding.

use std::sync::Arc;

use async_trait::async_trait;
use rondel_core::reason::ReasonDetail;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::ledger::{MarkToRemove, NotedWait, RunAtExecutor, WaitPlace};
use crate::mem::{MemStore, State, to_usize};
use crate::settle::{clean_name, note_unsent};
use crate::{Dispatch, LeaseToken, Result};

#[async_trait]
impl Dispatch for MemStore {
    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let mut state = self.state();
        let mut waiting_runs = state.open_runs_where(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == RunStatus::Waiting
                && run.due_at <= until
        });
        waiting_runs.truncate(to_usize(limit));
        for run in &mut waiting_runs {
            run.status = RunStatus::Pending;
            state.runs.insert(run.id, run.clone());
        }
        Ok(waiting_runs)
    }

    async fn mark(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<Vec<RunId>> {
        let mut state = self.state();
        let mut marked_runs = Vec::new();
        for run_at_executor in runs {
            if let Some(run) = state
                .pending_run(token, run_at_executor.run, run_at_executor.attempt)
                .filter(|run| run.marked_at.is_none())
            {
                marked_runs.push(run_at_executor.run);
                if mutant::on(Mutant::NoMark) {
                    continue;
                }
                run.executor = Some(clean_name(&run_at_executor.executor).into_owned());
                (run.executor_id, run.marked_at) = (Some(run_at_executor.executor_id), Some(run_at_executor.at));
            }
        }
        Ok(marked_runs)
    }

    async fn unmark(&self, token: LeaseToken, marks: &[MarkToRemove]) -> Result<()> {
        let mut state = self.state();
        for mark in marks {
            let may_be_held = |run: &&mut Run| matches!(run.status, RunStatus::Pending | RunStatus::Running);
            let is_at_executor = |run: &&mut Run| run.attempt == mark.attempt && run.executor_id.is_some();
            if let Some(run) = state.own_open_run(token, mark.run).filter(may_be_held).filter(is_at_executor) {
                if !mark.keeps_executor {
                    run.executor = None;
                }
                (run.executor_id, run.marked_at) = (None, None);
                (run.status, run.started_at) = (RunStatus::Pending, None);
            }
        }
        Ok(())
    }

    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64> {
        let now = self.now();
        let mut state = self.state();
        let is_unsent = |run: &Run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == RunStatus::Pending
                && !in_hand.contains(&run.id)
        };
        let unsent_runs = state.open_runs_where(is_unsent);
        let count = unsent_runs.len();
        for mut run in unsent_runs {
            if run.marked_at.take().is_some() {
                (run.executor, run.executor_id) = (None, None);
            }
            run.status = RunStatus::Waiting;
            note_unsent(&mut run, now);
            state.runs.insert(run.id, run);
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    async fn note_running(&self, token: LeaseToken, runs: &[RunAtExecutor]) -> Result<()> {
        let mut state = self.state();
        for run_at_executor in runs {
            if let Some(run) = state.run_not_begun(token, run_at_executor.run, run_at_executor.attempt) {
                run.status = RunStatus::Running;
                run.executor = Some(clean_name(&run_at_executor.executor).into_owned());
                (run.executor_id, run.started_at) = (Some(run_at_executor.executor_id), Some(run_at_executor.at));
            }
        }
        Ok(())
    }

    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()> {
        let mut state = self.state();
        for wait in waits {
            let detail = wait.detail.to_json().map(|text| Arc::new(ReasonDetail::from_json(&text)));
            let WaitPlace::Executor(run_at_executor) = &wait.place else {
                if let Some(run) = state.pending_run(token, wait.run, wait.attempt) {
                    run.detail = detail;
                }
                continue;
            };
            let Some(run) = state.run_not_begun(token, wait.run, wait.attempt) else { continue };
            (run.status, run.detail) = (RunStatus::Pending, detail);
            if let Some(run_at_executor) = run_at_executor {
                run.executor = Some(clean_name(&run_at_executor.executor).into_owned());
                (run.executor_id, run.marked_at) =
                    (Some(run_at_executor.executor_id), run.marked_at.or(Some(run_at_executor.at)));
            }
        }
        Ok(())
    }

    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool> {
        let now = self.now();
        let mut state = self.state();
        let shard_total = i32::try_from(shards.len()).unwrap_or(i32::MAX);
        let Some(broadcast) = state.own_open_run(token, run) else { return Ok(false) };
        let is_unexpanded = broadcast.shard_index == ROOT_SHARD && broadcast.shard_total.is_none();
        let may_be_expanded =
            is_unexpanded && broadcast.status == RunStatus::Pending || mutant::on(Mutant::ExpandTwice);
        if !may_be_expanded || shard_total == 0 {
            return Ok(false);
        }
        (broadcast.shard_total, broadcast.open_shards) = (Some(shard_total), Some(shard_total));
        (broadcast.status, broadcast.started_at) = (RunStatus::Running, Some(now));
        for shard in shards {
            state.insert(shard.clone());
        }
        Ok(true)
    }
}

impl State {
    fn pending_run(&mut self, token: LeaseToken, id: RunId, attempt: i32) -> Option<&mut Run> {
        self.own_open_run(token, id).filter(|run| run.status == RunStatus::Pending && run.attempt == attempt)
    }

    /// A run of this lease and in this attempt that is pending, or that was adopted as running without a recorded start.
    fn run_not_begun(&mut self, token: LeaseToken, id: RunId, attempt: i32) -> Option<&mut Run> {
        let is_undecided = |run: &Run| matches!(run.status, RunStatus::Pending | RunStatus::Running);
        let has_not_begun = |run: &Run| run.started_at.is_none() && run.open_children.is_none();
        self.own_open_run(token, id).filter(|run| is_undecided(run) && has_not_begun(run) && run.attempt == attempt)
    }
}
