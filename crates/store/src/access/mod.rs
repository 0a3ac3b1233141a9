//! Access: accounts with their roles, sessions of signed-in users, API tokens, and the audit log.

mod audit;
mod sign_ins;
mod tokens;

use async_trait::async_trait;
use rondel_core::access::Grant;
use rondel_core::{AccountId, SessionId, Timestamp};

pub(crate) use self::audit::stored_document;
pub use self::audit::{AuditEntry, AuditLog, AuditQuery, AuthMethod, INCOMPLETE, Verdict};
pub use self::sign_ins::{AttemptDecision, LinkPurpose, SignInLink, SignIns, WebSession};
pub use self::tokens::{TokenKind, TokenQuery, TokenRecord, TokenScope, Tokens};
use crate::error::Result;

/// The stored hash of a password: a PHC string.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// A user who can sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub id: AccountId,
    /// The name that the user types to sign in; unique.
    pub name: String,
    /// The name that is shown.
    pub display_name: String,
    /// `None` for a user who cannot sign in by a password.
    pub password: Option<PasswordHash>,
    /// Whether the account is disabled. The user of a disabled account cannot sign in.
    pub disabled: bool,
    pub created_at: Timestamp,
    /// When its password was last set.
    pub password_changed_at: Option<Timestamp>,
    /// When it was linked to the sign-in provider. An account with a password cannot sign in through the provider before it is linked.
    pub provider_linked_at: Option<Timestamp>,
    /// Its grants, sorted.
    pub grants: Vec<Grant>,
}

/// A change of an account; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default)]
pub struct AccountChange {
    /// The name that is shown.
    pub display_name: Option<String>,
    /// Whether the account is disabled. The user of a disabled account cannot sign in.
    pub disabled: Option<bool>,
    pub grants: Option<Vec<Grant>>,
    /// Its link to the sign-in provider.
    pub provider_link: Option<ProviderLink>,
}

/// A change of an account's link to the sign-in provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderLink {
    /// Linked since this instant.
    Since(Timestamp),
    None,
}

impl ProviderLink {
    /// When the account was linked.
    pub(crate) const fn linked_at(self) -> Option<Timestamp> {
        match self {
            Self::Since(at) => Some(at),
            Self::None => None,
        }
    }
}

/// Which access to an account outlives a change of its password.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptAccess {
    /// The sign-in that stays; `None` if all end.
    pub session: Option<SessionId>,
    /// Whether the account's tokens stay, with everything that they created.
    pub keeps_tokens: bool,
}

/// Outcome of changing or deleting an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountChanged {
    /// The account is changed or deleted. If the change disabled the account or set its grants, its sign-ins have ended.
    Done,
    /// There is no such account.
    NotFound,
    /// Refused: no account would remain that can sign in and may do everything.
    LastAdmin,
}

/// Accounts and their roles.
#[async_trait]
pub trait Accounts {
    /// Creates an account; `false` if the name is taken.
    async fn create_account(&self, account: &Account) -> Result<bool>;

    /// Creates an account that may do everything. `false`, with nothing created, if an enabled account already may do everything, or the
    /// name is taken.
    async fn create_first_admin(&self, account: &Account) -> Result<bool>;

    async fn account(&self, id: AccountId) -> Result<Option<Account>>;

    async fn account_by_name(&self, name: &str) -> Result<Option<Account>>;

    /// Accounts sorted by name, after `after_name`, at most `limit`.
    async fn accounts(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<Account>>;

    /// Whether an enabled account may do everything.
    async fn has_admin_account(&self) -> Result<bool>;

    /// Changes an account. If the change disables the account or sets its grants, its sign-ins end.
    async fn change_account(&self, id: AccountId, change: &AccountChange) -> Result<AccountChanged>;

    /// Sets the password and ends the account's links, sign-ins and tokens, except what `kept_access` keeps. `false` if there is no such
    /// account.
    async fn set_password(
        &self,
        id: AccountId,
        password: &PasswordHash,
        kept_access: KeptAccess,
        now: Timestamp,
    ) -> Result<bool>;

    /// Removes an account with its roles, its sign-ins and its tokens, and everything that these tokens created.
    async fn delete_account(&self, id: AccountId) -> Result<AccountChanged>;
}
