//! A stream in the registry. An executor is shown as online as long as one of its streams to this node is open, or is being opened.

use std::sync::Arc;

use rondel_core::ExecutorId;

use crate::node::Shared;
use crate::registry::OnlineExecutor;

/// A stream that the registry counts until this is dropped.
#[derive(Debug)]
pub(super) struct RegisteredStream {
    shared: Arc<Shared>,
    executor: ExecutorId,
    /// The number of the stream.
    number: u64,
}

impl RegisteredStream {
    pub(super) fn new(shared: &Arc<Shared>, online: OnlineExecutor, number: u64) -> Self {
        let executor = online.id;
        shared.registry.open(online, number);
        Self { shared: Arc::clone(shared), executor, number }
    }
}

impl Drop for RegisteredStream {
    fn drop(&mut self) {
        self.shared.registry.close(self.executor, self.number);
    }
}
