//! Idempotency keys: a repeated call with the same key gets the same answer.

use async_trait::async_trait;
use rondel_core::Timestamp;

use crate::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedCall<'a> {
    /// The owner of the key: SHA-256 of the caller's credential, in hex.
    pub scope: &'a str,
    /// The key, at most 255 bytes.
    pub key: &'a str,
    /// The request: SHA-256 of method, path and body, in hex.
    pub fingerprint: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    pub status: u16,
    /// Its headers, as a JSON object.
    pub headers: String,
    pub body: String,
}

/// The state of a call when a caller begins it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallState {
    /// The call is new, or begins again. The caller must make it, and then end it.
    New,
    /// The call has already been made, with this answer.
    Answered(StoredAnswer),
    /// The call is in progress.
    InFlight,
    /// Another call, with another fingerprint, has this key.
    KeyReused,
}

#[async_trait]
pub trait RequestKeys {
    /// Begins a call. If the call has no answer and was last begun or renewed before `given_up_before`, it begins again, because its server is
    /// presumed dead.
    async fn begin_call(&self, call: KeyedCall<'_>, now: Timestamp, given_up_before: Timestamp) -> Result<CallState>;

    /// Records that a call without an answer is still in progress: from now on it counts as begun at `now`.
    async fn renew_call(&self, call: KeyedCall<'_>, now: Timestamp) -> Result<()>;

    /// Stores the answer of a call that began. `None` removes the call, so that it can be made again.
    async fn end_call(&self, call: KeyedCall<'_>, answer: Option<&StoredAnswer>) -> Result<()>;

    /// Removes calls that began before `before`, at most `limit`; returns how many.
    async fn forget_calls(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
