//! The rows of channels, and of the messages to them.

use std::collections::BTreeMap;

use rondel_core::{ChannelId, DeliveryId, MessageId, NamespaceId, NodeId, Timestamp};

use crate::channels::{Channel, Delivery, NewMessage, WaitingMessage};

/// Channels with their leases, messages and tries.
#[derive(Default)]
pub(super) struct ChannelRows {
    pub(super) channels: BTreeMap<ChannelId, (Channel, Lease)>,
    pub(super) messages: BTreeMap<MessageId, StoredMessage>,
    pub(super) deliveries: BTreeMap<DeliveryId, Delivery>,
}

pub(super) struct Lease {
    pub(super) held_by: NodeId,
    pub(super) held_until: Timestamp,
}

pub(super) struct StoredMessage {
    pub(super) message: NewMessage,
    pub(super) is_waiting: bool,
    pub(super) is_sent: bool,
    pub(super) try_count: i32,
    /// When it is tried next. For a message that no longer waits, when it was last tried.
    pub(super) next_try_at: Timestamp,
}

impl StoredMessage {
    /// The name of its state in its row.
    pub(super) const fn state(&self) -> &'static str {
        match (self.is_waiting, self.is_sent) {
            (true, _) => "waiting",
            (false, true) => "sent",
            (false, false) => "given_up",
        }
    }
}

impl ChannelRows {
    pub(super) fn remove_namespace(&mut self, namespace: NamespaceId) {
        let channels_of_namespace = self.channels.values().filter(|(channel, _)| channel.namespace == namespace);
        let ids: Vec<ChannelId> = channels_of_namespace.map(|(channel, _)| channel.id).collect();
        for id in ids {
            self.remove_channel(id);
        }
    }

    pub(super) fn remove_channel(&mut self, id: ChannelId) {
        self.channels.remove(&id);
        self.messages.retain(|_, stored_message| stored_message.message.channel != id);
        self.deliveries.retain(|_, delivery| delivery.channel != id);
    }

    pub(super) fn find_by_name(&self, namespace: NamespaceId, name: &str) -> Option<&Channel> {
        let mut channels = self.channels.values().map(|(channel, _)| channel);
        channels.find(|channel| channel.namespace == namespace && channel.name == name)
    }

    pub(super) fn write_message(&mut self, message: &NewMessage) -> bool {
        let key = |message: &NewMessage| (message.incident, message.channel, message.notice.kind, message.number);
        let is_stored = self.messages.values().any(|stored_message| key(&stored_message.message) == key(message));
        if is_stored || !self.channels.contains_key(&message.channel) {
            return false;
        }
        let notice = message.notice.clone().bounded();
        let (message, next_try_at) = (NewMessage { notice, ..message.clone() }, message.created_at);
        let stored_message = StoredMessage { message, is_waiting: true, is_sent: false, try_count: 0, next_try_at };
        self.messages.insert(stored_message.message.id, stored_message);
        true
    }

    /// The due messages of a channel that do not wait for an earlier message of their incident. The message that has been due longest comes
    /// first.
    pub(super) fn due_messages(&self, channel: ChannelId, now: Timestamp, limit: usize) -> Vec<WaitingMessage> {
        let waiting_messages = || {
            self.messages
                .values()
                .filter(|stored_message| stored_message.is_waiting && stored_message.message.channel == channel)
        };
        let is_first = |message: &NewMessage| {
            waiting_messages().all(|other| other.message.incident != message.incident || other.message.id >= message.id)
        };
        let mut due_messages: Vec<&StoredMessage> = waiting_messages()
            .filter(|stored_message| stored_message.next_try_at <= now && is_first(&stored_message.message))
            .collect();
        due_messages.sort_by_key(|stored_message| (stored_message.next_try_at, stored_message.message.id));
        due_messages.truncate(limit);
        let to_waiting_message = |stored_message: &&StoredMessage| WaitingMessage {
            id: stored_message.message.id,
            incident: stored_message.message.incident,
            notice: stored_message.message.notice.clone(),
            try_count: stored_message.try_count,
            created_at: stored_message.message.created_at,
        };
        due_messages.iter().map(to_waiting_message).collect()
    }
}
