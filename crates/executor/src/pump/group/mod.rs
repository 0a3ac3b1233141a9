//! The state of one group of a pump job: its items, the rows that it has fetched, and its next step.
//!
//! Each method handles one event. The group reads no clock and needs no runtime; the simulation of the cluster runs it
//! too. [`Group::next`] returns the steps to take, until it returns [`Step::Wait`]. Rows of an item are executed under
//! the epoch at which they were fetched, and one execution has rows of one item only.

mod holding;
mod limits;
mod orders;
#[cfg(test)]
mod props;
mod report;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use rondel_core::Timestamp;

pub use self::holding::{CHECKPOINT_BYTES_MAX, CheckpointError, Counts};
use self::holding::{Holding, Phase};
pub use self::limits::Limits;
pub(crate) use self::limits::without_a_tenth;
pub use self::report::split;
use self::rows::RowTracker;
pub use self::rows::{Failure, Row};
use super::Item;
use crate::table::RunKey;

/// The next step of a group.
#[derive(Debug)]
pub enum Step<R> {
    /// Select rows of these items. Report the end to [`Group::accept_fetched`], [`Group::end_failed_fetch`] or
    /// [`Group::end_aborted_fetch`].
    Fetch {
        /// The items to select for.
        items: Vec<Item>,
        /// How many rows the select may return.
        limit: usize,
    },
    /// Execute rows. Report the end to [`Group::end_execution`].
    Execute(Execution<R>),
    /// Abort this task. Its end must still be reported.
    Abort(Task),
    /// Nothing to do before this instant or the next event.
    Wait(Option<Instant>),
    /// The group has released every item, and ends.
    Ended,
}

/// Rows of one item, to be executed by one call.
#[derive(Debug)]
pub struct Execution<R> {
    /// Identifies the execution.
    pub number: u64,
    /// The item that the rows belong to.
    pub item: String,
    /// The epoch of the item at which the rows were fetched.
    pub epoch: i64,
    /// The rows.
    pub rows: Vec<R>,
}

/// A task of a group that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The select.
    Fetch,
    /// The execution with this number.
    Execution(u64),
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionEnd {
    /// The rows of the execution are done.
    Done,
    /// None of the rows of the execution is done.
    Failed,
    /// The execution was stopped before its end.
    Aborted,
}

/// How many rows of a select were accepted, and how many were dropped for which reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchCounts {
    /// Rows that will be executed.
    pub accepted: usize,
    /// Rows beyond the number that was asked for.
    pub surplus: usize,
    /// Rows of items that were not asked for, or are no longer held.
    pub foreign: usize,
    /// Rows that are in work already (queued, in execution or waiting for a retry), or that the select returned twice.
    pub in_work: usize,
    /// Rows that failed for good a short while ago, and are ignored for now.
    pub resting: usize,
}

/// The select in progress.
#[derive(Debug)]
struct Fetch {
    /// The items asked for, with their epochs.
    requested_epochs: BTreeMap<String, i64>,
    /// Rows whose execution ended after the select began. The select may have read them before that, so they are not
    /// accepted again.
    ended_rows: BTreeSet<(String, String)>,
    is_aborting: bool,
}

/// One group.
#[derive(Debug)]
pub struct Group<R> {
    key: RunKey,
    job_id: i64,
    limits: Limits,
    /// Term and number of the last order that was taken.
    last_order: Option<(i64, i64)>,
    items: BTreeMap<String, Holding>,
    /// The items that are being released.
    releasing: BTreeSet<String>,
    /// The highest epoch of each item that was released or dropped. An order cannot bring the item back at this epoch
    /// or a lower one.
    dropped_epochs: BTreeMap<String, i64>,
    rows: RowTracker<R>,
    fetch: Option<Fetch>,
    /// No select begins before this instant.
    fetch_after: Option<Instant>,
    /// Failed selects since the last one that succeeded.
    failed_fetch_count: u32,
    tasks_to_abort: VecDeque<Task>,
    /// Whether the group releases all items and then ends.
    is_ending: bool,
    total: Counts,
    /// When the group was made.
    created_at: Instant,
    reported_at: Option<Instant>,
    is_changed: bool,
    /// Whether the number of selects has changed since the last report. If nothing else has changed, the next report may
    /// wait longer.
    is_fetch_count_changed: bool,
    /// Whether an item was released since the last report.
    is_urgent: bool,
}

