//! `rondel bench`: measures the throughput of this machine and a database.

mod peer;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use rondel_bench::{BenchError, Bounds, ExecutorPlan, MaxReport, Plan, SeedPlan, XxlPlan};

use self::peer::{Load, PeerArgs};
use crate::config::{Database, DatabaseParser, DurationText};
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::telemetry::{LogFormat, TelemetrySettings};
use crate::{output, runtime, telemetry};

/// Default of `--late-max`.
const LATE_MAX_DEFAULT: Duration = Duration::from_millis(100);
/// Default of `--jobs-max`.
const JOBS_MAX_DEFAULT: u32 = 1_000_000;

/// Measures the throughput of server, database and executors on this machine with jobs that do nothing and, as a probe, the
/// speed of the database alone. The database must be empty; the jobs and runs of the measurement stay in it. With
/// `--peer-url`, measures another server in the same way, to compare both on one machine.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    /// The database: the URL of an SQLite file, of PostgreSQL or of MySQL/MariaDB
    #[arg(long, value_name = "URL", required_unless_present = "peer_url", value_parser = DatabaseParser)]
    database: Option<Database>,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Mode::Steady)]
    mode: Mode,
    /// How many jobs: the runs per second with steady, the runs with burst, the runs per second of the first round with max
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    jobs: u32,
    /// With max, how late a start may be at the 99th percentile; by default 100ms
    #[arg(long, value_name = "DURATION")]
    late_max: Option<DurationText>,
    /// With max, the highest rate that is tried; by default 1000000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs_max: Option<u32>,
    /// How long to measure; burst ignores it, and ends with its last result. With max, the length of each round
    #[arg(long, value_name = "S", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// How long to run before measuring
    #[arg(long, value_name = "S", default_value_t = 5)]
    warm_up: u32,
    /// How many servers on the database, all in this process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    nodes: u32,
    /// How many executors
    #[arg(long, value_name = "E", default_value_t = 4)]
    executors: u32,
    /// Maximum number of concurrent runs of each executor
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// Also start a run that prints without pause: into its log, or to /dev/null for comparison
    #[arg(long, value_enum, value_name = "SINK")]
    flood: Option<Flood>,
    /// Run each executor in its own process, so that the cost of each part is visible
    #[arg(long)]
    separate: bool,
    /// The id of the database server's first process, whose use of resources is counted
    #[arg(long, value_name = "PID")]
    database_pid: Option<u32>,
    /// How long each probe lasts; 0s for none
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    probe: DurationText,
    /// Use a database that is not empty: its due jobs run too
    #[arg(long)]
    reuse: bool,
    #[command(flatten)]
    peer: PeerArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: Option<BenchCommand>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// One executor of a measurement: what --separate starts
    Executor(ExecutorArgs),
    /// Executors of XXL-JOB that do nothing, for a server that runs: what tests/xxl-load starts
    XxlExecutors(XxlArgs),
    /// Fill an empty database with jobs and a week of runs, to look at pages and to measure them
    Seed(SeedArgs),
}

#[derive(Debug, Args)]
struct SeedArgs {
    /// The database: the URL of an SQLite file, of PostgreSQL or of MySQL/MariaDB
    #[arg(long, value_name = "URL", value_parser = DatabaseParser)]
    database: Database,
    /// How many jobs
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs: u32,
    /// About how many runs
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..))]
    history: u32,
    /// Create all jobs paused, so that none fires while a measurement with --reuse runs
    #[arg(long)]
    paused: bool,
}

fn seed(args: SeedArgs, format: FormatArgs) -> Result<Exit, Failure> {
    let plan = SeedPlan { database: args.database.0, jobs: args.jobs, history: args.history, paused: args.paused };
    runtime::serve(|stop| async move {
        let result = tokio::select! {
            result = rondel_bench::seed(&plan) => result,
            () = stop.cancelled() => return Err(Failure::silent(Exit::Interrupted)),
        };
        let summary = result.map_err(|error| match error {
            BenchError::NotEmpty { .. } => Failure::refused(error.to_string()),
            error => Failure::of("the database is filled in part", &error),
        })?;
        match format.format {
            Format::Json | Format::Jsonl | Format::Yaml => {
                output::print_document(&serde_json::to_string(&summary)?, format.format)
            }
            Format::Table | Format::Wide | Format::Name => output::print_lines(&format!(
                "{} jobs, {} runs, {} counted",
                summary.jobs, summary.runs, summary.counted
            )),
        }
    })
}

/// Finds the highest rate at which runs start in time.
fn find_max(plan: &Plan, bounds: Bounds, format: FormatArgs) -> Result<Exit, Failure> {
    runtime::serve(|stop| async move {
        let result = tokio::select! {
            result = rondel_bench::find_max(plan, bounds, |round| output::print_message(&round.sentence())) => result,
            () = stop.cancelled() => return Err(Failure::silent(Exit::Interrupted)),
        };
        let report = result.map_err(measurement_failure)?;
        match format.format {
            Format::Json | Format::Jsonl | Format::Yaml => {
                output::print_document(&serde_json::to_string(&report)?, format.format)
            }
            Format::Table | Format::Wide | Format::Name => {
                let mut round_table = Table::new(&MaxReport::HEADINGS);
                report.rows().into_iter().for_each(|row| round_table.add(row));
                output::print_lines(&format!("{}\n\n{}", round_table.render(false), name_value_lines(report.lines())))
            }
        }
    })
}

