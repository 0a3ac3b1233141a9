//! The open runs of one or some jobs at a node. Of the indexes of open runs, one is by job.
//!
//! PostgreSQL reads the index by job only if the statement asks for one job at a time, in the order of that index. Its statistics may be from
//! a time when few runs were open: by them, all open runs of the node are one row, and a statement with a list of jobs reads all of them.

use rondel_core::{JobId, NodeId, RunStatus};

use crate::sql::dialect::Dialect;
use crate::sql::query::{CHUNK_MAX, Query, Statement};
use crate::sql::rows::run_columns;

pub(in crate::sql) const OPEN: [RunStatus; 3] = [RunStatus::Pending, RunStatus::Waiting, RunStatus::Running];

pub(in crate::sql) const READ_OPEN_OF_JOBS: Statement = Statement {
    name: "read_open_of_jobs",
    text: "SELECT id, job_id, due_at_ms FROM run WHERE node_id = ? AND node_epoch < ? \
           AND status IN ('pending', 'waiting', 'running') AND job_id {in_list}",
};
const READ_OPEN_OF_EACH_JOB: Statement = Statement {
    name: "read_open_of_each_job",
    text: "SELECT found.id, found.job_id, found.due_at_ms FROM {rows:i} CROSS JOIN {lateral} \
           (SELECT id, job_id, due_at_ms FROM run WHERE node_id = ? AND status IN ('pending', 'waiting', 'running') \
           AND status = ? AND job_id >= v.column1 AND job_id <= v.column1 AND node_epoch < ? ORDER BY job_id) AS found",
};
pub(in crate::sql) const READ_JOBS_WITH_OPEN: Statement = Statement {
    name: "read_jobs_with_open",
    text: "SELECT DISTINCT job_id FROM run WHERE node_id = ? AND node_epoch < ? \
           AND status IN ('pending', 'waiting', 'running') AND job_id {in_list}",
};
const READ_EACH_JOB_WITH_OPEN: Statement = Statement {
    name: "read_each_job_with_open",
    text: "SELECT found.job_id FROM {rows:i} CROSS JOIN {lateral} \
           (SELECT job_id FROM run WHERE node_id = ? AND status IN ('pending', 'waiting', 'running') \
           AND status = ? AND job_id >= v.column1 AND job_id <= v.column1 AND node_epoch < ? \
           ORDER BY job_id LIMIT 1) AS found",
};

pub(in crate::sql) const READ_OPEN_OF_JOB: Statement = Statement {
    name: "read_open_of_job",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE node_id = ? AND status IN ('pending', 'waiting', 'running') \
         AND job_id = ? AND node_epoch = ? AND cancel_by IS NULL AND (? = 0 OR app_id = ?) ORDER BY id LIMIT ?"
    ),
};
/// Ordered twice: first as the index is, which PostgreSQL would not read otherwise.
const READ_OPEN_OF_JOB_BY_INDEX: Statement = Statement {
    name: "read_open_of_job_by_index",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM (SELECT ",
        run_columns!(),
        " FROM run WHERE node_id = ? AND status IN ('pending', 'waiting', 'running') \
         AND status = ? AND job_id >= ? AND job_id <= ? AND node_epoch = ? AND cancel_by IS NULL AND (? = 0 OR app_id = ?) \
         ORDER BY job_id) AS run ORDER BY id LIMIT ?"
    ),
};

/// Open runs of a node under one epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnLease {
    pub(super) node: NodeId,
    pub(super) epoch: i64,
}

impl OwnLease {
    /// Queries that find those of a job without a request to cancel, each at most `limit` in the order of their ids. With an app other
    /// than 0, only runs of that app.
    pub(super) fn of_job(self, dialect: Dialect, job: JobId, app: i64, limit: u32) -> Vec<Query> {
        let conditions = |query: Query| query.int(self.epoch).int(app).int(app).int(limit.into());
        let by_index = |status: &RunStatus| {
            let query = Query::new(&READ_OPEN_OF_JOB_BY_INDEX).int(self.node.get()).text(status.as_str());
            conditions(query.int(job.get()).int(job.get()))
        };
        if dialect.has_lateral() {
            OPEN.iter().map(by_index).collect()
        } else {
            vec![conditions(Query::new(&READ_OPEN_OF_JOB).int(self.node.get()).int(job.get()))]
        }
    }
}

/// Open runs of a node under the epochs below one.
#[derive(Clone, Copy, Debug)]
pub(in crate::sql) struct OpenAt {
    pub(in crate::sql) node: NodeId,
    pub(in crate::sql) below_epoch: i64,
}

impl OpenAt {
    /// Queries that find `id`, `job_id` and `due_at_ms` of those of some jobs.
    pub(in crate::sql) fn of_jobs(self, dialect: Dialect, jobs: &[i64]) -> Vec<Query> {
        self.queries((&READ_OPEN_OF_JOBS, &READ_OPEN_OF_EACH_JOB), dialect, jobs)
    }

    /// Queries that find the `job_id` of those of some jobs that have any; a job may be found more than once.
    pub(in crate::sql) fn have_jobs(self, dialect: Dialect, jobs: &[i64]) -> Vec<Query> {
        self.queries((&READ_JOBS_WITH_OPEN, &READ_EACH_JOB_WITH_OPEN), dialect, jobs)
    }

    fn queries(
        self,
        (of_all, of_each): (&'static Statement, &'static Statement),
        dialect: Dialect,
        jobs: &[i64],
    ) -> Vec<Query> {
        let Self { node, below_epoch } = self;
        let of_all = |chunk: &[i64]| Query::new(of_all).int(node.get()).int(below_epoch).list(chunk.iter().copied());
        let of_each = |chunk: &[i64], status: RunStatus| {
            let rows = Query::new(of_each).rows(chunk, |query, job| query.int(*job));
            rows.int(node.get()).text(status.as_str()).int(below_epoch)
        };
        let queries = jobs.chunks(CHUNK_MAX).flat_map(|chunk| {
            if dialect.has_lateral() {
                OPEN.iter().map(|status| of_each(chunk, *status)).collect::<Vec<Query>>()
            } else {
                vec![of_all(chunk)]
            }
        });
        queries.collect()
    }
}
