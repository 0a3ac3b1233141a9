//! The settings of an executor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::name;
use rondel_proto::v1;
use tokio::sync::Semaphore;

use crate::catalog::Catalog;
use crate::declare::{DECLARED_BYTES_MAX, DECLARED_COUNT_MAX, Declaration, Job};
use crate::engine::{Engine, Identity};
use crate::error::ExecutorError;
use crate::executor::Executor;
use crate::handler::{BlockingHandler, Handler, JobHandler};
use crate::identity;
use crate::journal::{Journal, Predecessor};
use crate::log::{LogLimit, LogShipping};
use crate::pump::{NamedPump, Pump, PumpHandler};
use crate::secrets::Secrets;
use crate::session::{ServerUrl, Servers, TlsFiles, TokenSource};
use crate::setup::{BLOCKING_THREADS_MAX, Setup, States, Timing};

/// How many runs an executor executes at the same time by default.
const SLOTS_DEFAULT: u32 = 64;

/// How long running runs may continue after the signal to stop, by default.
const DRAIN_GRACE_DEFAULT: Duration = Duration::from_secs(60);

/// Builds an [`Executor`]. [`build`](Self::build) and [`run_until`](Self::run_until) report wrong settings.
///
/// ```no_run
/// use rondel::{Executor, ExecutorError, JobError, Params, State};
/// use std::time::Duration;
///
/// #[derive(Clone)]
/// struct Db;
///
/// async fn import(Params(table): Params<String>, State(_db): State<Db>) -> Result<(), JobError> {
///     Ok(())
/// }
/// fn hash_files(Params(dir): Params<String>) -> Result<usize, std::io::Error> {
///     Ok(std::fs::read_dir(dir)?.count())
/// }
///
/// # async fn start() -> Result<(), ExecutorError> {
/// Executor::builder("billing")
///     .server("http://10.0.0.1:8080")
///     .server("http://10.0.0.2:8080")
///     .token_file("/run/secrets/rondel-token")
///     .name("billing-1")
///     .label("zone", "a")
///     .slots(16)
///     .data_dir("/var/lib/billing/rondel")
///     .drain_grace(Duration::from_secs(30))
///     .state(Db)
///     .handler("import", import)
///     .blocking_handler("hash", hash_files)
///     .run_until(rondel::signal::terminate())
///     .await
/// # }
/// ```
#[must_use = "a builder does nothing until it runs"]
pub struct Builder {
    app: String,
    namespace: String,
    name: Option<String>,
    servers: Vec<String>,
    token: TokenSource,
    tls_files: TlsFiles,
    labels: BTreeMap<String, String>,
    weight: u32,
    slots: u32,
    blocking_threads: Option<usize>,
    data_dir: Option<PathBuf>,
    drain_grace: Duration,
    log_limit: LogLimit,
    timing: Timing,
    secrets: Option<Secrets>,
    states: States,
    handlers: Vec<(String, JobHandler)>,
    declarations: Vec<Declaration>,
    installs_subscriber: bool,
}

/// The identity of the executor, and the servers it dials.
impl Builder {
    pub(crate) fn new(app: String) -> Self {
        Self {
            app,
            namespace: "default".to_owned(),
            name: None,
            servers: Vec::new(),
            token: TokenSource::None,
            tls_files: TlsFiles::default(),
            labels: BTreeMap::new(),
            weight: 1,
            slots: SLOTS_DEFAULT,
            blocking_threads: None,
            data_dir: None,
            drain_grace: DRAIN_GRACE_DEFAULT,
            log_limit: LogLimit::default(),
            timing: Timing::default(),
            secrets: None,
            states: States::default(),
            handlers: Vec::new(),
            declarations: Vec::new(),
            installs_subscriber: true,
        }
    }

