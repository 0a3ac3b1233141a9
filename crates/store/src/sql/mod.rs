//! The store on SQLite, PostgreSQL and MySQL/MariaDB.
//!
//! Statements are in the files of their nouns, each written once in the SQL that the databases share; [`dialect`] has the differences. Only
//! [`Tx`] sends the statements of a transaction. `transact!` begins, ends and retries transactions.

mod access;
mod activity;
mod alerts;
mod begin_transaction;
mod calendars;
mod catalog;
mod changes;
mod channel_uses;
mod channels;
mod cluster;
mod config;
mod connections;
mod counters;
mod declarations;
mod dialect;
mod executors;
mod failed_batches;
mod failure;
mod heal;
mod incident_messages;
mod logs;
mod message_removal;
mod migrate;
mod oldest;
mod online_index;
mod open;
mod outbox;
mod planner;
#[cfg(test)]
mod plans;
mod pools;
mod pumps;
mod query;
mod reports;
mod request_keys;
mod rollup_rows;
mod rollups;
mod rows;
mod run;
mod saved_filters;
mod scripts;
mod session;
mod shadow;
mod stats;
mod traces;
mod upkeep;
mod url;
mod xxl;

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::time::Duration;

use sqlx::any::{AnyArguments, AnyConnectOptions, AnyRow};
use sqlx::{Any, AssertSqlSafe, Executor, SqlSafeStr, Transaction};

pub use self::config::StoreConfig;
pub use self::url::DatabaseUrl;

use self::begin_transaction::BeginTransaction;
use self::dialect::{Dialect, RenderedStatements};
use self::failed_batches::FailedBatches;
use self::failure::{Failure, store_error};
use self::pools::{LivePools, Pools};
use self::query::{Query, StatementSize};
use self::session::Sessions;
use crate::sealed::Sealer;
use crate::{DatabaseTroubleKind, Result, StoreError};

/// The store on a database.
#[derive(Debug)]
pub struct SqlStore {
    pools: Arc<LivePools>,
    statements: RenderedStatements,
    /// The last run that healing has checked, among the runs whose ends jobs wait for; 0 before the first.
    heal_cursor: AtomicI64,
    /// The last run that was checked again, among the runs that had no final verdict when the count reached them; 0 before the first.
    recount_cursor: AtomicI64,
    /// For a connection outside of the pools.
    options: AnyConnectOptions,
    sessions: Sessions,
    sealer: Sealer,
    /// The limits of one statement, from the configuration.
    statement_size: StatementSize,
    /// Maximum size of one statement in bytes, from the packet limit of the database.
    packet_bytes: AtomicUsize,
    failed_batches: FailedBatches,
    /// SQLite: the lock of the database file, which lives as long as the store.
    _file_lock: Option<File>,
}

/// Runs an expression in a transaction and commits it; retries on a conflict with another transaction. `at most` limits the number of rows
/// of each statement. A macro, because the compiler cannot prove that the future of a generic function over an async closure is `Send`.
macro_rules! transact {
    ($store:expr, $operation:literal, |$tx:ident| $work:expr) => {
        transact!($store, $operation, at most usize::MAX, |$tx| $work)
    };
    ($store:expr, $operation:literal, at most $rows:expr, |$tx:ident| $work:expr) => {{
        let mut try_counter = $crate::sql::TryCounter::new($operation);
        loop {
            // No `return` or `?` here: the calling function may have to count the failure.
            let mut transaction = match $store.begin($operation).await {
                Ok(transaction) => transaction,
                Err(error) => break Err(error),
            };
            transaction.size.rows = transaction.size.rows.min($rows);
            let work_result: $crate::Result<_> = {
                let $tx = &mut transaction;
                async { $work }.await
            };
            match transaction.end(work_result).await {
                Ok(value) => break Ok(value),
                Err(error) => match try_counter.wait_for_next_try(error).await {
                    Some(error) => break Err(error),
                    None => continue,
                },
            }
        }
    }};
}
use transact;

