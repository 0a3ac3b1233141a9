//! The trait `Logs` for the store in memory.

use async_trait::async_trait;
use rondel_core::{NamespaceId, RunId};

use super::{MemStore, to_usize};
use crate::logs::{ChunkSize, LogChunk, LogLine, LogRange, RemovedLogs, removed_line};
use crate::{Logs, Result, log_codec};

/// Run, attempt, number of the chunk.
pub(super) type ChunkKey = (RunId, i32, i64);

pub(super) struct StoredChunk {
    lines: Vec<LogLine>,
    /// The namespace in whose log size the chunk counts, and its size in bytes; `None` for the line that replaces a removed log.
    counted: Option<(NamespaceId, u64)>,
}

#[async_trait]
impl Logs for MemStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()> {
        let mut state = self.state();
        for chunk in chunks {
            let Some(namespace) = state.runs.get(&chunk.run).map(|run| run.namespace) else { continue };
            let bytes = log_codec::encode(&chunk.lines).map_or(0, |(_, data)| data.len() as u64);
            let key = (chunk.run, chunk.attempt, chunk.sequence);
            let stored = || StoredChunk { lines: chunk.lines.clone(), counted: Some((namespace, bytes)) };
            state.logs.entry(key).or_insert_with(stored);
        }
        Ok(())
    }

    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>> {
        let state = self.state();
        let from = (run, attempt, after_sequence.saturating_add(1));
        let found = state.logs.range(from..=(run, attempt, i64::MAX)).take(to_usize(limit));
        let chunk = |(&(run, attempt, sequence), stored): (&ChunkKey, &StoredChunk)| LogChunk {
            run,
            attempt,
            sequence,
            lines: stored.lines.clone(),
        };
        Ok(found.map(chunk).collect())
    }

    async fn log_sizes(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<ChunkSize>> {
        let state = self.state();
        let from = (run, attempt, after_sequence.saturating_add(1));
        let found = state.logs.range(from..=(run, attempt, i64::MAX)).take(to_usize(limit));
        let sizes = found.map(|(key, stored)| ChunkSize { sequence: key.2, line_count: stored.lines.len() as u64 });
        Ok(sizes.collect())
    }

    async fn log_cut(&self, namespace: NamespaceId, bytes: u64) -> Result<Option<RunId>> {
        let state = self.state();
        let mut room = bytes;
        for ((run, ..), stored) in state.logs.iter().rev() {
            let Some((_, taken)) = stored.counted.filter(|(owner, _)| *owner == namespace) else { continue };
            match room.checked_sub(taken) {
                Some(left) => room = left,
                None => return Ok(Some(*run)),
            }
        }
        Ok(None)
    }

    async fn remove_logs(&self, namespace: NamespaceId, range: LogRange, limit: u32) -> Result<RemovedLogs> {
        let mut state = self.state();
        let is_meant = |(key, stored): &(&ChunkKey, &StoredChunk)| {
            key.0 > range.after && key.0 <= range.up_to && stored.counted.is_some_and(|(owner, _)| owner == namespace)
        };
        let mut ids: Vec<RunId> = state.logs.iter().filter(is_meant).map(|(key, _)| key.0).collect();
        ids.dedup();
        ids.truncate(to_usize(limit));
        let last = ids.last().copied();
        ids.retain(|id| state.runs.get(id).is_some_and(|run| run.status.is_terminal()));
        for id in &ids {
            let all = (*id, i32::MIN, i64::MIN)..=(*id, i32::MAX, i64::MAX);
            let keys: Vec<ChunkKey> = state.logs.range(all).map(|(key, _)| *key).collect();
            let mut counts = std::collections::BTreeMap::<i32, usize>::new();
            for key in keys {
                let gone = state.logs.remove(&key);
                *counts.entry(key.1).or_default() += gone.map_or(0, |gone| gone.lines.len());
            }
            for (attempt, count) in counts {
                let line = removed_line(i64::try_from(count).unwrap_or(i64::MAX), range.now);
                state.logs.insert((*id, attempt, 0), StoredChunk { lines: vec![line], counted: None });
            }
        }
        Ok(RemovedLogs { runs: ids.len() as u64, last })
    }
}
