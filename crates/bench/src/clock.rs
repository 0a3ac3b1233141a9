//! The host's clock. The database of a measurement runs on the same host, so it is the database's clock too.

use std::time::Duration;

use rondel_core::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The current time, in microseconds since 1970.
pub(crate) fn now_micros() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000)
}

/// The time since `planned_at`, in microseconds; negative before that instant.
pub(crate) fn micros_after(planned_at: Timestamp) -> i64 {
    now_micros().saturating_sub(planned_at.as_millis().saturating_mul(1_000))
}

/// The current time, in whole milliseconds.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_millis(now_micros().div_euclid(1_000))
}

/// Waits until this instant.
pub(crate) async fn sleep_until(at: Timestamp) {
    let remaining_micros = u64::try_from(-micros_after(at)).unwrap_or(0);
    tokio::time::sleep(Duration::from_micros(remaining_micros)).await;
}

/// The processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let cpu_time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(cpu_time.tv_sec).unwrap_or(0), u32::try_from(cpu_time.tv_nsec).unwrap_or(0))
}
