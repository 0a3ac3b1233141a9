//! The trait `Accounts` in SQL.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::access::{Grant, Role};
use rondel_core::{AccountId, AppId, NamespaceId, Timestamp};
use sqlx::any::AnyRow;

use crate::Result;
use crate::access::{Account, AccountChange, AccountChanged, Accounts, KeptAccess, PasswordHash};
use crate::settle::clean_name;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::saved_filters::DELETE_FILTERS_OF_OWNER;
use crate::sql::{SqlStore, Tx, transact};

macro_rules! select_account {
    ($rest:literal) => {
        concat!(
            "SELECT id, name, display_name, password_hash, disabled, created_at_ms, password_changed_at_ms, \
             provider_linked_at_ms FROM account ",
            $rest
        )
    };
}

const READ_ACCOUNT: Statement = Statement { name: "read_account", text: select_account!("WHERE id = ?") };
const READ_ACCOUNT_BY_NAME: Statement =
    Statement { name: "read_account_by_name", text: select_account!("WHERE name = ?") };
const LIST_ACCOUNTS: Statement =
    Statement { name: "list_accounts", text: select_account!("WHERE name > ? ORDER BY name LIMIT ?") };
const LOCK_ACCOUNT: Statement =
    Statement { name: "lock_account", text: "SELECT id FROM account WHERE id = ? {for_update}" };
const INSERT_ACCOUNT: Statement = Statement {
    name: "insert_account",
    text: "INSERT {ignore} INTO account (id, name, display_name, password_hash, disabled, created_at_ms, \
           password_changed_at_ms, provider_linked_at_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const UPDATE_DISPLAY_NAME: Statement =
    Statement { name: "update_display_name", text: "UPDATE account SET display_name = ? WHERE id = ?" };
const UPDATE_ACCOUNT_DISABLED: Statement =
    Statement { name: "update_disabled", text: "UPDATE account SET disabled = ? WHERE id = ?" };
const UPDATE_PROVIDER_LINK: Statement =
    Statement { name: "update_provider_link", text: "UPDATE account SET provider_linked_at_ms = ? WHERE id = ?" };
const UPDATE_PASSWORD: Statement = Statement {
    name: "update_password",
    text: "UPDATE account SET password_hash = ?, password_changed_at_ms = ? WHERE id = ?",
};
const DELETE_ACCOUNT: Statement = Statement { name: "delete_account", text: "DELETE FROM account WHERE id = ?" };
/// Locks all accounts that may do everything, disabled or not. A transaction that disables or deletes an account, or takes this right from
/// it, locks all of them first, so that two concurrent ones cannot remove the last two.
pub(in crate::sql) const LOCK_ADMINS: Statement = Statement {
    name: "lock_admins",
    text: "SELECT account.id, account.disabled FROM role_grant JOIN account ON account.id = role_grant.subject_id \
           WHERE role_grant.namespace_id = 0 AND role_grant.role = 'admin' AND role_grant.app_id = 0 \
           AND role_grant.subject_kind = 'account' ORDER BY account.id {for_update}",
};
const FIND_ADMIN: Statement = Statement {
    name: "find_admin",
    text: "SELECT account.id FROM role_grant JOIN account ON account.id = role_grant.subject_id \
           WHERE role_grant.namespace_id = 0 AND role_grant.role = 'admin' AND role_grant.app_id = 0 \
           AND role_grant.subject_kind = 'account' AND account.disabled = 0 LIMIT 1",
};
pub(in crate::sql) const READ_GRANTS: Statement = Statement {
    name: "read_grants",
    text: "SELECT subject_id, role, namespace_id, app_id FROM role_grant WHERE subject_kind = ? AND subject_id {in_list}",
};
const INSERT_GRANTS: Statement = Statement {
    name: "insert_grants",
    text: "INSERT {ignore} INTO role_grant (subject_kind, subject_id, role, namespace_id, app_id) {values:titii} \
           {or_ignore}",
};
const DELETE_GRANTS: Statement =
    Statement { name: "delete_grants", text: "DELETE FROM role_grant WHERE subject_kind = ? AND subject_id = ?" };
const DELETE_ADDRESSES_OF_ACCOUNT: Statement =
    Statement { name: "delete_addresses_of_account", text: "DELETE FROM account_address WHERE account_id = ?" };
const DELETE_LINKS_OF_ACCOUNT: Statement =
    Statement { name: "delete_links_of_account", text: "DELETE FROM sign_in_link WHERE account_id = ?" };

/// The owner of a grant: an account or a token.
#[derive(Clone, Copy)]
pub(super) enum Subject {
    Account,
    Token,
}

impl Subject {
    const fn word(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Token => "token",
        }
    }
}

