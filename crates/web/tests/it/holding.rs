//! A store that can delay a call, to provoke races.

use std::sync::{Arc, Mutex};

use rondel_store::{MemStore, Result};
use tokio::sync::Notify;

use crate::harness::clock;

/// The in-memory store with one delayed call.
#[derive(Debug)]
pub(crate) struct HoldingStore {
    inner: MemStore,
    held: Mutex<Option<&'static str>>,
    /// Notified when the delayed call has arrived and waits: it has had no effect yet.
    pub(crate) reached: Notify,
    /// Notify this to let the call continue.
    pub(crate) released: Notify,
    /// Notified when the call has ended.
    pub(crate) ended: Notify,
}

impl HoldingStore {
    pub(crate) fn new() -> Arc<Self> {
        let inner = MemStore::new(Arc::new(clock));
        let (reached, released, ended) = (Notify::new(), Notify::new(), Notify::new());
        Arc::new(Self { inner, held: Mutex::default(), reached, released, ended })
    }

    /// Delays the next call with this name until `released` is notified.
    pub(crate) fn hold(&self, name: &'static str) {
        *self.held.lock().unwrap() = Some(name);
    }

    fn inner(&self) -> &MemStore {
        &self.inner
    }

    async fn call<T: Send>(&self, name: &'static str, effect: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let is_held = self.held.lock().unwrap().take_if(|held| *held == name).is_some();
        if !is_held {
            return effect.await;
        }
        self.reached.notify_one();
        self.released.notified().await;
        let outcome = effect.await;
        self.ended.notify_one();
        outcome
    }
}

rondel_store::delegate_store!(HoldingStore);
