//! Which open runs this process has in memory, so that the periodic query for strays never takes a run up twice.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rondel_core::{JobId, Run, RunId, RunStatus, Timestamp, Trigger};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::ledger::UnsentPlace;

use crate::scheduler::shares::{RunOwner, Shares};

/// The open runs in memory, each with its attempt and its epoch. The attempt number keeps a late event about an earlier attempt from
/// changing the attempt in memory. The epoch keeps a late event under an ended lease from changing a run that was taken over since.
///
/// Memory is bounded. If a job, its app or its namespace has no room for a first attempt, that attempt and the later first attempts of the
/// job are left in the store until there is room ([`take_up`](Self::take_up)).
#[derive(Debug)]
pub(crate) struct InMemory {
    contents: Mutex<Contents>,
    /// The approximate maximum number of runs.
    run_count_max: usize,
}

#[derive(Debug, Default)]
struct Contents {
    runs: HashMap<RunId, OpenRun>,
    shares: Shares,
    /// Jobs of which first attempts are left in the store.
    left_in_store: BTreeMap<JobId, LeftInStore>,
}

/// The runs of a job that are left in the store.
#[derive(Clone, Copy, Debug)]
struct LeftInStore {
    /// The place just before the first of these runs, in the order of the job's unsent runs.
    place: UnsentPlace,
    /// Since when there are such runs.
    since: Timestamp,
    owner: RunOwner,
    /// When the first of their queue timeouts passes; `EPOCH` while this is not known, so that the runs are looked at soon.
    first_timeout_at: Timestamp,
}

/// Limits of one look at the jobs with runs left in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookBounds {
    /// Maximum number of jobs that the look examines.
    pub(crate) examined_max: usize,
    /// Maximum number of jobs that the look returns.
    pub(crate) returned_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct OpenRun {
    attempt: i32,
    /// The epoch of the lease that owns the run.
    epoch: i64,
    /// The instant as of which the misfire policy judges the run, by the boot-time clock in microseconds.
    judged_as_of: i64,
    /// Since when the run waits, if it was left in the store for lack of room; `None` if it was not.
    queued_from: Option<Timestamp>,
    owner: RunOwner,
    /// Whether an executor has, or may have, an attempt of the run.
    is_in_hand: bool,
}

impl Contents {
    fn insert(&mut self, run: &Run, judged_as_of: i64, queued_from: Option<Timestamp>) {
        let owner = RunOwner::of(run);
        let (attempt, epoch, is_in_hand) = (run.attempt, run.node_epoch, false);
        let open_run = OpenRun { attempt, epoch, judged_as_of, queued_from, owner, is_in_hand };
        if let Some(replaced_run) = self.runs.insert(run.id, open_run) {
            self.shares.remove(replaced_run.owner, replaced_run.is_in_hand);
        }
        self.shares.add(owner);
    }

    fn remove(&mut self, run: RunId) {
        if let Some(open_run) = self.runs.remove(&run) {
            self.shares.remove(open_run.owner, open_run.is_in_hand);
        }
    }

    fn is_new(&self, run: &Run) -> bool {
        self.runs.get(&run.id).is_none_or(|open| open.epoch < run.node_epoch)
    }
}

/// Whether a run may be left in the store. A run whose fire has begun must stay in memory, because other runs may wait for it.
fn may_be_left(run: &Run) -> bool {
    run.attempt == 1 && !run.is_shard() && run.marked_at.is_none()
}

/// Open runs of this node that await their children. No executor has them; they only have a place at their job's gate.
#[derive(Debug, Default)]
pub(crate) struct AwaitingRuns(Mutex<BTreeMap<RunId, JobId>>);

impl AwaitingRuns {
    pub(crate) fn admit(&self, runs: impl IntoIterator<Item = (JobId, RunId)>) {
        let mut awaiting_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        awaiting_jobs.extend(runs.into_iter().map(|(job, run)| (run, job)));
    }

