//! Jobs that no scan sees although they should fire.

use std::collections::HashSet;

use async_trait::async_trait;
use rondel_core::{JobId, NodeId, Timestamp};

use crate::mem::{DueRow, MemStore, State, to_usize};
use crate::upkeep::StuckJob;
use crate::{Heal, Result};

#[async_trait]
impl Heal for MemStore {
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>> {
        let state = self.state();
        Ok(state.due.keys().filter_map(|job| state.stuck_job(*job)).take(to_usize(limit)).collect())
    }

    async fn heal_job(&self, stuck_job: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool> {
        let mut state = self.state();
        if state.stuck_job(stuck_job.job) != Some(stuck_job) {
            return Ok(false);
        }
        let Some(due) = state.due.get_mut(&stuck_job.job) else { return Ok(false) };
        (due.next_fire_at, due.is_over) = (next_fire_at, next_fire_at.is_none());
        due.awaited_run = stuck_job.awaited_run.filter(|_| next_fire_at.is_none());
        Ok(true)
    }

    async fn free_homeless(&self, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let nodes: HashSet<NodeId> = state.nodes.keys().copied().collect();
        let is_homeless =
            |due: &&mut DueRow| due.next_fire_at.is_some() && due.home.get() != 0 && !nodes.contains(&due.home);
        let mut count = 0;
        for due in state.due.values_mut().filter(is_homeless).take(to_usize(limit)) {
            due.home = NodeId::new(0);
            count += 1;
        }
        Ok(count)
    }
}

impl State {
    /// A job that no scan sees although it should fire; `None` if the job is not stuck.
    fn stuck_job(&self, job: JobId) -> Option<StuckJob> {
        let due = self.due.get(&job)?;
        let open_run = due.awaited_run.filter(|run| self.is_open(*run));
        let is_held_up = due.awaited_run.is_some() && open_run.is_none();
        let is_stuck = due.next_fire_at.is_none() && (!due.is_over || is_held_up);
        is_stuck.then_some(StuckJob { job, version: due.version, awaited_run: open_run })
    }
}
