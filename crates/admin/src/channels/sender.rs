//! The loop that sends alert messages: each channel is served by one server at a time, one message after the other.
//!
//! Delivery is at least once: a message is recorded as sent after the service accepted it, and keeps its id at each try. A failing channel
//! does not delay the others.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::channel::ChannelKind;
use rondel_core::notice::{NoticeKind, cut};
use rondel_core::{ChannelId, DeliveryId, MessageId, Timestamp};
use rondel_outgoing::Outgoing;
use rondel_store::StoreError;
use rondel_store::channels::{AfterTry, Channel, Delivery, LeaseChannels, LeasedChannel, WaitingMessage};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::deliver::{Acceptance, DeliveryAttempt, deliver};
use super::judge::DeliveryError;
use crate::background::{Background, TickError};
use crate::delivery::{Senders, next_try};
use crate::metrics::add;
use crate::node::Shared;

/// Maximum number of messages of one channel that are taken together.
const MESSAGES_PER_CHANNEL_MAX: u32 = 64;
/// How long a channel is leased: longer than the sum of [`START_WITHIN`] and the time of one try.
const CHANNEL_LEASE: Duration = Duration::from_secs(35);
/// Time within which the messages of one lease must be started; the last message may finish later.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Longest pause of a channel after a failed try. Also the pause of a channel whose due messages all wait for an earlier message.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Longest pause of a channel whose service answers that it receives too many requests.
const LIMITED_PAUSE_MAX: Duration = Duration::from_secs(60);
const TOO_MANY_REQUESTS: i32 = 429;
/// How long a message being sent may still take once the server is asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// Maximum length of the error of a delivery, in bytes.
const ERROR_BYTES_MAX: usize = 500;

pub(crate) struct ChannelLoop {
    shared: Arc<Shared>,
    senders: Senders<ChannelId>,
}

impl Background for ChannelLoop {
    const NAME: &'static str = "alert_send";
    const ACTION: &'static str = "send alert messages";

    fn period(&self) -> Option<Duration> {
        Some(self.shared.config.alert_period)
    }

    async fn wait_until_woken(&mut self) {
        self.senders.wait_for_one().await;
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        self.senders.take_error()?;
        self.send_due(stop).await
    }

    async fn finish_work(&mut self) {
        self.senders.wait_for_all().await;
    }
}

impl ChannelLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, senders: Senders::new() }
    }

    /// Takes the due messages of free channels, and starts sending them. Returns how many messages were taken.
    async fn send_due(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        let free_count = self.shared.config.alert_concurrency.saturating_sub(self.senders.count());
        if free_count == 0 || !self.shared.membership.holds_lease() {
            return Ok(0);
        }
        let busy_channels = self.senders.receivers();
        let lease = LeaseChannels {
            node: self.shared.membership.token().node,
            excluded_channels: &busy_channels,
            now: self.shared.clock.now(),
            channel_max: u32::try_from(free_count).unwrap_or(u32::MAX),
            messages_per_channel_max: MESSAGES_PER_CHANNEL_MAX,
            hold: CHANNEL_LEASE,
        };
        let leased_channels = self.shared.store.lease_channels(lease).await?;
        let count: usize = leased_channels.iter().map(|leased| leased.messages.len()).sum();
        for leased_channel in leased_channels {
            let client = self.senders.client(&self.shared.config.outgoing_allow)?;
            let sender = Sender { shared: Arc::clone(&self.shared), client, stop: stop.clone() };
            let id = leased_channel.channel.id;
            self.senders.start(id, async move { sender.send_all(leased_channel).await });
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }
}

struct Sender {
    shared: Arc<Shared>,
    client: Outgoing,
    stop: CancellationToken,
}

impl Sender {
    /// Sends the messages of one channel one after the other, until the channel needs a pause, [`START_WITHIN`] has passed, or the server stops.
    /// Then ends the channel's lease.
    async fn send_all(&self, leased_channel: LeasedChannel) -> Result<(), StoreError> {
        let LeasedChannel { channel, held_until, messages } = leased_channel;
        let store = &self.shared.store;
        let deadline = Instant::now() + START_WITHIN;
        let mut pause = if messages.is_empty() { Some(PAUSE_MAX) } else { None };
        for message in &messages {
            if self.stop.is_cancelled() || Instant::now() >= deadline || pause.is_some() {
                break;
            }
            let Some(delivery_and_outcome) = self.try_once(&channel, message).await else { break };
            rondel_failpoint::pass("alert_send.sent");
            let (delivery, outcome) = delivery_and_outcome;
            store.record_try(&delivery, outcome).await?;
            rondel_failpoint::pass("alert_send.recorded");
            pause = match outcome {
                AfterTry::Retry(at) => Some(channel_pause(at, delivery.status, self.shared.clock.now())),
                AfterTry::Sent => pause_between_messages(channel.kind),
                AfterTry::GivenUp => None,
            };
        }
        let free_at = self.shared.clock.now() + pause.unwrap_or_default();
        store.free_channel(channel.id, held_until, free_at).await
    }

