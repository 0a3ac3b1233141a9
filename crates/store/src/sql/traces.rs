//! The trait `Traces` in SQL.

use async_trait::async_trait;
use rondel_core::{IdGen, RunId, Timestamp, TraceParent};

use super::SqlStore;
use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::{Result, Traces};

const INSERT_TRACE: Statement = Statement {
    name: "insert_trace",
    text: "INSERT {ignore} INTO run_trace (run_id, traceparent) VALUES (?, ?) {or_ignore}",
};
const READ_TRACES: Statement =
    Statement { name: "read_traces", text: "SELECT run_id, traceparent FROM run_trace WHERE run_id {in_list}" };
const READ_OLD_TRACES: Statement = Statement {
    name: "read_old_traces",
    text: "SELECT run_id FROM run_trace WHERE run_id < ? ORDER BY run_id LIMIT ?",
};
const DELETE_TRACES: Statement =
    Statement { name: "delete_traces", text: "DELETE FROM run_trace WHERE run_id {in_list}" };

#[async_trait]
impl Traces for SqlStore {
    async fn note_trace(&self, run: RunId, parent: TraceParent) -> Result<()> {
        self.execute(Query::new(&INSERT_TRACE).int(run.get()).text(&parent.to_string())).await.map(drop)
    }

    async fn traces(&self, runs: &[RunId]) -> Result<Vec<(RunId, TraceParent)>> {
        let mut traces = Vec::new();
        for chunk in runs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_TRACES).list(chunk.iter().map(|run| run.get()))).await? {
                let mut columns = Reader::new(&row, "run_trace");
                traces.push((RunId::new(columns.int("run_id")?), columns.word("traceparent")?));
            }
        }
        Ok(traces)
    }

    async fn forget_traces(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let query = Query::new(&READ_OLD_TRACES).int(IdGen::first_at(before)).int(limit.into());
        let old_runs = read_ids(&self.rows(query).await?, "run_trace", "run_id")?;
        if old_runs.is_empty() {
            return Ok(0);
        }
        self.execute(Query::new(&DELETE_TRACES).list(old_runs.into_iter())).await
    }
}
