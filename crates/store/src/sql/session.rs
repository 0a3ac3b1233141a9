//! The sessions of a database: their settings, when they are closed, and poolers in front of the database.
//!
//! A session that accepts no writes is soon closed, because after a failover the same address may lead to another server. A pooler may give
//! each transaction another session. Behind such a pooler, settings for a session would apply to the transactions of other clients, so
//! every statement runs in a transaction that makes its own settings.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rondel_core::time::millis;
use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row};
use tokio::time::{Instant, timeout};

use super::config::StoreConfig;
use super::dialect::Dialect;

/// Idle time after which a connection is checked before use.
const PING_AFTER: Duration = Duration::from_secs(1);
/// How long that check may take.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long after the statement timeout an answer is still awaited.
pub(super) const ANSWER_MARGIN: Duration = Duration::from_secs(1);
/// Number of checks whether two connections share a session. Several, because other clients may use the pooler at the same time.
const POOLER_TRIES: u32 = 3;

/// Maximum number of sessions that a row lists. This is more than a pool has, because new sessions are listed before all old ones have
/// ended.
pub(super) const LISTED_CONNECTION_MAX: usize = 200;

/// The ids of the newest sessions that this store has opened, the newest last. At most [`LISTED_CONNECTION_MAX`].
#[derive(Debug, Default)]
pub(super) struct OwnConnectionIds(Mutex<VecDeque<i64>>);

impl OwnConnectionIds {
    pub(super) fn add(&self, id: i64) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() == LISTED_CONNECTION_MAX {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    pub(super) fn as_text(&self) -> String {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
    }
}

/// When a session was last found to accept no writes.
#[derive(Debug)]
pub(super) struct LastReadOnly {
    /// The instant from which `at_ms` counts.
    since: Instant,
    /// In milliseconds after `since`; negative before the first time.
    at_ms: AtomicI64,
}

impl LastReadOnly {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), at_ms: AtomicI64::new(-1) }
    }

    pub(super) fn note(&self) {
        self.at_ms.fetch_max(millis(self.since.elapsed()), Ordering::Relaxed);
    }

    /// Whether a session of this age must be replaced, because it may lead to a database that accepts no writes.
    fn is_stale(&self, age: Duration, recheck_age: Duration) -> bool {
        let connected_ms = millis(self.since.elapsed()).saturating_sub(millis(age));
        age >= recheck_age && connected_ms <= self.at_ms.load(Ordering::Relaxed)
    }
}

/// How sessions are opened and checked, and how transactions begin in them.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    dialect: Dialect,
    /// The text that begins a transaction.
    pub(super) begin_text: Arc<str>,
    /// Whether a pooler gives each transaction another session.
    pub(super) are_shared: bool,
    settings: Arc<[String]>,
    pub(super) read_only: Arc<LastReadOnly>,
    /// The ids of this store's sessions, which the server's row lists. `None` if no other server has to end these sessions.
    pub(super) own_connection_ids: Option<Arc<OwnConnectionIds>>,
    read_only_recheck: Duration,
    acquire_timeout: Duration,
    /// Time limit for the end of an interrupted statement: the database ends each statement earlier.
    release_timeout: Duration,
}

impl Sessions {
    pub(super) fn new(dialect: Dialect, (are_shared, lists_connections): (bool, bool), config: &StoreConfig) -> Self {
        let (begin_text, settings) = if are_shared {
            let local_settings = postgres_settings(config).into_iter().map(|setting| format!("; SET LOCAL {setting}"));
            let begin_text = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned() + &local_settings.collect::<String>();
            (begin_text, Vec::new())
        } else {
            (dialect.begin().to_owned(), settings(dialect, config))
        };
        Self {
            dialect,
            begin_text: begin_text.into(),
            are_shared,
            settings: settings.into(),
            read_only: Arc::new(LastReadOnly::new()),
            own_connection_ids: lists_connections.then(Arc::default),
            read_only_recheck: config.read_only_recheck,
            acquire_timeout: config.connect_timeout,
            release_timeout: config.statement_timeout + ANSWER_MARGIN,
        }
    }

