//! A stream in the registry. An executor is shown as online as long as one of its streams to this node is open, or is being opened.

use std::sync::Arc;

use rondel_core::ExecutorId;

use crate::node::Shared;
use crate::registry::OnlineExecutor;

/// A stream that the registry counts until this value is dropped.
#[derive(Debug)]
pub(super) struct RegisteredStream {
    shared: Arc<Shared>,
    executor: ExecutorId,
    number: u64,
}

impl RegisteredStream {
    /// Registers a stream that is being opened; `None` if an earlier hello of the executor has just opened another stream.
    pub(super) fn open(shared: &Arc<Shared>, online: OnlineExecutor, stream_number: u64) -> Option<Self> {
        let executor = online.id;
        let silent_since = shared.clock.now() - shared.config.heartbeat.saturating_mul(2);
        let was_opened = shared.registry.open(online, stream_number, silent_since);
        was_opened.then(|| Self { shared: Arc::clone(shared), executor, number: stream_number })
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        self.shared.registry.close(self.executor, self.number);
    }
}
