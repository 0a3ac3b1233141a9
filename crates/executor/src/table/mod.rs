//! The run table: every run that the executor has accepted, from its trigger to the acknowledgement of its result.
//!
//! Each method handles one event: it sends messages on the open streams, and returns the runs that can start now. The
//! table reads no clock and needs no runtime; the simulation of the cluster runs the same table.

mod key;
mod outbox;
mod parts;
mod recent;
mod runs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rondel_core::JobId;
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::reply::Kind;
use rondel_proto::v1::{
    self, Fence, FenceReply, LogAck, PumpOrder, PumpOrders, RefusedWhy, Reply, ResultAck, RunRef, Trigger, Triggers,
};

pub use key::RunKey;
pub use outbox::Outbox;
use outbox::UNACKED_MAX;
pub use parts::{Intake, LinkItem, TableLink, TableLog, TableRun};
use runs::Runs;

/// The number of runs and results at which new runs are refused: a hello lists them all and has to fit into one
/// message.
pub const INVENTORY_MAX: usize = 60_000;

/// The runs of one executor.
#[derive(Debug)]
pub struct RunTable<R: TableRun, L> {
    runs: Runs<R>,
    /// Results and logs that no server has acknowledged.
    pub outbox: Outbox<R::Log, L>,
    /// The highest fenced epoch of each node.
    fences: BTreeMap<i64, i64>,
    /// The node of each stream that has ended and whose runs are still in the table.
    lost_links: BTreeMap<u64, i64>,
    is_draining: bool,
    /// Results to be written to the journal before they are sent; `None` without a journal.
    journal_queue: Option<Vec<v1::Result>>,
}

/// The answer to a trigger.
enum TriggerAnswer {
    Accept,
    /// The run was accepted before, and has not ended.
    Held,
    /// The run has ended, and no server has acknowledged its result.
    Unacked,
    /// The run has ended, and a server has acknowledged its result.
    Done(Box<v1::Result>),
    Refuse(RefusedWhy),
}

impl<R: TableRun, L: TableLink> RunTable<R, L> {
    /// An empty table with this many slots. With `has_journal`, results wait for [`Self::send_journaled`].
    #[must_use]
    pub fn new(slots: usize, resend_after: Duration, has_journal: bool) -> Self {
        Self {
            runs: Runs::new(slots),
            outbox: Outbox::new(resend_after),
            fences: BTreeMap::new(),
            lost_links: BTreeMap::new(),
            is_draining: false,
            journal_queue: has_journal.then(Vec::new),
        }
    }

    /// Answers each trigger, and returns the runs to start.
    pub fn offer(&mut self, link: &L, triggers: Triggers, intake: &impl Intake<Run = R>, now: Instant) -> Vec<R> {
        let lease = (triggers.node_id, triggers.node_epoch);
        for trigger in triggers.triggers {
            let key = RunKey::new(trigger.run_id, trigger.attempt);
            match self.answer_to(key, &trigger, lease, intake) {
                TriggerAnswer::Accept => {
                    let begin_within = u64::try_from(trigger.begin_within_ms).ok().filter(|ms| *ms > 0);
                    let begin_until = begin_within.and_then(|ms| now.checked_add(Duration::from_millis(ms)));
                    let start_in = u64::try_from(trigger.start_in_us).ok().filter(|micros| *micros > 0);
                    let start_in = start_in.filter(|_| !mutant::on(Mutant::BeginsOnReceipt));
                    let begin_at = start_in.and_then(|micros| now.checked_add(Duration::from_micros(micros)));
                    self.runs.accept(intake.make_run(trigger, link.id()), lease, begin_at, begin_until);
                    link.push(LinkItem::Reply(reply(key, Kind::Accepted)));
                }
                TriggerAnswer::Held => link.push(LinkItem::Reply(reply(key, Kind::Accepted))),
                TriggerAnswer::Unacked => self.outbox.deliver_on_link(key, link.id(), now),
                TriggerAnswer::Done(result) => link.push(LinkItem::Result(*result)),
                TriggerAnswer::Refuse(why) => {
                    link.push(LinkItem::Reply(Reply { fence_n: trigger.fence_n, ..refusal(key, why) }));
                }
            }
        }
        self.take_startable(now)
    }

