//! Requests to the provider: its discovery document and keys, the exchange of a code for a token, and the token's subject.

use std::io::Read as _;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreGenderClaim, CoreIdTokenVerifier,
    CoreJweContentEncryptionAlgorithm, CoreJwsSigningAlgorithm as Alg, CoreProviderMetadata,
};
use openidconnect::{
    AdditionalClaims, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret, CsrfToken, IdToken,
    IssuerUrl, Nonce, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope,
    SignatureVerificationError,
};
use rondel_core::Timestamp;
use rondel_core::secret_file::exposure;
use rondel_outgoing::Outgoing;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::exchanges::Exchanges;
use super::http;
use super::pending_sign_in::PendingSignIn;
use super::{OidcConfig, OidcError, Refusal};
use rondel_core::error_chain::chain;

/// How long the provider's document and keys are used before they are read again.
const METADATA_AGE_MAX: Duration = Duration::from_secs(3600);
/// Maximum age of the keys after a token was signed with an unknown key: zero, so that the keys are always read again. Only a client with a
/// code from the provider can cause such a read.
const KEYS_AGE_MAX: Duration = Duration::ZERO;
/// Timeout for reading the provider's document and keys.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the document and keys are not read again after a failed call. Sign-ins that waited for the failed call share its error.
const FAILED_PAUSE: Duration = Duration::from_secs(3);
/// Maximum error of the provider's clock.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(60);
/// Maximum length of a client secret, in bytes.
const SECRET_LEN_MAX: usize = 4_096;
/// Allowed signature algorithms. All are asymmetric, so that only the provider has the private keys.
const ALGORITHMS: [Alg; 9] = [
    Alg::RsaSsaPkcs1V15Sha256,
    Alg::RsaSsaPkcs1V15Sha384,
    Alg::RsaSsaPkcs1V15Sha512,
    Alg::RsaSsaPssSha256,
    Alg::RsaSsaPssSha384,
    Alg::RsaSsaPssSha512,
    Alg::EcdsaP256Sha256,
    Alg::EcdsaP384Sha384,
    Alg::EdDsa,
];

/// A user, as the provider's token describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The email address that the provider has verified, in lower case.
    pub email: String,
    pub display_name: Option<String>,
    /// The user's groups at the provider.
    pub groups: Vec<String>,
}

/// The claims of a token in addition to the standard ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OtherClaims {
    #[serde(flatten)]
    all: Map<String, Value>,
}

impl AdditionalClaims for OtherClaims {}

type Token = IdToken<OtherClaims, CoreGenderClaim, CoreJweContentEncryptionAlgorithm, Alg>;

#[derive(Debug, Default)]
pub(super) struct Provider {
    cache: Mutex<CachedProvider>,
    exchanges: Exchanges,
}

#[derive(Debug, Default)]
struct CachedProvider {
    client: Option<Outgoing>,
    /// The provider's document and keys, and when they were read.
    metadata: Option<(Arc<CoreProviderMetadata>, Instant)>,
    /// The error of the last call that failed, and when it failed.
    last_failure: Option<(String, Instant)>,
}

