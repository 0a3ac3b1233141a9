//! Whose turn it is: what gates and limits decide, done.

use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, NodeId, Reason, RunId, Timestamp};
use rondel_store::ledger::LimitName;

use super::Ready;
use super::gates::{Entry, Passed, queue_max};
use super::limits::{LimitKey, wait_detail};
use super::run_loop::DispatchLoop;
use super::state::{Arrival, Stage, Timer, Waiting};
use super::steps::Step;
use super::waits::waited_ms;

/// Runs whose jobs go to another node in one transaction.
const HAND_OVER_BATCH: usize = 500;

/// What a free place means for the runs behind it. Whatever frees a place while this is done adds to the same queue.
#[derive(Debug)]
pub(super) enum Work {
    /// The turn of a run has come at a gate.
    Start(Passed),
    /// A limit may have room for the next run.
    Offer(LimitKey),
}

impl DispatchLoop {
    /// A run is due: through the job's gate, then to an executor.
    pub(super) fn start(&mut self, ready: Ready, now: Timestamp) {
        let is_given = self.shared.departing.has(ready.run.id);
        if is_given || self.is_draining || ready.token() != self.shared.membership.token() {
            self.shared.in_memory.forget_of([(ready.run.id, ready.token())]);
            return;
        }
        if self.gates.is_elsewhere(&ready) {
            self.leave_gate(ready.run.id);
            self.work_off(now);
        }
        let run = ready.run.id;
        let entry = self.gates.enter(ready, &mut self.runs);
        if let Some(ready) = self.entered(run, entry, now) {
            self.place_or_park(ready, now);
        }
        self.work_off(now);
    }

    /// Does what a gate says about a run, and gives it back where it may pass.
    pub(super) fn entered(&mut self, run: RunId, entry: Entry, now: Timestamp) -> Option<Ready> {
        match entry {
            Entry::Passed(ready) => Some(ready),
            Entry::Queued => None,
            Entry::Discarded(ready) => {
                let (ahead, queued) = self.gates.ahead_of(&ready);
                let is_queue_full = queued > 0 && queued >= queue_max(&ready.definition.job);
                let queue_max = is_queue_full.then(|| u64::try_from(queued).unwrap_or(u64::MAX));
                let detail = Detail { run: ahead, queue_max, ..Detail::default() };
                self.skip(&ready, Reason::Overlap, detail, now);
                None
            }
            Entry::Covered(ready) => {
                self.skip(&ready, Reason::Covered, Detail::default(), now);
                None
            }
            Entry::Covers { open, waiting } => {
                for covered in waiting {
                    self.skip(&covered, Reason::Covered, by_later(run), now);
                }
                self.make_room(open, run, now);
                None
            }
        }
    }

    /// Those who are open end for a later run. Who was not sent is passed over; the others are asked to stop, durably,
    /// so that a crash between the asking and their end changes nothing: the later run waits for their verdicts.
    fn make_room(&mut self, open: Vec<RunId>, later: RunId, now: Timestamp) {
        for run in open {
            match self.take_waiting(run) {
                Some(ready) if ready.run.attempt == 1 => {
                    self.skip(&ready, Reason::Covered, by_later(later), now);
                }
                again => {
                    // An attempt before it began: it ends as one that was asked to stop.
                    self.parked_again(again, now);
                    self.covering.insert(run);
                }
            }
        }
        self.ask_covered();
    }

    fn parked_again(&mut self, ready: Option<Ready>, now: Timestamp) {
        ready.into_iter().for_each(|ready| self.parked.push(Waiting::new(ready, now), &mut self.runs));
    }

    /// Asks for what a later run takes the place of; again each second until that is durable.
    pub(super) fn ask_covered(&mut self) {
        if !self.covering.is_empty() {
            self.step(Step::Cover(self.covering.iter().copied().collect()));
        }
    }

    /// Who was asked to make room, durably; and what that means for the runs.
    pub(super) fn covered(&mut self, asked: &[RunId], cancels: Vec<(RunId, String)>, now: Timestamp) {
        for run in asked {
            self.covering.remove(run);
        }
        self.cancel(cancels, now);
    }

    /// A run has ended, or is not this node's: its place at its gate is free.
    pub(super) fn leave_gate(&mut self, run: RunId) {
        let passed = self.gates.leave(run, &mut self.runs);
        self.go_on(passed);
    }

    /// The turn of these runs has come: [`work_off`](Self::work_off) starts them.
    pub(super) fn go_on(&mut self, passed: Vec<Passed>) {
        self.work.extend(passed.into_iter().map(Work::Start));
    }

