//! From due to placed: an executor for a run, or a queue that it waits in.

use rondel_core::ExecutorId;
use rondel_core::RunId;
use rondel_core::outcome::Outcome;
use rondel_core::route::question;
use rondel_store::ledger::AttemptEnd;

use super::active::{Active, Phase};
use super::decision::Decision;
use super::effect::{Effect, Measure, Submission};
use super::queue::turns;
use super::ready::{Ready, finish_unsent};
use super::runs::{Timer, Waiting};
use super::step::Step;
use super::switches::{self, Switched};
use super::waits::too_late;
use super::{expand, round, routing};
use crate::metrics::Counted;

/// Lets every run go whose instant has come, once it is known what was open before.
pub(super) fn release(d: &mut Decision<'_>) {
    let now = d.now;
    if !d.knows_open_runs() {
        return;
    }
    while let Some((ready, timer)) = d.state.runs.take_due(now) {
        timer_fired(d, ready, timer);
    }
    while d.state.outbox.marked_ahead.first().is_some_and(|(at, _)| *at <= now) {
        let Some((_, run)) = d.state.outbox.marked_ahead.pop_first() else { return };
        if let Some(active) = d.state.runs.active(run) {
            d.state.outbox.triggers.entry(active.executor).or_default().push(run);
        }
    }
}

fn timer_fired(d: &mut Decision<'_>, ready: Ready, timer: Timer) {
    let now = d.now;
    let due_at = ready.run.due_at;
    if timer.is_outdated(due_at, now, d.facts.uptime) {
        // It is read anew by the standing queries, if it is still open.
        d.forget_of([(ready.run.id, ready.token())]);
    } else if d.state.recovery.is_adopting && d.state.terms.get(&ready.run.job) != Some(&ready.term) {
        d.state.runs.hold_back(ready, timer);
    } else if timer.at < due_at && !may_go_ahead(d, &ready) {
        d.state.runs.schedule(ready, timer.set_to(due_at));
    } else {
        if ready.run.cause == 0 && ready.run.attempt == 1 {
            d.effects.push(Effect::Measure(Measure::FireLateness(now.since(due_at))));
        }
        turns::start(d, ready.taken_up(now));
    }
}

/// Whether nothing stands in a run's way, so that it can be given to an executor shortly before its instant, marked,
/// and sent when that comes. What has to wait for others is looked at when it is due.
fn may_go_ahead(d: &Decision<'_>, ready: &Ready) -> bool {
    let now = d.now;
    question(ready.definition.job.route).is_none()
        && d.state.gates.would_pass(ready)
        && d.state.limits.holding_back(ready, now).is_none()
        && !ready.is_missed(now)
}

pub(super) fn place_or_park(d: &mut Decision<'_>, ready: Ready) {
    let now = d.now;
    if let Some(ready) = place(d, ready) {
        d.state.parked.push(Waiting::new(ready, now), &mut d.state.runs);
    }
}

/// Finds an executor; gives the run back where there is none with room.
pub(super) fn place(d: &mut Decision<'_>, ready: Ready) -> Option<Ready> {
    let now = d.now;
    if ready.token() != d.facts.token {
        // Taken under a lease that has ended: the node that adopts it finds it.
        let_go(d, &[ready]);
        return None;
    }
    if !d.may_send() {
        return Some(ready);
    }
    if ready.came_late && ready.is_missed(now) {
        submit(d, too_late(&ready, now), Counted::of_ready(&ready));
        return None;
    }
    let is_under_way = ready.run.is_root() && ready.run.shard_total.is_some();
    if ready.is_expired(now) && !is_under_way {
        round::expire(d, ready);
        return None;
    }
    if d.state.pending.handing.contains(&ready.run.job) {
        return Some(ready);
    }
    let ready = match switches::unless_switched_off(d, ready) {
        Switched::On(ready) => ready,
        Switched::Waits(ready) => return Some(ready),
        Switched::Ended => return None,
    };
    if ready.run.is_root() {
        if ready.run.shard_total.is_none() {
            let ready = turns::unless_held_back(d, ready)?;
            return expand::expand(d, ready);
        }
        // It is under way by its shards, and never sent itself.
        d.forget([ready.run.id]);
        return None;
    }
    let ready = turns::unless_held_back(d, ready)?;
    routing::route(d, ready)
}

pub(super) fn assign(d: &mut Decision<'_>, ready: Ready, executor: ExecutorId, executor_name: String) {
    let now = d.now;
    let Some(ready) = turns::admit(d, ready, executor) else { return };
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.in_flight += 1;
    }
    let marking = ready.is_marked_first();
    let phase = if marking { Phase::Marking } else { Phase::Placed };
    let active = Active::new(ready, executor, executor_name, now, phase);
    if marking {
        d.state.outbox.marks.push(active.in_hand(active.sent_at));
    } else {
        d.state.outbox.triggers.entry(executor).or_default().push(active.ready.run.id);
    }
    d.state.runs.put_active(active);
}

/// These runs are another node's, or settled, or are found again by the standing queries. Until it is known which, they
/// keep their places in their jobs' order.
pub(super) fn let_go(d: &mut Decision<'_>, gone: &[Ready]) {
    for ready in gone {
        forget_unsent(d, ready);
        let passed = d.state.gates.again(ready.run.id, &mut d.state.runs);
        turns::go_on(d, passed);
    }
    if !gone.is_empty() {
        d.step(Step::Look(gone.iter().map(|ready| ready.run.id).collect()));
    }
}

pub(super) fn forget_unsent(d: &mut Decision<'_>, ready: &Ready) {
    let run = ready.run.id;
    d.state.deadlines.forget(run);
    d.forget_of([(run, ready.token())]);
    turns::release_limit(d, run);
}

/// Takes a run out of its executor's hands.
pub(super) fn free_active(d: &mut Decision<'_>, run: RunId) -> Option<Active> {
    let active = d.state.runs.take_active(run)?;
    d.state.outbox.marked_ahead.remove(&(active.ready.run.due_at, run));
    if !matches!(active.phase, Phase::Ending | Phase::Settling) {
        free_slot(d, active.executor);
    }
    Some(active)
}

pub(super) fn free_slot(d: &mut Decision<'_>, executor: ExecutorId) {
    if let Some(online) = d.state.executors.get_mut(executor) {
        online.in_flight = online.in_flight.saturating_sub(1);
        online.full_until = None;
    }
}

pub(super) fn end_unsent(d: &mut Decision<'_>, ready: &Ready, outcome: Outcome, message: Option<String>) {
    let now = d.now;
    let finish = finish_unsent(&ready.run, &ready.definition, outcome, now, message);
    submit(d, finish, Counted::of_ready(ready));
}

/// Stores the end of a run that no executor has. Where there is no room the run is forgotten: it is open in the store, where
/// the standing queries find it, and it is judged anew.
pub(super) fn submit(d: &mut Decision<'_>, finish: AttemptEnd, counted: Counted) {
    d.finish(Submission { finish, counted, reply_to: None, phase_before: None });
}

/// Stores the end of a run that its executor does not report. Where there is no room, the run is as it was.
pub(super) fn give_up(d: &mut Decision<'_>, run: RunId, finish: AttemptEnd) {
    let Some(active) = d.state.runs.active_mut(run) else { return };
    let (executor, counted) = (active.executor, Counted::of_ready(&active.ready));
    let phase_before = Some(std::mem::replace(&mut active.phase, Phase::Ending));
    free_slot(d, executor);
    d.finish(Submission { finish, counted, reply_to: None, phase_before });
}
