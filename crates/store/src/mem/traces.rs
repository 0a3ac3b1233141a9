//! The trait `Traces` for the store in memory.

use async_trait::async_trait;
use rondel_core::{IdGen, RunId, Timestamp, TraceParent};

use super::{MemStore, to_usize};
use crate::{Result, Traces};

#[async_trait]
impl Traces for MemStore {
    async fn note_trace(&self, run: RunId, parent: TraceParent) -> Result<()> {
        self.state().traces.entry(run).or_insert(parent);
        Ok(())
    }

    async fn traces(&self, runs: &[RunId]) -> Result<Vec<(RunId, TraceParent)>> {
        let state = self.state();
        Ok(runs.iter().filter_map(|run| Some((*run, *state.traces.get(run)?))).collect())
    }

    async fn forget_traces(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let first_kept_run = RunId::new(IdGen::first_at(before));
        let old_runs: Vec<RunId> =
            state.traces.range(..first_kept_run).map(|(run, _)| *run).take(to_usize(limit)).collect();
        for run in &old_runs {
            state.traces.remove(run);
        }
        Ok(old_runs.len() as u64)
    }
}
