//! The trait `Channels` in SQL.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::notice::{Notice, NoticeKind};
use rondel_core::{ChannelId, DeliveryId, IncidentId, MessageId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use super::catalog::namespaces::LOCK_NAMESPACE;
use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use super::{SqlStore, Tx, failure, transact};
use crate::channels::{
    AfterTry, CHANNEL_COUNT_MAX, Channel, ChannelDeleted, ChannelSaved, DELIVERY_COUNT_MAX, Delivery, IncidentMessage,
    LEASE_COUNT_MAX, LEASE_MESSAGES_PER_CHANNEL_MAX, LeaseChannels, LeasedChannel, NewMessage, WaitingMessage,
};
use crate::settle::without_nul;
use crate::{Channels, OpenError, Result, StoreError};

macro_rules! select_channel {
    ($rest:literal) => {
        concat!(
            "SELECT id, namespace_id, name, kind, settings, secret, lang, is_enabled, created_at_ms, updated_at_ms \
             FROM alert_channel ",
            $rest
        )
    };
}

macro_rules! select_delivery {
    ($rest:literal) => {
        concat!(
            "SELECT id, channel_id, message_id, incident_id, kind, try_number, at_ms, latency_ms, verdict, status, \
             error FROM alert_delivery ",
            $rest
        )
    };
}

const READ_CHANNEL: Statement =
    Statement { name: "read_channel", text: select_channel!("WHERE namespace_id = ? AND name = ?") };
const READ_CHANNEL_BY_ID: Statement = Statement { name: "read_channel_by_id", text: select_channel!("WHERE id = ?") };
const LIST_CHANNELS: Statement =
    Statement { name: "list_channels", text: select_channel!("WHERE namespace_id = ? ORDER BY name") };
const COUNT_CHANNELS: Statement =
    Statement { name: "count_channels", text: "SELECT COUNT(*) FROM alert_channel WHERE namespace_id = ?" };
const INSERT_CHANNEL: Statement = Statement {
    name: "insert_channel",
    text: "INSERT INTO alert_channel (id, namespace_id, name, kind, settings, secret, lang, is_enabled, \
           created_at_ms, updated_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
const UPDATE_CHANNEL: Statement = Statement {
    name: "update_channel",
    text: "UPDATE alert_channel SET kind = ?, settings = ?, secret = ?, lang = ?, is_enabled = ?, updated_at_ms = ? \
           WHERE id = ?",
};
const DELETE_CHANNEL: Statement = Statement { name: "delete_channel", text: "DELETE FROM alert_channel WHERE id = ?" };
const READ_SECRETS: Statement =
    Statement { name: "read_channel_secrets", text: "SELECT id, name, secret FROM alert_channel ORDER BY id" };
/// Changes nothing if another server has sealed or changed the secret in the meantime.
const SEAL_CHANNEL: Statement =
    Statement { name: "seal_channel", text: "UPDATE alert_channel SET secret = ? WHERE id = ? AND secret = ?" };
const FIND_CHANNELS: Statement =
    Statement { name: "find_channels", text: "SELECT id FROM alert_channel WHERE id {in_list}" };
const INSERT_MESSAGES: Statement = Statement {
    name: "insert_messages",
    text: "INSERT {ignore} INTO alert_message (id, namespace_id, channel_id, incident_id, kind, number, notice, state, \
           try_count, next_try_at_ms, created_at_ms) {values:iiiitittiii} {or_ignore}",
};
pub(super) const FIND_DUE_MESSAGE: Statement = Statement {
    name: "find_any_message",
    text: "SELECT id FROM alert_message WHERE state = 'waiting' AND next_try_at_ms <= ? LIMIT 1",
};
/// Takes one index lookup per channel, even if many of its messages wait.
pub(super) const FIND_DUE_CHANNELS: Statement = Statement {
    name: "find_due_channels",
    text: "SELECT waiting.id FROM (SELECT alert_channel.id, (SELECT MIN(alert_message.next_try_at_ms) \
           FROM alert_message WHERE alert_message.channel_id = alert_channel.id \
           AND alert_message.state = 'waiting') AS first_ms FROM alert_channel \
           WHERE (held_until_ms <= ? OR held_by = ?) AND NOT (id {in_list})) waiting \
           WHERE waiting.first_ms <= ? ORDER BY waiting.first_ms, waiting.id LIMIT ?",
};
const LEASE_CHANNEL: Statement = Statement {
    name: "lease_channel",
    text: "UPDATE alert_channel SET held_by = ?, held_until_ms = ? \
           WHERE id = ? AND (held_until_ms <= ? OR held_by = ?)",
};
const FREE_CHANNEL: Statement = Statement {
    name: "free_channel",
    text: "UPDATE alert_channel SET held_by = 0, held_until_ms = ? WHERE id = ? AND held_until_ms = ?",
};
/// A message waits for the earlier messages of its incident to the same channel.
pub(super) const READ_DUE_MESSAGES: Statement = Statement {
    name: "read_due_messages",
    text: "SELECT id, incident_id, notice, try_count, created_at_ms FROM alert_message WHERE channel_id = ? \
           AND state = 'waiting' AND next_try_at_ms <= ? AND NOT EXISTS (SELECT 1 FROM alert_message earlier \
           WHERE earlier.incident_id = alert_message.incident_id AND earlier.channel_id = alert_message.channel_id \
           AND earlier.state = 'waiting' AND earlier.id < alert_message.id) ORDER BY next_try_at_ms, id LIMIT ?",
};
const RECORD_TRY: Statement = Statement {
    name: "record_try",
    text: "UPDATE alert_message SET state = ?, try_count = ?, next_try_at_ms = ? \
           WHERE id = ? AND state = 'waiting' AND try_count = ?",
};
const INSERT_DELIVERY: Statement = Statement {
    name: "insert_delivery",
    text: "INSERT INTO alert_delivery (id, channel_id, message_id, incident_id, kind, try_number, at_ms, latency_ms, \
           verdict, status, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
pub(super) const LIST_DELIVERIES: Statement = Statement {
    name: "list_deliveries",
    text: select_delivery!("WHERE channel_id = ? AND id < ? ORDER BY id DESC LIMIT ?"),
};
const READ_LAST_DELIVERIES: Statement = Statement {
    name: "last_deliveries",
    text: select_delivery!(
        "WHERE id IN (SELECT (SELECT MAX(latest.id) FROM alert_delivery latest \
         WHERE latest.channel_id = alert_channel.id) FROM alert_channel WHERE alert_channel.namespace_id = ?) \
         ORDER BY channel_id"
    ),
};

#[async_trait]
impl Channels for SqlStore {
    async fn channel(&self, namespace: NamespaceId, name: &str) -> Result<Option<Channel>> {
        let row = self.row(Query::new(&READ_CHANNEL).int(namespace.get()).text(name)).await?;
        row.as_ref().map(|row| self.read_channel(row)).transpose()
    }

    async fn channels(&self, namespace: NamespaceId) -> Result<Vec<Channel>> {
        let rows = self.rows(Query::new(&LIST_CHANNELS).int(namespace.get())).await?;
        rows.iter().map(|row| self.read_channel(row)).collect()
    }

    async fn save_channel(&self, channel: &Channel, expected: Option<Timestamp>) -> Result<ChannelSaved> {
        transact!(self, "save_channel", |tx| tx.save_channel(channel, expected).await)
    }

    async fn delete_channel(
        &self,
        namespace: NamespaceId,
        name: &str,
        expected: Option<Timestamp>,
    ) -> Result<ChannelDeleted> {
        let (deleted, removed_channel) = transact!(self, "delete_channel", |tx| {
            let stored_channel = tx.lock_channel(namespace, name).await?;
            let Some((id, saved_at)) = stored_channel else { return Ok((ChannelDeleted::NotFound, None)) };
            if expected.is_some_and(|expected| expected != saved_at) {
                return Ok((ChannelDeleted::Conflict(saved_at), None));
            }
            let uses = tx.channel_uses(namespace, name).await?;
            if !uses.is_empty() {
                return Ok((ChannelDeleted::Used(uses), None));
            }
            tx.execute_all(Query::new(&DELETE_CHANNEL).int(id.get()), 1).await?;
            Ok((ChannelDeleted::Deleted, Some(id)))
        })?;
        self.remove_messages_of(removed_channel.as_slice()).await;
        Ok(deleted)
    }

    async fn write_messages(&self, messages: &[NewMessage]) -> Result<u64> {
        transact!(self, "write_messages", |tx| tx.write_messages(messages).await)
    }

    async fn lease_channels(&self, lease: LeaseChannels<'_>) -> Result<Vec<LeasedChannel>> {
        // Usually no message is due. This check finds that out without a transaction.
        if self.row(Query::new(&FIND_DUE_MESSAGE).at(lease.now)).await?.is_none() {
            return Ok(Vec::new());
        }
        let limit = lease.channel_max.min(LEASE_COUNT_MAX);
        let max = usize::try_from(LEASE_COUNT_MAX).unwrap_or(usize::MAX);
        // No channel has this id. It is in the list because a list must not be empty.
        let mut excluded_ids = vec![0];
        excluded_ids.extend(lease.excluded_channels.iter().take(max).map(|channel| channel.get()));
        let due_query =
            Query::new(&FIND_DUE_CHANNELS).at(lease.now).int(lease.node.get()).list(excluded_ids.into_iter());
        let due_query = due_query.at(lease.now).int(limit.into());
        let held_until = lease.now + lease.hold;
        let mut leased_channels = Vec::new();
        for id in read_ids(&self.rows(due_query).await?, "alert_channel", "id")? {
            let node = lease.node.get();
            let query = Query::new(&LEASE_CHANNEL).int(node).at(held_until).int(id).at(lease.now).int(node);
            if self.execute(query).await? == 0 {
                continue;
            }
            match self.leased_channel(id, held_until, lease).await {
                Ok(channels) => leased_channels.extend(channels),
                // This channel stays leased until its lease ends. The other channels are still returned.
                Err(error @ StoreError::Corrupt { .. }) => {
                    tracing::error!(channel_id = id, %error, "an alert channel or a message to it cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(leased_channels)
    }

    async fn free_channel(&self, channel: ChannelId, held_until: Timestamp, free_at: Timestamp) -> Result<()> {
        self.execute(Query::new(&FREE_CHANNEL).at(free_at).int(channel.get()).at(held_until)).await?;
        Ok(())
    }

    async fn record_try(&self, delivery: &Delivery, after: AfterTry) -> Result<bool> {
        let (state, next_try_at) = match after {
            AfterTry::Sent => ("sent", delivery.at),
            AfterTry::Retry(at) => ("waiting", at),
            AfterTry::GivenUp => ("given_up", delivery.at),
        };
        let try_number = i64::from(delivery.try_number);
        transact!(self, "record_try", |tx| {
            let update = Query::new(&RECORD_TRY)
                .text(state)
                .int(try_number)
                .at(next_try_at)
                .int(delivery.message.get())
                .int(try_number.saturating_sub(1));
            let is_changed = tx.execute(update).await? == 1;
            tx.execute(delivery_insert(delivery)).await?;
            Ok(is_changed)
        })
    }

    async fn record_test(&self, delivery: &Delivery) -> Result<()> {
        self.execute(delivery_insert(delivery)).await?;
        Ok(())
    }

    async fn deliveries(&self, channel: ChannelId, before: Option<DeliveryId>, limit: u32) -> Result<Vec<Delivery>> {
        let before_id = before.map_or(i64::MAX, DeliveryId::get);
        let limit = i64::from(limit.min(DELIVERY_COUNT_MAX));
        let query = Query::new(&LIST_DELIVERIES).int(channel.get()).int(before_id).int(limit);
        self.rows(query).await?.iter().map(delivery).collect()
    }

    async fn incident_messages(&self, incident: IncidentId, limit: u32) -> Result<Vec<IncidentMessage>> {
        self.read_incident_messages(incident, limit).await
    }

    async fn channels_of_incident(&self, incident: IncidentId) -> Result<Vec<String>> {
        self.read_channels_of_incident(incident).await
    }

    async fn message_subjects(&self, messages: &[MessageId]) -> Result<Vec<(MessageId, String)>> {
        self.read_message_subjects(messages).await
    }

    async fn last_deliveries(&self, namespace: NamespaceId) -> Result<Vec<Delivery>> {
        self.rows(Query::new(&READ_LAST_DELIVERIES).int(namespace.get())).await?.iter().map(delivery).collect()
    }

    async fn forget_messages(&self, before: Timestamp, limit: u32) -> Result<u64> {
        self.remove_old_messages(before, limit).await
    }
}

impl Tx<'_> {
    /// Writes messages in this transaction, except existing ones and those to channels that were deleted.
    pub(super) async fn write_messages(&mut self, messages: &[NewMessage]) -> Result<u64> {
        let mut written_count = 0;
        for chunk in messages.chunks(CHUNK_MAX) {
            let channel_ids: BTreeSet<i64> = chunk.iter().map(|message| message.channel.get()).collect();
            let channel_rows = self.rows(Query::new(&FIND_CHANNELS).list(channel_ids.into_iter())).await?;
            let existing_ids: BTreeSet<i64> = read_ids(&channel_rows, "alert_channel", "id")?.into_iter().collect();
            let chunk: Vec<(&NewMessage, String)> = chunk
                .iter()
                .filter(|message| existing_ids.contains(&message.channel.get()))
                .map(|message| (message, notice_text(&message.notice)))
                .collect();
            let size = self.size;
            let queries = size.queries(&INSERT_MESSAGES, &chunk, |query, (message, notice)| {
                query
                    .int(message.id.get())
                    .int(message.namespace.get())
                    .int(message.channel.get())
                    .int(message.incident.get())
                    .text(stored_kind(message.notice.kind))
                    .int(message.number.into())
                    .text(notice)
                    .text("waiting")
                    .int(0)
                    .at(message.created_at)
                    .at(message.created_at)
            });
            for (query, _) in queries {
                written_count += self.execute(query).await?;
            }
        }
        Ok(written_count)
    }

    async fn save_channel(&mut self, channel: &Channel, expected: Option<Timestamp>) -> Result<ChannelSaved> {
        let namespace = channel.namespace.get();
        if self.row(Query::new(&LOCK_NAMESPACE).int(namespace)).await?.is_none() {
            return Ok(ChannelSaved::Full);
        }
        let stored_channel = self.lock_channel(channel.namespace, &channel.name).await?;
        let saved_at = stored_channel.map_or(Timestamp::EPOCH, |(_, saved_at)| saved_at);
        if expected.is_some_and(|expected| expected != saved_at) {
            return Ok(ChannelSaved::Conflict(saved_at));
        }
        let enabled = i64::from(channel.is_enabled);
        if let Some((id, _)) = stored_channel {
            let secret = self.store.seal_channel(id, &channel.secret)?;
            let update = Query::new(&UPDATE_CHANNEL)
                .text(channel.kind.as_str())
                .text(&channel.settings)
                .text(&secret)
                .text(channel.lang.as_str())
                .int(enabled)
                .at(channel.updated_at)
                .int(id.get());
            self.execute_all(update, 1).await?;
            return Ok(ChannelSaved::Changed(id));
        }
        let count_row = self.row(Query::new(&COUNT_CHANNELS).int(namespace)).await?;
        let count =
            count_row.map(|row| Reader::new(&row, "alert_channel").int("count")).transpose()?.unwrap_or_default();
        if count >= i64::from(CHANNEL_COUNT_MAX) {
            return Ok(ChannelSaved::Full);
        }
        let secret = self.store.seal_channel(channel.id, &channel.secret)?;
        let insert = Query::new(&INSERT_CHANNEL)
            .int(channel.id.get())
            .int(namespace)
            .text(&channel.name)
            .text(channel.kind.as_str())
            .text(&channel.settings)
            .text(&secret)
            .text(channel.lang.as_str())
            .int(enabled)
            .at(channel.created_at)
            .at(channel.updated_at);
        self.execute(insert).await?;
        Ok(ChannelSaved::Created(channel.id))
    }
}

/// The context with which a channel's secret is sealed. A text that was sealed with another context cannot be opened with it.
fn seal_context(id: ChannelId) -> String {
    format!("alert_channel.secret {id}")
}

impl SqlStore {
    /// A channel that was leased until `held_until`, with its messages; `None` if it was deleted.
    async fn leased_channel(
        &self,
        id: i64,
        held_until: Timestamp,
        lease: LeaseChannels<'_>,
    ) -> Result<Option<LeasedChannel>> {
        let Some(row) = self.row(Query::new(&READ_CHANNEL_BY_ID).int(id)).await? else { return Ok(None) };
        let channel = self.read_channel(&row)?;
        let message_limit = i64::from(lease.messages_per_channel_max.min(LEASE_MESSAGES_PER_CHANNEL_MAX));
        let rows = self.rows(Query::new(&READ_DUE_MESSAGES).int(id).at(lease.now).int(message_limit)).await?;
        let messages = rows.iter().map(waiting_message).collect::<Result<_>>()?;
        Ok(Some(LeasedChannel { channel, held_until, messages }))
    }

    fn seal_channel(&self, id: ChannelId, secret: &str) -> Result<String> {
        let seal_error = |message: String| failure::refused("seal_channel", &message);
        self.sealer.seal(&seal_context(id), secret).map_err(seal_error)
    }

    fn read_channel(&self, row: &AnyRow) -> Result<Channel> {
        let mut columns = Reader::new(row, "alert_channel");
        let id = ChannelId::new(columns.int("id")?);
        Ok(Channel {
            id,
            namespace: NamespaceId::new(columns.int("namespace_id")?),
            name: columns.text("name")?,
            kind: columns.word("kind")?,
            settings: columns.text("settings")?,
            secret: {
                let secret = columns.text("secret")?;
                self.sealer.open(&seal_context(id), &secret).map_err(|message| columns.corrupt("secret", message))?
            },
            lang: columns.word("lang")?,
            is_enabled: columns.int("is_enabled")? != 0,
            created_at: columns.at("created_at_ms")?,
            updated_at: columns.at("updated_at_ms")?,
        })
    }

    /// Seals secrets that are stored as plain text, or that are sealed with an older key. Fails if a secret cannot be opened with any key.
    pub(super) async fn seal_channels(&self) -> std::result::Result<(), OpenError> {
        for row in self.rows(Query::new(&READ_SECRETS)).await.map_err(seal_error)? {
            let mut columns = Reader::new(&row, "alert_channel");
            let id = ChannelId::new(columns.int("id").map_err(seal_error)?);
            let name = columns.text("name").map_err(seal_error)?;
            let secret = columns.text("secret").map_err(seal_error)?;
            let plain_secret = self.sealer.open(&seal_context(id), &secret).map_err(|reason| OpenError::SecretKey {
                message: format!("the secret of the alert channel {name} cannot be read: {reason}"),
            })?;
            if self.sealer.is_stale(&secret) {
                let resealed_secret = self.seal_channel(id, &plain_secret).map_err(seal_error)?;
                let update = Query::new(&SEAL_CHANNEL).text(&resealed_secret).int(id.get()).text(&secret);
                self.execute(update).await.map_err(seal_error)?;
            }
        }
        Ok(())
    }
}

fn seal_error(error: StoreError) -> OpenError {
    match error {
        StoreError::Corrupt { message, .. } => OpenError::SecretKey { message },
        StoreError::Unavailable { source, .. } | StoreError::Query { source, .. } => OpenError::Migrate(source),
    }
}

fn notice_text(notice: &Notice) -> String {
    // A type of strings and numbers can always be serialized.
    serde_json::to_string(&notice.clone().bounded()).unwrap_or_default()
}

fn waiting_message(row: &AnyRow) -> Result<WaitingMessage> {
    let mut columns = Reader::new(row, "alert_message");
    Ok(WaitingMessage {
        id: MessageId::new(columns.int("id")?),
        incident: IncidentId::new(columns.int("incident_id")?),
        notice: columns.json("notice")?,
        try_count: columns.int32("try_count")?,
        created_at: columns.at("created_at_ms")?,
    })
}

fn delivery_insert(delivery: &Delivery) -> Query {
    Query::new(&INSERT_DELIVERY)
        .int(delivery.id.get())
        .int(delivery.channel.get())
        .int(delivery.message.get())
        .opt_int(delivery.incident.map(IncidentId::get))
        .text(stored_kind(delivery.kind))
        .int(delivery.try_number.into())
        .at(delivery.at)
        .int(delivery.latency_ms)
        .text(&delivery.verdict)
        .int(delivery.status.into())
        .opt_text(delivery.error.as_deref().map(without_nul).as_deref())
}

fn delivery(row: &AnyRow) -> Result<Delivery> {
    let mut columns = Reader::new(row, "alert_delivery");
    let delivery = Delivery {
        id: DeliveryId::new(columns.int("id")?),
        channel: ChannelId::new(columns.int("channel_id")?),
        message: MessageId::new(columns.int("message_id")?),
        incident: columns.opt_int("incident_id")?.map(IncidentId::new),
        kind: columns.word::<NoticeKind>("kind")?,
        try_number: columns.int32("try_number")?,
        at: columns.at("at_ms")?,
        latency_ms: columns.int("latency_ms")?,
        verdict: columns.text("verdict")?,
        status: columns.int32("status")?,
        error: columns.opt_text("error")?,
    };
    let is_report = delivery.kind == NoticeKind::Digest && delivery.incident.is_none();
    Ok(if is_report { Delivery { kind: NoticeKind::Report, ..delivery } } else { delivery })
}

/// The name of a kind in the tables. A report is stored as a digest without an incident, because the CHECK of the channels' tables has no
/// kind for reports.
const fn stored_kind(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::Report => NoticeKind::Digest.as_str(),
        other => other.as_str(),
    }
}

#[cfg(test)]
#[path = "channels_tests.rs"]
mod tests;
