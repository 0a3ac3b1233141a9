//! Executors' reports about groups of pump jobs, until the loop takes them; and the streams on which orders go out.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use rondel_core::pump::{Counts, Owner, Totals};
use rondel_core::{AppId, ExecutorId, JobId, RunId};
use rondel_proto::v1;
use tokio::sync::Notify;

use crate::dispatch::SessionHandle;

/// Maximum size of the waiting reports of one app's executors, in bytes. Further reports are dropped, because each later report has the group's
/// complete state again.
const APP_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The same limit for the reports of all executors together.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size of a report, and of an item, without the texts, in bytes.
const PART_OVERHEAD: usize = 256;

/// The reports of a group that the loop has not taken yet, merged into one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Report {
    /// The app of the executor.
    app: AppId,
    /// The term and the number of the last order that the group has taken.
    pub(super) taken_order: (i64, i64),
    /// Its items, keyed by their names.
    pub(super) items: BTreeMap<String, v1::PumpProgress>,
    /// Whether a look took the report before it knew the group.
    pub(super) has_waited: bool,
    /// Its size in memory.
    bytes: usize,
}

/// The size of an item in memory. A report has the name twice.
const fn item_bytes(item: &v1::PumpProgress) -> usize {
    PART_OVERHEAD + 2 * item.name.len() + item.checkpoint.len()
}

impl Report {
    fn new(app: AppId, report: v1::PumpReport) -> Self {
        let items: BTreeMap<String, v1::PumpProgress> =
            report.items.into_iter().map(|item| (item.name.clone(), item)).collect();
        let bytes = PART_OVERHEAD + items.values().map(item_bytes).sum::<usize>();
        Self { app, taken_order: (report.term, report.number), items, has_waited: false, bytes }
    }

    /// Merges another report of the group, newer or older: the newer state of each item stays.
    fn add(&mut self, other: Self) {
        self.taken_order = self.taken_order.max(other.taken_order);
        self.has_waited |= other.has_waited;
        for (name, item) in other.items {
            let is_older = |known: &v1::PumpProgress| (known.epoch, known.sequence) > (item.epoch, item.sequence);
            if !self.items.get(&name).is_some_and(is_older) {
                self.bytes += item_bytes(&item);
                let replaced_item = self.items.insert(name, item);
                self.bytes -= replaced_item.as_ref().map_or(0, item_bytes);
            }
        }
    }

    /// The report, if it may wait for one more look because this look did not know its group; `None` if it has waited before.
    pub(super) fn keep_for_next_look(entry: ((ExecutorId, Owner), Self)) -> Option<((ExecutorId, Owner), Self)> {
        let (group, report) = entry;
        (!report.has_waited).then_some((group, Self { has_waited: true, ..report }))
    }
}

/// Reports by job, executor and attempt.
pub(super) type Reports = BTreeMap<JobId, BTreeMap<(ExecutorId, Owner), Report>>;

#[derive(Debug, Default)]
struct Inbox {
    reports: Reports,
    /// The size of the reports of each app's executors.
    bytes: BTreeMap<AppId, usize>,
    /// Jobs of which an attempt has ended.
    jobs_with_ends: BTreeSet<JobId>,
}

