//! Ends runs: frees their executors' slots, and submits the ends to the result lanes.

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, RunId};
use rondel_store::ledger::AttemptEnd;

use super::active::{ActiveRun, Phase};
use super::decision::Decision;
use super::effect::Submission;
use super::ready::{ReadyRun, end_of_unsent};
use crate::metrics::CountedRun;

/// Removes a run from its executor, and frees the slot, unless the end of the run has freed it already. `None` if no executor has the run.
pub(super) fn remove_from_executor(d: &mut Decision<'_>, run: RunId) -> Option<ActiveRun> {
    let active = d.state.runs.take_active(run)?;
    d.state.outbox.not_yet_due.remove(&(active.ready.run.due_at, run));
    if !matches!(active.phase, Phase::Ending | Phase::Settling) {
        free_slot(d, active.executor);
    }
    Some(active)
}

/// Removes a run from an executor that did not get the run, or refused it. Frees the slot, but keeps the executor's pause if it reported that it
/// was full.
pub(super) fn take_back(d: &mut Decision<'_>, run: RunId) -> Option<ActiveRun> {
    let executor = d.state.runs.active(run)?.executor;
    let full_until = d.state.executors.get(executor).and_then(|online| online.full_until);
    let active = remove_from_executor(d, run)?;
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.full_until = full_until;
    }
    Some(active)
}

pub(super) fn free_slot(d: &mut Decision<'_>, executor: ExecutorId) {
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.in_flight = online.in_flight.saturating_sub(1);
        online.full_until = None;
    }
}

pub(super) fn end_unsent(d: &mut Decision<'_>, ready: &ReadyRun, outcome: Outcome, message: Option<String>) {
    let now = d.now;
    let attempt_end = end_of_unsent(&ready.run, &ready.definition, outcome, now, message);
    submit(d, attempt_end, CountedRun::of_ready(ready));
}

/// Stores the end of a run that no executor has. If the result lane is full, the run is forgotten. Its row is still open, so the periodic
/// queries find the run, and the dispatcher decides about it again.
pub(super) fn submit(d: &mut Decision<'_>, attempt_end: AttemptEnd, counted_run: CountedRun) {
    debug_assert!(attempt_end.owner.is_some(), "the end of {} names no lease to forget it of", attempt_end.run);
    d.finish(Submission { attempt_end, counted_run, reply_to: None, phase_before: None });
}

/// Stores an end that the executor did not report. If the result lane is full, the run's phase is restored.
pub(super) fn give_up(d: &mut Decision<'_>, run: RunId, attempt_end: AttemptEnd) {
    let Some(active) = d.state.runs.active_mut(run) else { return };
    let (executor, counted_run) = (active.executor, CountedRun::of_ready(&active.ready));
    let phase_before = Some(std::mem::replace(&mut active.phase, Phase::Ending));
    free_slot(d, executor);
    d.finish(Submission { attempt_end, counted_run, reply_to: None, phase_before });
}
