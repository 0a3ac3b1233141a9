//! Ends a child process together with everything that it started.
//!
//! Most processes are in the process group. A process that left the group is found in `/proc`, by its parents or by the marker
//! that every process of a run inherits in its environment. A process outside the group that has lost its parents *and*
//! has cleaned its environment is not found. Without `/proc`, only the group is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Child;

use crate::lifecycle::lock;

/// The variable that names a run's working directory. It is also the marker by which the run's processes are found.
pub(super) const WORK_DIR: &str = "RONDEL_WORK_DIR";

/// How many times all processes are listed and signalled, at most. Each pass finds the processes that were forked since
/// the previous pass.
const PASSES_MAX: usize = 16;

/// The wait between two checks whether the processes that were asked to end are gone.
const POLL_PERIOD: Duration = Duration::from_millis(50);

/// All processes of one run. Dropping this value kills them, unless it was disarmed.
#[derive(Debug)]
pub(super) struct ProcessTree {
    leader: Option<Pid>,
    environment_marker: Vec<u8>,
    /// Every process signalled so far, so that it is still recognised when its parents are gone.
    signalled_processes: Mutex<BTreeSet<ProcessKey>>,
}

impl ProcessTree {
    /// `child` must have been started as the leader of its own group, with `name=value` in its environment.
    pub(super) fn with_leader(child: &Child, name: &str, value: &str) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            leader: id.and_then(Pid::from_raw),
            environment_marker: format!("{name}={value}").into_bytes(),
            signalled_processes: Mutex::default(),
        }
    }

    /// Asks all processes to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM, 1);
    }

    /// Resolves once none of the processes is alive.
    pub(super) async fn wait_until_ended(&self) {
        let Some(leader) = self.leader else { return };
        while !self.living_members(leader, &list_processes()).is_empty() {
            tokio::time::sleep(POLL_PERIOD).await;
        }
    }

    /// The living processes that belong to the run.
    fn living_members(&self, leader: Pid, processes: &[Process]) -> BTreeSet<ProcessKey> {
        let signalled_members = lock(&self.signalled_processes).clone();
        with_descendants(processes, |process| {
            process.group == leader.as_raw_pid()
                || signalled_members.contains(&process.key)
                || process.has_variable(&self.environment_marker)
        })
    }

    /// Lets the processes that a child left in the background continue, because the child exited on its own.
    pub(super) fn disarm(mut self) {
        self.leader = None;
    }

    /// Signals processes in at most `passes` passes, until a pass finds no new one: a process can fork until SIGKILL is
    /// pending for it. Each pass lists all processes before it signals any, because the children of an ended parent
    /// cannot be traced.
    fn signal(&self, signal: Signal, passes: usize) {
        let Some(leader) = self.leader else { return };
        let mut signalled_members = BTreeSet::new();
        for pass in 0..passes {
            let processes = list_processes();
            let members = self.living_members(leader, &processes);
            let new_members: Vec<ProcessKey> = members.difference(&signalled_members).copied().collect();
            // Without `/proc` no process is found, but the group must still get the signal.
            if new_members.is_empty() && pass > 0 {
                break;
            }
            match kill_process_group(leader, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => tracing::warn!(%error, group = %leader, "cannot signal a process group"),
            }
            // Only the processes outside the group are signalled one by one: the group has just got the signal, and
            // many programs take a second SIGTERM as a request to end immediately, without cleaning up.
            let ungrouped_members = members_outside_group(&processes, leader.as_raw_pid(), &new_members);
            ungrouped_members.for_each(|process| send_signal(process, signal));
            signalled_members.extend(new_members);
        }
        lock(&self.signalled_processes).extend(signalled_members);
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.signal(Signal::KILL, PASSES_MAX);
    }
}

/// Kills every process whose variable `name` has a value that starts with `value_start`, and the descendants of these
/// processes. Returns their number.
pub(super) fn kill_with_variable(name: &str, value_start: &str) -> usize {
    let marker = format!("{name}={value_start}").into_bytes();
    let mut signalled_processes = BTreeSet::new();
    for _ in 0..PASSES_MAX {
        let marked_processes = with_descendants(&list_processes(), |process| {
            signalled_processes.contains(&process.key) || process.has_variable_start(&marker)
        });
        let new_processes: Vec<ProcessKey> = marked_processes.difference(&signalled_processes).copied().collect();
        if new_processes.is_empty() {
            break;
        }
        new_processes.iter().for_each(|process| send_signal(*process, Signal::KILL));
        signalled_processes.extend(new_processes);
    }
    signalled_processes.len()
}

