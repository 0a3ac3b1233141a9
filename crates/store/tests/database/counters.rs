//! What a database counts about its own work.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, IdGen, Run};
use rondel_store::counters::{DatabaseCounts, RowCounts};
use rondel_store::ledger::{AttemptEnd, Finisher, RunAtExecutor};
use rondel_store::{Dispatch, Finish, SqlStore};

use super::packets::succeeded;
use super::{TestDatabase, pending};

/// Each database counts the rows of a hundred runs, and PostgreSQL counts them by table.
#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_runs_are_counted() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let before = store.database_counts().await;
        assert!(before.notes.is_empty(), "{before:?}");
        let (token, runs) = pending(&store, 100).await;
        let ends: Vec<AttemptEnd> = runs.iter().map(|run| succeeded(run, String::new())).collect();
        let ids = IdGen::new(1023);
        store.finish(Finisher { token, ids: &ids }, &ends).await.unwrap();

        let is_sqlite = database.url.starts_with("sqlite");
        let is_postgres = database.url.starts_with("postgres");
        // Each run is inserted and updated.
        let changed_count = |counts: &DatabaseCounts| match counts.tables.get("run") {
            Some(run) => run.rows.changed.unwrap(),
            None => counts.rows.changed.unwrap() - before.rows.changed.unwrap(),
        };
        let limit = tokio::time::Instant::now() + Duration::from_secs(60);
        let mut after = store.database_counts().await;
        // A session that has just been returned to the pool may report its rows later.
        while changed_count(&after) < 200 {
            assert!(tokio::time::Instant::now() < limit, "they are not counted: {before:?} {after:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            after = store.database_counts().await;
        }
        assert_eq!((after.rows.inserted.is_none(), after.log_bytes.is_none()), (is_sqlite, is_sqlite), "{after:?}");
        assert!(after.log_bytes >= before.log_bytes && after.log_records.is_some() == is_postgres, "{after:?}");
        assert_eq!(after.tables.is_empty(), !is_postgres);
        if is_postgres {
            let rows = after.tables["run"].rows;
            assert_eq!((rows.inserted, rows.updated, rows.deleted), (Some(100), Some(100), Some(0)), "{after:?}");
            assert!(after.log_bytes.unwrap() > before.log_bytes.unwrap() + 100 * 100, "{before:?} {after:?}");
        }

        let sizes = store.table_sizes().await;
        assert!(sizes.notes.is_empty(), "{sizes:?}");
        let names: Vec<&str> = sizes.tables.keys().map(String::as_str).collect();
        assert_eq!(names, ["job_due", "open_run", "run", "run_attempt", "unsuccessful_run"]);
        let run = sizes.tables["run"];
        assert!(run.table_bytes >= 100 * 100 && run.index_bytes > 0, "{sizes:?}");
        store.close().await;
        database.end().await;
    }
}

/// No index of `run` has a column that changes when a run begins or ends, and the pages have room for new versions of their rows. So
/// PostgreSQL changes a row without a change of an index. An open transaction in any database of the server can delay the removal of old
/// versions, which fills the pages, so the counts of the best of several tries are checked.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_begins_and_ends_without_a_change_of_an_index() {
    const TRY_COUNT_MAX: usize = 5;
    let is_postgres = |database: &TestDatabase| database.url.starts_with("postgres");
    for attempt in 1..=TRY_COUNT_MAX {
        let Some(database) = TestDatabase::all().await.into_iter().find(is_postgres) else { return };
        let rows = counts_of_updated_rows(&database).await;
        database.end().await;
        if rows.hot_updated.unwrap() * 10 >= rows.updated.unwrap() * 9 {
            return;
        }
        assert!(attempt < TRY_COUNT_MAX, "{rows:?}");
    }
}

/// What PostgreSQL counts while 400 runs begin and end.
async fn counts_of_updated_rows(database: &TestDatabase) -> RowCounts {
    const RUN_COUNT: i64 = 400;
    /// The runs of each page begin and end in this many waves.
    const WAVE_COUNT: usize = 8;
    let store = SqlStore::open(&database.config).await.unwrap();
    let (token, runs) = pending(&store, RUN_COUNT).await;
    let ids = IdGen::new(1023);
    let at_executor = |run: &Run| RunAtExecutor {
        run: run.id,
        attempt: 1,
        executor_id: ExecutorId::new(9),
        executor: "executor-a".to_owned(),
        at: run.fire_at,
    };
    for wave in 0..WAVE_COUNT {
        let runs: Vec<&Run> = runs.iter().skip(wave).step_by(WAVE_COUNT).collect();
        let begun: Vec<RunAtExecutor> = runs.iter().map(|run| at_executor(run)).collect();
        store.note_running(token, &begun).await.unwrap();
        let mut ends: Vec<AttemptEnd> = runs.iter().map(|run| succeeded(run, String::new())).collect();
        ends[0].outcome = Outcome::Failed { retryable: false };
        store.finish(Finisher { token, ids: &ids }, &ends).await.unwrap();
    }
    let update_count = u64::try_from(2 * RUN_COUNT).unwrap();
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    let rows = loop {
        let counts = store.database_counts().await;
        let rows = counts.tables.get("run").copied().unwrap_or_default().rows;
        if rows.updated >= Some(update_count) {
            break rows;
        }
        assert!(tokio::time::Instant::now() < limit, "the updates are not counted: {counts:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(rows.updated, Some(update_count));
    store.close().await;
    rows
}
