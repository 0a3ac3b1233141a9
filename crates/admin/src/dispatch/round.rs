//! What is looked at each second: long runs, waits that are over, lost executors, the roll call.

use rondel_core::reason::{Detail, WaitFor};
use rondel_core::{AppId, Reason};
use rondel_store::LeaseToken;
use rondel_store::ledger::InHand;

use super::active::{Active, NOTE_AFTER, Phase};
use super::decision::Decision;
use super::effect::{Effect, Measure};
use super::queue::parked::Offer;
use super::queue::turns;
use super::ready::Ready;
use super::recovery::{fences, look, overdue, roll, seek, unanswered};
use super::runs::Waiting;
use super::step::Step;
use super::waits::{self, waited_ms};
use super::{expand, place, routing, switches};

/// Runs that are noted in one request.
const NOTE_BATCH: usize = 500;

pub(super) fn round(d: &mut Decision<'_>, ended: &[LeaseToken]) {
    let now = d.now;
    show(d);
    note_running(d);
    unanswered::ask_unanswered(d);
    overdue::watch_deadlines(d);
    turns::ask_covered(d);
    expand::expand_again(d);
    d.state.limits.ask_again();
    for (ready, detail) in d.state.limits.take_expired(now, &mut d.state.runs) {
        waits::skip(d, &ready, Reason::Expired, detail);
    }
    for ready in d.state.parked.take_expired(now, &mut d.state.runs) {
        expire(d, ready);
    }
    for ready in d.state.gates.take_expired(now, &mut d.state.runs) {
        expire_behind(d, ready);
        turns::work_off(d);
    }
    ended.iter().for_each(|lease| fences::announce(d, *lease));
    look::look_for_lost(d);
    look::look_at_rows(d);
    roll::resolve(d);
    fences::ask_witnesses(d);
    for app in d.state.parked.apps() {
        unpark(d, app);
    }
    seek::seek_elsewhere(d);
    // After all that can go has gone: what is noted to wait is marked before it is sent.
    waits::note_waits(d);
}

/// Ends a run whose queue time is over: no executor was online for it, or none had a free slot.
pub(super) fn expire(d: &mut Decision<'_>, mut ready: Ready) {
    let (reason, detail) = waits::unserved(d, &ready);
    ready.run.trace = Some(routing::trace_of_none(d, &ready));
    waits::skip(d, &ready, reason, detail);
}

/// The same of one that still waits for the job's earlier runs: those are what it waited for, where an executor is there.
pub(super) fn expire_behind(d: &mut Decision<'_>, ready: Ready) {
    let now = d.now;
    let is_served = !d.state.executors.staying(ready.run.app, &ready.definition.job).is_empty();
    if !is_served || switches::switched_off(d, &ready).is_some() {
        expire(d, ready);
    } else if ready.is_made_up() {
        // Missed fires before it still run, so its queue time starts with its turn.
        let run = ready.run.id;
        let entry = d.state.gates.enter(Ready { queued_at: Some(now), ..ready }, &mut d.state.runs);
        let entered = turns::entered(d, run, entry);
        entered.into_iter().for_each(|ready| place::place_or_park(d, ready));
    } else {
        let (run, _) = d.state.gates.ahead_of(&ready);
        let waited_ms = Some(waited_ms(&ready, now));
        let detail = Detail { waits_for: Some(WaitFor::Run), run, waited_ms, ..Detail::default() };
        waits::skip(d, &ready, Reason::Overlap, detail);
    }
}

/// Measures how many runs are in executors' hands, and how many are due and wait.
fn show(d: &mut Decision<'_>) {
    let waiting = d.state.parked.len() + d.state.gates.queued_count() + d.state.limits.waiting_count();
    let measure = Measure::Runs { active: d.state.runs.active_count(), queued: waiting };
    d.effects.push(Effect::Measure(measure));
}

fn note_running(d: &mut Decision<'_>) {
    let now = d.now;
    let note = |active: &mut Active| {
        let lives_long = active.phase == Phase::Sent && active.sent_at + NOTE_AFTER <= now;
        let began_at = active.began_at.filter(|_| lives_long)?;
        (active.phase, active.is_named) = (Phase::Noted, true);
        Some(active.in_hand(began_at))
    };
    let mut noted: Vec<InHand> = d.state.runs.actives_mut().filter_map(note).collect();
    noted.sort_unstable_by_key(|in_hand| in_hand.run);
    d.effects.extend(noted.chunks(NOTE_BATCH).map(|batch| Effect::Store(Step::NoteRunning(batch.to_vec()))));
}

pub(super) fn unpark(d: &mut Decision<'_>, app: AppId) {
    let now = d.now;
    if !d.state.executors.has_room_in(app, now) {
        return;
    }
    let mut offer = Offer::default();
    while let Some(Waiting { ready, since }) = d.state.parked.next(app, &offer, &mut d.state.runs) {
        let run = ready.run.id;
        let refused = place::place(d, ready);
        turns::work_off(d);
        d.state.limits.waits_since(run, since, &mut d.state.runs);
        if let Some(ready) = refused {
            d.state.parked.refuse(Waiting { ready, since }, &mut offer, &mut d.state.runs);
        }
    }
}
