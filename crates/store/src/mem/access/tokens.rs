//! The trait `Tokens` for the store in memory.

use std::collections::HashMap;

use async_trait::async_trait;
use rondel_core::time::earlier_of;
use rondel_core::{AccountId, Timestamp, TokenId};

use crate::Result;
use crate::access::{TokenKind, TokenQuery, TokenRecord, Tokens};
use crate::mem::access::{AccessRows, sorted_grants};
use crate::mem::{MemStore, to_usize};

#[async_trait]
impl Tokens for MemStore {
    async fn add_token(&self, token: &TokenRecord) -> Result<bool> {
        Ok(self.state().access.insert_token(token))
    }

    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>> {
        Ok(self.state().access.tokens.values().find(|token| token.hash == hash).cloned())
    }

    async fn token_by_id(&self, id: TokenId) -> Result<Option<TokenRecord>> {
        Ok(self.state().access.tokens.get(&id).cloned())
    }

    async fn tokens(&self, query: &TokenQuery) -> Result<Vec<TokenRecord>> {
        let state = self.state();
        let is_wanted = |token: &&TokenRecord| {
            query.owner.is_none_or(|owner| token.owner == Some(owner))
                && query.scope.as_ref().is_none_or(|scope| scope.has(token))
                && query.after.is_none_or(|after| token.id < after)
        };
        Ok(state.access.tokens.values().rev().filter(is_wanted).take(to_usize(query.limit)).cloned().collect())
    }

    async fn count_valid_tokens(&self, owner: AccountId, now: Timestamp) -> Result<u64> {
        let state = self.state();
        let valid_tokens =
            state.access.tokens.values().filter(|token| token.owner == Some(owner) && token.is_valid(now));
        Ok(u64::try_from(valid_tokens.count()).unwrap_or(u64::MAX))
    }

    async fn count_valid_tokens_of_line(&self, line: TokenId, now: Timestamp) -> Result<u64> {
        let state = self.state();
        let is_counted = |token: &&TokenRecord| {
            token.line == line && token.owner.is_none() && token.kind == TokenKind::Api && token.is_valid(now)
        };
        Ok(u64::try_from(state.access.tokens.values().filter(is_counted).count()).unwrap_or(u64::MAX))
    }

    async fn forget_tokens(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let state = &mut *state;
        let access = &mut state.access;
        let is_of_server =
            |token: &TokenRecord| token.owner.is_none() && token.kind == TokenKind::Api && token.name == "admin";
        let is_dead = |token: &&TokenRecord| {
            token.revoked_at.or(token.expires_at).is_some_and(|end| end < before) && !is_of_server(token)
        };
        let dead_ids: Vec<TokenId> =
            access.tokens.values().filter(is_dead).map(|token| token.id).take(to_usize(limit)).collect();
        let dead_tokens: HashMap<TokenId, Option<TokenId>> =
            dead_ids.iter().filter_map(|id| Some((*id, access.tokens.remove(id)?.minted_by))).collect();
        for token in access.tokens.values_mut() {
            while let Some(grandparent) = token.minted_by.and_then(|parent| dead_tokens.get(&parent)) {
                token.minted_by = *grandparent;
            }
        }
        access.sessions.retain(|_, session| session.token.is_none_or(|token| !dead_ids.contains(&token)));
        if !dead_ids.is_empty() {
            let account_exists = |owner: i64| access.accounts.contains_key(&AccountId::new(owner));
            let is_line_in_use = |owner: i64| access.tokens.values().any(|token| token.line.get() == owner);
            state.saved_filters.retain(|owner, _| account_exists(*owner) || is_line_in_use(*owner));
        }
        Ok(u64::try_from(dead_ids.len()).unwrap_or(u64::MAX))
    }

    async fn touch_token(&self, id: TokenId, now: Timestamp) -> Result<()> {
        if let Some(token) = self.state().access.tokens.get_mut(&id) {
            token.last_used_at = Some(now);
        }
        Ok(())
    }

    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let was_valid = state.access.tokens.get(&id).is_some_and(|token| token.is_valid(now));
        state.access.revoke_family([id].into(), now);
        Ok(was_valid)
    }

    async fn rotate_token(&self, old_id: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> Result<bool> {
        let mut state = self.state();
        let access = &mut state.access;
        let old_token = access.tokens.get(&old_id).filter(|token| token.is_valid(new.created_at));
        let Some((series, ends_at)) = old_token.map(|token| (token.series, token.expires_at)) else { return Ok(false) };
        if new.series == series {
            access.write_token(new, earlier_of(new.expires_at, ends_at));
        } else if !access.insert_token(new) {
            return Ok(false);
        }
        if let Some(token) = access.tokens.get_mut(&old_id) {
            token.expires_at = earlier_of(ends_at, Some(old_ends_at));
        }
        access.move_access(old_id, new.id);
        Ok(true)
    }
}

impl AccessRows {
    pub(super) fn write_token(&mut self, token: &TokenRecord, expires_at: Option<Timestamp>) {
        if self.tokens.values().all(|other| other.hash != token.hash) {
            self.tokens
                .insert(token.id, TokenRecord { grants: sorted_grants(&token.grants), expires_at, ..token.clone() });
        }
    }

    pub(super) fn insert_token(&mut self, token: &TokenRecord) -> bool {
        let mut expires_at = token.expires_at;
        if let Some(parent) = token.minted_by {
            let parent = self.tokens.get(&parent).filter(|parent| parent.is_valid(token.created_at));
            let Some(parent) = parent else { return false };
            expires_at = earlier_of(expires_at, parent.expires_at);
        }
        self.write_token(token, expires_at);
        true
    }
}
