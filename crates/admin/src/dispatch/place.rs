//! From due to sent: the job's gate, an executor, and what must be durable first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::route::question;
use rondel_core::spec::Delivery;
use rondel_core::{ExecutorId, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::ledger::AttemptEnd;

use super::messages::{TRIGGER_BATCH, trigger, triggers};
use super::run_loop::DispatchLoop;
use super::state::{Active, Arrival, Phase, Stage, Timer, Waiting};
use super::steps::Step;
use super::switches::Switched;
use super::waits::too_late;
use super::{Ready, Shards, finish_unsent};
use crate::metrics::{Counted, FireOutcome};

/// How long after its mark an at-most-once run may be sent.
const MARK_HOLDS: Duration = Duration::from_secs(1);
/// Jobs whose newest term is remembered.
const TERM_COUNT_MAX: usize = 100_000;

impl DispatchLoop {
    /// Lets every run go whose instant has come, once it is known what was open before.
    pub(super) fn release(&mut self, now: Timestamp) {
        if !self.knows_open_runs() {
            return;
        }
        while let Some((ready, timer)) = self.runs.take_due(now) {
            self.timer_fired(ready, timer, now);
        }
        while self.marked_ahead.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, run)) = self.marked_ahead.pop_first() else { return };
            if let Some(active) = self.runs.active(run) {
                self.outgoing.entry(active.executor).or_default().push(run);
            }
        }
    }

    fn timer_fired(&mut self, ready: Ready, timer: Timer, now: Timestamp) {
        let due_at = ready.run.due_at;
        if timer.is_outdated(due_at, now) {
            // It is read anew by the standing queries, if it is still open.
            self.shared.in_memory.forget_of([(ready.run.id, ready.token())]);
        } else if self.is_adopting && self.terms.get(&ready.run.job) != Some(&ready.term) {
            self.runs.hold_back(ready, timer);
        } else if timer.at < due_at && !self.may_go_ahead(&ready, now) {
            self.runs.schedule(ready, timer.set_to(due_at));
        } else {
            self.released(&ready, now);
            self.start(ready.taken_up(now), now);
        }
    }

    /// Counts how late a fire of a schedule is when it is looked at for the first time.
    fn released(&self, ready: &Ready, now: Timestamp) {
        if ready.run.cause == 0 && ready.run.attempt == 1 {
            self.shared.metrics.fire_lateness.observe(now.since(ready.run.due_at));
        }
    }

    /// Whether nothing stands in a run's way, so that it can be given to an executor shortly before its instant, marked,
    /// and sent when that comes. What has to wait for others is looked at when it is due.
    fn may_go_ahead(&self, ready: &Ready, now: Timestamp) -> bool {
        question(ready.definition.job.route).is_none()
            && self.gates.would_pass(ready)
            && self.limits.holding_back(ready, now).is_none()
            && !ready.is_missed(now)
    }

    pub(super) fn place_or_park(&mut self, ready: Ready, now: Timestamp) {
        if let Some(ready) = self.place(ready, now) {
            self.parked.push(Waiting::new(ready, now), &mut self.runs);
        }
    }

    /// Finds an executor; gives the run back where there is none with room.
    pub(super) fn place(&mut self, ready: Ready, now: Timestamp) -> Option<Ready> {
        if ready.token() != self.shared.membership.token() {
            // Taken under a lease that is over: whoever adopts it finds it.
            self.let_go(&[ready]);
            return None;
        }
        if !self.shared.membership.holds() && !mutant::on(Mutant::NoLeaseCheckBeforeSend) {
            return Some(ready);
        }
        if ready.came_late && ready.is_missed(now) {
            let (finish, counted) = (too_late(&ready, now), Counted::of_ready(&ready));
            return (!self.shared.results.try_submit(finish, counted, None)).then_some(ready);
        }
        let is_under_way = ready.run.is_root() && ready.run.shard_total.is_some();
        if ready.is_expired(now) && !is_under_way {
            self.expire(ready, now);
            return None;
        }
        if self.handing.contains(&ready.run.job) {
            return Some(ready);
        }
        let ready = match self.unless_switched_off(ready, now) {
            Switched::On(ready) => ready,
            Switched::Waits(ready) => return Some(ready),
            Switched::Ended => return None,
        };
        if ready.run.is_root() {
            if ready.run.shard_total.is_none() {
                let ready = self.unless_held_back(ready, now)?;
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
        let phase = if marking { Phase::Marking } else { Phase::Placed };
        let active = Active::new(ready, executor, executor_name, now, phase);
        if marking {
            self.to_mark.push(active.in_hand());
        } else {
            self.outgoing.entry(executor).or_default().push(active.ready.run.id);
        }
        self.runs.put_active(active);
    }

    /// Puts this turn's triggers on the streams, one message per executor (and per 500). Without a lease nothing is marked
    /// or sent: it waits here until the lease holds again, or is dropped with it.
    pub(super) fn flush(&mut self, now: Timestamp) {
        if !self.shared.membership.holds() && !mutant::on(Mutant::NoLeaseCheckBeforeSend) {
            return;
        }
        if !self.to_mark.is_empty() {
            let marks = std::mem::take(&mut self.to_mark);
            if let Err(error) = self.steps.try_send(Step::Mark(marks)) {
                let Step::Mark(marks) = error.into_inner() else { return };
                let asked: Vec<(RunId, i32)> = marks.iter().map(|mark| (mark.run, mark.attempt)).collect();
                self.marked(&asked, &[], now);
            }
        }
        for (executor, runs) in std::mem::take(&mut self.outgoing) {
            for batch in runs.chunks(TRIGGER_BATCH) {
                self.send(executor, batch, now);
            }
        }
    }

    /// Sends these runs, each under the lease that it was taken under.
    fn send(&mut self, executor: ExecutorId, runs: &[RunId], now: Timestamp) {
        let token = self.shared.membership.token();
        let ids = self.shared.membership.latest().ids;
        if self.terms.len() > TERM_COUNT_MAX {
            self.terms.clear();
        }
        let (mut batch, mut sent, mut unsent) =
            (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()), Vec::new());
        for run in runs {
            let is_placed = |active: &&mut Active| active.executor == executor && active.phase == Phase::Placed;
            let Some(active) = self.runs.active_mut(*run).filter(is_placed) else { continue };
            if active.ready.token() == token && active.may_be_sent(now) {
                // One that has waited here knows an older term than a run of its job that came by it.
                let newest = self.terms.entry(active.ready.run.job).or_default();
                *newest = active.ready.term.max(*newest);
                active.ready.term = *newest;
                let (parent, span) = self.tracer.send(&active.ready, &active.executor_name, now);
                active.span = span;
                tracing::debug!(
                    run_id = %run, job_id = %active.ready.run.job, job = active.ready.definition.job.name,
                    attempt = active.ready.run.attempt, executor = active.executor_name,
                    trace_id = parent.map(|parent| format!("{:032x}", parent.trace_id())),
                    "a run goes to an executor"
                );
                active.number = ids.next(now);
                // Before it can answer: its log may come at once.
                self.shared.sent_runs.note(*run, active.ready.run.attempt, executor);
                batch.push(trigger(&active.ready, active.number, parent, now));
                sent.push(*run);
            } else {
                unsent.push(*run);
            }
        }
        if !batch.is_empty() {
            let session = self.executors.get(executor).map(|online| online.session.clone());
            rondel_failpoint::pass("send.checked");
            if session.is_some_and(|session| session.send(triggers(token, batch))) {
                self.note_sent(&sent, now);
                self.await_answers(executor, &sent);
            } else {
                unsent.append(&mut sent);
            }
            rondel_failpoint::pass("send.written");
        }
        self.unsend(&unsent, now);
    }

    fn note_sent(&mut self, runs: &[RunId], now: Timestamp) {
        for run in runs {
            if let Some(active) = self.runs.active_mut(*run) {
                self.shared.metrics.sent(&active.ready, now);
                active.ready.was_sent = true;
                (active.phase, active.sent_at) = (Phase::Sent, now);
            }
        }
    }

    /// These runs are known not to have been received: they wait for somebody again.
    pub(super) fn unsend(&mut self, runs: &[RunId], now: Timestamp) {
        let token = self.shared.membership.token();
        let (mut unmark, mut gone) = (Vec::new(), Vec::new());
        for run in runs {
            let Some(active) = self.free_active(*run) else { continue };
            let job = &active.ready.definition.job;
            // Another server takes the word of nobody but whom the row names: it may be the next one's. The shard of a broadcast
            // goes to the same one again.
            let is_named = active.phase == Phase::Noted && !(job.is_sharded() && job.shards.is_none());
            if job.delivery == Delivery::AtMostOnce || is_named {
                unmark.push((*run, active.ready.run.attempt));
            }
            // What a leaving server gets back is not tried anew: it goes to another one with its job.
            if active.ready.token() == token && !self.is_draining {
                self.give_back(&active.ready);
                self.work_off(now);
                if self.runs.arrival(&active.ready) != Arrival::Known {
                    self.withdraw(*run);
                    self.parked.push(Waiting::new(active.ready, now), &mut self.runs);
                }
            } else {
                gone.push(active.ready);
            }
        }
        self.let_go(&gone);
        self.work_off(now);
        self.unmark(unmark);
    }

    /// A mark says that a run may have been sent: where it is known that it was not, the mark goes.
    pub(super) fn unmark(&mut self, runs: Vec<(RunId, i32)>) {
        if !runs.is_empty() && self.try_step(Step::Unmark(runs)) {
            self.unmarking += 1;
        }
    }

    /// These runs are somebody else's, or settled, or are found again by the standing queries. Until it is known which, they
    /// keep their places in their jobs' order.
    pub(super) fn let_go(&mut self, gone: &[Ready]) {
        for ready in gone {
            self.forget_unsent(ready);
            let passed = self.gates.again(ready.run.id, &mut self.runs);
            self.go_on(passed);
        }
        if !gone.is_empty() {
            self.step(Step::Look(gone.iter().map(|ready| ready.run.id).collect()));
        }
    }

    fn forget_unsent(&mut self, ready: &Ready) {
        let run = ready.run.id;
        self.deadlines.forget(run);
        self.shared.in_memory.forget_of([(run, ready.token())]);
        self.release_limit(run);
    }

    /// Takes a run out of its executor's hands.
    pub(super) fn free_active(&mut self, run: RunId) -> Option<Active> {
        let active = self.runs.take_active(run)?;
        self.marked_ahead.remove(&(active.ready.run.due_at, run));
        if !matches!(active.phase, Phase::Ending | Phase::Settling) {
            self.free_slot(active.executor);
        }
        Some(active)
    }

    /// Forgets what has an executor and was not sent to it. Gates and limits are told by whoever calls.
    pub(super) fn drop_placed(&mut self) {
        self.outgoing.clear();
        self.to_mark.clear();
        self.marked_ahead.clear();
        let is_unsent = |active: &&Active| matches!(active.phase, Phase::Marking | Phase::Placed);
        let mut unsent: Vec<RunId> = self.runs.actives().filter(is_unsent).map(|active| active.ready.run.id).collect();
        unsent.sort_unstable();
        let mut unmark = Vec::new();
        for run in unsent {
            let Some(active) = self.free_active(run) else { continue };
            if active.phase == Phase::Placed && active.ready.definition.job.delivery == Delivery::AtMostOnce {
                unmark.push((run, active.ready.run.attempt));
            }
            self.shared.in_memory.forget_of([(run, active.ready.token())]);
        }
        self.unmark(unmark);
    }

    /// Steps that only note something are tried again by the next round, or by the standing queries.
    pub(super) fn step(&self, step: Step) {
        self.try_step(step);
    }

    /// The same; false where there was no room.
    pub(super) fn try_step(&self, step: Step) -> bool {
        let has_room = self.steps.try_send(step).is_ok();
        if !has_room && let Some(count) = self.shared.log_limit.count("steps", 0) {
            tracing::warn!(count, "too many steps wait for the database; one was dropped and will be made again");
        }
        has_room
    }

    pub(super) fn free_slot(&mut self, executor: ExecutorId) {
        if let Some(online) = self.executors.get_mut(executor) {
            online.in_flight = online.in_flight.saturating_sub(1);
            online.full_until = None;
        }
    }

    pub(super) fn end_unsent(&mut self, ready: &Ready, outcome: Outcome, message: Option<String>, now: Timestamp) {
        let finish = finish_unsent(&ready.run, &ready.definition, outcome, now, message);
        self.submit(finish, Counted::of_ready(ready));
    }

    /// Gives an end that has no executor behind it to its lane. Where the lane has no room the run is forgotten: it is
    /// open in the store, where the standing queries find it, and it is judged anew.
    pub(super) fn submit(&mut self, finish: AttemptEnd, counted: Counted) {
        let run = finish.run;
        if !self.shared.results.try_submit(finish, counted, None) {
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
        let shards: Vec<Run> = shards.collect();
        // From before they are written: no standing query takes up what the answer to this is still to tell of.
        self.shared.in_memory.admit(shards.clone());
        match self.steps.try_send(Step::Expand(Box::new(root.run.clone()), shards)) {
            Ok(()) => {
                self.runs.put(root, Stage::Expanding);
                None
            }
            Err(error) => {
                if let Step::Expand(_, shards) = error.into_inner() {
                    self.forget_shards(&shards);
                }
                Some(root)
            }
        }
    }

    /// These shards do not wait here for the answer to their writing any more.
    pub(super) fn forget_shards(&self, shards: &[Run]) {
        self.shared.in_memory.forget_of(shards.iter().map(|shard| (shard.id, lease_of(shard))));
    }

    /// Asks again for broadcasts of which the database did not say whether they are expanded.
    pub(super) fn expand_again(&mut self) {
        for (root, shards) in self.runs.expand_again() {
            if let Err(error) = self.steps.try_send(Step::Expand(Box::new(root), shards))
                && let Step::Expand(root, shards) = error.into_inner()
                && let Some(root) = self.runs.take_expanding(&root)
            {
                self.runs.wait_for_expansion(root, shards);
            }
        }
    }

    /// The shards take their places beside the broadcast's row, and then that gives up its own: nothing of the job comes
    /// between. Those that this node did not write itself under this lease come by the standing queries.
    pub(super) fn expanded(&mut self, row: &Run, shards: Shards, now: Timestamp) {
        let Shards { asked, open } = shards;
        let root = self.runs.take_expanding(row);
        let Some(root) = root.filter(|root| root.token() == self.shared.membership.token()) else {
            // It was taken under a lease that has ended. Its next owner finds its shards; its place here is the new one's.
            self.forget_shards(&asked);
            return self.shared.in_memory.forget_of([(row.id, lease_of(row))]);
        };
        let Some(open) = open else { return self.runs.wait_for_expansion(root, asked) };
        if !open.is_empty() {
            root.definition.counts.fires(root.run.trigger, FireOutcome::Dispatched, 1);
        }
        let ready = |run| Ready {
            term: root.term,
            trace: root.trace,
            queued_at: root.queued_at,
            ..Ready::new(run, Arc::clone(&root.definition))
        };
        open.iter().for_each(|shard| self.gates.hold(&ready(shard.clone())));
        let own: BTreeSet<RunId> = asked.iter().map(|shard| shard.id).collect();
        let lease = |run: &Run| (run.node, run.node_epoch);
        let is_unsent = |shard: &Run| shard.status == RunStatus::Pending && lease(shard) == lease(&root.run);
        let unsent: Vec<Run> = open.into_iter().filter(|shard| own.contains(&shard.id) && is_unsent(shard)).collect();
        let has_come: BTreeSet<RunId> = unsent.iter().map(|shard| shard.id).collect();
        let gone: Vec<Run> = asked.into_iter().filter(|shard| !has_come.contains(&shard.id)).collect();
        self.forget_shards(&gone);
        unsent.into_iter().for_each(|shard| self.arrived(ready(shard)));
        self.forget_unsent(&root);
        self.leave_gate(root.run.id);
        self.work_off(now);
    }

    /// Only what was won is sent; at its instant, which may be a little ahead.
    pub(super) fn marked(&mut self, asked: &[(RunId, i32)], won: &[RunId], now: Timestamp) {
        let won: BTreeSet<RunId> = won.iter().copied().collect();
        let (mut unwanted, mut gone) = (Vec::new(), Vec::new());
        for (run, attempt) in asked {
            let is_this = |active: &&mut Active| active.phase == Phase::Marking && active.ready.run.attempt == *attempt;
            let Some(active) = self.runs.active_mut(*run).filter(is_this) else {
                // It was dropped meanwhile.
                unwanted.extend(won.get(run).map(|run| (*run, *attempt)));
                continue;
            };
            let (executor, due_at) = (active.executor, active.ready.run.due_at);
            if !won.contains(run) {
                // Somebody else's, settled, or not answered: the standing queries find it if it is still open.
                gone.extend(self.free_active(*run).map(|active| active.ready));
                continue;
            }
            active.phase = Phase::Placed;
            if due_at > now {
                self.marked_ahead.insert((due_at, *run));
            } else {
                self.outgoing.entry(executor).or_default().push(*run);
            }
        }
        self.let_go(&gone);
        self.work_off(now);
        self.unmark(unwanted);
    }
}

/// The lease that a run stands under.
const fn lease_of(run: &Run) -> LeaseToken {
    LeaseToken { node: run.node, epoch: run.node_epoch }
}

impl Active {
    /// A mark that is older than a second may have been taken for a run that died with this node.
    fn may_be_sent(&self, now: Timestamp) -> bool {
        self.ready.definition.job.delivery == Delivery::AtLeastOnce || self.sent_at + MARK_HOLDS > now
    }
}
