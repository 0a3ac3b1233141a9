//! A running server in this process: engine, port and token, started and stopped in the right order.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rondel_admin::auth::{Token, add_admin_token, principal_of};
use rondel_admin::channels::SecretSources;
use rondel_admin::oidc::Oidc;
use rondel_admin::sign_in::{self, SignInOwner};
use rondel_admin::{Engine, EngineConfig, Lifecycle, WatchedHost, lifecycle::Until};
use rondel_core::access::{Grant, Role};
use rondel_store::{OpenError, SqlStore, StoreConfig};
use rondel_web::{Port, Rate, Tls, WebConfig};
use rondel_xxl::Bridge;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::xxl::XxlEndpoints;
use crate::config::{HttpConfig, ServerConfig, ServerValues};
use crate::exit::Failure;
use crate::startup_files::StartupFiles;
use crate::{node_name, open_files, output, secret_key, token_file};

/// How long the connections of clients may take to end once the engine has stopped, and how long those of the database may
/// after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections that wait to be accepted: when a server is gone, its executors all reconnect at the
/// same time.
const BACKLOG: u32 = 1_024;

/// A running server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) token: Token,
    metrics_token: Option<Token>,
    is_tls: bool,
    rate: Option<Rate>,
    oidc: Option<Arc<Oidc>>,
    http: HttpConfig,
    /// The bridge to executors of XXL-JOB, if they are served.
    xxl: Option<Bridge>,
    address: SocketAddr,
    /// The URL at which executors and browsers reach the server, if it is set.
    advertise: Option<String>,
    lifecycle: Lifecycle,
    store: Arc<SqlStore>,
}

impl Node {
    /// Starts the server: first it opens the port, then the database, then it creates the files that are missing.
    /// `startup_files` records the files that a failed start removes.
    pub(crate) async fn start(config: &ServerConfig, startup_files: &mut StartupFiles) -> Result<Self, Failure> {
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let listener = listen(config.settings.listen.0)?;
        let address = listener.local_addr()?;
        let metrics_token = config.settings.metrics_token_file.as_deref().map(token_file::read_existing).transpose()?;
        let store = open_store(config, startup_files).await?;
        let token = token_file::read_or_make(&config.admin_token_file, startup_files)?;
        let node_name = match &config.settings.node_name {
            Some(name) => name.clone(),
            None => node_name::read_or_make(&config.settings.data_dir, startup_files)?,
        };
        let lifecycle = Lifecycle::new();
        let settings = &config.settings;
        let engine_config = EngineConfig {
            node_name,
            advertise_url: config.settings.advertise.clone(),
            lease: settings.lease.0,
            beat: settings.beat.0,
            claim_strategy: settings.claim_strategy,
            node_weight: settings.node_weight,
            heartbeat: settings.heartbeat.0,
            silence: settings.silence.0,
            lost_after: settings.lost_after.0,
            continue_max: settings.continue_max.0,
            script_versions: settings.script_versions,
            retention: settings.retention.0,
            alert_rules_period: settings.alert_rules_period.0,
            log_retention: settings.log_retention.0,
            log_size_max: settings.log_size_max.0,
            executor_certificates: config.executor_certificates,
            outgoing_allow: config.outgoing_allow.clone(),
            xxl_networks: config.xxl.as_ref().map(|xxl| xxl.networks.clone()).unwrap_or_default(),
            alert_period: settings.alert_period.0,
            alert_concurrency: usize::try_from(settings.alert_concurrency).unwrap_or(usize::MAX),
            alert_secrets: secret_sources(settings),
            watchdog_url: settings.watchdog_url.clone(),
            watchdog_period: settings.watchdog_period.0,
            host: watched_host(config, tls.as_deref()),
            metrics_job_max: usize::try_from(config.settings.metrics_job_max).unwrap_or(usize::MAX),
            metrics_labels: config.settings.metrics_labels.clone(),
            traces: config.settings.otlp_endpoint.is_some(),
            executor_streams_per_token: config.executor_streams_per_token,
            executor_streams_per_address: config.executor_streams_per_address,
            ..EngineConfig::default()
        };
        let engine = Engine::start(store.clone(), engine_config, &lifecycle).await?;
        let is_tls = tls.is_some();
        let oidc = config.oidc.clone().map(Oidc::new).map(Arc::new);
        let xxl = config.xxl.clone().map(|xxl| Bridge::start(engine.clone(), xxl, &lifecycle)).transpose();
        let xxl = xxl.map_err(|error| Failure::of("cannot serve executors of XXL-JOB".to_owned(), &error))?;
        let (rate, advertise, http) = (config.api_rate, config.settings.advertise.clone(), config.http.clone());
        let node =
            Self { engine, token, metrics_token, is_tls, rate, oidc, http, xxl, address, advertise, lifecycle, store };
        if let Err(failure) = node.register_token(&config.admin_token_file).await {
            node.abandon().await;
            return Err(failure);
        }
        node.serve(listener, tls);
        Ok(node)
    }

