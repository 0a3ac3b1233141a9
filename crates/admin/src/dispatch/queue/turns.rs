//! Whose turn it is: what gates and limits decide, done.

use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, NodeId, Reason, RunId};
use rondel_store::ledger::LimitName;

use crate::dispatch::decision::Decision;
use crate::dispatch::queue::limits::{LimitKey, wait_detail};
use crate::dispatch::queue::overlap::{Entry, Passed, queue_max};
use crate::dispatch::ready::Ready;
use crate::dispatch::recovery::seek;
use crate::dispatch::results::verdicts;
use crate::dispatch::runs::{Arrival, Stage, Timer, Waiting};
use crate::dispatch::step::Step;
use crate::dispatch::waits::{self, waited_ms};
use crate::dispatch::{place, round};

/// Runs whose jobs go to another node in one transaction.
const HAND_OVER_BATCH: usize = 500;

/// What a free place means for the runs behind it. Whatever frees a place while this is done adds to the same queue.
#[derive(Debug)]
pub(crate) enum Work {
    /// The turn of a run has come at a gate.
    Start(Passed),
    /// A limit may have room for the next run.
    Offer(LimitKey),
}

/// A run is due: through the job's gate, then to an executor.
pub(crate) fn start(d: &mut Decision<'_>, ready: Ready) {
    let is_given = d.facts.departing.has(ready.run.id);
    if is_given || d.state.is_draining || ready.token() != d.facts.token {
        d.forget_of([(ready.run.id, ready.token())]);
        return;
    }
    if d.state.gates.is_elsewhere(&ready) {
        leave_gate(d, ready.run.id);
        work_off(d);
    }
    let run = ready.run.id;
    let entry = d.state.gates.enter(ready, &mut d.state.runs);
    if let Some(ready) = entered(d, run, entry) {
        place::place_or_park(d, ready);
    }
    work_off(d);
}

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

/// These runs were asked to make room, durably.
pub(crate) fn covered(d: &mut Decision<'_>, asked: &[RunId], cancels: Vec<(RunId, String)>) {
    for run in asked {
        d.state.pending.covering.remove(run);
    }
    verdicts::cancel_runs(d, cancels);
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

/// Does what free places mean for the runs behind them, in order. Only called where an event is handled: the methods
/// that work leads to add to the queue.
pub(crate) fn work_off(d: &mut Decision<'_>) {
    while let Some(work) = d.state.work.pop_front() {
        match work {
            Work::Start((run, executor)) => {
                if let Some(admitted) = d.state.runs.take(run) {
                    start_next(d, admitted.ready, executor);
                }
            }
            Work::Offer(key) => offer_limit(d, &key),
        }
    }
}

/// The turn of a run has come, at the gate of an executor or of its job.
fn start_next(d: &mut Decision<'_>, ready: Ready, executor: Option<ExecutorId>) {
    let Some(ready) = unless_too_late(d, ready) else { return };
    let online = executor.and_then(|id| d.state.executors.get(id)).filter(|online| !online.draining);
    if let Some((id, name)) = online.map(|online| (online.session.executor, online.name.clone())) {
        place::assign(d, ready, id, name);
    } else {
        let passed = d.state.gates.leave_executor(ready.run.id, &mut d.state.runs);
        go_on(d, passed);
        place::place_or_park(d, ready);
    }
}

/// Gives a run back whose turn has come, unless it has been queued for too long by then.
fn unless_too_late(d: &mut Decision<'_>, ready: Ready) -> Option<Ready> {
    let now = d.now;
    if !ready.is_expired(now) {
        return Some(ready);
    }
    let is_served = !d.state.executors.staying(ready.run.app, &ready.definition.job).is_empty();
    if is_served && ready.is_made_up() {
        return Some(Ready { queued_at: Some(now), ..ready });
    }
    round::expire_behind(d, ready);
    None
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

/// The nodes that count for these limits. Runs of another node's limits go to that node; where it is dead they wait until another
/// one takes its place.
pub(crate) fn homes_of_limits(d: &mut Decision<'_>, homes: Vec<(LimitName, NodeId)>) {
    let this = d.facts.token.node;
    for (name, home) in homes {
        if home == this {
            d.state.limits.own(name.clone());
            d.state.work.push_back(Work::Offer(LimitKey::Home(name)));
            work_off(d);
            continue;
        }
        let jobs = d.state.limits.homeless(&name, HAND_OVER_BATCH, &d.state.runs);
        let closed = seek::close_jobs(d, &jobs);
        if !closed.is_empty() {
            d.step(Step::HandOver(closed, home));
        }
    }
}

/// Limits on starts that let the next one go by now, and limits of which it is not known yet which node counts.
pub(crate) fn wake_limits(d: &mut Decision<'_>) {
    let now = d.now;
    let to_ask = d.state.limits.take_to_ask();
    if !to_ask.is_empty() {
        d.step(Step::LimitHomes(to_ask));
    }
    for key in d.state.limits.awake(now) {
        d.state.work.push_back(Work::Offer(key.clone()));
        work_off(d);
        d.state.limits.wait_on(&key, now, &d.state.runs);
    }
}

fn offer_limit(d: &mut Decision<'_>, key: &LimitKey) {
    let now = d.now;
    while let Some(Waiting { ready, since }) = d.state.limits.next(key, now, &mut d.state.runs) {
        let run = ready.run.id;
        if ready.is_expired(now) {
            let waited_ms = Some(waited_ms(&ready, now));
            waits::skip(d, &ready, Reason::Expired, Detail { waited_ms, ..wait_detail(key, &ready) });
            continue;
        }
        if let Some(ready) = place::place(d, ready) {
            d.state.parked.push(Waiting { ready, since }, &mut d.state.runs);
        }
        d.state.limits.waits_since(run, since, &mut d.state.runs);
    }
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
