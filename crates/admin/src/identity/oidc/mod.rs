//! Signing in through an OIDC provider, by an authorization code with PKCE, a nonce and a state.
//!
//! - `pending_sign_in` is a sign-in in progress, stored only in the browser; `http` is the bounded client; `exchanges` limits the exchanges of codes;
//!   `provider` sends the requests to the provider and checks its token;
//! - [`Identity`] is the user as the provider's token describes them, `account` finds or creates their account; `roles` maps groups to roles.
//!
//! The provider is called at a sign-in, never at the start: if it is down, the server and sign-ins by password still work.

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

pub use account::{AccountUpdate, StoredUpdate};
pub use pending_sign_in::LIFETIME as PENDING_SIGN_IN_LIFETIME;
use pending_sign_in::{Key, PendingSignIn};
pub use provider::Identity;
use provider::Provider;
pub use refusal::Refusal;
pub use roles::{GroupRole, RoleAt};

use crate::identity::sign_in;
use crate::identity::tokens::Token;

/// The name of the key that authenticates the cookies of sign-ins in progress.
const KEY_NAME: &str = "oidc_sign_in";
/// The path to which the provider sends browsers back.
pub const CALLBACK_PATH: &str = "/sign-in/oidc/callback";

/// How the provider is reached, and which accounts and roles its users get.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    /// The provider's URL, as the provider itself states it.
    pub issuer: String,
    /// The client id of this server at the provider.
    pub client_id: String,
    /// The file with the client secret, read at each use; `None` for a client without a secret.
    pub client_secret_file: Option<PathBuf>,
    /// The URL to which browsers return, as it is registered at the provider.
    pub redirect_url: String,
    /// The scopes that are requested in addition to `openid`.
    pub scopes: Vec<String>,
    /// The claim of the token that lists the user's groups.
    pub groups_claim: String,
    /// The roles that each group of the provider gives; if empty, administrators of Rondel assign roles to accounts.
    pub group_roles: Vec<GroupRole>,
    /// Whether an unknown user gets an account.
    pub create_accounts: bool,
}

impl OidcConfig {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The name of the field that is wrong, and a sentence about it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        check_url(&self.issuer).map_err(|sentence| ("issuer", sentence))?;
        let redirect_url = check_url(&self.redirect_url).map_err(|sentence| ("redirect_url", sentence))?;
        if redirect_url.path() != CALLBACK_PATH || redirect_url.query().is_some() {
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

    /// Whether browsers reach this server, or the proxy before it, over TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.redirect_url.starts_with("https://")
    }
}

/// Checks a URL to which codes and tokens are sent: plain HTTP is allowed only to this machine.
fn check_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let is_local = url.host_str().is_some_and(|host| matches!(host, "localhost" | "127.0.0.1" | "[::1]"));
    if url.fragment().is_some() || url.host_str().is_none() || !url.username().is_empty() {
        return Err(format!("{text:?} must be a URL with a host, and without user or fragment"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_local => Ok(url),
        _ => Err(format!("{text:?} must begin with https://; http:// is allowed only for this machine")),
    }
}

/// Why a user is not signed in.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The provider could not be asked, or too many sign-ins are in progress. The text is only for the log, since it may describe the network.
    #[error("the provider of sign-ins does not answer: {0}")]
    Unavailable(String),
    /// The provider or this server refused the sign-in.
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
pub struct ProviderRedirect {
    /// The provider's page.
    pub url: String,
    /// The value of the cookie.
    pub cookie: String,
}

/// The query with which a browser returns from the provider.
#[derive(Clone, Debug, Default)]
pub struct Callback {
    /// The state that was sent to the provider with the browser.
    pub state: Option<String>,
    /// The provider's code.
    pub code: Option<String>,
    /// The error that the provider reported.
    pub error: Option<String>,
    /// The issuer, if the provider states it.
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
    /// Uses this configuration; makes no call yet.
    #[must_use]
    pub fn new(config: OidcConfig) -> Self {
        Self { config, provider: Provider::default(), key: OnceCell::new() }
    }

    #[must_use]
    pub const fn config(&self) -> &OidcConfig {
        &self.config
    }

    /// The key that the servers of this database share; read once per process.
    async fn key(&self, store: &dyn Store, now: Timestamp) -> Result<&Key, StoreError> {
        let read_key = async || {
            let new_key = Token::generate();
            store.server_key(KEY_NAME, new_key.reveal(), now).await.map(Key::new)
        };
        self.key.get_or_try_init(read_key).await
    }

    /// Begins a sign-in, after which the browser continues at `next_path`.
    ///
    /// # Errors
    /// The provider cannot be asked, or the store fails.
    pub async fn begin(
        &self,
        store: &dyn Store,
        next_path: &str,
        now: Timestamp,
    ) -> Result<ProviderRedirect, OidcError> {
        let pending_sign_in = PendingSignIn::begin(self.key(store, now).await?, next_path, now);
        let url = self.provider.sign_in_url(&self.config, &pending_sign_in).await?;
        Ok(ProviderRedirect { url, cookie: pending_sign_in.cookie().to_owned() })
    }

    /// Finishes a sign-in: returns the user according to the provider, and where the browser continues. `address` is the browser's address.
    ///
    /// # Errors
    /// The provider cannot be asked, or the sign-in is refused.
    pub async fn finish(
        &self,
        store: &dyn Store,
        (cookie, address): (Option<&str>, Option<IpAddr>),
        callback: &Callback,
        now: Timestamp,
    ) -> Result<(Identity, String), OidcError> {
        let key = self.key(store, now).await?;
        let pending_sign_in =
            cookie.and_then(|cookie| PendingSignIn::from_cookie(key, cookie, now)).ok_or(Refusal::NotBegun)?;
        if !pending_sign_in.has_state(callback.state.as_deref().unwrap_or_default()) {
            return Err(Refusal::NotBegun.into());
        }
        if callback.issuer.as_deref().is_some_and(|issuer| issuer != self.config.issuer) {
            return Err(Refusal::Token("it comes from another provider".to_owned()).into());
        }
        if let Some(error) = &callback.error {
            return Err(Refusal::Provider(error.chars().take(60).collect()).into());
        }
        let code = callback.code.as_deref().ok_or(Refusal::NotBegun)?;
        let identity = self.provider.identity(&self.config, (&pending_sign_in, address), code, now).await?;
        // The provider may accept a code twice, but a sign-in finishes only once.
        if !sign_in::use_once(store, &pending_sign_in.state(), PENDING_SIGN_IN_LIFETIME * 2, now).await? {
            return Err(Refusal::Replayed(identity.email).into());
        }
        Ok((identity, pending_sign_in.next_path().to_owned()))
    }

    /// The account of a user whom the provider has authenticated; `id` is used if the account is created.
    ///
    /// # Errors
    /// There is no account with the user's address, the user may not sign in to it, or the store fails.
    pub async fn account(
        &self,
        store: &dyn Store,
        identity: &Identity,
        id: i64,
        now: Timestamp,
    ) -> Result<AccountUpdate, OidcError> {
        account::resolve(store, &self.config, identity, id, now).await
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
    fn settings_that_cannot_work_are_named() {
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
