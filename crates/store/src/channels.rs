//! Alert channels, the messages to them, and each try to deliver a message.
//!
//! A message is written in the transaction of the incident's change and sent after it. One server at a time has the lease of a channel;
//! until the lease ends, no other server sends to that channel. The messages of one incident are sent in order; messages of different
//! incidents do not wait for each other.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::channel::ChannelKind;
use rondel_core::notice::{Notice, NoticeKind};
use rondel_core::words::Lang;
use rondel_core::{ChannelId, DeliveryId, IncidentId, MessageId, NamespaceId, NodeId, Timestamp};

use crate::error::Result;

/// Maximum number of channels of a namespace.
pub const CHANNEL_COUNT_MAX: u32 = 100;
/// Maximum number of channels that one call leases.
pub const LEASE_COUNT_MAX: u32 = 500;
/// Maximum number of messages of one channel that one call returns.
pub const LEASE_MESSAGES_PER_CHANNEL_MAX: u32 = 500;
/// Maximum number of uses that a refusal to delete a channel names.
pub const CHANNEL_USE_COUNT_MAX: usize = 10;
/// Maximum number of messages of one incident that one call returns.
pub const INCIDENT_MESSAGE_COUNT_MAX: u32 = 100;
/// Maximum number of deliveries on one page.
pub const DELIVERY_COUNT_MAX: u32 = 500;

#[derive(Clone, PartialEq, Eq)]
pub struct Channel {
    /// Its id. Saving a channel under a name that exists keeps the existing id.
    pub id: ChannelId,
    pub namespace: NamespaceId,
    /// Unique in its namespace.
    pub name: String,
    /// The service.
    pub kind: ChannelKind,
    /// The settings of the service, as JSON, without the secret part.
    pub settings: String,
    /// The secret part of its settings, as JSON. A database stores it sealed (encrypted).
    pub secret: String,
    /// The language of its messages.
    pub lang: Lang,
    /// Whether messages are sent. Messages for a disabled channel are given up.
    pub is_enabled: bool,
    pub created_at: Timestamp,
    /// When it was last saved.
    pub updated_at: Timestamp,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Outcome of saving a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelSaved {
    /// It is new.
    Created(ChannelId),
    /// It existed, with this id.
    Changed(ChannelId),
    /// Another caller saved or deleted it first. The instant is that of the last save, [`Timestamp::EPOCH`] after a deletion.
    Conflict(Timestamp),
    /// The namespace has [`CHANNEL_COUNT_MAX`] channels, or was deleted.
    Full,
}

/// A rule, a job or a report that sends messages to a channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChannelUse {
    /// A rule, including one that uses the channel only to escalate.
    Rule(String),
    /// The expectations of a job. Expectations that name no channel use [`EXPECT_CHANNEL`](rondel_core::spec::EXPECT_CHANNEL).
    Job(String),
    /// The weekly report.
    Report,
}

/// Outcome of deleting a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelDeleted {
    Deleted,
    /// Another caller saved it first; when it was last saved.
    Conflict(Timestamp),
    /// There is no such channel.
    NotFound,
    /// These use the channel. All uses are listed, but at most one more than [`CHANNEL_USE_COUNT_MAX`].
    Used(Vec<ChannelUse>),
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// Its id: receivers get it with each try.
    pub id: MessageId,
    pub namespace: NamespaceId,
    /// The channel. A message to a channel that was deleted is not written.
    pub channel: ChannelId,
    /// The incident. At most one message exists per incident, channel, kind and number.
    pub incident: IncidentId,
    /// Its number among the messages of one kind about one incident to one channel.
    pub number: i32,
    /// Its content; the kind of the notice is the kind of the message.
    pub notice: Notice,
    /// When it is written. The message is due immediately.
    pub created_at: Timestamp,
}

/// A message that its channel has not accepted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessage {
    pub id: MessageId,
    pub incident: IncidentId,
    /// Its content.
    pub notice: Notice,
    /// Number of tries to send it.
    pub try_count: i32,
    /// When it was written.
    pub created_at: Timestamp,
}

/// A request to lease channels.
#[derive(Clone, Copy, Debug)]
pub struct LeaseChannels<'a> {
    /// The server that sends. It may also take leases that it already holds, for example from before its restart.
    pub node: NodeId,
    /// Channels to leave out, because the server is already sending to them. At most [`LEASE_COUNT_MAX`].
    pub excluded_channels: &'a [ChannelId],
    pub now: Timestamp,
    /// Maximum number of channels, at most [`LEASE_COUNT_MAX`].
    pub channel_max: u32,
    /// Maximum number of messages of each channel, at most [`LEASE_MESSAGES_PER_CHANNEL_MAX`].
    pub messages_per_channel_max: u32,
    /// Length of the leases. No other server sends to the channels during this time.
    pub hold: Duration,
}