#[async_trait]
impl Accounts for SqlStore {
    async fn create_account(&self, account: &Account) -> Result<bool> {
        transact!(self, "create_account", |tx| tx.insert_account(account).await)
    }

    async fn create_first_admin(&self, account: &Account) -> Result<bool> {
        // Serializes these transactions: each one locks the row of the namespace `default`, which every database has.
        transact!(self, "create_first_admin", |tx| {
            tx.rows(Query::new(&crate::sql::catalog::namespaces::LOCK_NAMESPACE).int(1)).await?;
            if tx.admins().await?.is_empty() { tx.insert_account(account).await } else { Ok(false) }
        })
    }

    async fn account(&self, id: AccountId) -> Result<Option<Account>> {
        let row = self.row(Query::new(&READ_ACCOUNT).int(id.get())).await?;
        self.account_with_grants(row.as_ref()).await
    }

    async fn account_by_name(&self, name: &str) -> Result<Option<Account>> {
        let row = self.row(Query::new(&READ_ACCOUNT_BY_NAME).text(&clean_name(name))).await?;
        self.account_with_grants(row.as_ref()).await
    }

    async fn accounts(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<Account>> {
        let query = Query::new(&LIST_ACCOUNTS).text(after_name.unwrap_or_default()).int(limit.into());
        let mut accounts = self.rows(query).await?.iter().map(account).collect::<Result<Vec<_>>>()?;
        let ids: Vec<i64> = accounts.iter().map(|account| account.id.get()).collect();
        let mut grants = self.grants(Subject::Account, &ids).await?;
        for account in &mut accounts {
            account.grants = grants.remove(&account.id.get()).unwrap_or_default();
        }
        Ok(accounts)
    }

    async fn has_admin_account(&self) -> Result<bool> {
        Ok(self.row(Query::new(&FIND_ADMIN)).await?.is_some())
    }

    async fn change_account(&self, id: AccountId, change: &AccountChange) -> Result<AccountChanged> {
        transact!(self, "change_account", |tx| tx.change_account(id, change).await)
    }

    async fn set_password(
        &self,
        id: AccountId,
        password: &PasswordHash,
        kept_access: KeptAccess,
        now: Timestamp,
    ) -> Result<bool> {
        transact!(self, "set_password", |tx| {
            if tx.row(Query::new(&LOCK_ACCOUNT).int(id.get())).await?.is_none() {
                return Ok(false);
            }
            tx.execute(Query::new(&UPDATE_PASSWORD).text(password.reveal()).at(now).int(id.get())).await?;
            tx.execute(Query::new(&DELETE_LINKS_OF_ACCOUNT).int(id.get())).await?;
            tx.end_account_sessions(id, kept_access.session).await?;
            if !kept_access.keeps_tokens {
                tx.revoke_tokens_of(id, now).await?;
            }
            Ok(true)
        })
    }

    async fn delete_account(&self, id: AccountId) -> Result<AccountChanged> {
        transact!(self, "delete_account", |tx| {
            if !tx.is_dispensable(id).await? {
                return Ok(AccountChanged::LastAdmin);
            }
            tx.end_account_sessions(id, None).await?;
            tx.delete_tokens_of(id).await?;
            tx.execute(Query::new(&DELETE_LINKS_OF_ACCOUNT).int(id.get())).await?;
            tx.execute(Query::new(&DELETE_ADDRESSES_OF_ACCOUNT).int(id.get())).await?;
            tx.execute(Query::new(&DELETE_FILTERS_OF_OWNER).int(id.get())).await?;
            tx.delete_grants(Subject::Account, id.get()).await?;
            let deleted_rows = tx.execute(Query::new(&DELETE_ACCOUNT).int(id.get())).await?;
            Ok(if deleted_rows == 1 { AccountChanged::Done } else { AccountChanged::NotFound })
        })
    }
}

impl SqlStore {
    async fn account_with_grants(&self, row: Option<&AnyRow>) -> Result<Option<Account>> {
        let Some(mut account) = row.map(account).transpose()? else { return Ok(None) };
        let id = account.id.get();
        account.grants = self.grants(Subject::Account, &[id]).await?.remove(&id).unwrap_or_default();
        Ok(Some(account))
    }

    /// The sorted grants of each of these accounts or tokens, by its id.
    pub(super) async fn grants(&self, subject: Subject, ids: &[i64]) -> Result<BTreeMap<i64, Vec<Grant>>> {
        let mut grants_by_id: BTreeMap<i64, Vec<Grant>> = BTreeMap::new();
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_GRANTS).text(subject.word()).list(chunk.iter().copied());
            for row in self.rows(query).await? {
                let mut columns = Reader::new(&row, "role_grant");
                let id = columns.int("subject_id")?;
                grants_by_id.entry(id).or_default().push(grant(&mut columns)?);
            }
        }
        for grants in grants_by_id.values_mut() {
            grants.sort_unstable();
        }
        Ok(grants_by_id)
    }
}

