//! The open runs of this node. Each attempt is owned here, once: it waits, with the stage that it is in; or it is called for,
//! since an executor may have it; or an executor has it. The queues beside this (gates, limits, parked, probes, roll call) are
//! indexes by id and own nothing.
//!
//! A run that a decision is being made about is taken out and put back with its next stage. Where the end of an attempt is on its
//! way, the next one may wait here already: of one run, at most one attempt waits and one is in hand.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use rondel_core::spec::Delivery;
use rondel_core::{ExecutorId, Run, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::InHand;
use tokio::time::Instant;

use super::Ready;
use super::probes::Answers;
use crate::trace::DispatchSpan;

/// How long before its instant an at-most-once run is marked at the earliest: time for the write, so that it starts on
/// time; and no more, for what dies in between ends as `unknown`.
const MARK_LEAD: Duration = Duration::from_millis(200);
/// How long before its instant a run is read by the tick, at most, and comes here.
const READ_AHEAD_MAX: Duration = Duration::from_secs(1);

/// What an open run waits for that no executor has.
#[derive(Debug)]
pub(crate) enum Stage {
    /// For its instant.
    Scheduled(Timer),
    /// Its instant has come; what is open of its job may still be adopted.
    HeldBack(Timer),
    /// For its turn at a gate.
    Queued,
    /// Its turn has come: it is started next.
    Admitted,
    /// For a limit, since then.
    Limited(Timestamp),
    /// For an executor that takes it, since then.
    Parked(Timestamp),
    /// For the answers of executors that are asked about it.
    Probing(Answers),
    /// A broadcast: for the database to confirm whether it is expanded into these shards.
    Unconfirmed(Vec<Run>),
}

/// When a run is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timer {
    /// Its instant, or a little before it where it is to be marked first.
    pub(crate) at: Timestamp,
    /// When it came here.
    armed_at: Instant,
}

impl Timer {
    pub(crate) fn new(ready: &Ready) -> Self {
        let is_marked = ready.definition.job.delivery == Delivery::AtMostOnce && !ready.run.is_root();
        let at = if is_marked { ready.run.due_at - MARK_LEAD } else { ready.run.due_at };
        Self { at, armed_at: Instant::now() }
    }

    /// The same, to go off then.
    pub(crate) const fn set_to(self, at: Timestamp) -> Self {
        Self { at, ..self }
    }

    /// Whether the run's instant has come later than it can have by the clock that it was read by: that has stepped back since.
    /// An edit may have found the run far ahead meanwhile, and settled it.
    pub(crate) fn is_outdated(&self, due_at: Timestamp, now: Timestamp) -> bool {
        let overdue = if now > due_at { now.since(due_at) } else { Duration::ZERO };
        self.armed_at.elapsed() > overdue + READ_AHEAD_MAX
    }
}

/// A run on its way into a queue, or out of it.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ready: Ready,
    /// Since when it waits there. Its queue time counts from its instant.
    pub(crate) since: Timestamp,
}

impl Waiting {
    pub(crate) const fn new(ready: Ready, since: Timestamp) -> Self {
        Self { ready, since }
    }

    /// When it has waited as long as it may.
    pub(crate) fn until(&self) -> Timestamp {
        waits_until(&self.ready, self.since)
    }
}

/// When a run that waits since then has waited as long as it may.
pub(crate) fn waits_until(ready: &Ready, since: Timestamp) -> Timestamp {
    match mutant::on(Mutant::QueueTimeFromTurn) {
        true => since + ready.definition.job.queue_timeout,
        false => ready.waits_until(),
    }
}

#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) ready: Ready,
    pub(crate) stage: Stage,
}

impl OpenRun {
    /// Since when it waits in its queue.
    pub(crate) const fn since(&self) -> Timestamp {
        match self.stage {
            Stage::Limited(since) | Stage::Parked(since) => since,
            Stage::Scheduled(_)
            | Stage::HeldBack(_)
            | Stage::Queued
            | Stage::Admitted
            | Stage::Probing(_)
            | Stage::Unconfirmed(_) => self.ready.run.due_at,
        }
    }

    /// The lease and the attempt that it stands for: of two of one run the greater is the later.
    const fn version(&self) -> (i64, i32) {
        version(&self.ready)
    }
}

const fn version(ready: &Ready) -> (i64, i32) {
    (ready.run.node_epoch, ready.run.attempt)
}

/// What becomes of a run that comes from the ring while one with its id waits here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is taken in; nothing of it is here.
    New,
    /// It takes the place of what is left here of an attempt or a lease before.
    Replaces,
    /// It is here already, or a later one is.
    Known,
}