    /// Adds a server to dial; at least one is needed. The executor learns the addresses of the other servers from it.
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.servers.push(url.into());
        self
    }

    /// The access token that the executor sends to the servers.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = TokenSource::Text(token.into());
        self
    }

    /// A file that holds the token. It is read at each dial, so that a changed token takes effect. On Unix, it must not
    /// be open to other users.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token = TokenSource::File(path.into());
        self
    }

    /// A file of PEM certificates to trust for `https` servers, in addition to the well-known ones. It is read at each
    /// dial, like the files of [`client_certificate`](Self::client_certificate). While a file cannot be used, the
    /// executor continues with the files that it could use last.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls_files.ca = Some(path.into());
        self
    }

    /// PEM files of a client certificate and of its key, for servers that ask for a client certificate. They are read
    /// at each dial, so that a renewed certificate takes effect.
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls_files.certificate_and_key = Some((certificate.into(), key.into()));
        self
    }

    /// The namespace of the app; `default` by default.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// A name that stays the same across restarts: routing orders and hashes executors by their names. By default, the
    /// name is the host's name and four random letters, and stays the same only with a [data
    /// directory](Self::data_dir), which stores it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Adds a label by which jobs can select executors.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// The executor's weight in routing: its share of the runs, relative to the other executors of the app. 1 by
    /// default.
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }
}

/// Capacity, limits and handlers.
impl Builder {
    /// How many runs the executor executes at the same time; 64 by default, at least 1. It accepts a few more, which
    /// wait for a slot.
    pub fn slots(mut self, slots: u32) -> Self {
        self.slots = slots;
        self
    }

    /// How many blocking handlers run at the same time; by default as many as there are [`slots`](Self::slots), at most 256. A run that
    /// waits for a thread counts as running, so its timeout has already begun.
    pub fn blocking_threads(mut self, count: usize) -> Self {
        self.blocking_threads = Some(count);
        self
    }

    /// A directory that only this executor uses. The executor stores its name there, and each result until a server has
    /// acknowledged it, so that both survive a restart.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// How long running runs may continue after the future given to [`run_until`](Self::run_until) has resolved; 60 s
    /// by default. Runs that have not ended by then are stopped.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.drain_grace = grace;
        self
    }

    /// Replaces the executor's periods and timeouts.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// How much of the log of one attempt is kept; 10 MiB or 100,000 lines by default.
    pub fn log_limit(mut self, limit: LogLimit) -> Self {
        self.log_limit = limit;
        self
    }

    /// Installs no `tracing` subscriber. By default, [`Executor::run_until`] installs one if the program has none. That
    /// subscriber writes the events that `RUST_LOG` selects (`info` and above by default) to stderr, and those inside a
    /// run also to the run's log. It never replaces a subscriber of the program, which needs the layer
    /// [`log_layer`](crate::log_layer) for the runs' logs. Call this method if the program installs its own subscriber
    /// only after the executor has started.
    pub fn without_subscriber(mut self) -> Self {
        self.installs_subscriber = false;
        self
    }

    /// Replaces each `{{secret.NAME}}` in the parameters of runs with the secret of that name.
    pub fn secrets(mut self, secrets: Secrets) -> Self {
        self.secrets = Some(secrets);
        self
    }

    /// Adds a value that handlers take as [`State<T>`](crate::State). A second value of the same type replaces the
    /// first.
    pub fn state<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// Registers an async function for the jobs with this handler name.
    pub fn handler<Args: 'static>(mut self, name: impl Into<String>, handler: impl Handler<Args>) -> Self {
        self.handlers.push((name.into(), JobHandler::of(handler)));
        self
    }

    /// Registers a pump for the pump jobs with this handler name: see [`Pump`]. The job itself can be declared as well:
    ///
    /// ```
    /// use rondel::{Declaration, Executor, Pump};
    ///
    /// fn register(close_orders: impl Pump) -> rondel::Builder {
    ///     let pump = serde_json::json!({"items": {"count": 16}, "groups": 4, "threads": 8});
    ///     let job = Declaration::new("orders.close").option("pump", pump);
    ///     Executor::builder("billing").pump("orders.close", close_orders).declare(job)
    /// }
    /// ```
    pub fn pump(self, name: impl Into<String>, pump: impl Pump) -> Self {
        self.pump_handler(&name.into(), PumpHandler::new(pump))
    }

    pub(crate) fn pump_handler(mut self, name: &str, handler: PumpHandler<impl Pump>) -> Self {
        self.handlers.push((name.to_owned(), JobHandler::of_pump(handler)));
        self
    }

    /// Registers a pump under the name that `#[rondel::pump("…")]` gives it.
    pub fn named_pump<P: NamedPump>(self) -> Self {
        self.pump(P::NAME, P::default())
    }

    /// Registers a plain function, which may block, for the jobs with this handler name. It runs on a thread of a
    /// bounded pool and cannot be aborted, so it should check [`Cancel`](crate::Cancel) from time to time. If the run
    /// has to stop and the function does not return, the run ends one second after the grace: as timed out, as
    /// cancelled or, if the executor itself stopped it, as failed. Its slot stays occupied until the function returns.
    pub fn blocking_handler<Args: 'static>(
        mut self,
        name: impl Into<String>,
        handler: impl BlockingHandler<Args>,
    ) -> Self {
        self.handlers.push((name.into(), JobHandler::of_blocking(handler)));
        self
    }
}

