//! How much of the memory for open runs a job, an app and a namespace may take.
//!
//! Only waiting runs accumulate. A job may have as many waiting runs as there is free room, so that each one lowers the limit for the next,
//! and some room is always left. The same holds for apps and namespaces, and within an app for its jobs. Runs at executors need no such
//! limit: they end without the server, and slots bound their number. They count for the total, and are held back only if one job has nearly
//! all of the memory.
//!
//! In addition to the bound there is a reserve for jobs with few waiting runs, and a second reserve for jobs without waiting runs, however many
//! runs the other jobs of their app have. Because of the reserves, jobs whose runs wait do not hold back a job whose runs go to executors as they
//! come. The second reserve is never used up if the memory suffices for all runs at executors and one waiting run of each job.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use rondel_core::{AppId, JobId, NamespaceId, Run};
use rondel_failpoint::mutant::{self, Mutant};

/// Maximum number of waiting runs of an app, as a multiple of the free room. The maximum for a single job is the free room itself.
const APP_FACTOR: usize = 8;
/// Maximum number of waiting runs of a namespace, as a multiple of the free room.
const NAMESPACE_FACTOR: usize = 16;

/// The maximum number of runs of a job, including its runs at executors, in multiples of the room that is left in the reserve.
const OPEN_RUNS_FACTOR: usize = 4;

/// Runs whose queue timeout has passed have additional memory: the memory for open runs, divided by this.
const EXPIRED_RUNS_DIVISOR: usize = 8;

/// The reserve for jobs with few waiting runs is the memory for open runs, divided by this.
const RESERVE_DIVISOR: usize = 4;
/// The second reserve, for jobs without waiting runs, is the memory for open runs, divided by this.
const LAST_RESERVE_DIVISOR: usize = 8;

/// The number of waiting runs that the reserve grants a job: the job's share of the room left in the reserve, or the memory for open runs if that
/// is smaller, divided by this.
const FEW_RUNS_DIVISOR: usize = 16;

/// The job, app and namespace of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunOwner {
    pub(crate) job: JobId,
    pub(crate) app: AppId,
    pub(crate) namespace: NamespaceId,
    /// Whether the run is a shard of a fire.
    pub(crate) is_shard: bool,
}

impl RunOwner {
    pub(crate) fn of(run: &Run) -> Self {
        Self { job: run.job, app: run.app, namespace: run.namespace, is_shard: run.is_shard() }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct RunCounts {
    /// All runs, including the runs in hand.
    runs: usize,
    /// Runs that an executor has or may have.
    in_hand: usize,
    shards: usize,
}

impl RunCounts {
    const fn waiting_count(self) -> usize {
        self.runs.saturating_sub(self.in_hand)
    }
}

/// The counts of the runs in memory, by owner.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    run_count: usize,
    jobs: HashMap<JobId, RunCounts>,
    apps: HashMap<AppId, RunCounts>,
    namespaces: HashMap<NamespaceId, RunCounts>,
}

impl Shares {
    /// Counts one more run, which waits.
    pub(crate) fn add(&mut self, owner: RunOwner) {
        self.run_count += 1;
        self.change(owner, |count| {
            count.runs += 1;
            count.shards += usize::from(owner.is_shard);
        });
    }

    pub(crate) fn remove(&mut self, owner: RunOwner, is_in_hand: bool) {
        if mutant::on(Mutant::RoomIsKept) {
            return;
        }
        self.run_count = self.run_count.saturating_sub(1);
        self.change(owner, |count| {
            count.runs = count.runs.saturating_sub(1);
            count.in_hand = count.in_hand.saturating_sub(usize::from(is_in_hand));
            count.shards = count.shards.saturating_sub(usize::from(owner.is_shard));
        });
    }

    /// Records that an executor got a run, or that the run waits again.
    pub(crate) fn set_in_hand(&mut self, owner: RunOwner, is_in_hand: bool) {
        if mutant::on(Mutant::HandsCount) {
            return;
        }
        self.change(owner, |count| {
            let new_count = if is_in_hand { count.in_hand.saturating_add(1) } else { count.in_hand.saturating_sub(1) };
            count.in_hand = new_count;
        });
    }

    fn change(&mut self, owner: RunOwner, change: impl Fn(&mut RunCounts)) {
        change_one(&mut self.jobs, owner.job, &change);
        change_one(&mut self.apps, owner.app, &change);
        change_one(&mut self.namespaces, owner.namespace, &change);
    }

    /// Whether a memory for `max` runs has room for one more run of this owner. An app without runs in memory may always have one run.
    pub(crate) fn has_room(&self, owner: RunOwner, max: usize) -> bool {
        self.has_room_without(owner, max, 0)
    }

    /// Like [`has_room`](Self::has_room), as if the job had `own_waiting_count` fewer waiting runs.
    fn has_room_without(&self, owner: RunOwner, max: usize, own_waiting_count: usize) -> bool {
        if mutant::on(Mutant::NoBound) {
            return true;
        }
        let room_left = max.saturating_sub(self.run_count);
        if mutant::on(Mutant::NoShares) {
            return room_left > 0;
        }
        let (job, app) = (count(&self.jobs, &owner.job), count(&self.apps, &owner.app));
        let namespace = count(&self.namespaces, &owner.namespace);
        // How much of the free room the app and the namespace leave to the job.
        let share = |free: usize| {
            let app_limit = free.saturating_mul(APP_FACTOR).saturating_sub(app.waiting_count());
            let namespace_limit = free.saturating_mul(NAMESPACE_FACTOR).saturating_sub(namespace.waiting_count());
            free.min(app_limit).min(namespace_limit)
        };
        let room_and_reserve = max.saturating_add(max / RESERVE_DIVISOR);
        let reserve = room_and_reserve.saturating_sub(self.run_count);
        let last_reserve = room_and_reserve.saturating_add(max / LAST_RESERVE_DIVISOR).saturating_sub(self.run_count);
        let reserve_limit = share(reserve).div_ceil(FEW_RUNS_DIVISOR).min((max / FEW_RUNS_DIVISOR).max(1));
        let waiting_count = job.waiting_count().saturating_sub(own_waiting_count);
        let leaves_room = |free: usize| job.runs < free.saturating_mul(OPEN_RUNS_FACTOR);
        app.runs == 0
            || waiting_count == 0 && leaves_room(last_reserve)
            || waiting_count < share(room_left).max(reserve_limit) && leaves_room(reserve)
    }