impl<R: Clone> Group<R> {
    /// A group without items.
    #[must_use]
    pub fn new(key: RunKey, job_id: i64, limits: Limits, now: Instant) -> Self {
        Self {
            key,
            job_id,
            limits,
            last_order: None,
            items: BTreeMap::new(),
            releasing: BTreeSet::new(),
            dropped_epochs: BTreeMap::new(),
            rows: RowTracker::new(),
            fetch: None,
            fetch_after: None,
            failed_fetch_count: 0,
            tasks_to_abort: VecDeque::new(),
            is_ending: false,
            total: Counts::default(),
            created_at: now,
            reported_at: None,
            is_changed: false,
            is_fetch_count_changed: false,
            is_urgent: false,
        }
    }
}

// Selects, executions and checkpoints.
impl<R: Clone> Group<R> {
    /// The next step.
    pub fn next(&mut self, now: Instant) -> Step<R> {
        self.expire(now);
        if let Some(task) = self.tasks_to_abort.pop_front() {
            return Step::Abort(task);
        }
        self.rows.queue_due_retries(now);
        if self.has_ended() {
            return Step::Ended;
        }
        if self.rows.executing_count() < self.limits.threads
            && let Some(execution) = self.rows.begin_execution(self.limits.batch)
        {
            return Step::Execute(execution);
        }
        if self.could_fetch() && self.fetch_after.is_none_or(|after| after <= now) {
            return self.fetch();
        }
        Step::Wait(self.wake_at())
    }

    /// Whether a select may start, apart from the wait before it.
    fn could_fetch(&self) -> bool {
        let executing_count = self.rows.executing_count();
        let is_dry = if self.limits.not_sleep { executing_count < self.limits.threads } else { executing_count == 0 };
        let is_free = self.fetch.is_none() && !self.is_ending && is_dry && self.rows.is_queue_empty();
        is_free && self.items.values().any(|holding| holding.phase == Phase::Held)
    }

    fn fetch(&mut self) -> Step<R> {
        let mut items = Vec::new();
        let mut requested_epochs = BTreeMap::new();
        for (name, holding) in self.items.iter_mut().filter(|(_, holding)| holding.phase == Phase::Held) {
            holding.counts.fetches += 1;
            requested_epochs.insert(name.clone(), holding.epoch);
            items.push(Item::new(name, (holding.epoch, &holding.params, &holding.checkpoint)));
        }
        self.total.fetches += 1;
        self.is_fetch_count_changed = true;
        self.fetch = Some(Fetch { requested_epochs, ended_rows: BTreeSet::new(), is_aborting: false });
        Step::Fetch { items, limit: self.limits.fetch }
    }

    fn wake_at(&self) -> Option<Instant> {
        let abort_at = self.releasing.iter().filter_map(|name| match self.items.get(name)?.phase {
            Phase::Releasing { abort_at } => abort_at,
            Phase::Held | Phase::Aborting | Phase::Released => None,
        });
        let fetch_at = if self.could_fetch() { self.fetch_after } else { None };
        abort_at.chain(fetch_at).chain(self.rows.next_retry_at()).min()
    }

