//! What executors report about groups of pump jobs, until the loop takes it; and the streams on which orders go out.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use rondel_core::pump::{Owner, Totals};
use rondel_core::{ExecutorId, JobId, RunId};
use rondel_proto::v1;
use tokio::sync::Notify;

use crate::dispatch::SessionHandle;

/// Items of reports that wait for the loop; what exceeds that is dropped, for reports are repeated.
const WAITING_MAX: usize = 50_000;

/// The newest report of a group, as far as it was not taken.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// The last order that the group has taken.
    pub(super) taken: (i64, i64),
    /// Its items, by name.
    pub(super) items: BTreeMap<String, v1::PumpProgress>,
}

/// By job, executor and attempt.
pub(super) type Reports = BTreeMap<JobId, BTreeMap<(ExecutorId, Owner), Report>>;

#[derive(Debug, Default)]
struct Inbox {
    reports: Reports,
    item_count: usize,
}

#[derive(Debug, Default)]
pub(crate) struct PumpBoard {
    streams: Mutex<BTreeMap<ExecutorId, SessionHandle>>,
    inbox: Mutex<Inbox>,
    news: Notify,
    totals: Mutex<BTreeMap<JobId, Totals>>,
}

impl PumpBoard {
    /// A stream of an executor is open.
    pub(crate) fn join(&self, session: SessionHandle) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = streams.entry(session.executor).or_insert_with(|| session.clone());
        if newest.number < session.number {
            *newest = session;
        }
    }

    /// A stream of an executor has ended.
    pub(crate) fn leave(&self, executor: ExecutorId, number: u64) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.get(&executor).is_some_and(|session| session.number == number) {
            streams.remove(&executor);
        }
    }

    pub(super) fn stream(&self, executor: ExecutorId) -> Option<SessionHandle> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).get(&executor).cloned()
    }

    /// An executor reports. Of each item the newest state counts; that it was released is not forgotten.
    pub(crate) fn take(&self, executor: ExecutorId, reports: Vec<v1::PumpReport>) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        for report in reports {
            if inbox.item_count + report.items.len() > WAITING_MAX {
                tracing::debug!(executor_id = %executor, "no room for reports of pump jobs; they will come again");
                break;
            }
            let owner = Owner { run: RunId::new(report.run_id), attempt: report.attempt };
            let of_job = inbox.reports.entry(JobId::new(report.job_id)).or_default();
            let waiting = of_job.entry((executor, owner)).or_default();
            let before = waiting.items.len();
            waiting.taken = waiting.taken.max((report.term, report.number));
            for item in report.items {
                let is_older = |known: &v1::PumpProgress| (known.epoch, known.sequence) > (item.epoch, item.sequence);
                if !waiting.items.get(&item.name).is_some_and(is_older) {
                    waiting.items.insert(item.name.clone(), item);
                }
            }
            let added = waiting.items.len() - before;
            inbox.item_count += added;
        }
        drop(inbox);
        self.news.notify_one();
    }

    /// All that was reported since the last call.
    pub(super) fn reports(&self) -> Reports {
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner)).reports
    }

    /// What the items of the jobs add up to whose home this node is, for metrics.
    pub(crate) fn totals(&self) -> BTreeMap<JobId, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn show(&self, totals: BTreeMap<JobId, Totals>) {
        *self.totals.lock().unwrap_or_else(PoisonError::into_inner) = totals;
    }

    /// Resolves when something was reported.
    pub(super) fn news(&self) -> impl Future<Output = ()> + '_ {
        self.news.notified()
    }
}
