//! The meaning of the driver's errors for the caller.

use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;

use crate::{DatabaseTroubleKind, StoreError};

/// The kinds of errors, by what the caller can do about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Another transaction conflicted (a deadlock, or a lock that took too long). The transaction can be tried again immediately.
    Contention,
    /// The database cannot be reached, is shutting down, or is full.
    Unavailable,
    Duplicate,
    /// A value does not fit its column.
    Data,
    /// The database rejects the statement itself.
    Statement,
}

/// Turns an error of the driver into one of the store.
pub(super) fn store_error(operation: &'static str, source: Error) -> StoreError {
    match classify(&source) {
        Failure::Contention | Failure::Unavailable => StoreError::Unavailable { operation, source },
        Failure::Duplicate | Failure::Data | Failure::Statement => StoreError::Query { operation, source },
    }
}

/// The error for a number of written rows that differs from the number of locked rows. The cause is another program that writes into the
/// tables.
pub(super) fn unexpected_count(operation: &'static str, expected: usize, found: u64) -> StoreError {
    let message = format!("{found} rows were written where {expected} are locked");
    StoreError::Query { operation, source: Error::InvalidArgument(message) }
}

/// The kind of an error that [`store_error`] has made.
pub(super) fn classify_store_error(error: &StoreError) -> Failure {
    match error {
        StoreError::Unavailable { source, .. } | StoreError::Query { source, .. } => classify(source),
        StoreError::Corrupt { .. } => Failure::Statement,
    }
}

pub(super) fn classify(error: &Error) -> Failure {
    match error {
        // A connection that is accepted and immediately closed, as by a proxy without a database, is a protocol error.
        Error::Io(_)
        | Error::Tls(_)
        | Error::Protocol(_)
        | Error::PoolTimedOut
        | Error::PoolClosed
        | Error::WorkerCrashed => Failure::Unavailable,
        Error::Encode(_) => Failure::Data,
        Error::Database(database) => {
            if let Some(mysql) = database.try_downcast_ref::<MySqlDatabaseError>() {
                return failure_of_mysql(mysql.number());
            }
            let code = database.code();
            match code.as_deref() {
                Some(code) if database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() => {
                    failure_of_sqlite(code)
                }
                Some(code) => failure_of_postgres(code),
                None => Failure::Statement,
            }
        }
        _ => Failure::Statement,
    }
}

/// Whether a batch may have failed because of its size: the connection broke, or the batch took too long.
pub(super) fn may_be_caused_by_batch(error: &StoreError) -> bool {
    let (StoreError::Unavailable { source, .. } | StoreError::Query { source, .. }) = error else { return false };
    ends_connection(error)
        || matches!(trouble_kind(source), DatabaseTroubleKind::Unreachable | DatabaseTroubleKind::Slow)
}

/// Whether the connection broke without an error from the database.
pub(super) fn ends_connection(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { source: Error::Io(_) | Error::Protocol(_), .. })
}

/// Advice about a database that refuses connections.
pub(super) fn hint(error: &Error) -> Option<&'static str> {
    const MISSING_HINT: &str = "create it, or name another one at the end of the URL";
    const CREDENTIALS_HINT: &str = "check the user and the password in the URL";
    const RIGHTS_HINT: &str = "grant the user of the URL all rights on it";
    const STARTUP_HINT: &str = "in pgbouncer.ini set ignore_startup_parameters = extra_float_digits";
    const POOL_MODE_HINT: &str = "in pgbouncer.ini set pool_mode = transaction, or session";
    let Error::Database(database) = error else { return None };
    if let Some(mysql) = database.try_downcast_ref::<MySqlDatabaseError>() {
        return match mysql.number() {
            1049 => Some(MISSING_HINT),
            1045 | 1698 => Some(CREDENTIALS_HINT),
            1044 => Some(RIGHTS_HINT),
            _ => None,
        };
    }
    // PgBouncer's own errors have the code of a protocol violation.
    let message = database.message();
    if message.contains("unsupported startup parameter") {
        return Some(STARTUP_HINT);
    }
    if message.contains("statement pooling mode") {
        return Some(POOL_MODE_HINT);
    }
    match database.code().as_deref() {
        Some("3D000") => Some(MISSING_HINT),
        Some("28P01" | "28000") => Some(CREDENTIALS_HINT),
        Some("42501") => Some(RIGHTS_HINT),
        _ => None,
    }
}

