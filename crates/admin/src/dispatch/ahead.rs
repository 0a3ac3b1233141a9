//! Sending ahead: a trigger leaves up to half a second before its instant, with the time that is left until then, and the executor starts
//! the handler on time. The triggers of a second are written, transported and read before that second begins. A slow transport can only
//! make a start later.
//!
//! A run is sent ahead only if no later event can require that it is taken back from its executor. Edits never require this: they do not
//! change runs that are due within a second (`EDIT_CUTOFF` in `rondel_core::edit`). All other runs are sent at their instants.

use std::time::Duration;

use rondel_core::route::question;
use rondel_core::spec::{Delivery, OverlapPolicy};
use rondel_failpoint::mutant::{self, Mutant};

use super::decision::Decision;
use super::executors::ConnectedExecutor;
use super::ready::ReadyRun;

/// How long before its instant the dispatcher first tries to send the run; zero if the run is not sent ahead.
pub(super) fn send_lead(d: &Decision<'_>, ready: &ReadyRun) -> Duration {
    let lead = d.facts.settings.send_ahead;
    if !lead.is_zero() && is_decision_final(ready) && d.state.executors.any_takes_ahead(ready.run.app) {
        lead
    } else {
        Duration::ZERO
    }
}

/// Whether no run that arrives before this run's instant can change the decision about it. If a run waits for an executor, a limit or an
/// executor's answer, its place depends on the runs that arrive until then. Under the policy *discard*, a later run would be skipped
/// because of a run that has not begun; under *cover*, it would replace that run.
fn is_decision_final(ready: &ReadyRun) -> bool {
    let (run, job) = (&ready.run, &ready.definition.job);
    let keeps_order = matches!(job.overlap.policy, OverlapPolicy::Serial | OverlapPolicy::Allow);
    let is_free = job.rate.is_none() && job.concurrency.is_none() && question(job.route).is_none();
    let is_sent = !run.is_root() && job.pump.is_none() && job.delivery == Delivery::AtLeastOnce;
    keeps_order && is_free && is_sent && !ready.is_marked_first()
}

/// Whether the run may be sent ahead, whichever executor the router chooses: each fit executor starts runs on time and has spare slots. A quarter
/// of the slots is reserved for runs that arrive before the instant.
pub(super) fn may_go_to_any_fit(d: &Decision<'_>, ready: &ReadyRun) -> bool {
    d.state.executors.all_fit_satisfy(ready, |online| is_within_lead(d, online, ready) && online.has_spare_slots(d.now))
}

/// Whether the run may be on this executor's stream before its instant.
pub(super) fn may_leave(d: &Decision<'_>, online: &ConnectedExecutor, ready: &ReadyRun) -> bool {
    is_decision_final(ready) && is_within_lead(d, online, ready)
}

/// Whether the executor takes the trigger this early, and the lease holds at the run's instant. Rows that are due after the end of a lease count as
/// never sent under that lease.
fn is_within_lead(d: &Decision<'_>, online: &ConnectedExecutor, ready: &ReadyRun) -> bool {
    let due_at = ready.run.due_at;
    let is_under_lease = due_at < d.facts.lease_until || mutant::on(Mutant::AheadOfTheLease);
    is_under_lease && due_at.since(d.now) <= online.ahead_max.min(d.facts.settings.send_ahead)
}
