//! Removal of what is old.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::run::BROADCAST;
use rondel_core::{IdGen, JobId, NodeId, Run, RunId, Timestamp};

use super::{Due, MemStore, State, key, size};
use crate::upkeep::{StuckJob, away};
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

    async fn free_homeless(&self, nodes: &[NodeId], limit: u32) -> Result<u64> {
        let mut state = self.state();
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
