//! Orders: which items a group has from now on.

use std::collections::BTreeMap;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::pump::{Item, Owner, Pump};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_proto::v1;
use rondel_store::LeaseToken;

/// How long an order waits for the group to take it before it is sent again.
const RESEND_AFTER: Duration = Duration::from_secs(2);

/// The content of an order: another order with the same content need not be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OrderContent {
    /// For each item its name, its epoch, and whether the group is to release it.
    items: Vec<(String, i64, bool)>,
    /// Whether the group is to leave its executor.
    must_leave: bool,
}

impl OrderContent {
    pub(super) fn of(owner: Owner, items: &BTreeMap<String, Item>, must_leave: bool) -> Self {
        let owned_items = items.values().filter(|item| item.owner == Some(owner));
        let items =
            owned_items.map(|item| (item.name.clone(), item.epoch, item.asked_at.is_some() || must_leave)).collect();
        Self { items, must_leave }
    }

    pub(super) fn order(
        &self,
        owner: Owner,
        (term, number): (i64, i64),
        pump: &Pump,
        items: &BTreeMap<String, Item>,
    ) -> v1::PumpOrder {
        let item = |(name, epoch, release): &(String, i64, bool)| v1::PumpItem {
            name: name.clone(),
            epoch: *epoch,
            params: pump.items.get(name).cloned().unwrap_or_default(),
            checkpoint: items.get(name).and_then(|item| item.checkpoint.clone()).unwrap_or_default(),
            release: *release,
        };
        v1::PumpOrder {
            run_id: owner.run.get(),
            attempt: owner.attempt,
            term,
            number,
            items: self.items.iter().map(item).collect(),
            r#yield: self.must_leave,
        }
    }
}

/// The last order to a group: its content, its term and number, and when it was sent.
#[derive(Debug)]
pub(super) struct SentOrder {
    content: OrderContent,
    order_number: (i64, i64),
    sent_at: Timestamp,
}

impl SentOrder {
    pub(super) const fn new(content: OrderContent, order_number: (i64, i64), sent_at: Timestamp) -> Self {
        Self { content, order_number, sent_at }
    }

    /// Whether the group has taken exactly this order.
    pub(super) fn is_taken(&self, taken_order: (i64, i64)) -> bool {
        taken_order == self.order_number
    }

    /// Whether an order with this content need not be sent: it equals the order sent last, and the group has taken that order or may be about
    /// to take it. If the group has taken a higher number, that number belongs to an earlier order, from a time when the clock was ahead.
    pub(super) fn makes_redundant(&self, content: &OrderContent, taken_order: (i64, i64), now: Timestamp) -> bool {
        let is_taken = self.is_taken(taken_order) || mutant::on(Mutant::OrderOnce);
        self.content == *content && (is_taken || now < self.sent_at + RESEND_AFTER)
    }
}

/// The number of the next order to a group. It is above `last_number`, the last number of this server. It is also above the number that the
/// group has taken under this term, which may come from before a restart, when the clock was ahead. It is never behind the clock, so that
/// numbers keep rising after a restart. `taken_order` has the term and the number of the last order that the group has taken.
pub(super) fn next_number(term: i64, last_number: i64, taken_order: (i64, i64), now: Timestamp) -> i64 {
    let last_known_number = if taken_order.0 == term { last_number.max(taken_order.1) } else { last_number };
    now.as_millis().max(last_known_number + 1)
}

/// One message for all orders to an executor.
pub(super) fn message(token: LeaseToken, orders: Vec<v1::PumpOrder>) -> v1::server_message::Body {
    v1::server_message::Body::PumpOrders(v1::PumpOrders { node_id: token.node.get(), node_epoch: token.epoch, orders })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(epoch: i64) -> OrderContent {
        OrderContent { items: vec![("a".to_owned(), epoch, false)], must_leave: false }
    }

    #[test]
    fn an_order_is_sent_again_until_the_group_has_taken_it() {
        let at = Timestamp::from_secs;
        let sent = SentOrder::new(content(1), (3, 500), at(100));
        for (now, epoch, taken, stands) in [
            (101, 1, (0, 0), true),
            (102, 1, (0, 0), false),
            (102, 1, (3, 499), false),
            (200, 1, (3, 500), true),
            // The clock was ahead when the server ran before: the group has taken a higher number, and not this order.
            (102, 1, (3, 9_000), false),
            (101, 2, (3, 500), false),
        ] {
            assert_eq!(sent.makes_redundant(&content(epoch), taken, at(now)), stands, "{now} {epoch} {taken:?}");
        }
    }

    #[test]
    fn numbers_rise_also_where_the_clock_stepped_back_before_a_restart() {
        let now = Timestamp::from_millis(1_000);
        assert_eq!(next_number(3, 0, (0, 0), now), 1_000);
        assert_eq!(next_number(3, 1_000, (3, 1_000), now), 1_001);
        // A restart under the same term: nothing is remembered, and the group has taken more than the clock shows.
        assert_eq!(next_number(3, 0, (3, 7_000), now), 7_001);
        assert_eq!(next_number(4, 0, (3, 7_000), now), 1_000, "a new term is above every number of the one before");
    }
}
