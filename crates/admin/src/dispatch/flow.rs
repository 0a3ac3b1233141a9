//! Starts runs: at their instants, when their turn comes, and when an executor has room again.

use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::route::question;
use rondel_core::spec::Delivery;
use rondel_core::{AppId, ExecutorId, Reason, RunId};
use rondel_failpoint::mutant::{self, Mutant};

use super::decision::Decision;
use super::effect::{Effect, Measure};
use super::queue::limits::{LimitKey, shares_limit, wait_detail};
use super::queue::parked::Offer;
use super::queue::turns;
use super::ready::{ReadyRun, waited_ms};
use super::runs::WaitingRun;
use super::state::{State, Work};
use super::step::Step;
use super::timer::Timer;
use super::{ahead, assign, place, shadow, switches, waits};

/// Maximum number of jobs without a gate that are remembered.
const UNGATED_COUNT_MAX: usize = 100_000;

/// Releases every run whose instant has come, or that may be sent or marked ahead of its instant. Releases no run until the runs that were open
/// when the lease was taken are [known](Decision::may_start_runs).
pub(super) fn release(d: &mut Decision<'_>) {
    let now = d.now;
    if !d.may_start_runs() {
        return;
    }
    while let Some((ready, timer)) = d.state.runs.take_due(now) {
        handle_timer(d, ready, timer);
    }
    while d.state.outbox.not_yet_due.first().is_some_and(|(at, _)| *at <= now) {
        let Some((_, run)) = d.state.outbox.not_yet_due.pop_first() else { return };
        if let Some(active) = d.state.runs.active(run) {
            d.state.outbox.triggers.entry(active.executor).or_default().push(run);
        }
    }
}

fn handle_timer(d: &mut Decision<'_>, ready: ReadyRun, timer: Timer) {
    let now = d.now;
    let due_at = ready.run.due_at;
    let is_held_back = is_being_adopted(d, &ready);
    // A held-back run that was handed over is forgotten now, because the adoption may take longer than the handover is remembered.
    if timer.is_outdated(due_at, now, d.facts.uptime) || is_held_back && d.facts.departing.has(ready.run.id) {
        // The periodic queries read the run again if it is still open.
        d.forget_under_lease([(ready.run.id, ready.token())]);
    } else if is_held_back {
        d.state.runs.hold_back(ready, timer);
    } else {
        place_ungated_runs(d, &ready);
        if timer.at < due_at && !may_go_ahead(d, &ready) {
            return d.state.runs.schedule(ready, timer.set_to(due_at));
        }
        if ready.run.cause == 0 && ready.run.attempt == 1 {
            d.effects.push(Effect::Measure(Measure::FireLateness(now.since(due_at))));
        }
        start(d, ready.with_queue_start(now));
    }
}

/// Remembers the job if it has no gate. If an edit has given a remembered job a gate, gives places at the gate to the job's earlier runs that
/// executors may still have.
fn place_ungated_runs(d: &mut Decision<'_>, ready: &ReadyRun) {
    let State { ungated_jobs, runs, gates, .. } = &mut *d.state;
    let (run, job, definition) = (ready.run.id, ready.run.job, &ready.definition.job);
    if definition.concurrency_max().is_none() {
        if ungated_jobs.len() >= UNGATED_COUNT_MAX {
            ungated_jobs.clear();
        }
        ungated_jobs.insert(job);
    } else if definition.pump.is_none() && ungated_jobs.remove(&job) {
        let active_runs = runs.active_runs().map(|active| (&active.ready, Some(active.executor)));
        let roll_call_runs = runs.all_in_roll_call().map(|ready| (ready, ready.run.executor_id));
        let earlier_runs =
            active_runs.chain(roll_call_runs).filter(|(earlier, _)| earlier.run.job == job && earlier.run.id != run);
        earlier_runs.for_each(|(earlier, executor)| gates.open_place_before(earlier, executor, ready));
    }
}

