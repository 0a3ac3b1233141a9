//! Performs what gates and limits decide: which run goes next, waits, or is skipped.

use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, Reason, RunId};

use crate::dispatch::decision::Decision;
use crate::dispatch::queue::overlap::{Entry, Passed, queue_max};
use crate::dispatch::ready::Ready;
use crate::dispatch::runs::{Arrival, Stage, Timer, Waiting};
use crate::dispatch::state::Work;
use crate::dispatch::step::Step;
use crate::dispatch::waits;

/// Does what a gate decides about a run, and gives it back where it may pass.
pub(crate) fn entered(d: &mut Decision<'_>, run: RunId, entry: Entry) -> Option<Ready> {
    match entry {
        Entry::Passed(ready) => Some(ready),
        Entry::Queued => None,
        Entry::Discarded(ready) => {
            let (ahead, queued) = d.state.gates.ahead_of(&ready);
            let is_queue_full = queued > 0 && queued >= queue_max(&ready.definition.job);
            let queue_max = is_queue_full.then(|| u64::try_from(queued).unwrap_or(u64::MAX));
            let detail = Detail { run: ahead, queue_max, ..Detail::default() };
            waits::skip(d, &ready, Reason::Overlap, detail);
            None
        }
        Entry::Covered(ready) => {
            waits::skip(d, &ready, Reason::Covered, Detail::default());
            None
        }
        Entry::Covers { open, waiting } => {
            for covered in waiting {
                waits::skip(d, &covered, Reason::Covered, by_later(run));
            }
            make_room(d, open, run);
            None
        }
    }
}

/// Open runs end for a later run. Those that were not sent are skipped; the others are asked to stop, durably, so that a crash
/// between the request and their end changes nothing: the later run waits for their verdicts.
fn make_room(d: &mut Decision<'_>, open: Vec<RunId>, later: RunId) {
    for run in open {
        match take_waiting(d, run) {
            Some(ready) if ready.run.attempt == 1 => {
                waits::skip(d, &ready, Reason::Covered, by_later(later));
            }
            again => {
                // An attempt before it began: it ends as one that was asked to stop.
                parked_again(d, again);
                d.state.pending.covering.insert(run);
            }
        }
    }
    ask_covered(d);
}

fn parked_again(d: &mut Decision<'_>, ready: Option<Ready>) {
    let now = d.now;
    ready.into_iter().for_each(|ready| d.state.parked.push(Waiting::new(ready, now), &mut d.state.runs));
}

/// Asks for what a later run takes the place of; again each second until that is durable.
pub(crate) fn ask_covered(d: &mut Decision<'_>) {
    if !d.state.pending.covering.is_empty() {
        let covering = d.state.pending.covering.iter().copied().collect();
        d.step(Step::Cover(covering));
    }
}

/// A run has ended, or is not this node's: its place at its gate is free.
pub(crate) fn leave_gate(d: &mut Decision<'_>, run: RunId) {
    let passed = d.state.gates.leave(run, &mut d.state.runs);
    go_on(d, passed);
}

/// The turn of these runs has come: [`work_off`] starts them.
pub(crate) fn go_on(d: &mut Decision<'_>, passed: Vec<Passed>) {
    d.state.work.extend(passed.into_iter().map(Work::Start));
}

/// Gives the run back unless one of its limits holds it back: then it waits there.
pub(crate) fn unless_held_back(d: &mut Decision<'_>, ready: Ready) -> Option<Ready> {
    let now = d.now;
    let Some(key) = d.state.limits.holding_back(&ready, now) else { return Some(ready) };
    let passed = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
    d.state.limits.wait(key, Waiting::new(ready, now), now, &mut d.state.runs);
    go_on(d, passed);
    None
}

/// A run was routed to this executor: through the job's gate there and its limits. Gives it back if it may be sent.
pub(crate) fn admit(d: &mut Decision<'_>, ready: Ready, executor: ExecutorId) -> Option<Ready> {
    let now = d.now;
    let ready = match d.state.gates.would_pass_at(&ready, executor) {
        true => unless_held_back(d, ready)?,
        false => ready,
    };
    let run = ready.run.id;
    let entry = d.state.gates.enter_at(ready, executor, &mut d.state.runs);
    let ready = entered(d, run, entry)?;
    d.state.limits.take(&ready, now);
    Some(ready)
}

/// The executor has not got the run: what it took on the way there is free again.
pub(crate) fn give_back(d: &mut Decision<'_>, ready: &Ready) {
    d.state.deadlines.forget(ready.run.id);
    let freed = d.state.limits.undo(ready);
    let passed = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
    go_on(d, passed);
    d.state.work.extend(freed.map(Work::Offer));
}

/// The run is with no executor any more: its limit has room for the next.
pub(crate) fn release_limit(d: &mut Decision<'_>, run: RunId) {
    let freed = d.state.limits.release(run);
    d.state.work.extend(freed.map(Work::Offer));
}

/// Takes a run out that waits here for its turn, for a limit or for an executor.
pub(crate) fn take_waiting(d: &mut Decision<'_>, run: RunId) -> Option<Ready> {
    match d.state.runs.stage(run)? {
        Stage::Parked(_) => d.state.parked.remove(run, &mut d.state.runs).map(|waiting| waiting.ready),
        Stage::Limited(_) => d.state.limits.remove(run, &mut d.state.runs).map(|waiting| waiting.ready),
        Stage::Queued => d.state.gates.remove_queued(run, &mut d.state.runs),
        // It is about to start, or under way: it is no longer this node's alone.
        Stage::Scheduled(_)
        | Stage::HeldBack(_)
        | Stage::Admitted
        | Stage::Probing(_)
        | Stage::Expanding
        | Stage::Unconfirmed(_) => None,
    }
}

/// A run comes from the ring, to be looked at when its timer goes off.
pub(crate) fn arrived(d: &mut Decision<'_>, ready: Ready) {
    match d.state.runs.arrival(&ready) {
        Arrival::New => {}
        Arrival::Replaces => withdraw(d, ready.run.id),
        Arrival::Known => return,
    }
    let timer = Timer::new(&ready, d.facts.uptime);
    d.state.runs.schedule(ready, timer);
}

/// Drops what waits here of a run, wherever that is.
pub(crate) fn withdraw(d: &mut Decision<'_>, run: RunId) {
    if take_waiting(d, run).is_some() {
        return;
    }
    let Some(open) = d.state.runs.withdraw(run) else { return };
    match open.stage {
        Stage::Probing(_) => d.state.probes.remove(&open.ready),
        Stage::Unconfirmed(shards) => d.forget_shards(&shards),
        Stage::Scheduled(_)
        | Stage::HeldBack(_)
        | Stage::Queued
        | Stage::Admitted
        | Stage::Limited(_)
        | Stage::Parked(_)
        | Stage::Expanding => {}
    }
}

/// A later run of the job takes the run's place.
fn by_later(later: RunId) -> Detail {
    Detail { run: Some(later), ..Detail::default() }
}
