//! The runs in the executor's hands: those that run, and the few that wait for a slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::run::{RunContext, RunKey};

/// Accepted and not finished.
pub(crate) struct Held {
    pub(crate) run: RunContext,
    /// Its place in the queue; `None` once it runs.
    place: Option<u64>,
    /// When it has been queued for too long to begin.
    begin_until: Option<Instant>,
    /// Since when it should end.
    overdue_since: Option<Instant>,
}

pub(crate) struct Runs {
    slots: usize,
    held: BTreeMap<RunKey, Held>,
    /// In the order of arrival: which of them goes first was the server's decision.
    queue: BTreeMap<u64, RunKey>,
    arrivals: u64,
    /// How many held runs each job has.
    per_job: BTreeMap<i64, u32>,
    /// Those that the server has not been told the start of, the earliest first.
    unannounced: VecDeque<(Instant, RunKey)>,
    /// Those that have a verdict although their handlers go on: each still takes a slot.
    stuck: BTreeSet<RunKey>,
}

impl Runs {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots,
            held: BTreeMap::new(),
            queue: BTreeMap::new(),
            arrivals: 0,
            per_job: BTreeMap::new(),
            unannounced: VecDeque::new(),
            stuck: BTreeSet::new(),
        }
    }

    /// A few runs more than there are slots, so that a slot is not idle for the length of a round trip.
    pub(crate) fn is_full(&self) -> bool {
        self.held.len() + self.stuck.len() >= self.slots + (self.slots / 4).max(4)
    }

    pub(crate) fn running_count(&self) -> usize {
        self.held.len() - self.queue.len() + self.stuck.len()
    }

    pub(crate) fn queued_count(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn get(&self, key: RunKey) -> Option<&Held> {
        self.held.get(&key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// Whether a run of the job is here.
    pub(crate) fn has_job(&self, job_id: i64) -> bool {
        self.per_job.contains_key(&job_id)
    }

    /// Whether another run could start at once.
    pub(crate) fn has_free_slot(&self) -> bool {
        self.running_count() < self.slots && self.queue.is_empty()
    }

    /// Takes a run in, behind those that wait. It begins before the instant, if there is one, or not at all.
    pub(crate) fn accept(&mut self, run: RunContext, begin_until: Option<Instant>) {
        let place = self.arrivals;
        self.arrivals += 1;
        *self.per_job.entry(run.job_id().get()).or_default() += 1;
        self.queue.insert(place, run.key());
        self.held.insert(run.key(), Held { run, place: Some(place), begin_until, overdue_since: None });
    }

    /// The runs that have a slot now and are to be started.
    pub(crate) fn take_startable(&mut self, now: Instant) -> Vec<RunContext> {
        let mut startable = Vec::new();
        while self.running_count() < self.slots {
            let Some((_, key)) = self.queue.pop_first() else { break };
            if let Some(held) = self.held.get_mut(&key) {
                held.place = None;
                self.unannounced.push_back((now, key));
                startable.push(held.run.clone());
            }
        }
        startable
    }

    /// Takes out the runs that should have ended for longer than `grace`; their slots are not free until they return.
    pub(crate) fn take_stuck(&mut self, now: Instant, grace: Duration) -> Vec<RunContext> {
        let mut stuck = Vec::new();
        for (key, held) in self.held.iter_mut().filter(|(_, held)| held.place.is_none()) {
            let should_end =
                held.run.stop_cause().is_some() || held.run.deadline().is_some_and(|deadline| now >= deadline);
            if should_end && now.duration_since(*held.overdue_since.get_or_insert(now)) >= grace {
                stuck.push(*key);
            }
        }
        self.stuck.extend(&stuck);
        stuck.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// A handler has returned whose run has a verdict since long.
    pub(crate) fn unstick(&mut self, key: RunKey) {
        self.stuck.remove(&key);
    }

    pub(crate) fn remove(&mut self, key: RunKey) -> Option<RunContext> {
        let held = self.held.remove(&key)?;
        if let Some(place) = held.place {
            self.queue.remove(&place);
        }
        let job_id = held.run.job_id().get();
        if let Some(count) = self.per_job.get_mut(&job_id) {
            *count -= 1;
            if *count == 0 {
                self.per_job.remove(&job_id);
            }
        }
        Some(held.run)
    }

    /// Removes the runs of which `which` holds and that have been queued for too long to begin.
    pub(crate) fn take_expired(&mut self, now: Instant, which: impl Fn(&RunContext) -> bool) -> Vec<RunContext> {
        let is_over = |key: &&RunKey| {
            let held = self.held.get(key).filter(|held| which(&held.run));
            held.and_then(|held| held.begin_until).is_some_and(|until| until <= now)
        };
        let keys: Vec<RunKey> = self.queue.values().filter(is_over).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// Lets the runs that are queued now begin however long they wait.
    pub(crate) fn lift_limits(&mut self) {
        self.held.values_mut().for_each(|held| held.begin_until = None);
    }

    /// Removes the runs that have not started and of which `which` holds.
    pub(crate) fn remove_queued(&mut self, which: impl Fn(&RunContext) -> bool) -> Vec<RunContext> {
        let chosen = |key: &&RunKey| self.held.get(key).is_some_and(|held| which(&held.run));
        let keys: Vec<RunKey> = self.queue.values().filter(chosen).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The runs that have lasted for `after` and were not announced.
    pub(crate) fn take_unannounced(&mut self, now: Instant, after: Duration) -> Vec<RunContext> {
        let mut lasting = Vec::new();
        while let Some((started, key)) = self.unannounced.front().copied() {
            if now.duration_since(started) < after {
                break;
            }
            self.unannounced.pop_front();
            lasting.extend(self.held.get(&key).map(|held| held.run.clone()));
        }
        lasting
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rondel_proto::v1::Trigger;

    use super::*;
    use crate::setup::{Setup, States, Timing};

    fn run(run_id: i64, due_at_ms: i64) -> RunContext {
        let setup = Arc::new(Setup::new(BTreeMap::new(), States::default(), Timing::default()));
        let trigger = Trigger { run_id, attempt: 1, due_at_ms, job_id: run_id % 2, ..Trigger::default() };
        RunContext::new(&setup, trigger, 0)
    }

    fn ids(runs: &[RunContext]) -> Vec<i64> {
        runs.iter().map(|run| run.run_id().get()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn queued_runs_start_in_the_order_of_their_arrival() {
        let mut runs = Runs::new(1);
        for (run_id, due) in [(1, 50), (2, 90), (3, 70), (4, 70)] {
            runs.accept(run(run_id, due), None);
        }
        let mut order = Vec::new();
        while !runs.is_empty() {
            let started = runs.take_startable(Instant::now());
            assert_eq!(started.len(), 1);
            order.extend(ids(&started));
            runs.remove(started[0].key());
        }
        assert_eq!(order, [1, 2, 3, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_and_credit_bound_what_is_held() {
        let mut runs = Runs::new(2);
        for run_id in 0..6 {
            assert!(!runs.is_full());
            runs.accept(run(run_id, 0), None);
            runs.take_startable(Instant::now());
        }
        assert!(runs.is_full());
        assert_eq!((runs.running_count(), runs.queued_count()), (2, 4));
        assert!(runs.has_job(0) && runs.has_job(1) && !runs.has_job(2));
        assert_eq!(ids(&runs.remove_queued(|run| run.run_id().get() > 3)), [4, 5]);
        assert_eq!((runs.running_count(), runs.queued_count()), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn only_lasting_runs_are_announced_and_once() {
        let mut runs = Runs::new(9);
        runs.accept(run(1, 0), None);
        runs.accept(run(2, 0), None);
        runs.take_startable(Instant::now());
        runs.remove(RunKey::new(1, 1));
        let after = Duration::from_millis(500);
        assert!(runs.take_unannounced(Instant::now(), after).is_empty());
        tokio::time::advance(after).await;
        assert_eq!(ids(&runs.take_unannounced(Instant::now(), after)), [2]);
        assert!(runs.take_unannounced(Instant::now(), after).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_queued_for_too_long_does_not_begin() {
        let mut runs = Runs::new(1);
        let now = Instant::now();
        let soon = Some(now + Duration::from_secs(1));
        [(1, soon), (2, soon), (3, None)].into_iter().for_each(|(id, until)| runs.accept(run(id, 0), until));
        assert_eq!(ids(&runs.take_startable(now)), [1]);
        let later = now + Duration::from_secs(1);
        assert!(runs.take_expired(now, |_| true).is_empty() && runs.take_expired(later, |_| false).is_empty());
        assert_eq!(ids(&runs.take_expired(later, |_| true)), [2], "what runs goes on");
        runs.remove(RunKey::new(1, 1));
        assert_eq!(ids(&runs.take_startable(now)), [3]);
    }
}
