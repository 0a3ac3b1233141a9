//! Opening a database: the address, the pools, the settings of a session, the lock on a file.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::time::Duration;

use rondel_core::time::millis;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::dialect::{Dialect, Texts};
use super::query::{CHUNK_MAX, StatementSize};
use super::trials::Trials;
use super::url::DatabaseUrl;
use super::{SqlStore, failure, migrate};
use crate::sealed::{Sealer, SecretKeys};
use crate::{OpenError, StoreError, Trouble};

/// How a database is opened.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Where it is.
    pub url: DatabaseUrl,
    /// The most connections at the same time; SQLite has one writer and uses the rest for reading.
    pub pool_size: u32,
    /// Version of this program, such as `0.1.0`: what the schema's own minimum is compared with.
    pub server_version: String,
    /// How long a statement waits for a lock.
    pub lock_timeout: Duration,
    /// How long a statement takes at most.
    pub statement_timeout: Duration,
    /// How long a transaction may be idle: shorter than a lease, so that the locks of a node that was stopped end.
    pub idle_in_transaction: Duration,
    /// How long opening waits for the database, and a call for a free connection.
    pub connect_timeout: Duration,
    /// The most rows that one statement writes, 512 at most.
    pub statement_rows_max: usize,
    /// The most bytes of values that one statement writes, but for a row that is larger. MySQL's `max_allowed_packet` lowers it.
    pub statement_bytes_max: usize,
    /// How often a batch fails while the database answers until it is halved.
    pub halve_after: u32,
    /// What stored secrets are sealed with; without it they are kept as they are.
    pub secret_keys: Option<SecretKeys>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            url: DatabaseUrl::sqlite_file("rondel.db"),
            pool_size: 10,
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            lock_timeout: Duration::from_secs(1),
            statement_timeout: Duration::from_secs(3),
            idle_in_transaction: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(5),
            statement_rows_max: CHUNK_MAX,
            statement_bytes_max: 4 << 20,
            halve_after: 2,
            secret_keys: None,
        }
    }
}

/// Each reader of a file has a thread and a cache of its own.
const SQLITE_READERS_MAX: u32 = 4;

/// How long a connection can be idle before it is tried before use.
const PING_AFTER: Duration = Duration::from_secs(1);

impl SqlStore {
    /// Opens the database, and brings its schema up to date.
    ///
    /// # Errors
    /// What [`OpenError`] lists.
    pub async fn open(config: &StoreConfig) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let url = absolute(&config.url)?;
        let file_lock = url.sqlite_path().map(lock_file).transpose()?;
        let options = AnyConnectOptions::connect_options(&url)?;
        let dialect = url.dialect();
        let mut connection = connect(&url, &options, config.connect_timeout).await?;
        let migrated = migrate::run(&mut connection, dialect, &config.server_version).await;
        migrated.map_err(|error| not_migrated(&url, error))?;
        connection.close().await.map_err(OpenError::Migrate)?;

        let probe_options = options.clone();
        let settings = session_settings(dialect, config);
        let (write_size, read_size) = match dialect {
            Dialect::Sqlite => (1, config.pool_size.saturating_sub(1).clamp(1, SQLITE_READERS_MAX)),
            Dialect::Postgres | Dialect::MySql => (config.pool_size.max(1), 0),
        };
        let write = pool(write_size, settings.clone(), config).connect_lazy_with(options.clone());
        let read = match read_size {
            0 => write.clone(),
            size => pool(size, settings, config).connect_lazy_with(options),
        };
        let store = Self {
            write,
            read,
            texts: Texts::new(dialect),
            followed_to: AtomicI64::new(0),
            options: probe_options,
            sealer: Sealer::new(config.secret_keys.clone()),
            statement_size: StatementSize { rows: config.statement_rows_max, bytes: config.statement_bytes_max },
            packet_bytes: AtomicUsize::new(usize::MAX),
            trials: Trials::new(config.halve_after),
            _file_lock: file_lock,
        };
        if let Err(error) = store.read_packet_max().await {
            tracing::warn!(%error, "the largest packet that the database takes is not known");
        }
        store.seal_webhooks().await?;
        Ok(store)
    }
}

