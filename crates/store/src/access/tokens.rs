//! API tokens: kept as hashes, each with what it may do.

use async_trait::async_trait;
use rondel_core::access::Grant;
use rondel_core::{AccountId, AppId, NamespaceId, Timestamp, TokenId};

use crate::error::Result;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// The API, as far as its grants reach.
    Api,
    /// Opening the sessions of executors, nothing else.
    Executor,
    /// The calls of executors of one app that speak XXL-JOB's protocol, nothing else.
    Xxl,
}

impl TokenKind {
    /// The word for it in SQL and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Executor => "executor",
            Self::Xxl => "xxl",
        }
    }

    /// Whether executors have such tokens: they belong to the server, and admins of their apps manage them.
    #[must_use]
    pub const fn is_of_executors(self) -> bool {
        matches!(self, Self::Executor | Self::Xxl)
    }
}

/// An API token; only its hash is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    /// Its id.
    pub id: TokenId,
    /// What it is for.
    pub kind: TokenKind,
    /// The name that is shown.
    pub name: String,
    /// Whose it is: it may do no more than that account. `None` for one that belongs to the server.
    pub owner: Option<AccountId>,
    /// The namespace that requests without one mean; `None` stands for `default`.
    pub namespace: Option<NamespaceId>,
    /// SHA-256 of the token, in hex: the token itself is 256 random bits, so nothing slower is needed.
    pub hash: String,
    /// What it begins with, so that users can recognize it.
    pub prefix: String,
    /// The token that made it; it ends with that one. `None` where no token did.
    pub minted_by: Option<TokenId>,
    /// The token that its line began with: tokens without an account are counted by it. Itself for the first one.
    pub line: TokenId,
    /// The first token of its series: a token and the successors to which it rotated itself. Itself unless it is such a successor.
    pub series: TokenId,
    /// Whether executors that it lets in may declare jobs.
    pub declares: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
    /// What it may do, in order.
    pub grants: Vec<Grant>,
}

impl TokenRecord {
    /// Whether it works.
    #[must_use]
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| end > now)
    }
}

/// The earlier of two ends; `None` is no end.
pub(crate) fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A page of tokens, the newest first.
#[derive(Clone, Debug, Default)]
pub struct TokenQuery {
    /// Only this account's.
    pub owner: Option<AccountId>,
    /// Only those in this scope.
    pub scope: Option<TokenScope>,
    /// Only tokens older than this one.
    pub after: Option<TokenId>,
    /// At most so many.
    pub limit: u32,
}

/// Which tokens a caller may manage. Those that are found may still have roles elsewhere too.
#[derive(Clone, Debug, Default)]
pub struct TokenScope {
    /// All of this account.
    pub account: Option<AccountId>,
    /// Those of executors with a role for the whole of one of these namespaces.
    pub namespaces: Vec<NamespaceId>,
    /// Those of executors with a role for one of these apps.
    pub apps: Vec<AppId>,
}

#[cfg(feature = "testing")]
impl TokenScope {
    /// Whether a token is in it.
    pub(crate) fn has(&self, token: &TokenRecord) -> bool {
        let holds = |grant: &Grant| match (grant.app, grant.namespace) {
            (Some(app), _) => self.apps.contains(&app),
            (None, Some(namespace)) => self.namespaces.contains(&namespace),
            (None, None) => false,
        };
        let is_own = self.account.is_some() && token.owner == self.account;
        is_own || (token.kind.is_of_executors() && token.grants.iter().any(holds))
    }
}

/// API tokens.
#[async_trait]
pub trait Tokens {
    /// Stores a token, unless its hash is known. A token that was made by another one expires with it at the latest; false
    /// where that one does not work any more.
    async fn add_token(&self, token: &TokenRecord) -> Result<bool>;

    /// The token with this hash.
    async fn token(&self, hash: &str) -> Result<Option<TokenRecord>>;

    /// A token by its id.
    async fn token_by_id(&self, id: TokenId) -> Result<Option<TokenRecord>>;

    /// A page of tokens.
    async fn tokens(&self, query: &TokenQuery) -> Result<Vec<TokenRecord>>;

    /// How many tokens of an account work.
    async fn living_tokens(&self, owner: AccountId, now: Timestamp) -> Result<u64>;

    /// How many tokens of the API of a line work that belong to no account.
    async fn living_tokens_of_line(&self, line: TokenId, now: Timestamp) -> Result<u64>;

    /// Removes tokens that ended before `before`, with all that belongs to them; how many, about `limit` at most. What they made
    /// and still works descends from those that made them.
    async fn forget_tokens(&self, before: Timestamp, limit: u32) -> Result<u64>;

    /// Notes that it is used.
    async fn touch_token(&self, id: TokenId, now: Timestamp) -> Result<()>;

    /// Ends a token, expired or not, with its whole series and all that these tokens made: tokens, sign-ins and links, and
    /// what those made. False where the token itself is over already.
    async fn revoke_token(&self, id: TokenId, now: Timestamp) -> Result<bool>;

    /// Puts a new token into the place of one that works on until `old_ends_at` at the latest. What the old one made belongs to
    /// the new one. A new token of the same series expires no later than the old one. False where the old one is over, or the
    /// token that made a new one of another series.
    async fn rotate_token(&self, old: TokenId, old_ends_at: Timestamp, new: &TokenRecord) -> Result<bool>;
}
