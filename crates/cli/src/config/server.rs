//! Settings of `rondel server`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rondel_admin::gateway::Certificates;
use rondel_admin::oidc::OidcConfig;
use rondel_admin::{EngineConfig, label_name};
use rondel_core::homes::ClaimStrategy;
use rondel_core::outgoing::AllowedAddresses;
use rondel_core::script::KEPT_VERSIONS_MIN;
use rondel_core::{labels, name};
use rondel_store::DatabaseUrl;
use rondel_web::{Rate, TlsFiles};
use rondel_xxl::XxlConfig;

use super::check::{self, bad_setting, to_u32};
use super::http::HttpConfig;
use super::layer::{Layer, settings};
use super::values::{Database, DatabaseParser, DurationText, ExecutorCertificates, ListenAddress, Size};
use crate::exit::Failure;
use crate::telemetry::{LogFormat, RATIO_DEFAULT, TelemetrySettings};

/// The default data folder.
pub(crate) const DATA_DIR: &str = "./rondel-data";
const SECTION: &str = ServerSettings::SECTION;
const NO_DATABASE: &str = "is missing: give --database, RONDEL_SERVER_DATABASE or the config file's database, such as \
    postgres://rondel@127.0.0.1/rondel or sqlite:///var/lib/rondel/rondel.db";
/// A shorter beat would load the database, and make every short pause of a server look like its death.
const BEAT_MIN: Duration = Duration::from_millis(200);
/// Maximum lease: the jobs of a dead server wait until its lease has ended.
const LEASE_MAX: Duration = Duration::from_secs(60);
const WEIGHT_MAX: u32 = 1_000_000;
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// The maximum of `continue_max`: longer than any upgrade, and shorter than the time for which the loss of an executor
/// is remembered.
const CONTINUE_MAX: Duration = Duration::from_secs(1800);

/// The time that an executor without a server gives its runs to stop before it kills them.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// Each job with metrics of its own adds several series, and a look-up at each scrape.
const METRICS_JOB_MAX: u32 = 5_000;
/// Maximum number of labels: each further key multiplies the combinations of label values.
const METRICS_LABEL_COUNT_MAX: usize = 8;
/// A run deleted sooner could be gone before its caller has read the verdict.
const RETENTION_MIN: Duration = Duration::from_secs(1);
/// A shorter period loads the database, a longer period reports too late.
const RULES_PERIOD_MIN: Duration = Duration::from_millis(100);
const RULES_PERIOD_MAX: Duration = Duration::from_secs(60);

/// Minimum period: each period costs the database a query.
const ALERT_PERIOD_MIN: Duration = Duration::from_millis(50);
/// Maximum period: an alert may wait for a whole period.
const ALERT_PERIOD_MAX: Duration = Duration::from_secs(60);
const ALERT_PREFIX_LEN_MIN: usize = 8;
const WATCHDOG_PERIOD_MIN: Duration = Duration::from_millis(100);