    /// Takes the rows that a select returned. `fetched_at` is the current time of the server's clock.
    pub fn accept_fetched(&mut self, rows: Vec<Row<R>>, now: Instant, fetched_at: Timestamp) -> FetchCounts {
        let Some(fetch) = self.fetch.take() else { return FetchCounts::default() };
        if fetch.is_aborting {
            self.release_finished_items();
            return FetchCounts { foreign: rows.len(), ..FetchCounts::default() };
        }
        let is_full = rows.len() >= self.limits.fetch;
        let mut counts =
            FetchCounts { surplus: rows.len().saturating_sub(self.limits.fetch), ..FetchCounts::default() };
        let mut returned_items = BTreeSet::new();
        self.forget_missing_failed(&rows, &fetch, is_full);
        for row in rows.into_iter().take(self.limits.fetch) {
            if let Some(item) = self.accept(row, &fetch, (now, fetched_at), &mut counts) {
                returned_items.insert(item);
            }
        }
        self.mark_empty(&fetch, |name| !is_full && !returned_items.contains(name));
        self.failed_fetch_count = 0;
        let wait = if counts.accepted > 0 { self.limits.pause } else { self.limits.idle };
        self.fetch_after = now.checked_add(wait);
        self.is_changed |= counts.accepted > 0;
        self.release_finished_items();
        counts
    }

    /// Forgets rows that failed for good, if the select asked for their items, did not return them, and returned fewer
    /// rows than its limit. A row that was in work during the select stays, because the select may have left it out: its
    /// execution may lock it.
    fn forget_missing_failed(&mut self, rows: &[Row<R>], fetch: &Fetch, is_full: bool) {
        if is_full || self.rows.failed_rows().next().is_none() {
            return;
        }
        let returned_rows: BTreeSet<(&str, &str)> =
            rows.iter().map(|row| (row.item.as_str(), row.key.as_str())).collect();
        self.rows.forget_missing(|row_id| {
            let (item, key) = (row_id.0.as_str(), row_id.1.as_str());
            let was_returned = returned_rows.contains(&(item, key));
            fetch.requested_epochs.contains_key(item) && !was_returned && !fetch.ended_rows.contains(row_id)
        });
    }

    /// Queues a row, unless it is in work already. Returns the row's item; `None` if the row rests after it failed for
    /// good, or if the item was not asked for or is no longer held.
    fn accept(
        &mut self,
        row: Row<R>,
        fetch: &Fetch,
        (now, fetched_at): (Instant, Timestamp),
        counts: &mut FetchCounts,
    ) -> Option<String> {
        let epoch = fetch.requested_epochs.get(&row.item);
        let holding = self.items.get_mut(&row.item).filter(|holding| epoch == Some(&holding.epoch));
        let Some(holding) = holding.filter(|holding| holding.phase != Phase::Released) else {
            counts.foreign += 1;
            return None;
        };
        let row_id = (row.item.clone(), row.key.clone());
        if self.rows.is_resting(&row_id, now) {
            counts.resting += 1;
            return None;
        }
        if fetch.ended_rows.contains(&row_id) || !self.rows.queue(row, holding.epoch, (now, fetched_at)) {
            counts.in_work += 1;
        } else {
            counts.accepted += 1;
            holding.counts.rows += 1;
            self.total.rows += 1;
        }
        Some(row_id.0)
    }

    /// Records that a select failed. Returns the wait before the next one.
    pub fn end_failed_fetch(&mut self, now: Instant) -> Duration {
        let Some(fetch) = self.fetch.take() else { return Duration::ZERO };
        self.mark_empty(&fetch, |_| false);
        self.failed_fetch_count = self.failed_fetch_count.saturating_add(1);
        let wait = self.limits.select_backoff(self.failed_fetch_count);
        self.fetch_after = now.checked_add(wait);
        self.release_finished_items();
        wait
    }

    /// Records the end of an aborted select.
    pub fn end_aborted_fetch(&mut self) {
        self.fetch = None;
        self.release_finished_items();
    }

    fn mark_empty(&mut self, fetch: &Fetch, is_empty: impl Fn(&str) -> bool) {
        for (name, epoch) in &fetch.requested_epochs {
            if let Some(holding) = self.items.get_mut(name).filter(|holding| holding.epoch == *epoch) {
                let is_empty = is_empty(name);
                self.is_changed |= std::mem::replace(&mut holding.last_select_was_empty, is_empty) != is_empty;
            }
        }
    }

