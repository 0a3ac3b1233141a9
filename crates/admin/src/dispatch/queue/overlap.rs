//! Gates: how many runs of a job may be open at the same time, in which order the others wait, and which runs make room for others.
//!
//! A gate guards a whole job (overlap scope `cluster`), or the job on one executor (`executor`). Only the job's home has the gate. A
//! broadcast passes its job's gate once and counts as one run until all of its shards have ended. A run that waits for its next attempt is
//! *reserved*: it keeps its place in the order of the planned instants. A broadcast is reserved if all its remaining shards wait for their
//! next attempts.
//!
//! This module only decides, and owns no run: queued runs are among the [open runs](OpenRuns). The dispatcher carries out the decisions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rondel_core::spec::{OverlapPolicy, OverlapScope};
use rondel_core::{ExecutorId, Job, JobId, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::dispatch::queue::round_robin::round_robin;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::{OpenRuns, Stage};

/// Maximum number of queued runs of a job whose definition sets no maximum.
const QUEUE_LEN_MAX: usize = 1_000;

/// The object that a gate guards: a whole job, or a job on one executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GateKey {
    Job(JobId),
    Executor(JobId, ExecutorId),
}

/// A position in the order of runs, which is by planned instant. The shards of a broadcast have their broadcast's place.
type Place = (Timestamp, RunId);

#[derive(Debug, Default)]
pub(crate) struct Gates {
    gates: HashMap<GateKey, Gate>,
    /// The entry of every run that a gate knows.
    entries: HashMap<RunId, GateEntry>,
    /// Runs that await their children: the first [`leave`](Gates::leave) keeps their places, the second frees them.
    kept_for_children: HashSet<RunId>,
    /// The queue timeouts of queued runs; some of these runs may have left the queue since.
    timeouts: BTreeSet<(Timestamp, RunId)>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Places of runs that have passed, each with its number of open runs: one, or the number of a broadcast's open shards.
    open: BTreeMap<Place, usize>,
    /// Places of runs that have passed and wait for another attempt, with the number of these runs. A broadcast is both here and in `open`
    /// if only some of its shards wait.
    reserved: BTreeMap<Place, usize>,
    queue: BTreeSet<(Place, RunId)>,
    /// Whether runs with places here have caused other runs to be skipped. If so, the rows of the runs with places are checked.
    has_skipped: bool,
}

#[derive(Clone, Copy, Debug)]
struct GateEntry {
    key: GateKey,
    place: Place,
    state: PlaceState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    Open,
    Reserved,
    Queued,
}

/// The decision of a gate about a run.
#[derive(Debug)]
pub(crate) enum GateDecision {
    /// It may pass.
    Passed(ReadyRun),
    /// It waits for its turn.
    Queued,
    /// The overlap policy skips it: the run `run_ahead` keeps it from passing, and `queued_count` runs wait at the gate.
    Skipped { ready: ReadyRun, run_ahead: Option<RunId>, queued_count: usize },
    /// A later run has taken its place.
    ReplacedByLater(ReadyRun),
    /// It waits until the `open_runs` have made room; the `skipped_runs` are skipped.
    ReplacesEarlier { open_runs: Vec<RunId>, skipped_runs: Vec<ReadyRun> },
}

/// A run that a gate admits now, and the executor at whose gate it waited; `None` for the gate of the job.
pub(crate) type AdmittedRun = (RunId, Option<ExecutorId>);

/// The broadcast that the run is a shard of.
fn root_of(ready: &ReadyRun) -> Option<RunId> {
    ready.run.parent.filter(|_| ready.definition.job.is_sharded() && !ready.run.is_root())
}

/// The gate that a run must pass before it is routed; `None` if its job has no such gate.
fn job_gate(ready: &ReadyRun) -> Option<GateKey> {
    let job = &ready.definition.job;
    (job.overlap.scope == OverlapScope::Cluster && job.concurrency_max().is_some())
        .then_some(GateKey::Job(ready.run.job))
}