    /// A trigger that was accepted before is neither run again nor refused, whatever has changed since.
    fn answer_to(
        &self,
        key: RunKey,
        trigger: &Trigger,
        (node_id, epoch): (i64, i64),
        intake: &impl Intake<Run = R>,
    ) -> TriggerAnswer {
        if self.runs.get(key).is_some() {
            return TriggerAnswer::Held;
        }
        if !mutant::on(Mutant::NoDedupeOnExecutor) {
            if self.outbox.is_unacked(key) {
                return TriggerAnswer::Unacked;
            }
            if let Some(result) = self.outbox.recent_result(key) {
                return TriggerAnswer::Done(Box::new(result.clone()));
            }
        }
        if self.is_fenced(node_id, epoch) {
            return TriggerAnswer::Refuse(RefusedWhy::Fenced);
        }
        if self.is_draining {
            return TriggerAnswer::Refuse(RefusedWhy::Draining);
        }
        if !intake.has_handler(&trigger.handler) {
            return TriggerAnswer::Refuse(RefusedWhy::NoHandler);
        }
        let inventory = self.runs.running_count() + self.runs.queued_count() + self.outbox.unacked_count();
        if self.runs.is_full() || self.outbox.unacked_count() >= UNACKED_MAX || inventory >= INVENTORY_MAX {
            return TriggerAnswer::Refuse(RefusedWhy::Full);
        }
        TriggerAnswer::Accept
    }

    /// The orders for groups that this table has; none if the lease of the server that sent them has been fenced.
    #[must_use]
    pub fn pump_orders(&self, orders: PumpOrders) -> Vec<(R, PumpOrder)> {
        if self.is_fenced(orders.node_id, orders.node_epoch) && !mutant::on(Mutant::OrdersOfFenced) {
            return Vec::new();
        }
        let held_run = |order: &PumpOrder| self.runs.get(RunKey::new(order.run_id, order.attempt)).cloned();
        orders.orders.into_iter().filter_map(|order| Some((held_run(&order)?, order))).collect()
    }

    fn is_fenced(&self, node_id: i64, epoch: i64) -> bool {
        let is_fenced = self.fenced_epoch(node_id).is_some_and(|fenced_epoch| epoch <= fenced_epoch);
        is_fenced && !mutant::on(Mutant::NoFenceOnExecutor)
    }

    /// Refuses queued runs whose time limit for the start has passed. Only the server that sent a run can send it
    /// elsewhere, so the run stays in the table until an open stream leads to that server.
    pub fn refuse_expired(&mut self, now: Instant) {
        let senders = self.senders();
        for run in self.runs.take_expired(now, |run| senders.contains_key(&run.link_id())) {
            let refusal = Reply { fence_n: run.fence_n(), ..refusal(run.key(), RefusedWhy::Full) };
            self.outbox.reply(senders.get(&run.link_id()).copied().unwrap_or_default(), refusal);
        }
    }

    /// Maps the id of each stream by which runs arrived to the id of an open stream to the same server: itself, or a later
    /// one. A stream is left out if no stream to its server is open.
    fn senders(&self) -> BTreeMap<u64, u64> {
        let open_link_id = |node: i64| self.outbox.links().find(|link| link.node_id() == node).map(|link| link.id());
        let later_links =
            self.lost_links.iter().filter_map(|(lost_link_id, node)| Some((*lost_link_id, open_link_id(*node)?)));
        later_links.chain(self.outbox.links().map(|link| (link.id(), link.id()))).collect()
    }

    /// Sends the result of a run whose handler has returned, and frees its slot. Returns the runs to start.
    pub fn finish(&mut self, key: RunKey, result: v1::Result, now: Instant) -> Vec<R> {
        match self.runs.remove(key) {
            Some(run) => self.conclude(&run, result, now),
            None => self.runs.free_stuck_slot(key),
        }
        self.take_startable(now)
    }

    /// When the first run that was sent ahead may begin. Call [`Self::take_startable`] then.
    #[must_use]
    pub fn next_begin(&self) -> Option<Instant> {
        self.runs.next_begin()
    }

    /// The runs that get a slot now.
    pub fn take_startable(&mut self, now: Instant) -> Vec<R> {
        self.refuse_expired(now);
        self.runs.take_startable(now)
    }

    /// Removes the runs that should have ended at least `grace` ago, but whose handlers have not returned. Each keeps
    /// its slot until its handler returns. [`Self::conclude`] sends their results.
    pub fn take_stuck(&mut self, now: Instant, grace: Duration) -> Vec<R> {
        self.runs.take_stuck(now, grace)
    }

    /// Sends the result of a run that was removed. With a journal, the result is first queued for the journal.
    pub fn conclude(&mut self, run: &R, result: v1::Result, now: Instant) {
        let log = run.log();
        log.close();
        let unacked_log = log.has_chunks().then(|| Arc::clone(log));
        if let Some(results) = &mut self.journal_queue {
            results.push(result.clone());
        }
        self.outbox.add(run.key(), result, unacked_log, run.link_id());
        if self.journal_queue.is_none() {
            self.outbox.deliver(run.key(), now);
        }
    }

