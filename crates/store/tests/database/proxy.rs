//! A proxy between a store and its database.

use rondel_store::DatabaseUrl;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::TestDatabase;

/// What happens to the bytes of the connections that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    Forwarded,
    /// They arrive once the traffic is forwarded again.
    Delayed,
    /// They never arrive: the connections stay open without traffic. Connections that are opened later are forwarded.
    Lost,
}

pub(super) struct Proxy {
    /// The URL of the database through the proxy.
    pub(super) url: DatabaseUrl,
    traffic: watch::Sender<Traffic>,
    accept_task: JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(database: &TestDatabase) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (start, end) = (database.url.find('@').unwrap() + 1, database.url.rfind('/').unwrap());
        let (address, own_address) = (database.url[start..end].to_owned(), listener.local_addr().unwrap());
        let (traffic, receiver) = watch::channel(Traffic::Forwarded);
        #[expect(clippy::disallowed_methods, reason = "the end of the proxy ends it")]
        let accept_task = tokio::spawn(async move {
            let mut open_connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                open_connections.spawn(forward(near, address.clone(), receiver.clone()));
            }
        });
        let url = format!("{}{own_address}{}", &database.url[..start], &database.url[end..]).parse().unwrap();
        Self { url, traffic, accept_task }
    }

    pub(super) fn set(&self, traffic: Traffic) {
        self.traffic.send_replace(traffic);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

async fn forward(near: TcpStream, address: String, mut traffic: watch::Receiver<Traffic>) {
    traffic.mark_unchanged();
    let Ok(far) = TcpStream::connect(address).await else { return };
    let ((mut near_read, mut near_write), (mut far_read, mut far_write)) = (near.into_split(), far.into_split());
    let (mut there, mut back) = ([0; 4_096], [0; 4_096]);
    loop {
        tokio::select! {
            biased;
            _ = traffic.changed() => {
                let is_lost = traffic.wait_for(|traffic| *traffic != Traffic::Delayed).await;
                if is_lost.is_ok_and(|traffic| *traffic == Traffic::Lost) {
                    break;
                }
            }
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
