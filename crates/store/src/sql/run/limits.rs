//! The trait `Limits` in SQL: which node counts the runs of a limit that jobs share.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::{JobId, NodeId};

use crate::ledger::LimitName;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::run::adopt::an_orphan;
use crate::sql::{SqlStore, Tx, transact};
use crate::{Catalog, LeaseToken, Limits, Result};

const READ_LIMIT: Statement =
    Statement { name: "read_limit", text: "SELECT home FROM limit_home WHERE namespace_id = ? AND limit_key = ?" };
const INSERT_LIMIT: Statement = Statement {
    name: "insert_limit",
    text: "INSERT {ignore} INTO limit_home (namespace_id, limit_key, home) VALUES (?, ?, ?) {or_ignore}",
};
/// Takes a limit from a node that should keep no jobs and has no open run, because such a node counts nothing. A node that has fenced a
/// dead node keeps its limits while the dead node has open runs, because it takes over these runs.
const TAKE_LIMIT: Statement = Statement {
    name: "take_limit",
    text: concat!(
        "UPDATE limit_home SET home = ? WHERE namespace_id = ? AND limit_key = ? AND home = ? \
           AND EXISTS (SELECT 1 FROM node WHERE node.id = limit_home.home AND (node.state <> 'active' OR node.is_leaving = 1)) \
           AND NOT EXISTS (SELECT 1 FROM open_run WHERE open_run.node_id = limit_home.home) \
           AND NOT EXISTS (SELECT 1 FROM node WHERE node.fenced_by = limit_home.home \
           AND node.lease_until_ms = node.prior_lease_until_ms AND COALESCE(",
        an_orphan!("pending"),
        ", ",
        an_orphan!("waiting"),
        ", ",
        an_orphan!("running"),
        ") IS NOT NULL)"
    ),
};
const MOVE_LIMITS: Statement =
    Statement { name: "move_limits", text: "UPDATE limit_home SET home = ? WHERE home {in_list}" };
/// Only a node that takes jobs gets limits.
const FIND_TAKING_NODE: Statement = Statement {
    name: "find_taker",
    text: "SELECT id FROM node WHERE id = ? AND lease_until_ms > {now} AND lease_until_ms <> prior_lease_until_ms \
           AND state = 'active' AND is_leaving = 0",
};
const GIVE_LIMIT: Statement = Statement {
    name: "give_limit",
    text: "UPDATE limit_home SET home = ? WHERE namespace_id = ? AND limit_key = ? AND home = ?",
};
const FREE_LIMIT: Statement = Statement {
    name: "free_limit",
    text: "DELETE FROM limit_home WHERE namespace_id = ? AND limit_key = ? AND home = ?",
};
/// Finds the definitions of open broadcasts, expanded or not, and of shards. Their limits are not given away.
pub(in crate::sql) const READ_OPEN_SHARDS: Statement = Statement {
    name: "read_open_shards",
    text: "SELECT DISTINCT run.job_id, run.job_version FROM open_run CROSS JOIN run \
           WHERE run.id = open_run.id AND open_run.node_id = ? AND (run.shard_index = -1 OR run.shard_total > 1)",
};

#[async_trait]
impl Limits for SqlStore {
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        let mut homes = Vec::with_capacity(limits.len());
        for limit in limits {
            let query = || Query::new(&READ_LIMIT).int(limit.namespace.get()).text(&limit.key);
            let home = match self.row(query()).await? {
                Some(row) => {
                    let home = Reader::new(&row, "limit_home").int("home")?;
                    let is_taken = home != token.node.get() && self.take_limit(token, limit, home).await?;
                    if is_taken { token.node.get() } else { home }
                }
                None => transact!(self, "limit_homes", |tx| {
                    let insert = Query::new(&INSERT_LIMIT).int(limit.namespace.get()).text(&limit.key);
                    tx.execute(insert.int(token.node.get())).await?;
                    match tx.row(query()).await? {
                        Some(row) => Reader::new(&row, "limit_home").int("home"),
                        None => Ok(token.node.get()),
                    }
                })?,
            };
            homes.push(NodeId::new(home));
        }
        Ok(homes)
    }

    async fn give_limits(&self, token: LeaseToken, limits: &[LimitName], to: Option<NodeId>) -> Result<Vec<LimitName>> {
        if let Some(to) = to
            && self.row(Query::new(&FIND_TAKING_NODE).int(to.get())).await?.is_none()
        {
            return Ok(limits.to_vec());
        }
        let mut keys = Vec::new();
        for row in self.rows(Query::new(&READ_OPEN_SHARDS).int(token.node.get())).await? {
            let mut columns = Reader::new(&row, "run");
            keys.push((JobId::new(columns.int("job_id")?), columns.int("job_version")?));
        }
        let definitions = self.definitions(&keys).await?;
        let used_limits: BTreeSet<LimitName> =
            definitions.iter().flat_map(|definition| LimitName::of(definition.namespace, &definition.spec)).collect();
        for limit in limits.iter().filter(|limit| !used_limits.contains(*limit)) {
            let change = match to {
                Some(to) => Query::new(&GIVE_LIMIT).int(to.get()),
                None => Query::new(&FREE_LIMIT),
            };
            self.execute(change.int(limit.namespace.get()).text(&limit.key).int(token.node.get())).await?;
        }
        Ok(limits.iter().filter(|limit| used_limits.contains(*limit)).cloned().collect())
    }
}

impl SqlStore {
    /// Takes the limit from another node if possible. Returns whether this node has it now.
    async fn take_limit(&self, token: LeaseToken, limit: &LimitName, home: i64) -> Result<bool> {
        let query = Query::new(&TAKE_LIMIT).int(token.node.get()).int(limit.namespace.get()).text(&limit.key).int(home);
        Ok(self.execute(query).await? > 0)
    }
}

impl Tx<'_> {
    /// Moves the limits of dead nodes to the node that adopts their runs, because that node knows which runs are open under these limits.
    pub(super) async fn move_limits(
        &mut self,
        token: LeaseToken,
        dead_nodes: impl Iterator<Item = NodeId>,
    ) -> Result<()> {
        let dead_ids: Vec<i64> = dead_nodes.filter(|node| *node != token.node).map(NodeId::get).collect();
        for chunk in dead_ids.chunks(CHUNK_MAX) {
            let query = Query::new(&MOVE_LIMITS).int(token.node.get()).list(chunk.iter().copied());
            self.execute(query).await?;
        }
        Ok(())
    }
}
