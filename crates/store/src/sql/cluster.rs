//! The database's clock, nodes with their leases and reports, and the switches of nodes, apps and executors.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::homes::Switch;
use rondel_core::{AppId, NodeId, Timestamp};
use sqlx::any::AnyRow;

use crate::cluster::{
    Connections, ExecutorSwitch, Join, JoinRequest, Node, NodeReport, Renewal, Switches, distinct_end, lease_count,
    next_ordinal,
};
use crate::settle::clean_name;
use crate::sql::dialect::Dialect;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::run::adopt::FIND_ORPHAN;
use crate::sql::{SqlStore, Tx, failure, transact};
use crate::{Cluster, DatabaseTroubleKind, LeaseToken, Result, StoreError};

const READ_NOW: Statement = Statement { name: "read_now", text: "SELECT {now}" };
const READ_LEASE: Statement = Statement {
    name: "read_lease",
    text: "SELECT {now}, lease_until_ms, prior_lease_until_ms FROM node WHERE id = ? AND epoch = ?",
};
/// One row that every join locks, so that no two joins pick the same id or ordinal.
const LOCK_JOINS: Statement =
    Statement { name: "lock_joins", text: "SELECT id FROM schema_compat WHERE id = 1 {for_update}" };
const READ_NODES: Statement = Statement {
    name: "read_nodes",
    text: "SELECT id, name, epoch, lease_until_ms, prior_lease_until_ms, fenced_by, advertise_url, server_version, started_at_ms, state, is_leaving, \
           claim_strategy, weight, job_count, recent_fires, skew_ms, claims_tried, claims_lost, refused_count, \
           lateness_p99_ms, loops FROM node ORDER BY id",
};
/// Locks only the row of this name. A server that takes over the runs of a dead node may hold the lock of that node's row for a long time,
/// and must not hold up the joins of other nodes.
const LOCK_NODE: Statement = Statement { name: "lock_node", text: "SELECT id FROM node WHERE name = ? {for_update}" };
const READ_LEASES: Statement = Statement {
    name: "read_leases",
    text: "SELECT id, name, ordinal, epoch, lease_until_ms, prior_lease_until_ms, ended_at_ms, fenced_by FROM node ORDER BY id",
};
const INSERT_NODE: Statement = Statement {
    name: "insert_node",
    text: "INSERT INTO node (id, name, ordinal, epoch, lease_until_ms, prior_lease_until_ms, advertise_url, \
           server_version, started_at_ms) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)",
};
const TAKE_LEASE: Statement = Statement {
    name: "take_lease",
    text: "UPDATE node SET epoch = ?, ordinal = ?, lease_until_ms = ?, prior_lease_until_ms = ?, \
           advertise_url = ?, server_version = ?, started_at_ms = ?, is_leaving = 0, fenced_by = 0 WHERE id = ? AND epoch = ?",
};
/// The end of a lease does not move back by more than a tenth of its length. If the database's clock has stepped back further, the new end
/// would be earlier than the instants of runs that were sent under the lease. A node that adopts the runs decides by that end which of them
/// may have been sent.
const RENEW_LEASE: Statement = Statement {
    name: "renew_lease",
    text: "UPDATE node SET lease_until_ms = ? WHERE id = ? AND epoch = ? AND lease_until_ms <= ?",
};
const END_LEASE: Statement = Statement {
    name: "end_lease",
    text: "UPDATE node SET lease_until_ms = ? WHERE id = ? AND epoch = ? AND lease_until_ms > ?",
};
const WRITE_REPORT: Statement = Statement {
    name: "write_report",
    text: "UPDATE node SET is_leaving = ?, claim_strategy = ?, weight = ?, job_count = ?, recent_fires = ?, skew_ms = ?, claims_tried = ?, \
           claims_lost = ?, refused_count = ?, lateness_p99_ms = ?, loops = ? WHERE id = ? AND epoch = ?",
};
const READ_NODE_ID: Statement = Statement { name: "read_node_id", text: "SELECT id FROM node WHERE name = ?" };
const SET_NODE_SWITCH: Statement =
    Statement { name: "set_node_switch", text: "UPDATE node SET state = ? WHERE id = ?" };
