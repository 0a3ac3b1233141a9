//! Orders: which items a group has from now on.

use std::collections::BTreeMap;

use rondel_core::pump::{Item, Owner, Pump};
use rondel_proto::v1;
use rondel_store::LeaseToken;

/// What an order is about: one with the same content need not be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Items with their epochs, and whether they are asked back.
    items: Vec<(String, i64, bool)>,
    /// The group leaves its executor.
    leaves: bool,
}

impl Content {
    pub(super) fn of(owner: Owner, items: &BTreeMap<String, Item>, leaves: bool) -> Self {
        let owned = items.values().filter(|item| item.owner == Some(owner));
        let items = owned.map(|item| (item.name.clone(), item.epoch, item.asked_at.is_some() || leaves)).collect();
        Self { items, leaves }
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
            r#yield: self.leaves,
        }
    }
}

/// One message for all orders to an executor.
pub(super) fn message(token: LeaseToken, orders: Vec<v1::PumpOrder>) -> v1::server_message::Body {
    v1::server_message::Body::PumpOrders(v1::PumpOrders { node_id: token.node.get(), node_epoch: token.epoch, orders })
}
