//! A PostgreSQL for one test, and the failures of databases: it is killed, stopped, read-only, or out of connections.
//! Nothing that was acknowledged is lost, and scheduling continues without help.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{
    Api, Backend, Method, Process, ScratchDb, Signal, left_out_without, variable, wait_until, wall_clock_ms,
};
use serde_json::json;
use tokio::time::Instant;

use super::fixture::{Journal, Worker, create_mixed_jobs, job, judge_all, print, server};

const JOB_COUNT: usize = 60;
const LIMIT: Duration = Duration::from_secs(60);
/// How soon scheduling continues once the database is back.
const CONTINUES_WITHIN_MS: i64 = 2_000;
/// The delay that a busy machine adds.
const MACHINE_DELAY_MS: i64 = 1_500;

pub(super) struct Postgres {
    bin: PathBuf,
    folder: tempfile::TempDir,
    pub(super) port: u16,
    process: Option<Process>,
}

impl Postgres {
    /// Starts a PostgreSQL; `None` if this host has none installed.
    pub(super) async fn start() -> Option<Self> {
        let Some(bin) = newest_bin() else {
            left_out_without("postgres", "there is no PostgreSQL to start");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("rondel-postgres-").tempdir().expect("make a folder");
        run(Command::new("chown").arg("postgres").arg(folder.path()));
        let data = folder.path().join("data");
        let mut initdb = as_postgres(&bin.join("initdb"), folder.path());
        run(initdb.arg("--pgdata").arg(&data).args([
            "--username=rondel",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
        ]));
        let mut postgres = Self { bin, folder, port: free_port(), process: None };
        postgres.up().await;
        postgres.sql("CREATE ROLE app LOGIN");
        postgres.sql("ALTER DATABASE postgres OWNER TO app");
        postgres.sql("GRANT ALL ON SCHEMA public TO app");
        Some(postgres)
    }

    /// Makes a standby: a copy that follows the changes, and takes no writes until it is promoted.
    pub(super) async fn standby(&self) -> Self {
        let folder = tempfile::Builder::new().prefix("rondel-standby-").tempdir().expect("make a folder");
        run(Command::new("chown").arg("postgres").arg(folder.path()));
        let mut copy = as_postgres(&self.bin.join("pg_basebackup"), folder.path());
        copy.args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "--wal-method=stream", "--pgdata"]);
        run(copy.arg(folder.path().join("data")).arg("--dbname").arg(self.owner_url()));
        let mut standby = Self { bin: self.bin.clone(), folder, port: free_port(), process: None };
        standby.up().await;
        standby
    }

    /// The URL for the servers, and for the clients that use up all connections.
    pub(super) fn url(&self) -> String {
        format!("postgres://app@127.0.0.1:{}/postgres", self.port)
    }

    /// The URL for the test: the database reserves a few connections for this user.
    fn owner_url(&self) -> String {
        format!("postgres://rondel@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts PostgreSQL, and tries again while the remains of the previous process prevent a start.
    async fn up(&mut self) {
        wait_until(LIMIT, "PostgreSQL answers", async || {
            if self.process.as_mut().is_none_or(|process| process.has_ended().is_some()) {
                let mut command = as_postgres(&self.bin.join("postgres"), self.folder.path());
                command.arg("-D").arg(self.folder.path().join("data")).args(["-p", &self.port.to_string(), "-k"]);
                command.arg(self.folder.path()).args(["-c", "listen_addresses=127.0.0.1", "-c", "max_connections=50"]);
                self.process = Some(Process::start("PostgreSQL", command));
            }
            let status = Command::new(self.bin.join("pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status()
                .expect("run pg_isready");
            if status.success() { Ok(()) } else { Err(self.process.as_ref().map(Process::last_words)) }
        })
        .await;
    }

    pub(super) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was started")
    }

    /// Stops PostgreSQL and the processes that serve its connections: statements get no answer.
    pub(super) fn freeze(&mut self) {
        self.process().signal(Signal::STOP);
        let postmaster = self.process().id().to_string();
        run(Command::new("sh").args(["-c", "kill -STOP $(cat /proc/$0/task/$0/children)", &postmaster]));
    }

    /// Runs a statement, even if the database's transactions are read-only by default. Returns its output.
    pub(super) fn sql(&self, statement: &str) -> String {
        let mut psql = Command::new("psql");
        psql.env("PGOPTIONS", "-c default_transaction_read_only=off");
        psql.args([
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set=ON_ERROR_STOP=1",
            "--command",
            statement,
        ]);
        run(psql.arg(self.owner_url())).trim().to_owned()
    }
}

pub(super) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    listener.and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn newest_bin() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    versions.map(|version| version.path()).max_by_key(number).map(|path| path.join("bin"))
}

/// PostgreSQL refuses to run as root, so it runs as its own user.
pub(super) fn as_postgres(program: &Path, folder: &Path) -> Command {
    let as_root = is_root();
    let mut command = Command::new(if as_root { Path::new("setpriv") } else { program });
    if as_root {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    }
    command.current_dir(folder);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

pub(super) fn run(command: &mut Command) -> String {
    let output = command.output().expect("run a program of PostgreSQL");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A system on this database, with a client that triggers runs all the time.
struct Scene {
    postgres: Postgres,
    journal: Journal,
    api: Api,
}

impl Scene {
    /// Asserts that handlers begin again soon after an instant.
    async fn assert_continues(&self, back_ms: i64, outage: &str) {
        let first_begin = wait_until(LIMIT, &format!("scheduling goes on: {outage}"), async || {
            let starts = self.journal.starts();
            let next_begin = starts.iter().map(|start| start.begin_ms).find(|begin| *begin > back_ms);
            next_begin.ok_or_else(|| starts.last().cloned())
        })
        .await;
        print(&format!("{outage}: handlers began again {} ms after the return", first_begin - back_ms));
        assert!(
            first_begin - back_ms <= CONTINUES_WITHIN_MS + MACHINE_DELAY_MS,
            "{outage}: after {} ms",
            first_begin - back_ms
        );
        self.journal.wait_for_starts(2 * JOB_COUNT).await;
    }

    async fn killed(&mut self) {
        self.postgres.process().kill().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.postgres.up().await;
        self.assert_continues(wall_clock_ms(), "killed and started again").await;
    }

    async fn away(&mut self, length: Duration) {
        self.postgres.process().signal(Signal::QUIT);
        let back_at = Instant::now() + length;
        wait_until(LIMIT, "the server reports that the database refuses connections", async || {
            let answer = self.api.get("/readyz?verbose").await;
            let is_reported = answer.body.to_string().contains("unreachable");
            if is_reported { Ok(()) } else { Err(answer.body.to_string()) }
        })
        .await;
        tokio::time::sleep_until(back_at).await;
        self.postgres.up().await;
        self.assert_continues(wall_clock_ms(), &format!("away for {length:?}")).await;
    }

    async fn read_only(&self) {
        self.postgres.sql("ALTER SYSTEM SET default_transaction_read_only = on");
        self.postgres.sql("SELECT pg_reload_conf()");
        tokio::time::sleep(Duration::from_secs(8)).await;
        self.postgres.sql("ALTER SYSTEM RESET default_transaction_read_only");
        self.postgres.sql("SELECT pg_reload_conf()");
        self.assert_continues(wall_clock_ms(), "read-only for 8 s").await;
    }

    async fn out_of_connections(&self) {
        let url = self.postgres.url();
        let eat = format!("while :; do psql --no-psqlrc -qc 'SELECT pg_sleep(60)' '{url}'; sleep 0.3; done");
        let mut eaters = Command::new("sh");
        eaters.args(["-c", &format!("for i in $(seq 60); do ({eat}) & done; wait")]);
        let eaters = Process::start("those who eat connections", eaters);
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Clients that wait for a connection are quicker to take one than the servers.
        let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' \
                      AND query NOT LIKE '%pg_sleep%'";
        self.postgres.sql(others);
        tokio::time::sleep(Duration::from_secs(8)).await;
        drop(eaters);
        // The statement of a dead client continues to its end, unless it is terminated.
        let asleep = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app' \
                      AND query LIKE '%pg_sleep%'";
        self.postgres.sql(asleep);
        self.assert_continues(wall_clock_ms(), "out of connections for 8 s").await;
    }
}

#[tokio::test]
async fn nothing_is_lost_when_postgres_is_in_trouble() {
    let Some(postgres) = Postgres::start().await else { return };
    let db = ScratchDb::given(Backend::Postgres, &postgres.url());
    let journal = Journal::new();
    let [first, second] = [server(&db, &[]).await, server(&db, &[]).await];
    let api = first.api().recording(journal.folder());
    create_mixed_jobs(&api, JOB_COUNT, 40).await;
    let by_hand = job("by-hand", json!({}), json!({"schedule": null, "overlap": {"policy": "allow"}}));
    api.post("/api/v1/jobs", by_hand).await.expect(201);
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &[]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &[]).await,
    ];
    journal.wait_for_starts(2 * JOB_COUNT).await;
    let clicks = triggers(api.clone());
    let mut scene = Scene { postgres, journal, api };
    let away = variable("TEST_AWAY_SECONDS").and_then(|text| text.parse().ok()).unwrap_or(15);
    scene.killed().await;
    scene.away(Duration::from_secs(away)).await;
    scene.read_only().await;
    scene.out_of_connections().await;
    clicks.abort();
    let report = judge_all(&scene.api, &scene.journal, Rules::default()).await;
    print(&format!("a database in trouble: {report}"));
    report.assert_clean();
}

/// A client that triggers five runs a second: acknowledged runs must exist at the end.
pub(super) fn triggers(api: Api) -> tokio::task::JoinHandle<()> {
    #[expect(clippy::disallowed_methods, reason = "the test ends it")]
    tokio::spawn(async move {
        loop {
            let request = api.request(Method::POST, "/api/v1/jobs/by-hand/runs").json(&json!({}));
            drop(api.try_answer(request.timeout(Duration::from_secs(5))).await);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
}
