//! All that the executor knows of its runs, under one short lock: what comes in, what goes on, what goes out.
//!
//! Each method is one event and gives back what is to be started because of it. Nothing here waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::RunStatus;
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::{self, Fence, FenceReply, LogAck, RefusedWhy, Reply, ResultAck, RunRef, Trigger, Triggers};
use tokio::time::Instant;

use super::link::{Item, Link};
use super::outbox::{Outbox, UNACKED_MAX};
use super::runs::Runs;
use crate::ending::Ending;
use crate::run::{RunContext, RunKey, StopCause};
use crate::setup::Setup;

/// A handler that can be dropped is, after the grace; only then it is told that one cannot.
const STUCK_MARGIN: Duration = Duration::from_secs(1);

pub(crate) struct Desk {
    setup: Arc<Setup>,
    pub(crate) runs: Runs,
    pub(crate) outbox: Outbox,
    /// The highest epoch of each node that is fenced.
    fences: BTreeMap<i64, i64>,
    draining: bool,
    /// Results that are to be written to the journal before they are sent; `None` without a journal.
    to_journal: Option<Vec<v1::Result>>,
}

/// Runs and results at which new runs are refused: a hello lists them all, and has to fit into one message.
pub(super) const INVENTORY_MAX: usize = 60_000;

/// What becomes of a trigger.
enum Answer {
    Accept,
    /// It is here already.
    Held,
    /// It is finished, and its result still on the way.
    Unacked,
    /// It is finished, and a server has its result.
    Done(Box<v1::Result>),
    Refuse(RefusedWhy),
}

impl Desk {
    pub(crate) fn new(setup: Arc<Setup>, slots: usize, journal: bool) -> Self {
        let outbox = Outbox::new(setup.timing.resend_after);
        let to_journal = journal.then(Vec::new);
        Self { setup, runs: Runs::new(slots), outbox, fences: BTreeMap::new(), draining: false, to_journal }
    }

    /// Takes triggers in and answers each.
    pub(crate) fn offer(&mut self, link: &Link, triggers: Triggers, now: Instant) -> Vec<RunContext> {
        let origin = (triggers.node_id, triggers.node_epoch);
        let mut replies = Vec::with_capacity(triggers.triggers.len());
        for trigger in triggers.triggers {
            let key = RunKey::new(trigger.run_id, trigger.attempt);
            match self.judge(key, &trigger, origin) {
                Answer::Accept => {
                    let begin_within = u64::try_from(trigger.begin_within_ms).ok().filter(|ms| *ms > 0);
                    let begin_until = begin_within.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
                    self.runs.accept(RunContext::new(&self.setup, trigger, link.id), begin_until);
                    replies.push(Item::Reply(reply(key, Kind::Accepted)));
                }
                Answer::Held => replies.push(Item::Reply(reply(key, Kind::Accepted))),
                Answer::Unacked => self.outbox.deliver_by(key, link.id, now),
                Answer::Done(result) => replies.push(Item::Result(*result)),
                Answer::Refuse(why) => {
                    replies.push(Item::Reply(Reply { fence_n: trigger.fence_n, ..refusal(key, why) }));
                }
            }
        }
        link.extend(replies);
        self.runs.take_startable(now)
    }

    /// What was taken in once is never run again nor refused, whatever has changed since.
    fn judge(&self, key: RunKey, trigger: &Trigger, (node_id, epoch): (i64, i64)) -> Answer {
        if self.runs.get(key).is_some() {
            return Answer::Held;
        }
        if self.outbox.is_unacked(key) {
            return Answer::Unacked;
        }
        if let Some(result) = self.outbox.recent.get(key) {
            return Answer::Done(Box::new(result.clone()));
        }
        if self.fences.get(&node_id).is_some_and(|fenced| epoch <= *fenced) {
            return Answer::Refuse(RefusedWhy::Fenced);
        }
        if self.draining {
            return Answer::Refuse(RefusedWhy::Draining);
        }
        if !self.setup.handlers.contains_key(&trigger.handler) {
            return Answer::Refuse(RefusedWhy::NoHandler);
        }
        let inventory = self.runs.running_count() + self.runs.queued_count() + self.outbox.unacked_count();
        if self.runs.is_full() || self.outbox.unacked_count() >= UNACKED_MAX || inventory >= INVENTORY_MAX {
            return Answer::Refuse(RefusedWhy::Full);
        }
        Answer::Accept
    }

