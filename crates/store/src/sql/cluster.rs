//! The clock, nodes with their leases, executors with their sessions.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::homes::Switch;
use rondel_core::{AppId, ExecutorId, NamespaceId, NodeId, Timestamp};
use sqlx::any::AnyRow;

use super::dialect::Dialect;
use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, failure, transact};
use crate::cluster::{
    Connections, ExecutorProof, ExecutorRecord, Join, JoinRequest, Node, NodeReport, SeenExecutor, Session,
    lease_count, newest_of_each, next_ordinal,
};
use crate::settle::clean_name;
use crate::{Cluster, LeaseToken, Result, StoreError, Trouble};

const READ_NOW: Statement = Statement { name: "read_now", text: "SELECT {now}" };
/// One row that every join goes through, so that no two pick the same id or ordinal.
const LOCK_JOINS: Statement =
    Statement { name: "lock_joins", text: "SELECT id FROM schema_compat WHERE id = 1 {for_update}" };
const READ_NODES: Statement = Statement {
    name: "read_nodes",
    text: "SELECT id, name, epoch, lease_until_ms, advertise_url, server_version, started_at_ms, state, is_leaving, \
           claim_strategy, weight, job_count, skew_ms, claims_tried, claims_lost, refused_count, loops FROM node ORDER BY id",
};
const LOCK_NODES: Statement = Statement {
    name: "lock_nodes",
    text: "SELECT id, name, ordinal, epoch, lease_until_ms, prior_lease_until_ms FROM node ORDER BY id {for_update}",
};
const INSERT_NODE: Statement = Statement {
    name: "insert_node",
    text: "INSERT INTO node (id, name, ordinal, epoch, lease_until_ms, prior_lease_until_ms, advertise_url, \
           server_version, started_at_ms) VALUES (?, ?, ?, 1, ?, 0, ?, ?, ?)",
};
const TAKE_LEASE: Statement = Statement {
    name: "take_lease",
    text: "UPDATE node SET epoch = epoch + 1, ordinal = ?, lease_until_ms = ?, prior_lease_until_ms = ?, \
           advertise_url = ?, server_version = ?, started_at_ms = ?, is_leaving = 0 WHERE id = ? AND epoch = ?",
};
/// The end of a lease does not move back by more than a tenth of its length. Where the database's clock has stepped back
/// further, the new end would lie before what was sent under the lease, and an adopter decides by that end what may have
/// been sent.
const RENEW_LEASE: Statement = Statement {
    name: "renew_lease",
    text: "UPDATE node SET lease_until_ms = ? WHERE id = ? AND epoch = ? AND lease_until_ms <= ?",
};
const END_LEASE: Statement = Statement {
    name: "end_lease",
    text: "UPDATE node SET lease_until_ms = ? WHERE id = ? AND epoch = ? AND lease_until_ms > ?",
};
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
           last_seen_at_ms) VALUES (?, ?, ?, ?, ?, ?) {or_ignore}",
};
const REOPEN_SESSION: Statement = Statement {
    name: "reopen_session",
    text: "UPDATE executor_session SET node_epoch = ?, app_id = ?, connected_at_ms = ?, last_seen_at_ms = ?, ended_at_ms = NULL, \
           has_left = 0 WHERE node_id = ? AND executor_id = ?",
};
/// A stream that outlived its lease is open again. (MySQL assigns in the order of the text: the epoch comes last.)
const BEAT_SESSIONS: Statement = Statement {
    name: "beat_sessions",
    text: "UPDATE executor_session SET ended_at_ms = CASE WHEN node_epoch < ? THEN NULL ELSE ended_at_ms END, \
           last_seen_at_ms = {now}, node_epoch = ? WHERE node_id = ? AND node_epoch <= ? AND executor_id {in_list}",
};
const CLOSE_SESSION: Statement = Statement {
    name: "close_session",
    text: "UPDATE executor_session SET ended_at_ms = {now} WHERE node_id = ? AND node_epoch = ? AND executor_id = ? \
           AND ended_at_ms IS NULL",
};
const LEAVE_SESSIONS: Statement =
    Statement { name: "leave_sessions", text: "UPDATE executor_session SET has_left = 1 WHERE executor_id = ?" };
