//! Removal of what is old.

use std::collections::HashSet;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::run::BROADCAST;
use rondel_core::{IdGen, JobId, NodeId, Run, RunId, RunStatus, Timestamp};

use super::{Due, MemStore, State, key, size};
use crate::upkeep::{CountedRun, JobStat, RECOUNT_FOR, StuckJob, away};
use crate::{Result, Upkeep};

#[async_trait]
impl Upkeep for MemStore {
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>> {
        let state = self.state();
        Ok(state.due.keys().filter_map(|job| state.stuck(*job)).take(size(limit)).collect())
    }

    async fn heal_job(&self, seen: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool> {
        let mut state = self.state();
        if state.stuck(seen.job) != Some(seen) {
            return Ok(false);
        }
        let Some(due) = state.due.get_mut(&seen.job) else { return Ok(false) };
        (due.next_fire_at, due.is_over) = (next_fire_at, next_fire_at.is_none());
        due.follows = seen.follows.filter(|_| next_fire_at.is_none());
        Ok(true)
    }

    async fn free_homeless(&self, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let nodes: HashSet<NodeId> = state.nodes.keys().copied().collect();
        let is_homeless =
            |due: &&mut Due| due.next_fire_at.is_some() && due.home.get() != 0 && !nodes.contains(&due.home);
        let mut count = 0;
        for due in state.due.values_mut().filter(is_homeless).take(size(limit)) {
            due.home = NodeId::new(0);
            count += 1;
        }
        Ok(count)
    }

    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool> {
        let now = self.now();
        let mut state = self.state();
        let distance = |last: Timestamp| if last > now { last.since(now) } else { now.since(last) };
        if state.passes.get(task).is_some_and(|last| distance(*last) < away(period)) {
            return Ok(false);
        }
        state.passes.insert(task.to_owned(), now);
        Ok(true)
    }

    async fn purge(&self, finished_before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let is_old = |run: &&Run| {
            run.id.get() < IdGen::first_at(finished_before)
                && run.status.is_terminal()
                && run.fire_at < finished_before
                && run.finished_at.unwrap_or(run.fire_at) < finished_before
        };
        let mut removable: Vec<RunId> = Vec::new();
        for run in state.runs.values().filter(is_old).filter(|run| state.whole_of(run).is_none()) {
            let shards: Vec<&Run> = state.runs.values().filter(|shard| state.whole_of(shard) == Some(run.id)).collect();
            if shards.iter().all(|shard| shard.status.is_terminal()) {
                removable.extend(shards.into_iter().map(|shard| shard.id));
                removable.push(run.id);
            }
        }
        removable.truncate(size(limit));
        for id in &removable {
            state.remove(*id);
        }
        Ok(u64::try_from(removable.len()).unwrap_or(u64::MAX))
    }

    async fn roll_up(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let ended: Vec<Run> = state.ended_since_counted().into_iter().take(size(limit)).collect();
        for run in &ended {
            let counted_as = state.stat_open.remove(&run.id).flatten();
            if let (Some(status), Some(stat)) = (counted_as, CountedRun::from(run).stat()) {
                state.count(run.job, JobStat { status, duration: Duration::ZERO, ..stat }, -1);
            }
            if let Some(stat) = CountedRun::from(run).stat() {
                state.count(run.job, stat, 1);
            }
        }
        let next = state.runs.range((state.stat_cursor.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let is_old = |run: &&Run| run.id.get() < IdGen::first_at(before);
        let next: Vec<Run> = next.map(|(_, run)| run).take_while(is_old).take(size(limit)).cloned().collect();
        for run in &next {
            state.stat_cursor = Some(run.id);
            if let Some(stat) = CountedRun::from(run).stat() {
                state.count(run.job, stat, 1);
            }
            if !run.status.is_terminal() {
                state.stat_open.insert(run.id, None);
            } else if run.status == RunStatus::Unknown {
                state.stat_open.insert(run.id, Some(run.status));
            }
        }
        let cut = IdGen::first_at(before - RECOUNT_FOR);
        let State { stat_open, runs, .. } = &mut *state;
        stat_open.retain(|id, counted| id.get() >= cut || (counted.is_none() && runs.contains_key(id)));
        Ok(u64::try_from(ended.len() + next.len()).unwrap_or(u64::MAX))
    }

    async fn job_stats(&self, job: JobId, from: Timestamp, to: Timestamp) -> Result<Vec<JobStat>> {
        let state = self.state();
        let of_job = state.stats.iter().filter(|((of, hour, _), _)| *of == job && (from..to).contains(hour));
        let stat = |((_, hour, status), (count, took)): (&(JobId, Timestamp, RunStatus), &(i64, i64))| JobStat {
            hour: *hour,
            status: *status,
            run_count: u64::try_from(*count).unwrap_or(0),
            duration: Duration::from_millis(u64::try_from(*took).unwrap_or(0)),
        };
        let mut stats: Vec<JobStat> = of_job.map(stat).filter(|stat| stat.run_count > 0).collect();
        stats.sort_by_key(|stat| (stat.hour, stat.status.as_str()));
        Ok(stats)
    }

    async fn forget_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut hours: Vec<Timestamp> =
            state.stats.keys().map(|(_, hour, _)| *hour).filter(|hour| *hour < before).collect();
        hours.sort_unstable();
        let Some(last) = hours.get(..hours.len().min(size(limit))).and_then(<[Timestamp]>::last).copied() else {
            return Ok(0);
        };
        let count = state.stats.len();
        state.stats.retain(|(_, hour, _), _| *hour > last);
        Ok(u64::try_from(count - state.stats.len()).unwrap_or(u64::MAX))
    }

    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let State { sessions, executors, .. } = &mut *state;
        let before = sessions.len() + executors.len();
        let old: Vec<_> = sessions.iter().filter(|(_, session)| session.last_seen_at < seen_before).collect();
        let old: Vec<_> = old.into_iter().map(|(key, _)| *key).take(size(limit)).collect();
        for key in old {
            sessions.remove(&key);
        }
        let is_old =
            |id, first_seen_at| first_seen_at < seen_before && sessions.keys().all(|(_, executor)| *executor != id);
        executors.retain(|id, executor| !is_old(*id, executor.first_seen_at));
        Ok(u64::try_from(before - sessions.len() - executors.len()).unwrap_or(u64::MAX))
    }
}

impl State {
    /// Runs that were passed while they were open, or whose verdict is another one now.
    fn ended_since_counted(&self) -> Vec<Run> {
        let has_ended = |(id, counted): (&RunId, &Option<RunStatus>)| {
            let run = self.runs.get(id).filter(|run| run.status.is_terminal() && Some(run.status) != *counted)?;
            Some(run.clone())
        };
        self.stat_open.iter().filter_map(has_ended).collect()
    }

