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
    counted_size: Option<(NamespaceId, u64)>,
}

#[async_trait]
impl Logs for MemStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()> {
        let mut state = self.state();
        for chunk in chunks {
            let Some(namespace) = state.runs.get(&chunk.run).map(|run| run.namespace) else { continue };
            let bytes = log_codec::encode(&chunk.lines).map_or(0, |(_, data)| data.len() as u64);
            let key = (chunk.run, chunk.attempt, chunk.sequence);
            let stored_chunk = || StoredChunk { lines: chunk.lines.clone(), counted_size: Some((namespace, bytes)) };
            state.logs.entry(key).or_insert_with(stored_chunk);
        }
        Ok(())
    }

    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>> {
        let state = self.state();
        let first_key = (run, attempt, after_sequence.saturating_add(1));
        let chunks = state.logs.range(first_key..=(run, attempt, i64::MAX)).take(to_usize(limit));
        let to_chunk = |(&(run, attempt, sequence), stored_chunk): (&ChunkKey, &StoredChunk)| LogChunk {
            run,
            attempt,
            sequence,
            lines: stored_chunk.lines.clone(),
        };
        Ok(chunks.map(to_chunk).collect())
    }

    async fn log_sizes(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<ChunkSize>> {
        let state = self.state();
        let first_key = (run, attempt, after_sequence.saturating_add(1));
        let chunks = state.logs.range(first_key..=(run, attempt, i64::MAX)).take(to_usize(limit));
        let sizes = chunks
            .map(|(key, stored_chunk)| ChunkSize { sequence: key.2, line_count: stored_chunk.lines.len() as u64 });
        Ok(sizes.collect())
    }

    async fn log_cut(&self, namespace: NamespaceId, bytes: u64) -> Result<Option<RunId>> {
        let state = self.state();
        let mut bytes_left = bytes;
        for ((run, ..), stored_chunk) in state.logs.iter().rev() {
            let Some((_, byte_count)) = stored_chunk.counted_size.filter(|(owner, _)| *owner == namespace) else {
                continue;
            };
            match bytes_left.checked_sub(byte_count) {
                Some(bytes_left_after) => bytes_left = bytes_left_after,
                None => return Ok(Some(*run)),
            }
        }
        Ok(None)
    }

    async fn remove_logs(&self, namespace: NamespaceId, range: LogRange, limit: u32) -> Result<RemovedLogs> {
        let mut state = self.state();
        let is_selected = |(key, stored_chunk): &(&ChunkKey, &StoredChunk)| {
            key.0 > range.after
                && key.0 <= range.up_to
                && stored_chunk.counted_size.is_some_and(|(owner, _)| owner == namespace)
        };
        let mut ids: Vec<RunId> = state.logs.iter().filter(is_selected).map(|(key, _)| key.0).collect();
        ids.dedup();
        ids.truncate(to_usize(limit));
        let last_run = ids.last().copied();
        ids.retain(|id| state.runs.get(id).is_some_and(|run| run.status.is_terminal()));
        for id in &ids {
            let chunks_of_run = (*id, i32::MIN, i64::MIN)..=(*id, i32::MAX, i64::MAX);
            let keys: Vec<ChunkKey> = state.logs.range(chunks_of_run).map(|(key, _)| *key).collect();
            let mut counts = std::collections::BTreeMap::<i32, usize>::new();
            for key in keys {
                let removed_chunk = state.logs.remove(&key);
                *counts.entry(key.1).or_default() += removed_chunk.map_or(0, |removed_chunk| removed_chunk.lines.len());
            }
            for (attempt, count) in counts {
                let line = removed_line(i64::try_from(count).unwrap_or(i64::MAX), range.now);
                state.logs.insert((*id, attempt, 0), StoredChunk { lines: vec![line], counted_size: None });
            }
        }
        Ok(RemovedLogs { runs: ids.len() as u64, last: last_run })
    }
}
