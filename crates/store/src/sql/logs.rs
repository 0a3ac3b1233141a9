//! The trait `Logs` in SQL.

use std::collections::HashMap;

use async_trait::async_trait;
use rondel_core::{NamespaceId, RunId};

use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use super::{SqlStore, failure, transact};
use crate::logs::{ChunkSize, LogChunk, LogRange, RemovedLogs, removed_line};
use crate::{Logs, Result, log_codec};

/// Maximum size of one statement, in bytes. Much smaller than the packets that a database accepts.
const BYTES_MAX: usize = 1 << 20;

/// Size of the lines, in bytes, after which one call reads no more chunks.
const PAGE_BYTES_MAX: usize = 8 << 20;

const INSERT_LOGS: Statement = Statement {
    name: "insert_logs",
    text: "INSERT {ignore} INTO run_log (run_id, attempt, sequence, line_count, codec, data, namespace_id, \
           byte_count) {values:iiiitbii} {or_ignore}",
};
const FIND_RUNS: Statement =
    Statement { name: "find_runs", text: "SELECT id, namespace_id FROM run WHERE id {in_list}" };
const READ_LOGS: Statement = Statement {
    name: "read_logs",
    text: "SELECT run_id, attempt, sequence, codec, data FROM run_log WHERE run_id = ? AND attempt = ? \
           AND sequence > ? ORDER BY sequence LIMIT ?",
};
pub(super) const READ_CHUNK_SIZES: Statement = Statement {
    name: "read_chunk_sizes",
    text: "SELECT sequence, line_count FROM run_log WHERE run_id = ? AND attempt = ? AND sequence > ? ORDER BY sequence LIMIT ?",
};

/// The sizes of a page of chunks, from the newest on. Only the index is read.
pub(super) const READ_LOG_SIZES: Statement = Statement {
    name: "read_log_sizes",
    text: "SELECT run_id, byte_count FROM run_log WHERE namespace_id = ? AND run_id < ? ORDER BY run_id DESC LIMIT ?",
};
/// The oldest run of a page of chunks; 0 if there is none.
const FIND_LOG_PAGE: Statement = Statement {
    name: "find_log_page",
    text: "SELECT COALESCE(MIN(run_id), 0) FROM (SELECT run_id FROM run_log WHERE namespace_id = ? AND run_id < ? \
           ORDER BY run_id DESC LIMIT ?) page",
};
pub(super) const SUM_LOG_SIZES: Statement = Statement {
    name: "sum_log_sizes",
    text: "SELECT CAST(COALESCE(SUM(byte_count), 0) AS {bigint}) FROM run_log WHERE namespace_id = ? AND run_id >= ? \
           AND run_id < ?",
};
pub(super) const READ_LOGGED_RUNS: Statement = Statement {
    name: "read_logged_runs",
    text: "SELECT run_id, CAST(SUM(byte_count) AS {bigint}) AS byte_count FROM run_log WHERE namespace_id = ? \
           AND run_id > ? AND run_id <= ? GROUP BY run_id ORDER BY run_id LIMIT ?",
};
const LOCK_ENDED_RUNS: Statement = Statement {
    name: "lock_ended_runs",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}status NOT IN ('pending', 'waiting', 'running'){end} ORDER BY id \
           {skip_locked}",
};
const COUNT_LINES: Statement = Statement {
    name: "count_lines",
    text: "SELECT run_id, attempt, CAST(SUM(line_count) AS {bigint}) FROM run_log WHERE run_id {in_list} \
           GROUP BY run_id, attempt ORDER BY run_id, attempt",
};
const DELETE_CHUNKS: Statement =
    Statement { name: "delete_chunks", text: "DELETE FROM run_log WHERE run_id {in_list}" };

/// Number of chunks on a page.
const SIZE_PAGE_LEN: u32 = 20_000;

/// Maximum size of the logs that one transaction removes, as a multiple of the size of one statement. The log of a single run may be
/// larger.
const REMOVED_STATEMENT_COUNT: usize = 16;

/// A chunk as it is stored.
struct EncodedChunk {
    run: i64,
    attempt: i32,
    sequence: i64,
    line_count: i64,
    codec: &'static str,
    data: Vec<u8>,
    /// The namespace in whose log size it counts; `None` for the line that replaces a removed log.
    namespace: Option<i64>,
}

