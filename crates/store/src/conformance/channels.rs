//! Checks of channels and their messages.

use std::time::Duration;

use rondel_core::alert::IncidentState;
use rondel_core::channel::ChannelKind;
use rondel_core::notice::{Notice, NoticeKind, NoticeSubject, Severity, Subject};
use rondel_core::words::Lang;
use rondel_core::{ChannelId, DeliveryId, IdGen, IncidentId, MessageId, NamespaceId, NodeId, Timestamp};

use super::{DEFAULT, alerts, name, next_id};
use crate::Store;
use crate::catalog::{Namespace, NamespaceDeleted};
use crate::channels::{
    AfterTry, CHANNEL_COUNT_MAX, Channel, ChannelDeleted, ChannelSaved, Delivery, LeaseChannels, LeasedChannel,
    NewMessage,
};

const HOLD: Duration = Duration::from_secs(30);

pub(super) fn channel_in(namespace: NamespaceId, now: Timestamp) -> Channel {
    Channel {
        id: ChannelId::new(next_id()),
        namespace,
        name: name("channel"),
        kind: ChannelKind::Slack,
        settings: "{\"a\":\"ä务\"}".to_owned(),
        secret: "{\"url\":\"https://hooks.example.com/to-be-kept\"}".to_owned(),
        lang: Lang::Zh,
        is_enabled: true,
        created_at: now,
        updated_at: now,
    }
}

async fn saved_channel(store: &dyn Store) -> Channel {
    let channel = channel_in(DEFAULT, store.now().await.unwrap());
    assert_eq!(store.save_channel(&channel, None).await.unwrap(), ChannelSaved::Created(channel.id));
    channel
}

pub(super) fn message(channel: &Channel, incident: IncidentId, kind: NoticeKind, created_at: Timestamp) -> NewMessage {
    let notice = Notice {
        kind,
        incident: Some(incident),
        rule: "rule".to_owned(),
        condition: "failed".to_owned(),
        namespace: "default".to_owned(),
        subject: Subject { kind: NoticeSubject::Job, name: "nightly-close".to_owned() },
        severity: Severity::Critical,
        summary_en: "It failed: \"x\"\u{0}".to_owned(),
        summary_zh: "失败了".to_owned(),
        description: String::new(),
        started_at: created_at,
        at: created_at,
        count: 3,
        samples: Vec::new(),
        path: "/alerts".to_owned(),
    };
    NewMessage {
        id: MessageId::new(next_id()),
        namespace: channel.namespace,
        channel: channel.id,
        incident,
        number: 1,
        notice,
        created_at,
    }
}

/// Leases all channels that are free at `now`, and returns those that are in `channels`: other checks share the database.
async fn lease(store: &dyn Store, now: Timestamp, channels: &[ChannelId]) -> Vec<LeasedChannel> {
    lease_as(store, (NodeId::new(next_id()), &[]), now, channels).await
}

/// Like [`lease`], as the node `node` and without the channels in `without`.
async fn lease_as(
    store: &dyn Store,
    (node, without): (NodeId, &[ChannelId]),
    now: Timestamp,
    channels: &[ChannelId],
) -> Vec<LeasedChannel> {
    let lease = LeaseChannels {
        node,
        excluded_channels: without,
        now,
        channel_max: 500,
        messages_per_channel_max: 500,
        hold: HOLD,
    };
    let mut leased = store.lease_channels(lease).await.unwrap();
    leased.retain(|leased| channels.contains(&leased.channel.id));
    leased
}

fn ids(leased: &LeasedChannel) -> Vec<MessageId> {
    leased.messages.iter().map(|message| message.id).collect()
}

fn try_of(message: &NewMessage, try_number: i32, after: AfterTry) -> Delivery {
    Delivery {
        id: DeliveryId::new(next_id()),
        channel: message.channel,
        message: message.id,
        incident: Some(message.incident),
        kind: message.notice.kind,
        try_number,
        at: message.created_at,
        latency_ms: 12,
        verdict: after.as_str().to_owned(),
        status: 503,
        error: Some("it answered with status 503: 忙".to_owned()),
    }
}

fn incident() -> IncidentId {
    IncidentId::new(next_id())
}

