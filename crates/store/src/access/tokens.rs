//! API tokens: stored as hashes, each with its grants.

use async_trait::async_trait;
use rondel_core::access::Grant;
use rondel_core::{AccountId, AppId, NamespaceId, Timestamp, TokenId};

use crate::error::Result;

rondel_core::plain_word_enum! {
    /// The purpose of a token.
    pub TokenKind {
        /// Calls of the API, within the limits of its grants.
        Api = "api",
        /// Opening the sessions of executors, nothing else.
        Executor = "executor",
        /// Calls by XXL-JOB's protocol from the executors of one app, nothing else.
        Xxl = "xxl",
    }
}

impl TokenKind {
    /// Whether tokens of this kind are for executors. Such tokens belong to the server, and the admins of their apps manage them.
    #[must_use]
    pub const fn is_of_executors(self) -> bool {
        matches!(self, Self::Executor | Self::Xxl)
    }
}

/// An API token. The store has only its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: TokenId,
    pub kind: TokenKind,
    /// The name that is shown.
    pub name: String,
    /// The account that owns it. The token never has more rights than its owner. `None` for a token that belongs to the server.
    pub owner: Option<AccountId>,
    /// The namespace of requests that do not name one; `None` means `default`.
    pub namespace: Option<NamespaceId>,
    /// SHA-256 of the token, in hex. A fast hash is safe here, because the token is 256 random bits.
    pub hash: String,
    /// Its first characters, so that users can recognize it.
    pub prefix: String,
    /// The token that created this one. This one ends when its creator ends. `None` if no token created it.
    pub minted_by: Option<TokenId>,
    /// The first token of its line of descent; the token itself if it begins a line. Valid tokens without an account are counted per line.
    pub line: TokenId,
    /// The first token of its series. A series is a token that replaced itself by rotation, and all its replacements. A token that is not
    /// such a replacement is the first of its own series.
    pub series: TokenId,
    /// Whether executors that authenticate with it may declare jobs.
    pub declares: bool,
    pub created_at: Timestamp,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// Its grants, sorted.
    pub grants: Vec<Grant>,
}

impl TokenRecord {
    /// Whether it is neither revoked nor expired.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| end > now)
    }
}

/// A page of tokens, the newest first.
#[derive(Clone, Debug, Default)]
pub struct TokenQuery {
    /// Only tokens of this account.
    pub owner: Option<AccountId>,
    /// Only tokens in this scope. A database ignores a scope of more than about 500 namespaces and apps, so callers must check each token.
    pub scope: Option<TokenScope>,
    /// Only tokens older than this one.
    pub after: Option<TokenId>,
    /// Maximum number of tokens.
    pub limit: u32,
}

/// The tokens that a caller may manage. A token in the scope can also have roles outside of it.
#[derive(Clone, Debug, Default)]
pub struct TokenScope {
    /// All tokens of this account.
    pub account: Option<AccountId>,
    /// Executors' tokens with a role for the whole of one of these namespaces.
    pub namespaces: Vec<NamespaceId>,
    /// Executors' tokens with a role for one of these apps.
    pub apps: Vec<AppId>,
}

#[cfg(feature = "testing")]
impl TokenScope {
    /// Whether a token is in the scope.
    pub(crate) fn has(&self, token: &TokenRecord) -> bool {
        let is_in_scope = |grant: &Grant| match (grant.app, grant.namespace) {
            (Some(app), _) => self.apps.contains(&app),
            (None, Some(namespace)) => self.namespaces.contains(&namespace),
            (None, None) => false,
        };
        let is_own = self.account.is_some() && token.owner == self.account;
        is_own || (token.kind.is_of_executors() && token.grants.iter().any(is_in_scope))
    }
}

#[async_trait]
pub trait Tokens {
    /// Stores a token, unless its hash exists. A token that another token created expires no later than its creator; `false` if the creator
    /// is no longer valid.
    async fn add_token(&self, token: &TokenRecord) -> Result<bool>;

    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>>;

    async fn token_by_id(&self, id: TokenId) -> Result<Option<TokenRecord>>;

    async fn tokens(&self, query: &TokenQuery) -> Result<Vec<TokenRecord>>;

    /// Number of valid tokens of an account.
    async fn count_valid_tokens(&self, owner: AccountId, now: Timestamp) -> Result<u64>;

    /// Number of valid API tokens of a line that belong to no account.
    async fn count_valid_tokens_of_line(&self, line: TokenId, now: Timestamp) -> Result<u64>;

    /// Removes at most about `limit` tokens that ended before `before`, with everything that belongs to them; returns how many. A valid
    /// token whose creator is removed then counts as created by the creator of the removed token. API tokens named `admin` without an owner
    /// are never removed: a server adds such a token from its token file at each start, unless the token is already stored, so a removed
    /// one would be valid again.
    async fn forget_tokens(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// Records that a token is used.
    async fn touch_token(&self, id: TokenId, now: Timestamp) -> Result<()>;

    /// Revokes a token, its whole series, and everything that these tokens created, directly or through other tokens: tokens, sign-ins and
    /// links. Returns whether the token itself was valid until now; the rest is revoked in any case.
    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool>;

    /// Replaces a token by a new one; the old token stays valid until `old_ends_at` at the latest. Everything that the old token created
    /// belongs to the new one from then on. A new token of the same series expires no later than the old one. `false` if the old token has
    /// ended, or if the new one belongs to another series and its creator has ended.
    async fn rotate_token(&self, old_token: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> Result<bool>;
}
