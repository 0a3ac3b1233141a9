//! PostgreSQL behind a pooler (Debian's package `pgbouncer`) that gives each transaction another session.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rondel_tests::check::Rules;
use rondel_tests::{Backend, Process, ScratchDb, binary, left_out_without, wait_until};

use super::database::{Postgres, as_postgres, run};
use super::fixture::{Journal, Worker, create_mixed_jobs, judge_all, print, server};

const LIMIT: Duration = Duration::from_secs(60);
const JOB_COUNT: usize = 30;
/// The driver sends the parameter `extra_float_digits`, which pgbouncer refuses without this setting.
const IGNORE: &str = "ignore_startup_parameters = extra_float_digits";

struct Pooler {
    port: u16,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Pooler {
    async fn start(program: &std::path::Path, postgres: &Postgres, settings: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("rondel-pooler-").tempdir().expect("make a folder");
        run(Command::new("chown").arg("postgres").arg(folder.path()));
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| listener.local_addr())
            .expect("a port")
            .port();
        let settings = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} dbname=postgres user=app\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n\
             default_pool_size = 8\n{settings}\n",
            postgres.port
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("write its settings");
        let mut command = as_postgres(program, folder.path());
        command.arg(&file);
        let process = Process::start("PgBouncer", command);
        wait_until(LIMIT, "PgBouncer listens", async || {
            let connected = std::net::TcpStream::connect(("127.0.0.1", port));
            connected.map(drop).map_err(|error| format!("{error}: {}", process.last_words()))
        })
        .await;
        Self { port, _process: process, _folder: folder }
    }

    fn url(&self) -> String {
        format!("postgres://app@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs a statement as another client of the pooler, and returns its output.
    fn ask(&self, statement: &str) -> String {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", statement]).arg(self.url());
        let output = psql.output().expect("run psql");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

fn program() -> Option<PathBuf> {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/bin", "/usr/local/sbin"];
    let program = folders.iter().map(|folder| PathBuf::from(folder).join("pgbouncer")).find(|path| path.exists());
    if program.is_none() {
        left_out_without("pgbouncer", "there is no PgBouncer");
    }
    program
}

/// Two servers and their jobs work behind a pooler, and one of the servers dies. Nothing is lost, and other clients of the
/// pooler do not see settings of a server's session.
#[tokio::test]
async fn servers_work_behind_a_pooler_that_shares_sessions() {
    let Some(program) = program() else { return };
    let Some(postgres) = Postgres::start().await else { return };
    let pooler = Pooler::start(&program, &postgres, &format!("pool_mode = transaction\n{IGNORE}")).await;
    let db = ScratchDb::given(Backend::Postgres, &pooler.url());
    let journal = Journal::new();
    let [first, mut second] = [server(&db, &[]).await, server(&db, &[]).await];
    let api = first.api().recording(journal.folder());
    create_mixed_jobs(&api, JOB_COUNT, 40).await;
    let _workers = [
        Worker::start(&[&first, &second], "one", &journal, None, &[]).await,
        Worker::start(&[&second, &first], "two", &journal, None, &[]).await,
    ];
    journal.wait_for_starts(3 * JOB_COUNT).await;
    second.kill().await;
    journal.wait_for_starts(4 * JOB_COUNT).await;
    let report = judge_all(&api, &journal, Rules::default()).await;
    print(&format!("behind a pooler: {report}"));
    report.assert_clean();
    for (setting, default) in [("lock_timeout", "0"), ("statement_timeout", "0"), ("enable_seqscan", "on")] {
        for _ in 0..10 {
            assert_eq!(pooler.ask(&format!("SHOW {setting}")), default, "{setting}");
        }
    }
    assert_eq!(pooler.ask("SELECT COUNT(*) FROM pg_prepared_statements"), "0");
}

/// A wrong pooler setting is reported with its remedy, and no server starts partially.
#[tokio::test]
async fn a_pooler_that_is_not_set_up_is_named_at_the_start() {
    let Some(program) = program() else { return };
    let Some(postgres) = Postgres::start().await else { return };
    for (settings, cure) in [
        ("pool_mode = transaction".to_owned(), "in pgbouncer.ini set ignore_startup_parameters = extra_float_digits"),
        (format!("pool_mode = statement\n{IGNORE}"), "in pgbouncer.ini set pool_mode = transaction, or session"),
    ] {
        let pooler = Pooler::start(&program, &postgres, &settings).await;
        let folder = tempfile::tempdir().expect("make a folder");
        let mut command = Command::new(binary());
        command.args(["server", "--listen", "127.0.0.1:0", "--database", &pooler.url(), "--data-dir"]);
        let mut process = Process::start("a server", {
            command.arg(folder.path());
            command
        });
        let status = process.wait(LIMIT).await;
        assert!(!status.success());
        let words = process.stderr();
        assert!(words.contains(cure), "{words}");
    }
}
