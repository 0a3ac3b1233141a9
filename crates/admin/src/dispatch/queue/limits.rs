//! Limits that jobs share: how many runs with the same key executors may have at the same time, and how many may start in a period. A run
//! that is held back waits its turn, by priority and planned instant, until its job's queue timeout. The runs themselves are among the
//! [open runs](OpenRuns).
//!
//! A limit with a key has a home node, as a job has: the node whose job named the key first. Only that node counts the limit's runs, for the whole
//! cluster. Runs under the limit that come due on another node are handed over to the home, together with their jobs. A node gives a limit away if
//! it is to keep no jobs, or if it hands over a job with this limit to the home of the job's other limit, but only while the limit counts no run.
//! Counts are in memory: after a restart, runs at executors are counted again, and earlier starts are not.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use rondel_core::reason::{LimitDetail, LimitKind, ReasonDetail, WaitFor, milliseconds};
use rondel_core::spec::{ConcurrencySpec, RateSpec};
use rondel_core::{JobId, NamespaceId, RunId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::ledger::LimitName;

use crate::dispatch::queue::parked::Turn;
use crate::dispatch::queue::round_robin::round_robin;
use crate::dispatch::ready::{ReadyRun, waited_ms};
use crate::dispatch::runs::{OpenRuns, Stage, WaitingRun, waits_until};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LimitKey {
    /// A limit that jobs share and that this node does not count: its home is another node, or is not known yet.
    Home(LimitName),
    /// A limit on runs at the same time.
    Concurrency(NamespaceId, String),
    /// A limit on the starts of all jobs with this key.
    Rate(NamespaceId, String),
    /// A limit on the starts of one job.
    JobRate(JobId),
}

#[derive(Debug, Default)]
pub(crate) struct Limits {
    limits: BTreeMap<LimitKey, Limit>,
    /// For each counted run, the concurrency limit that counts it.
    counted_under: HashMap<RunId, LimitKey>,
    waiting_runs: HashMap<RunId, (LimitKey, Turn)>,
    /// The earliest instant at which a rate limit may admit its next run; `None` if no run waits for a rate limit.
    wake_at: Option<Timestamp>,
    /// Whether another node may count the runs of a limit.
    is_cluster: bool,
    /// Limits whose runs this node counts.
    limits_at_home: HashSet<LimitName>,
    /// Limits whose home the store is to be asked for.
    homes_to_ask: BTreeSet<LimitName>,
}

#[derive(Debug, Default)]
struct Limit {
    /// The counted runs: executors have them, or may have them.
    open_runs: HashSet<RunId>,
    /// The newest starts, the oldest first: at most as many as the largest `max` among the jobs with this key.
    start_instants: VecDeque<(Timestamp, RunId)>,
    /// The largest `max` of the jobs with this key.
    starts_max: usize,
    waiting_turns: BTreeSet<Turn>,
}

fn concurrency_limit(ready: &ReadyRun) -> Option<(LimitKey, &ConcurrencySpec)> {
    let spec = ready.definition.job.concurrency.as_ref()?;
    Some((LimitKey::Concurrency(ready.run.namespace, spec.key.clone()), spec))
}

fn rate_limit(ready: &ReadyRun) -> Option<(LimitKey, &RateSpec)> {
    let spec = ready.definition.job.rate.as_ref()?;
    let key = match &spec.key {
        Some(key) => LimitKey::Rate(ready.run.namespace, key.clone()),
        None => LimitKey::JobRate(ready.run.job),
    };
    Some((key, spec))
}

/// The names of those limits of a run that jobs share: the limits with a key, which have a home.
fn limit_names(ready: &ReadyRun) -> impl Iterator<Item = LimitName> + '_ {
    let job = &ready.definition.job;
    let keys = [job.concurrency.as_ref().map(|spec| &spec.key), job.rate.as_ref().and_then(|spec| spec.key.as_ref())];
    keys.into_iter().flatten().map(|key| LimitName { namespace: ready.run.namespace, key: key.clone() })
}

/// Whether the run is under a limit that jobs share.
pub(crate) fn shares_limit(ready: &ReadyRun) -> bool {
    limit_names(ready).next().is_some()
}

