//! Logs of runs.

use std::collections::HashSet;

use async_trait::async_trait;
use rondel_core::RunId;

use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, failure, transact};
use crate::logs::LogChunk;
use crate::{Logs, Result, log_codec};

/// The most bytes that one statement carries: far below what a server takes in one packet.
const BYTES_MAX: usize = 1 << 20;

const INSERT_LOGS: Statement = Statement {
    name: "insert_logs",
    text: "INSERT {ignore} INTO run_log (run_id, attempt, sequence, line_count, codec, data) \
           {values:iiiitb} {or_ignore}",
};
const FIND_RUNS: Statement = Statement { name: "find_runs", text: "SELECT id FROM run WHERE id {in_list}" };
const READ_LOGS: Statement = Statement {
    name: "read_logs",
    text: "SELECT run_id, attempt, sequence, codec, data FROM run_log WHERE run_id = ? AND attempt = ? \
           AND sequence > ? ORDER BY sequence LIMIT ?",
};

/// A chunk as it is stored.
struct Encoded {
    run: i64,
    attempt: i32,
    sequence: i64,
    line_count: i64,
    codec: &'static str,
    data: Vec<u8>,
}

#[async_trait]
impl Logs for SqlStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()> {
        let mut ids: Vec<i64> = chunks.iter().map(|chunk| chunk.run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut known = HashSet::with_capacity(ids.len());
        for part in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&FIND_RUNS).list(part.iter().copied())).await? {
                known.insert(Reader::new(&row, "run").int("id")?);
            }
        }
        let mut part: Vec<Encoded> = Vec::new();
        let mut bytes = 0;
        for chunk in chunks.iter().filter(|chunk| known.contains(&chunk.run.get())) {
            let encoded = encode(chunk)?;
            if !part.is_empty() && (part.len() == CHUNK_MAX || bytes + encoded.data.len() > BYTES_MAX) {
                self.insert_logs(&part).await?;
                part.clear();
                bytes = 0;
            }
            bytes += encoded.data.len();
            part.push(encoded);
        }
        if part.is_empty() { Ok(()) } else { self.insert_logs(&part).await }
    }

    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>> {
        let query = Query::new(&READ_LOGS).int(run.get()).int(attempt.into()).int(after_sequence).int(limit.into());
        let mut chunks = Vec::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run_log");
            let (run, attempt) = (RunId::new(columns.int("run_id")?), columns.small("attempt")?);
            let sequence = columns.int("sequence")?;
            let codec = columns.text("codec")?;
            let data = columns.bytes("data")?;
            let lines = log_codec::decode(&codec, &data).map_err(|error| columns.corrupt("data", error))?;
            chunks.push(LogChunk { run, attempt, sequence, lines });
        }
        Ok(chunks)
    }
}

impl SqlStore {
    async fn insert_logs(&self, part: &[Encoded]) -> Result<()> {
        transact!(self, "append_logs", |tx| {
            let query = Query::new(&INSERT_LOGS).rows(part, |query, chunk| {
                query
                    .int(chunk.run)
                    .int(chunk.attempt.into())
                    .int(chunk.sequence)
                    .int(chunk.line_count)
                    .text(chunk.codec)
                    .bytes(&chunk.data)
            });
            tx.execute(query).await.map(|_| ())
        })
    }
}

fn encode(chunk: &LogChunk) -> Result<Encoded> {
    let encoded = log_codec::encode(&chunk.lines);
    let (codec, data) = encoded.map_err(|error| failure::refused("append_logs", &error.to_string()))?;
    Ok(Encoded {
        run: chunk.run.get(),
        attempt: chunk.attempt,
        sequence: chunk.sequence,
        line_count: i64::try_from(chunk.lines.len()).unwrap_or(i64::MAX),
        codec,
        data,
    })
}
