//! A decision in progress: the state that it may change, the facts that it reads, and its effects so far.

use std::time::Duration;

use rondel_core::{Run, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;

use super::effect::{Effect, Submission};
use super::state::State;
use super::step::Step;
use crate::cluster::{DepartureBoard, SwitchBoard};
use crate::counters::Count;
use crate::scheduler::in_memory::InMemory;

/// Facts from outside the dispatcher that a decision needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) now: Timestamp,
    /// A fire whose instant is later than this is left to edits, which may still withdraw it. Usually `now`; later than `now` for a while
    /// after the database's clock has stepped back.
    pub(crate) fires_ahead_after: Timestamp,
    /// The boot-time clock now, in microseconds.
    pub(crate) boot_micros: i64,
    /// How long this process has run, by the monotonic clock.
    pub(crate) uptime: Duration,
    /// Whether rows may show executors as silent for longer than they were. True if, within the last `lost_after`, the database's clock may
    /// have stepped ahead, or the database was unreachable and other nodes could not store which executors they heard.
    pub(crate) rows_may_be_old: bool,
    /// Like `rows_may_be_old`, but within the last `continue_max`: used for runs that keep their place in the order of their job while
    /// their executor is silent.
    pub(crate) rows_may_be_old_in_silence: bool,
    /// This node's lease.
    pub(crate) token: LeaseToken,
    /// Whether that lease holds.
    pub(crate) lease_holds: bool,
    /// Until when the lease holds if it is not renewed.
    pub(crate) lease_until: Timestamp,
    /// Which open runs this process has in memory.
    pub(crate) in_memory: &'a InMemory,
    /// Runs that are being handed over to other nodes.
    pub(crate) departing: &'a DepartureBoard,
    pub(crate) switches: &'a SwitchBoard,
    pub(crate) settings: &'a Settings,
}

/// The part of the configuration that decisions read; [`EngineConfig`](crate::EngineConfig) describes the fields without a comment here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether no other server may share the store.
    pub(crate) is_single_server: bool,
    pub(crate) lost_after: Duration,
    pub(crate) continue_max: Duration,
    /// If no server has answered an executor for this long, the executor stops even those runs that may continue without a server.
    pub(crate) silence_max: Duration,
    pub(crate) answer_within: Duration,
    pub(crate) overdue_ask: Duration,
    pub(crate) overdue_timeout: Duration,
    /// An offer of free places to parked runs ends once runs of this many kinds could not be placed.
    pub(crate) refused_kinds_max: usize,
    /// Maximum number of jobs with parked runs for which this node searches executors at other nodes in one look.
    pub(crate) seek_jobs: usize,
    /// How long before a run's instant its trigger may be sent.
    pub(crate) send_ahead: Duration,
}

#[derive(Debug)]
pub(crate) struct Decision<'a> {
    pub(super) state: &'a mut State,
    pub(super) facts: Facts<'a>,
    pub(super) now: Timestamp,
    pub(super) effects: Vec<Effect>,
}

impl<'a> Decision<'a> {
    pub(super) const fn new(state: &'a mut State, facts: Facts<'a>) -> Self {
        Self { now: facts.now, state, facts, effects: Vec::new() }
    }

    /// Whether this node may start runs: its lease holds, it has read the switches, and for each job it either knows the runs that were
    /// open when it took the lease, or holds the job's runs back.
    pub(super) fn may_start_runs(&self) -> bool {
        let is_ready = self.facts.lease_holds && self.facts.switches.is_known();
        is_ready && self.state.recovery.begun_lease == Some(self.facts.token)
    }

    /// Whether runs may be placed and sent: the lease holds.
    pub(super) fn may_send(&self) -> bool {
        self.facts.lease_holds || mutant::on(Mutant::NoLeaseCheckBeforeSend)
    }

    pub(super) fn step(&mut self, step: Step) {
        self.effects.push(Effect::Store(step));
    }

    pub(super) fn finish(&mut self, submission: Submission) {
        self.effects.push(Effect::Finish(Box::new(submission)));
    }

    pub(super) fn count(&mut self, counter: Count, count: usize) {
        self.effects.push(Effect::Count(counter, count));
    }

    pub(super) fn forget(&mut self, runs: impl IntoIterator<Item = RunId>) {
        self.effects.push(Effect::Forget(runs.into_iter().collect()));
    }

    pub(super) fn forget_under_lease(&mut self, runs: impl IntoIterator<Item = (RunId, LeaseToken)>) {
        self.effects.push(Effect::ForgetUnderLease(runs.into_iter().collect()));
    }

    /// Forgets shards, which were entered in memory before they were stored. If they are stored and open, the periodic queries find them.
    pub(super) fn forget_shards(&mut self, shards: &[Run]) {
        self.forget_under_lease(shards.iter().map(|shard| (shard.id, lease_of(shard))));
    }

    /// Sends the same message to every executor that is connected.
    pub(super) fn send_all(&mut self, body: &Body) {
        let sessions = self.state.executors.all().map(|online| &online.session);
        self.effects.extend(sessions.map(|session| Effect::Send(session.clone(), body.clone())));
    }
}

/// The lease that owns a run.
pub(super) const fn lease_of(run: &Run) -> LeaseToken {
    LeaseToken { node: run.node, epoch: run.node_epoch }
}