impl Inbox {
    /// Adds a report of a group; false if there is no room for it. Each app has its own room, so that no app uses up the room of another app.
    fn add(&mut self, job: JobId, group: (ExecutorId, Owner), report: Report) -> bool {
        let app_bytes = self.bytes.get(&report.app).copied().unwrap_or_default();
        let all_bytes: usize = self.bytes.values().sum();
        if app_bytes + report.bytes > APP_BYTES_MAX || all_bytes + report.bytes > BYTES_MAX {
            return false;
        }
        let (app, before, after) = match self.reports.entry(job).or_default().entry(group) {
            Entry::Vacant(place) => {
                let waiting = place.insert(report);
                (waiting.app, 0, waiting.bytes)
            }
            Entry::Occupied(mut place) => {
                let before = place.get().bytes;
                place.get_mut().add(report);
                (place.get().app, before, place.get().bytes)
            }
        };
        let app_bytes = self.bytes.entry(app).or_default();
        *app_bytes = *app_bytes + after - before;
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct PumpBoard {
    streams: Mutex<BTreeMap<ExecutorId, SessionHandle>>,
    inbox: Mutex<Inbox>,
    /// Notified when something is reported or an attempt has ended.
    news: Notify,
    shown_totals: Mutex<ShownTotals>,
}

/// The totals that the metrics show for the jobs whose home is this node.
#[derive(Debug, Default)]
struct ShownTotals {
    totals: BTreeMap<JobId, Totals>,
    /// The counts over the items of each job at the last look, and the counts of items that were removed since this node started.
    last_and_removed_counts: BTreeMap<JobId, (Counts, Counts)>,
}

impl PumpBoard {
    /// Adds a stream of an executor, in place of an older stream. Does nothing if a newer stream is there.
    pub(crate) fn join(&self, session: SessionHandle) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = streams.entry(session.executor).or_insert_with(|| session.clone());
        if session.is_newer_than(stream) {
            *stream = session;
        }
    }

    /// Removes an executor's stream that has ended.
    pub(crate) fn leave(&self, executor: ExecutorId, stream_number: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.get(&executor).is_some_and(|session| session.number == stream_number) {
            streams.remove(&executor);
        }
    }

    pub(super) fn stream(&self, executor: ExecutorId) -> Option<SessionHandle> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).get(&executor).cloned()
    }

    /// Receives the reports of an executor of this app. For each item the newest state counts.
    pub(crate) fn receive(&self, (app, executor): (AppId, ExecutorId), reports: Vec<v1::PumpReport>) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        for report in reports {
            let owner = Owner { run: RunId::new(report.run_id), attempt: report.attempt };
            let job = JobId::new(report.job_id);
            if !inbox.add(job, (executor, owner), Report::new(app, report)) {
                tracing::debug!(executor_id = %executor, "no room for reports of pump jobs; they will come again");
                break;
            }
        }
        drop(inbox);
        self.news.notify_one();
    }

    /// Notes that the end of an attempt of a group, or of a root run, is stored.
    pub(crate) fn note_ended(&self, job: JobId) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).jobs_with_ends.insert(job);
        self.news.notify_one();
    }

    /// Takes all reports since the last call, and the jobs of which an attempt has ended since.
    pub(super) fn take_news(&self) -> (Reports, BTreeSet<JobId>) {
        let Inbox { reports, jobs_with_ends, .. } =
            std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        (reports, jobs_with_ends)
    }

    /// Takes the reports of a job that have not been taken yet.
    pub(super) fn take_of(&self, job: JobId) -> BTreeMap<(ExecutorId, Owner), Report> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let reports = inbox.reports.remove(&job).unwrap_or_default();
        for report in reports.values() {
            if let Some(app_bytes) = inbox.bytes.get_mut(&report.app) {
                *app_bytes -= report.bytes;
            }
        }
        reports
    }

    /// Puts back reports that could not be written. The next look takes them, merged with newer reports.
    pub(super) fn put_back(&self, reports: Reports) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dropped = 0_u64;
        for (job, groups) in reports {
            for (group, report) in groups {
                dropped += u64::from(!inbox.add(job, group, report));
            }
        }
        drop(inbox);
        if dropped > 0 {
            tracing::warn!(dropped, "no room for reports of pump jobs that could not be written");
        }
    }

    /// The totals of the items of jobs whose home is this node, for metrics.
    pub(crate) fn totals(&self) -> BTreeMap<JobId, Totals> {
        self.shown_totals.lock().unwrap_or_else(PoisonError::into_inner).totals.clone()
    }

    /// Shows these totals. The counts of removed items are added to them, because a counter must not fall when an item is removed.
    pub(super) fn show(&self, mut totals: BTreeMap<JobId, Totals>) {
        let mut shown_totals = self.shown_totals.lock().unwrap_or_else(PoisonError::into_inner);
        for (job, job_totals) in &mut totals {
            let (last_counts, removed_counts) = shown_totals.last_and_removed_counts.entry(*job).or_default();
            *removed_counts = removed_counts.plus(decrease(*last_counts, job_totals.counts));
            *last_counts = job_totals.counts;
            job_totals.counts = job_totals.counts.plus(*removed_counts);
        }
        shown_totals.totals = totals;
    }

    /// Resolves when something was reported, or an attempt has ended.
    pub(super) fn wait_for_news(&self) -> impl Future<Output = ()> + '_ {
        self.news.notified()
    }
}