/// How long the attempt to find out what is wrong may take.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl SqlStore {
    /// What is wrong with the database. A pool without a free connection does not report why it has none: a connection past
    /// the pool does.
    pub(super) async fn find_trouble(&self, error: &StoreError) -> Trouble {
        let (StoreError::Unavailable { source, .. } | StoreError::Query { source, .. }) = error else {
            return Trouble::Refuses;
        };
        if !matches!(source, sqlx::Error::PoolTimedOut) {
            return failure::trouble(source);
        }
        match tokio::time::timeout(PROBE_TIMEOUT, AnyConnection::connect_with(&self.options)).await {
            Ok(Ok(connection)) => {
                connection.close().await.ok();
                Trouble::Connections
            }
            Ok(Err(error)) => failure::trouble(&error),
            Err(_) => Trouble::Unreachable,
        }
    }
}

trait Connectable: Sized {
    fn connect_options(url: &DatabaseUrl) -> Result<Self, OpenError>;
}

impl Connectable for AnyConnectOptions {
    fn connect_options(url: &DatabaseUrl) -> Result<Self, OpenError> {
        let options: Self = url.expose().parse().map_err(|_| OpenError::Url { url: url.to_string() })?;
        Ok(options.disable_statement_logging())
    }
}

async fn connect(
    url: &DatabaseUrl,
    options: &AnyConnectOptions,
    timeout: Duration,
) -> Result<AnyConnection, OpenError> {
    let unreachable = |source| OpenError::Unreachable { url: url.to_string(), source };
    match tokio::time::timeout(timeout, AnyConnection::connect_with(options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(sqlx::Error::Configuration(_))) => Err(OpenError::Url { url: url.to_string() }),
        Ok(Err(source)) => Err(match url.sqlite_path() {
            Some(path) => OpenError::File { path: shown(path), source: std::io::Error::other(source) },
            None => refused(url, &source).unwrap_or_else(|| unreachable(source)),
        }),
        Err(_) => {
            let message = format!("no answer within {}", rondel_core::time::format_duration(timeout));
            Err(unreachable(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, message))))
        }
    }
}

/// What an operator of a new installation can mend, with a message that states how.
fn refused(url: &DatabaseUrl, error: &sqlx::Error) -> Option<OpenError> {
    let sqlx::Error::Database(database) = error else { return None };
    let hint = failure::hint(error)?.to_owned();
    Some(OpenError::Refused { url: url.to_string(), reason: database.message().to_owned(), hint })
}

/// The same of a database that lets its user in and make no tables.
fn not_migrated(url: &DatabaseUrl, error: OpenError) -> OpenError {
    let OpenError::Migrate(sqlx::Error::Database(database)) = &error else { return error };
    if !failure::is_forbidden(database.as_ref()) {
        return error;
    }
    let (user, name) = url.user_and_name();
    let (user, name) = (user.unwrap_or("USER"), name.unwrap_or("DATABASE"));
    let cure = match url.dialect() {
        Dialect::Postgres => format!("ALTER DATABASE \"{name}\" OWNER TO \"{user}\""),
        Dialect::MySql | Dialect::Sqlite => format!("GRANT ALL ON `{name}`.* TO '{user}'"),
    };
    let hint = format!("user {user} may not make tables in database {name}; as an administrator of it: {cure}");
    OpenError::Refused { url: url.to_string(), reason: database.message().to_owned(), hint }
}

fn pool(size: u32, settings: Vec<String>, config: &StoreConfig) -> AnyPoolOptions {
    let settings = std::sync::Arc::new(settings);
    AnyPoolOptions::new()
        .max_connections(size)
        .min_connections(0)
        .acquire_timeout(config.connect_timeout)
        .idle_timeout(Duration::from_secs(300))
        // A round trip per use is much; a connection that was just used is there.
        .test_before_acquire(false)
        .before_acquire(|connection, meta| {
            Box::pin(async move {
                if meta.idle_for > PING_AFTER {
                    connection.ping().await?;
                }
                Ok(true)
            })
        })
        .after_connect(move |connection, _| {
            let settings = std::sync::Arc::clone(&settings);
            Box::pin(async move {
                for statement in settings.iter() {
                    connection.execute(AssertSqlSafe(statement.as_str())).await?;
                }
                Ok(())
            })
        })
}

