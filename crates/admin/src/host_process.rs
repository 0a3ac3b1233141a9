//! Executors on this host: the server detects that the process of such an executor has died, without waiting until the executor has been
//! silent for too long.
//!
//! Only the server's own observation counts. The hello must name a process of the same boot and pid namespace, and the server must find it
//! alive, with the same start time, when the hello arrives. If the server cannot read a value, it does not treat the process as gone.

use std::sync::OnceLock;
use std::time::Duration;

use rondel_proto::v1;
use rondel_store::cluster::HostProcess;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use tokio::time::sleep;

/// How long the server checks an executor's process after the executor's stream has ended, since the stream ends shortly before the process
/// does.
const CHECK_FOR: Duration = Duration::from_secs(5);
const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// The boot and the pid namespace of a process. The server can find a process by its pid only if both are the server's own.
#[derive(Debug, PartialEq, Eq)]
struct Host {
    boot_id: u128,
    pid_namespace: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Alive,
    Gone,
    /// The host does not show the process.
    Unknown,
}

/// The process that a hello names, if it is alive on this host.
pub(crate) fn find_living(process: Option<&v1::HostProcess>) -> Option<HostProcess> {
    let process = process?;
    let process = HostProcess {
        boot_id: parse_boot_id(&process.boot_id)?,
        pid_namespace: process.pid_namespace,
        pid: process.pid,
        started_ticks: process.started_ticks,
    };
    (is_on_this_host(process) && process_state(process) == ProcessState::Alive).then_some(process)
}

/// Whether the process belongs to this host and is gone.
pub(crate) fn is_gone(process: HostProcess) -> bool {
    is_on_this_host(process) && process_state(process) == ProcessState::Gone
}

/// Checks a process of this host for up to [`CHECK_FOR`]. True once the process is gone; false if it is still alive after that time, or if its
/// state cannot be read.
pub(crate) async fn is_gone_soon(process: HostProcess) -> bool {
    let mut time_left = CHECK_FOR;
    loop {
        match process_state(process) {
            ProcessState::Gone => return true,
            ProcessState::Unknown => return false,
            ProcessState::Alive if time_left.is_zero() => return false,
            ProcessState::Alive => sleep(CHECK_PERIOD).await,
        }
        time_left = time_left.saturating_sub(CHECK_PERIOD);
    }
}

fn is_on_this_host(process: HostProcess) -> bool {
    static OWN_HOST: OnceLock<Option<Host>> = OnceLock::new();
    let process_host = Host { boot_id: process.boot_id, pid_namespace: process.pid_namespace };
    OWN_HOST.get_or_init(Host::read).as_ref() == Some(&process_host)
}

fn process_state(process: HostProcess) -> ProcessState {
    // A pid that is not positive denotes a group of processes.
    let Some(pid) = Some(process.pid).filter(|pid| *pid > 0).and_then(Pid::from_raw) else {
        return ProcessState::Unknown;
    };
    // The host may hide a process's files, but not the answer to this signal.
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return ProcessState::Gone;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)).unwrap_or_default();
    let Some((state, started_ticks)) = read_stat(&stat) else { return ProcessState::Unknown };
    let is_zombie = matches!(state, "Z" | "X") && thread_count(process.pid).is_some_and(|count| count <= 1);
    if started_ticks != process.started_ticks || is_zombie { ProcessState::Gone } else { ProcessState::Alive }
}

/// The number of threads of a process. Other threads can outlive the first thread.
fn thread_count(pid: i32) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count())
}

/// Parses a boot id, which is a UUID.
fn parse_boot_id(text: &str) -> Option<u128> {
    u128::from_str_radix(&text.replace('-', ""), 16).ok().filter(|id| *id != 0)
}

impl Host {
    fn read() -> Option<Self> {
        let boot_id = parse_boot_id(std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim())?;
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let pid_namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
        Some(Self { boot_id, pid_namespace })
    }
}

/// Parses the state of a process and its start time in clock ticks. The process's name, in parentheses, may contain any character.
fn read_stat(stat: &str) -> Option<(&str, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn named(pid: u32) -> v1::HostProcess {
        let host = Host::read().unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, started_ticks) = read_stat(&stat).unwrap();
        let pid = i32::try_from(pid).unwrap();
        v1::HostProcess {
            boot_id: format!("{:032x}", host.boot_id),
            pid_namespace: host.pid_namespace,
            pid,
            started_ticks,
        }
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_is_gone_when_it_died_and_not_before() {
        let mut child = sleeper();
        let process = find_living(Some(&named(child.id()))).unwrap();
        assert!(!is_gone_soon(process).await);
        child.kill().unwrap();
        // The process counts as dead as soon as it is a zombie, before its parent has waited for it.
        while process_state(process) == ProcessState::Alive {
            std::thread::yield_now();
        }
        assert!(is_gone_soon(process).await);
        child.wait().unwrap();
        assert!(is_gone_soon(process).await);
    }

    #[test]
    fn nothing_is_known_of_processes_of_other_hosts_and_of_those_that_do_not_live() {
        let mut child = sleeper();
        let own = named(child.id());
        assert!(find_living(Some(&own)).is_some());
        for foreign in [
            v1::HostProcess { boot_id: "00000000-0000-4000-8000-000000000000".to_owned(), ..own.clone() },
            v1::HostProcess { pid_namespace: own.pid_namespace + 1, ..own.clone() },
            v1::HostProcess { started_ticks: own.started_ticks + 1, ..own.clone() },
            v1::HostProcess { pid: 0, ..own.clone() },
            v1::HostProcess { pid: -1, ..own.clone() },
            v1::HostProcess::default(),
        ] {
            assert_eq!(find_living(Some(&foreign)), None, "{foreign:?}");
        }
        assert_eq!(find_living(None), None);
        let seen = find_living(Some(&own)).unwrap();
        assert!(!is_gone(seen));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find_living(Some(&own)), None, "it was not seen alive");
        assert!(is_gone(seen));
        assert!(
            !is_gone(HostProcess { boot_id: seen.boot_id + 1, ..seen }),
            "it ran before the last boot, or elsewhere"
        );
        assert!(!is_gone(HostProcess { pid_namespace: seen.pid_namespace + 1, ..seen }));
    }

    #[test]
    fn the_name_of_a_process_may_contain_parentheses() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1";
        assert_eq!(read_stat(stat), Some(("S", 12_345)));
        assert_eq!(read_stat(""), None);
    }
}
