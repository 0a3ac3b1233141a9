//! Reads what the database counts about its own work, for measurements.

use std::collections::BTreeMap;

use super::dialect::Dialect;
use super::query::{Query, Reader, Statement};
use super::{SqlStore, transact};
use crate::counters::{DatabaseCounts, RowCounts, TableCounts, TableSize, TableSizes, status_counts};
use crate::{Result, StoreError};

/// The tables that change when runs are stored.
macro_rules! main_tables {
    () => {
        "('job_due', 'open_run', 'run', 'run_attempt', 'unsuccessful_run')"
    };
}

/// A session of PostgreSQL reports its counts at most once per second, and after 10 s without a statement. PostgreSQL 14 and earlier do not
/// have this function.
const REPORT_COUNTS: Statement =
    Statement { name: "report_counts", text: "SELECT CAST(COUNT(*) AS BIGINT) FROM pg_stat_force_next_flush()" };
const READ_LOG_POSITION: Statement = Statement {
    name: "read_log_position",
    text: "SELECT CAST(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') AS BIGINT)",
};
const READ_LOG_COUNTS: Statement =
    Statement { name: "read_log_counts", text: "SELECT wal_records, wal_fpi FROM pg_stat_wal" };
/// Returns no rows without `track_counts`, because all counts would then be 0.
const READ_TABLE_COUNTS: Statement = Statement {
    name: "read_table_counts",
    text: "SELECT CAST(relname AS TEXT), n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, n_dead_tup \
           FROM pg_stat_user_tables WHERE schemaname = current_schema() AND current_setting('track_counts') = 'on'",
};
const READ_STATUS: Statement = Statement {
    name: "read_status",
    text: "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_redo_log_current_lsn', 'Innodb_lsn_current', \
           'Innodb_os_log_written', 'Innodb_rows_inserted', 'Innodb_rows_updated', 'Innodb_rows_deleted', \
           'Handler_write', 'Handler_update', 'Handler_delete')",
};
/// The rows that this session has written.
const READ_CHANGES: Statement = Statement { name: "read_changes", text: "SELECT CAST(total_changes() AS BIGINT)" };

const READ_POSTGRES_SIZES: Statement = Statement {
    name: "read_sizes",
    text: concat!(
        "SELECT CAST(relname AS TEXT), pg_table_size(relid), pg_indexes_size(relid) FROM pg_stat_user_tables \
         WHERE schemaname = current_schema() AND relname IN ",
        main_tables!()
    ),
};
/// MySQL and MariaDB know the sizes as of the last analysis.
const ANALYZE_TABLES: Statement = Statement {
    name: "analyze_tables",
    text: "ANALYZE NO_WRITE_TO_BINLOG TABLE job_due, open_run, run, run_attempt, unsuccessful_run",
};
const READ_MYSQL_SIZES: Statement = Statement {
    name: "read_sizes",
    text: concat!(
        "SELECT CAST(table_name AS CHAR), CAST(data_length AS SIGNED), CAST(index_length AS SIGNED) \
         FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ",
        main_tables!()
    ),
};
/// Reads every page of these tables and their indexes.
const READ_SQLITE_SIZES: Statement = Statement {
    name: "read_sizes",
    text: concat!(
        "SELECT tree.tbl_name, CAST(SUM(CASE WHEN tree.type = 'table' THEN pages.pgsize ELSE 0 END) AS BIGINT), \
         CAST(SUM(CASE WHEN tree.type = 'index' THEN pages.pgsize ELSE 0 END) AS BIGINT) \
         FROM sqlite_schema tree CROSS JOIN dbstat pages ON pages.name = tree.name AND pages.aggregate = TRUE \
         WHERE tree.tbl_name IN ",
        main_tables!(),
        " GROUP BY tree.tbl_name"
    ),
};

impl SqlStore {
    /// The database's counts of its own work so far. A note replaces each count that cannot be read.
    pub async fn database_counts(&self) -> DatabaseCounts {
        match self.statements.dialect() {
            Dialect::Sqlite => self.sqlite_counts().await,
            Dialect::Postgres => self.postgres_counts().await,
            Dialect::MySql => self.mysql_counts().await,
        }
    }

    /// The sizes of the main tables. A note replaces everything that cannot be read. On SQLite this reads all pages of these tables.
    pub async fn table_sizes(&self) -> TableSizes {
        let mut notes = Vec::new();
        let tables = value_or_note(self.read_sizes().await, "the sizes of tables", &mut notes).unwrap_or_default();
        TableSizes { tables, notes }
    }

    async fn sqlite_counts(&self) -> DatabaseCounts {
        let mut notes = Vec::new();
        let changed = value_or_note(self.read_changes().await, "the number of changed rows", &mut notes).flatten();
        DatabaseCounts { rows: RowCounts { changed, ..RowCounts::default() }, notes, ..DatabaseCounts::default() }
    }

    async fn postgres_counts(&self) -> DatabaseCounts {
        self.report_counts().await;
        let mut notes = Vec::new();
        let log_bytes = value_or_note(self.read_log_position().await, "the bytes of the log", &mut notes).flatten();
        let log_counts = value_or_note(self.read_log_counts().await, "the records of the log", &mut notes).flatten();
        let tables = value_or_note(self.read_table_counts().await, "the rows of tables", &mut notes);
        if tables.as_ref().is_some_and(BTreeMap::is_empty) {
            notes.push("PostgreSQL does not count rows: see its setting track_counts".to_owned());
        }
        if self.sessions.are_shared {
            notes.push("behind a pooler, PostgreSQL may count rows 10 s late".to_owned());
        }
        let tables = tables.unwrap_or_default();
        DatabaseCounts {
            log_bytes,
            log_records: log_counts.map(|(records, _)| records),
            log_page_images: log_counts.map(|(_, page_images)| page_images),
            rows: RowCounts::sum(&tables),
            tables,
            notes,
        }
    }

