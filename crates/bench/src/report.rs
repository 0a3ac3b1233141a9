//! The report of a measurement, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::database_work::DatabaseWork;
use crate::histogram::Histogram;
use crate::plan::{Flood, Mode};

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The kind of measurement.
    pub mode: Mode,
    /// The database, without its password.
    pub database: String,
    /// Version of the program.
    pub version: &'static str,
    /// The number of jobs.
    pub jobs: u32,
    /// The length of the measured window, in seconds.
    pub seconds: f64,
    /// The number of servers.
    pub nodes: u32,
    /// How often servers tried to claim a job, including during the warm-up.
    pub claims_tried: u64,
    /// How many of these tries failed, because another server had locked the job or had already moved its next fire.
    pub claims_lost: u64,
    /// The number of executors.
    pub executors: u32,
    /// How many runs each executor took at the same time.
    pub slots: u32,
    /// Whether executors had processes of their own.
    pub separate: bool,
    /// Where an additional run printed without end.
    pub flood: Option<Flood>,
    /// How long the creation of the jobs took, in seconds.
    pub create_s: f64,
    /// The host's load over 1, 5 and 15 minutes, before the measurement.
    pub load_before: String,
    /// Verdicts that became durable per second of the window.
    pub runs_per_second: f64,
    /// The delay between the planned instant and the handler's start.
    pub start_lateness: Lateness,
    /// The delay between the planned instant and the commit of the verdict, for the last run of each instant.
    pub durability: Durability,
    /// The lateness of a thread that only slept.
    pub witness: Lateness,
    /// What happened to the runs.
    pub counts: Counts,
    /// Processor time of the window.
    pub cpu: Cpu,
    /// Memory at the end of the window.
    pub memory: Memory,
    /// Calls of the store in the window, those with the largest total time first.
    pub calls: Vec<StoreCall>,
    /// What the runs cost the database, by its own counts: from before the first fire until the servers had stopped.
    pub database_work: DatabaseWork,
    /// The probe of the database alone.
    pub probe: Option<Probe>,
}

/// Lateness in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Lateness {
    /// The number of values.
    pub count: u64,
    /// The median.
    pub p50_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The 99.9th percentile.
    pub p999_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

/// The delay between a planned instant and the commit of the last verdict for it, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Durability {
    /// The median over all instants.
    pub p50_ms: f64,
    /// The maximum over all instants.
    pub max_ms: f64,
}

/// What happened to the runs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// The number of fires planned in the window.
    pub planned: u64,
    /// Planned fires that were claimed.
    pub claimed: u64,
    /// Handler starts for fires planned in the window, including the starts of further attempts.
    pub started: u64,
    /// Planned fires with a durable verdict.
    pub durable: u64,
    /// Starts during the whole measurement, including warm-up and end.
    pub started_in_all: u64,
    /// Durable verdicts during the whole measurement.
    pub durable_in_all: u64,
    /// Answers other than a stored verdict: duplicates, late results, refused ones, and ends that another attempt follows.
    pub other_answers: u64,
    /// Starts of attempts beyond the first.
    pub repeated: u64,
    /// Starts before their planned instant.
    pub early: u64,
}

/// Seconds of processor time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cpu {
    /// Used by the server, including executors in its process.
    pub server_s: f64,
    /// Used by the executors, if they have processes of their own.
    pub executors_s: Option<f64>,
    /// Used by the database server, if its process was named.
    pub database_s: Option<f64>,
    /// Used by all known processes per thousand runs.
    pub per_1000_runs_s: f64,
    /// Bytes that the server's process wrote to disk per run; with SQLite, most of them belong to the database's file.
    pub server_bytes_per_run: f64,
    /// Bytes that the database server wrote to disk per run.
    pub database_bytes_per_run: Option<f64>,
}

/// Memory in megabytes (10⁶ bytes).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// The server's memory at the end of the window, including executors in its process.
    pub server_mb: f64,
    /// The server's peak in the window.
    pub server_peak_mb: f64,
    /// The peak of the largest executor, if they have processes of their own.
    pub executor_peak_mb: Option<f64>,
    /// The database server's memory, with each shared page counted once.
    pub database_mb: Option<f64>,
}