    pub(super) fn pool(&self, size: u32) -> AnyPoolOptions {
        let (read_only, recheck_age) = (Arc::clone(&self.read_only), self.read_only_recheck);
        let is_sqlite = self.dialect == Dialect::Sqlite;
        let (is_mysql, release_timeout) = (self.dialect == Dialect::MySql, self.release_timeout);
        let sessions = self.clone();
        AnyPoolOptions::new()
            .max_connections(size)
            .min_connections(0)
            .acquire_timeout(self.acquire_timeout)
            .idle_timeout(Duration::from_secs(300))
            // A round trip per use would cost too much, and a connection that was just used is alive.
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                let is_stale = read_only.is_stale(meta.age, recheck_age);
                // If the disk is full or fails, SQLite rolls back the transaction. The driver does not notice that, and begins no other
                // transaction in this session.
                let is_in_old_transaction = is_sqlite && connection.is_in_transaction();
                Box::pin(async move {
                    if is_stale || is_in_old_transaction {
                        return Ok(false);
                    }
                    if meta.idle_for <= PING_AFTER {
                        return Ok(true);
                    }
                    match timeout(PING_TIMEOUT, connection.ping()).await {
                        Ok(ping_result) => ping_result.map(|()| true),
                        // The pool tries another session.
                        Err(_) => Ok(false),
                    }
                })
            })
            // MySQL's driver waits forever for the rest of an answer if its caller was dropped between two parts of the answer. The pool
            // would wait with the driver, and have one session less.
            .after_release(move |connection, _| {
                Box::pin(async move {
                    if !is_mysql {
                        return Ok(true);
                    }
                    match timeout(release_timeout, connection.ping()).await {
                        Ok(ping_result) => ping_result.map(|()| true),
                        Err(elapsed) => Err(sqlx::Error::Io(elapsed.into())),
                    }
                })
            })
            .after_connect(move |connection, _| {
                let sessions = sessions.clone();
                Box::pin(async move {
                    for statement in sessions.settings.iter() {
                        connection.execute(AssertSqlSafe(statement.as_str())).await?;
                    }
                    if sessions.dialect == Dialect::MySql {
                        wait_for_galera(connection).await?;
                    }
                    if is_read_only(connection, sessions.dialect).await? {
                        sessions.read_only.note();
                    }
                    if let Some(own_connection_ids) = &sessions.own_connection_ids {
                        let row = connection.fetch_one("SELECT CAST(CONNECTION_ID() AS SIGNED)").await?;
                        own_connection_ids.add(row.try_get(0)?);
                    }
                    Ok(())
                })
            })
    }
}

/// Whether the database accepts no writes. Reads may still work.
pub(super) async fn is_read_only(connection: &mut AnyConnection, dialect: Dialect) -> Result<bool, sqlx::Error> {
    match dialect {
        Dialect::Sqlite => Ok(false),
        Dialect::Postgres => {
            let row = connection.fetch_one("SHOW transaction_read_only").await?;
            Ok(row.try_get::<String, _>(0)? == "on")
        }
        Dialect::MySql => {
            let row = connection.fetch_one("SELECT CAST(@@GLOBAL.read_only AS SIGNED)").await?;
            Ok(row.try_get::<i64, _>(0)? != 0)
        }
    }
}

/// Waits until a Galera node has applied everything that its cluster has committed so far. After a failover the session may lead to a node
/// that has not yet applied changes that an earlier session has already read or written.
async fn wait_for_galera(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let variable = connection.fetch_optional("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'").await?;
    if variable.is_some_and(|row| row.try_get::<String, _>(1).is_ok_and(|value| value == "ON")) {
        connection.execute("SET STATEMENT wsrep_sync_wait = 1 FOR SELECT 1").await?;
    }
    Ok(())
}

