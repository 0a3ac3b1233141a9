//! Accounts, sign-ins, tokens, the audit log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, AuditId, NamespaceId, SessionId, Timestamp, TokenId};

use super::{MemStore, State, size};
use crate::Result;
use crate::access::{
    Account, AccountChange, AccountChanged, Accounts, Attempt, AuditEntry, AuditLog, AuditQuery, Kept, PasswordHash,
    SignInLink, SignIns, TokenKind, TokenQuery, TokenRecord, Tokens, UNANSWERED, WebSession, earlier, kept,
};

/// What the access tables hold.
#[derive(Default)]
pub(super) struct Access {
    accounts: BTreeMap<AccountId, Account>,
    sessions: BTreeMap<SessionId, WebSession>,
    links: HashMap<String, SignInLink>,
    /// How many, and since when.
    attempts: HashMap<i64, (u32, Timestamp)>,
    /// Where accounts signed in from, and when they last did.
    addresses: BTreeMap<(AccountId, String), Timestamp>,
    server_keys: HashMap<String, String>,
    tokens: BTreeMap<TokenId, TokenRecord>,
    audit: BTreeMap<AuditId, AuditEntry>,
}

impl Access {
    /// Takes every role there away.
    pub(super) fn leave(&mut self, namespace: NamespaceId) {
        let grants = self.accounts.values_mut().map(|account| &mut account.grants);
        for grants in grants.chain(self.tokens.values_mut().map(|token| &mut token.grants)) {
            grants.retain(|grant| grant.namespace != Some(namespace));
        }
    }

    fn admins(&self) -> Vec<AccountId> {
        let is_admin =
            |account: &&Account| !account.disabled && account.grants.contains(&Grant::everywhere(Role::Admin));
        self.accounts.values().filter(is_admin).map(|account| account.id).collect()
    }

    fn insert(&mut self, account: &Account) -> bool {
        if self.accounts.values().any(|known| known.name == account.name) {
            return false;
        }
        let mut account = account.clone();
        account.grants = sorted(&account.grants);
        self.accounts.insert(account.id, account);
        true
    }

    fn end_sessions(&mut self, account: AccountId, keep: Option<SessionId>) -> u64 {
        let before = self.sessions.len();
        self.sessions.retain(|id, session| session.account != Some(account) || Some(*id) == keep);
        u64::try_from(before - self.sessions.len()).unwrap_or(u64::MAX)
    }

    fn insert_token(&mut self, token: &TokenRecord) -> bool {
        let mut expires_at = token.expires_at;
        if let Some(parent) = token.minted_by {
            let parent = self.tokens.get(&parent).filter(|parent| parent.is_good(token.created_at));
            let Some(parent) = parent else { return false };
            expires_at = earlier(expires_at, parent.expires_at);
        }
        self.write_token(token, expires_at);
        true
    }

    fn write_token(&mut self, token: &TokenRecord, expires_at: Option<Timestamp>) {
        if self.tokens.values().all(|known| known.hash != token.hash) {
            self.tokens.insert(token.id, TokenRecord { grants: sorted(&token.grants), expires_at, ..token.clone() });
        }
    }

    fn tokens_of(&self, account: AccountId) -> BTreeSet<TokenId> {
        self.tokens.values().filter(|token| token.owner == Some(account)).map(|token| token.id).collect()
    }

    /// These tokens with their series and all tokens that those made; the sign-ins and links that any of them made end.
    fn end_family(&mut self, mut family: BTreeSet<TokenId>) -> BTreeSet<TokenId> {
        loop {
            let members = self.tokens.values().filter(|token| family.contains(&token.id));
            let series: BTreeSet<TokenId> = members.map(|token| token.series).collect();
            let is_of = |token: &&TokenRecord| {
                series.contains(&token.series) || token.minted_by.is_some_and(|parent| family.contains(&parent))
            };
            let found: Vec<TokenId> = self.tokens.values().filter(is_of).map(|token| token.id).collect();
            let count = family.len();
            family.extend(found);
            if family.len() == count {
                break;
            }
        }
        let is_of = |token: Option<TokenId>| token.is_some_and(|token| family.contains(&token));
        self.sessions.retain(|_, session| !is_of(session.token) && !is_of(session.minted_by));
        self.links.retain(|_, link| !is_of(link.token) && !is_of(link.minted_by));
        family
    }

