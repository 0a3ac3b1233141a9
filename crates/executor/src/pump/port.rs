//! What goes between the executor's sessions and its groups: orders in, reports out.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1::{PumpOrder, PumpReport};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::lifecycle::lock;
use crate::table::RunKey;

/// One group's mailbox. It is there before the group's handler begins.
#[derive(Debug, Default)]
pub struct Port {
    /// The newest order that the group has not taken. An order is complete, so one replaces those before it.
    order: Mutex<Option<PumpOrder>>,
    wake: Notify,
    /// The executor drains: the group gives its items back and ends.
    leaving: CancellationToken,
    until: OnceLock<Until>,
}

/// When a group of a test gives its items back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Dry,
    Rows(u64),
}

impl Port {
    /// The newest order counts.
    pub fn put(&self, order: PumpOrder) {
        let mut waiting = lock(&self.order);
        let is_older = |one: &PumpOrder| (order.term, order.number) < (one.term, one.number);
        if !waiting.as_ref().is_some_and(is_older) || mutant::on(Mutant::OlderOrderIsTaken) {
            *waiting = Some(order);
        }
        drop(waiting);
        self.poke();
    }

    /// The order that waits.
    pub fn take(&self) -> Option<PumpOrder> {
        lock(&self.order).take()
    }

    /// The executor drains.
    pub fn leave(&self) {
        self.leaving.cancel();
    }

    /// Cancelled once the executor drains.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Wakes the group.
    pub fn poke(&self) {
        self.wake.notify_one();
    }

    /// Resolves when there is something to look at.
    pub async fn poked(&self) {
        self.wake.notified().await;
    }

    pub(super) fn set_until(&self, until: Until) {
        self.until.get_or_init(|| until);
    }

    pub(super) fn until(&self) -> Option<Until> {
        self.until.get().copied()
    }
}

/// The last report of each group. It is kept until a server has the result of the group's run, and goes out on each new
/// stream before results do: so no server learns the end of a group before the last state of its items.
#[derive(Debug, Default)]
pub struct Reports {
    kept: Mutex<BTreeMap<RunKey, Kept>>,
    wake: Notify,
}

#[derive(Debug)]
struct Kept {
    report: PumpReport,
    is_sent: bool,
}

impl Reports {
    /// A group reports.
    pub fn publish(&self, report: PumpReport) {
        let key = RunKey::new(report.run_id, report.attempt);
        lock(&self.kept).insert(key, Kept { report, is_sent: false });
        self.wake.notify_one();
    }

    /// The reports that no stream has yet.
    #[must_use]
    pub fn take_unsent(&self) -> Vec<PumpReport> {
        let mut kept = lock(&self.kept);
        let mut unsent = Vec::new();
        for one in kept.values_mut().filter(|one| !one.is_sent) {
            one.is_sent = true;
            unsent.push(one.report.clone());
        }
        unsent
    }

    /// Every report that is kept.
    #[must_use]
    pub fn all(&self) -> Vec<PumpReport> {
        lock(&self.kept).values().map(|one| one.report.clone()).collect()
    }

    /// The last report of a group.
    #[must_use]
    pub fn get(&self, key: RunKey) -> Option<PumpReport> {
        lock(&self.kept).get(&key).map(|one| one.report.clone())
    }

    /// A server has the result of this group's run.
    pub fn forget(&self, key: RunKey) {
        lock(&self.kept).remove(&key);
    }

    /// Resolves when a report was published.
    pub async fn ready(&self) {
        self.wake.notified().await;
    }
}
