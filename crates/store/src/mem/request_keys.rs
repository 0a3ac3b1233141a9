//! The trait `RequestKeys` for the store in memory.

use async_trait::async_trait;
use rondel_core::Timestamp;

use super::{MemStore, to_usize};
use crate::request_keys::{CallState, KeyedCall, StoredAnswer};
use crate::{RequestKeys, Result};

#[derive(Clone, Debug)]
pub(super) struct StoredCall {
    fingerprint: String,
    began_at: Timestamp,
    answer: Option<StoredAnswer>,
}

#[async_trait]
impl RequestKeys for MemStore {
    async fn begin_call(&self, call: KeyedCall<'_>, now: Timestamp, given_up_before: Timestamp) -> Result<CallState> {
        let mut state = self.state();
        let new_call = StoredCall { fingerprint: call.fingerprint.to_owned(), began_at: now, answer: None };
        let Some(stored_call) = state.calls.get_mut(&key(call)) else {
            state.calls.insert(key(call), new_call);
            return Ok(CallState::New);
        };
        if stored_call.fingerprint != call.fingerprint {
            return Ok(CallState::KeyReused);
        }
        if let Some(answer) = &stored_call.answer {
            return Ok(CallState::Answered(answer.clone()));
        }
        if stored_call.began_at >= given_up_before {
            return Ok(CallState::InFlight);
        }
        *stored_call = new_call;
        Ok(CallState::New)
    }

    async fn renew_call(&self, call: KeyedCall<'_>, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        let is_open =
            |stored_call: &&mut StoredCall| stored_call.fingerprint == call.fingerprint && stored_call.answer.is_none();
        if let Some(stored_call) = state.calls.get_mut(&key(call)).filter(is_open) {
            stored_call.began_at = now;
        }
        Ok(())
    }

    async fn end_call(&self, call: KeyedCall<'_>, answer: Option<&StoredAnswer>) -> Result<()> {
        let mut state = self.state();
        let is_open =
            |stored_call: &&mut StoredCall| stored_call.fingerprint == call.fingerprint && stored_call.answer.is_none();
        let Some(stored_call) = state.calls.get_mut(&key(call)).filter(is_open) else { return Ok(()) };
        match answer {
            Some(answer) => stored_call.answer = Some(answer.clone()),
            None => drop(state.calls.remove(&key(call))),
        }
        Ok(())
    }

    async fn forget_calls(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut old_keys: Vec<_> = state
            .calls
            .iter()
            .filter(|(_, call)| call.began_at < before)
            .map(|(key, call)| (call.began_at, key.clone()))
            .collect();
        old_keys.sort();
        // As in SQL: calls that began in the same millisecond as the first remaining call stay for the next removal.
        let oldest_kept_at = old_keys.get(to_usize(limit)).map_or(before, |(began_at, _)| *began_at);
        let count = old_keys.len();
        state.calls.retain(|_, call| call.began_at >= oldest_kept_at);
        Ok((count - old_keys.iter().filter(|(began_at, _)| *began_at >= oldest_kept_at).count()) as u64)
    }
}

fn key(call: KeyedCall<'_>) -> (String, String) {
    (call.scope.to_owned(), call.key.to_owned())
}
