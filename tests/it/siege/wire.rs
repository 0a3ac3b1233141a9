//! An executor's stream at the level of bytes, to send what the SDK cannot send.

use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(20);
/// The fields of `ServerMessage`, as tags on the wire.
const WELCOME: u8 = 1 << 3 | 2;
const HEARTBEAT_REPLY: u8 = 2 << 3 | 2;

/// A connection from a given address of this machine.
pub(super) async fn connect(server_address: &str, client_ip: IpAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((client_ip, 0).into())?;
    socket.connect(server_address.parse().expect("an address")).await
}

fn varint(mut number: u64, buffer: &mut Vec<u8>) {
    while number >= 0x80 {
        buffer.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    buffer.push(u8::try_from(number).expect("seven bits"));
}

fn number(field: u64, value: u64, buffer: &mut Vec<u8>) {
    varint(field << 3, buffer);
    varint(value, buffer);
}

fn bytes(field: u64, value: &[u8], buffer: &mut Vec<u8>) {
    varint(field << 3 | 2, buffer);
    varint(u64::try_from(value.len()).expect("a length"), buffer);
    buffer.extend_from_slice(value);
}

/// A gRPC message without compression.
fn framed(field: u64, body: &[u8]) -> Bytes {
    let mut message = Vec::new();
    bytes(field, body, &mut message);
    let len = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0][..], &len, &message].concat().into()
}

fn hello(name: &str, handlers: &[(&str, &str)]) -> Bytes {
    let mut body = Vec::new();
    for (field, text) in [(1, "default"), (2, "siege"), (3, name)] {
        bytes(field, text.as_bytes(), &mut body);
    }
    for (field, value) in [(4, 1), (8, 1), (9, 1), (15, 1)] {
        number(field, value, &mut body);
    }
    for (handler, schema) in handlers {
        bytes(10, handler.as_bytes(), &mut body);
        let mut info = Vec::new();
        bytes(1, handler.as_bytes(), &mut info);
        bytes(2, schema.as_bytes(), &mut info);
        bytes(13, &info, &mut body);
    }
    framed(1, &body)
}

/// An executor that was welcomed.
pub(super) struct ExecutorStream {
    sender: SendStream<Bytes>,
    receiver: RecvStream,
    read: BytesMut,
    sequence: u64,
    connection: JoinHandle<()>,
}

impl Drop for ExecutorStream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl ExecutorStream {
    /// Sends a hello; `None` if it is refused.
    pub(super) async fn open(
        server_address: &str,
        client_ip: IpAddr,
        token: &str,
        name: &str,
        handlers: &[(&str, &str)],
    ) -> Option<Self> {
        let (client, connection) = h2::client::handshake(connect(server_address, client_ip).await.ok()?).await.ok()?;
        #[expect(clippy::disallowed_methods, reason = "it ends with its connection")]
        let connection = tokio::spawn(async move {
            connection.await.ok();
        });
        let request = Request::post("http://server/rondel.v1.Gateway/Session")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("authorization", format!("Bearer {token}"))
            .body(())
            .expect("a request");
        let (answer, mut sender) = client.ready().await.ok()?.send_request(request, false).ok()?;
        sender.send_data(hello(name, handlers), false).ok()?;
        let answer = timeout(LIMIT, answer).await.expect("an answer in time").ok()?;
        let receiver = answer.into_body();
        let mut stream = Self { sender, receiver, read: BytesMut::new(), sequence: 0, connection };
        stream.until(WELCOME).await.then_some(stream)
    }

    /// Reads messages until one of this kind; false if the stream ends before.
    async fn until(&mut self, kind: u8) -> bool {
        loop {
            while self.read.len() >= 5 {
                let len = u32::from_be_bytes([self.read[1], self.read[2], self.read[3], self.read[4]]);
                let end = 5 + usize::try_from(len).expect("a length");
                if self.read.len() < end {
                    break;
                }
                let message = self.read.split_to(end);
                if message.get(5) == Some(&kind) {
                    return true;
                }
            }
            let Some(Ok(data)) = timeout(LIMIT, self.receiver.data()).await.expect("something in time") else {
                return false;
            };
            self.receiver.flow_control().release_capacity(data.len()).expect("capacity");
            self.read.extend_from_slice(&data);
        }
    }

    /// Sends a heartbeat and waits for the reply.
    pub(super) async fn heartbeat(&mut self) {
        self.sequence += 1;
        let mut body = Vec::new();
        number(3, self.sequence, &mut body);
        self.sender.send_data(framed(2, &body), false).expect("the stream is open");
        assert!(self.until(HEARTBEAT_REPLY).await, "the stream ended");
    }
}