/// The settings of each new connection.
fn session_settings(dialect: Dialect, config: &StoreConfig) -> Vec<String> {
    let lock_ms = millis(config.lock_timeout);
    let statement_ms = millis(config.statement_timeout);
    let idle_ms = millis(config.idle_in_transaction);
    let seconds = |ms: i64| (ms + 999) / 1000;
    match dialect {
        Dialect::Sqlite => vec![
            format!("PRAGMA busy_timeout = {lock_ms}"),
            "PRAGMA journal_mode = WAL".to_owned(),
            "PRAGMA synchronous = FULL".to_owned(),
            "PRAGMA foreign_keys = ON".to_owned(),
        ],
        Dialect::Postgres => vec![
            format!("SET lock_timeout = {lock_ms}"),
            format!("SET statement_timeout = {statement_ms}"),
            format!("SET idle_in_transaction_session_timeout = {idle_ms}"),
            // A plan that was made for an empty table is kept for ever; planning anew costs little, since no statement
            // grows with its rows.
            "SET plan_cache_mode = force_custom_plan".to_owned(),
            // Every statement names a few rows, by an index. Without statistics, and after thousands of updates a second
            // no transaction has any, the planner takes a walk through the whole table for cheaper, and a third of the throughput.
            "SET enable_seqscan = off".to_owned(),
            "SET enable_hashjoin = off".to_owned(),
            "SET enable_mergejoin = off".to_owned(),
            "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
        ],
        // MariaDB reads /*M! … */ and MySQL reads /*!80000 … */; to the other each is a comment. MySQL knows no limit
        // for an idle transaction: there, locks of a node that sleeps inside one last as long as its connection.
        Dialect::MySql => vec![
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
            format!("SET SESSION innodb_lock_wait_timeout = {}", seconds(lock_ms)),
            format!(
                "SET SESSION time_zone = '+00:00' \
                 /*M! , max_statement_time = {}, idle_write_transaction_timeout = {} */ \
                 /*!80000 , max_execution_time = {statement_ms} */",
                seconds(statement_ms),
                seconds(idle_ms),
            ),
        ],
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn absolute(url: &DatabaseUrl) -> Result<DatabaseUrl, OpenError> {
    let Some(path) = url.sqlite_path() else { return Ok(url.clone()) };
    let path = std::path::absolute(path).map_err(|source| OpenError::File { path: shown(path), source })?;
    Ok(DatabaseUrl::sqlite_file(path))
}

/// Takes the lock that reserves the file for this server; it is held as long as the returned file lives.
fn lock_file(path: &Path) -> Result<File, OpenError> {
    let failed = |path: &Path, source| OpenError::File { path: shown(path), source };
    let open = |path: &Path| owner_only().open(path).map_err(|source| failed(path, source));
    let beside = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    // SQLite makes the files beside it with the mode of the database.
    open(path)?;
    let lock_path = beside(".lock");
    let lock = open(&lock_path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: shown(path) }),
        Err(TryLockError::Error(source)) => return Err(failed(&lock_path, source)),
    }
    for ending in ["", ".lock", "-journal", "-wal", "-shm"] {
        close_to_others(&beside(ending));
    }
    Ok(lock)
}

/// Opens for reading and writing, and makes what is missing for this user alone.
fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// A file that an older server made for everybody to read is this user's alone from now on.
#[cfg(unix)]
fn close_to_others(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(found) = std::fs::metadata(path) else { return };
    if found.permissions().mode() & 0o077 == 0 {
        return;
    }
    if let Err(error) = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)) {
        tracing::warn!(path = %path.display(), %error, "other users of this machine may read a file of the database");
    }
}

#[cfg(not(unix))]
fn close_to_others(_path: &Path) {}
