//! Sending ahead: a trigger leaves up to half a second before its instant, with the time that is left until then, and the executor starts
//! the handler on time. So the time for writing, transport and reading of a second's triggers passes before that second, and a slow
//! transport can only make a start later.
//!
//! It is for runs that no later event can change: everything that would have to take such a run back from its executor keeps it from being
//! sent ahead. An edit leaves what is due within a second as it is (`ON_ITS_WAY` in `rondel_core::edit`), so it need not take it back
//! either. The others are sent at their instants.

use std::time::Duration;

use rondel_core::route::question;
use rondel_core::spec::{Delivery, OverlapPolicy};
use rondel_failpoint::mutant::{self, Mutant};

use super::decision::Decision;
use super::executors::Online;
use super::ready::Ready;

/// How long before its instant a run is looked at to be sent; zero if it is not sent ahead.
pub(super) fn lead(d: &Decision<'_>, ready: &Ready) -> Duration {
    let lead = d.facts.settings.send_ahead;
    if !lead.is_zero() && is_certain(ready) && d.state.executors.take_ahead(ready.run.app) {
        lead
    } else {
        Duration::ZERO
    }
}

/// Whether a run that comes between now and this one's instant leaves this one as it is. The place of a run that waits for an executor, a
/// limit or the answer of an executor depends on the runs that come until then; a later run with the policy *discard* would be skipped for
/// one that has not begun, and with *cover* it replaces one.
fn is_certain(ready: &Ready) -> bool {
    let (run, job) = (&ready.run, &ready.definition.job);
    let keeps_order = matches!(job.overlap.policy, OverlapPolicy::Serial | OverlapPolicy::Allow);
    let is_free = job.rate.is_none() && job.concurrency.is_none() && question(job.route).is_none();
    let is_sent = !run.is_root() && job.pump.is_none() && job.delivery == Delivery::AtLeastOnce;
    keeps_order && is_free && is_sent && !ready.is_marked_first()
}

/// Whether an executor has room for the run ahead of its instant, whichever of them it is routed to: each starts runs on time, and runs
/// that come until then find slots as well, since a quarter of them is not given away ahead.
pub(super) fn has_room(d: &Decision<'_>, ready: &Ready) -> bool {
    d.state.executors.all_fit(ready, |online| holds_for(d, online, ready) && online.has_spare_slots(d.now))
}

/// Whether the run may be on this executor's stream before its instant.
pub(super) fn may_leave(d: &Decision<'_>, online: &Online, ready: &Ready) -> bool {
    is_certain(ready) && holds_for(d, online, ready)
}

/// The lease has to hold at the instant: rows that are due after the end of a lease count as never sent under it.
fn holds_for(d: &Decision<'_>, online: &Online, ready: &Ready) -> bool {
    let due_at = ready.run.due_at;
    let is_under_lease = due_at < d.facts.lease_until || mutant::on(Mutant::AheadOfTheLease);
    is_under_lease && due_at.since(d.now) <= online.ahead_max.min(d.facts.settings.send_ahead)
}
