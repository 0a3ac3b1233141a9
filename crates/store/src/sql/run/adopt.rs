//! Adoption of the open runs of leases that have ended.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};

use crate::ledger::{self, Adopted, Adoption, DeadNode, OrphanedJobs, fewest_first, taken_nodes};
use crate::sql::cluster::known_fencer;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::rows::{self, run_columns};
use crate::sql::run::open_runs::OpenRunsOfNode;
use crate::sql::{SqlStore, Tx, transact};
use crate::streams::LastSessions;
use crate::{Adopt, LeaseToken, Result};

/// Orphans of up to this many nodes are searched for with one statement per node.
const SINGLE_READ_NODES_MAX: usize = 4;

/// The id of an orphan with this status, of the outer statement's `node`. An orphan is an open run under an ended lease.
macro_rules! an_orphan {
    ($status:literal) => {
        concat!(
            "(SELECT open_run.id FROM open_run WHERE open_run.node_id = node.id AND open_run.node_epoch < node.epoch \
             AND open_run.status = '",
            $status,
            "' LIMIT 1)"
        )
    };
}
pub(super) use an_orphan;

/// A fenced lease has ended, even if the clock has stepped back to before its end.
const LOCK_DEAD_NODES: Statement = Statement {
    name: "lock_dead",
    text: "SELECT id, epoch, lease_until_ms, prior_lease_until_ms, fenced_by, ended_at_ms FROM node WHERE id {in_list} \
           AND (lease_until_ms <= {now} OR lease_until_ms = prior_lease_until_ms) ORDER BY id {for_update}",
};
const READ_NODE: Statement =
    Statement { name: "read_node", text: "SELECT id, prior_lease_until_ms, ended_at_ms FROM node WHERE id = ?" };
/// The fence: a node that acts under the old epoch finds that its epoch is no longer current.
const FENCE_NODE: Statement = Statement {
    name: "fence_node",
    text: "UPDATE node SET epoch = epoch + 1, prior_lease_until_ms = lease_until_ms, ended_at_ms = ?, fenced_by = ? \
           WHERE id = ? AND epoch = ?",
};
/// The node that takes over the runs of a fencer gets the limits that the fencer had got, so it counts as the fencer from then on.
const SET_FENCER: Statement =
    Statement { name: "set_fencer", text: "UPDATE node SET fenced_by = ? WHERE id = ? AND epoch = ?" };
const READ_FENCED_BY: Statement = Statement {
    name: "read_fenced_by",
    text: "SELECT id FROM node WHERE fenced_by {in_list} AND lease_until_ms = prior_lease_until_ms ORDER BY id",
};
/// Whether a node has any orphan. Nearly always there is none. The statement names each status, because in the index the status comes before
/// the epoch.
pub(in crate::sql) const FIND_ORPHAN: Statement = Statement {
    name: "find_orphan",
    text: "SELECT id FROM open_run WHERE node_id = ? AND status IN ('pending', 'waiting', 'running') AND node_epoch < ? LIMIT 1",
};
/// Which of some dead nodes have an orphan. There is one inner statement for each status, because in the index the status comes before the
/// epoch.
pub(in crate::sql) const FIND_NODES_WITH_ORPHANS: Statement = Statement {
    name: "find_nodes_with_orphans",
    text: concat!(
        "SELECT dead.id FROM (SELECT node.id, COALESCE(",
        an_orphan!("pending"),
        ", ",
        an_orphan!("waiting"),
        ", ",
        an_orphan!("running"),
        ") AS orphan_id FROM node WHERE node.id {in_list}) dead WHERE dead.orphan_id IS NOT NULL ORDER BY dead.id"
    ),
};
/// Reads only the index by lease, which has the order of the jobs.
pub(in crate::sql) const COUNT_ORPHANS: Statement = Statement {
    name: "count_orphans",
    text: "SELECT job_id, COUNT(*) AS run_count FROM open_run WHERE node_id = ? AND node_epoch < ? GROUP BY job_id",
};
const LOCK_HOMES: Statement = Statement {
    name: "lock_homes",
    text: "SELECT job_id, home FROM job_due WHERE job_id {in_list} ORDER BY job_id {for_update}",
};
const MOVE_HOMES: Statement = Statement {
    name: "move_homes",
    text: "UPDATE {join:iii}job_due SET home = v.column3, term = term + 1 {from:iii} \
           WHERE {of_rows:job_due.job_id} AND {check}job_due.home = v.column2{end}",
};
const LOCK_ORPHANS: Statement = Statement {
    name: "lock_orphans",
    text: concat!("SELECT ", run_columns!(), " FROM run WHERE id {in_list} ORDER BY id {for_update}"),
};
const ADOPT_RUNS: Statement = Statement {
    name: "adopt_runs",
    text: "UPDATE {join:iiiiitt}run SET node_id = v.column4, node_epoch = v.column5, status = v.column6, \
           detail = v.column7 {from:iiiiitt} \
           WHERE {of_rows:run.id} AND {check}run.node_id = v.column2 AND run.node_epoch = v.column3 \
           AND run.status IN ('pending', 'waiting', 'running'){end}",
};

