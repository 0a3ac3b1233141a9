//! Settings of `rondel server`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rondel_admin::EngineConfig;
use rondel_admin::gateway::Certificates;
use rondel_admin::oidc::OidcConfig;
use rondel_core::homes::ClaimStrategy;
use rondel_core::name;
use rondel_core::outgoing::AllowedAddresses;
use rondel_store::DatabaseUrl;
use rondel_web::{Rate, TlsFiles};
use serde::{Deserialize, Serialize};

use super::values::{Database, DatabaseParser, ExecutorCertificates};
use super::{DATA_DIR, HttpConfig, Length, Listen, LogFormat, Size, check_url, outgoing_allow, wrong};
use crate::exit::Failure;
use crate::telemetry::{self, RATIO_DEFAULT, TelemetrySettings};

const SECTION: &str = "server";
const NO_DATABASE: &str = "is missing: give --database, RONDEL_SERVER_DATABASE or the config file's database, such as \
    postgres://rondel@127.0.0.1/rondel or sqlite:///var/lib/rondel/rondel.db";
/// Beats cost the database, and every pause of a process would look like its end.
const BEAT_MIN: Duration = Duration::from_millis(200);
/// For so long the work of a dead server is not done.
const LEASE_MAX: Duration = Duration::from_secs(60);
const WEIGHT_MAX: u32 = 1_000_000;
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// How long an executor without a server lets runs take to end before it kills them.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// Requests a second of one caller.
const API_RATE: u32 = 1_000;
/// Each of them is a handful of series, and looked up at each scrape.
const METRICS_JOB_MAX: u32 = 5_000;
/// What is gone sooner could be gone before its caller has read the verdict.
const RETENTION_MIN: Duration = Duration::from_secs(1);