/// The calls of one method of the store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreCall {
    /// The method of the store.
    pub name: &'static str,
    /// The number of calls.
    pub calls: u64,
    /// Rows passed to these calls, where they were counted.
    pub rows: u64,
    /// The total time of the calls, in seconds.
    pub total_s: f64,
    /// The mean time of a call, in milliseconds.
    pub mean_ms: f64,
    /// The longest time of a call, in milliseconds.
    pub max_ms: f64,
}

/// What the database alone achieved: claims and results in batches of 500.
#[derive(Clone, Debug, Serialize)]
pub struct Probe {
    /// Before the measurement.
    pub before: Vec<ProbeLane>,
    /// After the measurement.
    pub after: Vec<ProbeLane>,
    /// The best rate of all lanes, in runs per second.
    pub best: f64,
    /// The measurement's runs per second, divided by `best`; `None` for a burst, whose claims come before the measured
    /// time.
    pub ratio: Option<f64>,
}

/// What a probe with this number of lanes measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ProbeLane {
    /// The number of transactions at the same time.
    pub lanes: u32,
    /// Runs claimed and ended per second.
    pub runs_per_second: f64,
    /// Duration of a claim of 500 runs, in milliseconds.
    pub claim_ms: f64,
    /// Duration of storing 500 results, in milliseconds.
    pub finish_ms: f64,
    /// Processor time of the client per thousand runs, including SQLite's.
    pub client_cpu_s_per_1000: f64,
    /// Processor time of the database server per thousand runs.
    pub database_cpu_s_per_1000: Option<f64>,
    /// Bytes that the database server wrote per run.
    pub database_bytes_per_run: Option<f64>,
}

impl From<&Histogram> for Lateness {
    fn from(histogram: &Histogram) -> Self {
        let ms = |micros: u64| micros as f64 / 1_000.0;
        Self {
            count: histogram.count(),
            p50_ms: ms(histogram.quantile(500)),
            p99_ms: ms(histogram.quantile(990)),
            p999_ms: ms(histogram.quantile(999)),
            max_ms: ms(histogram.max()),
        }
    }
}

impl Probe {
    pub(crate) fn new(before: Vec<ProbeLane>, after: Vec<ProbeLane>, runs_per_second: Option<f64>) -> Self {
        let best = before.iter().chain(&after).map(|lane| lane.runs_per_second).fold(0.0, f64::max);
        Self { before, after, best, ratio: runs_per_second.map(|rate| rate / best.max(1.0)) }
    }
}

impl Report {
    /// Adds what the probes found before and after; nothing if there were none.
    pub(crate) fn add_probe(&mut self, before: Vec<ProbeLane>, after: Vec<ProbeLane>) {
        let rate = (self.mode == Mode::Steady).then_some(self.runs_per_second);
        self.probe = (!before.is_empty() || !after.is_empty()).then(|| Probe::new(before, after, rate));
    }