/// The leases of one node that have ended.
#[derive(Clone, Copy, Debug)]
struct EndedLease {
    /// Epochs below this one have ended.
    epoch: i64,
    /// When the last of them ended.
    ended_at: Timestamp,
}

/// A dead node whose row is locked.
#[derive(Clone, Copy, Debug)]
struct LockedNode {
    lease: EndedLease,
    is_fenced: bool,
    /// The node that fenced the lease, if that is known.
    fenced_by: Option<NodeId>,
}

#[async_trait]
impl Adopt for SqlStore {
    async fn orphaned_jobs(&self, token: LeaseToken, dead_nodes: &[DeadNode], limit: u32) -> Result<OrphanedJobs> {
        transact!(self, "fence", |tx| {
            if !tx.is_lease_valid(token).await? {
                return Ok(OrphanedJobs { is_refused: true, ..OrphanedJobs::default() });
            }
            let ended_leases = tx.fence_nodes(token, dead_nodes).await?;
            let jobs = fewest_first(tx.count_orphans(token, &ended_leases).await?, limit);
            let fenced_nodes = ended_leases.into_keys().filter(|node| *node != token.node).collect();
            Ok(OrphanedJobs { jobs, fenced: fenced_nodes, is_refused: false })
        })
    }

    async fn jobs_open_under_earlier_leases(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let jobs: Vec<i64> = jobs.iter().map(|job| job.get()).collect();
        let earlier_leases = OpenRunsOfNode { node: token.node, below_epoch: token.epoch };
        let mut left_open_jobs = BTreeSet::new();
        for query in earlier_leases.job_queries(self.statements.dialect(), &jobs) {
            left_open_jobs
                .extend(read_ids(&self.rows(query).await?, "open_run", "job_id")?.into_iter().map(JobId::new));
        }
        Ok(left_open_jobs.into_iter().collect())
    }

    async fn adopt(&self, token: LeaseToken, dead_nodes: &[DeadNode], jobs: &[JobId]) -> Result<Adoption> {
        let mut jobs: Vec<i64> = jobs.iter().map(|job| job.get()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        transact!(self, "adopt", |tx| {
            if !tx.is_lease_valid(token).await? {
                return Ok(Adoption { is_refused: true, ..Adoption::default() });
            }
            let ended_leases = tx.fence_nodes(token, dead_nodes).await?;
            rondel_failpoint::pass("adopt.fenced");
            let homes = tx.lock_homes(&jobs).await?;
            let orphans = tx.orphans_of(&jobs, &ended_leases).await?;
            let orphaned_jobs: BTreeSet<i64> = orphans.iter().map(|orphan| orphan.job).collect();
            let orphaned_jobs: Vec<i64> = orphaned_jobs.into_iter().collect();
            tx.move_homes(token, &orphaned_jobs, &homes, &ended_leases).await?;
            let mut adopted_runs = tx.take_all_orphans(token, &orphans, &ended_leases).await?;
            if lacks_shards(&adopted_runs) {
                // The old owner expanded a broadcast in a transaction that ended only after the runs were read. The broadcast's row is
                // locked now, so there will be no more shards.
                let shards = tx.orphans_of(&jobs, &ended_leases).await?;
                adopted_runs.extend(tx.take_all_orphans(token, &shards, &ended_leases).await?);
            }
            adopted_runs.sort_by_key(|adopted_run| (adopted_run.run.due_at, adopted_run.run.id));
            Ok(Adoption { runs: adopted_runs, is_refused: false })
        })
    }
}

/// An open run of a lease that has ended. Ordered by due instant, then by id: orphans are taken over in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Orphan {
    /// In milliseconds.
    due_at: i64,
    id: i64,
    job: i64,
}

