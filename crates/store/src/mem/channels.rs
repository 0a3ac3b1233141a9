//! The trait `Channels` for the store in memory.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::{ChannelId, DeliveryId, IdGen, IncidentId, JobSpec, MessageId, NamespaceId, NodeId, Timestamp};

use super::channel_rows::{Lease, StoredMessage};
use super::{MemStore, State, to_usize};
use crate::channels::{
    AfterTry, CHANNEL_COUNT_MAX, CHANNEL_USE_COUNT_MAX, Channel, ChannelDeleted, ChannelSaved, ChannelUse, Delivery,
    IncidentMessage, LeaseChannels, LeasedChannel, NewMessage,
};
use crate::{Channels, Result};

#[async_trait]
impl Channels for MemStore {
    async fn channel(&self, namespace: NamespaceId, name: &str) -> Result<Option<Channel>> {
        Ok(self.state().channel_rows.find_by_name(namespace, name).cloned())
    }

    async fn channels(&self, namespace: NamespaceId) -> Result<Vec<Channel>> {
        let state = self.state();
        let channels = state.channel_rows.channels.values().map(|(channel, _)| channel);
        let mut channels_of_namespace: Vec<Channel> =
            channels.filter(|channel| channel.namespace == namespace).cloned().collect();
        channels_of_namespace.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(channels_of_namespace)
    }

    async fn save_channel(&self, channel: &Channel, expected: Option<Timestamp>) -> Result<ChannelSaved> {
        let mut state = self.state();
        if state.namespaces.iter().all(|namespace| namespace.id != channel.namespace) {
            return Ok(ChannelSaved::Full);
        }
        let stored_channel = state.channel_rows.find_by_name(channel.namespace, &channel.name);
        let saved_at = stored_channel.map_or(Timestamp::EPOCH, |stored_channel| stored_channel.updated_at);
        if expected.is_some_and(|expected| expected != saved_at) {
            return Ok(ChannelSaved::Conflict(saved_at));
        }
        if let Some((id, created_at)) =
            stored_channel.map(|stored_channel| (stored_channel.id, stored_channel.created_at))
        {
            if let Some((stored_channel, _)) = state.channel_rows.channels.get_mut(&id) {
                *stored_channel = Channel { id, created_at, ..channel.clone() };
            }
            return Ok(ChannelSaved::Changed(id));
        }
        let channels_of_namespace =
            state.channel_rows.channels.values().filter(|(other, _)| other.namespace == channel.namespace);
        if channels_of_namespace.count() >= to_usize(CHANNEL_COUNT_MAX) {
            return Ok(ChannelSaved::Full);
        }
        let no_lease = Lease { held_by: NodeId::new(0), held_until: Timestamp::EPOCH };
        state.channel_rows.channels.insert(channel.id, (channel.clone(), no_lease));
        Ok(ChannelSaved::Created(channel.id))
    }

    async fn delete_channel(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected: Option<Timestamp>,
    ) -> Result<ChannelDeleted> {
        let mut state = self.state();
        let stored_channel =
            state.channel_rows.find_by_name(namespace, name).map(|channel| (channel.id, channel.updated_at));
        let Some((id, saved_at)) = stored_channel else { return Ok(ChannelDeleted::NotFound) };
        if expected.is_some_and(|expected| expected != saved_at) {
            return Ok(ChannelDeleted::Conflict(saved_at));
        }
        let uses = state.channel_uses(namespace, name);
        if !uses.is_empty() {
            return Ok(ChannelDeleted::Used(uses));
        }
        state.channel_rows.remove_channel(id);
        Ok(ChannelDeleted::Deleted)
    }

    async fn write_messages(&self, messages: &[NewMessage]) -> Result<u64> {
        let mut state = self.state();
        let written_count = messages.iter().filter(|message| state.channel_rows.write_message(message)).count();
        Ok(u64::try_from(written_count).unwrap_or(u64::MAX))
    }

