//! Namespaces, made and removed.

use rondel_core::{NamespaceId, Timestamp};

use super::query::{Query, Statement};
use super::{SqlStore, transact};
use crate::Result;
use crate::catalog::{Namespace, NamespaceDeleted};

const INSERT_NAMESPACE: Statement = Statement {
    name: "insert_namespace",
    text: "INSERT {ignore} INTO namespace (id, name, created_at_ms) VALUES (?, ?, ?) {or_ignore}",
};
pub(super) const LOCK_NAMESPACE: Statement =
    Statement { name: "lock_namespace", text: "SELECT id FROM namespace WHERE id = ? {for_update}" };
const FIND_JOB_OF: Statement =
    Statement { name: "find_job_of", text: "SELECT id FROM job WHERE namespace_id = ? LIMIT 1" };
const FIND_CALENDAR_OF: Statement =
    Statement { name: "find_calendar_of", text: "SELECT id FROM calendar WHERE namespace_id = ? LIMIT 1" };
const DELETE_APPS_OF: Statement = Statement { name: "delete_apps_of", text: "DELETE FROM app WHERE namespace_id = ?" };
const DELETE_WEBHOOKS_OF: Statement =
    Statement { name: "delete_webhooks_of", text: "DELETE FROM failure_webhook WHERE namespace_id = ?" };
const DELETE_OUTBOX_OF: Statement =
    Statement { name: "delete_outbox_of", text: "DELETE FROM outbox WHERE namespace_id = ?" };
const DELETE_GRANTS_AT: Statement =
    Statement { name: "delete_grants_at", text: "DELETE FROM role_grant WHERE namespace_id = ?" };
const DELETE_NAMESPACE: Statement = Statement { name: "delete_namespace", text: "DELETE FROM namespace WHERE id = ?" };

impl SqlStore {
    pub(super) async fn insert_namespace(&self, namespace: &Namespace, now: Timestamp) -> Result<bool> {
        let insert = Query::new(&INSERT_NAMESPACE).int(namespace.id.get()).text(&namespace.name).at(now);
        Ok(self.execute(insert).await? == 1)
    }

    pub(super) async fn remove_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted> {
        transact!(self, "delete_namespace", |tx| {
            if tx.row(Query::new(&LOCK_NAMESPACE).int(id.get())).await?.is_none() {
                return Ok(NamespaceDeleted::NotFound);
            }
            for statement in [&FIND_JOB_OF, &FIND_CALENDAR_OF] {
                if tx.row(Query::new(statement).int(id.get())).await?.is_some() {
                    return Ok(NamespaceDeleted::Used);
                }
            }
            let of_it = [&DELETE_APPS_OF, &DELETE_WEBHOOKS_OF, &DELETE_OUTBOX_OF, &DELETE_GRANTS_AT, &DELETE_NAMESPACE];
            for statement in of_it {
                tx.execute(Query::new(statement).int(id.get())).await?;
            }
            Ok(NamespaceDeleted::Done)
        })
    }
}
