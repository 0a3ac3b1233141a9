//! The state of the cluster at the last look (the last time that the watch read the store), and the changes since then, found by
//! comparison. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rondel_core::{AppId, ExecutorId, IdGen, JobId, NamespaceId, NodeId, Reason, RunId, RunStatus, Timestamp};
use rondel_store::changes::{RunSnapshot, SavedJob};

/// Maximum delay between the creation of a run's id and the commit of its row. Runs can be committed in a different order than their ids.
const COMMIT_DELAY_MAX: Duration = Duration::from_secs(3);
/// Maximum delay between the instant of a job's change and its commit.
pub(super) const SAVE_DELAY_MAX: Duration = Duration::from_secs(10);
/// Maximum number of runs that are tracked.
const RUN_COUNT_MAX: usize = 50_000;
/// Maximum number of runs that are read again in one look.
const REREAD_COUNT_MAX: usize = 2_000;
/// How often open runs that are not due yet are read again.
const REREAD_PERIOD: Duration = Duration::from_secs(10);

/// The rows that one look read.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Each run at most once.
    pub(super) runs: Vec<RunSnapshot>,
    /// Ids of the runs that were read again. A run that is missing from `runs` was deleted.
    pub(super) reread_ids: Vec<RunId>,
    pub(super) jobs: Vec<SavedJob>,
    pub(super) executors: BTreeMap<ExecutorId, HeardExecutor>,
    /// Name and status of each node.
    pub(super) nodes: BTreeMap<NodeId, (String, &'static str)>,
    /// Whether rows may be missing because a limit was reached.
    pub(super) is_cut: bool,
}

/// An executor to which some node has a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeardExecutor {
    pub(super) name: String,
    pub(super) namespace: NamespaceId,
    pub(super) app: AppId,
}

