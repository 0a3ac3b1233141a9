//! Tests of pumps without a server.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::{RunStatus, time};
use rondel_proto::v1::{self, PumpItem, PumpOrder, PumpProgress, Trigger};
use serde::Serialize;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::layer::SubscriberExt;

use super::PumpHandler;
use super::handler::Pump;
use super::mailbox::TestLimit;
use crate::attempt;
use crate::ending::Ending;
use crate::handler::JobHandler;
use crate::log::log_layer;
use crate::run::{RunContext, StopCause};
use crate::setup::{Setup, States, Timing};
use crate::table::TableLog as _;

/// The time limit of a test that sets none.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Runs one group of a pump job in a test, as an executor would, until its items have no more rows or a number of rows
/// was executed.
///
/// The defaults are those of a job's definition, except for the waits, which are short. [`Pump`] has an example.
#[must_use = "a test run does nothing until it runs"]
pub struct TestPump {
    handler: JobHandler,
    limits: v1::Pump,
    items: Vec<PumpItem>,
    trigger: Trigger,
    states: States,
    limit: TestLimit,
    time_limit: Duration,
}

impl TestPump {
    /// A test of this pump, without items.
    pub fn of(pump: impl Pump) -> Self {
        let limits = v1::Pump {
            threads: 5,
            fetch: 500,
            batch: 1,
            idle_ms: 10,
            hand_over_ms: 45_000,
            row_backoff_ms: 10,
            row_backoff_max_ms: 1_000,
            ..v1::Pump::default()
        };
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
        Self {
            handler: JobHandler::of_pump(PumpHandler::new(pump)),
            limits,
            items: Vec::new(),
            trigger,
            states: States::default(),
            limit: TestLimit::Dry,
            time_limit: TIME_LIMIT,
        }
    }

    /// Adds an item that the group holds at this epoch.
    pub fn item(mut self, name: impl Into<String>, epoch: i64) -> Self {
        self.items.push(PumpItem { name: name.into(), epoch, ..PumpItem::default() });
        self
    }

    /// The parameters of the last item added; `null` if the value cannot be written as JSON.
    pub fn item_params(mut self, params: impl Serialize) -> Self {
        if let Some(item) = self.items.last_mut() {
            item.params = serde_json::to_string(&params).unwrap_or_default();
        }
        self
    }

    /// The checkpoint of the last item added, as its previous owner left it.
    pub fn item_checkpoint(mut self, checkpoint: impl Into<String>) -> Self {
        if let Some(item) = self.items.last_mut() {
            item.checkpoint = checkpoint.into();
        }
        self
    }

    /// How many workers execute rows at the same time; 5 by default.
    pub fn threads(mut self, threads: u32) -> Self {
        self.limits.threads = threads;
        self
    }

    /// How many rows one select may return; 500 by default.
    pub fn fetch(mut self, rows: u32) -> Self {
        self.limits.fetch = rows;
        self
    }

    /// How many rows one execution gets; 1 by default.
    pub fn batch(mut self, rows: u32) -> Self {
        self.limits.batch = rows;
        self
    }

    /// Lets each worker that runs out of rows fetch immediately; by default only the last one does.
    pub fn not_sleep(mut self) -> Self {
        self.limits.not_sleep = true;
        self
    }

    /// How many times a failed row is retried, and the wait before the first retry; by default rows are not retried.
    pub fn row_retry(mut self, max: u32, backoff: Duration) -> Self {
        (self.limits.row_retry_max, self.limits.row_backoff_ms) = (max, time::millis(backoff));
        self
    }

    /// How long the group may take to end after the time limit of the test; 45 s by default. After nine tenths of this time,
    /// rows in execution are aborted.
    pub fn hand_over(mut self, length: Duration) -> Self {
        self.limits.hand_over_ms = time::millis(length);
        self
    }

