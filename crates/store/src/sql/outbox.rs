//! The trait `Outbox` in SQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::reason::ReasonDetail;
use rondel_core::{IdGen, NamespaceId, OutboxId, RunId, Timestamp};
use sqlx::any::AnyRow;

use super::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use super::{SqlStore, Tx, failure, transact};
use crate::outbox::{
    FailureWebhook, OutboxItem, RunMessage, TAKE_MESSAGES_PER_NAMESPACE_MAX, TAKE_NAMESPACE_MAX, TakeOutbox,
    is_failure, reports_skip,
};
use crate::settle::clean_name;
use crate::{OpenError, Outbox, Result, StoreError};

const READ_WEBHOOK: Statement = Statement {
    name: "read_webhook",
    text: "SELECT url, secret, created_at_ms, updated_at_ms FROM failure_webhook WHERE namespace_id = ?",
};
const READ_WEBHOOKS: Statement = Statement {
    name: "read_webhooks",
    text: "SELECT namespace_id, url, secret FROM failure_webhook ORDER BY namespace_id",
};
/// Changes nothing if another server has sealed or changed the webhook in the meantime.
const SEAL_WEBHOOK: Statement = Statement {
    name: "seal_webhook",
    text: "UPDATE failure_webhook SET url = ?, secret = ? WHERE namespace_id = ? AND url = ? AND secret = ?",
};
const INSERT_WEBHOOK: Statement = Statement {
    name: "insert_webhook",
    text: "INSERT {ignore} INTO failure_webhook (namespace_id, url, secret, created_at_ms, updated_at_ms) \
           VALUES (?, ?, ?, ?, ?) {or_ignore}",
};
const UPDATE_WEBHOOK: Statement = Statement {
    name: "update_webhook",
    text: "UPDATE failure_webhook SET url = ?, updated_at_ms = ? WHERE namespace_id = ?",
};
const DELETE_WEBHOOK: Statement =
    Statement { name: "delete_webhook", text: "DELETE FROM failure_webhook WHERE namespace_id = ?" };
/// Shards are left out, because their broadcast is reported.
const READ_REPORTED_RUNS: Statement = Statement {
    name: "read_reported",
    text: "SELECT run.id, run.namespace_id, namespace.name, job.name, run.status, run.reason, run.attempt, \
           run.trigger_kind, run.fire_at_ms, run.started_at_ms, run.finished_at_ms, run.executor, run.message, \
           run.detail, run.span_end_at_ms, run.span_count, app.name, job_version.spec, {now} \
           FROM run JOIN failure_webhook ON failure_webhook.namespace_id = run.namespace_id \
           JOIN namespace ON namespace.id = run.namespace_id JOIN job ON job.id = run.job_id \
           JOIN app ON app.id = run.app_id LEFT JOIN job_version ON job_version.job_id = run.job_id \
           AND job_version.version = run.job_version \
           WHERE run.id {in_list} AND {check}run.status IN ('failed', 'timed_out', 'unknown', 'skipped'){end} \
           AND NOT EXISTS (SELECT 1 FROM run whole WHERE whole.job_id = run.job_id \
           AND whole.fire_at_ms = run.fire_at_ms AND whole.cause = run.cause AND whole.shard_index = -1 \
           AND run.shard_index >= 0) ORDER BY run.id",
};
const INSERT_OUTBOX: Statement = Statement {
    name: "insert_outbox",
    text: "INSERT {ignore} INTO outbox (id, namespace_id, kind, run_id, payload, attempt_count, due_at_ms, \
           created_at_ms) {values:iititiii} {or_ignore}",
};
pub(super) const FIND_ANY_DUE_OUTBOX: Statement =
    Statement { name: "find_any_outbox", text: "SELECT id FROM outbox WHERE due_at_ms <= ? LIMIT 1" };
/// Takes one index lookup per namespace, even if many of its messages wait.
pub(super) const FIND_DUE_NAMESPACES: Statement = Statement {
    name: "find_due_namespaces",
    text: "SELECT waiting.id FROM (SELECT namespace.id, (SELECT MIN(outbox.due_at_ms) FROM outbox \
           WHERE outbox.namespace_id = namespace.id) AS first_ms FROM namespace WHERE NOT (namespace.id {in_list})) waiting \
           WHERE waiting.first_ms <= ? ORDER BY waiting.first_ms, waiting.id LIMIT ?",
};
pub(super) const FIND_DUE_OUTBOX: Statement = Statement {
    name: "find_due_outbox",
    text: "SELECT id FROM outbox WHERE namespace_id = ? AND due_at_ms <= ? ORDER BY due_at_ms LIMIT ?",
};
const LOCK_OUTBOX: Statement = Statement {
    name: "lock_outbox",
    text: "SELECT id, namespace_id, kind, run_id, payload, attempt_count, created_at_ms FROM outbox \
           WHERE id {in_list} AND due_at_ms <= ? ORDER BY id {skip_locked}",
};
const HOLD_OUTBOX: Statement =
    Statement { name: "hold_outbox", text: "UPDATE outbox SET due_at_ms = ? WHERE id {in_list}" };
