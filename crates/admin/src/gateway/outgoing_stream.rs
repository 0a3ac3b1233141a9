//! The sending end of an executor's stream.

use rondel_proto::v1;
use rondel_proto::v1::server_message::Body;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dispatch::ExecutorStream;

#[derive(Clone, Debug)]
pub(crate) struct OutgoingStream {
    messages: mpsc::Sender<v1::ServerMessage>,
    /// Another stream of the executor has replaced this one.
    replaced: CancellationToken,
}

impl OutgoingStream {
    pub(crate) fn new(messages: mpsc::Sender<v1::ServerMessage>) -> Self {
        Self { messages, replaced: CancellationToken::new() }
    }

    /// Waits until the stream has ended: the executor has closed it, or another stream has replaced it.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            biased;
            () = self.messages.closed() => {}
            () = self.replaced.cancelled() => {}
        }
    }
}

impl ExecutorStream for OutgoingStream {
    fn send(&self, body: Body) -> bool {
        self.messages.try_send(v1::ServerMessage { body: Some(body) }).is_ok()
    }

    fn end(&self) {
        self.replaced.cancel();
    }

    fn is_ended(&self) -> bool {
        self.replaced.is_cancelled()
    }
}
