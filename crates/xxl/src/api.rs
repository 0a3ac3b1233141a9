//! What executors call: registrations and callbacks. The token is looked at before the body is read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use rondel_admin::auth::Token;
use rondel_core::ExecutorId;
use rondel_core::access::Role;
use rondel_outgoing::check_host;
use rondel_store::StoreError;
use rondel_store::access::TokenKind;
use rondel_store::xxl::{XxlExecutor, XxlReport, XxlRun};
use tokio::time::Instant;

use crate::address::Address;
use crate::bridge::{App, Bridge};
use crate::link::Event;
use crate::wire;

/// How long a good token is not looked up again.
const TOKEN_PERIOD: Duration = Duration::from_secs(5);
const TOKEN_COUNT_MAX: usize = 1_000;
/// The longest body, in KiB.
const BODY_KIB_MAX: u32 = 16 * 1024;
/// How long callbacks wait for the store before they are refused.
const STORE_PATIENCE: Duration = Duration::from_secs(20);
const STORE_PERIOD: Duration = Duration::from_millis(500);

/// Reads a body of at most so many bytes; `None` for one that is longer or does not arrive.
pub type BodyReader = Box<dyn FnOnce(usize) -> BodyRead + Send>;

/// A body that is being read.
pub type BodyRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// A call of an executor.
pub struct ApiCall {
    /// `registry`, `registryRemove` or `callback`.
    pub method: String,
    /// Whether it came by POST.
    pub is_post: bool,
    /// The header `XXL-JOB-ACCESS-TOKEN`.
    pub token: Option<String>,
    /// The sender.
    pub client: Option<IpAddr>,
    /// The length of the body, where the sender declares it.
    pub len: Option<u64>,
    /// Reads the body, of at most so many bytes.
    pub body: BodyReader,
}

impl std::fmt::Debug for ApiCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiCall").field("method", &self.method).field("client", &self.client).finish_non_exhaustive()
    }
}

/// The answer: JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAnswer {
    /// 200, except where the database is away.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl ApiAnswer {
    fn good() -> Self {
        Self { status: 200, body: wire::good() }
    }

    fn refused(message: &str) -> Self {
        Self { status: 200, body: wire::refused(message) }
    }
}

/// What executors call.
impl Bridge {
    /// Answers a call.
    pub async fn call(&self, call: ApiCall) -> ApiAnswer {
        if !call.is_post {
            return ApiAnswer::refused("invalid request, HttpMethod not support.");
        }
        if !matches!(call.method.as_str(), "registry" | "registryRemove" | "callback") {
            let shown: String = call.method.chars().take(50).collect();
            return ApiAnswer::refused(&format!("invalid request, uri-mapping({shown}) not found."));
        }
        let app = match self.app_of(call.token.as_deref(), call.client).await {
            Ok(app) => app,
            Err(answer) => return answer,
        };
        let kib = call.len.map_or(BODY_KIB_MAX, |len| u32::try_from(len / 1024 + 1).unwrap_or(u32::MAX));
        let too_long = format!("the body has more than {BODY_KIB_MAX} KiB");
        if kib > BODY_KIB_MAX {
            self.note_refusal(&app, &call.method, &too_long);
            return ApiAnswer::refused(&too_long);
        }
        let room = tokio::time::timeout(STORE_PATIENCE, Arc::clone(&self.0.body_room).acquire_many_owned(kib)).await;
        let Ok(Ok(_room)) = room else { return busy() };
        let len_max = usize::try_from(kib).unwrap_or(usize::MAX).saturating_mul(1024);
        let Some(body) = (call.body)(len_max).await else {
            self.note_refusal(&app, &call.method, &too_long);
            return ApiAnswer::refused(&too_long);
        };
        if body.is_empty() {
            return ApiAnswer::refused("invalid request, requestBody empty.");
        }
        let answered = match call.method.as_str() {
            "registry" => self.register((&app, call.token.as_deref().unwrap_or_default().trim()), &body).await,
            "registryRemove" => self.unregister(&app, &body).await,
            _ => self.callback(&app, &body).await,
        };
        answered.unwrap_or_else(|refusal| match refusal {
            Refusal::Wrong(sentence) => {
                self.note_refusal(&app, &call.method, &sentence);
                ApiAnswer::refused(&sentence)
            }
            Refusal::Store(error) => {
                self.0.shared.store_failed("store calls", &error);
                busy()
            }
        })
    }

    fn note_refusal(&self, app: &App, method: &str, reason: &str) {
        if let Some(count) = self.0.shared.log_limit.count(&format!("{} {method} {reason}", app.name)) {
            tracing::warn!(app = app.name, method, reason, count, "refused a call of an executor of XXL-JOB");
        }
    }

