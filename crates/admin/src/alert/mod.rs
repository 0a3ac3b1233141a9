//! Messages about failures: those that a transaction left in the outbox are sent to the namespace's webhook.
//!
//! At least once: a message is gone only after an answer of 2xx, and has the same id at each try. Two nodes do not send
//! the same one, unless the first one's hold on it ends while it is still waiting for an answer.

mod client;
mod retry;
mod send;
mod sign;
mod test_send;
mod webhook;

pub(crate) use client::build as build_client;
pub(crate) use retry::next_try;
pub(crate) use send::AlertLoop;
pub(crate) use sign::{generate_secret, signature};
pub use test_send::TestSend;
pub(crate) use test_send::test_failure_webhook;
pub(crate) use webhook::put_failure_webhook;
pub use webhook::{PutWebhook, WebhookError};
