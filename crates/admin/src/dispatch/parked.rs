//! Runs that are due and find nobody free: they wait here, by priority and planned instant, until the job's queue
//! timeout. They stay `pending` in the store, so a crash loses nothing.
//!
//! What waits is sorted by what it waits for, so that a hundred thousand runs without an executor do not hide one that
//! has one, and each step costs the logarithm of what waits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use rondel_core::route::question;
use rondel_core::{AppId, JobId, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::Ready;

/// How many kinds of runs that cannot be placed are looked past in one offer.
const LOOK_PAST: usize = 200;

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) ready: Ready,
    /// Since when it waits here. Its queue time counts from its instant.
    pub(crate) since: Timestamp,
}

impl Waiting {
    pub(crate) const fn new(ready: Ready, since: Timestamp) -> Self {
        Self { ready, since }
    }

    /// When it has waited as long as it may.
    pub(crate) fn until(&self) -> Timestamp {
        match mutant::on(Mutant::QueueTimeFromTurn) {
            true => self.since + self.ready.definition.job.queue_timeout,
            false => self.ready.waits_until(),
        }
    }
}

/// Whose turn it is among those that wait: the highest priority, then the earliest planned instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<u8>,
    fire_at: Timestamp,
    run: RunId,
}

impl Turn {
    pub(crate) fn of(ready: &Ready) -> Self {
        let priority = Reverse(ready.definition.job.priority);
        Self { priority, fire_at: ready.run.fire_at, run: ready.run.id }
    }
}

/// What a run waits for. Where nobody is fit for one of a kind, nobody is for the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind {
    handler: String,
    /// Where the job itself chooses among the executors.
    job: Option<JobId>,
    /// The executor that a shard is meant for.
    executor: Option<String>,
}