impl Provider {
    /// The URL at which a browser signs in.
    pub(super) async fn sign_in_url(&self, config: &OidcConfig, pending: &PendingSignIn) -> Result<String, OidcError> {
        let (metadata, _) = self.metadata(config, METADATA_AGE_MAX).await?;
        let redirect = redirect_url(config)?;
        let verifier = PkceCodeVerifier::new(pending.verifier());
        let client =
            CoreClient::from_provider_metadata((*metadata).clone(), ClientId::new(config.client_id.clone()), None);
        let client = client.set_redirect_uri(redirect);
        let (state, nonce) = (CsrfToken::new(pending.state()), Nonce::new(pending.nonce()));
        let request = client.authorize_url(CoreAuthenticationFlow::AuthorizationCode, || state, || nonce);
        let request = request.add_scopes(config.scopes.iter().cloned().map(Scope::new));
        let (url, _, _) = request.set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier)).url();
        Ok(url.into())
    }

    /// Exchanges a code for a token, and returns the user that the token describes.
    pub(super) async fn identity(
        &self,
        config: &OidcConfig,
        (pending, address): (&PendingSignIn, Option<IpAddr>),
        code: &str,
        now: Timestamp,
    ) -> Result<Identity, OidcError> {
        let (metadata, http) = self.metadata(config, METADATA_AGE_MAX).await?;
        let Some(exchange) = self.exchanges.begin(address) else {
            return Err(OidcError::Unavailable("too many sign-ins at the same time".to_owned()));
        };
        let token = self.exchange(config, &metadata, http, (code, pending)).await?;
        drop(exchange);
        let nonce = Nonce::new(pending.nonce());
        let claims = match verify_token(config, &metadata, &token, &nonce, now) {
            // The provider may have new keys.
            Err(ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey)) => {
                let (metadata, _) = self.metadata(config, KEYS_AGE_MAX).await?;
                verify_token(config, &metadata, &token, &nonce, now)
            }
            claims => claims,
        };
        let claims = claims.map_err(|error| {
            tracing::warn!(error = chain(&error), "a token of the provider of sign-ins was refused");
            Refusal::Token(refusal_sentence(&error).to_owned())
        })?;
        let email = account_name(claims.email().map(|email| email.as_str()))?;
        if claims.email_verified() != Some(true) {
            return Err(Refusal::NotVerified(email).into());
        }
        let display_name = claims.name().and_then(|names| names.get(None)).map(|name| name.as_str().to_owned());
        let groups = groups(claims.additional_claims().all.get(&config.groups_claim));
        Ok(Identity { email, display_name, groups })
    }

    async fn exchange(
        &self,
        config: &OidcConfig,
        metadata: &CoreProviderMetadata,
        http: Outgoing,
        (code, pending): (&str, &PendingSignIn),
    ) -> Result<Token, OidcError> {
        let secret = match &config.client_secret_file {
            Some(file) => Some(ClientSecret::new(read_secret(file).map_err(OidcError::Unavailable)?)),
            None => None,
        };
        let client =
            CoreClient::from_provider_metadata(metadata.clone(), ClientId::new(config.client_id.clone()), secret);
        let client = client.set_redirect_uri(redirect_url(config)?).set_auth_type(auth_type(metadata));
        let request = client
            .exchange_code(AuthorizationCode::new(code.to_owned()))
            .map_err(|error| OidcError::Unavailable(chain(&error)))?
            .set_pkce_verifier(PkceCodeVerifier::new(pending.verifier()));
        let call = move |request| http::call(http.clone(), request);
        let answer = request.request_async(&call).await.map_err(|error| match error {
            RequestTokenError::ServerResponse(error) => Refusal::Code(error.error().to_string()).into(),
            RequestTokenError::Parse(error, _) => OidcError::Unavailable(format!("its answer is not a token: {error}")),
            other => OidcError::Unavailable(chain(&other)),
        })?;
        let token = answer.extra_fields().id_token().ok_or_else(|| Refusal::Token("there is none".to_owned()))?;
        token.to_string().parse().map_err(|_| Refusal::Token("it cannot be read".to_owned()).into())
    }

    /// The provider's document and keys, not older than `age_max`, and the client for calls to the provider. If the provider does not answer,
    /// its last answer is used.
    async fn metadata(
        &self,
        config: &OidcConfig,
        age_max: Duration,
    ) -> Result<(Arc<CoreProviderMetadata>, Outgoing), OidcError> {
        let mut cache = self.cache.lock().await;
        let client = match &cache.client {
            Some(client) => client.clone(),
            None => cache.client.insert(http::build().map_err(OidcError::Unavailable)?).clone(),
        };
        if let Some((metadata, _)) = cache.metadata.as_ref().filter(|(_, at)| at.elapsed() < age_max) {
            return Ok((Arc::clone(metadata), client));
        }
        let recent_failure = cache.last_failure.as_ref().filter(|(_, at)| at.elapsed() < FAILED_PAUSE);
        let result = match recent_failure {
            Some((error, _)) => Err(error.clone()),
            None => discover(config, client.clone()).await,
        };
        match result {
            Ok(metadata) => {
                let metadata = Arc::new(metadata);
                cache.last_failure = None;
                cache.metadata = Some((Arc::clone(&metadata), Instant::now()));
                Ok((metadata, client))
            }
            Err(error) => {
                if recent_failure.is_none() {
                    tracing::warn!(issuer = config.issuer, error, "the provider of sign-ins does not answer");
                    cache.last_failure = Some((error.clone(), Instant::now()));
                }
                match &cache.metadata {
                    Some((metadata, _)) => Ok((Arc::clone(metadata), client)),
                    None => Err(OidcError::Unavailable(error)),
                }
            }
        }
    }
}

