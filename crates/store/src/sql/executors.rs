//! The trait `Executors` in SQL.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, NamespaceId, NodeId, Timestamp};
use sqlx::any::AnyRow;

use crate::cluster::{ExecutorProof, ExecutorRecord, HostProcess, SeenExecutor, Session, StreamEnd, newest_of_each};
use crate::settle::clean_name;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, Tx, transact};
use crate::streams::LastSessions;
use crate::{Executors, LeaseToken, Result};

const INSERT_EXECUTOR: Statement = Statement {
    name: "insert_executor",
    text: "INSERT {ignore} INTO executor (id, namespace_id, app_id, name, predecessor_id, sdk_version, labels, weight, \
           slots, handlers, first_seen_at_ms, params_schemas, secret_hash) \
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const UPDATE_EXECUTOR: Statement = Statement {
    name: "update_executor",
    text: "UPDATE executor SET name = ?, predecessor_id = ?, sdk_version = ?, labels = ?, weight = ?, slots = ?, \
           handlers = ?, secret_hash = ? WHERE id = ? AND app_id = ? AND (secret_hash IS NULL OR secret_hash = ?)",
};
const INSERT_SESSION: Statement = Statement {
    name: "insert_session",
    text: "INSERT {ignore} INTO executor_session (node_id, executor_id, node_epoch, app_id, connected_at_ms, \
           last_seen_at_ms, process) VALUES (?, ?, ?, ?, ?, ?, ?) {or_ignore}",
};
const READ_OPENED_AT: Statement = Statement {
    name: "read_opened_at",
    text: "SELECT connected_at_ms FROM executor_session WHERE node_id = ? AND executor_id = ? {for_update}",
};
const REOPEN_SESSION: Statement = Statement {
    name: "reopen_session",
    text: "UPDATE executor_session SET node_epoch = ?, app_id = ?, connected_at_ms = ?, last_seen_at_ms = ?, ended_at_ms = NULL, \
           has_left = 0, process = ? WHERE node_id = ? AND executor_id = ?",
};
/// A fence of the previous lease may have recorded an end for a stream. A beat under the next lease shows that the stream goes on, so that
/// end is removed. Under the same lease a recorded end stays. (MySQL assigns in the order of the text, so the epoch comes last.)
const BEAT_SESSIONS: Statement = Statement {
    name: "beat_sessions",
    text: "UPDATE executor_session SET ended_at_ms = CASE WHEN node_epoch < ? THEN NULL ELSE ended_at_ms END, \
           last_seen_at_ms = {now}, node_epoch = ? WHERE node_id = ? AND node_epoch <= ? AND executor_id {in_list}",
};
const CLOSE_SESSION: Statement = Statement {
    name: "close_session",
    text: "UPDATE executor_session SET ended_at_ms = CASE WHEN {now} > ? THEN {now} ELSE ? END \
           WHERE node_id = ? AND node_epoch = ? AND executor_id = ? AND connected_at_ms = ? AND ended_at_ms IS NULL",
};
const LEAVE_SESSIONS: Statement =
    Statement { name: "leave_sessions", text: "UPDATE executor_session SET has_left = 1 WHERE executor_id = ?" };
const END_SESSIONS: Statement = Statement {
    name: "end_sessions",
    text: "UPDATE executor_session SET ended_at_ms = ? WHERE node_id = ? AND node_epoch <= ? AND ended_at_ms IS NULL",
};
macro_rules! heard_sessions {
    () => {
        "SELECT node_id, node_epoch, executor_id, app_id, last_seen_at_ms, ended_at_ms, has_left, process FROM executor_session \
         WHERE last_seen_at_ms >= ?"
    };
}
macro_rules! ended_sessions {
    () => {
        "SELECT node_id, node_epoch, executor_id, app_id, ended_at_ms AS last_seen_at_ms, ended_at_ms, has_left, process \
         FROM executor_session WHERE ended_at_ms >= ?"
    };
}
/// The cross join makes SQLite begin with the few nodes. The epoch of a session may be lower than its node's epoch: a stream that was
/// opened while the node took its next lease has the previous epoch.
macro_rules! open_sessions {
    () => {
        "SELECT heard.node_id, heard.node_epoch, heard.executor_id, heard.app_id, node.lease_until_ms AS last_seen_at_ms, \
         heard.ended_at_ms, heard.has_left, heard.process \
         FROM node CROSS JOIN executor_session heard WHERE heard.node_id = node.id AND heard.ended_at_ms IS NULL \
         AND heard.node_epoch <= node.epoch AND node.lease_until_ms >= ?"
    };
}
pub(super) const READ_SESSIONS: Statement = Statement { name: "read_sessions", text: heard_sessions!() };
/// One statement, because a stream that ends, or opens again, between two statements would be in neither.
pub(super) const READ_LAST_SESSIONS: Statement =
    Statement { name: "read_last_sessions", text: concat!(ended_sessions!(), " UNION ALL ", open_sessions!()) };