    /// Makes one attempt; `None` if the server stops before the service has answered.
    async fn try_once(&self, channel: &Channel, message: &WaitingMessage) -> Option<(Delivery, AfterTry)> {
        let (at, send_start) = (self.shared.clock.now(), Instant::now());
        let result = if channel.is_enabled {
            let id = message_id(message.id);
            let attempt = DeliveryAttempt { channel, notice: &message.notice, id: &id, now: at };
            let end_of_grace = async {
                self.stop.cancelled().await;
                sleep(STOP_GRACE).await;
            };
            tokio::select! {
                biased;
                done = deliver(&self.client, &self.shared.config, attempt) => done,
                () = end_of_grace => return None,
            }
        } else {
            let text = "the channel is disabled".to_owned();
            Err(DeliveryError { is_final: true, status: 0, text, retry_wait: None })
        };
        let try_number = message.try_count.saturating_add(1);
        let outcome = self.decide_after_try(channel, message, &result);
        let delivery = Delivery {
            incident: Some(message.incident).filter(|_| message.notice.kind != NoticeKind::Report),
            kind: message.notice.kind,
            try_number,
            verdict: outcome.as_str().to_owned(),
            ..delivery_record(&self.shared, (channel, message.id), (at, send_start), &result)
        };
        Some((delivery, outcome))
    }

    fn decide_after_try(
        &self,
        channel: &Channel,
        message: &WaitingMessage,
        result: &Result<Acceptance, DeliveryError>,
    ) -> AfterTry {
        let metrics = &self.shared.metrics;
        let Err(refusal) = result else {
            add(&metrics.alerts_delivered, 1);
            return AfterTry::Sent;
        };
        let (now, try_count) = (self.shared.clock.now(), message.try_count.saturating_add(1));
        let next_try_at = next_try(try_count, message.created_at, now, rand::random());
        let (error, channel, message_id) = (&refusal.text, &channel.name, message.id.get());
        match next_try_at.filter(|_| !refusal.is_final) {
            Some(due_at) => {
                let due_at = due_at.max(now + refusal.retry_wait.unwrap_or_default());
                add(&metrics.alerts_refused, 1);
                tracing::warn!(message_id, channel, try_count, error, next = %due_at, "a message could not be delivered to a channel");
                AfterTry::Retry(due_at)
            }
            None => {
                add(&metrics.alerts_given_up, 1);
                tracing::error!(message_id, channel, try_count, error, "giving up on an alert message");
                AfterTry::GivenUp
            }
        }
    }
}

/// The message id as receivers see it.
pub(super) fn message_id(id: MessageId) -> String {
    format!("alert_{id}")
}

/// The record of an attempt to send a test message. For any other message, the caller replaces the fields that differ.
pub(super) fn delivery_record(
    shared: &Shared,
    (channel, message): (&Channel, MessageId),
    (at, send_start): (Timestamp, Instant),
    result: &Result<Acceptance, DeliveryError>,
) -> Delivery {
    let id = shared.membership.latest_lease().ids.next(shared.clock.now());
    let (status, error) = match result {
        Ok(accepted) => (accepted.status, accepted.refusals.as_deref()),
        Err(refused) => (refused.status, Some(refused.text.as_str())),
    };
    Delivery {
        id: DeliveryId::new(id),
        channel: channel.id,
        message,
        incident: None,
        kind: NoticeKind::Test,
        try_number: 1,
        at,
        latency_ms: i64::try_from(send_start.elapsed().as_millis()).unwrap_or(i64::MAX),
        verdict: if result.is_ok() { AfterTry::Sent } else { AfterTry::GivenUp }.as_str().to_owned(),
        status,
        error: error.map(|text| cut(text, ERROR_BYTES_MAX)),
    }
}

/// The pause of a channel whose message is tried again at `at`: until then, but at most [`PAUSE_MAX`]. After a 429, the maximum is
/// [`LIMITED_PAUSE_MAX`], since the service would also refuse every other message.
fn channel_pause(at: Timestamp, status: i32, now: Timestamp) -> Duration {
    at.since(now).min(if status == TOO_MANY_REQUESTS { LIMITED_PAUSE_MAX } else { PAUSE_MAX })
}

/// The pause between two messages of a channel; `None` if its service does not limit their rate.
const fn pause_between_messages(kind: ChannelKind) -> Option<Duration> {
    match kind {
        // 20 per minute.
        ChannelKind::Dingtalk | ChannelKind::Wecom => Some(Duration::from_secs(3)),
        ChannelKind::Slack | ChannelKind::Feishu => Some(Duration::from_secs(1)),
        ChannelKind::Email | ChannelKind::Webhook | ChannelKind::Teams | ChannelKind::Pagerduty | ChannelKind::Ntfy => {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_rests_longer_while_its_service_refuses_further_requests() {
        let now = Timestamp::from_secs(1_000);
        for (wait, status, pause) in [(30, 503, 5), (30, 429, 30), (3_600, 429, 60), (2, 429, 2), (2, 0, 2)] {
            let (wait, pause) = (Duration::from_secs(wait), Duration::from_secs(pause));
            assert_eq!(channel_pause(now + wait, status, now), pause, "{wait:?} {status}");
        }
        assert_eq!(channel_pause(now, 429, now + PAUSE_MAX), Duration::ZERO);
    }
}
