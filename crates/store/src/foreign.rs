//! Tables of other products, read as text: for imports; and the jobs and logs of XXL-JOB.

pub mod xxl_job;

use std::collections::BTreeMap;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

/// How many rows of a table are read at most.
const ROW_COUNT_MAX: usize = 200_000;
/// How many rows are read at once.
const PAGE_LEN: usize = 1_000;

/// Why a table was not read.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// The address of the database.
    #[error("the database is {0:?}: mysql://USER:PASSWORD@HOST/NAME is expected")]
    Address(String),
    /// It has no such table, or none with these columns.
    #[error("the database has no table {0} with a column id")]
    NoTable(String),
    /// A table that is larger than an import expects.
    #[error("the table {0} has more than {ROW_COUNT_MAX} rows")]
    TooMany(String),
    /// XXL-JOB's servers do not exclude each other, so that no instant is certain.
    #[error("the table xxl_job_lock has no row schedule_lock: XXL-JOB's servers do not exclude each other")]
    NoLock,
    /// The database.
    #[error("the database refused a query")]
    Database(#[from] sqlx::Error),
}

/// A connection to a database of another product. It only reads, but for the status of XXL-JOB's jobs ([`xxl_job`]).
#[derive(Debug)]
pub struct Database(MySqlConnection);

impl Database {
    /// Connects to a MySQL or MariaDB database.
    ///
    /// # Errors
    /// [`ForeignError::Address`] and [`ForeignError::Database`].
    pub async fn open(url: &str) -> Result<Self, ForeignError> {
        let scheme = url.split("://").next().unwrap_or_default();
        if !matches!(scheme, "mysql" | "mariadb") {
            return Err(ForeignError::Address(format!("{scheme}://…")));
        }
        let options: MySqlConnectOptions = url.parse()?;
        Ok(Self(options.connect().await?))
    }

    /// All rows of a table by its column `id`: of these columns the ones that it has, as text; NULL is left out.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub async fn rows(&mut self, table: &str, columns: &[&str]) -> Result<Vec<BTreeMap<String, String>>, ForeignError> {
        let text = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?";
        let there: Vec<String> = sqlx::query_scalar(text).bind(table).fetch_all(&mut self.0).await?;
        let known: Vec<&str> =
            columns.iter().copied().filter(|column| there.iter().any(|name| name == column)).collect();
        if !known.contains(&"id") {
            return Err(ForeignError::NoTable(table.to_owned()));
        }
        let selected: Vec<String> = known.iter().map(|column| format!("CAST(`{column}` AS CHAR)")).collect();
        let mut rows: Vec<BTreeMap<String, String>> = Vec::new();
        let mut after = i64::MIN;
        loop {
            // The names are of the program's own list, and the database has them.
            let text =
                format!("SELECT id, {} FROM `{table}` WHERE id > ? ORDER BY id LIMIT {PAGE_LEN}", selected.join(", "));
            let page = sqlx::query(AssertSqlSafe(text)).bind(after).fetch_all(&mut self.0).await?;
            for row in &page {
                after = row.try_get::<i64, _>(0).or_else(|_| row.try_get::<i32, _>(0).map(i64::from))?;
                let mut read = BTreeMap::new();
                for (index, column) in known.iter().enumerate() {
                    if let Some(value) = row.try_get::<Option<String>, _>(index + 1)? {
                        read.insert((*column).to_owned(), value);
                    }
                }
                rows.push(read);
            }
            if page.len() < PAGE_LEN {
                return Ok(rows);
            }
            if rows.len() >= ROW_COUNT_MAX {
                return Err(ForeignError::TooMany(table.to_owned()));
            }
        }
    }
}