/// One layer of settings, or several laid over each other.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServerSettings {
    #[arg(long, global = true, value_name = "URL", env = "RONDEL_SERVER_DATABASE", hide_env_values = true)]
    #[arg(value_parser = DatabaseParser)]
    #[arg(
        help = "The database: sqlite:///path/file.db, postgres://user:password@host/name or mysql://user:password@host/name"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) database: Option<Database>,
    /// Where console, REST and gRPC listen; port 0 is a free one
    #[arg(long, global = true, value_name = "ADDR", env = "RONDEL_SERVER_LISTEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<Listen>,
    /// The folder for what this server keeps outside of the database: its name and its API token
    #[arg(long, global = true, value_name = "DIR", env = "RONDEL_SERVER_DATA_DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data_dir: Option<PathBuf>,
    /// This server's name, different from every other server's; else made at the first start and kept in the data folder
    #[arg(long, global = true, value_name = "NAME", env = "RONDEL_SERVER_NODE_NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// The URL at which executors and browsers reach this server: forms of the console come from its origin alone. Without it, executors that know another server do not learn of this one
    #[arg(long, global = true, value_name = "URL", env = "RONDEL_SERVER_ADVERTISE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) advertise: Option<String>,
    /// The file with the API token that may do everything; made where it is missing. Else admin.token in the data folder
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_ADMIN_TOKEN_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// The file with the key that stored secrets are encrypted with, the same for every server of a cluster: 64 hexadecimal
    /// digits. With SQLite else secret.key in the data folder, made where it is missing
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_SECRET_KEY_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// The file with the certificate for TLS, in PEM; read again when it changes
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_CERT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The file with its key
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_KEY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The file with the certificates that sign those of executors
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_CLIENT_CA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// What executors need beside a token: any certificate that is signed so, or one made out to their app and name
    #[arg(long, global = true, value_name = "WHICH", env = "RONDEL_SERVER_EXECUTOR_CERTIFICATES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executor_certificates: Option<ExecutorCertificates>,
    /// Listen beyond this machine without TLS, because something else keeps strangers out
    #[arg(long, global = true, env = "RONDEL_SERVER_INSECURE_HTTP", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insecure_http: Option<bool>,
    /// How long this server may act after it was last heard of; then another one takes over its jobs
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LEASE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lease: Option<Length>,
    /// How often the lease is renewed; at most a quarter of it
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_BEAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) beat: Option<Length>,
    #[arg(
        long,
        global = true,
        value_name = "STRATEGY",
        env = "RONDEL_SERVER_CLAIM_STRATEGY",
        help = "How jobs without a living home are shared out among servers: default, id_hash, least_count or weight; \
                the same for every server of a cluster"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claim_strategy: Option<ClaimStrategy>,
    /// This server's share where the claim strategy is weight; 0 takes no job as long as another one can
    #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_NODE_WEIGHT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_weight: Option<u32>,
    /// How often executors send a heartbeat
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_HEARTBEAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) heartbeat: Option<Length>,
    /// After how long without a word from any server an executor stops what must not run twice
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_SILENCE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) silence: Option<Length>,
    /// After how long without a word from an executor its runs are given up; longer than the silence and 10s for its end
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LOST_AFTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lost_after: Option<Length>,
    /// How long runs are kept after their end, with their attempts and logs; the same for every server of a cluster
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_RETENTION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retention: Option<Length>,
    /// How long logs are kept after their run began; the same for every server of a cluster
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LOG_RETENTION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_retention: Option<Length>,
    /// How much the logs of a namespace may take in the database, compressed; the oldest ones go first. 0B for no limit
    #[arg(long, global = true, value_name = "SIZE", env = "RONDEL_SERVER_LOG_SIZE_MAX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_size_max: Option<Size>,
    /// How many requests a second one caller may make on this server, an account with all its tokens or a token, five times as many after a pause; 0 for no limit
    #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_API_RATE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_rate: Option<u32>,
    #[arg(
        long,
        global = true,
        value_name = "NETWORK",
        env = "RONDEL_SERVER_OUTGOING_ALLOW",
        value_delimiter = ',',
        help = "A network that webhooks may be in beside the public internet, such as 10.1.0.0/16; once per network"
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outgoing_allow: Option<Vec<String>>,
    /// How many jobs have metrics of their own, such as the instant of their last success: the first ones that run; 0 for none
    #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_METRICS_JOB_MAX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_job_max: Option<u32>,
    /// The file with a secret for reading GET /metrics, which is checked without the database: metrics can be read while it is away, too
    #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_METRICS_TOKEN_FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_token_file: Option<PathBuf>,
    /// How many streams executors with one token have open on this server
    #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_EXECUTOR_STREAMS_PER_TOKEN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executor_streams_per_token: Option<u32>,
    /// How many streams executors at one address have open on this server
    #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_EXECUTOR_STREAMS_PER_ADDRESS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executor_streams_per_address: Option<u32>,
    /// How long a stopping server waits for what is under way
    #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_DRAIN_GRACE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) drain_grace: Option<Length>,
    /// What this server logs: a level, or filters such as info,sqlx=debug
    #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_level: Option<String>,
    /// How lines of the log look
    #[arg(long, global = true, value_name = "FORM", env = "RONDEL_SERVER_LOG_FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) log_format: Option<LogFormat>,
    /// Where traces go: the URL of a collector that takes OTLP over gRPC; without it there are none
    #[arg(long, global = true, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) otlp_endpoint: Option<String>,
    /// The share of traces that begin here to export, from 0 to 1; for other traces the decision of their origin holds
    #[arg(long, global = true, value_name = "SHARE", env = "RONDEL_SERVER_TRACE_RATIO")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_ratio: Option<f64>,
}

impl ServerSettings {
    /// The lowest layer.
    pub(crate) fn defaults() -> Self {
        let engine = EngineConfig::default();
        Self {
            listen: "127.0.0.1:8080".parse().ok(),
            data_dir: Some(DATA_DIR.into()),
            lease: Some(Length(engine.lease)),
            beat: Some(Length(engine.beat)),
            claim_strategy: Some(engine.claim_strategy),
            node_weight: Some(engine.node_weight),
            heartbeat: Some(Length(engine.heartbeat)),
            silence: Some(Length(engine.silence)),
            lost_after: Some(Length(engine.lost_after)),
            retention: Some(Length(engine.retention)),
            log_retention: Some(Length(engine.log_retention)),
            log_size_max: Some(Size(engine.log_size_max)),
            api_rate: Some(API_RATE),
            outgoing_allow: Some(Vec::new()),
            metrics_job_max: Some(0),
            executor_streams_per_token: u32::try_from(engine.executor_streams_per_token).ok(),
            executor_streams_per_address: u32::try_from(engine.executor_streams_per_address).ok(),
            drain_grace: Some(Length(Duration::from_secs(30))),
            log_level: Some("info".to_owned()),
            log_format: Some(LogFormat::Text),
            trace_ratio: Some(RATIO_DEFAULT),
            insecure_http: Some(false),
            ..Self::default()
        }
    }