settings! {
    /// One layer of settings, or several merged layers.
    "server", ServerSettings => ServerValues {
        #[arg(long, global = true, value_name = "URL", env = "RONDEL_SERVER_DATABASE", hide_env_values = true)]
        #[arg(value_parser = DatabaseParser)]
        #[arg(
            help = "The database: sqlite:///path/file.db, postgres://user:password@host/name or mysql://user:password@host/name"
        )]
        database: Database, example "\"sqlite:///var/lib/rondel/rondel.db\"";
        /// The address on which console, REST and gRPC listen; port 0 selects a free port
        #[arg(long, global = true, value_name = "ADDR", env = "RONDEL_SERVER_LISTEN")]
        listen: ListenAddress = ListenAddress(SocketAddr::from(([127, 0, 0, 1], 8080)));
        /// The folder for data of this server that is not in the database: its name and its API token
        #[arg(long, global = true, value_name = "DIR", env = "RONDEL_SERVER_DATA_DIR")]
        data_dir: PathBuf = DATA_DIR.into();
        /// This server's name, different from every other server's; by default created at the first start and stored in the data folder
        #[arg(long, global = true, value_name = "NAME", env = "RONDEL_SERVER_NODE_NAME")]
        node_name: String, example "\"rondel-1\"";
        /// The URL at which executors and browsers reach this server: the console accepts forms only from its origin. Without it, executors that know another server do not learn of this one
        #[arg(long, global = true, value_name = "URL", env = "RONDEL_SERVER_ADVERTISE")]
        advertise: String, example "\"http://rondel-1.example.com:8080\"";
        /// The file with the API token that has all rights; created if it is missing. Default: admin.token in the data folder
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_ADMIN_TOKEN_FILE")]
        admin_token_file: PathBuf, example "\"/etc/rondel/admin.token\"";
        /// The file with the key that stored secrets are encrypted with, the same for every server of a cluster: 64
        /// hexadecimal digits. Default with SQLite: secret.key in the data folder, created if it is missing
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_SECRET_KEY_FILE")]
        secret_key_file: PathBuf, example "\"/etc/rondel/secret.key\"";
        /// The file with the certificate for TLS, in PEM; read again when it changes
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_CERT")]
        tls_cert: PathBuf, example "\"/etc/rondel/tls/cert.pem\"";
        /// The file with the key of this certificate
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_KEY")]
        tls_key: PathBuf, example "\"/etc/rondel/tls/key.pem\"";
        /// The file with the CA certificates that sign the certificates of executors
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_TLS_CLIENT_CA")]
        tls_client_ca: PathBuf, example "\"/etc/rondel/tls/executors-ca.pem\"";
        /// Which certificate executors need in addition to a token: any that the client CA has signed, or one with their app and name
        #[arg(long, global = true, value_name = "WHICH", env = "RONDEL_SERVER_EXECUTOR_CERTIFICATES")]
        executor_certificates: ExecutorCertificates, example "\"named\"";
        /// Listen on external addresses without TLS; access must be restricted by other means
        #[arg(long, global = true, env = "RONDEL_SERVER_INSECURE_HTTP", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
        insecure_http: bool = false;
        /// How long this server may act without renewing its lease; then another server takes over its jobs
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LEASE")]
        lease: DurationText = DurationText(EngineConfig::default().lease);
        /// How often the lease is renewed; at most a quarter of the lease
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_BEAT")]
        beat: DurationText = DurationText(EngineConfig::default().beat);
        #[arg(
            long,
            global = true,
            value_name = "STRATEGY",
            env = "RONDEL_SERVER_CLAIM_STRATEGY",
            help = "How jobs without a living home are shared out among servers: default, id_hash, least_count (of recent fires) or weight; \
                    the same for every server of a cluster"
        )]
        claim_strategy: ClaimStrategy = EngineConfig::default().claim_strategy;
        /// This server's share where the claim strategy is weight; with 0, it takes a job only if no other server can
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_NODE_WEIGHT")]
        node_weight: u32 = EngineConfig::default().node_weight;
        /// How often executors send a heartbeat
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_HEARTBEAT")]
        heartbeat: DurationText = DurationText(EngineConfig::default().heartbeat);
        /// How long no server may answer before an executor stops the runs of jobs that stop in silence
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_SILENCE")]
        silence: DurationText = DurationText(EngineConfig::default().silence);
        /// How long an executor may be silent before its runs are given up; at least the silence plus 10s for the runs to end
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LOST_AFTER")]
        lost_after: DurationText = DurationText(EngineConfig::default().lost_after);
        /// How long an executor may be silent before its runs that continue in silence are given up, if the next run of their job waits for them
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_CONTINUE_MAX")]
        continue_max: DurationText = DurationText(EngineConfig::default().continue_max);
        /// How many versions of a script are kept, in addition to the versions that jobs name
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_SCRIPT_VERSIONS", value_parser = clap::value_parser!(u32).range(30..=10_000))]
        script_versions: u32 = EngineConfig::default().script_versions;
        /// How long runs are kept after their end, with their attempts and logs; the same for every server of a cluster
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_RETENTION")]
        retention: DurationText = DurationText(EngineConfig::default().retention);
        /// How long logs are kept after their run began; the same for every server of a cluster
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_LOG_RETENTION")]
        log_retention: DurationText = DurationText(EngineConfig::default().log_retention);
        /// How often due alert rules are evaluated, on one server of a cluster
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_ALERT_RULES_PERIOD")]
        alert_rules_period: DurationText = DurationText(EngineConfig::default().alert_rules_period);
        /// Maximum size of a namespace's logs in the database, compressed; the oldest logs are deleted first; 0B for no limit
        #[arg(long, global = true, value_name = "SIZE", env = "RONDEL_SERVER_LOG_SIZE_MAX")]
        log_size_max: Size = Size(EngineConfig::default().log_size_max);
        /// Maximum number of requests per second of one caller on this server, five times as many after a pause; a caller is an account with all its tokens, or a token; 0 for no limit
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_API_RATE")]
        api_rate: u32 = 1_000;
        #[arg(
            long,
            global = true,
            value_name = "NETWORK",
            env = "RONDEL_SERVER_OUTGOING_ALLOW",
            value_delimiter = ',',
            help = "A non-public network that webhooks may call, such as 10.1.0.0/16; several may be given"
        )]
        outgoing_allow: Vec<String> = Vec::new();
        #[arg(
            long,
            global = true,
            value_name = "NETWORK",
            env = "RONDEL_SERVER_XXL_NETWORKS",
            value_delimiter = ',',
            help = "A network with executors of XXL-JOB, such as 10.1.0.0/16, which this server may call; several may be given. \
                    Without one such executors are not served"
        )]
        xxl_networks: Vec<String> = Vec::new();
        /// A path under which executors of XXL-JOB find this server, in addition to / and /xxl-job-admin
        #[arg(long, global = true, value_name = "PATH", env = "RONDEL_SERVER_XXL_PREFIX")]
        xxl_prefix: String, example "\"/scheduler\"";
        /// How long a run may be missing on its XXL-JOB executor, without a callback, before its outcome counts as unknown
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_XXL_CALLBACK_TIMEOUT")]
        xxl_callback_timeout: DurationText = DurationText(Duration::from_secs(60));
        /// How often this server looks for due alert messages
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_ALERT_PERIOD")]
        alert_period: DurationText = DurationText(EngineConfig::default().alert_period);
        /// Maximum number of alert channels to which this server sends concurrently
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_ALERT_CONCURRENCY", value_parser = clap::value_parser!(u32).range(1..=500))]
        alert_concurrency: u32 = to_u32(EngineConfig::default().alert_concurrency);
        /// The folder with files that secrets of channels may name; without it, secrets may name no file
        #[arg(long, global = true, value_name = "DIR", env = "RONDEL_SERVER_ALERT_SECRETS_DIR")]
        alert_secrets_dir: PathBuf, example "\"/etc/rondel/alert-secrets\"";
        /// The prefix of the environment variables that secrets of channels may name; without it, secrets may name no variable
        #[arg(long, global = true, value_name = "PREFIX", env = "RONDEL_SERVER_ALERT_SECRETS_ENV_PREFIX")]
        alert_secrets_env_prefix: String, example "\"RONDEL_ALERT_SECRET_\"";
        /// A URL of a monitoring service that this server calls as long as it schedules: when the calls stop, the service raises the alarm
        #[arg(long, global = true, value_name = "URL", env = "RONDEL_SERVER_WATCHDOG_URL", hide_env_values = true)]
        watchdog_url: String, example "\"https://hc-ping.com/UUID\"";
        /// How often the monitoring service is called
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_WATCHDOG_PERIOD")]
        watchdog_period: DurationText = DurationText(EngineConfig::default().watchdog_period);
        /// Maximum number of jobs with metrics of their own, such as the instant of their last success; the jobs that run first get them; 0 for none
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_METRICS_JOB_MAX")]
        metrics_job_max: u32 = 0;
        #[arg(
            long,
            global = true,
            value_name = "KEY",
            env = "RONDEL_SERVER_METRICS_LABELS",
            value_delimiter = ',',
            help = "A key of jobs' labels by which the metrics count runs separately, such as team; up to 8 may be given"
        )]
        metrics_labels: Vec<String> = Vec::new();
        /// The file with a secret for reading GET /metrics; it is checked without the database, so that metrics can be read while the database is unreachable
        #[arg(long, global = true, value_name = "FILE", env = "RONDEL_SERVER_METRICS_TOKEN_FILE")]
        metrics_token_file: PathBuf, example "\"/etc/rondel/metrics.token\"";
        /// Maximum number of open streams of executors with one token on this server
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_EXECUTOR_STREAMS_PER_TOKEN")]
        executor_streams_per_token: u32 = to_u32(EngineConfig::default().executor_streams_per_token);
        /// Maximum number of open streams of executors at one address on this server
        #[arg(long, global = true, value_name = "N", env = "RONDEL_SERVER_EXECUTOR_STREAMS_PER_ADDRESS")]
        executor_streams_per_address: u32 = to_u32(EngineConfig::default().executor_streams_per_address);
        /// How long a stopping server waits for open work
        #[arg(long, global = true, value_name = "DURATION", env = "RONDEL_SERVER_DRAIN_GRACE")]
        drain_grace: DurationText = DurationText(Duration::from_secs(30));
        /// What this server logs: a level, or filters such as info,sqlx=debug
        #[arg(long, global = true, value_name = "FILTER", env = "RUST_LOG")]
        log_level: String = "info".to_owned();
        /// The format of log lines
        #[arg(long, global = true, value_name = "FORM", env = "RONDEL_SERVER_LOG_FORMAT")]
        log_format: LogFormat = LogFormat::Text;
        /// The URL of a collector that takes traces by OTLP over gRPC; without it, no traces are exported
        #[arg(long, global = true, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
        otlp_endpoint: String, example "\"http://127.0.0.1:4317\"";
        /// The share of the traces begun here that is exported, from 0 to 1; for other traces, the program that began them decides
        #[arg(long, global = true, value_name = "SHARE", env = "RONDEL_SERVER_TRACE_RATIO")]
        trace_ratio: f64 = RATIO_DEFAULT;
    }
}

