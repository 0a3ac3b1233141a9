//! The loop that takes messages out of the outbox and sends them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{NamespaceId, RunId};
use rondel_outgoing::Outgoing;
use rondel_store::StoreError;
use rondel_store::outbox::{FailureWebhook, OutboxItem, TakeOutbox};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::client::{self, Refusal};
use crate::background::{Background, TickError};
use crate::delivery::{GIVE_UP_AFTER, Senders, next_try};
use crate::metrics::add;
use crate::node::Shared;

const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of messages of one namespace that are taken together.
const MESSAGES_PER_NAMESPACE_MAX: u32 = 64;
/// How long a taken message is reserved for the node that took it: longer than the sum of [`START_WITHIN`] and the timeout of one request.
const MESSAGE_LEASE: Duration = Duration::from_secs(60);
/// Time within which the messages of one namespace must be started; the last message may finish later.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Maximum number of namespaces whose messages are sent concurrently.
const CONCURRENT_MAX: usize = 32;
/// How long the other messages of a namespace wait when its receiver is unreachable; this does not count as a try.
const PUT_BACK_DELAY: Duration = Duration::from_secs(5);
/// Number of messages that are given up together, and maximum number of such batches after one failed try.
const GIVE_UP_BATCH: u32 = 500;
const GIVE_UP_BATCHES_MAX: u32 = 40;
/// How long a message being sent may still take once the server is asked to stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct WebhookLoop {
    shared: Arc<Shared>,
    senders: Senders<NamespaceId>,
}

impl Background for WebhookLoop {
    const NAME: &'static str = "alert";
    const ACTION: &'static str = "send messages to webhooks";

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }

    async fn wait_until_woken(&mut self) {
        self.senders.wait_for_one().await;
    }

    async fn tick(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        self.senders.take_error()?;
        self.send_due(stop).await
    }

    async fn finish_work(&mut self) {
        // Each sender ends within the grace period, and postpones the messages that it has not sent.
        self.senders.wait_for_all().await;
    }
}

impl WebhookLoop {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, senders: Senders::new() }
    }

    /// Takes the due messages of each namespace for which no message is being sent, and starts sending them. Returns how many messages were
    /// taken.
    async fn send_due(&mut self, stop: &CancellationToken) -> Result<u64, TickError> {
        let free_count = CONCURRENT_MAX.saturating_sub(self.senders.count());
        if free_count == 0 || !self.shared.membership.holds_lease() {
            return Ok(0);
        }
        let busy_namespaces = self.senders.receivers();
        let namespace_max = u32::try_from(free_count).unwrap_or(u32::MAX);
        let outbox_request = TakeOutbox {
            excluded_namespaces: &busy_namespaces,
            namespace_max,
            messages_per_namespace_max: MESSAGES_PER_NAMESPACE_MAX,
            hold: MESSAGE_LEASE,
        };
        let now = self.shared.clock.now();
        let due_items = self.shared.store.take_outbox(now, outbox_request).await?;
        if due_items.is_empty() {
            return Ok(0);
        }
        let count = u64::try_from(due_items.len()).unwrap_or(u64::MAX);
        let client = self.senders.client(&self.shared.config.outgoing_allow)?;
        let mut items_by_namespace: BTreeMap<NamespaceId, Vec<OutboxItem>> = BTreeMap::new();
        for item in due_items {
            items_by_namespace.entry(item.namespace).or_default().push(item);
        }
        for (namespace, items) in items_by_namespace {
            let sender = Sender { shared: Arc::clone(&self.shared), client: client.clone(), stop: stop.clone() };
            self.senders.start(namespace, async move { sender.send_all(namespace, items).await });
        }
        Ok(count)
    }
}

struct Sender {
    shared: Arc<Shared>,
    client: Outgoing,
    stop: CancellationToken,
}

/// How sending one message ended.
enum SendOutcome {
    Accepted,
    Refused(Refusal),
    /// The server is stopping: the message stays due.
    Interrupted,
}

