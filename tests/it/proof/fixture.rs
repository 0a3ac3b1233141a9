//! Common parts of the tests in this folder: a database, servers and workers on it, a journal, and jobs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rondel_tests::check::{self, Report, Rules};
use rondel_tests::{Api, Backend, Process, ScratchDb, Server, Signal, example, variable, wait_until, wall_clock_ms};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(super) const APP: &str = "proof";
/// Leases of the tests: short, so that they need not wait long for one to end.
pub(super) const LEASE: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(60);

/// The folder of a journal, to which the tests add what they do to processes.
#[derive(Debug)]
pub(super) struct Journal {
    folder: tempfile::TempDir,
}

impl Journal {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("rondel-journal-").tempdir().expect("make a folder") }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn note(&self, line: &Value) {
        append(&self.folder.path().join("test.jsonl"), &format!("{line}\n"));
    }

    /// Saves the output of a process next to the journal of the handlers, because the next start overwrites it.
    pub(super) fn keep_output(&self, name: &str, process: &Process) {
        append(&self.folder.path().join(format!("{name}.log")), &process.stderr());
    }

    pub(super) fn note_death(&self, pid: u32) {
        self.note(&json!({"event": "died", "pid": pid, "at_ms": wall_clock_ms()}));
    }

    pub(super) fn note_pause(&self, pid: u32, from_ms: i64) {
        self.note(&json!({"event": "stopped", "pid": pid, "from_ms": from_ms, "to_ms": wall_clock_ms()}));
    }

    /// The starts that handlers have written so far.
    pub(super) fn starts(&self) -> Vec<check::Start> {
        check::read_journal(self.folder()).expect("read the journal").starts
    }

    /// The number of these starts, without parsing them.
    fn start_count(&self) -> usize {
        let files =
            std::fs::read_dir(self.folder()).expect("list the journal").map(|file| file.expect("a file").path());
        let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
        let texts = files.map(|path| std::fs::read_to_string(path).expect("read the journal"));
        texts.map(|text| text.matches("\"event\":\"start\"").count()).sum()
    }

    /// Waits until this many more handlers have begun.
    pub(super) async fn wait_for_starts(&self, count: usize) {
        let count_before = self.start_count();
        wait_until(LIMIT, "handlers begin", async || {
            let new_count = self.start_count() - count_before;
            if new_count >= count { Ok(()) } else { Err(format!("{new_count} of {count}")) }
        })
        .await;
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if rondel_tests::keeps() {
            self.folder.disable_cleanup(true);
            print(&format!("kept: {}", self.folder().display()));
        }
    }
}

fn append(path: &Path, text: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(path).expect("open a file");
    std::io::Write::write_all(&mut file, text.as_bytes()).expect("write to a file");
}

/// A process of the example `worker`.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) process: Process,
    name: String,
    urls: Vec<String>,
    token: PathBuf,
    journal: PathBuf,
    data: Option<PathBuf>,
}

impl Worker {
    /// Starts a worker that dials these servers, and waits until each of them lists it.
    pub(super) async fn start(
        servers: &[&Server],
        name: &str,
        journal: &Journal,
        data: Option<&Path>,
        args: &[&str],
    ) -> Self {
        let urls = servers.iter().map(|server| server.url().to_owned()).collect();
        Self::start_at(servers[0], urls, name, journal, data, args).await
    }

    /// Starts a worker with these URLs, some of which may lead elsewhere. `server` is a server that will list it.
    pub(super) async fn start_at(
        server: &Server,
        urls: Vec<String>,
        name: &str,
        journal: &Journal,
        data: Option<&Path>,
        args: &[&str],
    ) -> Self {
        let (token, path) = (server.token_file(), journal.folder().join(format!("{name}.jsonl")));
        let data = data.map(Path::to_owned);
        let process = launch(name, &urls, &token, &path, data.as_deref(), args);
        let worker = Self { process, name: name.to_owned(), urls, token, journal: path, data };
        worker.wait_until_listed(&server.api()).await;
        worker
    }

    /// Waits until a server lists it as online.
    pub(super) async fn wait_until_listed(&self, api: &Api) {
        let description = format!("{} is online", self.name);
        wait_until(LIMIT, &description, async || {
            let answer = api.try_answer(api.request(rondel_tests::Method::GET, "/api/v1/executors")).await;
            let Ok(answer) = answer else { return Err(format!("{answer:?}")) };
            let items = answer.body["items"].as_array().cloned().unwrap_or_default();
            let is_online = |executor: &Value| executor["name"] == self.name.as_str() && executor["status"] == "online";
            if items.iter().any(is_online) { Ok(()) } else { Err(format!("{items:?}; {}", self.process.last_words())) }
        })
        .await;
    }

    /// Starts the worker again, as the same executor if it has a data folder.
    pub(super) fn restart(&mut self, args: &[&str]) {
        self.process = launch(&self.name, &self.urls, &self.token, &self.journal, self.data.as_deref(), args);
    }

    pub(super) async fn kill(&mut self, journal: &Journal) {
        let pid = self.process.id();
        self.process.kill().await;
        journal.note_death(pid);
    }

    /// Pauses the process for this long.
    pub(super) async fn pause(&mut self, length: Duration, journal: &Journal) {
        let from = wall_clock_ms();
        self.process.signal(Signal::STOP);
        tokio::time::sleep(length).await;
        self.process.signal(Signal::CONT);
        journal.note_pause(self.process.id(), from);
    }
}

