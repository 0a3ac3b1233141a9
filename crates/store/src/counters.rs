//! What a database counts about its own work, for measurements: the bytes of its log, the rows of its tables, and their sizes.
//!
//! The databases have different counts. A count that a database does not have is `None`.

use std::collections::BTreeMap;

/// The counts of a database up to an instant. All of them only rise, except [`TableCounts::dead`], until the database starts again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseCounts {
    /// Bytes of PostgreSQL's WAL or of the redo log of MySQL and MariaDB. The log belongs to the whole database server.
    pub log_bytes: Option<u64>,
    /// Records of PostgreSQL's WAL.
    pub log_records: Option<u64>,
    /// Records of PostgreSQL's WAL that contain a whole page, because it changed for the first time after a checkpoint.
    pub log_page_images: Option<u64>,
    /// Rows of all tables. MySQL and MariaDB count those of the whole database server.
    pub rows: RowCounts,
    /// Each table by its name. Only PostgreSQL counts by table.
    pub tables: BTreeMap<String, TableCounts>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// How many rows were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that were inserted, updated or deleted.
    pub changed: Option<u64>,
    pub inserted: Option<u64>,
    pub updated: Option<u64>,
    /// Updates for which PostgreSQL inserted nothing into the indexes (HOT updates).
    pub hot_updated: Option<u64>,
    pub deleted: Option<u64>,
}

/// What PostgreSQL counts for one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    pub rows: RowCounts,
    /// Old versions of rows that were not removed yet, as PostgreSQL estimates them.
    pub dead: Option<u64>,
}

/// The sizes of the main tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSizes {
    /// Each table by its name.
    pub tables: BTreeMap<String, TableSize>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// The size of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableSize {
    /// The table without its indexes. On MySQL, MariaDB and SQLite this is the B-tree of the primary key.
    pub table_bytes: u64,
    /// All other indexes.
    pub index_bytes: u64,
}

impl RowCounts {
    /// The counts of inserted, updated and deleted rows, with their sum.
    pub(crate) fn new(inserted: Option<u64>, updated: Option<u64>, deleted: Option<u64>) -> Self {
        let changed = add(add(inserted, updated), deleted);
        Self { changed, inserted, updated, hot_updated: None, deleted }
    }

    /// The sum over these tables; every count is `None` if there are no tables.
    pub(crate) fn sum(tables: &BTreeMap<String, TableCounts>) -> Self {
        let sum = |a: Self, b: Self| Self {
            changed: add(a.changed, b.changed),
            inserted: add(a.inserted, b.inserted),
            updated: add(a.updated, b.updated),
            hot_updated: add(a.hot_updated, b.hot_updated),
            deleted: add(a.deleted, b.deleted),
        };
        tables.values().map(|table| table.rows).reduce(sum).unwrap_or_default()
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    Some(a?.saturating_add(b?))
}

/// The counts in the status variables of MySQL or MariaDB, by name in lower case.
///
/// The position in the redo log counts each byte once, however often it is written. Older servers count only the bytes that were written.
/// MariaDB no longer counts the rows of `InnoDB`, but those of all storage engines. These counts leave out temporary tables in MariaDB, and
/// include them in MySQL.
pub(crate) fn status_counts(values: &BTreeMap<String, u64>) -> DatabaseCounts {
    let first_of = |names: &[&str]| names.iter().find_map(|name| values.get(*name).copied());
    let rows = RowCounts::new(
        first_of(&["innodb_rows_inserted", "handler_write"]),
        first_of(&["innodb_rows_updated", "handler_update"]),
        first_of(&["innodb_rows_deleted", "handler_delete"]),
    );
    let log_bytes = first_of(&["innodb_redo_log_current_lsn", "innodb_lsn_current", "innodb_os_log_written"]);
    DatabaseCounts { log_bytes, rows, ..DatabaseCounts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_variables_are_chosen_by_what_the_server_has() {
        let mysql = [
            ("innodb_redo_log_current_lsn", 900),
            ("innodb_os_log_written", 5_000),
            ("innodb_rows_inserted", 10),
            ("innodb_rows_updated", 20),
            ("innodb_rows_deleted", 3),
            ("handler_write", 11_111),
            ("handler_update", 22_222),
            ("handler_delete", 33_333),
        ];
        let mariadb = [
            ("innodb_lsn_current", 800),
            ("innodb_os_log_written", 5_000),
            ("handler_write", 10),
            ("handler_update", 20),
            ("handler_delete", 3),
        ];
        let rows =
            RowCounts { changed: Some(33), inserted: Some(10), updated: Some(20), hot_updated: None, deleted: Some(3) };
        let unknown_rows = RowCounts { inserted: Some(10), ..RowCounts::default() };
        for (variables, log_bytes, rows) in [
            (&mysql[..], Some(900), rows),
            (&mariadb[..], Some(800), rows),
            (&[("innodb_os_log_written", 5_000), ("handler_write", 10)][..], Some(5_000), unknown_rows),
            (&[][..], None, RowCounts::default()),
        ] {
            let values = variables.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let counts = status_counts(&values);
            assert_eq!((counts.log_bytes, counts.rows), (log_bytes, rows), "{variables:?}");
        }
    }

    #[test]
    fn the_rows_of_tables_are_added() {
        let table = |inserted, hot_updated| TableCounts {
            rows: RowCounts { hot_updated: Some(hot_updated), ..RowCounts::new(Some(inserted), Some(4), Some(0)) },
            dead: Some(7),
        };
        let two = BTreeMap::from([("job_due".to_owned(), table(1, 2)), ("run".to_owned(), table(10, 1))]);
        let rows = RowCounts { hot_updated: Some(3), ..RowCounts::new(Some(11), Some(8), Some(0)) };
        assert_eq!((RowCounts::sum(&two), rows.changed), (rows, Some(19)));
        assert_eq!(RowCounts::sum(&BTreeMap::new()), RowCounts::default());
    }
}
