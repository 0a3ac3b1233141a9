//! The report of a measurement of another server, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::report::{Lateness, Lines, lateness_text};

/// One measurement of another server.
#[derive(Clone, Debug, Serialize)]
pub struct PeerReport {
    /// The kind of the server, and its version as far as it is known.
    pub peer: String,
    /// The URL that its executors call.
    pub url: String,
    /// Version of the program that made the measurement.
    pub version: &'static str,
    /// The number of jobs.
    pub jobs: u32,
    /// The length of the measured window, in seconds.
    pub seconds: f64,
    /// The number of executors.
    pub executors: u32,
    /// How long the creation and the start of the jobs took, in seconds.
    pub create_s: f64,
    /// The host's load over 1, 5 and 15 minutes, before the measurement.
    pub load_before: String,
    /// Results that the server acknowledged per second of the window.
    pub runs_per_second: f64,
    /// The delay from the planned second to the start.
    pub start_lateness: Lateness,
    /// The lateness of a thread that only slept.
    pub witness: Lateness,
    /// What became of the fires.
    pub counts: PeerCounts,
    /// Processor time of the window.
    pub cpu: PeerCpu,
    /// The server's processes that were named.
    pub processes: Vec<PeerProcess>,
    /// What could not be removed from the server; `None` if all was.
    pub left_behind: Option<String>,
}

/// What became of the fires.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PeerCounts {
    /// The number of fires planned in the window.
    pub planned: u64,
    /// Planned fires whose run started.
    pub started: u64,
    /// Planned fires whose run started in a later second than the planned one.
    pub started_late: u64,
    /// Planned fires without a start.
    pub missing: u64,
    /// Further starts of fires whose run had already started.
    pub repeated: u64,
    /// Starts before their planned second.
    pub early: u64,
    /// Results that the server acknowledged in the window.
    pub acknowledged: u64,
    /// Starts during the whole measurement, including warm-up and end.
    pub started_in_all: u64,
}

/// Seconds of processor time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PeerCpu {
    /// Used by the server's processes, if any was named.
    pub peer_s: Option<f64>,
    /// Used by the executors, which are in the measuring process.
    pub executors_s: f64,
    /// Used by the server's processes per thousand runs.
    pub peer_per_1000_runs_s: Option<f64>,
    /// Used by the executors per thousand runs.
    pub executors_per_1000_runs_s: f64,
}

impl PeerCpu {
    pub(crate) fn new(processes: &[PeerProcess], executors_s: f64, run_count: u64) -> Self {
        let per_1000 = |seconds: f64| if run_count == 0 { 0.0 } else { seconds / run_count as f64 * 1_000.0 };
        let peer_s = (!processes.is_empty()).then(|| processes.iter().map(|process| process.cpu_s).sum::<f64>());
        Self {
            peer_s,
            executors_s,
            peer_per_1000_runs_s: peer_s.map(per_1000),
            executors_per_1000_runs_s: per_1000(executors_s),
        }
    }
}

/// A process of the server with its descendants.
#[derive(Clone, Debug, Serialize)]
pub struct PeerProcess {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its processor time in the window, in seconds.
    pub cpu_s: f64,
    /// Its largest memory in the window, in megabytes (10⁶ bytes), read once a second.
    pub peak_mb: f64,
}