const DELETE_OUTBOX: Statement = Statement { name: "delete_outbox", text: "DELETE FROM outbox WHERE id {in_list}" };
/// A message is written after the id of its run was made, so the messages with later ids are not old. The plus sign prevents planners from
/// using the index by namespace, which has all messages of the namespace.
pub(super) const FIND_OLD_OUTBOX: Statement = Statement {
    name: "find_old_outbox",
    text: "SELECT id FROM outbox WHERE id < ? AND +namespace_id = ? AND created_at_ms < ? ORDER BY id LIMIT ?",
};
const POSTPONE_OUTBOX: Statement = Statement {
    name: "postpone_outbox",
    text: "UPDATE outbox SET attempt_count = ?, due_at_ms = ? WHERE id = ? AND due_at_ms = ?",
};

#[async_trait]
impl Outbox for SqlStore {
    async fn failure_webhook(&self, namespace: NamespaceId) -> Result<Option<FailureWebhook>> {
        let row = self.row(Query::new(&READ_WEBHOOK).int(namespace.get())).await?;
        row.as_ref().map(|row| self.webhook(namespace, row)).transpose()
    }

    async fn put_failure_webhook(&self, namespace: NamespaceId, webhook: &FailureWebhook) -> Result<bool> {
        let url = self.seal_webhook(SealedColumn::Url, namespace, &webhook.url)?;
        let secret = self.seal_webhook(SealedColumn::Secret, namespace, &clean_name(&webhook.secret))?;
        transact!(self, "put_failure_webhook", |tx| {
            let insert = Query::new(&INSERT_WEBHOOK)
                .int(namespace.get())
                .text(&url)
                .text(&secret)
                .at(webhook.created_at)
                .at(webhook.updated_at);
            if tx.execute(insert).await? == 1 {
                return Ok(true);
            }
            let update = Query::new(&UPDATE_WEBHOOK).text(&url).at(webhook.updated_at).int(namespace.get());
            tx.execute_all(update, 1).await?;
            Ok(false)
        })
    }

    async fn delete_failure_webhook(&self, namespace: NamespaceId) -> Result<bool> {
        Ok(self.execute(Query::new(&DELETE_WEBHOOK).int(namespace.get())).await? == 1)
    }

    async fn take_outbox(&self, now: Timestamp, take: TakeOutbox<'_>) -> Result<Vec<OutboxItem>> {
        // Usually no message is due. This check finds that out without a transaction.
        if self.row(Query::new(&FIND_ANY_DUE_OUTBOX).at(now)).await?.is_none() {
            return Ok(Vec::new());
        }
        let mut due_ids = Vec::new();
        for namespace in self.due_namespaces(now, take).await? {
            let message_limit = i64::from(take.messages_per_namespace_max.min(TAKE_MESSAGES_PER_NAMESPACE_MAX));
            for row in self.rows(Query::new(&FIND_DUE_OUTBOX).int(namespace).at(now).int(message_limit)).await? {
                due_ids.push(Reader::new(&row, "outbox").int("id")?);
            }
        }
        let mut leased_items = Vec::with_capacity(due_ids.len());
        for chunk in due_ids.chunks(CHUNK_MAX) {
            leased_items.extend(transact!(self, "take_outbox", |tx| tx.take_outbox(chunk, now, take.hold).await)?);
        }
        Ok(leased_items)
    }

    async fn drop_outbox(&self, ids: &[OutboxId]) -> Result<()> {
        for chunk in ids.chunks(CHUNK_MAX) {
            self.execute(Query::new(&DELETE_OUTBOX).list(chunk.iter().map(|id| id.get()))).await?;
        }
        Ok(())
    }

    async fn postpone_outbox(&self, item: &OutboxItem, try_count: i32, due_at: Timestamp) -> Result<()> {
        let query =
            Query::new(&POSTPONE_OUTBOX).int(try_count.into()).at(due_at).int(item.id.get()).at(item.held_until);
        self.execute(query).await?;
        Ok(())
    }

