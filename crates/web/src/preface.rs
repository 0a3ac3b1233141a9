//! Distinguishes HTTP/2 from HTTP/1 by the first bytes of a connection. The caller sets a time limit.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 connection with prior knowledge.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    Http2,
}

/// A stream whose first bytes were read to detect the protocol. Readers of this wrapper get them again.
#[derive(Debug)]
pub(crate) struct PrefixedStream<S> {
    /// The bytes that were read to detect the protocol.
    prefix: Vec<u8>,
    /// How many bytes of `prefix` the reader has got.
    read_count: usize,
    stream: S,
}

/// Reads only as many bytes as are needed to detect the protocol.
pub(crate) async fn detect_version<S: AsyncRead + Unpin>(
    mut stream: S,
) -> io::Result<(PrefixedStream<S>, HttpVersion)> {
    let mut prefix = vec![0; HTTP2_PREFACE.len()];
    let mut filled_len = 0;
    while filled_len < prefix.len() && HTTP2_PREFACE.starts_with(&prefix[..filled_len]) {
        let read_count = stream.read(&mut prefix[filled_len..]).await?;
        if read_count == 0 {
            break;
        }
        filled_len += read_count;
    }
    prefix.truncate(filled_len);
    let version = if prefix == HTTP2_PREFACE { HttpVersion::Http2 } else { HttpVersion::Http1 };
    Ok((PrefixedStream { prefix, read_count: 0, stream }, version))
}

impl<S: AsyncRead + Unpin> AsyncRead for PrefixedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let unread_count = self.prefix.len() - self.read_count;
        if unread_count == 0 || buffer.remaining() == 0 {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = unread_count.min(buffer.remaining());
        buffer.put_slice(&self.prefix[self.read_count..self.read_count + count]);
        self.read_count += count;
        if self.read_count == self.prefix.len() {
            self.prefix = Vec::new();
            self.read_count = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check_version(input: &[u8], expected: HttpVersion) {
        let (mut prefixed, version) = detect_version(input).await.unwrap();
        assert_eq!(version, expected, "{input:?}");
        let mut all = Vec::new();
        prefixed.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, input);
    }

    #[tokio::test]
    async fn the_preface_decides_and_no_byte_is_lost() {
        check_version(b"GET / HTTP/1.1\r\n\r\n", HttpVersion::Http1).await;
        check_version(&[HTTP2_PREFACE, b"frames"].concat(), HttpVersion::Http2).await;
        check_version(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", HttpVersion::Http1).await;
        check_version(b"P", HttpVersion::Http1).await;
        check_version(b"", HttpVersion::Http1).await;
    }
}
