//! The rows of executors that speak XXL-JOB's protocol, in memory.

use std::collections::BTreeMap;

use rondel_core::{AppId, JobId};

use crate::xxl::{XxlExecutor, XxlRun};

/// The number before the first one that is assigned.
pub(super) const LAST_UNASSIGNED_NUMBER: i64 = 999_999_999;

#[derive(Debug, Default)]
pub(super) struct XxlRows {
    pub(super) executors: BTreeMap<(AppId, String), XxlExecutor>,
    /// The numbers by which executors know the jobs.
    pub(super) numbers: BTreeMap<JobId, i32>,
    /// The attempts, by the numbers by which executors know them.
    pub(super) runs: BTreeMap<i64, XxlRun>,
    pub(super) last_log_id: i64,
}

impl XxlRows {
    pub(super) fn job_number(&mut self, job: JobId) -> i32 {
        let next_number = LAST_UNASSIGNED_NUMBER + 1 + i64::try_from(self.numbers.len()).unwrap_or(i64::MAX);
        *self.numbers.entry(job).or_insert_with(|| i32::try_from(next_number).unwrap_or(i32::MAX))
    }
}
