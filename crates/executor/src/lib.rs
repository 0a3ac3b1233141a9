//! The SDK for apps: plain async functions become handlers, and an executor runs them when a server of the cluster
//! sends a trigger.
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
//!   [`RunContext`], [`Progress`], [`Log`]. They return `()` or a `Result`. An error from `?` fails the run, and the
//!   job's retry policy may run it again. [`JobError`] also has failures that are not retried, and skips. A panic fails
//!   the run with the panic's message.
//! - [`job`](macro@job) on a function declares a job, with its schedule and policies; [`Builder::job`] registers it
//!   with the server at the start.
//! - Code that does not get the shard or the run as an argument reads [`shard::index`], [`shard::total`] and
//!   [`run::current`]; tasks that [`spawn`] or [`spawn_blocking`] starts inherit both.
//! - Each `tracing` event inside a run goes to that run's log: through the subscriber that the executor installs if the
//!   program has none, or through [`log_layer`] in the program's own subscriber.
//! - [`TestRun`] runs a handler without a server.
//! - A [`Pump`] processes the rows of a pump job: [`Builder::pump`] registers it, [`TestPump`] tests it.
//! - [`agent`] has the ready-made handlers: `shell`, `http`, `pump`, and one for each script language.
//!
//! Handlers run on the runtime on which the executor was started. The executor talks to the servers on a separate
//! thread. A handler that loops without an `await` therefore blocks other handlers on its thread, but delays neither
//! heartbeats nor deadlines. If the run of such a handler has to stop, the run ends one second after the grace: as
//! timed out, as cancelled or, if the executor itself stopped it, as failed. Its message states that the handler does
//! not yield. Its slot stays occupied until the handler returns. Blocking code belongs in a
//! [`blocking_handler`](Builder::blocking_handler) or in [`spawn_blocking`]. A blocking handler cannot be aborted
//! either: if it does not return when its run has to stop, the run ends in the same way.
//!
//! An executor opens no port: it dials every server, and keeps a result until a server has acknowledged it.
#![warn(missing_docs)]

pub mod agent;
mod attempt;
mod builder;
mod catalog;
mod clock;
mod declare;
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
pub mod pump;
pub mod run;
mod scripts;
mod secrets;
mod session;
mod setup;
pub mod shard;
pub mod signal;
// Public only for the simulation of a cluster, which runs this table too.
#[doc(hidden)]
pub mod table;
mod template;
mod test_run;
mod thread;
mod trace;

pub use builder::Builder;
pub use declare::{Declaration, Job};
pub use ending::{Ending, IntoEnding};
pub use error::ExecutorError;
pub use executor::Executor;
pub use extract::{Cancel, Cancelled, FromRun, Log, Params, Progress, RawParams, State};
pub use handler::{BlockingHandler, Handler, JobHandler};
pub use job_error::{JobError, ResultExt};
pub use log::{LogLayer, LogLimit, log_layer};
pub use pump::{CheckpointError, Item, NamedPump, Pump, PumpContext, PumpOutcome, TestPump};
pub use run::{FencingToken, RunContext, spawn, spawn_blocking};
pub use secrets::Secrets;
pub use setup::Timing;
pub use shard::Shard;
pub use test_run::{TestOutcome, TestRun};

/// Declares a function as a job. Only `.job(function)` registers it with an executor.
///
/// ```
/// use rondel::{Executor, JobError, Params, TestRun};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Close {
///     /// Invoices of this region only.
///     region: Option<String>,
/// }
///
/// /// Closes the invoices of the day.
/// #[rondel::job(name = "invoices.close", cron = "0 30 2 * * ?", tz = "Europe/Berlin", retry = 3, backoff = "10s..5m")]
/// async fn close_invoices(Params(close): Params<Close>) -> Result<u32, JobError> {
///     Ok(if close.region.is_some() { 1 } else { 7 })
/// }
///
/// /// Notifies the accountants, once all are closed.
/// #[rondel::job(parent = "invoices.close", timeout = "5m")]
/// async fn notify_accountants() {}
///
/// let builder = Executor::builder("billing").job(close_invoices).job(notify_accountants);
/// // A handler is tested without a server, or called like an ordinary function.
/// assert_eq!(TestRun::of_job(&close_invoices).run().await.result(), Some(&7.into()));
/// assert!(matches!(close_invoices::call(Params(Close { region: Some("eu".into()) })).await, Ok(1)));
/// # }
/// ```
///
/// | argument | |
/// |---|---|
/// | `name` | the name of the job and of its handler; by default the function's name. As the first argument, it may be written without `name =` |
/// | `cron`, `every`, `delay`, `at`, `after` | the schedule: at most one of these arguments; a job without a schedule runs only when it is triggered |
/// | `parent` | `after` with one job |
/// | `tz` | the zone of `cron`; UTC by default |
/// | `on` | how the jobs of `after` must have ended: `success`, `failure`, `either` |
/// | `retry`, `backoff` | the number of further attempts; the first wait, doubled before each further attempt: `"10s"`, or `"10s..5m"` with a maximum |
/// | `timeout` | how long one attempt may take |
/// | `success_by`, `success_by_zone`, `no_success_for`, `longer_than`, `late`, `expect_channels` | expectations; each one that is not met is an incident |
/// | `misfire`, `overlap`, `on_silence`, `route`, `priority`, `enabled` | as in the REST API |
/// | `overrides` | the parameters that a caller may replace for one run: `"all"`, `"none"`, or a list of JSON pointers |
/// | `labels` | `"team=pay"`, or a list of them |
///
/// Names, expressions, zones, durations and keywords are checked at compile time, by the server's own parsers:
///
/// ```compile_fail
/// #[rondel::job(cron = "0 30 25 * * ?")] // there is no hour 25
/// async fn close_invoices() {}
/// ```
///
/// An `async fn` becomes an async handler, and a plain `fn` becomes a [blocking handler](Builder::blocking_handler).
/// The doc comment's first paragraph is the job's description, cut after 1,000 bytes. Settings that have no argument
/// here need a [`Declaration`].
pub use rondel_macros::job;

/// Gives a pump type its name. The attribute alone registers nothing: [`Builder::named_pump`] registers the pump, with
/// a value that it creates by `Default`.
///
/// ```
/// use rondel::{Executor, Item, JobError, Pump, PumpContext};
///
/// #[derive(Default)]
/// struct CloseOrders;
///
/// #[rondel::pump("orders.close")]
/// impl Pump for CloseOrders {
///     type Row = u64;
///     type Error = JobError;
///
///     async fn select(&self, _: &PumpContext, _: &[Item], _: usize) -> Result<Vec<u64>, JobError> {
///         Ok(Vec::new())
///     }
///
///     async fn execute(&self, _: &PumpContext, _: Vec<u64>) -> Result<(), JobError> {
///         Ok(())
///     }
///
///     fn item(row: &u64) -> String {
///         (row % 4).to_string()
///     }
///
///     fn key(row: &u64) -> String {
///         row.to_string()
///     }
/// }
///
/// let builder = Executor::builder("billing").named_pump::<CloseOrders>();
/// ```
pub use rondel_macros::pump;

/// Re-exported for parameter types: [`Params`] takes the schema of its type from [`schemars::JsonSchema`], which the
/// type derives.
pub use schemars;

/// Domain types that handlers use.
pub use rondel_core::{JobId, RunId, RunStatus, Timestamp, TraceParent};
