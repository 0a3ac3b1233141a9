//! Metrics of the process itself, as its host reports them, under the names that are usual for Prometheus.

use std::fs;

use super::family::Family;

/// The metrics whose values could be read; none without `/proc`.
pub(crate) fn families() -> Vec<Family> {
    let mut families = Vec::new();
    if let Some(usage) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Usage::parse) {
        let ticks_per_second = to_f64(rustix::param::clock_ticks_per_second());
        let page_bytes = f64::from(u32::try_from(rustix::param::page_size()).unwrap_or(4_096));
        families.push(Family::seconds(
            "process_cpu_seconds",
            "Time on a processor",
            to_f64(usage.cpu_ticks) / ticks_per_second,
        ));
        families.push(Family::gauge(
            "process_resident_memory_bytes",
            "Memory that is in use",
            to_f64(usage.resident_pages) * page_bytes,
        ));
        if let Some(booted_at) = booted_at() {
            let started_at = booted_at + to_f64(usage.start_ticks) / ticks_per_second;
            families.push(Family::gauge("process_start_time_seconds", "When the process started", started_at));
        }
    }
    if let Ok(open_files) = fs::read_dir("/proc/self/fd") {
        let count = f64::from(u32::try_from(open_files.count()).unwrap_or(u32::MAX));
        families.push(Family::gauge("process_open_fds", "Open files and connections", count));
    }
    families
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float, and 2^53 is far away")]
const fn to_f64(number: u64) -> f64 {
    number as f64
}

#[derive(Debug, PartialEq, Eq)]
struct Usage {
    cpu_ticks: u64,
    start_ticks: u64,
    resident_pages: u64,
}

impl Usage {
    /// Parses `/proc/self/stat`: "id (command) state …"; the command may contain any character. Counted from the state, which is field 1,
    /// fields 12 and 13 are processor times, field 20 is the start, field 22 the memory.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field_value = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field_value(11)? + field_value(12)?,
            start_ticks: field_value(19)?,
            resident_pages: field_value(21)?,
        })
    }
}

fn booted_at() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_with_any_command_name() {
        let line = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 13 14 15 16 17 18 5000 19 321 22";
        assert_eq!(Usage::parse(line), Some(Usage { cpu_ticks: 120, start_ticks: 5_000, resident_pages: 321 }));
        assert_eq!(Usage::parse("7 (a) S 1"), None);
    }

    #[test]
    fn this_process_is_measured() {
        assert_eq!(families().len(), 4);
    }
}