fn executor_gate(ready: &ReadyRun, executor: ExecutorId) -> Option<GateKey> {
    let job = &ready.definition.job;
    let has_executor_gate = job.overlap.scope == OverlapScope::Executor && job.concurrency_max().is_some();
    has_executor_gate.then_some(GateKey::Executor(ready.run.job, executor))
}

fn open_max(job: &Job) -> usize {
    job.concurrency_max().map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

impl Gate {
    /// Whether one more run may be open at this place. If the place is open already, it belongs to a broadcast, and the run is a further shard:
    /// it waits only while more than `max` places are open. This can happen because every adopted run counts as sent until executors have answered.
    fn has_room(&self, place: Place, max: usize) -> bool {
        if self.open.contains_key(&place) {
            return self.open.len() <= max;
        }
        let places_left = max.saturating_sub(self.open.len());
        let has_no_open_run = |(other, _): &(&Place, &usize)| !self.open.contains_key(*other);
        let earlier_reserved_places = self.reserved.range(..place).filter(has_no_open_run);
        places_left > 0 && earlier_reserved_places.take(places_left).count() < places_left
    }

    /// The run that queued runs wait for: the first open run, or else the first reserved run.
    fn first_run_ahead(&self) -> Option<RunId> {
        let entry = self.open.keys().next().or_else(|| self.reserved.keys().next());
        entry.map(|(_, run)| *run)
    }

    fn skip(&mut self, ready: ReadyRun) -> GateDecision {
        self.has_skipped = true;
        GateDecision::Skipped { ready, run_ahead: self.first_run_ahead(), queued_count: self.queue.len() }
    }

    /// The place of a broadcast, if any of its runs is here.
    fn place_of(&self, root: RunId) -> Option<Place> {
        let queued_places = self.queue.iter().map(|(place, _)| place);
        self.open.keys().chain(self.reserved.keys()).chain(queued_places).find(|(_, id)| *id == root).copied()
    }
}

/// Subtracts one run from the count at this place.
fn subtract_one(counts: &mut BTreeMap<Place, usize>, place: Place) {
    match counts.get_mut(&place) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(&place)),
    }
}

impl Gates {
    /// How many runs wait for their turn.
    pub(crate) fn queued_count(&self) -> usize {
        self.gates.values().map(|gate| gate.queue.len()).sum()
    }

