//! The trait `SearchRuns` for the store in memory.

use async_trait::async_trait;
use rondel_core::{NamespaceId, Run};

use crate::ledger::{FoundRuns, RunSearch};
use crate::mem::{MemStore, to_usize};
use crate::{Result, SearchRuns};

#[async_trait]
impl SearchRuns for MemStore {
    async fn search_runs(&self, namespace: NamespaceId, search: &RunSearch) -> Result<FoundRuns> {
        let state = self.state();
        let is_past_place = |run: &Run| {
            search.from.is_none_or(|from| {
                let place = search.place(run);
                if search.is_backward { place > from } else { place < from }
            })
        };
        let matches = |run: &&Run| {
            run.namespace == namespace && {
                let is_dead = || state.dead_letters.contains_key(&run.id);
                search.admits(run) && is_past_place(run) && (!search.is_dead || is_dead())
            }
        };
        let mut runs: Vec<Run> = state.runs.values().filter(matches).cloned().collect();
        runs.sort_by_key(|run| std::cmp::Reverse(search.place(run)));
        let limit = to_usize(search.limit);
        if search.is_backward {
            runs.drain(..runs.len().saturating_sub(limit));
        }
        runs.truncate(limit);
        Ok(FoundRuns { runs, stopped_at: None })
    }
}
