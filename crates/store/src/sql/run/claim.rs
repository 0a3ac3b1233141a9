//! Due jobs: reading them, claiming them, and requested runs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use rondel_core::dense::DenseInstant;
use rondel_core::homes::RecentFires;
use rondel_core::outcome::CancelRequest;
use rondel_core::request::IfOpen;
use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint as failpoint;
use sqlx::any::AnyRow;

use crate::ledger::{
    ClaimJob, ClaimResult, DueJob, DueRange, KeyedRun, RequestedShards, UnsentPlace, lease_of_home, merge_by_instant,
};
use crate::sql::failure::{self, Failure};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::rows::{self, run_columns};
use crate::sql::run::open_runs::OpenRunsOfNode;
use crate::sql::run::stored_fires;
use crate::sql::{SqlStore, Tx, transact};
use crate::{Claim, LeaseToken, Result};

pub(in crate::sql) const READ_DUE_JOBS: Statement = Statement {
    name: "read_due",
    text: "SELECT job_id, next_fire_at_ms, held_from_ms, version, home, term, recent_fires, recent_at_ms FROM job_due \
           WHERE home = ? AND next_fire_at_ms >= ? AND next_fire_at_ms <= ? ORDER BY next_fire_at_ms LIMIT ?",
};
/// Which of some nodes have a job in a range. Takes one index lookup per node, because the inner statement has a limit.
pub(in crate::sql) const FIND_HOMES_WITH_DUE_JOBS: Statement = Statement {
    name: "find_homes_with_due",
    text: "SELECT found.id FROM (SELECT node.id, (SELECT job_due.next_fire_at_ms FROM job_due WHERE job_due.home = node.id \
           AND job_due.next_fire_at_ms >= ? ORDER BY job_due.next_fire_at_ms LIMIT 1) AS first_ms \
           FROM node WHERE node.id {in_list}) found WHERE found.first_ms <= ? ORDER BY found.id",
};
const READ_DENSE_INSTANTS: Statement = Statement {
    name: "read_dense_instants",
    text: "SELECT next_fire_at_ms, COUNT(*) AS job_count FROM job_due \
           WHERE home = ? AND next_fire_at_ms >= ? AND next_fire_at_ms <= ? \
           GROUP BY next_fire_at_ms HAVING COUNT(*) >= ? ORDER BY next_fire_at_ms LIMIT ?",
};
const READ_LEASE: Statement =
    Statement { name: "read_lease", text: "SELECT id FROM node WHERE id = ? AND epoch = ? AND lease_until_ms > {now}" };
/// Finds a home that is not fenced. A node whose lease has ended may renew it until the node is fenced.
const READ_UNFENCED_HOME: Statement = Statement {
    name: "read_unfenced_home",
    text: "SELECT id FROM node WHERE id = ? AND lease_until_ms <> prior_lease_until_ms",
};
const READ_EPOCH: Statement = Statement { name: "read_epoch", text: "SELECT epoch FROM node WHERE id = ?" };
const LOCK_DUE_JOBS: Statement = Statement {
    name: "lock_due",
    text: "SELECT job_id, next_fire_at_ms, held_from_ms, version, home, term, recent_fires, recent_at_ms FROM job_due \
           WHERE job_id {in_list} AND {check}next_fire_at_ms IS NOT NULL{end} ORDER BY job_id {skip_locked}",
};
const MOVE_DUE_JOBS: Statement = Statement {
    name: "move_due",
    text: "UPDATE {join:iiiiiiii}job_due SET next_fire_at_ms = v.column2, home = v.column3, term = v.column4, \
           follows_run_id = v.column5, is_over = CASE WHEN v.column2 IS NULL THEN 1 ELSE 0 END, \
           held_from_ms = v.column6, recent_fires = v.column7, recent_at_ms = v.column8 {from:iiiiiiii} WHERE {of_rows:job_due.job_id}",
};
/// Locks the rows, because an earlier try may have inserted them, and only a locked row may be copied to the tables beside `run`.
const LOCK_INSERTED_RUNS: Statement = Statement {
    name: "lock_inserted",
    text: "SELECT id, job_id, fire_at_ms, cause, shard_index FROM run WHERE id {in_list} ORDER BY id {for_update}",
};
const FIND_RUN_KEYS: Statement = Statement {
    name: "find_keys",
    text: "SELECT run.id FROM {rows:iiii} JOIN run ON run.job_id = v.column1 AND run.fire_at_ms = v.column2 \
           AND run.cause = v.column3 AND run.shard_index = v.column4",
};
const READ_HOME: Statement = Statement {
    name: "read_home",
    text: "SELECT id, epoch, lease_until_ms, prior_lease_until_ms FROM node WHERE id = ?",
};
const MOVE_HOME: Statement =
    Statement { name: "move_home", text: "UPDATE job_due SET home = ?, term = term + 1 WHERE job_id = ? AND home = ?" };