const READ_APP_ID: Statement = Statement { name: "read_app_id", text: "SELECT id FROM app WHERE id = ?" };
const SET_APP_SWITCH: Statement = Statement { name: "set_app_switch", text: "UPDATE app SET state = ? WHERE id = ?" };
const READ_APP_SWITCHES: Statement = Statement {
    name: "read_app_switches",
    text: "SELECT id, state FROM app WHERE state IN ('draining', 'stopped') ORDER BY id",
};
const SET_EXECUTOR_SWITCH: Statement = Statement {
    name: "set_executor_switch",
    text: "UPDATE executor_switch SET state = ?, set_at_ms = ? WHERE app_id = ? AND name = ? AND state <> ?",
};
const INSERT_EXECUTOR_SWITCH: Statement = Statement {
    name: "insert_executor_switch",
    text: "INSERT {ignore} INTO executor_switch (app_id, name, state, set_at_ms) VALUES (?, ?, ?, ?) {or_ignore}",
};
const DELETE_EXECUTOR_SWITCH: Statement =
    Statement { name: "delete_executor_switch", text: "DELETE FROM executor_switch WHERE app_id = ? AND name = ?" };
const READ_EXECUTOR_SWITCHES: Statement = Statement {
    name: "read_executor_switches",
    text: "SELECT app_id, name, state, set_at_ms FROM executor_switch ORDER BY app_id, name",
};
/// Leaves out the node with the newest id, because that id would be assigned again.
const READ_DEAD_NODES: Statement = Statement {
    name: "read_dead_nodes",
    text: "SELECT id FROM node WHERE lease_until_ms < ? AND id < (SELECT MAX(newest.id) FROM node newest) \
           AND NOT EXISTS (SELECT 1 FROM open_run WHERE open_run.node_id = node.id) \
           AND NOT EXISTS (SELECT 1 FROM limit_home WHERE limit_home.home = node.id) \
           AND NOT EXISTS (SELECT 1 FROM job_due WHERE job_due.home = node.id AND job_due.next_fire_at_ms IS NOT NULL) \
           ORDER BY id LIMIT ?",
};
const LOCK_DEAD_NODES: Statement = Statement {
    name: "lock_dead_nodes",
    text: "SELECT id FROM node WHERE id {in_list} AND lease_until_ms < ? ORDER BY id {for_update}",
};
const DELETE_NODES: Statement = Statement { name: "delete_nodes", text: "DELETE FROM node WHERE id {in_list}" };

#[async_trait]
impl Cluster for SqlStore {
    async fn now(&self) -> Result<Timestamp> {
        now_of(self.row(Query::new(&READ_NOW)).await?.as_ref())
    }

    fn is_single_server(&self) -> bool {
        self.statements.dialect() == Dialect::Sqlite
    }

    fn connections(&self) -> Option<Connections> {
        // On SQLite the single writer has its own pool. On other databases `write` and `read` are the same pool.
        let current_pools = self.pools.current_pools();
        let pools = if self.is_single_server() {
            vec![&current_pools.read, &current_pools.write]
        } else {
            vec![&current_pools.read]
        };
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let idle_count: u32 = pools.iter().map(|pool| count(pool.num_idle())).sum();
        let connection_count: u32 = pools.iter().map(|pool| pool.size()).sum();
        Some(Connections { busy: connection_count.saturating_sub(idle_count), idle: idle_count })
    }

    async fn diagnose(&self, error: &StoreError) -> DatabaseTroubleKind {
        self.diagnose_database(error).await
    }