    async fn lease_channels(&self, lease: LeaseChannels<'_>) -> Result<Vec<LeasedChannel>> {
        let mut state = self.state();
        let channel_rows = &mut state.channel_rows;
        let mut first_due_by_channel: BTreeMap<ChannelId, Timestamp> = BTreeMap::new();
        for stored_message in
            channel_rows.messages.values().filter(|message| message.is_waiting && message.next_try_at <= lease.now)
        {
            let first_due_at =
                first_due_by_channel.entry(stored_message.message.channel).or_insert(stored_message.next_try_at);
            *first_due_at = stored_message.next_try_at.min(*first_due_at);
        }
        let mut due_channels: Vec<(Timestamp, ChannelId)> =
            first_due_by_channel.into_iter().map(|(id, first_due_at)| (first_due_at, id)).collect();
        due_channels.sort_unstable();
        let is_free =
            |channel_lease: &Lease| channel_lease.held_until <= lease.now || channel_lease.held_by == lease.node;
        due_channels.retain(|(_, id)| !lease.excluded_channels.contains(id));
        due_channels
            .retain(|(_, id)| channel_rows.channels.get(id).is_some_and(|(_, channel_lease)| is_free(channel_lease)));
        due_channels.truncate(to_usize(lease.channel_max));
        let held_until = lease.now + lease.hold;
        let mut leased_channels = Vec::new();
        for (_, id) in due_channels {
            let messages = channel_rows.due_messages(id, lease.now, to_usize(lease.messages_per_channel_max));
            if let Some((channel, channel_lease)) = channel_rows.channels.get_mut(&id) {
                *channel_lease = Lease { held_by: lease.node, held_until };
                leased_channels.push(LeasedChannel { channel: channel.clone(), held_until, messages });
            }
        }
        Ok(leased_channels)
    }

    async fn free_channel(&self, channel: ChannelId, held_until: Timestamp, free_at: Timestamp) -> Result<()> {
        let mut state = self.state();
        let lease = state.channel_rows.channels.get_mut(&channel).map(|(_, lease)| lease);
        if let Some(lease) = lease.filter(|lease| lease.held_until == held_until) {
            *lease = Lease { held_by: NodeId::new(0), held_until: free_at };
        }
        Ok(())
    }

    async fn record_try(&self, delivery: &Delivery, after: AfterTry) -> Result<bool> {
        let mut state = self.state();
        state.channel_rows.deliveries.insert(delivery.id, delivery.clone());
        let is_this_try =
            |message: &&mut StoredMessage| message.is_waiting && message.try_count + 1 == delivery.try_number;
        let Some(stored_message) = state.channel_rows.messages.get_mut(&delivery.message).filter(is_this_try) else {
            return Ok(false);
        };
        stored_message.try_count = delivery.try_number;
        match after {
            AfterTry::Retry(at) => stored_message.next_try_at = at,
            AfterTry::Sent | AfterTry::GivenUp => {
                (stored_message.is_waiting, stored_message.is_sent) = (false, after == AfterTry::Sent);
                stored_message.next_try_at = delivery.at;
            }
        }
        Ok(true)
    }

    async fn record_test(&self, delivery: &Delivery) -> Result<()> {
        self.state().channel_rows.deliveries.insert(delivery.id, delivery.clone());
        Ok(())
    }

    async fn deliveries(&self, channel: ChannelId, before: Option<DeliveryId>, limit: u32) -> Result<Vec<Delivery>> {
        let state = self.state();
        let is_selected =
            |delivery: &&Delivery| delivery.channel == channel && before.is_none_or(|before| delivery.id < before);
        Ok(state.channel_rows.deliveries.values().rev().filter(is_selected).take(to_usize(limit)).cloned().collect())
    }

    async fn incident_messages(&self, incident: IncidentId, limit: u32) -> Result<Vec<IncidentMessage>> {
        let state = self.state();
        let channel_rows = &state.channel_rows;
        let messages = channel_rows
            .messages
            .values()
            .rev()
            .filter(|stored_message| stored_message.message.incident == incident)
            .take(to_usize(limit));
        let incident_message = |stored_message: &StoredMessage| {
            let (channel, _) = channel_rows.channels.get(&stored_message.message.channel)?;
            let last_delivery =
                channel_rows.deliveries.values().rev().find(|delivery| delivery.message == stored_message.message.id);
            Some(IncidentMessage {
                id: stored_message.message.id,
                channel: channel.name.clone(),
                kind: stored_message.message.notice.kind,
                state: stored_message.state().to_owned(),
                try_count: stored_message.try_count,
                created_at: stored_message.message.created_at,
                at: stored_message.next_try_at,
                error: last_delivery.and_then(|delivery| delivery.error.clone()).filter(|_| !stored_message.is_sent),
            })
        };
        Ok(messages.filter_map(incident_message).collect())
    }

