//! Answers the calls of executors: registrations and callbacks. The token is checked before the body is read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use rondel_admin::auth::Token;
use rondel_admin::gateway::OnAuthenticated;
use rondel_admin::xxl::{Address, allowed_address};
use rondel_admin::{XxlCall, XxlOutcome};
use rondel_core::access::Role;
use rondel_core::{AppId, ExecutorId};
use rondel_store::StoreError;
use rondel_store::access::TokenKind;
use rondel_store::xxl::{XxlExecutor, XxlReport, XxlReportOutcome, XxlReportResults, XxlRun};
use tokio::time::Instant;

use crate::bridge::{App, Bridge};
use crate::link::Event;
use crate::refresh_state::REGISTERED_FOR;
use crate::registrations::APP_COUNT_MAX;
use crate::{console_calls, wire};

/// Maximum size of a body, in KiB.
const BODY_KIB_MAX: u32 = 16 * 1024;
/// How long a callback waits for the store before it is refused, and how long any call waits for room in memory.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);
const STORE_PERIOD: Duration = Duration::from_millis(500);

/// Reads a body of at most the given number of bytes; `None` if the body is longer or does not arrive.
pub type BodyReader = Box<dyn FnOnce(usize) -> BodyRead + Send>;

/// A body that is being read.
pub type BodyRead = Pin<Box<dyn Future<Output = Option<Bytes>> + Send>>;

/// A call by an executor.
pub struct ApiCall {
    /// `registry`, `registryRemove` or `callback`.
    pub method: String,
    /// Whether the call is an HTTP POST.
    pub is_post: bool,
    /// The header `XXL-JOB-ACCESS-TOKEN`.
    pub token: Option<String>,
    /// The address of the sender.
    pub client: Option<IpAddr>,
    /// The length of the body, if the sender declares it.
    pub len: Option<u64>,
    /// Called once the token has been found valid.
    pub on_authenticated: OnAuthenticated,
    pub body: BodyReader,
}

impl std::fmt::Debug for ApiCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiCall").field("method", &self.method).field("client", &self.client).finish_non_exhaustive()
    }
}

/// The answer to a call. Its body is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiAnswer {
    /// The HTTP status: 503 if the database is unavailable, 410 for a call that is not served, otherwise 200.
    pub status: u16,
    pub body: Vec<u8>,
}

impl ApiAnswer {
    fn success() -> Self {
        Self { status: 200, body: wire::success() }
    }

    /// The answer to a call that is not served, and never will be.
    pub(crate) fn not_served(message: &str) -> Self {
        Self { status: 410, body: wire::refused(message) }
    }

    fn refused(message: &str) -> Self {
        Self { status: 200, body: wire::refused(message) }
    }
}

// Handles the calls by executors.
impl Bridge {
    /// Answers a call to XXL-JOB's console by naming the call to use here instead. `path` is without the prefix.
    #[must_use]
    pub fn answer_console_call(&self, path: &str) -> ApiAnswer {
        self.0.shared.engine.count_xxl(XxlCall::Other, XxlOutcome::UnknownCall, 1);
        console_calls::answer(path)
    }

    /// Answers a call, and counts it. Refused calls are logged at most once a minute for each kind, outcome and address.
    pub async fn call(&self, call: ApiCall) -> ApiAnswer {
        let (kind, client) = (call_kind(&call.method), call.client);
        match self.serve(kind, call).await {
            Ok(answer) => answer,
            Err(Refusal::Rejected(outcome, sentence)) => {
                self.count_and_log((kind, outcome, 1), client, &sentence);
                ApiAnswer::refused(&sentence)
            }
            Err(Refusal::Busy(error)) => {
                if let Some(error) = error {
                    self.0.shared.log_store_failure("store calls", &error);
                }
                self.0.shared.engine.count_xxl(kind, XxlOutcome::Unavailable, 1);
                ApiAnswer { status: 503, body: wire::refused("the server cannot store this now; call again") }
            }
        }
    }

    async fn serve(&self, kind: XxlCall, call: ApiCall) -> Result<ApiAnswer, Refusal> {
        let unknown_call = |sentence: String| Err(Refusal::Rejected(XxlOutcome::UnknownCall, sentence));
        if !call.is_post {
            return unknown_call("invalid request, HttpMethod not support.".to_owned());
        }
        if kind == XxlCall::Other {
            let shown_method: String = call.method.chars().take(50).collect();
            return unknown_call(format!("invalid request, uri-mapping({shown_method}) not found."));
        }
        let app = self.app_of(call.token.as_deref(), call.client).await?;
        call.on_authenticated.0(app.token);
        let body_kib = call.len.map_or(BODY_KIB_MAX, |len| u32::try_from(len / 1024 + 1).unwrap_or(u32::MAX));
        let too_long_refusal =
            || Refusal::Rejected(XxlOutcome::TooLong, format!("the body has more than {BODY_KIB_MAX} KiB"));
        if body_kib > BODY_KIB_MAX {
            return Err(too_long_refusal());
        }
        let body_permits = tokio::time::timeout(STORE_TIMEOUT, self.0.body_room.take(app.id, body_kib)).await;
        let Ok(Some(_permits)) = body_permits else { return Err(Refusal::Busy(None)) };
        let len_max = usize::try_from(body_kib).unwrap_or(usize::MAX).saturating_mul(1024);
        let body = (call.body)(len_max).await.ok_or_else(too_long_refusal)?;
        if body.is_empty() {
            return Err("invalid request, requestBody empty.".to_owned().into());
        }
        match kind {
            XxlCall::Registry => self.register((&app, call.token.as_deref().unwrap_or_default().trim()), &body).await?,
            XxlCall::RegistryRemove => self.unregister(&app, &body).await?,
            XxlCall::Callback | XxlCall::Other => {
                self.callback(&app, &body, call.client).await?;
                return Ok(ApiAnswer::success());
            }
        }
        self.0.shared.engine.count_xxl(kind, XxlOutcome::Accepted, 1);
        Ok(ApiAnswer::success())
    }