/// A run in an executor's hands, or on its way.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) ready: Ready,
    pub(crate) executor: ExecutorId,
    pub(crate) executor_name: String,
    /// When it was sent; before that, when the executor was chosen, which is the instant of an at-most-once run's mark.
    pub(crate) sent_at: Timestamp,
    /// The number of the trigger that was sent last.
    pub(crate) number: i64,
    /// When its row was looked at last.
    pub(crate) looked_at: Timestamp,
    pub(crate) phase: Phase,
    /// How many heartbeats had come on the stream when it was sent; none once the executor has answered.
    pub(crate) beats_at_send: Option<u64>,
    /// The dispatch of the run, until the executor says something of it; where traces are exported.
    pub(crate) span: Option<DispatchSpan>,
}

impl Active {
    pub(crate) fn new(ready: Ready, executor: ExecutorId, executor_name: String, now: Timestamp, phase: Phase) -> Self {
        Self {
            ready,
            executor,
            executor_name,
            sent_at: now,
            number: 0,
            looked_at: now,
            phase,
            beats_at_send: None,
            span: None,
        }
    }

    /// What the store notes of it.
    pub(crate) fn in_hand(&self) -> InHand {
        InHand {
            run: self.ready.run.id,
            attempt: self.ready.run.attempt,
            executor_id: self.executor,
            executor: self.executor_name.clone(),
            at: self.sent_at,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waits for its durable mark.
    Marking,
    /// Its executor is chosen, and its mark durable where it needs one: it is sent at its instant, while the lease holds.
    Placed,
    /// On the stream, or further.
    Sent,
    /// Sent, and noted as running.
    Noted,
    /// It was given up, and that is on its way into the store; a result may still come first.
    Ending,
    /// Its result is on its way into the store; the same result again changes nothing.
    Settling,
}

#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    /// Those that wait.
    runs: HashMap<RunId, OpenRun>,
    /// Those that executors have, or are about to get.
    pub(crate) in_hand: HashMap<RunId, Active>,
    /// Those that an executor may have, by a lease that is over.
    called: HashMap<RunId, Ready>,
    /// Those that are scheduled, by when they are looked at and by their planned instants.
    scheduled: BTreeSet<(Timestamp, Timestamp, RunId)>,
    held_back: Vec<RunId>,
    unconfirmed: Vec<RunId>,
}

/// Runs that wait for nothing but an instant, or for an answer.
impl OpenRuns {
    pub(crate) fn schedule(&mut self, ready: Ready, timer: Timer) {
        self.scheduled.insert((timer.at, ready.run.fire_at, ready.run.id));
        self.put(ready, Stage::Scheduled(timer));
    }

    /// When the first timer goes off.
    pub(crate) fn next_at(&self) -> Option<Timestamp> {
        self.scheduled.first().map(|(at, ..)| *at)
    }

    /// Takes out the first run whose timer has gone off by now.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<(Ready, Timer)> {
        let (_, _, run) = self.scheduled.first().filter(|(at, ..)| *at <= now).copied()?;
        self.take_scheduled(run)
    }

    /// Takes a run out whose timer is set.
    pub(crate) fn take_scheduled(&mut self, run: RunId) -> Option<(Ready, Timer)> {
        let Stage::Scheduled(timer) = self.stage(run)? else { return None };
        let timer = *timer;
        let ready = self.take(run)?.ready;
        self.scheduled.remove(&(timer.at, ready.run.fire_at, run));
        Some((ready, timer))
    }

    /// The open runs of its job may not be known yet.
    pub(crate) fn hold_back(&mut self, ready: Ready, timer: Timer) {
        self.held_back.push(ready.run.id);
        self.put(ready, Stage::HeldBack(timer));
    }

    /// All open runs are known: what was held back is looked at again.
    pub(crate) fn stop_holding_back(&mut self) {
        for run in std::mem::take(&mut self.held_back) {
            if let Some(OpenRun { ready, stage: Stage::HeldBack(timer) }) = self.take(run) {
                self.schedule(ready, timer);
            }
        }
    }

    /// The database did not say whether a broadcast is expanded into these shards.
    pub(crate) fn wait_for_expansion(&mut self, root: Ready, shards: Vec<Run>) {
        self.unconfirmed.push(root.run.id);
        self.put(root, Stage::Unconfirmed(shards));
    }

