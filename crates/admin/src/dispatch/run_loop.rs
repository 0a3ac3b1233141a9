//! The loop that owns the open runs of this node.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::route::Memories;
use rondel_core::{ExecutorId, JobId, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::ledger::InHand;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::Event;
use super::executors::Executors;
use super::fences::Told;
use super::gates::Gates;
use super::limits::Limits;
use super::overdue::Deadlines;
use super::parked::Parked;
use super::probes::Probes;
use super::rollcall::RollCall;
use super::state::{OpenRuns, Stage};
use super::steps::Step;
use super::turns::Work;
use super::waits::Waits;
use crate::node::Shared;
use crate::trace::FireTracer;

/// How old a run in an executor's hands is when it is noted in the store.
pub(super) const NOTE_AFTER: Duration = Duration::from_secs(1);
/// Events taken before the due runs are looked at again.
const EVENT_BURST: usize = 64;

pub(crate) struct DispatchLoop {
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) steps: mpsc::Sender<Step>,
    /// The owner of all open runs; the queues below hold ids.
    pub(super) runs: OpenRuns,
    pub(super) parked: Parked,
    pub(super) gates: Gates,
    /// What free places mean for the runs behind them, still to be done.
    pub(super) work: VecDeque<Work>,
    /// Jobs that are on their way to another node, perhaps: nothing of them is started.
    pub(super) handing: BTreeSet<JobId>,
    /// Runs that a later one takes the place of, until that is durable.
    pub(super) covering: BTreeSet<RunId>,
    pub(super) limits: Limits,
    pub(super) deadlines: Deadlines,
    /// Under which lease all open runs of before are known.
    pub(super) adopted: Option<LeaseToken>,
    /// Jobs of other nodes come here, and what is open of them is not told yet: what is due of jobs that may be among them
    /// waits.
    pub(super) is_adopting: bool,
    pub(super) rollcall: RollCall,
    /// The newest term of each job under which something was sent.
    pub(super) terms: HashMap<JobId, i64>,
    pub(super) executors: Executors,
    pub(super) tracer: FireTracer,
    pub(super) memories: Memories,
    /// Runs that wait for answers of executors.
    pub(super) probes: Probes,
    /// Runs that are to be sent in this turn of the loop, by executor.
    pub(super) outgoing: BTreeMap<ExecutorId, Vec<RunId>>,
    /// Marked runs whose instant is ahead.
    pub(super) marked_ahead: BTreeSet<(Timestamp, RunId)>,
    /// Steps under way that take marks off.
    pub(super) unmarking: usize,
    /// At-most-once runs of this turn.
    pub(super) to_mark: Vec<InHand>,
    pub(super) fences_told: Told,
    pub(super) is_looking_for_lost: bool,
    pub(super) next_look_at: Timestamp,
    /// What runs are known to wait for.
    pub(super) waits: Waits,
    pub(super) next_seek_at: Timestamp,
    pub(super) next_round_at: Timestamp,
    /// The server leaves: nothing is sent any more.
    pub(super) is_draining: bool,
    /// Who waits until nothing is in an executor's hands.
    pub(super) drained: Option<oneshot::Sender<()>>,
}

