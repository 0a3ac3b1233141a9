//! Whose turn it is: what gates and limits decide, done.

use rondel_core::reason::Detail;
use rondel_core::{ExecutorId, NodeId, Reason, RunId, Timestamp};
use rondel_store::ledger::LimitName;

use super::Ready;
use super::gates::{Entry, Passed, queue_max};
use super::limits::{LimitKey, wait_detail};
use super::parked::Waiting;
use super::run_loop::DispatchLoop;
use super::steps::Step;
use super::waits::waited_ms;

/// Runs whose jobs go to another node in one transaction.
const HAND_OVER_BATCH: usize = 500;

impl DispatchLoop {
    /// A run is due: through the job's gate, then to an executor.
    pub(super) fn start(&mut self, ready: Ready, now: Timestamp) {
        let is_given = self.shared.departing.has(ready.run.id);
        if is_given || self.is_draining || ready.token() != self.shared.membership.token() {
            self.shared.in_memory.forget_of([(ready.run.id, ready.token())]);
            return;
        }
        if self.gates.is_elsewhere(&ready) {
            self.leave_gate(ready.run.id, now);
        }
        let run = ready.run.id;
        let entry = self.gates.enter(ready);
        if let Some(ready) = self.entered(run, entry, now) {
            self.place_or_park(ready, now);
        }
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
        ready.into_iter().for_each(|ready| self.parked.push(Waiting::new(ready, now)));
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

    /// A run is over, or not ours: whoever waited for its place goes on.
    pub(super) fn leave_gate(&mut self, run: RunId, now: Timestamp) {
        let passed = self.gates.leave(run);
        self.go_on(passed, now);
    }

    /// Their turn has come. One may be held back by a limit and so give its place to the next: they go one by one.
    pub(super) fn go_on(&mut self, passed: Vec<Passed>, now: Timestamp) {
        self.passed.extend(passed);
        if std::mem::replace(&mut self.is_going_on, true) {
            return;
        }
        while let Some((ready, executor)) = self.passed.pop_front() {
            let Some(ready) = self.unless_too_late(ready, now) else { continue };
            let online = executor.and_then(|id| self.executors.get(id)).filter(|online| !online.draining);
            if let Some((id, name)) = online.map(|online| (online.session.executor, online.name.clone())) {
                self.assign(ready, id, name, now);
            } else {
                let passed = self.gates.leave_executor(ready.run.id);
                self.passed.extend(passed);
                self.place_or_park(ready, now);
            }
        }
        self.is_going_on = false;
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
        let passed = self.gates.leave_executor(ready.run.id);
        self.limits.wait(key, Waiting::new(ready, now), now);
        self.go_on(passed, now);
        None
    }

    /// A run was routed to this executor: through the job's gate there and its limits. Gives it back if it may be sent.
    pub(super) fn admit(&mut self, ready: Ready, executor: ExecutorId, now: Timestamp) -> Option<Ready> {
        let ready = match self.gates.would_pass_at(&ready, executor) {
            true => self.unless_held_back(ready, now)?,
            false => ready,
        };
        let run = ready.run.id;
        let entry = self.gates.enter_at(ready, executor);
        let ready = self.entered(run, entry, now)?;
        self.limits.take(&ready, now);
        Some(ready)
    }

    /// The executor has not got the run: what it took on the way there is free again.
    pub(super) fn give_back(&mut self, ready: &Ready, now: Timestamp) {
        self.deadlines.forget(ready.run.id);
        let freed = self.limits.undo(ready);
        let passed = self.gates.leave_executor(ready.run.id);
        self.go_on(passed, now);
        freed.into_iter().for_each(|key| self.offer_limit(&key, now));
    }

    /// The run is with no executor any more: its limit has room for the next.
    pub(super) fn release_limit(&mut self, run: RunId, now: Timestamp) {
        if let Some(key) = self.limits.release(run) {
            self.offer_limit(&key, now);
        }
    }

    /// Who counts for these limits. Runs of another node's limits go to that node; where it is dead they wait until somebody
    /// stands in for it.
    pub(super) fn homes_of_limits(&mut self, homes: Vec<(LimitName, NodeId)>, now: Timestamp) {
        let this = self.shared.membership.token().node;
        for (name, home) in homes {
            if home == this {
                self.limits.own(name.clone());
                self.offer_limit(&LimitKey::Home(name), now);
                continue;
            }
            let closed = self.close_jobs(&self.limits.homeless(&name, HAND_OVER_BATCH));
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
            self.offer_limit(&key, now);
            self.limits.wait_on(&key, now);
        }
    }

    fn offer_limit(&mut self, key: &LimitKey, now: Timestamp) {
        while let Some(Waiting { ready, since }) = self.limits.next(key, now) {
            let run = ready.run.id;
            if ready.is_expired(now) {
                let waited_ms = Some(waited_ms(&ready, now));
                self.skip(&ready, Reason::Expired, Detail { waited_ms, ..wait_detail(key, &ready) }, now);
                continue;
            }
            if let Some(ready) = self.place(ready, now) {
                self.parked.push(Waiting { ready, since });
            }
            self.limits.waits_since(run, since);
        }
    }

    /// Takes a run out that waits here for its turn, for a limit or for an executor.
    pub(super) fn take_waiting(&mut self, run: RunId) -> Option<Ready> {
        let waiting = self.parked.remove(run).or_else(|| self.limits.remove(run));
        waiting.map(|waiting| waiting.ready).or_else(|| self.gates.remove_queued(run))
    }
}

/// A later run of the job takes the run's place.
fn by_later(later: RunId) -> Detail {
    Detail { run: Some(later), ..Detail::default() }
}