fn launch(name: &str, urls: &[String], token: &Path, journal: &Path, data: Option<&Path>, args: &[&str]) -> Process {
    let mut command = Command::new(example("worker"));
    if !args.contains(&"--app") {
        command.args(["--app", APP]);
    }
    command.args(["--name", name, "--token-file"]).arg(token).arg("--journal").arg(journal);
    for url in urls {
        command.args(["--server", url]);
    }
    if let Some(data) = data {
        command.arg("--data-dir").arg(data);
    }
    Process::start(&format!("worker {name}"), {
        command.args(args);
        command
    })
}

/// A server with a short lease, which may send requests to this machine.
pub(super) async fn server(db: &ScratchDb, args: &[&str]) -> Server {
    server_with_lease(db, ["--lease", "4s", "--beat", "1s"], args).await
}

/// Like [`server`], with another lease.
pub(super) async fn server_with_lease(db: &ScratchDb, lease: [&str; 4], args: &[&str]) -> Server {
    Server::start_with(db, &[&lease[..], &["--outgoing-allow", "127.0.0.1"], args].concat()).await
}

/// A job that fires each second, with parameters for the handler `journal`. The fields of `overrides` override the common
/// ones.
#[expect(clippy::needless_pass_by_value, reason = "callers make them in place")]
pub(super) fn job(name: &str, work: Value, overrides: Value) -> Value {
    let mut job = json!({
        "name": name, "app": APP, "handler": "journal", "params": work, "schedule": {"every": "1s"},
        "misfire": {"policy": "all", "max": 1000},
    });
    job.as_object_mut().expect("an object").extend(overrides.as_object().expect("an object").clone());
    job
}

/// Creates serial jobs that fire each second, half of them with at-least-once delivery, the others with at-most-once
/// delivery. Their runs take up to four steps.
pub(super) async fn create_mixed_jobs(api: &Api, count: usize, step_ms: usize) {
    for number in 0..count {
        let delivery = if number % 2 == 0 { "at_least_once" } else { "at_most_once" };
        let work = json!({"sleep_ms": (number % 5) * step_ms});
        api.post("/api/v1/jobs", job(&format!("job-{number}"), work, json!({"delivery": delivery}))).await.expect(201);
    }
}

/// The URL of a server that accepts every request, for one minute.
pub(super) async fn listener() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let serve = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 16_384];
            // The sender may be dead by now.
            if stream.read(&mut request).await.is_err() {
                continue;
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await.ok();
        }
    };
    #[expect(clippy::disallowed_methods, reason = "it ends with the test's runtime")]
    drop(tokio::spawn(tokio::time::timeout(Duration::from_secs(60), serve)));
    url
}

/// Pauses every job, waits until everything has its verdict, and judges.
pub(super) async fn judge_all(api: &Api, journal: &Journal, rules: Rules) -> Report {
    for job in api.all("/api/v1/jobs", &[]).await {
        let path = format!("/api/v1/jobs/{}/pause?queued=run", job["name"].as_str().expect("a name"));
        // A database that has just come back may not answer the first call.
        wait_until(LIMIT, "the job is paused", async || {
            let answer = api.post(&path, json!({})).await;
            if answer.status == 200 { Ok(()) } else { Err(answer) }
        })
        .await;
    }
    wait_until_settled(api).await;
    check::check(&check::collect(api, journal.folder()).await, rules)
}

/// Waits until nothing is open.
pub(super) async fn wait_until_settled(api: &Api) {
    wait_until(Duration::from_secs(90), "every run has a verdict", async || {
        let open_runs = api.all("/api/v1/runs", &[("status", "pending,waiting,running")]).await;
        if open_runs.is_empty() {
            Ok(())
        } else {
            Err(format!("{} open: {:#?}", open_runs.len(), &open_runs[..open_runs.len().min(3)]))
        }
    })
    .await;
}

/// A source of random numbers, which differ in each run of the tests unless `RONDEL_TEST_SEED` fixes them.
#[derive(Debug)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new() -> Self {
        use std::hash::{BuildHasher as _, RandomState};
        let seed = variable("RONDEL_TEST_SEED").and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(()) % 1_000_000);
        print(&format!("RONDEL_TEST_SEED={seed}"));
        Self(seed)
    }

    /// The next number below `bound`, by splitmix64.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % bound.max(1)
    }

    pub(super) fn millis(&mut self, bound: u64) -> Duration {
        Duration::from_millis(self.below(bound))
    }
}

/// How often a process dies at each failpoint in the long form; `None` in the short form.
pub(super) fn rounds() -> Option<usize> {
    variable("TEST_MATRIX_ROUNDS").and_then(|text| text.parse().ok())
}

/// Adds a line to the table of the long form.
pub(super) fn record_outcome(backend: Backend, place: &str, outcome: &str) {
    let Some(path) = variable("TEST_MATRIX_OUT") else { return };
    append(Path::new(&path), &format!("{backend} {place} {outcome}\n"));
}

/// Prints a text, which is shown if the test fails, or with `--nocapture`.
pub(super) fn print(text: &str) {
    std::io::Write::write_all(&mut std::io::stdout(), format!("{text}\n").as_bytes()).expect("print");
}