    /// At most `count` of the runs that wait for their turn and for which `is_chosen` is true, from the gates in rotation, each with the run that
    /// it waits behind. Only the first `count` runs at each gate are examined.
    pub(crate) fn first_queued_runs<'a>(
        &'a self,
        is_chosen: impl Fn(&ReadyRun) -> bool,
        count: usize,
        runs: &'a OpenRuns,
    ) -> Vec<(&'a ReadyRun, Option<RunId>)> {
        let is_chosen = &is_chosen;
        let queues = self.gates.values().filter(|gate| !gate.queue.is_empty()).map(|gate| {
            let queued_runs = gate.queue.iter().take(count).filter_map(move |(_, run)| runs.ready(*run));
            queued_runs.filter(move |ready| is_chosen(ready)).map(move |ready| (ready, gate.first_run_ahead()))
        });
        round_robin(queues, count)
    }

    /// The run that `run` waits behind at its gate; `None` if there is no such run.
    pub(crate) fn ahead_of(&self, run: RunId) -> Option<RunId> {
        let gate = self.gates.get(&self.entries.get(&run)?.key)?;
        gate.first_run_ahead().filter(|ahead| *ahead != run)
    }

    /// Applies the gate of its job to a due run.
    pub(crate) fn enter(&mut self, ready: ReadyRun, runs: &mut OpenRuns) -> GateDecision {
        match job_gate(&ready).filter(|_| !mutant::on(Mutant::NoGate)) {
            Some(key) => self.pass(key, ready, runs),
            None => GateDecision::Passed(ready),
        }
    }

    /// Applies the job's gate at this executor to a run that was routed to the executor.
    pub(crate) fn enter_at(&mut self, ready: ReadyRun, executor: ExecutorId, runs: &mut OpenRuns) -> GateDecision {
        match executor_gate(&ready, executor) {
            Some(key) => self.pass(key, ready, runs),
            None => GateDecision::Passed(ready),
        }
    }

    /// Whether [`enter_at`](Self::enter_at) would let the run pass.
    pub(crate) fn would_pass_at(&self, ready: &ReadyRun, executor: ExecutorId) -> bool {
        let Some(key) = executor_gate(ready, executor) else { return true };
        let is_open = |entry: &GateEntry| entry.key == key && entry.state == PlaceState::Open;
        let has_room = |gate: &Gate| gate.has_room(place_at(key, ready), open_max(&ready.definition.job));
        self.entries.get(&ready.run.id).is_some_and(is_open) || self.gates.get(&key).is_none_or(has_room)
    }

    /// Whether a run that is not due yet would pass now, whichever executor it will be routed to.
    pub(crate) fn would_pass(&self, ready: &ReadyRun) -> bool {
        let job = &ready.definition.job;
        let Some(key) = job_gate(ready) else { return job.concurrency_max().is_none() };
        let is_clear = |gate: &Gate| gate.queue.is_empty() && gate.has_room(place_at(key, ready), open_max(job));
        self.gates.get(&key).is_none_or(is_clear)
    }

    /// Whether the run's place is at a gate other than the one that it must pass now, because its job was edited meanwhile.
    pub(crate) fn is_at_other_gate(&self, ready: &ReadyRun) -> bool {
        self.entries.get(&ready.run.id).is_some_and(|entry| Some(entry.key) != job_gate(ready))
    }

    /// Gives the run a place at the gate of its job, or decides by the overlap policy what happens to it.
    fn pass(&mut self, key: GateKey, ready: ReadyRun, runs: &mut OpenRuns) -> GateDecision {
        if self.entries.get(&ready.run.id).is_some_and(|entry| entry.key != key) {
            self.vacate(ready.run.id, runs);
        }
        let was_reserved = match self.entries.get(&ready.run.id).map(|entry| entry.state) {
            Some(PlaceState::Open) => return GateDecision::Passed(ready),
            Some(PlaceState::Queued) => return GateDecision::Queued,
            Some(PlaceState::Reserved) => true,
            None => false,
        };
        let (place, job) = (place_at(key, &ready), &ready.definition.job);
        let gate = self.gates.entry(key).or_default();
        if gate.has_room(place, open_max(job)) {
            self.set_open(key, &ready);
            return GateDecision::Passed(ready);
        }
        // A run that has begun is not skipped for lack of room.
        let has_begun = was_reserved || root_of(&ready).is_some();
        match job.overlap.policy {
            OverlapPolicy::Cover => self.cover(key, ready, has_begun, runs),
            OverlapPolicy::Discard if !has_begun => gate.skip(ready),
            OverlapPolicy::Serial | OverlapPolicy::Allow if !has_begun && gate.queue.len() >= queue_max(job) => {
                gate.skip(ready)
            }
            OverlapPolicy::Discard | OverlapPolicy::Serial | OverlapPolicy::Allow => {
                self.enqueue(key, ready, runs);
                GateDecision::Queued
            }
        }
    }

    /// Makes the run replace all runs at other places. A run that had begun before (a restart gave it another attempt) is itself replaced if the
    /// gate has a later run; it then keeps its place until its verdict is stored.
    fn cover(&mut self, key: GateKey, ready: ReadyRun, has_begun: bool, runs: &mut OpenRuns) -> GateDecision {
        let Some(gate) = self.gates.get_mut(&key) else { return GateDecision::Passed(ready) };
        let place = place_at(key, &ready);
        let mut places = gate.open.keys().chain(gate.queue.iter().map(|(other, _)| other));
        if has_begun && places.any(|other| *other > place) {
            return GateDecision::ReplacedByLater(ready);
        }
        let (same_place, covered): (BTreeSet<_>, BTreeSet<_>) =
            std::mem::take(&mut gate.queue).into_iter().partition(|(other, _)| *other == place);
        gate.queue = same_place;
        let other_places = gate.open.keys().chain(gate.reserved.keys()).filter(|other| **other != place);
        let covered_open: BTreeSet<RunId> = other_places.map(|(_, id)| *id).collect();
        let mut skipped_runs = Vec::with_capacity(covered.len());
        for (_, run) in covered {
            self.entries.remove(&run);
            skipped_runs.extend(runs.take(run).map(|open| open.ready));
        }
        self.enqueue(key, ready, runs);
        GateDecision::ReplacesEarlier { open_runs: covered_open.into_iter().collect(), skipped_runs }
    }

    fn set_open(&mut self, key: GateKey, ready: &ReadyRun) {
        self.set_entry(ready.run.id, GateEntry { key, place: place_at(key, ready), state: PlaceState::Open });
    }

    fn enqueue(&mut self, key: GateKey, ready: ReadyRun, runs: &mut OpenRuns) {
        let (run, place) = (ready.run.id, place_at(key, &ready));
        self.set_entry(run, GateEntry { key, place, state: PlaceState::Queued });
        // A shard has no queue timeout here: its broadcast is under way, so nothing else holds it up for long.
        if root_of(&ready).is_none() {
            self.timeouts.insert((ready.waits_until(), run));
        }
        self.gates.entry(key).or_default().queue.insert((place, run));
        runs.put(ready, Stage::Queued);
    }

    /// Sets the gate entry of a run, in place of any earlier one.
    fn set_entry(&mut self, run: RunId, entry: GateEntry) {
        self.remove_entry(run);
        let gate = self.gates.entry(entry.key).or_default();
        match entry.state {
            PlaceState::Open => *gate.open.entry(entry.place).or_default() += 1,
            PlaceState::Reserved => *gate.reserved.entry(entry.place).or_default() += 1,
            PlaceState::Queued => {}
        }
        self.entries.insert(run, entry);
    }

    /// Restores the place of an open run that another server, or this server before its restart, let through the gate. If an executor has the run,
    /// or may have it, its place is open. If it waits for another attempt, or is a shard that waits, its place is reserved. A run that was never
    /// sent has no place.
    pub(crate) fn restore(&mut self, ready: &ReadyRun) {
        let run = &ready.run;
        if run.is_root() || mutant::on(Mutant::NoGatesAfterAdoption) {
            return;
        }
        if run.status == RunStatus::Running {
            // The run may have belonged to another node meanwhile, and may still have the place that was reserved here while it waited.
            if self.entries.get(&run.id).is_some_and(|entry| entry.state == PlaceState::Reserved) {
                self.remove_entry(run.id);
            }
            self.open_place(ready);
        } else if run.attempt > 1 || root_of(ready).is_some() {
            self.reserve(ready);
        }
    }

    /// Reserves a place for a run that no executor has and that this process did not let through the gate.
    pub(crate) fn reserve(&mut self, ready: &ReadyRun) {
        if let Some(key) = job_gate(ready).filter(|_| !self.entries.contains_key(&ready.run.id)) {
            self.set_entry(ready.run.id, GateEntry { key, place: place_at(key, ready), state: PlaceState::Reserved });
        }
    }

    /// Gives an adopted run an open place at the gate of the executor that has it.
    pub(crate) fn open_place_at(&mut self, ready: &ReadyRun, executor: ExecutorId) {
        if let Some(key) = executor_gate(ready, executor).filter(|_| !self.entries.contains_key(&ready.run.id)) {
            self.set_open(key, ready);
        }
    }

    /// Gives a run an open place at its job's gate, though it did not go through [`enter`](Self::enter) in this process: an executor may have
    /// it, it awaits its children, or it is a shard whose broadcast has passed the gate.
    pub(crate) fn open_place(&mut self, ready: &ReadyRun) {
        if let Some(key) = job_gate(ready).filter(|_| !self.entries.contains_key(&ready.run.id)) {
            self.set_open(key, ready);
        }
    }

    /// Keeps the place of a succeeded run until its children have ended too: the next [`leave`](Self::leave) does not free it. Returns false
    /// if the run has no place.
    pub(crate) fn keep_for_children(&mut self, job: JobId, run: RunId, runs: &mut OpenRuns) -> bool {
        if self.entries.get(&run).is_some_and(|entry| entry.state == PlaceState::Open) {
            return self.kept_for_children.insert(run);
        }
        // A broadcast's row has no place of its own while its shards have theirs.
        let key = GateKey::Job(job);
        let Some(place) = self.gates.get(&key).and_then(|gate| gate.place_of(run)) else { return false };
        self.remove_queued(run, runs);
        self.set_entry(run, GateEntry { key, place, state: PlaceState::Open });
        true
    }

    /// Turns the open place of a run into a reserved one: the run waits in the store, perhaps for its next attempt. A run that is still
    /// queued, or whose place is at an executor's gate, gives the place up. Returns the runs that may pass now.
    pub(crate) fn make_reserved(&mut self, run: RunId, runs: &mut OpenRuns) -> Vec<AdmittedRun> {
        let Some(entry) = self.entries.get(&run).copied() else { return Vec::new() };
        match entry.key {
            // The run is routed again, perhaps to another executor.
            GateKey::Executor(..) => self.leave(run, runs),
            GateKey::Job(_) if entry.state == PlaceState::Queued => self.leave(run, runs),
            GateKey::Job(_) => {
                self.set_entry(run, GateEntry { state: PlaceState::Reserved, ..entry });
                self.admit_next(entry.key, runs)
            }
        }
    }

    /// Frees the place of a run that has ended, or that its executor will not get. Returns the runs that may pass now.
    pub(crate) fn leave(&mut self, run: RunId, runs: &mut OpenRuns) -> Vec<AdmittedRun> {
        if self.kept_for_children.remove(&run) {
            return Vec::new();
        }
        let Some(key) = self.vacate(run, runs) else { return Vec::new() };
        self.admit_next(key, runs)
    }

    /// Frees the place of a run whose children have ended, even if the run's own end is still to be reported.
    pub(crate) fn leave_with_children(&mut self, run: RunId, runs: &mut OpenRuns) -> Vec<AdmittedRun> {
        self.kept_for_children.remove(&run);
        self.leave(run, runs)
    }

    /// The runs with open or reserved places at gates where runs are queued, or where other runs were skipped.
    pub(crate) fn runs_holding_up(&self) -> Vec<RunId> {
        let is_waited_for = |entry: &GateEntry| {
            let gate = self.gates.get(&entry.key).filter(|_| entry.state != PlaceState::Queued);
            gate.is_some_and(|gate| gate.has_skipped || !gate.queue.is_empty())
        };
        let runs_ahead = self.entries.iter().filter(|(_, entry)| is_waited_for(entry)).map(|(run, _)| *run);
        let mut runs_ahead: Vec<RunId> = runs_ahead.collect();
        runs_ahead.sort_unstable();
        runs_ahead
    }

    /// Frees the place that a run has at the gate of an executor, because the executor did not get the run.
    pub(crate) fn leave_executor(&mut self, run: RunId, runs: &mut OpenRuns) -> Vec<AdmittedRun> {
        match self.entries.get(&run).map(|entry| entry.key) {
            Some(GateKey::Executor(..)) => self.leave(run, runs),
            Some(GateKey::Job(_)) | None => Vec::new(),
        }
    }

    /// Removes a run's place, and the run itself if it is queued.
    fn vacate(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<GateKey> {
        if self.entries.get(&run)?.state == PlaceState::Queued {
            runs.take(run);
        }
        self.remove_entry(run)
    }

    fn remove_entry(&mut self, run: RunId) -> Option<GateKey> {
        let entry = self.entries.remove(&run)?;
        let gate = self.gates.get_mut(&entry.key)?;
        match entry.state {
            PlaceState::Open => subtract_one(&mut gate.open, entry.place),
            PlaceState::Reserved => subtract_one(&mut gate.reserved, entry.place),
            PlaceState::Queued => drop(gate.queue.remove(&(entry.place, run))),
        }
        Some(entry.key)
    }

    fn admit_next(&mut self, key: GateKey, runs: &mut OpenRuns) -> Vec<AdmittedRun> {
        let executor = match key {
            GateKey::Executor(_, executor) => Some(executor),
            GateKey::Job(_) => None,
        };
        let mut admitted_runs = Vec::new();
        while let Some(gate) = self.gates.get_mut(&key) {
            let Some(queue_entry @ (place, run)) = gate.queue.first().copied() else { break };
            let max = runs.ready(run).map_or(usize::MAX, |next| open_max(&next.definition.job));
            if !gate.has_room(place, max) {
                break;
            }
            gate.queue.remove(&queue_entry);
            if let Some(queued_run) = runs.take(run) {
                self.set_open(key, &queued_run.ready);
                runs.put(queued_run.ready, Stage::Admitted);
                admitted_runs.push((run, executor));
            }
        }
        let is_empty = |gate: &Gate| gate.open.is_empty() && gate.reserved.is_empty() && gate.queue.is_empty();
        if self.gates.get(&key).is_some_and(is_empty) {
            self.gates.remove(&key);
        }
        admitted_runs
    }

    /// Takes out a queued run.
    pub(crate) fn remove_queued(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<ReadyRun> {
        let entry = self.entries.get(&run).copied().filter(|entry| entry.state == PlaceState::Queued)?;
        self.entries.remove(&run);
        self.gates.get_mut(&entry.key)?.queue.remove(&(entry.place, run));
        runs.take(run).map(|open| open.ready)
    }

    /// Takes out every queued run whose queue timeout has passed, each with the run that it waited behind.
    pub(crate) fn take_expired(&mut self, now: Timestamp, runs: &mut OpenRuns) -> Vec<(ReadyRun, Option<RunId>)> {
        let mut expired_runs = Vec::new();
        while let Some((_, run)) = self.timeouts.first().filter(|(until, _)| *until <= now).copied() {
            self.timeouts.pop_first();
            if runs.ready(run).is_some_and(|ready| ready.is_expired(now)) {
                let run_ahead = self.ahead_of(run);
                expired_runs.extend(self.remove_queued(run, runs).map(|ready| (ready, run_ahead)));
            }
        }
        expired_runs
    }

    /// Forgets all queued runs, and the places of the runs for which `is_kept` is false.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(RunId) -> bool) {
        self.timeouts.clear();
        let is_removed = |(run, entry): &(&RunId, &GateEntry)| entry.state == PlaceState::Queued || !is_kept(**run);
        let mut removed_runs: Vec<RunId> = self.entries.iter().filter(is_removed).map(|(run, _)| *run).collect();
        removed_runs.sort_unstable();
        for run in removed_runs {
            self.remove_entry(run);
        }
        self.kept_for_children.retain(|run| is_kept(*run));
        self.gates.retain(|_, gate| !gate.open.is_empty());
    }
}

fn place_at(key: GateKey, ready: &ReadyRun) -> Place {
    let root = match key {
        GateKey::Job(_) => root_of(ready),
        GateKey::Executor(..) => None,
    };
    (ready.run.fire_at, root.unwrap_or(ready.run.id))
}

pub(crate) fn queue_max(job: &Job) -> usize {
    match job.overlap.policy {
        OverlapPolicy::Serial if job.overlap.max > 0 => usize::try_from(job.overlap.max).unwrap_or(usize::MAX),
        OverlapPolicy::Serial | OverlapPolicy::Allow | OverlapPolicy::Discard | OverlapPolicy::Cover => QUEUE_LEN_MAX,
    }
}

mod in_hand;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod tests;
