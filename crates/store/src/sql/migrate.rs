//! Applies the missing migrations, on one server at a time.
//!
//! A server that finds another one migrating waits for a bounded time. A migration waits only briefly for the lock of a table in use,
//! because every statement of the running servers would queue behind it. PostgreSQL and SQLite keep all of a migration or nothing. On
//! MySQL, an interrupted migration is run again from its first statement.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor, Row};

use super::config::StoreConfig;
use super::dialect::Dialect;
use super::failure::{self, Failure};
use super::online_index;
use super::query::Statement;
use crate::OpenError;

static SQLITE: Migrator = sqlx::migrate!("../../migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../../migrations/postgres");
static MYSQL: Migrator = sqlx::migrate!("../../migrations/mysql");

/// Migrations that break older servers, each with the oldest server version that can work with it. Each also raises `min_server` in
/// `schema_compat`, so that such servers cannot start.
const BREAKING_MIGRATIONS: [(i64, &str); 1] = [(47, "0.2.0")];

/// The table in which the driver records the migrations that were applied.
const MIGRATIONS_TABLE: &str = "_sqlx_migrations";

/// How often a waiting server checks whether the other server has finished its migration.
const CHECK_PERIOD: Duration = Duration::from_millis(200);
/// Pause before a migration tries again to change a table that is in use.
const TABLE_PAUSE: Duration = Duration::from_secs(1);
/// Number of tries. Each waits for the table as long as the lock timeouts of the settings below allow.
const TABLE_TRY_COUNT: u32 = 20;

/// Replaces the driver's own lock, whose timeout is -1. MySQL waits for that lock forever. MariaDB does not know the timeout -1, so the
/// driver would have no lock at all.
const LOCK_MYSQL: &str = "SELECT CAST(GET_LOCK(LEFT(CONCAT('rondel.', DATABASE()), 64), 0) AS SIGNED)";
const UNLOCK_MYSQL: &str = "DO RELEASE_LOCK(LEFT(CONCAT('rondel.', DATABASE()), 64))";
const SETTINGS_MYSQL: &str = "SET SESSION lock_wait_timeout = 2, innodb_lock_wait_timeout = 2, autocommit = 1";
/// Prepares the repetition of an interrupted migration. MySQL has kept a part of it, and each of its statements can run again.
const FORGET_INTERRUPTED_MYSQL: &str = "DELETE FROM _sqlx_migrations WHERE success = FALSE";
/// Removes the statements that other clients of a pooler have prepared in the session, under the names that the driver is about to use.
const DEALLOCATE_POSTGRES: &str = "DEALLOCATE ALL";
const LOCK_POSTGRES: &str = "SELECT CASE WHEN pg_try_advisory_lock(hashtext('rondel.migrate.' || current_database())) \
     THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END";
/// This lock is held until the end of the transaction.
const LOCK_TRANSACTION_POSTGRES: &str = "SELECT CASE WHEN \
     pg_try_advisory_xact_lock(hashtext('rondel.migrate.' || current_database())) \
     THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END";
/// Building an index of a large table takes longer than a statement may otherwise take. With `client_connection_check_interval`, which
/// older versions do not have, the database notices a server that dies during the build.
const SETTINGS_POSTGRES: &str = "SELECT set_config(name, value, false) FROM (VALUES ('lock_timeout', '2s'), \
     ('statement_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), ('client_connection_check_interval', '1s')) \
     AS wanted (setting, value) JOIN pg_settings ON pg_settings.name = wanted.setting";
const SETTINGS_TRANSACTION_POSTGRES: &str = "SELECT set_config(name, value, true) FROM (VALUES ('lock_timeout', '2s'), \
     ('statement_timeout', '0'), ('idle_in_transaction_session_timeout', '0'), ('client_connection_check_interval', '1s')) \
     AS wanted (setting, value) JOIN pg_settings ON pg_settings.name = wanted.setting";
/// Under another default of the database, the transaction might not see that other servers renew their leases.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";
const READ_LIVING_SERVERS: Statement = Statement {
    name: "read_living_servers",
    text: "SELECT name, server_version FROM node WHERE lease_until_ms > {now} ORDER BY name",
};
const READ_MIN_SERVER: &str = "SELECT min_server FROM schema_compat WHERE id = 1";

/// Applies the missing migrations. A schema that is newer than this program is accepted unless it declares itself incompatible.
pub(super) async fn run(
    connection: &mut AnyConnection,
    (dialect, are_sessions_shared): (Dialect, bool),
    config: &StoreConfig,
) -> Result<(), OpenError> {
    for _ in 1..TABLE_TRY_COUNT {
        match try_once(connection, (dialect, are_sessions_shared), config).await {
            Err(OpenError::Migrate(error)) if failure::classify(&error) == Failure::Contention => {
                tracing::warn!(%error, "a table is in use by a long transaction of another client; the migration tries again");
                tokio::time::sleep(TABLE_PAUSE).await;
            }
            result => return result,
        }
    }
    match try_once(connection, (dialect, are_sessions_shared), config).await {
        Err(OpenError::Migrate(source)) if failure::classify(&source) == Failure::Contention => {
            Err(OpenError::TableInUse { source })
        }
        result => result,
    }
}

