//! A proxy to a database. It closes the connection at every packet beyond a limit, like a small `max_allowed_packet` or another proxy, and
//! records the largest packet that passed.

#![expect(clippy::disallowed_methods, reason = "the runtime of the test ends what it spawns")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::support::Server;

#[derive(Debug, Default)]
struct Packets {
    max: AtomicUsize,
    largest: AtomicUsize,
    cut_count: AtomicUsize,
}

/// The proxy. See the module.
#[derive(Debug)]
pub(crate) struct PacketLimit {
    packets: Arc<Packets>,
    /// The URL of the database through this proxy.
    pub(crate) url: String,
}

impl PacketLimit {
    /// Starts a proxy to the database of `url` that lets packets of up to `max` bytes pass.
    pub(crate) async fn start(server: Server, url: &str, max: usize) -> Self {
        let packets = Arc::new(Packets { max: AtomicUsize::new(max), ..Packets::default() });
        let (scheme, rest) = url.split_once("://").unwrap();
        let (user, rest) = rest.rsplit_once('@').unwrap();
        let (host, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let encryption = match server {
            Server::Postgres => "sslmode=disable",
            Server::MySql => "ssl-mode=DISABLED",
        };
        let separator = if path.contains('?') { '&' } else { '?' };
        let port = listener.local_addr().unwrap().port();
        let url = format!("{scheme}://{user}@127.0.0.1:{port}/{path}{separator}{encryption}");
        let (host, counted) = (host.to_owned(), Arc::clone(&packets));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(database) = TcpStream::connect(&host).await else { continue };
                let (from_client, mut to_client) = client.into_split();
                let (mut from_database, to_database) = database.into_split();
                let packets = Arc::clone(&counted);
                let answers = tokio::spawn(async move { copy(&mut from_database, &mut to_client).await });
                tokio::spawn(async move {
                    forward(server, from_client, to_database, &packets).await.ok();
                    answers.abort();
                });
            }
        });
        Self { packets, url }
    }

    pub(crate) fn largest(&self) -> usize {
        self.packets.largest.load(Ordering::SeqCst)
    }

    pub(crate) fn cut_count(&self) -> usize {
        self.packets.cut_count.load(Ordering::SeqCst)
    }

    pub(crate) fn limit(&self, max: usize) {
        self.packets.max.store(max, Ordering::SeqCst);
    }
}

async fn forward(
    server: Server,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    packets: &Packets,
) -> std::io::Result<()> {
    let mut is_first = true;
    loop {
        // PostgreSQL sends a letter, except in the first message, and then a length that includes itself. MySQL sends a length and a
        // number.
        let mut head = vec![0; if matches!(server, Server::Postgres) && !is_first { 5 } else { 4 }];
        from.read_exact(&mut head).await?;
        let length = match server {
            Server::MySql => usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16,
            Server::Postgres => {
                let length: [u8; 4] = head[head.len() - 4..].try_into().unwrap();
                usize::try_from(u32::from_be_bytes(length)).unwrap() - 4
            }
        };
        is_first = false;
        if length > packets.max.load(Ordering::SeqCst) {
            packets.cut_count.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        packets.largest.fetch_max(length, Ordering::SeqCst);
        let mut body = vec![0; length];
        from.read_exact(&mut body).await?;
        to.write_all(&head).await?;
        to.write_all(&body).await?;
    }
}
