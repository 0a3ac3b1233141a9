//! A test message that a user sends to a webhook. It is signed like any other, sent once, and not stored.

use std::time::Duration;

use rondel_core::{NamespaceId, OutboxId};
use rondel_store::StoreError;
use rondel_store::outbox::OutboxItem;
use serde_json::json;
use tokio::time::Instant;

use super::client;
use crate::delivery::build_client;
use crate::node::Node;

/// The kind of the message.
const WEBHOOK_TEST: &str = "webhook.test";

/// Result of a test message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestSend {
    /// The status of the receiver's answer; `None` if there was no answer.
    pub status: Option<u16>,
    /// How long the attempt took, until the receiver answered or the attempt failed.
    pub took: Duration,
    /// Why the message counts as not accepted; `None` if it was accepted.
    pub error: Option<String>,
}

/// Sends a test message to the webhook of a namespace; `None` if the namespace has none.
///
/// # Errors
/// The store's.
pub(crate) async fn test_failure_webhook(
    node: &Node,
    (namespace, name): (NamespaceId, &str),
) -> Result<Option<TestSend>, StoreError> {
    let Some(webhook) = node.store().failure_webhook(namespace).await? else { return Ok(None) };
    let now = node.now();
    let payload = json!({
        "type": WEBHOOK_TEST,
        "timestamp": now,
        "data": {"namespace": name, "message": "a test message: no run has failed"},
    });
    let item = OutboxItem {
        id: OutboxId::new(node.new_id()),
        namespace,
        kind: WEBHOOK_TEST.to_owned(),
        run: None,
        payload: payload.to_string(),
        try_count: 0,
        created_at: now,
        held_until: now,
    };
    let send_start = Instant::now();
    let result = match build_client(&node.shared().config.outgoing_allow) {
        Ok(client) => client::post(&client, &webhook, &item, now).await,
        Err(error) => return Ok(Some(TestSend { status: None, took: send_start.elapsed(), error: Some(error) })),
    };
    let took = send_start.elapsed();
    let (status, error) = match result {
        Ok(status) => (Some(status.as_u16()), client::judge_status(status).err()),
        Err(refusal) => (None, Some(refusal)),
    };
    Ok(Some(TestSend { status, took, error: error.map(|refusal| refusal.text().to_owned()) }))
}