    async fn mysql_counts(&self) -> DatabaseCounts {
        let mut notes = Vec::new();
        let values = value_or_note(self.read_status().await, "the status variables", &mut notes).unwrap_or_default();
        DatabaseCounts { notes, ..status_counts(&values) }
    }

    /// Makes the idle sessions report their counts.
    async fn report_counts(&self) {
        let pools = self.pools.current_pools();
        // All of them are taken before the first one is returned, so that each one reports.
        let mut sessions: Vec<_> = std::iter::from_fn(|| pools.write.try_acquire()).collect();
        for session in &mut sessions {
            let work = self.driver_query(Query::new(&REPORT_COUNTS)).fetch_all(&mut **session);
            if let Err(error) = self.pools.answer(&pools, work).await {
                tracing::debug!(%error, "a session does not report its counts");
            }
        }
    }

    async fn read_log_position(&self) -> Result<Option<u64>> {
        let Some(row) = self.row(Query::new(&READ_LOG_POSITION)).await? else { return Ok(None) };
        read_count(&mut Reader::new(&row, "pg_wal"), "position").map(Some)
    }

    /// The records of the log, and how many of them contain a whole page.
    async fn read_log_counts(&self) -> Result<Option<(u64, u64)>> {
        let Some(row) = self.row(Query::new(&READ_LOG_COUNTS)).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "pg_stat_wal");
        Ok(Some((read_count(&mut columns, "wal_records")?, read_count(&mut columns, "wal_fpi")?)))
    }

    async fn read_table_counts(&self) -> Result<BTreeMap<String, TableCounts>> {
        let mut tables = BTreeMap::new();
        for row in self.rows(Query::new(&READ_TABLE_COUNTS)).await? {
            let mut columns = Reader::new(&row, "pg_stat_user_tables");
            let name = columns.text("relname")?;
            let (inserted, updated) = (read_count(&mut columns, "n_tup_ins")?, read_count(&mut columns, "n_tup_upd")?);
            let hot_updated = Some(read_count(&mut columns, "n_tup_hot_upd")?);
            let deleted = read_count(&mut columns, "n_tup_del")?;
            let rows = RowCounts { hot_updated, ..RowCounts::new(Some(inserted), Some(updated), Some(deleted)) };
            let dead = Some(read_count(&mut columns, "n_dead_tup")?);
            tables.insert(name, TableCounts { rows, dead });
        }
        Ok(tables)
    }

    async fn read_status(&self) -> Result<BTreeMap<String, u64>> {
        let mut values = BTreeMap::new();
        for row in self.rows(Query::new(&READ_STATUS)).await? {
            let mut columns = Reader::new(&row, "status");
            let (name, value) = (columns.text("variable_name")?, columns.text("value")?);
            if let Ok(value) = value.parse() {
                values.insert(name.to_lowercase(), value);
            }
        }
        Ok(values)
    }

    /// The number of rows changed so far by SQLite's only session that writes.
    async fn read_changes(&self) -> Result<Option<u64>> {
        let row = transact!(self, "read_changes", |tx| tx.row(Query::new(&READ_CHANGES)).await)?;
        let Some(row) = row else { return Ok(None) };
        read_count(&mut Reader::new(&row, "changes"), "total_changes").map(Some)
    }

    async fn read_sizes(&self) -> Result<BTreeMap<String, TableSize>> {
        let statement = match self.statements.dialect() {
            Dialect::Sqlite => &READ_SQLITE_SIZES,
            Dialect::Postgres => &READ_POSTGRES_SIZES,
            Dialect::MySql => {
                self.rows(Query::new(&ANALYZE_TABLES)).await?;
                &READ_MYSQL_SIZES
            }
        };
        let mut tables = BTreeMap::new();
        for row in self.rows(Query::new(statement)).await? {
            let mut columns = Reader::new(&row, "sizes");
            let name = columns.text("name")?;
            let table_bytes = read_count(&mut columns, "table_bytes")?;
            tables.insert(name, TableSize { table_bytes, index_bytes: read_count(&mut columns, "index_bytes")? });
        }
        Ok(tables)
    }
}

fn read_count(columns: &mut Reader<'_>, column: &'static str) -> Result<u64> {
    Ok(u64::try_from(columns.int(column)?).unwrap_or_default())
}

/// The value; if it could not be read, `None`, and a note with the reason is added.
fn value_or_note<T>(result: Result<T>, what: &str, notes: &mut Vec<String>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            notes.push(format!("{what} cannot be read: {}", reason(&error)));
            None
        }
    }
}

/// The message of the database, such as a missing right of the user.
fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { source: sqlx::Error::Database(database), .. }
        | StoreError::Query { source: sqlx::Error::Database(database), .. } => database.message().to_owned(),
        StoreError::Unavailable { source, .. } | StoreError::Query { source, .. } => source.to_string(),
        StoreError::Corrupt { .. } => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_what_is_missing_and_why() {
        let mut notes = Vec::new();
        assert_eq!(value_or_note(Ok(4), "the rows", &mut notes), Some(4));
        assert!(notes.is_empty());
        let error = StoreError::Corrupt { table: "status", column: "value", id: 0, message: "no text".to_owned() };
        assert_eq!(value_or_note::<u64>(Err(error), "the rows", &mut notes), None);
        assert_eq!(notes, ["the rows cannot be read: row 0 of table status has an unreadable value: no text"]);
        assert_eq!(value_or_note::<u64>(Err(StoreError::no_answer("read")), "the log", &mut notes), None);
        assert!(notes[1].starts_with("the log cannot be read: "), "{notes:?}");
    }
}
