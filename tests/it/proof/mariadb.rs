//! A MariaDB of a test's own that takes no writes for a while, as one that is switched over.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, Process, ScratchDb, wait_until, wall_clock_ms};

use super::stage::{Journal, Worker, judged, mixed_jobs, print, server};

const JOB_COUNT: usize = 30;
const LIMIT: Duration = Duration::from_secs(60);
/// How soon scheduling goes on, with what a busy machine adds.
const GOES_ON_MS: i64 = 3_500;

struct MariaDb {
    folder: tempfile::TempDir,
    port: u16,
    _process: Process,
}

impl MariaDb {
    /// Makes one; none where there is no MariaDB to make it of.
    async fn start() -> Option<Self> {
        Command::new("mariadb-install-db").arg("--help").output().ok()?;
        let folder = tempfile::Builder::new().prefix("rondel-mariadb-").tempdir().expect("make a folder");
        let data = folder.path().join("data");
        if is_root() {
            run(Command::new("chown").arg("mysql").arg(folder.path()));
        }
        run(as_mysql("mariadb-install-db", folder.path())
            .args(["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"])
            .arg(format!("--datadir={}", data.display())));
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let mut command = as_mysql("mariadbd", folder.path());
        command.args([
            "--no-defaults",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
        ]);
        let path = |name: &str| folder.path().join(name).display().to_string();
        command.arg(format!("--port={port}")).arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", path("socket"))).arg(format!("--pid-file={}", path("pid")));
        let database = Self { folder, port, _process: Process::start("MariaDB", command) };
        wait_until(LIMIT, "MariaDB answers", async || database.try_sql("SELECT 1")).await;
        // A user with all rights on everything may write to a database that takes no writes.
        for statement in [
            "CREATE DATABASE rondel",
            "CREATE USER 'app'@'127.0.0.1' IDENTIFIED BY 'app'",
            "GRANT ALL ON rondel.* TO 'app'@'127.0.0.1'",
        ] {
            database.sql(statement);
        }
        Some(database)
    }

    fn url(&self) -> String {
        format!("mysql://app:app@127.0.0.1:{}/rondel", self.port)
    }

    fn try_sql(&self, statement: &str) -> Result<(), String> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--execute", statement]);
        let output = client
            .arg(format!("--socket={}", self.folder.path().join("socket").display()))
            .output()
            .expect("run mariadb");
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    fn sql(&self, statement: &str) {
        let ran = self.try_sql(statement);
        assert!(ran.is_ok(), "{statement}: {ran:?}");
    }
}

/// As root, MariaDB does not run: its own user has to.
fn as_mysql(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(if is_root() { "setpriv" } else { program });
    if is_root() {
        command.args(["--reuid=mysql", "--regid=mysql", "--init-groups", "--", program]);
    }
    let path = rondel_tests::variable("PATH").unwrap_or_default();
    // Debian keeps mariadbd where an ordinary user's PATH does not look.
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
    mixed_jobs(&api, JOB_COUNT, 40).await;
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &[]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &[]).await,
    ];
    journal.grows(2 * JOB_COUNT).await;
    database.sql("SET GLOBAL read_only = ON");
    wait_until(LIMIT, "the server reports that the database takes no writes", async || {
        let answer = api.get("/readyz?verbose").await;
        let is_reported = answer.body.to_string().contains("read_only");
        if is_reported { Ok(()) } else { Err(answer.body.to_string()) }
    })
    .await;
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
    journal.grows(2 * JOB_COUNT).await;
    let report = judged(&api, &journal, Rules::default()).await;
    print(&format!("MariaDB without writes: {report}"));
    report.assert_clean();
}