pub(super) const READ_CARRYING_SESSIONS: Statement = Statement {
    name: "read_carrying_sessions",
    text: concat!(heard_sessions!(), " UNION ALL ", ended_sessions!(), " UNION ALL ", open_sessions!()),
};
pub(super) const READ_EXECUTORS: Statement = Statement {
    name: "read_executors",
    text: "SELECT executor.id, executor.namespace_id, executor.app_id, executor.name, executor.predecessor_id, \
           executor.sdk_version, executor.labels, executor.weight, executor.slots, executor.handlers, \
           executor.secret_hash, executor.first_seen_at_ms, seen.at_ms FROM (SELECT executor_id, MAX(last_seen_at_ms) AS at_ms \
           FROM executor_session WHERE last_seen_at_ms >= ? GROUP BY executor_id) AS seen \
           JOIN executor ON executor.id = seen.executor_id WHERE executor.namespace_id = ? \
           ORDER BY executor.app_id, executor.name, executor.id",
};
const READ_SEEN_EXECUTORS: Statement = Statement {
    name: "read_seen_executors",
    text: "SELECT executor.id, executor.app_id, executor.name, seen.at_ms FROM (SELECT executor_id, \
           MAX(last_seen_at_ms) AS at_ms FROM executor_session WHERE last_seen_at_ms >= ? GROUP BY executor_id) AS seen \
           JOIN executor ON executor.id = seen.executor_id WHERE executor.namespace_id = ? \
           ORDER BY executor.app_id, executor.name, executor.id",
};
const READ_EXECUTORS_BY_ID: Statement = Statement {
    name: "read_executors_by_id",
    text: "SELECT executor.id, executor.namespace_id, executor.app_id, executor.name, executor.predecessor_id, \
           executor.sdk_version, executor.labels, executor.weight, executor.slots, executor.handlers, \
           executor.secret_hash, executor.first_seen_at_ms, seen.at_ms FROM (SELECT executor_id, MAX(last_seen_at_ms) AS at_ms \
           FROM executor_session WHERE last_seen_at_ms >= ? GROUP BY executor_id) AS seen \
           JOIN executor ON executor.id = seen.executor_id WHERE executor.id {in_list} \
           ORDER BY executor.app_id, executor.name, executor.id",
};
const READ_EXECUTOR_PROOF: Statement = Statement {
    name: "read_executor_proof",
    text: "SELECT app_id, secret_hash, predecessor_id FROM executor WHERE id = ?",
};
const READ_EXECUTOR_SUCCESSORS: Statement = Statement {
    name: "read_executor_successors",
    text: "SELECT id FROM executor WHERE predecessor_id = ? ORDER BY id DESC LIMIT ?",
};
const READ_OLD_SESSIONS: Statement = Statement {
    name: "read_old_sessions",
    text: "SELECT executor_id FROM executor_session WHERE last_seen_at_ms < ? ORDER BY last_seen_at_ms LIMIT ?",
};
const DELETE_OLD_SESSIONS: Statement = Statement {
    name: "delete_old_sessions",
    text: "DELETE FROM executor_session WHERE executor_id {in_list} AND last_seen_at_ms < ?",
};
const READ_OLD_EXECUTORS: Statement = Statement {
    name: "read_old_executors",
    text: "SELECT id FROM executor WHERE first_seen_at_ms < ? \
           AND id NOT IN (SELECT executor_id FROM executor_session) ORDER BY id LIMIT ?",
};
const DELETE_OLD_EXECUTORS: Statement = Statement {
    name: "delete_old_executors",
    text: "DELETE FROM executor WHERE id {in_list} AND id NOT IN (SELECT executor_id FROM executor_session)",
};

#[async_trait]
impl Executors for SqlStore {
    async fn open_session(
        &self,
        token: LeaseToken,
        executor: &ExecutorRecord,
        process: Option<HostProcess>,
    ) -> Result<Option<Timestamp>> {
        let process = process.map(|process| process.to_string());
        transact!(self, "open_session", |tx| {
            let now = tx.now().await?;
            if tx.execute(executor_insert(executor)).await? == 0 && tx.execute(executor_update(executor)).await? == 0 {
                return Ok(None);
            }
            let insert = Query::new(&INSERT_SESSION)
                .int(token.node.get())
                .int(executor.id.get())
                .int(token.epoch)
                .int(executor.app.get())
                .at(now)
                .at(now)
                .opt_text(process.as_deref());
            let mut opened_at = now;
            if tx.execute(insert).await? == 0 {
                opened_at = now.max(tx.previous_opened_at(token, executor.id).await? + Duration::from_millis(1));
                let query = Query::new(&REOPEN_SESSION)
                    .int(token.epoch)
                    .int(executor.app.get())
                    .at(opened_at)
                    .at(now)
                    .opt_text(process.as_deref())
                    .int(token.node.get())
                    .int(executor.id.get());
                tx.execute_all(query, 1).await?;
            }
            Ok(Some(opened_at))
        })
    }

