//! Channels, and messages on their way to them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::{ChannelId, DeliveryId, IdGen, MessageId, NamespaceId, NodeId, Timestamp};

use super::channel_rows::{Lease, StoredMessage};
use super::{MemStore, size};
use crate::channels::{
    AfterTry, CHANNEL_COUNT_MAX, Channel, ChannelSaved, Delivery, LeaseChannels, LeasedChannel, NewMessage,
};
use crate::{Channels, Result};

#[async_trait]
impl Channels for MemStore {
    async fn channel(&self, namespace: NamespaceId, name: &str) -> Result<Option<Channel>> {
        Ok(self.state().alerts.named(namespace, name).cloned())
    }

    async fn channels(&self, namespace: NamespaceId) -> Result<Vec<Channel>> {
        let state = self.state();
        let channels = state.alerts.channels.values().map(|(channel, _)| channel);
        let mut found: Vec<Channel> = channels.filter(|channel| channel.namespace == namespace).cloned().collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    async fn save_channel(&self, channel: &Channel) -> Result<ChannelSaved> {
        let mut state = self.state();
        if state.namespaces.iter().all(|namespace| namespace.id != channel.namespace) {
            return Ok(ChannelSaved::Full);
        }
        let known = state.alerts.named(channel.namespace, &channel.name).map(|known| (known.id, known.created_at));
        if let Some((id, created_at)) = known {
            if let Some((kept, _)) = state.alerts.channels.get_mut(&id) {
                *kept = Channel { id, created_at, ..channel.clone() };
            }
            return Ok(ChannelSaved::Changed(id));
        }
        let of_it = state.alerts.channels.values().filter(|(other, _)| other.namespace == channel.namespace);
        if of_it.count() >= size(CHANNEL_COUNT_MAX) {
            return Ok(ChannelSaved::Full);
        }
        let free = Lease { held_by: NodeId::new(0), held_until: Timestamp::EPOCH };
        state.alerts.channels.insert(channel.id, (channel.clone(), free));
        Ok(ChannelSaved::Created(channel.id))
    }

    async fn delete_channel(&self, namespace: NamespaceId, name: &str) -> Result<bool> {
        let mut state = self.state();
        let Some(id) = state.alerts.named(namespace, name).map(|channel| channel.id) else { return Ok(false) };
        state.alerts.remove(id);
        Ok(true)
    }

    async fn write_messages(&self, messages: &[NewMessage]) -> Result<u64> {
        let mut state = self.state();
        let written = messages.iter().filter(|message| state.alerts.write(message)).count();
        Ok(u64::try_from(written).unwrap_or(u64::MAX))
    }

    async fn lease_channels(&self, lease: LeaseChannels<'_>) -> Result<Vec<LeasedChannel>> {
        let mut state = self.state();
        let alerts = &mut state.alerts;
        let mut due: BTreeMap<ChannelId, Timestamp> = BTreeMap::new();
        for stored in alerts.messages.values().filter(|it| it.is_waiting && it.next_try_at <= lease.now) {
            let first = due.entry(stored.message.channel).or_insert(stored.next_try_at);
            *first = stored.next_try_at.min(*first);
        }
        let mut due: Vec<(Timestamp, ChannelId)> = due.into_iter().map(|(id, first)| (first, id)).collect();
        due.sort_unstable();
        let is_free = |held: &Lease| held.held_until <= lease.now || held.held_by == lease.node;
        due.retain(|(_, id)| !lease.without.contains(id));
        due.retain(|(_, id)| alerts.channels.get(id).is_some_and(|(_, held)| is_free(held)));
        due.truncate(size(lease.channel_max));
        let held_until = lease.now + lease.hold;
        let mut leased = Vec::new();
        for (_, id) in due {
            let messages = alerts.due(id, lease.now, size(lease.each_max));
            if let Some((channel, held)) = alerts.channels.get_mut(&id) {
                *held = Lease { held_by: lease.node, held_until };
                leased.push(LeasedChannel { channel: channel.clone(), held_until, messages });
            }
        }
        Ok(leased)
    }

    async fn free_channel(&self, channel: ChannelId, held_until: Timestamp, free_at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let lease = state.alerts.channels.get_mut(&channel).map(|(_, lease)| lease);
        if let Some(lease) = lease.filter(|lease| lease.held_until == held_until) {
            *lease = Lease { held_by: NodeId::new(0), held_until: free_at };
        }
        Ok(())
    }

    async fn finish_message(&self, delivery: &Delivery, after: AfterTry) -> Result<bool> {
        let mut state = self.state();
        state.alerts.deliveries.insert(delivery.id, delivery.clone());
        let is_this_try = |it: &&mut StoredMessage| it.is_waiting && it.try_count + 1 == delivery.try_number;
        let Some(stored) = state.alerts.messages.get_mut(&delivery.message).filter(is_this_try) else {
            return Ok(false);
        };
        stored.try_count = delivery.try_number;
        match after {
            AfterTry::Retry(at) => stored.next_try_at = at,
            AfterTry::Sent | AfterTry::GivenUp => stored.is_waiting = false,
        }
        Ok(true)
    }

    async fn note_delivery(&self, delivery: &Delivery) -> Result<()> {
        self.state().alerts.deliveries.insert(delivery.id, delivery.clone());
        Ok(())
    }

    async fn deliveries(&self, channel: ChannelId, before: Option<DeliveryId>, limit: u32) -> Result<Vec<Delivery>> {
        let state = self.state();
        let is_asked = |it: &&Delivery| it.channel == channel && before.is_none_or(|before| it.id < before);
        Ok(state.alerts.deliveries.values().rev().filter(is_asked).take(size(limit)).cloned().collect())
    }

    async fn last_deliveries(&self, namespace: NamespaceId) -> Result<Vec<Delivery>> {
        let state = self.state();
        let alerts = &state.alerts;
        let channels = alerts.channels.values().filter(|(channel, _)| channel.namespace == namespace);
        let last = |id| alerts.deliveries.values().rev().find(|delivery| delivery.channel == id).cloned();
        Ok(channels.filter_map(|(channel, _)| last(channel.id)).collect())
    }

    async fn forget_messages(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let first = IdGen::first_at(before);
        let old = |it: &StoredMessage| !it.is_waiting && it.message.id.get() < first;
        let messages: Vec<MessageId> =
            state.alerts.messages.values().filter(|it| old(it)).map(|it| it.message.id).collect();
        let deliveries: Vec<DeliveryId> =
            state.alerts.deliveries.keys().copied().filter(|id| id.get() < first).collect();
        let mut removed = 0;
        for id in messages.into_iter().take(size(limit)) {
            removed += u64::from(state.alerts.messages.remove(&id).is_some());
        }
        for id in deliveries.into_iter().take(size(limit)) {
            removed += u64::from(state.alerts.deliveries.remove(&id).is_some());
        }
        Ok(removed)
    }
}