    /// Does what free places mean for the runs behind them, in order. Only called where an event is handled: the methods
    /// that work leads to add to the queue.
    pub(super) fn work_off(&mut self, now: Timestamp) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Start((run, executor)) => {
                    if let Some(admitted) = self.runs.take(run) {
                        self.start_next(admitted.ready, executor, now);
                    }
                }
                Work::Offer(key) => self.offer_limit(&key, now),
            }
        }
    }

    /// The turn of a run has come, at the gate of an executor or of its job.
    fn start_next(&mut self, ready: Ready, executor: Option<ExecutorId>, now: Timestamp) {
        let Some(ready) = self.unless_too_late(ready, now) else { return };
        let online = executor.and_then(|id| self.executors.get(id)).filter(|online| !online.draining);
        if let Some((id, name)) = online.map(|online| (online.session.executor, online.name.clone())) {
            self.assign(ready, id, name, now);
        } else {
            let passed = self.gates.leave_executor(ready.run.id, &mut self.runs);
            self.go_on(passed);
            self.place_or_park(ready, now);
        }
    }

    /// Gives a run back whose turn has come, unless it has been queued for too long by then.
    fn unless_too_late(&mut self, ready: Ready, now: Timestamp) -> Option<Ready> {
        if !ready.is_expired(now) {
            return Some(ready);
        }
        let is_served = !self.executors.staying(ready.run.app, &ready.definition.job).is_empty();
        if is_served && ready.is_made_up() {
            return Some(Ready { queued_at: Some(now), ..ready });
        }
        self.expire_behind(ready, now);
        None
    }

    /// Gives the run back unless one of its limits holds it back: then it waits there.
    pub(super) fn unless_held_back(&mut self, ready: Ready, now: Timestamp) -> Option<Ready> {
        let Some(key) = self.limits.holding_back(&ready, now) else { return Some(ready) };
        let passed = self.gates.leave_executor(ready.run.id, &mut self.runs);
        self.limits.wait(key, Waiting::new(ready, now), now, &mut self.runs);
        self.go_on(passed);
        None
    }

    /// A run was routed to this executor: through the job's gate there and its limits. Gives it back if it may be sent.
    pub(super) fn admit(&mut self, ready: Ready, executor: ExecutorId, now: Timestamp) -> Option<Ready> {
        let ready = match self.gates.would_pass_at(&ready, executor) {
            true => self.unless_held_back(ready, now)?,
            false => ready,
        };
        let run = ready.run.id;
        let entry = self.gates.enter_at(ready, executor, &mut self.runs);
        let ready = self.entered(run, entry, now)?;
        self.limits.take(&ready, now);
        Some(ready)
    }

    /// The executor has not got the run: what it took on the way there is free again.
    pub(super) fn give_back(&mut self, ready: &Ready) {
        self.deadlines.forget(ready.run.id);
        let freed = self.limits.undo(ready);
        let passed = self.gates.leave_executor(ready.run.id, &mut self.runs);
        self.go_on(passed);
        self.work.extend(freed.map(Work::Offer));
    }

    /// The run is with no executor any more: its limit has room for the next.
    pub(super) fn release_limit(&mut self, run: RunId) {
        self.work.extend(self.limits.release(run).map(Work::Offer));
    }

    /// Who counts for these limits. Runs of another node's limits go to that node; where it is dead they wait until somebody
    /// stands in for it.
    pub(super) fn homes_of_limits(&mut self, homes: Vec<(LimitName, NodeId)>, now: Timestamp) {
        let this = self.shared.membership.token().node;
        for (name, home) in homes {
            if home == this {
                self.limits.own(name.clone());
                self.work.push_back(Work::Offer(LimitKey::Home(name)));
                self.work_off(now);
                continue;
            }
            let closed = self.close_jobs(&self.limits.homeless(&name, HAND_OVER_BATCH, &self.runs));
            if !closed.is_empty() {
                self.step_away(closed.clone(), Step::HandOver(closed, home));
            }
        }
    }

    /// Limits on starts that let the next one go by now, and limits of which nobody knows yet who counts.
    pub(super) fn wake_limits(&mut self, now: Timestamp) {
        let to_ask = self.limits.take_to_ask();
        if !to_ask.is_empty() {
            self.step(Step::LimitHomes(to_ask));
        }
        for key in self.limits.awake(now) {
            self.work.push_back(Work::Offer(key.clone()));
            self.work_off(now);
            self.limits.wait_on(&key, now, &self.runs);
        }
    }

    fn offer_limit(&mut self, key: &LimitKey, now: Timestamp) {
        while let Some(Waiting { ready, since }) = self.limits.next(key, now, &mut self.runs) {
            let run = ready.run.id;
            if ready.is_expired(now) {
                let waited_ms = Some(waited_ms(&ready, now));
                self.skip(&ready, Reason::Expired, Detail { waited_ms, ..wait_detail(key, &ready) }, now);
                continue;
            }
            if let Some(ready) = self.place(ready, now) {
                self.parked.push(Waiting { ready, since }, &mut self.runs);
            }
            self.limits.waits_since(run, since, &mut self.runs);
        }
    }

    /// Takes a run out that waits here for its turn, for a limit or for an executor.
    pub(super) fn take_waiting(&mut self, run: RunId) -> Option<Ready> {
        match self.runs.stage(run)? {
            Stage::Parked(_) => self.parked.remove(run, &mut self.runs).map(|waiting| waiting.ready),
            Stage::Limited(_) => self.limits.remove(run, &mut self.runs).map(|waiting| waiting.ready),
            Stage::Queued => self.gates.remove_queued(run, &mut self.runs),
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
    pub(super) fn arrived(&mut self, ready: Ready) {
        match self.runs.arrival(&ready) {
            Arrival::New => {}
            Arrival::Replaces => self.withdraw(ready.run.id),
            Arrival::Known => return,
        }
        let timer = Timer::new(&ready);
        self.runs.schedule(ready, timer);
    }

    /// Drops what waits here of a run, wherever that is.
    pub(super) fn withdraw(&mut self, run: RunId) {
        if self.take_waiting(run).is_some() {
            return;
        }
        let Some(open) = self.runs.withdraw(run) else { return };
        match open.stage {
            Stage::Probing(_) => self.probes.remove(&open.ready),
            Stage::Unconfirmed(shards) => self.forget_shards(&shards),
            Stage::Scheduled(_)
            | Stage::HeldBack(_)
            | Stage::Queued
            | Stage::Admitted
            | Stage::Limited(_)
            | Stage::Parked(_)
            | Stage::Expanding => {}
        }
    }
}

/// A later run of the job takes the run's place.
fn by_later(later: RunId) -> Detail {
    Detail { run: Some(later), ..Detail::default() }
}