    async fn beat_sessions(&self, token: LeaseToken, executors: &[ExecutorId]) -> Result<()> {
        let mut ids: Vec<i64> = executors.iter().map(|executor| executor.get()).collect();
        ids.sort_unstable();
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&BEAT_SESSIONS).int(token.epoch).int(token.epoch).int(token.node.get());
            let query = query.int(token.epoch).list(chunk.iter().copied());
            self.execute(query).await?;
        }
        Ok(())
    }

    async fn close_session(&self, token: LeaseToken, executor: ExecutorId, end: StreamEnd) -> Result<()> {
        let query = Query::new(&CLOSE_SESSION).at(end.reached).at(end.reached).int(token.node.get()).int(token.epoch);
        self.execute(query.int(executor.get()).at(end.opened_at)).await?;
        Ok(())
    }

    async fn leave_sessions(&self, executor: ExecutorId) -> Result<()> {
        self.execute(Query::new(&LEAVE_SESSIONS).int(executor.get())).await?;
        Ok(())
    }

    async fn sessions(&self, since: Timestamp) -> Result<Vec<Session>> {
        let rows = self.rows(Query::new(&READ_SESSIONS).at(since)).await?;
        let mut sessions = rows.iter().map(session).collect::<Result<Vec<_>>>()?;
        sessions.sort_by_key(|session| (session.token.node, session.executor));
        Ok(sessions)
    }

    async fn sessions_that_may_have_carried(&self, since: Timestamp) -> Result<Vec<Session>> {
        let rows = self.rows(Query::new(&READ_CARRYING_SESSIONS).at(since).at(since).at(since)).await?;
        Ok(newest_of_each(rows.iter().map(session).collect::<Result<_>>()?))
    }

    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        let query = Query::new(&READ_EXECUTORS).at(since).int(namespace.get());
        self.rows(query).await?.iter().map(executor).collect()
    }

    async fn executor_proof(&self, id: ExecutorId) -> Result<Option<ExecutorProof>> {
        let row = self.row(Query::new(&READ_EXECUTOR_PROOF).int(id.get())).await?;
        let executor_proof = |row: &AnyRow| {
            let mut columns = Reader::new(row, "executor");
            let app = AppId::new(columns.int("app_id")?);
            let secret_hash = columns.opt_text("secret_hash")?;
            let predecessor = columns.opt_int("predecessor_id")?.map(ExecutorId::new);
            Ok(ExecutorProof { app, secret_hash, predecessor })
        };
        row.as_ref().map(executor_proof).transpose()
    }

    async fn executor_successors(&self, id: ExecutorId, limit: u32) -> Result<Vec<ExecutorId>> {
        let rows = self.rows(Query::new(&READ_EXECUTOR_SUCCESSORS).int(id.get()).int(i64::from(limit))).await?;
        rows.iter().map(|row| Ok(ExecutorId::new(Reader::new(row, "executor").int("id")?))).collect()
    }

    async fn seen_executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<SeenExecutor>> {
        let query = Query::new(&READ_SEEN_EXECUTORS).at(since).int(namespace.get());
        let seen_executor = |row: &AnyRow| {
            let mut columns = Reader::new(row, "executor");
            Ok(SeenExecutor {
                id: ExecutorId::new(columns.int("id")?),
                app: AppId::new(columns.int("app_id")?),
                name: columns.text("name")?,
                last_seen_at: columns.at("last_seen_at_ms")?,
            })
        };
        self.rows(query).await?.iter().map(seen_executor).collect()
    }

    async fn executors_by_id(&self, ids: &[ExecutorId], since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        let mut executors = Vec::new();
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_EXECUTORS_BY_ID).at(since).list(chunk.iter().map(|id| id.get()));
            executors.extend(self.rows(query).await?.iter().map(executor).collect::<Result<Vec<_>>>()?);
        }
        Ok(executors)
    }

    async fn forget_executors(&self, seen_before: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let session_executor_ids = read_ids(
            &self.rows(Query::new(&READ_OLD_SESSIONS).at(seen_before).int(limit.into())).await?,
            "executor",
            "id",
        )?;
        let mut removed_count = 0;
        if !session_executor_ids.is_empty() {
            let query = Query::new(&DELETE_OLD_SESSIONS).list(session_executor_ids.into_iter()).at(seen_before);
            removed_count += self.execute(query).await?;
        }
        let executor_ids = read_ids(
            &self.rows(Query::new(&READ_OLD_EXECUTORS).at(seen_before).int(limit.into())).await?,
            "executor",
            "id",
        )?;
        if !executor_ids.is_empty() {
            removed_count += self.execute(Query::new(&DELETE_OLD_EXECUTORS).list(executor_ids.into_iter())).await?;
        }
        Ok(removed_count)
    }
}

