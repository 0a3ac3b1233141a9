//! What nodes say of themselves, the switches of nodes and apps, and nodes that are gone for good.

use rondel_core::homes::Switch;
use rondel_core::{AppId, Timestamp};
use sqlx::any::AnyRow;

use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, transact};
use crate::cluster::NodeReport;
use crate::{LeaseToken, Result};

const WRITE_REPORT: Statement = Statement {
    name: "write_report",
    text: "UPDATE node SET is_leaving = ?, claim_strategy = ?, weight = ?, job_count = ?, skew_ms = ?, claims_tried = ?, \
           claims_lost = ?, refused_count = ?, loops = ? WHERE id = ? AND epoch = ?",
};
const READ_NODE_NAME: Statement = Statement { name: "read_node_name", text: "SELECT id FROM node WHERE name = ?" };
const SET_NODE_SWITCH: Statement =
    Statement { name: "set_node_switch", text: "UPDATE node SET state = ? WHERE id = ?" };
const READ_APP_ID: Statement = Statement { name: "read_app_id", text: "SELECT id FROM app WHERE id = ?" };
const SET_APP_SWITCH: Statement = Statement { name: "set_app_switch", text: "UPDATE app SET state = ? WHERE id = ?" };
const READ_APP_SWITCHES: Statement = Statement {
    name: "read_app_switches",
    text: "SELECT id, state FROM app WHERE state IN ('draining', 'stopped') ORDER BY id",
};
/// The newest id is not among them: it would be given again.
const READ_DEAD_NODES: Statement = Statement {
    name: "read_dead_nodes",
    text: "SELECT id FROM node WHERE lease_until_ms < ? AND id < (SELECT MAX(newest.id) FROM node newest) \
           AND NOT EXISTS (SELECT 1 FROM run WHERE run.node_id = node.id \
           AND run.status IN ('pending', 'waiting', 'running')) \
           AND NOT EXISTS (SELECT 1 FROM limit_home WHERE limit_home.home = node.id) \
           AND NOT EXISTS (SELECT 1 FROM job_due WHERE job_due.home = node.id AND job_due.next_fire_at_ms IS NOT NULL) \
           ORDER BY id LIMIT ?",
};
const LOCK_DEAD_NODES: Statement = Statement {
    name: "lock_dead_nodes",
    text: "SELECT id FROM node WHERE id {in_list} AND lease_until_ms < ? ORDER BY id {for_update}",
};
const DELETE_NODES: Statement = Statement { name: "delete_nodes", text: "DELETE FROM node WHERE id {in_list}" };

impl SqlStore {
    pub(super) async fn write_report(&self, token: LeaseToken, report: &NodeReport) -> Result<()> {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let loops = serde_json::to_string(&report.loops).unwrap_or_default();
        let query = Query::new(&WRITE_REPORT)
            .int(report.is_leaving.into())
            .text(report.claim_strategy.as_str())
            .int(report.weight.into())
            .int(count(report.job_count))
            .int(report.skew_ms)
            .int(count(report.claims_tried))
            .int(count(report.claims_lost))
            .int(count(report.refused_count))
            .text(&loops)
            .int(token.node.get())
            .int(token.epoch);
        self.execute(query).await?;
        Ok(())
    }

    pub(super) async fn write_node_switch(&self, name: &str, switch: Switch) -> Result<bool> {
        let Some(row) = self.row(Query::new(&READ_NODE_NAME).text(name)).await? else { return Ok(false) };
        let id = Reader::new(&row, "node").int("id")?;
        // MySQL does not count a row that is already as it is to be.
        self.execute(Query::new(&SET_NODE_SWITCH).text(switch.as_str()).int(id)).await?;
        Ok(true)
    }

    pub(super) async fn write_app_switch(&self, app: AppId, switch: Switch) -> Result<bool> {
        if self.row(Query::new(&READ_APP_ID).int(app.get())).await?.is_none() {
            return Ok(false);
        }
        self.execute(Query::new(&SET_APP_SWITCH).text(switch.as_str()).int(app.get())).await?;
        Ok(true)
    }

    pub(super) async fn read_app_switches(&self) -> Result<Vec<(AppId, Switch)>> {
        let rows = self.rows(Query::new(&READ_APP_SWITCHES)).await?;
        let switch = |row: &AnyRow| {
            let mut columns = Reader::new(row, "app");
            Ok((AppId::new(columns.int("id")?), columns.word("state")?))
        };
        rows.iter().map(switch).collect()
    }

    pub(super) async fn remove_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let dead = ids(&self.rows(Query::new(&READ_DEAD_NODES).at(dead_since).int(limit.into())).await?)?;
        if dead.is_empty() {
            return Ok(0);
        }
        transact!(self, "forget_nodes", |tx| {
            let lock = Query::new(&LOCK_DEAD_NODES).list(dead.iter().copied()).at(dead_since);
            let locked = ids(&tx.rows(lock).await?)?;
            if locked.is_empty() {
                return Ok(0);
            }
            let count = locked.len();
            tx.execute_all(Query::new(&DELETE_NODES).list(locked.into_iter()), count).await?;
            Ok(u64::try_from(count).unwrap_or(u64::MAX))
        })
    }
}

fn ids(rows: &[AnyRow]) -> Result<Vec<i64>> {
    rows.iter().map(|row| Reader::new(row, "node").int("id")).collect()
}

/// The columns of a node's report, in the order of the table.
pub(super) fn report(columns: &mut Reader<'_>) -> Result<NodeReport> {
    let is_leaving = columns.int("is_leaving")? != 0;
    let claim_strategy = columns.word("claim_strategy")?;
    let weight = columns.int("weight")?;
    let weight = u32::try_from(weight).map_err(|error| columns.corrupt("weight", error))?;
    let job_count = count(columns, "job_count")?;
    let skew_ms = columns.int("skew_ms")?;
    let (claims_tried, claims_lost) = (count(columns, "claims_tried")?, count(columns, "claims_lost")?);
    let refused_count = count(columns, "refused_count")?;
    // A server of another version may say it in other words.
    let loops = columns.opt_text("loops")?.and_then(|loops| serde_json::from_str(&loops).ok()).unwrap_or_default();
    Ok(NodeReport {
        is_leaving,
        claim_strategy,
        weight,
        job_count,
        skew_ms,
        claims_tried,
        claims_lost,
        refused_count,
        loops,
    })
}

fn count(columns: &mut Reader<'_>, name: &'static str) -> Result<u64> {
    let value = columns.int(name)?;
    u64::try_from(value).map_err(|error| columns.corrupt(name, error))
}