impl DispatchLoop {
    pub(crate) fn new(shared: Arc<Shared>, events: mpsc::Receiver<Event>, steps: mpsc::Sender<Step>) -> Self {
        let next_round_at = shared.clock.now();
        let limits = Limits::new(!shared.store.is_single_server());
        let tracer = FireTracer::new(shared.config.traces);
        Self {
            shared,
            events,
            steps,
            runs: OpenRuns::default(),
            parked: Parked::default(),
            gates: Gates::default(),
            work: VecDeque::new(),
            handing: BTreeSet::new(),
            covering: BTreeSet::new(),
            limits,
            deadlines: Deadlines::default(),
            adopted: None,
            is_adopting: false,
            rollcall: RollCall::default(),
            terms: HashMap::new(),
            executors: Executors::default(),
            tracer,
            memories: Memories::default(),
            probes: Probes::default(),
            outgoing: BTreeMap::new(),
            marked_ahead: BTreeSet::new(),
            unmarking: 0,
            to_mark: Vec::new(),
            fences_told: Told::new(),
            is_looking_for_lost: false,
            next_look_at: next_round_at,
            waits: Waits::default(),
            next_seek_at: next_round_at,
            next_round_at,
            is_draining: false,
            drained: None,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let wake =
                self.next_instant().min(self.next_round_at).min(self.limits.wake_at()).min(self.probes.wake_at());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = self.events.recv() => match event {
                    Some(event) => self.handle_burst(event),
                    None => return,
                },
                () = self.shared.clock.sleep_until(wake) => {}
            }
            let now = self.shared.clock.now();
            self.release(now);
            self.end_probes(now);
            self.wake_limits(now);
            if now >= self.next_round_at || self.next_round_at > now + NOTE_AFTER {
                self.next_round_at = now + NOTE_AFTER;
                self.round(now);
            }
            self.flush(now);
            self.flush_questions(now);
            self.answer_drain();
        }
    }

    /// When the next run is to be looked at, or sent. Before all is known that is open neither is, whatever their instants.
    fn next_instant(&self) -> Timestamp {
        if !self.knows_open_runs() {
            return Timestamp::MAX;
        }
        let (next, marked) = (self.runs.next_at(), self.marked_ahead.first());
        let at = next.unwrap_or(Timestamp::MAX);
        at.min(marked.map_or(Timestamp::MAX, |(at, _)| *at))
    }

    fn handle_burst(&mut self, first: Event) {
        let mut next = Some(first);
        for _ in 0..EVENT_BURST {
            let Some(event) = next else { return };
            let now = self.shared.clock.now();
            self.handle(event, now);
            next = self.events.try_recv().ok();
        }
        if let Some(event) = next {
            let now = self.shared.clock.now();
            self.handle(event, now);
        }
    }

    fn handle(&mut self, event: Event, now: Timestamp) {
        match event {
            Event::Ready(runs) => runs.into_iter().for_each(|ready| self.arrived(ready)),
            Event::Joined(session, executor, report) => self.joined(session, executor, report, now),
            Event::Left(executor, number) => self.left(executor, number, now),
            Event::Gone(executor) => self.gone(executor, now),
            Event::Died(executor) => self.died(executor, now),
            Event::Beat(executor, active) => self.executors.beat(executor, active, now),
            Event::FenceAnswered(executor, number, answer) => self.fence_answered(executor, number, answer, now),
            Event::Heard(suspects, heard) => self.heard_elsewhere(&suspects, &heard, now),
            Event::Probed(executor, number, free) => self.answered(executor, number, &free, now),
            Event::Draining(executor) => {
                if let Some(online) = self.executors.get_mut(executor) {
                    online.draining = true;
                }
            }
            Event::Replies(executor, replies) => self.replied(executor, replies, now),
            Event::Results(session, results) => self.results(&session, results, now),
            Event::Settled(settled) => settled.into_iter().for_each(|settled| self.settled(&settled, now)),
            Event::Awaiting(runs) => {
                let held = runs.into_iter().filter(|(job, run)| self.gates.keep(*job, *run, &mut self.runs));
                self.shared.awaiting.admit(held);
            }
            Event::Hold(runs) => {
                runs.iter().for_each(|ready| self.gates.hold(ready));
            }
            Event::Over(runs) => {
                for (_, run) in self.shared.awaiting.forget(runs) {
                    self.leave_gate(run);
                    self.work_off(now);
                }
            }
            Event::Expanded(root, shards) => self.expanded(&root, shards, now),
            Event::Marked(asked, won) => self.marked(&asked, &won, now),
            Event::Unmarked => self.unmarking = self.unmarking.saturating_sub(1),
            Event::RollCall(runs, sessions, over) => self.call_roll(runs, &sessions, &over, now),
            Event::Restored(runs) => runs.iter().for_each(|ready| self.gates.restore(ready)),
            Event::Adopting => self.is_adopting = true,
            Event::Adopted(token) => {
                (self.adopted, self.is_adopting) = (Some(token), false);
                self.runs.stop_holding_back();
            }
            Event::Cancels(cancels) => self.cancel(cancels, now),
            Event::Covered(asked, cancels) => self.covered(&asked, cancels, now),
            Event::LimitHomes(homes) => self.homes_of_limits(homes, now),
            Event::CancelsElsewhere(cancels) => self.cancel_elsewhere(cancels),
            Event::Handed(jobs) => self.open_jobs(jobs),
            Event::Looked(asked, checks) => self.looked(&asked, &checks, now),
            Event::HandedOver(runs) => self.handed_over(runs, now),
            Event::MaybeHandedOver(runs) => self.maybe_handed_over(runs, now),
            Event::LeaseLost => self.drop_unsent(),
            // Nobody waits any more where the drain is over.
            Event::ListInHand(tell) => drop(tell.send(self.runs.actives().map(|active| active.ready.run.id).collect())),
            Event::StopApps(apps) => self.stop_apps(&apps),
            Event::Dismiss => self.dismiss(),
            Event::Drain(done, grace) => {
                self.note_all_waits(now);
                self.drop_unsent();
                let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
                for online in self.executors.all() {
                    online.session.send(v1::server_message::Body::Drain(v1::Drain { grace_ms }));
                }
                (self.is_draining, self.drained) = (true, Some(done));
            }
        }
    }

    /// Whether this node may start runs: its lease holds, and the gates count all that was open when it took that.
    pub(super) fn knows_open_runs(&self) -> bool {
        self.shared.membership.holds() && self.adopted == Some(self.shared.membership.token())
    }

    /// Forgets everything that is not in an executor's hands: it is durable, and whoever holds the lease finds it.
    fn drop_unsent(&mut self) {
        self.drop_placed();
        (self.parked, self.probes) = (Parked::default(), Probes::default());
        let is_active = |run| self.runs.active(run).is_some();
        self.gates.retain(is_active);
        self.limits.retain(is_active);
        self.covering.clear();
        self.rollcall.clear();
        let mut dropped = self.runs.drain_called();
        for open in self.runs.drain_waiting() {
            if let Stage::Unconfirmed(shards) = open.stage {
                self.forget_shards(&shards);
            }
            dropped.push(open.ready);
        }
        self.shared.in_memory.forget_of(dropped.iter().map(|ready| (ready.run.id, ready.token())));
    }

    fn answer_drain(&mut self) {
        if self.runs.active_count() == 0
            && self.unmarking == 0
            && let Some(done) = self.drained.take()
        {
            // Nobody waits any more where the grace is over.
            done.send(()).ok();
        }
    }
}
