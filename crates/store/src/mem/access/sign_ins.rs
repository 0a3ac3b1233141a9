//! The trait `SignIns` for the store in memory.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AccountId, SessionId, Timestamp};

use crate::Result;
use crate::access::{AttemptDecision, SignInLink, SignIns, WebSession};
use crate::mem::access::AccessRows;
use crate::mem::{MemStore, to_usize};

#[async_trait]
impl SignIns for MemStore {
    async fn begin_sign_in(&self, session: &WebSession, idle_max: Duration, count_max: u32) -> Result<()> {
        let mut state = self.state();
        let sessions = &mut state.access.sessions;
        let now = session.created_at;
        sessions.retain(|_, session| session.last_seen_at >= now.saturating_sub(idle_max) && session.expires_at > now);
        let is_same_owner = |other: &&WebSession| match session.account {
            Some(account) => other.account == Some(account),
            None => session.token.is_some() && other.token == session.token,
        };
        let ids: Vec<SessionId> = sessions.values().rev().filter(is_same_owner).map(|session| session.id).collect();
        for id in ids.into_iter().skip(to_usize(count_max.saturating_sub(1))) {
            sessions.remove(&id);
        }
        sessions.insert(session.id, session.clone());
        Ok(())
    }

    async fn sign_in(&self, hash: &str) -> Result<Option<WebSession>> {
        Ok(self.state().access.sessions.values().find(|session| session.hash == hash).cloned())
    }

    async fn touch_sign_in(&self, id: SessionId, now: Timestamp) -> Result<()> {
        if let Some(session) = self.state().access.sessions.get_mut(&id) {
            session.last_seen_at = session.last_seen_at.max(now);
        }
        Ok(())
    }

    async fn sign_ins(&self, account: AccountId) -> Result<Vec<WebSession>> {
        let state = self.state();
        let sessions = state.access.sessions.values().rev().filter(|session| session.account == Some(account));
        Ok(sessions.cloned().collect())
    }

    async fn end_sign_in(&self, id: SessionId, account: Option<AccountId>) -> Result<bool> {
        let mut state = self.state();
        let stored_session = state.access.sessions.get(&id);
        if stored_session.is_none_or(|session| account.is_some() && session.account != account) {
            return Ok(false);
        }
        state.access.sessions.remove(&id);
        Ok(true)
    }

    async fn add_link(&self, link: &SignInLink, now: Timestamp) -> Result<()> {
        let mut state = self.state();
        state.access.links.retain(|_, link| link.expires_at > now);
        state.access.links.insert(link.hash.clone(), link.clone());
        Ok(())
    }

    async fn link(&self, hash: &str) -> Result<Option<SignInLink>> {
        Ok(self.state().access.links.get(hash).cloned())
    }

    async fn take_link(&self, hash: &str) -> Result<Option<SignInLink>> {
        Ok(self.state().access.links.remove(hash))
    }

    async fn count_attempt(&self, bucket: i64, max: u32, window: Duration, now: Timestamp) -> Result<AttemptDecision> {
        let mut state = self.state();
        let (count, since) = state.access.attempts.entry(bucket).or_insert((0, now));
        if *since <= now.saturating_sub(window) {
            (*count, *since) = (0, now);
        }
        if *count >= max {
            return Ok(AttemptDecision::Blocked(*since + window));
        }
        *count += 1;
        Ok(AttemptDecision::Allowed)
    }

    async fn server_key(&self, name: &str, new_key: &str, _now: Timestamp) -> Result<String> {
        let mut state = self.state();
        Ok(state.access.server_keys.entry(name.to_owned()).or_insert_with(|| new_key.to_owned()).clone())
    }

    async fn forget_attempts(&self, bucket: i64) -> Result<()> {
        self.state().access.attempts.remove(&bucket);
        Ok(())
    }

    async fn is_known_address(&self, account: AccountId, network: &str) -> Result<bool> {
        Ok(self.state().access.addresses.contains_key(&(account, network.to_owned())))
    }

    async fn remember_address(&self, account: AccountId, network: &str, now: Timestamp, count_max: u32) -> Result<()> {
        let mut state = self.state();
        let addresses = &mut state.access.addresses;
        addresses.insert((account, network.to_owned()), now);
        let own_addresses = addresses.iter().filter(|((owner, _), _)| *owner == account);
        let mut seen_networks: Vec<(Timestamp, String)> =
            own_addresses.map(|((_, network), seen)| (*seen, network.clone())).collect();
        seen_networks.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        for (_, network) in seen_networks.into_iter().skip(to_usize(count_max)) {
            addresses.remove(&(account, network));
        }
        Ok(())
    }
}

impl AccessRows {
    pub(super) fn end_sessions(&mut self, account: AccountId, kept_session: Option<SessionId>) -> u64 {
        let count_before = self.sessions.len();
        self.sessions.retain(|id, session| session.account != Some(account) || Some(*id) == kept_session);
        u64::try_from(count_before - self.sessions.len()).unwrap_or(u64::MAX)
    }
}