/// Whether a pooler in front of PostgreSQL gives each transaction another session. If it does, a second connection gets the session that
/// the first one has just used.
pub(super) async fn are_sessions_shared(
    first_connection: &mut AnyConnection,
    options: &AnyConnectOptions,
    answer_timeout: Duration,
) -> Result<bool, sqlx::Error> {
    for _ in 0..POOLER_TRIES {
        let id_before = session_id(first_connection).await?;
        let Ok(second_connection) = timeout(answer_timeout, AnyConnection::connect_with(options)).await else {
            return Ok(true);
        };
        let mut second_connection = second_connection?;
        second_connection.execute("BEGIN").await?;
        let Ok(second_id) = timeout(answer_timeout, session_id(&mut second_connection)).await else { return Ok(true) };
        // While the second connection uses its session, the first gets another one, or waits if the pooler has no other.
        let id_after = timeout(answer_timeout, session_id(first_connection)).await;
        second_connection.execute("ROLLBACK").await?;
        second_connection.close().await?;
        let id_after = match id_after {
            Ok(id_after) => id_after?,
            Err(_) => return Ok(true),
        };
        if id_before == second_id? || id_before != id_after {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn session_id(connection: &mut AnyConnection) -> Result<i64, sqlx::Error> {
    connection.fetch_one("SELECT CAST(pg_backend_pid() AS BIGINT)").await?.try_get(0)
}

/// The size of SQLite's page cache per connection, in KiB. Connections that read little use less. The runs on a page of a chart are spread
/// over the whole table: with SQLite's default of 2 MB, each of them is read from the file again.
const SQLITE_CACHE_KIB: u32 = 8 * 1024;

/// The settings of each new connection.
fn settings(dialect: Dialect, config: &StoreConfig) -> Vec<String> {
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
            format!("PRAGMA cache_size = -{SQLITE_CACHE_KIB}"),
        ],
        Dialect::Postgres => {
            let isolation = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned();
            postgres_settings(config).into_iter().map(|setting| format!("SET {setting}")).chain([isolation]).collect()
        }
        // MariaDB reads /*M! … */ and MySQL reads /*!80000 … */; each treats the other's form as a comment. MySQL has no limit for an idle
        // transaction, so there the locks of a node that stops inside a transaction last as long as its connection.
        Dialect::MySql => vec![
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".to_owned(),
            format!("SET SESSION innodb_lock_wait_timeout = {}", seconds(lock_ms)),
            // A statement outside of a transaction commits immediately, whatever the default of the database is.
            format!(
                "SET SESSION time_zone = '+00:00', autocommit = 1 \
                 /*M! , max_statement_time = {}, idle_write_transaction_timeout = {} */ \
                 /*!80000 , max_execution_time = {statement_ms} */",
                seconds(statement_ms),
                seconds(idle_ms),
            ),
        ],
    }
}

/// The settings for PostgreSQL, each as the text after `SET`.
fn postgres_settings(config: &StoreConfig) -> Vec<String> {
    let lock_ms = millis(config.lock_timeout);
    let statement_ms = millis(config.statement_timeout);
    let idle_ms = millis(config.idle_in_transaction);
    vec![
        format!("lock_timeout = {lock_ms}"),
        format!("statement_timeout = {statement_ms}"),
        format!("idle_in_transaction_session_timeout = {idle_ms}"),
        // A generic plan that was made for an empty table is kept forever. Planning each time costs little, because no statement's text
        // grows with its rows.
        "plan_cache_mode = force_custom_plan".to_owned(),
        // Every statement names a few rows by an index. At thousands of updates per second the statistics are always outdated. The planner
        // would then expect a scan of the whole table to be cheaper, which costs a third of the throughput.
        "enable_seqscan = off".to_owned(),
        "enable_hashjoin = off".to_owned(),
        "enable_mergejoin = off".to_owned(),
        // The rows that an index names are in memory or on an SSD. The default expects a spinning disk, on which it would be cheaper to
        // scan all runs of a day than to read the few failed ones by an index.
        "random_page_cost = 1.1".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::query::{Query, Statement};
    use crate::sql::{SqlStore, transact};
    use crate::{DatabaseUrl, StoreError};

    #[tokio::test]
    async fn a_full_disk_leaves_a_session_that_writes_again() {
        const FILL: Statement = Statement { name: "fill", text: "INSERT INTO filler (text) VALUES (?)" };
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(folder.path().join("full.db"));
        let store = SqlStore::open(&StoreConfig { url, ..StoreConfig::default() }).await.unwrap();
        let write = store.pools.current_pools().write.clone();
        // This limit applies to the session that writes.
        for statement in ["CREATE TABLE filler (text TEXT NOT NULL)", "PRAGMA max_page_count = 1"] {
            write.execute(statement).await.unwrap();
        }
        let fill = async |len: usize| {
            transact!(store, "fill", |tx| tx.execute(Query::new(&FILL).text(&"x".repeat(len))).await)
        };
        let full = fill(8 << 20).await.unwrap_err();
        assert!(matches!(full, StoreError::Unavailable { .. }), "{full:?}");
        assert_eq!(fill(1).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_replaced_that_was_there_when_no_writes_were_taken() {
        let seen = LastReadOnly::new();
        let second = Duration::from_secs(1);
        tokio::time::advance(10 * second).await;
        assert!(!seen.is_stale(9 * second, second), "nothing was seen");
        seen.note();
        assert!(seen.is_stale(9 * second, second));
        assert!(!seen.is_stale(Duration::ZERO, second), "not each second anew");
        tokio::time::advance(5 * second).await;
        assert!(seen.is_stale(6 * second, second), "it is older than what was seen");
        assert!(!seen.is_stale(4 * second, second), "it is younger");
    }

    #[test]
    fn single_statements_are_committed_whatever_the_database_is_set_to() {
        let settings = settings(Dialect::MySql, &StoreConfig::default());
        assert!(settings.iter().any(|setting| setting.contains("autocommit = 1 ")), "{settings:?}");
    }

    #[test]
    fn a_shared_session_is_left_as_it_was() {
        let config = StoreConfig::default();
        let shared = Sessions::new(Dialect::Postgres, (true, false), &config);
        assert!(shared.settings.is_empty());
        assert_eq!(shared.begin_text.matches("SET LOCAL ").count(), postgres_settings(&config).len());
        let own = Sessions::new(Dialect::Postgres, (false, false), &config);
        assert_eq!((&*own.begin_text, own.settings.len()), ("BEGIN", postgres_settings(&config).len() + 1));
    }
}