    /// Adds these runs, and returns those that were not among them before.
    pub(crate) fn admit_new(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut awaiting_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|run| awaiting_jobs.insert(run.id, run.job).is_none()).collect()
    }

    /// The runs among these that are not known to await their children.
    pub(crate) fn missing_runs(&self, mut runs: Vec<RunId>) -> Vec<RunId> {
        let awaiting_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|run| !awaiting_jobs.contains_key(run));
        runs
    }

    pub(crate) fn all(&self) -> Vec<(JobId, RunId)> {
        let awaiting_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        awaiting_jobs.iter().map(|(run, job)| (*job, *run)).collect()
    }

    /// Removes runs that have ended, and returns those that were here.
    pub(crate) fn forget(&self, runs: Vec<(JobId, RunId)>) -> Vec<(JobId, RunId)> {
        let mut awaiting_jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.into_iter().filter(|(_, run)| awaiting_jobs.remove(run).is_some()).collect()
    }
}

impl Default for InMemory {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl InMemory {
    /// An empty set with room for about `run_count_max` runs.
    pub(crate) fn new(run_count_max: usize) -> Self {
        Self { contents: Mutex::default(), run_count_max }
    }

    fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds these runs, whether or not there is room. Returns those that were not in memory under their lease before.
    pub(crate) fn admit(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut contents = self.lock();
        let mut is_new = |run: &Run| {
            let is_new = contents.is_new(run);
            if is_new {
                contents.insert(run, 0, None);
            }
            is_new
        };
        runs.into_iter().filter(|run| is_new(run)).collect()
    }

    /// Adds the runs that are new, as far as there is room, and returns the added runs. The misfire policy judges these runs as of `judged_as_of`,
    /// an instant of the boot-time clock. New runs without room are left in the store from now on.
    pub(crate) fn admit_as_of(&self, runs: Vec<Run>, judged_as_of: i64, now: Timestamp) -> Vec<Run> {
        let mut contents = self.lock();
        let mut is_admitted = |run: &Run| {
            if !contents.is_new(run) {
                return false;
            }
            let has_earlier_left = contents.left_in_store.contains_key(&run.job);
            if may_be_left(run)
                && (has_earlier_left || !contents.shares.has_room(RunOwner::of(run), self.run_count_max))
            {
                let place = UnsentPlace::before(run);
                let (owner, first_timeout_at) = (RunOwner::of(run), Timestamp::EPOCH);
                let left_in_store = contents.left_in_store.entry(run.job).or_insert(LeftInStore {
                    place,
                    since: now,
                    owner,
                    first_timeout_at,
                });
                if place < left_in_store.place {
                    (left_in_store.place, left_in_store.first_timeout_at) = (place, first_timeout_at);
                }
                return false;
            }
            contents.insert(run, judged_as_of, None);
            true
        };
        runs.into_iter().filter(|run| is_admitted(run)).collect()
    }

    /// Records for each of these runs whether an executor has it now.
    pub(crate) fn note_in_hand(&self, changes: Vec<(RunId, bool)>) {
        if changes.is_empty() {
            return;
        }
        let mut contents = self.lock();
        let Contents { runs, shares, .. } = &mut *contents;
        for (run, is_in_hand) in changes {
            if let Some(open_run) = runs.get_mut(&run).filter(|open| open.is_in_hand != is_in_hand) {
                open_run.is_in_hand = is_in_hand;
                shares.set_in_hand(open_run.owner, is_in_hand);
            }
        }
    }

