//! The exchange between an executor's streams and its groups of pump jobs, and the drain of an executor.

use std::sync::Arc;
use std::time::Duration;

use rondel::pump::group::split;
use rondel::table::{LinkItem, RunTable, TableLink as _};
use rondel_proto::v1;
use tokio::time::{Instant, sleep};

use super::handler::result;
use super::{Executor, ExecutorHost, SWEEP_PERIOD, now};
use crate::link::{Link, RunHandle};
use crate::world::lock;

/// How long the goodbye may take.
const GOODBYE_TIME: Duration = Duration::from_millis(50);

impl ExecutorHost {
    /// SIGTERM: the executor takes no more runs, its groups release their items, and it ends. It is started
    /// again after `back_after`.
    pub(crate) fn drain(self: &Arc<Self>, grace: Duration, back_after: Duration) {
        let Some(executor) = lock(&self.running).clone() else { return };
        self.world.record("executor drains", executor.incarnation, || self.name.clone());
        let (host, draining) = (Arc::clone(self), Arc::clone(&executor));
        executor.spawn(async move {
            let gives_up_at = Instant::now() + grace;
            let failed = (v1::result::Status::Failed, true);
            let ended = |held: &RunHandle| result(&held.trigger, failed, draining.world().now());
            lock(&draining.table).drain(ended, now());
            draining.write_journal();
            lock(&draining.table).runs().for_each(|run| run.mailbox.leave());
            let is_settled = |table: &RunTable<RunHandle, Link>| table.is_empty() && table.outbox.unacked_count() == 0;
            while !is_settled(&lock(&draining.table)) && Instant::now() < gives_up_at {
                sleep(SWEEP_PERIOD).await;
            }
            if is_settled(&lock(&draining.table)) {
                lock(&draining.table).outbox.links().for_each(|link| link.send_goodbye());
                // The goodbye may or may not be sent within this time.
                sleep(GOODBYE_TIME).await;
            }
            host.kill();
            host.start_later(back_after);
        });
    }
}

impl Executor {
    /// Passes each group its order.
    pub(super) fn pass_orders(&self, orders: v1::PumpOrders) {
        let (node, epoch) = (orders.node_id, orders.node_epoch);
        let table = lock(&self.table);
        let is_fenced = table.fenced_epoch(node).is_some_and(|fenced| epoch <= fenced);
        for (run, order) in table.pump_orders(orders) {
            if is_fenced {
                let description = format!("{} takes orders of node {node} under epoch {epoch}", self.host.name);
                lock(&self.world().pumps).violate("P1 fencing", &description);
            }
            run.mailbox.put(order);
        }
    }

    /// Sends new reports on every stream.
    pub(super) fn send_reports(&self) {
        let table = lock(&self.table);
        for report_part in self.reports.take_unsent().into_iter().flat_map(split) {
            table.outbox.links().for_each(|link| link.push(LinkItem::Pump(report_part.clone())));
        }
    }

    /// Sends reports as soon as groups have new ones.
    pub(super) async fn report_loop(&self) {
        loop {
            self.reports.wait_until_ready().await;
            self.send_reports();
        }
    }

    /// Sends the last report of each group on a new stream.
    pub(super) fn repeat_reports(&self, link: &Link) {
        link.extend(self.reports.all().into_iter().flat_map(split).map(LinkItem::Pump));
    }
}