const END_SESSIONS: Statement = Statement {
    name: "end_sessions",
    text: "UPDATE executor_session SET ended_at_ms = ? WHERE node_id = ? AND node_epoch = ? AND ended_at_ms IS NULL",
};
pub(super) const READ_SESSIONS: Statement = Statement {
    name: "read_sessions",
    text: "SELECT node_id, node_epoch, executor_id, app_id, last_seen_at_ms, ended_at_ms, has_left FROM executor_session \
           WHERE last_seen_at_ms >= ?",
};
pub(super) const READ_ENDED_SESSIONS: Statement = Statement {
    name: "read_ended_sessions",
    text: "SELECT node_id, node_epoch, executor_id, app_id, ended_at_ms, ended_at_ms, has_left FROM executor_session \
           WHERE ended_at_ms >= ?",
};
/// To SQLite the cross join says that the few nodes come first.
pub(super) const READ_OPEN_SESSIONS: Statement = Statement {
    name: "read_open_sessions",
    text: "SELECT heard.node_id, heard.node_epoch, heard.executor_id, heard.app_id, node.lease_until_ms, heard.ended_at_ms, heard.has_left \
           FROM node CROSS JOIN executor_session heard WHERE heard.node_id = node.id AND heard.ended_at_ms IS NULL \
           AND heard.node_epoch = node.epoch AND node.lease_until_ms >= ?",
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

#[async_trait]
impl Cluster for SqlStore {
    async fn now(&self) -> Result<Timestamp> {
        now_of(self.row(Query::new(&READ_NOW)).await?.as_ref())
    }

    fn is_single_server(&self) -> bool {
        self.texts.dialect() == Dialect::Sqlite
    }

    fn connections(&self) -> Option<Connections> {
        // SQLite has a pool for its one writer; elsewhere both are the same.
        let pools = if self.is_single_server() { vec![&self.read, &self.write] } else { vec![&self.read] };
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let idle: u32 = pools.iter().map(|pool| count(pool.num_idle())).sum();
        let size: u32 = pools.iter().map(|pool| pool.size()).sum();
        Some(Connections { busy: size.saturating_sub(idle), idle })
    }

    async fn join(&self, request: &JoinRequest) -> Result<Join> {
        transact!(self, "join", |tx| tx.join(request).await)
    }

    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Timestamp>> {
        // Read before it is written: the lease ends too early rather than too late.
        let now = self.now().await?;
        let until = now + lease;
        let query = Query::new(&RENEW_LEASE).at(until).int(token.node.get()).int(token.epoch).at(until + lease / 10);
        let is_renewed = self.execute(query).await? == 1;
        rondel_failpoint::pass("renew.written");
        Ok(is_renewed.then_some(now))
    }

    async fn trouble(&self, error: &StoreError) -> Trouble {
        self.find_trouble(error).await
    }

    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()> {
        let until = self.now().await?.max(reached);
        self.execute(Query::new(&END_LEASE).at(until).int(token.node.get()).int(token.epoch).at(until)).await?;
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.rows(Query::new(&READ_NODES)).await?.iter().map(node).collect()
    }

    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()> {
        self.write_report(token, report).await
    }

    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool> {
        self.write_node_switch(name, switch).await
    }

    async fn set_app_switch(&self, app: AppId, switch: Switch) -> Result<bool> {
        self.write_app_switch(app, switch).await
    }

    async fn app_switches(&self) -> Result<Vec<(AppId, Switch)>> {
        self.read_app_switches().await
    }

    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64> {
        self.remove_nodes(dead_since, limit).await
    }

    async fn open_session(&self, token: LeaseToken, executor: &ExecutorRecord) -> Result<bool> {
        transact!(self, "open_session", |tx| {
            let now = tx.now().await?;
            if tx.execute(insert_executor(executor)).await? == 0 && tx.execute(update_executor(executor)).await? == 0 {
                return Ok(false);
            }
            let insert = Query::new(&INSERT_SESSION)
                .int(token.node.get())
                .int(executor.id.get())
                .int(token.epoch)
                .int(executor.app.get())
                .at(now)
                .at(now);
            if tx.execute(insert).await? == 0 {
                let reopen = Query::new(&REOPEN_SESSION)
                    .int(token.epoch)
                    .int(executor.app.get())
                    .at(now)
                    .at(now)
                    .int(token.node.get())
                    .int(executor.id.get());
                tx.execute_all(reopen, 1).await?;
            }
            Ok(true)
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

    async fn close_session(&self, token: LeaseToken, executor: ExecutorId) -> Result<()> {
        let query = Query::new(&CLOSE_SESSION).int(token.node.get()).int(token.epoch).int(executor.get());
        self.execute(query).await?;
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

    async fn witnesses(&self, since: Timestamp) -> Result<Vec<Session>> {
        let mut rows = self.rows(Query::new(&READ_SESSIONS).at(since)).await?;
        rows.extend(self.rows(Query::new(&READ_ENDED_SESSIONS).at(since)).await?);
        rows.extend(self.rows(Query::new(&READ_OPEN_SESSIONS).at(since)).await?);
        Ok(newest_of_each(rows.iter().map(session).collect::<Result<_>>()?))
    }

    async fn executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        let query = Query::new(&READ_EXECUTORS).at(since).int(namespace.get());
        self.rows(query).await?.iter().map(executor).collect()
    }

    async fn executor_proof(&self, id: ExecutorId) -> Result<Option<ExecutorProof>> {
        let row = self.row(Query::new(&READ_EXECUTOR_PROOF).int(id.get())).await?;
        let proof = |row: &AnyRow| {
            let mut columns = Reader::new(row, "executor");
            let app = AppId::new(columns.int("app_id")?);
            let secret_hash = columns.opt_text("secret_hash")?;
            let predecessor = columns.opt_int("predecessor_id")?.map(ExecutorId::new);
            Ok(ExecutorProof { app, secret_hash, predecessor })
        };
        row.as_ref().map(proof).transpose()
    }

    async fn seen_executors(&self, namespace: NamespaceId, since: Timestamp) -> Result<Vec<SeenExecutor>> {
        let query = Query::new(&READ_SEEN_EXECUTORS).at(since).int(namespace.get());
        let seen = |row: &AnyRow| {
            let mut columns = Reader::new(row, "executor");
            Ok(SeenExecutor {
                id: ExecutorId::new(columns.int("id")?),
                app: AppId::new(columns.int("app_id")?),
                name: columns.text("name")?,
                last_seen_at: columns.at("last_seen_at_ms")?,
            })
        };
        self.rows(query).await?.iter().map(seen).collect()
    }

    async fn executors_by_id(&self, ids: &[ExecutorId], since: Timestamp) -> Result<Vec<ExecutorRecord>> {
        let mut found = Vec::new();
        for chunk in ids.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_EXECUTORS_BY_ID).at(since).list(chunk.iter().map(|id| id.get()));
            found.extend(self.rows(query).await?.iter().map(executor).collect::<Result<Vec<_>>>()?);
        }
        Ok(found)
    }
}

/// A node's row, for a join.
struct Seat {
    id: i64,
    name: String,
    ordinal: i64,
    epoch: i64,
    lease_until: Timestamp,
    prior_lease_until: Timestamp,
}

impl Tx<'_> {
    pub(super) async fn now(&mut self) -> Result<Timestamp> {
        now_of(self.row(Query::new(&READ_NOW)).await?.as_ref())
    }

    async fn join(&mut self, request: &JoinRequest) -> Result<Join> {
        self.row(Query::new(&LOCK_JOINS)).await?;
        let mut seats = Vec::new();
        for row in self.rows(Query::new(&LOCK_NODES)).await? {
            let mut columns = Reader::new(&row, "node");
            seats.push(Seat {
                id: columns.int("id")?,
                name: columns.text("name")?,
                ordinal: columns.int("ordinal")?,
                epoch: columns.int("epoch")?,
                lease_until: columns.at("lease_until_ms")?,
                prior_lease_until: columns.at("prior_lease_until_ms")?,
            });
        }
        let now = self.now().await?;
        let (name, version) = (clean_name(&request.name), clean_name(&request.server_version));
        let url = request.advertise_url.as_deref();
        let Some(seat) = seats.iter().find(|seat| seat.name == name) else {
            let id = seats.last().map_or(1, |seat| seat.id + 1);
            let ordinal = free_ordinal(&seats, None, now);
            let insert = Query::new(&INSERT_NODE)
                .int(id)
                .text(&name)
                .int(ordinal)
                .at(now + request.lease)
                .opt_text(url)
                .text(&version)
                .at(now);
            self.execute_all(insert, 1).await?;
            return Ok(Join::Joined { token: LeaseToken { node: NodeId::new(id), epoch: 1 }, ordinal });
        };
        let before = LeaseToken { node: NodeId::new(seat.id), epoch: seat.epoch };
        let Some(ended_at) = request.ended_at(before, (seat.lease_until, seat.prior_lease_until), now) else {
            return Ok(Join::Living { lease_until: seat.lease_until, epoch: seat.epoch });
        };
        let ordinal = free_ordinal(&seats, Some(seat), now);
        let take = Query::new(&TAKE_LEASE)
            .int(ordinal)
            .at(now + request.lease)
            .at(ended_at)
            .opt_text(url)
            .text(&version)
            .at(now)
            .int(seat.id)
            .int(seat.epoch);
        self.execute_all(take, 1).await?;
        self.end_sessions(before, ended_at).await?;
        Ok(Join::Joined { token: LeaseToken { node: NodeId::new(seat.id), epoch: seat.epoch + 1 }, ordinal })
    }

    /// A lease is over: so are the streams that were open under it, as far as anybody knows.
    pub(super) async fn end_sessions(&mut self, lease: LeaseToken, ended_at: Timestamp) -> Result<()> {
        let query = Query::new(&END_SESSIONS).at(ended_at).int(lease.node.get()).int(lease.epoch);
        self.execute(query).await?;
        Ok(())
    }
}

fn free_ordinal(seats: &[Seat], own: Option<&Seat>, now: Timestamp) -> i64 {
    let others = seats.iter().filter(|seat| own.is_none_or(|own| own.id != seat.id));
    let is_taken = |ordinal| others.clone().any(|seat| seat.ordinal == ordinal && seat.lease_until > now);
    let token = |seat: &Seat| LeaseToken { node: NodeId::new(seat.id), epoch: seat.epoch };
    next_ordinal(lease_count(seats.iter().map(token)), is_taken)
}

fn now_of(row: Option<&AnyRow>) -> Result<Timestamp> {
    match row {
        Some(row) => Reader::new(row, "clock").at("now"),
        None => Err(failure::refused("read_now", "the database has no clock")),
    }
}

fn insert_executor(executor: &ExecutorRecord) -> Query {
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
        // What handlers say of their parameters: nothing yet.
        .text("{}")
        .opt_text(executor.secret_hash.as_deref())
}

fn update_executor(executor: &ExecutorRecord) -> Query {
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

fn node(row: &AnyRow) -> Result<Node> {
    let mut columns = Reader::new(row, "node");
    Ok(Node {
        id: NodeId::new(columns.int("id")?),
        name: columns.text("name")?,
        epoch: columns.int("epoch")?,
        lease_until: columns.at("lease_until_ms")?,
        advertise_url: columns.opt_text("advertise_url")?,
        server_version: columns.text("server_version")?,
        started_at: columns.at("started_at_ms")?,
        switch: columns.word("state")?,
        report: super::cluster_nodes::report(&mut columns)?,
    })
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