    /// Records the end of an execution. Returns the rows that failed.
    pub fn end_execution(&mut self, number: u64, end: ExecutionEnd, now: Instant) -> Vec<Failure> {
        let Some(ended_execution) = self.rows.take_execution(number) else { return Vec::new() };
        let count = u64::try_from(ended_execution.entries.len()).unwrap_or(u64::MAX);
        let holding =
            self.items.get_mut(&ended_execution.item).filter(|holding| holding.epoch == ended_execution.epoch);
        let may_retry =
            end == ExecutionEnd::Failed && holding.as_ref().is_some_and(|holding| holding.phase == Phase::Held);
        if let Some(holding) = holding {
            let (counts, total) = (&mut holding.counts, &mut self.total);
            if end == ExecutionEnd::Done {
                (counts.done, total.done) = (counts.done + count, total.done + count);
                holding.rate.add(count, now.saturating_duration_since(self.created_at));
            } else {
                (counts.failed, total.failed) = (counts.failed + count, total.failed + count);
            }
        }
        let mut failures = Vec::new();
        for mut entry in ended_execution.entries {
            let row_id = (ended_execution.item.clone(), entry.key.clone());
            if end == ExecutionEnd::Done {
                self.rows.clear_failed(&row_id);
                self.end_row(row_id);
                continue;
            }
            entry.failure_count += 1;
            let wait = self.limits.row_backoff(entry.failure_count);
            let is_final = !may_retry || entry.failure_count > self.limits.row_retry_max;
            failures.push(Failure { key: entry.key.clone(), retry_after: (!is_final).then_some(wait) });
            if is_final {
                if may_retry {
                    let rest_count = self.rows.mark_failed(&row_id);
                    let time_in_work = now.saturating_duration_since(entry.queued_at);
                    self.rows.rest(row_id.clone(), now, self.limits.rest_period(wait, time_in_work, rest_count));
                }
                self.end_row(row_id);
            } else {
                self.rows.queue_retry(&ended_execution.item, entry, now + wait);
            }
        }
        self.is_changed = true;
        self.release_finished_items();
        failures
    }

    fn end_row(&mut self, row_id: (String, String)) {
        self.rows.forget_key(&row_id);
        if let Some(fetch) = &mut self.fetch {
            fetch.ended_rows.insert(row_id);
        }
    }

    /// Stores a new checkpoint of an item that the group holds at this epoch.
    ///
    /// # Errors
    /// The checkpoint is too long, or the item is not held.
    pub fn checkpoint(&mut self, item: &str, epoch: i64, text: &str) -> Result<(), CheckpointError> {
        let holding = self.items.get_mut(item).filter(|holding| holding.epoch == epoch);
        let holding = holding.filter(|holding| holding.phase != Phase::Released);
        let holding = holding.ok_or_else(|| CheckpointError::NotHeld { item: item.to_owned() })?;
        holding.set_checkpoint(text)?;
        self.is_changed = true;
        Ok(())
    }
}

// Counts and conditions.
impl<R: Clone> Group<R> {
    /// The counts over all items.
    #[must_use]
    pub fn total(&self) -> Counts {
        self.total
    }

    /// The keys of rows that failed for good, except those that a later select no longer returned. Only a limited
    /// number is remembered.
    pub fn failed_rows(&self) -> impl ExactSizeIterator<Item = &str> {
        self.rows.failed_rows().map(|(_, key)| key.as_str())
    }

    /// Whether the last select failed.
    #[must_use]
    pub fn has_failed_select(&self) -> bool {
        self.failed_fetch_count > 0
    }

    /// Whether [`Self::failed_rows`] has any rows, or the last select failed.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.rows.failed_rows().next().is_some() || self.has_failed_select()
    }

    /// Whether the group has items, the last select returned no rows for any of them, and no row is in work.
    #[must_use]
    pub fn is_dry(&self) -> bool {
        let is_dry = |(name, item): (&String, &Holding)| item.last_select_was_empty && !self.rows.has_rows_of(name);
        !self.items.is_empty() && self.items.iter().all(is_dry)
    }
}
