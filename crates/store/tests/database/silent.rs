//! A database that stops answering without closing its connections, as when its machine loses power or a network loses packets.

use std::time::Duration;

use rondel_store::{Cluster as _, SqlStore, StoreConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{TestDatabase, pending};

/// Forwards bytes until it is set to silent. After that the connection stays open without traffic. New connections are forwarded.
async fn carry(near: TcpStream, address: String, mut is_silent: watch::Receiver<bool>) {
    is_silent.mark_unchanged();
    let Ok(far) = TcpStream::connect(address).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    let (mut there, mut back) = ([0; 4_096], [0; 4_096]);
    loop {
        tokio::select! {
            biased;
            _ = is_silent.changed() => break,
            Ok(count) = near_read.read(&mut there) => {
                if count == 0 || far_write.write_all(&there[..count]).await.is_err() { return }
            }
            Ok(count) = far_read.read(&mut back) => {
                if count == 0 || near_write.write_all(&back[..count]).await.is_err() { return }
            }
            else => return,
        }
    }
    // Both ends of the connection stay open, and receive nothing more.
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_without_an_answer_are_replaced_and_a_transaction_in_them_ends() {
    for database in TestDatabase::all().await.into_iter().filter(|database| database.scratch.is_some()) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (start, end) = (database.url.find('@').unwrap() + 1, database.url.rfind('/').unwrap());
        let (address, proxy) = (database.url[start..end].to_owned(), listener.local_addr().unwrap().to_string());
        let (silent, is_silent) = watch::channel(false);
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let carried = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                open.spawn(carry(near, address.clone(), is_silent.clone()));
            }
        });
        let url = format!("{}{proxy}{}", &database.url[..start], &database.url[end..]).parse().unwrap();
        let config = StoreConfig { url, statement_timeout: Duration::from_millis(500), ..database.config.clone() };
        let store = SqlStore::open(&config).await.unwrap();
        let (token, _) = pending(&store, 1).await;
        let lease = Duration::from_secs(60);
        assert!(store.renew(token, lease).await.unwrap().is_some());

        silent.send_replace(true);
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
        carried.abort();
        database.end().await;
    }
}