    /// Jobs with runs left in the store, if memory has room for one of these runs now, or the queue timeout of one has passed. Starts with the job
    /// that follows `after_job`, and wraps around; also returns the last job that it examined.
    pub(crate) fn jobs_with_rows_left(
        &self,
        after_job: Option<JobId>,
        bounds: LookBounds,
        now: Timestamp,
    ) -> (Vec<JobId>, Option<JobId>) {
        let contents = self.lock();
        let later_jobs =
            contents.left_in_store.range((after_job.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let earlier_jobs = after_job.map(|after| contents.left_in_store.range(..=after)).into_iter().flatten();
        let (mut jobs, mut last_examined_job) = (Vec::new(), after_job);
        for (job, left) in later_jobs.chain(earlier_jobs).take(bounds.examined_max.max(1)) {
            last_examined_job = Some(*job);
            if left.first_timeout_at <= now || contents.shares.has_room(left.owner, self.run_count_max) {
                jobs.push(*job);
                if jobs.len() >= bounds.returned_max {
                    break;
                }
            }
        }
        (jobs, last_examined_job)
    }

    /// The place before the first of this job's runs that are left in the store; `None` if the job has no such run.
    pub(crate) fn unsent_place_of(&self, job: JobId) -> Option<UnsentPlace> {
        self.lock().left_in_store.get(&job).map(|left| left.place)
    }

    /// Takes up runs from a page of a job's runs in the store, in their order: those for which there is room, and those whose queue timeout
    /// has passed and that are only taken up to be ended. `timeout_of` computes the end of a run's queue timeout from the start of its wait;
    /// `is_last` means that no page follows. Returns the runs, and whether the whole page is in memory.
    pub(crate) fn take_up(
        &self,
        job: JobId,
        page: Vec<Run>,
        (now, timeout_of): (Timestamp, impl Fn(&Run, Timestamp) -> Timestamp),
        is_last: bool,
    ) -> (Vec<Run>, bool) {
        let mut contents = self.lock();
        let Some(left_before) = contents.left_in_store.get(&job).copied() else { return (Vec::new(), true) };
        let last_place = page.last().map(UnsentPlace::of);
        let (mut taken_runs, mut first_blocked, mut first_blocked_timeout_at) = (Vec::new(), None, Timestamp::MAX);
        for run in page {
            if !contents.is_new(&run) || !may_be_left(&run) {
                continue;
            }
            let has_room = first_blocked.is_none() && contents.shares.has_room(RunOwner::of(&run), self.run_count_max);
            let has_room = has_room && !mutant::on(Mutant::LeftForEver);
            // A fire that was missed and runs late, or a backfilled fire, waits without a time limit.
            let is_catch_up = matches!(run.trigger, Trigger::Misfire | Trigger::Backfill);
            let queued_from = (!is_catch_up).then_some(run.due_at.max(left_before.since));
            let timeout_at = queued_from.map_or(Timestamp::MAX, |from| timeout_of(&run, from));
            let has_timed_out = timeout_at <= now && contents.shares.may_end_one(self.run_count_max);
            let has_timed_out = has_timed_out && !mutant::on(Mutant::LeftForEver);
            if has_room || has_timed_out {
                contents.insert(&run, 0, queued_from);
                taken_runs.push(run);
            } else {
                first_blocked_timeout_at = first_blocked_timeout_at.min(timeout_at);
                first_blocked.get_or_insert(UnsentPlace::before(&run));
            }
        }
        let left_after = match (first_blocked, last_place.filter(|_| !is_last)) {
            (Some(place), _) => Some(LeftInStore { place, first_timeout_at: first_blocked_timeout_at, ..left_before }),
            (None, Some(place)) => Some(LeftInStore { place, first_timeout_at: Timestamp::EPOCH, ..left_before }),
            (None, None) => None,
        };
        match left_after {
            Some(left) => drop(contents.left_in_store.insert(job, left)),
            None => drop(contents.left_in_store.remove(&job)),
        }
        (taken_runs, first_blocked.is_none())
    }

    /// Adds the runs that only the store has (waiting runs, and runs left there), so that they can end, up to the limit for such runs. Returns
    /// the runs that it added; from now on, no scan takes them up.
    pub(crate) fn admit_to_end(&self, runs: Vec<Run>) -> Vec<Run> {
        let mut contents = self.lock();
        let mut is_admitted = |run: &Run| {
            let is_left_in_store =
                run.status == RunStatus::Waiting || contents.left_in_store.contains_key(&run.job) && may_be_left(run);
            let is_admitted =
                is_left_in_store && contents.is_new(run) && contents.shares.may_end_one(self.run_count_max);
            if is_admitted {
                contents.insert(run, 0, None);
            }
            is_admitted
        };
        runs.into_iter().filter(|run| is_admitted(run)).collect()
    }

    /// Since when the run waits, if it was left in the store for lack of room; `None` for any other run.
    pub(crate) fn queued_from(&self, run: RunId) -> Option<Timestamp> {
        self.lock().runs.get(&run)?.queued_from
    }

    /// How many jobs have runs that are left in the store for lack of room.
    pub(crate) fn left_count(&self) -> usize {
        self.lock().left_in_store.len()
    }

    /// Whether there is room for the shards of a fire.
    pub(crate) fn may_expand(&self, root: &Run) -> bool {
        self.lock().shares.may_expand(RunOwner::of(root), self.run_count_max)
    }

    /// The instant as of which the misfire policy judges the run, by the boot-time clock in microseconds; `None` if the run is not in memory.
    pub(crate) fn judged_as_of(&self, run: RunId) -> Option<i64> {
        let contents = self.lock();
        contents.runs.get(&run).map(|open| open.judged_as_of)
    }

    /// Whether this attempt of the run is here.
    pub(crate) fn has(&self, run: &Run) -> bool {
        let contents = self.lock();
        contents.runs.get(&run.id).is_some_and(|open| open.attempt == run.attempt)
    }

    /// The runs among these that are not in memory.
    pub(crate) fn missing_runs(&self, runs: impl IntoIterator<Item = RunId>) -> Vec<RunId> {
        let contents = self.lock();
        runs.into_iter().filter(|run| !contents.runs.contains_key(run)).collect()
    }

    /// Forgets runs that have ended, belong to another node, or wait in the store.
    pub(crate) fn forget(&self, runs: impl IntoIterator<Item = RunId>) {
        let mut contents = self.lock();
        for run in runs {
            contents.remove(run);
        }
    }

    /// Forgets runs under these leases; a run that was taken over since stays.
    pub(crate) fn forget_under_lease(&self, runs: impl IntoIterator<Item = (RunId, LeaseToken)>) {
        let mut contents = self.lock();
        for (run, lease) in runs {
            if contents.runs.get(&run).is_some_and(|open| open.epoch <= lease.epoch) {
                contents.remove(run);
            }
        }
    }

    /// Whether the run is here under a later lease than `lease`.
    pub(crate) fn is_newer(&self, run: RunId, lease: LeaseToken) -> bool {
        let contents = self.lock();
        contents.runs.get(&run).is_some_and(|open| open.epoch > lease.epoch)
    }

    /// Whether a later attempt of the run than `attempt` is here.
    pub(crate) fn has_later(&self, run: RunId, attempt: i32) -> bool {
        let contents = self.lock();
        contents.runs.get(&run).is_some_and(|open| open.attempt > attempt)
    }

    /// Updates the attempts of runs in memory, because these rows show a later attempt.
    pub(crate) fn update_attempts<'a>(&self, runs: impl IntoIterator<Item = &'a Run>) {
        let mut contents = self.lock();
        for run in runs {
            contents.runs.entry(run.id).and_modify(|open| open.attempt = run.attempt);
        }
    }

    /// Whether this attempt of the run, or an earlier attempt, is here.
    pub(crate) fn has_attempt_up_to(&self, run: RunId, attempt: i32) -> bool {
        let contents = self.lock();
        contents.runs.get(&run).is_some_and(|open| open.attempt <= attempt)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().runs.len()
    }
}

#[cfg(test)]
mod tests;
