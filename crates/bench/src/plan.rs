//! The plan of a measurement.

use std::path::PathBuf;
use std::time::Duration;

use rondel_store::DatabaseUrl;
use serde::Serialize;

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Jobs that fire each second, for some seconds.
    Steady,
    /// Jobs that fire once, all at the same instant.
    Burst,
    /// Jobs that are not due.
    Idle,
}

/// Where one additional run prints, without end, while the other runs are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flood {
    /// Into its log.
    Log,
    /// To `/dev/null`, which shows the cost without Rondel.
    Null,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of measurement.
    pub mode: Mode,
    /// The database: an empty one, unless `may_have_data` is set.
    pub database: DatabaseUrl,
    /// Whether the database may already have jobs and runs.
    pub may_have_data: bool,
    /// The number of jobs.
    pub jobs: u32,
    /// How long the measurement takes, in seconds.
    pub seconds: u32,
    /// How long the jobs run before the measurement, in seconds.
    pub warm_up: u32,
    /// The number of servers on the database, all in this process.
    pub nodes: u32,
    /// The number of executors; each has a connection of its own.
    pub executors: u32,
    /// How many runs each executor takes at the same time.
    pub slots: u32,
    /// The program to start for each executor, as a process of its own; `None` runs the executors in this process.
    pub executor_program: Option<PathBuf>,
    /// The id of the first process of the database server. The usage of that process and its descendants is counted; `None` counts none.
    pub database_pid: Option<u32>,
    /// Where an additional run prints without end; `None` for no such run.
    pub flood: Option<Flood>,
    /// Whether a measurement of [`Mode::Steady`] fails if its runs get no verdict, because another one follows on the same database.
    pub must_settle: bool,
    /// How long each probe lasts; zero for no probe.
    pub probe_time: Duration,
}
