//! Tests of handlers without a server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{RunStatus, Timestamp, time};
use rondel_proto::v1::Trigger;
use serde::Serialize;
use serde_json::Value;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::layer::SubscriberExt;

use crate::attempt;
use crate::declare::Job;
use crate::ending::Ending;
use crate::handler::{BlockingHandler, Handler, JobHandler};
use crate::log::{LogText, log_layer};
use crate::run::{RunContext, StopCause};
use crate::secrets::Secrets;
use crate::setup::{Setup, States, Timing};
use crate::table::TableLog as _;

/// Runs a handler as an executor would, in a test: with params, shard, state, cancel, timeout and log.
///
/// ```
/// use rondel::{JobError, Params, RunStatus, Shard, TestRun};
///
/// async fn rebuild(Params(rows): Params<u32>, shard: Shard) -> Result<u32, JobError> {
///     tracing::info!(rows, "rebuilding");
///     Ok(rows / shard.total)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let outcome = TestRun::of(rebuild).params(100).shard(1, 4).run().await;
/// assert_eq!(outcome.status(), RunStatus::Succeeded);
/// assert_eq!(outcome.result(), Some(&25.into()));
/// assert_eq!(outcome.log(), "info rebuilding rows=100\n");
/// # }
/// ```
#[must_use = "a test run does nothing until it runs"]
pub struct TestRun {
    handler: JobHandler,
    trigger: Trigger,
    states: States,
    secrets: Option<Secrets>,
    timing: Timing,
    cancel_after: Option<Duration>,
}

impl TestRun {
    /// A test of an async handler.
    pub fn of<Args: 'static>(handler: impl Handler<Args>) -> Self {
        Self::of_any(JobHandler::of(handler))
    }

    /// A test of a blocking handler.
    pub fn of_blocking<Args: 'static>(handler: impl BlockingHandler<Args>) -> Self {
        Self::of_any(JobHandler::of_blocking(handler))
    }

    /// A test of a declared job, under its name and with the parameters that it declares.
    ///
    /// ```
    /// # use rondel::{JobError, Params, RunContext, TestRun};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// #[rondel::job(name = "orders.export", cron = "@hourly")]
    /// async fn export(run: RunContext) -> Result<String, JobError> {
    ///     Ok(run.job().to_owned())
    /// }
    /// assert_eq!(TestRun::of_job(&export).run().await.result(), Some(&"orders.export".into()));
    /// # }
    /// ```
    pub fn of_job(job: &impl Job) -> Self {
        let declaration = job.declaration();
        let mut run = Self::of_any(job.handler()).job(declaration.name());
        declaration.handler_name().clone_into(&mut run.trigger.handler);
        if let Some(params) = declaration.document().get("params") {
            run.trigger.params = params.to_string();
        }
        run
    }

    fn of_any(handler: JobHandler) -> Self {
        let trigger = Trigger {
            run_id: 1,
            attempt: 1,
            job_id: 1,
            job: "test".to_owned(),
            namespace: "default".to_owned(),
            handler: "test".to_owned(),
            shard_total: 1,
            trigger: "manual".to_owned(),
            ..Trigger::default()
        };
        let timing = Timing::default();
        Self { handler, trigger, states: States::default(), secrets: None, timing, cancel_after: None }
    }

    /// The job's parameters; `null` if the value cannot be written as JSON.
    pub fn params(mut self, params: impl Serialize) -> Self {
        self.trigger.params = serde_json::to_string(&params).unwrap_or_default();
        self
    }

    /// The index of the run's shard, and the number of shards; 0 of 1 by default.
    pub fn shard(mut self, index: u32, total: u32) -> Self {
        self.trigger.shard_index = i32::try_from(index).unwrap_or(i32::MAX);
        self.trigger.shard_total = i32::try_from(total).unwrap_or(i32::MAX);
        self
    }

    /// The name and the parameters of the shard, for a job that names its shards. The shard's parameters override
    /// those of the run, so call [`params`](Self::params) first.
    pub fn shard_item(mut self, name: impl Into<String>, params: impl Serialize) -> Self {
        let params = serde_json::to_value(params).unwrap_or_default();
        self.trigger.shard_name = name.into();
        self.trigger.params = crate::shard::merge_params(&self.trigger.params, &params);
        self.trigger.shard_params = params.to_string();
        self
    }

    /// The number of the attempt, from 1; 1 by default.
    pub fn attempt(mut self, attempt: i32) -> Self {
        self.trigger.attempt = attempt;
        self
    }

    /// The name that [`RunContext::job`](crate::RunContext::job) returns.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.trigger.job = name.into();
        self
    }

    /// The run's planned instant; 1970-01-01T00:00:00Z by default.
    pub fn fire_at(mut self, at: Timestamp) -> Self {
        self.trigger.fire_at_ms = at.as_millis();
        self.trigger.due_at_ms = at.as_millis();
        self
    }

    /// Adds a value that the handler takes as [`State<T>`](crate::State).
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Resolves `{{secret.NAME}}` in the params.
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// The timeout of the attempt; no limit by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.trigger.timeout_ms = time::millis(timeout);
        self
    }

    /// Cancels the run after this time, if the handler has not returned by then.
    pub fn cancel_after(mut self, delay: Duration) -> Self {
        self.cancel_after = Some(delay);
        self
    }

    /// How long the handler may take to stop before it is dropped; 10 s by default.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.timing.cancel_grace = grace;
        self
    }

    /// Runs the handler, and returns the outcome.
    pub async fn run(self) -> TestOutcome {
        let mut setup = Setup::new(self.states, self.timing);
        setup.secrets = self.secrets;
        let run = RunContext::new(&Arc::new(setup), self.trigger, 0);
        let subscriber = tracing_subscriber::registry().with(log_layer());
        let execution = attempt::execute(&run, self.handler).with_subscriber(subscriber);
        let cancel = async {
            match self.cancel_after {
                Some(delay) => tokio::time::sleep(delay).await,
                None => std::future::pending().await,
            }
            run.stop(StopCause::Cancelled { by: "the test".to_owned() });
            std::future::pending::<Infallible>().await
        };
        let ended_attempt = tokio::select! {
            ended_attempt = execution => ended_attempt,
            never = cancel => match never {},
        };
        run.setup().forget_logs();
        TestOutcome::new(&run, ended_attempt.ending)
    }
}