    /// Stores the token of the file. A token that the database knows stays as it is, also if it has ended.
    async fn register_token(&self, file: &Path) -> Result<(), Failure> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let Some(token_record) = store.token(&self.token.hash()).await? else {
            add_admin_token(store, self.engine.new_id(), &self.token, now).await?;
            return Ok(());
        };
        let principal = principal_of(store, token_record, now).await?;
        if principal.is_none_or(|token_principal| !token_principal.rights.covers(&Grant::everywhere(Role::Admin))) {
            tracing::warn!(
                path = %file.display(),
                "the token in this file has ended or lacks rights; a start without the file makes a new one"
            );
        }
        Ok(())
    }

    fn serve(&self, listener: TcpListener, tls: Option<Arc<Tls>>) {
        let is_https = self.advertise.as_ref().is_some_and(|url| url.to_ascii_lowercase().starts_with("https://"));
        let limits = open_files::limits_that_fit(self.http.limits.clone(), open_files::open_files_limit());
        let config = WebConfig {
            tls: tls.is_some() || is_https,
            advertised: self.advertise.clone(),
            hsts: is_https,
            limits: limits.clone(),
            shutdown: self.lifecycle.soft.clone(),
            rate: self.rate,
            oidc: self.oidc.clone(),
            metrics_token: self.metrics_token.clone(),
            mounted: self.xxl.clone().map(|bridge| Arc::new(XxlEndpoints(bridge)) as _),
            ..WebConfig::default()
        };
        let app = rondel_web::app(self.engine.clone(), config);
        let hard_stop = self.lifecycle.hard.clone();
        if let Some(tls) = &tls {
            self.lifecycle.spawn("certificates", Until::Soft, Arc::clone(tls).watch(self.lifecycle.soft.clone()));
        }
        let port =
            Port { tls, limits, trusted_proxies: self.http.trusted_proxies.clone(), engine: Some(self.engine.clone()) };
        // Executors deliver their last results while the engine drains, so the port stays open to the end.
        self.lifecycle.spawn("web", Until::Hard, rondel_web::serve_on(listener, port, app, hard_stop));
    }

    const fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// The URL at which this machine reaches the server.
    pub(crate) fn url(&self) -> String {
        let ip = self.address.ip();
        let local_address = match ip {
            _ if !ip.is_unspecified() => ip,
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        format!("{}://{}", self.scheme(), SocketAddr::new(local_address, self.address.port()))
    }

    /// The URL for a browser: the advertised URL, else the URL for this machine.
    fn entry_url(&self) -> String {
        self.advertise.as_ref().map_or_else(|| self.url(), |url| url.trim_end_matches('/').to_owned())
    }

    /// A line with a link that opens the console, once, with the rights of this server's token; if the token has ended, the
    /// address to sign in at.
    pub(crate) async fn sign_in_line(&self) -> Result<String, Failure> {
        let (store, now) = (self.engine.store(), self.engine.now());
        let token = store.token(&self.token.hash()).await?;
        let Some(token) = token.filter(|token| token.is_valid(now)) else {
            return Ok(format!("sign in: {}/sign-in", self.url()));
        };
        let secret = sign_in::create_link(store, SignInOwner::Token(token.id), now).await?;
        Ok(format!("sign in: {}/sign-in?token={}", self.url(), secret.reveal()))
    }

    /// A line about access: a link that creates the first account if there is none, else the address to sign in at.
    pub(crate) async fn entry_line(&self) -> Result<String, Failure> {
        let secret = sign_in::create_setup_link(self.engine.store(), self.engine.now()).await?;
        Ok(match secret {
            Some(secret) => {
                format!("set up: {}/set-up?token={} (makes the first account, once)", self.entry_url(), secret.reveal())
            }
            None => format!("sign in: {}/sign-in", self.entry_url()),
        })
    }

    /// Prints the address that the server listens on, and then these lines, on stdout.
    pub(crate) fn announce(&self, lines: &[String]) {
        if !self.is_tls && !self.address.ip().is_loopback() {
            tracing::warn!(address = %self.address, "listening beyond this machine without TLS: tokens can be read on the way");
        }
        let listening = format!("listening on {}://{}", self.scheme(), self.address);
        let text = std::iter::once(listening).chain(lines.iter().cloned()).collect::<Vec<_>>().join("\n");
        if output::print_lines(&text).is_err() {
            tracing::warn!("stdout is closed");
        }
        tracing::info!(address = %self.address, "listening");
    }

    /// Waits until the server is asked to stop, or until a part of the server fails.
    pub(crate) async fn wait_for_stop(&self, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.lifecycle.soft.cancelled() => {}
        }
    }

    /// A token that is cancelled once a part of the server has failed.
    pub(crate) fn failure_token(&self) -> CancellationToken {
        self.lifecycle.soft.clone()
    }

    /// Stops the parts that were started before the start failed. The caller reports the failure.
    pub(crate) async fn abandon(self) {
        if let Err(failure) = self.drain(Duration::ZERO).await {
            tracing::debug!(?failure, "stopping after a failed start");
        }
    }

    /// Stops the server: work in progress may end within the grace, the lease is released, and the port is closed last.
    pub(crate) async fn drain(self, grace: Duration) -> Result<(), Failure> {
        self.engine.drain(grace).await;
        if tokio::time::timeout(CLOSE_TIMEOUT, self.lifecycle.wait()).await.is_err() {
            tracing::warn!("closed connections that did not end in time");
        }
        if tokio::time::timeout(CLOSE_TIMEOUT, self.store.close()).await.is_err() {
            tracing::warn!("the database's connections did not end");
        }
        if self.lifecycle.has_failed() {
            return Err(Failure::from_text("a part of the server failed; the log names it"));
        }
        tracing::info!("stopped");
        Ok(())
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bind = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // Lets a restarted server bind its port immediately, although connections to the previous server linger.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bind().map_err(|error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => "; is another rondel running? choose another port with --listen",
            ErrorKind::AddrNotAvailable => "; this machine has no such address, choose one of its own with --listen",
            ErrorKind::PermissionDenied => "; ports below 1024 need a right of their own, choose another with --listen",
            _ => "",
        };
        Failure::of(format!("cannot listen on {address}"), &error).with_hint(hint)
    })
}