fn measurement_failure(error: BenchError) -> Failure {
    match error {
        BenchError::NotEmpty { .. } => Failure::refused(error.to_string()),
        error => Failure::of("nothing was measured", &error),
    }
}

fn name_value_lines(lines: Vec<(String, String)>) -> String {
    let mut table = Table::new(&["", ""]);
    lines.into_iter().for_each(|(name, value)| table.add(vec![name, value]));
    table.render(true)
}

#[derive(Debug, Args)]
struct ExecutorArgs {
    /// The servers' URLs
    #[arg(long = "server", value_name = "URL", required = true)]
    servers: Vec<String>,
    /// The executor's name
    #[arg(long)]
    name: String,
    /// Maximum number of concurrent runs
    #[arg(long, value_name = "N")]
    slots: u32,
    /// Offer the agent's handlers too
    #[arg(long)]
    agent: bool,
}

#[derive(Debug, Args)]
struct XxlArgs {
    /// The servers' URLs
    #[arg(long = "server", value_name = "URL", required = true)]
    servers: Vec<String>,
    /// How many executors, each with a port of its own
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Flood {
    /// Into its log
    Log,
    /// To /dev/null
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Jobs that fire each second
    Steady,
    /// Jobs that fire once, at the same instant
    Burst,
    /// Jobs that are not due
    Idle,
    /// steady repeatedly, to find the highest rate that starts in time
    Max,
}

impl BenchArgs {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        telemetry::start_with_runs(TelemetrySettings::without_traces("warn", LogFormat::Text))?;
        let format = self.format;
        match self.command {
            Some(BenchCommand::Executor(args)) => {
                let plan = ExecutorPlan {
                    servers: args.servers,
                    name: args.name,
                    slots: args.slots,
                    has_agent_handlers: args.agent,
                };
                return runtime::serve(|_| async { output::print_lines(&rondel_bench::run_executor(plan).await?) });
            }
            Some(BenchCommand::XxlExecutors(args)) => {
                let plan = XxlPlan { servers: args.servers, count: args.count };
                return runtime::serve(|_| async {
                    output::print_lines(&rondel_bench::run_xxl_executors(plan).await?)
                });
            }
            Some(BenchCommand::Seed(args)) => return seed(args, format),
            None => {}
        }
        let Self { jobs, seconds, warm_up, executors, .. } = self;
        if let Some(plan) = self.peer.plan(Load { jobs, seconds, warm_up, executors })? {
            return peer::measure(&plan, format);
        }
        let bounds = self.bounds()?;
        let plan = self.plan()?;
        if let Some(bounds) = bounds {
            return find_max(&plan, bounds, format);
        }
        runtime::serve(|stop| async move {
            let result = tokio::select! {
                result = rondel_bench::run(&plan) => result,
                () = stop.cancelled() => return Err(Failure::silent(Exit::Interrupted)),
            };
            let report = result.map_err(measurement_failure)?;
            match format.format {
                Format::Json | Format::Jsonl | Format::Yaml => {
                    output::print_document(&serde_json::to_string(&report)?, format.format)
                }
                Format::Table | Format::Wide | Format::Name => output::print_lines(&name_value_lines(report.lines())),
            }
        })
    }

    /// The bounds of `--mode max`; `None` for the other modes.
    fn bounds(&self) -> Result<Option<Bounds>, Failure> {
        if self.mode == Mode::Max {
            let late_max = self.late_max.map_or(LATE_MAX_DEFAULT, |length| length.0);
            return Ok(Some(Bounds { late_max, jobs_max: self.jobs_max.unwrap_or(JOBS_MAX_DEFAULT) }));
        }
        match (self.late_max, self.jobs_max) {
            (None, None) => Ok(None),
            (Some(_), _) => Err(Failure::refused("--late-max is for --mode max")),
            (None, Some(_)) => Err(Failure::refused("--jobs-max is for --mode max")),
        }
    }

    fn plan(self) -> Result<Plan, Failure> {
        let Some(database) = self.database else {
            return Err(Failure::refused("--database is missing: name the database to measure"));
        };
        if self.jobs == 0 || (self.executors == 0 && self.mode != Mode::Idle) {
            return Err(Failure::refused("--jobs and --executors: at least one of each"));
        }
        if self.nodes > 1 && database.0.sqlite_path().is_some() {
            return Err(Failure::refused("--nodes: SQLite is for one server"));
        }
        let executor_program = if self.separate { Some(std::env::current_exe()?) } else { None };
        Ok(Plan {
            mode: match self.mode {
                Mode::Steady | Mode::Max => rondel_bench::Mode::Steady,
                Mode::Burst => rondel_bench::Mode::Burst,
                Mode::Idle => rondel_bench::Mode::Idle,
            },
            database: database.0,
            may_have_data: self.reuse,
            jobs: self.jobs,
            seconds: self.seconds,
            warm_up: self.warm_up,
            nodes: self.nodes,
            executors: self.executors,
            slots: self.slots,
            executor_program,
            database_pid: self.database_pid,
            must_settle: false,
            flood: self.flood.map(|flood| match flood {
                Flood::Log => rondel_bench::Flood::Log,
                Flood::Null => rondel_bench::Flood::Null,
            }),
            probe_time: self.probe.0,
        })
    }
}
