//! Audit entries for housekeeping: one for each pass that removed rows.

use rondel_core::AuditId;
use rondel_store::StoreError;
use rondel_store::access::{AuditEntry, AuthMethod, Verdict};
use serde_json::{Value, json};

use crate::node::Shared;

/// Writes an entry for the removal of `removed_count` rows; `extent` describes which rows.
pub(super) async fn write(
    shared: &Shared,
    action: &str,
    namespace: Option<&str>,
    extent: &Value,
    removed_count: u64,
) -> Result<(), StoreError> {
    let now = shared.clock.now();
    let entry = AuditEntry {
        id: AuditId::new(shared.membership.latest_lease().ids.next(now)),
        at: now,
        actor: shared.config.node_name.clone(),
        auth_method: AuthMethod::System,
        token: None,
        address: None,
        request_id: None,
        action: action.to_owned(),
        object: "retention".to_owned(),
        namespace: namespace.map(str::to_owned),
        verdict: Verdict::Allowed,
        before: Some(extent.to_string()),
        after: Some(json!({"removed": removed_count}).to_string()),
    };
    shared.store.add_audit(&entry).await
}
