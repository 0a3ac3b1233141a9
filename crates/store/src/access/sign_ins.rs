//! Sign-in sessions, links that begin one, and the count of attempts.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AccountId, SessionId, Timestamp, TokenId};

use crate::error::Result;

/// A sign-in session, of either an account or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSession {
    pub id: SessionId,
    /// SHA-256 of the secret in the cookie, in hex.
    pub hash: String,
    /// The account that signed in; `None` if the session is a token's.
    pub account: Option<AccountId>,
    /// The token whose rights the session has, if a link for that token began the session.
    pub token: Option<TokenId>,
    /// The token that created the link by which the account signed in; the session ends with that token.
    pub minted_by: Option<TokenId>,
    /// When it began.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_seen_at: Timestamp,
    /// When it ends at the latest.
    pub expires_at: Timestamp,
    /// Address from which it began.
    pub address: String,
    /// The `User-Agent` header of the browser.
    pub user_agent: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// To create the first account.
    Setup,
    SignIn,
}

/// A link that works once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignInLink {
    /// SHA-256 of its secret, in hex.
    pub hash: String,
    pub purpose: LinkPurpose,
    pub account: Option<AccountId>,
    /// The token whose rights it gives.
    pub token: Option<TokenId>,
    /// The token that created the link for an account; the link ends with that token.
    pub minted_by: Option<TokenId>,
    pub expires_at: Timestamp,
}

/// Whether one more attempt is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptDecision {
    /// It is allowed, and counted.
    Allowed,
    /// There were too many attempts. The next one is allowed from this instant on.
    Blocked(Timestamp),
}

/// Sign-in sessions, sign-in links, and the count of sign-in attempts.
#[async_trait]
pub trait SignIns {
    /// Begins a sign-in. Removes all sign-ins that have expired or were not used for `idle_max`. If the same account or token then has more
    /// than `count_max` sign-ins, also removes the oldest of these.
    async fn begin_sign_in(&self, session: &WebSession, idle_max: Duration, count_max: u32) -> Result<()>;

    /// The sign-in with this hash, even if it has expired; `None` if it was removed.
    async fn sign_in(&self, hash: &str) -> Result<Option<WebSession>>;

    /// Records that a sign-in is used.
    async fn touch_sign_in(&self, id: SessionId, now: Timestamp) -> Result<()>;

    /// The sign-ins of an account, the newest first.
    async fn sign_ins(&self, account: AccountId) -> Result<Vec<WebSession>>;

    /// Ends a sign-in; `false` if it has ended already, or belongs to another account than `account`. `None` means any account.
    async fn end_sign_in(&self, id: SessionId, account: Option<AccountId>) -> Result<bool>;

    /// Stores a link, and removes all links that have expired.
    async fn add_link(&self, link: &SignInLink, now: Timestamp) -> Result<()>;

    async fn link(&self, hash: &str) -> Result<Option<SignInLink>>;

    /// Takes a link. A link is deleted when it is taken, so it works once. `None` if there is no such link any more.
    async fn take_link(&self, hash: &str) -> Result<Option<SignInLink>>;

    /// Counts an attempt in a numbered bucket, unless the bucket has `max` attempts within `window`. A bucket stands for an account or an
    /// address. The caller must bound the number of buckets: each has a row.
    async fn count_attempt(&self, bucket: i64, max: u32, window: Duration, now: Timestamp) -> Result<AttemptDecision>;

    /// The key that all servers of this database share under a name. If no key has this name yet, `new_key` gets it.
    async fn server_key(&self, name: &str, new_key: &str, now: Timestamp) -> Result<String>;

    /// Removes the attempts in a bucket.
    async fn forget_attempts(&self, bucket: i64) -> Result<()>;

    /// Whether the account has signed in from this network.
    async fn is_known_address(&self, account: AccountId, network: &str) -> Result<bool>;

    /// Records that the account signed in from this network. If the account has more than `count_max` networks, the oldest are removed.
    async fn remember_address(&self, account: AccountId, network: &str, now: Timestamp, count_max: u32) -> Result<()>;
}