pub(in crate::sql) const READ_UNSENT_RUNS_OF_JOB: Statement = Statement {
    name: "read_unsent_of",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM open_run CROSS JOIN run WHERE run.id = open_run.id AND open_run.job_id = ? AND open_run.fire_at_ms >= ? \
         AND (open_run.fire_at_ms > ? OR open_run.cause > ? OR (open_run.cause = ? AND open_run.shard_index > ?)) \
         AND open_run.status = 'pending' AND +open_run.node_id = ? AND +open_run.node_epoch = ? \
         ORDER BY open_run.fire_at_ms, open_run.cause, open_run.shard_index LIMIT ?"
    ),
};
const READ_RUN_BY_KEY: Statement = Statement {
    name: "read_run_by_key",
    text: concat!(
        "SELECT ",
        run_columns!(),
        " FROM run WHERE job_id = ? AND fire_at_ms = ? AND cause = ? AND shard_index = ?"
    ),
};

/// Up to this many homes are all read, without first checking which of them have jobs.
const SINGLE_READ_HOMES_MAX: usize = 4;

#[async_trait]
impl Claim for SqlStore {
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>> {
        let mut due_jobs = Vec::new();
        // One statement per home. Each is a range scan of the index that stops at the limit.
        for home in self.homes_with_due_jobs(homes, range).await? {
            let query = Query::new(&READ_DUE_JOBS).int(home.get()).at(range.from).at(range.to).int(range.limit.into());
            for row in self.rows(query).await? {
                due_jobs.push(due_job(&row)?);
            }
        }
        due_jobs.sort_by_key(|job| (job.next_fire_at, job.job));
        due_jobs.truncate(usize::try_from(range.limit).unwrap_or(usize::MAX));
        Ok(due_jobs)
    }

    async fn dense_instants(&self, homes: &[NodeId], range: DueRange, count_min: u32) -> Result<Vec<DenseInstant>> {
        let mut instants = Vec::new();
        for home in self.homes_with_due_jobs(homes, range).await? {
            let query = Query::new(&READ_DENSE_INSTANTS).int(home.get()).at(range.from).at(range.to);
            for row in self.rows(query.int(count_min.into()).int(range.limit.into())).await? {
                let mut columns = Reader::new(&row, "job_due");
                let at = columns.at("next_fire_at_ms")?;
                instants.push(DenseInstant { at, job_count: columns.int("job_count")?.unsigned_abs() });
            }
        }
        Ok(merge_by_instant(instants, range.limit))
    }

