//! The trait `Accounts` for the store in memory.

use async_trait::async_trait;
use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, Timestamp};

use crate::Result;
use crate::access::{Account, AccountChange, AccountChanged, Accounts, KeptAccess, PasswordHash};
use crate::mem::access::{AccessRows, sorted_grants};
use crate::mem::{MemStore, State, to_usize};

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
        accounts.truncate(to_usize(limit));
        Ok(accounts)
    }

    async fn has_admin_account(&self) -> Result<bool> {
        Ok(!self.state().access.admins().is_empty())
    }

    async fn change_account(&self, id: AccountId, change: &AccountChange) -> Result<AccountChanged> {
        let mut state = self.state();
        let access = &mut state.access;
        let stays_admin = |grants: &Vec<Grant>| grants.contains(&Grant::everywhere(Role::Admin));
        let loses_admin =
            change.disabled == Some(true) || change.grants.as_ref().is_some_and(|grants| !stays_admin(grants));
        if loses_admin && access.admins() == [id] {
            return Ok(AccountChanged::LastAdmin);
        }
        let Some(account) = access.accounts.get_mut(&id) else { return Ok(AccountChanged::NotFound) };
        if let Some(display_name) = &change.display_name {
            account.display_name.clone_from(display_name);
        }
        account.disabled = change.disabled.unwrap_or(account.disabled);
        if let Some(link) = change.provider_link {
            account.provider_linked_at = link.linked_at();
        }
        if let Some(grants) = &change.grants {
            account.grants = sorted_grants(grants);
        }
        if change.disabled == Some(true) || change.grants.is_some() {
            access.end_sessions(id, None);
        }
        Ok(AccountChanged::Done)
    }

    async fn set_password(
        &self,
        id: AccountId,
        password: &PasswordHash,
        kept_access: KeptAccess,
        now: Timestamp,
    ) -> Result<bool> {
        let mut state = self.state();
        let Some(account) = state.access.accounts.get_mut(&id) else { return Ok(false) };
        account.password = Some(password.clone());
        account.password_changed_at = Some(now);
        state.access.end_sessions(id, kept_access.session);
        state.access.links.retain(|_, link| link.account != Some(id));
        if !kept_access.keeps_tokens {
            let own_tokens = state.access.tokens_of(id);
            state.access.revoke_family(own_tokens, now);
        }
        Ok(true)
    }

    async fn delete_account(&self, id: AccountId) -> Result<AccountChanged> {
        Ok(self.state().remove_account(id))
    }
}

impl AccessRows {
    pub(super) fn admins(&self) -> Vec<AccountId> {
        let is_admin =
            |account: &&Account| !account.disabled && account.grants.contains(&Grant::everywhere(Role::Admin));
        self.accounts.values().filter(is_admin).map(|account| account.id).collect()
    }

    pub(super) fn insert(&mut self, account: &Account) -> bool {
        if self.accounts.values().any(|other| other.name == account.name) {
            return false;
        }
        let mut account = account.clone();
        account.grants = sorted_grants(&account.grants);
        self.accounts.insert(account.id, account);
        true
    }
}

impl State {
    pub(super) fn remove_account(&mut self, id: AccountId) -> AccountChanged {
        if self.access.admins() == [id] {
            return AccountChanged::LastAdmin;
        }
        if self.access.accounts.remove(&id).is_none() {
            return AccountChanged::NotFound;
        }
        let access = &mut self.access;
        access.end_sessions(id, None);
        access.addresses.retain(|(owner, _), _| *owner != id);
        let ended_tokens = access.end_family(access.tokens_of(id));
        access.tokens.retain(|id, _| !ended_tokens.contains(id));
        access.links.retain(|_, link| link.account != Some(id));
        self.saved_filters.remove(&id.get());
        AccountChanged::Done
    }
}