impl PeerReport {
    /// The report as lines of names and values.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Lines::default();
        lines.add("peer", format!("{} at {}", self.peer, self.url));
        lines.add("load before", &self.load_before);
        lines.add("jobs", format!("{}, created and started in {:.1} s", self.jobs, self.create_s));
        lines.add("executors", format!("{} of XXL-JOB's protocol, in this process", self.executors));
        lines.add("measured", format!("{:.1} s", self.seconds));
        lines.add("runs per second", format!("{:.0}, results acknowledged", self.runs_per_second));
        lines.add("start late", lateness_text(&self.start_lateness));
        let PeerCounts { planned, started, started_late, missing, repeated, early, .. } = self.counts;
        let mut text =
            format!("{planned} planned, {started} started, {missing} missing, {repeated} repeated, {early} early");
        if started_late > 0 {
            write!(text, "; {started_late} started a second or more late").ok();
        }
        lines.add("fires", text);
        lines.add("with warm-up and end", format!("{} started", self.counts.started_in_all));
        lines.add("witness late", lateness_text(&self.witness));
        self.add_cost_lines(&mut lines);
        if let Some(left_behind) = &self.left_behind {
            lines.add("left behind", left_behind);
        }
        lines.0
    }

    fn add_cost_lines(&self, lines: &mut Lines) {
        let cpu = &self.cpu;
        let mut parts: Vec<String> = self
            .processes
            .iter()
            .map(|process| format!("{} {} {:.2} s", process.name, process.pid, process.cpu_s))
            .collect();
        parts.push(format!("executors {:.2} s", cpu.executors_s));
        let peer = cpu.peer_per_1000_runs_s.map(|seconds| format!("peer {seconds:.3} s, ")).unwrap_or_default();
        let per_1000 = format!("{peer}executors {:.3} s for 1000 runs", cpu.executors_per_1000_runs_s);
        lines.add("processor", format!("{}; {per_1000}", parts.join(", ")));
        if !self.processes.is_empty() {
            let peaks = self
                .processes
                .iter()
                .map(|process| format!("{} {} peak {:.1} MB", process.name, process.pid, process.peak_mb));
            lines.add("memory", peaks.collect::<Vec<_>>().join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(processes: Vec<PeerProcess>) -> PeerReport {
        PeerReport {
            peer: "ratch-job 0.2.1".to_owned(),
            url: "http://127.0.0.1:8725/xxl-job-admin".to_owned(),
            version: "0.0.0",
            jobs: 100,
            seconds: 20.0,
            executors: 4,
            create_s: 0.5,
            load_before: "0.1 0.2 0.3".to_owned(),
            runs_per_second: 99.5,
            start_lateness: Lateness::default(),
            witness: Lateness::default(),
            counts: PeerCounts {
                planned: 2_000,
                started: 1_999,
                missing: 1,
                acknowledged: 2_000,
                ..PeerCounts::default()
            },
            cpu: PeerCpu::new(&processes, 0.2, 2_000),
            processes,
            left_behind: None,
        }
    }

    fn line(report: &PeerReport, name: &str) -> Option<String> {
        report.lines().into_iter().find(|(line_name, _)| line_name == name).map(|(_, text)| text)
    }

    #[test]
    fn costs_are_those_of_the_named_processes() {
        let process = |pid, name: &str, cpu_s| PeerProcess { pid, name: name.to_owned(), cpu_s, peak_mb: 50.0 };
        let with = report(vec![process(7, "java", 3.0), process(9, "mysqld", 1.0)]);
        let processor =
            "java 7 3.00 s, mysqld 9 1.00 s, executors 0.20 s; peer 2.000 s, executors 0.100 s for 1000 runs";
        assert_eq!(line(&with, "processor").as_deref(), Some(processor));
        assert_eq!(line(&with, "memory").as_deref(), Some("java 7 peak 50.0 MB, mysqld 9 peak 50.0 MB"));

        let without = report(Vec::new());
        assert_eq!((without.cpu.peer_s, without.cpu.peer_per_1000_runs_s), (None, None));
        assert_eq!(line(&without, "processor").as_deref(), Some("executors 0.20 s; executors 0.100 s for 1000 runs"));
        assert_eq!(line(&without, "memory"), None);
        assert_eq!(PeerCpu::new(&[], 1.0, 0).executors_per_1000_runs_s, 0.0);
    }

    #[test]
    fn fires_and_leftovers_are_shown() {
        let mut report = report(Vec::new());
        let fires = "2000 planned, 1999 started, 1 missing, 0 repeated, 0 early";
        assert_eq!(line(&report, "fires").as_deref(), Some(fires));
        assert_eq!(line(&report, "left behind"), None);
        report.counts.started_late = 3;
        report.left_behind = Some("the app".to_owned());
        assert!(line(&report, "fires").is_some_and(|text| text.ends_with("; 3 started a second or more late")));
        assert_eq!(line(&report, "left behind").as_deref(), Some("the app"));
    }
}