    async fn jobs_with_rows_from(&self, jobs: &[(JobId, Timestamp)]) -> Result<Vec<JobId>> {
        let mut found_jobs = Vec::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            let rows = self.rows(stored_fires::last_instants_query(chunk)).await?;
            found_jobs.extend(stored_fires::jobs_with_rows_from(chunk, &rows)?);
        }
        Ok(found_jobs)
    }

    async fn fires_with_rows(
        &self,
        job: JobId,
        range: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<(Timestamp, Timestamp)>> {
        stored_fires::fires_of_rows(&self.rows(stored_fires::fires_with_rows_query(job, range, limit)).await?)
    }

    /// A job whose rows the database refuses does not hold up the other jobs: the batch is halved until that job is alone in its part.
    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
        let mut result = ClaimResult::default();
        let first_job_id = |part: &[ClaimJob]| part.first().map_or(0, |job| job.expected_row.job.get());
        let rows_max = self.failed_batches.rows_max("claim", first_job_id(jobs));
        let mut parts: Vec<&[ClaimJob]> = jobs.chunks(rows_max).rev().collect();
        while let Some(part) = parts.pop() {
            let error = match transact!(self, "claim", at most rows_max, |tx| claim(tx, token, part).await) {
                Ok(part_result) => {
                    self.failed_batches.record_success("claim", first_job_id(part));
                    result.jobs.extend(part_result.jobs);
                    result.existing.extend(part_result.existing);
                    result.is_refused |= part_result.is_refused;
                    continue;
                }
                Err(error) => error,
            };
            let is_data_error = matches!(failure::classify_store_error(&error), Failure::Data | Failure::Duplicate);
            let is_unwritable =
                is_data_error || self.record_failure("claim", first_job_id(part), part.len(), &error).await;
            if is_unwritable && part.len() == 1 {
                tracing::error!(job = %part[0].expected_row.job, %error, "the runs of a job cannot be written");
            } else if is_data_error {
                let (left, right) = part.split_at(part.len() / 2);
                parts.extend([right, left]);
            } else if result.jobs.is_empty() {
                return Err(error);
            } else {
                // The jobs that were already committed are won and must be returned. The others stay due.
                tracing::warn!(%error, "a part of a claim failed");
                break;
            }
        }
        Ok(result)
    }

    async fn unsent_runs_of_job(
        &self,
        token: LeaseToken,
        job: JobId,
        after: UnsentPlace,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let UnsentPlace { fire_at, cause, shard_index } = after;
        let query = Query::new(&READ_UNSENT_RUNS_OF_JOB).int(job.get()).at(fire_at).at(fire_at).int(cause).int(cause);
        let query = query.int(shard_index.into()).int(token.node.get()).int(token.epoch).int(limit.into());
        rows::runs(&self.rows(query).await?)
    }

    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run> {
        transact!(self, "request_run", |tx| {
            let owner = tx.lock_owner_of_new_run(token, run.job).await?;
            let run = Run { node: owner.node, node_epoch: owner.epoch, ..run.clone() };
            let insert = Query::new(&rows::INSERT_RUNS).rows(&[&run], |query, run| rows::add_run(query, run));
            if tx.execute(insert).await? == 1 {
                tx.write_inserted_rows(&[&run]).await?;
                return Ok(run);
            }
            let query = Query::new(&READ_RUN_BY_KEY)
                .int(run.job.get())
                .at(run.fire_at)
                .int(run.cause)
                .int(run.shard_index.into());
            match tx.row(query).await? {
                Some(row) => rows::run(&row),
                None => Err(failure::unexpected_count("request_run", 1, 0)),
            }
        })
    }

    async fn request_keyed_run(
        &self,
        token: LeaseToken,
        run: Run,
        if_open: IfOpen,
        now: Timestamp,
    ) -> Result<KeyedRun> {
        let name = run.trigger_key.as_deref().unwrap_or_default();
        transact!(self, "request_run", |tx| {
            let owner = tx.lock_owner_of_new_run(token, run.job).await?;
            let holder = tx.key_holder(run.job, name).await?;
            if let Some(holder) = holder.as_ref().filter(|holder| holder.id == run.id) {
                // An earlier try inserted the run, but the answer was lost.
                return Ok(KeyedRun::Created(holder.clone()));
            }
            let open_run = holder.filter(|holder| !holder.status.is_terminal());
            if let Some(open_run) = open_run.as_ref().filter(|_| if_open != IfOpen::Replace) {
                return Ok(KeyedRun::Open(open_run.clone()));
            }
            let replaced_run = match open_run {
                Some(mut open_run) => {
                    tx.note_cancel(&mut open_run, CancelRequest::LATER_RUN, now).await?;
                    Some(open_run.id)
                }
                None => None,
            };
            let run = Run { node: owner.node, node_epoch: owner.epoch, ..run.clone() };
            let insert = Query::new(&rows::INSERT_RUNS).rows(&[&run], |query, run| rows::add_run(query, run));
            tx.execute_all(insert, 1).await?;
            tx.write_inserted_rows(&[&run]).await?;
            tx.set_key_holder(run.job, name, run.id).await?;
            Ok(match replaced_run {
                Some(replaced_run) => KeyedRun::Replaced(run, replaced_run),
                None => KeyedRun::Created(run),
            })
        })
    }

    async fn request_shards(&self, token: LeaseToken, root: Run, shards: Vec<Run>) -> Result<RequestedShards> {
        let key_name = root.trigger_key.as_deref();
        transact!(self, "request_run", |tx| {
            let owner = tx.lock_owner_of_new_run(token, root.job).await?;
            if let Some(name) = key_name {
                let holder = tx.key_holder(root.job, name).await?;
                // If the new run has the key, an earlier try inserted the rows, but the answer was lost.
                if let Some(open_run) = holder.filter(|holder| holder.id != root.id && !holder.status.is_terminal()) {
                    return Ok(RequestedShards::KeyInUse(Box::new(open_run)));
                }
                tx.set_key_holder(root.job, name, root.id).await?;
            }
            let with_owner = |run: &Run| Run { node: owner.node, node_epoch: owner.epoch, ..run.clone() };
            let rows: Vec<Run> = std::iter::once(&root).chain(&shards).map(with_owner).collect();
            // The cause of these rows is the id of the new root run, so rows that exist already were inserted by an earlier try.
            tx.insert_runs(&rows.iter().collect::<Vec<_>>()).await?;
            Ok(RequestedShards::Created(rows))
        })
    }
}

