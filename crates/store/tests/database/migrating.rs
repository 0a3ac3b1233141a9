//! Migrations while other servers and other clients use the database.

use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::{ExecutorId, IdGen, Run};
use rondel_store::ledger::{AttemptEnd, EndOutcome, Finisher, RunAtExecutor};
use rondel_store::{Dispatch as _, Finish as _, LeaseToken, OpenError, SqlStore, StoreConfig};
use sqlx::{AnyConnection, Connection, Executor};
use tokio::time::{Instant, timeout};

use crate::packets::succeeded;
use crate::support::assert_open_rows;
use crate::{TestDatabase, pending};

const LIMIT: Duration = Duration::from_secs(60);
/// A migration waits for a table for two seconds at a time, so other statements are held up for about as long.
const HELD_UP_MAX: Duration = Duration::from_secs(10);

fn is_postgres(database: &TestDatabase) -> bool {
    database.url.starts_with("postgres")
}

async fn server_databases() -> impl Iterator<Item = TestDatabase> {
    TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_waits_for_another_one_that_migrates_and_not_for_ever() {
    for database in server_databases().await {
        let mut other = AnyConnection::connect(&database.url).await.unwrap();
        let lock = match is_postgres(&database) {
            true => "SELECT CAST(pg_advisory_lock(hashtext('rondel.migrate.' || current_database())) AS VARCHAR)",
            false => "DO GET_LOCK(LEFT(CONCAT('rondel.', DATABASE()), 64), 1)",
        };
        other.execute(lock).await.unwrap();
        let config = StoreConfig { migration_wait: Duration::from_millis(400), ..database.config.clone() };
        let error = SqlStore::open(&config).await.unwrap_err();
        let expected = "another server has been migrating this database for 400ms; start again when that has ended";
        assert_eq!(error.to_string(), expected);
        let (store, ()) = tokio::join!(SqlStore::open(&database.config), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            other.close().await.unwrap();
        });
        store.unwrap().close().await;
        database.end().await;
    }
}

/// While a migration waits for the lock of a table, every statement of the running servers would queue behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_a_table_holds_up_no_running_server_for_long() {
    const WRITE: &str = "UPDATE executor SET weight = weight WHERE id = 1";
    for database in server_databases().await {
        SqlStore::open(&database.config).await.unwrap().close().await;
        let drop = if is_postgres(&database) {
            "DROP INDEX executor_predecessor"
        } else {
            "DROP INDEX executor_predecessor ON executor"
        };
        database.execute(drop).await;
        database.execute("DELETE FROM _sqlx_migrations WHERE version = 22").await;
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        held.execute(WRITE).await.unwrap();
        held.fetch_all("SELECT id FROM executor").await.unwrap();
        let others = async {
            for _ in 0..5 {
                let began = Instant::now();
                database.execute(WRITE).await;
                assert!(began.elapsed() < HELD_UP_MAX, "{:?}", began.elapsed());
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            assert_eq!(
                database.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 22 AND success = TRUE").await,
                0
            );
            held.rollback().await.unwrap();
        };
        let (store, ()) =
            timeout(LIMIT, async { tokio::join!(SqlStore::open(&database.config), others) }).await.unwrap();
        store.unwrap().close().await;
        holder.close().await.unwrap();
        assert_eq!(
            database.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 22 AND success = TRUE").await,
            1
        );
        database.end().await;
    }
}