    /// Counts and logs calls that were refused or changed nothing.
    fn count_and_log(&self, (call, outcome, count): (XxlCall, XxlOutcome, u64), client: Option<IpAddr>, reason: &str) {
        let shared = &self.0.shared;
        shared.engine.count_xxl(call, outcome, count);
        let client = client.map(|client| client.to_string()).unwrap_or_default();
        // Such calls are usual, because executors that got no answer repeat the call, possibly late.
        let is_usual = matches!(outcome, XxlOutcome::Repeated | XxlOutcome::UnknownRun);
        let (call, outcome) = (call.as_str(), outcome.as_str());
        let Some(count) = shared.log_limit.count(&format!("{call} {outcome} {client}")) else { return };
        if is_usual {
            tracing::info!(call, outcome, client, reason, count, "a call of an executor of XXL-JOB changed nothing");
        } else {
            tracing::warn!(call, outcome, client, reason, count, "refused a call of an executor of XXL-JOB");
        }
    }

    /// Whether callbacks of the app's executors with this token would be refused. False if the database is unavailable.
    pub(crate) async fn refuses_callbacks(&self, app: AppId, token: &str) -> bool {
        match self.app_of(Some(token), None).await {
            Ok(token_app) => token_app.id != app,
            Err(refusal) => matches!(refusal, Refusal::Rejected(..)),
        }
    }

    /// The app of a token, which must have the kind for XXL-JOB executors.
    async fn app_of(&self, token: Option<&str>, client: Option<IpAddr>) -> Result<App, Refusal> {
        let wrong_token_refusal =
            |detail: &str| Refusal::Rejected(XxlOutcome::WrongToken, format!("The access token is wrong.{detail}"));
        let Some(text) = token.map(str::trim).filter(|text| !text.is_empty()) else {
            return Err(wrong_token_refusal(""));
        };
        let hash = Token::from_text(text).hash();
        let look_up = async { self.app_of_token(text, client).await?.map_err(|detail| wrong_token_refusal(&detail)) };
        self.0.tokens.app(hash, look_up).await
    }

    /// Looks the app up in the store. The inner error completes the message of the refusal: it describes a valid token that
    /// is for other uses, else it is empty.
    async fn app_of_token(&self, text: &str, client: Option<IpAddr>) -> Result<Result<App, String>, Refusal> {
        let engine = &self.0.shared.engine;
        let principal =
            engine.bearer(Some(&format!("Bearer {text}")), client).await.map_err(|_| Refusal::Busy(None))?;
        let Some(principal) = principal else { return Ok(Err(String::new())) };
        if principal.token.kind == TokenKind::Executor {
            let detail =
                " It is of kind executor: create one with rondel token create --kind xxl --role executor:NAMESPACE/APP";
            return Ok(Err(detail.to_owned()));
        }
        let granted_app = match principal.rights.grants() {
            [grant] if grant.role == Role::Executor && principal.token.kind == TokenKind::Xxl => {
                grant.namespace.zip(grant.app)
            }
            _ => None,
        };
        let Some((namespace, id)) = granted_app else { return Ok(Err(String::new())) };
        let app = engine.store().apps(namespace).await?.into_iter().find(|app| app.id == id);
        let token = principal.token.id;
        Ok(app.map(|app| App { id, name: app.name, namespace, token }).ok_or_else(String::new))
    }
}

/// Why a call is refused.
enum Refusal {
    Rejected(XxlOutcome, String),
    /// The database is unavailable, or too many calls are in progress: executors repeat the call if they can.
    Busy(Option<StoreError>),
}

// The sentence describes an error in the body.
impl From<String> for Refusal {
    fn from(sentence: String) -> Self {
        Self::Rejected(XxlOutcome::Unreadable, sentence)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Busy(Some(error))
    }
}

fn call_kind(method: &str) -> XxlCall {
    match method {
        "registry" => XxlCall::Registry,
        "registryRemove" => XxlCall::RegistryRemove,
        "callback" => XxlCall::Callback,
        _ => XxlCall::Other,
    }
}

