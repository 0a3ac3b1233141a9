//! Carries out the decisions of gates and limits: which run is next, waits, or is skipped.

use rondel_core::reason::ReasonDetail;
use rondel_core::{ExecutorId, Reason, RunId};

use crate::dispatch::ahead;
use crate::dispatch::decision::Decision;
use crate::dispatch::queue::overlap::{AdmittedRun, GateDecision, queue_max};
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::{Arrival, Stage, WaitingRun};
use crate::dispatch::state::Work;
use crate::dispatch::step::Step;
use crate::dispatch::timer::Timer;
use crate::dispatch::waits;

/// Carries out the decision of a gate about a run, and returns the run if it may pass.
pub(crate) fn apply_gate_decision(d: &mut Decision<'_>, run: RunId, decision: GateDecision) -> Option<ReadyRun> {
    match decision {
        GateDecision::Passed(ready) => Some(ready),
        GateDecision::Queued => None,
        GateDecision::Skipped { ready, run_ahead: ahead, queued_count } => {
            let is_queue_full = queued_count > 0 && queued_count >= queue_max(&ready.definition.job);
            let queue_max = is_queue_full.then(|| u64::try_from(queued_count).unwrap_or(u64::MAX));
            let detail = ReasonDetail { run: ahead, queue_max, ..ReasonDetail::default() };
            waits::skip(d, &ready, Reason::Overlap, detail);
            None
        }
        GateDecision::ReplacedByLater(ready) => {
            waits::skip(d, &ready, Reason::Covered, ReasonDetail::default());
            None
        }
        GateDecision::ReplacesEarlier { open_runs: open, skipped_runs: waiting } => {
            for covered in waiting {
                waits::skip(d, &covered, Reason::Covered, replaced_by(run));
            }
            make_room(d, open, run);
            None
        }
    }
}

/// Ends open runs to make room for a later run, which waits for their verdicts. Runs that were not sent are skipped. For the others, a
/// request to stop is stored, so that they end even if this server crashes meanwhile.
fn make_room(d: &mut Decision<'_>, open_runs: Vec<RunId>, later_run: RunId) {
    for run in open_runs {
        match take_waiting(d, run) {
            Some(ready) if ready.run.attempt == 1 => {
                waits::skip(d, &ready, Reason::Covered, replaced_by(later_run));
            }
            again => {
                // An earlier attempt has begun, or an executor has the run: a stored request to stop ends it.
                park_again(d, again);
                d.state.pending_steps.covered_runs.insert(run);
            }
        }
    }
    store_stop_requests(d);
}

fn park_again(d: &mut Decision<'_>, ready: Option<ReadyRun>) {
    let now = d.now;
    ready.into_iter().for_each(|ready| d.state.parked.push(WaitingRun::new(ready, now), &mut d.state.runs));
}

/// Stores the requests to stop runs that later runs replace. Each round calls this function again until the requests are durable.
pub(crate) fn store_stop_requests(d: &mut Decision<'_>) {
    if !d.state.pending_steps.covered_runs.is_empty() {
        let covered_runs = d.state.pending_steps.covered_runs.iter().copied().collect();
        d.step(Step::Cover(covered_runs));
    }
}

/// Frees the place of a run that has ended, or belongs to another node.
pub(crate) fn leave_gate(d: &mut Decision<'_>, run: RunId) {
    let admitted_runs = d.state.gates.leave(run, &mut d.state.runs);
    queue_starts(d, admitted_runs);
}

/// Queues the runs whose turn has come; [`offer_freed_places`](crate::dispatch::flow::offer_freed_places) starts them.
pub(crate) fn queue_starts(d: &mut Decision<'_>, admitted_runs: Vec<AdmittedRun>) {
    d.state.work_queue.extend(admitted_runs.into_iter().map(Work::Start));
}

/// Returns the run, unless one of its limits holds it back. In that case the run waits for that limit.
pub(crate) fn unless_held_back(d: &mut Decision<'_>, ready: ReadyRun) -> Option<ReadyRun> {
    let now = d.now;
    let Some(key) = d.state.limits.limit_holding_back(&ready, now) else { return Some(ready) };
    let admitted_runs = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
    d.state.limits.enqueue(key, WaitingRun::new(ready, now), now, &mut d.state.runs);
    queue_starts(d, admitted_runs);
    None
}

