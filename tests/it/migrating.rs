//! Servers that migrate their database concurrently, that die during a migration, or that migrate while another server
//! runs.

use std::process::Command;
use std::time::Duration;

use rondel_tests::{Agent, Backend, Process, ScratchDb, Server, binary, wait_until};
use serde_json::json;
use tempfile::TempDir;

use crate::journal::{Journal, check_against_ledger};
use crate::on_each_database;

const LIMIT: Duration = Duration::from_secs(60);
const LISTENS: &str = "listening on http://";

/// A server that may end before it listens.
fn launch(db: &ScratchDb, args: &[&str]) -> (Process, TempDir) {
    let folder = tempfile::tempdir().expect("make a folder");
    let mut command = Command::new(binary());
    command
        .args(["server", "--database", db.url(), "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path())
        .args(args);
    (Process::start("a server", command), folder)
}

/// The number of migrations that the database has recorded, and how many different ones these are.
fn applied(db: &ScratchDb) -> (String, String) {
    let count = |what: &str| db.sql(&format!("SELECT COUNT({what}) FROM _sqlx_migrations"));
    (count("*"), count("DISTINCT version"))
}

/// Starts five servers concurrently. All of them listen, but on an SQLite file only one.
async fn five_at_once(db: &ScratchDb) {
    let mut servers: Vec<(Process, TempDir)> = (0..5).map(|_| launch(db, &[])).collect();
    let listening = wait_until(LIMIT, "all of five servers listen or have ended", async || {
        let mut listening = 0;
        for (server, _) in &mut servers {
            let listens = server.stdout().contains(LISTENS);
            if !listens && server.has_ended().is_none() {
                return Err(server.last_words());
            }
            listening += usize::from(listens);
        }
        Ok(listening)
    })
    .await;
    let words: Vec<String> = servers.iter().map(|(server, _)| server.last_words()).collect();
    let expected = if db.backend() == Backend::Sqlite { 1 } else { 5 };
    assert_eq!(listening, expected, "{words:#?}");
    let refusal_count = words.iter().filter(|words| words.contains("is in use by another rondel server")).count();
    assert_eq!(refusal_count, 5 - expected, "{words:#?}");
    for (server, _) in &mut servers {
        if server.has_ended().is_none() {
            server.kill().await;
        }
    }
}

async fn servers_that_start_at_once_on_an_empty_database_migrate_it_once(db: ScratchDb) {
    five_at_once(&db).await;
    let (all, distinct) = applied(&db);
    assert_eq!(all, distinct);
}
on_each_database!(servers_that_start_at_once_on_an_empty_database_migrate_it_once);

/// Each start dies between two migrations, and leaves an older schema from which the next start continues. At the end, five
/// servers start concurrently.
async fn a_server_that_dies_between_two_migrations_is_followed_by_one_that_goes_on(db: ScratchDb) {
    let mut before = 0;
    for count in [1, 4, 7] {
        let (mut server, _folder) = launch(&db, &["--failpoint", &format!("next_migration.begun@{count}=abort")]);
        let exit_status = server.wait(LIMIT).await;
        assert!(!exit_status.success(), "{}", server.last_words());
        let now: usize = applied(&db).0.parse().expect("a number");
        assert_eq!(now, before + count, "each start applies so many more");
        before = now;
    }
    five_at_once(&db).await;
    let (all, distinct) = applied(&db);
    assert_eq!(all, distinct);
    assert!(all.parse::<usize>().expect("a number") > before);
}
on_each_database!(a_server_that_dies_between_two_migrations_is_followed_by_one_that_goes_on);

/// The schema changes under a server that runs jobs each second, while its executors are connected.
async fn a_running_server_goes_on_while_another_one_migrates(db: ScratchDb) {
    let one = Server::start(&db).await;
    let api = one.api();
    let journal = Journal::new();
    let job = json!({
        "name": "j", "app": "files", "handler": "shell", "params": journal.params(""), "schedule": {"every": "1s"},
        "misfire": {"policy": "all", "max": 100},
    });
    api.post("/api/v1/jobs", job).await.expect(201);
    let _agent = Agent::start(&one, "files").await;
    let lines = async |count: usize| {
        let what = format!("{count} runs");
        wait_until(LIMIT, &what, async || if journal.lines().len() >= count { Ok(()) } else { Err(one.data_folder()) })
            .await;
    };
    lines(2).await;
    // Removes what a newer server adds, which gives the schema of the previous version.
    let on = if db.backend() == Backend::Postgres { "" } else { " ON executor" };
    db.sql(&format!("DROP INDEX executor_predecessor{on}"));
    db.sql("DELETE FROM _sqlx_migrations WHERE version = 22");
    let before = applied(&db).0;
    let (mut two, _folder) = launch(&db, &[]);
    two.wait_for_line(LIMIT, LISTENS).await;
    assert_ne!(applied(&db).0, before);
    let count = journal.lines().len();
    lines(count + 5).await;
    api.post("/api/v1/jobs/j/pause", json!({})).await.expect(200);
    let runs = wait_until(LIMIT, "every run has a verdict", async || {
        let runs = api.runs("j").await;
        if runs.iter().all(|run| !run["finished_at"].is_null()) { Ok(runs) } else { Err(runs) }
    })
    .await;
    let odd: Vec<_> = runs
        .iter()
        .filter(|run| run["status"] != "succeeded" && run["reason"] != "paused" || run["attempt"] != 1)
        .collect();
    assert!(odd.is_empty(), "{odd:#?}");
    check_against_ledger(&journal.lines(), &runs);
    two.kill().await;
}
mod a_running_server_goes_on {
    use rondel_tests::{Backend, scratch};

    #[tokio::test]
    async fn postgres() {
        if let Some(db) = scratch(Backend::Postgres).await {
            Box::pin(super::a_running_server_goes_on_while_another_one_migrates(db)).await;
        }
    }

    #[tokio::test]
    async fn mysql() {
        if let Some(db) = scratch(Backend::Mysql).await {
            Box::pin(super::a_running_server_goes_on_while_another_one_migrates(db)).await;
        }
    }
}

/// A schema that declares itself too new is refused in one sentence, before anything in it changes.
async fn an_older_server_refuses_a_schema_that_is_too_new(db: ScratchDb) {
    let mut server = Server::start(&db).await;
    server.kill().await;
    db.sql("UPDATE schema_compat SET min_server = '99.1.0'");
    db.sql("DELETE FROM _sqlx_migrations WHERE version = 24");
    let before = applied(&db);
    let (mut server, _folder) = launch(&db, &[]);
    let exit_status = server.wait(LIMIT).await;
    assert_eq!(exit_status.code(), Some(1), "{}", server.last_words());
    assert!(
        server.last_words().contains("the database needs rondel 99.1.0 or newer, this is"),
        "{}",
        server.last_words()
    );
    assert_eq!(applied(&db), before);
}
on_each_database!(an_older_server_refuses_a_schema_that_is_too_new);
