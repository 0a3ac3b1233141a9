//! The loop that owns the open runs of this node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rondel_core::route::Memories;
use rondel_core::{ExecutorId, Reason, RunId, Timestamp};
use rondel_proto::v1;
use rondel_store::LeaseToken;
use rondel_store::ledger::InHand;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::executors::Executors;
use super::gates::{Gates, Passed};
use super::limits::Limits;
use super::overdue::Deadlines;
use super::parked::Parked;
use super::probes::Probes;
use super::rollcall::RollCall;
use super::steps::Step;
use super::{Event, Ready};
use crate::engine::Shared;

/// How old a run in an executor's hands is when it is noted in the store.
pub(super) const NOTE_AFTER: Duration = Duration::from_secs(1);
/// Events taken before the due runs are looked at again.
const EVENT_BURST: usize = 64;

/// A run in an executor's hands, or on its way.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) ready: Ready,
    pub(super) executor: ExecutorId,
    pub(super) executor_name: String,
    pub(super) sent_at: Timestamp,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Waits for its durable mark.
    Marking,
    /// On the stream, or further.
    Sent,
    /// Sent, and noted as running.
    Noted,
    /// It was given up, and that is on its way into the store; a result may still come first.
    Ending,
    /// Its result is on its way into the store; the same result again changes nothing.
    Settling,
}

/// A run that waits for its instant, ordered by it.
#[derive(Debug)]
pub(super) struct Upcoming(pub(super) Ready);

impl Upcoming {
    fn key(&self) -> (Timestamp, Timestamp, RunId) {
        (self.0.run.due_at, self.0.run.fire_at, self.0.run.id)
    }
}

impl PartialEq for Upcoming {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Upcoming {}
impl PartialOrd for Upcoming {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Upcoming {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

pub(crate) struct DispatchLoop {
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) steps: mpsc::Sender<Step>,
    pub(super) upcoming: BinaryHeap<Reverse<Upcoming>>,
    pub(super) active: HashMap<RunId, Active>,
    pub(super) parked: Parked,
    pub(super) gates: Gates,
    /// Those whose turn has come.
    pub(super) passed: VecDeque<Passed>,
    pub(super) is_going_on: bool,
    /// Runs that a later one takes the place of, until that is durable.
    pub(super) covering: BTreeSet<RunId>,
    pub(super) limits: Limits,
    pub(super) deadlines: Deadlines,
    /// Under which lease all open runs of before are known.
    pub(super) adopted: Option<LeaseToken>,
    pub(super) rollcall: RollCall,
    pub(super) executors: Executors,
    pub(super) memories: Memories,
    /// Runs that wait for answers of executors.
    pub(super) probes: Probes,
    /// Triggers of this turn of the loop, by executor.
    pub(super) outgoing: BTreeMap<ExecutorId, Vec<v1::Trigger>>,
    /// At-most-once runs of this turn.
    pub(super) to_mark: Vec<InHand>,
    pub(super) next_session: u64,
    pub(super) next_round_at: Timestamp,
    pub(super) drain: Option<oneshot::Sender<()>>,
}

impl DispatchLoop {
    pub(crate) fn new(shared: Arc<Shared>, events: mpsc::Receiver<Event>, steps: mpsc::Sender<Step>) -> Self {
        let next_round_at = shared.clock.now();
        let limits = Limits::new(!shared.store.is_single_server());
        Self {
            shared,
            events,
            steps,
            upcoming: BinaryHeap::new(),
            active: HashMap::new(),
            parked: Parked::default(),
            gates: Gates::default(),
            passed: VecDeque::new(),
            is_going_on: false,
            covering: BTreeSet::new(),
            limits,
            deadlines: Deadlines::default(),
            adopted: None,
            rollcall: RollCall::default(),
            executors: Executors::default(),
            memories: Memories::default(),
            probes: Probes::default(),
            outgoing: BTreeMap::new(),
            to_mark: Vec::new(),
            next_session: 0,
            next_round_at,
            drain: None,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let next = self.upcoming.peek().filter(|_| self.knows_open_runs());
            let due_at = next.map_or(Timestamp::MAX, |next| next.0.0.run.due_at);
            let wake = due_at.min(self.next_round_at).min(self.limits.wake_at()).min(self.probes.wake_at());
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
            Event::Ready(runs) => self.upcoming.extend(runs.into_iter().map(|ready| Reverse(Upcoming(ready)))),
            Event::Joined(session, executor, report) => self.joined(session, &executor, report, now),
            Event::Left(executor, number) => self.left(executor, number, now),
            Event::Beat(executor, active) => self.executors.beat(executor, active, now),
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
                let held = runs.into_iter().filter(|(job, run)| self.gates.keep(*job, *run));
                self.shared.awaiting.admit(held);
            }
            Event::Hold(runs) => {
                runs.iter().for_each(|ready| self.gates.hold(ready));
            }
            Event::Over(runs) => {
                for (_, run) in self.shared.awaiting.forget(runs) {
                    self.leave_gate(run, now);
                }
            }
            Event::Expanded(root, shards, done) => self.expanded(root, shards, done, now),
            Event::Marked(asked, won) => self.marked(&asked, &won),
            Event::RollCall(runs, sessions) => {
                for called in &runs {
                    self.gates.restore(&called.ready);
                    self.limits.hold(&called.ready);
                }
                let this = self.shared.membership.token().node;
                let is_own = |from: Option<LeaseToken>| from.is_some_and(|from| from.node == this);
                let next = self.next_session + 1;
                if runs.iter().any(|called| !is_own(called.from)) {
                    self.close_sessions(now);
                }
                let since = |from| if is_own(from) { 0 } else { next };
                self.rollcall.call(runs, &sessions, since, now);
            }
            Event::Restored(runs) => runs.iter().for_each(|ready| self.gates.restore(ready)),
            Event::Adopted(token) => self.adopted = Some(token),
            Event::Cancels(cancels) => self.cancel(cancels, now),
            Event::Covered(asked, cancels) => self.covered(&asked, cancels, now),
            Event::LimitHomes(homes) => self.homes_of_limits(homes, now),
            Event::HandedOver(runs) => self.handed_over(runs, now),
            Event::LeaseLost => self.drop_unsent(),
            Event::Drain(done, grace) => {
                self.drop_unsent();
                let grace_ms = u32::try_from(grace.as_millis()).unwrap_or(u32::MAX);
                for online in self.executors.all() {
                    online.session.send(v1::server_message::Body::Drain(v1::Drain { grace_ms }));
                }
                self.drain = Some(done);
            }
        }
    }