fn send_signal(process: ProcessKey, signal: Signal) {
    // The process may have ended by now, which is no failure. A process that has changed its user cannot be signalled,
    // unless the agent is root.
    if let Some(Err(error)) = Pid::from_raw(process.id).map(|pid| kill_process(pid, signal))
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(%error, process = process.id, "cannot signal a process of a run");
    }
}

/// The processes that match `is_member`, and all their descendants.
fn with_descendants(processes: &[Process], is_member: impl Fn(&Process) -> bool) -> BTreeSet<ProcessKey> {
    let mut found_processes: BTreeMap<i32, ProcessKey> = BTreeMap::new();
    found_processes
        .extend(processes.iter().filter(|process| is_member(process)).map(|process| (process.key.id, process.key)));
    loop {
        let count_before = found_processes.len();
        let children = processes.iter().filter(|process| found_processes.contains_key(&process.parent));
        let children: Vec<_> = children.map(|process| (process.key.id, process.key)).collect();
        found_processes.extend(children);
        if found_processes.len() == count_before {
            return found_processes.into_values().collect();
        }
    }
}

/// The processes of `members` that are not in the group.
fn members_outside_group(
    processes: &[Process],
    group: i32,
    members: &[ProcessKey],
) -> impl Iterator<Item = ProcessKey> {
    let is_in_group = move |key| processes.iter().any(|process| process.key == key && process.group == group);
    members.iter().copied().filter(move |key| !is_in_group(*key))
}

/// Identifies one process: the system reuses ids, but not with the same start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessKey {
    id: i32,
    /// When the process started, in clock ticks since the host's start.
    start_ticks: u64,
}

/// A process that is not a zombie.
struct Process {
    key: ProcessKey,
    parent: i32,
    group: i32,
}

impl Process {
    fn has_variable(&self, marker: &[u8]) -> bool {
        self.has_any_variable(|variable| variable == marker)
    }

    fn has_variable_start(&self, marker: &[u8]) -> bool {
        self.has_any_variable(|variable| variable.starts_with(marker))
    }

    /// Whether `is_match` is true for a variable of the process's environment. False for processes of other users,
    /// whose environment cannot be read.
    fn has_any_variable(&self, is_match: impl Fn(&[u8]) -> bool) -> bool {
        let environment_bytes = fs::read(format!("/proc/{}/environ", self.key.id));
        environment_bytes.is_ok_and(|environment| environment.split(|byte| *byte == 0).any(is_match))
    }
}

/// All processes except zombies and this process.
fn list_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let own_id = i32::try_from(std::process::id()).unwrap_or(0);
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| *id != own_id).filter_map(read_process).collect()
}

/// Parses "id (command) state parent group …". The command may contain any character, so fields are counted from the
/// last `)`. The start time is the 22nd field.
fn read_process(id: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let key = ProcessKey { id, start_ticks: fields.nth(16)?.parse().ok()? };
    (!matches!(state, "Z" | "X")).then_some(Process { key, parent, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_any_depth() {
        let process = |id, parent| Process { key: ProcessKey { id, start_ticks: 1 }, parent, group: 1 };
        let living = [process(5, 4), process(4, 3), process(3, 2), process(9, 1), process(2, 1)];
        let found = with_descendants(&living, |process| process.key.id == 3);
        assert_eq!(found.into_iter().map(|found| found.id).collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn processes_in_the_group_are_not_signalled_twice() {
        let process = |id, group| Process { key: ProcessKey { id, start_ticks: 1 }, parent: 1, group };
        let living = [process(7, 7), process(8, 7), process(9, 9)];
        let found = living.iter().map(|process| process.key).collect::<Vec<_>>();
        assert_eq!(members_outside_group(&living, 7, &found).map(|one| one.id).collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn no_process_has_a_marker_that_was_never_set() {
        assert_eq!(kill_with_variable("RONDEL_WORK_DIR", "/nowhere/at all"), 0);
    }
}