    fn revoke_family(&mut self, family: BTreeSet<TokenId>, now: Timestamp) {
        for id in self.end_family(family) {
            if let Some(token) = self.tokens.get_mut(&id).filter(|token| token.is_good(now)) {
                token.revoked_at = Some(now);
            }
        }
    }

    fn move_begun(&mut self, old: TokenId, new: TokenId) {
        let tokens = self.tokens.values_mut().filter(|token| token.id != new).map(|token| &mut token.minted_by);
        let sessions = self.sessions.values_mut().flat_map(|session| [&mut session.token, &mut session.minted_by]);
        let links = self.links.values_mut().flat_map(|link| [&mut link.token, &mut link.minted_by]);
        for holder in tokens.chain(sessions).chain(links).filter(|holder| **holder == Some(old)) {
            *holder = Some(new);
        }
    }
}

/// As a key that is unique and in order keeps them.
fn sorted(grants: &[Grant]) -> Vec<Grant> {
    let mut grants = grants.to_vec();
    grants.sort_unstable();
    grants.dedup();
    grants
}

impl State {
    fn remove_account(&mut self, id: AccountId) -> AccountChanged {
        if self.access.admins() == [id] {
            return AccountChanged::LastAdmin;
        }
        if self.access.accounts.remove(&id).is_none() {
            return AccountChanged::NotFound;
        }
        let access = &mut self.access;
        access.end_sessions(id, None);
        access.addresses.retain(|(owner, _), _| *owner != id);
        let gone = access.end_family(access.tokens_of(id));
        access.tokens.retain(|id, _| !gone.contains(id));
        access.links.retain(|_, link| link.account != Some(id));
        AccountChanged::Done
    }
}

#[async_trait]
impl Accounts for MemStore {
    async fn create_account(&self, account: &Account) -> Result<bool> {
        Ok(self.state().access.insert(account))
    }

    async fn create_first_admin(&self, account: &Account) -> Result<bool> {
        let mut state = self.state();
        Ok(state.access.admins().is_empty() && state.access.insert(account))
    }

    async fn account(&self, id: AccountId) -> Result<Option<Account>> {
        Ok(self.state().access.accounts.get(&id).cloned())
    }

    async fn account_by_name(&self, name: &str) -> Result<Option<Account>> {
        Ok(self.state().access.accounts.values().find(|account| account.name == name).cloned())
    }

