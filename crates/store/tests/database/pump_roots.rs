//! Root runs of pump jobs that are older than the retention.

use std::time::Duration;

use rondel_core::RunId;
use rondel_store::{Runs as _, SqlStore, Upkeep as _};

use super::{TestDatabase, pending};

/// A pump without a schedule that has ended must not begin again when the retention of its last run has passed.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_root_run_of_a_pump_job_stays() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (_, runs) = pending(&store, 3).await;
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let end =
            "UPDATE run SET shard_index = -1, shard_total = NULL, status = 'cancelled', finished_at_ms = fire_at_ms";
        for statement in [end, "DELETE FROM open_run", "INSERT INTO pump_job (job_id) VALUES (1)"] {
            database.execute(statement).await;
        }
        let finished_before = runs[2].fire_at + Duration::from_secs(3_600);
        let purge_all = async || {
            let (mut removed_count, mut after) = (0, Some(RunId::new(0)));
            while let Some(from) = after {
                let step = store.purge(finished_before, from, 100).await.unwrap();
                removed_count += step.removed_count;
                after = step.next_after;
            }
            removed_count
        };
        assert_eq!((purge_all().await, purge_all().await), (2, 0), "{}", database.url);
        let kept: Vec<RunId> = store.runs(&ids).await.unwrap().into_iter().map(|run| run.id).collect();
        assert_eq!(kept, [ids[2]], "{}", database.url);
        database.execute("DELETE FROM pump_job").await;
        assert_eq!(purge_all().await, 1, "the job is no pump job any more");
        store.close().await;
        database.end().await;
    }
}
