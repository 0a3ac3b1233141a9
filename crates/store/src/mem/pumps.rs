//! The trait `Pumps` for the store in memory.

use async_trait::async_trait;
use rondel_core::pump::{Item, ItemChange};
use rondel_core::run::ROOT_SHARD;
use rondel_core::{JobId, NodeId, Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::{MemStore, StoredNode, to_usize};
use crate::cluster::LeaseToken;
use crate::pumps::{ChangedItems, PumpJob, apply_change, has_come};
use crate::{Pumps, Result};

#[async_trait]
impl Pumps for MemStore {
    async fn pump_jobs(&self) -> Result<Vec<PumpJob>> {
        let state = self.state();
        let to_pump_job = |job: &JobId| {
            let stored_job = state.jobs.get(job)?;
            let (record, due) = (&stored_job.record, state.due.get(job).filter(|_| !stored_job.is_deleted));
            Some(PumpJob {
                job: *job,
                version: record.version,
                saved_at: record.updated_at,
                home: due.map_or(NodeId::new(0), |due| due.home),
                term: due.map_or(0, |due| due.term),
                is_deleted: stored_job.is_deleted,
            })
        };
        Ok(state.pumps.iter().filter_map(to_pump_job).collect())
    }

    async fn pump_roots(&self, job: JobId, now: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let state = self.state();
        let is_root = |run: &&Run| run.job == job && run.shard_index == ROOT_SHARD && has_come(run, now);
        let mut roots: Vec<Run> = state.runs.values().filter(is_root).cloned().collect();
        roots.sort_by_key(|run| std::cmp::Reverse((run.fire_at, run.cause)));
        let mut newest_left = to_usize(limit);
        roots.retain(|root| {
            let is_new = newest_left > 0;
            newest_left = newest_left.saturating_sub(1);
            is_new || !root.status.is_terminal()
        });
        Ok(roots)
    }

    async fn pump_items(&self, job: JobId) -> Result<Vec<Item>> {
        Ok(self.state().pump_items.get(&job).map(|items| items.values().cloned().collect()).unwrap_or_default())
    }

    async fn change_items(
        &self,
        token: LeaseToken,
        job: JobId,
        changes: &[(String, ItemChange)],
        now: Timestamp,
    ) -> Result<ChangedItems> {
        let at = self.now();
        let mut state = self.state();
        let is_home = state.due.get(&job).is_some_and(|due| due.home == token.node);
        let holds_lease = |node: &StoredNode| node.node.epoch == token.epoch && node.node.lease_until > at;
        let may_write = is_home && state.nodes.get(&token.node).is_some_and(holds_lease);
        if !may_write && !mutant::on(Mutant::ItemsOfAnyNode) {
            return Ok(ChangedItems { is_refused: true, ..ChangedItems::default() });
        }
        let items = state.pump_items.entry(job).or_default();
        let applied_count = changes.iter().filter(|(name, change)| apply_change(items, name, change, now)).count();
        Ok(ChangedItems { applied_count: applied_count as u64, is_refused: false })
    }

    async fn forget_pump(&self, job: JobId, version: i64) -> Result<()> {
        let mut state = self.state();
        let stored_job = state.jobs.get(&job);
        if stored_job.is_none_or(|stored_job| stored_job.is_deleted || stored_job.record.version == version) {
            state.pumps.remove(&job);
        }
        Ok(())
    }
}