/// Jobs declared in the code.
impl Builder {
    /// Registers a job that the code declares: its handler runs in this executor, and its definition is registered
    /// with the server at the start.
    ///
    /// ```
    /// #[rondel::job(name = "caches.warm", every = "10m")]
    /// async fn warm_caches() {}
    ///
    /// let builder = rondel::Executor::builder("shop").job(warm_caches);
    /// ```
    #[expect(
        clippy::needless_pass_by_value,
        reason = "`.job(warm_caches)` reads as what it is; a job is a unit struct"
    )]
    pub fn job(self, job: impl Job) -> Self {
        let declaration = job.declaration();
        let mut builder = self.declare(declaration.clone());
        builder.handlers.push((declaration.handler_name().to_owned(), job.handler()));
        builder
    }

    /// Declares a job whose handler is in this executor or in another executor of the app. Only the definition is
    /// registered.
    pub fn declare(mut self, declaration: Declaration) -> Self {
        self.declarations.push(declaration);
        self
    }
}

impl Builder {
    /// Checks all settings, and locks the data directory.
    ///
    /// # Errors
    /// One sentence that names the wrong setting, or the file or directory that cannot be used.
    pub fn build(self) -> Result<Executor, ExecutorError> {
        self.check()?;
        let blocking_threads = self.blocking_thread_count();
        let handlers = collect_handlers(self.handlers)?;
        let declared_jobs = collect_declared_jobs(self.declarations, &self.app)?;
        let servers = open_servers(&self.servers, self.token, self.tls_files)?;
        let mut setup = Setup::new(self.states, self.timing);
        setup.secrets = self.secrets;
        setup.log_limit = self.log_limit;
        setup.shipping = Some(Arc::new(LogShipping::default()));
        setup.blocking_permits = Arc::new(Semaphore::new(blocking_threads));
        let incarnation = identity::new_incarnation();
        let (process_identity, journal) = open_data_dir(self.data_dir, self.name, incarnation)?;
        let identity = Identity {
            namespace: self.namespace,
            app: self.app,
            name: process_identity.name,
            incarnation,
            secret: process_identity.secret,
            predecessor: process_identity.predecessor,
            labels: self.labels,
            weight: self.weight,
            slots: self.slots,
        };
        let engine = Engine::new(Arc::new(setup), Catalog { handlers, declared_jobs }, identity, servers, journal);
        Ok(Executor { engine, drain_grace: self.drain_grace, installs_subscriber: self.installs_subscriber })
    }

    /// Builds the executor, runs it until `stop_signal` resolves, and drains it: see [`Executor::run_until`].
    ///
    /// # Errors
    /// Those of [`build`](Self::build) and of [`Executor::run_until`].
    pub async fn run_until(self, stop_signal: impl Future) -> Result<(), ExecutorError> {
        self.build()?.run_until(stop_signal).await
    }

    fn blocking_thread_count(&self) -> usize {
        let slots = usize::try_from(self.slots).unwrap_or(usize::MAX);
        self.blocking_threads.unwrap_or(slots.min(BLOCKING_THREADS_MAX)).min(Semaphore::MAX_PERMITS)
    }

    fn check(&self) -> Result<(), ExecutorError> {
        let names = [("namespace", Some(&self.namespace)), ("app", Some(&self.app)), ("executor", self.name.as_ref())];
        for (field, name) in names {
            let result = name.map_or(Ok(()), |name| name::check(name));
            result.map_err(|reason| ExecutorError::Name { setting: field, reason })?;
        }
        let counts = [("slots", self.slots == 0), ("blocking_threads", self.blocking_threads == Some(0))];
        counts
            .into_iter()
            .try_for_each(|(field, is_zero)| if is_zero { Err(ExecutorError::Zero { setting: field }) } else { Ok(()) })
    }
}

