//! Messages about an incident, with the reason why the last try of each failed.

use std::time::Duration;

use rondel_core::notice::Notice;
use rondel_core::{IdGen, IncidentId, MessageId};

use super::SqlStore;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::Result;
use crate::channels::{DELIVERY_COUNT_MAX, INCIDENT_MESSAGE_COUNT_MAX, IncidentMessage};

/// Maximum time from the beginning of a message's last try until its delivery has an id.
const TRY_DURATION_MAX: Duration = Duration::from_secs(300);

pub(super) const LIST_MESSAGES: Statement = Statement {
    name: "list_incident_messages",
    text: "SELECT alert_message.id, alert_message.channel_id, alert_channel.name, alert_message.kind, alert_message.state, \
           alert_message.try_count, alert_message.created_at_ms, alert_message.next_try_at_ms \
           FROM alert_message CROSS JOIN alert_channel WHERE alert_message.incident_id = ? \
           AND alert_channel.id = alert_message.channel_id ORDER BY alert_message.id DESC LIMIT ?",
};
pub(super) const LIST_CHANNELS_OF_INCIDENT: Statement = Statement {
    name: "list_channels_of_incident",
    text: "SELECT DISTINCT alert_channel.id, alert_channel.name FROM alert_message CROSS JOIN alert_channel \
           WHERE alert_message.incident_id = ? AND alert_channel.id = alert_message.channel_id ORDER BY alert_channel.name",
};
pub(super) const READ_LAST_ERROR: Statement = Statement {
    name: "read_last_error",
    text: "SELECT id, error FROM alert_delivery WHERE channel_id = ? AND id > ? AND id < ? AND message_id = ? \
           ORDER BY id DESC LIMIT 1",
};

const READ_NOTICES: Statement =
    Statement { name: "read_notices", text: "SELECT id, notice FROM alert_message WHERE id {in_list}" };

impl SqlStore {
    pub(super) async fn read_message_subjects(&self, messages: &[MessageId]) -> Result<Vec<(MessageId, String)>> {
        let message_count_max = usize::try_from(DELIVERY_COUNT_MAX).unwrap_or(usize::MAX);
        let mut subjects = Vec::new();
        for chunk in messages[..messages.len().min(message_count_max)].chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_NOTICES).list(chunk.iter().map(|id| id.get()))).await? {
                let mut columns = Reader::new(&row, "alert_message");
                let id = MessageId::new(columns.int("id")?);
                subjects.push((id, columns.json::<Notice>("notice")?.subject.name));
            }
        }
        subjects.sort();
        subjects.dedup();
        Ok(subjects)
    }

    pub(super) async fn read_channels_of_incident(&self, incident: IncidentId) -> Result<Vec<String>> {
        let name = |row| {
            let mut columns = Reader::new(row, "alert_channel");
            columns.int("id")?;
            columns.text("name")
        };
        self.rows(Query::new(&LIST_CHANNELS_OF_INCIDENT).int(incident.get())).await?.iter().map(name).collect()
    }

    pub(super) async fn read_incident_messages(
        &self,
        incident: IncidentId,
        limit: u32,
    ) -> Result<Vec<IncidentMessage>> {
        let limit = limit.min(INCIDENT_MESSAGE_COUNT_MAX);
        let mut messages = Vec::new();
        for row in self.rows(Query::new(&LIST_MESSAGES).int(incident.get()).int(limit.into())).await? {
            let mut columns = Reader::new(&row, "alert_message");
            let (id, channel) = (columns.int("id")?, columns.int("channel_id")?);
            let mut message = IncidentMessage {
                id: MessageId::new(id),
                channel: columns.text("name")?,
                kind: columns.word("kind")?,
                state: columns.text("state")?,
                try_count: columns.int32("try_count")?,
                created_at: columns.at("created_at_ms")?,
                at: columns.at("next_try_at_ms")?,
                error: None,
            };
            if message.try_count > 0 && message.state != "sent" {
                // Ids rise with time. The last try of a given-up message has a known time, so only deliveries of that time are read.
                let range = match message.state.as_str() {
                    "given_up" => (IdGen::first_at(message.at), IdGen::first_at(message.at + TRY_DURATION_MAX)),
                    _ => (id, i64::MAX),
                };
                let query = Query::new(&READ_LAST_ERROR).int(channel).int(range.0).int(range.1).int(id);
                if let Some(row) = self.row(query).await? {
                    let mut columns = Reader::new(&row, "alert_delivery");
                    columns.int("id")?;
                    message.error = columns.opt_text("error")?;
                }
            }
            messages.push(message);
        }
        Ok(messages)
    }
}