    /// Whether the gates count all that was open when this node took its lease. Before that nothing is sent.
    pub(super) fn knows_open_runs(&self) -> bool {
        self.adopted == Some(self.shared.membership.token())
    }

    /// Forgets everything that is not in an executor's hands: it is durable, and whoever holds the lease finds it.
    fn drop_unsent(&mut self) {
        let upcoming = std::mem::take(&mut self.upcoming).into_iter().map(|Reverse(Upcoming(ready))| ready);
        let mut dropped: Vec<Ready> = upcoming.collect();
        dropped.extend(self.parked.drain());
        let is_active = |run| self.active.contains_key(&run);
        dropped.extend(self.gates.retain(is_active));
        dropped.extend(self.limits.retain(is_active));
        self.covering.clear();
        dropped.extend(self.probes.drain());
        dropped.extend(self.rollcall.drain());
        self.shared.in_memory.forget(dropped.iter().map(|ready| ready.run.id));
    }

    fn answer_drain(&mut self) {
        if self.active.is_empty()
            && let Some(done) = self.drain.take()
        {
            // Nobody waits any more where the grace is over.
            done.send(()).ok();
        }
    }
}

pub(super) fn in_hand(active: &Active) -> InHand {
    InHand {
        run: active.ready.run.id,
        attempt: active.ready.run.attempt,
        executor_id: active.executor,
        executor: active.executor_name.clone(),
        at: active.sent_at,
    }
}

pub(super) fn lost_message(reason: Reason, executor: &str) -> String {
    match reason {
        Reason::NotReceived => format!("executor {executor} never received it"),
        _ => format!("executor {executor} was lost with it"),
    }
}
