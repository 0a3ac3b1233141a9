//! Signing in through an OIDC provider: authorization code, with PKCE, a nonce and a state.
//!
//! - `pending_sign_in` is a sign-in under way, kept in the browser alone; `http` the bounded client; `exchanges` its share per address; `provider` what the provider is
//!   asked, and the check of the token that it answers with;
//! - [`Identity`] is the user by the provider's token, `account` the account here; `roles` what their groups give.
//!
//! The provider is asked at a sign-in, never at the start: one that is down stops neither the
//! server nor passwords.

mod account;
mod exchanges;
mod http;
mod pending_sign_in;
mod provider;
mod refusal;
mod roles;

use std::net::IpAddr;
use std::path::PathBuf;

use openidconnect::url::Url;
use rondel_core::Timestamp;
use rondel_store::{Store, StoreError};
use tokio::sync::OnceCell;

pub use account::Arrival;
pub use pending_sign_in::LIFETIME as FLIGHT_LIFETIME;
use pending_sign_in::{Key, PendingSignIn};
pub use provider::Identity;
use provider::Provider;
pub use refusal::Refusal;
pub use roles::{GroupRole, RoleAt};

use crate::identity::sign_in;
use crate::identity::tokens::Token;

/// The name of the key that the cookies of sign-ins under way are authenticated with.
const KEY_NAME: &str = "oidc_sign_in";
/// Where the provider sends browsers back to.
pub const CALLBACK_PATH: &str = "/sign-in/oidc/callback";

/// How a provider is reached, and what its word is worth here.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// The provider's URL, as it names itself.
    pub issuer: String,
    /// As what this server is known there.
    pub client_id: String,
    /// The file with its secret there, read each time; `None` for a client without one.
    pub client_secret_file: Option<PathBuf>,
    /// Where browsers come back to, as it is registered there.
    pub redirect_url: String,
    /// What is asked for beside `openid`.
    pub scopes: Vec<String>,
    /// The claim of the token with the groups.
    pub groups_claim: String,
    /// What groups give; without any, roles are given here.
    pub group_roles: Vec<GroupRole>,
    /// Whether an unknown user gets an account.
    pub create_accounts: bool,
}

impl OidcConfig {
    /// Checks whether this can work; `Err` has the name of what cannot, and a sentence.
    ///
    /// # Errors
    /// What is wrong, as the name of a field and a sentence.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check_url(&self.issuer).map_err(|sentence| ("issuer", sentence))?;
        let redirect = check_url(&self.redirect_url).map_err(|sentence| ("redirect_url", sentence))?;
        if redirect.path() != CALLBACK_PATH || redirect.query().is_some() {
            return Err(("redirect_url", format!("{:?} does not end in {CALLBACK_PATH}", self.redirect_url)));
        }
        if self.client_id.is_empty() {
            return Err(("client_id", "is empty; the provider gives one when this server is registered there".into()));
        }
        if let Some(file) = &self.client_secret_file {
            provider::read_secret(file).map_err(|sentence| ("client_secret_file", sentence))?;
        }
        Ok(())
    }

    /// Whether browsers reach this server over TLS: its own, or that of a proxy.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.redirect_url.starts_with("https://")
    }
}

