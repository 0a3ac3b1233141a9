//! The fires of a job's schedules that have a row, as single instants and as spans.

use std::collections::HashMap;

use rondel_core::{JobId, Timestamp};
use sqlx::any::AnyRow;

use crate::Result;
use crate::sql::Tx;
use crate::sql::query::{Query, Reader, Statement};

/// The planned instant of each job's last row, whatever its cause. Takes one index lookup per job.
pub(in crate::sql) const READ_LAST_INSTANTS: Statement = Statement {
    name: "read_last_instants",
    text: "SELECT v.column1 AS job_id, (SELECT run.fire_at_ms FROM run WHERE run.job_id = v.column1 \
           ORDER BY run.fire_at_ms DESC LIMIT 1) AS last_ms FROM {rows:i}",
};
pub(in crate::sql) const READ_FIRES_WITH_ROWS: Statement = Statement {
    name: "read_fires_with_rows",
    text: "SELECT fire_at_ms, span_end_at_ms FROM run WHERE job_id = ? AND fire_at_ms >= ? AND fire_at_ms <= ? \
           AND cause = 0 AND shard_index IN (0, -1) AND parent_id IS NULL ORDER BY fire_at_ms LIMIT ?",
};

impl Tx<'_> {
    /// Like [`crate::Claim::fires_with_rows`], without a limit.
    pub(in crate::sql) async fn fires_with_rows(
        &mut self,
        job: JobId,
        range: (Timestamp, Timestamp),
    ) -> Result<Vec<(Timestamp, Timestamp)>> {
        fires_of_rows(&self.rows(fires_with_rows_query(job, range, u32::MAX)).await?)
    }
}

/// The query of the last instants of the jobs in these pairs.
pub(super) fn last_instants_query(jobs: &[(JobId, Timestamp)]) -> Query {
    Query::new(&READ_LAST_INSTANTS).rows(jobs, |query, (job, _)| query.int(job.get()))
}

/// Which of these jobs have a row at or after the instant given for each, by the answer to [`last_instants_query`].
pub(super) fn jobs_with_rows_from(jobs: &[(JobId, Timestamp)], rows: &[AnyRow]) -> Result<Vec<JobId>> {
    let mut last_instants = HashMap::new();
    for row in rows {
        let mut columns = Reader::new(row, "run");
        last_instants.insert(JobId::new(columns.int("job_id")?), columns.opt_at("last_ms")?);
    }
    let has_row = |(job, from): &&(JobId, Timestamp)| last_instants.get(job).is_some_and(|at| *at >= Some(*from));
    Ok(jobs.iter().filter(has_row).map(|(job, _)| *job).collect())
}

pub(super) fn fires_with_rows_query(job: JobId, (from, through): (Timestamp, Timestamp), limit: u32) -> Query {
    Query::new(&READ_FIRES_WITH_ROWS).int(job.get()).at(from).at(through).int(limit.into())
}

/// Reads the answer to [`fires_with_rows_query`].
pub(super) fn fires_of_rows(rows: &[AnyRow]) -> Result<Vec<(Timestamp, Timestamp)>> {
    let fires = |row: &AnyRow| {
        let mut columns = Reader::new(row, "run");
        let first = columns.at("fire_at_ms")?;
        Ok((first, columns.opt_at("span_end_at_ms")?.unwrap_or(first)))
    };
    rows.iter().map(fires).collect()
}