/// Whether runs that are still to be taken over may come before `ready`, in its job's order or under a limit that jobs share.
fn is_being_adopted(d: &Decision<'_>, ready: &ReadyRun) -> bool {
    let recovery = &d.state.recovery;
    let is_job_being_adopted =
        recovery.adopting_jobs.contains(&ready.run.job) && !mutant::on(Mutant::NoHoldWhileAdopting);
    let may_share_limit = recovery.is_adopting && shares_limit(ready) && !mutant::on(Mutant::LimitsWhileAdopting);
    is_job_being_adopted || may_share_limit
}

/// Whether nothing holds the run back, so that it can get its executor before its instant. The run is then sent ahead, or it is marked
/// shortly before its instant and sent at that instant. A run that must wait for others is examined when it is due.
fn may_go_ahead(d: &Decision<'_>, ready: &ReadyRun) -> bool {
    let now = d.now;
    let needs_mark = ready.definition.job.delivery == Delivery::AtMostOnce;
    !shadow::is_shadow(ready)
        && question(ready.definition.job.route).is_none()
        && d.state.gates.would_pass(ready)
        && (needs_mark || ahead::may_go_to_any_fit(d, ready) && switches::switch_wait(d, ready).is_none())
        && d.state.limits.limit_holding_back(ready, now).is_none()
        && !ready.is_missed(now)
}

/// Starts a due run: passes it through the job's gate, then to an executor.
pub(super) fn start(d: &mut Decision<'_>, ready: ReadyRun) {
    let is_departing = d.facts.departing.has(ready.run.id);
    if is_departing || d.state.is_draining || ready.token() != d.facts.token {
        d.forget_under_lease([(ready.run.id, ready.token())]);
        return;
    }
    if !d.state.gates.open_reserved_place(&ready) && d.state.gates.is_at_other_gate(&ready) {
        turns::leave_gate(d, ready.run.id);
        offer_freed_places(d);
    }
    let run = ready.run.id;
    if shadow::is_shadow(&ready) {
        place::place_or_park(d, ready);
        return offer_freed_places(d);
    }
    let gate_decision = d.state.gates.enter(ready, &mut d.state.runs);
    if let Some(ready) = turns::apply_gate_decision(d, run, gate_decision) {
        place::place_or_park(d, ready);
    }
    offer_freed_places(d);
}

/// Offers freed places to waiting runs, in the order of `work_queue`. Only event handlers call this function: the functions that it calls add to
/// `d.state.work_queue` instead.
pub(super) fn offer_freed_places(d: &mut Decision<'_>) {
    while let Some(work) = d.state.work_queue.pop_front() {
        match work {
            Work::Start((run, executor)) => {
                if let Some(admitted_run) = d.state.runs.take(run) {
                    start_next(d, admitted_run.ready, executor);
                }
            }
            Work::Offer(key) => offer_limit(d, &key),
        }
    }
}

/// Starts a run whose turn has come at the gate of an executor, or of its job.
fn start_next(d: &mut Decision<'_>, ready: ReadyRun, executor: Option<ExecutorId>) {
    let Some(ready) = unless_too_late(d, ready) else { return };
    // A job that is moving, or whose app is switched off, starts nothing: its runs wait as if no executor had room.
    let is_moving = d.state.pending_steps.jobs_in_handover.contains(&ready.run.job);
    let may_start = !is_moving && switches::switch_wait(d, &ready).is_none();
    let online = executor.and_then(|id| d.state.executors.get(id)).filter(|online| may_start && online.takes_new());
    if let Some((id, name)) = online.map(|online| (online.session.executor, online.name.clone())) {
        assign::assign(d, ready, id, name);
    } else {
        let admitted_runs = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
        turns::queue_starts(d, admitted_runs);
        place::place_or_park(d, ready);
    }
}

/// Returns a run whose turn has come. If its queue timeout has passed, ends the run instead. A catch-up fire that an executor can take does not
/// end, but gets a new queue timeout.
fn unless_too_late(d: &mut Decision<'_>, ready: ReadyRun) -> Option<ReadyRun> {
    let now = d.now;
    if !ready.is_expired(now) {
        return Some(ready);
    }
    let has_eligible_executor = !d.state.executors.eligible_executors(&ready).is_empty();
    if has_eligible_executor && ready.is_catch_up() {
        return Some(ReadyRun { queued_at: Some(now), ..ready });
    }
    let run_ahead = d.state.gates.ahead_of(ready.run.id);
    expire_in_order(d, ready, run_ahead);
    None
}

