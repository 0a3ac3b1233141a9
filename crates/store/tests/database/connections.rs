//! Sessions of a server that was stopped inside a transaction, on a database that does not end them; and a database that refuses sessions.

use std::time::Duration;

use rondel_store::cluster::NodeReport;
use rondel_store::{Cluster, SqlStore, StoreConfig, Tokens, Upkeep};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row};

use crate::support::Scratch;
use crate::{TestDatabase, join};

/// MariaDB takes the place of MySQL here. MySQL has no limit for an idle transaction, so the locks would last as long as the connection.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_a_server_whose_lease_has_ended_are_released_by_another_one() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("mysql")) {
        let config = StoreConfig { ends_connections: Some(true), ..database.config.clone() };
        let (stopped, other) = (SqlStore::open(&config).await.unwrap(), SqlStore::open(&config).await.unwrap());
        let token = join(&stopped, "stopped", Duration::from_secs(600)).await;
        stopped.report_node(token, &NodeReport::default()).await.unwrap();
        let listed = database.number("SELECT CAST(LENGTH(connection_ids) AS SIGNED) FROM node").await;
        assert!(listed > 0, "its row lists its sessions");

        // A test cannot stop a server inside a transaction, so this session is added to the list by hand.
        assert!(stopped.begin_pass("test", Duration::ZERO).await.unwrap());
        let mut held = AnyConnection::connect(&database.url).await.unwrap();
        let id: i64 = held.fetch_one("SELECT CAST(CONNECTION_ID() AS SIGNED)").await.unwrap().try_get(0).unwrap();
        database.execute(&format!("UPDATE node SET connection_ids = CONCAT(connection_ids, ',{id}')")).await;
        let mut transaction = held.begin().await.unwrap();
        transaction.execute("UPDATE housekeeping_pass SET last_at_ms = 1").await.unwrap();

        let survivor = join(&other, "other", Duration::from_secs(600)).await;
        let end = tokio::time::Instant::now() + Duration::from_secs(30);
        other.report_node(survivor, &NodeReport::default()).await.unwrap();
        assert!(transaction.execute("UPDATE housekeeping_pass SET last_at_ms = 2").await.is_ok(), "its lease holds");
        // After a restart of the database, an old list can contain ids of a living server's sessions.
        let (one, two, three) = tokio::join!(other.now(), other.now(), other.now());
        for now in [one, two, three] {
            now.unwrap();
        }
        other.report_node(survivor, &NodeReport::default()).await.unwrap();
        let mut probe = AnyConnection::connect(&database.url).await.unwrap();
        let row = probe.fetch_one("SELECT connection_ids FROM node WHERE name = 'other'").await.unwrap();
        let living: String = row.try_get(0).unwrap();
        let added =
            format!("UPDATE node SET connection_ids = CONCAT(connection_ids, ',{living}') WHERE name = 'stopped'");
        database.execute(&added).await;
        let count = format!("SELECT COUNT(*) FROM information_schema.processlist WHERE id IN ({living})");
        let living_count = database.number(&count).await;
        database.execute("UPDATE node SET lease_until_ms = 1 WHERE name = 'stopped'").await;
        while other.begin_pass("test", Duration::ZERO).await.is_err() {
            assert!(tokio::time::Instant::now() < end, "the locks are held still");
            other.report_node(survivor, &NodeReport::default()).await.unwrap();
        }
        assert!(transaction.execute("SELECT 1").await.is_err(), "the session was ended");
        assert_eq!(database.number(&count).await, living_count, "the sessions of a living server were not");
        assert_eq!(database.number("SELECT COUNT(*) FROM node WHERE connection_ids IS NOT NULL").await, 1);
        stopped.close().await;
        other.close().await;
        database.end().await;
    }
}

#[tokio::test]
async fn a_database_that_refuses_connections_is_away_and_no_fault() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let config = StoreConfig { connect_timeout: Duration::from_secs(2), ..database.config.clone() };
        let store = SqlStore::open(&config).await.unwrap();
        let Some(Scratch { server_url, name, .. }) = &database.scratch else { unreachable!() };
        let mut connection = AnyConnection::connect(server_url).await.unwrap();
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        connection.execute(AssertSqlSafe(format!("ALTER DATABASE \"{name}\" ALLOW_CONNECTIONS false"))).await.unwrap();
        connection.execute(AssertSqlSafe(end)).await.unwrap();
        for _ in 0..3 {
            let error = store.token("none").await.unwrap_err();
            assert!(error.is_transient(), "{error:?}");
        }
        connection.execute(AssertSqlSafe(format!("ALTER DATABASE \"{name}\" ALLOW_CONNECTIONS true"))).await.unwrap();
        assert_eq!(store.token("none").await.unwrap(), None);
        store.close().await;
        database.end().await;
    }
}
