//! Passes the orders of servers to the groups of pump jobs, and sends the groups' reports. An order lists the items
//! that a group holds.

use std::sync::Arc;

use rondel_proto::v1::{self, PumpOrders};

use super::{Engine, Link};
use crate::pump::group::split;
use crate::table::{LinkItem, RunKey, TableLink as _};

/// Sends reports as groups make them.
pub(super) struct ReportLoop {
    engine: Arc<Engine>,
}

impl ReportLoop {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    pub(super) async fn run(self) {
        let setup = &self.engine.setup;
        loop {
            tokio::select! {
                () = setup.lifecycle.soft.cancelled() => return,
                () = setup.pump_reports.wait_until_ready() => self.engine.send_reports(),
            }
        }
    }
}

impl Engine {
    /// Passes each group its order.
    pub(crate) fn pump_orders(&self, orders: PumpOrders) {
        let orders = self.table().pump_orders(orders);
        for (run, order) in orders {
            if let Some(mailbox) = run.order_mailbox() {
                mailbox.put(order);
            }
        }
    }

    /// Asks all groups of pump jobs to release their items and end, because the executor drains. A group never ends
    /// on its own.
    pub(super) fn end_pumps(&self) {
        for run in self.table().runs() {
            if let Some(mailbox) = run.order_mailbox() {
                mailbox.leave();
            }
        }
    }

    /// Sends new reports on every stream: any of the servers may own the job.
    pub(super) fn send_reports(&self) {
        // Holding the table's lock keeps the reports of two callers in order.
        let table = self.table();
        for report in self.setup.pump_reports.take_unsent().into_iter().flat_map(split) {
            table.outbox.links().for_each(|link| link.push(LinkItem::Pump(report.clone())));
        }
    }

    /// Sends the last report of each group on a new stream.
    pub(super) fn repeat_reports(&self, link: &Link) {
        link.extend(self.setup.pump_reports.all().into_iter().flat_map(split).map(LinkItem::Pump));
    }

    /// Forgets the reports of groups whose results a server has acknowledged.
    pub(super) fn forget_reports(&self, acks: &[v1::ResultAck]) {
        for ack in acks {
            let key = RunKey::new(ack.run_id, ack.attempt);
            if self.table().get(key).is_none() {
                self.setup.pump_reports.forget(key);
            }
        }
    }
}
