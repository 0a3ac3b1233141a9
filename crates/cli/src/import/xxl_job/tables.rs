//! The tables of XXL-JOB, from its database or a dump of it.

use std::io::BufRead;

use rondel_store::foreign::{self, ForeignError};

use crate::exit::Failure;
use crate::foreign_url;
use crate::import::dump::{self, Row};

const GROUP_TABLE: &str = "xxl_job_group";
const JOB_TABLE: &str = "xxl_job_info";
const VERSION_TABLE: &str = "xxl_job_logglue";
const USER_TABLE: &str = "xxl_job_user";
/// Columns with secrets, which the import neither needs nor reads.
const SECRET_COLUMNS: [&str; 3] = ["password", "token", "access_token"];

/// The rows of the tables. NULL values, and columns that this version of XXL-JOB does not have, are missing.
#[derive(Debug, Default)]
pub(in crate::import) struct Tables {
    pub(super) groups: Vec<Row>,
    pub(super) jobs: Vec<Row>,
    /// Earlier scripts.
    pub(super) versions: Vec<Row>,
    pub(super) users: Vec<Row>,
    /// Why tables are left out.
    pub(super) omissions: Vec<String>,
}

impl Tables {
    pub(in crate::import) async fn read(url: &str) -> Result<Self, Failure> {
        let database_failure = |error: ForeignError| Failure::of("cannot read the database of XXL-JOB", &error);
        foreign_url::check(url)?;
        let mut database = foreign::Database::open(url, false).await.map_err(database_failure)?;
        let mut tables = Self {
            groups: database.rows(GROUP_TABLE, &["id"], &SECRET_COLUMNS, &[]).await.map_err(database_failure)?,
            jobs: database.rows(JOB_TABLE, &["id"], &SECRET_COLUMNS, &[]).await.map_err(database_failure)?,
            ..Self::default()
        };
        for (table, rows) in [(VERSION_TABLE, &mut tables.versions), (USER_TABLE, &mut tables.users)] {
            match database.rows(table, &["id"], &SECRET_COLUMNS, &[]).await {
                Ok(table_rows) => *rows = table_rows,
                Err(error @ (ForeignError::NoTable(..) | ForeignError::Unreadable(..))) => {
                    tables.omissions.push(format!("{table} is left out: {error}"));
                }
                Err(error) => return Err(database_failure(error)),
            }
        }
        Ok(tables)
    }

    pub(in crate::import) fn from_dump(source: &mut dyn BufRead, name: &str) -> Result<Self, Failure> {
        let mut dump_tables = dump::read(source, &[GROUP_TABLE, JOB_TABLE, VERSION_TABLE, USER_TABLE])
            .map_err(|message| Failure::refused(format!("--dump: {name}: {message}")))?;
        for rows in dump_tables.values_mut() {
            rows.iter_mut().for_each(|row| row.retain(|column, _| !SECRET_COLUMNS.contains(&column.as_str())));
        }
        let mut tables = Self::default();
        for (table, rows) in [(VERSION_TABLE, &mut tables.versions), (USER_TABLE, &mut tables.users)] {
            match dump_tables.remove(table) {
                Some(table_rows) => *rows = table_rows,
                None => tables.omissions.push(format!("{table} is left out: the dump does not have it")),
            }
        }
        let mut take_table = |table: &str| {
            let message = format!("--dump: {name} has no table {table}: it is no dump of XXL-JOB's database");
            dump_tables.remove(table).ok_or_else(|| Failure::refused(message))
        };
        (tables.groups, tables.jobs) = (take_table(GROUP_TABLE)?, take_table(JOB_TABLE)?);
        Ok(tables)
    }
}

/// The value of a column; `None` if it is missing or blank.
pub(super) fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    row.get(column).map(String::as_str).filter(|text| !text.trim().is_empty())
}
