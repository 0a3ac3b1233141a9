//! How much PostgreSQL reads if its statistics are from a time when few runs were open and few had failed, as after an outage.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{IdGen, JobId, RunId, Timestamp};
use rondel_store::ledger::{AttemptEnd, Finisher};
use rondel_store::{Adopt as _, Cancel as _, Cluster as _, Finish as _, Rollups as _, SqlStore};

use super::packets::succeeded;
use super::{COPY_OPEN_ROWS, TestDatabase, join, pending};

/// Number of copies of the one run. A hundred copies belong to one job.
const COPY_COUNT: i64 = 20_000;

async fn copy_runs(database: &TestDatabase, ids_after: i64, status: &str) {
    let copy = format!(
        "INSERT INTO run (id, namespace_id, job_id, job_version, app_id, fire_at_ms, cause, shard_index, trigger_kind, \
         status, attempt, due_at_ms, node_id, node_epoch, span_count) \
         SELECT {ids_after} + number, namespace_id, 2 + number / 100, job_version, app_id, fire_at_ms, {ids_after} + number, \
         shard_index, trigger_kind, '{status}', attempt, due_at_ms, node_id, node_epoch, span_count \
         FROM run, generate_series(1, {COPY_COUNT}) AS number WHERE id = 100"
    );
    database.execute(&copy).await;
}

/// Number of entries of an index that have been read by sessions that have ended.
async fn entries_read(database: &TestDatabase, index: &str) -> i64 {
    database.number(&format!("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = '{index}'")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_adopted_without_a_walk_of_all_that_is_open() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.url.starts_with("postgres")) {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (dead, runs) = pending(&store, 1).await;
        database.execute("ALTER TABLE run SET (autovacuum_enabled = false)").await;
        database.execute("ALTER TABLE open_run SET (autovacuum_enabled = false)").await;
        database.execute("ALTER TABLE unsuccessful_run SET (autovacuum_enabled = false)").await;
        copy_runs(&database, 1_000, "succeeded").await;
        database.execute("ANALYZE run, open_run, unsuccessful_run").await;
        copy_runs(&database, 100_000, "pending").await;
        database.execute(&format!("{COPY_OPEN_ROWS} status = 'pending' ON CONFLICT DO NOTHING")).await;
        let open = store.open_runs(JobId::new(8), None, None, 10).await.unwrap();
        let ids: Vec<i64> = open.iter().map(|run| run.id.get()).collect();
        assert_eq!(ids, (100_600..100_610).collect::<Vec<i64>>());

        store.release(dead, Timestamp::EPOCH).await.unwrap();
        let token = join(&store, "other", Duration::from_secs(60)).await;
        let orphaned = store.orphaned_jobs(token, &[dead.node.into()], 1).await.unwrap();
        assert_eq!(orphaned.jobs[0].run_count, 1, "the job with the fewest runs comes first");
        // Most jobs of a page have few runs. Here they have none.
        let jobs: Vec<JobId> =
            [orphaned.jobs[0].id, JobId::new(7)].into_iter().chain((1_001..1_400).map(JobId::new)).collect();
        let adopted = store.adopt(token, &[dead.node.into()], &jobs).await.unwrap();
        assert_eq!(adopted.runs.len(), 101);
        assert_eq!(store.jobs_open_under_earlier_leases(token, &[JobId::new(8)]).await.unwrap(), []);

        // Stores a verdict while the table has as many other unsuccessful runs, which the statistics do not show.
        database.execute("INSERT INTO alert_space (namespace_id, version, watches_runs) VALUES (1, 1, 1)").await;
        database.execute("UPDATE run SET status = 'skipped', reason = 'misfire' WHERE status = 'succeeded'").await;
        database
            .execute(
                "INSERT INTO unsuccessful_run (id, namespace_id, job_id, app_id, status, reason) \
                 SELECT id, namespace_id, job_id, app_id, status, reason FROM run WHERE status = 'skipped'",
            )
            .await;
        let own = adopted.runs.iter().find(|adopted| adopted.run.id == runs[0].id).unwrap();
        let (outcome, ids) = (Outcome::Failed { retryable: false }, IdGen::new(1023));
        let end = AttemptEnd { outcome, ..succeeded(&own.run, String::new()) };
        store.finish(Finisher { token, ids: &ids }, &[end]).await.unwrap();
        let counts = store.unsuccessful_runs(own.run.namespace, RunId::new(0), 10).await.unwrap();
        assert_eq!(counts.counts.iter().map(|runs| runs.count).sum::<u64>(), 10, "the newest ten");
        assert!(counts.is_cut);
        // A session reports its reads when it ends.
        store.close().await;
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        let open_entries_read = async || {
            let mut count = 0;
            for index in ["open_run_owner", "open_run_job", "open_run_lease"] {
                count += entries_read(&database, index).await;
            }
            count
        };
        while open_entries_read().await < COPY_COUNT {
            assert!(tokio::time::Instant::now() < limit, "what was read is not counted");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The orphans were counted once.
        let open = open_entries_read().await;
        assert!(open < COPY_COUNT * 3 / 2, "{open} entries of open runs were read");
        for index in ["unsuccessful_run_pkey", "unsuccessful_run_list"] {
            let count = entries_read(&database, index).await;
            assert!(count < COPY_COUNT / 2, "{count} entries of {index} were read");
        }
        database.end().await;
    }
}