    async fn forget_outbox(&self, namespace: NamespaceId, before: Timestamp, limit: u32) -> Result<u64> {
        let limit = i64::from(limit).min(i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX));
        let query =
            Query::new(&FIND_OLD_OUTBOX).int(IdGen::first_at(before)).int(namespace.get()).at(before).int(limit);
        let old_ids = read_ids(&self.rows(query).await?, "outbox", "id")?;
        if old_ids.is_empty() {
            return Ok(0);
        }
        self.execute(Query::new(&DELETE_OUTBOX).list(old_ids.into_iter())).await
    }
}

impl Tx<'_> {
    /// Writes the alert events and dead letters of these runs. In a namespace with a webhook, also writes a message for each run that
    /// failed, or that was skipped for a reason that its job wants reported.
    pub(super) async fn insert_failure_records(&mut self, runs: &[RunId]) -> Result<()> {
        self.insert_alert_events(runs).await?;
        self.insert_dead_letters(runs).await?;
        for chunk in runs.chunks(CHUNK_MAX) {
            let mut messages = Vec::new();
            for row in self.rows(Query::new(&READ_REPORTED_RUNS).list(chunk.iter().map(|run| run.get()))).await? {
                if let Some((message, now)) = run_message(&row)? {
                    messages.push((message.run, message.namespace, message.kind(), message.payload(now), now));
                }
            }
            let size = self.size;
            let queries = size.queries(&INSERT_OUTBOX, &messages, |query, (run, namespace, kind, payload, now)| {
                query
                    .int(run.get())
                    .int(namespace.get())
                    .text(kind)
                    .int(run.get())
                    .text(payload)
                    .int(0)
                    .at(*now)
                    .at(*now)
            });
            for (query, _) in queries {
                self.execute(query).await?;
            }
        }
        Ok(())
    }

    async fn take_outbox(&mut self, due_ids: &[i64], now: Timestamp, hold: Duration) -> Result<Vec<OutboxItem>> {
        let mut taken_items = Vec::with_capacity(due_ids.len());
        let held_until = now + hold;
        for row in self.rows(Query::new(&LOCK_OUTBOX).list(due_ids.iter().copied()).at(now)).await? {
            let mut columns = Reader::new(&row, "outbox");
            taken_items.push(OutboxItem {
                id: OutboxId::new(columns.int("id")?),
                namespace: NamespaceId::new(columns.int("namespace_id")?),
                kind: columns.text("kind")?,
                run: columns.opt_int("run_id")?.map(RunId::new),
                payload: columns.text("payload")?,
                try_count: columns.int32("attempt_count")?,
                created_at: columns.at("created_at_ms")?,
                held_until,
            });
        }
        if taken_items.is_empty() {
            return Ok(taken_items);
        }
        let query = Query::new(&HOLD_OUTBOX).at(held_until).list(taken_items.iter().map(|item| item.id.get()));
        self.execute_all(query, taken_items.len()).await?;
        Ok(taken_items)
    }
}

/// A sealed column of a webhook. The path of a URL is often a secret, too.
#[derive(Clone, Copy, Debug)]
enum SealedColumn {
    Url,
    Secret,
}

impl SealedColumn {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::Secret => "secret",
        }
    }

    /// The context with which a value of a namespace is sealed. A text that was sealed with another context cannot be opened with it.
    fn seal_context(self, namespace: NamespaceId) -> String {
        format!("failure_webhook.{} {namespace}", self.as_str())
    }
}

impl SqlStore {
    /// The namespaces with messages that are due, the longest due first.
    async fn due_namespaces(&self, now: Timestamp, take: TakeOutbox<'_>) -> Result<Vec<i64>> {
        let max = usize::try_from(TAKE_NAMESPACE_MAX).unwrap_or(usize::MAX);
        // No namespace has this id. It is in the list because a list must not be empty.
        let mut excluded_ids = vec![0];
        excluded_ids.extend(take.excluded_namespaces.iter().take(max).map(|namespace| namespace.get()));
        let query = Query::new(&FIND_DUE_NAMESPACES).list(excluded_ids.into_iter()).at(now);
        let rows = self.rows(query.int(take.namespace_max.min(TAKE_NAMESPACE_MAX).into())).await?;
        rows.iter().map(|row| Reader::new(row, "namespace").int("id")).collect()
    }

    fn seal_webhook(&self, column: SealedColumn, namespace: NamespaceId, text: &str) -> Result<String> {
        let seal_failure = |message: String| failure::refused("seal_webhook", &message);
        self.sealer.seal(&column.seal_context(namespace), text).map_err(seal_failure)
    }