    /// Whether one more run may come into memory only to end, even beyond the room for open runs.
    pub(crate) const fn may_end_one(&self, max: usize) -> bool {
        self.run_count <= max.saturating_add(max / EXPIRED_RUNS_DIVISOR)
    }

    /// Whether a waiting fire of this owner may be expanded into its shards. An app without shards in memory may always have one expanded.
    pub(crate) fn may_expand(&self, owner: RunOwner, max: usize) -> bool {
        count(&self.apps, &owner.app).shards == 0 || self.has_room_without(owner, max, 1)
    }
}

fn count<Key: Eq + Hash>(counts: &HashMap<Key, RunCounts>, key: &Key) -> RunCounts {
    counts.get(key).copied().unwrap_or_default()
}

fn change_one<Key: Eq + Hash>(counts: &mut HashMap<Key, RunCounts>, key: Key, change: &impl Fn(&mut RunCounts)) {
    match counts.entry(key) {
        Entry::Occupied(mut entry) => {
            change(entry.get_mut());
            if entry.get().runs == 0 {
                entry.remove();
            }
        }
        Entry::Vacant(entry) => change(entry.insert(RunCounts::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(job: i64, app: i64, namespace: i64) -> RunOwner {
        let (app, namespace) = (AppId::new(app), NamespaceId::new(namespace));
        RunOwner { job: JobId::new(job), app, namespace, is_shard: false }
    }

    /// Takes as much as there is room for.
    fn fill(shares: &mut Shares, owner: RunOwner, max: usize) -> usize {
        let mut count = 0;
        while shares.has_room(owner, max) {
            shares.add(owner);
            count += 1;
        }
        count
    }

    #[test]
    fn each_job_leaves_room_for_the_others() {
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, owner(1, 1, 1), 1_000), 500, "a job has as much as is left");
        assert_eq!(fill(&mut shares, owner(2, 1, 1), 1_000), 250, "another job of its app");
        let rest: Vec<usize> = (3..100).map(|job| fill(&mut shares, owner(job, 1, 1), 1_000)).collect();
        let total: usize = rest.iter().sum();
        assert!(rest[7] > 5 && rest[96] == 1 && (1_112..1_250).contains(&(750 + total)), "{rest:?}");
        assert_eq!(fill(&mut shares, owner(500, 2, 1), 1_000), 1, "another app of the namespace");
        assert!(fill(&mut shares, owner(600, 3, 2), 1_000) > 2, "another namespace");
        assert!(shares.run_count < 1_375, "{}", shares.run_count);
    }

    #[test]
    fn runs_in_executors_hands_go_on_beside_jobs_whose_runs_wait() {
        let mut shares = Shares::default();
        let heaped: usize = (1..=30).map(|job| fill(&mut shares, owner(job, 1, 1), 1_000)).sum();
        assert!(heaped > 1_000, "{heaped}");
        let going = owner(99, 1, 1);
        let sent = (0..1_000).take_while(|_| {
            let has_room = shares.has_room(going, 1_000);
            if has_room {
                shares.add(going);
                shares.set_in_hand(going, true);
            }
            has_room
        });
        assert!(sent.count() > 100, "a job of the same app sends what comes");
        assert!(shares.has_room(owner(100, 1, 1), 1_000), "and leaves room for one more");
        shares.set_in_hand(going, false);
        assert!(!shares.has_room(going, 1_000), "one that waits is enough");
    }

    #[test]
    fn an_app_without_runs_in_memory_may_have_one() {
        let mut shares = Shares::default();
        assert_eq!(fill(&mut shares, owner(1, 1, 1), 2), 1);
        assert_eq!(fill(&mut shares, owner(2, 2, 1), 2), 1);
        assert_eq!((fill(&mut shares, owner(3, 1, 1), 2), fill(&mut shares, owner(4, 3, 1), 2)), (0, 1));
        for (job, app) in [(1, 1), (2, 2), (4, 3)] {
            shares.remove(owner(job, app, 1), false);
        }
        assert_eq!((shares.run_count, shares.jobs.len(), shares.apps.len(), shares.namespaces.len()), (0, 0, 0, 0));
    }

    #[test]
    fn a_fire_is_expanded_if_its_app_has_no_shards_or_there_is_room() {
        let (mut shares, one) = (Shares::default(), owner(1, 1, 1));
        let shard = RunOwner { is_shard: true, ..one };
        (0..4).for_each(|_| shares.add(one));
        assert!(!shares.has_room(one, 4) && shares.may_expand(one, 4), "only fires wait: one may go on");
        shares.add(shard);
        assert!(!shares.may_expand(one, 5) && !shares.may_expand(owner(2, 1, 1), 4));
        assert!(shares.may_expand(owner(2, 2, 1), 5) && shares.may_expand(one, 50));
        shares.remove(shard, false);
        assert!(shares.may_expand(one, 4));
    }
}
