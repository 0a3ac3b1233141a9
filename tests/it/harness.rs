//! The test harness itself: a database that it creates is empty at first, and is removed afterwards.

use std::process::Command;

use rondel_tests::{Backend, scratch};

#[tokio::test]
async fn a_sqlite_database_is_a_folder_that_goes_with_the_value() {
    let db = scratch(Backend::Sqlite).await.expect("SQLite is always there");
    let path = std::path::PathBuf::from(db.url().strip_prefix("sqlite://").expect("the URL has the scheme"));
    let folder = path.parent().expect("the file lies in a folder").to_owned();
    assert!(folder.is_dir() && !path.exists(), "{}", path.display());
    drop(db);
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_postgres_database_is_empty_and_goes_with_the_value() {
    let Some(db) = scratch(Backend::Postgres).await else { return };
    let count = |url: &str| {
        let query = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
        output(Command::new("psql").args(["--no-psqlrc", "-At", "-c", query, url]))
    };
    assert_eq!(count(db.url()).as_deref(), Some("0"));
    let url = db.url().to_owned();
    drop(db);
    assert_eq!(count(&url), None, "the database is still there");
}

#[tokio::test]
async fn two_mysql_databases_are_two() {
    let Some(first_db) = scratch(Backend::Mysql).await else { return };
    let second_db = scratch(Backend::Mysql).await.expect("the server is still there");
    assert_ne!(first_db.url(), second_db.url());
}

/// The output of a command, if it succeeded.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().expect("run a database's client");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