impl Bridge {
    async fn register(&self, (app, token): (&App, &str), body: &[u8]) -> Result<(), Refusal> {
        let address = self.checked_address(app, body)?;
        if !self.0.registrations.admit(app.id, address.as_str(), Instant::now()) {
            let (name, seconds) = (&app.name, REGISTERED_FOR.as_secs());
            let sentence = format!(
                "registryValue: {APP_COUNT_MAX} executors of app {name:?} have registered within {seconds} s, which is the maximum of one app"
            );
            return Err(Refusal::Rejected(XxlOutcome::ForbiddenAddress, sentence));
        }
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
            by_hand_at: None,
        };
        let id = engine.store().register_xxl(&executor).await?;
        if !self.links().contains_key(&id) {
            self.0.refresh_requested.notify_one();
        }
        Ok(())
    }

    async fn unregister(&self, app: &App, body: &[u8]) -> Result<(), Refusal> {
        let address = self.checked_address(app, body)?;
        let engine = &self.0.shared.engine;
        if engine.store().unregister_xxl(app.id, address.as_str(), engine.now()).await? {
            self.0.refresh_requested.notify_one();
        }
        Ok(())
    }

    /// The address of a registration, if its app is the token's and the address is in an allowed network. A host name is
    /// resolved and checked only when the executor is called.
    fn checked_address(&self, app: &App, body: &[u8]) -> Result<Address, Refusal> {
        let registration = wire::registration(body)?;
        if registration.app.to_lowercase() != app.name {
            let shown_app: String = registration.app.chars().take(100).collect();
            let sentence = format!("registryKey: {shown_app:?} is not the app of the token, {:?}", app.name);
            return Err(Refusal::Rejected(XxlOutcome::WrongApp, sentence));
        }
        let forbidden_refusal =
            |sentence: String| Refusal::Rejected(XxlOutcome::ForbiddenAddress, format!("registryValue: {sentence}"));
        allowed_address(&registration.address, &self.0.shared.config.networks).map_err(forbidden_refusal)
    }

    /// Stores the ends of attempts, and returns once they are durable. Unknown and repeated callbacks get the same answer as new
    /// ones, because executors treat any other answer as a failure of the run, or exit.
    async fn callback(&self, app: &App, body: &[u8], client: Option<IpAddr>) -> Result<(), Refusal> {
        let callbacks = wire::callbacks(body)?;
        let to_report = |callback: wire::Callback| XxlReport {
            log_id: callback.log_id,
            code: callback.code,
            message: callback.message,
        };
        let reports: Vec<XxlReport> = callbacks.into_iter().map(to_report).collect();
        if reports.is_empty() {
            self.0.shared.engine.count_xxl(XxlCall::Callback, XxlOutcome::Accepted, 1);
            return Ok(());
        }
        let results = self.store_reports(app, reports).await?;
        self.count_outcomes(app, &results.outcomes, client);
        let mut runs_by_executor: BTreeMap<ExecutorId, Vec<XxlRun>> = BTreeMap::new();
        for row in results.runs {
            runs_by_executor.entry(row.executor).or_default().push(row);
        }
        let links = self.links();
        for (executor, rows) in runs_by_executor {
            // If the link has no room, or there is no link, a later read of the store finds these rows.
            if let Some(link) = links.get(&executor) {
                link.event_sender.try_send(Event::Reported(rows)).ok();
            }
        }
        Ok(())
    }

    fn count_outcomes(&self, app: &App, outcomes: &[XxlReportOutcome], client: Option<IpAddr>) {
        let count_of = |outcome_kind: XxlReportOutcome| {
            u64::try_from(outcomes.iter().filter(|outcome| **outcome == outcome_kind).count()).unwrap_or(u64::MAX)
        };
        let call = XxlCall::Callback;
        self.0.shared.engine.count_xxl(call, XxlOutcome::Accepted, count_of(XxlReportOutcome::Accepted));
        for (outcome_kind, outcome, description) in [
            (XxlReportOutcome::Duplicate, XxlOutcome::Repeated, "the end of the run was already known"),
            (XxlReportOutcome::OfOtherApp, XxlOutcome::ForeignRun, "the run belongs to another app"),
            (XxlReportOutcome::Unknown, XxlOutcome::UnknownRun, "no run has this logId, or its record was removed"),
        ] {
            if count_of(outcome_kind) > 0 {
                self.count_and_log(
                    (call, outcome, count_of(outcome_kind)),
                    client,
                    &format!("app {}: {description}", app.name),
                );
            }
        }
    }

    async fn store_reports(&self, app: &App, reports: Vec<XxlReport>) -> Result<XxlReportResults, Refusal> {
        let deadline = Instant::now() + STORE_TIMEOUT;
        loop {
            match self.0.shared.writes.report(app.id, reports.clone()).await {
                Some(results) => return Ok(results),
                None if Instant::now() < deadline => tokio::time::sleep(STORE_PERIOD).await,
                None => return Err(Refusal::Busy(None)),
            }
        }
    }
}