    /// Takes out all broadcasts of which that is not known.
    pub(crate) fn take_unconfirmed(&mut self) -> Vec<(Ready, Vec<Run>)> {
        let roots = std::mem::take(&mut self.unconfirmed).into_iter();
        let root = |run| match self.take(run)? {
            OpenRun { ready, stage: Stage::Unconfirmed(shards) } => Some((ready, shards)),
            _ => None,
        };
        roots.filter_map(root).collect()
    }

    /// Takes out a run that is in none of the queues beside this.
    pub(crate) fn withdraw(&mut self, run: RunId) -> Option<OpenRun> {
        let open = self.take(run)?;
        match &open.stage {
            Stage::Scheduled(timer) => drop(self.scheduled.remove(&(timer.at, open.ready.run.fire_at, run))),
            Stage::HeldBack(_) => self.held_back.retain(|held| *held != run),
            Stage::Unconfirmed(_) => self.unconfirmed.retain(|root| *root != run),
            Stage::Queued | Stage::Admitted | Stage::Limited(_) | Stage::Parked(_) | Stage::Probing(_) => {}
        }
        Some(open)
    }
}

impl OpenRuns {
    /// Takes a run in. The caller has taken out what was here of it.
    pub(crate) fn put(&mut self, ready: Ready, stage: Stage) {
        let run = ready.run.id;
        let before = self.runs.insert(run, OpenRun { ready, stage });
        debug_assert!(before.is_none(), "run {run} has two owners");
    }

    pub(crate) fn take(&mut self, run: RunId) -> Option<OpenRun> {
        self.runs.remove(&run)
    }

    /// The same of one that waits in a queue that counts how long.
    pub(crate) fn take_waiting(&mut self, run: RunId) -> Option<Waiting> {
        self.take(run).map(|open| Waiting { since: open.since(), ready: open.ready })
    }

    pub(crate) fn get(&self, run: RunId) -> Option<&OpenRun> {
        self.runs.get(&run)
    }

    pub(crate) fn get_mut(&mut self, run: RunId) -> Option<&mut OpenRun> {
        self.runs.get_mut(&run)
    }

    pub(crate) fn ready(&self, run: RunId) -> Option<&Ready> {
        self.runs.get(&run).map(|open| &open.ready)
    }

    pub(crate) fn stage(&self, run: RunId) -> Option<&Stage> {
        self.runs.get(&run).map(|open| &open.stage)
    }

    /// What a run that comes from the ring is here. One that has gone on from its timer is not begun anew.
    pub(crate) fn arrival(&self, ready: &Ready) -> Arrival {
        let Some(here) = self.get(ready.run.id) else { return Arrival::New };
        let has_timer = matches!(here.stage, Stage::Scheduled(_) | Stage::HeldBack(_));
        match version(ready).cmp(&here.version()) {
            std::cmp::Ordering::Greater => Arrival::Replaces,
            std::cmp::Ordering::Equal if has_timer => Arrival::Replaces,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Arrival::Known,
        }
    }

    /// Takes out all that wait.
    pub(crate) fn drain_waiting(&mut self) -> impl Iterator<Item = OpenRun> + use<> {
        self.scheduled.clear();
        self.held_back.clear();
        self.unconfirmed.clear();
        std::mem::take(&mut self.runs).into_values()
    }
}

/// Runs that executors have, or may have.
impl OpenRuns {
    /// An executor gets a run, or has it.
    pub(crate) fn put_in_hand(&mut self, active: Active) {
        self.in_hand.insert(active.ready.run.id, active);
    }

    /// An executor may have a run: the roll call finds out.
    pub(crate) fn put_called(&mut self, ready: Ready) {
        self.called.insert(ready.run.id, ready);
    }

    pub(crate) fn called(&self, run: RunId) -> Option<&Ready> {
        self.called.get(&run)
    }

    pub(crate) fn take_called(&mut self, run: RunId) -> Option<Ready> {
        self.called.remove(&run)
    }

