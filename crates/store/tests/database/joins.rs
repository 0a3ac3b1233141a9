//! Servers that start while others are at work.

use std::time::Duration;

use rondel_store::SqlStore;
use sqlx::{AnyConnection, Connection, Executor};

use super::{TestDatabase, join};

/// A server that takes over many runs of a dead server keeps that server's row locked for a long time.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_joins_while_the_row_of_another_one_is_held() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let store = SqlStore::open(&database.config).await.unwrap();
        let dead = join(&store, "dead", Duration::from_secs(60)).await;
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut transaction = holder.begin().await.unwrap();
        transaction.execute("UPDATE node SET ended_at_ms = 1 WHERE name = 'dead'").await.unwrap();
        let new = join(&store, "new", Duration::from_secs(60)).await;
        assert!(new.node > dead.node, "{}", database.url);
        transaction.rollback().await.unwrap();
        holder.close().await.unwrap();
        store.close().await;
        database.end().await;
    }
}
