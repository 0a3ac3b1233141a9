//! A group of a pump job: the SDK's own group, with selects and executions on the rows of the world.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rondel::Item;
use rondel::pump::group::{Execution, ExecutionEnd, Group, Limits, Row, Step, Task};
use rondel::table::TableRun as _;
use rondel_proto::v1;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Executor, now};
use crate::link::{RunHandle, StopCause};
use crate::profile::GRACE;
use crate::pumps::truth::{self, Hold, ItemKey, owner_of};
use crate::world::{lock, wait_until};

/// A call that has returned.
enum ReturnedCall {
    /// The rows, or an error if the select failed; `None` if it was aborted.
    Fetch(Option<Result<Vec<Row<usize>>, ()>>),
    Execution(u64, ExecutionEnd),
}

type Call = Pin<Box<dyn Future<Output = ReturnedCall> + Send>>;

/// Drives one group.
pub(super) struct Driver {
    executor: Arc<Executor>,
    run: RunHandle,
    group: Group<usize>,
    calls: Vec<Call>,
    fetch_abort: Option<CancellationToken>,
    /// The executions in progress, by number, each with its index in the list of executions.
    executions: BTreeMap<u64, (CancellationToken, usize)>,
    /// The checkpoint of each item at its epoch.
    progress: BTreeMap<(String, i64), u64>,
    /// The items of the newest order, each with its epoch.
    ordered_epochs: BTreeMap<String, i64>,
    /// The term and the number of the newest order.
    order_number: (i64, i64),
    /// Items that an order took from this group, or that the group has released.
    dropped_items: BTreeSet<(String, i64)>,
    is_stopped: bool,
    is_leaving: bool,
}

impl Driver {
    pub(super) fn new(executor: &Arc<Executor>, run: RunHandle, pump: &v1::Pump) -> Self {
        let group = Group::new(run.key(), run.trigger.job_id, Limits::from(pump), now());
        Self {
            executor: Arc::clone(executor),
            run,
            group,
            calls: Vec::new(),
            fetch_abort: None,
            executions: BTreeMap::new(),
            progress: BTreeMap::new(),
            ordered_epochs: BTreeMap::new(),
            order_number: (0, 0),
            dropped_items: BTreeSet::new(),
            is_stopped: false,
            is_leaving: false,
        }
    }

    /// Runs the group until it has released every item.
    pub(super) async fn drive(mut self) -> (v1::result::Status, bool) {
        let run = self.run.clone();
        loop {
            while let Some(order) = run.mailbox.take() {
                self.take_order(order);
            }
            let Some(wake_at) = self.take_due_steps() else { break };
            if let Some(report) = self.group.report(now()) {
                self.publish(report);
            }
            let wake_at = wake_at.into_iter().chain(self.group.report_at()).min();
            tokio::select! {
                biased;
                returned = next_returned(&mut self.calls), if !self.calls.is_empty() => self.finish_call(returned),
                () = run.mailbox.wait_for_wake() => {}
                () = run.stop_token.cancelled(), if !self.is_stopped => {}
                () = run.mailbox.leave_token().cancelled(), if !self.is_leaving => {}
                () = wait_until(wake_at) => {}
            }
        }
        let report = self.group.full_report(now());
        self.publish(report);
        self.executor.send_reports();
        let is_unfinished = self.group.is_unfinished();
        match run.stop_cause() {
            None => (v1::result::Status::Yielded, is_unfinished),
            Some(StopCause::Cancelled) => (v1::result::Status::Cancelled, is_unfinished),
            Some(cause) => super::handler::stop_status(cause),
        }
    }

    fn take_order(&mut self, order: v1::PumpOrder) {
        let number = (order.term, order.number);
        if number > self.order_number {
            self.order_number = number;
            let ordered_epochs: BTreeMap<String, i64> =
                order.items.iter().map(|item| (item.name.clone(), item.epoch)).collect();
            for (name, epoch) in std::mem::replace(&mut self.ordered_epochs, ordered_epochs) {
                if self.ordered_epochs.get(&name) != Some(&epoch) {
                    self.dropped_items.insert((name, epoch));
                }
            }
        }
        self.note_holds(&order);
        let incarnation = self.executor.incarnation;
        self.executor.world().record("pump order", incarnation, || format!("{:?} {order:?}", self.run.trigger.run_id));
        self.group.order(order, now());
    }