/// By how much counts have fallen.
fn decrease(old_counts: Counts, new_counts: Counts) -> Counts {
    let difference = |before: i64, after: i64| before.saturating_sub(after).max(0);
    Counts {
        fetches: difference(old_counts.fetches, new_counts.fetches),
        rows: difference(old_counts.rows, new_counts.rows),
        done: difference(old_counts.done, new_counts.done),
        failed: difference(old_counts.failed, new_counts.failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_does_not_fall_with_an_item_that_is_removed() {
        let board = PumpBoard::default();
        let show = |done: i64| {
            let totals = Totals { counts: Counts { done, ..Counts::default() }, ..Totals::default() };
            board.show(BTreeMap::from([(JobId::new(5), totals)]));
            board.totals().values().map(|totals| totals.counts.done).sum::<i64>()
        };
        assert_eq!([7, 9, 4, 6, 1].map(show), [7, 9, 9, 11, 11]);
    }

    const APP: AppId = AppId::new(1);

    fn waiting_bytes(board: &PumpBoard) -> usize {
        board.inbox.lock().unwrap().bytes.values().sum()
    }

    fn report(sequence: i64, done: u64) -> v1::PumpReport {
        let item =
            |name: &str| v1::PumpProgress { name: name.to_owned(), epoch: 3, sequence, done, ..Default::default() };
        let items = vec![item("a"), item("b")];
        v1::PumpReport { run_id: 7, attempt: 1, job_id: 5, term: 1, number: sequence, items }
    }

    /// A group reports a change once: the next look gets the reports that a look took and could not write.
    #[test]
    fn unwritten_reports_come_again_behind_newer_ones() {
        let (board, executor) = (PumpBoard::default(), ExecutorId::new(2));
        board.receive((APP, executor), vec![report(4, 40)]);
        let taken = board.take_news().0;
        assert!(board.take_news().0.is_empty());
        board.put_back(taken.clone());
        assert_eq!(board.take_news().0, taken);
        board.receive((APP, executor), vec![report(5, 50)]);
        board.put_back(taken);
        let reports = board.take_news().0;
        let found: Vec<_> = reports.values().flat_map(BTreeMap::values).collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].taken_order, found[0].items["a"].done, found[0].items.len()), ((1, 5), 50, 2));
        assert!(board.take_news().0.is_empty());
        assert_eq!(waiting_bytes(&board), 0);
    }

    #[test]
    fn the_reports_of_one_job_are_taken_alone() {
        let (board, executor) = (PumpBoard::default(), ExecutorId::new(2));
        let of_other = v1::PumpReport { job_id: 6, ..report(4, 40) };
        board.receive((APP, executor), vec![report(4, 40), of_other]);
        assert_eq!(board.take_of(JobId::new(5)).len(), 1);
        assert_eq!(board.take_of(JobId::new(5)), BTreeMap::new());
        assert_eq!(waiting_bytes(&board), 3 * PART_OVERHEAD + 4, "a report with two items");
        assert_eq!(board.take_news().0.into_keys().collect::<Vec<_>>(), [JobId::new(6)]);
    }

    #[test]
    fn the_reports_that_wait_are_bounded_by_their_size_for_each_app() {
        let board = PumpBoard::default();
        let (executor, other) = (ExecutorId::new(2), (AppId::new(2), ExecutorId::new(3)));
        let of_run = |run_id: i64, items| v1::PumpReport { run_id, items, ..report(1, 1) };
        let long = |sequence| v1::PumpProgress { checkpoint: "x".repeat(1024 * 1024), sequence, ..Default::default() };
        for run in 0..32 {
            board.receive((APP, executor), vec![of_run(run, vec![long(1)])]);
        }
        let full = waiting_bytes(&board);
        assert!((APP_BYTES_MAX - 2 * 1024 * 1024..=APP_BYTES_MAX).contains(&full), "{full}");
        board.receive(other, vec![report(4, 40)]);
        assert_eq!(waiting_bytes(&board), full + 3 * PART_OVERHEAD + 4, "another app has room");
        assert_eq!(board.take_of(JobId::new(5)).len(), 16);
        assert_eq!(waiting_bytes(&board), 0);
        for run in 0..100_000 {
            board.receive((APP, executor), vec![of_run(run, Vec::new())]);
        }
        assert!(waiting_bytes(&board) <= APP_BYTES_MAX, "reports without items count too");
        drop(board.take_news());
        board.receive((APP, executor), vec![of_run(1, vec![long(1)])]);
        let once = waiting_bytes(&board);
        board.receive((APP, executor), vec![of_run(1, vec![long(2)])]);
        assert_eq!(waiting_bytes(&board), once, "a newer state takes the place of the older one");
    }
}