async fn open_store(config: &ServerConfig, startup_files: &mut StartupFiles) -> Result<Arc<SqlStore>, Failure> {
    let file = config.database.0.sqlite_path();
    if let Some(folder) = file.and_then(Path::parent)
        && folder == config.settings.data_dir
    {
        startup_files.make_folder(folder)?;
    }
    let missing_paths = file.map(missing_files).unwrap_or_default();
    // An existing database may have secrets that this start encrypts. The file with their key stays, even if the start
    // fails later.
    let mut kept_key_files = StartupFiles::default();
    let is_existing_database = file.is_some_and(Path::exists);
    let key_files = if is_existing_database { &mut kept_key_files } else { &mut *startup_files };
    let defaults = StoreConfig::default();
    let store_config = StoreConfig {
        url: config.database.0.clone(),
        secret_keys: secret_key::read_or_make(config, key_files)?,
        // Shorter than the lease: the locks of a server that stopped in the middle of a transaction must end before
        // another server takes over.
        idle_in_transaction: (config.settings.lease.0 * 4 / 5).min(defaults.idle_in_transaction),
        ..defaults
    };
    let result = SqlStore::open(&store_config).await;
    // The files of a database that another server uses must not be removed if this start fails.
    if !matches!(result, Err(OpenError::InUse { .. })) {
        kept_key_files.commit();
        for path in missing_paths {
            startup_files.record_created(path);
        }
    }
    Ok(Arc::new(result?))
}