/// A change, before the names of its objects are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Run(RunSnapshot),
    Job(SavedJob),
    /// An executor, and whether it is connected now.
    Executor(ExecutorId, HeardExecutor, bool),
    /// The name of a node, and its new status.
    Node(String, &'static str),
    /// Changes may have been missed.
    Gap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowState {
    status: RunStatus,
    reason: Option<Reason>,
    attempt: i32,
}

impl From<&RunSnapshot> for RowState {
    fn from(run: &RunSnapshot) -> Self {
        Self { status: run.status, reason: run.reason, attempt: run.attempt }
    }
}

#[derive(Clone, Copy, Debug)]
struct TrackedRun {
    state: RowState,
    due_at: Timestamp,
    read_at: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct LastSnapshot {
    /// When this state was last updated; `None` before the first look.
    pub(super) seen_at: Option<Timestamp>,
    runs: BTreeMap<RunId, TrackedRun>,
    /// For each job: when its last change was saved, its version, and whether it is deleted.
    jobs: BTreeMap<JobId, (Timestamp, i64, bool)>,
    executors: BTreeMap<ExecutorId, HeardExecutor>,
    /// Name and status of each node.
    nodes: BTreeMap<NodeId, (String, &'static str)>,
}

impl LastSnapshot {
    /// The next look reads the runs with ids above this id.
    pub(super) fn runs_after(&self, now: Timestamp) -> RunId {
        let last_look_at = self.seen_at.map_or(now, |seen_at| seen_at.min(now));
        RunId::new(IdGen::first_at(last_look_at - COMMIT_DELAY_MAX))
    }

    /// The next look reads the jobs saved at or after this instant.
    pub(super) fn jobs_since(&self, now: Timestamp) -> Timestamp {
        self.seen_at.map_or(now, |seen_at| seen_at.min(now)) - SAVE_DELAY_MAX
    }

    /// Open runs that [`runs_after`](Self::runs_after) does not cover and that are to be read again, at most [`REREAD_COUNT_MAX`]. Runs read
    /// longest ago come first.
    pub(super) fn runs_to_reread(&self, now: Timestamp) -> Vec<RunId> {
        let max_old_id = self.runs_after(now);
        let is_due = |known: &TrackedRun| known.due_at <= now || known.read_at + REREAD_PERIOD <= now;
        let due_runs =
            self.runs.range(..=max_old_id).filter(|(_, known)| !known.state.status.is_terminal() && is_due(known));
        let mut ids: Vec<(Timestamp, RunId)> = due_runs.map(|(id, known)| (known.read_at, *id)).collect();
        ids.sort_unstable();
        ids.truncate(REREAD_COUNT_MAX);
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// The given executors that the last snapshot does not have, each once.
    pub(super) fn unknown_executors<'i>(&self, ids: impl Iterator<Item = &'i ExecutorId>) -> Vec<ExecutorId> {
        ids.filter(|id| !self.executors.contains_key(id)).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn executor(&self, id: ExecutorId) -> Option<&HeardExecutor> {
        self.executors.get(&id)
    }

    /// The changes since the last look. At the first look there are none.
    pub(super) fn compare(&self, snapshot: &Snapshot) -> Vec<Change> {
        if self.seen_at.is_none() {
            return Vec::new();
        }
        let mut changes = Vec::new();
        let is_full = self.runs.len() >= RUN_COUNT_MAX;
        if snapshot.is_cut || is_full {
            changes.push(Change::Gap);
        }
        for (id, (name, status)) in &snapshot.nodes {
            if self.nodes.get(id).is_none_or(|(_, before)| before != status) {
                changes.push(Change::Node(name.clone(), status));
            }
        }
        let removed_nodes = self.nodes.iter().filter(|(id, _)| !snapshot.nodes.contains_key(id));
        changes.extend(removed_nodes.map(|(_, (name, _))| Change::Node(name.clone(), "gone")));
        let gone_executors = self.executors.iter().filter(|(id, _)| !snapshot.executors.contains_key(id));
        changes.extend(gone_executors.map(|(id, heard)| Change::Executor(*id, heard.clone(), false)));
        let new_executors = snapshot.executors.iter().filter(|(id, _)| !self.executors.contains_key(id));
        changes.extend(new_executors.map(|(id, heard)| Change::Executor(*id, heard.clone(), true)));
        let is_changed_job = |job: &&SavedJob| self.jobs.get(&job.id) != Some(&(job.at, job.version, job.is_deleted));
        changes.extend(snapshot.jobs.iter().filter(is_changed_job).cloned().map(Change::Job));
        let mut runs: Vec<&RunSnapshot> = snapshot.runs.iter().collect();
        runs.sort_by_key(|run| run.id);
        let is_changed_run = |run: &&RunSnapshot| match self.runs.get(&run.id) {
            Some(known) => known.state != RowState::from(*run),
            None => !is_full,
        };
        changes.extend(runs.into_iter().filter(is_changed_run).cloned().map(Change::Run));
        changes
    }

    /// Updates the state with the rows of a look.
    pub(super) fn apply(&mut self, snapshot: Snapshot, now: Timestamp) {
        for id in &snapshot.reread_ids {
            self.runs.remove(id);
        }
        for run in &snapshot.runs {
            let tracked_run = TrackedRun { state: RowState::from(run), due_at: run.due_at, read_at: now };
            if self.runs.len() < RUN_COUNT_MAX || self.runs.contains_key(&run.id) {
                self.runs.insert(run.id, tracked_run);
            }
        }
        self.seen_at = Some(self.seen_at.map_or(now, |seen_at| seen_at.max(now)));
        let max_old_id = self.runs_after(now);
        self.runs.retain(|id, known| *id > max_old_id || !known.state.status.is_terminal());
        let since = self.jobs_since(now);
        self.jobs.retain(|_, (at, ..)| *at >= since);
        self.jobs.extend(snapshot.jobs.into_iter().map(|job| (job.id, (job.at, job.version, job.is_deleted))));
        (self.executors, self.nodes) = (snapshot.executors, snapshot.nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_790_000_000);

    fn at(seconds: u64) -> Timestamp {
        START + Duration::from_secs(seconds)
    }

    fn run(created_at: Timestamp, status: RunStatus) -> RunSnapshot {
        RunSnapshot {
            id: RunId::new(IdGen::first_at(created_at) + 1),
            namespace: NamespaceId::new(1),
            app: AppId::new(2),
            job: JobId::new(3),
            fire_at: created_at,
            shard_index: 0,
            status,
            reason: None,
            attempt: 1,
            due_at: created_at,
            executor: None,
        }
    }

    fn runs(runs: impl Into<Vec<RunSnapshot>>) -> Snapshot {
        Snapshot { runs: runs.into(), ..Snapshot::default() }
    }

    /// Compares, then applies.
    fn look(last_snapshot: &mut LastSnapshot, seen: Snapshot, now: Timestamp) -> Vec<Change> {
        let changes = last_snapshot.compare(&seen);
        last_snapshot.apply(seen, now);
        changes
    }

    #[test]
    fn a_run_is_reported_at_each_change_of_its_state() {
        let mut last_snapshot = LastSnapshot::default();
        let (old, fresh) = (run(at(0), RunStatus::Running), run(at(2), RunStatus::Pending));
        assert_eq!(look(&mut last_snapshot, runs([old.clone()]), at(1)), [], "it was so before");
        assert_eq!(look(&mut last_snapshot, runs([fresh.clone()]), at(2)), [Change::Run(fresh.clone())]);
        assert_eq!(look(&mut last_snapshot, runs([fresh.clone()]), at(3)), []);
        let waits = RunSnapshot { status: RunStatus::Waiting, attempt: 2, ..fresh.clone() };
        assert_eq!(look(&mut last_snapshot, runs([waits.clone()]), at(4)), [Change::Run(waits)]);
        let over = RunSnapshot { status: RunStatus::Failed, attempt: 2, ..fresh };
        assert_eq!(look(&mut last_snapshot, runs([over.clone()]), at(5)), [Change::Run(over.clone())]);
        // An old run is read again by its id only, and is forgotten once it has ended.
        assert_eq!(last_snapshot.runs_to_reread(at(6)), [old.id]);
        let ended = RunSnapshot { status: RunStatus::Succeeded, ..old.clone() };
        let seen = Snapshot { reread_ids: vec![ended.id], ..runs([ended.clone()]) };
        assert_eq!(look(&mut last_snapshot, seen, at(6)), [Change::Run(ended)]);
        assert!(last_snapshot.runs_to_reread(at(7)).is_empty() && !last_snapshot.runs.contains_key(&old.id));
    }

    #[test]
    fn open_runs_are_read_again_when_they_are_due_and_now_and_then() {
        let mut last_snapshot = LastSnapshot::default();
        let later = RunSnapshot { due_at: at(600), ..run(at(0), RunStatus::Waiting) };
        look(&mut last_snapshot, runs([later.clone()]), at(1));
        assert_eq!(last_snapshot.runs_to_reread(at(2)), [], "it is among the newest");
        look(&mut last_snapshot, Snapshot::default(), at(8));
        assert_eq!(last_snapshot.runs_to_reread(at(9)), []);
        assert_eq!(last_snapshot.runs_to_reread(at(11)), [later.id]);
        // Read by its id and not found: it was deleted.
        look(&mut last_snapshot, Snapshot { reread_ids: vec![later.id], ..Snapshot::default() }, at(11));
        assert_eq!(last_snapshot.runs_to_reread(at(700)), []);
    }

    #[test]
    fn runs_stored_late_are_found_and_reported_once() {
        let mut last_snapshot = LastSnapshot::default();
        look(&mut last_snapshot, Snapshot::default(), at(0));
        look(&mut last_snapshot, Snapshot::default(), at(1));
        let late = run(at(0), RunStatus::Succeeded);
        assert!(late.id > last_snapshot.runs_after(at(2)), "two seconds late");
        assert_eq!(look(&mut last_snapshot, runs([late.clone()]), at(2)), [Change::Run(late.clone())]);
        assert_eq!(look(&mut last_snapshot, runs([late]), at(3)), []);
        for second in 4..20 {
            look(&mut last_snapshot, Snapshot::default(), at(second));
        }
        assert!(last_snapshot.runs.is_empty());
    }

    #[test]
    fn executors_nodes_and_jobs_come_and_go() {
        let mut last_snapshot = LastSnapshot::default();
        let node = |status| BTreeMap::from([(NodeId::new(1), ("a".to_owned(), status))]);
        let seen = |status| Snapshot { nodes: node(status), ..Snapshot::default() };
        assert_eq!(look(&mut last_snapshot, seen("active"), at(0)), []);
        let heard = HeardExecutor { name: "x".to_owned(), namespace: NamespaceId::new(1), app: AppId::new(2) };
        let (id, stranger) = (ExecutorId::new(9), ExecutorId::new(8));
        let with = Snapshot { executors: BTreeMap::from([(id, heard.clone())]), ..seen("active") };
        assert_eq!(last_snapshot.unknown_executors([id, stranger, id].iter()), [stranger, id]);
        assert_eq!(look(&mut last_snapshot, with.clone(), at(1)), [Change::Executor(id, heard.clone(), true)]);
        assert!(last_snapshot.unknown_executors([id].iter()).is_empty());
        assert_eq!(look(&mut last_snapshot, with, at(2)), []);
        let expected = [Change::Node("a".to_owned(), "dead"), Change::Executor(id, heard, false)];
        assert_eq!(look(&mut last_snapshot, seen("dead"), at(3)), expected);
        assert_eq!(look(&mut last_snapshot, Snapshot::default(), at(4)), [Change::Node("a".to_owned(), "gone")]);

        let saved = SavedJob {
            id: JobId::new(5),
            namespace: NamespaceId::new(1),
            app: AppId::new(2),
            name: "j".to_owned(),
            version: 1,
            is_deleted: false,
            at: at(5),
        };
        let jobs = |job: &SavedJob| Snapshot { jobs: vec![job.clone()], ..Snapshot::default() };
        assert_eq!(look(&mut last_snapshot, jobs(&saved), at(5)), [Change::Job(saved.clone())]);
        assert_eq!(look(&mut last_snapshot, jobs(&saved), at(6)), []);
        let gone = SavedJob { is_deleted: true, at: at(7), ..saved };
        assert_eq!(look(&mut last_snapshot, jobs(&gone), at(7)), [Change::Job(gone)]);
        for second in 8..40 {
            look(&mut last_snapshot, Snapshot::default(), at(second));
        }
        assert!(last_snapshot.jobs.is_empty());
    }

    #[test]
    fn too_many_runs_are_a_gap_and_use_no_more_memory() {
        let mut last_snapshot = LastSnapshot::default();
        look(&mut last_snapshot, Snapshot::default(), at(0));
        let many: Vec<RunSnapshot> = (0..i64::try_from(RUN_COUNT_MAX).unwrap() + 10)
            .map(|number| RunSnapshot {
                id: RunId::new(IdGen::first_at(at(1)) + number),
                ..run(at(1), RunStatus::Pending)
            })
            .collect();
        look(&mut last_snapshot, runs(&*many), at(1));
        assert_eq!(last_snapshot.runs.len(), RUN_COUNT_MAX);
        assert_eq!(look(&mut last_snapshot, runs(&many[..1]), at(2)), [Change::Gap]);
        look(&mut last_snapshot, Snapshot::default(), at(20));
        assert_eq!(last_snapshot.runs_to_reread(at(30)).len(), REREAD_COUNT_MAX);
        let cut = Snapshot { is_cut: true, ..Snapshot::default() };
        assert!(look(&mut last_snapshot, cut, at(3)).contains(&Change::Gap));
    }
}