    /// Takes the results to be written to the journal next.
    pub fn take_to_journal(&mut self) -> Vec<v1::Result> {
        self.journal_queue.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Sends results after the write to the journal. They are sent even if the disk failed, because an acknowledged
    /// result is safe on the server.
    pub fn send_journaled(&mut self, results: &[v1::Result], is_on_disk: bool, now: Instant) {
        for result in results {
            let key = RunKey::new(result.run_id, result.attempt);
            if is_on_disk {
                self.outbox.mark_journaled(key);
            }
            self.outbox.deliver(key, now);
        }
    }
}

// Stopping.
impl<R: TableRun, L: TableLink> RunTable<R, L> {
    /// Ends the matching queued runs with the result that `make_result` makes, and returns the matching running ones.
    pub fn stop(
        &mut self,
        is_match: impl Fn(&R) -> bool,
        make_result: impl Fn(&R) -> v1::Result,
        now: Instant,
    ) -> Vec<R> {
        for run in self.runs.remove_queued(&is_match) {
            self.conclude(&run, make_result(&run), now);
        }
        self.runs.iter().filter(|run| is_match(run)).cloned().collect()
    }

    /// Accepts no more runs, and hands back the queued ones. A run is refused if a stream to the server that sent it is
    /// open. If no such stream is open, or the run's lease has been fenced, a refusal may reach no server that has the
    /// run, because any server may have taken it over. Such a run ends with the result that `make_result` makes, which
    /// is sent until a server has stored it.
    pub fn drain(&mut self, make_result: impl Fn(&R) -> v1::Result, now: Instant) {
        self.is_draining = true;
        let senders = self.senders();
        let fenced_runs = self.runs.runs_sent_under(|node_id, epoch| self.is_fenced(node_id, epoch));
        let mut unrefused_runs = Vec::new();
        for run in self.runs.remove_queued(|_| true) {
            match senders.get(&run.link_id()).filter(|_| !fenced_runs.contains(&run.key())) {
                Some(link_id) => self.outbox.reply(*link_id, refusal(run.key(), RefusedWhy::Draining)),
                None => unrefused_runs.push(run),
            }
        }
        // This message is sent before the results: a server that has stored such a result sends the run again, and must
        // know by then that this executor drains.
        for link in self.outbox.links() {
            link.push(LinkItem::Draining);
        }
        for run in unrefused_runs {
            let handed_back = v1::Result { started_at_ms: 0, silent_ms: 1, shutting_down: true, ..make_result(&run) };
            self.conclude(&run, handed_back, now);
        }
    }

    /// Whether the run has not ended, or its log waits for an acknowledgement.
    #[must_use]
    pub fn is_open(&self, key: RunKey) -> bool {
        self.runs.get(key).is_some() || self.outbox.has_unacked_log(key)
    }
}

// The contents of the table.
impl<R: TableRun, L: TableLink> RunTable<R, L> {
    /// A run that has not ended.
    #[must_use]
    pub fn get(&self, key: RunKey) -> Option<&R> {
        self.runs.get(key)
    }

    /// The runs that have not ended.
    pub fn runs(&self) -> impl Iterator<Item = &R> {
        self.runs.iter()
    }

    /// Whether every run has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The numbers of running and of queued runs.
    #[must_use]
    pub fn load(&self) -> (u32, u32) {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        (count(self.runs.running_count()), count(self.runs.queued_count()))
    }

    /// The highest epoch of this node whose triggers are refused.
    #[must_use]
    pub fn fenced_epoch(&self, node_id: i64) -> Option<i64> {
        self.fences.get(&node_id).copied()
    }

    /// The jobs of this list that have no run here and could start one immediately.
    #[must_use]
    pub fn free_jobs(&self, job_ids: Vec<i64>) -> Vec<i64> {
        if self.is_draining || !self.runs.has_free_slot() {
            return Vec::new();
        }
        job_ids.into_iter().filter(|job_id| !self.runs.has_job(JobId::new(*job_id))).collect()
    }

    /// The attempts that a hello lists: those that have not ended, and those that ended without an acknowledgement.
    #[must_use]
    pub fn inventory(&self) -> (Vec<RunRef>, Vec<RunRef>) {
        let to_run_ref = |key: RunKey| RunRef { run_id: key.run.get(), attempt: key.attempt, ..RunRef::default() };
        let held = |run: &R| {
            let started_at_ms = run.started_at_ms();
            let not_begun = started_at_ms.is_none();
            let (started_at_ms, running_ms) = (started_at_ms.unwrap_or_default(), run.running_ms());
            RunRef { not_begun, started_at_ms, running_ms, ..to_run_ref(run.key()) }
        };
        let is_listed = |run: &&R| !mutant::on(Mutant::AheadIsNotListed) || !self.runs.is_ahead(run.key());
        (self.runs.iter().filter(is_listed).map(held).collect(), self.outbox.unacked_keys().map(to_run_ref).collect())
    }
}

// Messages from servers.
impl<R: TableRun, L: TableLink> RunTable<R, L> {
    /// Forgets results that a server has acknowledged.
    pub fn record_acks(&mut self, acks: &[ResultAck], now: Instant) {
        for ack in acks {
            self.outbox.record_ack(RunKey::new(ack.run_id, ack.attempt), now);
        }
    }

