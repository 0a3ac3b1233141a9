//! The mailbox for a group's orders, and the store of the groups' last reports. Both lie between the executor's sessions,
//! which talk to the servers, and its groups.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::{PumpOrder, PumpReport};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::lock;
use crate::table::RunKey;

/// One group's mailbox for orders. It exists before the group's handler begins. An order lists the items that the group
/// holds from then on.
#[derive(Debug, Default)]
pub struct OrderMailbox {
    /// The newest order that the group has not taken. An order is complete, so it replaces all earlier ones.
    order: Mutex<Option<PumpOrder>>,
    wake: Notify,
    /// Cancelled when the executor drains, or a test reaches its limit: the group then releases its items and ends.
    leave_token: CancellationToken,
    test_limit: OnceLock<TestLimit>,
}

/// When the group of a [`TestPump`](super::TestPump) releases its items on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestLimit {
    /// Once the last select returned no row of any item, and no row is in work.
    Dry,
    /// Once this many rows were executed, done or failed. Each try of a row counts.
    Rows(u64),
}

impl OrderMailbox {
    /// Puts an order in the mailbox, unless a newer one waits there.
    pub fn put(&self, order: PumpOrder) {
        let mut waiting_order = lock(&self.order);
        let is_older = |other_order: &PumpOrder| (order.term, order.number) < (other_order.term, other_order.number);
        if !waiting_order.as_ref().is_some_and(is_older) || mutant::on(Mutant::OlderOrderIsTaken) {
            *waiting_order = Some(order);
        }
        drop(waiting_order);
        self.wake();
    }

    /// Takes the waiting order.
    pub fn take(&self) -> Option<PumpOrder> {
        lock(&self.order).take()
    }

    /// Asks the group to release its items and end.
    pub fn leave(&self) {
        self.leave_token.cancel();
    }

    /// The token that [`Self::leave`] cancels.
    pub fn leave_token(&self) -> &CancellationToken {
        &self.leave_token
    }

    /// Wakes the group.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Resolves when the group was woken.
    pub async fn wait_for_wake(&self) {
        self.wake.notified().await;
    }

    pub(super) fn set_test_limit(&self, limit: TestLimit) {
        self.test_limit.get_or_init(|| limit);
    }

    pub(super) fn test_limit(&self) -> Option<TestLimit> {
        self.test_limit.get().copied()
    }
}

/// The last report of each group, stored until a server has the result of the group's run. Each new stream gets the
/// reports before the results, so that no server learns of a group's end before the last state of its items.
#[derive(Debug, Default)]
pub struct LastReports {
    last_reports: Mutex<BTreeMap<RunKey, LastReport>>,
    wake: Notify,
}

#[derive(Debug)]
struct LastReport {
    report: PumpReport,
    is_sent: bool,
}

impl LastReports {
    /// Stores a group's report, which replaces its previous one, and wakes the sender.
    pub fn publish(&self, report: PumpReport) {
        let key = RunKey::new(report.run_id, report.attempt);
        lock(&self.last_reports).insert(key, LastReport { report, is_sent: false });
        self.wake.notify_one();
    }

    /// Takes the reports that were published since the last call: the newest of each group.
    #[must_use]
    pub fn take_unsent(&self) -> Vec<PumpReport> {
        let mut last_reports = lock(&self.last_reports);
        let mut unsent_reports = Vec::new();
        for last_report in last_reports.values_mut().filter(|last_report| !last_report.is_sent) {
            last_report.is_sent = true;
            unsent_reports.push(last_report.report.clone());
        }
        unsent_reports
    }

    /// The last report of each group.
    #[must_use]
    pub fn all(&self) -> Vec<PumpReport> {
        lock(&self.last_reports).values().map(|last_report| last_report.report.clone()).collect()
    }

    /// The last report of a group.
    #[must_use]
    pub fn get(&self, key: RunKey) -> Option<PumpReport> {
        lock(&self.last_reports).get(&key).map(|last_report| last_report.report.clone())
    }

    /// Forgets a group when a server has the result of its run.
    pub fn forget(&self, key: RunKey) {
        lock(&self.last_reports).remove(&key);
    }

    /// Resolves when a report was published.
    pub async fn wait_until_ready(&self) {
        self.wake.notified().await;
    }
}