#[async_trait]
impl Logs for SqlStore {
    async fn append_logs(&self, chunks: &[LogChunk]) -> Result<()> {
        let mut ids: Vec<i64> = chunks.iter().map(|chunk| chunk.run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut namespaces_by_run = HashMap::with_capacity(ids.len());
        for id_chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&FIND_RUNS).list(id_chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "run");
                namespaces_by_run.insert(columns.int("id")?, columns.int("namespace_id")?);
            }
        }
        let mut batch: Vec<EncodedChunk> = Vec::new();
        let (mut bytes, bytes_max) = (0, BYTES_MAX.min(self.statement_size().bytes));
        for chunk in chunks {
            let Some(namespace) = namespaces_by_run.get(&chunk.run.get()) else { continue };
            let encoded = encode(chunk, Some(*namespace))?;
            if !batch.is_empty() && (batch.len() == CHUNK_MAX || bytes + encoded.data.len() > bytes_max) {
                self.insert_logs(&batch).await?;
                batch.clear();
                bytes = 0;
            }
            bytes += encoded.data.len();
            batch.push(encoded);
        }
        if batch.is_empty() { Ok(()) } else { self.insert_logs(&batch).await }
    }

    async fn log_chunks(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<LogChunk>> {
        let query = Query::new(&READ_LOGS).int(run.get()).int(attempt.into()).int(after_sequence).int(limit.into());
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        for row in self.rows(query).await? {
            if bytes >= PAGE_BYTES_MAX {
                break;
            }
            let mut columns = Reader::new(&row, "run_log");
            let (run, attempt) = (RunId::new(columns.int("run_id")?), columns.int32("attempt")?);
            let sequence = columns.int("sequence")?;
            let codec = columns.text("codec")?;
            let data = columns.bytes("data")?;
            let lines = log_codec::decode(&codec, &data).map_err(|error| columns.corrupt("data", error))?;
            bytes += log_codec::plain_len(&lines);
            chunks.push(LogChunk { run, attempt, sequence, lines });
        }
        Ok(chunks)
    }

    async fn log_sizes(&self, run: RunId, attempt: i32, after_sequence: i64, limit: u32) -> Result<Vec<ChunkSize>> {
        let query =
            Query::new(&READ_CHUNK_SIZES).int(run.get()).int(attempt.into()).int(after_sequence).int(limit.into());
        let size = |row| {
            let mut columns = Reader::new(row, "run_log");
            let (sequence, line_count) = (columns.int("sequence")?, columns.int("line_count")?);
            Ok(ChunkSize { sequence, line_count: u64::try_from(line_count).unwrap_or(0) })
        };
        self.rows(query).await?.iter().map(size).collect()
    }

    async fn log_cut(&self, namespace: NamespaceId, bytes: u64) -> Result<Option<RunId>> {
        let mut remaining_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let mut before_run = i64::MAX;
        loop {
            let query = Query::new(&FIND_LOG_PAGE).int(namespace.get()).int(before_run).int(SIZE_PAGE_LEN.into());
            let Some(row) = self.row(query).await? else { return Ok(None) };
            let first_run = Reader::new(&row, "run_log").int("run_id")?;
            if first_run == 0 {
                return Ok(None);
            }
            // Adds up whole logs: the log of one run can have more chunks than a page.
            let byte_count = self.sum_log_sizes(namespace, (first_run, before_run)).await?;
            if byte_count > remaining_bytes {
                return self.find_cut(namespace, before_run, remaining_bytes).await;
            }
            remaining_bytes -= byte_count;
            before_run = first_run;
        }
    }

    async fn remove_logs(&self, namespace: NamespaceId, range: LogRange, limit: u32) -> Result<RemovedLogs> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let query = Query::new(&READ_LOGGED_RUNS).int(namespace.get()).int(range.after.get()).int(range.up_to.get());
        let bytes_max = self.statement_size().bytes.saturating_mul(REMOVED_STATEMENT_COUNT);
        let mut remaining_bytes = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        let mut ids: Vec<i64> = Vec::new();
        for row in self.rows(query.int(limit.into())).await? {
            let mut columns = Reader::new(&row, "run_log");
            let id = columns.int("run_id")?;
            remaining_bytes = remaining_bytes.saturating_sub(columns.int("byte_count")?);
            if remaining_bytes < 0 && !ids.is_empty() {
                break;
            }
            ids.push(id);
        }
        let last_run = ids.last().copied().map(RunId::new);
        let runs = if ids.is_empty() { 0 } else { self.replace_logs(&ids, range).await? };
        Ok(RemovedLogs { runs, last: last_run })
    }
}

