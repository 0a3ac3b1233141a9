//! The drain of an executor: it accepts no more runs, hands back those that have not begun, lets the others finish within
//! the grace, stops the rest, and waits for acknowledgements.

use std::sync::Arc;
use std::time::Duration;

use super::{Engine, HeldRun, Link, now, wire_result};
use crate::run::StopCause;
use crate::table::RunTable;

/// How long dropped tasks may take to end. Only a task that blocks its thread takes longer, and such a task cannot be
/// stopped.
const TASKS_GRACE: Duration = Duration::from_secs(2);

type Table = RunTable<HeldRun, Link>;

impl Engine {
    pub(crate) async fn drain(self: &Arc<Self>, drain_grace: Duration) {
        let timing = &self.setup.timing;
        let now_ms = self.setup.clock.now().as_millis();
        let make_result = |run: &HeldRun| wire_result(run, &StopCause::Drained.ending(None), (0, now_ms));
        self.table().drain(make_result, now());
        self.wake_waiters();
        self.end_pumps();
        if !self.settles_within(drain_grace, |table| table.is_empty()).await {
            self.stop(&StopCause::Drained, |_| true);
            // A run that does not stop is dropped and reported after its grace, so only a blocked thread can use up this
            // limit.
            self.settles_within(timing.cancel_grace + TASKS_GRACE, |table| table.is_empty()).await;
        }
        let all_acknowledged = |table: &Table| table.outbox.unacked_count() == 0 && !table.outbox.has_unacked_logs();
        if !self.settles_within(timing.ack_grace, all_acknowledged).await {
            let unacked_count = self.table().outbox.unacked_count();
            if unacked_count > 0 {
                tracing::warn!(
                    unacked = unacked_count,
                    kept = self.journal.is_some(),
                    "results without an acknowledgement at the end"
                );
            }
        }
        self.stop_tasks().await;
    }

    /// Whether the executor holds no run, and every result is acknowledged.
    pub(crate) fn is_settled(&self) -> bool {
        let table = self.table();
        table.is_empty() && table.outbox.unacked_count() == 0
    }

    async fn stop_tasks(&self) {
        let lifecycle = &self.setup.lifecycle;
        lifecycle.soft.cancel();
        lifecycle.hard.cancel();
        lifecycle.tracker.close();
        if tokio::time::timeout(TASKS_GRACE, lifecycle.tracker.wait()).await.is_err() {
            tracing::warn!(tasks = lifecycle.tracker.len(), "tasks that block their threads are left behind");
        }
        self.setup.forget_logs();
    }

    async fn settles_within(&self, limit: Duration, is_settled: impl Fn(&Table) -> bool) -> bool {
        let settle = async {
            while !is_settled(&self.table()) {
                self.settled_wake.notified().await;
            }
        };
        tokio::time::timeout(limit, settle).await.is_ok()
    }
}
