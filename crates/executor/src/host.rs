//! What the host says of itself: how long it is up, and, for people, its load. Zero where it does not say it.

use std::time::Duration;

/// Time since the host started, its sleep included.
pub(crate) fn uptime() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// Load of the last minute per processor.
pub(crate) fn cpu_load() -> f32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let one_minute: f32 = load.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    one_minute / f32::from(u16::try_from(processors).unwrap_or(u16::MAX))
}

/// Resident memory of this process.
pub(crate) fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kib * 1024
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn the_host_is_read() {
        assert!(super::uptime() > super::Duration::ZERO);
        assert!(super::memory_bytes() > 100_000);
        assert!(super::cpu_load() >= 0.0);
    }
}
