//! Jobs that are handed over to another server.

use std::time::Duration;

use rondel_core::RunId;
use rondel_store::{Cluster as _, Move as _, SqlStore, StoreConfig};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use tokio::time::timeout;

use super::{TestDatabase, join, pending};

/// To hand over a job with hundreds of thousands of runs takes longer than a lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_renews_its_lease_while_it_gets_a_job() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let (lock_timeout, statement_timeout) = (Duration::from_secs(40), Duration::from_secs(60));
        let store =
            SqlStore::open(&StoreConfig { lock_timeout, statement_timeout, ..database.config.clone() }).await.unwrap();
        let (token, runs) = pending(&store, 3).await;
        let other = join(&store, "other", Duration::from_secs(600)).await;
        // The handover waits for this transaction.
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut transaction = holder.begin().await.unwrap();
        let hold = format!("UPDATE run SET message = 'held' WHERE id = {}", runs[0].id);
        transaction.execute(AssertSqlSafe(hold.as_str())).await.unwrap();
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let renewal = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let renewed = timeout(Duration::from_secs(15), store.renew(other, Duration::from_secs(600))).await;
            transaction.rollback().await.unwrap();
            renewed
        };
        let (given, renewed) = tokio::join!(store.hand_over(token, &ids, other.node), renewal);
        assert!(renewed.is_ok_and(|renewed| renewed.unwrap().is_some()), "{}", database.url);
        assert_eq!(given.unwrap(), ids);
        holder.close().await.unwrap();
        store.close().await;
        database.end().await;
    }
}