    pub(crate) fn drain_called(&mut self) -> Vec<Ready> {
        std::mem::take(&mut self.called).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::dispatch::tests_support::{definition, ready};

    fn version(second: i64, epoch: i64, attempt: i32) -> Ready {
        let mut ready = ready(second, &definition(&json!({})));
        (ready.run.node_epoch, ready.run.attempt) = (epoch, attempt);
        ready
    }

    #[tokio::test]
    async fn of_two_of_one_run_the_later_counts() {
        let mut runs = OpenRuns::default();
        assert_eq!(runs.arrival(&version(1, 2, 1)), Arrival::New);
        let here = version(1, 2, 2);
        let timer = Timer::new(&here);
        runs.schedule(here, timer);
        for (epoch, attempt, expected) in [
            (3, 1, Arrival::Replaces),
            (2, 3, Arrival::Replaces),
            (2, 2, Arrival::Replaces),
            (2, 1, Arrival::Known),
            (1, 9, Arrival::Known),
        ] {
            assert_eq!(runs.arrival(&version(1, epoch, attempt)), expected, "{epoch} {attempt}");
        }
        let (here, _) = runs.take_scheduled(RunId::new(1_000)).unwrap();
        runs.put(here, Stage::Parked(Timestamp::EPOCH));
        assert_eq!(runs.arrival(&version(1, 2, 2)), Arrival::Known, "it waits for an executor by now");
        assert_eq!(runs.arrival(&version(1, 2, 3)), Arrival::Replaces);
        assert_eq!(runs.arrival(&version(2, 1, 1)), Arrival::New);
    }

    fn due(runs: &mut OpenRuns, now: Timestamp) -> Vec<i64> {
        std::iter::from_fn(|| runs.take_due(now)).map(|(ready, _)| ready.run.due_at.second()).collect()
    }

    #[tokio::test]
    async fn timers_go_off_in_order_and_what_is_held_back_comes_again() {
        let (mut runs, job, at) = (OpenRuns::default(), definition(&json!({})), Timestamp::from_secs);
        for second in [5, 3, 9, 4] {
            let ready = ready(second, &job);
            let timer = Timer::new(&ready);
            runs.schedule(ready, timer);
        }
        assert_eq!(runs.next_at(), Some(at(3)));
        assert!(runs.take_due(at(2)).is_none());
        let (first, timer) = runs.take_due(at(4)).unwrap();
        runs.hold_back(first, timer);
        assert_eq!(due(&mut runs, at(5)), [4, 5], "the first is held back");
        runs.stop_holding_back();
        assert_eq!(due(&mut runs, at(5)), [3]);
        assert!(runs.withdraw(RunId::new(9_000)).is_some() && runs.next_at().is_none());
    }

    #[test]
    fn a_broadcast_is_asked_about_until_it_is_known_whether_it_is_expanded() {
        let (mut runs, root) = (OpenRuns::default(), ready(1, &definition(&json!({"route": "broadcast"}))));
        let shard = root.run.clone();
        runs.wait_for_expansion(root, vec![shard]);
        let asked = runs.take_unconfirmed();
        assert_eq!(
            asked.iter().map(|(root, shards)| (root.run.id.get(), shards.len())).collect::<Vec<_>>(),
            [(1_000, 1)]
        );
        assert!(runs.take_unconfirmed().is_empty() && runs.get(RunId::new(1_000)).is_none());
        let (root, shards) = asked.into_iter().next().unwrap();
        runs.wait_for_expansion(root, shards);
        assert!(runs.withdraw(RunId::new(1_000)).is_some() && runs.take_unconfirmed().is_empty());
    }

    #[tokio::test]
    async fn what_an_executor_may_have_stays_when_what_waits_is_dropped() {
        let (mut runs, job) = (OpenRuns::default(), definition(&json!({})));
        let [waits, is_called, is_sent] = [1, 2, 3].map(|second| ready(second, &job));
        let timer = Timer::new(&waits);
        runs.schedule(waits, timer);
        runs.put_called(is_called);
        runs.put_in_hand(Active::new(is_sent, ExecutorId::new(7), "e".to_owned(), Timestamp::EPOCH, Phase::Sent));
        assert_eq!(runs.drain_waiting().count(), 1);
        assert!(runs.next_at().is_none() && runs.called(RunId::new(2_000)).is_some());
        assert_eq!(runs.take_called(RunId::new(2_000)).map(|ready| ready.run.id), Some(RunId::new(2_000)));
        assert!(runs.drain_called().is_empty() && runs.in_hand.contains_key(&RunId::new(3_000)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_that_goes_off_late_by_its_own_clock_is_outdated() {
        let (at, marked) = (Timestamp::from_secs, json!({"delivery": "at_most_once"}));
        assert_eq!(Timer::new(&ready(9, &definition(&marked))).at, at(9) - MARK_LEAD);
        let timer = Timer::new(&ready(9, &definition(&json!({}))));
        assert_eq!(timer.at, at(9));
        tokio::time::advance(Duration::from_millis(900)).await;
        assert!(!timer.is_outdated(at(9), at(9)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(timer.is_outdated(at(9), at(9)), "the clock has stepped back");
        assert!(!timer.is_outdated(at(9), at(10)), "it is a second late by both");
    }
}