/// Maximum number of tries of a transaction that conflicts with others.
const TRY_MAX: u32 = 5;

/// Counts the tries of a transaction.
struct TryCounter {
    operation: &'static str,
    count: u32,
}

impl TryCounter {
    fn new(operation: &'static str) -> Self {
        Self { operation, count: 1 }
    }

    /// Waits briefly before the next try. Returns the error if no try is left.
    async fn wait_for_next_try(&mut self, error: StoreError) -> Option<StoreError> {
        if failure::classify_store_error(&error) != Failure::Contention || self.count == TRY_MAX {
            return Some(error);
        }
        let (operation, tries) = (self.operation, self.count);
        tracing::debug!(operation, tries, %error, "a transaction conflicted with another one; trying again");
        tokio::time::sleep(wait_before_try(self.count)).await;
        self.count += 1;
        None
    }
}

impl SqlStore {
    /// Closes every connection after the current calls have ended.
    pub async fn close(&self) {
        let pools = self.pools.current_pools();
        pools.write.close().await;
        pools.read.close().await;
    }

    async fn begin(&self, operation: &'static str) -> Result<Tx<'_>> {
        let (pools, begin_text) = (self.pools.current_pools(), AssertSqlSafe(Arc::clone(&self.sessions.begin_text)));
        let session = pools.write.acquire().await.map_err(|source| self.to_store_error(operation, source))?;
        let begin =
            BeginTransaction::new(session, begin_text.into_sql_str(), (Arc::clone(&self.pools), Arc::clone(&pools)));
        let inner = self.pools.answer(&pools, begin).await;
        let inner = inner.map_err(|source| self.to_store_error(operation, source))?;
        Ok(Tx { inner, store: self, pools, operation, size: self.statement_size() })
    }

    /// Turns an error of the driver into one of the store. If a session accepts no writes, that is noted, so that all sessions opened until
    /// now are soon replaced.
    fn to_store_error(&self, operation: &'static str, source: sqlx::Error) -> StoreError {
        if failure::trouble_kind(&source) == DatabaseTroubleKind::ReadOnly {
            self.sessions.read_only.note();
        }
        store_error(operation, source)
    }

    /// A query in the form that the driver takes. In a session that other clients share, no statement is prepared.
    fn driver_query(&self, query: Query) -> DriverQuery {
        let (text, arguments) = self.statements.render_query(query);
        sqlx::query_with(AssertSqlSafe(text), arguments).persistent(!self.sessions.are_shared)
    }

    /// Rows, read outside of any transaction.
    async fn rows(&self, query: Query) -> Result<Vec<AnyRow>> {
        let operation = query.statement.name;
        if self.sessions.are_shared {
            let mut tx = self.begin(operation).await?;
            let rows = tx.rows(query).await;
            return tx.end(rows).await;
        }
        let pools = self.pools.current_pools();
        let mut session = pools.read.acquire().await.map_err(|source| self.to_store_error(operation, source))?;
        let rows = self.pools.answer(&pools, self.driver_query(query).fetch_all(&mut *session)).await;
        rows.map_err(|source| self.to_store_error(operation, source))
    }

    /// The first row, read outside of any transaction.
    async fn row(&self, query: Query) -> Result<Option<AnyRow>> {
        let operation = query.statement.name;
        if self.sessions.are_shared {
            let mut tx = self.begin(operation).await?;
            let row = tx.row(query).await;
            return tx.end(row).await;
        }
        let pools = self.pools.current_pools();
        let mut session = pools.read.acquire().await.map_err(|source| self.to_store_error(operation, source))?;
        let row = self.pools.answer(&pools, self.driver_query(query).fetch_optional(&mut *session)).await;
        row.map_err(|source| self.to_store_error(operation, source))
    }

    /// Executes a single statement that writes, outside of any transaction. Returns how many rows it changed.
    async fn execute(&self, query: Query) -> Result<u64> {
        let operation = query.statement.name;
        if self.sessions.are_shared {
            let mut tx = self.begin(operation).await?;
            let result = tx.execute(query).await;
            return tx.end(result).await;
        }
        let pools = self.pools.current_pools();
        let mut session = pools.write.acquire().await.map_err(|source| self.to_store_error(operation, source))?;
        let result = self.pools.answer(&pools, self.driver_query(query).execute(&mut *session)).await;
        Ok(result.map_err(|source| self.to_store_error(operation, source))?.rows_affected())
    }
}

type DriverQuery = sqlx::query::Query<'static, Any, AnyArguments>;

/// A transaction.
struct Tx<'s> {
    inner: Transaction<'static, Any>,
    store: &'s SqlStore,
    pools: Arc<Pools>,
    operation: &'static str,
    size: StatementSize,
}

