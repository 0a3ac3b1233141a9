//! Tests of channels with rows that cannot be read.

use std::time::Duration;

use rondel_core::channel::ChannelKind;
use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, Subject};
use rondel_core::words::Lang;
use rondel_core::{ChannelId, IncidentId, MessageId, NamespaceId, NodeId, Timestamp};

use super::super::SqlStore;
use super::{Query, SEAL_CHANNEL};
use crate::channels::{Channel, LeaseChannels, NewMessage};
use crate::{Channels as _, DatabaseUrl, StoreConfig};

const NAMESPACE: NamespaceId = NamespaceId::new(1);
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// Saves a channel, and a message to it that is due.
async fn save(store: &SqlStore, id: i64, name: &str) {
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
    assert_eq!(store.write_messages(&[message]).await.unwrap(), 1);
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