    /// These settings, and those of a lower layer for those that are not set.
    pub(crate) fn over(self, lower: Self) -> Self {
        Self {
            database: self.database.or(lower.database),
            listen: self.listen.or(lower.listen),
            data_dir: self.data_dir.or(lower.data_dir),
            node_name: self.node_name.or(lower.node_name),
            advertise: self.advertise.or(lower.advertise),
            admin_token_file: self.admin_token_file.or(lower.admin_token_file),
            secret_key_file: self.secret_key_file.or(lower.secret_key_file),
            tls_cert: self.tls_cert.or(lower.tls_cert),
            tls_key: self.tls_key.or(lower.tls_key),
            tls_client_ca: self.tls_client_ca.or(lower.tls_client_ca),
            executor_certificates: self.executor_certificates.or(lower.executor_certificates),
            insecure_http: self.insecure_http.or(lower.insecure_http),
            lease: self.lease.or(lower.lease),
            beat: self.beat.or(lower.beat),
            claim_strategy: self.claim_strategy.or(lower.claim_strategy),
            node_weight: self.node_weight.or(lower.node_weight),
            heartbeat: self.heartbeat.or(lower.heartbeat),
            silence: self.silence.or(lower.silence),
            lost_after: self.lost_after.or(lower.lost_after),
            retention: self.retention.or(lower.retention),
            log_retention: self.log_retention.or(lower.log_retention),
            log_size_max: self.log_size_max.or(lower.log_size_max),
            api_rate: self.api_rate.or(lower.api_rate),
            outgoing_allow: self.outgoing_allow.or(lower.outgoing_allow),
            metrics_job_max: self.metrics_job_max.or(lower.metrics_job_max),
            metrics_token_file: self.metrics_token_file.or(lower.metrics_token_file),
            executor_streams_per_token: self.executor_streams_per_token.or(lower.executor_streams_per_token),
            executor_streams_per_address: self.executor_streams_per_address.or(lower.executor_streams_per_address),
            drain_grace: self.drain_grace.or(lower.drain_grace),
            log_level: self.log_level.or(lower.log_level),
            log_format: self.log_format.or(lower.log_format),
            otlp_endpoint: self.otlp_endpoint.or(lower.otlp_endpoint),
            trace_ratio: self.trace_ratio.or(lower.trace_ratio),
        }
    }
}

/// Settings that were checked.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    pub(crate) database: Database,
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) node_name: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) admin_token_file: PathBuf,
    pub(crate) secret_key_file: Option<PathBuf>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) executor_certificates: Certificates,
    insecure_http: bool,
    pub(crate) lease: Duration,
    pub(crate) beat: Duration,
    pub(crate) claim_strategy: ClaimStrategy,
    pub(crate) node_weight: u32,
    pub(crate) heartbeat: Duration,
    pub(crate) silence: Duration,
    pub(crate) lost_after: Duration,
    pub(crate) retention: Duration,
    pub(crate) log_retention: Duration,
    pub(crate) log_size_max: u64,
    pub(crate) api_rate: Option<Rate>,
    pub(crate) outgoing_allow: AllowedAddresses,
    pub(crate) metrics_job_max: u32,
    pub(crate) metrics_token_file: Option<PathBuf>,
    pub(crate) executor_streams_per_token: usize,
    pub(crate) executor_streams_per_address: usize,
    pub(crate) drain_grace: Duration,
    pub(crate) log_level: String,
    pub(crate) log_format: LogFormat,
    pub(crate) otlp_endpoint: Option<String>,
    pub(crate) trace_ratio: f64,
    /// Signing in through a provider; a section of its own in the file.
    pub(crate) oidc: Option<OidcConfig>,
    /// How the port treats its clients; another section.
    pub(crate) http: HttpConfig,
}

impl TryFrom<ServerSettings> for ServerConfig {
    type Error = Failure;