/// Migration 24 is applied again. A later migration has dropped its index.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_built_beside_running_servers() {
    const BUILDS: &str = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                          AND pid <> pg_backend_pid() AND query LIKE '% INDEX CONCURRENTLY %run_open_list%'";
    for database in server_databases().await.filter(is_postgres) {
        SqlStore::open(&database.config).await.unwrap().close().await;
        database.execute("DELETE FROM _sqlx_migrations WHERE version = 24").await;
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        held.execute("LOCK TABLE run IN ROW EXCLUSIVE MODE").await.unwrap();
        let is_being_built = async || {
            let limit = Instant::now() + LIMIT;
            while database.number(&format!("SELECT COUNT(*) {BUILDS}")).await == 0 {
                assert!(Instant::now() < limit, "nothing is built concurrently");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // A server that dies during the build leaves an index that no statement uses.
        let dies = async {
            is_being_built().await;
            database.execute(&format!("SELECT CAST(pg_terminate_backend(pid) AS VARCHAR) {BUILDS}")).await;
        };
        let (store, ()) = timeout(LIMIT, async { tokio::join!(SqlStore::open(&database.config), dies) }).await.unwrap();
        store.unwrap_err();
        assert_eq!(database.number("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid").await, 1);
        // Dropping that index waits for the same transaction, and also holds up no other client.
        let others = async {
            is_being_built().await;
            timeout(LIMIT, database.execute("UPDATE run SET attempt = attempt")).await.unwrap();
            held.rollback().await.unwrap();
        };
        let (store, ()) =
            timeout(LIMIT, async { tokio::join!(SqlStore::open(&database.config), others) }).await.unwrap();
        store.unwrap().close().await;
        holder.close().await.unwrap();
        assert_eq!(database.number("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid").await, 0);
        let index = "SELECT COUNT(*) FROM pg_indexes WHERE indexname = 'run_open_list'";
        assert_eq!(database.number(index).await, 1);
        assert_eq!(database.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 24").await, 1);
        database.end().await;
    }
}

/// Migration 42 was written without `IF NOT EXISTS`. Its index of all unsuccessful runs is built before it all the same. The index that it
/// replaces is made again here, because a later migration has dropped it.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_of_an_early_migration_is_built_beside_running_servers() {
    const BUILDS: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                          AND pid <> pg_backend_pid() AND query LIKE '%INDEX CONCURRENTLY %run_trouble_wide%'";
    for database in server_databases().await.filter(is_postgres) {
        SqlStore::open(&database.config).await.unwrap().close().await;
        database.execute("CREATE INDEX run_trouble ON run (namespace_id, id) WHERE status = 'failed'").await;
        database.execute("DELETE FROM _sqlx_migrations WHERE version = 42").await;
        let mut holder = AnyConnection::connect(&database.url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        held.execute("LOCK TABLE run IN ROW EXCLUSIVE MODE").await.unwrap();
        let others = async {
            let limit = Instant::now() + LIMIT;
            while database.number(BUILDS).await == 0 {
                assert!(Instant::now() < limit, "nothing is built concurrently");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            timeout(LIMIT, database.execute("UPDATE run SET attempt = attempt")).await.unwrap();
            held.rollback().await.unwrap();
        };
        let (store, ()) =
            timeout(LIMIT, async { tokio::join!(SqlStore::open(&database.config), others) }).await.unwrap();
        store.unwrap().close().await;
        holder.close().await.unwrap();
        let wide = "SELECT COUNT(*) FROM pg_indexes WHERE indexname = 'run_trouble' AND indexdef LIKE '%INCLUDE%'";
        assert_eq!(database.number(wide).await, 1);
        assert_eq!(database.number("SELECT COUNT(*) FROM pg_indexes WHERE indexname = 'run_trouble_wide'").await, 0);
        // The migration is recorded with the checksum of its file.
        SqlStore::open(&database.config).await.unwrap().close().await;
        database.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_another_build_is_refused_by_the_number_of_its_migration() {
    for database in TestDatabase::all().await {
        SqlStore::open(&database.config).await.unwrap().close().await;
        let other = if is_postgres(&database) { "'\\x00'" } else { "x'00'" };
        database.execute(&format!("UPDATE _sqlx_migrations SET checksum = {other} WHERE version = 3")).await;
        let error = SqlStore::open(&database.config).await.unwrap_err();
        assert!(matches!(error, OpenError::OtherMigration { version: 3 }), "{error:?}");
        database.end().await;
    }
}

/// Ends these runs and returns how many of the ends were stored.
async fn finish(store: &SqlStore, token: LeaseToken, runs: &[Run]) -> usize {
    let batch: Vec<AttemptEnd> = runs.iter().map(|run| succeeded(run, String::new())).collect();
    let outcomes = store.finish(Finisher { token, ids: &IdGen::new(1023) }, &batch).await.unwrap().outcomes;
    outcomes.iter().filter(|outcome| matches!(outcome, EndOutcome::Stored(..))).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_and_unsuccessful_runs_of_an_earlier_version_get_their_rows() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 7).await;
        assert_eq!(finish(&store, token, &runs[..2]).await, 2);
        let failed =
            |run| AttemptEnd { outcome: Outcome::Failed { retryable: false }, ..succeeded(run, String::new()) };
        let ends = [failed(&runs[2]), failed(&runs[3])];
        store.finish(Finisher { token, ids: &IdGen::new(1023) }, &ends).await.unwrap();
        store.close().await;
        drop(store);
        database.execute("ALTER TABLE run RENAME COLUMN lost_attempt_count TO lost_count").await;
        database.execute("DROP TABLE open_run").await;
        database.execute("DROP TABLE unsuccessful_run").await;
        database.execute("DELETE FROM _sqlx_migrations WHERE version >= 47").await;
        if database.scratch.is_some() {
            // A running server of an older version would write no rows into the new tables.
            database.execute("UPDATE node SET name = 'old', server_version = '0.1.9'").await;
            let config = StoreConfig { migration_wait: Duration::from_millis(400), ..database.config.clone() };
            let error = SqlStore::open(&config).await.unwrap_err().to_string();
            let expected = "servers older than 0.2.0 cannot use the new schema, and old (0.1.9) did not stop for 400ms; \
                            stop them and start again";
            assert_eq!(error, expected);
            database.execute("UPDATE node SET lease_until_ms = 0").await;
        }
        let store = SqlStore::open(&database.config).await.unwrap();
        assert_eq!(database.number("SELECT COUNT(*) FROM open_run").await, 3, "{}", database.url);
        assert_eq!(database.number("SELECT COUNT(*) FROM unsuccessful_run").await, 2, "{}", database.url);
        assert_open_rows(&store).await;
        store.close().await;
        drop(store);
        let older = StoreConfig { server_version: "0.1.9".to_owned(), ..database.config.clone() };
        let error = SqlStore::open(&older).await.unwrap_err().to_string();
        assert_eq!(error, "the database needs rondel 0.2.0 or newer, this is 0.1.9");
        database.end().await;
    }
}

/// No transaction causes this. Nevertheless a missing row is written with the next change of its run, and a leftover row disturbs no other
/// run.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_open_runs_that_are_missing_or_left_disturb_nothing() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&database.config).await.unwrap();
        let (token, runs) = pending(&store, 3).await;
        // The row of the first run is missing, and the row of the second run has the id of a run that does not exist.
        database.execute(&format!("DELETE FROM open_run WHERE id = {}", runs[0].id)).await;
        database.execute(&format!("UPDATE open_run SET id = 9 WHERE id = {}", runs[1].id)).await;
        let began = |run: &Run| RunAtExecutor {
            run: run.id,
            attempt: 1,
            executor_id: ExecutorId::new(9),
            executor: "x".to_owned(),
            at: run.fire_at,
        };
        store.note_running(token, &[began(&runs[0]), began(&runs[1])]).await.unwrap();
        let open = "SELECT COUNT(*) FROM open_run WHERE id >= 100 AND status = 'running'";
        assert_eq!(database.number(open).await, 2, "{}", database.url);
        database.execute(&format!("DELETE FROM open_run WHERE id = {}", runs[0].id)).await;
        assert_eq!(finish(&store, token, &runs).await, 3, "{}", database.url);
        assert_eq!(database.number("SELECT COUNT(*) FROM open_run").await, 1, "{}", database.url);
        store.close().await;
        database.end().await;
    }
}
