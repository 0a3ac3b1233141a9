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
    /// It is running.
    Running,
}

#[derive(Debug)]
struct HeldEntry<R> {
    run: R,
    stage: Stage,
    /// The lease that it was sent under: the node, and its epoch.
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
    ahead: BTreeMap<(Instant, u64), RunKey>,
    /// The runs that wait for a slot, ordered by when they may begin and then by arrival. The executor does not reorder them,
    /// because the server has decided which goes first.
    queue: BTreeMap<u64, RunKey>,
    arrivals: u64,
    /// How many held runs each job has.
    held_count_by_job: BTreeMap<JobId, u32>,
    /// Runs whose start was not reported, the earliest first.
    unannounced: VecDeque<(Instant, RunKey)>,
    /// Runs that have a verdict although their handlers have not returned, with their jobs: each still takes a slot.
    stuck: BTreeMap<RunKey, JobId>,
}

impl<R: TableRun> Runs<R> {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots,
            held_runs: BTreeMap::new(),
            ahead: BTreeMap::new(),
            queue: BTreeMap::new(),
            arrivals: 0,
            held_count_by_job: BTreeMap::new(),
            unannounced: VecDeque::new(),
            stuck: BTreeMap::new(),
        }
    }

    /// Whether no more runs are accepted. The limit is above the number of slots, so that a slot is not idle for a
    /// round trip.
    pub(super) fn is_full(&self) -> bool {
        self.held_runs.len() + self.stuck.len() >= self.slots + (self.slots / 4).max(4)
    }

    pub(super) fn running_count(&self) -> usize {
        self.held_runs.len() - self.queued_count() + self.stuck.len()
    }

    /// How many runs have not begun.
    pub(super) fn queued_count(&self) -> usize {
        self.queue.len() + self.ahead.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held_runs.is_empty()
    }

    pub(super) fn get(&self, key: RunKey) -> Option<&R> {
        self.held_runs.get(&key).map(|held| &held.run)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &R> {
        self.held_runs.values().map(|held| &held.run)
    }

    /// Whether a run of the job is here, or the handler of an ended run is still running.
    pub(super) fn has_job(&self, job_id: JobId) -> bool {
        self.held_count_by_job.contains_key(&job_id) || self.stuck.values().any(|job| *job == job_id)
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
                self.ahead.insert((at, arrival), run.key());
                Stage::Ahead(at, arrival)
            }
            None => {
                self.queue.insert(arrival, run.key());
                Stage::Queued(arrival)
            }
        };
        let held = HeldEntry { run, stage, lease, begin_until, overdue_since: None, is_announced: false };
        self.held_runs.insert(held.run.key(), held);
    }

    fn next_arrival(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Whether the run's instant is still ahead.
    pub(super) fn is_ahead(&self, key: RunKey) -> bool {
        self.held_runs.get(&key).is_some_and(|held| matches!(held.stage, Stage::Ahead(..)))
    }

    /// Forgets the runs whose instants are still ahead.
    pub(super) fn drop_ahead(&mut self) {
        let keys: Vec<RunKey> = self.ahead.values().copied().collect();
        keys.into_iter().for_each(|key| drop(self.remove(key)));
    }

    /// When the first run whose instant is ahead may begin.
    pub(super) fn next_begin(&self) -> Option<Instant> {
        self.ahead.first_key_value().map(|((at, _), _)| *at)
    }

    /// Queues the runs whose instant has come.
    fn queue_due(&mut self, now: Instant) {
        while let Some(first) = self.ahead.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            let place = self.next_arrival();
            self.queue.insert(place, key);
            if let Some(held) = self.held_runs.get_mut(&key) {
                held.stage = Stage::Queued(place);
            }
        }
    }

    /// The runs that get a slot now, to be started.
    pub(super) fn take_startable(&mut self, now: Instant) -> Vec<R> {
        self.queue_due(now);
        let mut startable = Vec::new();
        while self.running_count() < self.slots {
            let Some((_, key)) = self.queue.pop_first() else { break };
            if let Some(held) = self.held_runs.get_mut(&key) {
                held.stage = Stage::Running;
                self.unannounced.push_back((now, key));
                startable.push(held.run.clone());
            }
        }
        startable
    }

    /// Removes the runs that should have ended at least `grace` ago; their slots stay taken until their handlers
    /// return.
    pub(super) fn take_stuck(&mut self, now: Instant, grace: Duration) -> Vec<R> {
        let mut stuck = Vec::new();
        for (key, held) in self.held_runs.iter_mut().filter(|(_, held)| held.stage == Stage::Running) {
            if !held.run.should_end(now) {
                // The deadline has moved: the timeout counts from the trigger's arrival, and anew when the handler
                // begins.
                held.overdue_since = None;
            } else if now.duration_since(*held.overdue_since.get_or_insert(now)) >= grace {
                stuck.push(*key);
            }
        }
        let stuck: Vec<R> = stuck.into_iter().filter_map(|key| self.remove(key)).collect();
        self.stuck.extend(stuck.iter().map(|run| (run.key(), run.job_id())));
        stuck
    }

    /// Frees the slot of a stuck run whose handler has returned.
    pub(super) fn free_stuck_slot(&mut self, key: RunKey) {
        self.stuck.remove(&key);
    }

    pub(super) fn remove(&mut self, key: RunKey) -> Option<R> {
        let held = self.held_runs.remove(&key)?;
        match held.stage {
            Stage::Ahead(at, arrival) => drop(self.ahead.remove(&(at, arrival))),
            Stage::Queued(place) => drop(self.queue.remove(&place)),
            Stage::Running => {}
        }
        let job_id = held.run.job_id();
        if let Some(count) = self.held_count_by_job.get_mut(&job_id) {
            *count -= 1;
            if *count == 0 {
                self.held_count_by_job.remove(&job_id);
            }
        }
        Some(held.run)
    }

    /// Removes the queued runs that match `which` and whose time limit for the start has passed.
    pub(super) fn take_expired(&mut self, now: Instant, which: impl Fn(&R) -> bool) -> Vec<R> {
        let has_expired = |key: &&RunKey| {
            let held = self.held_runs.get(key).filter(|held| which(&held.run));
            held.and_then(|held| held.begin_until).is_some_and(|until| until <= now)
        };
        let keys: Vec<RunKey> = self.queue.values().filter(has_expired).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Removes the time limit for the start of the waiting runs that were sent under the node's leases up to this epoch.
    pub(super) fn clear_begin_until(&mut self, node_id: i64, epoch: i64) {
        let is_of_lease = |held: &&mut HeldEntry<R>| held.lease.0 == node_id && held.lease.1 <= epoch;
        self.held_runs.values_mut().filter(is_of_lease).for_each(|held| held.begin_until = None);
    }

    /// The runs that were sent under leases for which `is_fenced` is true, given the node and the epoch.
    pub(super) fn sent_under(&self, is_fenced: impl Fn(i64, i64) -> bool) -> BTreeSet<RunKey> {
        let fenced = self.held_runs.iter().filter(|(_, held)| is_fenced(held.lease.0, held.lease.1));
        fenced.map(|(key, _)| *key).collect()
    }

    /// Removes the runs that have not started and that match `which`.
    pub(super) fn remove_queued(&mut self, which: impl Fn(&R) -> bool) -> Vec<R> {
        let is_match = |key: &&RunKey| self.held_runs.get(key).is_some_and(|held| which(&held.run));
        let keys: Vec<RunKey> = self.queue.values().chain(self.ahead.values()).filter(is_match).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The runs that have lasted for at least `after` and were not announced. A run that has a slot but whose handler
    /// has not begun is checked again later.
    pub(super) fn take_unannounced(&mut self, now: Instant, after: Duration) -> Vec<R> {
        let mut started_runs = Vec::new();
        while let Some((started, key)) = self.unannounced.front().copied() {
            if now.duration_since(started) < after {
                break;
            }
            self.unannounced.pop_front();
            let Some(held) = self.held_runs.get_mut(&key) else { continue };
            held.is_announced = held.run.started_at_ms().is_some();
            if held.is_announced {
                started_runs.push(held.run.clone());
            } else {
                self.unannounced.push_back((now, key));
            }
        }
        started_runs
    }

    /// The runs whose start was reported.
    pub(super) fn announced(&self) -> impl Iterator<Item = &R> {
        self.held_runs.values().filter(|held| held.is_announced).map(|held| &held.run)
    }
}
