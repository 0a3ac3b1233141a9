//! Sends messages to webhooks: without redirects, with a time limit, to allowed addresses only. Only the status of the answer is read.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_outgoing::header::CONTENT_TYPE;
use rondel_outgoing::{Method, Outgoing, StatusCode, failure_text, refusal};
use rondel_store::outbox::{FailureWebhook, OutboxItem};

use super::webhook::read_url;
use crate::delivery::{is_temporary, signature};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a message was not accepted.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The fault is in this message or in the webhook's settings: other messages may be accepted.
    Message(String),
    /// The receiver is unreachable or overloaded: other messages would fail as well.
    Receiver(String),
}

impl Refusal {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Message(text) | Self::Receiver(text) => text,
        }
    }
}

/// Sends a message once.
pub(super) async fn send(
    client: &Outgoing,
    webhook: &FailureWebhook,
    item: &OutboxItem,
    now: Timestamp,
) -> Result<(), Refusal> {
    judge_status(post(client, webhook, item, now).await?)
}

/// Sends a message once; returns the status of the answer, whatever it is.
pub(super) async fn post(
    client: &Outgoing,
    webhook: &FailureWebhook,
    item: &OutboxItem,
    now: Timestamp,
) -> Result<StatusCode, Refusal> {
    let url = read_url(&webhook.url).map_err(Refusal::Message)?;
    let id = format!("msg_{}", item.id);
    let timestamp = now.second();
    let signature = signature(&webhook.secret, &id, timestamp, &item.payload)
        .ok_or_else(|| Refusal::Message("the secret of the webhook cannot be read".to_owned()))?;
    let request = client.request(Method::POST, url).map_err(|refused| Refusal::Message(refused.to_string()))?;
    let request = request
        .timeout(TIMEOUT)
        .header(CONTENT_TYPE, "application/json")
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature)
        .body(item.payload.clone());
    // The URL may contain a secret of the receiver, so it is not logged.
    let response = request.send().await.map_err(|error| match refusal(&error) {
        Some(refused) => Refusal::Message(refused.to_string()),
        None => Refusal::Receiver(failure_text(error)),
    })?;
    Ok(response.status())
}

pub(super) fn judge_status(status: StatusCode) -> Result<(), Refusal> {
    let text = || format!("it answered with status {}", status.as_u16());
    match status {
        _ if status.is_success() => Ok(()),
        _ if is_temporary(status.as_u16()) => Err(Refusal::Receiver(text())),
        _ => Err(Refusal::Message(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_2xx_is_good() {
        let judged = |code: u16| judge_status(StatusCode::from_u16(code).unwrap());
        assert!(judged(200).is_ok() && judged(204).is_ok());
        for code in [301, 302, 400, 404, 410] {
            assert!(matches!(judged(code), Err(Refusal::Message(_))), "{code}");
        }
        for code in [408, 425, 429, 500, 503] {
            assert!(matches!(judged(code), Err(Refusal::Receiver(_))), "{code}");
        }
    }
}
