//! API tokens: generated here, stored as hashes.

use std::time::Duration;

use rand::RngExt as _;
pub use rondel_core::access::TOKEN_PREFIX;
use rondel_core::access::{Grant, Rights, Role, token_beginning};
use rondel_core::error_chain::chain;
use rondel_core::{Timestamp, TokenId};
use rondel_store::access::{Account, TokenKind, TokenRecord};
use rondel_store::{Store, StoreError};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::store_once::store_once;

const SECRET_BYTES: usize = 32;
/// How precisely the last use of a token is recorded.
const USE_PERIOD: Duration = Duration::from_secs(60);

/// A token in plain text: shown once, never stored.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Generates a token of 256 random bits.
    #[must_use]
    pub fn generate() -> Self {
        let secret: [u8; SECRET_BYTES] = rand::rng().random();
        Self(format!("{TOKEN_PREFIX}{}", hex(&secret)))
    }

    /// Generates a token with the prefix of its kind.
    #[must_use]
    pub fn generate_for(kind: TokenKind) -> Self {
        let secret: [u8; SECRET_BYTES] = rand::rng().random();
        let kind_prefix = match kind {
            TokenKind::Api => "pat",
            TokenKind::Executor => "exec",
            TokenKind::Xxl => "xxl",
        };
        Self(format!("{TOKEN_PREFIX}{kind_prefix}_{}", hex(&secret)))
    }

    /// The row that is stored for the token, still without a name, an owner or rights.
    #[must_use]
    pub fn record(&self, id: i64, kind: TokenKind, now: Timestamp) -> TokenRecord {
        TokenRecord {
            id: TokenId::new(id),
            kind,
            name: String::new(),
            owner: None,
            namespace: None,
            hash: self.hash(),
            prefix: token_beginning(&self.0).to_owned(),
            minted_by: None,
            line: TokenId::new(id),
            series: TokenId::new(id),
            declares: false,
            created_at: now,
            expires_at: None,
            last_used_at: None,
            revoked_at: None,
            grants: Vec::new(),
        }
    }

    /// A token that was read from a file or a header.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The text that is sent as `Authorization: Bearer …`.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that is stored instead of the token.
    #[must_use]
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A caller with a valid token.
#[derive(Clone, Debug)]
pub struct Principal {
    pub token: TokenRecord,
    /// The account to which the token belongs; `None` if it belongs to none.
    pub owner: Option<Account>,
    /// The token's rights, limited to those of its owner.
    pub rights: Rights,
}

/// Authenticates the token in an `Authorization` header; `None` if there is no token, or if it is unknown, ended, or belongs to an account
/// that is locked out.
///
/// # Errors
/// The store's.
pub async fn authenticate(
    store: &dyn Store,
    authorization: Option<&str>,
    now: Timestamp,
) -> Result<Option<Principal>, StoreError> {
    let Some(hash) = authorization.and_then(bearer_hash) else { return Ok(None) };
    let Some(record) = store.token(&hash).await? else { return Ok(None) };
    admit(store, record, now).await
}

/// The hash under which the token in an `Authorization` header is stored; `None` if the header has no bearer token.
pub(super) fn bearer_hash(authorization: &str) -> Option<String> {
    bearer(authorization).map(|text| Token::from_text(text).hash())
}

/// The principal of a token that is being used, if the token is valid. Records the use.
pub(super) async fn admit(
    store: &dyn Store,
    record: TokenRecord,
    now: Timestamp,
) -> Result<Option<Principal>, StoreError> {
    let Some(principal) = principal_of(store, record, now).await? else { return Ok(None) };
    let token = &principal.token;
    if token.last_used_at.is_none_or(|used| used + USE_PERIOD <= now) {
        record_use(store.touch_token(token.id, now)).await;
    }
    Ok(Some(principal))
}