/// A channel is found by its name, keeps its id when it is saved again, and is deleted with its namespace.
pub async fn a_channel_is_read_as_it_was_saved(store: &dyn Store) {
    let now = store.now().await.unwrap();
    let namespace = Namespace { id: NamespaceId::new(next_id()), name: name("ns") };
    assert!(store.create_namespace(&namespace, now).await.unwrap());
    let channel = channel_in(namespace.id, now);
    assert_eq!(store.save_channel(&channel, None).await.unwrap(), ChannelSaved::Created(channel.id));
    assert_eq!(store.channel(namespace.id, &channel.name).await.unwrap(), Some(channel.clone()));
    assert_eq!(store.channel(DEFAULT, &channel.name).await.unwrap(), None);

    let later = now + HOLD;
    let other = Channel {
        id: ChannelId::new(next_id()),
        kind: ChannelKind::Email,
        settings: "{}".to_owned(),
        secret: "{\"password\":\"2\"}".to_owned(),
        lang: Lang::En,
        is_enabled: false,
        created_at: later,
        updated_at: later,
        ..channel.clone()
    };
    for (expected, saved) in [
        (Some(later), ChannelSaved::Conflict(now)),
        (Some(Timestamp::EPOCH), ChannelSaved::Conflict(now)),
        (Some(now), ChannelSaved::Changed(channel.id)),
        (Some(now), ChannelSaved::Conflict(later)),
    ] {
        assert_eq!(store.save_channel(&other, expected).await.unwrap(), saved, "{expected:?}");
    }
    let missing = Channel { id: ChannelId::new(next_id()), name: name("c"), ..other.clone() };
    let conflict = ChannelSaved::Conflict(Timestamp::EPOCH);
    assert_eq!(store.save_channel(&missing, Some(now)).await.unwrap(), conflict, "it was deleted");
    let expected = Channel { id: channel.id, created_at: now, ..other };
    assert_eq!(store.channels(namespace.id).await.unwrap(), [expected]);

    for _ in 1..CHANNEL_COUNT_MAX {
        assert!(matches!(
            store.save_channel(&channel_in(namespace.id, now), None).await.unwrap(),
            ChannelSaved::Created(_)
        ));
    }
    assert_eq!(store.save_channel(&channel_in(namespace.id, now), None).await.unwrap(), ChannelSaved::Full);
    for (expected, deleted) in [
        (Some(now), ChannelDeleted::Conflict(later)),
        (Some(later), ChannelDeleted::Deleted),
        (Some(later), ChannelDeleted::NotFound),
        (None, ChannelDeleted::NotFound),
    ] {
        let answer = store.delete_channel(namespace.id, &channel.name, expected).await.unwrap();
        assert_eq!(answer, deleted, "{expected:?}");
    }
    let names: Vec<String> = store.channels(namespace.id).await.unwrap().into_iter().map(|it| it.name).collect();
    assert!(names.is_sorted() && names.len() == 99, "{names:?}");
    assert_eq!(store.delete_namespace(namespace.id).await.unwrap(), NamespaceDeleted::Done);
    assert_eq!(store.channels(namespace.id).await.unwrap(), []);
    assert_eq!(store.save_channel(&channel_in(namespace.id, now), None).await.unwrap(), ChannelSaved::Full);
}

/// Two writes of the same decision store one message. A message to a deleted channel is not stored.
pub async fn a_message_about_an_incident_is_written_once(store: &dyn Store) {
    let (one, two) = (saved_channel(store).await, saved_channel(store).await);
    let (now, incident) = (store.now().await.unwrap(), incident());
    let first = message(&one, incident, NoticeKind::Firing, now);
    let again = NewMessage { id: MessageId::new(next_id()), ..first.clone() };
    let other = message(&two, incident, NoticeKind::Firing, now);
    let next = NewMessage { id: MessageId::new(next_id()), number: 2, ..first.clone() };
    let gone = NewMessage { channel: ChannelId::new(next_id()), ..message(&one, incident, NoticeKind::Firing, now) };
    let all = [first.clone(), again.clone(), other.clone(), gone, next.clone()];
    assert_eq!(store.write_messages(&all).await.unwrap(), 3);
    assert_eq!(store.write_messages(&[again]).await.unwrap(), 0);
    assert_eq!(store.write_messages(&[]).await.unwrap(), 0);
    let leased = lease(store, now, &[one.id, two.id]).await;
    let mut found: Vec<MessageId> = leased.iter().flat_map(ids).collect();
    found.sort_unstable();
    let mut expected = vec![first.id, other.id];
    expected.sort_unstable();
    assert_eq!(found, expected, "the second message of an incident waits for its first");
    let leased = leased.into_iter().find(|leased| leased.channel.id == one.id).unwrap();
    let [waiting] = leased.messages.try_into().unwrap();
    assert_eq!((waiting.notice, waiting.incident, waiting.try_count), (first.notice, incident, 0));
    assert_eq!(leased.channel, one);

    assert_eq!(store.delete_channel(DEFAULT, &one.name, None).await.unwrap(), ChannelDeleted::Deleted);
    assert!(lease(store, now + HOLD * 2, &[one.id]).await.is_empty());
}

