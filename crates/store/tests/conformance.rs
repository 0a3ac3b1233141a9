//! Runs every check of the conformance suite on every kind of store, each check on a fresh store.
//!
//! PostgreSQL and MySQL/MariaDB need `RONDEL_TEST_POSTGRES_URL` and `RONDEL_TEST_MYSQL_URL`: servers on which databases may be created and
//! dropped.

mod support;

use std::sync::Arc;
use std::time::Duration;

use rondel_core::Timestamp;
use rondel_store::{MemStore, SqlStore, StoreConfig, conformance};
use support::{Scratch, Server};

/// A store whose clock advances with the test's clock.
#[expect(clippy::unwrap_used, reason = "a test")]
fn memory() -> MemStore {
    let start = tokio::time::Instant::now();
    let elapsed = move || i64::try_from(start.elapsed().as_millis()).unwrap();
    MemStore::new(Arc::new(move || Timestamp::from_millis(1_790_000_000_000 + elapsed())))
}

/// Other tests create and drop databases on the same server, so a statement may need longer than the default timeout.
fn patient(scratch: &Scratch) -> StoreConfig {
    StoreConfig { statement_timeout: Duration::from_secs(20), ..scratch.config() }
}

macro_rules! suites {
    ($($name:ident),+) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::conformance::$name(&super::memory()).await;
            })+
        }

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let store = super::SqlStore::open(&super::support::sqlite_config(folder.path())).await.unwrap();
                super::conformance::$name(&store).await;
                super::support::assert_open_rows(&store).await;
                store.close().await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(scratch) = super::Scratch::create(super::Server::Postgres).await else { return };
                let store = super::SqlStore::open(&super::patient(&scratch)).await.unwrap();
                super::conformance::$name(&store).await;
                super::support::assert_open_rows(&store).await;
                store.close().await;
                scratch.drop().await;
            })+
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(scratch) = super::Scratch::create(super::Server::MySql).await else { return };
                let store = super::SqlStore::open(&super::patient(&scratch)).await.unwrap();
                super::conformance::$name(&store).await;
                super::support::assert_open_rows(&store).await;
                store.close().await;
                scratch.drop().await;
            })+
        }
    };
}

rondel_store::for_each_conformance_check!(suites);

/// The checks do not interfere with each other: all of them pass on one store.
#[tokio::test]
async fn one_store_passes_them_all() {
    conformance::exercise(Arc::new(memory())).await;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqlStore::open(&support::sqlite_config(folder.path())).await.unwrap());
    conformance::exercise(store.clone()).await;
    support::assert_open_rows(&store).await;
}

/// Tables of other products are read as of one instant, while other clients insert and delete rows.
mod foreign {
    use rondel_store::foreign::Database;
    use sqlx::{AnyConnection, Connection as _, Executor as _};

    use super::{Scratch, Server};

    async fn check(server: Server) {
        let Some(scratch) = Scratch::create(server).await else { return };
        let mut other = AnyConnection::connect(&scratch.url).await.expect("connect");
        for statement in ["CREATE TABLE jobs (id INT PRIMARY KEY)", "INSERT INTO jobs VALUES (1), (2), (3)"] {
            other.execute(statement).await.expect("fill the table");
        }
        let mut database = Database::open(&scratch.url, true).await.expect("open");
        for _ in 0..2 {
            let rows = database.rows("jobs", &["id"], &[], &[]).await.expect("rows");
            let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str()).collect();
            assert_eq!(ids, ["1", "2", "3"]);
            other.execute("DELETE FROM jobs WHERE id = 1").await.expect("delete a row");
        }
        drop(database);
        other.close().await.expect("close");
        scratch.drop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_of_mysql_is_read_as_of_one_moment() {
        check(Server::MySql).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_of_postgres_is_read_as_of_one_moment() {
        check(Server::Postgres).await;
    }
}