impl Sender {
    /// Sends the messages of one namespace one after the other. Once the receiver fails, [`START_WITHIN`] has passed or the server stops,
    /// postpones the remaining messages. Drops all messages if the namespace has no webhook.
    async fn send_all(&self, namespace: NamespaceId, items: Vec<OutboxItem>) -> Result<(), StoreError> {
        let store = &self.shared.store;
        let Some(webhook) = store.failure_webhook(namespace).await? else {
            let ids: Vec<_> = items.iter().map(|item| item.id).collect();
            return store.drop_outbox(&ids).await;
        };
        let deadline = Instant::now() + START_WITHIN;
        let (mut put_back_at, mut has_receiver_failed) = (None, false);
        for item in items {
            if put_back_at.is_none() && (self.stop.is_cancelled() || Instant::now() >= deadline) {
                put_back_at = Some(self.shared.clock.now());
            }
            if let Some(due_at) = put_back_at {
                store.postpone_outbox(&item, item.try_count, due_at).await?;
                continue;
            }
            match self.send(&webhook, &item).await {
                SendOutcome::Accepted => {
                    add(&self.shared.metrics.alerts_delivered, 1);
                    rondel_failpoint::pass("alert.sent");
                    store.drop_outbox(&[item.id]).await?;
                }
                SendOutcome::Interrupted => {
                    store.postpone_outbox(&item, item.try_count, self.shared.clock.now()).await?;
                }
                SendOutcome::Refused(refusal) => {
                    self.postpone(&item, &refusal).await?;
                    if matches!(refusal, Refusal::Receiver(_)) {
                        // The namespace's other messages would fail as well.
                        put_back_at = Some(self.shared.clock.now() + PUT_BACK_DELAY);
                        has_receiver_failed = true;
                    }
                }
            }
        }
        if has_receiver_failed { self.give_up_old(namespace).await } else { Ok(()) }
    }

    /// Gives up the messages of a namespace that have waited for a day. While the receiver fails, few of them are tried, and all others would
    /// stay until it is back.
    async fn give_up_old(&self, namespace: NamespaceId) -> Result<(), StoreError> {
        let before = self.shared.clock.now() - GIVE_UP_AFTER;
        let mut count = 0;
        for _ in 0..GIVE_UP_BATCHES_MAX {
            if self.stop.is_cancelled() {
                break;
            }
            let batch_count = self.shared.store.forget_outbox(namespace, before, GIVE_UP_BATCH).await?;
            count += batch_count;
            if batch_count < u64::from(GIVE_UP_BATCH) {
                break;
            }
        }
        if count > 0 {
            add(&self.shared.metrics.alerts_given_up, count);
            tracing::error!(
                namespace_id = namespace.get(),
                count,
                "messages could not be delivered to a webhook for a day; giving up"
            );
        }
        Ok(())
    }

    async fn send(&self, webhook: &FailureWebhook, item: &OutboxItem) -> SendOutcome {
        let console_url = self.shared.config.advertise_url.as_deref();
        let item = OutboxItem { payload: with_link(&item.payload, console_url, item.run), ..item.clone() };
        let end_of_grace = async {
            self.stop.cancelled().await;
            sleep(STOP_GRACE).await;
        };
        tokio::select! {
            biased;
            sent = client::send(&self.client, webhook, &item, self.shared.clock.now()) => match sent {
                Ok(()) => SendOutcome::Accepted,
                Err(refusal) => SendOutcome::Refused(refusal),
            },
            () = end_of_grace => SendOutcome::Interrupted,
        }
    }

    async fn postpone(&self, item: &OutboxItem, refusal: &Refusal) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let tried_count = item.try_count.saturating_add(1);
        let run_id = item.run.map(|run| run.to_string()).unwrap_or_default();
        let error = refusal.text();
        match next_try(tried_count, item.created_at, now, rand::random()) {
            Some(due_at) => {
                add(&self.shared.metrics.alerts_refused, 1);
                tracing::warn!(run_id, tried_count, error, next = %due_at, "a message could not be delivered to a webhook");
                self.shared.store.postpone_outbox(item, tried_count, due_at).await
            }
            None => {
                add(&self.shared.metrics.alerts_given_up, 1);
                tracing::error!(
                    run_id,
                    tried_count,
                    error,
                    "a message could not be delivered to a webhook for a day; giving up"
                );
                self.shared.store.drop_outbox(&[item.id]).await
            }
        }
    }
}

/// Adds the address of the run's page to the payload, if the message is about a run and this server knows its own address.
fn with_link(payload: &str, console_url: Option<&str>, run: Option<RunId>) -> String {
    let Some((console_url, run)) = console_url.zip(run) else { return payload.to_owned() };
    let Ok(mut message) = serde_json::from_str::<serde_json::Value>(payload) else { return payload.to_owned() };
    if let Some(data) = message.get_mut("data").and_then(serde_json::Value::as_object_mut)
        && let Some(namespace) = data.get("namespace").and_then(serde_json::Value::as_str)
    {
        let link = format!("{}/n/{namespace}/runs/{run}", console_url.trim_end_matches('/'));
        data.insert("link".to_owned(), link.into());
    }
    message.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_links_to_the_run_where_the_address_is_known() {
        let payload = r#"{"data":{"job":"a","namespace":"pay"},"type":"run.skipped"}"#;
        let linked = with_link(payload, Some("https://rondel.example/"), Some(RunId::new(7)));
        assert!(linked.contains(r#""link":"https://rondel.example/n/pay/runs/7""#), "{linked}");
        assert_eq!(with_link(payload, None, Some(RunId::new(7))), payload);
    }
}
