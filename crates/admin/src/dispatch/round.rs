//! What is looked at each second: long runs, waits that are over, lost executors, the roll call.

use std::sync::atomic::Ordering;

use rondel_core::outcome::Outcome;
use rondel_core::reason::{Detail, WaitFor};
use rondel_core::{AppId, ExecutorId, Reason, RunStatus, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::InHand;

use super::parked::Offer;
use super::rollcall::Found;
use super::run_loop::{DispatchLoop, NOTE_AFTER};
use super::state::{Active, Phase, Waiting};
use super::steps::Step;
use super::waits::{explained, lost_detail, too_late, waited_ms};
use super::{CalledRun, Ready, finish_unsent};
use crate::metrics::{Counted, size};

impl DispatchLoop {
    pub(super) fn round(&mut self, now: Timestamp) {
        self.show();
        self.note_running(now);
        self.ask_unanswered(now);
        self.watch_deadlines(now);
        self.ask_covered();
        self.expand_again();
        self.limits.ask_again();
        for (ready, detail) in self.limits.take_expired(now, &mut self.runs) {
            self.skip(&ready, Reason::Expired, detail, now);
        }
        for ready in self.parked.take_expired(now, &mut self.runs) {
            self.expire(ready, now);
        }
        for ready in self.gates.take_expired(now, &mut self.runs) {
            self.expire_behind(ready, now);
            self.work_off(now);
        }
        self.note_waits(now);
        self.tell_fences(now);
        self.look_for_lost(now);
        self.look_at_rows(now);
        self.resolve_rollcall(now);
        self.ask_witnesses();
        for app in self.parked.apps() {
            self.unpark(app, now);
        }
        self.seek_elsewhere(now);
    }

    /// Ends a run whose queue time is over: no executor was online for it, or none had a free slot.
    pub(super) fn expire(&mut self, mut ready: Ready, now: Timestamp) {
        let (reason, detail) = self.unserved(&ready, now);
        ready.run.trace = Some(self.trace_of_none(&ready, now));
        self.skip(&ready, reason, detail, now);
    }

    /// The same of one that still waits for the job's earlier runs: those are what it waited for, where an executor is there.
    pub(super) fn expire_behind(&mut self, ready: Ready, now: Timestamp) {
        let is_served = !self.executors.staying(ready.run.app, &ready.definition.job).is_empty();
        if !is_served || self.switched_off(&ready).is_some() {
            self.expire(ready, now);
        } else if ready.is_made_up() {
            // Missed fires before it still run, so its queue time starts with its turn.
            let run = ready.run.id;
            let entry = self.gates.enter(Ready { queued_at: Some(now), ..ready }, &mut self.runs);
            let entered = self.entered(run, entry, now);
            entered.into_iter().for_each(|ready| self.place_or_park(ready, now));
        } else {
            let (run, _) = self.gates.ahead_of(&ready);
            let waited_ms = Some(waited_ms(&ready, now));
            let detail = Detail { waits_for: Some(WaitFor::Run), run, waited_ms, ..Detail::default() };
            self.skip(&ready, Reason::Overlap, detail, now);
        }
    }

    /// Tells operators how many runs are in executors' hands, and how many are due and wait.
    fn show(&self) {
        let waiting = self.parked.len() + self.gates.queued_count() + self.limits.waiting_count();
        self.shared.metrics.runs_active.store(size(self.runs.active_count()), Ordering::Relaxed);
        self.shared.metrics.runs_queued.store(size(waiting), Ordering::Relaxed);
    }

    pub(super) fn note_running(&mut self, now: Timestamp) {
        let is_in_hand = |active: &Active| active.phase == Phase::Sent && !active.is_unanswered();
        let lives_long = |active: &&mut Active| is_in_hand(active) && active.sent_at + NOTE_AFTER <= now;
        let note = |active: &mut Active| {
            active.phase = Phase::Noted;
            active.in_hand()
        };
        let mut noted: Vec<InHand> = self.runs.actives_mut().filter(lives_long).map(note).collect();
        noted.sort_unstable_by_key(|in_hand| in_hand.run);
        for batch in noted.chunks(500) {
            if self.steps.try_send(Step::NoteRunning(batch.to_vec())).is_err() {
                for in_hand in batch {
                    if let Some(active) = self.runs.active_mut(in_hand.run) {
                        active.phase = Phase::Sent;
                    }
                }
            }
        }
    }

    pub(super) fn unpark(&mut self, app: AppId, now: Timestamp) {
        if !self.executors.has_room_in(app, now) {
            return;
        }
        let mut offer = Offer::default();
        while let Some(Waiting { ready, since }) = self.parked.next(app, &offer, &mut self.runs) {
            let run = ready.run.id;
            let refused = self.place(ready, now);
            self.work_off(now);
            self.limits.waits_since(run, since, &mut self.runs);
            if let Some(ready) = refused {
                self.parked.refuse(Waiting { ready, since }, &mut offer, &mut self.runs);
            }
        }
    }

    /// Runs that may have been sent under leases that are over: they have their places in their jobs' order, and whoever
    /// may have them is asked.
    pub(super) fn call_roll(
        &mut self,
        runs: Vec<CalledRun>,
        sessions: &[Session],
        over: &[LeaseToken],
        now: Timestamp,
    ) {
        let runs = runs.into_iter().filter_map(|called| self.unless_in_hand(called)).collect();
        let runs = self.unless_settled(runs);
        for called in &runs {
            self.gates.restore(&called.ready);
            self.limits.hold(&called.ready);
        }
        over.iter().for_each(|lease| self.tell_fence(*lease));
        self.rollcall.call(&runs, sessions, over, &mut self.executors, now);
        for called in runs {
            self.runs.put_called(called.ready);
        }
        self.resolve_rollcall(now);
        self.ask_witnesses();
    }

    /// What this node itself sent under its lease before, and still waits for, need not be asked about: it is this lease's now.
    /// What it had given up is called: that end stands under the lease before, and is refused. Of an attempt before nothing is
    /// in hand any more: somebody has gone on with the run since.
    fn unless_in_hand(&mut self, called: CalledRun) -> Option<CalledRun> {
        let run = &called.ready.run;
        self.forget_attempt(run.id, run.attempt - 1);
        match self.runs.active_mut(run.id).filter(|active| active.ready.run.attempt == run.attempt) {
            Some(active) if active.phase == Phase::Ending && active.ready.token() != called.ready.token() => {
                self.runs.take_active(run.id);
                Some(called)
            }
            Some(active) => {
                active.ready.run.node_epoch = run.node_epoch;
                None
            }
            None => Some(called),
        }
    }

    /// The end of one that was taken over may have been stored before it comes here: its next attempt is none to call for. Until
    /// it is known whether there is one, it keeps its place in its job's order.
    fn unless_settled(&mut self, runs: Vec<CalledRun>) -> Vec<CalledRun> {
        let is_open = |called: &CalledRun| self.shared.in_memory.has(&called.ready.run);
        let (open, settled): (Vec<_>, Vec<_>) = runs.into_iter().partition(is_open);
        let settled: Vec<Ready> = settled.into_iter().map(|called| called.ready).collect();
        settled.iter().for_each(|ready| self.gates.reserve(ready));
        if !settled.is_empty() {
            self.step(Step::Look(settled.iter().map(|ready| ready.run.id).collect()));
        }
        open
    }

    pub(super) fn resolve_rollcall(&mut self, now: Timestamp) {
        if self.rollcall.is_empty() {
            return;
        }
        for (run, found) in self.rollcall.resolve(&self.executors) {
            let Some(ready) = self.runs.take_called(run) else { continue };
            match found {
                Found::Held(executor) => self.hold(ready, executor, now),
                // Every executor has said that it never had it: it was not sent, and it is late.
                Found::Nobody(Reason::NotReceived) if ready.is_missed(now) => {
                    self.submit(too_late(&ready, now), Counted::of_ready(&ready));
                }
                Found::Nobody(reason) => self.end_lost(&ready, reason, now),
            }
        }
    }

    pub(super) fn hold(&mut self, ready: Ready, executor: ExecutorId, now: Timestamp) {
        let name = self.executors.get(executor).map(|online| online.name.clone()).unwrap_or_default();
        self.gates.hold_at(&ready, executor);
        if let Some(started_at) = ready.run.started_at {
            self.deadlines.began(&ready, self.shared.clock.boot_micros_at(started_at));
        }
        let phase = if ready.run.executor_id.is_some() && ready.run.status == RunStatus::Running {
            Phase::Noted
        } else {
            Phase::Sent
        };
        let active = Active::new(ready, executor, name, now, phase);
        if let Some(online) = self.executors.get_mut(executor) {
            online.in_flight += 1;
        }
        self.runs.put_active(active);
    }

    pub(super) fn end_lost(&mut self, ready: &Ready, reason: Reason, now: Timestamp) {
        let detail = lost_detail(ready.run.executor.as_deref());
        let finish = finish_unsent(&ready.run, &ready.definition, Outcome::Lost(reason), now, None);
        self.submit(explained(finish, reason, detail), Counted::of_ready(ready));
    }
}