impl Tx<'_> {
    /// Fences the nodes that are taken over, and moves their limits to this node. Returns the leases that have ended: earlier ones of this node,
    /// and all of the nodes taken over.
    async fn fence_nodes(
        &mut self,
        token: LeaseToken,
        dead_nodes: &[DeadNode],
    ) -> Result<BTreeMap<NodeId, EndedLease>> {
        let mut ended_leases = BTreeMap::new();
        if let Some(row) = self.row(Query::new(&READ_NODE).int(token.node.get())).await? {
            let mut columns = Reader::new(&row, "node");
            columns.int("id")?;
            let ended_at = columns.at("prior_lease_until_ms")?.max(columns.at("ended_at_ms")?);
            ended_leases.insert(token.node, EndedLease { epoch: token.epoch, ended_at });
        }
        let locked_nodes = self.lock_dead_nodes(token, dead_nodes).await?;
        let fencers = locked_nodes.iter().map(|(node, locked_node)| (*node, locked_node.fenced_by)).collect();
        let taken_nodes = taken_nodes(token.node, dead_nodes, &fencers);
        for (node, locked_node) in locked_nodes.iter().filter(|(node, _)| taken_nodes.contains(node)) {
            let EndedLease { mut epoch, ended_at } = locked_node.lease;
            if !locked_node.is_fenced {
                let query = Query::new(&FENCE_NODE).at(ended_at).int(token.node.get()).int(node.get()).int(epoch);
                self.execute_all(query, 1).await?;
                self.end_sessions(LeaseToken { node: *node, epoch }, ended_at).await?;
                epoch += 1;
            } else if locked_node.fenced_by.is_some_and(|fencer| taken_nodes.contains(&fencer)) {
                let query = Query::new(&SET_FENCER).int(token.node.get()).int(node.get()).int(epoch);
                self.execute_all(query, 1).await?;
            }
            ended_leases.insert(*node, EndedLease { epoch, ended_at });
        }
        self.move_limits(token, taken_nodes.into_iter()).await?;
        Ok(ended_leases)
    }

    /// Locks the rows of these nodes, and of the nodes that they or this node have fenced. Leaves out a node whose lease neither has ended
    /// by the database's clock nor is fenced.
    async fn lock_dead_nodes(
        &mut self,
        token: LeaseToken,
        dead_nodes: &[DeadNode],
    ) -> Result<BTreeMap<NodeId, LockedNode>> {
        let mut ids: BTreeSet<i64> = dead_nodes.iter().map(|node| node.id.get()).collect();
        ids.insert(token.node.get());
        let fencer_ids: Vec<i64> = ids.iter().copied().collect();
        for chunk in fencer_ids.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_FENCED_BY).list(chunk.iter().copied());
            ids.extend(read_ids(&self.rows(query).await?, "node", "id")?);
        }
        ids.remove(&token.node.get());
        let ids: Vec<i64> = ids.into_iter().collect();
        let mut locked_nodes = BTreeMap::new();
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&LOCK_DEAD_NODES).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "node");
                let node = NodeId::new(columns.int("id")?);
                let epoch = columns.int("epoch")?;
                let (lease_until, prior_until) = (columns.at("lease_until_ms")?, columns.at("prior_lease_until_ms")?);
                let is_fenced = prior_until == lease_until;
                let fenced_by = known_fencer(columns.int("fenced_by")?, is_fenced);
                let ended_at = lease_until.max(prior_until).max(columns.at("ended_at_ms")?);
                let lease = EndedLease { epoch, ended_at };
                locked_nodes.insert(node, LockedNode { lease, is_fenced, fenced_by });
            }
        }
        Ok(locked_nodes)
    }

    /// The nodes that have orphans. Nodes stay in the table for weeks after they died, and nearly all of them have no orphans.
    async fn nodes_with_orphans(
        &mut self,
        token: LeaseToken,
        ended_leases: &BTreeMap<NodeId, EndedLease>,
    ) -> Result<Vec<NodeId>> {
        let (mut nodes, mut unread_ids) = (Vec::new(), Vec::new());
        for (node, lease) in ended_leases {
            if *node != token.node && ended_leases.len() > SINGLE_READ_NODES_MAX {
                unread_ids.push(node.get());
            } else if self.row(Query::new(&FIND_ORPHAN).int(node.get()).int(lease.epoch)).await?.is_some() {
                nodes.push(*node);
            }
        }
        for chunk in unread_ids.chunks(CHUNK_MAX) {
            let query = Query::new(&FIND_NODES_WITH_ORPHANS).list(chunk.iter().copied());
            nodes.extend(read_ids(&self.rows(query).await?, "node", "id")?.into_iter().map(NodeId::new));
        }
        Ok(nodes)
    }

    /// Counts the orphans of each job. A job occurs once for each node that has orphans of it.
    async fn count_orphans(
        &mut self,
        token: LeaseToken,
        ended_leases: &BTreeMap<NodeId, EndedLease>,
    ) -> Result<Vec<(JobId, u64)>> {
        let mut counts = Vec::new();
        for node in self.nodes_with_orphans(token, ended_leases).await? {
            let Some(lease) = ended_leases.get(&node) else { continue };
            for row in self.rows(Query::new(&COUNT_ORPHANS).int(node.get()).int(lease.epoch)).await? {
                let mut columns = Reader::new(&row, "open_run");
                let job = JobId::new(columns.int("job_id")?);
                counts.push((job, u64::try_from(columns.int("run_count")?).unwrap_or(0)));
            }
        }
        Ok(counts)
    }

    /// All open runs of these jobs under leases that have ended, the oldest first. The jobs' rows are locked, so the jobs get no further
    /// runs until the commit.
    async fn orphans_of(&mut self, jobs: &[i64], ended_leases: &BTreeMap<NodeId, EndedLease>) -> Result<Vec<Orphan>> {
        let mut orphans = Vec::new();
        for (node, lease) in ended_leases {
            let open_runs = OpenRunsOfNode { node: *node, below_epoch: lease.epoch };
            for query in open_runs.run_queries(self.store.statements.dialect(), jobs) {
                self.read_orphans(query, &mut orphans).await?;
            }
        }
        orphans.sort_unstable();
        Ok(orphans)
    }

    async fn read_orphans(&mut self, query: Query, orphans: &mut Vec<Orphan>) -> Result<()> {
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "open_run");
            let (id, job) = (columns.int("id")?, columns.int("job_id")?);
            orphans.push(Orphan { due_at: columns.int("due_at_ms")?, id, job });
        }
        Ok(())
    }

    /// Locks these jobs and returns their homes. A deleted job has none.
    async fn lock_homes(&mut self, jobs: &[i64]) -> Result<BTreeMap<i64, NodeId>> {
        let mut homes = BTreeMap::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&LOCK_HOMES).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "job_due");
                homes.insert(columns.int("job_id")?, NodeId::new(columns.int("home")?));
            }
        }
        Ok(homes)
    }

    /// Moves the jobs whose runs are taken over to this node, if their home is a dead node.
    async fn move_homes(
        &mut self,
        token: LeaseToken,
        jobs: &[i64],
        homes: &BTreeMap<i64, NodeId>,
        ended_leases: &BTreeMap<NodeId, EndedLease>,
    ) -> Result<()> {
        let is_dead_node = |home: &NodeId| *home != token.node && ended_leases.contains_key(home);
        let jobs_and_homes = jobs.iter().filter_map(|job| Some((*job, homes.get(job).copied().filter(is_dead_node)?)));
        let jobs_and_homes: Vec<(i64, NodeId)> = jobs_and_homes.collect();
        for chunk in jobs_and_homes.chunks(CHUNK_MAX) {
            let query = Query::new(&MOVE_HOMES)
                .rows(chunk, |query, (job, home)| query.int(*job).int(home.get()).int(token.node.get()));
            self.execute_all(query, chunk.len()).await?;
        }
        Ok(())
    }

    /// Takes over these runs, in the order of their ids.
    async fn take_all_orphans(
        &mut self,
        token: LeaseToken,
        orphans: &[Orphan],
        ended_leases: &BTreeMap<NodeId, EndedLease>,
    ) -> Result<Vec<Adopted>> {
        let mut ids: Vec<i64> = orphans.iter().map(|orphan| orphan.id).collect();
        ids.sort_unstable();
        let oldest_due_at = orphans.iter().map(|orphan| orphan.due_at).min().unwrap_or(i64::MAX);
        let last_sessions =
            self.last_sessions(LastSessions::earliest_end(Timestamp::from_millis(oldest_due_at))).await?;
        let mut adopted_runs = Vec::with_capacity(ids.len());
        for chunk in ids.chunks(CHUNK_MAX) {
            adopted_runs.extend(self.take_orphans(token, chunk, (ended_leases, &last_sessions)).await?);
        }
        Ok(adopted_runs)
    }

    async fn take_orphans(
        &mut self,
        token: LeaseToken,
        ids: &[i64],
        (ended_leases, last_sessions): (&BTreeMap<NodeId, EndedLease>, &LastSessions),
    ) -> Result<Vec<Adopted>> {
        let mut take_over_rows: Vec<(RunId, LeaseToken, RunStatus, Option<String>)> = Vec::with_capacity(ids.len());
        let mut adopted_runs = Vec::with_capacity(ids.len());
        let mut left_ids: BTreeSet<i64> = ids.iter().copied().collect();
        for row in self.rows(Query::new(&LOCK_ORPHANS).list(ids.iter().copied())).await? {
            let run = rows::run(&row)?;
            if run.status.is_terminal() {
                continue;
            }
            left_ids.remove(&run.id.get());
            let from = LeaseToken { node: run.node, epoch: run.node_epoch };
            let Some(lease) = ended_leases.get(&from.node).filter(|lease| from.epoch < lease.epoch) else { continue };
            let run = Run {
                node: token.node,
                node_epoch: token.epoch,
                ..ledger::adopted_run(run, lease.ended_at, last_sessions)
            };
            take_over_rows.push((run.id, from, run.status, run.detail.as_ref().and_then(|detail| detail.to_json())));
            adopted_runs.push(Adopted { run, from, lease_ended_at: lease.ended_at });
        }
        // The runs of these rows have ended or are gone. If the rows stayed, their jobs would wait for their adoption for ever.
        self.remove_open_rows(&Vec::from_iter(left_ids)).await?;
        type TakeOverRow = (RunId, LeaseToken, RunStatus, Option<String>);
        let add = |query: Query, (run, from, status, detail): &TakeOverRow| {
            query
                .int(run.get())
                .int(from.node.get())
                .int(from.epoch)
                .int(token.node.get())
                .int(token.epoch)
                .text(status.as_str())
                .opt_text(detail.as_deref())
        };
        for (query, chunk) in self.size.queries(&ADOPT_RUNS, &take_over_rows, add) {
            self.execute_all(query, chunk.len()).await?;
            let ids: Vec<i64> = chunk.iter().map(|(run, ..)| run.get()).collect();
            self.write_open_rows(&ids).await?;
        }
        Ok(adopted_runs)
    }
}

/// Whether a broadcast among these runs has open shards that are not among them.
fn lacks_shards(adopted_runs: &[Adopted]) -> bool {
    let key = |run: &Run| (run.job, run.fire_at, run.cause);
    let mut shard_counts: BTreeMap<_, i32> = BTreeMap::new();
    for run in adopted_runs.iter().map(|adopted_run| &adopted_run.run).filter(|run| !run.is_root()) {
        *shard_counts.entry(key(run)).or_default() += 1;
    }
    let has_all = |run: &Run| shard_counts.get(&key(run)).copied().unwrap_or(0) >= run.open_shards.unwrap_or(0);
    adopted_runs.iter().any(|adopted_run| adopted_run.run.is_root() && !has_all(&adopted_run.run))
}
