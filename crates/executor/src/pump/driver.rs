//! Runs one group: calls the pump as the group's state requires, and reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use rondel_core::time::format_duration;
use tokio::task::{AbortHandle, JoinError};
use tokio::time::Instant;

use super::context::{Checkpoints, PumpContext};
use super::ending::{ending, key_list};
use super::group::{
    CheckpointError, Execution, ExecutionEnd, Failure, FetchCounts, Group, Limits, Row, Step, Task, without_a_tenth,
};
use super::handler::Pump;
use super::item::Item;
use super::mailbox::{OrderMailbox, TestLimit};
use crate::ending::Ending;
use crate::engine::SilencePeriod;
use crate::host;
use crate::job_error::JobError;
use crate::lifecycle::{lock, wait_until};
use crate::run::{self, RunContext, StopCause, panic_message};

/// The state that the group's calls share.
struct SharedGroup<R> {
    group: Mutex<Group<R>>,
    mailbox: Arc<OrderMailbox>,
}

impl<R: Clone + Send> Checkpoints for SharedGroup<R> {
    fn store(&self, item: &str, epoch: i64, text: &str) -> Result<(), CheckpointError> {
        lock(&self.group).checkpoint(item, epoch, text)?;
        self.mailbox.wake();
        Ok(())
    }
}

/// The result of a call, which runs in a task of its own.
type CallResult<T> = Result<Result<T, JobError>, JoinError>;

enum ReturnedCall<R> {
    Fetch(CallResult<Vec<Row<R>>>),
    Execution { number: u64, item: String, result: CallResult<()> },
}

struct Driver<P: Pump> {
    pump: Arc<P>,
    run: RunContext,
    limits: Limits,
    shared: Arc<SharedGroup<P::Row>>,
    calls: FuturesUnordered<BoxFuture<'static, ReturnedCall<P::Row>>>,
    fetch_abort: Option<AbortHandle>,
    executions: BTreeMap<u64, AbortHandle>,
    failed_select_count: u64,
    is_stopped: bool,
    is_leaving: bool,
}

/// Runs a group until it has released every item.
pub(super) async fn drive<P: Pump>(pump: Arc<P>, run: RunContext) -> Ending {
    let (Some(mailbox), Some(limits)) = (run.order_mailbox().cloned(), run.pump_limits()) else {
        return JobError::terminal("the trigger has no limits of a pump job").into();
    };
    let group = Group::new(run.key(), run.job_id().get(), limits, now());
    let shared = Arc::new(SharedGroup { group: Mutex::new(group), mailbox });
    let driver = Driver {
        pump,
        run,
        limits,
        shared,
        calls: FuturesUnordered::new(),
        fetch_abort: None,
        executions: BTreeMap::new(),
        failed_select_count: 0,
        is_stopped: false,
        is_leaving: false,
    };
    driver.drive().await
}

/// The current instant of the clock that the group uses.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl<P: Pump> Driver<P> {
    async fn drive(mut self) -> Ending {
        let mailbox = Arc::clone(&self.shared.mailbox);
        loop {
            if let Some(order) = mailbox.take() {
                self.group().order(order, now());
            }
            let Some(wake_at) = self.take_due_steps() else { break };
            self.publish();
            let report_at = self.group().report_at();
            let wake_at = wake_at.into_iter().chain(report_at).min();
            tokio::select! {
                // The stop is checked first, because calls that keep returning must not delay it.
                biased;
                () = self.run.wait_until_stopped(), if !self.is_stopped => {}
                () = mailbox.leave_token().cancelled(), if !self.is_leaving => {}
                () = mailbox.wait_for_wake() => {}
                Some(returned_call) = self.calls.next(), if !self.calls.is_empty() => self.finish_call(returned_call),
                () = wait_until(wake_at) => {}
            }
        }
        let mut group = self.group();
        let report = group.full_report(now());
        let ending = ending(self.run.stop_cause(), &group, self.failed_select_count);
        drop(group);
        self.run.setup().pump_reports.publish(report);
        ending
    }

    fn group(&self) -> MutexGuard<'_, Group<P::Row>> {
        lock(&self.shared.group)
    }

    /// Takes every step that is due. Returns the instant of the next step: `Some(None)` if the instant is not known,
    /// and `None` if the group has ended.
    fn take_due_steps(&mut self) -> Option<Option<std::time::Instant>> {
        loop {
            // A stop is checked before each step, because another executor may own the items by now.
            self.apply_stop();
            let step = self.group().next(now());
            match step {
                Step::Fetch { items, limit } => self.select(items, limit),
                Step::Execute(execution) => self.execute(execution),
                Step::Abort(Task::Fetch) => self.fetch_abort.iter().for_each(AbortHandle::abort),
                Step::Abort(Task::Execution(number)) => {
                    self.executions.get(&number).into_iter().for_each(AbortHandle::abort);
                }
                Step::Wait(wake_at) => return Some(wake_at),
                Step::Ended => return None,
            }
        }
    }

    fn apply_stop(&mut self) {
        if let Some(SilencePeriod { limit, duration }) = self.run.setup().silence.exceeded_period(host::uptime())
            && self.run.silence_limit(limit).is_some_and(|own_limit| own_limit <= duration)
        {
            self.run.stop(StopCause::Silence { length: limit });
        }
        if self.is_test_limit_reached() {
            self.shared.mailbox.leave();
        }
        if !self.is_leaving && self.shared.mailbox.leave_token().is_cancelled() {
            self.is_leaving = true;
            self.group().stop(None);
        }
        if !self.is_stopped && self.run.stop_cause().is_some() {
            self.is_stopped = true;
            let abort_at = now().checked_add(without_a_tenth(self.run.stop_grace()));
            self.group().stop(abort_at);
        }
    }

    /// Whether a test runs this group, and the limit of the test is reached.
    fn is_test_limit_reached(&self) -> bool {
        match self.shared.mailbox.test_limit() {
            None => false,
            Some(TestLimit::Dry) => self.group().is_dry(),
            Some(TestLimit::Rows(count)) => {
                let counts = self.group().total();
                counts.done + counts.failed >= count
            }
        }
    }

    fn publish(&self) {
        if let Some(report) = self.group().report(now()) {
            self.run.setup().pump_reports.publish(report);
        }
    }
}

