use std::time::Duration;

use super::query::CHUNK_MAX;
use super::url::DatabaseUrl;
use crate::sealed::SecretKeys;

#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub url: DatabaseUrl,
    /// Maximum number of connections. On SQLite one of them writes, and the others read.
    pub pool_size: u32,
    /// Version of this program, such as `0.2.0`. The schema states the oldest version that may use it.
    pub server_version: String,
    /// Maximum time that a statement waits for a lock.
    pub lock_timeout: Duration,
    /// Maximum duration of a statement.
    pub statement_timeout: Duration,
    /// Maximum time that a transaction may be idle. Shorter than a lease, so that the locks of a stopped node do not outlast its lease.
    pub idle_in_transaction: Duration,
    /// How long opening the store waits for the database, and how long a call waits for a free connection.
    pub connect_timeout: Duration,
    /// How long a server waits at its start for another server that migrates the database.
    pub migration_wait: Duration,
    /// Maximum number of rows that one statement writes, 512 at most.
    pub statement_rows_max: usize,
    /// Maximum size of the values that one statement writes, in bytes, unless one row is larger. MySQL's `max_allowed_packet` lowers it.
    pub statement_bytes_max: usize,
    /// Number of failures of a batch after which the batch is halved. A failure counts only if the database still answers.
    pub halve_after: u32,
    /// The age from which a connection is replaced if the database was found to be read-only since the connection was opened. The address
    /// may lead to another server by then.
    pub read_only_recheck: Duration,
    /// Whether servers end the sessions of other servers whose leases have ended. `None` means only on a database that does not end idle
    /// transactions itself.
    pub ends_connections: Option<bool>,
    /// The keys that seal stored secrets. Without keys, secrets are stored as plain text.
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
            migration_wait: Duration::from_secs(60),
            statement_rows_max: CHUNK_MAX,
            statement_bytes_max: 4 << 20,
            halve_after: 2,
            read_only_recheck: Duration::from_secs(1),
            ends_connections: None,
            secret_keys: None,
        }
    }
}
