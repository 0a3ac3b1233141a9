//! The trait `Namespaces` in SQL.

use async_trait::async_trait;
use rondel_core::{AppId, ChannelId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use crate::catalog::{App, Namespace, NamespaceDeleted};
use crate::sql::query::{Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, transact};
use crate::{Namespaces, Result};

const READ_NAMESPACE: Statement =
    Statement { name: "read_namespace", text: "SELECT id, name FROM namespace WHERE name = ?" };
const READ_NAMESPACES: Statement =
    Statement { name: "read_namespaces", text: "SELECT id, name FROM namespace ORDER BY name" };
const READ_APP: Statement =
    Statement { name: "read_app", text: "SELECT id, namespace_id, name FROM app WHERE namespace_id = ? AND name = ?" };
const READ_APPS: Statement = Statement {
    name: "read_apps",
    text: "SELECT id, namespace_id, name FROM app WHERE namespace_id = ? ORDER BY name",
};
const INSERT_APP: Statement = Statement {
    name: "insert_app",
    text: "INSERT {ignore} INTO app (id, namespace_id, name, created_at_ms) VALUES (?, ?, ?, ?) {or_ignore}",
};
const INSERT_NAMESPACE: Statement = Statement {
    name: "insert_namespace",
    text: "INSERT {ignore} INTO namespace (id, name, created_at_ms) VALUES (?, ?, ?) {or_ignore}",
};
pub(in crate::sql) const LOCK_NAMESPACE: Statement =
    Statement { name: "lock_namespace", text: "SELECT id FROM namespace WHERE id = ? {for_update}" };
const FIND_JOB_OF_NAMESPACE: Statement =
    Statement { name: "find_job_of", text: "SELECT id FROM job WHERE namespace_id = ? LIMIT 1" };
const FIND_CALENDAR_OF_NAMESPACE: Statement =
    Statement { name: "find_calendar_of", text: "SELECT id FROM calendar WHERE namespace_id = ? LIMIT 1" };
const FIND_SCRIPT_OF_NAMESPACE: Statement =
    Statement { name: "find_script_of", text: "SELECT id FROM script WHERE namespace_id = ? LIMIT 1" };
const DELETE_APPS_OF_NAMESPACE: Statement =
    Statement { name: "delete_apps_of", text: "DELETE FROM app WHERE namespace_id = ?" };
const DELETE_WEBHOOKS_OF_NAMESPACE: Statement =
    Statement { name: "delete_webhooks_of", text: "DELETE FROM failure_webhook WHERE namespace_id = ?" };
const DELETE_OUTBOX_OF_NAMESPACE: Statement =
    Statement { name: "delete_outbox_of", text: "DELETE FROM outbox WHERE namespace_id = ?" };
const FIND_CHANNELS_OF_NAMESPACE: Statement =
    Statement { name: "find_channels_of", text: "SELECT id FROM alert_channel WHERE namespace_id = ?" };
const DELETE_CHANNELS_OF_NAMESPACE: Statement =
    Statement { name: "delete_channels_of", text: "DELETE FROM alert_channel WHERE namespace_id = ?" };
const DELETE_RULES_OF_NAMESPACE: Statement =
    Statement { name: "delete_alert_rules_of", text: "DELETE FROM alert_rule WHERE namespace_id = ?" };
const DELETE_INCIDENTS_OF_NAMESPACE: Statement =
    Statement { name: "delete_incidents_of", text: "DELETE FROM incident WHERE namespace_id = ?" };
const DELETE_SILENCES_OF_NAMESPACE: Statement =
    Statement { name: "delete_silences_of", text: "DELETE FROM silence WHERE namespace_id = ?" };
const DELETE_MAINTENANCE_OF_NAMESPACE: Statement =
    Statement { name: "delete_maintenance_of", text: "DELETE FROM maintenance WHERE namespace_id = ?" };
const DELETE_EVENTS_OF_NAMESPACE: Statement =
    Statement { name: "delete_alert_events_of", text: "DELETE FROM alert_event WHERE namespace_id = ?" };
const DELETE_REPORT_OF_NAMESPACE: Statement =
    Statement { name: "delete_report_schedule_of", text: "DELETE FROM report_schedule WHERE namespace_id = ?" };
const DELETE_SPACE_OF_NAMESPACE: Statement =
    Statement { name: "delete_alert_space_of", text: "DELETE FROM alert_space WHERE namespace_id = ?" };
const DELETE_DEAD_LETTERS_OF_NAMESPACE: Statement =
    Statement { name: "delete_dead_letters_of", text: "DELETE FROM dead_letter WHERE namespace_id = ?" };
const DELETE_XXL_EXECUTORS_OF_NAMESPACE: Statement =
    Statement { name: "delete_xxl_executors_of", text: "DELETE FROM xxl_executor WHERE namespace_id = ?" };
const DELETE_GRANTS_IN_NAMESPACE: Statement =
    Statement { name: "delete_grants_at", text: "DELETE FROM role_grant WHERE namespace_id = ?" };
const DELETE_NAMESPACE: Statement = Statement { name: "delete_namespace", text: "DELETE FROM namespace WHERE id = ?" };

#[async_trait]
impl Namespaces for SqlStore {
    async fn namespace(&self, name: &str) -> Result<Option<Namespace>> {
        self.row(Query::new(&READ_NAMESPACE).text(name)).await?.as_ref().map(namespace).transpose()
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.rows(Query::new(&READ_NAMESPACES)).await?.iter().map(namespace).collect()
    }

    async fn create_namespace(&self, namespace: &Namespace, now: Timestamp) -> Result<bool> {
        let insert = Query::new(&INSERT_NAMESPACE).int(namespace.id.get()).text(&namespace.name).at(now);
        Ok(self.execute(insert).await? == 1)
    }

    async fn delete_namespace(&self, id: NamespaceId) -> Result<NamespaceDeleted> {
        let (deleted, channels) = transact!(self, "delete_namespace", |tx| {
            if tx.row(Query::new(&LOCK_NAMESPACE).int(id.get())).await?.is_none() {
                return Ok((NamespaceDeleted::NotFound, Vec::new()));
            }
            for statement in [&FIND_JOB_OF_NAMESPACE, &FIND_CALENDAR_OF_NAMESPACE, &FIND_SCRIPT_OF_NAMESPACE] {
                if tx.row(Query::new(statement).int(id.get())).await?.is_some() {
                    return Ok((NamespaceDeleted::Used, Vec::new()));
                }
            }
            let channel_rows = tx.rows(Query::new(&FIND_CHANNELS_OF_NAMESPACE).int(id.get())).await?;
            let channels: Vec<ChannelId> =
                read_ids(&channel_rows, "alert_channel", "id")?.into_iter().map(ChannelId::new).collect();
            let statements = [
                &DELETE_APPS_OF_NAMESPACE,
                &DELETE_WEBHOOKS_OF_NAMESPACE,
                &DELETE_OUTBOX_OF_NAMESPACE,
                &DELETE_CHANNELS_OF_NAMESPACE,
                &DELETE_RULES_OF_NAMESPACE,
                &DELETE_INCIDENTS_OF_NAMESPACE,
                &DELETE_SILENCES_OF_NAMESPACE,
                &DELETE_MAINTENANCE_OF_NAMESPACE,
                &DELETE_EVENTS_OF_NAMESPACE,
                &DELETE_REPORT_OF_NAMESPACE,
                &DELETE_SPACE_OF_NAMESPACE,
                &DELETE_DEAD_LETTERS_OF_NAMESPACE,
                &DELETE_XXL_EXECUTORS_OF_NAMESPACE,
                &DELETE_GRANTS_IN_NAMESPACE,
                &DELETE_NAMESPACE,
            ];
            for statement in statements {
                tx.execute(Query::new(statement).int(id.get())).await?;
            }
            Ok((NamespaceDeleted::Done, channels))
        })?;
        self.remove_messages_of(&channels).await;
        Ok(deleted)
    }

    async fn app(&self, namespace: NamespaceId, name: &str) -> Result<Option<App>> {
        self.row(Query::new(&READ_APP).int(namespace.get()).text(name)).await?.as_ref().map(app).transpose()
    }

    async fn apps(&self, namespace: NamespaceId) -> Result<Vec<App>> {
        self.rows(Query::new(&READ_APPS).int(namespace.get())).await?.iter().map(app).collect()
    }

    async fn ensure_app(&self, id: AppId, namespace: NamespaceId, name: &str, now: Timestamp) -> Result<App> {
        if let Some(app) = self.app(namespace, name).await? {
            return Ok(app);
        }
        transact!(self, "ensure_app", |tx| {
            tx.execute(Query::new(&INSERT_APP).int(id.get()).int(namespace.get()).text(name).at(now)).await?;
            match tx.row(Query::new(&READ_APP).int(namespace.get()).text(name)).await? {
                Some(row) => app(&row),
                None => Err(crate::sql::failure::refused("ensure_app", "the app does not exist and cannot be created")),
            }
        })
    }
}

fn namespace(row: &AnyRow) -> Result<Namespace> {
    let mut columns = Reader::new(row, "namespace");
    Ok(Namespace { id: NamespaceId::new(columns.int("id")?), name: columns.text("name")? })
}

fn app(row: &AnyRow) -> Result<App> {
    let mut columns = Reader::new(row, "app");
    Ok(App {
        id: AppId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        name: columns.text("name")?,
    })
}