async fn discover(config: &OidcConfig, client: Outgoing) -> Result<CoreProviderMetadata, String> {
    let issuer = IssuerUrl::new(config.issuer.clone()).map_err(|error| chain(&error))?;
    let call = move |request| http::call(client.clone(), request);
    match timeout(DISCOVERY_TIMEOUT, CoreProviderMetadata::discover_async(issuer, &call)).await {
        Ok(Ok(metadata)) => Ok(metadata),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no answer within {} s", DISCOVERY_TIMEOUT.as_secs())),
    }
}

fn redirect_url(config: &OidcConfig) -> Result<RedirectUrl, OidcError> {
    RedirectUrl::new(config.redirect_url.clone()).map_err(|error| OidcError::Unavailable(chain(&error)))
}

/// The secret is sent in the header, unless the provider accepts it only in the body.
fn auth_type(metadata: &CoreProviderMetadata) -> AuthType {
    let methods = metadata.token_endpoint_auth_methods_supported();
    let accepts = |method| methods.is_some_and(|methods| methods.contains(&method));
    let accepts_body_only =
        accepts(CoreClientAuthMethod::ClientSecretPost) && !accepts(CoreClientAuthMethod::ClientSecretBasic);
    if accepts_body_only { AuthType::RequestBody } else { AuthType::BasicAuth }
}

/// Returns the claims of a token after all its checks have passed.
fn verify_token(
    config: &OidcConfig,
    metadata: &CoreProviderMetadata,
    token: &Token,
    nonce: &Nonce,
    now: Timestamp,
) -> Result<openidconnect::IdTokenClaims<OtherClaims, CoreGenderClaim>, ClaimsVerificationError> {
    let date_time =
        |instant: Timestamp| DateTime::<Utc>::from_timestamp_millis(instant.as_millis()).unwrap_or_default();
    let (earliest, latest) = (date_time(now.saturating_sub(CLOCK_SKEW_MAX)), date_time(now + CLOCK_SKEW_MAX));
    let client_id = ClientId::new(config.client_id.clone());
    // Uses a public-client verifier, because it does not accept a signature that was made with the client secret.
    let verifier =
        CoreIdTokenVerifier::new_public_client(client_id, metadata.issuer().clone(), metadata.jwks().clone())
            .set_allowed_algs(ALGORITHMS)
            .set_time_fn(move || earliest)
            .set_issue_time_verifier_fn(move |issued| {
                if issued <= latest { Ok(()) } else { Err("it is from the future".to_owned()) }
            });
    token.claims(&verifier, nonce).cloned()
}

/// The user-facing reason why a token was refused.
fn refusal_sentence(error: &ClaimsVerificationError) -> &'static str {
    use SignatureVerificationError::{DisallowedAlg, NoSignature, UnsupportedAlg};
    match error {
        ClaimsVerificationError::Expired(_) => "it has expired, or clocks differ by more than a minute",
        ClaimsVerificationError::InvalidAudience(_) => "it was issued to another client",
        ClaimsVerificationError::InvalidIssuer(_) => "it comes from another issuer",
        ClaimsVerificationError::InvalidNonce(_) => "it belongs to another sign-in",
        ClaimsVerificationError::SignatureVerification(NoSignature | DisallowedAlg(_) | UnsupportedAlg(_)) => {
            "it is not signed, or with an algorithm that is not allowed"
        }
        ClaimsVerificationError::SignatureVerification(_) => "its signature does not fit the provider's keys",
        _ => "it cannot be read",
    }
}

