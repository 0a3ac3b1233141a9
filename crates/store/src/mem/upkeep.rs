//! The trait `Upkeep` for the store in memory: removes old runs.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{IdGen, Run, RunId, Timestamp, Trigger};

use crate::mem::{MemStore, State, key, to_usize};
use crate::upkeep::{PurgeStep, pass_gap};
use crate::{Result, Upkeep};

#[async_trait]
impl Upkeep for MemStore {
    async fn begin_pass(&self, task: &str, period: Duration) -> Result<bool> {
        let now = self.now();
        let mut state = self.state();
        let distance = |last_at: Timestamp| if last_at > now { last_at.since(now) } else { now.since(last_at) };
        if state.passes.get(task).is_some_and(|last_at| distance(*last_at) < pass_gap(period)) {
            return Ok(false);
        }
        state.passes.insert(task.to_owned(), now);
        Ok(true)
    }

    async fn purge(&self, finished_before: Timestamp, after: RunId, limit: u32) -> Result<PurgeStep> {
        let mut state = self.state();
        let is_old = |run: &&Run| {
            run.id > after
                && run.id.get() < IdGen::first_at(finished_before)
                && run.status.is_terminal()
                && run.fire_at < finished_before
                && run.finished_at.unwrap_or(run.fire_at) < finished_before
        };
        // When a run ends, the runs that follow from it are planned from all runs of its fire. Therefore all of these stay while one of
        // them is open.
        let open_fires: BTreeSet<i64> =
            state.runs.values().filter(|run| !run.status.is_terminal()).map(root_of).collect();
        let mut removable_ids: Vec<RunId> = Vec::new();
        let roots = state.runs.values().filter(is_old).filter(|run| state.broadcast_of(run).is_none());
        for run in
            roots.filter(|run| !open_fires.contains(&root_of(run)) && !state.is_newest_pump_root(run, finished_before))
        {
            let shards: Vec<&Run> =
                state.runs.values().filter(|shard| state.broadcast_of(shard) == Some(run.id)).collect();
            if shards.iter().all(|shard| shard.status.is_terminal()) {
                removable_ids.extend(shards.into_iter().map(|shard| shard.id));
                removable_ids.push(run.id);
            }
        }
        // A broadcast of which some shards remain is examined again.
        let next_after = (removable_ids.len() > to_usize(limit)).then_some(after);
        removable_ids.truncate(to_usize(limit));
        for id in &removable_ids {
            state.remove_run(*id);
        }
        Ok(PurgeStep { removed_count: u64::try_from(removable_ids.len()).unwrap_or(u64::MAX), next_after })
    }
}

/// The first run of the fire that a run belongs to.
fn root_of(run: &Run) -> i64 {
    if run.trigger == Trigger::Parent { run.cause } else { run.id.get() }
}

impl State {
    /// The broadcast of which a run is a shard.
    pub(super) fn broadcast_of(&self, run: &Run) -> Option<RunId> {
        let broadcast = self.runs.get(&run.parent?)?;
        let is_shard = broadcast.shard_index == ROOT_SHARD && run.shard_index != ROOT_SHARD;
        let is_same_fire = (broadcast.job, broadcast.fire_at, broadcast.cause) == (run.job, run.fire_at, run.cause);
        (is_shard && is_same_fire).then_some(broadcast.id)
    }

    /// Whether a run is the newest ended root run of its pump job. Without it, the pump could begin again.
    fn is_newest_pump_root(&self, run: &Run, finished_before: Timestamp) -> bool {
        let is_newer = |other: &Run| {
            other.job == run.job
                && other.shard_index == ROOT_SHARD
                && other.status.is_terminal()
                && other.fire_at < finished_before
                && other.fire_at > run.fire_at
        };
        run.shard_index == ROOT_SHARD && self.pumps.contains(&run.job) && !self.runs.values().any(is_newer)
    }

    fn remove_run(&mut self, id: RunId) {
        self.dead_letters.remove(&id);
        self.trigger_keys.retain(|_, run| *run != id);
        if let Some(run) = self.runs.remove(&id) {
            self.keys.remove(&key(&run));
        }
        self.attempts.retain(|(run, _), _| *run != id);
        self.logs.retain(|(run, ..), _| *run != id);
        self.cancels.remove(&id);
    }
}