    async fn join(&self, request: &JoinRequest) -> Result<Join> {
        transact!(self, "join", |tx| tx.join(request).await)
    }

    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Renewal>> {
        // The clock is read before the new end is written, so the lease ends too early rather than too late.
        let lease_query = Query::new(&READ_LEASE).int(token.node.get()).int(token.epoch);
        let Some(row) = self.row(lease_query).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "node");
        let (now, previous_until) = (columns.at("now")?, columns.at("lease_until_ms")?);
        let until = distinct_end(now + lease, columns.at("prior_lease_until_ms")?);
        let query = Query::new(&RENEW_LEASE).at(until).int(token.node.get()).int(token.epoch).at(until + lease / 10);
        let is_renewed = self.execute(query).await? == 1;
        rondel_failpoint::pass("renew.written");
        Ok(is_renewed.then_some(Renewal { now, previous_until, until }))
    }

    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()> {
        let lease_query = Query::new(&READ_LEASE).int(token.node.get()).int(token.epoch);
        let Some(row) = self.row(lease_query).await? else { return Ok(()) };
        let mut columns = Reader::new(&row, "node");
        let now = columns.at("now")?;
        columns.at("lease_until_ms")?;
        let until = distinct_end(now.max(reached), columns.at("prior_lease_until_ms")?);
        self.execute(Query::new(&END_LEASE).at(until).int(token.node.get()).int(token.epoch).at(until)).await?;
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        self.rows(Query::new(&READ_NODES)).await?.iter().map(node).collect()
    }

    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let loops = serde_json::to_string(&report.loops).unwrap_or_default();
        let query = Query::new(&WRITE_REPORT)
            .int(report.is_leaving.into())
            .text(report.claim_strategy.as_str())
            .int(report.weight.into())
            .int(count(report.job_count))
            .int(count(report.recent_fires))
            .int(report.skew_ms)
            .int(count(report.claims_tried))
            .int(count(report.claims_lost))
            .int(count(report.refused_count))
            .opt_int(report.lateness_p99_ms.map(count))
            .text(&loops)
            .int(token.node.get())
            .int(token.epoch);
        self.execute(query).await?;
        self.tend_connections(token).await
    }

    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool> {
        let Some(row) = self.row(Query::new(&READ_NODE_ID).text(name)).await? else { return Ok(false) };
        let id = Reader::new(&row, "node").int("id")?;
        // The node exists, so the number of rows that the UPDATE changes does not matter.
        self.execute(Query::new(&SET_NODE_SWITCH).text(switch.as_str()).int(id)).await?;
        Ok(true)
    }

    async fn set_app_switch(&self, app: AppId, switch: Switch) -> Result<bool> {
        if self.row(Query::new(&READ_APP_ID).int(app.get())).await?.is_none() {
            return Ok(false);
        }
        self.execute(Query::new(&SET_APP_SWITCH).text(switch.as_str()).int(app.get())).await?;
        Ok(true)
    }

    async fn set_executor_switch(&self, app: AppId, name: &str, switch: Switch, at: Timestamp) -> Result<()> {
        let (app, name, state) = (app.get(), clean_name(name), switch.as_str());
        if switch == Switch::Active {
            self.execute(Query::new(&DELETE_EXECUTOR_SWITCH).int(app).text(&name)).await?;
            return Ok(());
        }
        // At most one of the two statements has an effect: the UPDATE if a row has another switch, the INSERT if there is no row.
        let change = Query::new(&SET_EXECUTOR_SWITCH).text(state).at(at).int(app).text(&name).text(state);
        self.execute(change).await?;
        self.execute(Query::new(&INSERT_EXECUTOR_SWITCH).int(app).text(&name).text(state).at(at)).await?;
        Ok(())
    }

    async fn switches(&self) -> Result<Switches> {
        let rows = self.rows(Query::new(&READ_APP_SWITCHES)).await?;
        let app = |row: &AnyRow| {
            let mut columns = Reader::new(row, "app");
            Ok((AppId::new(columns.int("id")?), columns.word("state")?))
        };
        let apps = rows.iter().map(app).collect::<Result<_>>()?;
        let rows = self.rows(Query::new(&READ_EXECUTOR_SWITCHES)).await?;
        let executor = |row: &AnyRow| {
            let mut columns = Reader::new(row, "executor_switch");
            Ok(ExecutorSwitch {
                app: AppId::new(columns.int("app_id")?),
                name: columns.text("name")?,
                switch: columns.word("state")?,
                set_at: columns.at("set_at_ms")?,
            })
        };
        Ok(Switches { apps, executors: rows.iter().map(executor).collect::<Result<_>>()? })
    }

    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let dead_ids =
            read_ids(&self.rows(Query::new(&READ_DEAD_NODES).at(dead_since).int(limit.into())).await?, "node", "id")?;
        if dead_ids.is_empty() {
            return Ok(0);
        }
        transact!(self, "forget_nodes", |tx| {
            let lock = Query::new(&LOCK_DEAD_NODES).list(dead_ids.iter().copied()).at(dead_since);
            let locked_ids = read_ids(&tx.rows(lock).await?, "node", "id")?;
            if locked_ids.is_empty() {
                return Ok(0);
            }
            let count = locked_ids.len();
            tx.execute_all(Query::new(&DELETE_NODES).list(locked_ids.into_iter()), count).await?;
            Ok(u64::try_from(count).unwrap_or(u64::MAX))
        })
    }
}