/// The files that a start creates for a new SQLite database, and removes if the start fails. None for an existing database:
/// a write-ahead log that this start created may hold data that the main file lacks, such as a migration.
fn missing_files(database: &Path) -> Vec<PathBuf> {
    if database.exists() {
        return Vec::new();
    }
    let path_with_ending = |ending: &str| {
        let mut name = database.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let files = ["", ".lock", "-journal", "-wal", "-shm"].map(path_with_ending);
    files.into_iter().filter(|path| !path.exists()).collect()
}

/// The sources that secrets of channels may refer to.
fn secret_sources(settings: &ServerValues) -> SecretSources {
    let prefix = settings.alert_secrets_env_prefix.as_deref();
    let is_allowed = |name: &str| prefix.is_some_and(|prefix| !prefix.is_empty() && name.starts_with(prefix));
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| is_allowed(name))
        .collect();
    SecretSources { folder: settings.alert_secrets_dir.clone(), variables }
}

/// The disks that this server writes to, and its certificate.
fn watched_host(config: &ServerConfig, tls: Option<&Tls>) -> WatchedHost {
    let settings = &config.settings;
    let database_folder = config.database.0.sqlite_path().and_then(Path::parent);
    // A file without a folder is in the folder that the server was started in.
    let database_folder =
        database_folder.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    // If the settings name the server and its token file, this server creates no data folder, and writes nothing there.
    let data_dir = Some(settings.data_dir.as_path()).filter(|folder| folder.is_dir());
    let database_folder = database_folder.filter(|folder| *folder != settings.data_dir);
    let folders = data_dir.into_iter().chain(database_folder).map(Path::to_owned).collect();
    WatchedHost { folders, certificate: tls.map(Tls::served) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_fails_removes_no_file_of_a_database_that_was_there() {
        let root = tempfile::tempdir().unwrap();
        let database = root.path().join("rondel.db");
        std::fs::write(root.path().join("rondel.db.lock"), "").unwrap();
        let made =
            ["rondel.db", "rondel.db-journal", "rondel.db-wal", "rondel.db-shm"].map(|name| root.path().join(name));
        assert_eq!(missing_files(&database), made);
        std::fs::write(&database, "").unwrap();
        assert_eq!(missing_files(&database), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_data_folder_that_is_not_there_is_not_watched() {
        let root = tempfile::tempdir().unwrap();
        let data_dir = root.path().join("data");
        let config = ServerConfig::for_dev(&data_dir, "127.0.0.1:0".parse().unwrap(), false).unwrap();
        assert!(watched_host(&config, None).folders.is_empty());
        std::fs::create_dir(&data_dir).unwrap();
        assert_eq!(watched_host(&config, None).folders, [data_dir]);
    }
}