    async fn channels_of_incident(&self, incident: IncidentId) -> Result<Vec<String>> {
        let state = self.state();
        let channel_rows = &state.channel_rows;
        let stored_messages =
            channel_rows.messages.values().filter(|stored_message| stored_message.message.incident == incident);
        let ids: BTreeSet<ChannelId> = stored_messages.map(|stored_message| stored_message.message.channel).collect();
        let channels = ids.iter().filter_map(|id| channel_rows.channels.get(id));
        let mut names: Vec<String> = channels.map(|(channel, _)| channel.name.clone()).collect();
        names.sort();
        Ok(names)
    }

    async fn message_subjects(&self, messages: &[MessageId]) -> Result<Vec<(MessageId, String)>> {
        let state = self.state();
        let ids: BTreeSet<MessageId> = messages.iter().copied().collect();
        let stored_messages = ids.into_iter().filter_map(|id| state.channel_rows.messages.get(&id));
        Ok(stored_messages
            .map(|stored_message| (stored_message.message.id, stored_message.message.notice.subject.name.clone()))
            .collect())
    }

    async fn last_deliveries(&self, namespace: NamespaceId) -> Result<Vec<Delivery>> {
        let state = self.state();
        let channel_rows = &state.channel_rows;
        let channels = channel_rows.channels.values().filter(|(channel, _)| channel.namespace == namespace);
        let last_delivery =
            |id| channel_rows.deliveries.values().rev().find(|delivery| delivery.channel == id).cloned();
        Ok(channels.filter_map(|(channel, _)| last_delivery(channel.id)).collect())
    }

    async fn forget_messages(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let first_kept_id = IdGen::first_at(before);
        let incidents = &state.alert_rows.incidents;
        let is_open =
            |id: IncidentId| incidents.get(&id).is_some_and(|(_, record)| record.incident.resolved_at.is_none());
        let is_old = |stored_message: &StoredMessage| {
            !stored_message.is_waiting
                && stored_message.message.id.get() < first_kept_id
                && !is_open(stored_message.message.incident)
        };
        let old_message_ids: Vec<MessageId> = state
            .channel_rows
            .messages
            .values()
            .filter(|stored_message| is_old(stored_message))
            .map(|stored_message| stored_message.message.id)
            .collect();
        let old_delivery_ids: Vec<DeliveryId> =
            state.channel_rows.deliveries.keys().copied().filter(|id| id.get() < first_kept_id).collect();
        let mut removed_count = 0;
        for id in old_message_ids.into_iter().take(to_usize(limit)) {
            removed_count += u64::from(state.channel_rows.messages.remove(&id).is_some());
        }
        for id in old_delivery_ids.into_iter().take(to_usize(limit)) {
            removed_count += u64::from(state.channel_rows.deliveries.remove(&id).is_some());
        }
        Ok(removed_count)
    }
}

impl State {
    fn channel_uses(&self, namespace: NamespaceId, name: &str) -> Vec<ChannelUse> {
        let rules = self.alert_rows.rules_of(namespace).into_iter().map(|rule| rule.spec);
        let rules = rules.filter(|spec| spec.channel_names().any(|channel| channel == name));
        let mut uses: BTreeSet<ChannelUse> = rules.map(|spec| ChannelUse::Rule(spec.name)).collect();
        let report = self.report_schedules.get(&namespace).filter(|report| report.spec.channel == name);
        uses.extend(report.map(|_| ChannelUse::Report));
        for job in self.jobs.values().filter(|job| !job.is_deleted && job.record.namespace == namespace) {
            let channel_names =
                job.record.spec.expect.as_ref().map(|expect| expect.channel_names()).unwrap_or_default();
            if channel_names.iter().any(|channel| channel == name) {
                uses.insert(ChannelUse::Job(job.record.spec.name.clone()));
            }
        }
        uses.into_iter().take(CHANNEL_USE_COUNT_MAX + 1).collect()
    }

    /// A missing channel that the definition names and that the earlier definition (`before`) did not name.
    pub(super) fn missing_channel(
        &self,
        namespace: NamespaceId,
        spec: &JobSpec,
        before: Option<&JobSpec>,
    ) -> Option<String> {
        let mut new_names = spec.expect.as_deref()?.new_channels(before.and_then(|before| before.expect.as_deref()));
        let missing_name = new_names.find(|(_, name)| self.channel_rows.find_by_name(namespace, name).is_none());
        missing_name.map(|(_, name)| name.to_owned())
    }
}
