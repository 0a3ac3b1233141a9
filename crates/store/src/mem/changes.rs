//! The trait `Changes` for the store in memory.

use std::ops::Bound;

use async_trait::async_trait;
use rondel_core::{ExecutorId, NamespaceId, RunId, RunStatus, Timestamp};

use super::{MemStore, to_usize};
use crate::changes::{Changes, RunSnapshot, SavedJob};
use crate::{LeaseToken, Result};

#[async_trait]
impl Changes for MemStore {
    async fn snapshots_after(&self, after: RunId, limit: u32) -> Result<Vec<RunSnapshot>> {
        let state = self.state();
        let later_runs = state.runs.range((Bound::Excluded(after), Bound::Unbounded));
        Ok(later_runs.take(to_usize(limit)).map(|(_, run)| RunSnapshot::from(run)).collect())
    }

    async fn current_snapshots(&self, ids: &[RunId]) -> Result<Vec<RunSnapshot>> {
        let state = self.state();
        Ok(ids.iter().filter_map(|id| state.runs.get(id)).map(RunSnapshot::from).collect())
    }

    async fn snapshots_of_lease(&self, owner: LeaseToken, limit: u32) -> Result<Vec<RunSnapshot>> {
        let state = self.state();
        let mut snapshots = Vec::new();
        for status in [RunStatus::Pending, RunStatus::Waiting, RunStatus::Running] {
            let is_own =
                |run: &&rondel_core::Run| (run.node, run.node_epoch, run.status) == (owner.node, owner.epoch, status);
            let mut runs: Vec<_> = state.runs.values().filter(is_own).collect();
            runs.sort_by_key(|run| run.due_at);
            snapshots.extend(runs.into_iter().take(to_usize(limit)).map(RunSnapshot::from));
        }
        Ok(snapshots)
    }

    async fn jobs_saved(&self, since: Timestamp, limit: u32) -> Result<Vec<SavedJob>> {
        let state = self.state();
        let jobs = state.jobs.values().filter(|stored_job| stored_job.record.updated_at >= since);
        let mut saved_jobs: Vec<SavedJob> = jobs
            .map(|stored_job| SavedJob {
                id: stored_job.record.id,
                namespace: stored_job.record.namespace,
                app: stored_job.record.app,
                name: stored_job.record.spec.name.clone(),
                version: stored_job.record.version,
                is_deleted: stored_job.is_deleted,
                at: stored_job.record.updated_at,
            })
            .collect();
        saved_jobs.sort_by_key(|job| (job.at, job.id));
        saved_jobs.truncate(to_usize(limit));
        Ok(saved_jobs)
    }

    async fn executor_names(&self, ids: &[ExecutorId]) -> Result<Vec<(ExecutorId, NamespaceId, String)>> {
        let state = self.state();
        let named_executor = |id: &ExecutorId| {
            let executor = state.executors.get(id)?;
            Some((*id, executor.namespace, executor.name.clone()))
        };
        Ok(ids.iter().filter_map(named_executor).collect())
    }
}
