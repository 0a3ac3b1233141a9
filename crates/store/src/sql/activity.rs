//! Reads, in one statement, the facts about a page of jobs from which their states follow.

use rondel_core::{JobId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use crate::Result;
use crate::rollups::{JobActivity, decides_failing};
use crate::sql::SqlStore;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};

/// Whether the job has an open run of this status.
macro_rules! has_run {
    ($status:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM open_run WHERE open_run.job_id = job_due.job_id AND open_run.status = '",
            $status,
            "')"
        )
    };
}

/// Each subquery stops at the first row that it finds, however many runs a job has. The search for the newest verdict goes back to the
/// first run before `since`. If it finds none, the verdict comes from `job_pulse`.
pub(super) const READ_ACTIVITY: Statement = Statement {
    name: "read_activity",
    text: concat!(
        "SELECT job_due.job_id, \
         (SELECT run.status FROM run WHERE run.job_id = job_due.job_id \
         AND (run.status IN ('succeeded', 'failed', 'timed_out', 'unknown') OR run.fire_at_ms < ?) \
         AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) ORDER BY run.fire_at_ms DESC LIMIT 1) AS newest, \
         COALESCE(job_pulse.streak_count, 0) AS streak_count, CASE WHEN ",
        has_run!("running"),
        " THEN 1 ELSE 0 END AS is_running, CASE WHEN {is_idle} AND NOT ",
        has_run!("pending"),
        " AND NOT ",
        has_run!("waiting"),
        " AND NOT ",
        has_run!("running"),
        " THEN 1 ELSE 0 END AS is_over \
         FROM job_due LEFT JOIN job_pulse ON job_pulse.job_id = job_due.job_id WHERE job_due.job_id {in_list}"
    ),
};

impl SqlStore {
    pub(super) async fn read_activity(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<JobActivity>> {
        let mut activities = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_ACTIVITY).at(since).list(chunk.iter().map(|job| job.get()));
            for row in self.rows(query).await? {
                activities.push(activity(&row)?);
            }
        }
        Ok(activities)
    }
}

fn activity(row: &AnyRow) -> Result<JobActivity> {
    let mut columns = Reader::new(row, "job_due");
    let job = JobId::new(columns.int("job_id")?);
    let newest_status: Option<RunStatus> = columns.opt_word("newest")?;
    let is_counted_failing = columns.int("streak_count")? > 0;
    Ok(JobActivity {
        job,
        is_failing: newest_status.and_then(decides_failing).unwrap_or(is_counted_failing),
        is_running: columns.int("is_running")? == 1,
        is_over: columns.int("is_over")? == 1,
    })
}
