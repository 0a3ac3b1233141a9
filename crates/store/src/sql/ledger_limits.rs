//! Who counts for a limit that jobs share, and runs on their way to that node.

use std::collections::{BTreeMap, HashMap};

use rondel_core::{NodeId, RunId};

use super::query::{CHUNK_MAX, Query, Reader, Statement};
use super::{SqlStore, Tx, transact};
use crate::ledger::LimitName;
use crate::{LeaseToken, Result};

const READ_LIMIT: Statement =
    Statement { name: "read_limit", text: "SELECT home FROM limit_home WHERE namespace_id = ? AND limit_key = ?" };
const INSERT_LIMIT: Statement = Statement {
    name: "insert_limit",
    text: "INSERT {ignore} INTO limit_home (namespace_id, limit_key, home) VALUES (?, ?, ?) {or_ignore}",
};
const MOVE_LIMITS: Statement = Statement { name: "move_limits", text: "UPDATE limit_home SET home = ? WHERE home = ?" };
const READ_LEASE: Statement = Statement {
    name: "read_lease",
    text: "SELECT epoch FROM node WHERE id = ? AND lease_until_ms > {now} AND state = 'active' AND is_leaving = 0 \
           {for_update}",
};
const LOCK_DUE: Statement = Statement {
    name: "lock_due",
    text: "SELECT job_id, home FROM job_due WHERE job_id {in_list} ORDER BY job_id {for_update}",
};
const GIVE_JOBS: Statement = Statement {
    name: "give_jobs",
    text: "UPDATE job_due SET home = ?, term = term + 1 WHERE job_id {in_list} AND home = ?",
};
const READ_JOBS: Statement =
    Statement { name: "read_jobs_of_runs", text: "SELECT id, job_id FROM run WHERE id {in_list} ORDER BY id" };
const LOCK_UNSENT: Statement = Statement {
    name: "lock_unsent",
    text: "SELECT id FROM run WHERE id {in_list} AND node_id = ? AND node_epoch = ? AND status = 'pending' \
           AND marked_at_ms IS NULL ORDER BY id {for_update}",
};
/// As waiting ones: the scan of the other node takes them up.
const GIVE_RUNS: Statement = Statement {
    name: "give_runs",
    text: "UPDATE run SET node_id = ?, node_epoch = ?, status = 'waiting' WHERE id {in_list} AND status = 'pending'",
};

impl SqlStore {
    pub(super) async fn read_limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
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

    pub(super) async fn give_runs(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>> {
        let mut ids: Vec<i64> = runs.iter().map(|run| run.get()).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut given = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            given.extend(transact!(self, "hand_over", |tx| {
                let Some(row) = tx.row(Query::new(&READ_LEASE).int(to.get())).await? else { return Ok(Vec::new()) };
                let epoch = Reader::new(&row, "node").int("epoch")?;
                tx.give(token, chunk, (to, epoch)).await
            })?);
        }
        Ok(given)
    }
}

impl Tx<'_> {
    /// Whoever adopts a node's runs knows what is open under the limits that it counted for.
    pub(super) async fn move_limits(&mut self, token: LeaseToken, dead: impl Iterator<Item = NodeId>) -> Result<()> {
        for node in dead.filter(|node| *node != token.node) {
            self.execute(Query::new(&MOVE_LIMITS).int(token.node.get()).int(node.get())).await?;
        }
        Ok(())
    }

    /// Jobs first, then runs, each by id: as adoption does.
    async fn give(&mut self, token: LeaseToken, ids: &[i64], to: (NodeId, i64)) -> Result<Vec<RunId>> {
        let mut jobs = BTreeMap::new();
        for row in self.rows(Query::new(&READ_JOBS).list(ids.iter().copied())).await? {
            let mut columns = Reader::new(&row, "run");
            let id = columns.int("id")?;
            jobs.insert(columns.int("job_id")?, id);
        }
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut homes = HashMap::new();
        for row in self.rows(Query::new(&LOCK_DUE).list(jobs.keys().copied())).await? {
            let mut columns = Reader::new(&row, "job_due");
            let job = columns.int("job_id")?;
            homes.insert(job, columns.int("home")?);
        }
        let lock = Query::new(&LOCK_UNSENT).list(ids.iter().copied()).int(token.node.get()).int(token.epoch);
        let mut unsent = Vec::with_capacity(ids.len());
        for row in self.rows(lock).await? {
            unsent.push(Reader::new(&row, "run").int("id")?);
        }
        if unsent.is_empty() {
            return Ok(Vec::new());
        }
        let own: Vec<i64> = jobs.keys().copied().filter(|job| homes.get(job) == Some(&token.node.get())).collect();
        if !own.is_empty() {
            let query = Query::new(&GIVE_JOBS).int(to.0.get()).list(own.iter().copied()).int(token.node.get());
            self.execute_all(query, own.len()).await?;
        }
        let query = Query::new(&GIVE_RUNS).int(to.0.get()).int(to.1).list(unsent.iter().copied());
        self.execute_all(query, unsent.len()).await?;
        Ok(unsent.into_iter().map(RunId::new).collect())
    }
}
