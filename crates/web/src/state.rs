//! The state that handlers share: the engine, the configuration, and the permits that callers have.

use std::sync::Arc;
use std::time::Duration;

use rondel_admin::Engine;
use rondel_admin::auth::Token;
use rondel_admin::events::Events;
use rondel_admin::oidc::Oidc;
use rondel_admin::passwords::Passwords;
use tokio_util::sync::CancellationToken;

use crate::denials::RefusalAuditBudget;
use crate::job_board::JobBoards;
use crate::job_order::JobRanks;
use crate::limits::HttpLimits;
use crate::mounted::Mounted;
use crate::origin::PublicEndpoint;
use crate::permits::Permits;
use crate::rate::{Buckets, Rate};
use crate::refused_lines::RefusedLines;

/// The configuration of the HTTP interface.
#[derive(Clone, Debug)]
pub struct WebConfig {
    /// Maximum length of a body, in bytes.
    pub body_len_max: usize,
    /// How long a request may take until its answer begins.
    pub request_timeout: Duration,
    /// The limits for one client, and for all of them.
    pub limits: HttpLimits,
    /// Maximum time for which a log or the stream of events is followed.
    pub follow_timeout: Duration,
    /// The maximum rate of one caller's requests; `None` for no limit.
    pub rate: Option<Rate>,
    /// Whether browsers reach the server over TLS, either at this port or at a proxy in front of it.
    pub tls: bool,
    /// The URL at which browsers reach the server, if known. Forms are accepted only from pages at this URL.
    pub advertised: Option<String>,
    /// Whether answers make browsers use only HTTPS from now on (HSTS).
    pub hsts: bool,
    /// The secret that gives access to the metrics without a look-up in the database.
    pub metrics_token: Option<Token>,
    /// The OIDC provider.
    pub oidc: Option<Arc<Oidc>>,
    /// Endpoints of another protocol on the same port.
    pub mounted: Option<Arc<dyn Mounted>>,
    /// Ends followed logs and streams of events.
    pub shutdown: CancellationToken,
}

impl WebConfig {
    pub(crate) fn endpoint(&self) -> PublicEndpoint<'_> {
        PublicEndpoint { advertised_url: self.advertised.as_deref(), is_tls: self.tls }
    }
}

impl Default for WebConfig {
    fn default() -> Self {
        Self {
            body_len_max: 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            limits: HttpLimits::default(),
            follow_timeout: Duration::from_secs(3600),
            rate: Some(Rate { per_second: 1_000, burst: 5_000 }),
            tls: false,
            advertised: None,
            hsts: false,
            metrics_token: None,
            oidc: None,
            mounted: None,
            shutdown: CancellationToken::new(),
        }
    }
}

/// The state that handlers share.
#[derive(Clone, Debug)]
pub(crate) struct Web {
    pub(crate) engine: Engine,
    pub(crate) config: Arc<WebConfig>,
    pub(crate) permits: Permits,
    pub(crate) events: Arc<Events>,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) passwords: Arc<Passwords>,
    pub(crate) refusal_budget: RefusalAuditBudget,
    pub(crate) refused_lines: RefusedLines,
    pub(crate) boards: Arc<JobBoards>,
    pub(crate) ranks: Arc<JobRanks>,
    /// Returns the OpenAPI document.
    pub(crate) document: fn() -> &'static str,
}

impl Web {
    pub(crate) fn new(engine: Engine, config: WebConfig, document: fn() -> &'static str) -> Self {
        Self {
            events: Arc::new(Events::new(engine.new_id())),
            engine,
            permits: Permits::new(&config.limits),
            buckets: Arc::default(),
            passwords: Arc::default(),
            refusal_budget: RefusalAuditBudget::default(),
            refused_lines: RefusedLines::default(),
            boards: Arc::default(),
            ranks: Arc::default(),
            config: Arc::new(config),
            document,
        }
    }
}