/// If a pooler shares the sessions, everything is done in one transaction: only a transaction keeps the lock and the prepared statements in
/// one session.
async fn try_once(
    connection: &mut AnyConnection,
    (dialect, are_sessions_shared): (Dialect, bool),
    config: &StoreConfig,
) -> Result<(), OpenError> {
    if !are_sessions_shared {
        let (settings, lock_statement) = match dialect {
            Dialect::Sqlite => return migrate(connection, (dialect, false), config).await,
            Dialect::Postgres => (SETTINGS_POSTGRES, LOCK_POSTGRES),
            Dialect::MySql => (SETTINGS_MYSQL, LOCK_MYSQL),
        };
        connection.execute(settings).await.map_err(OpenError::Migrate)?;
        lock(connection, lock_statement, config.migration_wait).await?;
        let migrate_result = migrate(connection, (dialect, dialect == Dialect::Postgres), config).await;
        // PostgreSQL releases the lock with the session, which ends with the migration.
        if dialect == Dialect::MySql {
            connection.execute(UNLOCK_MYSQL).await.map_err(OpenError::Migrate)?;
        }
        return migrate_result;
    }
    let mut tx = connection.begin().await.map_err(OpenError::Migrate)?;
    for statement in [READ_COMMITTED, DEALLOCATE_POSTGRES, SETTINGS_TRANSACTION_POSTGRES] {
        tx.execute(statement).await.map_err(OpenError::Migrate)?;
    }
    lock(&mut tx, LOCK_TRANSACTION_POSTGRES, config.migration_wait).await?;
    migrate(&mut tx, (dialect, false), config).await?;
    tx.execute(DEALLOCATE_POSTGRES).await.map_err(OpenError::Migrate)?;
    tx.commit().await.map_err(OpenError::Migrate)
}

/// Waits until no other server migrates this database.
async fn lock(connection: &mut AnyConnection, statement: &'static str, wait: Duration) -> Result<(), OpenError> {
    let check_count = wait.as_millis() / CHECK_PERIOD.as_millis();
    for check in 0..=check_count {
        let row = connection.fetch_one(statement).await.map_err(OpenError::Migrate)?;
        let lock_result: Option<i64> = row.try_get(0).map_err(OpenError::Migrate)?;
        if lock_result == Some(1) {
            return Ok(());
        }
        if check == 0 {
            tracing::info!("another server is migrating this database; waiting until it has finished");
        }
        tokio::time::sleep(CHECK_PERIOD).await;
    }
    Err(OpenError::Migrating { waited: wait })
}

async fn migrate(
    connection: &mut AnyConnection,
    (dialect, builds_indexes_first): (Dialect, bool),
    config: &StoreConfig,
) -> Result<(), OpenError> {
    let server_version = config.server_version.as_str();
    let migrations = match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
        Dialect::MySql => &MYSQL,
    };
    connection.ensure_migrations_table(MIGRATIONS_TABLE).await.map_err(migrate_error)?;
    if dialect == Dialect::MySql {
        connection.execute(FORGET_INTERRUPTED_MYSQL).await.map_err(OpenError::Migrate)?;
    }
    rondel_failpoint::pass("migrate.begun");
    let applied_migrations = connection.list_applied_migrations(MIGRATIONS_TABLE).await.map_err(migrate_error)?;
    let checksums: BTreeMap<i64, Vec<u8>> =
        applied_migrations.into_iter().map(|migration| (migration.version, migration.checksum.into_owned())).collect();
    let changed_migration = migrations
        .iter()
        .find(|migration| checksums.get(&migration.version).is_some_and(|sum| **sum != *migration.checksum));
    if let Some(changed_migration) = changed_migration {
        return Err(OpenError::OtherMigration { version: changed_migration.version });
    }
    if !checksums.is_empty() {
        check_compatible(connection, server_version).await?;
    }
    let newest_applied_version = checksums.keys().next_back().copied();
    let newest_known_version = migrations.iter().map(|migration| migration.version).max();
    if newest_applied_version > newest_known_version {
        tracing::warn!(
            schema = newest_applied_version,
            known = newest_known_version,
            "the schema of the database is newer than this server, but still supports servers of this version"
        );
    }
    // Before the first migration, because one that changes the table of the nodes would keep the older servers from renewing their leases.
    let is_pending = |version: &i64| !checksums.is_empty() && !checksums.contains_key(version);
    for (_, min_server) in BREAKING_MIGRATIONS.iter().filter(|(version, _)| is_pending(version)) {
        wait_for_older_servers(connection, dialect, min_server, config.migration_wait).await?;
    }
    let mut is_first = true;
    for migration in migrations.iter().filter(|migration| !checksums.contains_key(&migration.version)) {
        if !is_first {
            rondel_failpoint::pass("next_migration.begun");
        }
        is_first = false;
        if !checksums.is_empty() {
            tracing::info!(migration = migration.version, description = %migration.description, "migrating the database");
            if builds_indexes_first {
                online_index::build(connection, migration.sql.as_str()).await?;
                let migration = online_index::accept_existing(migration);
                connection.apply(MIGRATIONS_TABLE, &migration).await.map_err(migrate_error)?;
                continue;
            }
        }
        connection.apply(MIGRATIONS_TABLE, migration).await.map_err(migrate_error)?;
    }
    rondel_failpoint::pass("migrate.applied");
    check_compatible(connection, server_version).await
}

