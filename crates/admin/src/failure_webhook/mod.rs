//! Failure messages: a transaction leaves them in the outbox, from where they are sent to the namespace's webhook.
//!
//! Delivery is at least once: a message is dropped only after a 2xx answer, and keeps its id at each try. Two nodes do not send the same
//! message, unless the first node's hold on it ends while that node is still waiting for an answer.

mod client;
mod send;
mod test_send;
mod webhook;

pub(crate) use send::WebhookLoop;
pub use test_send::TestSend;
pub(crate) use test_send::test_failure_webhook;
pub(crate) use webhook::put_failure_webhook;
pub use webhook::{WebhookError, WebhookSaved};
