//! Changes by executors' code, in the audit log: written before each is made, and once more when it is known what became
//! of it.

use rondel_core::{AppId, AuditId, NamespaceId};
use rondel_store::StoreError;
use rondel_store::access::{AuditEntry, Means, UNANSWERED, Verdict};
use serde_json::Value;

use crate::node::Node;
use rondel_core::error_chain::chain;

/// The app whose declared jobs are being applied.
#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) id: AppId,
    pub(super) namespace: NamespaceId,
    pub(super) name: String,
}

/// Who a version that code made is by.
pub(super) fn author(app: &App) -> String {
    format!("code: {}", app.name)
}

/// Writes that a job is about to be changed.
pub(super) async fn begin(node: &Node, app: &App, action: &str, job: &str) -> Result<AuditEntry, StoreError> {
    let namespaces = node.store().namespaces().await?;
    let entry = AuditEntry {
        id: AuditId::new(node.new_id()),
        at: node.now(),
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
    node.store().add_audit(&entry).await?;
    Ok(entry)
}

/// Writes what became of it; `after` is `None` where nothing was changed.
pub(super) async fn end(node: &Node, entry: AuditEntry, after: Option<Value>) {
    let verdict = if after.is_some() { Verdict::Allowed } else { Verdict::Failed };
    let entry = AuditEntry { verdict, after: after.map(|after| after.to_string()), ..entry };
    if let Err(error) = node.store().answer_audit(&entry).await {
        let (action, object) = (entry.action, entry.object);
        tracing::error!(action, object, error = %chain(&error), "cannot write into the audit log what became of a change");
    }
}
