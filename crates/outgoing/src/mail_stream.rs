//! The connection to a mail server. The number of bytes read from the server is bounded: the client keeps a line in memory until the line
//! ends, and a server may never end it.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use lettre::transport::smtp::client::AsyncTokioStream;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::tls::client_config;

/// Maximum number of bytes of all answers to one mail.
pub(crate) const ANSWERS_LEN_MAX: usize = 1024 * 1024;

/// A connection whose reads fail after [`ANSWERS_LEN_MAX`] bytes.
#[derive(Debug)]
struct BoundedStream<S> {
    stream: S,
    peer: SocketAddr,
    /// The number of bytes that may still be read.
    bytes_left: usize,
}

/// Connects to the first of these addresses that answers. `limit` is the time that the caller allows. With `tls_host`, the connection uses
/// TLS from the first byte, and the server's certificate must be valid for this host.
pub(crate) async fn connect(
    addresses: &[SocketAddr],
    limit: Duration,
    tls_host: Option<&str>,
) -> io::Result<Box<dyn AsyncTokioStream>> {
    let stream = first_answer(addresses, limit, TcpStream::connect::<SocketAddr>).await?;
    let (peer, bytes_left) = (stream.peer_addr()?, ANSWERS_LEN_MAX);
    let Some(host) = tls_host else { return Ok(Box::new(BoundedStream { stream, peer, bytes_left })) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(client_config().map_err(io::Error::other)?));
    let stream = connector.connect(name, stream).await?;
    Ok(Box::new(BoundedStream { stream, peer, bytes_left }))
}

/// Tries the addresses one after another. Each address except the last gets an equal part of the time: an address that never
/// answers leaves time for the others.
async fn first_answer<T, F: Future<Output = io::Result<T>>>(
    addresses: &[SocketAddr],
    limit: Duration,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T> {
    let Some((last_address, other_addresses)) = addresses.split_last() else {
        return Err(io::Error::other("no address"));
    };
    let time_per_address =
        u32::try_from(addresses.len()).ok().and_then(|count| limit.checked_div(count)).unwrap_or(limit);
    for address in other_addresses {
        if let Ok(Ok(stream)) = timeout(time_per_address, connect(*address)).await {
            return Ok(stream);
        }
    }
    connect(*last_address).await
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let len_before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let count = buffer.filled().len() - len_before;
        let too_many = || io::Error::other(format!("the server's answers have more than {ANSWERS_LEN_MAX} bytes"));
        self.bytes_left = self.bytes_left.checked_sub(count).ok_or_else(too_many)?;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin> AsyncTokioStream for BoundedStream<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_that_never_answers_leaves_time_for_the_others() {
        let limit = Duration::from_secs(10);
        let open = |address: SocketAddr| async move {
            match address.port() {
                1 => std::future::pending::<io::Result<()>>().await,
                2 => Ok(()),
                _ => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
            }
        };
        let cases: [(&[u16], bool); 7] = [
            (&[2], true),
            (&[1, 2], true),
            (&[1, 1, 3, 2], true),
            (&[3, 2, 1], true),
            (&[1, 3], false),
            (&[1], false),
            (&[], false),
        ];
        for (ports, is_open) in cases {
            let address = |port: &u16| SocketAddr::from(([127, 0, 0, 1], *port));
            let addresses: Vec<SocketAddr> = ports.iter().map(address).collect();
            let opened = timeout(limit, first_answer(&addresses, limit, open)).await;
            assert_eq!(matches!(opened, Ok(Ok(()))), is_open, "{ports:?}");
        }
    }
}
