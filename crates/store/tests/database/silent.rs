//! A database that stops answering without closing its connections, as when its machine loses power or a network loses packets.

use std::time::Duration;

use rondel_store::{Cluster as _, SqlStore, StoreConfig};
use tokio::time::{Instant, timeout};

use super::proxy::{Proxy, Traffic};
use super::{TestDatabase, pending};

#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_an_answer_are_replaced_and_a_transaction_in_them_ends() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let proxy = Proxy::start(&database).await;
        let config = StoreConfig {
            url: proxy.url.clone(),
            statement_timeout: Duration::from_millis(500),
            ..database.config.clone()
        };
        let store = SqlStore::open(&config).await.unwrap();
        let (token, _) = pending(&store, 1).await;
        let lease = Duration::from_secs(60);
        assert!(store.renew(token, lease).await.unwrap().is_some());

        proxy.set(Traffic::Lost);
        let began = Instant::now();
        // A read and a transaction, each in a session that was used a moment ago.
        let both = async { tokio::join!(store.now(), store.renew(token, lease)) };
        let ended = timeout(Duration::from_secs(30), both).await;
        assert!(ended.is_ok(), "{}: no end within 30 s", database.url);
        let limit = began + Duration::from_secs(30);
        while store.renew(token, lease).await.is_err() {
            assert!(Instant::now() < limit, "{}: no new session within 30 s", database.url);
        }
        assert!(store.now().await.is_ok());
        store.close().await;
        drop(proxy);
        database.end().await;
    }
}
