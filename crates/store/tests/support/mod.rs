//! Fresh stores for tests: a file, or a scratch database on a server that the environment names.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests: an unexpected state ends them with a message")]

use std::sync::atomic::{AtomicU32, Ordering};

use rondel_store::{SqlStore, StoreConfig};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};

/// A server on which tests may create databases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Server {
    Postgres,
    MySql,
}

impl Server {
    const fn word(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }

    /// Its URL. If the environment names none, prints a line about it and returns `None`.
    #[expect(clippy::disallowed_methods, reason = "the environment of the tests names the servers")]
    pub(crate) fn url(self) -> Option<String> {
        let variable = format!("RONDEL_TEST_{}_URL", self.word().to_uppercase());
        if let Ok(url) = std::env::var(&variable) {
            return Some(url);
        }
        let required = std::env::var("RONDEL_TEST_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|word| word.trim() == self.word()),
            "RONDEL_TEST_REQUIRE names {}, but {variable} is not set",
            self.word()
        );
        eprintln!("skipped: {variable} is not set");
        None
    }
}

/// A database for one test. The test drops it at the end.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub(crate) server_url: String,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Scratch {
    pub(crate) async fn create(server: Server) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let server_url = server.url()?;
        sqlx::any::install_default_drivers();
        let name = format!("rondel_test_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection = AnyConnection::connect(&server_url).await.unwrap();
        connection.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        let (base, query) = server_url.split_once('?').unwrap_or((&server_url, ""));
        let start = base.find("://").unwrap() + 3;
        let end = base[start..].find('/').map_or(base.len(), |at| start + at);
        let url = format!("{}/{name}?{query}", &base[..end]).trim_end_matches('?').to_owned();
        Some(Self { server_url, name, url })
    }

    pub(crate) fn config(&self) -> StoreConfig {
        StoreConfig { url: self.url.parse().unwrap(), secret_keys: Some(secret_keys()), ..StoreConfig::default() }
    }

    pub(crate) async fn drop(self) {
        let mut connection = AnyConnection::connect(&self.server_url).await.unwrap();
        connection.execute(AssertSqlSafe(format!("DROP DATABASE {}", self.name))).await.unwrap();
    }
}

/// Checks that `open_run` has a row for each open run, with its values, and no other rows, and `unsuccessful_run` one for each run with a
/// verdict other than success.
pub(crate) async fn assert_open_rows(store: &SqlStore) {
    assert_eq!(
        store.runs_with_wrong_open_rows().await.unwrap(),
        [],
        "these runs have a wrong row in open_run or unsuccessful_run"
    );
}

/// All tests run with a secret key, so that they also cover sealed secrets.
fn secret_keys() -> rondel_store::SecretKeys {
    "5e".repeat(32).parse().unwrap()
}

pub(crate) fn sqlite_config(folder: &std::path::Path) -> StoreConfig {
    let url = rondel_store::DatabaseUrl::sqlite_file(folder.join("ron del%.db"));
    StoreConfig { url, secret_keys: Some(secret_keys()), ..StoreConfig::default() }
}
