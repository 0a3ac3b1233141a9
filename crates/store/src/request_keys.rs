//! Idempotency keys: a repeated call with the same key gets the same answer.

use async_trait::async_trait;
use rondel_core::Timestamp;

use crate::error::Result;

/// A call with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedCall<'a> {
    /// Whose key: SHA-256 of what the caller shows to be let in, in hex.
    pub scope: &'a str,
    /// The key, at most 255 bytes.
    pub key: &'a str,
    /// What is asked: SHA-256 of method, path and body, in hex.
    pub fingerprint: &'a str,
}

/// An answer that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers, as a JSON object.
    pub headers: String,
    /// Its body.
    pub body: String,
}

/// What the beginning of a call found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// This call was not made before: it is to be made, and ended.
    New,
    /// It was made, and this was the answer.
    Answered(KeptAnswer),
    /// It is being made.
    InFlight,
    /// Another call was made with this key.
    Other,
}

/// Calls with keys.
#[async_trait]
pub trait RequestKeys {
    /// Begins a call. One without an answer that began before `given_up` is taken up again: its server is gone.
    async fn begin_call(&self, call: KeyedCall<'_>, now: Timestamp, given_up: Timestamp) -> Result<Begun>;

    /// Keeps the answer of a call that began; `None` forgets the call, so that it can be made again.
    async fn end_call(&self, call: KeyedCall<'_>, answer: Option<&KeptAnswer>) -> Result<()>;

    /// Forgets calls that began before `before`, at most `limit`; answers of how many.
    async fn forget_calls(&self, before: Timestamp, limit: u32) -> Result<u64>;
}
