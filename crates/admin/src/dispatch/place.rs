//! Places due runs: finds an executor for a run, or a queue that it waits in.

use super::decision::Decision;
use super::effect::Effect;
use super::queue::turns;
use super::ready::ReadyRun;
use super::runs::{Stage, WaitingRun};
use super::step::Step;
use super::switches::{self, SwitchDecision};
use super::waits::end_of_missed;
use super::{ends, routing, shadow, waits};
use crate::metrics::CountedRun;

pub(super) fn place_or_park(d: &mut Decision<'_>, ready: ReadyRun) {
    let now = d.now;
    if let Some(ready) = place(d, ready) {
        d.state.parked.push(WaitingRun::new(ready, now), &mut d.state.runs);
    }
}

/// Finds an executor for a run, or a limit that it waits for, or ends the run if it is too late. Returns the run if it must be parked: no executor
/// has room, the lease does not hold, its job is being handed over, or its app is switched off.
pub(super) fn place(d: &mut Decision<'_>, ready: ReadyRun) -> Option<ReadyRun> {
    let now = d.now;
    if ready.token() != d.facts.token {
        // The run was taken under a lease that has ended: the node that adopts the run finds it.
        forget_and_check_rows(d, &[ready]);
        return None;
    }
    if !d.may_send() {
        return Some(ready);
    }
    let ready = shadow::unless_shadow(d, ready)?;
    if ready.taken_up_at.is_some() && ready.is_missed(now) {
        ends::submit(d, end_of_missed(&ready, now), CountedRun::of_ready(&ready));
        return None;
    }
    let has_shards = ready.run.is_root() && ready.run.shard_total.is_some();
    if ready.is_expired(now) && !has_shards {
        expire(d, ready);
        return None;
    }
    if d.state.pending_steps.jobs_in_handover.contains(&ready.run.job) {
        return Some(ready);
    }
    let ready = match switches::unless_switched_off(d, ready) {
        SwitchDecision::MayStart(ready) => ready,
        SwitchDecision::Waits(ready) => return Some(ready),
        SwitchDecision::Skipped => return None,
    };
    if ready.run.is_root() {
        if ready.run.shard_total.is_none() {
            let ready = turns::unless_held_back(d, ready)?;
            return expand(d, ready);
        }
        // The shards run instead of the broadcast's row, which is never sent.
        d.forget([ready.run.id]);
        return None;
    }
    let ready = turns::unless_held_back(d, ready)?;
    routing::route(d, ready)
}

/// Forgets runs that belong to another node, are settled, or will be found again by the periodic queries. They keep their places in their
/// jobs' order until their rows show which of these is the case.
pub(super) fn forget_and_check_rows(d: &mut Decision<'_>, runs: &[ReadyRun]) {
    for ready in runs {
        forget_unsent(d, ready);
        let admitted_runs = d.state.gates.make_reserved(ready.run.id, &mut d.state.runs);
        turns::queue_starts(d, admitted_runs);
    }
    if !runs.is_empty() {
        d.step(Step::CheckRows(runs.iter().map(|ready| ready.run.id).collect()));
    }
}

pub(super) fn forget_unsent(d: &mut Decision<'_>, ready: &ReadyRun) {
    let run = ready.run.id;
    d.state.deadlines.forget(run);
    d.forget_under_lease([(run, ready.token())]);
    turns::release_limit(d, run);
}

/// Ends a run whose queue timeout has passed, and states why no executor took it.
pub(super) fn expire(d: &mut Decision<'_>, mut ready: ReadyRun) {
    let (reason, detail) = waits::unserved_reason(d, &ready);
    ready.run.trace = Some(routing::trace_without_executor(d, &ready));
    waits::skip(d, &ready, reason, detail);
}

/// Chooses the shards of a fire: one for each executor that is online now, or as many as the job defines. Returns the run if no executor is
/// online, or if there is no room in memory for the shards.
fn expand(d: &mut Decision<'_>, root: ReadyRun) -> Option<ReadyRun> {
    let eligible_executors = d.state.executors.eligible_executors(&root);
    // Without room in memory for its shards, the run waits as it would for an executor.
    if eligible_executors.is_empty() || !d.facts.in_memory.may_expand(&root.run) {
        return Some(root);
    }
    // A shard of a broadcast belongs to one executor; shards of a fixed number get theirs when they are routed.
    let executors = match root.definition.job.shards {
        Some(count) => vec![None; usize::try_from(count).unwrap_or(usize::MAX)],
        None => eligible_executors.iter().map(|online| Some(online.name.clone())).collect(),
    };
    d.effects.push(Effect::Expand(Box::new(root.run.clone()), executors));
    d.state.runs.put(root, Stage::Expanding);
    None
}