/// Waits until all servers older than `min_server` have stopped. On SQLite there are none, because the file is locked.
async fn wait_for_older_servers(
    connection: &mut AnyConnection,
    dialect: Dialect,
    min_server: &str,
    wait: Duration,
) -> Result<(), OpenError> {
    if dialect == Dialect::Sqlite {
        return Ok(());
    }
    let statement = dialect.render(&READ_LIVING_SERVERS, 0);
    let check_count = wait.as_millis() / CHECK_PERIOD.as_millis();
    let mut names = Vec::new();
    for check in 0..=check_count {
        names.clear();
        for row in connection.fetch_all(AssertSqlSafe(statement.clone())).await.map_err(OpenError::Migrate)? {
            let name: String = row.try_get(0).map_err(OpenError::Migrate)?;
            let version: String = row.try_get(1).map_err(OpenError::Migrate)?;
            if numbers(&version) < numbers(min_server) {
                names.push(format!("{name} ({version})"));
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        if check == 0 {
            tracing::info!(servers = names.join(", "), min_server, "waiting until these older servers have stopped");
        }
        tokio::time::sleep(CHECK_PERIOD).await;
    }
    Err(OpenError::OlderServers { names: names.join(", "), min_server: min_server.to_owned(), waited: wait })
}

/// Refuses a schema that a newer server has changed beyond what this one understands.
async fn check_compatible(connection: &mut AnyConnection, server_version: &str) -> Result<(), OpenError> {
    let row = connection.fetch_one(READ_MIN_SERVER).await.map_err(OpenError::Migrate)?;
    let min_server: String = row.try_get(0).map_err(OpenError::Migrate)?;
    if numbers(&min_server) > numbers(server_version) {
        return Err(OpenError::TooNew { min_server, this_server: server_version.to_owned() });
    }
    Ok(())
}

fn migrate_error(error: MigrateError) -> OpenError {
    OpenError::Migrate(match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error,
        other => sqlx::Error::Migrate(Box::new(other)),
    })
}

/// `1.2.3-beta` as numbers that can be compared. Anything after the numbers is ignored.
fn numbers(version: &str) -> Vec<u64> {
    let release_numbers = version.split(['-', '+']).next().unwrap_or_default();
    release_numbers.split('.').map(|part| part.trim().parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert!(numbers("0.10.0") > numbers("0.9.9"));
        assert!(numbers("1.0.0") > numbers("0.99.0-beta"));
        assert_eq!(numbers("1.2.3-rc.1"), numbers("1.2.3"));
    }

    #[test]
    fn the_three_folders_hold_the_same_migrations() {
        let names = |migrator: &Migrator| {
            let name = |migration: &sqlx::migrate::Migration| (migration.version, migration.description.to_string());
            migrator.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(names(&SQLITE), names(&POSTGRES));
        assert_eq!(names(&SQLITE), names(&MYSQL));
    }

    #[test]
    fn mysql_gets_only_statements_that_mariadb_understands() {
        // Checks the migrations, and the statements in the sources of this folder.
        let mut texts: Vec<String> = MYSQL.iter().map(|migration| migration.sql.as_str().to_owned()).collect();
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sql");
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(path).unwrap();
                texts.push(text.split("#[cfg(test)]").next().unwrap().to_owned());
            }
        }
        for text in texts {
            // MySQL never gets the text of a match arm for PostgreSQL.
            let left_out = ["--", "//", "Self::Postgres =>"];
            let code = text.lines().filter(|line| !left_out.iter().any(|mark| line.trim_start().starts_with(mark)));
            for line in code {
                for word in ["RETURNING", "VALUES ROW", "JSON_TABLE", "LATERAL", "CREATE SEQUENCE"] {
                    assert!(!line.contains(word), "{word} in {line:?}");
                }
            }
        }
    }
}
