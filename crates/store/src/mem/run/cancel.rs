//! The trait `Cancel` for the store in memory.

use async_trait::async_trait;
use rondel_core::outcome::CancelRequest;
use rondel_core::{AppId, JobId, Reason, Run, RunId, RunStatus, Timestamp};

use crate::catalog::QueuedDrops;
use crate::ledger::{CancelElsewhere, CancelOutcome};
use crate::mem::{MemStore, State, to_usize};
use crate::settle::{clean_name, queued_to_drop};
use crate::{Cancel, LeaseToken, Result};

#[async_trait]
impl Cancel for MemStore {
    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, _now: Timestamp) -> Result<CancelOutcome> {
        let mut state = self.state();
        let Some(stored_run) = state.runs.get_mut(&run) else { return Ok(CancelOutcome::NotFound) };
        if stored_run.status.is_terminal() {
            return Ok(CancelOutcome::AlreadyEnded(stored_run.status));
        }
        ask_to_cancel(stored_run, request);
        let stored_run = stored_run.clone();
        state.cancels.insert(run);
        Ok(CancelOutcome::Requested(Box::new(stored_run)))
    }

    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, _now: Timestamp) -> Result<u64> {
        let mut state = self.state();
        let mut asked_count = 0;
        for id in runs {
            if let Some(run) = state.runs.get_mut(id).filter(|run| !run.status.is_terminal()) {
                ask_to_cancel(run, request);
                state.cancels.insert(*id);
                asked_count += 1;
            }
        }
        Ok(asked_count)
    }

    async fn ask_drops(&self, runs: &[RunId], request: CancelRequest<'_>, _now: Timestamp) -> Result<()> {
        let mut state = self.state();
        for id in runs {
            if let Some(run) = state.runs.get_mut(id).filter(|run| may_be_dropped(run)) {
                run.cancel_reason = Some(request.reason);
                state.cancels.insert(*id);
            }
        }
        Ok(())
    }

    async fn drops(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<(RunId, Reason)>> {
        let mut state = self.state();
        let run_ids: Vec<RunId> = state.cancels.iter().copied().filter(|run| *run > after).collect();
        let mut reason = |id: RunId| {
            let run = state.own_open_run(token, id).filter(|run| run.cancel_by.is_none())?;
            run.cancel_reason.filter(|reason| reason.applies_only_to_queued()).map(|reason| (id, reason))
        };
        Ok(run_ids.into_iter().filter_map(&mut reason).take(to_usize(limit)).collect())
    }

    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>> {
        let mut state = self.state();
        let run_ids: Vec<RunId> = state.cancels.iter().copied().collect();
        let with_canceller = |id: RunId| state.own_open_run(token, id)?.cancel_by.clone().map(|by| (id, by));
        Ok(run_ids.into_iter().filter_map(with_canceller).collect())
    }

    async fn cancels_elsewhere(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<CancelElsewhere>> {
        let state = self.state();
        let may_have_executor = |run: &Run| matches!(run.status, RunStatus::Pending | RunStatus::Running);
        let is_elsewhere =
            |run: &&Run| may_have_executor(run) && (run.node, run.node_epoch) != (token.node, token.epoch);
        let cancel = |run: &Run| {
            let (executor, by) = (run.executor_id?, run.cancel_by.clone()?);
            Some(CancelElsewhere { run: run.id, attempt: run.attempt, executor, by })
        };
        let later_ids = state.cancels.iter().filter(|id| **id > after);
        let asked_runs = later_ids.filter_map(|id| state.runs.get(id)).filter(is_elsewhere);
        Ok(asked_runs.filter_map(cancel).take(to_usize(limit)).collect())
    }

    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let is_selected = |run: &Run| {
            run.job == job && fire_at.is_none_or(|at| run.fire_at == at) && app.is_none_or(|app| run.app == app)
        };
        let may_be_requested = |run: &Run| CancelRequest::requested("").replaces(run.cancel_request_reason());
        let mut open_runs = self.state().open_runs_where(|run| is_selected(run) && may_be_requested(run));
        open_runs.sort_by_key(|run| run.id);
        open_runs.truncate(to_usize(limit));
        Ok(open_runs)
    }
}

impl State {
    /// Records which queued runs of a job must end, because the job is paused or deleted (`reason`).
    pub(in crate::mem) fn drop_queued(&mut self, job: JobId, reason: Reason, drops: QueuedDrops<'_>) {
        let open_runs = self.open_runs_where(|run| run.job == job && may_be_dropped(run));
        for id in queued_to_drop(open_runs, reason, drops) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.cancel_reason = Some(reason);
                self.cancels.insert(id);
            }
        }
    }
}

fn may_be_dropped(run: &Run) -> bool {
    !run.status.is_terminal() && run.cancel_by.is_none()
}

/// Records a request with its caller and its reason, unless an earlier request has precedence.
pub(super) fn ask_to_cancel(run: &mut Run, request: CancelRequest<'_>) {
    if request.replaces(run.cancel_request_reason()) {
        (run.cancel_by, run.cancel_reason) = (Some(clean_name(request.by).into_owned()), Some(request.reason));
    }
}
