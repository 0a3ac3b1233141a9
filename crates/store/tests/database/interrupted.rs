//! Callers that are dropped while the database works for them, as when a client disconnects.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use rondel_store::cluster::JoinRequest;
use rondel_store::{Cluster as _, SqlStore, StoreConfig, Upkeep as _};

use crate::TestDatabase;

/// Time after which the caller's session is back in the pool.
const RETURNED_WITHIN: Duration = Duration::from_millis(200);

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_dropped_leaves_no_session_inside_a_transaction() {
    for database in TestDatabase::all().await {
        let store = SqlStore::open(&StoreConfig { pool_size: 1, ..database.config.clone() }).await.unwrap();
        let request = JoinRequest {
            name: "dropped".to_owned(),
            lease: Duration::from_secs(60),
            advertise_url: None,
            server_version: "0.1.0".to_owned(),
            take_over: true,
            held: None,
        };
        assert!(store.begin_pass("before", Duration::ZERO).await.unwrap());
        tokio::time::sleep(RETURNED_WITHIN).await;
        // The first poll takes a session and requests a transaction.
        let mut dropped = store.join(&request);
        poll_fn(|context| {
            assert!(dropped.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(dropped);
        assert!(store.begin_pass("after", Duration::ZERO).await.unwrap());
        let committed = database.number("SELECT COUNT(*) FROM housekeeping_pass WHERE task = 'after'").await;
        assert_eq!(committed, 1, "{}", database.url);
        store.close().await;
        database.end().await;
    }
}
