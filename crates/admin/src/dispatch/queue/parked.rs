//! Due runs without a free executor. They wait here, by priority and planned instant, until the job's queue timeout. They stay `pending` in
//! the store, so a crash loses nothing. This module keeps their order; the runs themselves are among the [open runs](OpenRuns).
//!
//! Waiting runs are grouped by the executors that they can go to. A hundred thousand runs without an executor therefore do not hide a run that an
//! executor takes. Each step costs the logarithm of the number of waiting runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use rondel_core::route::question;
use rondel_core::{AppId, JobId, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::dispatch::queue::round_robin::round_robin;
use crate::dispatch::ready::ReadyRun;
use crate::dispatch::runs::{OpenRun, OpenRuns, Stage, WaitingRun};

/// Maximum number of runs of one job that [`ParkedRuns::first_of_jobs`] returns.
const RUNS_PER_JOB_MAX: usize = 64;

/// The position of a run in the order of waiting runs: the highest priority first, then the earliest planned instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    priority: Reverse<u8>,
    fire_at: Timestamp,
    pub(crate) run: RunId,
}

impl Turn {
    pub(crate) fn of(ready: &ReadyRun) -> Self {
        let priority = Reverse(ready.definition.job.priority);
        Self { priority, fire_at: ready.run.fire_at, run: ready.run.id }
    }
}

/// The kind of a run: which executors it can go to. If no executor is fit for one run of a kind, no executor is fit for the other runs of this
/// kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct RunKind {
    handler: String,
    /// `None` if runs of several jobs may be of this kind. Set if the job selects executors, asks executors before it routes, or is a pump job,
    /// and for a retry. Also set for a broadcast, because it needs room for its shards.
    job: Option<JobId>,
    /// The executor that a shard is meant for, or that the caller named.
    executor: Option<String>,
}

