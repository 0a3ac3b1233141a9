//! What callers of the store can do about a failure.

use std::time::Duration;

/// What the methods of the store's traits answer.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A statement or transaction failed; nothing of it is kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database did not answer, or answered that it cannot now. The same call may succeed later.
    #[error("the database is not available ({operation})")]
    Unavailable {
        /// What was tried.
        operation: &'static str,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// The statement itself was refused; trying again is of no use.
    #[error("query {operation} failed")]
    Query {
        /// What was tried.
        operation: &'static str,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A row holds something that no version of this program writes.
    #[error("row {id} of table {table} has an unreadable {column}: {message}")]
    Corrupt {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row.
        id: i64,
        /// What is wrong with it.
        message: String,
    },
}

impl StoreError {
    /// As of a database that does not answer: for what stands in for one.
    #[must_use]
    pub const fn no_answer(operation: &'static str) -> Self {
        Self::Unavailable { operation, source: sqlx::Error::PoolTimedOut }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// What is wrong with a database that does not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The database does not answer, or the connection broke.
    Unreachable,
    /// It answers too late.
    Slow,
    /// It takes no writes.
    ReadOnly,
    /// It has no room on its disk.
    Full,
    /// It takes no more connections, or all of this server's are in use.
    Connections,
    /// It refuses a statement: something is wrong with its tables, or with this program.
    Refuses,
}

impl Trouble {
    /// The word for it in JSON and in the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Slow => "slow",
            Self::ReadOnly => "read_only",
            Self::Full => "full",
            Self::Connections => "connections",
            Self::Refuses => "refuses",
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL is not one that Rondel knows.
    #[error("{url:?} is not a database URL: use sqlite:///path/file.db, postgres://… or mysql://…")]
    Url {
        /// What was given, without its password.
        url: String,
    },
    /// A password with characters that end it too early: the driver would dial a part of it.
    #[error("{url:?} has an @ or # where none can stand: in a password write @ as %40, / as %2F, # as %23, ? as %3F")]
    Unencoded {
        /// What was given, without its password.
        url: String,
    },
    /// The URL names a kind of pooler that there is not.
    #[error("{url:?} has pooler={word}: it can be transaction or none")]
    Pooler {
        /// What was given, without its password.
        url: String,
        /// Its word.
        word: String,
    },
    /// No server answers there.
    #[error("cannot reach the database {url}")]
    Unreachable {
        /// Which, without its password.
        url: String,
        /// The driver's error.
        #[source]
        source: sqlx::Error,
    },
    /// A server answers there and refuses the connection.
    #[error("the database {url} refuses: {reason}; {hint}")]
    Refused {
        /// Which, without its password.
        url: String,
        /// Its error.
        reason: String,
        /// What can be done about it.
        hint: String,
    },
    /// Another server has the file.
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
    #[error("the database needs rondel {min_server} or newer, this is {this}")]
    TooNew {
        /// The oldest server that the schema carries.
        min_server: String,
        /// The version of this server.
        this: String,
    },
    /// Another server migrates the database, for longer than this one waits.
    #[error(
        "another server has been migrating this database for {}; start again when that has ended",
        rondel_core::time::format_duration(*.waited)
    )]
    Migrating {
        /// How long it was waited for.
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
    /// The database was migrated by a program with another migration of that number.
    #[error(
        "migration {version} of this program is not the one that the database was migrated with: use the build that made the \
         database"
    )]
    OtherMigration {
        /// Its number.
        version: i64,
    },
    /// What is stored was sealed with a key that this server does not have.
    #[error("{message}")]
    SecretKey {
        /// Which, and what to do.
        message: String,
    },
    /// A migration failed.
    #[error("migrating the database failed")]
    Migrate(#[source] sqlx::Error),
}
