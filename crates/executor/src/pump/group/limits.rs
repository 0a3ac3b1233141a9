//! The settings of a group, from its trigger.

use std::time::Duration;

use rondel_core::backoff::backoff;
use rondel_proto::v1;

/// Changes are reported at most this often.
pub(super) const REPORT_PERIOD: Duration = Duration::from_secs(1);
/// The longest wait after a failed select.
const SELECT_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// The shortest wait after a failed select, so that a database that is down is not queried without a pause.
const SELECT_BACKOFF_MIN: Duration = Duration::from_millis(100);

/// The longest period for which a row that failed for good is ignored, unless [`REST_GROWTH_MIN`] allows a longer one.
const REST_MAX: Duration = Duration::from_secs(60);
/// The longest period is at least this many times the row's first period, and at least this many times the time for
/// which the row was in work.
const REST_GROWTH_MIN: u32 = 8;

/// The settings of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many executions run at the same time.
    pub threads: usize,
    /// How many rows one select may return.
    pub fetch: usize,
    /// How many rows one execution gets.
    pub batch: usize,
    /// Whether each worker that runs out of rows fetches immediately; otherwise only the last one does.
    pub not_sleep: bool,
    /// The wait after a select that returned nothing to execute.
    pub idle: Duration,
    /// The wait after a select that returned rows to execute.
    pub pause: Duration,
    /// How long the release of an item may take.
    pub hand_over: Duration,
    /// Maximum number of retries of a failed row.
    pub row_retry_max: u32,
    /// The wait before the first retry of a row, doubled for each further one.
    pub row_backoff: Duration,
    /// The longest wait before a retry of a row.
    pub row_backoff_max: Duration,
}

impl Limits {
    /// The delay between the request to release an item and the abort of its remaining work. It is shorter than `hand_over`, so that
    /// the release still arrives in time.
    #[must_use]
    pub fn abort_after(&self) -> Duration {
        without_a_tenth(self.hand_over)
    }

    pub(super) fn row_backoff(&self, failure_count: u32) -> Duration {
        backoff(self.row_backoff, self.row_backoff_max, failure_count)
    }

    /// How long a row is ignored if a select returns it after it has failed for good for the `rest_count`-th time. The
    /// first period is at least `wait`, the back-off after the row's last failure. It is also long enough for the next
    /// select, which may come only after `pause` and then finds no row to execute, and for the report of that select.
    /// Otherwise, of several such rows one would always be in work, and the server would never see that the pump is
    /// empty. Each further period is twice as long. `time_in_work` is the time from the row's select to its last failure.
    pub(super) fn rest_period(&self, wait: Duration, time_in_work: Duration, rest_count: u32) -> Duration {
        let first_period = wait.max(self.idle).max(self.pause + REPORT_PERIOD * 2);
        let longest_period = first_period.max(time_in_work).saturating_mul(REST_GROWTH_MIN).max(REST_MAX);
        backoff(first_period, longest_period, rest_count)
    }

    pub(super) fn select_backoff(&self, failure_count: u32) -> Duration {
        backoff(self.row_backoff.max(SELECT_BACKOFF_MIN), SELECT_BACKOFF_MAX, failure_count)
    }
}

/// The length minus a tenth of it.
pub(crate) fn without_a_tenth(duration: Duration) -> Duration {
    duration.saturating_sub(duration / 10)
}

impl From<&v1::Pump> for Limits {
    fn from(pump: &v1::Pump) -> Self {
        let to_count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX).max(1);
        let to_duration = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        Self {
            threads: to_count(pump.threads),
            fetch: to_count(pump.fetch),
            batch: to_count(pump.batch),
            not_sleep: pump.not_sleep,
            // Servers never send 0. The minimum keeps a select that returned no rows from being repeated immediately.
            idle: to_duration(pump.idle_ms).max(Duration::from_millis(1)),
            pause: to_duration(pump.pause_ms),
            hand_over: to_duration(pump.hand_over_ms),
            row_retry_max: pump.row_retry_max,
            row_backoff: to_duration(pump.row_backoff_ms),
            row_backoff_max: to_duration(pump.row_backoff_max_ms.max(pump.row_backoff_ms)),
        }
    }
}
