//! The parts of a running system: servers, agents, and `rondel dev`.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::{Api, Process, ScratchDb, binary, settings, wait_until};

/// How long a start may take on a slow machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long an orderly end may take on a slow machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How long the generation of a million runs may take.
const SEED_LIMIT: Duration = Duration::from_secs(1_800);

/// A `rondel server` process.
#[derive(Debug)]
pub struct Server {
    console: Console,
    database: String,
}

impl Server {
    /// Starts a server on a database and waits until it listens. Several on one database are a cluster.
    pub async fn start(db: &ScratchDb) -> Self {
        Self::start_with(db, &[]).await
    }

    /// Like [`Self::start`], with more arguments.
    pub async fn start_with(db: &ScratchDb, args: &[&str]) -> Self {
        Self::start_with_variables(db, args, &[]).await
    }

    /// Like [`Self::start_with`], with variables in its environment.
    pub async fn start_with_variables(db: &ScratchDb, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let args = [&["server", "--database", db.url()], args].concat();
        Self { console: Console::start("the server", &args, variables).await, database: db.url().to_owned() }
    }

    /// Starts it again at the same address and in the same data folder, after it was killed or stopped.
    pub async fn restart(&mut self) {
        self.console.restart().await;
    }

    /// Starts it again at the same address and in the same data folder, with these arguments in addition to those of
    /// its first start; false if it ends before it listens.
    pub async fn try_restart_with(&mut self, more: &[&str]) -> bool {
        self.console.try_restart(more).await
    }

    /// Another start after this server ended: the same database, address and data folder, other arguments.
    pub async fn start_with_data_of(mut before: Self, args: &[&str]) -> Self {
        let args = [&["server", "--database", before.database.as_str()], args].concat();
        before.console.args = args.iter().map(|&arg| arg.to_owned()).collect();
        before.restart().await;
        before
    }

    /// Its API, with the token that it wrote at its start.
    pub fn api(&self) -> Api {
        self.console.api()
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.console.url
    }

    /// The URL of its database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Its data folder.
    pub fn data_folder(&self) -> &Path {
        self.console.folder.path()
    }

    /// The file with its API token.
    pub fn token_file(&self) -> PathBuf {
        self.console.token_file()
    }

    /// The process, to signal it or to read its output.
    pub fn process(&mut self) -> &mut Process {
        &mut self.console.process
    }

    /// Kills the process with SIGKILL, as in a crash.
    pub async fn kill(&mut self) {
        self.console.process.kill().await;
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub async fn stop(&mut self) -> ExitStatus {
        self.console.process.terminate(STOP_LIMIT).await
    }
}

/// A `rondel dev` process.
#[derive(Debug)]
pub struct Dev {
    console: Console,
}

impl Dev {
    /// Starts it in a fresh data folder and waits until it listens.
    pub async fn start() -> Self {
        Self { console: Console::start("rondel dev", &["dev"], &[]).await }
    }

    /// Like [`Self::start`], with about this many generated jobs and runs of the last seven days, as `rondel bench
    /// seed` makes them.
    pub async fn start_seeded(jobs: u32, runs: u32) -> Self {
        let folder = settings::scratch_folder("rondel-data-");
        seed(&format!("sqlite://{}", folder.path().join("rondel.db").display()), jobs, runs).await;
        Self { console: Console::start_in(folder, "rondel dev", &["dev"], &[]).await }
    }

    /// Starts it again at the same address and in the same data folder, after it was killed or stopped.
    pub async fn restart(&mut self) {
        self.console.restart().await;
    }

    /// Its API, with the token that it wrote at its start.
    pub fn api(&self) -> Api {
        self.console.api()
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.console.url
    }

    /// Its data folder.
    pub fn data_folder(&self) -> &Path {
        self.console.folder.path()
    }

    /// The file with its API token.
    pub fn token_file(&self) -> PathBuf {
        self.console.token_file()
    }

    /// The process, to signal it or to read its output.
    pub fn process(&mut self) -> &mut Process {
        &mut self.console.process
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub async fn stop(&mut self) -> ExitStatus {
        self.console.process.terminate(STOP_LIMIT).await
    }
}

/// A `rondel agent` process.
#[derive(Debug)]
pub struct Agent {
    name: String,
    process: Process,
}

impl Agent {
    /// Starts an agent of an app, with a new name, and waits until the server lists it.
    pub async fn start(server: &Server, app: &str) -> Self {
        Self::start_with(server, app, &[]).await
    }

    /// Like [`Self::start`], with more arguments.
    pub async fn start_with(server: &Server, app: &str, args: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{app}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self::start_named(server, app, &name, args).await
    }

    /// Like [`Self::start_with`], with a given name: a second start with this name is a restart of the same agent.
    pub async fn start_named(server: &Server, app: &str, name: &str, args: &[&str]) -> Self {
        Self::start_at(&server.console, app, name, args).await
    }