    /// The app that a token is for: an executor token of exactly one app.
    async fn app_of(&self, token: Option<&str>, client: Option<IpAddr>) -> Result<App, ApiAnswer> {
        let wrong = || ApiAnswer::refused("The access token is wrong.");
        let Some(text) = token.map(str::trim).filter(|text| !text.is_empty()) else { return Err(wrong()) };
        let hash = Token::from_text(text).hash();
        let now = Instant::now();
        let known = self.tokens().get(&hash).filter(|(_, at)| now.duration_since(*at) < TOKEN_PERIOD).cloned();
        if let Some((app, _)) = known {
            return Ok(app);
        }
        let engine = &self.0.shared.engine;
        let found = engine.bearer(Some(&format!("Bearer {text}")), client).await.map_err(|_| busy())?;
        let Some(principal) = found.filter(|principal| principal.token.kind == TokenKind::Executor) else {
            if let Some(count) = self.0.shared.log_limit.count("wrong token") {
                let client = client.map(|client| client.to_string()).unwrap_or_default();
                tracing::warn!(
                    client,
                    count,
                    "refused an executor of XXL-JOB: its token is no valid token of executors"
                );
            }
            return Err(wrong());
        };
        let place = match principal.rights.grants() {
            [grant] if grant.role == Role::Executor => grant.namespace.zip(grant.app),
            _ => None,
        };
        let Some((namespace, id)) = place else {
            return Err(ApiAnswer::refused(
                "this token is for more than one app: make one by rondel token create --kind executor --role \
                 executor:NAMESPACE/APP",
            ));
        };
        let apps = engine.store().apps(namespace).await.map_err(|_| busy())?;
        let Some(app) = apps.into_iter().find(|app| app.id == id) else { return Err(wrong()) };
        let app = App { id, name: app.name, namespace };
        let mut tokens = self.tokens();
        if tokens.len() >= TOKEN_COUNT_MAX {
            tokens.retain(|_, (_, at)| now.duration_since(*at) < TOKEN_PERIOD);
        }
        if tokens.len() < TOKEN_COUNT_MAX {
            tokens.insert(hash, (app.clone(), now));
        }
        Ok(app)
    }

    fn tokens(&self) -> MutexGuard<'_, std::collections::HashMap<String, (App, Instant)>> {
        self.0.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Why a call is refused.
enum Refusal {
    Wrong(String),
    Store(StoreError),
}

impl From<String> for Refusal {
    fn from(sentence: String) -> Self {
        Self::Wrong(sentence)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The database is away, or too many calls are under way: executors that can, call again.
fn busy() -> ApiAnswer {
    ApiAnswer { status: 503, body: wire::refused("the server cannot store this now; call again") }
}

impl Bridge {
    async fn register(&self, (app, token): (&App, &str), body: &[u8]) -> Result<ApiAnswer, Refusal> {
        let address = self.checked(app, body)?;
        let engine = &self.0.shared.engine;
        let now = engine.now();
        let executor = XxlExecutor {
            id: ExecutorId::new(engine.new_id()),
            namespace: app.namespace,
            app: app.id,
            address: address.as_str().to_owned(),
            token: token.to_owned(),
            first_seen_at: now,
            last_seen_at: now,
            left_at: None,
        };
        let id = engine.store().register_xxl(&executor).await?;
        if !self.links().contains_key(&id) {
            self.0.poke.notify_one();
        }
        Ok(ApiAnswer::good())
    }

    async fn unregister(&self, app: &App, body: &[u8]) -> Result<ApiAnswer, Refusal> {
        let address = self.checked(app, body)?;
        let engine = &self.0.shared.engine;
        if engine.store().unregister_xxl(app.id, address.as_str(), engine.now()).await? {
            self.0.poke.notify_one();
        }
        Ok(ApiAnswer::good())
    }

    /// The address of a registration, if it is of the app, and in an allowed network. A name is looked up when it is called.
    fn checked(&self, app: &App, body: &[u8]) -> Result<Address, Refusal> {
        let registration = wire::registration(body)?;
        if registration.app.to_lowercase() != app.name {
            let shown: String = registration.app.chars().take(100).collect();
            return Err(Refusal::Wrong(format!("registryKey: {shown:?} is not the app of the token, {:?}", app.name)));
        }
        let address = Address::parse(&registration.address)?;
        let allowed = self.0.shared.config.networks.clone().alone();
        check_host(address.url(), &allowed).map_err(|refused| format!("registryValue: {refused}"))?;
        Ok(address)
    }

    /// Stores the ends of attempts, and answers once they are durable. Unknown and repeated ones are answered alike: executors treat
    /// any other answer as a failure of the run, or end.
    async fn callback(&self, app: &App, body: &[u8]) -> Result<ApiAnswer, Refusal> {
        let callbacks = wire::callbacks(body)?;
        let report = |one: wire::Callback| XxlReport { log_id: one.log_id, code: one.code, message: one.message };
        let reports: Vec<XxlReport> = callbacks.into_iter().map(report).collect();
        if reports.is_empty() {
            return Ok(ApiAnswer::good());
        }
        let rows = self.store_reports(app, &reports).await?;
        let unknown = reports.iter().filter(|report| !rows.iter().any(|row| row.log_id == report.log_id)).count();
        if unknown > 0
            && let Some(count) = self.0.shared.log_limit.count(&format!("unknown callbacks {}", app.name))
        {
            tracing::info!(app = app.name, unknown, count, "callbacks for runs that are not known, or not of this app");
        }
        let mut by_executor: BTreeMap<ExecutorId, Vec<XxlRun>> = BTreeMap::new();
        for row in rows {
            by_executor.entry(row.executor).or_default().push(row);
        }
        let links = self.links();
        for (executor, rows) in by_executor {
            // Where there is no room, or no link, the store is read again soon.
            if let Some(link) = links.get(&executor) {
                link.events.try_send(Event::Reported(rows)).ok();
            }
        }
        Ok(ApiAnswer::good())
    }

    async fn store_reports(&self, app: &App, reports: &[XxlReport]) -> Result<Vec<XxlRun>, StoreError> {
        let engine = &self.0.shared.engine;
        let until = Instant::now() + STORE_PATIENCE;
        loop {
            match engine.store().report_xxl(app.id, reports, engine.now()).await {
                Err(error) if Instant::now() < until => {
                    self.0.shared.store_failed("store callbacks", &error);
                    tokio::time::sleep(STORE_PERIOD).await;
                }
                done => return done,
            }
        }
    }
}
