//! Opens a database: locks a database file, migrates the schema, opens the pools, and seals stored secrets.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, ConnectOptions, Connection, Executor, Row};

use super::config::StoreConfig;
use super::dialect::{Dialect, RenderedStatements};
use super::failed_batches::FailedBatches;
use super::pools::LivePools;
use super::query::StatementSize;
use super::session::{Sessions, are_sessions_shared};
use super::url::DatabaseUrl;
use super::{SqlStore, failure, migrate};
use crate::OpenError;
use crate::sealed::Sealer;

/// Maximum number of SQLite's readers. There are few, because each has its own thread and cache.
const SQLITE_READERS_MAX: u32 = 4;

impl SqlStore {
    /// Opens the database, and brings its schema up to date.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(config: &StoreConfig) -> Result<Self, OpenError> {
        sqlx::any::install_default_drivers();
        let url = with_absolute_path(&config.url)?;
        let file_lock = url.sqlite_path().map(lock_file).transpose()?;
        let options = AnyConnectOptions::connect_options(&url)?;
        let dialect = url.dialect();
        let mut connection = connect(&url, &options, config.connect_timeout).await?;
        let are_shared = match url.shares_sessions() {
            Some(are_shared) => are_shared,
            None if dialect == Dialect::Postgres => {
                let detection_result = are_sessions_shared(&mut connection, &options, config.connect_timeout).await;
                detection_result.map_err(|source| connect_error(&url, source))?
            }
            None => false,
        };
        let lists_connections = lists_connections(&mut connection, dialect, config).await?;
        let migrate_result = migrate::run(&mut connection, (dialect, are_shared), config).await;
        migrate_result.map_err(|error| migrate_error(&url, error))?;
        connection.close().await.map_err(OpenError::Migrate)?;
        if are_shared {
            tracing::info!("a pooler gives each transaction another session; settings apply to one transaction only");
        }

        let probe_options = options.clone();
        let sessions = Sessions::new(dialect, (are_shared, lists_connections), config);
        let sizes = match dialect {
            Dialect::Sqlite => (1, config.pool_size.saturating_sub(1).clamp(1, SQLITE_READERS_MAX)),
            Dialect::Postgres | Dialect::MySql => (config.pool_size.max(1), 0),
        };
        let statement_timeout = Some(config.statement_timeout).filter(|_| dialect != Dialect::Sqlite);
        let store = Self {
            pools: Arc::new(LivePools::open((sessions.clone(), options), sizes, statement_timeout)),
            statements: RenderedStatements::new(dialect),
            heal_cursor: AtomicI64::new(0),
            recount_cursor: AtomicI64::new(0),
            options: probe_options,
            sessions,
            sealer: Sealer::new(config.secret_keys.clone()),
            statement_size: StatementSize { rows: config.statement_rows_max, bytes: config.statement_bytes_max },
            packet_bytes: AtomicUsize::new(usize::MAX),
            failed_batches: FailedBatches::new(config.halve_after),
            _file_lock: file_lock,
        };
        if let Err(error) = store.read_packet_max().await {
            tracing::warn!(%error, "cannot read the maximum packet size of the database");
        }
        store.seal_webhooks().await?;
        store.seal_channels().await?;
        if let Err(error) = store.seal_xxl_by_hand().await {
            tracing::warn!(%error, "tokens of executors of XXL-JOB are not encrypted with the newest key yet; the next start tries again");
        }
        Ok(store)
    }
}

