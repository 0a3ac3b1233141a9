//! Callers that are dropped while the database works for them, as when a client disconnects.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use rondel_store::cluster::JoinRequest;
use rondel_store::{Cluster as _, SqlStore, StoreConfig, Upkeep as _};

use crate::TestDatabase;

/// Time after which the caller's session is back in the pool.
const RETURNED_WITHIN: Duration = Duration::from_millis(200);
/// MariaDB: a session that was interrupted between two parts of an answer is closed a second after the statement timeout, and another one
/// takes its place.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_dropped_leaves_no_session_inside_a_transaction() {
    for database in TestDatabase::all().await {
        let config = StoreConfig { pool_size: 1, connect_timeout: CONNECT_TIMEOUT, ..database.config.clone() };
        let store = SqlStore::open(&config).await.unwrap();
        let request = JoinRequest {
            name: "dropped".to_owned(),
            lease: Duration::from_secs(60),
            advertise_url: None,
            server_version: "0.2.0".to_owned(),
            may_take_over: true,
            held: None,
            waited_for_takeover: Duration::ZERO,
        };
        assert!(store.begin_pass("before", Duration::ZERO).await.unwrap());
        tokio::time::sleep(RETURNED_WITHIN).await;
        // The first poll takes a session and requests a transaction. On a busy machine the database may have answered everything by the end
        // of that poll.
        let mut is_dropped = false;
        for _ in 0..50 {
            let mut dropped = store.join(&request);
            is_dropped = poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await;
            if is_dropped {
                break;
            }
        }
        assert!(is_dropped, "{}: no caller was interrupted", database.url);
        let after = store.begin_pass("after", Duration::ZERO).await;
        assert!(matches!(after, Ok(true)), "{}: {after:?}", database.url);
        let committed = database.number("SELECT COUNT(*) FROM housekeeping_pass WHERE task = 'after'").await;
        assert_eq!(committed, 1, "{}", database.url);
        store.close().await;
        database.end().await;
    }
}
