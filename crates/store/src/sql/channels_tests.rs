//! Tests of channels with rows that cannot be read, and of the messages that a deleted channel leaves.

use std::time::Duration;

use rondel_core::channel::ChannelKind;
use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, Subject};
use rondel_core::words::Lang;
use rondel_core::{ChannelId, IncidentId, MessageId, NamespaceId, NodeId, Timestamp};

use super::super::SqlStore;
use super::super::message_removal::FIND_MESSAGES_OF_CHANNEL;
use super::{DELETE_CHANNEL, FIND_DUE_MESSAGE, Query, SEAL_CHANNEL};
use crate::channels::{Channel, ChannelDeleted, LeaseChannels, NewMessage};
use crate::{Channels as _, DatabaseUrl, StoreConfig};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// Saves a channel, and a message to it that is due. Returns the message.
async fn save(store: &SqlStore, id: i64, name: &str) -> NewMessage {
    let channel = Channel {
        id: ChannelId::new(id),
        namespace: NAMESPACE,
        name: name.to_owned(),
        kind: ChannelKind::Slack,
        settings: "{}".to_owned(),
        secret: "{}".to_owned(),
        lang: Lang::En,
        is_enabled: true,
        created_at: NOW,
        updated_at: NOW,
    };
    store.save_channel(&channel, None).await.unwrap();
    let notice = Notice {
        kind: NoticeKind::Firing,
        incident: Some(IncidentId::new(id)),
        rule: "rule".to_owned(),
        condition: "failed".to_owned(),
        namespace: "default".to_owned(),
        subject: Subject { kind: NoticeSubject::Job, name: "job".to_owned() },
        severity: Severity::Warning,
        summary_en: "job failed.".to_owned(),
        summary_zh: "job 失败。".to_owned(),
        description: String::new(),
        started_at: NOW,
        at: NOW,
        count: 1,
        samples: Vec::new(),
        path: "/alerts".to_owned(),
    };
    let message = NewMessage {
        id: MessageId::new(id),
        namespace: NAMESPACE,
        channel: channel.id,
        incident: IncidentId::new(id),
        number: 1,
        notice,
        created_at: NOW,
    };
    assert_eq!(store.write_messages(std::slice::from_ref(&message)).await.unwrap(), 1);
    message
}

#[tokio::test]
async fn a_channel_that_cannot_be_read_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    save(&store, 1, "broken").await;
    save(&store, 2, "good").await;
    let broken = Query::new(&SEAL_CHANNEL).text("sealed:1:by-another-key").int(1).text("{}");
    assert_eq!(store.execute(broken).await.unwrap(), 1);
    let hold = Duration::from_secs(30);
    let lease = LeaseChannels {
        node: NodeId::new(1),
        excluded_channels: &[],
        now: NOW,
        channel_max: 10,
        messages_per_channel_max: 10,
        hold,
    };
    let leased = store.lease_channels(lease).await.unwrap();
    assert_eq!(leased.iter().map(|one| one.channel.name.as_str()).collect::<Vec<_>>(), ["good"]);
    store.close().await;
}

/// Another server found the channel before the deletion, and wrote the message after it.
#[tokio::test]
async fn a_message_that_waits_for_a_deleted_channel_is_removed_with_age() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    save(&store, 1, "deleted").await;
    save(&store, 2, "kept").await;
    assert_eq!(store.execute(Query::new(&DELETE_CHANNEL).int(1)).await.unwrap(), 1);
    assert_eq!(store.forget_messages(NOW, 500).await.unwrap(), 1);
    assert!(store.row(Query::new(&FIND_DUE_MESSAGE).at(NOW)).await.unwrap().is_some(), "the other channel exists");
    assert_eq!(store.delete_channel(NAMESPACE, "kept", None).await.unwrap(), ChannelDeleted::Deleted);
    assert!(store.row(Query::new(&FIND_DUE_MESSAGE).at(NOW)).await.unwrap().is_none());
    store.close().await;
}

#[tokio::test]
async fn a_channel_is_deleted_with_more_messages_than_one_statement_removes() {
    let folder = tempfile::tempdir().unwrap();
    let url = DatabaseUrl::sqlite_file(folder.path().join("rondel.db"));
    let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
    let first = save(&store, 1, "busy").await;
    let more = (2..=1_200_i32).map(|number| NewMessage { id: MessageId::new(number.into()), number, ..first.clone() });
    assert_eq!(store.write_messages(&more.collect::<Vec<_>>()).await.unwrap(), 1_199);
    assert_eq!(store.delete_channel(NAMESPACE, "busy", None).await.unwrap(), ChannelDeleted::Deleted);
    assert!(store.row(Query::new(&FIND_MESSAGES_OF_CHANNEL).int(1).int(1)).await.unwrap().is_none());
    store.close().await;
}