    fn count(&mut self, job: JobId, stat: JobStat, sign: i64) {
        let sum = self.stats.entry((job, stat.hour, stat.status)).or_default();
        sum.0 += sign * i64::try_from(stat.run_count).unwrap_or(i64::MAX);
        sum.1 += sign * rondel_core::time::millis(stat.duration);
    }

    /// How a job stands that no scan sees although it should fire.
    fn stuck(&self, job: JobId) -> Option<StuckJob> {
        let due = self.due.get(&job)?;
        let open = due.follows.filter(|run| self.is_open(*run));
        let is_held_up = due.follows.is_some() && open.is_none();
        let is_stuck = due.next_fire_at.is_none() && (!due.is_over || is_held_up);
        is_stuck.then_some(StuckJob { job, version: due.version, follows: open })
    }

    /// The broadcast that a run is a shard of.
    pub(super) fn whole_of(&self, run: &Run) -> Option<RunId> {
        let whole = self.runs.get(&run.parent?)?;
        let is_whole = whole.shard_index == BROADCAST && run.shard_index != BROADCAST;
        let is_same_fire = (whole.job, whole.fire_at, whole.cause) == (run.job, run.fire_at, run.cause);
        (is_whole && is_same_fire).then_some(whole.id)
    }

    fn remove(&mut self, id: RunId) {
        if let Some(run) = self.runs.remove(&id) {
            self.keys.remove(&key(&run));
        }
        self.attempts.retain(|(run, _), _| *run != id);
        self.logs.retain(|(run, ..), _| *run != id);
        self.cancels.remove(&id);
    }
}