/// Codes and tokens travel there: plain HTTP is for this machine alone.
fn check_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let is_local = url.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"));
    if url.fragment().is_some() || url.host_str().is_none() || !url.username().is_empty() {
        return Err(format!("{text:?} must be a URL with a host, and without user or fragment"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_local => Ok(url),
        _ => Err(format!("{text:?} must begin with https://; http:// does for this machine alone")),
    }
}

/// Why a user is not signed in.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The provider could not be asked; `0` is for the log, as it may describe the network.
    #[error("the provider of sign-ins does not answer: {0}")]
    Unavailable(String),
    /// The provider, or this server, refuses.
    #[error("{0}")]
    Refused(Refusal),
    /// The store failed.
    #[error("the account could not be looked up")]
    Store(#[from] StoreError),
}

impl From<Refusal> for OidcError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The redirect of a browser to the provider, and the cookie that is set with it.
#[derive(Clone, Debug)]
pub struct Departure {
    /// The provider's page.
    pub url: String,
    /// The value of the cookie.
    pub cookie: String,
}

/// What a browser comes back with, in the query.
#[derive(Clone, Debug, Default)]
pub struct Callback {
    /// The state that it left with.
    pub state: Option<String>,
    /// The provider's code.
    pub code: Option<String>,
    /// The provider's refusal.
    pub error: Option<String>,
    /// Which provider it comes from, if that is stated.
    pub issuer: Option<String>,
}

/// Sign-ins through the provider.
#[derive(Debug)]
pub struct Oidc {
    config: OidcConfig,
    provider: Provider,
    key: OnceCell<Key>,
}

impl Oidc {
    /// By this configuration; no call is made yet.
    #[must_use]
    pub fn new(config: OidcConfig) -> Self {
        Self { config, provider: Provider::default(), key: OnceCell::new() }
    }

    /// How it is set up.
    #[must_use]
    pub const fn config(&self) -> &OidcConfig {
        &self.config
    }

    /// The key that the servers of this database share; read once.
    async fn key(&self, store: &dyn Store, now: Timestamp) -> Result<&Key, StoreError> {
        let read = async || {
            let fresh = Token::generate();
            store.server_key(KEY_NAME, fresh.reveal(), now).await.map(Key::new)
        };
        self.key.get_or_try_init(read).await
    }

    /// Begins a sign-in that goes on at `next`.
    ///
    /// # Errors
    /// The provider cannot be asked, or the store fails.
    pub async fn begin(&self, store: &dyn Store, next: &str, now: Timestamp) -> Result<Departure, OidcError> {
        let pending = PendingSignIn::begin(self.key(store, now).await?, next, now);
        let url = self.provider.sign_in_url(&self.config, &pending).await?;
        Ok(Departure { url, cookie: pending.cookie().to_owned() })
    }

    /// Ends a sign-in: who it is, by the provider's word, and where they go on. `from` is the address of the browser.
    ///
    /// # Errors
    /// The provider cannot be asked, or the sign-in is refused.
    pub async fn finish(
        &self,
        store: &dyn Store,
        (cookie, from): (Option<&str>, Option<IpAddr>),
        answer: &Callback,
        now: Timestamp,
    ) -> Result<(Identity, String), OidcError> {
        let key = self.key(store, now).await?;
        let pending =
            cookie.and_then(|cookie| PendingSignIn::from_cookie(key, cookie, now)).ok_or(Refusal::NotBegun)?;
        if !pending.has_state(answer.state.as_deref().unwrap_or_default()) {
            return Err(Refusal::NotBegun.into());
        }
        if answer.issuer.as_deref().is_some_and(|issuer| issuer != self.config.issuer) {
            return Err(Refusal::Token("it comes from another provider".to_owned()).into());
        }
        if let Some(error) = &answer.error {
            return Err(Refusal::Provider(error.chars().take(60).collect()).into());
        }
        let code = answer.code.as_deref().ok_or(Refusal::NotBegun)?;
        let identity = self.provider.identity(&self.config, (&pending, from), code, now).await?;
        // Whatever the provider does with a code that comes twice, a sign-in ends once.
        if !sign_in::use_once(store, &pending.state(), FLIGHT_LIFETIME * 2, now).await? {
            return Err(Refusal::Replayed(identity.email).into());
        }
        Ok((identity, pending.next().to_owned()))
    }

    /// The account of a user whom the provider vouches for; `id` is for one that is made.
    ///
    /// # Errors
    /// There is none, it is locked out, or the store fails.
    pub async fn account(
        &self,
        store: &dyn Store,
        identity: &Identity,
        id: i64,
        now: Timestamp,
    ) -> Result<Arrival, OidcError> {
        account::of(store, &self.config, identity, id, now).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> OidcConfig {
        OidcConfig {
            issuer: "https://id.example.com/realm".to_owned(),
            client_id: "rondel".to_owned(),
            client_secret_file: None,
            redirect_url: format!("https://rondel.example.com{CALLBACK_PATH}"),
            scopes: vec!["email".to_owned()],
            groups_claim: "groups".to_owned(),
            group_roles: Vec::new(),
            create_accounts: false,
        }
    }

    #[test]
    fn what_cannot_work_is_named() {
        assert_eq!(config().check(), Ok(()));
        let local = OidcConfig { issuer: "http://127.0.0.1:9/x".to_owned(), ..config() };
        assert_eq!(local.check(), Ok(()));
        for (field, bad) in [
            ("issuer", OidcConfig { issuer: "http://id.example.com".to_owned(), ..config() }),
            ("issuer", OidcConfig { issuer: "id.example.com".to_owned(), ..config() }),
            ("issuer", OidcConfig { issuer: "https://me@id.example.com".to_owned(), ..config() }),
            ("redirect_url", OidcConfig { redirect_url: "https://rondel.example.com".to_owned(), ..config() }),
            (
                "redirect_url",
                OidcConfig { redirect_url: format!("http://rondel.example.com{CALLBACK_PATH}"), ..config() },
            ),
            ("client_id", OidcConfig { client_id: String::new(), ..config() }),
            ("client_secret_file", OidcConfig { client_secret_file: Some("/nowhere/secret".into()), ..config() }),
        ] {
            assert_eq!(bad.check().unwrap_err().0, field, "{bad:?}");
        }
    }
}
