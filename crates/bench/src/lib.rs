//! How fast it goes: server, store and executors driven by no-op jobs, beside a probe that sends the same statements to
//! the same tables without any of them. The command line is `rondel bench`.
//!
//! - [`run`] is one measurement: [`Plan`] in, [`Report`] out; `steady`, `burst` and `idle` are the three kinds;
//! - `test_server` puts a server together as the product does, `fleet` the executors (here, or as processes of their own),
//!   `load` the jobs;
//! - `metered` is the store with a watch on it: what was claimed, what became durable when, how long statements took;
//! - `recorder` is the handler, `histogram` where it writes; `witness` is a bare timer and `probe` a bare database, what
//!   the figures are held against; `usage` is the kernel's account of processes;
//! - `xxl` has executors of XXL-JOB's protocol, for a server in another process;
//! - [`seed`] fills a database with jobs and their history, to look at and to measure pages with.
//!
//! Load is open: what is due when is fixed beforehand, and lateness counts from the planned instant.

mod clock;
mod error;
mod fleet;
mod histogram;
mod load;
mod metered;
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

pub use error::BenchError;
pub use fleet::{ExecutorPlan, run_executor};
pub use plan::{Flood, Mode, Plan};
pub use report::{Counts, Cpu, Durability, Lateness, Memory, Probe, ProbeLane, Report, StoreCall};
pub use seed::{SeedPlan, Seeded, seed};
pub use steps::run;
pub use xxl::{XxlPlan, run_xxl_executors};