impl Kind {
    fn of(ready: &Ready) -> Self {
        let (run, job) = (&ready.run, &ready.definition.job);
        let is_particular = !job.select.is_any() || run.attempt > 1 || question(job.route).is_some();
        Self {
            handler: job.handler.clone(),
            job: is_particular.then_some(run.job),
            executor: run.executor.clone().filter(|_| run.parent.is_some()),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Parked {
    apps: HashMap<AppId, App>,
    runs: HashMap<RunId, (AppId, Kind, Turn, Timestamp)>,
    ends: BTreeSet<(Timestamp, RunId)>,
}

#[derive(Debug, Default)]
struct App {
    kinds: HashMap<Kind, BTreeMap<Turn, Waiting>>,
    /// The first of each kind.
    heads: BTreeMap<Turn, Kind>,
}

impl App {
    fn push(&mut self, kind: &Kind, turn: Turn, waiting: Waiting) {
        let queue = self.kinds.entry(kind.clone()).or_default();
        let head = queue.first_key_value().map(|(head, _)| *head);
        queue.insert(turn, waiting);
        if head.is_none_or(|head| turn < head) {
            head.and_then(|head| self.heads.remove(&head));
            self.heads.insert(turn, kind.clone());
        }
    }

    fn remove(&mut self, kind: &Kind, turn: Turn) -> Option<Waiting> {
        let queue = self.kinds.get_mut(kind)?;
        let waiting = queue.remove(&turn)?;
        let next = queue.first_key_value().map(|(next, _)| *next);
        if next.is_none() {
            self.kinds.remove(kind);
        }
        if self.heads.remove(&turn).is_some()
            && let Some(next) = next
        {
            self.heads.insert(next, kind.clone());
        }
        Some(waiting)
    }
}

impl Parked {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        let (app, run) = (waiting.ready.run.app, waiting.ready.run.id);
        let (kind, turn, until) = (Kind::of(&waiting.ready), Turn::of(&waiting.ready), waiting.until());
        self.remove(run);
        self.apps.entry(app).or_default().push(&kind, turn, waiting);
        self.ends.insert((until, run));
        self.runs.insert(run, (app, kind, turn, until));
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn apps(&self) -> Vec<AppId> {
        let mut apps: Vec<_> = self.apps.keys().copied().collect();
        apps.sort_unstable();
        apps
    }

    /// Offers the app's waiting runs, the first in turn first, until `place` has refused one of every kind, or of enough
    /// kinds. `place` gives back what it did not take.
    pub(crate) fn offer(&mut self, app: AppId, mut place: impl FnMut(Waiting) -> Option<Waiting>) {
        let mut refused_count = 0;
        let mut refused_to = Bound::Unbounded;
        while refused_count < LOOK_PAST {
            let heads = self.apps.get(&app).map(|app| &app.heads);
            let Some(turn) = heads.and_then(|heads| Some(*heads.range((refused_to, Bound::Unbounded)).next()?.0))
            else {
                return;
            };
            let Some(waiting) = self.remove(turn.run) else { return };
            if let Some(refused) = place(waiting) {
                self.push(refused);
                refused_to = Bound::Excluded(turn);
                refused_count += 1;
            }
        }
    }

    /// Takes out everyone who has waited as long as they may.
    pub(crate) fn take_expired(&mut self, now: Timestamp) -> Vec<Ready> {
        let mut expired = Vec::new();
        while let Some((_, run)) = self.ends.first().filter(|(until, _)| *until <= now).copied() {
            match self.remove(run) {
                Some(waiting) => expired.push(waiting.ready),
                None => drop(self.ends.pop_first()),
            }
        }
        expired
    }

    /// Those of which `is_chosen` holds, the first of each kind in turn first, at most `count`. Where it does not hold of the
    /// first of a kind, the others of that kind are not asked about.
    pub(crate) fn waiting(&self, is_chosen: impl Fn(&Waiting) -> bool, count: usize) -> Vec<&Waiting> {
        let mut chosen = Vec::new();
        for app in self.apps().iter().filter_map(|app| self.apps.get(app)) {
            for kind in app.heads.values() {
                let queue = app.kinds.get(kind).into_iter().flatten();
                let left = count.saturating_sub(chosen.len());
                chosen.extend(queue.map(|(_, waiting)| waiting).take_while(|waiting| is_chosen(waiting)).take(left));
            }
        }
        chosen
    }

    pub(crate) fn remove(&mut self, run: RunId) -> Option<Waiting> {
        let (id, kind, turn, until) = self.runs.remove(&run)?;
        self.ends.remove(&(until, run));
        let app = self.apps.get_mut(&id)?;
        let waiting = app.remove(&kind, turn);
        if app.kinds.is_empty() {
            self.apps.remove(&id);
        }
        waiting
    }

    /// Takes in what waits elsewhere.
    pub(crate) fn append(&mut self, mut other: Self) {
        let apps = std::mem::take(&mut other.apps).into_values();
        apps.flat_map(|app| app.kinds.into_values()).flatten().for_each(|(_, waiting)| self.push(waiting));
    }

    pub(crate) fn drain(&mut self) -> Vec<Ready> {
        let apps = std::mem::take(self).apps.into_values();
        apps.flat_map(|app| app.kinds.into_values()).flatten().map(|(_, waiting)| waiting.ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::definitions::Compiled;
    use crate::dispatch::tests_support::{definition, ready};

    const APP: AppId = AppId::new(1);

    fn parked(runs: &[(i64, &Arc<Compiled>)]) -> Parked {
        let mut parked = Parked::default();
        runs.iter().for_each(|(second, job)| parked.push(Waiting::new(ready(*second, job), Timestamp::EPOCH)));
        parked
    }

    /// Offers until `slots` are taken; answers who took them.
    fn placed(parked: &mut Parked, slots: usize, fit: impl Fn(&Ready) -> bool) -> Vec<i64> {
        let mut placed = Vec::new();
        parked.offer(APP, |waiting| {
            if placed.len() < slots && fit(&waiting.ready) {
                placed.push(waiting.ready.run.id.get() / 1_000);
                return None;
            }
            Some(waiting)
        });
        placed
    }

    #[test]
    fn higher_priorities_go_first_and_within_one_the_earlier_instant() {
        let (low, usual, high) = (
            definition(&json!({"priority": 0})),
            definition(&json!({})),
            definition(&json!({"priority": 9, "handler": "other"})),
        );
        let runs = [(1, &low), (5, &usual), (4, &usual), (9, &high), (3, &low), (2, &high)];
        assert_eq!(placed(&mut parked(&runs), 6, |_| true), [2, 9, 4, 5, 1, 3]);
        let mut some = parked(&runs);
        assert_eq!(placed(&mut some, 2, |_| true), [2, 9]);
        assert_eq!(placed(&mut some, 9, |_| true), [4, 5, 1, 3]);
        assert!(some.apps().is_empty() && some.ends.is_empty() && some.runs.is_empty());
    }

    #[test]
    fn who_has_nobody_does_not_hide_who_has_somebody() {
        let (nobody, served) = (definition(&json!({"priority": 9, "handler": "gone"})), definition(&json!({})));
        let mut runs: Vec<(i64, &Arc<Compiled>)> = (1..=10_000).map(|second| (second, &nobody)).collect();
        runs.push((20_000, &served));
        let mut parked = parked(&runs);
        let mut offered_count = 0;
        let mut taken = Vec::new();
        parked.offer(APP, |waiting| {
            offered_count += 1;
            if waiting.ready.definition.job.handler == "gone" {
                return Some(waiting);
            }
            taken.push(waiting.ready.run.id.get() / 1_000);
            None
        });
        assert_eq!((taken, offered_count), (vec![20_000], 2));
        assert_eq!(parked.runs.len(), 10_000);
    }

    #[test]
    fn each_is_removed_by_its_id_and_expires_in_its_time() {
        let (short, long) = (definition(&json!({"queue_timeout": "1s"})), definition(&json!({"queue_timeout": "5s"})));
        let mut parked = parked(&[(1, &long), (2, &short), (3, &short)]);
        assert!(parked.remove(RunId::new(2_000)).is_some());
        assert!(parked.remove(RunId::new(2_000)).is_none());
        let seconds = |expired: Vec<Ready>| expired.iter().map(|ready| ready.run.due_at.second()).collect::<Vec<_>>();
        assert_eq!(seconds(parked.take_expired(Timestamp::from_millis(3_999))), [] as [i64; 0]);
        assert_eq!(seconds(parked.take_expired(Timestamp::from_secs(4))), [3]);
        assert_eq!(seconds(parked.take_expired(Timestamp::from_secs(6))), [1]);
        assert!(parked.apps().is_empty());
    }

    #[test]
    fn some_are_looked_at_together() {
        let (one, other) = (definition(&json!({})), definition(&json!({"handler": "other"})));
        let parked = parked(&[(1, &one), (2, &one), (3, &one), (4, &other)]);
        let seconds = |some: Vec<&Waiting>| some.iter().map(|one| one.ready.run.due_at.second()).collect::<Vec<_>>();
        assert_eq!(seconds(parked.waiting(|_| true, 2)), [1, 2]);
        assert_eq!(seconds(parked.waiting(|waiting| waiting.ready.definition.job.handler == "other", 9)), [4]);
        assert_eq!(seconds(parked.waiting(|waiting| waiting.ready.run.due_at.second() != 2, 9)), [1, 4]);
    }

    /// A hundred thousand: every step is logarithmic, or this would take minutes.
    #[test]
    fn many_wait_at_little_cost() {
        let jobs = [0_u8, 5, 9].map(|priority| definition(&json!({"priority": priority})));
        let mut parked = Parked::default();
        for number in 0..100_000_i64 {
            let job = &jobs[usize::try_from(number % 3).unwrap()];
            parked.push(Waiting::new(ready(1 + number * 7_919 % 100_003, job), Timestamp::from_millis(number)));
        }
        let all: Vec<RunId> = parked.runs.keys().copied().collect();
        all.iter().take(30_000).for_each(|run| assert!(parked.remove(*run).is_some()));
        // A full executor frees one slot at a time.
        for _ in 0..30_000 {
            assert_eq!(placed(&mut parked, 1, |_| true).len(), 1);
        }
        assert_eq!(parked.take_expired(Timestamp::from_secs(200_000)).len(), 40_000);
    }
}