/// Checked settings.
#[derive(Clone, Debug)]
pub(crate) struct ServerConfig {
    pub(crate) settings: ServerValues,
    pub(crate) database: Database,
    pub(crate) admin_token_file: PathBuf,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) executor_certificates: Certificates,
    pub(crate) api_rate: Option<Rate>,
    pub(crate) outgoing_allow: AllowedAddresses,
    /// How executors of XXL-JOB are served; `None` if they are not.
    pub(crate) xxl: Option<XxlConfig>,
    pub(crate) executor_streams_per_token: usize,
    pub(crate) executor_streams_per_address: usize,
    /// Signing in through a provider, which has its own section in the file; `None` without a provider.
    pub(crate) oidc: Option<OidcConfig>,
    /// The limits and the trusted proxies of the port; they have their own section too.
    pub(crate) http: HttpConfig,
}

impl TryFrom<ServerSettings> for ServerConfig {
    type Error = Failure;

    fn try_from(settings: ServerSettings) -> Result<Self, Failure> {
        let settings = settings.values();
        let config = Self {
            database: settings.database.clone().ok_or_else(|| bad_setting(SECTION, "database", NO_DATABASE))?,
            admin_token_file: settings
                .admin_token_file
                .clone()
                .unwrap_or_else(|| settings.data_dir.join("admin.token")),
            tls: tls_files(&settings)?,
            executor_certificates: settings.executor_certificates.map_or(Certificates::Ignored, Certificates::from),
            api_rate: Rate::with_burst(settings.api_rate),
            outgoing_allow: check::parse_outgoing_allow(SECTION, settings.outgoing_allow.clone())?,
            xxl: super::xxl::xxl_config(&settings)?,
            executor_streams_per_token: stream_limit(
                "executor_streams_per_token",
                settings.executor_streams_per_token,
            )?,
            executor_streams_per_address: stream_limit(
                "executor_streams_per_address",
                settings.executor_streams_per_address,
            )?,
            oidc: None,
            http: HttpConfig::default(),
            settings,
        };
        config.check()?;
        Ok(config)
    }
}