/// Whether a statement was refused because the user has no right to it.
pub(super) fn is_forbidden(database: &dyn sqlx::error::DatabaseError) -> bool {
    match database.try_downcast_ref::<MySqlDatabaseError>() {
        Some(mysql) => matches!(mysql.number(), 1044 | 1142),
        None => database.code().as_deref() == Some("42501"),
    }
}

/// The state of the whole database that an error shows.
pub(super) fn trouble_kind(error: &Error) -> DatabaseTroubleKind {
    match error {
        Error::PoolTimedOut | Error::PoolClosed => DatabaseTroubleKind::Connections,
        Error::Io(_) | Error::Tls(_) | Error::WorkerCrashed => DatabaseTroubleKind::Unreachable,
        Error::Database(database) => {
            if let Some(mysql) = database.try_downcast_ref::<MySqlDatabaseError>() {
                return trouble_of_mysql(mysql.number());
            }
            let is_sqlite = database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some();
            match database.code().as_deref() {
                Some(code) if is_sqlite => trouble_of_sqlite(code.parse().unwrap_or_default()),
                Some(code) => trouble_of_postgres(code),
                None => DatabaseTroubleKind::RejectsStatement,
            }
        }
        _ => DatabaseTroubleKind::RejectsStatement,
    }
}

fn trouble_of_postgres(code: &str) -> DatabaseTroubleKind {
    match code {
        "25006" => DatabaseTroubleKind::ReadOnly,
        "53100" => DatabaseTroubleKind::Full,
        "53300" | "53200" | "53400" | "55000" => DatabaseTroubleKind::Connections,
        "57014" | "25P03" | "25P04" | "55P03" | "40001" | "40P01" => DatabaseTroubleKind::Slow,
        _ if ["08", "57", "58"].iter().any(|class| code.starts_with(class)) => DatabaseTroubleKind::Unreachable,
        _ => DatabaseTroubleKind::RejectsStatement,
    }
}

fn trouble_of_mysql(number: u16) -> DatabaseTroubleKind {
    match number {
        // 1047: a Galera node that is not part of its cluster
        1290 | 1836 | 1792 | 1047 => DatabaseTroubleKind::ReadOnly,
        1021 | 1114 => DatabaseTroubleKind::Full,
        1040 | 1129 | 1130 | 1203 | 1226 => DatabaseTroubleKind::Connections,
        1205 | 1213 | 1020 | 1317 | 1969 | 3024 => DatabaseTroubleKind::Slow,
        1053 | 1927 | 2003 | 2006 | 2013 | 9001 => DatabaseTroubleKind::Unreachable,
        _ => DatabaseTroubleKind::RejectsStatement,
    }
}

fn trouble_of_sqlite(code: u32) -> DatabaseTroubleKind {
    match code & 0xff {
        5 | 6 => DatabaseTroubleKind::Slow,
        8 => DatabaseTroubleKind::ReadOnly,
        13 => DatabaseTroubleKind::Full,
        7 | 10 | 14 | 15 => DatabaseTroubleKind::Unreachable,
        _ => DatabaseTroubleKind::RejectsStatement,
    }
}

