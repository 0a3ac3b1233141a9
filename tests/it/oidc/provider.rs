//! A small OIDC provider with configurable faults. It signs every browser in as the person that the test has set,
//! without a prompt.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Form, Query, State};
use axum::http::header::{AUTHORIZATION, LOCATION};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use rondel_tests::wall_clock_ms;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(super) const CLIENT_ID: &str = "rondel";
pub(super) const CLIENT_SECRET: &str = "a secret of the client";

/// The fault in the answers of the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fault {
    #[default]
    None,
    Denies,
    OtherNonce,
    OtherAudience,
    OtherIssuer,
    Expired,
    FromTheFuture,
    Unsigned,
    SignedWithTheSecret,
    OtherKey,
    /// A code may be used repeatedly.
    TakesCodesAgain,
    /// The provider's document never ends.
    Endless,
}

#[derive(Default)]
struct Settings {
    person: Value,
    fault: Fault,
    /// By code: the parameters of the browser's request.
    codes: BTreeMap<String, BTreeMap<String, String>>,
    code_count: u32,
    key: Option<(String, Arc<EcdsaKeyPair>)>,
}

pub(super) struct Provider {
    pub(super) issuer: String,
    settings: Arc<Mutex<Settings>>,
    server: JoinHandle<()>,
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Clone)]
struct Endpoints {
    issuer: String,
    settings: Arc<Mutex<Settings>>,
}

impl Endpoints {
    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key() -> Arc<EcdsaKeyPair> {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("make a key");
    Arc::new(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("read a key"))
}

impl Provider {
    pub(super) async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    pub(super) async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.expect("bind");
        let issuer = format!("http://{}", listener.local_addr().expect("an address"));
        let settings = Settings { key: Some(("first".to_owned(), key())), ..Settings::default() };
        let settings = Arc::new(Mutex::new(settings));
        let endpoints = Endpoints { issuer: issuer.clone(), settings: Arc::clone(&settings) };
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(document))
            .route("/keys", get(keys))
            .route("/authorize", get(authorize))
            .route("/token", post(token))
            .with_state(endpoints);
        #[expect(clippy::disallowed_methods, reason = "the test ends it")]
        let server = tokio::spawn(async move { axum::serve(listener, router).await.expect("serve") });
        Self { issuer, settings, server }
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claims of every sign-in from now on.
    pub(super) fn set_user(&self, claims: Value) {
        self.settings().person = claims;
    }

    pub(super) fn set_fault(&self, fault: Fault) {
        self.settings().fault = fault;
    }

    /// Replaces the provider's key.
    pub(super) fn rotate(&self) {
        self.settings().key = Some(("second".to_owned(), key()));
    }
}

async fn document(State(endpoints): State<Endpoints>) -> Json<Value> {
    let issuer = &endpoints.issuer;
    let padding = if endpoints.settings().fault == Fault::Endless { "x".repeat(1_000_000) } else { String::new() };
    Json(json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "jwks_uri": format!("{issuer}/keys"),
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "padding": padding,
    }))
}

async fn keys(State(endpoints): State<Endpoints>) -> Json<Value> {
    let settings = endpoints.settings();
    let (id, pair) = settings.key.as_ref().expect("there is a key");
    let point = pair.public_key().as_ref();
    let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..]));
    Json(json!({"keys": [{"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": id, "x": x, "y": y}]}))
}

async fn authorize(State(endpoints): State<Endpoints>, Query(params): Query<BTreeMap<String, String>>) -> Response {
    let is_valid = params["response_type"] == "code"
        && params["client_id"] == CLIENT_ID
        && params["code_challenge_method"] == "S256"
        && params["scope"].split(' ').any(|scope| scope == "openid");
    assert!(is_valid, "{params:?}");
    let mut settings = endpoints.settings();
    let (redirect, state) = (params["redirect_uri"].clone(), params["state"].clone());
    let answer = if settings.fault == Fault::Denies {
        "error=access_denied".to_owned()
    } else {
        settings.code_count += 1;
        let code = format!("code-{}", settings.code_count);
        settings.codes.insert(code.clone(), params);
        format!("code={code}")
    };
    (StatusCode::SEE_OTHER, [(LOCATION, format!("{redirect}?{answer}&state={state}&session_state=x"))]).into_response()
}

