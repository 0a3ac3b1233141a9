//! A database that accepts no writes for a while, and connections that were opened during that time.

use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::{Cluster, DatabaseTroubleKind, SqlStore, StoreConfig, Upkeep};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

use crate::TestDatabase;
use crate::support::Scratch;

const LIMIT: Duration = Duration::from_secs(30);

/// The address leads to a standby for a while. A connection that was opened in that time accepts no writes until it is closed.
#[tokio::test]
async fn a_connection_that_takes_no_writes_is_replaced() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let config = StoreConfig { read_only_recheck: Duration::from_millis(100), ..database.config.clone() };
        let store = SqlStore::open(&config).await.unwrap();
        let Some(Scratch { server_url, name, .. }) = &database.scratch else { unreachable!() };
        let mut connection = AnyConnection::connect(server_url).await.unwrap();
        let write = async || store.begin_pass("test", Duration::ZERO).await;
        assert!(write().await.is_ok());
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        let set = format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on");
        connection.execute(AssertSqlSafe(set)).await.unwrap();
        connection.execute(AssertSqlSafe(end)).await.unwrap();
        let error = loop {
            // The first statement fails because its session was ended.
            match write().await {
                Ok(_) => {}
                Err(error) if store.diagnose(&error).await == DatabaseTroubleKind::ReadOnly => break error,
                Err(error) => assert!(error.is_transient(), "{error:?}"),
            }
        };
        assert!(error.is_transient(), "{error:?}");
        // Reads continue for as long as the database is read-only.
        for _ in 0..10 {
            assert!(store.now().await.unwrap() > Timestamp::EPOCH);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let reset = format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only");
        connection.execute(AssertSqlSafe(reset)).await.unwrap();
        let end = tokio::time::Instant::now() + LIMIT;
        while write().await.is_err() {
            assert!(tokio::time::Instant::now() < end, "no write is taken since the database takes them again");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        store.close().await;
        database.end().await;
    }
}
