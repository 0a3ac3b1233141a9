//! Metric series of individual jobs, up to a configured number of jobs; off by default.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rondel_core::{JobId, RunStatus, Timestamp};

/// Stored for an unknown instant.
const NEVER_SUCCEEDED: i64 = i64::MIN;
/// Stored for an unknown status.
const NO_STATUS: u8 = u8::MAX;

/// The results of a job's runs, as far as this node has seen them.
#[derive(Debug)]
pub(crate) struct JobSeries {
    namespace_name: String,
    succeeded_at_ms: AtomicI64,
    last_status: AtomicU8,
    /// How many runs failed, timed out or ended as unknown since the last success.
    failures: AtomicU64,
}

/// A snapshot of a job's series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JobSnapshot {
    pub(crate) job: JobId,
    pub(crate) namespace_name: String,
    pub(crate) succeeded_at: Option<Timestamp>,
    pub(crate) last_status: Option<RunStatus>,
    /// How many runs failed, timed out or ended as unknown since the last success.
    pub(crate) failures: u64,
}

impl JobSeries {
    fn new(namespace_name: &str) -> Self {
        Self {
            namespace_name: namespace_name.to_owned(),
            succeeded_at_ms: AtomicI64::new(NEVER_SUCCEEDED),
            last_status: AtomicU8::new(NO_STATUS),
            failures: AtomicU64::new(0),
        }
    }

    /// Records the verdict of a run of the job.
    pub(crate) fn record_verdict(&self, status: RunStatus, at: Timestamp) {
        self.last_status.store(status as u8, Ordering::Relaxed);
        match status {
            RunStatus::Succeeded => {
                self.succeeded_at_ms.fetch_max(at.as_millis(), Ordering::Relaxed);
                self.failures.store(0, Ordering::Relaxed);
            }
            RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown => {
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
            RunStatus::Pending
            | RunStatus::Waiting
            | RunStatus::Running
            | RunStatus::Cancelled
            | RunStatus::Skipped => {}
        }
    }

    /// Discards the values that depend on the order of the runs. While the job belongs to another node, this node does not see all of its
    /// runs.
    fn reset_order_dependent(&self) {
        self.last_status.store(NO_STATUS, Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
    }

    fn read(&self, job: JobId) -> JobSnapshot {
        let succeeded_at_ms = self.succeeded_at_ms.load(Ordering::Relaxed);
        JobSnapshot {
            job,
            namespace_name: self.namespace_name.clone(),
            succeeded_at: (succeeded_at_ms != NEVER_SUCCEEDED).then(|| Timestamp::from_millis(succeeded_at_ms)),
            last_status: RunStatus::ALL.get(usize::from(self.last_status.load(Ordering::Relaxed))).copied(),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}

/// The jobs that have series: the first jobs whose definitions this node read, up to the configured number.
#[derive(Debug, Default)]
pub(crate) struct JobSeriesTable {
    count_max: usize,
    series: Mutex<BTreeMap<JobId, Arc<JobSeries>>>,
}

impl JobSeriesTable {
    pub(crate) fn new(count_max: usize) -> Self {
        Self { count_max, series: Mutex::default() }
    }

    /// The series of a job, which is added if the job has none; `None` if it has none and the maximum is reached.
    pub(crate) fn of(&self, job: JobId, namespace_name: &str) -> Option<Arc<JobSeries>> {
        if self.count_max == 0 {
            return None;
        }
        let mut series_by_job = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(series) = series_by_job.get(&job) {
            return Some(Arc::clone(series));
        }
        if series_by_job.len() >= self.count_max {
            return None;
        }
        let series = Arc::new(JobSeries::new(namespace_name));
        series_by_job.insert(job, Arc::clone(&series));
        Some(series)
    }

    pub(crate) fn all(&self) -> Vec<JobSnapshot> {
        let series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.iter().map(|(job, series)| series.read(*job)).collect()
    }

    /// Discards the last verdict and the failures of a job that now belongs to another node.
    pub(crate) fn reset_order_dependent(&self, job: JobId) {
        if let Some(series) = self.series.lock().unwrap_or_else(PoisonError::into_inner).get(&job) {
            series.reset_order_dependent();
        }
    }

    /// Removes the series of a deleted job.
    pub(crate) fn forget(&self, job: JobId) {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: &str = "default";

    #[test]
    fn the_setting_bounds_the_number_of_jobs_with_series() {
        let jobs = JobSeriesTable::new(2);
        let of = |id: i64| jobs.of(JobId::new(id), DEFAULT);
        assert!(of(1).is_some() && of(2).is_some() && of(3).is_none());
        assert!(of(1).is_some());
        let known = || jobs.all().into_iter().map(|state| state.job.get()).collect::<Vec<_>>();
        assert_eq!(known(), [1, 2]);
        jobs.forget(JobId::new(1));
        assert!(of(3).is_some());
        assert_eq!(known(), [2, 3]);
        assert!(JobSeriesTable::default().of(JobId::new(1), DEFAULT).is_none());
    }

    #[test]
    fn failures_are_counted_until_the_next_success() {
        let series = JobSeries::new(DEFAULT);
        let at = Timestamp::from_secs;
        let read = || series.read(JobId::new(1));
        assert_eq!((read().last_status, read().succeeded_at, read().failures), (None, None, 0));
        series.record_verdict(RunStatus::Succeeded, at(5));
        series.record_verdict(RunStatus::Failed, at(6));
        series.record_verdict(RunStatus::Skipped, at(7));
        series.record_verdict(RunStatus::TimedOut, at(8));
        assert_eq!(
            (read().last_status, read().succeeded_at, read().failures),
            (Some(RunStatus::TimedOut), Some(at(5)), 2)
        );
        series.record_verdict(RunStatus::Succeeded, at(9));
        assert_eq!((read().succeeded_at, read().failures), (Some(at(9)), 0));
        series.record_verdict(RunStatus::Failed, at(10));
        series.reset_order_dependent();
        assert_eq!((read().last_status, read().succeeded_at, read().failures), (None, Some(at(9)), 0));
    }
}