    /// Forgets chunks of logs that a server has acknowledged.
    pub fn record_log_acks(&mut self, acks: &[LogAck]) {
        for ack in acks {
            let key = RunKey::new(ack.run_id, ack.attempt);
            match self.runs.get(key) {
                Some(run) => run.log().record_ack(ack.sequence),
                None => self.outbox.record_log_ack(key, ack.sequence),
            }
        }
    }

    /// Refuses triggers of this node up to this epoch from now on.
    pub fn fence(&mut self, fence: &Fence) {
        let fenced_epoch = self.fences.entry(fence.node_id).or_insert(fence.node_epoch);
        *fenced_epoch = (*fenced_epoch).max(fence.node_epoch);
        if mutant::on(Mutant::FenceDropsAhead) {
            self.runs.drop_ahead();
        }
        // Refusals would not reach the server that has taken over the queued runs of the fenced lease. These runs
        // therefore lose their time limit and may begin at any time. Runs under other leases keep theirs: otherwise each
        // welcome, which repeats the fences of the last hour, would remove it.
        self.runs.clear_begin_until(fence.node_id, fence.node_epoch);
    }

    /// Sends the inventory and every unacknowledged result to the server that fenced a node: several servers may have
    /// owned a run while it was here.
    pub fn answer_fence(&mut self, link: &L, fence: &Fence, now: Instant) {
        let (held, finished) = self.inventory();
        link.push(LinkItem::Fence(FenceReply { node_id: fence.node_id, node_epoch: fence.node_epoch, held, finished }));
        let unacked_keys: Vec<RunKey> = self.outbox.unacked_keys().collect();
        for key in unacked_keys {
            self.outbox.deliver_on_link(key, link.id(), now);
        }
    }

    /// Adds an opened stream. A run may have begun, and its start may have been announced, between the stream's hello
    /// and now; all announced starts are therefore sent again.
    pub fn add_link(&mut self, link: &Arc<L>, now: Instant) {
        if self.is_draining {
            link.push(LinkItem::Draining);
        }
        link.extend(self.runs.announced_runs().map(|run| LinkItem::Reply(started(run))));
        self.outbox.add_link(Arc::clone(link), now);
    }

    /// Removes a stream that has ended. Returns the logs to be sent on another stream.
    pub fn remove_link(&mut self, link_id: u64, now: Instant) -> Vec<Arc<R::Log>> {
        let node = self.outbox.links().find(|open| open.id() == link_id).map(|open| open.node_id());
        self.lost_links.extend(node.map(|node| (link_id, node)));
        self.lost_links.retain(|lost_link_id, _| self.runs.iter().any(|run| run.link_id() == *lost_link_id));
        let unacked_logs = self.outbox.remove_link(link_id, now);
        let logs = self.runs.iter().map(R::log).filter(|log| log.link_id() == link_id && log.has_chunks());
        logs.cloned().chain(unacked_logs).collect()
    }
}

// Periodic reports.
impl<R: TableRun, L: TableLink> RunTable<R, L> {
    /// Reports to every server the runs that have lasted for at least `delay`: the owner of a run may no longer be its
    /// sender.
    pub fn announce_started(&mut self, now: Instant, delay: Duration) {
        for run in self.runs.take_unannounced(now, delay) {
            for link in self.outbox.links() {
                link.push(LinkItem::Reply(started(&run)));
            }
        }
    }

    /// Reports progress to every server: users may ask a server other than the one that sent the run.
    pub fn announce_progress(&self, key: RunKey, (done, total): (u64, u64)) {
        for link in self.outbox.links() {
            link.push(LinkItem::Reply(Reply { done, total, ..reply(key, Kind::Progress) }));
        }
    }
}

fn reply(key: RunKey, kind: Kind) -> Reply {
    Reply { kind: kind.into(), run_id: key.run.get(), attempt: key.attempt, ..Reply::default() }
}

fn started(run: &impl TableRun) -> Reply {
    let (started_after_ms, started_at_ms) = (run.started_after_ms(), run.started_at_ms().unwrap_or_default());
    Reply { started_after_ms, started_at_ms, ..reply(run.key(), Kind::Started) }
}

fn refusal(key: RunKey, why: RefusedWhy) -> Reply {
    Reply { refused: why.into(), ..reply(key, Kind::Refused) }
}
