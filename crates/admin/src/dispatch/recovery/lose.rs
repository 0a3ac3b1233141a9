//! Runs whose executor is lost.

use rondel_core::outcome::Outcome;
use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, Reason, RunId};
use rondel_store::ledger::AttemptEnd;

use crate::dispatch::active::{Active, Phase};
use crate::dispatch::decision::Decision;
use crate::dispatch::ends;
use crate::dispatch::ready::{finish_unsent, lost_detail, waited_ms};
use crate::dispatch::waits::with_reason;

pub(crate) fn sent_to(d: &Decision<'_>, id: ExecutorId, which: impl Fn(&Active) -> bool) -> Vec<RunId> {
    let is_sent = |active: &&Active| matches!(active.phase, Phase::Sent | Phase::Noted) && which(active);
    d.state.runs.of_executor(id).filter(is_sent).map(|active| active.ready.run.id).collect()
}

/// Gives up a run whose executor was lost with it, or never received it.
pub(crate) fn lose(d: &mut Decision<'_>, run: RunId, reason: Reason) {
    let now = d.now;
    let Some(active) = d.state.runs.active_mut(run) else { return };
    let executor = (active.executor, active.executor_name.clone());
    // If no executor received it, the run has been queued since it came, and its next attempt continues that wait.
    let waited_ms = (reason == Reason::NotReceived).then(|| waited_ms(&active.ready, now));
    let detail = Detail { waited_ms, ..lost_detail(Some(&active.executor_name)) };
    let finish = AttemptEnd {
        executor: Some(executor),
        started_at: active.began_at.filter(|_| reason != Reason::NotReceived),
        ..finish_unsent(&active.ready.run, &active.ready.definition, Outcome::Lost(reason), now, None)
    };
    ends::give_up(d, run, with_reason(finish, reason, detail));
}