    /// Records the items that this group holds according to the order.
    fn note_holds(&self, order: &v1::PumpOrder) {
        let world = self.executor.world();
        let owner = owner_of(self.run.key());
        let mut truth = lock(&world.pumps);
        for item in order.items.iter().filter(|item| !item.release) {
            let hold = Hold { epoch: item.epoch, owner };
            // The order may be late: the item may already have its next owner.
            let hold_in_truth = truth.holds.entry(self.item_key(&item.name)).or_insert(hold);
            if hold_in_truth.epoch <= item.epoch {
                *hold_in_truth = hold;
            }
        }
    }

    fn publish(&mut self, report: v1::PumpReport) {
        for item in report.items.iter().filter(|item| item.released) {
            self.dropped_items.insert((item.name.clone(), item.epoch));
        }
        self.executor.reports.publish(report);
    }

    /// Takes all steps of the group that are due. Returns when its next step is due at the latest (`Some(None)` if only a
    /// call or an order leads to one), or `None` if the group has ended.
    fn take_due_steps(&mut self) -> Option<Option<std::time::Instant>> {
        loop {
            self.apply_stop();
            match self.group.next(now()) {
                Step::Fetch { items, limit } => self.select(&items, limit),
                Step::Execute(execution) => self.execute(execution),
                Step::Abort(Task::Fetch) => self.fetch_abort.iter().for_each(CancellationToken::cancel),
                Step::Abort(Task::Execution(number)) => {
                    self.executions.get(&number).into_iter().for_each(|(abort, _)| abort.cancel());
                }
                Step::Wait(until) => return Some(until),
                Step::Ended => return None,
            }
        }
    }

    fn apply_stop(&mut self) {
        self.executor.enforce_silence_limit();
        if !self.is_leaving && self.run.mailbox.leave_token().is_cancelled() {
            self.is_leaving = true;
            self.group.stop(None);
        }
        if !self.is_stopped && self.run.stop_cause().is_some() {
            self.is_stopped = true;
            self.group.stop(now().checked_add(GRACE - GRACE / 10));
        }
    }

    fn item_key(&self, item: &str) -> ItemKey {
        (self.run.job_id(), item.to_owned())
    }

    fn select(&mut self, items: &[Item], limit: usize) {
        let world = Arc::clone(self.executor.world());
        let now_ms = world.elapsed_ms();
        let mut rows = Vec::new();
        let mut truth = lock(&world.pumps);
        for item in items {
            let checkpoint = item.checkpoint.parse().unwrap_or(0);
            self.progress.entry((item.name.clone(), item.epoch)).or_insert(checkpoint);
            let item_key = self.item_key(&item.name);
            let open_rows = truth.open_rows(&item_key, now_ms).into_iter();
            rows.extend(open_rows.map(|key| Row { item: item.name.clone(), key: format!("{key}"), value: key }));
        }
        drop(truth);
        rows.truncate(limit);
        let (length, fails) = {
            let mut rng = world.rng();
            let length = if rng.happens(10_000) { rng.millis(1_000, 6_000) } else { rng.millis(1, 30) };
            (length, rng.happens(30_000))
        };
        let abort = CancellationToken::new();
        self.fetch_abort = Some(abort.clone());
        self.calls.push(Box::pin(async move {
            tokio::select! {
                biased;
                () = abort.cancelled() => ReturnedCall::Fetch(None),
                () = sleep(length) => ReturnedCall::Fetch(Some(if fails { Err(()) } else { Ok(rows) })),
            }
        }));
    }

    fn execute(&mut self, execution: Execution<usize>) {
        let Execution { number, item, epoch, rows } = execution;
        self.check_start(&item, epoch);
        let (execution_index, length, fails) = self.note_start(&item, epoch, rows);
        let abort = CancellationToken::new();
        self.executions.insert(number, (abort.clone(), execution_index));
        let abort_time = self.executor.world().rng().millis(0, 40);
        self.calls.push(Box::pin(async move {
            tokio::select! {
                biased;
                () = abort.cancelled() => {
                    sleep(abort_time).await;
                    ReturnedCall::Execution(number, ExecutionEnd::Aborted)
                }
                () = sleep(length) => ReturnedCall::Execution(number, if fails { ExecutionEnd::Failed } else { ExecutionEnd::Done }),
            }
        }));
    }

