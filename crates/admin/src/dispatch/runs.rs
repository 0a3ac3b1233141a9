//! The open runs of this node. This table is the only owner of each attempt. An attempt either waits in a stage, or is in hand: an
//! executor has it, or may have it until the roll call finds out. The queues (gates, limits, parked, probes, roll call) are indexes by id
//! and own nothing.
//!
//! While the end of an attempt is being stored, the next attempt may already wait here. At most one attempt of a run waits, and at most one is in
//! hand. If a second attempt of a run comes into hand, the later attempt counts, because the store begins an attempt only once the earlier attempt
//! has ended.

use std::collections::{BTreeSet, HashMap};

use rondel_core::{ExecutorId, Run, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::active::ActiveRun;
use super::queue::probes::Answers;
use super::ready::ReadyRun;
use super::shared_details::SharedDetails;
use super::timer::Timer;

/// The stage of an open run that no executor has: the event that the run waits for.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Waits for its instant.
    Scheduled(Timer),
    /// Its instant has come, but it waits because open runs of its job may still be adopted.
    HeldBack(Timer),
    /// Waits for its turn at a gate.
    Queued,
    /// Its turn at a gate has come: it is started next.
    Admitted,
    /// Waits for a limit, since this instant.
    Limited(Timestamp),
    /// Waits for an executor that takes it, since this instant.
    Parked(Timestamp),
    /// Waits for the answers of executors that are asked about it.
    Probing(Box<Answers>),
    /// A broadcast that waits until its shards are stored.
    Expanding,
    /// A broadcast that waits until the database confirms whether these shards are stored.
    Unconfirmed(Vec<Run>),
}

/// A run that is being moved into a queue, or out of it.
#[derive(Debug)]
pub(crate) struct WaitingRun {
    pub(crate) ready: ReadyRun,
    /// When its wait in that queue began. Its queue timeout does not count from here.
    pub(crate) since: Timestamp,
}

impl WaitingRun {
    pub(crate) const fn new(ready: ReadyRun, since: Timestamp) -> Self {
        Self { ready, since }
    }

    /// The end of its queue timeout.
    pub(crate) fn timeout_at(&self) -> Timestamp {
        waits_until(&self.ready, self.since)
    }
}

/// The end of the queue timeout of a run that has waited since `since`.
pub(crate) fn waits_until(ready: &ReadyRun, since: Timestamp) -> Timestamp {
    match mutant::on(Mutant::QueueTimeFromTurn) {
        true => since + ready.definition.job.queue_timeout,
        false => ready.waits_until(),
    }
}

#[derive(Debug)]
pub(crate) struct OpenRun {
    pub(crate) ready: ReadyRun,
    pub(crate) stage: Stage,
}

impl OpenRun {
    /// When its wait began, if it waits for a limit or for an executor; otherwise the instant at which it was due.
    pub(crate) const fn since(&self) -> Timestamp {
        match self.stage {
            Stage::Limited(since) | Stage::Parked(since) => since,
            Stage::Scheduled(_)
            | Stage::HeldBack(_)
            | Stage::Queued
            | Stage::Admitted
            | Stage::Probing(_)
            | Stage::Expanding
            | Stage::Unconfirmed(_) => self.ready.run.due_at,
        }
    }

    /// The epoch and the attempt. Of two versions of one run, the version with the greater pair is the later version.
    const fn epoch_and_attempt(&self) -> (i64, i32) {
        epoch_and_attempt(&self.ready)
    }
}

const fn epoch_and_attempt(ready: &ReadyRun) -> (i64, i32) {
    (ready.run.node_epoch, ready.run.attempt)
}

/// How a run that comes from the ring relates to the copy of it that waits here, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// No attempt of the run waits here: the run is added.
    New,
    /// It replaces an earlier attempt, a copy from an earlier lease, or the same attempt if that still waits for its timer.
    Replaces,
    /// It, or a later attempt, waits here already.
    Known,
}

