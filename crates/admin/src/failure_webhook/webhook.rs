//! The webhook to which the failed runs of a namespace are reported: its URL and its secret.

use rondel_core::NamespaceId;
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::{Url, check_host};
use rondel_store::StoreError;
use rondel_store::outbox::FailureWebhook;

use crate::delivery::generate_secret;
use crate::node::Node;

/// Maximum length of a URL, in characters.
const URL_LEN_MAX: usize = 2_000;

/// Why a webhook was not set.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The URL is refused, for this reason.
    #[error("{0}")]
    Url(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Result of setting a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SavedWebhook {
    /// The webhook is new: its secret is shown now, and never again.
    Created(FailureWebhook),
    /// The webhook has a new URL and keeps its secret.
    Changed,
}

/// Sets the webhook to which failed runs of a namespace are reported.
///
/// # Errors
/// [`WebhookError`].
pub(crate) async fn put_failure_webhook(
    node: &Node,
    namespace: NamespaceId,
    url: &str,
) -> Result<SavedWebhook, WebhookError> {
    check_url(url, &node.shared().config.outgoing_allow).map_err(WebhookError::Url)?;
    let now = node.now();
    let secret = generate_secret();
    let webhook = FailureWebhook { url: url.to_owned(), secret, created_at: now, updated_at: now };
    let is_new = node.store().put_failure_webhook(namespace, &webhook).await?;
    Ok(if is_new { SavedWebhook::Created(webhook) } else { SavedWebhook::Changed })
}

/// Checks whether messages can be sent to the URL. Only the text of the URL is checked here; the addresses of a host name are checked at each
/// delivery.
fn check_url(text: &str, allowed_addresses: &AllowedAddresses) -> Result<(), String> {
    check_host(&read_url(text)?, allowed_addresses).map_err(|refused| refused.to_string())
}

/// Parses the URL, and checks that messages can be sent to it.
pub(super) fn read_url(text: &str) -> Result<Url, String> {
    if text.chars().count() > URL_LEN_MAX {
        return Err(format!("a URL has at most {URL_LEN_MAX} characters"));
    }
    let url = Url::parse(text).map_err(|error| format!("it is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("the URL must begin with http:// or https://".to_owned());
    }
    if !url.has_host() {
        return Err("the URL names no host".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL must not hold a user or a password: messages are signed with a secret".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_web_addresses_are_taken() {
        let allowed = AllowedAddresses::loopback();
        for good in ["http://127.0.0.1:9/hook", "https://example.com/a?b=c", "HTTPS://[::1]/"] {
            assert!(check_url(good, &allowed).is_ok(), "{good}");
        }
        let long = format!("https://example.com/{}", "x".repeat(URL_LEN_MAX));
        for bad in [
            "",
            "example.com",
            "ftp://example.com/",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "http://",
            "https://user:password@example.com/",
            "https://user@example.com/",
            "http://10.0.0.1/",
            "http://0xa9fea9fe/latest/meta-data",
            &long,
        ] {
            assert!(check_url(bad, &allowed).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_length_of_a_url_is_counted_in_characters() {
        let url = |len: usize| format!("https://example.com/{}", "ü".repeat(len - "https://example.com/".len()));
        assert!(read_url(&url(URL_LEN_MAX)).is_ok());
        assert_eq!(read_url(&url(URL_LEN_MAX + 1)).unwrap_err(), "a URL has at most 2000 characters");
    }
}
