//! The sending end of an executor's stream.

use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dispatch::ExecutorStream;

#[derive(Clone, Debug)]
pub(crate) struct OutgoingStream {
    messages: mpsc::Sender<v1::ServerMessage>,
    /// Cancelled when the server ends the stream, for example because another stream of the executor has replaced it.
    ended_by_server: CancellationToken,
}

impl OutgoingStream {
    pub(crate) fn new(messages: mpsc::Sender<v1::ServerMessage>) -> Self {
        Self { messages, ended_by_server: CancellationToken::new() }
    }

    /// Waits until the stream has ended: the executor has closed it, or the server has ended it.
    pub(crate) async fn wait_until_ended(&self) {
        tokio::select! {
            biased;
            () = self.messages.closed() => {}
            () = self.ended_by_server.cancelled() => {}
        }
    }
}

impl ExecutorStream for OutgoingStream {
    fn send(&self, body: Body) -> bool {
        self.messages.try_send(v1::ServerMessage { body: Some(body) }).is_ok()
    }

    fn end(&self) {
        self.ended_by_server.cancel();
    }

    fn is_ended(&self) -> bool {
        self.ended_by_server.is_cancelled()
    }
}