    /// Hands back what has been queued here for too long to begin: the server that sent it says why it did not run. Only that
    /// server, by the stream that the run came on, knows whose it is.
    pub(crate) fn hand_back_expired(&mut self, now: Instant) {
        let links: Vec<u64> = self.outbox.links().map(|link| link.id).collect();
        for run in self.runs.take_expired(now, |run| links.contains(&run.link())) {
            let refusal = Reply { fence_n: run.fencing_token().n, ..refusal(run.key(), RefusedWhy::Full) };
            self.outbox.reply(run.link(), refusal);
        }
    }

    /// A run is over: its result is on its way, and its slot is free for the next.
    pub(crate) fn finish(&mut self, key: RunKey, result: v1::Result, now: Instant) -> Vec<RunContext> {
        self.hand_back_expired(now);
        match self.runs.remove(key) {
            Some(run) => self.conclude(&run, result, now),
            None => self.runs.unstick(key),
        }
        self.runs.take_startable(now)
    }

    /// Ends runs whose handlers have not stopped in their time and do not even let themselves be dropped.
    pub(crate) fn end_stuck(&mut self, now: Instant) -> (Vec<RunContext>, Vec<RunContext>) {
        let grace = self.setup.timing.cancel_grace;
        let stuck = self.runs.take_stuck(now, grace + STUCK_MARGIN);
        for run in &stuck {
            if run.stop_cause().is_none() {
                run.stop(StopCause::TimedOut { timeout: run.timeout().unwrap_or_default() });
            }
            let Some(cause) = run.stop_cause() else { continue };
            let ending = cause.stuck();
            run.log_line("error", &ending.message);
            let finished_at = self.setup.clock.now().as_millis();
            let started_at = finished_at - rondel_core::time::millis(now.duration_since(run.set_started()));
            self.conclude(run, wire_result(run, &ending, (started_at, finished_at)), now);
        }
        let startable = if stuck.is_empty() { Vec::new() } else { self.runs.take_startable(now) };
        (stuck, startable)
    }

    fn conclude(&mut self, run: &RunContext, result: v1::Result, now: Instant) {
        let log = run.log();
        log.close();
        let kept = log.has_chunks().then(|| Arc::clone(log));
        let to_journal = self.to_journal.as_mut().map(|results| results.push(result.clone()));
        self.outbox.add(run.key(), result, kept, run.link());
        if to_journal.is_none() {
            self.outbox.deliver(run.key(), now);
        }
    }

    /// What the journal is to take next.
    pub(crate) fn take_to_journal(&mut self) -> Vec<v1::Result> {
        self.to_journal.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Those results went through the journal. They are sent even where the disk failed: an acknowledgement makes them
    /// just as safe.
    pub(crate) fn journaled(&mut self, results: &[v1::Result], on_disk: bool, now: Instant) {
        for result in results {
            let key = RunKey::new(result.run_id, result.attempt);
            if on_disk {
                self.outbox.stored(key);
            }
            self.outbox.deliver(key, now);
        }
    }
}

/// Stopping.
impl Desk {
    /// Somebody wants a run cancelled.
    pub(crate) fn cancel(&mut self, key: RunKey, by: &str, now: Instant) {
        self.stop(&StopCause::Cancelled { by: by.to_owned() }, |run| run.key() == key, now);
    }

    /// Asks the running ones to stop and ends the queued ones. Only `which` are meant.
    pub(crate) fn stop(&mut self, cause: &StopCause, which: impl Fn(&RunContext) -> bool, now: Instant) {
        for run in self.runs.remove_queued(&which) {
            let result = wire_result(&run, &cause.ending(None), (0, self.setup.clock.now().as_millis()));
            self.conclude(&run, result, now);
        }
        for held in self.runs.iter().filter(|held| which(&held.run)) {
            held.run.stop(cause.clone());
        }
    }

    /// Takes no more, and hands back what has not begun.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
        for run in self.runs.remove_queued(|_| true) {
            self.outbox.reply(run.link(), refusal(run.key(), RefusedWhy::Draining));
        }
        for link in self.outbox.links() {
            link.push(Item::Draining);
        }
    }

    /// Whether the run is not over, or has a log that waits for its acknowledgement.
    pub(crate) fn is_open(&self, key: RunKey) -> bool {
        self.runs.get(key).is_some() || self.outbox.has_lingering(key)
    }
}

/// What servers say.
impl Desk {
    pub(crate) fn acked(&mut self, acks: &[ResultAck], now: Instant) {
        for ack in acks {
            self.outbox.acked(RunKey::new(ack.run_id, ack.attempt), now);
        }
    }

