//! From due to sent: the job's gate, an executor, and what must be durable first.

use std::cmp::Reverse;
use std::sync::Arc;

use rondel_core::outcome::Outcome;
use rondel_core::spec::Delivery;
use rondel_core::{ExecutorId, Reason, Run, RunId, Timestamp};
use rondel_store::ledger::Finish;

use super::messages::{TRIGGER_BATCH, trigger, triggers};
use super::parked::Waiting;
use super::run_loop::{Active, DispatchLoop, Phase, Upcoming, in_hand};
use super::steps::{Done, Step};
use super::{Ready, finish_unsent};

impl DispatchLoop {
    /// Lets every run go whose instant has come, once it is known what was open before.
    pub(super) fn release(&mut self, now: Timestamp) {
        if !self.knows_open_runs() {
            return;
        }
        while self.upcoming.peek().is_some_and(|next| next.0.0.run.due_at <= now) {
            let Some(Reverse(Upcoming(ready))) = self.upcoming.pop() else { return };
            self.start(ready, now);
        }
    }

    pub(super) fn place_or_park(&mut self, ready: Ready, now: Timestamp) {
        if let Some(ready) = self.place(ready, now) {
            self.parked.push(Waiting { ready, since: now });
        }
    }

    /// Finds an executor; gives the run back where there is none with room.
    pub(super) fn place(&mut self, ready: Ready, now: Timestamp) -> Option<Ready> {
        if ready.came_late && ready.is_missed(now) {
            let outcome = Outcome::Skipped(Reason::Misfire);
            let finish = finish_unsent(&ready.run, &ready.definition, outcome, now, None);
            return (!self.shared.results.try_submit(finish, None)).then_some(ready);
        }
        if ready.run.is_root() {
            if ready.run.shard_total.is_none() {
                return self.expand(ready, now);
            }
            // It is under way by its shards, and never sent itself.
            self.shared.in_memory.forget([ready.run.id]);
            return None;
        }
        let ready = self.unless_held_back(ready, now)?;
        self.route(ready, now)
    }

    pub(super) fn assign(&mut self, ready: Ready, executor: ExecutorId, executor_name: String, now: Timestamp) {
        let Some(ready) = self.admit(ready, executor, now) else { return };
        if let Some(online) = self.executors.get_mut(executor) {
            online.in_flight += 1;
        }
        let marking = ready.definition.job.delivery == Delivery::AtMostOnce;
        let active = Active {
            ready,
            executor,
            executor_name,
            sent_at: now,
            phase: if marking { Phase::Marking } else { Phase::Sent },
        };
        if marking {
            self.to_mark.push(in_hand(&active));
        } else {
            self.queue_trigger(&active, now);
        }
        self.active.insert(active.ready.run.id, active);
    }

    pub(super) fn queue_trigger(&mut self, active: &Active, now: Timestamp) {
        let fence = self.shared.membership.latest().ids.next(now);
        self.outgoing.entry(active.executor).or_default().push(trigger(&active.ready, fence));
    }