impl SqlStore {
    /// Replaces the log of each attempt by a line about the removal.
    async fn replace_logs(&self, ids: &[i64], range: LogRange) -> Result<u64> {
        transact!(self, "remove_logs", |tx| {
            let locked_ids =
                read_ids(&tx.rows(Query::new(&LOCK_ENDED_RUNS).list(ids.iter().copied())).await?, "run", "id")?;
            if locked_ids.is_empty() {
                return Ok(0);
            }
            let mut removal_chunks = Vec::new();
            for row in tx.rows(Query::new(&COUNT_LINES).list(locked_ids.iter().copied())).await? {
                let mut columns = Reader::new(&row, "run_log");
                let (run, attempt) = (RunId::new(columns.int("run_id")?), columns.int32("attempt")?);
                let lines = vec![removed_line(columns.int("line_count")?, range.now)];
                removal_chunks.push(encode(&LogChunk { run, attempt, sequence: 0, lines }, None)?);
            }
            let count = locked_ids.len();
            tx.execute(Query::new(&DELETE_CHUNKS).list(locked_ids.into_iter())).await?;
            for batch in removal_chunks.chunks(CHUNK_MAX) {
                tx.execute(logs_insert(batch)).await?;
            }
            Ok(u64::try_from(count).unwrap_or(u64::MAX))
        })
    }

    /// The stored size of the logs of a namespace from run `first_run` to just before `before_run`.
    async fn sum_log_sizes(&self, namespace: NamespaceId, (first_run, before_run): (i64, i64)) -> Result<i64> {
        let query = Query::new(&SUM_LOG_SIZES).int(namespace.get()).int(first_run).int(before_run);
        let row = self.row(query).await?;
        Ok(row.map(|row| Reader::new(&row, "run_log").int("byte_count")).transpose()?.unwrap_or(0))
    }

    /// Finds the run whose log exceeds `remaining_bytes`, in the page of chunks before `before_run`. The page may end within the log of its
    /// oldest run, so it is that run if the chunks of the page fit.
    async fn find_cut(
        &self,
        namespace: NamespaceId,
        before_run: i64,
        mut remaining_bytes: i64,
    ) -> Result<Option<RunId>> {
        let query = Query::new(&READ_LOG_SIZES).int(namespace.get()).int(before_run).int(SIZE_PAGE_LEN.into());
        let rows = self.rows(query).await?;
        let mut oldest_run = None;
        for row in &rows {
            let mut columns = Reader::new(row, "run_log");
            oldest_run = Some(RunId::new(columns.int("run_id")?));
            remaining_bytes -= columns.int("byte_count")?;
            if remaining_bytes < 0 {
                return Ok(oldest_run);
            }
        }
        // A page that is not full has all logs that are left, since others were removed meanwhile, and these fit.
        Ok(oldest_run.filter(|_| rows.len() >= SIZE_PAGE_LEN as usize))
    }

    async fn insert_logs(&self, batch: &[EncodedChunk]) -> Result<()> {
        transact!(self, "append_logs", |tx| tx.execute(logs_insert(batch)).await.map(|_| ()))
    }
}

fn logs_insert(batch: &[EncodedChunk]) -> Query {
    Query::new(&INSERT_LOGS).rows(batch, |query, chunk| {
        query
            .int(chunk.run)
            .int(chunk.attempt.into())
            .int(chunk.sequence)
            .int(chunk.line_count)
            .text(chunk.codec)
            .bytes(&chunk.data)
            .opt_int(chunk.namespace)
            // The line that replaces a removed log has size 0.
            .int(if chunk.namespace.is_some() { i64::try_from(chunk.data.len()).unwrap_or(i64::MAX) } else { 0 })
    })
}