/// The columns of a node's row that a join needs.
struct JoinRow {
    id: i64,
    name: String,
    ordinal: i64,
    epoch: i64,
    lease_until: Timestamp,
    prior_lease_until: Timestamp,
    /// Whether another node has fenced the lease.
    is_fenced: bool,
    /// The node that fenced the lease; 0 if it is not known. Has no meaning unless the lease is fenced.
    fenced_by: i64,
}

impl Tx<'_> {
    pub(super) async fn now(&mut self) -> Result<Timestamp> {
        now_of(self.row(Query::new(&READ_NOW)).await?.as_ref())
    }

    async fn join(&mut self, request: &JoinRequest) -> Result<Join> {
        let (name, version) = (clean_name(&request.name), clean_name(&request.server_version));
        self.row(Query::new(&LOCK_JOINS)).await?;
        self.row(Query::new(&LOCK_NODE).text(&name)).await?;
        let mut nodes = Vec::new();
        for row in self.rows(Query::new(&READ_LEASES)).await? {
            let mut columns = Reader::new(&row, "node");
            let (id, name, ordinal) = (columns.int("id")?, columns.text("name")?, columns.int("ordinal")?);
            let (epoch, lease_until) = (columns.int("epoch")?, columns.at("lease_until_ms")?);
            let prior_until = columns.at("prior_lease_until_ms")?;
            let prior_lease_until = prior_until.max(columns.at("ended_at_ms")?);
            let fenced_by = columns.int("fenced_by")?;
            let is_fenced = prior_until == lease_until;
            nodes.push(JoinRow { id, name, ordinal, epoch, lease_until, prior_lease_until, is_fenced, fenced_by });
        }
        let now = self.now().await?;
        let url = request.advertise_url.as_deref();
        let Some(row) = nodes.iter().find(|row| row.name == name) else {
            let newest_id = nodes.last().map_or(0, |row| row.id);
            let id = request.new_id(newest_id, |id| nodes.iter().any(|row| row.id == id.get()));
            let epoch = request.epoch_after(LeaseToken { node: id, epoch: 0 });
            let ordinal = free_ordinal(&nodes, None, now);
            let insert = Query::new(&INSERT_NODE)
                .int(id.get())
                .text(&name)
                .int(ordinal)
                .int(epoch)
                .at(now + request.lease)
                .opt_text(url)
                .text(&version)
                .at(now);
            self.execute_all(insert, 1).await?;
            return Ok(Join::Joined { token: LeaseToken { node: id, epoch }, ordinal });
        };
        let previous_lease = LeaseToken { node: NodeId::new(row.id), epoch: row.epoch };
        let ends = (row.lease_until, row.prior_lease_until);
        let Some(ended_at) = request.latest_end(previous_lease, row.is_fenced, ends, now) else {
            return Ok(Join::Living { lease_until: row.lease_until, epoch: row.epoch });
        };
        // The node that fenced this one counts as living even if its lease has ended: after an outage of the database, it may return later
        // than this node.
        let is_living = |other: &JoinRow| !other.is_fenced && (other.lease_until > now || other.id == row.fenced_by);
        let is_other_node_living = nodes.iter().any(|other| other.id != row.id && is_living(other));
        if row.is_fenced
            && is_other_node_living
            && request.waits_for_takeover()
            && self.row(Query::new(&FIND_ORPHAN).int(row.id).int(row.epoch)).await?.is_some()
        {
            return Ok(Join::BeingTakenOver);
        }
        let ordinal = free_ordinal(&nodes, Some(row), now);
        let new_lease = LeaseToken { epoch: request.epoch_after(previous_lease), ..previous_lease };
        let query = Query::new(&TAKE_LEASE)
            .int(new_lease.epoch)
            .int(ordinal)
            .at(request.lease_until(now, ended_at))
            .at(ended_at)
            .opt_text(url)
            .text(&version)
            .at(now)
            .int(row.id)
            .int(row.epoch);
        self.execute_all(query, 1).await?;
        self.end_sessions(previous_lease, ended_at).await?;
        Ok(Join::Joined { token: new_lease, ordinal })
    }
}

