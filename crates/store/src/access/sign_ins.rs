//! Sign-ins that last, links that begin one, and the count of attempts.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AccountId, SessionId, Timestamp, TokenId};

use crate::error::Result;

/// A sign-in that lasts; whose it is, either an account's or a token's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSession {
    /// Its id.
    pub id: SessionId,
    /// SHA-256 of what the cookie carries, in hex.
    pub hash: String,
    /// The account.
    pub account: Option<AccountId>,
    /// The token whose owner asked for a link.
    pub token: Option<TokenId>,
    /// The token that made the link by which the account signed in; the sign-in ends with it.
    pub minted_by: Option<TokenId>,
    /// When it began.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_seen_at: Timestamp,
    /// When it ends whatever happens.
    pub expires_at: Timestamp,
    /// Where it began.
    pub address: String,
    /// The browser, by its own name.
    pub user_agent: String,
}

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// To make the first account.
    Setup,
    /// To sign in.
    SignIn,
}

/// A link that works once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignInLink {
    /// SHA-256 of its secret, in hex.
    pub hash: String,
    /// What it is for.
    pub purpose: LinkPurpose,
    /// As whom it signs in.
    pub account: Option<AccountId>,
    /// With whose rights it signs in.
    pub token: Option<TokenId>,
    /// The token that made the link for an account; the link ends with it.
    pub minted_by: Option<TokenId>,
    /// Until when it works.
    pub expires_at: Timestamp,
}

/// Whether one more attempt is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is, and is counted.
    Allowed,
    /// There were too many; from then on it is again.
    Blocked(Timestamp),
}

/// Sign-ins, links, attempts.
#[async_trait]
pub trait SignIns {
    /// Begins a sign-in; removes those that are over at its beginning, and the oldest of the same account or token beyond
    /// `count_max`.
    async fn begin_sign_in(&self, session: &WebSession, idle_max: Duration, count_max: u32) -> Result<()>;

    /// The sign-in with this hash, whether it is over or not.
    async fn sign_in(&self, hash: &str) -> Result<Option<WebSession>>;

    /// Notes that it is used.
    async fn touch_sign_in(&self, id: SessionId, now: Timestamp) -> Result<()>;

    /// Those of an account, the newest first.
    async fn sign_ins(&self, account: AccountId) -> Result<Vec<WebSession>>;

    /// Ends one; false where it is over already, or another account's.
    async fn end_sign_in(&self, id: SessionId, account: Option<AccountId>) -> Result<bool>;

    /// Remembers a link; forgets those that are over.
    async fn add_link(&self, link: &SignInLink, now: Timestamp) -> Result<()>;

    /// The link with this hash.
    async fn link(&self, hash: &str) -> Result<Option<SignInLink>>;

    /// Uses a link up: `None` where it was used already.
    async fn take_link(&self, hash: &str) -> Result<Option<SignInLink>>;

    /// Counts an attempt under a number (of an account, of an address), unless there were `max` within `window`. The
    /// numbers are the caller's to bound: a row is kept for each.
    async fn count_attempt(&self, bucket: i64, max: u32, window: Duration, now: Timestamp) -> Result<Attempt>;

    /// The key that all servers of this database share under a name: `fresh` where there is none yet.
    async fn server_key(&self, name: &str, fresh: &str, now: Timestamp) -> Result<String>;

    /// Forgets the attempts under a number.
    async fn forget_attempts(&self, bucket: i64) -> Result<()>;

    /// Whether the account has signed in from this network.
    async fn is_known_address(&self, account: AccountId, network: &str) -> Result<bool>;

    /// Remembers that the account signed in from this network; of more than `count_max`, the oldest are forgotten.
    async fn remember_address(&self, account: AccountId, network: &str, now: Timestamp, count_max: u32) -> Result<()>;
}
