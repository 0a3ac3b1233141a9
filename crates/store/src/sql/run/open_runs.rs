//! The open runs of some jobs that a node owns.
//!
//! PostgreSQL reads the index by job only if the statement asks for one job at a time, in the order of that index. Its statistics may be
//! from a time when few runs were open. It then expects a single open run of the node, and a statement with a list of jobs would read all
//! open runs.

use rondel_core::NodeId;

use crate::sql::dialect::Dialect;
use crate::sql::query::{CHUNK_MAX, Query, Statement};

pub(in crate::sql) const READ_OPEN_RUNS_OF_JOBS: Statement = Statement {
    name: "read_open_of_jobs",
    text: "SELECT id, job_id, due_at_ms FROM open_run WHERE job_id {in_list} AND node_id = ? AND node_epoch < ?",
};
const READ_OPEN_RUNS_OF_EACH_JOB: Statement = Statement {
    name: "read_open_of_each_job",
    text: "SELECT found.id, found.job_id, found.due_at_ms FROM {rows:i} CROSS JOIN {lateral} \
           (SELECT id, job_id, due_at_ms FROM open_run WHERE job_id >= v.column1 AND job_id <= v.column1 \
           AND node_id = ? AND node_epoch < ? ORDER BY job_id) AS found",
};
pub(in crate::sql) const READ_JOBS_WITH_OPEN_RUNS: Statement = Statement {
    name: "read_jobs_with_open",
    text: "SELECT DISTINCT job_id FROM open_run WHERE job_id {in_list} AND node_id = ? AND node_epoch < ?",
};
const READ_EACH_JOB_WITH_OPEN_RUNS: Statement = Statement {
    name: "read_each_job_with_open",
    text: "SELECT found.job_id FROM {rows:i} CROSS JOIN {lateral} \
           (SELECT job_id FROM open_run WHERE job_id >= v.column1 AND job_id <= v.column1 \
           AND node_id = ? AND node_epoch < ? ORDER BY job_id LIMIT 1) AS found",
};

/// The open runs of a node under epochs below `below_epoch`.
#[derive(Clone, Copy, Debug)]
pub(in crate::sql) struct OpenRunsOfNode {
    pub(in crate::sql) node: NodeId,
    pub(in crate::sql) below_epoch: i64,
}

impl OpenRunsOfNode {
    /// Queries that return the `id`, `job_id` and `due_at_ms` of these open runs, for some jobs.
    pub(in crate::sql) fn run_queries(self, dialect: Dialect, jobs: &[i64]) -> Vec<Query> {
        self.queries((&READ_OPEN_RUNS_OF_JOBS, &READ_OPEN_RUNS_OF_EACH_JOB), dialect, jobs)
    }

    /// Queries that return the `job_id` of those jobs that have such an open run. A job may be returned more than once.
    pub(in crate::sql) fn job_queries(self, dialect: Dialect, jobs: &[i64]) -> Vec<Query> {
        self.queries((&READ_JOBS_WITH_OPEN_RUNS, &READ_EACH_JOB_WITH_OPEN_RUNS), dialect, jobs)
    }

    fn queries(
        self,
        (of_all, of_each): (&'static Statement, &'static Statement),
        dialect: Dialect,
        jobs: &[i64],
    ) -> Vec<Query> {
        let query_of = |chunk: &[i64]| match dialect.has_lateral() {
            true => Query::new(of_each).rows(chunk, |query, job| query.int(*job)),
            false => Query::new(of_all).list(chunk.iter().copied()),
        };
        jobs.chunks(CHUNK_MAX).map(|chunk| query_of(chunk).int(self.node.get()).int(self.below_epoch)).collect()
    }
}
