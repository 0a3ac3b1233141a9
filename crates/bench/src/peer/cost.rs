//! What the peer's processes use in the window.

use super::report::PeerProcess;
use crate::BenchError;
use crate::usage::{self, Usage};

/// The processes that were named, each with its descendants.
#[derive(Debug)]
pub(crate) struct Processes(Vec<Process>);

#[derive(Debug)]
struct Process {
    pid: u32,
    name: String,
    /// The usage at the beginning of the window.
    usage_before: Usage,
    /// The largest memory so far, in bytes.
    peak_memory: u64,
}

impl Processes {
    /// Finds the processes; refuses a pid without a process.
    pub(crate) fn find(pids: &[u32]) -> Result<Self, BenchError> {
        let mut processes: Vec<Process> = Vec::new();
        for pid in pids {
            if processes.iter().any(|process| process.pid == *pid) {
                continue;
            }
            let refusal = || BenchError::refused(format!("--peer-pid: there is no process {pid}"));
            let name = usage::name(*pid).ok_or_else(refusal)?;
            processes.push(Process { pid: *pid, name, usage_before: Usage::default(), peak_memory: 0 });
        }
        Ok(Self(processes))
    }

    /// Starts to count: earlier usage is left out.
    pub(crate) fn begin(&mut self) {
        for process in &mut self.0 {
            process.usage_before = usage::of_tree(process.pid);
        }
    }

    /// Reads the memory of the processes, and keeps the largest value of each.
    pub(crate) fn sample(&mut self) {
        for process in &mut self.0 {
            let tree_memory = usage::memory_of_tree(process.pid);
            // The kernel may hide the shares of another user's process in shared pages, but it shows the resident size.
            let current_memory = if tree_memory == 0 { usage::memory(process.pid).0 } else { tree_memory };
            process.peak_memory = process.peak_memory.max(current_memory);
        }
    }

    /// What the processes used since [`Self::begin`].
    pub(crate) fn end(self) -> Result<Vec<PeerProcess>, BenchError> {
        let mut process_costs = Vec::new();
        for Process { pid, name, usage_before, peak_memory } in self.0 {
            if usage::name(pid).is_none() {
                let message = format!("--peer-pid: the process {pid} ({name}) ended during the measurement");
                return Err(BenchError::failed(message));
            }
            let cpu_s = usage::of_tree(pid).since(usage_before).cpu.as_secs_f64();
            process_costs.push(PeerProcess { pid, name, cpu_s, peak_mb: peak_memory as f64 / 1e6 });
        }
        Ok(process_costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_once() {
        let own = std::process::id();
        let mut processes = Processes::find(&[own, own]).unwrap();
        processes.begin();
        processes.sample();
        let used = processes.end().unwrap();
        assert_eq!(used.len(), 1);
        assert!(used[0].pid == own && used[0].peak_mb > 0.0 && !used[0].name.is_empty());
    }

    #[test]
    fn a_number_without_a_process_is_refused() {
        let refusal = Processes::find(&[0]).unwrap_err().to_string();
        assert_eq!(refusal, "--peer-pid: there is no process 0");
    }
}