impl Tx<'_> {
    async fn insert_account(&mut self, account: &Account) -> Result<bool> {
        let insert = Query::new(&INSERT_ACCOUNT)
            .int(account.id.get())
            .text(&clean_name(&account.name))
            .text(&clean_name(&account.display_name))
            .opt_text(account.password.as_ref().map(PasswordHash::reveal))
            .int(account.disabled.into())
            .at(account.created_at)
            .opt_at(account.password_changed_at)
            .opt_at(account.provider_linked_at);
        if self.execute(insert).await? == 0 {
            return Ok(false);
        }
        self.write_grants(Subject::Account, account.id.get(), &account.grants).await?;
        Ok(true)
    }

    pub(super) async fn write_grants(&mut self, subject: Subject, id: i64, grants: &[Grant]) -> Result<()> {
        for chunk in grants.chunks(CHUNK_MAX) {
            let query = Query::new(&INSERT_GRANTS).rows(chunk, |query, grant| {
                query
                    .text(subject.word())
                    .int(id)
                    .text(grant.role.as_str())
                    .int(grant.namespace.map_or(0, NamespaceId::get))
                    .int(grant.app.map_or(0, AppId::get))
            });
            self.execute(query).await?;
        }
        Ok(())
    }

    pub(super) async fn delete_grants(&mut self, subject: Subject, id: i64) -> Result<()> {
        self.execute(Query::new(&DELETE_GRANTS).text(subject.word()).int(id)).await?;
        Ok(())
    }

    /// The accounts that may do everything and are not disabled.
    async fn admins(&mut self) -> Result<Vec<AccountId>> {
        let mut admins = Vec::new();
        for row in self.rows(Query::new(&LOCK_ADMINS)).await? {
            let mut columns = Reader::new(&row, "account");
            let id = AccountId::new(columns.int("id")?);
            if columns.int("disabled")? == 0 {
                admins.push(id);
            }
        }
        Ok(admins)
    }

    /// Whether this account can be disabled or deleted. Only the last enabled account that may do everything cannot.
    async fn is_dispensable(&mut self, id: AccountId) -> Result<bool> {
        Ok(self.admins().await? != [id])
    }

    async fn change_account(&mut self, id: AccountId, change: &AccountChange) -> Result<AccountChanged> {
        let stays_admin = |grants: &Vec<Grant>| grants.contains(&Grant::everywhere(Role::Admin));
        let loses_admin =
            change.disabled == Some(true) || change.grants.as_ref().is_some_and(|grants| !stays_admin(grants));
        if loses_admin && !self.is_dispensable(id).await? {
            return Ok(AccountChanged::LastAdmin);
        }
        if self.row(Query::new(&LOCK_ACCOUNT).int(id.get())).await?.is_none() {
            return Ok(AccountChanged::NotFound);
        }
        if let Some(display_name) = &change.display_name {
            self.execute(Query::new(&UPDATE_DISPLAY_NAME).text(&clean_name(display_name)).int(id.get())).await?;
        }
        if let Some(disabled) = change.disabled {
            self.execute(Query::new(&UPDATE_ACCOUNT_DISABLED).int(disabled.into()).int(id.get())).await?;
        }
        if let Some(link) = change.provider_link {
            self.execute(Query::new(&UPDATE_PROVIDER_LINK).opt_at(link.linked_at()).int(id.get())).await?;
        }
        if let Some(grants) = &change.grants {
            self.delete_grants(Subject::Account, id.get()).await?;
            self.write_grants(Subject::Account, id.get(), grants).await?;
        }
        if change.disabled == Some(true) || change.grants.is_some() {
            self.end_account_sessions(id, None).await?;
        }
        Ok(AccountChanged::Done)
    }
}

fn account(row: &AnyRow) -> Result<Account> {
    let mut columns = Reader::new(row, "account");
    Ok(Account {
        id: AccountId::new(columns.int("id")?),
        name: columns.text("name")?,
        display_name: columns.text("display_name")?,
        password: columns.opt_text("password_hash")?.map(PasswordHash::new),
        disabled: columns.int("disabled")? != 0,
        created_at: columns.at("created_at_ms")?,
        password_changed_at: columns.opt_at("password_changed_at_ms")?,
        provider_linked_at: columns.opt_at("provider_linked_at_ms")?,
        grants: Vec::new(),
    })
}

fn grant(columns: &mut Reader<'_>) -> Result<Grant> {
    let role = columns.word("role")?;
    let nonzero = |id: i64| (id != 0).then_some(id);
    Ok(Grant {
        role,
        namespace: nonzero(columns.int("namespace_id")?).map(NamespaceId::new),
        app: nonzero(columns.int("app_id")?).map(AppId::new),
    })
}
