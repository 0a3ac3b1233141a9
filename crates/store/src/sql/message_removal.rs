//! Removes old messages and deliveries, and the messages and deliveries of deleted channels.

use rondel_core::{ChannelId, IdGen, Timestamp};

use super::SqlStore;
use super::query::{CHUNK_MAX, Query, Statement, read_ids};
use crate::Result;

/// Leaves out the messages of open incidents, because they show which channels must be notified of the end of the incident. Leaves out a
/// waiting message only if its channel exists, because a message that was written while its channel was being deleted is never sent.
pub(super) const FIND_OLD_MESSAGES: Statement = Statement {
    name: "old_messages",
    text: "SELECT id FROM alert_message WHERE id < ? AND (state <> 'waiting' OR NOT EXISTS (SELECT 1 FROM alert_channel \
           WHERE alert_channel.id = alert_message.channel_id)) AND NOT EXISTS (SELECT 1 FROM incident \
           WHERE incident.id = alert_message.incident_id AND incident.is_open = 1) ORDER BY id LIMIT ?",
};
pub(super) const FIND_MESSAGES_OF_CHANNEL: Statement =
    Statement { name: "messages_of", text: "SELECT id FROM alert_message WHERE channel_id = ? LIMIT ?" };
const DELETE_MESSAGES: Statement =
    Statement { name: "delete_messages", text: "DELETE FROM alert_message WHERE id {in_list}" };
const FIND_OLD_DELIVERIES: Statement =
    Statement { name: "old_deliveries", text: "SELECT id FROM alert_delivery WHERE id < ? ORDER BY id LIMIT ?" };
pub(super) const FIND_DELIVERIES_OF_CHANNEL: Statement =
    Statement { name: "deliveries_of", text: "SELECT id FROM alert_delivery WHERE channel_id = ? LIMIT ?" };
const DELETE_DELIVERIES: Statement =
    Statement { name: "delete_deliveries", text: "DELETE FROM alert_delivery WHERE id {in_list}" };

impl SqlStore {
    pub(super) async fn remove_old_messages(&self, before: Timestamp, limit: u32) -> Result<u64> {
        // Ids rise with time.
        let first_kept_id = IdGen::first_at(before);
        let limit = i64::from(limit).clamp(1, i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX));
        let mut removed_count = 0;
        for (find, delete, table) in [
            (&FIND_OLD_MESSAGES, &DELETE_MESSAGES, "alert_message"),
            (&FIND_OLD_DELIVERIES, &DELETE_DELIVERIES, "alert_delivery"),
        ] {
            let old_ids = read_ids(&self.rows(Query::new(find).int(first_kept_id).int(limit)).await?, table, "id")?;
            if !old_ids.is_empty() {
                removed_count += self.execute(Query::new(delete).list(old_ids.into_iter())).await?;
            }
        }
        Ok(removed_count)
    }

    /// Removes the messages and deliveries of deleted channels. There can be too many for one statement, so they are removed after the
    /// channel. If this fails, the retention removes the rest.
    pub(super) async fn remove_messages_of(&self, channels: &[ChannelId]) {
        for channel in channels {
            if let Err(error) = self.remove_rows_of(*channel).await {
                tracing::warn!(%error, "some messages of a deleted alert channel stay until their retention ends");
            }
        }
    }

    async fn remove_rows_of(&self, channel: ChannelId) -> Result<()> {
        let page_len = i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX);
        for (find, delete, table) in [
            (&FIND_MESSAGES_OF_CHANNEL, &DELETE_MESSAGES, "alert_message"),
            (&FIND_DELIVERIES_OF_CHANNEL, &DELETE_DELIVERIES, "alert_delivery"),
        ] {
            loop {
                let rows = self.rows(Query::new(find).int(channel.get()).int(page_len)).await?;
                let ids = read_ids(&rows, table, "id")?;
                if ids.is_empty() {
                    break;
                }
                self.execute(Query::new(delete).list(ids.into_iter())).await?;
            }
        }
        Ok(())
    }
}