impl std::fmt::Debug for TestRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestRun").field("trigger", &self.trigger).finish_non_exhaustive()
    }
}

/// The outcome of a [`TestRun`].
#[derive(Clone, Debug)]
pub struct TestOutcome {
    ending: Ending,
    result: Option<Value>,
    lines: Vec<LogText>,
    log: String,
    progress: Option<(u64, u64)>,
}

impl TestOutcome {
    fn new(run: &RunContext, ending: Ending) -> Self {
        run.log().close();
        let lines = run.log().lines();
        let log = lines.iter().map(|line| format!("{} {}\n", line.level, line.text)).collect();
        let result = ending.result.as_deref().and_then(|json| serde_json::from_str(json).ok());
        Self { ending, result, lines, log, progress: run.progress() }
    }

    /// `Succeeded`, `Failed`, `TimedOut`, `Cancelled` or `Skipped`.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.ending.status
    }

    /// Whether the run succeeded.
    #[must_use]
    pub fn is_succeeded(&self) -> bool {
        self.ending.status == RunStatus::Succeeded
    }

    /// Whether the job's retries would apply.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.ending.retryable
    }

    /// The value that the handler returned; `None` if it was `()` or null, or if the run did not succeed.
    #[must_use]
    pub fn result(&self) -> Option<&Value> {
        self.result.as_ref()
    }

    /// The message; empty if the run succeeded.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.ending.message
    }

    /// The run's log: a level, a space and a text in each line.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The texts of the lines of one level.
    pub fn lines<'a>(&'a self, level: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter(move |line| line.level == level).map(|line| line.text.as_str())
    }

    /// The progress that the handler reported last: done, and total. `None` if it reported none.
    #[must_use]
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.progress
    }
}
