//! A TCP proxy that can be cut, in both directions or one: like a network that silently loses packets.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The traffic that does not get through. It is held back, and arrives when the cut is mended, as with TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Nothing,
    Everything,
    /// Messages of the executor do not reach the server.
    ToServer,
    /// Messages of the server do not reach the executor.
    ToExecutor,
}

/// A proxy between executors and one server, or between servers and their database.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) url: String,
    cut_sender: watch::Sender<Cut>,
    target_sender: watch::Sender<String>,
    accept_task: JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(server_url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (target_sender, target_receiver) = watch::channel(server_url.trim_start_matches("http://").to_owned());
        let (cut_sender, cut_receiver) = watch::channel(Cut::Nothing);
        #[expect(clippy::disallowed_methods, reason = "the proxy's drop ends it")]
        let accept_task = tokio::spawn(async move {
            while let Ok((client_stream, _)) = listener.accept().await {
                let (target, cut_receiver) = (target_receiver.borrow().clone(), cut_receiver.clone());
                drop(tokio::spawn(async move { forward(client_stream, &target, cut_receiver).await }));
            }
        });
        Self { url, cut_sender, target_sender, accept_task }
    }

    /// Redirects further connections to another address. Open connections stay as they are.
    pub(super) fn redirect(&self, address: &str) {
        self.target_sender.send_replace(address.to_owned());
    }

    pub(super) fn cut(&self, cut: Cut) {
        self.cut_sender.send_replace(cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accept_task.abort();
    }
}

/// Forwards both directions of a connection, until one end closes it.
async fn forward(client_stream: TcpStream, target: &str, cut: watch::Receiver<Cut>) {
    let Ok(server_stream) = TcpStream::connect(target).await else { return };
    let ((client_read, client_write), (server_read, server_write)) =
        (client_stream.into_split(), server_stream.into_split());
    tokio::select! {
        () = carry(client_read, server_write, cut.clone(), Cut::ToServer) => {}
        () = carry(server_read, client_write, cut, Cut::ToExecutor) => {}
    }
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<Cut>,
    direction: Cut,
) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count) = from.read(&mut bytes).await {
        let is_open = |cut: &Cut| *cut == Cut::Nothing || (*cut != Cut::Everything && *cut != direction);
        if cut.wait_for(is_open).await.is_err() || count == 0 {
            break;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    // The end of a direction is forwarded after the bytes before it.
    tokio::time::sleep(Duration::from_millis(1)).await;
}