impl Tx<'_> {
    async fn rows(&mut self, query: Query) -> Result<Vec<AnyRow>> {
        let operation = query.statement.name;
        let work = self.inner.fetch_all(self.store.driver_query(query));
        let rows = self.store.pools.answer(&self.pools, work).await;
        rows.map_err(|source| self.store.to_store_error(operation, source))
    }

    async fn row(&mut self, query: Query) -> Result<Option<AnyRow>> {
        let operation = query.statement.name;
        let work = self.inner.fetch_optional(self.store.driver_query(query));
        let row = self.store.pools.answer(&self.pools, work).await;
        row.map_err(|source| self.store.to_store_error(operation, source))
    }

    async fn execute(&mut self, query: Query) -> Result<u64> {
        let operation = query.statement.name;
        let work = self.inner.execute(self.store.driver_query(query));
        let result = self.store.pools.answer(&self.pools, work).await;
        Ok(result.map_err(|source| self.store.to_store_error(operation, source))?.rows_affected())
    }

    /// Executes a statement that must write `expected` rows, which this transaction has locked.
    async fn execute_all(&mut self, query: Query, expected: usize) -> Result<()> {
        let operation = query.statement.name;
        let changed_count = self.execute(query).await?;
        if usize::try_from(changed_count).is_ok_and(|changed_count| changed_count == expected) {
            return Ok(());
        }
        Err(failure::unexpected_count(operation, expected, changed_count))
    }

    /// Commits the transaction, or rolls it back.
    async fn end<T>(self, result: Result<T>) -> Result<T> {
        let Self { inner, store, pools, operation, .. } = self;
        match result {
            Ok(value) => {
                rondel_failpoint::try_pass(operation, "written")
                    .map_err(|injected| injected_error(operation, injected))?;
                let commit_result = store.pools.commit(&pools, inner.commit()).await;
                commit_result.map_err(|source| store.to_store_error(operation, source))?;
                rondel_failpoint::try_pass(operation, "committed")
                    .map_err(|injected| injected_error(operation, injected))?;
                Ok(value)
            }
            Err(error) => {
                if let Err(error) = store.pools.answer(&pools, inner.rollback()).await {
                    // The connection broke, and the transaction ended with it.
                    tracing::debug!(operation, %error, "a transaction could not be rolled back");
                }
                Err(error)
            }
        }
    }
}

/// The error that a test injects into a transaction: the connection broke before the database's answer came.
fn injected_error(operation: &'static str, _: rondel_failpoint::Injected) -> StoreError {
    store_error(operation, sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()))
}

/// The wait before the next try: 5 to 9 ms, doubled for each try after the first.
fn wait_before_try(try_count: u32) -> Duration {
    let jitter_ms = RandomState::new().build_hasher().finish() % 5;
    Duration::from_millis(5 + jitter_ms) * 2_u32.pow(try_count.min(6) - 1)
}

/// Whether an error means that a key exists.
fn is_duplicate_key(error: &StoreError) -> bool {
    failure::classify_store_error(error) == Failure::Duplicate
}