    /// Starts an agent of `rondel dev`, in addition to the one that `rondel dev` contains.
    pub async fn start_for_dev(dev: &Dev, app: &str, name: &str) -> Self {
        Self::start_at(&dev.console, app, name, &[]).await
    }

    async fn start_at(console: &Console, app: &str, name: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.args(["agent", "--server", &console.url, "--app", app, "--name", name, "--token-file"]);
        command.arg(console.token_file()).args(args);
        let agent = Self { name: name.to_owned(), process: Process::start(&format!("agent {name}"), command) };
        let what = format!("agent {name} is listed");
        let api = console.api();
        wait_until(START_LIMIT, &what, async || {
            let executors = api.get("/api/v1/executors").await.expect(200);
            if executors.to_string().contains(&format!("\"{name}\"")) {
                Ok(())
            } else {
                Err((executors, agent.process.last_words()))
            }
        })
        .await;
        agent
    }

    /// Its stable name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process, to signal it or to read its output.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills the process with SIGKILL, as in a crash.
    pub async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub async fn stop(&mut self) -> ExitStatus {
        self.process.terminate(STOP_LIMIT).await
    }
}

/// Fills an empty database with generated jobs and about this many of their runs.
///
/// # Panics
/// When it cannot be filled within half an hour.
pub async fn seed(database: &str, jobs: u32, runs: u32) {
    let mut command = Command::new(binary());
    let (jobs, runs) = (jobs.to_string(), runs.to_string());
    command.args(["bench", "seed", "--database", database, "--jobs", &jobs, "--history", &runs]);
    let mut process = Process::start("rondel bench seed", command);
    let status = wait_until(SEED_LIMIT, "the database is filled", async || process.has_ended().ok_or(()));
    let status = status.await;
    assert!(status.success(), "rondel bench seed: {status}; {}", process.last_words());
}

/// The variables that a process has in addition to those of the test.
type Variables = Vec<(String, String)>;

/// A process that listens and has a data folder with a token in it.
#[derive(Debug)]
struct Console {
    name: String,
    args: Vec<String>,
    variables: Variables,
    process: Process,
    url: String,
    folder: TempDir,
    _port: HeldPort,
}

impl Console {
    async fn start(name: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_in(settings::scratch_folder("rondel-data-"), name, args, variables).await
    }

    async fn start_in(folder: TempDir, name: &str, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let variables: Variables = variables.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let port = HeldPort::take();
        let (process, url) = listen(name, (&args, &variables), &port.address(), folder.path()).await;
        Self { name: name.to_owned(), args, variables, process, url, folder, _port: port }
    }

    async fn restart(&mut self) {
        assert!(self.process.has_ended().is_some(), "{} still runs", self.name);
        let address = self.url.trim_start_matches("http://").to_owned();
        (self.process, self.url) =
            listen(&self.name, (&self.args, &self.variables), &address, self.folder.path()).await;
    }

    async fn try_restart(&mut self, more: &[&str]) -> bool {
        assert!(self.process.has_ended().is_some(), "{} still runs", self.name);
        let address = self.url.trim_start_matches("http://").to_owned();
        let args: Vec<String> = self.args.iter().cloned().chain(more.iter().map(|&arg| arg.to_owned())).collect();
        self.process = launch(&self.name, (&args, &self.variables), &address, self.folder.path());
        let what = format!("{} listens or ends", self.name);
        wait_until(START_LIMIT, &what, async || {
            let listens = self.process.stdout().contains("listening on http://");
            if listens || self.process.has_ended().is_some() { Ok(listens) } else { Err(self.process.last_words()) }
        })
        .await
    }

    fn token_file(&self) -> PathBuf {
        self.folder.path().join("admin.token")
    }

    fn api(&self) -> Api {
        let token = std::fs::read_to_string(self.token_file()).expect("the server wrote its token");
        Api::new(&self.url, token.trim())
    }
}

/// A port of this host that the kernel gives to no other program while this value lives. Nothing listens on it, so that
/// a server may, and finds it free when it starts again.
#[derive(Debug)]
struct HeldPort(TcpSocket);

impl HeldPort {
    fn take() -> Self {
        let socket = TcpSocket::new_v4().expect("make a socket");
        // Servers set this as well: only then may both be bound to one port.
        socket.set_reuseaddr(true).expect("share the port");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bind a port");
        Self(socket)
    }

    fn address(&self) -> String {
        self.0.local_addr().expect("it is bound").to_string()
    }
}

async fn listen(name: &str, start: (&[String], &Variables), address: &str, folder: &Path) -> (Process, String) {
    let mut process = launch(name, start, address, folder);
    let line = process.wait_for_line(START_LIMIT, "listening on http://").await;
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).expect("the line has a URL");
    (process, url.trim_end_matches(['/', '.', ',']).to_owned())
}

fn launch(name: &str, (args, variables): (&[String], &Variables), address: &str, folder: &Path) -> Process {
    let mut command = Command::new(binary());
    command.envs(variables.iter().map(|(key, value)| (key, value)));
    command.args(args).args(["--listen", address, "--data-dir"]).arg(folder);
    Process::start(name, command)
}