impl RunKind {
    fn of(ready: &ReadyRun) -> Self {
        let (run, job) = (&ready.run, &ready.definition.job);
        let is_pump = job.pump.is_some();
        let has_question = question(job.route).is_some();
        let is_particular = !job.select.is_any() || run.attempt > 1 || has_question || is_pump || run.is_root();
        Self {
            handler: job.handler.clone(),
            job: is_particular.then_some(run.job),
            executor: run.only_executor.clone().or_else(|| run.executor.clone().filter(|_| run.parent.is_some())),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ParkedRuns {
    /// The queues of each app: its waiting runs by kind.
    apps: HashMap<AppId, AppQueues>,
    runs: HashMap<RunId, Position>,
    /// When the queue timeouts of the runs pass, the earliest first.
    timeouts: BTreeSet<(Timestamp, RunId)>,
    /// The waiting runs of each job, keyed by the executor that their callers named.
    by_job: BTreeMap<JobId, BTreeMap<Option<String>, BTreeSet<Turn>>>,
}

/// The position of a run in the queues, and its queue timeout.
#[derive(Debug)]
struct Position {
    app: AppId,
    job: JobId,
    /// The executor that its caller named.
    named_executor: Option<String>,
    kind: RunKind,
    turn: Turn,
    /// The end of its queue timeout.
    timeout_at: Timestamp,
}

/// The progress of one offer of free places to the runs of an app.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The offer ends once this many kinds were refused.
    refused_kinds_max: usize,
    refused_count: usize,
    /// The last run that was refused: no executor could take it.
    last_refused_turn: Option<Turn>,
}

impl Offer {
    /// An offer that ends once this many kinds of runs could not be placed.
    pub(crate) const fn new(refused_kinds_max: usize) -> Self {
        Self { refused_kinds_max, refused_count: 0, last_refused_turn: None }
    }

    /// Whether half of the allowed refusals have occurred. From then on, the offer continues where the previous offer ended.
    const fn is_past_first_half(&self) -> bool {
        self.refused_count >= self.refused_kinds_max.div_ceil(2)
    }
}

#[derive(Debug, Default)]
struct AppQueues {
    kinds: HashMap<RunKind, BTreeSet<Turn>>,
    /// The first run of each kind, in the order of their turns.
    heads: BTreeMap<Turn, RunKind>,
    /// The run at which the last offer ended, if it did not reach all kinds: the next offer continues after that run.
    offered_up_to: Option<Turn>,
}

impl AppQueues {
    fn push(&mut self, kind: &RunKind, turn: Turn) {
        let queue = self.kinds.entry(kind.clone()).or_default();
        let old_head = queue.first().copied();
        queue.insert(turn);
        if old_head.is_none_or(|head| turn < head) {
            old_head.and_then(|head| self.heads.remove(&head));
            self.heads.insert(turn, kind.clone());
        }
    }

    fn remove(&mut self, kind: &RunKind, turn: Turn) {
        let Some(queue) = self.kinds.get_mut(kind) else { return };
        queue.remove(&turn);
        let next_turn = queue.first().copied();
        if next_turn.is_none() {
            self.kinds.remove(kind);
        }
        if self.heads.remove(&turn).is_some()
            && let Some(next_turn) = next_turn
        {
            self.heads.insert(next_turn, kind.clone());
        }
    }
}

impl ParkedRuns {
    pub(crate) fn push(&mut self, waiting_run: WaitingRun, runs: &mut OpenRuns) {
        let ready = &waiting_run.ready;
        let (app, job, named_executor) = (ready.run.app, ready.run.job, ready.run.only_executor.clone());
        let (kind, turn) = (RunKind::of(ready), Turn::of(ready));
        self.insert(
            ready.run.id,
            Position { app, job, named_executor, kind, turn, timeout_at: waiting_run.timeout_at() },
        );
        runs.put(waiting_run.ready, Stage::Parked(waiting_run.since));
    }

    fn insert(&mut self, run: RunId, position: Position) {
        self.apps.entry(position.app).or_default().push(&position.kind, position.turn);
        let queues_of_job = self.by_job.entry(position.job).or_default();
        queues_of_job.entry(position.named_executor.clone()).or_default().insert(position.turn);
        self.timeouts.insert((position.timeout_at, run));
        self.runs.insert(run, position);
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    pub(crate) fn apps(&self) -> Vec<AppId> {
        let mut apps: Vec<_> = self.apps.keys().copied().collect();
        apps.sort_unstable();
        apps
    }

    /// Takes out the app's next run to offer; `None` once one run of every kind, or of `refused_kinds_max` kinds, was [refused](Self::refuse).
    /// Half of these kinds are the first in turn; the other half follow the run at which the previous offer ended, so that each kind has its
    /// turn, however many cannot be placed.
    pub(crate) fn take_next(&mut self, app: AppId, offer: &Offer, runs: &mut OpenRuns) -> Option<WaitingRun> {
        let app_queues = self.apps.get_mut(&app)?;
        if offer.refused_count >= offer.refused_kinds_max {
            app_queues.offered_up_to = offer.last_refused_turn;
            return None;
        }
        let resumed_turn = app_queues
            .offered_up_to
            .filter(|_| offer.is_past_first_half() && !mutant::on(Mutant::OfferRetriesSameKinds));
        let resume_after = offer.last_refused_turn.max(resumed_turn);
        let later_turns = (resume_after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let Some((turn, _)) = app_queues.heads.range(later_turns).next() else {
            app_queues.offered_up_to = None;
            return None;
        };
        let run = turn.run;
        self.remove(run, runs)
    }

    /// The first runs of the next `count` jobs after `after_job`; after the last job, the first job follows. Each job contributes the first run
    /// that may go to any executor, and the first run for each executor that callers named, up to [`RUNS_PER_JOB_MAX`].
    pub(crate) fn first_of_jobs<'a>(
        &self,
        after_job: Option<JobId>,
        count: usize,
        runs: &'a OpenRuns,
    ) -> impl Iterator<Item = &'a OpenRun> {
        let later_jobs = self.by_job.range((after_job.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let earlier_jobs = after_job.map(|behind| self.by_job.range(..=behind)).into_iter().flatten();
        later_jobs.chain(earlier_jobs).take(count).flat_map(move |(_, queues)| {
            let mut first_turns: Vec<Turn> = queues.values().filter_map(BTreeSet::first).copied().collect();
            first_turns.sort_unstable();
            first_turns.into_iter().take(RUNS_PER_JOB_MAX).filter_map(|turn| runs.get(turn.run))
        })
    }

    /// Puts back a run that could not be placed.
    pub(crate) fn refuse(&mut self, waiting_run: WaitingRun, offer: &mut Offer, runs: &mut OpenRuns) {
        offer.last_refused_turn = Some(Turn::of(&waiting_run.ready));
        offer.refused_count += 1;
        self.push(waiting_run, runs);
    }

    /// Takes out every run whose queue timeout has passed.
    pub(crate) fn take_expired(&mut self, now: Timestamp, runs: &mut OpenRuns) -> Vec<ReadyRun> {
        let mut expired_runs = Vec::new();
        while let Some((_, run)) = self.timeouts.first().filter(|(until, _)| *until <= now).copied() {
            match self.remove(run, runs) {
                Some(waiting) => expired_runs.push(waiting.ready),
                None => drop(self.timeouts.pop_first()),
            }
        }
        expired_runs
    }

    /// At most `count` runs for which `is_chosen` is true, one from each kind in rotation. Within a kind the search ends at the first run for
    /// which `is_chosen` is false, so that it does not read a long queue to its end.
    pub(crate) fn first_waiting_runs<'a>(
        &self,
        is_chosen: impl Fn(&OpenRun) -> bool,
        count: usize,
        runs: &'a OpenRuns,
    ) -> Vec<&'a ReadyRun> {
        let is_chosen = &is_chosen;
        let apps = self.apps().into_iter().filter_map(|app| self.apps.get(&app));
        let queues = apps.flat_map(|app| app.heads.values().filter_map(move |kind| app.kinds.get(kind)));
        let queues = queues.map(|turns| {
            let waiting_runs = turns.iter().filter_map(move |turn| runs.get(turn.run));
            waiting_runs.take_while(move |open| is_chosen(open)).map(|open| &open.ready)
        });
        round_robin(queues, count)
    }

    fn remove_from_job(&mut self, position: &Position) {
        let Some(queues) = self.by_job.get_mut(&position.job) else { return };
        if let Some(turns) = queues.get_mut(&position.named_executor) {
            turns.remove(&position.turn);
            if turns.is_empty() {
                queues.remove(&position.named_executor);
            }
        }
        if queues.is_empty() {
            self.by_job.remove(&position.job);
        }
    }

    pub(crate) fn remove(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<WaitingRun> {
        let position = self.runs.remove(&run)?;
        self.timeouts.remove(&(position.timeout_at, run));
        self.remove_from_job(&position);
        let app = self.apps.get_mut(&position.app)?;
        app.remove(&position.kind, position.turn);
        if app.kinds.is_empty() {
            self.apps.remove(&position.app);
        }
        runs.take_waiting(run)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::definitions::CompiledDefinition;
    use crate::dispatch::tests_support::{definition, ready};

    const APP: AppId = AppId::new(1);

    fn parked_runs(waiting: &[(i64, &Arc<CompiledDefinition>)]) -> (ParkedRuns, OpenRuns) {
        let (mut parked, mut runs) = (ParkedRuns::default(), OpenRuns::default());
        for (second, job) in waiting {
            parked.push(WaitingRun::new(ready(*second, job), Timestamp::EPOCH), &mut runs);
        }
        (parked, runs)
    }

    /// Offers runs until `slots` are taken; returns the seconds of the runs that took them.
    fn place_runs(
        (parked, runs): &mut (ParkedRuns, OpenRuns),
        slots: usize,
        mut fit: impl FnMut(&ReadyRun) -> bool,
    ) -> Vec<i64> {
        let (mut placed, mut offer) = (Vec::new(), Offer::new(200));
        while let Some(waiting) = parked.take_next(APP, &offer, runs) {
            if placed.len() < slots && fit(&waiting.ready) {
                placed.push(waiting.ready.run.id.get() / 1_000);
            } else {
                parked.refuse(waiting, &mut offer, runs);
            }
        }
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
        assert_eq!(place_runs(&mut parked_runs(&runs), 6, |_| true), [2, 9, 4, 5, 1, 3]);
        let mut some = parked_runs(&runs);
        assert_eq!(place_runs(&mut some, 2, |_| true), [2, 9]);
        assert_eq!(place_runs(&mut some, 9, |_| true), [4, 5, 1, 3]);
        let (parked, mut runs) = some;
        assert!(parked.apps().is_empty() && parked.timeouts.is_empty() && parked.runs.is_empty());
        assert_eq!(runs.drain_waiting().len(), 0);
    }

    #[test]
    fn runs_without_an_executor_do_not_hide_runs_with_one() {
        let (unserved, served) = (definition(&json!({"priority": 9, "handler": "gone"})), definition(&json!({})));
        let mut runs: Vec<(i64, &Arc<CompiledDefinition>)> = (1..=10_000).map(|second| (second, &unserved)).collect();
        runs.push((20_000, &served));
        let mut parked = parked_runs(&runs);
        let mut offered_count = 0;
        let taken = place_runs(&mut parked, 9, |ready| {
            offered_count += 1;
            ready.definition.job.handler != "gone"
        });
        assert_eq!((taken, offered_count), (vec![20_000], 2));
        assert_eq!(parked.0.len(), 10_000);
    }

    /// How many offers it takes to place a run behind nine kinds that cannot be placed; `None` if 19 offers do not place it.
    fn offers_until_placed(refused_kinds_max: usize) -> Option<usize> {
        let hopeless: Vec<_> =
            (0..9).map(|number| definition(&json!({"priority": 9, "handler": format!("gone{number}")}))).collect();
        let served = definition(&json!({}));
        let mut waiting: Vec<(i64, &Arc<CompiledDefinition>)> = (1..).zip(&hopeless).collect();
        waiting.push((20, &served));
        let (mut parked, mut runs) = parked_runs(&waiting);
        (1..20).find(|_| {
            let mut offer = Offer::new(refused_kinds_max);
            let mut is_placed = false;
            while let Some(waiting) = parked.take_next(APP, &offer, &mut runs) {
                if waiting.ready.definition.job.handler == "h" {
                    is_placed = true;
                } else {
                    parked.refuse(waiting, &mut offer, &mut runs);
                }
            }
            is_placed
        })
    }

    #[test]
    fn every_kind_has_its_turn_however_many_cannot_be_placed() {
        for (refused_kinds_max, offers) in [(2, 9), (3, 8), (4, 4), (10, 1)] {
            assert_eq!(offers_until_placed(refused_kinds_max), Some(offers), "{refused_kinds_max}");
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_look_ahead_that_stands_still_is_noticed() {
        mutant::set(Some(Mutant::OfferRetriesSameKinds));
        let offers = offers_until_placed(3);
        mutant::set(None);
        assert_eq!(offers, None);
    }

    #[test]
    fn the_jobs_of_waiting_runs_take_turns() {
        let one = definition(&json!({}));
        let (mut parked, mut runs) = parked_runs(&[]);
        for (job, second) in [(3, 1), (3, 2), (1, 9), (1, 4), (2, 7)] {
            let mut ready = ready(second, &one);
            ready.run.job = JobId::new(job);
            parked.push(WaitingRun::new(ready, Timestamp::EPOCH), &mut runs);
        }
        let seconds = |behind: Option<i64>, count| {
            let firsts = parked.first_of_jobs(behind.map(JobId::new), count, &runs);
            firsts.map(|open| open.ready.run.due_at.second()).collect::<Vec<_>>()
        };
        assert_eq!(seconds(None, 9), [4, 7, 1]);
        assert_eq!(seconds(Some(1), 2), [7, 1]);
        assert_eq!(seconds(Some(2), 2), [1, 4]);
        assert_eq!(seconds(Some(3), 1), [4]);
        parked.remove(RunId::new(7_000), &mut runs);
        assert_eq!(parked.by_job.len(), 2);
    }

    #[test]
    fn the_runs_for_one_executor_do_not_hide_those_for_another() {
        let one = definition(&json!({}));
        let (mut parked, mut runs) = parked_runs(&[]);
        let named = [(1..=20, Some("gone")), (21..=22, Some("far")), (23..=24, None)];
        for (second, only) in named.iter().flat_map(|(seconds, only)| seconds.clone().map(move |second| (second, only)))
        {
            let mut ready = ready(second, &one);
            ready.run.only_executor = only.map(str::to_owned);
            parked.push(WaitingRun::new(ready, Timestamp::EPOCH), &mut runs);
        }
        let firsts = |parked: &ParkedRuns, runs: &OpenRuns| {
            parked.first_of_jobs(None, 9, runs).map(|open| open.ready.run.due_at.second()).collect::<Vec<_>>()
        };
        assert_eq!(firsts(&parked, &runs), [1, 21, 23]);
        for second in 21..=22 {
            parked.remove(RunId::new(second * 1_000), &mut runs);
        }
        assert_eq!(firsts(&parked, &runs), [1, 23]);
    }

    /// Runs of many jobs that need nothing but the handler are of one kind; where the job matters, each job has a kind of its own.
    #[test]
    fn runs_with_equal_needs_are_of_one_kind() {
        let kinds = |overrides: &serde_json::Value, attempt: i32, change: fn(&mut ReadyRun)| {
            let job = definition(overrides);
            let (mut parked, mut runs) = parked_runs(&[]);
            for second in 1..=3 {
                let mut ready = ready(second, &job);
                (ready.run.job, ready.run.attempt) = (JobId::new(second), attempt);
                change(&mut ready);
                parked.push(WaitingRun::new(ready, Timestamp::EPOCH), &mut runs);
            }
            parked.apps[&APP].kinds.len()
        };
        assert_eq!(kinds(&json!({}), 1, |_| {}), 1);
        assert_eq!(kinds(&json!({}), 2, |_| {}), 3, "routers know who had the attempt before");
        assert_eq!(kinds(&json!({"select": {"labels": ["zone=a"]}}), 1, |_| {}), 3);
        assert_eq!(kinds(&json!({"route": "failover"}), 1, |_| {}), 3);
        assert_eq!(kinds(&json!({"pump": {"items": 9, "groups": 3, "per_executor": 1}}), 1, |_| {}), 3);
        assert_eq!(kinds(&json!({"shards": 2}), 1, |ready| ready.run = ready.run.clone().for_all_shards()), 3);
        let of_shard = |ready: &mut ReadyRun| {
            (ready.run.parent, ready.run.executor) = (Some(RunId::new(1)), Some(format!("e{}", ready.run.job)));
        };
        assert_eq!(kinds(&json!({}), 1, of_shard), 3, "each shard is for an executor of its own");
        assert_eq!(kinds(&json!({}), 1, |ready| ready.run.executor = Some(format!("e{}", ready.run.job))), 1);
    }

    #[test]
    fn a_parked_run_is_removed_by_its_id_and_expires_at_its_queue_timeout() {
        let (short, long) = (definition(&json!({"queue_timeout": "1s"})), definition(&json!({"queue_timeout": "5s"})));
        let (mut parked, mut runs) = parked_runs(&[(1, &long), (2, &short), (3, &short)]);
        assert!(parked.remove(RunId::new(2_000), &mut runs).is_some());
        assert!(parked.remove(RunId::new(2_000), &mut runs).is_none());
        let seconds =
            |expired: Vec<ReadyRun>| expired.iter().map(|ready| ready.run.due_at.second()).collect::<Vec<_>>();
        assert_eq!(seconds(parked.take_expired(Timestamp::from_millis(3_999), &mut runs)), [] as [i64; 0]);
        assert_eq!(seconds(parked.take_expired(Timestamp::from_secs(4), &mut runs)), [3]);
        assert_eq!(seconds(parked.take_expired(Timestamp::from_secs(6), &mut runs)), [1]);
        assert!(parked.apps().is_empty());
    }

    #[test]
    fn some_are_looked_at_together() {
        let (one, other) = (definition(&json!({})), definition(&json!({"handler": "other"})));
        let (parked, runs) = parked_runs(&[(1, &one), (2, &one), (3, &one), (4, &other)]);
        let seconds = |some: Vec<&ReadyRun>| some.iter().map(|ready| ready.run.due_at.second()).collect::<Vec<_>>();
        assert_eq!(seconds(parked.first_waiting_runs(|_| true, 3, &runs)), [1, 4, 2], "a long queue hides no other");
        assert_eq!(
            seconds(parked.first_waiting_runs(|open| open.ready.definition.job.handler == "other", 9, &runs)),
            [4]
        );
        assert_eq!(seconds(parked.first_waiting_runs(|open| open.ready.run.due_at.second() != 2, 9, &runs)), [1, 4]);
    }

    /// With a hundred thousand runs, this test takes minutes unless every step is logarithmic.
    #[test]
    fn a_hundred_thousand_parked_runs_cost_little() {
        let jobs = [0_u8, 5, 9].map(|priority| definition(&json!({"priority": priority})));
        let mut parked = parked_runs(&[]);
        for number in 0..100_000_i64 {
            let job = &jobs[usize::try_from(number % 3).unwrap()];
            let waiting = WaitingRun::new(ready(1 + number * 7_919 % 100_003, job), Timestamp::from_millis(number));
            parked.0.push(waiting, &mut parked.1);
        }
        let all: Vec<RunId> = parked.0.runs.keys().copied().collect();
        all.iter().take(30_000).for_each(|run| assert!(parked.0.remove(*run, &mut parked.1).is_some()));
        // A full executor frees one slot at a time.
        for _ in 0..30_000 {
            assert_eq!(place_runs(&mut parked, 1, |_| true).len(), 1);
        }
        assert_eq!(parked.0.take_expired(Timestamp::from_secs(200_000), &mut parked.1).len(), 40_000);
    }
}