/// A run in the table.
#[derive(Debug)]
enum Entry {
    /// Boxed, so that empty entries stay small: a hash table that has just grown is half empty.
    Open(Box<OpenRun>),
    /// A decision in progress has taken the run out. It puts the run back, passes it on, or ends it.
    Deciding,
}

#[derive(Debug)]
enum AttemptInHand {
    /// An executor has it, or is about to get it.
    Active(Box<ActiveRun>),
    /// In a roll call: it may have been sent under a lease that has ended, so an executor may have it.
    InRollCall(Box<ReadyRun>),
}

impl AttemptInHand {
    const fn attempt(&self) -> i32 {
        match self {
            Self::Active(active) => active.ready.run.attempt,
            Self::InRollCall(ready) => ready.run.attempt,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct OpenRuns {
    /// Attempts that wait.
    runs: HashMap<RunId, Entry>,
    /// Runs that have been taken out since ended runs were last [removed](Self::remove_ended).
    taken_runs: Vec<RunId>,
    /// Attempts that executors have or may have.
    in_hand: HashMap<RunId, AttemptInHand>,
    /// The attempts that executors have, by executor.
    by_executor: HashMap<ExecutorId, BTreeSet<RunId>>,
    active_count: usize,
    /// Runs that came into hand, or left it, since the last call of [`take_hand_changes`](Self::take_hand_changes).
    hand_changes: Vec<RunId>,
    /// Scheduled runs, sorted by timer and then by planned instant.
    scheduled_runs: BTreeSet<(Timestamp, Timestamp, RunId)>,
    /// Runs whose instant has come, and that wait because open runs of their jobs may still be adopted.
    held_back_runs: Vec<RunId>,
    /// Broadcasts whose shards may not have been stored: the store did not answer.
    unconfirmed_runs: Vec<RunId>,
    shared_details: SharedDetails,
}

// Runs that wait for their instant, for an adoption, or for the store's answer about their shards.
impl OpenRuns {
    pub(crate) fn schedule(&mut self, ready: ReadyRun, timer: Timer) {
        self.scheduled_runs.insert((timer.at, ready.run.fire_at, ready.run.id));
        self.put(ready, Stage::Scheduled(timer));
    }

    /// When the first timer goes off.
    pub(crate) fn next_timer_at(&self) -> Option<Timestamp> {
        self.scheduled_runs.first().map(|(at, ..)| *at)
    }

    /// Takes out the first run whose timer has gone off by now.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<(ReadyRun, Timer)> {
        let (_, _, run) = self.scheduled_runs.first().filter(|(at, ..)| *at <= now).copied()?;
        self.take_scheduled(run)
    }

    /// Takes out a run whose timer is set.
    pub(crate) fn take_scheduled(&mut self, run: RunId) -> Option<(ReadyRun, Timer)> {
        let Stage::Scheduled(timer) = self.stage(run)? else { return None };
        let timer = *timer;
        let ready = self.take(run)?.ready;
        self.scheduled_runs.remove(&(timer.at, ready.run.fire_at, run));
        Some((ready, timer))
    }

    /// Holds a run back, because the open runs of its job may not be known yet.
    pub(crate) fn hold_back(&mut self, ready: ReadyRun, timer: Timer) {
        self.held_back_runs.push(ready.run.id);
        self.put(ready, Stage::HeldBack(timer));
    }

    /// Schedules the held-back runs again: the open runs of their jobs may be known now.
    pub(crate) fn stop_holding_back(&mut self) {
        for run in std::mem::take(&mut self.held_back_runs) {
            if let Some(OpenRun { ready, stage: Stage::HeldBack(timer) }) = self.take(run) {
                self.schedule(ready, timer);
            }
        }
    }

    /// Takes out a broadcast whose shards are being stored under the lease of `root`.
    pub(crate) fn take_expanding(&mut self, root: &Run) -> Option<ReadyRun> {
        let open_run = self.get(root.id)?;
        let is_expanding_root =
            matches!(open_run.stage, Stage::Expanding) && open_run.ready.run.node_epoch == root.node_epoch;
        if is_expanding_root { self.take(root.id).map(|open| open.ready) } else { None }
    }

    /// Keeps a broadcast until the database confirms whether these shards of it are stored.
    pub(crate) fn wait_for_expansion(&mut self, root: ReadyRun, shards: Vec<Run>) {
        self.unconfirmed_runs.push(root.run.id);
        self.put(root, Stage::Unconfirmed(shards));
    }

    /// Returns all broadcasts whose shards are unconfirmed, which the caller stores again. From now on, these broadcasts count as expanding.
    pub(crate) fn take_unconfirmed(&mut self) -> Vec<(Run, Vec<Run>)> {
        let mut roots_to_expand = Vec::new();
        for root in std::mem::take(&mut self.unconfirmed_runs) {
            let Some(open_run) = self.get_mut(root) else { continue };
            if let Stage::Unconfirmed(shards) = std::mem::replace(&mut open_run.stage, Stage::Expanding) {
                roots_to_expand.push((open_run.ready.run.clone(), shards));
            }
        }
        roots_to_expand
    }

    /// Takes out a run that is in none of the other queues.
    pub(crate) fn withdraw(&mut self, run: RunId) -> Option<OpenRun> {
        let open_run = self.take(run)?;
        match &open_run.stage {
            Stage::Scheduled(timer) => drop(self.scheduled_runs.remove(&(timer.at, open_run.ready.run.fire_at, run))),
            Stage::HeldBack(_) => self.held_back_runs.retain(|held| *held != run),
            Stage::Unconfirmed(_) => self.unconfirmed_runs.retain(|root| *root != run),
            Stage::Queued
            | Stage::Admitted
            | Stage::Limited(_)
            | Stage::Parked(_)
            | Stage::Probing(_)
            | Stage::Expanding => {}
        }
        Some(open_run)
    }
}

impl OpenRuns {
    /// Adds a run. The caller has taken out any earlier entry of the run.
    pub(crate) fn put(&mut self, mut ready: ReadyRun, stage: Stage) {
        let run = ready.run.id;
        self.shared_details.share(&mut ready.run);
        let replaced_entry = self.runs.insert(run, Entry::Open(Box::new(OpenRun { ready, stage })));
        debug_assert!(!matches!(replaced_entry, Some(Entry::Open(_))), "run {run} has two owners");
    }

    pub(crate) fn take(&mut self, run: RunId) -> Option<OpenRun> {
        let entry = self.runs.get_mut(&run)?;
        let Entry::Open(open_run) = std::mem::replace(entry, Entry::Deciding) else { return None };
        self.taken_runs.push(run);
        Some(*open_run)
    }

    /// Removes the runs that were taken out since the last call, and neither put back nor given to an executor: they have
    /// ended. Returns them.
    pub(crate) fn remove_ended(&mut self) -> Vec<RunId> {
        let mut taken_runs = std::mem::take(&mut self.taken_runs);
        taken_runs.retain(|run| {
            let is_still_taken = matches!(self.runs.get(run), Some(Entry::Deciding));
            is_still_taken && self.runs.remove(run).is_some()
        });
        taken_runs
    }

    /// Like [`take`](Self::take), for a run in a queue that counts how long it waits.
    pub(crate) fn take_waiting(&mut self, run: RunId) -> Option<WaitingRun> {
        self.take(run).map(|open| WaitingRun { since: open.since(), ready: open.ready })
    }

    pub(crate) fn get(&self, run: RunId) -> Option<&OpenRun> {
        match self.runs.get(&run)? {
            Entry::Open(open_run) => Some(open_run),
            Entry::Deciding => None,
        }
    }

    pub(crate) fn get_mut(&mut self, run: RunId) -> Option<&mut OpenRun> {
        match self.runs.get_mut(&run)? {
            Entry::Open(open_run) => Some(open_run),
            Entry::Deciding => None,
        }
    }

    pub(crate) fn ready(&self, run: RunId) -> Option<&ReadyRun> {
        self.get(run).map(|open| &open.ready)
    }

    pub(crate) fn stage(&self, run: RunId) -> Option<&Stage> {
        self.get(run).map(|open| &open.stage)
    }

    /// How a run from the ring relates to the run already in the table. A run that is past its timer is not started again.
    pub(crate) fn arrival(&self, ready: &ReadyRun) -> Arrival {
        let Some(present_run) = self.get(ready.run.id) else { return Arrival::New };
        let has_timer = matches!(present_run.stage, Stage::Scheduled(_) | Stage::HeldBack(_));
        match epoch_and_attempt(ready).cmp(&present_run.epoch_and_attempt()) {
            std::cmp::Ordering::Greater => Arrival::Replaces,
            std::cmp::Ordering::Equal if has_timer => Arrival::Replaces,
            std::cmp::Ordering::Equal | std::cmp::Ordering::Less => Arrival::Known,
        }
    }

    /// Takes out all waiting runs, except broadcasts whose shards are being stored: the store has not answered yet.
    pub(crate) fn drain_waiting(&mut self) -> Vec<OpenRun> {
        self.scheduled_runs.clear();
        self.held_back_runs.clear();
        self.unconfirmed_runs.clear();
        let is_waiting = |entry: &Entry| matches!(entry, Entry::Open(open) if !matches!(open.stage, Stage::Expanding));
        let drained_entries = self.runs.extract_if(|_, entry| is_waiting(entry));
        let open_run = |entry| match entry {
            Entry::Open(open_run) => Some(*open_run),
            Entry::Deciding => None,
        };
        drained_entries.filter_map(|(_, entry)| open_run(entry)).collect()
    }
}

// Runs that executors have, or may have.
impl OpenRuns {
    /// Records in `in_hand` an attempt that an executor has or is about to get, in place of the same or an earlier attempt. Does nothing if a later
    /// attempt is there.
    pub(crate) fn put_active(&mut self, active: ActiveRun) {
        if matches!(self.runs.get(&active.ready.run.id), Some(Entry::Deciding)) {
            self.runs.remove(&active.ready.run.id);
        }
        self.put_in_hand(active.ready.run.id, AttemptInHand::Active(Box::new(active)));
    }

    /// Records in `in_hand` an attempt that an executor may have, until the roll call finds out. False if a later attempt is there.
    pub(crate) fn put_in_roll_call(&mut self, ready: ReadyRun) -> bool {
        self.put_in_hand(ready.run.id, AttemptInHand::InRollCall(Box::new(ready)))
    }

    fn put_in_hand(&mut self, run: RunId, attempt: AttemptInHand) -> bool {
        let is_later = self.in_hand.get(&run).is_none_or(|here| here.attempt() <= attempt.attempt());
        if is_later {
            self.take_from_hand(run);
            if let AttemptInHand::Active(active) = &attempt {
                self.by_executor.entry(active.executor).or_default().insert(run);
                self.active_count += 1;
            }
            self.in_hand.insert(run, attempt);
            self.hand_changes.push(run);
        }
        is_later
    }

    fn take_from_hand(&mut self, run: RunId) -> Option<AttemptInHand> {
        let attempt = self.in_hand.remove(&run)?;
        self.hand_changes.push(run);
        if let AttemptInHand::Active(active) = &attempt {
            self.active_count -= 1;
            if let Some(runs_of_executor) = self.by_executor.get_mut(&active.executor) {
                runs_of_executor.remove(&run);
                if runs_of_executor.is_empty() {
                    self.by_executor.remove(&active.executor);
                }
            }
        }
        Some(attempt)
    }

    /// Moves a run to the successor of the executor that it was sent to.
    pub(crate) fn move_active(&mut self, run: RunId, executor: ExecutorId) {
        if let Some(mut active) = self.take_active(run) {
            active.executor = executor;
            self.put_in_hand(run, AttemptInHand::Active(Box::new(active)));
        }
    }

    /// The runs that this executor has, sorted by id.
    pub(crate) fn of_executor(&self, executor: ExecutorId) -> impl Iterator<Item = &ActiveRun> {
        self.by_executor.get(&executor).into_iter().flatten().filter_map(|run| self.active(*run))
    }

    pub(crate) fn active(&self, run: RunId) -> Option<&ActiveRun> {
        match self.in_hand.get(&run)? {
            AttemptInHand::Active(active) => Some(active),
            AttemptInHand::InRollCall(_) => None,
        }
    }

    pub(crate) fn active_mut(&mut self, run: RunId) -> Option<&mut ActiveRun> {
        match self.in_hand.get_mut(&run)? {
            AttemptInHand::Active(active) => Some(active),
            AttemptInHand::InRollCall(_) => None,
        }
    }

    pub(crate) fn active_runs(&self) -> impl Iterator<Item = &ActiveRun> {
        self.in_hand.values().filter_map(|hand| match hand {
            AttemptInHand::Active(active) => Some(&**active),
            AttemptInHand::InRollCall(_) => None,
        })
    }

    pub(crate) fn active_runs_mut(&mut self) -> impl Iterator<Item = &mut ActiveRun> {
        self.in_hand.values_mut().filter_map(|hand| match hand {
            AttemptInHand::Active(active) => Some(&mut **active),
            AttemptInHand::InRollCall(_) => None,
        })
    }

    pub(crate) const fn active_count(&self) -> usize {
        self.active_count
    }

    pub(crate) fn take_active(&mut self, run: RunId) -> Option<ActiveRun> {
        self.active(run)?;
        match self.take_from_hand(run)? {
            AttemptInHand::Active(active) => Some(*active),
            AttemptInHand::InRollCall(_) => None,
        }
    }

    pub(crate) fn in_roll_call(&self, run: RunId) -> Option<&ReadyRun> {
        match self.in_hand.get(&run)? {
            AttemptInHand::InRollCall(ready) => Some(ready),
            AttemptInHand::Active(_) => None,
        }
    }

    pub(crate) fn all_in_roll_call(&self) -> impl Iterator<Item = &ReadyRun> {
        self.in_hand.values().filter_map(|hand| match hand {
            AttemptInHand::InRollCall(ready) => Some(&**ready),
            AttemptInHand::Active(_) => None,
        })
    }

    pub(crate) fn take_from_roll_call(&mut self, run: RunId) -> Option<ReadyRun> {
        self.in_roll_call(run)?;
        match self.take_from_hand(run)? {
            AttemptInHand::InRollCall(ready) => Some(*ready),
            AttemptInHand::Active(_) => None,
        }
    }

    /// Runs that came into hand, or left it, since the last call, each with whether an attempt is in hand now.
    pub(crate) fn take_hand_changes(&mut self) -> Vec<(RunId, bool)> {
        let hand_changes = std::mem::take(&mut self.hand_changes);
        hand_changes.into_iter().map(|run| (run, self.in_hand.contains_key(&run))).collect()
    }

    pub(crate) fn drain_roll_call(&mut self) -> Vec<ReadyRun> {
        let entries = self.in_hand.extract_if(|_, hand| matches!(hand, AttemptInHand::InRollCall(_)));
        let ready = |hand| match hand {
            AttemptInHand::InRollCall(ready) => Some(*ready),
            AttemptInHand::Active(_) => None,
        };
        let roll_call_runs: Vec<ReadyRun> = entries.filter_map(|(_, hand)| ready(hand)).collect();
        self.hand_changes.extend(roll_call_runs.iter().map(|ready| ready.run.id));
        roll_call_runs
    }
}

#[cfg(test)]
mod tests;
