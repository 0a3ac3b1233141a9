//! Facts about the host: its uptime, and its load for display. Zero where the host does not provide them.

use std::time::Duration;

use rondel_proto::v1::HostProcess;

/// Time since the host started; on Linux it includes the host's sleep.
pub(crate) fn uptime() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// Identifies this process to a server on the same host; `None` if the host does not provide the facts.
pub(crate) fn process() -> Option<HostProcess> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let pid_namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The process name in parentheses may contain spaces and parentheses, so fields are counted from the last `)`.
    let (_, fields) = stat.rsplit_once(')')?;
    let started_ticks = fields.split_whitespace().nth(19)?.parse().ok()?;
    let pid = i32::try_from(std::process::id()).ok()?;
    Some(HostProcess { boot_id, pid_namespace, pid, started_ticks })
}

/// Load average of the last minute, per processor.
pub(crate) fn cpu_load() -> f32 {
    let load_text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let one_minute_load: f32 = load_text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    let processor_count = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    one_minute_load / f32::from(u16::try_from(processor_count).unwrap_or(u16::MAX))
}

/// Resident memory of this process, in bytes.
pub(crate) fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line.and_then(|rss_text| rss_text.split_whitespace().next()?.parse().ok()).unwrap_or(0);
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
        let process = super::process().unwrap();
        assert!(process.boot_id.len() == 36 && process.pid_namespace > 0 && process.started_ticks > 0, "{process:?}");
        assert_eq!(u32::try_from(process.pid), Ok(std::process::id()));
    }
}
