//! The usage of processes as the kernel counts it: processor time, memory, bytes written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

/// What a process and its children have used so far, including children that ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Bytes that went to disk, or would have if the file had not been deleted first.
    pub(crate) written_bytes: u64,
}

impl Usage {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
        }
    }
}

/// The usage of one process, including the children that it has waited for.
pub(crate) fn of(pid: u32) -> Usage {
    read_stat(pid).map(|stat| Usage { cpu: stat.cpu, written_bytes: written_bytes(pid) }).unwrap_or_default()
}

/// The usage of a process and all its descendants, such as a database server.
pub(crate) fn of_tree(root: u32) -> Usage {
    let tree = process_tree(root);
    tree.iter().map(|pid| of(*pid)).fold(Usage::default(), |total, usage| Usage {
        cpu: total.cpu + usage.cpu,
        written_bytes: total.written_bytes + usage.written_bytes,
    })
}

/// The memory of a process and all its descendants, in bytes; shared pages are divided among their users.
pub(crate) fn memory_of_tree(root: u32) -> u64 {
    process_tree(root).iter().map(|pid| read_size(&format!("/proc/{pid}/smaps_rollup"), "Pss:")).sum()
}

/// The current and the peak memory of a process, in bytes.
pub(crate) fn memory(pid: u32) -> (u64, u64) {
    let path = format!("/proc/{pid}/status");
    (read_size(&path, "VmRSS:"), read_size(&path, "VmHWM:"))
}

/// The name of a process; `None` if there is no such process.
pub(crate) fn name(pid: u32) -> Option<String> {
    read_stat(pid)?;
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned())
}

/// Resets the peak of this process's memory.
pub(crate) fn reset_peak() {
    if let Err(error) = fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!(%error, "the peak of memory includes the preparation");
    }
}

/// The load of the machine over 1, 5 and 15 minutes, as `uptime` shows it.
pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Reads the value of a line, which is in kilobytes; returns it in bytes, or 0 if there is no such line.
fn read_size(path: &str, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn written_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    io_count(&text, "write_bytes").unwrap_or(0)
}

/// Bytes that the threads of this process whose names begin with `name_start` have written, whether or not they have reached the disk. The
/// count includes the few bytes with which these threads wake others. `None` if there is no such thread, or if one cannot be read.
pub(crate) fn bytes_of_threads(name_start: &str) -> Option<u64> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().map(|entry| entry.path());
    let has_name =
        |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with(name_start));
    let bytes = |path: PathBuf| io_count(&fs::read_to_string(path.join("io")).ok()?, "wchar");
    threads.filter(has_name).map(bytes).reduce(|sum, bytes| Some(sum? + bytes?)).flatten()
}

/// The value of a line in an `io` file of `/proc`.
fn io_count(text: &str, name: &str) -> Option<u64> {
    let values = text.lines().filter_map(|line| line.split_once(": "));
    values.filter(|(line_name, _)| *line_name == name).find_map(|(_, value)| value.parse().ok())
}

struct Stat {
    parent: u32,
    cpu: Duration,
}

fn read_stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything.
    let (_, after_name) = text.rsplit_once(") ")?;
    let fields: Vec<&str> = after_name.split(' ').collect();
    // `utime`, `stime`, `cutime` and `cstime`.
    let ticks: u64 = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    let cpu = Duration::from_millis(ticks * 1_000 / clock_ticks_per_second().max(1));
    Some(Stat { parent: fields.get(1)?.parse().ok()?, cpu })
}

fn process_tree(root: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, read_stat(pid)?))) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut known_pids = BTreeSet::new();
    let mut unread_pids = vec![root];
    while let Some(pid) = unread_pids.pop() {
        if known_pids.insert(pid) {
            unread_pids.extend(children.get(&pid).into_iter().flatten());
        }
    }
    known_pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let pid = std::process::id();
        let (now, peak) = memory(pid);
        assert!(now > 0 && peak >= now);
        assert!(process_tree(pid).contains(&pid));
        assert!(memory_of_tree(pid) > 0);
        assert!(read_stat(pid).is_some_and(|stat| stat.parent > 0));
        assert_eq!(load().split(' ').count(), 3);
        assert!(name(pid).is_some_and(|name| !name.is_empty()));
        assert_eq!(name(0), None);
    }

    #[test]
    fn the_bytes_of_threads_are_counted_by_name() {
        let thread = std::thread::Builder::new().name("usage-test-writer".to_owned());
        let (written, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let writer = thread.spawn_scoped(scope, || {
                fs::write("/dev/null", [0; 10_000]).unwrap();
                written.wait();
                end.wait();
            });
            written.wait();
            let bytes = bytes_of_threads("usage-test-writ");
            end.wait();
            writer.unwrap().join().unwrap();
            assert!(bytes >= Some(10_000), "{bytes:?}");
        });
        assert_eq!(bytes_of_threads("no-such-thread"), None);
    }

    #[test]
    fn values_of_io_files_are_found_by_name() {
        let text = "rchar: 5\nwchar: 17\nsyscw: many\nread_bytes: 0\nwrite_bytes: 4096\n";
        for (name, expected) in
            [("wchar", Some(17)), ("write_bytes", Some(4_096)), ("syscw", None), ("bytes", None), ("", None)]
        {
            assert_eq!(io_count(text, name), expected, "{name}");
        }
    }
}
