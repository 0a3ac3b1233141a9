//! Measures throughput and lateness of server, store and executors with no-op jobs. For comparison, a probe sends the same
//! statements to the same tables without a server or executors. The command line is `rondel bench`.
//!
//! - [`run`] makes one measurement: it takes a [`Plan`] and returns a [`Report`]; `steady`, `burst` and `idle` are
//!   the three kinds;
//! - [`find_max`] repeats `steady` to find the highest rate whose lateness stays within a bound;
//! - `test_server` assembles the servers as the product does, `fleet` the executors (in this process or as separate
//!   processes), `load` the jobs;
//! - `metered` wraps the store and records what was claimed, when results became durable, and how long calls took;
//! - `recorder` is the handler, which writes to a `histogram`; `witness` is a bare timer and `probe` a bare database,
//!   with which the figures are compared; `usage` reads the kernel's figures for processes;
//! - `database_work` is what the runs cost the database by its own counts, which `database_snapshot` reads;
//! - `xxl` has executors of XXL-JOB's protocol, for a server in another process;
//! - [`run_peer`] measures another server with them: XXL-JOB's own admin, or ratch-job;
//! - [`seed`] fills a database with jobs and their history, for looking at pages and measuring them.
//!
//! Load is open: the due instants are fixed beforehand, and lateness counts from the planned instant.

mod clock;
mod database_snapshot;
mod database_work;
mod error;
mod fleet;
mod histogram;
mod load;
mod max;
mod metered;
mod peer;
mod plan;
mod probe;
mod recorder;
mod report;
mod seed;
mod steps;
mod test_server;
mod usage;
mod witness;
mod xxl;

pub use database_work::{Amounts, DatabaseWork, RowAmounts, TableState, TableWork};
pub use error::BenchError;
pub use fleet::{ExecutorPlan, run_executor};
pub use max::{Bounds, MaxReport, Round, find_max};
pub use peer::{PeerCounts, PeerCpu, PeerKind, PeerPlan, PeerProcess, PeerReport, PeerSecret, run_peer};
pub use plan::{Flood, Mode, Plan};
pub use report::{Counts, Cpu, Durability, Lateness, Memory, Probe, ProbeLane, Report, StoreCall};
pub use seed::{SeedPlan, SeedReport, seed};
pub use steps::run;
pub use xxl::{XxlPlan, run_xxl_executors};