    fn webhook(&self, namespace: NamespaceId, row: &AnyRow) -> Result<FailureWebhook> {
        let mut columns = Reader::new(row, "failure_webhook");
        let mut open_column = |column: SealedColumn| {
            let sealed_text = columns.text(column.as_str())?;
            let corrupt_error = |message| StoreError::Corrupt {
                table: "failure_webhook",
                column: column.as_str(),
                id: namespace.get(),
                message,
            };
            self.sealer.open(&column.seal_context(namespace), &sealed_text).map_err(corrupt_error)
        };
        Ok(FailureWebhook {
            url: open_column(SealedColumn::Url)?,
            secret: open_column(SealedColumn::Secret)?,
            created_at: columns.at("created_at_ms")?,
            updated_at: columns.at("updated_at_ms")?,
        })
    }

    /// Seals texts that an older server stored as plain text, or that are sealed with an older key. Fails if a text cannot be opened with
    /// any key.
    pub(super) async fn seal_webhooks(&self) -> std::result::Result<(), OpenError> {
        for row in self.rows(Query::new(&READ_WEBHOOKS)).await.map_err(seal_error)? {
            let mut columns = Reader::new(&row, "failure_webhook");
            let namespace = NamespaceId::new(columns.int("namespace_id").map_err(seal_error)?);
            let url = columns.text("url").map_err(seal_error)?;
            let secret = columns.text("secret").map_err(seal_error)?;
            let sealed_url = self.reseal(SealedColumn::Url, namespace, &url)?;
            let sealed_secret = self.reseal(SealedColumn::Secret, namespace, &secret)?;
            if sealed_url == url && sealed_secret == secret {
                continue;
            }
            let update = Query::new(&SEAL_WEBHOOK).text(&sealed_url).text(&sealed_secret).int(namespace.get());
            self.execute(update.text(&url).text(&secret)).await.map_err(seal_error)?;
        }
        Ok(())
    }

    /// The text that replaces `sealed_text`. The same text, unless it is plain or sealed with an old key.
    fn reseal(
        &self,
        column: SealedColumn,
        namespace: NamespaceId,
        sealed_text: &str,
    ) -> std::result::Result<String, OpenError> {
        let name = column.as_str();
        let plain_text =
            self.sealer.open(&column.seal_context(namespace), sealed_text).map_err(|reason| OpenError::SecretKey {
                message: format!("the {name} of the failure webhook of namespace {namespace} cannot be read: {reason}"),
            })?;
        match self.sealer.is_stale(sealed_text) {
            true => self.seal_webhook(column, namespace, &plain_text).map_err(seal_error),
            false => Ok(sealed_text.to_owned()),
        }
    }
}

fn seal_error(error: StoreError) -> OpenError {
    match error {
        StoreError::Corrupt { message, .. } => OpenError::SecretKey { message },
        StoreError::Unavailable { source, .. } | StoreError::Query { source, .. } => OpenError::Migrate(source),
    }
}

/// The message of a row, and the current time. `None` for a skip that is not reported.
fn run_message(row: &AnyRow) -> Result<Option<(RunMessage, Timestamp)>> {
    let mut columns = Reader::new(row, "run");
    let mut message = RunMessage {
        run: RunId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        namespace_name: columns.text("name")?,
        app_name: String::new(),
        job_name: columns.text("name")?,
        status: columns.word("status")?,
        reason: columns.opt_word("reason")?,
        detail: None,
        attempt: columns.int32("attempt")?,
        trigger: columns.word("trigger_kind")?,
        fire_at: columns.at("fire_at_ms")?,
        started_at: columns.opt_at("started_at_ms")?,
        finished_at: columns.opt_at("finished_at_ms")?,
        executor: columns.opt_text("executor")?,
        message: columns.opt_text("message")?,
        span: None,
    };
    message.detail = columns.opt_text("detail")?.map(|text| Arc::new(ReasonDetail::from_json(&text)));
    let (span_end_at, span_count) = (columns.opt_at("span_end_at_ms")?, columns.int("span_count")?);
    message.span = span_end_at.map(|last_at| (last_at, span_count));
    message.app_name = columns.text("name")?;
    let spec = columns.opt_text("spec")?.unwrap_or_default();
    let is_reported = is_failure(message.status) || message.reason.is_some_and(|reason| reports_skip(&spec, reason));
    let now = columns.at("now")?;
    Ok(is_reported.then_some((message, now)))
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;
