//! What is measured.

use std::path::PathBuf;
use std::time::Duration;

use rondel_store::DatabaseUrl;
use serde::Serialize;

/// Which question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// So many jobs that fire each second, for some seconds.
    Steady,
    /// So many jobs that fire once, all at the same instant.
    Burst,
    /// So many jobs, none of them due.
    Idle,
}

/// Where a run prints without end while the others are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flood {
    /// Into its log.
    Log,
    /// To `/dev/null`: what the same costs without Rondel.
    Null,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which question is asked.
    pub mode: Mode,
    /// The database: an empty one, unless `reuse` is set.
    pub database: DatabaseUrl,
    /// Whether the database may have jobs and runs of others.
    pub reuse: bool,
    /// How many jobs.
    pub jobs: u32,
    /// How long it is measured.
    pub seconds: u32,
    /// How long it runs before that.
    pub warm_up: u32,
    /// How many servers on the database, all in this process.
    pub nodes: u32,
    /// How many executors; each has a connection of its own.
    pub executors: u32,
    /// How many runs each executor takes at the same time.
    pub slots: u32,
    /// The program to start executors with, as processes of their own; `None` runs them in this process.
    pub separate: Option<PathBuf>,
    /// The first process of the database server, to count what it uses.
    pub database_pid: Option<u32>,
    /// A run beside the measured ones that prints gibibyte after gibibyte; `None` for none.
    pub flood: Option<Flood>,
    /// How long each probe lasts; zero for no probe.
    pub probe: Duration,
}