/// Of two servers that lease at the same time, one gets the channel. The lease of a dead server expires.
pub async fn a_channel_has_one_sender_at_a_time(store: &dyn Store) {
    let channel = saved_channel(store).await;
    let now = store.now().await.unwrap();
    assert!(lease(store, now, &[channel.id]).await.is_empty(), "a channel without messages is not leased");
    store.write_messages(&[message(&channel, incident(), NoticeKind::Firing, now)]).await.unwrap();
    let only = [channel.id];
    let (a, b) = tokio::join!(lease(store, now, &only), lease(store, now, &only));
    let [leased] = [a, b].concat().try_into().unwrap();
    assert_eq!((leased.held_until, leased.messages.len()), (now + HOLD, 1));
    let second = Duration::from_secs(1);
    assert!(lease(store, now + HOLD - second, &only).await.is_empty());
    let [taken_up] = lease(store, now + HOLD, &only).await.try_into().unwrap();
    assert_eq!(taken_up.messages, leased.messages);
    // The first server is late: it can end its own lease only, not the second server's.
    store.free_channel(channel.id, leased.held_until, now).await.unwrap();
    assert!(lease(store, now + HOLD, &only).await.is_empty());
    store.free_channel(channel.id, taken_up.held_until, now + HOLD + second * 5).await.unwrap();
    assert!(lease(store, now + HOLD + second * 4, &only).await.is_empty());
    let later = now + HOLD + second * 5;
    // A restarted server takes the leases that it already holds. While it sends to a channel, it leaves that channel out of its requests.
    let node = NodeId::new(next_id());
    assert_eq!(lease_as(store, (node, &[]), later, &only).await.len(), 1);
    assert!(lease(store, later, &only).await.is_empty());
    assert!(lease_as(store, (node, &only), later + HOLD, &only).await.is_empty());
    let [again] = lease_as(store, (node, &[]), later, &only).await.try_into().unwrap();
    store.free_channel(channel.id, again.held_until, later + second).await.unwrap();
    assert!(lease_as(store, (node, &[]), later, &only).await.is_empty(), "a channel that rests has no owner");
    store.delete_channel(DEFAULT, &channel.name, None).await.unwrap();
}

/// A message that is retried delays the later messages of its incident, but not those of other incidents.
pub async fn messages_of_an_incident_keep_their_order(store: &dyn Store) {
    let channel = saved_channel(store).await;
    let now = store.now().await.unwrap();
    let (one, two) = (incident(), incident());
    let firing = message(&channel, one, NoticeKind::Firing, now);
    let resolved = message(&channel, one, NoticeKind::Resolved, now);
    let other = message(&channel, two, NoticeKind::Firing, now);
    store.write_messages(&[firing.clone(), resolved.clone(), other.clone()]).await.unwrap();
    let only = [channel.id];
    let turn = async |at: Timestamp| {
        let [leased] = lease(store, at, &only).await.try_into().unwrap();
        store.free_channel(channel.id, leased.held_until, at).await.unwrap();
        ids(&leased)
    };
    assert_eq!(turn(now).await, [firing.id, other.id]);
    let later = now + Duration::from_secs(5);
    let retry = AfterTry::Retry(later);
    assert!(store.record_try(&try_of(&firing, 1, retry), retry).await.unwrap());
    assert_eq!(turn(now).await, [other.id]);
    let messages_of = async |incident| {
        let messages = store.incident_messages(incident, 10).await.unwrap();
        assert!(messages.iter().all(|one| one.channel == channel.name && one.created_at == now));
        messages.into_iter().map(|one| (one.id, one.state, one.try_count, one.at, one.error)).collect::<Vec<_>>()
    };
    let reason = Some("it answered with status 503: 忙".to_owned());
    let waits = "waiting".to_owned();
    let expected = [(resolved.id, waits.clone(), 0, now, None), (firing.id, waits, 1, later, reason.clone())];
    assert_eq!(messages_of(one).await, expected);
    assert_eq!(store.incident_messages(one, 1).await.unwrap().len(), 1);
    assert_eq!(store.channels_of_incident(one).await.unwrap(), std::slice::from_ref(&channel.name), "each one once");
    assert_eq!(store.channels_of_incident(incident()).await.unwrap(), [""; 0]);
    let subjects = store.message_subjects(&[other.id, MessageId::new(1), firing.id, firing.id]).await.unwrap();
    let close = "nightly-close".to_owned();
    assert_eq!(subjects, [(firing.id, close.clone()), (other.id, close)]);
    // The id is higher than those above, as on a server, where ids rise with time.
    let id = DeliveryId::new(IdGen::first_at(now + Duration::from_secs(1)) + next_id() % 1_000_000);
    let given_up = Delivery { id, ..try_of(&other, 1, AfterTry::GivenUp) };
    assert!(store.record_try(&given_up, AfterTry::GivenUp).await.unwrap());
    assert_eq!(messages_of(two).await, [(other.id, "given_up".to_owned(), 1, now, reason)]);
    assert_eq!(turn(later).await, [firing.id]);
    assert!(store.record_try(&try_of(&firing, 2, AfterTry::Sent), AfterTry::Sent).await.unwrap());
    assert_eq!(messages_of(one).await[1], (firing.id, "sent".to_owned(), 2, now, None));
    assert_eq!(turn(later).await, [resolved.id]);
    assert!(store.record_try(&try_of(&resolved, 1, AfterTry::Sent), AfterTry::Sent).await.unwrap());
    assert!(lease(store, later + HOLD, &only).await.is_empty());
    store.delete_channel(DEFAULT, &channel.name, None).await.unwrap();
}

