//! Every check of the conformance suite, on every store, each on a fresh one.
//!
//! PostgreSQL and MySQL/MariaDB need `RONDEL_TEST_POSTGRES_URL` and `RONDEL_TEST_MYSQL_URL`: servers on which databases
//! may be made and dropped.

mod support;

use rondel_store::{SqlStore, conformance};
use support::{Scratch, Server};

macro_rules! suites {
    ($($name:ident),+) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::conformance::$name(&super::support::memory()).await;
            })+
        }

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let folder = tempfile::tempdir().unwrap();
                let store = super::SqlStore::open(&super::support::sqlite_config(folder.path())).await.unwrap();
                super::conformance::$name(&store).await;
                store.close().await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(scratch) = super::Scratch::create(super::Server::Postgres).await else { return };
                let store = scratch.open().await;
                super::conformance::$name(&store).await;
                store.close().await;
                scratch.drop().await;
            })+
        }

        mod mysql {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let Some(scratch) = super::Scratch::create(super::Server::MySql).await else { return };
                let store = scratch.open().await;
                super::conformance::$name(&store).await;
                store.close().await;
                scratch.drop().await;
            })+
        }
    };
}

rondel_store::for_each_conformance_check!(suites);

/// The checks do not stand in each other's way: all of them on one store.
#[tokio::test]
async fn one_store_passes_them_all() {
    conformance::exercise(std::sync::Arc::new(support::memory())).await;
    let folder = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(SqlStore::open(&support::sqlite_config(folder.path())).await.unwrap());
    conformance::exercise(store).await;
}
