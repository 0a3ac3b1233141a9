//! The rows of a group: queued, in execution, waiting for a retry, or resting after they failed for good.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rondel_core::Timestamp;

use super::Execution;

/// Of the rows that failed for good, at most this many are remembered.
const REMEMBERED_COUNT_MAX: usize = 10_000;

/// A row that a select returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<R> {
    /// The item that the row belongs to.
    pub item: String,
    /// Identifies the row within the item.
    pub key: String,
    /// The row itself, as the select returned it.
    pub value: R,
}

/// A row whose execution failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The row's key.
    pub key: String,
    /// The wait before its next try; `None` if it failed for good.
    pub retry_after: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct QueuedRow<R> {
    /// Numbers the rows of the group in the order in which they were fetched.
    number: u64,
    pub(super) key: String,
    value: R,
    pub(super) epoch: i64,
    pub(super) queued_at: Instant,
    fetched_at: Timestamp,
    pub(super) failure_count: u32,
}

/// An execution in progress, with its rows.
#[derive(Debug)]
pub(super) struct ActiveExecution<R> {
    pub(super) item: String,
    pub(super) epoch: i64,
    pub(super) entries: Vec<QueuedRow<R>>,
    is_aborting: bool,
}

#[derive(Debug)]
pub(super) struct RowTracker<R> {
    next_number: u64,
    /// The queued rows by number, each with the name of its item.
    queue: BTreeMap<u64, (String, QueuedRow<R>)>,
    /// The numbers of the queued rows of each item.
    numbers_by_item: BTreeMap<String, BTreeSet<u64>>,
    /// Failed rows, sorted by the instant of their retry.
    retry_queue: BTreeMap<(Instant, u64), (String, QueuedRow<R>)>,
    executions: BTreeMap<u64, ActiveExecution<R>>,
    /// Item and key of every row that is queued, in execution or waiting.
    keys_in_work: BTreeSet<(String, String)>,
    /// Until when each row that failed for good is ignored if a select returns it.
    resting_until: BTreeMap<(String, String), Instant>,
    /// How many times each row failed for good. A row is removed when it is executed successfully after all, or when a
    /// select of its item returns fewer rows than the select's limit and this row is not among them.
    failed_counts: BTreeMap<(String, String), u32>,
}