impl SqlStore {
    /// The homes that may have jobs in a range. Nodes stay in the table for weeks after they died, and nearly all of them have no jobs.
    async fn homes_with_due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<NodeId>> {
        if homes.len() <= SINGLE_READ_HOMES_MAX {
            return Ok(homes.to_vec());
        }
        // A job without a home has the home 0, which is no node.
        let (mut homes_with_due_jobs, nodes): (Vec<NodeId>, Vec<NodeId>) =
            homes.iter().copied().partition(|home| home.get() == 0);
        for chunk in nodes.chunks(CHUNK_MAX) {
            let query = Query::new(&FIND_HOMES_WITH_DUE_JOBS).at(range.from).list(chunk.iter().map(|home| home.get()));
            let ids = read_ids(&self.rows(query.at(range.to)).await?, "node", "id")?;
            homes_with_due_jobs.extend(ids.into_iter().map(NodeId::new));
        }
        Ok(homes_with_due_jobs)
    }
}

impl Tx<'_> {
    /// The homes of these jobs that are other nodes and are not fenced. A caller whose list of nodes is outdated can take such a home for
    /// dead.
    async fn unfenced_homes(&mut self, token: LeaseToken, jobs: &[&ClaimJob]) -> Result<HashSet<NodeId>> {
        let is_other_node = |home: &NodeId| *home != token.node && home.get() != 0;
        let homes: BTreeSet<NodeId> = jobs.iter().map(|job| job.expected_row.home).filter(is_other_node).collect();
        let mut unfenced_homes = HashSet::new();
        for home in homes {
            if self.row(Query::new(&READ_UNFENCED_HOME).int(home.get())).await?.is_some() {
                unfenced_homes.insert(home);
            }
        }
        Ok(unfenced_homes)
    }

    /// The jobs with open runs of another node that is fenced. They are not claimed, because the adoption of these runs also moves the job.
    async fn jobs_left_open(&mut self, token: LeaseToken, jobs: &[&ClaimJob]) -> Result<HashSet<JobId>> {
        let mut jobs_by_home: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for due_row in jobs
            .iter()
            .map(|job| job.expected_row)
            .filter(|due_row| due_row.home != token.node && due_row.home.get() != 0)
        {
            jobs_by_home.entry(due_row.home.get()).or_default().push(due_row.job.get());
        }
        let mut jobs_with_open_runs = HashSet::new();
        for (home, jobs) in jobs_by_home {
            let Some(row) = self.row(Query::new(&READ_EPOCH).int(home)).await? else { continue };
            let open_runs =
                OpenRunsOfNode { node: NodeId::new(home), below_epoch: Reader::new(&row, "node").int("epoch")? };
            for query in open_runs.job_queries(self.store.statements.dialect(), &jobs) {
                jobs_with_open_runs
                    .extend(read_ids(&self.rows(query).await?, "open_run", "job_id")?.into_iter().map(JobId::new));
            }
        }
        Ok(jobs_with_open_runs)
    }

    /// Whether the lease is valid, by the database's clock.
    pub(in crate::sql) async fn is_lease_valid(&mut self, token: LeaseToken) -> Result<bool> {
        Ok(self.row(Query::new(&READ_LEASE).int(token.node.get()).int(token.epoch)).await?.is_some())
    }

    /// The lease that owns new runs of the jobs whose home is the node `home`; `None` if there is no such node.
    pub(in crate::sql) async fn lease_for_home(&mut self, home: i64) -> Result<Option<LeaseToken>> {
        let Some(row) = self.row(Query::new(&READ_HOME).int(home)).await? else { return Ok(None) };
        let mut columns = Reader::new(&row, "node");
        let (node, epoch) = (NodeId::new(columns.int("id")?), columns.int("epoch")?);
        let leases = (columns.at("lease_until_ms")?, columns.at("prior_lease_until_ms")?);
        Ok(Some(lease_of_home(node, epoch, leases)))
    }

    /// The lease that owns a new run of the job: that of its home, even if the home is dead, because the run is then adopted with the job's
    /// other open runs. A job without a home gets `token`'s node as its home.
    async fn lock_owner_of_new_run(&mut self, token: LeaseToken, job: JobId) -> Result<LeaseToken> {
        let Some(row) = self.row(Query::new(&rows::LOCK_HOME).int(job.get())).await? else {
            // A deleted job has no home.
            return Ok(token);
        };
        let mut columns = Reader::new(&row, "job_due");
        columns.int("job_id")?;
        let home = columns.int("home")?;
        if home == token.node.get() {
            return Ok(token);
        }
        if let Some(lease) = self.lease_for_home(home).await? {
            return Ok(lease);
        }
        let query = Query::new(&MOVE_HOME).int(token.node.get()).int(job.get()).int(home);
        self.execute_all(query, 1).await?;
        Ok(token)
    }

    /// Inserts runs and returns those that were left out because a row with their key exists already.
    pub(in crate::sql) async fn insert_runs(&mut self, runs: &[&Run]) -> Result<Vec<RunId>> {
        let (fresh_runs, other_runs): (Vec<&Run>, Vec<&Run>) = runs.iter().partition(|run| rows::is_fresh(run));
        let mut existing_ids = Vec::new();
        let size = self.size;
        for (insert, chunk) in
            size.queries(&rows::INSERT_FRESH_RUNS, &fresh_runs, |query, run| rows::add_fresh_run(query, run))
        {
            self.insert_chunk(insert, chunk, &mut existing_ids).await?;
        }
        for (insert, chunk) in size.queries(&rows::INSERT_RUNS, &other_runs, |query, run| rows::add_run(query, run)) {
            self.insert_chunk(insert, chunk, &mut existing_ids).await?;
        }
        Ok(existing_ids)
    }

    async fn insert_chunk(&mut self, insert: Query, chunk: &[&Run], existing_ids: &mut Vec<RunId>) -> Result<()> {
        let inserted_count = self.execute(insert).await?;
        if usize::try_from(inserted_count).is_ok_and(|inserted_count| inserted_count == chunk.len()) {
            return self.write_inserted_rows(chunk).await;
        }
        let query = Query::new(&LOCK_INSERTED_RUNS).list(chunk.iter().map(|run| run.id.get()));
        let mut inserted_ids = HashSet::new();
        for row in self.rows(query).await? {
            let mut columns = Reader::new(&row, "run");
            let id = columns.int("id")?;
            let key = (columns.int("job_id")?, columns.int("fire_at_ms")?, columns.int("cause")?);
            inserted_ids.insert((id, key, columns.int32("shard_index")?));
        }
        // A row with this run's id but another key is not this run.
        let is_inserted = |run: &&&Run| {
            let key = (run.job.get(), run.fire_at.as_millis(), run.cause);
            inserted_ids.contains(&(run.id.get(), key, run.shard_index))
        };
        let (inserted_runs, missing_runs): (Vec<&Run>, Vec<&Run>) = chunk.iter().partition(is_inserted);
        self.write_inserted_rows(&inserted_runs).await?;
        if missing_runs.is_empty() {
            return Ok(());
        }
        // MySQL's INSERT IGNORE drops rows for other reasons too, so the missing rows count as existing only if their keys are found.
        let query = Query::new(&FIND_RUN_KEYS).rows(&missing_runs, |query, run| {
            query.int(run.job.get()).at(run.fire_at).int(run.cause).int(run.shard_index.into())
        });
        let mut found_ids = HashSet::new();
        for row in self.rows(query).await? {
            found_ids.insert(Reader::new(&row, "run").int("id")?);
        }
        let missing_keys: HashSet<_> =
            missing_runs.iter().map(|run| (run.job, run.fire_at, run.cause, run.shard_index)).collect();
        if found_ids.len() != missing_keys.len() {
            return Err(failure::refused("insert_runs", "a row was not inserted although its key is free"));
        }
        existing_ids.extend(missing_runs.iter().map(|run| run.id));
        Ok(())
    }
}