    pub(crate) fn log_acked(&mut self, acks: &[LogAck]) {
        for ack in acks {
            let key = RunKey::new(ack.run_id, ack.attempt);
            match self.runs.get(key) {
                Some(held) => held.run.log().acked(ack.sequence),
                None => self.outbox.log_acked(key, ack.sequence),
            }
        }
    }

    pub(crate) fn fence(&mut self, fence: &Fence) {
        let fenced = self.fences.entry(fence.node_id).or_insert(fence.node_epoch);
        *fenced = (*fenced).max(fence.node_epoch);
        // Whoever has taken over what is queued here would not hear that it is handed back.
        self.runs.lift_limits();
    }

    /// Tells the server that fenced a node what is here: accepted runs, and results that nobody has answered for. All of
    /// them, whoever sent them first: a run may have gone through the hands of several servers while it was here.
    pub(crate) fn answer_fence(&mut self, link: &Link, fence: &Fence, now: Instant) {
        let (held, finished) = self.inventory();
        link.push(Item::Fence(FenceReply { node_id: fence.node_id, node_epoch: fence.node_epoch, held, finished }));
        let unacked: Vec<RunKey> = self.outbox.unacked_keys().collect();
        for key in unacked {
            self.outbox.deliver_by(key, link.id, now);
        }
    }

    /// The jobs of these that a run could start of at once, and of which none is here.
    pub(crate) fn free_jobs(&self, job_ids: Vec<i64>) -> Vec<i64> {
        if self.draining || !self.runs.has_free_slot() {
            return Vec::new();
        }
        job_ids.into_iter().filter(|job_id| !self.runs.has_job(*job_id)).collect()
    }

    /// Everything that a hello says of runs: held, and finished.
    pub(crate) fn inventory(&self) -> (Vec<RunRef>, Vec<RunRef>) {
        let as_ref = |key: RunKey| RunRef { run_id: key.run.get(), attempt: key.attempt };
        let held = self.runs.iter().map(|held| as_ref(held.run.key())).collect();
        (held, self.outbox.unacked_keys().map(as_ref).collect())
    }

    pub(crate) fn link_up(&mut self, link: &Arc<Link>, now: Instant) {
        if self.draining {
            link.push(Item::Draining);
        }
        self.outbox.link_up(Arc::clone(link), now);
    }

    pub(crate) fn link_lost(&mut self, link: &Link, now: Instant) {
        let logs = self.outbox.link_lost(link.id, now);
        let Some(shipping) = &self.setup.shipping else { return };
        let held = self.runs.iter().map(|held| held.run.log()).filter(|log| log.link() == link.id && log.has_chunks());
        for log in held.chain(&logs) {
            shipping.mark(Arc::clone(log));
        }
    }
}

/// What goes out by the clock.
impl Desk {
    pub(crate) fn announce_started(&mut self, now: Instant) {
        for run in self.runs.take_unannounced(now, self.setup.timing.started_after) {
            let started_after_ms = rondel_core::time::millis(run.started_after());
            self.outbox.reply(run.link(), Reply { started_after_ms, ..reply(run.key(), Kind::Started) });
        }
    }

    pub(crate) fn announce_progress(&mut self, runs: Vec<RunContext>) {
        for run in runs {
            let (done, total) = run.take_progress();
            if self.runs.get(run.key()).is_some() {
                // Every server: the one that somebody asks how far the run is may not be the one that sent it.
                for link in self.outbox.links() {
                    link.push(Item::Reply(Reply { done, total, ..reply(run.key(), Kind::Progress) }));
                }
            }
        }
    }
}

/// Instants in milliseconds; 0 for a start that never was.
pub(crate) fn wire_result(
    run: &RunContext,
    ending: &Ending,
    (started_at_ms, finished_at_ms): (i64, i64),
) -> v1::Result {
    v1::Result {
        run_id: run.run_id().get(),
        attempt: run.attempt(),
        status: ending.wire_status().into(),
        message: ending.message.clone(),
        result: ending.result.clone().unwrap_or_default(),
        retryable: ending.retryable && ending.status != RunStatus::Succeeded,
        started_at_ms,
        finished_at_ms,
        job_id: run.job_id().get(),
    }
}

fn reply(key: RunKey, kind: Kind) -> Reply {
    Reply { kind: kind.into(), run_id: key.run.get(), attempt: key.attempt, ..Reply::default() }
}

fn refusal(key: RunKey, why: RefusedWhy) -> Reply {
    Reply { refused: why.into(), ..reply(key, Kind::Refused) }
}