/// Records that a credential was used. A failure is only logged, so that callers can still read while the database accepts no writes.
pub(super) async fn record_use(touch: impl Future<Output = Result<(), StoreError>>) {
    if let Err(error) = touch.await {
        tracing::debug!(error = %chain(&error), "the use of a credential was not recorded");
    }
}

/// Whether an `Authorization` header has this secret. The time of the comparison does not depend on the secret.
#[must_use]
pub fn has_secret(authorization: Option<&str>, secret: &Token) -> bool {
    let Some(text) = authorization.and_then(bearer) else { return false };
    Sha256::digest(text.as_bytes()).ct_eq(&Sha256::digest(secret.0.as_bytes())).into()
}

/// The principal of a token, if the token is valid.
///
/// # Errors
/// The store's.
pub async fn principal_of(
    store: &dyn Store,
    token: TokenRecord,
    now: Timestamp,
) -> Result<Option<Principal>, StoreError> {
    if !token.is_valid(now) {
        return Ok(None);
    }
    let rights = Rights::new(token.grants.clone());
    let Some(owner) = token.owner else { return Ok(Some(Principal { token, owner: None, rights })) };
    let owner = store.account(owner).await?.filter(|owner| !owner.disabled);
    Ok(owner.map(|owner| Principal { rights: rights.within(owner.grants.clone()), token, owner: Some(owner) }))
}

/// Prefix of a token's name wherever a caller is shown. No account has a colon in its name.
pub const TOKEN_MARK: &str = "token:";

/// The name under which changes by a token are recorded: that of its account, otherwise the token's own name with the prefix
/// [`TOKEN_MARK`].
#[must_use]
pub fn signature(token: &TokenRecord, owner: Option<&Account>) -> String {
    owner.map_or_else(|| format!("{TOKEN_MARK}{}", token.name), |owner| owner.name.clone())
}

/// Stores a new token. Returns false if the token that creates the new token has ended.
///
/// # Errors
/// The store's.
pub async fn add(store: &dyn Store, new_token: &TokenRecord) -> Result<bool, StoreError> {
    store_once(|| store.add_token(new_token)).await
}

/// Replaces a token by `new_token`. The old token stays valid until `old_ends_at` at the latest. Returns false if the old token has already
/// ended.
///
/// # Errors
/// The store's.
pub async fn rotate(
    store: &dyn Store,
    replaced_token: TokenId,
    old_ends_at: Timestamp,
    new_token: &TokenRecord,
) -> Result<bool, StoreError> {
    let is_rotated = store_once(|| store.rotate_token(replaced_token, old_ends_at, new_token)).await?;
    // An earlier try may have replaced the old token although its answer was lost.
    Ok(is_rotated || store.token_by_id(new_token.id).await?.is_some())
}

/// Stores a token that has all rights and belongs to the server.
///
/// # Errors
/// The store's.
pub async fn add_admin_token(store: &dyn Store, id: i64, token: &Token, now: Timestamp) -> Result<(), StoreError> {
    let grants = vec![Grant::everywhere(Role::Admin)];
    let record = token.record(id, TokenKind::Api, now);
    store.add_token(&TokenRecord { name: "admin".to_owned(), declares: true, grants, ..record }).await.map(drop)
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_hide() {
        let (a, b) = (Token::generate(), Token::generate());
        assert_ne!(a.reveal(), b.reveal());
        assert_eq!(a.reveal().len(), TOKEN_PREFIX.len() + 64);
        assert_eq!(format!("{a:?}"), "Token(…)");
        assert_eq!(Token::from_text(&format!("{}\n", a.reveal())).hash(), a.hash());
    }

    #[test]
    fn a_secret_is_found_in_its_header_alone() {
        let secret = Token::generate();
        let header = format!("Bearer {}", secret.reveal());
        assert!(has_secret(Some(&header), &secret));
        for other in [None, Some("Bearer "), Some(secret.reveal()), Some(&header[..header.len() - 1])] {
            assert!(!has_secret(other, &secret), "{other:?}");
        }
    }

    #[test]
    fn only_bearer_headers_are_read() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc"), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }
}