async fn claim(tx: &mut Tx<'_>, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
    if !tx.is_lease_valid(token).await? {
        return Ok(ClaimResult { is_refused: true, ..ClaimResult::default() });
    }
    let mut claims_by_job: HashMap<JobId, &ClaimJob> = HashMap::with_capacity(jobs.len());
    for job in jobs {
        claims_by_job.entry(job.expected_row.job).or_insert(job);
    }
    let mut ids: Vec<i64> = claims_by_job.keys().map(|job| job.get()).collect();
    ids.sort_unstable();
    let mut won_jobs: Vec<&ClaimJob> = Vec::with_capacity(ids.len());
    for chunk in ids.chunks(CHUNK_MAX) {
        for row in tx.rows(Query::new(&LOCK_DUE_JOBS).list(chunk.iter().copied())).await? {
            let current_row = due_job(&row)?;
            won_jobs.extend(claims_by_job.get(&current_row.job).filter(|job| job.expected_row == current_row));
        }
    }
    let unfenced_homes = tx.unfenced_homes(token, &won_jobs).await?;
    won_jobs.retain(|job| !unfenced_homes.contains(&job.expected_row.home));
    let jobs_left_open = tx.jobs_left_open(token, &won_jobs).await?;
    won_jobs.retain(|job| !jobs_left_open.contains(&job.expected_row.job));
    failpoint::pass("claim.locked");
    let mut result = ClaimResult::default();
    let term = |job: &ClaimJob| job.expected_row.term + i64::from(job.expected_row.home != token.node);
    for chunk in won_jobs.chunks(CHUNK_MAX) {
        let query = Query::new(&MOVE_DUE_JOBS).rows(chunk, |query, job: &&ClaimJob| {
            let query =
                query.int(job.expected_row.job.get()).opt_at(job.next_fire_at).int(token.node.get()).int(term(job));
            let query = query.opt_int(job.awaited_run.map(RunId::get)).opt_at(job.held_from);
            query.int(job.recent_fires.thousandths.cast_signed()).at(job.recent_fires.counted_at)
        });
        tx.execute_all(query, chunk.len()).await?;
        result.jobs.extend(chunk.iter().map(|job| (job.expected_row.job, term(job))));
    }
    // A crash here must leave the jobs unchanged. If they moved on without their runs, the fires would be lost.
    failpoint::pass("claim.moved");
    let runs: Vec<&Run> = won_jobs.iter().flat_map(|job| &job.runs).collect();
    result.existing = tx.insert_runs(&runs).await?;
    let is_skipped = |run: &&&Run| run.status == RunStatus::Skipped && !result.existing.contains(&run.id);
    let skipped_ids: Vec<RunId> = runs.iter().filter(is_skipped).map(|run| run.id).collect();
    tx.insert_failure_records(&skipped_ids).await?;
    Ok(result)
}

fn due_job(row: &AnyRow) -> Result<DueJob> {
    let mut columns = Reader::new(row, "job_due");
    Ok(DueJob {
        job: JobId::new(columns.int("job_id")?),
        next_fire_at: columns.at("next_fire_at_ms")?,
        held_from: columns.opt_at("held_from_ms")?,
        version: columns.int("version")?,
        home: NodeId::new(columns.int("home")?),
        term: columns.int("term")?,
        recent_fires: recent_fires(&mut columns)?,
    })
}

/// Reads the decaying count of a job's fires from its two columns.
pub(super) fn recent_fires(columns: &mut Reader<'_>) -> Result<RecentFires> {
    let thousandths = columns.int("recent_fires")?;
    let thousandths = u64::try_from(thousandths).map_err(|error| columns.corrupt("recent_fires", error))?;
    Ok(RecentFires { thousandths, counted_at: columns.at("recent_at_ms")? })
}
