//! Audit entries for changes by executors' code: each is written before the change, and completed when the result of the change is known.

use rondel_core::{AppId, AuditId, NamespaceId};
use rondel_store::StoreError;
use rondel_store::access::{AuditEntry, AuthMethod, INCOMPLETE, Verdict};
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

/// The author of versions that this app's code creates.
pub(super) fn author(app: &App) -> String {
    format!("code: {}", app.name)
}

/// Writes an audit entry for a job that is about to be changed.
pub(super) async fn begin(node: &Node, app: &App, action: &str, job: &str) -> Result<AuditEntry, StoreError> {
    let namespaces = node.store().namespaces().await?;
    let entry = AuditEntry {
        id: AuditId::new(node.new_id()),
        at: node.now(),
        actor: author(app),
        auth_method: AuthMethod::Executor,
        token: None,
        address: None,
        request_id: None,
        action: action.to_owned(),
        object: job.to_owned(),
        namespace: namespaces
            .into_iter()
            .find(|namespace| namespace.id == app.namespace)
            .map(|namespace| namespace.name),
        verdict: Verdict::Allowed,
        before: None,
        after: Some(INCOMPLETE.to_owned()),
    };
    node.store().add_audit(&entry).await?;
    Ok(entry)
}

/// Completes the entry with the result; `new_values` is `None` if the change failed.
pub(super) async fn end(node: &Node, entry: AuditEntry, new_values: Option<Value>) {
    let verdict = if new_values.is_some() { Verdict::Allowed } else { Verdict::Failed };
    let entry = AuditEntry { verdict, after: new_values.map(|after| after.to_string()), ..entry };
    if let Err(error) = node.store().complete_audit(&entry).await {
        let (action, object) = (entry.action, entry.object);
        tracing::error!(action, object, error = %chain(&error), "cannot record the result of a change in the audit log");
    }
}