/// Offers places under the rate limits that may admit their next run by now. Also asks the store for the homes of limits that are not known.
pub(super) fn wake_limits(d: &mut Decision<'_>) {
    let now = d.now;
    // A node that takes over another node's runs also becomes the home of that node's limits. It must know all these runs first.
    if !d.state.recovery.is_adopting {
        let homes_to_ask = d.state.limits.take_homes_to_ask();
        if !homes_to_ask.is_empty() {
            d.step(Step::LimitHomes(homes_to_ask));
        }
    }
    for key in d.state.limits.limits_to_wake(now) {
        d.state.work_queue.push_back(Work::Offer(key.clone()));
        offer_freed_places(d);
        d.state.limits.schedule_wake(&key, now, &d.state.runs);
    }
}

/// Offers the places that are free under a limit to the runs that wait for it.
fn offer_limit(d: &mut Decision<'_>, key: &LimitKey) {
    let now = d.now;
    while let Some(WaitingRun { ready, since: waiting_since }) = d.state.limits.take_next(key, now, &mut d.state.runs) {
        let run = ready.run.id;
        if ready.is_expired(now) {
            let waited_ms = Some(waited_ms(&ready, now));
            waits::skip(d, &ready, Reason::Expired, ReasonDetail { waited_ms, ..wait_detail(key, &ready) });
            continue;
        }
        if let Some(ready) = place::place(d, ready) {
            d.state.parked.push(WaitingRun { ready, since: waiting_since }, &mut d.state.runs);
        }
        d.state.limits.set_waiting_since(run, waiting_since, &mut d.state.runs);
    }
}

/// Ends a run whose queue timeout passed while it waited for earlier runs of its job; `run_ahead` is the first of those runs. A catch-up fire
/// enters the gate again instead. The reason is `overlap` if an executor could have taken the run.
pub(super) fn expire_in_order(d: &mut Decision<'_>, ready: ReadyRun, run_ahead: Option<RunId>) {
    let now = d.now;
    let has_eligible_executor = !d.state.executors.eligible_executors(&ready).is_empty();
    if !has_eligible_executor || switches::switch_wait(d, &ready).is_some() {
        place::expire(d, ready);
    } else if ready.is_catch_up() {
        // Earlier missed fires still run, so the queue time of this fire starts with its turn.
        let run = ready.run.id;
        let gate_decision = d.state.gates.enter(ReadyRun { queued_at: Some(now), ..ready }, &mut d.state.runs);
        let ready_run = turns::apply_gate_decision(d, run, gate_decision);
        ready_run.into_iter().for_each(|ready| place::place_or_park(d, ready));
    } else {
        let waited_ms = Some(waited_ms(&ready, now));
        let detail =
            ReasonDetail { waits_for: Some(WaitFor::Run), run: run_ahead, waited_ms, ..ReasonDetail::default() };
        waits::skip(d, &ready, Reason::Overlap, detail);
    }
}

/// Offers the free executors of an app to its parked runs, in the order of their turns.
pub(super) fn unpark(d: &mut Decision<'_>, app: AppId) {
    let now = d.now;
    if !d.state.executors.has_room_in(app, now) {
        return;
    }
    let mut offer = Offer::new(d.facts.settings.refused_kinds_max);
    while let Some(WaitingRun { ready, since: waiting_since }) =
        d.state.parked.take_next(app, &offer, &mut d.state.runs)
    {
        let run = ready.run.id;
        let returned_run = place::place(d, ready);
        offer_freed_places(d);
        d.state.limits.set_waiting_since(run, waiting_since, &mut d.state.runs);
        if let Some(ready) = returned_run {
            d.state.parked.refuse(WaitingRun { ready, since: waiting_since }, &mut offer, &mut d.state.runs);
        }
    }
}