/// Checks a limit on the streams of executors.
fn stream_limit(key: &str, count: u32) -> Result<usize, Failure> {
    if count == 0 {
        return Err(bad_setting(SECTION, key, "0 would admit no executor, the minimum is 1"));
    }
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

fn tls_files(settings: &ServerValues) -> Result<Option<TlsFiles>, Failure> {
    let client_ca = settings.tls_client_ca.clone();
    match (settings.tls_cert.clone(), settings.tls_key.clone()) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key, client_ca })),
        (None, None) if client_ca.is_some() => {
            Err(bad_setting(SECTION, "tls_client_ca", "has no effect without tls_cert and tls_key"))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(bad_setting(SECTION, "tls_key", "is missing: the key of tls_cert")),
        (None, Some(_)) => Err(bad_setting(SECTION, "tls_cert", "is missing: the certificate of tls_key")),
    }
}

impl ServerConfig {
    /// The settings for the program's own logs and traces.
    pub(crate) fn telemetry(&self) -> TelemetrySettings<'_> {
        TelemetrySettings {
            filter: &self.settings.log_level,
            format: self.settings.log_format,
            endpoint: self.settings.otlp_endpoint.as_deref(),
            ratio: self.settings.trace_ratio,
            service: "rondel-server",
        }
    }

    /// The settings of `rondel dev`: SQLite in the data folder, and outgoing requests to this machine allowed.
    pub(crate) fn for_dev(data_dir: &Path, listen: ListenAddress, insecure_http: bool) -> Result<Self, Failure> {
        let settings = ServerSettings {
            database: Some(Database(DatabaseUrl::sqlite_file(data_dir.join("rondel.db")))),
            listen: Some(listen),
            insecure_http: Some(insecure_http),
            data_dir: Some(data_dir.to_owned()),
            ..ServerSettings::default()
        };
        // Requests to this machine are allowed: the demo job calls this server, and users who try Rondel call local
        // services.
        let config = Self::try_from(settings)?;
        Ok(Self { outgoing_allow: AllowedAddresses::loopback(), ..config })
    }

    /// Refuses plain HTTP beyond this machine, unless `insecure_http` is set: secrets must not cross a network in plain
    /// text. Also refuses `executor_certificates` without `tls_client_ca`.
    fn check_port(&self) -> Result<(), Failure> {
        if self.tls.is_none() && !self.settings.insecure_http && !self.settings.listen.0.ip().is_loopback() {
            let sentence = format!(
                "{} can be reached from other machines, and its traffic is not encrypted: give tls_cert and \
                 tls_key, or insecure_http if something else keeps strangers out",
                self.settings.listen
            );
            return Err(bad_setting(SECTION, "listen", sentence));
        }
        let has_ca = self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        if self.executor_certificates != Certificates::Ignored && !has_ca {
            return Err(bad_setting(SECTION, "executor_certificates", "needs tls_client_ca, which checks them"));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        self.check_port()?;
        if let Some(node_name) = &self.settings.node_name {
            name::check(node_name).map_err(|sentence| bad_setting(SECTION, "node_name", sentence))?;
        }
        if let Some(url) = &self.settings.advertise {
            check::check_address(SECTION, "advertise", url)?;
            check::check_scheme(SECTION, "advertise", url, self.tls.is_some())?;
        }
        self.check_lease()?;
        self.check_executors()?;
        for (key, length) in [("retention", self.settings.retention), ("log_retention", self.settings.log_retention)] {
            if length.0 < RETENTION_MIN {
                let min_text = DurationText(RETENTION_MIN);
                return Err(bad_setting(SECTION, key, format!("{length} is too short, the minimum is {min_text}")));
            }
        }
        check::check_range(SECTION, "script_versions", self.settings.script_versions, (KEPT_VERSIONS_MIN, 10_000))?;
        check::check_range(SECTION, "alert_concurrency", self.settings.alert_concurrency, (1, 500))?;
        self.check_alerts()?;
        let period = self.settings.alert_rules_period;
        if !(RULES_PERIOD_MIN..=RULES_PERIOD_MAX).contains(&period.0) {
            let (min, max) = (DurationText(RULES_PERIOD_MIN), DurationText(RULES_PERIOD_MAX));
            return Err(bad_setting(SECTION, "alert_rules_period", format!("{period} is not from {min} to {max}")));
        }
        if self.settings.metrics_job_max > METRICS_JOB_MAX {
            let sentence =
                format!("{} jobs are too many series, the most is {METRICS_JOB_MAX}", self.settings.metrics_job_max);
            return Err(bad_setting(SECTION, "metrics_job_max", sentence));
        }
        self.check_metrics_labels()?;
        check::check_telemetry(SECTION, self.telemetry())
    }

    fn check_metrics_labels(&self) -> Result<(), Failure> {
        let keys = &self.settings.metrics_labels;
        let refusal = |sentence| Err(bad_setting(SECTION, "metrics_labels", sentence));
        if keys.len() > METRICS_LABEL_COUNT_MAX {
            return refusal(format!("{} keys, the most is {METRICS_LABEL_COUNT_MAX}", keys.len()));
        }
        let mut names = BTreeMap::new();
        for key in keys {
            if let Err(sentence) = labels::check_key(key) {
                return refusal(sentence);
            }
            if let Some(other_key) = names.insert(label_name(key), key) {
                return refusal(format!(
                    "{other_key:?} and {key:?} would be the same label {:?} of the metric",
                    label_name(key)
                ));
            }
        }
        Ok(())
    }

    fn check_alerts(&self) -> Result<(), Failure> {
        let period = self.settings.alert_period;
        if period.0 < ALERT_PERIOD_MIN || period.0 > ALERT_PERIOD_MAX {
            let (min_text, max_text) = (DurationText(ALERT_PERIOD_MIN), DurationText(ALERT_PERIOD_MAX));
            let sentence = format!("{period} is not a period from {min_text} to {max_text}");
            return Err(bad_setting(SECTION, "alert_period", sentence));
        }
        if let Some(folder) = self.settings.alert_secrets_dir.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(bad_setting(SECTION, "alert_secrets_dir", format!("{} is not a folder", folder.display())));
        }
        if let Some(url) = &self.settings.watchdog_url {
            check::check_url(SECTION, "watchdog_url", url)?;
        }
        let period = self.settings.watchdog_period;
        if period.0 < WATCHDOG_PERIOD_MIN {
            let min_text = DurationText(WATCHDOG_PERIOD_MIN);
            let sentence = format!("{period} is too short, the minimum is {min_text}");
            return Err(bad_setting(SECTION, "watchdog_period", sentence));
        }
        // With an empty or short prefix, a channel could send other variables of the server anywhere.
        let prefix = self.settings.alert_secrets_env_prefix.as_ref();
        if prefix.is_some_and(|prefix| prefix.len() < ALERT_PREFIX_LEN_MIN) {
            let sentence =
                format!("must have at least {ALERT_PREFIX_LEN_MIN} characters, such as RONDEL_ALERT_SECRET_");
            return Err(bad_setting(SECTION, "alert_secrets_env_prefix", sentence));
        }
        Ok(())
    }

    /// Refuses a short beat, a lease that a single slow beat would lose or that keeps the jobs of a dead server waiting for
    /// minutes, and a weight above the maximum.
    fn check_lease(&self) -> Result<(), Failure> {
        let (lease, beat) = (self.settings.lease, self.settings.beat);
        if beat.0 < BEAT_MIN {
            let min_text = DurationText(BEAT_MIN);
            return Err(bad_setting(SECTION, "beat", format!("{beat} is too short, the minimum is {min_text}")));
        }
        if lease.0 < beat.0.saturating_mul(4) {
            return Err(bad_setting(
                SECTION,
                "lease",
                format!("{lease} is too short, it must be at least 4 beats of {beat}"),
            ));
        }
        if lease.0 > LEASE_MAX {
            let max_text = DurationText(LEASE_MAX);
            return Err(bad_setting(SECTION, "lease", format!("{lease} is too long, the longest is {max_text}")));
        }
        if self.settings.node_weight > WEIGHT_MAX {
            let weight = self.settings.node_weight;
            return Err(bad_setting(SECTION, "node_weight", format!("{weight} is too much, the most is {WEIGHT_MAX}")));
        }
        Ok(())
    }

    /// Checks the times after which runs are given up: an executor without a server stops its runs before another executor
    /// gets them.
    fn check_executors(&self) -> Result<(), Failure> {
        let ServerValues { heartbeat, silence, lost_after, continue_max, .. } = self.settings;
        let too_short_failure = |key, length: DurationText, min: Duration, reason: &str| {
            let min = DurationText(min);
            Err(bad_setting(SECTION, key, format!("{length} is too short, it must be at least {min}: {reason}")))
        };
        if heartbeat.0 < HEARTBEAT_MIN {
            return too_short_failure("heartbeat", heartbeat, HEARTBEAT_MIN, "more often is only noise");
        }
        let silence_min = heartbeat.0.saturating_mul(3);
        if silence.0 < silence_min {
            return too_short_failure("silence", silence, silence_min, &format!("three heartbeats of {heartbeat}"));
        }
        let lost_after_min = silence.0.saturating_add(KILL_GRACE);
        if lost_after.0 < lost_after_min {
            let reason = format!("the silence of {silence} and {} for what runs to end", DurationText(KILL_GRACE));
            return too_short_failure("lost_after", lost_after, lost_after_min, &reason);
        }
        if continue_max.0 < lost_after.0 {
            let reason = format!("the {lost_after} after which an executor is lost");
            return too_short_failure("continue_max", continue_max, lost_after.0, &reason);
        }
        if continue_max.0 > CONTINUE_MAX {
            let max_text = DurationText(CONTINUE_MAX);
            return Err(bad_setting(
                SECTION,
                "continue_max",
                format!("{continue_max} is too long, it must be at most {max_text}"),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