/// Whether the row of each server lists its sessions, so that other servers can end them.
async fn lists_connections(
    connection: &mut AnyConnection,
    dialect: Dialect,
    config: &StoreConfig,
) -> Result<bool, OpenError> {
    if dialect != Dialect::MySql {
        return Ok(false);
    }
    let row = connection.fetch_one("SELECT VERSION()").await.map_err(OpenError::Migrate)?;
    let version: String = row.try_get(0).map_err(OpenError::Migrate)?;
    let is_mariadb = version.contains("MariaDB");
    if !is_mariadb {
        tracing::warn!(version, "MySQL is experimental: servers are tested only with MariaDB and PostgreSQL");
    }
    Ok(config.ends_connections.unwrap_or(!is_mariadb))
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
    let unreachable_error = |source| OpenError::Unreachable { url: url.to_string(), source };
    match tokio::time::timeout(timeout, AnyConnection::connect_with(options)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(sqlx::Error::Configuration(_))) => Err(OpenError::Url { url: url.to_string() }),
        Ok(Err(source)) => Err(connect_error(url, source)),
        Err(_) => {
            let message = format!("no answer within {}", rondel_core::time::format_duration(timeout));
            Err(unreachable_error(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, message))))
        }
    }
}

fn connect_error(url: &DatabaseUrl, source: sqlx::Error) -> OpenError {
    match url.sqlite_path() {
        Some(path) => OpenError::File { path: path_text(path), source: std::io::Error::other(source) },
        None => refused_error(url, &source).unwrap_or_else(|| OpenError::Unreachable { url: url.to_string(), source }),
    }
}

/// An error that the operator of a new installation can fix. The message states how. `None` for any other error.
fn refused_error(url: &DatabaseUrl, error: &sqlx::Error) -> Option<OpenError> {
    let sqlx::Error::Database(database) = error else { return None };
    let hint = failure::hint(error)?.to_owned();
    Some(OpenError::Refused { url: url.to_string(), reason: database.message().to_owned(), hint })
}

/// Like [`refused_error`], for a database whose user may connect, but not create tables.
fn migrate_error(url: &DatabaseUrl, error: OpenError) -> OpenError {
    let OpenError::Migrate(sqlx::Error::Database(database)) = &error else { return error };
    if !failure::is_forbidden(database.as_ref()) {
        return error;
    }
    let (user, name) = url.user_and_name();
    let (user, name) = (user.unwrap_or("USER"), name.unwrap_or("DATABASE"));
    let grant_statement = match url.dialect() {
        Dialect::Postgres => format!("ALTER DATABASE \"{name}\" OWNER TO \"{user}\""),
        Dialect::MySql | Dialect::Sqlite => format!("GRANT ALL ON `{name}`.* TO '{user}'"),
    };
    let hint =
        format!("user {user} may not create tables in database {name}; run as its administrator: {grant_statement}");
    OpenError::Refused { url: url.to_string(), reason: database.message().to_owned(), hint }
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn with_absolute_path(url: &DatabaseUrl) -> Result<DatabaseUrl, OpenError> {
    let Some(path) = url.sqlite_path() else { return Ok(url.clone()) };
    let path = std::path::absolute(path).map_err(|source| OpenError::File { path: path_text(path), source })?;
    Ok(DatabaseUrl::sqlite_file(path))
}

/// Takes the lock that reserves the file for this server. The lock lives as long as the returned file.
fn lock_file(path: &Path) -> Result<File, OpenError> {
    let file_error = |path: &Path, source| OpenError::File { path: path_text(path), source };
    let open_file = |path: &Path| owner_only_options().open(path).map_err(|source| file_error(path, source));
    let path_beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    // SQLite creates its other files with the mode of the database file.
    open_file(path)?;
    let lock_path = path_beside(".lock");
    let lock = open_file(&lock_path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path_text(path) }),
        Err(TryLockError::Error(source)) => return Err(file_error(&lock_path, source)),
    }
    for suffix in ["", ".lock", "-journal", "-wal", "-shm"] {
        remove_access_of_others(&path_beside(suffix));
    }
    Ok(lock)
}

/// Opens a file for reading and writing. A missing file is created with access for its owner only.
fn owner_only_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Removes the access of other users to a file that an older server made readable for all.
#[cfg(unix)]
fn remove_access_of_others(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(metadata) = std::fs::metadata(path) else { return };
    if metadata.permissions().mode() & 0o077 == 0 {
        return;
    }
    if let Err(error) = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)) {
        tracing::warn!(path = %path.display(), %error, "other users of this machine may read a file of the database");
    }
}

#[cfg(not(unix))]
fn remove_access_of_others(_path: &Path) {}
