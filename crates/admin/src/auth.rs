//! API tokens: made here, kept as hashes.

use rand::RngExt as _;
use rondel_core::{Timestamp, TokenId};
use rondel_store::catalog::{TokenKind, TokenRecord};
use rondel_store::{Store, StoreError};
use sha2::{Digest as _, Sha256};

/// What every token begins with, so that secret scanners and people recognise one.
pub const TOKEN_PREFIX: &str = "rondel_";
const SECRET_BYTES: usize = 32;

/// A token in the clear: shown once, never kept.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one: 256 random bits.
    #[must_use]
    pub fn generate() -> Self {
        let secret: [u8; SECRET_BYTES] = rand::rng().random();
        Self(format!("{TOKEN_PREFIX}{}", hex(&secret)))
    }

    /// One that was read from a file or a header.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    /// The text that is sent as `Authorization: Bearer …`.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
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

/// The record of the token in an `Authorization` header; `None` for none, an unknown or an expired one.
///
/// # Errors
/// The store's.
pub async fn authenticate(
    store: &dyn Store,
    authorization: Option<&str>,
    now: Timestamp,
) -> Result<Option<TokenRecord>, StoreError> {
    let Some(text) = authorization.and_then(bearer) else { return Ok(None) };
    let record = store.token(&Token::from_text(text).hash()).await?;
    Ok(record.filter(|record| record.expires_at.is_none_or(|end| end > now)))
}

/// Remembers a token that may do everything.
///
/// # Errors
/// The store's.
pub async fn add_admin_token(store: &dyn Store, id: i64, token: &Token, now: Timestamp) -> Result<(), StoreError> {
    let record = TokenRecord {
        id: TokenId::new(id),
        kind: TokenKind::Admin,
        name: "admin".to_owned(),
        namespace: None,
        hash: token.hash(),
        created_at: now,
        expires_at: None,
    };
    store.add_token(&record).await
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn hex(bytes: &[u8]) -> String {
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
    fn only_bearer_headers_are_read() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc"), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }
}
