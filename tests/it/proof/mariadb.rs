//! A MariaDB for one test that takes no writes for a while, as during a switch-over.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, Process, ScratchDb, left_out_without, wait_until, wall_clock_ms};

use super::database::free_port;
use super::fixture::{Journal, Worker, create_mixed_jobs, judge_all, print, server};

const JOB_COUNT: usize = 30;
const LIMIT: Duration = Duration::from_secs(60);
/// How soon scheduling continues, with the delay that a busy machine adds.
const GOES_ON_MS: i64 = 3_500;

pub(super) struct MariaDb {
    folder: tempfile::TempDir,
    pub(super) port: u16,
    process: Option<Process>,
}

impl MariaDb {
    /// Starts a MariaDB that takes writes; `None` if this host has none installed.
    async fn start() -> Option<Self> {
        let mut database = Self::installed()?;
        database.up(&[]).await;
        database.set_up();
        Some(database)
    }

    /// Makes a data folder that no process has opened yet; `None` if MariaDB is not installed.
    pub(super) fn installed() -> Option<Self> {
        if Command::new("mariadb-install-db").arg("--help").output().is_err() {
            left_out_without("mysql", "there is no MariaDB to start");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("rondel-mariadb-").tempdir().expect("make a folder");
        if is_root() {
            run(Command::new("chown").arg("mysql").arg(folder.path()));
        }
        let database = Self { folder, port: free_port(), process: None };
        run(as_mysql("mariadb-install-db", database.folder.path())
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
            .arg(database.data()));
        Some(database)
    }

    /// Starts its process with these settings too, and waits until it answers.
    pub(super) async fn up(&mut self, settings: &[String]) {
        let mut command = self.program(settings);
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
        command.arg(format!("--port={}", self.port));
        command.arg(format!("--socket={}", path("socket"))).arg(format!("--pid-file={}", path("pid")));
        self.process = Some(Process::start("MariaDB", command));
        wait_until(LIMIT, "MariaDB answers", async || {
            let words = || self.process.as_ref().map(Process::last_words);
            self.try_sql("SELECT 1").map_err(|error| (error, words()))
        })
        .await;
    }

    /// Creates the servers' database and their user, whose rights are limited: a user with all rights could write to the database
    /// even while it is read-only.
    pub(super) fn set_up(&self) {
        for statement in [
            "CREATE DATABASE rondel",
            "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'app'",
            "GRANT ALL ON rondel.* TO 'app'@'127.0.0.1'",
        ] {
            self.sql(statement);
        }
    }

    /// The server's program on its data folder.
    pub(super) fn program(&self, settings: &[String]) -> Command {
        let mut command = as_mysql("mariadbd", self.folder.path());
        command.args(["--no-defaults", "--character-set-server=utf8mb4"]).arg(self.data()).args(settings);
        command
    }

    fn data(&self) -> String {
        format!("--datadir={}", self.folder.path().join("data").display())
    }

    pub(super) fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it was started")
    }

    pub(super) fn url(&self) -> String {
        format!("mysql://app:app@127.0.0.1:{}/rondel", self.port)
    }

    /// The client's program with a statement for it. Its rows have no heads.
    pub(super) fn client(&self, statement: &str) -> Command {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--skip-column-names", "--user=root", "--execute", statement]);
        client.arg(format!("--socket={}", self.folder.path().join("socket").display()));
        client
    }

    pub(super) fn try_sql(&self, statement: &str) -> Result<String, String> {
        let output = self.client(statement).output().expect("run mariadb");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    pub(super) fn sql(&self, statement: &str) -> String {
        let ran = self.try_sql(statement);
        assert!(ran.is_ok(), "{statement}: {ran:?}");
        ran.unwrap_or_default()
    }
}

/// MariaDB refuses to run as root, so it runs as its own user.
fn as_mysql(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(if is_root() { "setpriv" } else { program });
    if is_root() {
        command.args(["--reuid=mysql", "--regid=mysql", "--init-groups", "--", program]);
    }
    let path = rondel_tests::variable("PATH").unwrap_or_default();
    // Debian installs mariadbd into a folder that is not on an ordinary user's PATH.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("TMPDIR", folder).current_dir(folder);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

fn run(command: &mut Command) {
    let output = command.output().expect("run a program of MariaDB");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn jobs_go_on_when_mariadb_takes_writes_again() {
    let Some(database) = MariaDb::start().await else { return };
    let db = ScratchDb::given(Backend::Mysql, &database.url());
    let journal = Journal::new();
    let [first, second] = [server(&db, &[]).await, server(&db, &[]).await];
    let api = first.api().recording(journal.folder());
    create_mixed_jobs(&api, JOB_COUNT, 40).await;
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &[]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &[]).await,
    ];
    journal.wait_for_starts(2 * JOB_COUNT).await;
    database.sql("SET GLOBAL read_only = ON");
    wait_until(LIMIT, "the server reports that the database takes no writes", async || {
        let answer = api.get("/readyz?verbose").await;
        let is_reported = answer.body.to_string().contains("read_only");
        if is_reported { Ok(()) } else { Err(answer.body.to_string()) }
    })
    .await;
    // The next use of the token will be recorded, which is a write.
    database.sql("UPDATE rondel.api_token SET last_used_at_ms = NULL");
    api.get("/api/v1/jobs").await.expect(200);
    tokio::time::sleep(Duration::from_secs(3)).await;
    database.sql("SET GLOBAL read_only = OFF");
    let back_ms = wall_clock_ms();
    let first_ms = wait_until(LIMIT, "handlers begin again", async || {
        let starts = journal.starts();
        starts.iter().map(|start| start.begin_ms).find(|begin| *begin > back_ms).ok_or(starts.len())
    })
    .await;
    print(&format!("MariaDB without writes: handlers began again {} ms after the return", first_ms - back_ms));
    assert!(first_ms - back_ms <= GOES_ON_MS, "after {} ms", first_ms - back_ms);
    journal.wait_for_starts(2 * JOB_COUNT).await;
    let report = judge_all(&api, &journal, Rules::default()).await;
    print(&format!("MariaDB without writes: {report}"));
    report.assert_clean();
}
