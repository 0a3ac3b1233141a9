//! Runs whose executor is lost.

use rondel_core::outcome::Outcome;
use rondel_core::reason::ReasonDetail;
use rondel_core::{ExecutorId, Reason, RunId};
use rondel_store::ledger::AttemptEnd;

use crate::dispatch::active::{ActiveRun, Phase};
use crate::dispatch::decision::Decision;
use crate::dispatch::ends;
use crate::dispatch::event::Report;
use crate::dispatch::ready::{end_of_unsent, lost_detail, waited_ms};
use crate::dispatch::waits::with_reason;

/// The runs that were sent to this executor, have not ended, and satisfy `is_chosen`.
pub(crate) fn runs_sent_to(d: &Decision<'_>, id: ExecutorId, is_chosen: impl Fn(&ActiveRun) -> bool) -> Vec<RunId> {
    let is_sent = |active: &&ActiveRun| matches!(active.phase, Phase::Sent | Phase::Noted) && is_chosen(active);
    d.state.runs.of_executor(id).filter(is_sent).map(|active| active.ready.run.id).collect()
}

/// Gives up a run because its executor is lost or never received it.
pub(crate) fn lose(d: &mut Decision<'_>, run: RunId, reason: Reason) {
    let now = d.now;
    let Some(active) = d.state.runs.active_mut(run) else { return };
    active.lost_reason = Some(reason);
    let executor = (active.executor, active.executor_name.clone());
    // If no executor received the run, it has been queued throughout, and its next attempt continues that wait.
    let waited_ms = (reason == Reason::NotReceived).then(|| waited_ms(&active.ready, now));
    let detail = ReasonDetail { waited_ms, ..lost_detail(Some(&active.executor_name)) };
    let attempt_end = AttemptEnd {
        executor: Some(executor),
        is_unsent: false,
        started_at: active.began_at.filter(|_| reason != Reason::NotReceived),
        ..end_of_unsent(&active.ready.run, &active.ready.definition, Outcome::Lost(reason), now, None)
    };
    ends::give_up(d, run, with_reason(attempt_end, reason, detail));
}

/// Gives up again the runs whose ends found no room in their lanes.
pub(crate) fn lose_again(d: &mut Decision<'_>) {
    let is_sent = |active: &&ActiveRun| matches!(active.phase, Phase::Sent | Phase::Noted);
    let sent_runs = d.state.runs.active_runs().filter(is_sent);
    let mut lost_runs: Vec<(RunId, Reason)> =
        sent_runs.filter_map(|active| Some((active.ready.run.id, active.lost_reason?))).collect();
    lost_runs.sort_unstable_by_key(|(run, _)| *run);
    for (run, reason) in lost_runs {
        lose(d, run, reason);
    }
}

/// Forgets that runs of this executor were given up, if it has connected again and lists them.
pub(crate) fn clear_lost_reasons(d: &mut Decision<'_>, executor: ExecutorId, report: &Report) {
    let attempt_key = |active: &ActiveRun| (active.ready.run.id, active.ready.run.attempt);
    let is_listed = |run: &(RunId, i32)| report.held_runs.contains(run) || report.finished_runs.contains(run);
    let listed_attempts: Vec<(RunId, i32)> =
        d.state.runs.of_executor(executor).map(attempt_key).filter(is_listed).collect();
    for (run, _) in listed_attempts {
        d.state.runs.active_mut(run).into_iter().for_each(|active| active.lost_reason = None);
    }
}