/// If two servers both tried a message, both tries are recorded, and the first one decides the message's state.
pub async fn tries_are_recorded_once_and_forgotten_with_age(store: &dyn Store) {
    let (channel, idle) = (saved_channel(store).await, saved_channel(store).await);
    let now = store.now().await.unwrap();
    let written = message(&channel, incident(), NoticeKind::Firing, now);
    store.write_messages(std::slice::from_ref(&written)).await.unwrap();
    let retry = AfterTry::Retry(now);
    let (sent, late) = (try_of(&written, 1, AfterTry::Sent), try_of(&written, 1, retry));
    assert!(store.record_try(&sent, AfterTry::Sent).await.unwrap());
    assert!(!store.record_try(&late, retry).await.unwrap());
    assert!(lease(store, now + HOLD, &[channel.id]).await.is_empty());
    let test = Delivery { incident: None, kind: NoticeKind::Test, error: None, ..try_of(&written, 1, AfterTry::Sent) };
    store.record_test(&test).await.unwrap();
    assert_eq!(store.deliveries(channel.id, None, 2).await.unwrap(), [test.clone(), late.clone()]);
    assert_eq!(store.deliveries(channel.id, Some(late.id), 9).await.unwrap(), [sent]);
    assert_eq!(store.deliveries(idle.id, None, 9).await.unwrap(), []);
    let last = store.last_deliveries(DEFAULT).await.unwrap();
    assert!(last.contains(&test) && last.iter().all(|it| it.channel != idle.id && it.id != late.id));

    let waits = message(&channel, incident(), NoticeKind::Firing, now);
    store.write_messages(std::slice::from_ref(&waits)).await.unwrap();
    while store.forget_messages(Timestamp::EPOCH + HOLD, 500).await.unwrap() > 0 {}
    assert_eq!(store.deliveries(channel.id, None, 9).await.unwrap().len(), 3);
    while store.forget_messages(Timestamp::MAX, 500).await.unwrap() > 0 {}
    assert_eq!(store.deliveries(channel.id, None, 9).await.unwrap(), []);
    // A message that still waits is not removed.
    assert_eq!(lease(store, now + HOLD, &[channel.id]).await.len(), 1);
    messages_of_an_open_incident_are_kept(store, &channel, now).await;
    for channel in [channel, idle] {
        store.delete_channel(DEFAULT, &channel.name, None).await.unwrap();
    }
}

/// The messages of an open incident are not removed, because they show which channels must be notified of the end of the incident.
async fn messages_of_an_open_incident_are_kept(store: &dyn Store, channel: &Channel, now: Timestamp) {
    let rule = alerts::saved_rule(store, alerts::new_namespace(store).await).await;
    let open = alerts::incident(&rule, 1, now);
    let version = alerts::alert_version(store, rule.namespace).await;
    assert!(alerts::write(store, &rule, version, std::slice::from_ref(&open)).await);
    let sent = message(channel, open.incident.id, NoticeKind::Firing, now);
    store.write_messages(std::slice::from_ref(&sent)).await.unwrap();
    assert!(store.record_try(&try_of(&sent, 1, AfterTry::Sent), AfterTry::Sent).await.unwrap());
    let kept = async || {
        while store.forget_messages(Timestamp::MAX, 500).await.unwrap() > 0 {}
        store.incident_messages(open.incident.id, 10).await.unwrap().len()
    };
    assert_eq!(kept().await, 1);
    let mut resolved = open.clone();
    (resolved.incident.state, resolved.incident.resolved_at, resolved.incident.check_at) =
        (IncidentState::Resolved, Some(now), None);
    let version = alerts::alert_version(store, rule.namespace).await;
    assert!(alerts::write(store, &rule, version, std::slice::from_ref(&resolved)).await);
    assert_eq!(kept().await, 0);
}