/// A channel that the caller has leased, with its messages that are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedChannel {
    pub channel: Channel,
    /// The end of the lease.
    pub held_until: Timestamp,
    /// At most one message per incident; the message that has been due longest comes first. May be empty.
    pub messages: Vec<WaitingMessage>,
}

/// The decision about a message after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterTry {
    /// The receiver has it.
    Sent,
    /// It is tried again at this instant.
    Retry(Timestamp),
    /// It is not tried again.
    GivenUp,
}

impl AfterTry {
    /// Its name in a delivery.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Retry(_) => "retry",
            Self::GivenUp => "given_up",
        }
    }
}

/// One try to deliver a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub id: DeliveryId,
    pub channel: ChannelId,
    pub message: MessageId,
    /// The incident; none for a test.
    pub incident: Option<IncidentId>,
    /// Why the message was sent.
    pub kind: NoticeKind,
    /// Which try of this message it was, from 1.
    pub try_number: i32,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub latency_ms: i64,
    /// The decision: `sent`, `retry` or `given_up`.
    pub verdict: String,
    /// The status that the service answered with, 0 without an answer.
    pub status: i32,
    /// Why it was not delivered, at most 500 bytes; `None` if it was delivered.
    pub error: Option<String>,
}

/// A message about an incident, and the state of its delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncidentMessage {
    pub id: MessageId,
    /// The name of its channel.
    pub channel: String,
    /// Why it was written.
    pub kind: NoticeKind,
    /// `waiting`, `sent` or `given_up`.
    pub state: String,
    /// How often sending was tried.
    pub try_count: i32,
    /// When it was written.
    pub created_at: Timestamp,
    /// When it is tried next. For a message that is not `waiting`, when it was last tried.
    pub at: Timestamp,
    /// Why the last try failed, if that is still stored.
    pub error: Option<String>,
}

#[async_trait]
pub trait Channels {
    async fn channel(&self, namespace: NamespaceId, name: &str) -> Result<Option<Channel>>;

    /// All channels of a namespace, sorted by name.
    async fn channels(&self, namespace: NamespaceId) -> Result<Vec<Channel>>;

    /// Saves a channel under its name. `expected` is when the channel was last saved, [`Timestamp::EPOCH`] for a new channel; `None` means
    /// any.
    async fn save_channel(&self, channel: &Channel, expected: Option<Timestamp>) -> Result<ChannelSaved>;

    /// Deletes a channel that nothing uses, with its messages and deliveries. `expected` is when the channel was last saved; `None` means
    /// any.
    async fn delete_channel(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected: Option<Timestamp>,
    ) -> Result<ChannelDeleted>;

    /// Writes messages, except messages that exist already and messages to deleted channels. Returns how many were written.
    async fn write_messages(&self, messages: &[NewMessage]) -> Result<u64>;

    /// Leases channels that have messages due and that no server has leased; the channel whose message has been due longest comes first.
    async fn lease_channels(&self, lease: LeaseChannels<'_>) -> Result<Vec<LeasedChannel>>;

    /// Ends a lease. From `free_at` on, any server may lease the channel. Does nothing if another server has leased it.
    async fn free_channel(&self, channel: ChannelId, held_until: Timestamp, free_at: Timestamp) -> Result<()>;

    /// Records a try. The state of the message changes only if the message still waits and no other try of it was recorded since this one
    /// began. Returns whether the state changed.
    async fn record_try(&self, delivery: &Delivery, after: AfterTry) -> Result<bool>;

    /// Records a try of a message that is not stored, such as a test.
    async fn record_test(&self, delivery: &Delivery) -> Result<()>;

    /// Deliveries to a channel, the latest first, at most `limit`. With `before`, only deliveries with ids below it.
    async fn deliveries(&self, channel: ChannelId, before: Option<DeliveryId>, limit: u32) -> Result<Vec<Delivery>>;

    /// Messages about an incident, the latest first, at most `limit`.
    async fn incident_messages(&self, incident: IncidentId, limit: u32) -> Result<Vec<IncidentMessage>>;

    /// The names of the existing channels to which messages about an incident were written, sorted.
    async fn channels_of_incident(&self, incident: IncidentId) -> Result<Vec<String>>;

    /// The name of the subject of each of these messages, at most [`DELIVERY_COUNT_MAX`] messages. Messages that are no longer stored are
    /// left out.
    async fn message_subjects(&self, messages: &[MessageId]) -> Result<Vec<(MessageId, String)>>;

    /// The latest try of each channel of a namespace.
    async fn last_deliveries(&self, namespace: NamespaceId) -> Result<Vec<Delivery>>;

    /// Removes tries that are older than `before`, and messages older than `before` that no longer wait. Messages of open incidents stay.
    /// Removes at most `limit` of each, and returns how many were removed in total.
    async fn forget_messages(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