fn as_usize(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl Limit {
    /// The earliest instant at which one more run may start; `now` if it may start now.
    fn free_at(&self, rate: &RateSpec, now: Timestamp) -> Timestamp {
        match self.start_instants.len().checked_sub(as_usize(rate.max)) {
            Some(index) => self.start_instants.get(index).map_or(now, |(at, _)| now.max(*at + rate.per)),
            None => now,
        }
    }
}

impl Limits {
    pub(crate) fn new(is_cluster: bool) -> Self {
        Self { is_cluster, ..Self::default() }
    }

    /// How many runs wait for a limit.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting_runs.len()
    }

    /// Takes the limits whose home the store is to be asked for now.
    pub(crate) fn take_homes_to_ask(&mut self) -> Vec<LimitName> {
        std::mem::take(&mut self.homes_to_ask).into_iter().collect()
    }

    /// Asks again for the homes of those limits that runs wait for and that this node does not count.
    pub(crate) fn ask_for_homes_again(&mut self) {
        let limits_with_waits = self.limits.iter().filter(|(_, limit)| !limit.waiting_turns.is_empty());
        let unknown_homes = limits_with_waits.filter_map(|(key, _)| match key {
            LimitKey::Home(name) => Some(name.clone()),
            LimitKey::Concurrency(..) | LimitKey::Rate(..) | LimitKey::JobRate(_) => None,
        });
        self.homes_to_ask = unknown_homes.collect();
    }

    /// Records that this node counts the limit's runs.
    pub(crate) fn count_here(&mut self, name: LimitName) {
        self.limits_at_home.insert(name);
    }

    /// Takes the limits that this node counts.
    pub(crate) fn take_limits_at_home(&mut self) -> HashSet<LimitName> {
        std::mem::take(&mut self.limits_at_home)
    }

    /// Stops counting for the chosen limits under which no executor has a run. Returns these limits: another node may count for them now.
    pub(crate) fn give_away(&mut self, is_chosen: impl Fn(&LimitName) -> bool) -> Vec<LimitName> {
        let is_idle = |name: &LimitName| {
            let key = LimitKey::Concurrency(name.namespace, name.key.clone());
            self.limits.get(&key).is_none_or(|limit| limit.open_runs.is_empty())
        };
        let idle_limits = self.limits_at_home.iter().filter(|&name| is_chosen(name) && is_idle(name));
        let mut idle_limits: Vec<LimitName> = idle_limits.cloned().collect();
        idle_limits.sort_unstable();
        for name in &idle_limits {
            self.limits_at_home.remove(name);
        }
        idle_limits
    }

    /// The other limits of the first `count` runs that wait until this limit's home is known.
    pub(crate) fn other_limits_of_waiting_runs(
        &self,
        name: &LimitName,
        count: usize,
        runs: &OpenRuns,
    ) -> BTreeSet<LimitName> {
        let limit = self.limits.get(&LimitKey::Home(name.clone()));
        let waiting_turns = limit.into_iter().flat_map(|limit| &limit.waiting_turns).take(count);
        let waiting_runs = waiting_turns.filter_map(|turn| runs.ready(turn.run));
        waiting_runs.flat_map(limit_names).filter(|other| other != name).collect()
    }

    /// The jobs of the first `count` runs that wait until the limit's home is known.
    pub(crate) fn jobs_awaiting_home(&self, name: &LimitName, count: usize, runs: &OpenRuns) -> BTreeSet<JobId> {
        let limit = self.limits.get(&LimitKey::Home(name.clone()));
        let waiting_turns = limit.into_iter().flat_map(|limit| &limit.waiting_turns);
        waiting_turns.take(count).filter_map(|turn| Some(runs.ready(turn.run)?.run.job)).collect()
    }

    /// The limit that holds the run back, if one does. Of a broadcast only the shards are counted. The broadcast itself is held back until it
    /// is at the home of its limits, because its job cannot move there once the broadcast has shards.
    pub(crate) fn limit_holding_back(&self, ready: &ReadyRun, now: Timestamp) -> Option<LimitKey> {
        if self.is_cluster
            && let Some(name) = limit_names(ready).find(|name| !self.limits_at_home.contains(name))
        {
            return Some(LimitKey::Home(name));
        }
        if ready.run.is_root() {
            return None;
        }
        if let Some((key, spec)) = concurrency_limit(ready).filter(|_| !self.counted_under.contains_key(&ready.run.id))
            && self.limits.get(&key).is_some_and(|limit| limit.open_runs.len() >= as_usize(spec.max))
            && !mutant::on(Mutant::NoLimit)
        {
            return Some(key);
        }
        let (key, spec) = rate_limit(ready)?;
        let limit = self.limits.get(&key)?;
        (limit.free_at(spec, now) > now).then_some(key)
    }

    /// Counts a run that goes to an executor, and its start.
    pub(crate) fn count_start(&mut self, ready: &ReadyRun, now: Timestamp) {
        self.count_open(ready);
        if let Some((key, spec)) = rate_limit(ready) {
            let limit = self.limits.entry(key).or_default();
            limit.starts_max = limit.starts_max.max(as_usize(spec.max));
            limit.start_instants.push_back((now, ready.run.id));
            while limit.start_instants.len() > limit.starts_max {
                limit.start_instants.pop_front();
            }
        }
    }

    /// Counts a run that an executor has, or may have.
    pub(crate) fn count_open(&mut self, ready: &ReadyRun) {
        if let Some((key, _)) = concurrency_limit(ready).filter(|_| !ready.run.is_root()) {
            self.limits.entry(key.clone()).or_default().open_runs.insert(ready.run.id);
            self.counted_under.insert(ready.run.id, key);
        }
    }

    /// Stops counting a run that no executor has any more. Returns the limit that has room now; `None` if no concurrency limit counted the run.
    pub(crate) fn release(&mut self, run: RunId) -> Option<LimitKey> {
        let key = self.counted_under.remove(&run)?;
        self.limits.get_mut(&key)?.open_runs.remove(&run);
        Some(key)
    }

    /// Takes back all counts of a run that never started. Returns the concurrency limit that has room now.
    pub(crate) fn uncount_start(&mut self, ready: &ReadyRun) -> Option<LimitKey> {
        if let Some((key, _)) = rate_limit(ready)
            && let Some(limit) = self.limits.get_mut(&key)
            && let Some(index) = limit.start_instants.iter().rposition(|(_, run)| *run == ready.run.id)
        {
            limit.start_instants.remove(index);
            self.wake_at = Some(Timestamp::EPOCH);
        }
        self.release(ready.run.id)
    }

    /// Queues the run for this limit.
    pub(crate) fn enqueue(&mut self, key: LimitKey, waiting_run: WaitingRun, now: Timestamp, runs: &mut OpenRuns) {
        let turn = Turn::of(&waiting_run.ready);
        if let LimitKey::Home(name) = &key {
            self.homes_to_ask.insert(name.clone());
        }
        if let Some((_, spec)) = rate_limit(&waiting_run.ready).filter(|(rate, _)| *rate == key)
            && let Some(limit) = self.limits.get(&key)
        {
            let free_at = limit.free_at(spec, now);
            self.wake_at = Some(self.wake_at.map_or(free_at, |at| at.min(free_at)));
        }
        self.waiting_runs.insert(waiting_run.ready.run.id, (key.clone(), turn));
        self.limits.entry(key).or_default().waiting_turns.insert(turn);
        runs.put(waiting_run.ready, Stage::Limited(waiting_run.since));
    }

    /// Takes out the first run that waits for this limit, if the limit has room for it.
    pub(crate) fn take_next(&mut self, key: &LimitKey, now: Timestamp, runs: &mut OpenRuns) -> Option<WaitingRun> {
        let run = self.limits.get(key)?.waiting_turns.first()?.run;
        if self.limit_holding_back(runs.ready(run)?, now).as_ref() == Some(key) {
            return None;
        }
        self.remove(run, runs)
    }

    /// When to call [`limits_to_wake`](Self::limits_to_wake).
    pub(crate) fn wake_at(&self) -> Timestamp {
        self.wake_at.unwrap_or(Timestamp::MAX)
    }

    /// Handles a step back of the clock to `now`: a start after `now` counts as a start at `now`.
    pub(crate) fn step_back(&mut self, now: Timestamp) {
        let start_instants = self.limits.values_mut().flat_map(|limit| &mut limit.start_instants);
        start_instants.for_each(|(at, _)| *at = now.min(*at));
        self.wake_at = Some(Timestamp::EPOCH);
    }

    /// The rate limits that runs wait for, if one of these limits may admit a run by now; otherwise an empty list. The caller then calls
    /// [`schedule_wake`](Self::schedule_wake) for each of them, because their wake-up is cleared here.
    pub(crate) fn limits_to_wake(&mut self, now: Timestamp) -> Vec<LimitKey> {
        if self.wake_at() > now {
            return Vec::new();
        }
        self.wake_at = None;
        let limits_with_waits = self.limits.iter().filter(|(_, limit)| !limit.waiting_turns.is_empty());
        let mut keys: Vec<LimitKey> = limits_with_waits.map(|(key, _)| key.clone()).collect();
        keys.retain(|key| matches!(key, LimitKey::Rate(..) | LimitKey::JobRate(_)));
        keys.sort_unstable();
        keys
    }

    /// Sets when this rate limit may admit the first of the runs that still wait for it.
    pub(crate) fn schedule_wake(&mut self, key: &LimitKey, now: Timestamp, runs: &OpenRuns) {
        let Some(limit) = self.limits.get(key) else { return };
        let first_waiting_run = limit.waiting_turns.first().and_then(|turn| runs.ready(turn.run));
        let Some((_, spec)) = first_waiting_run.and_then(rate_limit) else { return };
        let free_at = limit.free_at(spec, now);
        self.wake_at = Some(self.wake_at.map_or(free_at, |at| at.min(free_at)));
    }

    /// Sets the start of the run's wait, if the run waits here.
    pub(crate) fn set_waiting_since(&self, run: RunId, since: Timestamp, runs: &mut OpenRuns) {
        let open_run = runs.get_mut(run).filter(|_| self.waiting_runs.contains_key(&run));
        open_run.into_iter().for_each(|open| open.stage = Stage::Limited(since));
    }

    /// Takes out a run that waits here.
    pub(crate) fn remove(&mut self, run: RunId, runs: &mut OpenRuns) -> Option<WaitingRun> {
        let (key, turn) = self.waiting_runs.remove(&run)?;
        self.limits.get_mut(&key)?.waiting_turns.remove(&turn);
        runs.take_waiting(run)
    }

    /// Takes out every run whose queue timeout has passed, each with the detail of its wait. Forgets limits that are not in use.
    pub(crate) fn take_expired(&mut self, now: Timestamp, runs: &mut OpenRuns) -> Vec<(ReadyRun, ReasonDetail)> {
        let is_expired = |run: &RunId| runs.get(*run).is_some_and(|open| now >= waits_until(&open.ready, open.since()));
        let mut expired_runs: Vec<RunId> = self.waiting_runs.keys().copied().filter(is_expired).collect();
        expired_runs.sort_unstable();
        let mut expired_waits = Vec::with_capacity(expired_runs.len());
        for run in expired_runs {
            let key = self.waiting_runs.get(&run).map(|(key, _)| key.clone());
            if let (Some(key), Some(waiting_run)) = (key, self.remove(run, runs)) {
                let waited_ms = Some(waited_ms(&waiting_run.ready, now));
                let detail = ReasonDetail { waited_ms, ..wait_detail(&key, &waiting_run.ready) };
                expired_waits.push((waiting_run.ready, detail));
            }
        }
        // The longest period that a rate limit can have.
        let longest_period = std::time::Duration::from_secs(24 * 3600);
        self.limits.retain(|_, limit| {
            let is_used = limit.start_instants.back().is_some_and(|(at, _)| *at + longest_period > now);
            is_used || !limit.open_runs.is_empty() || !limit.waiting_turns.is_empty()
        });
        expired_waits
    }

    /// At most `count` of the waiting runs for which `is_chosen` is true, from the limits in rotation, each with the limit that it waits for.
    pub(crate) fn first_waiting_runs<'a>(
        &'a self,
        is_chosen: impl Fn(&ReadyRun) -> bool,
        count: usize,
        runs: &'a OpenRuns,
    ) -> Vec<(&'a LimitKey, &'a ReadyRun)> {
        let is_chosen = &is_chosen;
        let queues = self.limits.iter().map(|(key, limit)| {
            let waiting_runs = limit.waiting_turns.iter().filter_map(move |turn| runs.ready(turn.run));
            waiting_runs.filter(move |ready| is_chosen(ready)).map(move |ready| (key, ready))
        });
        round_robin(queues, count)
    }

    /// Forgets all waiting runs, the counted runs for which `is_kept` is false, and which limits this node counts.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(RunId) -> bool) {
        self.counted_under.retain(|run, _| is_kept(*run));
        self.waiting_runs.clear();
        // The node that adopts this node's open runs takes over the counting for these limits.
        self.limits_at_home.clear();
        for limit in self.limits.values_mut() {
            limit.open_runs.retain(|run| is_kept(*run));
            limit.waiting_turns.clear();
        }
    }
}

/// The detail of the wait of a run that a limit holds back.
pub(crate) fn wait_detail(key: &LimitKey, ready: &ReadyRun) -> ReasonDetail {
    let job = &ready.definition.job;
    let (kind, key) = match key {
        LimitKey::Home(name) => (LimitKind::Home, Some(name.key.clone())),
        LimitKey::Concurrency(_, key) => (LimitKind::Concurrency, Some(key.clone())),
        LimitKey::Rate(_, key) => (LimitKind::Rate, Some(key.clone())),
        LimitKey::JobRate(_) => (LimitKind::Rate, None),
    };
    let (max, per_ms) = match (kind, &job.concurrency, &job.rate) {
        (LimitKind::Concurrency, Some(spec), _) => (Some(spec.max), None),
        (LimitKind::Rate, _, Some(spec)) => (Some(spec.max), Some(milliseconds(spec.per))),
        _ => (None, None),
    };
    let limit = Some(LimitDetail { kind, key, max, per_ms });
    ReasonDetail { waits_for: Some(WaitFor::Limit), limit, ..ReasonDetail::default() }
}

#[cfg(test)]
mod kept_tests;

#[cfg(test)]
mod tests;
