//! Changes by executors' code, in the audit log: written before each is made, and once more when it is known what became
//! of it.

use rondel_core::AuditId;
use rondel_store::StoreError;
use rondel_store::access::{AuditEntry, Means, UNANSWERED, Verdict};
use serde_json::Value;

use super::apply::{App, author};
use crate::engine::Engine;
use rondel_core::error_chain::chain;

/// Writes that a job is about to be changed.
pub(super) async fn begin(engine: &Engine, app: &App, action: &str, job: &str) -> Result<AuditEntry, StoreError> {
    let namespaces = engine.store().namespaces().await?;
    let entry = AuditEntry {
        id: AuditId::new(engine.new_id()),
        at: engine.now(),
        actor: author(app),
        means: Means::Executor,
        token: None,
        address: None,
        request_id: None,
        action: action.to_owned(),
        object: job.to_owned(),
        namespace: namespaces.into_iter().find(|one| one.id == app.namespace).map(|one| one.name),
        verdict: Verdict::Allowed,
        before: None,
        after: Some(UNANSWERED.to_owned()),
    };
    engine.store().add_audit(&entry).await?;
    Ok(entry)
}

/// Writes what became of it; `after` is `None` where nothing was changed.
pub(super) async fn end(engine: &Engine, entry: AuditEntry, after: Option<Value>) {
    let verdict = if after.is_some() { Verdict::Allowed } else { Verdict::Failed };
    let entry = AuditEntry { verdict, after: after.map(|after| after.to_string()), ..entry };
    if let Err(error) = engine.store().answer_audit(&entry).await {
        let (action, object) = (entry.action, entry.object);
        tracing::error!(action, object, error = %chain(&error), "cannot write into the audit log what became of a change");
    }
}
