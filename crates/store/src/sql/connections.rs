//! Diagnoses a database that gives no connections, and ends the sessions of dead servers if the database does not.
//!
//! A server that was stopped inside a transaction holds its locks as long as its connection lives. PostgreSQL and MariaDB end a transaction
//! that is idle for too long; MySQL has no such limit. On MySQL, the row of each server therefore lists its sessions. The other servers end
//! the sessions of a server whose lease has ended, because that server may no longer write.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::any::AnyConnectOptions;
use sqlx::{AnyConnection, AssertSqlSafe, Connection, Executor};
use tokio::time::{Instant, timeout_at};

use super::query::{Query, Reader, Statement, read_ids};
use super::session::{LISTED_CONNECTION_MAX, is_read_only};
use super::{Dialect, SqlStore, failure};
use crate::{DatabaseTroubleKind, LeaseToken, Result, StoreError};

const LIST_CONNECTIONS: Statement =
    Statement { name: "list_connections", text: "UPDATE node SET connection_ids = ? WHERE id = ? AND epoch = ?" };
const READ_ENDED_CONNECTIONS: Statement = Statement {
    name: "read_ended_connections",
    text: "SELECT id, connection_ids FROM node WHERE id <> ? AND lease_until_ms <= {now} AND connection_ids <> '' ORDER BY id",
};
const READ_LIVING_CONNECTIONS: Statement = Statement {
    name: "read_living_connections",
    text: "SELECT id, connection_ids FROM node WHERE lease_until_ms > {now} AND connection_ids <> '' ORDER BY id",
};
/// After a restart of the database, the ids of connections start again from 1. A listed id can then belong to another user or database.
const FIND_CONNECTIONS: Statement = Statement {
    name: "find_connections",
    text: "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE id {in_list} AND db = DATABASE() \
           AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1) AND id <> CONNECTION_ID()",
};
const FORGET_CONNECTIONS: Statement = Statement {
    name: "forget_connections",
    text: "UPDATE node SET connection_ids = NULL WHERE id = ? AND connection_ids = ?",
};

/// Maximum duration of a diagnosis.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl SqlStore {
    pub(super) async fn diagnose_database(&self, error: &StoreError) -> DatabaseTroubleKind {
        let (StoreError::Unavailable { source, .. } | StoreError::Query { source, .. }) = error else {
            return DatabaseTroubleKind::RejectsStatement;
        };
        if !matches!(source, sqlx::Error::PoolTimedOut) {
            return failure::trouble_kind(source);
        }
        probe(&self.options, self.statements.dialect()).await
    }
}

/// Opens a connection and sends a statement, both within [`PROBE_TIMEOUT`].
async fn probe(options: &AnyConnectOptions, dialect: Dialect) -> DatabaseTroubleKind {
    let deadline = Instant::now() + PROBE_TIMEOUT;
    let mut connection = match timeout_at(deadline, AnyConnection::connect_with(options)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => return failure::trouble_kind(&error),
        Err(_) => return DatabaseTroubleKind::Unreachable,
    };
    // A pooler opens a connection although the database behind it does not answer. The statement then waits in the pooler.
    let Ok(is_read_only) = timeout_at(deadline, is_read_only(&mut connection, dialect)).await else {
        return DatabaseTroubleKind::Slow;
    };
    drop(timeout_at(deadline, connection.close()).await);
    if is_read_only.unwrap_or(false) { DatabaseTroubleKind::ReadOnly } else { DatabaseTroubleKind::Connections }
}

impl SqlStore {
    /// Lists this server's sessions in its row, and ends the sessions of servers whose leases have ended.
    pub(super) async fn tend_connections(&self, token: LeaseToken) -> Result<()> {
        let Some(own_connection_ids) = &self.sessions.own_connection_ids else { return Ok(()) };
        let query = Query::new(&LIST_CONNECTIONS).text(&own_connection_ids.as_text());
        self.execute(query.int(token.node.get()).int(token.epoch)).await?;
        let ended_rows = self.rows(Query::new(&READ_ENDED_CONNECTIONS).int(token.node.get())).await?;
        if ended_rows.is_empty() {
            return Ok(());
        }
        // If the database has restarted, an id in an old list can belong to a session of a living server.
        let mut living_ids = BTreeSet::new();
        for row in self.rows(Query::new(&READ_LIVING_CONNECTIONS)).await? {
            let mut columns = Reader::new(&row, "node");
            columns.int("id")?;
            living_ids.extend(listed_ids(&columns.text("connection_ids")?));
        }
        for row in ended_rows {
            let mut columns = Reader::new(&row, "node");
            let (node, text) = (columns.int("id")?, columns.text("connection_ids")?);
            self.end_connections(node, listed_ids(&text).filter(|id| !living_ids.contains(id)).collect()).await?;
            self.execute(Query::new(&FORGET_CONNECTIONS).int(node).text(&text)).await?;
        }
        Ok(())
    }

    async fn end_connections(&self, node_id: i64, ids: Vec<i64>) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let process_rows = self.rows(Query::new(&FIND_CONNECTIONS).list(ids.into_iter())).await?;
        let session_ids = read_ids(&process_rows, "processlist", "id")?;
        if !session_ids.is_empty() {
            tracing::info!(node_id, count = session_ids.len(), "ending the sessions of a server whose lease has ended");
        }
        for id in session_ids {
            if let Err(error) = self.pools.current_pools().write.execute(AssertSqlSafe(format!("KILL {id}"))).await {
                // The session may have ended in the meantime.
                tracing::debug!(node_id, id, %error, "cannot end a session");
            }
        }
        Ok(())
    }
}

/// The ids in the list of a row.
fn listed_ids(list: &str) -> impl Iterator<Item = i64> {
    list.split(',').filter_map(|id| id.parse().ok()).take(LISTED_CONNECTION_MAX)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    /// A pooler opens a session of PostgreSQL, and does not answer the statements in it.
    #[tokio::test]
    async fn a_diagnosis_ends_although_its_statement_gets_no_answer() {
        sqlx::any::install_default_drivers();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://rondel@{}/rondel?sslmode=disable", listener.local_addr().unwrap());
        let options: AnyConnectOptions = url.parse().unwrap();
        let pooler = async {
            let (mut client, _) = listener.accept().await.unwrap();
            let length = client.read_u32().await.unwrap();
            let mut startup = vec![0; usize::try_from(length).unwrap() - 4];
            client.read_exact(&mut startup).await.unwrap();
            // "Authentication has succeeded", "ready for a statement".
            client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
            let mut statements = Vec::new();
            client.read_to_end(&mut statements).await.ok();
            statements
        };
        let diagnosis = timeout(PROBE_TIMEOUT * 10, probe(&options, Dialect::Postgres));
        let (found, statements) = tokio::join!(diagnosis, pooler);
        assert_eq!(found, Ok(DatabaseTroubleKind::Slow));
        assert!(!statements.is_empty(), "it sent no statement");
    }
}
