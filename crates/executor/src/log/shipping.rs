//! Which logs have lines to send, and how much all of them hold together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::buffer::RunLog;
use crate::lifecycle::lock;

/// What the logs of all runs may hold in memory; more is dropped and counted.
const BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Default)]
pub(crate) struct Shipping {
    marked: Mutex<Vec<Arc<RunLog>>>,
    bytes: AtomicUsize,
    hurry: Notify,
}

impl Shipping {
    /// The log has lines since it was last collected.
    pub(crate) fn mark(&self, log: Arc<RunLog>) {
        lock(&self.marked).push(log);
    }

    pub(crate) fn take_marked(&self) -> Vec<Arc<RunLog>> {
        std::mem::take(&mut *lock(&self.marked))
    }

    /// A chunk is full: don't wait for the next sweep.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes <= BYTES_MAX
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_bytes(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