/// The account name for an address: the address in lower case. Addresses outside ASCII are refused: some letters, such as the Kelvin sign,
/// have a lower-case form in ASCII, which would turn one address into another.
fn account_name(email: Option<&str>) -> Result<String, Refusal> {
    match email {
        None => Err(Refusal::NoEmail),
        Some(email) if !email.is_ascii() || !is_email_address(email) => Err(Refusal::NotAName(email.to_owned())),
        Some(email) => Ok(email.to_ascii_lowercase()),
    }
}

/// Whether a text has exactly one `@`, with text on both sides. Otherwise, it could be the name of a user who signs in by password.
fn is_email_address(email: &str) -> bool {
    email
        .split_once('@')
        .is_some_and(|(local, domain)| !local.is_empty() && !domain.is_empty() && !domain.contains('@'))
}

/// Reads the claim with the user's groups: a list of strings, or a single string.
fn groups(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::String(group)) => vec![group.clone()],
        _ => Vec::new(),
    }
}

/// Reads the secret from a file. Refuses a file that is exposed to other users of the host.
pub(super) fn read_secret(file: &Path) -> Result<String, String> {
    let path = file.display();
    let read_file = || {
        let mut text = String::new();
        let mut secret_file = std::fs::File::open(file)?;
        let meta = secret_file.metadata()?;
        secret_file.read_to_string(&mut text).map(|_| (text, meta))
    };
    let (text, meta) = read_file().map_err(|error: std::io::Error| format!("cannot read {path}: {error}"))?;
    if let Some(fault) = exposure(meta.mode(), meta.uid()).filter(|_| meta.is_file()) {
        return Err(format!("{path} {fault}"));
    }
    match text.trim() {
        secret if (1..=SECRET_LEN_MAX).contains(&secret.len()) => Ok(secret.to_owned()),
        secret => Err(format!("{path} has {} bytes; a secret has 1 to {SECRET_LEN_MAX}", secret.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_stands_for_itself_alone() {
        assert_eq!(account_name(Some("Kim@Example.com")).unwrap(), "kim@example.com");
        assert_eq!("\u{212a}im@example.com".to_lowercase(), "kim@example.com", "what would be taken for another user");
        for email in ["\u{212a}im@example.com", "kim@example.c\u{f6}m", "\u{130}ris@example.com"] {
            assert!(matches!(account_name(Some(email)), Err(Refusal::NotAName(_))), "{email}");
        }
        for email in ["paula", "", "@", "@example.com", "paula@", "paula@a@b", "paula@@b"] {
            assert!(matches!(account_name(Some(email)), Err(Refusal::NotAName(_))), "{email}");
        }
        assert!(matches!(account_name(None), Err(Refusal::NoEmail)));
    }

    #[test]
    fn groups_are_words() {
        assert_eq!(groups(Some(&json!(["a", 1, "b"]))), ["a", "b"]);
        assert_eq!(groups(Some(&json!("a"))), ["a"]);
        assert!(groups(Some(&json!({"a": 1}))).is_empty() && groups(None).is_empty());
    }

    #[test]
    fn a_secret_is_a_line_of_a_file() {
        let folder = std::env::temp_dir().join(format!("rondel-oidc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("secret");
        std::fs::write(&file, "hush\n").unwrap();
        let set_mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o644);
        assert!(read_secret(&file).unwrap_err().contains("chmod 600"));
        set_mode(0o600);
        assert_eq!(read_secret(&file).unwrap(), "hush");
        std::fs::write(&file, "\n").unwrap();
        assert!(read_secret(&file).unwrap_err().contains("0 bytes"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
