//! The SDK that is embedded in apps: plain async functions become handlers, and an executor runs them when a server
//! of the cluster says so.
//!
//! ```no_run
//! use rondel::{Executor, ExecutorError, Params};
//!
//! async fn greet(Params(name): Params<String>) {
//!     tracing::info!("hello, {name}");
//! }
//!
//! # async fn start() -> Result<(), ExecutorError> {
//! Executor::builder("billing")
//!     .server("http://127.0.0.1:8080")
//!     .token_file("executor.token")
//!     .handler("greet", greet)
//!     .run_until(rondel::signal::terminate())
//!     .await
//! # }
//! ```
//!
//! - Handlers take what they need as arguments ([`FromRun`]): [`Params`], [`Shard`], [`State`], [`Cancel`],
//!   [`RunContext`], [`Progress`], [`Log`]. They return `()` or a `Result`; an error from `?` is a failure that may be
//!   tried again, [`JobError`] has the other kinds. A panic is a failed run with the panic's message.
//! - Code far from the handler reads [`shard::index`], [`shard::total`] and [`run::current`]; tasks made by [`spawn`]
//!   inherit them.
//! - With [`log_layer`] in the program's `tracing` subscriber, each event inside a run lands in that run's log.
//! - [`TestRun`] runs a handler without a server.
//! - [`agent`] has the ready-made handlers `shell` and `http`.
//!
//! An executor opens no port: it dials out to every server, and keeps a result until a server has acknowledged it.
#![warn(missing_docs)]

pub mod agent;
mod attempt;
mod builder;
mod clock;
mod ending;
mod engine;
mod error;
mod executor;
mod extract;
mod handler;
mod host;
mod identity;
mod job_error;
mod journal;
mod lifecycle;
mod log;
mod masks;
pub mod run;
mod secrets;
mod session;
mod setup;
pub mod shard;
pub mod signal;
mod template;
mod test_run;

pub use builder::Builder;
pub use ending::{Ending, IntoEnding};
pub use error::ExecutorError;
pub use executor::Executor;
pub use extract::{Cancel, Cancelled, FromRun, Log, Params, Progress, RawParams, State};
pub use handler::{BlockingHandler, Handler, JobHandler};
pub use job_error::{JobError, ResultExt};
pub use log::{LogLayer, log_layer};
pub use run::{FencingToken, RunContext, spawn, spawn_blocking};
pub use secrets::Secrets;
pub use setup::Timing;
pub use shard::Shard;
pub use test_run::{TestOutcome, TestRun};

/// What [`Params`] takes the schema of its type from: derive [`schemars::JsonSchema`] for it.
pub use schemars;

/// Words of the domain that handlers meet.
pub use rondel_core::{JobId, RunId, RunStatus, Timestamp};
