//! The nodes that count the runs of the limits that jobs share.

use async_trait::async_trait;
use rondel_core::NodeId;

use crate::ledger::LimitName;
use crate::sql::query::{Query, Reader, Statement};
use crate::sql::{SqlStore, Tx, transact};
use crate::{LeaseToken, Limits, Result};

const READ_LIMIT: Statement =
    Statement { name: "read_limit", text: "SELECT home FROM limit_home WHERE namespace_id = ? AND limit_key = ?" };
const INSERT_LIMIT: Statement = Statement {
    name: "insert_limit",
    text: "INSERT {ignore} INTO limit_home (namespace_id, limit_key, home) VALUES (?, ?, ?) {or_ignore}",
};
const MOVE_LIMITS: Statement = Statement { name: "move_limits", text: "UPDATE limit_home SET home = ? WHERE home = ?" };

#[async_trait]
impl Limits for SqlStore {
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        let mut homes = Vec::with_capacity(limits.len());
        for limit in limits {
            let query = || Query::new(&READ_LIMIT).int(limit.namespace.get()).text(&limit.key);
            let home = match self.row(query()).await? {
                Some(row) => Reader::new(&row, "limit_home").int("home")?,
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
}

impl Tx<'_> {
    /// Moves the limits of dead nodes to the node that adopts their runs: it knows what is open under these limits.
    pub(super) async fn move_limits(&mut self, token: LeaseToken, dead: impl Iterator<Item = NodeId>) -> Result<()> {
        for node in dead.filter(|node| *node != token.node) {
            self.execute(Query::new(&MOVE_LIMITS).int(token.node.get()).int(node.get())).await?;
        }
        Ok(())
    }
}