// Calls of the pump.
impl<P: Pump> Driver<P> {
    fn context(&self, epochs: BTreeMap<String, i64>) -> PumpContext {
        PumpContext::new(&self.run, epochs, Arc::clone(&self.shared) as Arc<dyn Checkpoints>)
    }

    fn select(&mut self, items: Vec<Item>, limit: usize) {
        let context = self.context(items.iter().map(|item| (item.name.clone(), item.epoch)).collect());
        let pump = Arc::clone(&self.pump);
        let handle = run::spawn(async move {
            let rows = pump.select(&context, &items, limit).await.map_err(Into::into)?;
            let to_row = |value| Row { item: P::item(&value), key: P::key(&value), value };
            Ok(rows.into_iter().map(to_row).collect())
        });
        self.fetch_abort = Some(handle.abort_handle());
        self.calls.push(Box::pin(async { ReturnedCall::Fetch(handle.await) }));
    }

    fn execute(&mut self, execution: Execution<P::Row>) {
        let Execution { number, item, epoch, rows } = execution;
        let context = self.context(BTreeMap::from([(item.clone(), epoch)]));
        let pump = Arc::clone(&self.pump);
        let handle = run::spawn(async move { pump.execute(&context, rows).await.map_err(Into::into) });
        self.executions.insert(number, handle.abort_handle());
        self.calls.push(Box::pin(async move { ReturnedCall::Execution { number, item, result: handle.await } }));
    }

    fn finish_call(&mut self, returned_call: ReturnedCall<P::Row>) {
        match returned_call {
            ReturnedCall::Fetch(result) => self.end_select(result),
            ReturnedCall::Execution { number, item, result } => {
                self.executions.remove(&number);
                let (end, error) = match result {
                    Ok(Ok(())) => (ExecutionEnd::Done, String::new()),
                    Ok(Err(error)) => (ExecutionEnd::Failed, error.message),
                    Err(error) if error.is_panic() => (ExecutionEnd::Failed, panic_message(&*error.into_panic())),
                    Err(_) => (ExecutionEnd::Aborted, "aborted before its end".to_owned()),
                };
                let failures = self.group().end_execution(number, end, now());
                if !failures.is_empty() {
                    self.run.log_line("warn", &failed_rows_line(&item, &failures, &error));
                }
            }
        }
    }

    fn end_select(&mut self, result: CallResult<Vec<Row<P::Row>>>) {
        self.fetch_abort = None;
        let error = match result {
            Ok(Ok(rows)) => {
                let fetched_at = self.run.setup().clock.now();
                let counts = self.group().accept_fetched(rows, now(), fetched_at);
                if let Some(line) = dropped_rows_line(&counts, self.limits.fetch) {
                    self.run.log_line("warn", &line);
                }
                return;
            }
            Ok(Err(error)) => error.message,
            Err(error) if error.is_panic() => panic_message(&*error.into_panic()),
            Err(_) => return self.group().end_aborted_fetch(),
        };
        self.failed_select_count += 1;
        let wait = self.group().end_failed_fetch(now());
        self.run.log_line("error", &format!("select failed: {error}; tried again in {}", format_duration(wait)));
    }
}

/// A warning about returned rows that are not executed, if there are any.
fn dropped_rows_line(counts: &FetchCounts, limit: usize) -> Option<String> {
    let FetchCounts { surplus, foreign, .. } = *counts;
    let surplus_text = (surplus > 0).then(|| format!("{surplus} rows beyond the {limit} that were requested"));
    let foreign_text =
        (foreign > 0).then(|| format!("{foreign} rows of items that were not requested or are no longer held"));
    let texts: Vec<String> = surplus_text.into_iter().chain(foreign_text).collect();
    (!texts.is_empty()).then(|| format!("select returned {}; they are dropped", texts.join(" and ")))
}

fn failed_rows_line(item: &str, failures: &[Failure], error: &str) -> String {
    let keys = key_list(failures.iter().map(|failure| failure.key.as_str()));
    let delays: Vec<Duration> = failures.iter().filter_map(|failure| failure.retry_after).collect();
    let retry_text = match (delays.len(), delays.iter().min()) {
        (count, Some(wait)) if count == failures.len() => format!("; tried again in {}", format_duration(*wait)),
        (count, Some(wait)) => format!("; {count} of them tried again in {}", format_duration(*wait)),
        _ => String::new(),
    };
    let rows = if failures.len() == 1 { "row" } else { "rows" };
    format!("{rows} {keys} of item {item} failed: {error}{retry_text}")
}