/// Applies the job's gate at this executor, and the run's limits, to a run that was routed to the executor. Returns the run if it may be
/// sent.
pub(crate) fn admit(d: &mut Decision<'_>, ready: ReadyRun, executor: ExecutorId) -> Option<ReadyRun> {
    let now = d.now;
    let ready = match d.state.gates.would_pass_at(&ready, executor) {
        true => unless_held_back(d, ready)?,
        false => ready,
    };
    let run = ready.run.id;
    let decision = d.state.gates.enter_at(ready, executor, &mut d.state.runs);
    let ready = apply_gate_decision(d, run, decision)?;
    d.state.limits.count_start(&ready, now);
    Some(ready)
}

/// Frees the limits and the executor's gate of a run that the executor did not get.
pub(crate) fn give_back(d: &mut Decision<'_>, ready: &ReadyRun) {
    d.state.deadlines.forget(ready.run.id);
    let freed_limit = d.state.limits.uncount_start(ready);
    let admitted_runs = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
    queue_starts(d, admitted_runs);
    d.state.work_queue.extend(freed_limit.map(Work::Offer));
}

/// Frees the limit of a run that no executor has any more.
pub(crate) fn release_limit(d: &mut Decision<'_>, run: RunId) {
    let freed_limit = d.state.limits.release(run);
    d.state.work_queue.extend(freed_limit.map(Work::Offer));
}

/// Takes out a run that waits here for its turn, for a limit, for an executor or for executors' answers.
pub(crate) fn take_waiting(d: &mut Decision<'_>, run: RunId) -> Option<ReadyRun> {
    match d.state.runs.stage(run)? {
        Stage::Parked(_) => d.state.parked.remove(run, &mut d.state.runs).map(|waiting| waiting.ready),
        Stage::Limited(_) => d.state.limits.remove(run, &mut d.state.runs).map(|waiting| waiting.ready),
        Stage::Queued => d.state.gates.remove_queued(run, &mut d.state.runs),
        Stage::Probing(_) => {
            let ready = d.state.runs.take(run)?.ready;
            d.state.probes.remove(&ready);
            Some(ready)
        }
        // The run is in none of these queues: it is scheduled, held back, about to start, or under way.
        Stage::Scheduled(_) | Stage::HeldBack(_) | Stage::Admitted | Stage::Expanding | Stage::Unconfirmed(_) => None,
    }
}

/// Takes out a run that waits for its instant, or that has been held back since its instant.
pub(crate) fn take_unstarted(d: &mut Decision<'_>, run: RunId) -> Option<ReadyRun> {
    let is_unstarted = matches!(d.state.runs.stage(run)?, Stage::Scheduled(_) | Stage::HeldBack(_));
    if is_unstarted { d.state.runs.withdraw(run).map(|open| open.ready) } else { None }
}

/// Accepts a run from the ring, or a new shard, and sets its timer, unless the run is known already.
pub(crate) fn accept_run(d: &mut Decision<'_>, ready: ReadyRun) {
    match d.state.runs.arrival(&ready) {
        Arrival::New => {}
        Arrival::Replaces => withdraw(d, ready.run.id),
        Arrival::Known => return,
    }
    let timer = Timer::new(&ready, ahead::send_lead(d, &ready), d.facts.uptime);
    d.state.runs.schedule(ready, timer);
}

/// Drops a run that no executor has from the queue that it is in.
pub(crate) fn withdraw(d: &mut Decision<'_>, run: RunId) {
    if take_waiting(d, run).is_some() {
        return;
    }
    let Some(open_run) = d.state.runs.withdraw(run) else { return };
    match open_run.stage {
        Stage::Unconfirmed(shards) => d.forget_shards(&shards),
        Stage::Scheduled(_)
        | Stage::HeldBack(_)
        | Stage::Probing(_)
        | Stage::Queued
        | Stage::Admitted
        | Stage::Limited(_)
        | Stage::Parked(_)
        | Stage::Expanding => {}
    }
}

/// The detail for a run that a later run of the job replaces.
fn replaced_by(later_run: RunId) -> ReasonDetail {
    ReasonDetail { run: Some(later_run), ..ReasonDetail::default() }
}