    fn try_from(settings: ServerSettings) -> Result<Self, Failure> {
        let settings = settings.over(ServerSettings::defaults());
        let missing = |key: &str| wrong(SECTION, key, "is missing");
        let data_dir = settings.data_dir.ok_or_else(|| missing("data_dir"))?;
        let tls = match (settings.tls_cert, settings.tls_key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert, key, client_ca: settings.tls_client_ca }),
            (None, None) if settings.tls_client_ca.is_some() => {
                return Err(wrong(SECTION, "tls_client_ca", "is of no use without tls_cert and tls_key"));
            }
            (None, None) => None,
            (Some(_), None) => return Err(wrong(SECTION, "tls_key", "is missing: the key of tls_cert")),
            (None, Some(_)) => return Err(wrong(SECTION, "tls_cert", "is missing: the certificate of tls_key")),
        };
        let config = Self {
            database: settings.database.ok_or_else(|| wrong(SECTION, "database", NO_DATABASE))?,
            listen: settings.listen.ok_or_else(|| missing("listen"))?.0,
            node_name: settings.node_name,
            advertise: settings.advertise,
            admin_token_file: settings.admin_token_file.unwrap_or_else(|| data_dir.join("admin.token")),
            secret_key_file: settings.secret_key_file,
            data_dir,
            tls,
            executor_certificates: settings.executor_certificates.map_or(Certificates::Ignored, Certificates::from),
            insecure_http: settings.insecure_http.unwrap_or_default(),
            lease: settings.lease.ok_or_else(|| missing("lease"))?.0,
            beat: settings.beat.ok_or_else(|| missing("beat"))?.0,
            claim_strategy: settings.claim_strategy.ok_or_else(|| missing("claim_strategy"))?,
            node_weight: settings.node_weight.ok_or_else(|| missing("node_weight"))?,
            heartbeat: settings.heartbeat.ok_or_else(|| missing("heartbeat"))?.0,
            silence: settings.silence.ok_or_else(|| missing("silence"))?.0,
            lost_after: settings.lost_after.ok_or_else(|| missing("lost_after"))?.0,
            retention: settings.retention.ok_or_else(|| missing("retention"))?.0,
            log_retention: settings.log_retention.ok_or_else(|| missing("log_retention"))?.0,
            log_size_max: settings.log_size_max.ok_or_else(|| missing("log_size_max"))?.0,
            api_rate: Rate::with_burst(settings.api_rate.ok_or_else(|| missing("api_rate"))?),
            outgoing_allow: outgoing_allow(SECTION, settings.outgoing_allow)?,
            metrics_job_max: settings.metrics_job_max.ok_or_else(|| missing("metrics_job_max"))?,
            metrics_token_file: settings.metrics_token_file,
            executor_streams_per_token: streams("executor_streams_per_token", settings.executor_streams_per_token)?,
            executor_streams_per_address: streams(
                "executor_streams_per_address",
                settings.executor_streams_per_address,
            )?,
            drain_grace: settings.drain_grace.ok_or_else(|| missing("drain_grace"))?.0,
            log_level: settings.log_level.ok_or_else(|| missing("log_level"))?,
            log_format: settings.log_format.ok_or_else(|| missing("log_format"))?,
            otlp_endpoint: settings.otlp_endpoint,
            trace_ratio: settings.trace_ratio.ok_or_else(|| missing("trace_ratio"))?,
            oidc: None,
            http: HttpConfig::default(),
        };
        config.check()?;
        Ok(config)
    }
}

/// A bound of executors' streams.
fn streams(key: &str, value: Option<u32>) -> Result<usize, Failure> {
    match value {
        Some(0) => Err(wrong(SECTION, key, "0 would let in no executor, the least is 1")),
        Some(count) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        None => Err(wrong(SECTION, key, "is missing")),
    }
}

