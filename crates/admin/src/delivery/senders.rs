//! The receivers to which messages are being sent, each by one task, and the client that these tasks share.

use std::collections::BTreeSet;
use std::future::pending;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use rondel_core::outgoing::AllowedAddresses;
use rondel_outgoing::Outgoing;
use rondel_store::StoreError;

use super::build_client;
use crate::background::TickError;

/// The receivers to which messages are being sent, by namespace or channel. The loop takes no more messages for such a receiver, because the
/// messages would only wait here.
pub(crate) struct Senders<K> {
    /// The senders in progress: each resolves to its receiver and the result.
    sends_in_progress: FuturesUnordered<BoxFuture<'static, (K, Result<(), StoreError>)>>,
    receivers: BTreeSet<K>,
    /// The store error of the last sender that failed, until a tick reports it.
    unreported_error: Option<TickError>,
    client: Option<Outgoing>,
}

impl<K: Ord + Copy + Send + 'static> Senders<K> {
    pub(crate) fn new() -> Self {
        Self {
            sends_in_progress: FuturesUnordered::new(),
            receivers: BTreeSet::new(),
            unreported_error: None,
            client: None,
        }
    }

    /// The receivers to which messages are being sent.
    pub(crate) fn receivers(&self) -> Vec<K> {
        self.receivers.iter().copied().collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.receivers.len()
    }

    /// Starts to send to a receiver.
    pub(crate) fn start(
        &mut self,
        destination: K,
        send: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        self.receivers.insert(destination);
        self.sends_in_progress.push(Box::pin(async move { (destination, send.await) }));
    }

    /// Waits until a sender ends. Never resolves if there is none.
    pub(crate) async fn wait_for_one(&mut self) {
        match self.sends_in_progress.next().await {
            Some(ended) => self.finish_send(ended),
            None => pending().await,
        }
    }

    /// Waits until all senders have ended.
    pub(crate) async fn wait_for_all(&mut self) {
        while let Some(result) = self.sends_in_progress.next().await {
            self.finish_send(result);
        }
    }

    fn finish_send(&mut self, (destination, result): (K, Result<(), StoreError>)) {
        self.receivers.remove(&destination);
        if let Err(error) = result {
            self.unreported_error = Some(error.into());
        }
    }

    /// Fails with the store error of a sender that has failed since the last call.
    pub(crate) fn take_error(&mut self) -> Result<(), TickError> {
        self.unreported_error.take().map_or(Ok(()), Err)
    }

    pub(crate) fn client(&mut self, allowed_addresses: &AllowedAddresses) -> Result<Outgoing, TickError> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let client = build_client(allowed_addresses).map_err(TickError::new)?;
        Ok(self.client.insert(client).clone())
    }
}