    /// The job's parameters; `null` if the value cannot be written as JSON.
    pub fn params(mut self, params: impl Serialize) -> Self {
        self.trigger.params = serde_json::to_string(&params).unwrap_or_default();
        self
    }

    /// The number of the group, and the count of groups; 0 of 1 by default.
    pub fn group(mut self, index: u32, total: u32) -> Self {
        self.trigger.shard_index = i32::try_from(index).unwrap_or(i32::MAX);
        self.trigger.shard_total = i32::try_from(total).unwrap_or(i32::MAX);
        self
    }

    /// Adds a value that the pump reads with [`RunContext::state`].
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Ends the test after this many rows were executed, done or failed (each try of a row counts); by default it ends
    /// when no item has any more rows.
    pub fn until_rows(mut self, count: u64) -> Self {
        self.limit = TestLimit::Rows(count);
        self
    }

    /// Cancels the test after this time; 10 s by default.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Runs the test.
    pub async fn run(mut self) -> PumpOutcome {
        self.trigger.pump = Some(self.limits);
        let run = RunContext::new(&Arc::new(Setup::new(self.states, Timing::default())), self.trigger, 0);
        if let Some(mailbox) = run.order_mailbox() {
            mailbox.put(PumpOrder { run_id: 1, attempt: 1, term: 1, number: 1, items: self.items, r#yield: false });
            mailbox.set_test_limit(self.limit);
        }
        let subscriber = tracing_subscriber::registry().with(log_layer());
        let execution = attempt::execute(&run, self.handler).with_subscriber(subscriber);
        tokio::pin!(execution);
        let ended_attempt = match tokio::time::timeout(self.time_limit, &mut execution).await {
            Ok(ended_attempt) => ended_attempt,
            Err(_) => {
                let by = format!("the test after {}", time::format_duration(self.time_limit));
                run.stop(StopCause::Cancelled { by });
                execution.await
            }
        };
        PumpOutcome::new(&run, ended_attempt.ending)
    }
}

impl std::fmt::Debug for TestPump {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestPump").field("limits", &self.limits).field("items", &self.items).finish_non_exhaustive()
    }
}

/// The outcome of a [`TestPump`].
#[derive(Clone, Debug)]
pub struct PumpOutcome {
    ending: Ending,
    items: Vec<PumpProgress>,
    log: String,
}

impl PumpOutcome {
    fn new(run: &RunContext, ending: Ending) -> Self {
        run.log().close();
        let log = run.log().lines().iter().map(|line| format!("{} {}\n", line.level, line.text)).collect();
        let report = run.setup().pump_reports.get(run.key());
        Self { ending, items: report.map(|report| report.items).unwrap_or_default(), log }
    }

    fn sum(&self, count: impl Fn(&PumpProgress) -> u64) -> u64 {
        self.items.iter().map(count).sum()
    }

    /// Whether the group ended as the test intended, because its items had no more rows or enough rows were executed,
    /// and not at the time limit.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.ending.is_yielded
    }

    /// The status of the group's run; `Cancelled` even if it is complete, since a group never succeeds on its own.
    #[must_use]
    pub fn status(&self) -> RunStatus {
        self.ending.status
    }

    /// Rows that were fetched to be executed.
    #[must_use]
    pub fn fetched(&self) -> u64 {
        self.sum(|item| item.rows)
    }

    /// Rows that were executed successfully.
    #[must_use]
    pub fn done(&self) -> u64 {
        self.sum(|item| item.done)
    }

    /// Failed executions, counted once for each row and try.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.sum(|item| item.failed)
    }

    /// The items that the group released.
    pub fn released(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter(|item| item.released).map(|item| item.name.as_str())
    }

    /// The last checkpoint of an item; empty for none.
    #[must_use]
    pub fn checkpoint(&self, item: &str) -> &str {
        self.items.iter().find(|candidate| candidate.name == item).map_or("", |item| item.checkpoint.as_str())
    }

    /// The message of the run.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.ending.message
    }

    /// The run's log: a level, a space and a text in each line.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}