impl ServerConfig {
    /// What the program logs and traces of itself.
    pub(crate) fn telemetry(&self) -> TelemetrySettings<'_> {
        TelemetrySettings {
            filter: &self.log_level,
            format: self.log_format,
            endpoint: self.otlp_endpoint.as_deref(),
            ratio: self.trace_ratio,
            service: "rondel-server",
        }
    }

    /// What `rondel dev` runs with: SQLite in the data folder, and a short stop.
    pub(crate) fn dev(data_dir: &Path, listen: Listen, insecure_http: bool) -> Result<Self, Failure> {
        let settings = ServerSettings {
            database: Some(Database(DatabaseUrl::sqlite_file(data_dir.join("rondel.db")))),
            listen: Some(listen),
            insecure_http: Some(insecure_http),
            data_dir: Some(data_dir.to_owned()),
            ..ServerSettings::default()
        };
        // Who tries things out has the receivers on this machine, as the demo job has.
        let config = Self::try_from(settings)?;
        Ok(Self { outgoing_allow: AllowedAddresses::loopback(), ..config })
    }

    /// Secrets must not cross a network in plain text: plain HTTP is for this machine, unless `insecure_http` is set.
    fn check_port(&self) -> Result<(), Failure> {
        if self.tls.is_none() && !self.insecure_http && !self.listen.ip().is_loopback() {
            let sentence = format!(
                "{} can be reached from other machines, and its traffic is not encrypted: give tls_cert and \
                 tls_key, or insecure_http if something else keeps strangers out",
                self.listen
            );
            return Err(wrong(SECTION, "listen", sentence));
        }
        let has_ca = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.executor_certificates != Certificates::Ignored && !has_ca {
            return Err(wrong(SECTION, "executor_certificates", "needs tls_client_ca: by what are they checked?"));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        self.check_port()?;
        if let Some(node_name) = &self.node_name {
            name::check(node_name).map_err(|sentence| wrong(SECTION, "node_name", sentence))?;
        }
        if let Some(url) = &self.advertise {
            check_url(SECTION, "advertise", url)?;
        }
        self.check_lease()?;
        self.check_executors()?;
        for (key, length) in [("retention", self.retention), ("log_retention", self.log_retention)] {
            if length < RETENTION_MIN {
                let (length, least) = (Length(length), Length(RETENTION_MIN));
                return Err(wrong(SECTION, key, format!("{length} is too short, the shortest is {least}")));
            }
        }
        if self.metrics_job_max > METRICS_JOB_MAX {
            let sentence = format!("{} jobs are too many series, the most is {METRICS_JOB_MAX}", self.metrics_job_max);
            return Err(wrong(SECTION, "metrics_job_max", sentence));
        }
        if let Some(url) = &self.otlp_endpoint {
            telemetry::check_endpoint(url).map_err(|sentence| wrong(SECTION, "otlp_endpoint", sentence))?;
        }
        telemetry::check_ratio(self.trace_ratio).map_err(|sentence| wrong(SECTION, "trace_ratio", sentence))?;
        telemetry::check(&self.log_level).map_err(|sentence| wrong(SECTION, "log_level", sentence))
    }

    /// A lease that is lost to a single slow beat, or that keeps the jobs of a dead server waiting for minutes, is refused.
    fn check_lease(&self) -> Result<(), Failure> {
        let (lease, beat) = (Length(self.lease), Length(self.beat));
        if beat.0 < BEAT_MIN {
            let least = Length(BEAT_MIN);
            return Err(wrong(SECTION, "beat", format!("{beat} is too short, the shortest is {least}")));
        }
        if lease.0 < beat.0 * 4 {
            return Err(wrong(
                SECTION,
                "lease",
                format!("{lease} is too short, it must be at least 4 beats of {beat}"),
            ));
        }
        if lease.0 > LEASE_MAX {
            let most = Length(LEASE_MAX);
            return Err(wrong(SECTION, "lease", format!("{lease} is too long, the longest is {most}")));
        }
        if self.node_weight > WEIGHT_MAX {
            let weight = self.node_weight;
            return Err(wrong(SECTION, "node_weight", format!("{weight} is too much, the most is {WEIGHT_MAX}")));
        }
        Ok(())
    }

    /// An executor must have stopped by itself before its runs are given to another one.
    fn check_executors(&self) -> Result<(), Failure> {
        let (heartbeat, silence) = (Length(self.heartbeat), Length(self.silence));
        let lost_after = Length(self.lost_after);
        let too_short = |key, length: Length, least: Duration, what: &str| {
            let least = Length(least);
            Err(wrong(SECTION, key, format!("{length} is too short, it must be at least {least}: {what}")))
        };
        if heartbeat.0 < HEARTBEAT_MIN {
            return too_short("heartbeat", heartbeat, HEARTBEAT_MIN, "more often is only noise");
        }
        if silence.0 < heartbeat.0 * 3 {
            let what = format!("three heartbeats of {heartbeat}");
            return too_short("silence", silence, heartbeat.0 * 3, &what);
        }
        if lost_after.0 < silence.0 + KILL_GRACE {
            let what = format!("the silence of {silence} and {} for what runs to end", Length(KILL_GRACE));
            return too_short("lost_after", lost_after, silence.0 + KILL_GRACE, &what);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