fn collect_handlers(handlers: Vec<(String, JobHandler)>) -> Result<BTreeMap<String, JobHandler>, ExecutorError> {
    let mut handlers_by_name = BTreeMap::new();
    for (handler_name, handler) in handlers {
        name::check_handler(&handler_name).map_err(|reason| ExecutorError::Name { setting: "handler", reason })?;
        if handlers_by_name.contains_key(&handler_name) {
            return Err(ExecutorError::DuplicateHandler(handler_name));
        }
        handlers_by_name.insert(handler_name, handler);
    }
    Ok(handlers_by_name)
}

fn collect_declared_jobs(declarations: Vec<Declaration>, app: &str) -> Result<Vec<v1::DeclaredJob>, ExecutorError> {
    let mut names = BTreeSet::new();
    let mut jobs = Vec::with_capacity(declarations.len());
    for declaration in declarations {
        if !names.insert(declaration.name().to_owned()) {
            return Err(ExecutorError::DuplicateJob(declaration.name().to_owned()));
        }
        jobs.push(v1::DeclaredJob { spec_json: declaration.into_spec_json(app)? });
    }
    let (count, bytes) = (jobs.len(), jobs.iter().map(|job| job.spec_json.len()).sum());
    if count > DECLARED_COUNT_MAX || bytes > DECLARED_BYTES_MAX {
        return Err(ExecutorError::TooManyJobs { count, bytes });
    }
    Ok(jobs)
}

fn open_servers(urls: &[String], token: TokenSource, tls_files: TlsFiles) -> Result<Servers, ExecutorError> {
    let urls: BTreeSet<ServerUrl> = urls.iter().map(|url| ServerUrl::parse(url)).collect::<Result<_, _>>()?;
    if urls.is_empty() {
        return Err(ExecutorError::NoServer);
    }
    if let TokenSource::File(path) = &token {
        std::fs::read(path).map_err(|source| ExecutorError::File { path: path.clone(), source })?;
    }
    Servers::new(urls, token, tls_files)
}

type JournalAndResults = (Journal, Vec<v1::Result>);

/// The identity of this process: its name, its secret, and the previous process that used the data directory.
struct ProcessIdentity {
    name: String,
    secret: identity::Secret,
    predecessor: Predecessor,
}

fn open_data_dir(
    dir: Option<PathBuf>,
    name: Option<String>,
    incarnation: i64,
) -> Result<(ProcessIdentity, Option<JournalAndResults>), ExecutorError> {
    let Some(dir) = dir else {
        let name = name.unwrap_or_else(identity::default_name);
        let process = ProcessIdentity { name, secret: identity::Secret::new(), predecessor: Predecessor::default() };
        return Ok((process, None));
    };
    let opened_journal = Journal::open(&dir, name.as_deref(), incarnation)?;
    let process = ProcessIdentity {
        name: opened_journal.name,
        secret: opened_journal.secret,
        predecessor: opened_journal.predecessor,
    };
    Ok((process, Some((opened_journal.journal, opened_journal.results))))
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let handlers: Vec<&str> = self.handlers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Builder")
            .field("app", &self.app)
            .field("servers", &self.servers)
            .field("handlers", &handlers)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builder() -> Builder {
        Executor::builder("app").server("http://127.0.0.1:1")
    }

    async fn nothing() {}

    #[test]
    fn wrong_settings_are_reported() {
        for (builder, expected) in [
            (Executor::builder("app"), "no server is named"),
            (Executor::builder("App").server("http://a"), "app: \"App\" is not a name"),
            (builder().server("a:1"), "\"a:1\" is not a server's URL"),
            (builder().namespace(""), "namespace: "),
            (builder().name("a b"), "executor: "),
            (builder().handler("a b", nothing), "handler: "),
            (builder().handler("a", nothing).handler("a", nothing), "handler \"a\" is registered twice"),
            (builder().declare(Declaration::new("a").cron("x")), "the declared job \"a\": /schedule/cron: "),
            (builder().declare(Declaration::new("a")).declare(Declaration::new("a")), "job \"a\" is declared twice"),
            (builder().slots(0), "slots must be at least 1"),
            (builder().token_file("/nonexistent/token"), "cannot read /nonexistent/token"),
            (builder().ca_file("/nonexistent/ca"), "cannot read /nonexistent/ca"),
        ] {
            let error = builder.build().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_data_directory_keeps_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = builder().data_dir(dir.path()).build().unwrap().name().to_owned();
        let second = builder().data_dir(dir.path()).build().unwrap();
        assert_eq!(second.name(), first);
    }
}