impl<R: Clone> RowTracker<R> {
    pub(super) fn new() -> Self {
        Self {
            next_number: 0,
            queue: BTreeMap::new(),
            numbers_by_item: BTreeMap::new(),
            retry_queue: BTreeMap::new(),
            executions: BTreeMap::new(),
            keys_in_work: BTreeSet::new(),
            resting_until: BTreeMap::new(),
            failed_counts: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.retry_queue.is_empty() && self.executions.is_empty()
    }

    pub(super) fn is_queue_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn executing_count(&self) -> usize {
        self.executions.len()
    }

    pub(super) fn next_retry_at(&self) -> Option<Instant> {
        self.retry_queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Whether a row of the item is queued, in execution or waiting.
    pub(super) fn has_rows_of(&self, item: &str) -> bool {
        let first_key = (item.to_owned(), String::new());
        self.keys_in_work.range(first_key..).next().is_some_and(|(name, _)| name == item)
    }

    /// Queues a row; `false` if it is already in work.
    pub(super) fn queue(&mut self, row: Row<R>, epoch: i64, (now, fetched_at): (Instant, Timestamp)) -> bool {
        let Row { item, key, value } = row;
        if !self.keys_in_work.insert((item.clone(), key.clone())) {
            return false;
        }
        let number = self.take_number();
        self.enqueue(item, QueuedRow { number, key, value, epoch, queued_at: now, fetched_at, failure_count: 0 });
        true
    }

    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn enqueue(&mut self, item: String, entry: QueuedRow<R>) {
        self.numbers_by_item.entry(item.clone()).or_default().insert(entry.number);
        self.queue.insert(entry.number, (item, entry));
    }

    /// Begins to execute the oldest row, together with the next rows of its item.
    pub(super) fn begin_execution(&mut self, batch: usize) -> Option<Execution<R>> {
        let (_, (item, first_row)) = self.queue.first_key_value()?;
        let (item, epoch) = (item.clone(), first_row.epoch);
        let numbers: Vec<u64> = self.numbers_by_item.get(&item)?.iter().take(batch).copied().collect();
        let mut entries = Vec::with_capacity(numbers.len());
        for number in numbers {
            self.forget_number(&item, number);
            entries.extend(self.queue.remove(&number).map(|(_, entry)| entry));
        }
        let rows = entries.iter().map(|entry| entry.value.clone()).collect();
        let number = self.take_number();
        self.executions.insert(number, ActiveExecution { item: item.clone(), epoch, entries, is_aborting: false });
        Some(Execution { number, item, epoch, rows })
    }

    pub(super) fn take_execution(&mut self, number: u64) -> Option<ActiveExecution<R>> {
        self.executions.remove(&number)
    }

    /// Marks the executions of an item as aborting, and returns those that were not marked before.
    pub(super) fn abort(&mut self, item: &str) -> Vec<u64> {
        let item_executions =
            self.executions.iter_mut().filter(|(_, execution)| execution.item == item && !execution.is_aborting);
        item_executions
            .map(|(number, execution)| {
                execution.is_aborting = true;
                *number
            })
            .collect()
    }

    /// Drops the rows of the item that are queued or waiting.
    pub(super) fn discard(&mut self, item: &str) {
        for number in self.numbers_by_item.remove(item).unwrap_or_default() {
            if let Some((item, entry)) = self.queue.remove(&number) {
                self.keys_in_work.remove(&(item, entry.key));
            }
        }
        self.discard_retries(item);
    }

    pub(super) fn discard_retries(&mut self, item: &str) {
        for (_, (item, entry)) in self.retry_queue.extract_if(.., |_, (name, _)| name == item) {
            self.keys_in_work.remove(&(item, entry.key));
        }
    }

    /// Queues a failed row again at `retry_at`.
    pub(super) fn queue_retry(&mut self, item: &str, entry: QueuedRow<R>, retry_at: Instant) {
        self.retry_queue.insert((retry_at, entry.number), (item.to_owned(), entry));
    }

    pub(super) fn queue_due_retries(&mut self, now: Instant) {
        while let Some(due_row) = self.retry_queue.first_entry().filter(|entry| entry.key().0 <= now) {
            let (item, entry) = due_row.remove();
            self.enqueue(item, entry);
        }
    }

    pub(super) fn forget_key(&mut self, row_id: &(String, String)) {
        self.keys_in_work.remove(row_id);
    }

    fn forget_number(&mut self, item: &str, number: u64) {
        let Some(numbers) = self.numbers_by_item.get_mut(item) else { return };
        numbers.remove(&number);
        if numbers.is_empty() {
            self.numbers_by_item.remove(item);
        }
    }

    /// Remembers a row that failed for good. Returns how many times it has failed for good; 1 if there is no room to
    /// remember the row.
    pub(super) fn mark_failed(&mut self, row_id: &(String, String)) -> u32 {
        if let Some(failure_count) = self.failed_counts.get_mut(row_id) {
            *failure_count = failure_count.saturating_add(1);
            return *failure_count;
        }
        if self.failed_counts.len() < REMEMBERED_COUNT_MAX {
            self.failed_counts.insert(row_id.clone(), 1);
        }
        1
    }

    /// If a select returns the row within `duration`, the row is ignored, so that it does not keep the group busy.
    pub(super) fn rest(&mut self, row_id: (String, String), now: Instant, duration: Duration) {
        if self.resting_until.len() >= REMEMBERED_COUNT_MAX {
            self.resting_until.retain(|_, rests_until| *rests_until > now);
        }
        if self.resting_until.len() < REMEMBERED_COUNT_MAX {
            self.resting_until.insert(row_id, now + duration);
        }
    }

    pub(super) fn is_resting(&mut self, row_id: &(String, String), now: Instant) -> bool {
        let is_resting = self.resting_until.get(row_id).is_some_and(|rests_until| *rests_until > now);
        if !is_resting {
            self.resting_until.remove(row_id);
        }
        is_resting
    }

    pub(super) fn wake_resting(&mut self, item: &str) {
        self.resting_until.retain(|(name, _), _| name != item);
    }

    /// Forgets that a row failed for good: it is done now.
    pub(super) fn clear_failed(&mut self, row_id: &(String, String)) {
        self.failed_counts.remove(row_id);
    }

    /// Of the rows that failed for good, forgets those for which `is_retained` is false.
    pub(super) fn retain_failed(&mut self, is_retained: impl Fn(&(String, String)) -> bool) {
        self.failed_counts.retain(|row_id, _| is_retained(row_id));
    }

    /// Of the rows that failed for good and are not in work again, forgets those for which `is_missing` is true.
    pub(super) fn forget_missing(&mut self, is_missing: impl Fn(&(String, String)) -> bool) {
        let Self { failed_counts, keys_in_work, .. } = self;
        failed_counts.retain(|row_id, _| keys_in_work.contains(row_id) || !is_missing(row_id));
    }

    /// Item and key of the rows that failed for good, as far as they are remembered.
    pub(super) fn failed_rows(&self) -> impl ExactSizeIterator<Item = &(String, String)> {
        self.failed_counts.keys()
    }

    /// When the oldest row of each item and epoch was fetched.
    pub(super) fn oldest_fetched_at(&self) -> BTreeMap<(&str, i64), Timestamp> {
        let mut oldest_fetches = BTreeMap::new();
        let queued_rows = self.queue.values().chain(self.retry_queue.values()).map(|(item, entry)| (item, entry));
        let executing_rows = self
            .executions
            .values()
            .flat_map(|execution| execution.entries.iter().map(|entry| (&execution.item, entry)));
        for (item, entry) in queued_rows.chain(executing_rows) {
            let oldest_fetch = oldest_fetches.entry((item.as_str(), entry.epoch)).or_insert(entry.fetched_at);
            *oldest_fetch = entry.fetched_at.min(*oldest_fetch);
        }
        oldest_fetches
    }
}

#[cfg(test)]
mod tests;
