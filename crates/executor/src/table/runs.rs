//! Accepted runs that have not ended: the running ones, those whose instant is still ahead, and the few that wait for a slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rondel_core::JobId;

use super::{RunKey, TableRun};

/// How far an accepted run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for its instant. The number orders runs with the same instant by their arrival.
    Ahead(Instant, u64),
    /// It waits for a slot, at this place in the queue.
    Queued(u64),
    /// It has a slot, and its handler runs.
    Running,
}

#[derive(Debug)]
struct HeldEntry<R> {
    run: R,
    stage: Stage,
    /// The lease under which the run was sent: the node, and the node's epoch.
    lease: (i64, i64),
    /// The run must begin before this instant.
    begin_until: Option<Instant>,
    /// When the sweep first found that the run should have ended.
    overdue_since: Option<Instant>,
    /// Whether its start was reported.
    is_announced: bool,
}

#[derive(Debug)]
pub(super) struct Runs<R> {
    slots: usize,
    held_runs: BTreeMap<RunKey, HeldEntry<R>>,
    /// Runs that were sent ahead of their instants, sorted by instant and arrival.
    ahead_runs: BTreeMap<(Instant, u64), RunKey>,
    /// The runs that wait for a slot, ordered by when they may begin and then by arrival. The executor does not reorder them,
    /// because the server has decided which goes first.
    queue: BTreeMap<u64, RunKey>,
    arrival_count: u64,
    /// How many held runs each job has.
    held_count_by_job: BTreeMap<JobId, u32>,
    /// Runs whose start was not reported, the earliest first.
    unannounced_runs: VecDeque<(Instant, RunKey)>,
    /// Runs that have a verdict although their handlers have not returned, with their jobs: each still takes a slot.
    stuck_runs: BTreeMap<RunKey, JobId>,
}