    async fn accounts(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<Account>> {
        let state = self.state();
        let mut accounts: Vec<Account> = state.access.accounts.values().cloned().collect();
        accounts.retain(|account| account.name.as_str() > after_name.unwrap_or_default());
        accounts.sort_by(|a, b| a.name.cmp(&b.name));
        accounts.truncate(size(limit));
        Ok(accounts)
    }

    async fn has_admin_account(&self) -> Result<bool> {
        Ok(!self.state().access.admins().is_empty())
    }

    async fn change_account(&self, id: AccountId, change: &AccountChange) -> Result<AccountChanged> {
        let mut state = self.state();
        let access = &mut state.access;
        let stays_admin = |grants: &Vec<Grant>| grants.contains(&Grant::everywhere(Role::Admin));
        let loses = change.disabled == Some(true) || change.grants.as_ref().is_some_and(|grants| !stays_admin(grants));
        if loses && access.admins() == [id] {
            return Ok(AccountChanged::LastAdmin);
        }
        let Some(account) = access.accounts.get_mut(&id) else { return Ok(AccountChanged::NotFound) };
        if let Some(display_name) = &change.display_name {
            account.display_name.clone_from(display_name);
        }
        account.disabled = change.disabled.unwrap_or(account.disabled);
        if let Some(link) = change.provider_link {
            account.provider_linked_at = link.at();
        }
        if let Some(grants) = &change.grants {
            account.grants = sorted(grants);
        }
        if change.disabled == Some(true) || change.grants.is_some() {
            access.end_sessions(id, None);
        }
        Ok(AccountChanged::Done)
    }

    async fn set_password(&self, id: AccountId, password: &PasswordHash, keep: Kept, now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let Some(account) = state.access.accounts.get_mut(&id) else { return Ok(false) };
        account.password = Some(password.clone());
        account.password_changed_at = Some(now);
        state.access.end_sessions(id, keep.session);
        state.access.links.retain(|_, link| link.account != Some(id));
        if !keep.tokens {
            let own = state.access.tokens_of(id);
            state.access.revoke_family(own, now);
        }
        Ok(true)
    }

    async fn delete_account(&self, id: AccountId) -> Result<AccountChanged> {
        Ok(self.state().remove_account(id))
    }
}

#[async_trait]
impl SignIns for MemStore {
    async fn begin_sign_in(&self, session: &WebSession, idle_max: Duration, count_max: u32) -> Result<()> {
        let mut state = self.state();
        let sessions = &mut state.access.sessions;
        let now = session.created_at;
        sessions.retain(|_, one| one.last_seen_at >= now.saturating_sub(idle_max) && one.expires_at > now);
        let is_same = |one: &&WebSession| match session.account {
            Some(account) => one.account == Some(account),
            None => session.token.is_some() && one.token == session.token,
        };
        let ids: Vec<SessionId> = sessions.values().rev().filter(is_same).map(|one| one.id).collect();
        for id in ids.into_iter().skip(size(count_max.saturating_sub(1))) {
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
        let own = state.access.sessions.values().rev().filter(|session| session.account == Some(account));
        Ok(own.cloned().collect())
    }

    async fn end_sign_in(&self, id: SessionId, account: Option<AccountId>) -> Result<bool> {
        let mut state = self.state();
        let found = state.access.sessions.get(&id);
        if found.is_none_or(|session| account.is_some() && session.account != account) {
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

    async fn count_attempt(&self, bucket: i64, max: u32, window: Duration, now: Timestamp) -> Result<Attempt> {
        let mut state = self.state();
        let (count, since) = state.access.attempts.entry(bucket).or_insert((0, now));
        if *since <= now.saturating_sub(window) {
            (*count, *since) = (0, now);
        }
        if *count >= max {
            return Ok(Attempt::Blocked(*since + window));
        }
        *count += 1;
        Ok(Attempt::Allowed)
    }

    async fn server_key(&self, name: &str, fresh: &str, _now: Timestamp) -> Result<String> {
        let mut state = self.state();
        Ok(state.access.server_keys.entry(name.to_owned()).or_insert_with(|| fresh.to_owned()).clone())
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
        let own = addresses.iter().filter(|((owner, _), _)| *owner == account);
        let mut own: Vec<(Timestamp, String)> = own.map(|((_, network), seen)| (*seen, network.clone())).collect();
        own.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        for (_, network) in own.into_iter().skip(size(count_max)) {
            addresses.remove(&(account, network));
        }
        Ok(())
    }
}

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
        let wanted = |token: &&TokenRecord| {
            query.owner.is_none_or(|owner| token.owner == Some(owner))
                && query.scope.as_ref().is_none_or(|scope| scope.has(token))
                && query.after.is_none_or(|after| token.id < after)
        };
        Ok(state.access.tokens.values().rev().filter(wanted).take(size(query.limit)).cloned().collect())
    }

    async fn living_tokens(&self, owner: AccountId, now: Timestamp) -> Result<u64> {
        let state = self.state();
        let living = state.access.tokens.values().filter(|token| token.owner == Some(owner) && token.is_good(now));
        Ok(u64::try_from(living.count()).unwrap_or(u64::MAX))
    }

    async fn living_tokens_of_line(&self, line: TokenId, now: Timestamp) -> Result<u64> {
        let state = self.state();
        let is_counted = |token: &&TokenRecord| {
            token.line == line && token.owner.is_none() && token.kind == TokenKind::Api && token.is_good(now)
        };
        Ok(u64::try_from(state.access.tokens.values().filter(is_counted).count()).unwrap_or(u64::MAX))
    }

    async fn forget_tokens(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let access = &mut self.state().access;
        let is_dead = |token: &&TokenRecord| token.revoked_at.or(token.expires_at).is_some_and(|end| end < before);
        let dead: Vec<TokenId> =
            access.tokens.values().filter(is_dead).map(|token| token.id).take(size(limit)).collect();
        let gone: HashMap<TokenId, Option<TokenId>> =
            dead.iter().filter_map(|id| Some((*id, access.tokens.remove(id)?.minted_by))).collect();
        for token in access.tokens.values_mut() {
            while let Some(next) = token.minted_by.and_then(|parent| gone.get(&parent)) {
                token.minted_by = *next;
            }
        }
        access.sessions.retain(|_, session| session.token.is_none_or(|token| !dead.contains(&token)));
        Ok(u64::try_from(dead.len()).unwrap_or(u64::MAX))
    }

    async fn touch_token(&self, id: TokenId, now: Timestamp) -> Result<()> {
        if let Some(token) = self.state().access.tokens.get_mut(&id) {
            token.last_used_at = Some(now);
        }
        Ok(())
    }

    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let was_good = state.access.tokens.get(&id).is_some_and(|token| token.is_good(now));
        state.access.revoke_family([id].into(), now);
        Ok(was_good)
    }

