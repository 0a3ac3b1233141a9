//! An executor that is ready to run, and its life from the first dial to the last acknowledgement.

use std::sync::Arc;
use std::time::Duration;

use crate::builder::Builder;
use crate::engine::Engine;
use crate::error::ExecutorError;
use crate::{log, thread};

/// One live process of an app: it dials the servers and executes the runs that they send.
///
/// ```no_run
/// use rondel::{Executor, ExecutorError, JobError, Shard};
///
/// async fn rebuild(shard: Shard) -> Result<String, JobError> {
///     Ok(format!("part {} of {}", shard.index, shard.total))
/// }
///
/// # async fn start() -> Result<(), ExecutorError> {
/// Executor::builder("search")
///     .server("https://rondel.example.com:8080")
///     .token_file("/run/secrets/rondel-token")
///     .handler("rebuild", rebuild)
///     .run_until(rondel::signal::terminate())
///     .await
/// # }
/// ```
pub struct Executor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) drain_grace: Duration,
    pub(crate) installs_subscriber: bool,
}

impl Executor {
    /// Starts a builder for an executor that runs the jobs of this app.
    ///
    /// ```
    /// let builder = rondel::Executor::builder("billing");
    /// ```
    pub fn builder(app: impl Into<String>) -> Builder {
        Builder::new(app.into())
    }

    /// The name of this executor: see [`Builder::name`].
    ///
    /// ```
    /// # fn main() -> Result<(), rondel::ExecutorError> {
    /// let executor = rondel::Executor::builder("billing").server("http://localhost:8080").name("billing-1").build()?;
    /// assert_eq!(executor.name(), "billing-1");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.engine.identity.name
    }

    /// Runs until `stop_signal` resolves, whatever its output, and then drains: it takes no new runs, lets the running
    /// ones finish within the drain grace, stops the rest, and waits for a short time until a server has acknowledged
    /// the last results. If a server cannot be reached or refuses the executor, the error is logged, and the server is
    /// dialled again.
    ///
    /// A program without a `tracing` subscriber gets one, so that these messages are shown and the runs have logs: see
    /// [`Builder::without_subscriber`].
    ///
    /// # Errors
    /// [`ExecutorError::Thread`] if the system cannot start the thread that talks to the servers. [`Builder::build`]
    /// reports all other errors.
    pub async fn run_until(self, stop_signal: impl Future) -> Result<(), ExecutorError> {
        let Self { engine, drain_grace, installs_subscriber } = self;
        if installs_subscriber {
            log::install_if_missing();
        }
        let _stop_all = engine.setup.lifecycle.guard();
        engine.run_handlers_here();
        thread::start(&engine).map_err(ExecutorError::Thread)?;
        stop_signal.await;
        tracing::info!("the executor drains");
        engine.drain(drain_grace).await;
        Ok(())
    }
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("identity", &self.engine.identity).finish_non_exhaustive()
    }
}
