//! Tracks which logs have lines to send, and how many bytes all logs hold together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::buffer::RunLog;
use crate::lifecycle::lock;

/// Maximum bytes of lines that wait to be sent or acknowledged, of all runs together; further lines are dropped and counted. Each log
/// keeps the newest of its dropped lines in addition.
const BUFFERED_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Default)]
pub(crate) struct LogShipping {
    logs_to_send: Mutex<Vec<Arc<RunLog>>>,
    buffered_bytes: AtomicUsize,
    request_wake: Notify,
}

impl LogShipping {
    /// Marks a log as having lines to send.
    pub(crate) fn mark_log(&self, log: Arc<RunLog>) {
        lock(&self.logs_to_send).push(log);
    }

    pub(crate) fn take_marked_logs(&self) -> Vec<Arc<RunLog>> {
        std::mem::take(&mut *lock(&self.logs_to_send))
    }

    /// Requests shipping before the next sweep, because a chunk is full.
    pub(crate) fn request(&self) {
        self.request_wake.notify_one();
    }

    pub(crate) async fn wait_for_request(&self) {
        self.request_wake.notified().await;
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.buffered_bytes() + bytes <= BUFFERED_BYTES_MAX
    }

    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_bytes(&self, bytes: usize) {
        self.buffered_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn subtract_bytes(&self, bytes: usize) {
        self.buffered_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
