//! The checks of each second: long runs, expired waits, lost executors, the roll call.

use rondel_core::Reason;
use rondel_store::LeaseToken;
use rondel_store::ledger::RunAtExecutor;

use super::active::{ActiveRun, NOTE_RUNNING_AFTER, Phase};
use super::decision::Decision;
use super::effect::{Effect, Measure};
use super::queue::turns;
use super::recovery::{fences, look, lose, overdue, relay, roll, seek, silence, unanswered};
use super::step::Step;
use super::waits;
use super::{expand, flow, place, switches};

/// Maximum number of runs that are noted as running in one request.
const NOTE_BATCH: usize = 500;

pub(super) fn run_checks(d: &mut Decision<'_>, ended_leases: &[LeaseToken]) {
    let now = d.now;
    measure_runs(d);
    switches::stop_executors(d);
    note_running(d);
    unanswered::end_silent_streams(d);
    overdue::watch_deadlines(d);
    lose::lose_again(d);
    turns::store_stop_requests(d);
    expand::expand_again(d);
    d.state.limits.ask_for_homes_again();
    for (ready, detail) in d.state.limits.take_expired(now, &mut d.state.runs) {
        waits::skip(d, &ready, Reason::Expired, detail);
    }
    for ready in d.state.parked.take_expired(now, &mut d.state.runs) {
        place::expire(d, ready);
    }
    for (ready, ahead) in d.state.gates.take_expired(now, &mut d.state.runs) {
        flow::expire_in_order(d, ready, ahead);
        flow::offer_freed_places(d);
    }
    ended_leases.iter().for_each(|lease| fences::announce(d, *lease));
    silence::watch_silent_executors(d);
    look::look_for_lost_executors(d);
    look::look_at_rows(d);
    roll::resolve(d);
    fences::ask_witnesses(d);
    relay::ask_elsewhere(d);
    for app in d.state.parked.apps() {
        flow::unpark(d, app);
    }
    seek::seek_elsewhere(d);
    // Waits are noted last, after every run that can be sent has been placed: a run whose wait is noted must be marked
    // before it is sent.
    waits::note_waits(d);
}

/// Measures how many runs executors have, and how many due runs wait.
fn measure_runs(d: &mut Decision<'_>) {
    let waiting_count = d.state.parked.len() + d.state.gates.queued_count() + d.state.limits.waiting_count();
    let measure = Measure::Runs { active: d.state.runs.active_count(), queued: waiting_count };
    d.effects.push(Effect::Measure(measure));
    let waiting_runs = Measure::WaitingRuns {
        gates: d.state.gates.queued_count(),
        limits: d.state.limits.waiting_count(),
        parked: d.state.parked.len(),
        roll_call: d.state.recovery.rollcall.len(),
    };
    d.effects.push(Effect::Measure(waiting_runs));
}

fn note_running(d: &mut Decision<'_>) {
    let now = d.now;
    let note = |active: &mut ActiveRun| {
        let is_long_run = active.phase == Phase::Sent && active.sent_or_chosen_at + NOTE_RUNNING_AFTER <= now;
        let began_at = active.began_at.filter(|_| is_long_run)?;
        (active.phase, active.row_names_executor) = (Phase::Noted, true);
        Some(active.run_at_executor(began_at))
    };
    let mut started_runs: Vec<RunAtExecutor> = d.state.runs.active_runs_mut().filter_map(note).collect();
    started_runs.sort_unstable_by_key(|in_hand| in_hand.run);
    d.effects.extend(started_runs.chunks(NOTE_BATCH).map(|batch| Effect::Store(Step::NoteRunning(batch.to_vec()))));
}