/// Classifies an error by its SQLSTATE.
fn failure_of_postgres(code: &str) -> Failure {
    match code {
        // serialization failure, deadlock, lock not available
        "40001" | "40P01" | "55P03" => Failure::Contention,
        "23505" => Failure::Duplicate,
        // query cancelled (statement timeout), idle in transaction, a transaction that took too long, read-only, a database that accepts no
        // connections or is missing; classes: connection, authorization, resources, operator
        "57014" | "25P03" | "25P04" | "25006" | "55000" | "3D000" => Failure::Unavailable,
        _ if ["08", "28", "53", "57", "58"].iter().any(|class| code.starts_with(class)) => Failure::Unavailable,
        _ if ["22", "23"].iter().any(|class| code.starts_with(class)) => Failure::Data,
        _ => Failure::Statement,
    }
}

/// Classifies an error by the server's own number, because many errors share one SQLSTATE.
fn failure_of_mysql(number: u16) -> Failure {
    match number {
        // lock wait timeout, deadlock, record has changed since last read
        1205 | 1213 | 1020 => Failure::Contention,
        1062 | 1586 => Failure::Duplicate,
        // too many connections, shutdown, disk full, interrupted, killed, statement timeouts, read-only, not part of a cluster; a statement
        // that must be prepared again, because its table was changed or was evicted from a small table cache
        1040 | 1053 | 1021 | 1114 | 1203 | 1226 | 1317 | 1927 | 1969 | 3024 | 1290 | 1792 | 1836 | 1047 | 2006
        | 2013 | 1615 => Failure::Unavailable,
        // a proxy (MaxScale, ProxySQL) that cannot reach its database
        2003 | 9001 => Failure::Unavailable,
        // connections that are refused: access denied, unknown database, blocked or unknown host, locked account, expired
        // password, TLS required
        1044 | 1045 | 1049 | 1129 | 1130 | 1698 | 1820 | 1862 | 3118 | 3159 | 4151 => Failure::Unavailable,
        // null, foreign key, out of range, truncated, wrong value, too long, CHECK (MariaDB, MySQL), packet too large
        1048 | 1364 | 1452 | 1264 | 1265 | 1292 | 1366 | 1406 | 4025 | 3819 | 1153 => Failure::Data,
        _ => Failure::Statement,
    }
}

/// Classifies an error by the primary result code: the low byte of the extended one.
fn failure_of_sqlite(code: &str) -> Failure {
    let code: u32 = code.parse().unwrap_or_default();
    match code {
        // unique, primary key
        2067 | 1555 => return Failure::Duplicate,
        _ => {}
    }
    match code & 0xff {
        // busy, locked
        5 | 6 => Failure::Contention,
        // no memory, read-only, I/O, full, cannot open, protocol
        7 | 8 | 10 | 13 | 14 | 15 => Failure::Unavailable,
        // too big, constraint, mismatch
        18..=20 => Failure::Data,
        _ => Failure::Statement,
    }
}

/// The error for an operation that failed without an error of the driver.
pub(super) fn refused(operation: &'static str, message: &str) -> StoreError {
    StoreError::Query { operation, source: Error::Encode(message.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_connection_is_no_fault_of_the_statement() {
        for code in ["08006", "28000", "28P01", "3D000", "53300", "55000", "57P01", "57P03"] {
            assert_eq!(failure_of_postgres(code), Failure::Unavailable, "{code}");
        }
        for number in [1040, 1044, 1045, 1047, 1049, 1129, 1130, 1698, 2003, 4151, 9001] {
            assert_eq!(failure_of_mysql(number), Failure::Unavailable, "{number}");
        }
        assert_eq!(failure_of_postgres("25P04"), Failure::Unavailable, "transaction_timeout");
        assert_eq!(failure_of_mysql(1615), Failure::Unavailable, "prepared statement needs to be re-prepared");
        let closed = Error::Protocol("expected to read 5 bytes, got 0 bytes at EOF".to_owned());
        assert_eq!(classify(&closed), Failure::Unavailable, "a proxy without a database behind it");
        assert_eq!(classify_store_error(&unexpected_count("finish", 2, 3)), Failure::Statement);
        assert_eq!(
            (failure_of_postgres("42601"), failure_of_mysql(1064)),
            (Failure::Statement, Failure::Statement),
            "syntax"
        );
    }
}
