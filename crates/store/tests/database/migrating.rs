//! Migrations while other servers and other clients use the database.

use std::time::Duration;

use rondel_store::{OpenError, SqlStore, StoreConfig};
use sqlx::{AnyConnection, Connection, Executor};
use tokio::time::{Instant, timeout};

use crate::Place;

const LIMIT: Duration = Duration::from_secs(60);
/// A migration waits for a table for two seconds at a time, so other statements are held up for about as long.
const HELD_UP_MAX: Duration = Duration::from_secs(10);

fn is_postgres(place: &Place) -> bool {
    place.url.starts_with("postgres")
}

async fn shared_places() -> impl Iterator<Item = Place> {
    Place::all().await.into_iter().filter(|place| place.scratch.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_waits_for_another_one_that_migrates_and_not_for_ever() {
    for place in shared_places().await {
        let mut other = AnyConnection::connect(&place.url).await.unwrap();
        let lock = match is_postgres(&place) {
            true => "SELECT CAST(pg_advisory_lock(hashtext('rondel.migrate.' || current_database())) AS VARCHAR)",
            false => "DO GET_LOCK(LEFT(CONCAT('rondel.', DATABASE()), 64), 1)",
        };
        other.execute(lock).await.unwrap();
        let config = StoreConfig { migration_wait: Duration::from_millis(400), ..place.config.clone() };
        let error = SqlStore::open(&config).await.unwrap_err();
        let expected = "another server has been migrating this database for 400ms; start again when that has ended";
        assert_eq!(error.to_string(), expected);
        let (store, ()) = tokio::join!(SqlStore::open(&place.config), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            other.close().await.unwrap();
        });
        store.unwrap().close().await;
        place.end().await;
    }
}

/// While a migration waits for the lock of a table, every statement of the running servers would queue behind it.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_waits_for_a_table_holds_up_no_running_server_for_long() {
    const WRITE: &str = "UPDATE executor SET weight = weight WHERE id = 1";
    for place in shared_places().await {
        SqlStore::open(&place.config).await.unwrap().close().await;
        let drop = if is_postgres(&place) {
            "DROP INDEX executor_predecessor"
        } else {
            "DROP INDEX executor_predecessor ON executor"
        };
        place.execute(drop).await;
        place.execute("DELETE FROM _sqlx_migrations WHERE version = 22").await;
        let mut holder = AnyConnection::connect(&place.url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        held.execute(WRITE).await.unwrap();
        held.fetch_all("SELECT id FROM executor").await.unwrap();
        let others = async {
            for _ in 0..5 {
                let began = Instant::now();
                place.execute(WRITE).await;
                assert!(began.elapsed() < HELD_UP_MAX, "{:?}", began.elapsed());
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            assert_eq!(
                place.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 22 AND success = TRUE").await,
                0
            );
            held.rollback().await.unwrap();
        };
        let (store, ()) = timeout(LIMIT, async { tokio::join!(SqlStore::open(&place.config), others) }).await.unwrap();
        store.unwrap().close().await;
        holder.close().await.unwrap();
        assert_eq!(
            place.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 22 AND success = TRUE").await,
            1
        );
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_built_beside_running_servers() {
    const BUILDS: &str = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                          AND pid <> pg_backend_pid() AND query LIKE '% INDEX CONCURRENTLY %run_open_list%'";
    for place in shared_places().await.filter(is_postgres) {
        SqlStore::open(&place.config).await.unwrap().close().await;
        place.execute("DROP INDEX run_open_list").await;
        place.execute("DELETE FROM _sqlx_migrations WHERE version = 24").await;
        let mut holder = AnyConnection::connect(&place.url).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        held.execute("LOCK TABLE run IN ROW EXCLUSIVE MODE").await.unwrap();
        let is_being_built = async || {
            let limit = Instant::now() + LIMIT;
            while place.number(&format!("SELECT COUNT(*) {BUILDS}")).await == 0 {
                assert!(Instant::now() < limit, "nothing is built concurrently");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // A server that dies during the build leaves an index that no statement uses.
        let dies = async {
            is_being_built().await;
            place.execute(&format!("SELECT CAST(pg_terminate_backend(pid) AS VARCHAR) {BUILDS}")).await;
        };
        let (store, ()) = timeout(LIMIT, async { tokio::join!(SqlStore::open(&place.config), dies) }).await.unwrap();
        store.unwrap_err();
        assert_eq!(place.number("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid").await, 1);
        // Dropping that index waits for the same transaction, and also holds up no other client.
        let others = async {
            is_being_built().await;
            timeout(LIMIT, place.execute("UPDATE run SET attempt = attempt")).await.unwrap();
            held.rollback().await.unwrap();
        };
        let (store, ()) = timeout(LIMIT, async { tokio::join!(SqlStore::open(&place.config), others) }).await.unwrap();
        store.unwrap().close().await;
        holder.close().await.unwrap();
        assert_eq!(place.number("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid").await, 0);
        let index = "SELECT COUNT(*) FROM pg_indexes WHERE indexname = 'run_open_list'";
        assert_eq!(place.number(index).await, 1);
        assert_eq!(place.number("SELECT COUNT(*) FROM _sqlx_migrations WHERE version = 24").await, 1);
        place.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_another_build_is_refused_by_the_number_of_its_migration() {
    for place in Place::all().await {
        SqlStore::open(&place.config).await.unwrap().close().await;
        let other = if is_postgres(&place) { "'\\x00'" } else { "x'00'" };
        place.execute(&format!("UPDATE _sqlx_migrations SET checksum = {other} WHERE version = 3")).await;
        let error = SqlStore::open(&place.config).await.unwrap_err();
        assert!(matches!(error, OpenError::OtherMigration { version: 3 }), "{error:?}");
        place.end().await;
    }
}