    async fn rotate_token(&self, old: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> Result<bool> {
        let mut state = self.state();
        let access = &mut state.access;
        let held = access.tokens.get(&old).filter(|token| token.is_good(new.created_at));
        let Some((series, ends_at)) = held.map(|token| (token.series, token.expires_at)) else { return Ok(false) };
        if new.series == series {
            access.write_token(new, earlier(new.expires_at, ends_at));
        } else if !access.insert_token(new) {
            return Ok(false);
        }
        if let Some(token) = access.tokens.get_mut(&old) {
            token.expires_at = earlier(ends_at, Some(old_ends_at));
        }
        access.move_begun(old, new.id);
        Ok(true)
    }
}

#[async_trait]
impl AuditLog for MemStore {
    async fn add_audit(&self, entry: &AuditEntry) -> Result<()> {
        let mut entry = entry.clone();
        entry.before = entry.before.as_deref().map(kept);
        entry.after = entry.after.as_deref().map(kept);
        self.state().access.audit.insert(entry.id, entry);
        Ok(())
    }

    async fn answer_audit(&self, entry: &AuditEntry) -> Result<bool> {
        let mut state = self.state();
        let open = state.access.audit.get_mut(&entry.id);
        let Some(open) = open.filter(|open| open.after.as_deref() == Some(UNANSWERED)) else { return Ok(false) };
        let AuditEntry { object, namespace, verdict, before, after, .. } = entry.clone();
        open.before = before.as_deref().map(kept);
        open.after = after.as_deref().map(kept);
        (open.object, open.namespace, open.verdict) = (object, namespace, verdict);
        Ok(true)
    }

    async fn audit(&self, query: &AuditQuery) -> Result<Vec<AuditEntry>> {
        let state = self.state();
        let is = |filter: &Option<String>, text: &str| filter.as_deref().is_none_or(|wanted| wanted == text);
        let wanted = |entry: &&AuditEntry| {
            is(&query.actor, &entry.actor)
                && is(&query.action, &entry.action)
                && is(&query.object, &entry.object)
                && query.namespace.is_none() | (query.namespace == entry.namespace)
                && query.verdict.is_none_or(|verdict| entry.verdict == verdict)
                && query.from.is_none_or(|from| entry.id.get() >= rondel_core::IdGen::first_at(from))
                && query.to.is_none_or(|to| entry.id.get() < rondel_core::IdGen::first_at(to))
                && query.after.is_none_or(|after| entry.id < after)
        };
        Ok(state.access.audit.values().rev().filter(wanted).take(size(query.limit)).cloned().collect())
    }
}