/// The ordinal of the next lease. A fenced lease keeps its ordinal until its end by the clock, because its holder may not have noticed the
/// fence yet.
fn free_ordinal(nodes: &[JoinRow], own_row: Option<&JoinRow>, now: Timestamp) -> i64 {
    let other_rows = nodes.iter().filter(|row| own_row.is_none_or(|own_row| own_row.id != row.id));
    let is_taken = |ordinal| other_rows.clone().any(|row| row.ordinal == ordinal && row.lease_until > now);
    let token = |row: &JoinRow| LeaseToken { node: NodeId::new(row.id), epoch: row.epoch };
    next_ordinal(lease_count(nodes.iter().map(token)), is_taken)
}

fn now_of(row: Option<&AnyRow>) -> Result<Timestamp> {
    match row {
        Some(row) => Reader::new(row, "clock").at("now"),
        None => Err(failure::refused("read_now", "the database has no clock")),
    }
}

/// The node that fenced a lease, by the column `fenced_by`. The column counts only while the lease is fenced; 0 means that no fencer is known.
pub(super) fn known_fencer(fenced_by: i64, is_fenced: bool) -> Option<NodeId> {
    (is_fenced && fenced_by != 0).then(|| NodeId::new(fenced_by))
}

fn node(row: &AnyRow) -> Result<Node> {
    let mut columns = Reader::new(row, "node");
    let (id, name, epoch) = (NodeId::new(columns.int("id")?), columns.text("name")?, columns.int("epoch")?);
    let lease_until = columns.at("lease_until_ms")?;
    let is_fenced = columns.at("prior_lease_until_ms")? == lease_until;
    let fenced_by = known_fencer(columns.int("fenced_by")?, is_fenced);
    Ok(Node {
        id,
        name,
        epoch,
        lease_until,
        is_fenced,
        fenced_by,
        advertise_url: columns.opt_text("advertise_url")?,
        server_version: columns.text("server_version")?,
        started_at: columns.at("started_at_ms")?,
        switch: columns.word("state")?,
        report: report(&mut columns)?,
    })
}

/// Reads a node's report. The statement must select its columns in this order.
pub(super) fn report(columns: &mut Reader<'_>) -> Result<NodeReport> {
    let is_leaving = columns.int("is_leaving")? != 0;
    let claim_strategy = columns.word("claim_strategy")?;
    let weight = columns.int("weight")?;
    let weight = u32::try_from(weight).map_err(|error| columns.corrupt("weight", error))?;
    let (job_count, recent_fires) = (count(columns, "job_count")?, count(columns, "recent_fires")?);
    let skew_ms = columns.int("skew_ms")?;
    let (claims_tried, claims_lost) = (count(columns, "claims_tried")?, count(columns, "claims_lost")?);
    let refused_count = count(columns, "refused_count")?;
    let lateness_p99_ms = columns.opt_int("lateness_p99_ms")?.and_then(|millis| u64::try_from(millis).ok());
    // A server of another version can have written the loops in another format. In that case they are left out.
    let loops = columns.opt_text("loops")?.and_then(|loops| serde_json::from_str(&loops).ok()).unwrap_or_default();
    Ok(NodeReport {
        is_leaving,
        claim_strategy,
        weight,
        job_count,
        recent_fires,
        skew_ms,
        claims_tried,
        claims_lost,
        refused_count,
        lateness_p99_ms,
        loops,
    })
}

fn count(columns: &mut Reader<'_>, name: &'static str) -> Result<u64> {
    let value = columns.int(name)?;
    u64::try_from(value).map_err(|error| columns.corrupt(name, error))
}
