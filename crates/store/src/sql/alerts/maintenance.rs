//! The rows of maintenance windows.

use rondel_core::maintenance::MaintenanceWindow;
use rondel_core::{AppId, MaintenanceId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use crate::Result;
use crate::alerts::{MAINTENANCE_COUNT_MAX, MAINTENANCE_TOTAL_MAX, MaintenanceRecord};
use crate::settle::clean_name;
use crate::sql::query::{Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, Tx};

macro_rules! select_maintenance {
    ($rest:literal) => {
        concat!(
            "SELECT maintenance.id, maintenance.namespace_id, maintenance.app_id, maintenance.starts_at_ms, \
             maintenance.ends_at_ms, maintenance.fires, maintenance.reason, maintenance.author, maintenance.created_at_ms, \
             app.name FROM maintenance LEFT JOIN app ON app.id = maintenance.app_id ",
            $rest
        )
    };
}

/// Windows with the latest end come first, so that the limit can leave out only windows that have ended.
pub(in crate::sql) const LIST_WINDOWS: Statement = Statement {
    name: "list_maintenance",
    text: select_maintenance!(
        "WHERE maintenance.ends_at_ms > ? ORDER BY maintenance.ends_at_ms DESC, maintenance.id LIMIT 11000"
    ),
};
pub(in crate::sql) const LIST_WINDOWS_OF_NAMESPACE: Statement = Statement {
    name: "list_maintenance_of",
    text: select_maintenance!(
        "WHERE maintenance.namespace_id = ? AND maintenance.ends_at_ms > ? \
         ORDER BY maintenance.ends_at_ms DESC, maintenance.id LIMIT 1000"
    ),
};
pub(in crate::sql) const COUNT_OPEN_WINDOWS: Statement = Statement {
    name: "count_maintenance",
    text: "SELECT CAST(COUNT(*) AS {bigint}) AS total FROM maintenance WHERE ends_at_ms > ?",
};
const FIND_WINDOW: Statement = Statement {
    name: "find_maintenance",
    text: "SELECT ends_at_ms FROM maintenance WHERE id = ? AND namespace_id = ?",
};
const INSERT_WINDOW: Statement = Statement {
    name: "insert_maintenance",
    text: "INSERT INTO maintenance (id, namespace_id, app_id, starts_at_ms, ends_at_ms, fires, reason, author, created_at_ms) \
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
};
/// A window that has not begun becomes empty.
const END_WINDOW: Statement = Statement {
    name: "end_maintenance",
    text: "UPDATE maintenance SET starts_at_ms = CASE WHEN starts_at_ms > ? THEN ? ELSE starts_at_ms END, ends_at_ms = ? \
           WHERE id = ? AND namespace_id = ? AND ends_at_ms > ?",
};
/// Makes incidents due now whose messages a window held back: they were to be due at the planned end of that window.
pub(in crate::sql) const RELEASE_MESSAGES: Statement = Statement {
    name: "release_messages",
    text: "UPDATE incident SET act_at_ms = ? WHERE namespace_id = ? AND act_at_ms = ?",
};
pub(in crate::sql) const FIND_OLD_WINDOWS: Statement = Statement {
    name: "find_old_maintenance",
    text: "SELECT id FROM maintenance WHERE ends_at_ms < ? ORDER BY ends_at_ms LIMIT ?",
};
pub(super) const DELETE_OLD_WINDOWS: Statement =
    Statement { name: "delete_maintenance", text: "DELETE FROM maintenance WHERE id {in_list}" };

impl SqlStore {
    pub(super) async fn read_maintenance(
        &self,
        namespace: Option<NamespaceId>,
        after: Timestamp,
    ) -> Result<Vec<MaintenanceRecord>> {
        let query = match namespace {
            Some(namespace) => Query::new(&LIST_WINDOWS_OF_NAMESPACE).int(namespace.get()),
            None => Query::new(&LIST_WINDOWS),
        };
        let mut windows = self.rows(query.at(after)).await?.iter().map(record).collect::<Result<Vec<_>>>()?;
        windows.sort_by_key(|record| (record.window.ends_at, record.window.id));
        Ok(windows)
    }
}

impl Tx<'_> {
    pub(super) async fn insert_maintenance(&mut self, record: &MaintenanceRecord) -> Result<bool> {
        let window = &record.window;
        self.raise_alert_version(window.namespace).await?;
        let query = Query::new(&LIST_WINDOWS_OF_NAMESPACE).int(window.namespace.get()).at(record.created_at);
        let open_ids = read_ids(&self.rows(query).await?, "maintenance", "id")?;
        if open_ids.contains(&window.id.get()) {
            // An earlier try stored the window, but the answer was lost.
            return Ok(true);
        }
        if open_ids.len() >= usize::try_from(MAINTENANCE_COUNT_MAX).unwrap_or(0) {
            return Ok(false);
        }
        let total_row = self.row(Query::new(&COUNT_OPEN_WINDOWS).at(record.created_at)).await?;
        let window_count = total_row.map_or(Ok(0), |row| Reader::new(&row, "maintenance").int("total"))?;
        if window_count >= i64::from(MAINTENANCE_TOTAL_MAX) {
            return Ok(false);
        }
        let insert = Query::new(&INSERT_WINDOW)
            .int(window.id.get())
            .int(window.namespace.get())
            .opt_int(window.app.map(AppId::get))
            .at(window.starts_at)
            .at(window.ends_at)
            .text(window.fires.as_str())
            .text(&record.reason.replace('\0', ""))
            .text(&clean_name(&record.author))
            .at(record.created_at);
        self.execute_all(insert, 1).await?;
        Ok(true)
    }

    pub(super) async fn close_maintenance(
        &mut self,
        namespace: NamespaceId,
        id: MaintenanceId,
        now: Timestamp,
    ) -> Result<bool> {
        self.raise_alert_version(namespace).await?;
        let window_row = self.row(Query::new(&FIND_WINDOW).int(id.get()).int(namespace.get())).await?;
        let Some(window_row) = window_row else { return Ok(false) };
        let ends_at = Reader::new(&window_row, "maintenance").at("ends_at_ms")?;
        let end = Query::new(&END_WINDOW).at(now).at(now).at(now).int(id.get()).int(namespace.get()).at(now);
        if self.execute(end).await? > 0 {
            self.execute(Query::new(&RELEASE_MESSAGES).at(now).int(namespace.get()).at(ends_at)).await?;
        }
        Ok(true)
    }
}

fn record(row: &AnyRow) -> Result<MaintenanceRecord> {
    let mut columns = Reader::new(row, "maintenance");
    let window = MaintenanceWindow {
        id: MaintenanceId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        app: columns.opt_int("app_id")?.map(AppId::new),
        starts_at: columns.at("starts_at_ms")?,
        ends_at: columns.at("ends_at_ms")?,
        fires: columns.word("fires")?,
    };
    let (reason, author) = (columns.text("reason")?, columns.text("author")?);
    let created_at = columns.at("created_at_ms")?;
    Ok(MaintenanceRecord { window, app_name: columns.opt_text("name")?, reason, author, created_at })
}