    /// Checks the rules that apply when the execution of a row begins.
    fn check_start(&self, item: &str, epoch: i64) {
        let describe = || {
            format!(
                "{} of run {} begins a row of {item} at epoch {epoch}",
                self.executor.host.name, self.run.trigger.run_id
            )
        };
        if self.dropped_items.contains(&(item.to_owned(), epoch)) {
            lock(&self.executor.world().pumps).violate("P1 gone", &format!("{}, which was gone", describe()));
        }
        if self.executor.is_silence_exceeded() {
            lock(&self.executor.world().pumps).violate("P1 silence", &format!("{} in silence", describe()));
        }
    }

    /// Records the start of rows. Returns the execution's index, how long it takes, and whether it fails.
    fn note_start(&self, item: &str, epoch: i64, row_indexes: Vec<usize>) -> (usize, Duration, bool) {
        let (world, item_key) = (self.executor.world(), self.item_key(item));
        world.record("rows begin", self.run.trigger.run_id, || {
            format!("{} {item} epoch {epoch}: {row_indexes:?}", self.executor.host.name)
        });
        let mut truth = lock(&world.pumps);
        let rows = truth.rows(&item_key);
        let (mut length, mut fails) = (Duration::ZERO, false);
        for key in &row_indexes {
            let row = &mut rows[*key];
            length += row.length + std::mem::take(&mut row.hang_time);
            fails |= row.failures_left > 0;
            row.failures_left = row.failures_left.saturating_sub(1);
        }
        truth.executions.push(truth::Execution {
            item_key,
            epoch,
            owner: owner_of(self.run.key()),
            executor: self.executor.host.index,
            incarnation: self.executor.incarnation,
            row_indexes,
            began_ms: world.elapsed_ms(),
            ended_ms: None,
            is_done: false,
        });
        (truth.executions.len() - 1, length, fails)
    }

    fn finish_call(&mut self, returned: ReturnedCall) {
        match returned {
            ReturnedCall::Fetch(result) => {
                self.fetch_abort = None;
                match result {
                    None => self.group.end_aborted_fetch(),
                    Some(Ok(rows)) => {
                        let fetched_at = self.executor.world().now();
                        self.group.accept_fetched(rows, now(), fetched_at);
                    }
                    Some(Err(())) => {
                        self.group.end_failed_fetch(now());
                    }
                }
            }
            ReturnedCall::Execution(number, end) => {
                if let Some((_, execution_index)) = self.executions.remove(&number) {
                    self.note_end(execution_index, end == ExecutionEnd::Done);
                }
                self.group.end_execution(number, end, now());
            }
        }
    }

    fn note_end(&mut self, execution_index: usize, is_done: bool) {
        let world = Arc::clone(self.executor.world());
        let now_ms = world.elapsed_ms();
        let mut truth = lock(&world.pumps);
        let execution = &mut truth.executions[execution_index];
        (execution.ended_ms, execution.is_done) = (Some(now_ms), is_done);
        let (item_key, epoch, row_indexes) =
            (execution.item_key.clone(), execution.epoch, execution.row_indexes.clone());
        let rows = truth.rows(&item_key);
        if !is_done {
            row_indexes.iter().for_each(|key| rows[*key].failed_count += 1);
            return;
        }
        row_indexes.iter().for_each(|key| _ = rows[*key].done_ms.get_or_insert(now_ms));
        drop(truth);
        let progress = self.progress.entry((item_key.1.clone(), epoch)).or_default();
        *progress += row_indexes.len() as u64;
        // If the item is no longer held, the checkpoint is refused, as it should be.
        self.group.checkpoint(&item_key.1, epoch, &progress.to_string()).ok();
    }
}

/// Waits for the next call that returns, and removes it.
async fn next_returned(calls: &mut Vec<Call>) -> ReturnedCall {
    std::future::poll_fn(|context| {
        let ready_call = calls.iter_mut().enumerate().find_map(|(index, call)| match call.as_mut().poll(context) {
            std::task::Poll::Ready(returned) => Some((index, returned)),
            std::task::Poll::Pending => None,
        });
        match ready_call {
            Some((index, returned)) => {
                drop(calls.remove(index));
                std::task::Poll::Ready(returned)
            }
            None => std::task::Poll::Pending,
        }
    })
    .await
}
