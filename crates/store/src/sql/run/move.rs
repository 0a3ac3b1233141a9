//! Moves jobs with their unsent open runs from one home to another.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use rondel_core::homes::{DECAY_STEPS, DECAY_WHOLE};
use rondel_core::{JobId, NodeId, RunId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use super::claim::recent_fires;
use crate::cluster::HomeMove;
use crate::ledger::{HomeLoad, JobAtHome, MovedJobs, UnsentRun};
use crate::settle::wait_of_unsent;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::rows::noted_detail;
use crate::sql::run::open_runs::OpenRunsOfNode;
use crate::sql::{SqlStore, Tx, failure, transact};
use crate::{LeaseToken, Move, Result, StoreError};

pub(in crate::sql) const READ_UNSENT_RUNS: Statement = Statement {
    name: "read_unsent",
    text: "SELECT open_run.id, open_run.job_id, open_run.due_at_ms FROM open_run CROSS JOIN run \
           WHERE run.id = open_run.id AND open_run.node_id = ? AND open_run.node_epoch = ? AND open_run.status IN ('pending', 'waiting') \
           AND run.marked_at_ms IS NULL AND open_run.id > ? ORDER BY open_run.id LIMIT ?",
};
const READ_UNSENT_RUNS_OF_JOBS: Statement = Statement {
    name: "read_unsent_among",
    text: "SELECT id, job_id, due_at_ms FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? \
           AND status IN ('pending', 'waiting') AND marked_at_ms IS NULL{end} ORDER BY id",
};
/// Reads in the order of the primary key, because the index by home has only jobs with a next fire.
const READ_JOBS_AT: Statement = Statement {
    name: "read_jobs_at",
    text: "SELECT job_id, recent_fires, recent_at_ms FROM job_due WHERE job_id > ? AND home = ? ORDER BY job_id LIMIT ?",
};
pub(in crate::sql) const READ_HOMES: Statement =
    Statement { name: "read_homes", text: "SELECT job_id, home FROM job_due WHERE job_id {in_list} ORDER BY job_id" };
const READ_HOME_LOADS: Statement = Statement {
    name: "read_home_loads",
    text: "SELECT home, CAST(COUNT(*) AS {bigint}) AS job_count, \
           CAST(SUM(recent_fires * CASE WHEN recent_at_ms > ? THEN ? WHEN recent_at_ms > ? THEN ? WHEN recent_at_ms > ? THEN ? \
           WHEN recent_at_ms > ? THEN ? WHEN recent_at_ms > ? THEN ? WHEN recent_at_ms > ? THEN ? WHEN recent_at_ms > ? THEN ? \
           WHEN recent_at_ms > ? THEN ? ELSE 0 END) AS {bigint}) AS recent_fires \
           FROM job_due WHERE home {in_list} AND next_fire_at_ms IS NOT NULL GROUP BY home ORDER BY home",
};
const READ_TAKING_NODE: Statement = Statement {
    name: "read_taker",
    text: "SELECT epoch FROM node WHERE id = ? AND lease_until_ms > {now} AND lease_until_ms <> prior_lease_until_ms \
           AND state = 'active' AND is_leaving = 0",
};
/// Locks a node that takes jobs, so that its switch does not change before its new runs are committed. Executed last, because a node cannot
/// renew its lease while its row is locked, and a job may have hundreds of thousands of runs.
const LOCK_TAKING_NODE: Statement = Statement {
    name: "lock_taker",
    text: "SELECT epoch FROM node WHERE id = ? AND epoch = ? AND lease_until_ms > {now} AND lease_until_ms <> prior_lease_until_ms \
           AND state = 'active' AND is_leaving = 0 {for_update}",
};
const LOCK_MOVING_JOBS: Statement = Statement {
    name: "lock_moving",
    text: "SELECT job_id FROM job_due WHERE job_id {in_list} AND {check}home = ?{end} ORDER BY job_id {skip_locked}",
};
const LOCK_OPEN_RUNS: Statement = Statement {
    name: "lock_open_runs",
    text: "SELECT id, job_id, status, due_at_ms, marked_at_ms, attempt, shard_total, node_epoch FROM run \
           WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end} ORDER BY id {for_update}",
};
const MOVE_JOBS: Statement = Statement {
    name: "move_jobs",
    text: "UPDATE job_due SET home = ?, term = term + 1 WHERE job_id {in_list} AND {check}home = ?{end}",
};
/// The runs become `waiting`, so that the scan of their new home finds them.
const MOVE_RUNS: Statement = Statement {
    name: "move_runs",
    text: concat!(
        "UPDATE run SET node_id = ?, node_epoch = ?, ",
        noted_detail!(),
        ", status = 'waiting' WHERE id {in_list} AND {check}status IN ('pending', 'waiting'){end}"
    ),
};
const READ_FREEABLE_JOBS: Statement = Statement {
    name: "read_freeable",
    text: "SELECT job_id FROM job_due WHERE home = ? AND next_fire_at_ms IS NOT NULL ORDER BY next_fire_at_ms LIMIT ?",
};
const FREE_HOMES: Statement = Statement {
    name: "free_homes",
    text: "UPDATE job_due SET home = 0, term = term + 1 WHERE job_id {in_list} AND {check}home = ?{end}",
};
const READ_DEAD_NODE: Statement = Statement {
    name: "read_dead",
    text: "SELECT epoch FROM node WHERE id = ? AND (lease_until_ms <= {now} OR lease_until_ms = prior_lease_until_ms)",
};
const LOCK_DUE_ROWS: Statement = Statement {
    name: "lock_due",
    text: "SELECT job_id, home FROM job_due WHERE job_id {in_list} ORDER BY job_id {for_update}",
};
const READ_JOBS_OF_RUNS: Statement =
    Statement { name: "read_jobs_of_runs", text: "SELECT id, job_id FROM run WHERE id {in_list} ORDER BY id" };
const LOCK_UNSENT_RUNS: Statement = Statement {
    name: "lock_unsent",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}node_id = ? AND node_epoch = ? AND status = 'pending' \
           AND marked_at_ms IS NULL{end} ORDER BY id {for_update}",
};

