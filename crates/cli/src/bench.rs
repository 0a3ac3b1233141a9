//! `rondel bench`: measures the throughput of this machine and a database.

use clap::{Args, Subcommand, ValueEnum};
use rondel_bench::{BenchError, ExecutorPlan, Plan, SeedPlan, XxlPlan};

use crate::config::{Database, DatabaseParser, Length};
use crate::exit::{Exit, Failure};
use crate::format::{Format, FormatArgs};
use crate::table::Table;
use crate::telemetry::{LogFormat, TelemetrySettings};
use crate::{output, runtime, telemetry};

/// Drives server, database and executors on this machine with jobs that do nothing, and measures them beside a probe of
/// the database alone. Needs an empty database, which is left with what was measured.
#[derive(Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    /// The database: the URL of an SQLite file, of PostgreSQL or of MySQL/MariaDB
    #[arg(long, value_name = "URL", required = true, value_parser = DatabaseParser)]
    database: Option<Database>,
    /// What to measure
    #[arg(long, value_enum, default_value_t = Mode::Steady)]
    mode: Mode,
    /// How many jobs: runs per second of steady, runs of burst
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    jobs: u32,
    /// How long to measure; burst ignores it, and ends with its last result
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
    /// How many runs each executor takes at the same time
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// Beside the measured runs, start one that prints without pause: into its log, or to /dev/null for comparison
    #[arg(long, value_enum, value_name = "SINK")]
    flood: Option<Flood>,
    /// Run each executor in a process of its own, so that each part's cost is seen
    #[arg(long)]
    separate: bool,
    /// The first process of the database server, to count what it uses
    #[arg(long, value_name = "PID")]
    database_pid: Option<u32>,
    /// How long each probe lasts; 0s for none
    #[arg(long, value_name = "LENGTH", default_value = "2s")]
    probe: Length,
    /// Use a database that is not empty: what is due in it takes part
    #[arg(long)]
    reuse: bool,
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
}

/// Fills a database.
fn seed(args: SeedArgs, format: FormatArgs) -> Result<Exit, Failure> {
    let plan = SeedPlan { database: args.database.0, jobs: args.jobs, history: args.history };
    runtime::serve(|stop| async move {
        let seeded = tokio::select! {
            seeded = rondel_bench::seed(&plan) => seeded,
            () = stop.cancelled() => return Err(Failure::silent(Exit::Interrupted)),
        };
        let seeded = seeded.map_err(|error| match error {
            BenchError::NotEmpty { .. } => Failure::refused(error.to_string()),
            error => Failure::of("the database is filled in part", &error),
        })?;
        match format.format {
            Format::Json | Format::Jsonl | Format::Yaml => {
                output::document(&serde_json::to_string(&seeded)?, format.format)
            }
            Format::Table | Format::Wide | Format::Name => {
                output::data(&format!("{} jobs, {} runs, {} counted", seeded.jobs, seeded.runs, seeded.counted))
            }
        }
    })
}

#[derive(Debug, Args)]
struct ExecutorArgs {
    /// The servers' URLs
    #[arg(long = "server", value_name = "URL", required = true)]
    servers: Vec<String>,
    /// The executor's name
    #[arg(long)]
    name: String,
    /// How many runs it takes at the same time
    #[arg(long, value_name = "N")]
    slots: u32,
    /// Have the agent's handlers too
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
}

impl BenchArgs {
    /// Runs the measurement.
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        telemetry::start_with_runs(TelemetrySettings::lines("warn", LogFormat::Text))?;
        let format = self.format;
        match self.command {
            Some(BenchCommand::Executor(args)) => {
                let plan =
                    ExecutorPlan { servers: args.servers, name: args.name, slots: args.slots, agent: args.agent };
                return runtime::serve(|_| async { output::data(&rondel_bench::run_executor(plan).await?) });
            }
            Some(BenchCommand::XxlExecutors(args)) => {
                let plan = XxlPlan { servers: args.servers, count: args.count };
                return runtime::serve(|_| async { output::data(&rondel_bench::run_xxl_executors(plan).await?) });
            }
            Some(BenchCommand::Seed(args)) => return seed(args, format),
            None => {}
        }
        let plan = self.plan()?;
        runtime::serve(|stop| async move {
            let measured = tokio::select! {
                measured = rondel_bench::run(&plan) => measured,
                () = stop.cancelled() => return Err(Failure::silent(Exit::Interrupted)),
            };
            let report = measured.map_err(|error| match error {
                BenchError::NotEmpty { .. } => Failure::refused(error.to_string()),
                error => Failure::of("nothing was measured", &error),
            })?;
            match format.format {
                Format::Json | Format::Jsonl | Format::Yaml => {
                    output::document(&serde_json::to_string(&report)?, format.format)
                }
                Format::Table | Format::Wide | Format::Name => {
                    let mut table = Table::new(&["", ""]);
                    report.lines().into_iter().for_each(|(name, value)| table.add(vec![name, value]));
                    output::data(&table.render(true))
                }
            }
        })
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
        let separate = if self.separate { Some(std::env::current_exe()?) } else { None };
        Ok(Plan {
            mode: match self.mode {
                Mode::Steady => rondel_bench::Mode::Steady,
                Mode::Burst => rondel_bench::Mode::Burst,
                Mode::Idle => rondel_bench::Mode::Idle,
            },
            database: database.0,
            reuse: self.reuse,
            jobs: self.jobs,
            seconds: self.seconds,
            warm_up: self.warm_up,
            nodes: self.nodes,
            executors: self.executors,
            slots: self.slots,
            separate,
            database_pid: self.database_pid,
            flood: self.flood.map(|flood| match flood {
                Flood::Log => rondel_bench::Flood::Log,
                Flood::Null => rondel_bench::Flood::Null,
            }),
            probe: self.probe.0,
        })
    }
}
