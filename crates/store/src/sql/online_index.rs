//! Builds the indexes of missing migrations while other servers run.
//!
//! A migration of PostgreSQL is one transaction, in which building an index of a large table would stop all writes to it. Therefore the
//! indexes that a migration makes on existing tables are built concurrently before the migration, which then finds them: it runs with
//! `IF NOT EXISTS`, which most of the migrations before 0045 lack. MySQL and MariaDB allow writes while they build an index, and SQLite has
//! a single server, which waits.

use sqlx::migrate::Migration;
use sqlx::{AnyConnection, AssertSqlSafe, Executor, Row, SqlSafeStr};

use super::failure::{self, Failure};
use crate::OpenError;

/// The beginning of a statement that builds an index.
const CREATE_INDEX: &str = "CREATE INDEX ";
const UNLESS_IT_EXISTS: &str = "IF NOT EXISTS ";
/// A concurrent build waits for all transactions that began before it. No statement waits for the build, so its timeout may be long.
const SET_LONG_LOCK_TIMEOUT: &str = "SET lock_timeout = '60s'";
const SET_SHORT_LOCK_TIMEOUT: &str = "SET lock_timeout = '2s'";

/// An index that a migration makes.
#[derive(Debug, PartialEq, Eq)]
struct Index<'a> {
    name: &'a str,
    /// The part of the statement after the name.
    definition: &'a str,
}

/// Builds the indexes that a migration makes on existing tables.
///
/// # Errors
/// [`OpenError::TableInUse`] if another client has had a transaction open for too long.
pub(super) async fn build(connection: &mut AnyConnection, migration: &str) -> Result<(), OpenError> {
    let text = without_comments(migration);
    for index in indexes(&text) {
        tracing::info!(index = index.name, "building an index while servers are running");
        connection.execute(SET_LONG_LOCK_TIMEOUT).await.map_err(OpenError::Migrate)?;
        drop_half_built(connection, index.name).await?;
        let statement = format!("CREATE INDEX CONCURRENTLY IF NOT EXISTS {} {}", index.name, index.definition);
        let result = connection.execute(AssertSqlSafe(statement)).await;
        connection.execute(SET_SHORT_LOCK_TIMEOUT).await.map_err(OpenError::Migrate)?;
        match result {
            Ok(_) => {}
            Err(source) if failure::classify(&source) == Failure::Contention => {
                return Err(OpenError::TableInUse { source });
            }
            // The column does not exist yet: the migration adds it, and then the index.
            Err(error) if failure::classify(&error) == Failure::Statement => {
                tracing::debug!(%error, index = index.name, "the migration builds this index");
            }
            Err(error) => return Err(OpenError::Migrate(error)),
        }
    }
    Ok(())
}

/// The migration, in a form that accepts the indexes that exist already. It keeps the checksum of the migration's file.
pub(super) fn accept_existing(migration: &Migration) -> Migration {
    let mut sql = String::with_capacity(migration.sql.as_str().len());
    for line in migration.sql.as_str().split_inclusive('\n') {
        match line.strip_prefix(CREATE_INDEX) {
            Some(index) if !index.starts_with(UNLESS_IT_EXISTS) => {
                sql.push_str(CREATE_INDEX);
                sql.push_str(UNLESS_IT_EXISTS);
                sql.push_str(index);
            }
            _ => sql.push_str(line),
        }
    }
    Migration { sql: AssertSqlSafe(sql).into_sql_str(), ..migration.clone() }
}

/// Drops an index that an interrupted build left incomplete. No statement uses such an index.
async fn drop_half_built(connection: &mut AnyConnection, name: &str) -> Result<(), OpenError> {
    let count_statement = format!(
        "SELECT CAST(COUNT(*) AS BIGINT) FROM pg_index WHERE indexrelid = to_regclass('{name}') AND NOT indisvalid"
    );
    let row = connection.fetch_one(AssertSqlSafe(count_statement)).await.map_err(OpenError::Migrate)?;
    if row.try_get::<i64, _>(0).map_err(OpenError::Migrate)? > 0 {
        let drop_statement = format!("DROP INDEX CONCURRENTLY {name}");
        connection.execute(AssertSqlSafe(drop_statement)).await.map_err(OpenError::Migrate)?;
    }
    Ok(())
}

fn without_comments(migration: &str) -> String {
    let lines = migration.lines().map(|line| line.split("--").next().unwrap_or_default().trim());
    lines.collect::<Vec<_>>().join(" ")
}

/// The indexes of tables that the migration does not create itself.
fn indexes(text: &str) -> impl Iterator<Item = Index<'_>> {
    let statements = text.split(';').filter_map(|statement| statement.trim().strip_prefix(CREATE_INDEX));
    let indexes = statements.filter_map(|statement| {
        let statement = statement.trim();
        let (name, definition) =
            statement.strip_prefix(UNLESS_IT_EXISTS).unwrap_or(statement).trim().split_once(' ')?;
        Some(Index { name, definition: definition.trim() })
    });
    indexes.filter(move |index| {
        let table = index.definition.strip_prefix("ON ").and_then(|rest| rest.split_whitespace().next());
        table.is_none_or(|table| !text.contains(&format!("CREATE TABLE {table} ")))
    })
}

#[cfg(test)]
mod tests {
    use sqlx::migrate::MigrationType;

    use super::*;

    #[test]
    fn indexes_of_existing_tables_are_found() {
        let text = without_comments(
            "-- CREATE INDEX IF NOT EXISTS no ON a (b);\nCREATE TABLE c (b INT); -- ;\n\
             CREATE INDEX plain ON a (b);\nCREATE INDEX IF NOT EXISTS one ON a (b)\n    WHERE b = 'x';\n\
             CREATE INDEX new ON c (b);\nCREATE INDEX IF NOT EXISTS two ON a (b, c);\n",
        );
        let found: Vec<Index<'_>> = indexes(&text).collect();
        let (plain, one, two) = (
            Index { name: "plain", definition: "ON a (b)" },
            Index { name: "one", definition: "ON a (b) WHERE b = 'x'" },
            Index { name: "two", definition: "ON a (b, c)" },
        );
        assert_eq!(found, [plain, one, two]);
    }

    #[test]
    fn a_migration_accepts_the_indexes_that_were_built_before() {
        let text = "-- CREATE INDEX no ON a (b);\nCREATE INDEX one ON a (b)\n    WHERE b = 1;\n\
                    CREATE INDEX IF NOT EXISTS two ON a (c);\nDROP INDEX three;\n";
        let migration =
            Migration::new(42, "indexes".into(), MigrationType::Simple, AssertSqlSafe(text).into_sql_str(), false);
        let accepting = accept_existing(&migration);
        let expected = "-- CREATE INDEX no ON a (b);\nCREATE INDEX IF NOT EXISTS one ON a (b)\n    WHERE b = 1;\n\
                        CREATE INDEX IF NOT EXISTS two ON a (c);\nDROP INDEX three;\n";
        assert_eq!(accepting.sql.as_str(), expected);
        assert_eq!((accepting.version, accepting.checksum), (42, migration.checksum), "it is recorded as the same one");
    }
}
