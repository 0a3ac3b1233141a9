//! A fresh, empty database for each test, on each of the databases that Rondel runs on.
//!
//! `SQLite` needs nothing. For the two others `RONDEL_TEST_POSTGRES_URL` and `RONDEL_TEST_MYSQL_URL` name a server on which
//! the given user may create databases; `tests/run` starts both and sets them. The databases are made by the servers' own
//! command line clients, so that this crate needs no driver.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::process::Command;

use reqwest::Url;
use tempfile::TempDir;

use crate::settings;

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// A file in a scratch folder; always there.
    Sqlite,
    /// The server of `RONDEL_TEST_POSTGRES_URL`.
    Postgres,
    /// The server of `RONDEL_TEST_MYSQL_URL`: `MySQL` or `MariaDB`.
    Mysql,
}

impl Backend {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sqlite, Self::Postgres, Self::Mysql];

    /// The word by which `RONDEL_TEST_REQUIRE` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
        }
    }

    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => None,
            Self::Postgres => Some("RONDEL_TEST_POSTGRES_URL"),
            Self::Mysql => Some("RONDEL_TEST_MYSQL_URL"),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A database for one test. It is removed when the value is dropped, unless `RONDEL_TEST_KEEP` is `1`, or is `failed`
/// and the test fails.
#[derive(Debug)]
pub struct ScratchDb {
    backend: Backend,
    url: String,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Its creator removes it.
    Elsewhere,
    Folder {
        folder: TempDir,
    },
    Server {
        server: Url,
        database: String,
    },
}

impl ScratchDb {
    /// A database that the caller created and keeps.
    #[must_use]
    pub fn given(backend: Backend, url: &str) -> Self {
        Self { backend, url: url.to_owned(), place: Place::Elsewhere }
    }

    /// The URL to give to `rondel server --database`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Which kind of database it is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Runs a statement directly in the database. Returns a line per row, with tabs between the columns.
    ///
    /// # Panics
    /// If the database refuses the statement.
    pub fn sql(&self, statement: &str) -> String {
        let url = || Url::parse(&self.url).unwrap_or_else(|error| panic!("{}: {error}", self.url));
        let found = match self.backend {
            Backend::Sqlite => sqlite(self.url.trim_start_matches("sqlite://"), statement),
            Backend::Postgres => psql(&url(), statement),
            Backend::Mysql => mariadb(&url(), statement),
        };
        found.unwrap_or_else(|problem| panic!("{problem}"))
    }
}

impl Drop for ScratchDb {
    fn drop(&mut self) {
        let (server, database) = match &mut self.place {
            Place::Server { server, database } => (server, database),
            Place::Folder { folder } => return folder.disable_cleanup(settings::keeps()),
            Place::Elsewhere => return,
        };
        if settings::keeps() {
            eprintln!("kept: {} database {database}", self.backend);
            return;
        }
        let dropped = match self.backend {
            Backend::Sqlite => return,
            Backend::Postgres => psql(server, &format!("DROP DATABASE {database} WITH (FORCE)")),
            Backend::Mysql => mariadb(server, &format!("SET lock_wait_timeout = 5; DROP DATABASE {database}")),
        };
        if let Err(problem) = dropped {
            assert!(std::thread::panicking(), "{problem}");
            eprintln!("{problem}");
        }
    }
}

/// A fresh, empty database. If there is no server for it, prints a line on stderr that begins `skipped: `, and returns
/// `None`.
///
/// The caller then returns immediately and counts as skipped: a test requests only one database, before anything else.
///
/// # Panics
/// If the server is set but does not create the database, and if `RONDEL_TEST_REQUIRE` lists a database that is
/// missing.
pub async fn scratch(backend: Backend) -> Option<ScratchDb> {
    let Some(variable) = backend.variable() else {
        let folder = settings::scratch_folder("rondel-db-");
        let url = format!("sqlite://{}", folder.path().join("rondel.db").display());
        return Some(ScratchDb { backend, url, place: Place::Folder { folder } });
    };
    let Some(server) = settings::variable(variable) else {
        let reason = format!("{backend}: {variable} is not set");
        assert!(!settings::requires(backend.name()), "RONDEL_TEST_REQUIRE lists {reason}");
        skip(&reason);
        return None;
    };
    let server = Url::parse(&server).unwrap_or_else(|error| panic!("{variable}: {error}"));
    let database = format!("rondel_test_{:016x}", RandomState::new().hash_one(std::process::id()));
    let create = format!("CREATE DATABASE {database}");
    let created = if backend == Backend::Postgres { psql(&server, &create) } else { mariadb(&server, &create) };
    created.unwrap_or_else(|problem| panic!("{problem}"));
    let mut url = server.clone();
    url.set_path(&database);
    Some(ScratchDb { backend, url: url.into(), place: Place::Server { server, database } })
}

/// The databases that are missing, one sentence each.
pub(crate) fn uncovered() -> impl Iterator<Item = String> {
    Backend::ALL.into_iter().filter_map(|backend| {
        let variable = backend.variable().filter(|name| settings::variable(name).is_none())?;
        Some(format!("{backend}, as {variable} is not set"))
    })
}

/// Reports that a test is skipped because a program is missing; the caller returns.
///
/// # Panics
/// If `RONDEL_TEST_REQUIRE` lists the program.
pub fn left_out_without(program: &str, reason: &str) {
    assert!(!settings::requires(program), "RONDEL_TEST_REQUIRE lists {program}: {reason}");
    skip(reason);
}

/// Prints a line with the test's name that bypasses the capture of the test's output: `tests/run` counts these lines.
fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {} ({reason})\n", thread.name().unwrap_or("a test"));
    std::io::stderr().lock().write_all(line.as_bytes()).expect("write to stderr");
}

/// Uses Python's client of SQLite, the only one that is installed wherever the tests run.
fn sqlite(path: &str, statement: &str) -> Result<String, String> {
    const PROGRAM: &str = "import sqlite3, sys\n\
        database = sqlite3.connect(sys.argv[1], timeout=20)\n\
        rows = database.execute(sys.argv[2]).fetchall()\n\
        database.commit()\n\
        print('\\n'.join('\\t'.join(str(value) for value in row) for row in rows))";
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM, path, statement]);
    run(command, statement)
}

fn psql(server: &Url, statement: &str) -> Result<String, String> {
    let mut command = Command::new("psql");
    command.args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--field-separator=\t"]);
    command.args(["--set=ON_ERROR_STOP=1", "--command", statement]).arg(server.as_str());
    run(command, statement)
}

fn mariadb(server: &Url, statement: &str) -> Result<String, String> {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--protocol=tcp", "--host", server.host_str().unwrap_or("127.0.0.1")]);
    command.args(["--port", &server.port().unwrap_or(3306).to_string(), "--user", server.username()]);
    command.args(["--batch", "--skip-column-names", "--database", server.path().trim_start_matches('/')]);
    command.env("MYSQL_PWD", server.password().unwrap_or_default()).args(["--execute", statement]);
    run(command, statement)
}

fn run(mut command: Command, statement: &str) -> Result<String, String> {
    let client = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{client}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned());
    }
    Err(format!("{client}: {statement}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
