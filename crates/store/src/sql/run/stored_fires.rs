//! The fires of a job's schedules that have a row, as single instants and as spans.

use std::collections::HashMap;

use rondel_core::{JobId, Timestamp};
use sqlx::any::AnyRow;

use crate::Result;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};

/// The instant that the last row of each job reaches. Takes one index lookup per job. A run that was requested, or a child run, may come
/// after a span that reaches further: it counts as a row that reaches any instant.
pub(in crate::sql) const READ_LAST_INSTANTS: Statement = Statement {
    name: "read_last_instants",
    text: "SELECT v.column1 AS job_id, (SELECT CASE WHEN run.cause = 0 THEN COALESCE(run.span_end_at_ms, run.fire_at_ms) \
           ELSE 9223372036854775807 END FROM run WHERE run.job_id = v.column1 ORDER BY run.fire_at_ms DESC LIMIT 1) AS last_ms \
           FROM {rows:i}",
};
pub(in crate::sql) const READ_FIRES_WITH_ROWS: Statement = Statement {
    name: "read_fires_with_rows",
    text: "SELECT fire_at_ms, span_end_at_ms FROM run WHERE job_id = ? AND fire_at_ms >= ? AND fire_at_ms <= ? \
           AND cause = 0 AND shard_index IN (0, -1) AND parent_id IS NULL ORDER BY fire_at_ms LIMIT ?",
};
pub(in crate::sql) const READ_FIRES_OF_ROW_BEFORE: Statement = Statement {
    name: "read_fires_before",
    text: "SELECT fire_at_ms, span_end_at_ms FROM run WHERE job_id = ? AND fire_at_ms < ? \
           AND cause = 0 AND shard_index IN (0, -1) AND parent_id IS NULL ORDER BY fire_at_ms DESC LIMIT 1",
};

impl SqlStore {
    /// See [`crate::Claim::jobs_with_rows_from`].
    pub(super) async fn find_jobs_with_rows(&self, jobs: &[(JobId, Timestamp)]) -> Result<Vec<JobId>> {
        let mut found_jobs = Vec::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_LAST_INSTANTS).rows(chunk, |query, (job, _)| query.int(job.get()));
            let mut last_instants = HashMap::new();
            for row in self.rows(query).await? {
                let mut columns = Reader::new(&row, "run");
                last_instants.insert(JobId::new(columns.int("job_id")?), columns.opt_at("last_ms")?);
            }
            let reaches =
                |(job, from): &&(JobId, Timestamp)| last_instants.get(job).is_some_and(|at| *at >= Some(*from));
            found_jobs.extend(chunk.iter().filter(reaches).map(|(job, _)| *job));
        }
        Ok(found_jobs)
    }
}

impl Tx<'_> {
    /// Like [`crate::Claim::fires_with_rows`], without a limit.
    pub(in crate::sql) async fn fires_with_rows(
        &mut self,
        job: JobId,
        range: (Timestamp, Timestamp),
    ) -> Result<Vec<(Timestamp, Timestamp)>> {
        let [before, inside] = fires_with_rows_queries(job, range, u32::MAX);
        fires_of_rows((self.row(before).await?, self.rows(inside).await?), range.0, u32::MAX)
    }
}

/// The queries of the row before a range of instants, and of the rows inside.
pub(super) fn fires_with_rows_queries(job: JobId, (from, through): (Timestamp, Timestamp), limit: u32) -> [Query; 2] {
    [
        Query::new(&READ_FIRES_OF_ROW_BEFORE).int(job.get()).at(from),
        Query::new(&READ_FIRES_WITH_ROWS).int(job.get()).at(from).at(through).int(limit.into()),
    ]
}

/// Reads the answers to [`fires_with_rows_queries`] for a range that begins at `from`.
pub(super) fn fires_of_rows(
    (row_before, rows_inside): (Option<AnyRow>, Vec<AnyRow>),
    from: Timestamp,
    limit: u32,
) -> Result<Vec<(Timestamp, Timestamp)>> {
    let fires = |row: &AnyRow| {
        let mut columns = Reader::new(row, "run");
        let first = columns.at("fire_at_ms")?;
        Ok((first, columns.opt_at("span_end_at_ms")?.unwrap_or(first)))
    };
    let before = row_before.as_ref().map(fires).transpose()?.filter(|(_, last)| *last >= from);
    let inside: Vec<_> = rows_inside.iter().map(fires).collect::<Result<_>>()?;
    Ok(before.into_iter().chain(inside).take(usize::try_from(limit).unwrap_or(usize::MAX)).collect())
}