impl<R: TableRun> Runs<R> {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            held_runs: BTreeMap::new(),
            ahead_runs: BTreeMap::new(),
            queue: BTreeMap::new(),
            arrival_count: 0,
            held_count_by_job: BTreeMap::new(),
            unannounced_runs: VecDeque::new(),
            stuck_runs: BTreeMap::new(),
        }
    }

    /// Whether no more runs are accepted. The limit is above the number of slots, so that a slot is not idle for a
    /// round trip.
    pub(super) fn is_full(&self) -> bool {
        self.held_runs.len() + self.stuck_runs.len() >= self.slots + (self.slots / 4).max(4)
    }

    pub(super) fn running_count(&self) -> usize {
        self.held_runs.len() - self.queued_count() + self.stuck_runs.len()
    }

    /// How many runs have not begun.
    pub(super) fn queued_count(&self) -> usize {
        self.queue.len() + self.ahead_runs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held_runs.is_empty()
    }

    pub(super) fn get(&self, key: RunKey) -> Option<&R> {
        self.held_runs.get(&key).map(|entry| &entry.run)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        self.held_runs.values().map(|entry| &entry.run)
    }

    /// Whether a run of the job is here, or the handler of an ended run of the job is still running.
    pub(super) fn has_job(&self, job_id: JobId) -> bool {
        self.held_count_by_job.contains_key(&job_id) || self.stuck_runs.values().any(|job| *job == job_id)
    }

    /// Whether another run could start immediately. Runs whose instant is still ahead take no slot until then.
    pub(super) fn has_free_slot(&self) -> bool {
        self.running_count() < self.slots && self.queue.is_empty()
    }

    /// Queues a run behind those that wait. It must not begin before `begin_at`, and must begin before `begin_until`.
    pub(super) fn accept(
        &mut self,
        run: R,
        lease: (i64, i64),
        begin_at: Option<Instant>,
        begin_until: Option<Instant>,
    ) {
        *self.held_count_by_job.entry(run.job_id()).or_default() += 1;
        let arrival = self.next_arrival();
        let stage = match begin_at {
            Some(at) => {
                self.ahead_runs.insert((at, arrival), run.key());
                Stage::Ahead(at, arrival)
            }
            None => {
                self.queue.insert(arrival, run.key());
                Stage::Queued(arrival)
            }
        };
        let entry = HeldEntry { run, stage, lease, begin_until, overdue_since: None, is_announced: false };
        self.held_runs.insert(entry.run.key(), entry);
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrival_count += 1;
        self.arrival_count
    }

    /// Whether the run's instant is still ahead.
    pub(super) fn is_ahead(&self, key: RunKey) -> bool {
        self.held_runs.get(&key).is_some_and(|entry| matches!(entry.stage, Stage::Ahead(..)))
    }

    /// Forgets the runs whose instants are still ahead.
    pub(super) fn drop_ahead(&mut self) {
        let keys: Vec<RunKey> = self.ahead_runs.values().copied().collect();
        keys.into_iter().for_each(|key| drop(self.remove(key)));
    }

    /// When the first run whose instant is ahead may begin.
    pub(super) fn next_begin(&self) -> Option<Instant> {
        self.ahead_runs.first_key_value().map(|((at, _), _)| *at)
    }

    /// Queues the runs whose instant has come.
    fn queue_due_runs(&mut self, now: Instant) {
        while let Some(first_entry) = self.ahead_runs.first_entry().filter(|first_entry| first_entry.key().0 <= now) {
            let key = first_entry.remove();
            let arrival = self.next_arrival();
            self.queue.insert(arrival, key);
            if let Some(entry) = self.held_runs.get_mut(&key) {
                entry.stage = Stage::Queued(arrival);
            }
        }
    }

    /// The runs that get a slot now, to be started.
    pub(super) fn take_startable(&mut self, now: Instant) -> Vec<R> {
        self.queue_due_runs(now);
        let mut startable_runs = Vec::new();
        while self.running_count() < self.slots {
            let Some((_, key)) = self.queue.pop_first() else { break };
            if let Some(entry) = self.held_runs.get_mut(&key) {
                entry.stage = Stage::Running;
                self.unannounced_runs.push_back((now, key));
                startable_runs.push(entry.run.clone());
            }
        }
        startable_runs
    }

    /// Removes the runs that should have ended at least `grace` ago; their slots stay taken until their handlers
    /// return.
    pub(super) fn take_stuck(&mut self, now: Instant, grace: Duration) -> Vec<R> {
        let mut stuck_keys = Vec::new();
        for (key, entry) in self.held_runs.iter_mut().filter(|(_, entry)| entry.stage == Stage::Running) {
            if !entry.run.should_end(now) {
                // The deadline has moved: the timeout counts from the trigger's arrival, and anew when the handler
                // begins.
                entry.overdue_since = None;
            } else if now.duration_since(*entry.overdue_since.get_or_insert(now)) >= grace {
                stuck_keys.push(*key);
            }
        }
        let stuck_runs: Vec<R> = stuck_keys.into_iter().filter_map(|key| self.remove(key)).collect();
        self.stuck_runs.extend(stuck_runs.iter().map(|run| (run.key(), run.job_id())));
        stuck_runs
    }

    /// Frees the slot of a stuck run whose handler has returned.
    pub(super) fn free_stuck_slot(&mut self, key: RunKey) {
        self.stuck_runs.remove(&key);
    }

    pub(super) fn remove(&mut self, key: RunKey) -> Option<R> {
        let entry = self.held_runs.remove(&key)?;
        match entry.stage {
            Stage::Ahead(at, arrival) => drop(self.ahead_runs.remove(&(at, arrival))),
            Stage::Queued(arrival) => drop(self.queue.remove(&arrival)),
            Stage::Running => {}
        }
        let job_id = entry.run.job_id();
        if let Some(count) = self.held_count_by_job.get_mut(&job_id) {
            *count -= 1;
            if *count == 0 {
                self.held_count_by_job.remove(&job_id);
            }
        }
        Some(entry.run)
    }

    /// Removes the queued runs that match `is_match` and whose time limit for the start has passed.
    pub(super) fn take_expired(&mut self, now: Instant, is_match: impl Fn(&R) -> bool) -> Vec<R> {
        let has_expired = |key: &&RunKey| {
            let entry = self.held_runs.get(key).filter(|entry| is_match(&entry.run));
            entry.and_then(|entry| entry.begin_until).is_some_and(|begin_until| begin_until <= now)
        };
        let keys: Vec<RunKey> = self.queue.values().filter(has_expired).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Removes the time limit for the start of the waiting runs that were sent under the node's leases up to this epoch.
    pub(super) fn clear_begin_until(&mut self, node_id: i64, epoch: i64) {
        let is_of_lease = |entry: &&mut HeldEntry<R>| entry.lease.0 == node_id && entry.lease.1 <= epoch;
        self.held_runs.values_mut().filter(is_of_lease).for_each(|entry| entry.begin_until = None);
    }

    /// The runs that were sent under leases for which `is_fenced` is true, given the node and the epoch.
    pub(super) fn runs_sent_under(&self, is_fenced: impl Fn(i64, i64) -> bool) -> BTreeSet<RunKey> {
        let fenced_entries = self.held_runs.iter().filter(|(_, entry)| is_fenced(entry.lease.0, entry.lease.1));
        fenced_entries.map(|(key, _)| *key).collect()
    }

    /// Removes the runs that have not started and that match `is_match`.
    pub(super) fn remove_queued(&mut self, is_match: impl Fn(&R) -> bool) -> Vec<R> {
        let key_matches = |key: &&RunKey| self.held_runs.get(key).is_some_and(|entry| is_match(&entry.run));
        let keys: Vec<RunKey> =
            self.queue.values().chain(self.ahead_runs.values()).filter(key_matches).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The runs that have lasted for at least `delay` and were not announced. A run that has a slot but whose handler
    /// has not begun is checked again later.
    pub(super) fn take_unannounced(&mut self, now: Instant, delay: Duration) -> Vec<R> {
        let mut started_runs = Vec::new();
        while let Some((started_at, key)) = self.unannounced_runs.front().copied() {
            if now.duration_since(started_at) < delay {
                break;
            }
            self.unannounced_runs.pop_front();
            let Some(entry) = self.held_runs.get_mut(&key) else { continue };
            entry.is_announced = entry.run.started_at_ms().is_some();
            if entry.is_announced {
                started_runs.push(entry.run.clone());
            } else {
                self.unannounced_runs.push_back((now, key));
            }
        }
        started_runs
    }

    /// The runs whose start was reported.
    pub(super) fn announced_runs(&self) -> impl Iterator<Item = &R> {
        self.held_runs.values().filter(|entry| entry.is_announced).map(|entry| &entry.run)
    }
}