fn encode(chunk: &LogChunk, namespace: Option<i64>) -> Result<EncodedChunk> {
    let encode_result = log_codec::encode(&chunk.lines);
    let (codec, data) = encode_result.map_err(|error| failure::refused("append_logs", &error.to_string()))?;
    Ok(EncodedChunk {
        run: chunk.run.get(),
        attempt: chunk.attempt,
        sequence: chunk.sequence,
        line_count: i64::try_from(chunk.lines.len()).unwrap_or(i64::MAX),
        codec,
        data,
        namespace,
    })
}

#[cfg(test)]
mod tests {
    use rondel_core::Timestamp;

    use super::*;
    use crate::logs::LogLine;
    use crate::{DatabaseUrl, StoreConfig};

    const INSERT_ENDED_RUN: Statement = Statement {
        name: "insert_ended_run",
        text: "INSERT INTO run (id, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, shard_index, trigger_kind, \
               status, attempt, due_at_ms, node_id, node_epoch, span_count) \
               VALUES (?, 1, 1, 1, 1, ?, 0, 0, 'cron', 'succeeded', 1, 0, 1, 1, 1)",
    };

    async fn open(statement_bytes_max: usize) -> (tempfile::TempDir, SqlStore) {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
        let config = StoreConfig { url, statement_bytes_max, ..StoreConfig::default() };
        let store = SqlStore::open(&config).await.unwrap();
        (folder, store)
    }

    /// A run that writes lines for days has more chunks than one page.
    #[tokio::test]
    async fn the_size_of_a_log_counts_in_full_however_many_chunks_it_has() {
        let (_folder, store) = open(StoreConfig::default().statement_bytes_max).await;
        let (namespace, now) = (NamespaceId::new(1), Timestamp::from_secs(1_800_000_000));
        let line = LogLine { at: now, level: "info".to_owned(), text: "x".to_owned() };
        let chunk = |run, sequence| LogChunk { run: RunId::new(run), attempt: 1, sequence, lines: vec![line.clone()] };
        for id in 1..=2 {
            store.execute(Query::new(&INSERT_ENDED_RUN).int(id).int(id)).await.unwrap();
        }
        store.append_logs(&[chunk(1, 0)]).await.unwrap();
        let page_len = i64::from(SIZE_PAGE_LEN);
        let chunks: Vec<LogChunk> = (0..page_len + 10).map(|sequence| chunk(2, sequence)).collect();
        store.append_logs(&chunks).await.unwrap();
        let chunk_bytes = store.sum_log_sizes(namespace, (1, 2)).await.unwrap();
        assert_eq!(store.sum_log_sizes(namespace, (1, 3)).await.unwrap(), chunk_bytes * (page_len + 11));
        for (chunk_count, expected) in
            [(page_len - 1, Some(2)), (page_len + 9, Some(2)), (page_len + 10, Some(1)), (page_len + 11, None)]
        {
            let bytes = u64::try_from(chunk_bytes * chunk_count).unwrap();
            let cut = store.log_cut(namespace, bytes).await.unwrap();
            assert_eq!(cut, expected.map(RunId::new), "{chunk_count}");
        }
        store.close().await;
    }

    /// The logs of many runs can be too much for one transaction, which has a time limit.
    #[tokio::test]
    async fn a_transaction_removes_a_bounded_number_of_bytes() {
        let (_folder, store) = open(100).await;
        let (namespace, now) = (NamespaceId::new(1), Timestamp::from_secs(1_800_000_000));
        // Short texts are not compressed, so the two chunks of each log have more than half of the 1,600 bytes.
        let line = LogLine { at: now, level: "info".to_owned(), text: "0123456789".repeat(40) };
        for id in 1..=4 {
            store.execute(Query::new(&INSERT_ENDED_RUN).int(id).int(id)).await.unwrap();
            let chunk = |sequence| LogChunk { run: RunId::new(id), attempt: 1, sequence, lines: vec![line.clone()] };
            store.append_logs(&[chunk(0), chunk(1)]).await.unwrap();
        }
        let mut range = LogRange { after: RunId::new(0), up_to: RunId::new(9), now };
        let mut sizes = Vec::new();
        while let RemovedLogs { runs, last: Some(last) } = store.remove_logs(namespace, range, 50).await.unwrap() {
            sizes.push(runs);
            range.after = last;
        }
        assert_eq!(sizes, [1, 1, 1, 1]);
        range.after = RunId::new(0);
        assert_eq!(store.remove_logs(namespace, range, 50).await.unwrap().last, None, "all were removed");
        store.close().await;
    }
}
