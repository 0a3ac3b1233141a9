//! Who may come in: accounts with their roles, sign-ins that last, API tokens, and the log of what was done.

mod audit;
mod sign_ins;
mod tokens;

use async_trait::async_trait;
use rondel_core::access::Grant;
use rondel_core::{AccountId, SessionId, Timestamp};

pub(crate) use self::audit::kept;
pub use self::audit::{AuditEntry, AuditLog, AuditQuery, Means, UNANSWERED, Verdict};
pub use self::sign_ins::{Attempt, LinkPurpose, SignInLink, SignIns, WebSession};
pub(crate) use self::tokens::earlier;
pub use self::tokens::{TokenKind, TokenQuery, TokenRecord, TokenScope, Tokens};
use crate::error::Result;

/// What is kept of a password: a PHC string.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// Wraps the string.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The string.
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
    /// Its id.
    pub id: AccountId,
    /// What is typed to sign in; unique.
    pub name: String,
    /// The name that is shown.
    pub display_name: String,
    /// `None` for a user who cannot sign in by a password.
    pub password: Option<PasswordHash>,
    /// Whether it is locked out.
    pub disabled: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its password was last set.
    pub password_changed_at: Option<Timestamp>,
    /// When it was linked to the provider of sign-ins; without that, the provider signs in no account that has a password.
    pub provider_linked_at: Option<Timestamp>,
    /// What it may do, in order.
    pub grants: Vec<Grant>,
}

/// A change of an account; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct AccountChange {
    /// The name that is shown.
    pub display_name: Option<String>,
    /// Whether it is locked out.
    pub disabled: Option<bool>,
    /// What it may do.
    pub grants: Option<Vec<Grant>>,
    /// Its link to the provider of sign-ins.
    pub provider_link: Option<ProviderLink>,
}

/// A change of an account's link to the provider of sign-ins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderLink {
    /// Linked since then.
    Since(Timestamp),
    /// Not linked.
    None,
}

impl ProviderLink {
    /// When the account was linked.
    pub(crate) const fn at(self) -> Option<Timestamp> {
        match self {
            Self::Since(at) => Some(at),
            Self::None => None,
        }
    }
}

/// What of an account stays when its password changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptAccess {
    /// This sign-in.
    pub session: Option<SessionId>,
    /// Its tokens, with all that they made.
    pub tokens: bool,
}

/// What a change of an account did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccountChanged {
    /// It is done; where its rights changed, its sign-ins are over.
    Done,
    /// There is no such account.
    NotFound,
    /// No account would be left that can sign in and may do everything.
    LastAdmin,
}

/// Accounts and their roles.
#[async_trait]
pub trait Accounts {
    /// Makes an account; false where the name is taken.
    async fn create_account(&self, account: &Account) -> Result<bool>;

    /// Makes an account that may do everything, if there is none yet; false where there is.
    async fn create_first_admin(&self, account: &Account) -> Result<bool>;

    /// An account.
    async fn account(&self, id: AccountId) -> Result<Option<Account>>;

    /// An account by its name.
    async fn account_by_name(&self, name: &str) -> Result<Option<Account>>;

    /// A page of accounts, by name.
    async fn accounts(&self, after_name: Option<&str>, limit: u32) -> Result<Vec<Account>>;

    /// Whether there is an account, not locked out, that may do everything.
    async fn has_admin_account(&self) -> Result<bool>;

    /// Changes an account. Where what it may do changes, its sign-ins end.
    async fn change_account(&self, id: AccountId, change: &AccountChange) -> Result<AccountChanged>;

    /// Sets the password and ends the account's links, its sign-ins and its tokens, but for what is kept; false where there is
    /// no such account.
    async fn set_password(
        &self,
        id: AccountId,
        password: &PasswordHash,
        keep: KeptAccess,
        now: Timestamp,
    ) -> Result<bool>;

    /// Removes an account with its roles, its sign-ins and its tokens, and all that those made.
    async fn delete_account(&self, id: AccountId) -> Result<AccountChanged>;
}
