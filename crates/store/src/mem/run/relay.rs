//! The trait `Relay` for the store in memory: requests to fence, and their answers, between servers.

use async_trait::async_trait;
use rondel_core::{NodeId, Timestamp};

use crate::ledger::{FenceRequest, RelayedAnswer};
use crate::mem::{MemStore, to_usize};
use crate::{LeaseToken, Relay, Result};

#[async_trait]
impl Relay for MemStore {
    async fn ask_fences(&self, requests: &[FenceRequest], forget_before: Timestamp) -> Result<()> {
        let mut state = self.state();
        state.fence_requests.retain(|_, (request, _)| request.asked_at >= forget_before);
        for request in requests {
            let key = (request.asker, request.executor);
            if state
                .fence_requests
                .get(&key)
                .is_none_or(|(stored_request, _)| stored_request.asked_at != request.asked_at)
            {
                state.fence_requests.insert(key, (request.clone(), None));
            }
        }
        Ok(())
    }

    async fn fences_to_relay(&self, token: LeaseToken, since: Timestamp, limit: u32) -> Result<Vec<FenceRequest>> {
        let state = self.state();
        let is_heard = |request: &&FenceRequest| {
            let session = state.sessions.get(&(token.node, request.executor));
            session.is_some_and(|session| session.ended_at.is_none())
        };
        let open_requests =
            state.fence_requests.values().filter(|(_, answer)| answer.is_none()).map(|(request, _)| request);
        let mut requests: Vec<FenceRequest> = open_requests
            .filter(|request| request.asker != token.node && request.asked_at >= since)
            .filter(is_heard)
            .cloned()
            .collect();
        requests.sort_by_key(|request| (request.asked_at, request.asker, request.executor));
        requests.truncate(to_usize(limit));
        Ok(requests)
    }

    async fn answer_fences(&self, answers: &[RelayedAnswer], _now: Timestamp) -> Result<()> {
        let mut state = self.state();
        for answer in answers {
            let stored_request = state.fence_requests.get_mut(&(answer.asker, answer.executor));
            if let Some((request, first_answer)) = stored_request
                && request.asked_at == answer.asked_at
                && first_answer.is_none()
            {
                *first_answer = Some(answer.clone());
            }
        }
        Ok(())
    }

    async fn fence_answers(&self, asker: NodeId, since: Timestamp, limit: u32) -> Result<Vec<RelayedAnswer>> {
        let state = self.state();
        let requests =
            state.fence_requests.values().filter(|(request, _)| request.asker == asker && request.asked_at >= since);
        Ok(requests.filter_map(|(_, answer)| answer.clone()).take(to_usize(limit)).collect())
    }
}
