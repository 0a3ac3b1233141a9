//! Dead letters: runs that failed for good and were not acknowledged.

use rondel_core::{JobId, NamespaceId, RunId};

use super::chunks;
use crate::Result;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, Tx};

/// Shards are left out, because their broadcast gets its own verdict.
const INSERT_DEAD_LETTERS: Statement = Statement {
    name: "insert_dead_letters",
    text: "INSERT {ignore} INTO dead_letter (run_id, namespace_id, app_id, job_id, fire_at_ms) \
           SELECT run.id, run.namespace_id, run.app_id, run.job_id, run.fire_at_ms FROM run WHERE run.id {in_list} \
           AND {check}run.status IN ('failed', 'timed_out', 'unknown'){end} \
           AND NOT EXISTS (SELECT 1 FROM run whole WHERE whole.job_id = run.job_id \
           AND whole.fire_at_ms = run.fire_at_ms AND whole.cause = run.cause AND whole.shard_index = -1 \
           AND run.shard_index >= 0) {or_ignore}",
};
const DELETE_DEAD_LETTERS: Statement =
    Statement { name: "delete_dead_letters", text: "DELETE FROM dead_letter WHERE run_id {in_list}" };
const DELETE_DEAD_LETTERS_IN_NAMESPACE: Statement = Statement {
    name: "acknowledge_dead_letters",
    text: "DELETE FROM dead_letter WHERE run_id {in_list} AND namespace_id = ?",
};
/// Executed only for jobs with a new success. Most failures of such a job are older than the success, so nearly every row that is read is
/// returned.
pub(in crate::sql) const FIND_OVERTAKEN_DEAD_LETTERS: Statement = Statement {
    name: "find_overtaken_dead_letters",
    text: "SELECT run_id FROM dead_letter WHERE job_id {in_list} AND fire_at_ms < (SELECT job_pulse.succeeded_at_ms FROM job_pulse \
           WHERE job_pulse.job_id = dead_letter.job_id) LIMIT ?",
};
pub(in crate::sql) const COUNT_DEAD_LETTERS: Statement = Statement {
    name: "count_dead_letters",
    text: "SELECT CAST(COUNT(*) AS {bigint}) AS row_count FROM (SELECT run_id FROM dead_letter WHERE namespace_id = ? LIMIT ?) AS t",
};

impl SqlStore {
    pub(super) async fn acknowledge_dead_runs(&self, namespace: NamespaceId, runs: &[RunId]) -> Result<u64> {
        let mut count = 0;
        for chunk in chunks(runs) {
            let delete = Query::new(&DELETE_DEAD_LETTERS_IN_NAMESPACE)
                .list(chunk.iter().map(|run| run.get()))
                .int(namespace.get());
            count += self.execute(delete).await?;
        }
        Ok(count)
    }

    pub(super) async fn count_dead_letters(&self, namespace: NamespaceId, limit: u32) -> Result<u64> {
        let row = self.row(Query::new(&COUNT_DEAD_LETTERS).int(namespace.get()).int(limit.into())).await?;
        let count = row.map(|row| Reader::new(&row, "dead_letter").int("row_count")).transpose()?;
        Ok(u64::try_from(count.unwrap_or(0)).unwrap_or(0))
    }

    /// Removes the failures of these jobs that are older than a success. There can be hundreds of thousands, too many for one statement.
    pub(in crate::sql) async fn remove_overtaken_dead_letters(&self, jobs: &[JobId]) -> Result<()> {
        for chunk in chunks(jobs) {
            loop {
                let find_query = Query::new(&FIND_OVERTAKEN_DEAD_LETTERS).list(chunk.iter().map(|job| job.get()));
                let find_query = find_query.int(i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX));
                let run_ids = read_ids(&self.rows(find_query).await?, "dead_letter", "run_id")?;
                let is_last = run_ids.len() < CHUNK_MAX;
                if !run_ids.is_empty() {
                    self.execute(Query::new(&DELETE_DEAD_LETTERS).list(run_ids.into_iter())).await?;
                }
                if is_last {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Tx<'_> {
    /// Records the runs among these that failed for good.
    pub(in crate::sql) async fn insert_dead_letters(&mut self, runs: &[RunId]) -> Result<()> {
        for chunk in chunks(runs) {
            self.execute(Query::new(&INSERT_DEAD_LETTERS).list(chunk.iter().map(|run| run.get()))).await?;
        }
        Ok(())
    }

    /// Removes the entries of these runs.
    pub(in crate::sql) async fn delete_dead_letters(&mut self, runs: &[RunId]) -> Result<()> {
        for chunk in chunks(runs) {
            self.execute(Query::new(&DELETE_DEAD_LETTERS).list(chunk.iter().map(|run| run.get()))).await?;
        }
        Ok(())
    }
}