#[async_trait]
impl Move for SqlStore {
    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>> {
        let mut runs_by_job: BTreeMap<i64, BTreeSet<i64>> = BTreeMap::new();
        for chunk in runs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_JOBS_OF_RUNS).list(chunk.iter().map(|run| run.get()))).await? {
                let mut columns = Reader::new(&row, "run");
                let id = columns.int("id")?;
                runs_by_job.entry(columns.int("job_id")?).or_default().insert(id);
            }
        }
        let jobs: Vec<(i64, BTreeSet<i64>)> = runs_by_job.into_iter().collect();
        let mut handed_over_runs = Vec::with_capacity(runs.len());
        for chunk in jobs.chunks(CHUNK_MAX) {
            let mut has_taker = true;
            let part = transact!(self, "hand_over", |tx| {
                let Some(epoch) = tx.epoch_of_taker(to.get()).await? else { return Ok(Vec::new()) };
                let moving_runs = tx.hand_over(token, chunk, (to, epoch)).await?;
                has_taker = tx.lock_taking_node(to.get(), epoch).await?;
                if has_taker { Ok(moving_runs) } else { Err(takes_no_jobs("hand_over")) }
            });
            match part {
                Err(_) if !has_taker => break,
                part => handed_over_runs.extend(part?),
            }
        }
        handed_over_runs.sort_unstable();
        Ok(handed_over_runs)
    }

    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs> {
        let mut result = MovedJobs::default();
        for chunk in moves.chunks(CHUNK_MAX) {
            let mut has_takers = true;
            let part: Result<MovedJobs> = transact!(self, "move_jobs", |tx| {
                let (part, takers) = tx.move_jobs(token, chunk, not_before).await?;
                for (to, epoch) in takers {
                    has_takers &= tx.lock_taking_node(to, epoch).await?;
                }
                if has_takers { Ok(part) } else { Err(takes_no_jobs("move_jobs")) }
            });
            match part {
                Err(_) if !has_takers => break,
                part => {
                    let part = part?;
                    result.jobs.extend(part.jobs);
                    result.runs.extend(part.runs);
                }
            }
        }
        result.jobs.sort_unstable();
        result.runs.sort_unstable();
        Ok(result)
    }

    async fn unsent_runs(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>> {
        let query =
            Query::new(&READ_UNSENT_RUNS).int(token.node.get()).int(token.epoch).int(after.get()).int(limit.into());
        self.rows(query).await?.iter().map(unsent_run).collect()
    }

    async fn unsent_runs_of_jobs(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<UnsentRun>> {
        let jobs: Vec<i64> = jobs.iter().map(|job| job.get()).collect();
        let (mut open_ids, mut unsent_runs) = (BTreeSet::new(), Vec::new());
        for query in
            (OpenRunsOfNode { node: token.node, below_epoch: i64::MAX }).run_queries(self.statements.dialect(), &jobs)
        {
            open_ids.extend(read_ids(&self.rows(query).await?, "open_run", "id")?);
        }
        for chunk in Vec::from_iter(open_ids).chunks(CHUNK_MAX) {
            let query = Query::new(&READ_UNSENT_RUNS_OF_JOBS).list(chunk.iter().copied());
            for row in self.rows(query.int(token.node.get()).int(token.epoch)).await? {
                unsent_runs.push(unsent_run(&row)?);
            }
        }
        Ok(unsent_runs)
    }

    async fn jobs_of_home(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobAtHome>> {
        let query = Query::new(&READ_JOBS_AT).int(after.get()).int(home.get()).int(limit.into());
        let job_at_home = |row: &AnyRow| {
            let mut columns = Reader::new(row, "job_due");
            let job = JobId::new(columns.int("job_id")?);
            Ok(JobAtHome { job, recent_fires: recent_fires(&mut columns)? })
        };
        self.rows(query).await?.iter().map(job_at_home).collect()
    }

    async fn homes_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<(JobId, NodeId)>> {
        let mut homes = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_HOMES).list(chunk.iter().map(|job| job.get()))).await? {
                let mut columns = Reader::new(&row, "job_due");
                homes.push((JobId::new(columns.int("job_id")?), NodeId::new(columns.int("home")?)));
            }
        }
        homes.sort_unstable();
        Ok(homes)
    }

    async fn home_loads(&self, homes: &[NodeId], now: Timestamp) -> Result<Vec<HomeLoad>> {
        let mut loads = Vec::new();
        for chunk in homes.chunks(CHUNK_MAX) {
            let query = DECAY_STEPS.iter().fold(Query::new(&READ_HOME_LOADS), |query, (age, factor)| {
                query.at(now - *age).int(factor.cast_signed())
            });
            for row in self.rows(query.list(chunk.iter().map(|home| home.get()))).await? {
                let mut columns = Reader::new(&row, "job_due");
                let node = NodeId::new(columns.int("home")?);
                let job_count = columns.int("job_count")?.unsigned_abs();
                let recent_fires = columns.int("recent_fires")?.unsigned_abs() / DECAY_WHOLE;
                loads.push(HomeLoad { node, job_count, recent_fires });
            }
        }
        Ok(loads)
    }

    async fn free_jobs(&self, token: LeaseToken, dead_node: NodeId, limit: u32) -> Result<u64> {
        let limit = limit.clamp(1, u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let jobs = read_ids(
            &self.rows(Query::new(&READ_FREEABLE_JOBS).int(dead_node.get()).int(limit.into())).await?,
            "job_due",
            "job_id",
        )?;
        if jobs.is_empty() {
            return Ok(0);
        }
        transact!(self, "free_jobs", |tx| {
            let is_dead = tx.row(Query::new(&READ_DEAD_NODE).int(dead_node.get())).await?.is_some();
            if !is_dead || !tx.is_lease_valid(token).await? {
                return Ok(0);
            }
            let locked_jobs = tx.lock_moving_jobs(&jobs, dead_node).await?;
            // If a late commit under the dead epoch adds a run, the job moves when that run is adopted.
            let busy_jobs: HashSet<i64> =
                tx.lock_open_runs_of_jobs(&locked_jobs, dead_node).await?.into_iter().map(|run| run.job).collect();
            let idle_jobs: Vec<i64> = locked_jobs.into_iter().filter(|job| !busy_jobs.contains(job)).collect();
            if idle_jobs.is_empty() {
                return Ok(0);
            }
            let query = Query::new(&FREE_HOMES).list(idle_jobs.iter().copied()).int(dead_node.get());
            tx.execute_all(query, idle_jobs.len()).await?;
            Ok(u64::try_from(idle_jobs.len()).unwrap_or(u64::MAX))
        })
    }
}

