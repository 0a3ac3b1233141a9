//! Bringing the schema up to date, one server at a time.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{AnyConnection, Connection, Executor, Row};

use super::dialect::Dialect;
use crate::OpenError;

static SQLITE: Migrator = sqlx::migrate!("../../migrations/sqlite");
static POSTGRES: Migrator = sqlx::migrate!("../../migrations/postgres");
static MYSQL: Migrator = sqlx::migrate!("../../migrations/mysql");

/// MariaDB does not know the endless wait that the driver's own lock asks for, and takes no lock at all then.
const LOCK_MYSQL: &str = "SELECT CAST(GET_LOCK(CONCAT('rondel.', DATABASE()), 60) AS SIGNED)";
const UNLOCK_MYSQL: &str = "DO RELEASE_LOCK(CONCAT('rondel.', DATABASE()))";
const FIND_BOOKS_MYSQL: &str = "SELECT COUNT(*) FROM information_schema.tables \
     WHERE table_schema = DATABASE() AND table_name = '_sqlx_migrations'";
/// A start that was interrupted: MySQL has kept half of the migration, and each of its statements can run again.
const FORGET_INTERRUPTED_MYSQL: &str = "DELETE FROM _sqlx_migrations WHERE success = FALSE";
/// What other clients of a pooler have prepared in the session, under the names that the driver is about to use.
const DEALLOCATE_POSTGRES: &str = "DEALLOCATE ALL";
/// Until the end of the transaction.
const LOCK_POSTGRES: &str = "SELECT pg_advisory_xact_lock(hashtext('rondel.migrate.' || current_database()))";
const READ_MIN_SERVER: &str = "SELECT min_server FROM schema_compat WHERE id = 1";

/// Applies what is missing. A schema that is newer than this program is accepted unless it declares itself incompatible.
/// Where sessions are shared, all is done in one transaction, which alone keeps a lock and what is prepared in one session.
pub(super) async fn run(
    connection: &mut AnyConnection,
    (dialect, are_sessions_shared): (Dialect, bool),
    server_version: &str,
) -> Result<(), OpenError> {
    if !are_sessions_shared {
        return run_in_session(connection, (dialect, dialect == Dialect::Postgres), server_version).await;
    }
    let mut tx = connection.begin().await.map_err(OpenError::Migrate)?;
    for statement in [DEALLOCATE_POSTGRES, LOCK_POSTGRES] {
        tx.execute(statement).await.map_err(OpenError::Migrate)?;
    }
    run_in_session(&mut tx, (dialect, false), server_version).await?;
    tx.execute(DEALLOCATE_POSTGRES).await.map_err(OpenError::Migrate)?;
    tx.commit().await.map_err(OpenError::Migrate)
}

async fn run_in_session(
    connection: &mut AnyConnection,
    (dialect, locks): (Dialect, bool),
    server_version: &str,
) -> Result<(), OpenError> {
    let known = match dialect {
        Dialect::Sqlite => &SQLITE,
        Dialect::Postgres => &POSTGRES,
        Dialect::MySql => &MYSQL,
    };
    let mut migrator = Migrator { migrations: known.migrations.clone(), ..Migrator::DEFAULT };
    migrator.set_ignore_missing(true);
    migrator.set_locking(locks);
    if dialect == Dialect::MySql {
        lock_mysql(connection).await.map_err(OpenError::Migrate)?;
    }
    rondel_failpoint::pass("migrate.begun");
    let migrated = migrator.run_direct(None, connection, false).await;
    rondel_failpoint::pass("migrate.applied");
    if dialect == Dialect::MySql {
        connection.execute(UNLOCK_MYSQL).await.map_err(OpenError::Migrate)?;
    }
    migrated.map_err(|error| OpenError::Migrate(sqlx_error(error)))?;
    let row = connection.fetch_one(READ_MIN_SERVER).await.map_err(OpenError::Migrate)?;
    let min_server: String = row.try_get(0).map_err(OpenError::Migrate)?;
    if numbers(&min_server) > numbers(server_version) {
        return Err(OpenError::TooNew { min_server, this: server_version.to_owned() });
    }
    Ok(())
}

async fn lock_mysql(connection: &mut AnyConnection) -> Result<(), sqlx::Error> {
    let locked: Option<i64> = connection.fetch_one(LOCK_MYSQL).await?.try_get(0)?;
    if locked != Some(1) {
        return Err(sqlx::Error::InvalidArgument(
            "another server has been migrating this database for a minute".to_owned(),
        ));
    }
    let found: i64 = connection.fetch_one(FIND_BOOKS_MYSQL).await?.try_get(0)?;
    if found > 0 {
        connection.execute(FORGET_INTERRUPTED_MYSQL).await?;
    }
    Ok(())
}

fn sqlx_error(error: MigrateError) -> sqlx::Error {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error,
        other => sqlx::Error::Migrate(Box::new(other)),
    }
}

/// `1.2.3-beta` as numbers that can be compared; what follows the numbers does not count.
fn numbers(version: &str) -> Vec<u64> {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    core.split('.').map(|part| part.trim().parse().unwrap_or(0)).collect()
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
    fn mysql_is_told_only_what_mariadb_understands_too() {
        // In the migrations, and in the statements: this folder's own sources.
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
            let code = text.lines().filter(|line| !["--", "//"].iter().any(|mark| line.trim_start().starts_with(mark)));
            for line in code {
                for word in ["RETURNING", "VALUES ROW", "JSON_TABLE", "LATERAL", "CREATE SEQUENCE"] {
                    assert!(!line.contains(word), "{word} in {line:?}");
                }
            }
        }
    }
}