    /// Puts this turn's triggers on the streams, one message per executor (and per 500).
    pub(super) fn flush(&mut self, now: Timestamp) {
        if !self.to_mark.is_empty() {
            let marks = std::mem::take(&mut self.to_mark);
            if let Err(error) = self.steps.try_send(Step::Mark(marks)) {
                let Step::Mark(marks) = error.into_inner() else { return };
                let asked: Vec<RunId> = marks.iter().map(|mark| mark.run).collect();
                self.marked(&asked, &[]);
            }
        }
        let token = self.shared.membership.token();
        for (executor, mut batch) in std::mem::take(&mut self.outgoing) {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(TRIGGER_BATCH));
                let runs: Vec<RunId> = batch.iter().map(|trigger| RunId::new(trigger.run_id)).collect();
                let session = self.executors.get(executor).map(|online| online.session.clone());
                rondel_failpoint::pass("send.checked");
                if !session.is_some_and(|session| session.send(triggers(token, batch))) {
                    self.unsend(&runs, now);
                }
                rondel_failpoint::pass("send.written");
                batch = rest;
            }
        }
    }

    /// These runs are known not to have been received: they wait for somebody again.
    pub(super) fn unsend(&mut self, runs: &[RunId], now: Timestamp) {
        let mut unmark = Vec::new();
        for run in runs {
            let Some(active) = self.active.remove(run) else { continue };
            self.free_slot(active.executor);
            if active.ready.definition.job.delivery == Delivery::AtMostOnce {
                unmark.push((*run, active.ready.run.attempt));
            }
            self.give_back(&active.ready, now);
            self.parked.push(Waiting { ready: active.ready, since: now });
        }
        if !unmark.is_empty() {
            self.step(Step::Unmark(unmark));
        }
    }

    /// Steps that only note something are tried again by the next round, or by the standing queries.
    pub(super) fn step(&self, step: Step) {
        if self.steps.try_send(step).is_err() {
            tracing::warn!("too many steps wait for the database; one was dropped and will be made again");
        }
    }

    pub(super) fn free_slot(&mut self, executor: ExecutorId) {
        if let Some(online) = self.executors.get_mut(executor) {
            online.in_flight = online.in_flight.saturating_sub(1);
            online.full_until = None;
        }
    }

    pub(super) fn end_unsent(&mut self, ready: &Ready, outcome: Outcome, message: Option<String>, now: Timestamp) {
        self.submit(finish_unsent(&ready.run, &ready.definition, outcome, now, message));
    }

    /// Gives an end that has no executor behind it to its lane. Where the lane has no room the run is forgotten: it is
    /// open in the store, where the standing queries find it, and it is judged anew.
    pub(super) fn submit(&mut self, finish: Finish) {
        let run = finish.run;
        if !self.shared.results.try_submit(finish, None) {
            self.shared.in_memory.forget([run]);
        }
    }

    /// Fixes the shards of a fire: one for each executor that is online now, or as many as the job says. Gives the run
    /// back where nobody is there.
    pub(super) fn expand(&mut self, root: Ready, now: Timestamp) -> Option<Ready> {
        let fit = self.executors.staying(root.run.app, &root.definition.job);
        if fit.is_empty() {
            return Some(root);
        }
        let job = &root.definition.job;
        let total = job.shards.and_then(|count| i32::try_from(count).ok());
        let total = total.unwrap_or_else(|| i32::try_from(fit.len()).unwrap_or(i32::MAX));
        // A shard of a broadcast belongs to one executor; the others are dealt when they are routed.
        let belongs_to =
            |index: usize| fit.get(index).filter(|_| job.shards.is_none()).map(|online| online.name.clone());
        let ids = self.shared.membership.latest().ids;
        let shards = (0..total).zip(0..).map(|(index, place)| Run {
            id: RunId::new(ids.next(now)),
            shard_index: index,
            shard_total: Some(total),
            parent: Some(root.run.id),
            executor: belongs_to(place),
            ..root.run.clone()
        });
        let step = Step::Expand(Box::new(root.clone()), shards.collect());
        match self.steps.try_send(step) {
            Ok(()) => None,
            Err(_) => Some(root),
        }
    }

    pub(super) fn expanded(&mut self, root: Ready, shards: Vec<Run>, done: Done, now: Timestamp) {
        match done {
            Done::Not => self.parked.push(Waiting { ready: root, since: now }),
            Done::Before => {
                self.shared.in_memory.forget([root.run.id]);
                self.leave_gate(root.run.id, now);
            }
            Done::Now => {
                self.gates.expand(root.run.id, shards.iter().map(|shard| shard.id));
                self.shared.in_memory.forget([root.run.id]);
                for run in self.shared.in_memory.admit(shards) {
                    let shard = Ready::new(run, Arc::clone(&root.definition));
                    self.start(shard, now);
                }
            }
        }
    }

    pub(super) fn marked(&mut self, asked: &[RunId], won: &[RunId]) {
        let now = self.shared.clock.now();
        for run in asked {
            let Some(active) = self.active.get_mut(run) else { continue };
            if won.contains(run) {
                active.phase = Phase::Sent;
                active.sent_at = now;
                let fence = self.shared.membership.latest().ids.next(now);
                let trigger = trigger(&active.ready, fence);
                self.outgoing.entry(active.executor).or_default().push(trigger);
            } else if let Some(active) = self.active.remove(run) {
                // Somebody else's, settled, or not answered: the standing queries find it if it is still open.
                self.free_slot(active.executor);
                self.shared.in_memory.forget([*run]);
                self.release_limit(*run, now);
                self.leave_gate(active.ready.run.id, now);
            }
        }
    }
}