    /// The report as lines of names and values.
    #[must_use]
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines = Lines::default();
        let placement = if self.separate { "each a process" } else { "in the server's process" };
        lines.add("database", &self.database);
        lines.add("load before", &self.load_before);
        lines.add("jobs", format!("{}, created in {:.1} s", self.jobs, self.create_s));
        if self.nodes > 1 {
            let lost_percent = 100.0 * self.claims_lost as f64 / self.claims_tried.max(1) as f64;
            let text = format!(
                "{}; {} claims, {} lost ({lost_percent:.2} %)",
                self.nodes, self.claims_tried, self.claims_lost
            );
            lines.add("servers", text);
        }
        lines.add("executors", format!("{} with {} slots, {placement}", self.executors, self.slots));
        match self.flood {
            Some(Flood::Log) => lines.add("beside them", "a run that prints into its log without end"),
            Some(Flood::Null) => lines.add("beside them", "a run that prints to /dev/null without end"),
            None => {}
        }
        lines.add("measured", format!("{:.1} s", self.seconds));
        if self.mode != Mode::Idle {
            self.add_run_lines(&mut lines);
        }
        lines.add("witness late", lateness_text(&self.witness));
        self.add_cost_lines(&mut lines);
        for call in &self.calls {
            let rows = if call.rows == 0 { String::new() } else { format!(", {} rows", call.rows) };
            let text = format!("{} calls{rows}, mean {:.2} ms, max {:.1} ms", call.calls, call.mean_ms, call.max_ms);
            lines.add(&format!("store {}", call.name), text);
        }
        lines.0.extend(self.database_work.lines());
        if let Some(probe) = &self.probe {
            probe.add_lines(&mut lines);
        }
        lines.0
    }

    fn add_run_lines(&self, lines: &mut Lines) {
        let counts = &self.counts;
        lines.add("runs per second", format!("{:.0}, results durable", self.runs_per_second));
        lines.add("start late", lateness_text(&self.start_lateness));
        let durability = &self.durability;
        lines.add("last result durable", format!("p50 {:.1} ms, max {:.1} ms", durability.p50_ms, durability.max_ms));
        let Counts { planned, claimed, started, durable, .. } = counts;
        lines.add("fires", format!("{planned} planned, {claimed} claimed, {started} started, {durable} durable"));
        let (started_in_all, durable_in_all) = (counts.started_in_all, counts.durable_in_all);
        let unexpected_text =
            format!("{} repeated, {} early, {} odd", counts.repeated, counts.early, counts.other_answers);
        lines.add(
            "with warm-up and end",
            format!("{started_in_all} started, {durable_in_all} durable, {unexpected_text}"),
        );
    }

    fn add_cost_lines(&self, lines: &mut Lines) {
        let cpu = &self.cpu;
        let mut text = format!("server {:.2} s", cpu.server_s);
        let optional_values = [("executors", cpu.executors_s), ("database", cpu.database_s)];
        for (name, seconds) in optional_values.into_iter().filter_map(|(name, seconds)| Some((name, seconds?))) {
            write!(text, ", {name} {seconds:.2} s").ok();
        }
        if self.mode != Mode::Idle {
            write!(text, "; {:.3} s for 1000 runs", cpu.per_1000_runs_s).ok();
        }
        lines.add("processor", text);
        let memory = &self.memory;
        let mut text = format!("server {:.1} MB, peak {:.1} MB", memory.server_mb, memory.server_peak_mb);
        let optional_values = [("largest executor", memory.executor_peak_mb), ("database", memory.database_mb)];
        for (name, size) in optional_values.into_iter().filter_map(|(name, size)| Some((name, size?))) {
            write!(text, ", {name} {size:.1} MB").ok();
        }
        lines.add("memory", text);
        if self.mode != Mode::Idle {
            let database = cpu.database_bytes_per_run.map(|bytes| format!(", database {bytes:.0}"));
            let database = database.unwrap_or_default();
            lines.add("bytes written per run", format!("server {:.0}{database}", cpu.server_bytes_per_run));
        }
    }
}

impl Probe {
    fn add_lines(&self, lines: &mut Lines) {
        for (moment, lanes) in [("before", &self.before), ("after", &self.after)] {
            for lane in lanes {
                let mut text = format!(
                    "{:.0} runs/s; claim {:.1} ms, finish {:.1} ms; client {:.3} s",
                    lane.runs_per_second, lane.claim_ms, lane.finish_ms, lane.client_cpu_s_per_1000
                );
                if let Some(seconds) = lane.database_cpu_s_per_1000 {
                    write!(text, ", database {seconds:.3} s").ok();
                }
                text.push_str(" for 1000 runs");
                lines.add(&format!("probe {moment}, lanes {}", lane.lanes), text);
            }
        }
        if let Some(ratio) = self.ratio {
            lines.add("ratio to the best probe", format!("{ratio:.2}"));
        }
    }
}

/// Lines of names and values.
#[derive(Debug, Default)]
pub(crate) struct Lines(pub(crate) Vec<(String, String)>);

impl Lines {
    pub(crate) fn add(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((name.to_owned(), value.into()));
    }
}

pub(crate) fn lateness_text(lateness: &Lateness) -> String {
    let Lateness { p50_ms, p99_ms, p999_ms, max_ms, count } = lateness;
    format!("p50 {p50_ms:.2} ms, p99 {p99_ms:.2} ms, p999 {p999_ms:.2} ms, max {max_ms:.2} ms of {count}")
}
