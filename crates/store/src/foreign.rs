//! Reads tables of other products as text, for imports, and the jobs and logs of XXL-JOB.

pub mod xxl_job;

use std::collections::BTreeMap;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _};

/// Maximum number of rows that are read from a table.
const ROW_COUNT_MAX: usize = 200_000;
const PAGE_LEN: usize = 1_000;

/// The expected forms of a database's address, as errors show them.
const MYSQL_FORM: &str = "mysql://USER:PASSWORD@HOST/NAME";
const POSTGRES_FORM: &str = "postgres://USER:PASSWORD@HOST/NAME";

/// Why a table was not read.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    /// The address is not of an expected kind of database. The second text is the expected form.
    #[error("the database is {0}; expected {1}")]
    Address(String, &'static str),
    /// It has no such table, or none with these columns.
    #[error("the database has no table {0} with the columns {1}")]
    NoTable(String, String),
    /// The account may not read the table. The second text is the statement that would permit it.
    #[error("the account may not read the table {0}; to allow it, run: {1}")]
    Unreadable(String, String),
    /// The table is larger than an import expects.
    #[error("the table {0} has more than {ROW_COUNT_MAX} rows")]
    TooMany(String),
    /// The row that XXL-JOB's servers lock while they plan is missing. Without it they do not exclude each other, so a job cannot be
    /// stopped at a known instant.
    #[error("the table xxl_job_lock has no row schedule_lock: XXL-JOB's servers do not exclude each other")]
    NoLock,
    /// The account may not change the tables of XXL-JOB. The text is the statements that would permit it.
    #[error("the account may not change XXL-JOB's tables; to allow it, run: {0}")]
    Denied(String),
    #[error("the database refused a query")]
    Database(#[from] sqlx::Error),
}

/// The part of an address that may be shown. Only a scheme is shown, because a text without a scheme may be a password.
fn shown_address(scheme: &str) -> String {
    let is_scheme = (1..=20).contains(&scheme.len()) && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+');
    if is_scheme { format!("{scheme}://…") } else { "an address without a scheme".to_owned() }
}

/// The values of a row by the names of their columns, which are in lower case. NULL values are left out.
pub type ForeignRow = BTreeMap<String, String>;

/// A connection to a database of another product. It only reads; the changes to XXL-JOB's database are in [`xxl_job`].
#[derive(Debug)]
pub enum Database {
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

impl Database {
    /// Connects to a MySQL or MariaDB database, or with `takes_postgres` also to a PostgreSQL one. All reads see the data as of this call.
    ///
    /// # Errors
    /// [`ForeignError::Address`] and [`ForeignError::Database`].
    pub async fn open(url: &str, takes_postgres: bool) -> Result<Self, ForeignError> {
        let mut database = Self::connect(url, takes_postgres).await?;
        // One snapshot, so that all pages of a table, and all tables, are consistent with each other.
        match &mut database {
            Self::MySql(connection) => {
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await?;
                connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY").await?;
            }
            Self::Postgres(connection) => {
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            }
        }
        Ok(database)
    }

    async fn connect(url: &str, takes_postgres: bool) -> Result<Self, ForeignError> {
        // Java programs write an address with the prefix `jdbc:`, and usually have the user in a separate setting.
        let jdbc = url.strip_prefix("jdbc:");
        let url = jdbc.unwrap_or(url);
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        let has_user = url.split('?').next().is_some_and(|address| address.contains('@'));
        if jdbc.is_some() && !has_user && matches!(scheme, "mysql" | "mariadb" | "postgresql") {
            let shown_url = format!("jdbc:{} without a user", shown_address(scheme));
            return Err(ForeignError::Address(
                shown_url,
                if scheme == "postgresql" { POSTGRES_FORM } else { MYSQL_FORM },
            ));
        }
        match scheme {
            "mysql" | "mariadb" => Ok(Self::MySql(url.parse::<MySqlConnectOptions>()?.connect().await?)),
            "postgres" | "postgresql" if takes_postgres => {
                Ok(Self::Postgres(url.parse::<PgConnectOptions>()?.connect().await?))
            }
            _ if takes_postgres => {
                let expected_form = "mysql://USER:PASSWORD@HOST/NAME or postgres://USER:PASSWORD@HOST/NAME";
                Err(ForeignError::Address(shown_address(scheme), expected_form))
            }
            _ => Err(ForeignError::Address(shown_address(scheme), MYSQL_FORM)),
        }
    }

    /// All rows of a table as text, in the order of `key`: all columns except `excluded_columns`, and the columns in `binary_columns` as hexadecimal
    /// digits. MySQL uses the name of the table as given. PostgreSQL uses it in lower case, and looks for it in the schemas of the search
    /// path.
    ///
    /// # Errors
    /// [`ForeignError`].
    pub async fn rows(
        &mut self,
        table: &str,
        key: &[&str],
        excluded_columns: &[&str],
        binary_columns: &[&str],
    ) -> Result<Vec<ForeignRow>, ForeignError> {
        let table_columns = self.columns(table).await?;
        let find_column = |wanted: &str| table_columns.iter().find(|name| name.eq_ignore_ascii_case(wanted));
        let Some(key) = key.iter().map(|column| find_column(column).cloned()).collect::<Option<Vec<String>>>() else {
            return Err(self.missing_table_error(table, &key.join(", ")).await?);
        };
        let known_columns: Vec<&String> = table_columns
            .iter()
            .filter(|name| !excluded_columns.iter().any(|excluded_column| name.eq_ignore_ascii_case(excluded_column)))
            .collect();
        let table_name = if matches!(self, Self::Postgres(_)) { table.to_ascii_lowercase() } else { table.to_owned() };
        let comma_separated = |columns: &mut dyn Iterator<Item = String>| columns.collect::<Vec<_>>().join(", ");
        let selected_columns = comma_separated(&mut known_columns.iter().map(|name| {
            self.column_expression(
                name,
                binary_columns.iter().any(|binary_column| name.eq_ignore_ascii_case(binary_column)),
            )
        }));
        let order_columns = comma_separated(&mut key.iter().map(|name| self.quoted(name)));
        let quoted_table = self.quoted(&table_name);
        let mut rows: Vec<ForeignRow> = Vec::new();
        // The tables of definitions are small, so OFFSET is fast enough. It also needs no comparison of keys.
        loop {
            let offset = rows.len();
            // These names come from the database itself or are constants of this program, and they are quoted.
            let text = format!(
                "SELECT {selected_columns} FROM {quoted_table} ORDER BY {order_columns} LIMIT {PAGE_LEN} OFFSET {offset}"
            );
            let page = self.page(&text, known_columns.len()).await?;
            let is_last = is_last_page(table, offset, page.len())?;
            for values in page {
                let pairs = known_columns.iter().map(|name| name.to_ascii_lowercase()).zip(values);
                rows.push(pairs.filter_map(|(name, value)| Some((name, value?))).collect());
            }
            if is_last {
                return Ok(rows);
            }
        }
    }

    /// Why the columns of a table were not found: MySQL does not list the columns of a table that the account may not read.
    async fn missing_table_error(&mut self, table: &str, key: &str) -> Result<ForeignError, ForeignError> {
        let missing_table = ForeignError::NoTable(table.to_owned(), key.to_owned());
        let text = format!("SELECT 1 FROM {} LIMIT 0", self.quoted(table));
        let Self::MySql(connection) = self else { return Ok(missing_table) };
        match sqlx::query(AssertSqlSafe(text)).execute(&mut *connection).await {
            Err(error) if is_denied(&error) => {
                let (schema, account) = account(connection).await?;
                let grant = format!("GRANT SELECT ON {schema}.{table} TO {account}");
                Ok(ForeignError::Unreadable(table.to_owned(), grant))
            }
            _ => Ok(missing_table),
        }
    }

    async fn columns(&mut self, table: &str) -> Result<Vec<String>, ForeignError> {
        let names = match self {
            Self::MySql(connection) => {
                let text = "SELECT CAST(column_name AS CHAR) FROM information_schema.columns \
                            WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position";
                sqlx::query_scalar(text).bind(table).fetch_all(connection).await?
            }
            Self::Postgres(connection) => {
                let text = "SELECT attname::text FROM pg_attribute \
                            WHERE attrelid = to_regclass(quote_ident($1)) AND attnum > 0 AND NOT attisdropped ORDER BY attnum";
                sqlx::query_scalar(text).bind(table.to_ascii_lowercase()).fetch_all(connection).await?
            }
        };
        Ok(names)
    }

    fn quoted(&self, name: &str) -> String {
        match self {
            Self::MySql(_) => format!("`{}`", name.replace('`', "``")),
            Self::Postgres(_) => format!("\"{}\"", name.replace('"', "\"\"")),
        }
    }

    /// The SQL that selects a column as text, or its bytes as hexadecimal digits. PostgreSQL's text form of bytes already is `\x` and
    /// hexadecimal digits.
    fn column_expression(&self, name: &str, is_bytes: bool) -> String {
        match self {
            Self::MySql(_) if is_bytes => format!("HEX({})", self.quoted(name)),
            Self::MySql(_) => format!("CAST({} AS CHAR)", self.quoted(name)),
            Self::Postgres(_) => format!("{}::text", self.quoted(name)),
        }
    }

    async fn page(&mut self, text: &str, column_count: usize) -> Result<Vec<Vec<Option<String>>>, ForeignError> {
        let mut page = Vec::new();
        match self {
            Self::MySql(connection) => {
                for row in sqlx::query(AssertSqlSafe(text.to_owned())).fetch_all(connection).await? {
                    page.push((0..column_count).map(|index| row.try_get(index)).collect::<Result<_, _>>()?);
                }
            }
            Self::Postgres(connection) => {
                for row in sqlx::query(AssertSqlSafe(text.to_owned())).fetch_all(connection).await? {
                    page.push((0..column_count).map(|index| row.try_get(index)).collect::<Result<_, _>>()?);
                }
            }
        }
        Ok(page)
    }
}

/// Whether no rows follow a page of this length after `offset` rows. Fails if the table has too many rows.
fn is_last_page(table: &str, offset: usize, page_len: usize) -> Result<bool, ForeignError> {
    if offset + page_len > ROW_COUNT_MAX {
        return Err(ForeignError::TooMany(table.to_owned()));
    }
    Ok(page_len < PAGE_LEN)
}

/// MySQL's errors for an account that may not use a table, or a column of it.
const DENIED_ERRORS: [u16; 2] = [1142, 1143];

fn is_denied(error: &sqlx::Error) -> bool {
    let mysql_error = error.as_database_error().and_then(|error| error.try_downcast_ref::<MySqlDatabaseError>());
    mysql_error.is_some_and(|error| DENIED_ERRORS.contains(&error.number()))
}

/// The name of the database, and the account in the form that a GRANT statement needs.
async fn account(connection: &mut MySqlConnection) -> Result<(String, String), ForeignError> {
    let text = "SELECT CAST(CURRENT_USER() AS CHAR), CAST(DATABASE() AS CHAR)";
    let (account, schema): (String, String) = sqlx::query_as(text).fetch_one(connection).await?;
    let (user, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
    Ok((schema, format!("'{user}'@'{host}'")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_refused_only_if_it_has_more_rows_than_the_maximum() {
        for (offset, page_len, expected) in [
            (0, 999, Some(true)),
            (0, PAGE_LEN, Some(false)),
            (ROW_COUNT_MAX - PAGE_LEN, PAGE_LEN, Some(false)),
            (ROW_COUNT_MAX, 0, Some(true)),
            (ROW_COUNT_MAX, 1, None),
        ] {
            assert_eq!(is_last_page("t", offset, page_len).ok(), expected, "{offset} {page_len}");
        }
        let error = is_last_page("t", ROW_COUNT_MAX, 1).unwrap_err();
        assert_eq!(error.to_string(), "the table t has more than 200000 rows");
    }

    #[tokio::test]
    async fn no_part_of_an_address_but_its_scheme_is_shown() {
        for (url, shown) in [
            ("root:SECRET@127.0.0.1/xxl", "an address without a scheme"),
            ("SECRET", "an address without a scheme"),
            ("", "an address without a scheme"),
            ("root:SECRET@h/x?next=a://b", "an address without a scheme"),
            ("redis://u:SECRET@h", "redis://…"),
            ("postgres://u:SECRET@h/x", "postgres://…"),
            ("jdbc:postgres://u:SECRET@h/x", "postgres://…"),
            ("jdbc:oracle:thin:SECRET/SECRET@h", "an address without a scheme"),
            ("jdbc:mysql://h/x?password=SECRET", "jdbc:mysql://… without a user"),
            ("jdbc:mysql://h:3306/x?user=u&password=SECRET@SECRET", "jdbc:mysql://… without a user"),
        ] {
            let sentence = Database::open(url, false).await.unwrap_err().to_string();
            assert!(sentence.starts_with(&format!("the database is {shown}; expected mysql://")), "{url}: {sentence}");
            assert!(!sentence.contains("SECRET"), "{sentence}");
        }
    }
}
