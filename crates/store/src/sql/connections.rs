//! Sessions of dead servers, where the database does not end them.
//!
//! A server that was stopped inside a transaction holds its locks as long as its connection lives. PostgreSQL and MariaDB end
//! a transaction that is idle for too long; MySQL has no such limit. There the row of each server lists its sessions, and the
//! others end those of a server whose lease is over: it may write nothing by then.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use sqlx::{AssertSqlSafe, Executor};

use super::SqlStore;
use super::query::{Query, Reader, Statement, read_ids};
use crate::{LeaseToken, Result};

/// Sessions that a row lists: more than a pool has at the same time, for some are new and not all of the old ones gone.
const LISTED_MAX: usize = 200;

const LIST_CONNECTIONS: Statement =
    Statement { name: "list_connections", text: "UPDATE node SET connection_ids = ? WHERE id = ? AND epoch = ?" };
const READ_ENDED_CONNECTIONS: Statement = Statement {
    name: "read_ended_connections",
    text: "SELECT id, connection_ids FROM node WHERE id <> ? AND lease_until_ms <= {now} AND connection_ids <> '' ORDER BY id",
};
/// A number that was given anew since the database started again is another user's, or another database's.
const FIND_CONNECTIONS: Statement = Statement {
    name: "find_connections",
    text: "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE id {in_list} AND db = DATABASE() \
           AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1) AND id <> CONNECTION_ID()",
};
const FORGET_CONNECTIONS: Statement = Statement {
    name: "forget_connections",
    text: "UPDATE node SET connection_ids = NULL WHERE id = ? AND connection_ids = ?",
};

/// The sessions that this store has opened, the newest last.
#[derive(Debug, Default)]
pub(super) struct OwnConnections(Mutex<VecDeque<i64>>);

impl OwnConnections {
    pub(super) fn add(&self, id: i64) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.len() == LISTED_MAX {
            ids.pop_front();
        }
        ids.push_back(id);
    }

    fn as_text(&self) -> String {
        let ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
    }
}

impl SqlStore {
    /// Lists this server's sessions in its row, and ends those of servers whose leases are over.
    pub(super) async fn tend_connections(&self, token: LeaseToken) -> Result<()> {
        let Some(own) = &self.sessions.own_connections else { return Ok(()) };
        let list = Query::new(&LIST_CONNECTIONS).text(&own.as_text());
        self.execute(list.int(token.node.get()).int(token.epoch)).await?;
        for row in self.rows(Query::new(&READ_ENDED_CONNECTIONS).int(token.node.get())).await? {
            let mut columns = Reader::new(&row, "node");
            let (node, text) = (columns.int("id")?, columns.text("connection_ids")?);
            self.end_connections(node, &text).await?;
            self.execute(Query::new(&FORGET_CONNECTIONS).int(node).text(&text)).await?;
        }
        Ok(())
    }

    async fn end_connections(&self, node_id: i64, listed: &str) -> Result<()> {
        let ids: Vec<i64> = listed.split(',').filter_map(|id| id.parse().ok()).take(LISTED_MAX).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.rows(Query::new(&FIND_CONNECTIONS).list(ids.into_iter())).await?;
        let found = read_ids(&found, "processlist", "id")?;
        if !found.is_empty() {
            tracing::info!(node_id, count = found.len(), "ending the sessions of a server whose lease is over");
        }
        for id in found {
            if let Err(error) = self.write.execute(AssertSqlSafe(format!("KILL {id}"))).await {
                // It may have ended by itself meanwhile.
                tracing::debug!(node_id, id, %error, "a session was not ended");
            }
        }
        Ok(())
    }
}