/// The error that rolls a transaction back because the node that should get its jobs has stopped, or should keep no jobs.
fn takes_no_jobs(operation: &'static str) -> StoreError {
    failure::refused(operation, "the other node takes no jobs any more")
}

fn unsent_run(row: &AnyRow) -> Result<UnsentRun> {
    let mut columns = Reader::new(row, "run");
    let (run, job) = (RunId::new(columns.int("id")?), JobId::new(columns.int("job_id")?));
    Ok(UnsentRun { run, job, due_at: columns.at("due_at_ms")? })
}

/// An open run of a job that should move.
struct OpenRun {
    id: i64,
    job: i64,
    status: RunStatus,
    due_at: Timestamp,
    is_marked: bool,
    /// Whether it is a later attempt than the first.
    is_retry: bool,
    is_shard: bool,
    /// The epoch of the lease that owns it.
    epoch: i64,
}

impl OpenRun {
    /// Whether the run belongs to this lease and was not sent, as far as the store knows.
    fn is_unsent(&self, token: LeaseToken) -> bool {
        matches!(self.status, RunStatus::Pending | RunStatus::Waiting) && !self.is_marked && self.epoch == token.epoch
    }

    /// Whether the run may move. A later attempt and a shard may not move, because only the home knows their place in the order of their
    /// job.
    fn may_move(&self, token: LeaseToken, not_before: Timestamp) -> bool {
        self.is_unsent(token) && !self.is_retry && !self.is_shard && self.due_at >= not_before
    }
}

