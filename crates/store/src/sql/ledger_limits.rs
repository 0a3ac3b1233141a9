//! Who counts for a limit that jobs share, and runs on their way to that node.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rondel_core::{NodeId, RunId};

use super::ledger_move::{LOCK_TAKER, MOVE_JOBS, MOVE_RUNS};
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
const LOCK_DUE: Statement = Statement {
    name: "lock_due",
    text: "SELECT job_id, home FROM job_due WHERE job_id {in_list} ORDER BY job_id {for_update}",
};
const READ_JOBS: Statement =
    Statement { name: "read_jobs_of_runs", text: "SELECT id, job_id FROM run WHERE id {in_list} ORDER BY id" };
const LOCK_UNSENT: Statement = Statement {
    name: "lock_unsent",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? AND status = 'pending' \
           AND marked_at_ms IS NULL{end} ORDER BY id {for_update}",
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
        let mut by_job: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
        for chunk in runs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOBS).list(chunk.iter().map(|run| run.get()))).await? {
                let mut columns = Reader::new(&row, "run");
                let id = columns.int("id")?;
                by_job.entry(columns.int("job_id")?).or_default().insert(id);
            }
        }
        let jobs: Vec<(i64, BTreeSet<i64>)> = by_job.into_iter().collect();
        let mut given = Vec::with_capacity(runs.len());
        for chunk in jobs.chunks(CHUNK_MAX) {
            given.extend(transact!(self, "hand_over", |tx| {
                let Some(row) = tx.row(Query::new(&LOCK_TAKER).int(to.get())).await? else { return Ok(Vec::new()) };
                let epoch = Reader::new(&row, "node").int("epoch")?;
                tx.give(token, chunk, (to, epoch)).await
            })?);
        }
        given.sort_unstable();
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
    async fn give(
        &mut self,
        token: LeaseToken,
        jobs: &[(i64, BTreeSet<i64>)],
        to: (NodeId, i64),
    ) -> Result<Vec<RunId>> {
        let (mut own, mut joining) = (Vec::new(), Vec::new());
        for row in self.rows(Query::new(&LOCK_DUE).list(jobs.iter().map(|(job, _)| *job))).await? {
            let mut columns = Reader::new(&row, "job_due");
            let (job, home) = (columns.int("job_id")?, columns.int("home")?);
            if home == token.node.get() {
                own.push(job);
            } else if home == to.0.get() {
                joining.push(job);
            }
        }
        let named: BTreeSet<i64> = jobs.iter().flat_map(|(_, runs)| runs).copied().collect();
        let mut going = self.unsent_of(token, jobs, &joining).await?;
        let mut stay = HashSet::new();
        let mut open = Vec::new();
        for run in self.open_of_jobs(&own, token.node).await? {
            if named.contains(&run.id) && run.is_unsent(token) && !run.is_shard {
                open.push((run.job, run.id));
            } else {
                stay.insert(run.job);
            }
        }
        own.retain(|job| !stay.contains(job));
        if !own.is_empty() {
            let query = Query::new(&MOVE_JOBS).int(to.0.get()).list(own.iter().copied()).int(token.node.get());
            self.execute_all(query, own.len()).await?;
        }
        going.extend(open.into_iter().filter(|(job, _)| !stay.contains(job)).map(|(_, run)| run));
        going.sort_unstable();
        for chunk in going.chunks(CHUNK_MAX) {
            let query = Query::new(&MOVE_RUNS).int(to.0.get()).int(to.1).list(chunk.iter().copied());
            self.execute_all(query, chunk.len()).await?;
        }
        Ok(going.into_iter().map(RunId::new).collect())
    }

    /// The named runs of these jobs that nobody has sent.
    async fn unsent_of(
        &mut self,
        token: LeaseToken,
        jobs: &[(i64, BTreeSet<i64>)],
        joining: &[i64],
    ) -> Result<Vec<i64>> {
        let runs = jobs.iter().filter(|(job, _)| joining.contains(job)).flat_map(|(_, runs)| runs).copied();
        let mut runs: Vec<i64> = runs.collect();
        runs.sort_unstable();
        let mut unsent = Vec::with_capacity(runs.len());
        for chunk in runs.chunks(CHUNK_MAX) {
            let lock = Query::new(&LOCK_UNSENT).list(chunk.iter().copied()).int(token.node.get()).int(token.epoch);
            for row in self.rows(lock).await? {
                unsent.push(Reader::new(&row, "run").int("id")?);
            }
        }
        Ok(unsent)
    }
}
