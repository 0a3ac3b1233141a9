//! What messages are sent with: no redirects, a time limit, allowed addresses alone, and nothing of the answer but its
//! status.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::header::CONTENT_TYPE;
use rondel_outgoing::{Method, Options, Outgoing, StatusCode, failure, refusal};
use rondel_store::outbox::{FailureWebhook, OutboxItem};

use super::sign::signature;
use super::webhook::read_url;
use rondel_core::error_chain::chain;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a message was not taken.
#[derive(Debug)]
pub(super) enum Refusal {
    /// This very message, or the webhook as it is set up: others may be taken.
    Message(String),
    /// The receiver is away or too busy: other messages would fail likewise.
    Receiver(String),
}

impl Refusal {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Message(text) | Self::Receiver(text) => text,
        }
    }
}

/// Made when the first message is sent: reading the host's certificates takes time and memory.
pub(crate) fn build(allowed: &AllowedAddresses) -> Result<Outgoing, String> {
    let user_agent = concat!("rondel/", env!("CARGO_PKG_VERSION"));
    let options = Options { allowed: allowed.clone(), redirect_count_max: 0, user_agent, idle_timeout: None };
    Outgoing::new(options).map_err(|error| chain(&error))
}

/// Sends a message once.
pub(super) async fn send(
    client: &Outgoing,
    webhook: &FailureWebhook,
    item: &OutboxItem,
    now: Timestamp,
) -> Result<(), Refusal> {
    judge(post(client, webhook, item, now).await?)
}

/// The same, and answers the status whatever it is.
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
    // The URL may hold a secret of the receiver's: it is not logged.
    let response = request.send().await.map_err(|error| match refusal(&error) {
        Some(refused) => Refusal::Message(refused.to_string()),
        None => Refusal::Receiver(failure(error)),
    })?;
    Ok(response.status())
}

pub(super) fn judge(status: StatusCode) -> Result<(), Refusal> {
    let text = || format!("it answered with status {}", status.as_u16());
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(Refusal::Receiver(text())),
        _ if status.is_server_error() => Err(Refusal::Receiver(text())),
        _ => Err(Refusal::Message(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_can_be_made() {
        build(&AllowedAddresses::default()).unwrap();
    }

    #[test]
    fn only_2xx_is_good() {
        let judged = |code: u16| judge(StatusCode::from_u16(code).unwrap());
        assert!(judged(200).is_ok() && judged(204).is_ok());
        for code in [301, 302, 400, 404, 410] {
            assert!(matches!(judged(code), Err(Refusal::Message(_))), "{code}");
        }
        for code in [408, 429, 500, 503] {
            assert!(matches!(judged(code), Err(Refusal::Receiver(_))), "{code}");
        }
    }
}