impl Tx<'_> {
    /// The epoch of a node that takes jobs; `None` if it takes none.
    async fn epoch_of_taker(&mut self, node: i64) -> Result<Option<i64>> {
        let row = self.row(Query::new(&READ_TAKING_NODE).int(node)).await?;
        row.map(|row| Reader::new(&row, "node").int("epoch")).transpose()
    }

    /// Locks a node that gets jobs in this transaction. Returns whether it still takes jobs under this epoch.
    async fn lock_taking_node(&mut self, node: i64, epoch: i64) -> Result<bool> {
        Ok(self.row(Query::new(&LOCK_TAKING_NODE).int(node).int(epoch)).await?.is_some())
    }

    /// Moves jobs. Also returns the nodes that got any of them, with their epochs.
    async fn move_jobs(
        &mut self,
        token: LeaseToken,
        moves: &[HomeMove],
        not_before: Timestamp,
    ) -> Result<(MovedJobs, BTreeMap<i64, i64>)> {
        let (mut moved_jobs, mut takers) = (MovedJobs::default(), BTreeMap::new());
        if !self.is_lease_valid(token).await? {
            return Ok((moved_jobs, takers));
        }
        let targets: BTreeMap<i64, i64> =
            moves.iter().map(|job_move| (job_move.job.get(), job_move.to.get())).collect();
        for to in targets.values().copied().collect::<BTreeSet<_>>() {
            takers.extend(self.epoch_of_taker(to).await?.map(|epoch| (to, epoch)));
        }
        let jobs: Vec<i64> = targets.iter().filter(|(_, to)| takers.contains_key(to)).map(|(job, _)| *job).collect();
        let locked_jobs = self.lock_moving_jobs(&jobs, token.node).await?;
        let run_ids: HashSet<i64> = moves.iter().flat_map(|job_move| &job_move.runs).map(|run| run.get()).collect();
        let mut runs: HashMap<i64, Vec<i64>> = HashMap::new();
        let mut staying_jobs = HashSet::new();
        for run in self.lock_open_runs_of_jobs(&locked_jobs, token.node).await? {
            if run_ids.contains(&run.id) && run.may_move(token, not_before) {
                runs.entry(run.job).or_default().push(run.id);
            } else {
                staying_jobs.insert(run.job);
            }
        }
        takers
            .retain(|to, _| locked_jobs.iter().any(|job| targets.get(job) == Some(to) && !staying_jobs.contains(job)));
        for (to, epoch) in &takers {
            let (to, epoch) = (*to, *epoch);
            let moves_there = |job: &&i64| targets.get(*job) == Some(&to) && !staying_jobs.contains(*job);
            let jobs: Vec<i64> = locked_jobs.iter().filter(moves_there).copied().collect();
            let query = Query::new(&MOVE_JOBS).int(to).list(jobs.iter().copied()).int(token.node.get());
            self.execute_all(query, jobs.len()).await?;
            let mut runs: Vec<i64> = jobs.iter().filter_map(|job| runs.get(job)).flatten().copied().collect();
            runs.sort_unstable();
            self.move_runs(&runs, (to, epoch)).await?;
            moved_jobs.jobs.extend(jobs.into_iter().map(JobId::new));
            moved_jobs.runs.extend(runs.into_iter().map(RunId::new));
        }
        Ok((moved_jobs, takers))
    }

    async fn lock_moving_jobs(&mut self, jobs: &[i64], home: NodeId) -> Result<Vec<i64>> {
        let mut locked_ids = Vec::with_capacity(jobs.len());
        for chunk in jobs.chunks(CHUNK_MAX) {
            let mut chunk = chunk.to_vec();
            chunk.sort_unstable();
            let query = Query::new(&LOCK_MOVING_JOBS).list(chunk.into_iter()).int(home.get());
            locked_ids.extend(read_ids(&self.rows(query).await?, "job_due", "job_id")?);
        }
        Ok(locked_ids)
    }

    /// Locks the open runs of these jobs that a node owns. The jobs' rows are locked, so the jobs get no further runs until the commit.
    async fn lock_open_runs_of_jobs(&mut self, jobs: &[i64], node: NodeId) -> Result<Vec<OpenRun>> {
        let mut ids = BTreeSet::new();
        for query in (OpenRunsOfNode { node, below_epoch: i64::MAX }).run_queries(self.store.statements.dialect(), jobs)
        {
            ids.extend(read_ids(&self.rows(query).await?, "open_run", "id")?);
        }
        let (ids, mut open_runs) = (Vec::from_iter(ids), Vec::new());
        for chunk in ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&LOCK_OPEN_RUNS).list(chunk.iter().copied())).await? {
                open_runs.push(open_run(&row)?);
            }
        }
        Ok(open_runs)
    }

    /// Locks jobs first and then runs, each in the order of ids, so that it does not deadlock with an adoption.
    async fn hand_over(
        &mut self,
        token: LeaseToken,
        jobs: &[(i64, BTreeSet<i64>)],
        to: (NodeId, i64),
    ) -> Result<Vec<RunId>> {
        let (mut own_jobs, mut jobs_already_there) = (Vec::new(), Vec::new());
        for row in self.rows(Query::new(&LOCK_DUE_ROWS).list(jobs.iter().map(|(job, _)| *job))).await? {
            let mut columns = Reader::new(&row, "job_due");
            let (job, home) = (columns.int("job_id")?, columns.int("home")?);
            if home == token.node.get() {
                own_jobs.push(job);
            } else if home == to.0.get() {
                jobs_already_there.push(job);
            }
        }
        let run_ids: BTreeSet<i64> = jobs.iter().flat_map(|(_, runs)| runs).copied().collect();
        let mut moving_runs = self.lock_unsent_runs(token, jobs, &jobs_already_there).await?;
        let mut staying_jobs = HashSet::new();
        let mut open_runs = Vec::new();
        for run in self.lock_open_runs_of_jobs(&own_jobs, token.node).await? {
            if run_ids.contains(&run.id) && run.is_unsent(token) && !run.is_shard {
                open_runs.push((run.job, run.id));
            } else {
                staying_jobs.insert(run.job);
            }
        }
        own_jobs.retain(|job| !staying_jobs.contains(job));
        if !own_jobs.is_empty() {
            let query = Query::new(&MOVE_JOBS).int(to.0.get()).list(own_jobs.iter().copied()).int(token.node.get());
            self.execute_all(query, own_jobs.len()).await?;
        }
        moving_runs.extend(open_runs.into_iter().filter(|(job, _)| !staying_jobs.contains(job)).map(|(_, run)| run));
        moving_runs.sort_unstable();
        self.move_runs(&moving_runs, (to.0.get(), to.1)).await?;
        Ok(moving_runs.into_iter().map(RunId::new).collect())
    }

    /// Moves unsent runs to the lease of another node.
    async fn move_runs(&mut self, runs: &[i64], (node, epoch): (i64, i64)) -> Result<()> {
        let wait = wait_of_unsent().to_json();
        for chunk in runs.chunks(CHUNK_MAX) {
            let query = Query::new(&MOVE_RUNS).int(node).int(epoch).opt_text(wait.as_deref());
            self.execute_all(query.list(chunk.iter().copied()), chunk.len()).await?;
            self.write_open_rows(chunk).await?;
        }
        Ok(())
    }

    /// Locks those of these runs that were not sent and whose jobs already have the other node as their home.
    async fn lock_unsent_runs(
        &mut self,
        token: LeaseToken,
        jobs: &[(i64, BTreeSet<i64>)],
        jobs_already_there: &[i64],
    ) -> Result<Vec<i64>> {
        let runs = jobs.iter().filter(|(job, _)| jobs_already_there.contains(job)).flat_map(|(_, runs)| runs).copied();
        let mut runs: Vec<i64> = runs.collect();
        runs.sort_unstable();
        let mut unsent_ids = Vec::with_capacity(runs.len());
        for chunk in runs.chunks(CHUNK_MAX) {
            let lock = Query::new(&LOCK_UNSENT_RUNS).list(chunk.iter().copied()).int(token.node.get()).int(token.epoch);
            for row in self.rows(lock).await? {
                unsent_ids.push(Reader::new(&row, "run").int("id")?);
            }
        }
        Ok(unsent_ids)
    }
}

fn open_run(row: &AnyRow) -> Result<OpenRun> {
    let mut columns = Reader::new(row, "run");
    let (id, job) = (columns.int("id")?, columns.int("job_id")?);
    let (status, due_at) = (columns.word("status")?, columns.at("due_at_ms")?);
    let is_marked = columns.opt_int("marked_at_ms")?.is_some();
    let is_retry = columns.int("attempt")? > 1;
    let is_shard = columns.opt_int("shard_total")?.is_some_and(|total| total > 1);
    Ok(OpenRun { id, job, status, due_at, is_marked, is_retry, is_shard, epoch: columns.int("node_epoch")? })
}
