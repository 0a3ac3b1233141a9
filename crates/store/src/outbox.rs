//! Outgoing messages that follow from a transaction: written in the transaction, and sent after it.
//!
//! A message reports either a failed run, or a skipped run whose job wants skips reported. The row of a message has the id of its run.
//! These ids are unique, because a run ends only once and a node never makes an id that is in use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::reason::ReasonDetail;
use rondel_core::reason::words::{RunStatusFacts, sentence};
use rondel_core::spec::NotifySpec;
use rondel_core::words::Lang;
use rondel_core::{NamespaceId, OutboxId, Reason, RunId, RunStatus, Timestamp, Trigger};
use serde::Deserialize;
use serde_json::json;

use crate::error::Result;

/// The kind of a message that reports a failed run.
pub const RUN_FAILED: &str = "run.failed";
/// The kind of a message that reports a skipped run, or several skipped fires that share one row.
pub const RUN_SKIPPED: &str = "run.skipped";

/// The webhook to which failed runs of a namespace are reported.
#[derive(Clone, PartialEq, Eq)]
pub struct FailureWebhook {
    /// An http or https URL.
    pub url: String,
    /// The secret that messages are signed with.
    pub secret: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl fmt::Debug for FailureWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailureWebhook").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A message that waits to be sent. Only the server that took it may send it until `held_until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxItem {
    /// Its id: the same at each try.
    pub id: OutboxId,
    pub namespace: NamespaceId,
    pub kind: String,
    pub run: Option<RunId>,
    /// The body, as JSON.
    pub payload: String,
    /// Number of tries to send it.
    pub try_count: i32,
    /// When it was written.
    pub created_at: Timestamp,
    /// No other server takes the message until this instant.
    pub held_until: Timestamp,
}

/// A request to take messages.
#[derive(Clone, Copy, Debug)]
pub struct TakeOutbox<'a> {
    /// Namespaces to leave out, because their messages are being sent.
    pub excluded_namespaces: &'a [NamespaceId],
    /// Maximum number of namespaces, at most [`TAKE_NAMESPACE_MAX`].
    pub namespace_max: u32,
    /// Maximum number of messages of each namespace, at most [`TAKE_MESSAGES_PER_NAMESPACE_MAX`].
    pub messages_per_namespace_max: u32,
    /// How long no other server takes the messages.
    pub hold: Duration,
}

/// Maximum number of namespaces whose messages one call takes, and maximum number of namespaces that it leaves out.
pub const TAKE_NAMESPACE_MAX: u32 = 500;
/// Maximum number of messages of one namespace that one call takes.
pub const TAKE_MESSAGES_PER_NAMESPACE_MAX: u32 = 500;

#[async_trait]
pub trait Outbox {
    async fn failure_webhook(&self, namespace: NamespaceId) -> Result<Option<FailureWebhook>>;

    /// Stores the webhook to which failed runs are reported. An existing webhook gets the new URL and keeps its secret. Returns whether
    /// there was none before.
    async fn put_failure_webhook(&self, namespace: NamespaceId, webhook: &FailureWebhook) -> Result<bool>;

    /// Removes the webhook; `false` if there was none.
    async fn delete_failure_webhook(&self, namespace: NamespaceId) -> Result<bool>;

    /// Takes messages that are due at `now`. If more are due than the limits of `take` allow, the namespaces whose messages have been due
    /// longest are served first, and in each namespace the messages that have been due longest. No other server takes these messages for
    /// `take.hold`.
    async fn take_outbox(&self, now: Timestamp, take: TakeOutbox<'_>) -> Result<Vec<OutboxItem>>;

    /// Removes messages that were sent or given up.
    async fn drop_outbox(&self, ids: &[OutboxId]) -> Result<()>;

    /// Postpones a message to `due_at`. Does nothing if another server has taken the message since.
    async fn postpone_outbox(&self, item: &OutboxItem, try_count: i32, due_at: Timestamp) -> Result<()>;

    /// Removes messages of a namespace that were written before an instant, at most `limit`. Returns how many were removed.
    async fn forget_outbox(&self, namespace: NamespaceId, before: Timestamp, limit: u32) -> Result<u64>;
}

/// Whether a run ended in a way that its job may want reported.
pub(crate) const fn may_be_reported(status: RunStatus) -> bool {
    is_failure(status) || matches!(status, RunStatus::Skipped)
}

/// Whether a definition, as JSON, wants skips for this reason reported. A definition that cannot be read has the default.
pub(crate) fn reports_skip(spec: &str, reason: Reason) -> bool {
    /// The part of a definition that is needed here. A whole definition may have parameters and schedules of many kilobytes.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct NotifyPart {
        notify: NotifySpec,
    }
    serde_json::from_str::<NotifyPart>(spec).unwrap_or_default().notify.skipped.contains(&reason)
}

pub(crate) const fn is_failure(status: RunStatus) -> bool {
    matches!(status, RunStatus::Failed | RunStatus::TimedOut | RunStatus::Unknown)
}

/// A run that failed or was skipped, as the message reports it.
#[derive(Clone, Debug)]
pub(crate) struct RunMessage {
    pub(crate) run: RunId,
    pub(crate) namespace: NamespaceId,
    pub(crate) namespace_name: String,
    pub(crate) app_name: String,
    pub(crate) job_name: String,
    pub(crate) status: RunStatus,
    pub(crate) reason: Option<Reason>,
    pub(crate) detail: Option<Arc<ReasonDetail>>,
    pub(crate) attempt: i32,
    pub(crate) trigger: Trigger,
    pub(crate) fire_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) executor: Option<String>,
    pub(crate) message: Option<String>,
    /// For a row that stands for several skipped fires: the last of them, and their number.
    pub(crate) span: Option<(Timestamp, i64)>,
}

impl RunMessage {
    pub(crate) const fn kind(&self) -> &'static str {
        if is_failure(self.status) { RUN_FAILED } else { RUN_SKIPPED }
    }

    /// The body of the message, as JSON.
    pub(crate) fn payload(&self, now: Timestamp) -> String {
        let status_facts = RunStatusFacts {
            status: self.status,
            reason: self.reason,
            detail: self.detail.as_deref(),
            attempt: self.attempt,
        };
        let mut data = json!({
            "namespace": self.namespace_name,
            "app": self.app_name,
            "job": self.job_name,
            "run_id": self.run,
            "status": self.status,
            "reason": self.reason,
            "detail": self.detail,
            "why": sentence(status_facts, Lang::En),
            "attempt": self.attempt,
            "trigger": self.trigger,
            "fire_at": self.fire_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "executor": self.executor,
            "message": self.message,
        });
        if let Some((last_at, count)) = self.span {
            (data["last_fire_at"], data["count"]) = (json!(last_at), json!(count));
        }
        json!({"type": self.kind(), "timestamp": now, "data": data}).to_string()
    }
}