async fn token(
    State(endpoints): State<Endpoints>,
    headers: HeaderMap,
    Form(params): Form<BTreeMap<String, String>>,
) -> Result<Json<Value>, (StatusCode, Json<Value>)> {
    let refuse = |error: &str| Err((StatusCode::BAD_REQUEST, Json(json!({"error": error}))));
    // Form encoding, as the standard wants it: a blank is a plus.
    let pair = BASE64_STANDARD.encode(format!("{CLIENT_ID}:{}", CLIENT_SECRET.replace(' ', "+")));
    if headers.get(AUTHORIZATION).is_none_or(|header| header.as_bytes() != format!("Basic {pair}").as_bytes()) {
        return refuse("invalid_client");
    }
    let mut settings = endpoints.settings();
    let keeps_code = settings.fault == Fault::TakesCodesAgain;
    let code = &params["code"];
    let sign_in = if keeps_code { settings.codes.get(code).cloned() } else { settings.codes.remove(code) };
    let Some(sign_in_params) = sign_in else { return refuse("invalid_grant") };
    let challenge = BASE64.encode(Sha256::digest(&params["code_verifier"]));
    if sign_in_params["code_challenge"] != challenge || sign_in_params["redirect_uri"] != params["redirect_uri"] {
        return refuse("invalid_grant");
    }
    let token = signed(&settings, &claims(&settings, &endpoints.issuer, &sign_in_params["nonce"]));
    Ok(Json(json!({"access_token": "of no use", "token_type": "Bearer", "expires_in": 60, "id_token": token})))
}

fn claims(settings: &Settings, issuer: &str, nonce: &str) -> Value {
    let now = wall_clock_ms() / 1_000;
    let mut claims = json!({
        "iss": issuer, "aud": CLIENT_ID, "sub": "1", "nonce": nonce, "iat": now, "exp": now + 300,
    });
    match settings.fault {
        Fault::OtherNonce => claims["nonce"] = json!("of another sign-in"),
        Fault::OtherAudience => claims["aud"] = json!("another-client"),
        Fault::OtherIssuer => claims["iss"] = json!("http://127.0.0.1:1"),
        Fault::Expired => claims["exp"] = json!(now - 90),
        Fault::FromTheFuture => claims["iat"] = json!(now + 90),
        _ => {}
    }
    for (name, value) in settings.person.as_object().expect("the person has claims") {
        claims[name] = value.clone();
    }
    claims
}

fn signed(settings: &Settings, claims: &Value) -> String {
    let (id, pair) = settings.key.as_ref().expect("there is a key");
    let algorithm = match settings.fault {
        Fault::Unsigned => "none",
        Fault::SignedWithTheSecret => "HS256",
        _ => "ES256",
    };
    let header = json!({"alg": algorithm, "typ": "JWT", "kid": id});
    let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let sign = |pair: &EcdsaKeyPair| {
        let signature = pair.sign(&SystemRandom::new(), text.as_bytes()).expect("sign");
        BASE64.encode(signature.as_ref())
    };
    let signature = match settings.fault {
        Fault::Unsigned => String::new(),
        Fault::SignedWithTheSecret => {
            let mut mac = Hmac::<Sha256>::new_from_slice(CLIENT_SECRET.as_bytes()).expect("a key");
            mac.update(text.as_bytes());
            BASE64.encode(mac.finalize().into_bytes())
        }
        Fault::OtherKey => sign(&key()),
        _ => sign(pair),
    };
    format!("{text}.{signature}")
}

/// How long the server waits before it calls a provider again that it could not reach.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(20);