impl Tx<'_> {
    /// When the executor's previous stream to this node was opened; [`Timestamp::EPOCH`] if there was none. The next stream must get
    /// another instant, because the end of a stream is recorded only if that instant matches.
    async fn previous_opened_at(&mut self, token: LeaseToken, executor: ExecutorId) -> Result<Timestamp> {
        let query = Query::new(&READ_OPENED_AT).int(token.node.get()).int(executor.get());
        let row = self.row(query).await?;
        row.map_or(Ok(Timestamp::EPOCH), |row| Reader::new(&row, "executor_session").at("connected_at_ms"))
    }

    /// For each app, the last stream to end among those that were open at `since` or later. A stream that is still open counts regardless
    /// of its node's lease: if the clock has stepped back, that lease may end before the last send.
    pub(super) async fn last_sessions(&mut self, since: Timestamp) -> Result<LastSessions> {
        let rows = self.rows(Query::new(&READ_LAST_SESSIONS).at(since).at(Timestamp::EPOCH)).await?;
        Ok(LastSessions::of(rows.iter().map(session).collect::<Result<Vec<_>>>()?))
    }

    /// Records the end of the streams that are still recorded as open under a lease that has ended.
    pub(super) async fn end_sessions(&mut self, lease: LeaseToken, ended_at: Timestamp) -> Result<()> {
        let query = Query::new(&END_SESSIONS).at(ended_at).int(lease.node.get()).int(lease.epoch);
        self.execute(query).await?;
        Ok(())
    }
}

fn executor_insert(executor: &ExecutorRecord) -> Query {
    Query::new(&INSERT_EXECUTOR)
        .int(executor.id.get())
        .int(executor.namespace.get())
        .int(executor.app.get())
        .text(&clean_name(&executor.name))
        .opt_int(executor.predecessor.map(ExecutorId::get))
        .text(&clean_name(&executor.sdk_version))
        .text(&executor.labels)
        .int(executor.weight.into())
        .int(executor.slots.into())
        .text(&executor.handlers)
        .at(executor.first_seen_at)
        // The column for schemas of parameters is not used.
        .text("{}")
        .opt_text(executor.secret_hash.as_deref())
}

fn executor_update(executor: &ExecutorRecord) -> Query {
    Query::new(&UPDATE_EXECUTOR)
        .text(&clean_name(&executor.name))
        .opt_int(executor.predecessor.map(ExecutorId::get))
        .text(&clean_name(&executor.sdk_version))
        .text(&executor.labels)
        .int(executor.weight.into())
        .int(executor.slots.into())
        .text(&executor.handlers)
        .opt_text(executor.secret_hash.as_deref())
        .int(executor.id.get())
        .int(executor.app.get())
        .opt_text(executor.secret_hash.as_deref())
}

fn session(row: &AnyRow) -> Result<Session> {
    let mut columns = Reader::new(row, "executor_session");
    Ok(Session {
        token: LeaseToken { node: NodeId::new(columns.int("node_id")?), epoch: columns.int("node_epoch")? },
        executor: ExecutorId::new(columns.int("executor_id")?),
        app: AppId::new(columns.int("app_id")?),
        last_seen_at: columns.at("last_seen_at_ms")?,
        ended_at: columns.opt_at("ended_at_ms")?,
        has_left: columns.int("has_left")? != 0,
        process: columns.opt_word("process")?,
    })
}

fn executor(row: &AnyRow) -> Result<ExecutorRecord> {
    let mut columns = Reader::new(row, "executor");
    let count = |columns: &mut Reader<'_>, name| {
        let value = columns.int(name)?;
        u32::try_from(value).map_err(|error| columns.corrupt(name, error))
    };
    Ok(ExecutorRecord {
        id: ExecutorId::new(columns.int("id")?),
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        app: AppId::new(columns.int("app_id")?),
        name: columns.text("name")?,
        predecessor: columns.opt_int("predecessor_id")?.map(ExecutorId::new),
        sdk_version: columns.text("sdk_version")?,
        labels: columns.text("labels")?,
        weight: count(&mut columns, "weight")?,
        slots: count(&mut columns, "slots")?,
        handlers: columns.text("handlers")?,
        secret_hash: columns.opt_text("secret_hash")?,
        first_seen_at: columns.at("first_seen_at_ms")?,
        last_seen_at: columns.at("last_seen_at_ms")?,
    })
}
