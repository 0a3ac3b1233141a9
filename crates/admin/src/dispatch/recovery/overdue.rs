//! Runs that continue past their timeout. Normally the executor stops a run at its deadline. If it does not, the server asks it to stop the
//! run, and later gives the run up, so that its job can continue.

use std::sync::Arc;

use rondel_core::RunId;
use rondel_core::outcome::Outcome;
use rondel_core::reason::{ReasonDetail, milliseconds};
use rondel_core::spec::Delivery;
use rondel_core::time::format_duration;
use rondel_store::ledger::AttemptEnd;

use crate::dispatch::active::Phase;
use crate::dispatch::decision::Decision;
use crate::dispatch::effect::Effect;
use crate::dispatch::ends;
use crate::dispatch::messages::cancel;
use crate::dispatch::ready::{end_of_unsent, lost_detail};
use crate::dispatch::recovery::deadlines::OverdueAction;

/// The requester in the cancel message.
const DEADLINE_REQUESTER: &str = "the server, because the run's timeout has passed";

pub(crate) fn watch_deadlines(d: &mut Decision<'_>) {
    let overdue_times = (d.facts.settings.overdue_ask, d.facts.settings.overdue_timeout);
    for (run, attempt, action) in d.state.deadlines.due_actions(d.facts.boot_micros, overdue_times) {
        let active = d.state.runs.active(run).filter(|active| active.ready.run.attempt == attempt);
        let Some(active) = active.filter(|active| matches!(active.phase, Phase::Sent | Phase::Noted)) else {
            continue;
        };
        match action {
            OverdueAction::Ask => {
                if let Some(online) = d.state.executors.get(active.executor) {
                    d.effects.push(Effect::Send(online.session.clone(), cancel(run, attempt, DEADLINE_REQUESTER)));
                    d.state.deadlines.record_asked(run);
                }
            }
            OverdueAction::GiveUp => give_up(d, run),
        }
    }
}

/// Ends a run that may still be running. An at-least-once run has timed out; the end of an at-most-once run is unknown.
fn give_up(d: &mut Decision<'_>, run: RunId) {
    let now = d.now;
    let Some(active) = d.state.runs.active(run) else { return };
    let job = &active.ready.definition.job;
    let outcome = match job.delivery {
        Delivery::AtLeastOnce => Outcome::TimedOut,
        Delivery::AtMostOnce => Outcome::Unreported,
    };
    let timeout = job.timeout.map(format_duration).unwrap_or_default();
    let message = format!("timed out after {timeout}; executor {} did not stop it", active.executor_name);
    let unreported_after_ms = job.timeout.map(milliseconds).filter(|_| outcome == Outcome::Unreported);
    let detail = ReasonDetail { unreported_after_ms, ..lost_detail(Some(&active.executor_name)) };
    let attempt_end = AttemptEnd {
        executor: Some((active.executor, active.executor_name.clone())),
        started_at: active.began_at,
        detail: Some(Arc::new(detail)),
        is_unsent: false,
        ..end_of_unsent(&active.ready.run, &active.ready.definition, outcome, now, Some(message))
    };
    ends::give_up(d, run, attempt_end);
}
