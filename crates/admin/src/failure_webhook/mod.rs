//! Failure messages. The transaction that records a failure writes the message to the outbox; a loop sends it from there to the namespace's
//! webhook.
//!
//! Delivery is at least once: a message is dropped only after a 2xx answer, after a day of failed tries, or if its namespace has no webhook. It
//! keeps its id at each try. A node takes a message for a limited time. Two nodes send the same message only if that time ends while the first
//! node still waits for an answer, or if the first node stops before it records that the message was sent.

mod client;
mod send;
mod test_send;
mod webhook;

pub(crate) use send::WebhookLoop;
pub use test_send::TestSend;
pub(crate) use test_send::test_failure_webhook;
pub(crate) use webhook::put_failure_webhook;
pub use webhook::{SavedWebhook, WebhookError};
