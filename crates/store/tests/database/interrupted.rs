//! Callers that are dropped while the database works for them, as when a client disconnects.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use rondel_store::cluster::JoinRequest;
use rondel_store::{Cluster as _, SqlStore, StoreConfig, Upkeep as _};

use crate::TestDatabase;
use crate::proxy::{Proxy, Traffic};

/// Time after which the caller's session is back in the pool.
const RETURNED_WITHIN: Duration = Duration::from_millis(200);
/// How long the database does not answer. An earlier version waited five seconds for an interrupted beginning, and then gave the session back.
const DELAY: Duration = Duration::from_secs(6);
/// MariaDB: a session that was interrupted between two parts of an answer is closed a second after the statement timeout, and another one
/// takes its place.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

fn join_request() -> JoinRequest {
    JoinRequest {
        name: "dropped".to_owned(),
        lease: Duration::from_secs(60),
        advertise_url: None,
        server_version: "0.2.0".to_owned(),
        may_take_over: true,
        held: None,
        waited_for_takeover: Duration::ZERO,
    }
}

/// Whether the caller was dropped before the database had answered. The first poll takes a session and requests a transaction.
async fn drop_caller(store: &SqlStore) -> bool {
    let request = join_request();
    let mut dropped = store.join(&request);
    poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_dropped_leaves_no_session_inside_a_transaction() {
    for database in TestDatabase::all().await {
        let config = StoreConfig { pool_size: 1, connect_timeout: CONNECT_TIMEOUT, ..database.config.clone() };
        let store = SqlStore::open(&config).await.unwrap();
        assert!(store.begin_pass("before", Duration::ZERO).await.unwrap());
        tokio::time::sleep(RETURNED_WITHIN).await;
        let mut is_dropped = false;
        // On a busy machine the database may have answered everything by the end of the first poll.
        for _ in 0..50 {
            is_dropped = drop_caller(&store).await;
            if is_dropped {
                break;
            }
        }
        assert!(is_dropped, "{}: no caller was interrupted", database.url);
        check_next_statement(&store, &database).await;
        store.close().await;
        database.end().await;
    }
}

/// The database stands still for a while, as if it were suspended.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_leaves_no_session_inside_a_transaction() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let proxy = Proxy::start(&database).await;
        let limits = StoreConfig {
            statement_timeout: CONNECT_TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            ..database.config.clone()
        };
        let store = SqlStore::open(&StoreConfig { url: proxy.url.clone(), pool_size: 1, ..limits }).await.unwrap();
        assert!(store.begin_pass("before", Duration::ZERO).await.unwrap());
        tokio::time::sleep(RETURNED_WITHIN).await;
        proxy.set(Traffic::Delayed);
        assert!(drop_caller(&store).await);
        tokio::time::sleep(DELAY).await;
        proxy.set(Traffic::Forwarded);
        check_next_statement(&store, &database).await;
        store.close().await;
        drop(proxy);
        database.end().await;
    }
}

/// The next caller gets the session, and its statement is committed.
async fn check_next_statement(store: &SqlStore, database: &TestDatabase) {
    let after = store.begin_pass("after", Duration::ZERO).await;
    assert!(matches!(after, Ok(true)), "{}: {after:?}", database.url);
    let committed = database.number("SELECT COUNT(*) FROM housekeeping_pass WHERE task = 'after'").await;
    assert_eq!(committed, 1, "{}", database.url);
}
