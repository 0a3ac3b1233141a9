//! Runs that are stored under an ended lease while another server takes over that lease's runs.

use std::time::Duration;

use rondel_core::{RunId, Timestamp};
use rondel_store::{Adopt as _, Cluster as _, SqlStore, StoreConfig};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

use super::{COPY_OPEN_ROWS, TestDatabase, join, pending};
use crate::support::assert_open_rows;

/// Open shards keep the next fire of their job from beginning. If the adopting server did not get them, it would begin that fire beside
/// them.
#[tokio::test(flavor = "multi_thread")]
async fn shards_that_are_stored_during_an_adoption_are_taken_over_with_their_broadcast() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let lock_timeout = Duration::from_secs(20);
        let statement_timeout = Duration::from_secs(30);
        let store =
            SqlStore::open(&StoreConfig { lock_timeout, statement_timeout, ..database.config.clone() }).await.unwrap();
        let (dead, runs) = pending(&store, 1).await;
        let root = runs[0].id;
        database.execute(&format!("UPDATE run SET shard_index = -1, shard_total = NULL WHERE id = {root}")).await;
        let heir = join(&store, "heir", Duration::from_secs(600)).await;
        store.release(dead, Timestamp::EPOCH).await.unwrap();
        let orphaned = store.orphaned_jobs(heir, &[dead.node.into()], 10).await.unwrap();
        assert_eq!(orphaned.jobs.len(), 1, "{}", database.url);

        // The dead server's transaction is still open while the other one adopts.
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut transaction = holder.begin().await.unwrap();
        let expand = format!("UPDATE run SET shard_total = 2, open_shards = 2, status = 'running' WHERE id = {root}");
        transaction.execute(AssertSqlSafe(expand.as_str())).await.unwrap();
        for (id, index) in [(9_001, 0), (9_002, 1)] {
            let shard = format!(
                "INSERT INTO run (id, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, shard_index, shard_total, \
                 trigger_kind, status, attempt, due_at_ms, node_id, node_epoch, parent_id, span_count) \
                 SELECT {id}, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, {index}, 2, \
                 trigger_kind, 'pending', attempt, due_at_ms, node_id, node_epoch, id, span_count FROM run WHERE id = {root}"
            );
            transaction.execute(AssertSqlSafe(shard.as_str())).await.unwrap();
            let open_row = format!("{COPY_OPEN_ROWS} id = {id}");
            transaction.execute(AssertSqlSafe(open_row.as_str())).await.unwrap();
        }
        let commit = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            transaction.commit().await.unwrap();
        };
        let (nodes, jobs) = ([dead.node.into()], [runs[0].job]);
        let (adopted, ()) = tokio::join!(store.adopt(heir, &nodes, &jobs), commit);
        let mut adopted: Vec<RunId> = adopted.unwrap().runs.iter().map(|adopted| adopted.run.id).collect();
        adopted.sort_unstable();
        assert_eq!(adopted, [root, RunId::new(9_001), RunId::new(9_002)], "{}", database.url);
        holder.close().await.unwrap();
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}

/// No transaction leaves such a row, but statements of an operator can. If it stayed, the job would wait for the adoption of that run for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_that_an_ended_run_left_is_removed_by_the_adoption_of_its_job() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (dead, runs) = pending(&store, 2).await;
        let heir = join(&store, "heir", Duration::from_secs(600)).await;
        database.execute(&format!("UPDATE run SET status = 'succeeded' WHERE id = {}", runs[0].id)).await;
        store.release(dead, Timestamp::EPOCH).await.unwrap();
        let orphaned = store.orphaned_jobs(heir, &[dead.node.into()], 10).await.unwrap();
        assert_eq!(orphaned.jobs[0].run_count, 2, "{}", database.url);
        let adopted = store.adopt(heir, &[dead.node.into()], &[runs[0].job]).await.unwrap().runs;
        let adopted: Vec<RunId> = adopted.iter().map(|adopted| adopted.run.id).collect();
        assert_eq!(adopted, [runs[1].id], "{}", database.url);
        let orphaned = store.orphaned_jobs(heir, &[dead.node.into()], 10).await.unwrap();
        assert_eq!(orphaned.jobs, [], "{}", database.url);
        assert_open_rows(&store).await;
        store.close().await;
        database.end().await;
    }
}
