//! Errors of the store, sorted by what a caller can do about them.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;

/// The result of the store's methods.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A statement or transaction failed. None of its changes are kept; if [`StoreError::is_outcome_unknown`], they may have been committed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, or answered that it cannot serve the call now. The same call may succeed later.
    #[error("the database is not available ({operation})")]
    Unavailable {
        operation: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// The database rejected the statement itself; a retry is of no use.
    #[error("query {operation} failed")]
    Query {
        operation: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// A row contains something that this version of the program does not write; a newer version may have written it.
    #[error("row {id} of table {table} has an unreadable {column}: {message}")]
    Corrupt {
        table: &'static str,
        column: &'static str,
        id: i64,
        /// What is wrong with it.
        message: String,
    },
}

impl StoreError {
    /// The error of a call that the database did not answer, for stores that simulate a database.
    #[must_use]
    pub const fn no_answer(operation: &'static str) -> Self {
        Self::Unavailable { operation, source: sqlx::Error::PoolTimedOut }
    }

    /// The error of a call that may have taken effect, for stores that simulate a database.
    #[must_use]
    pub fn lost_answer(operation: &'static str) -> Self {
        Self::Unavailable { operation, source: sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()) }
    }

    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether the connection broke, or may have broken, before the answer arrived. The changes may then have been committed.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        let Self::Unavailable { source, .. } = self else { return false };
        match source {
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
            sqlx::Error::Database(error) => match error.try_downcast_ref::<MySqlDatabaseError>() {
                Some(mysql) => is_lost_session_of_mysql(mysql.number()),
                None => error.code().is_some_and(|code| is_lost_session_of_postgres(&code)),
            },
            _ => false,
        }
    }
}

/// Whether an error of PostgreSQL means that the session was lost: it was ended, or `PgBouncer` lost its session with the database, which
/// `PgBouncer` reports as a protocol violation.
fn is_lost_session_of_postgres(code: &str) -> bool {
    code.starts_with("08") || matches!(code, "57P01" | "57P02")
}

/// Whether an error of MySQL or MariaDB means that the session was lost: it was ended (1053, 1927), or a proxy such as `MaxScale` or `ProxySQL`
/// lost its session with the database (2006, 2013).
const fn is_lost_session_of_mysql(number: u16) -> bool {
    matches!(number, 1053 | 1927 | 2006 | 2013)
}

rondel_core::plain_word_enum! {
    /// Why a database does not serve requests.
    pub DatabaseTroubleKind {
        /// The database does not answer, or the connection broke.
        Unreachable = "unreachable",
        /// It answers too late.
        Slow = "slow",
        ReadOnly = "read_only",
        /// Its disk is full.
        Full = "full",
        /// It accepts no more connections, or all of this server's are in use.
        Connections = "connections",
        /// It rejects a statement: something is wrong with its tables, or with this program.
        RejectsStatement = "refuses",
    }
}

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not of a kind that Rondel supports.
    #[error("{url:?} is not a database URL: use sqlite:///path/file.db, postgres://… or mysql://…")]
    Url {
        /// The URL as given, without its password.
        url: String,
    },
    /// The password contains a character that must be percent-encoded. The driver would end the password there and use a wrong address.
    #[error(
        "{url:?} has an @ or # that must be percent-encoded: in a password write @ as %40, / as %2F, # as %23, ? as %3F, \
         & as %26"
    )]
    Unencoded {
        /// The URL as given, without its password.
        url: String,
    },
    /// The URL names an unknown kind of pooler.
    #[error("{url:?} has pooler={word}: expected transaction or none")]
    Pooler {
        /// The URL as given, without its password.
        url: String,
        /// The value of `pooler`.
        word: String,
    },
    /// No server answers at the URL.
    #[error("cannot reach the database {url}")]
    Unreachable {
        /// Its URL, without the password.
        url: String,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The server at the URL refuses the connection.
    #[error("the database {url} refuses: {reason}; {hint}")]
    Refused {
        /// Its URL, without the password.
        url: String,
        /// The server's error.
        reason: String,
        /// How to fix it.
        hint: String,
    },
    /// Another server uses the file.
    #[error("{path} is in use by another rondel server; SQLite is for one server, use PostgreSQL or MySQL for several")]
    InUse {
        /// The database file.
        path: String,
    },
    /// The file or its folder cannot be used.
    #[error("cannot use {path}")]
    File {
        /// The database file.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A newer server has changed the schema beyond what this one understands.
    #[error("the database needs rondel {min_server} or newer, this is {this_server}")]
    TooNew {
        /// The oldest server version that can use the schema.
        min_server: String,
        /// The version of this server.
        this_server: String,
    },
    /// Another server has been migrating the database for longer than this one waits.
    #[error(
        "another server has been migrating this database for {}; start again when that has ended",
        rondel_core::time::format_duration(*.waited)
    )]
    Migrating {
        /// How long this server waited.
        waited: Duration,
    },
    /// Servers that could not work with the new schema have not stopped.
    #[error(
        "servers older than {min_server} cannot use the new schema, and {names} did not stop for {}; stop them and start again",
        rondel_core::time::format_duration(*.waited)
    )]
    OlderServers {
        /// Their names and versions.
        names: String,
        /// The oldest server version that can use the new schema.
        min_server: String,
        /// How long this server waited.
        waited: Duration,
    },
    /// A table that a migration changes stays locked by other clients.
    #[error(
        "a migration cannot change a table that other clients keep locked: end their long transactions and start again"
    )]
    TableInUse {
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The database was migrated by a program whose migration of this number differs.
    #[error("the database was migrated with a different migration {version}: use the build that created the database")]
    OtherMigration {
        /// The number of the migration.
        version: i64,
    },
    /// Stored secrets are sealed with a key that this server does not have.
    #[error("{message}")]
    SecretKey {
        /// Names the key and the remedy.
        message: String,
    },
    /// A migration failed.
    #[error("migrating the database failed")]
    Migrate(#[source] sqlx::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_that_loses_its_database_leaves_the_outcome_unknown() {
        assert!(StoreError::lost_answer("a call").is_outcome_unknown());
        assert!(!StoreError::no_answer("a call").is_outcome_unknown());
        for (code, is_lost) in [("08P01", true), ("08006", true), ("57P01", true), ("57014", false), ("53300", false)] {
            assert_eq!(is_lost_session_of_postgres(code), is_lost, "{code}");
        }
        for (number, is_lost) in [(2013, true), (2006, true), (1927, true), (2003, false), (9001, false), (1205, false)]
        {
            assert_eq!(is_lost_session_of_mysql(number), is_lost, "{number}");
        }
    }
}
