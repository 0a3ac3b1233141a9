//! Finds and repairs jobs that no scan sees although they should fire.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use rondel_core::{JobId, RunId, Timestamp};

use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement, read_ids};
use crate::sql::{SqlStore, Tx, transact};
use crate::upkeep::StuckJob;
use crate::{Heal, Result};

/// Some jobs wait for the end of a run. One call reads at most this many pages of them, and the next call continues after the last page.
const PAGE_COUNT_MAX: usize = 16;

pub(super) const READ_STUCK_JOBS: Statement = Statement {
    name: "read_stuck",
    text: "SELECT job_due.job_id, job_due.version, run.id FROM job_due LEFT JOIN run \
           ON run.id = job_due.follows_run_id AND run.status IN ('pending', 'waiting', 'running') \
           WHERE {is_stuck} ORDER BY job_due.job_id LIMIT ?",
};
pub(super) const READ_AWAITED_RUNS: Statement = Statement {
    name: "read_followed",
    text: "SELECT job_id, version, follows_run_id FROM job_due WHERE follows_run_id > ? AND next_fire_at_ms IS NULL \
           ORDER BY follows_run_id LIMIT ?",
};
const FIND_OPEN_RUNS: Statement = Statement {
    name: "find_open",
    text: "SELECT id FROM run WHERE id {in_list} AND {check}status IN ('pending', 'waiting', 'running'){end}",
};
const LOCK_STUCK_JOB: Statement = Statement {
    name: "lock_stuck",
    text: "SELECT job_id, version, is_over, follows_run_id FROM job_due WHERE job_id = ? AND next_fire_at_ms IS NULL \
           {for_update}",
};
const HEAL_JOB: Statement = Statement {
    name: "heal_job",
    text: "UPDATE job_due SET next_fire_at_ms = ?, is_over = ?, follows_run_id = ? WHERE job_id = ? AND version = ? \
           AND next_fire_at_ms IS NULL",
};
/// Finds the next home after a given one, so reading all homes takes one step per node that ever existed, however many jobs there are. On
/// MySQL, a home whose jobs are all idle is found too.
pub(super) const FIND_NEXT_HOME: Statement = Statement {
    name: "next_home",
    text: "SELECT home FROM job_due WHERE home > ? {and_planned} ORDER BY home LIMIT 1",
};
pub(super) const READ_HOMELESS_JOBS: Statement = Statement {
    name: "read_homeless",
    text: "SELECT job_id FROM job_due WHERE home = ? AND next_fire_at_ms IS NOT NULL ORDER BY next_fire_at_ms LIMIT ?",
};
const FIND_NODE: Statement = Statement { name: "is_node", text: "SELECT id FROM node WHERE id = ?" };
const LOCK_HOMELESS_JOBS: Statement = Statement {
    name: "lock_homeless",
    text: "SELECT job_id FROM job_due WHERE job_id {in_list} AND {check}home = ?{end} ORDER BY job_id {skip_locked}",
};
const FREE_JOBS: Statement = Statement {
    name: "free_jobs",
    text: "UPDATE job_due SET home = 0 WHERE job_id {in_list} AND {check}home = ?{end}",
};

#[async_trait]
impl Heal for SqlStore {
    async fn stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>> {
        // Outdated statistics can lead to query plans so slow that jobs hang, so the statistics are checked first.
        if let Err(error) = self.analyze_outgrown_tables().await {
            tracing::debug!(%error, "cannot check the statistics of the tables");
        }
        self.read_stuck_jobs(limit).await
    }

    async fn heal_job(&self, stuck_job: StuckJob, next_fire_at: Option<Timestamp>) -> Result<bool> {
        transact!(self, "heal_job", |tx| {
            if !tx.lock_if_stuck(stuck_job).await? {
                return Ok(false);
            }
            let awaited_run = stuck_job.awaited_run.filter(|_| next_fire_at.is_none());
            let update = Query::new(&HEAL_JOB)
                .opt_at(next_fire_at)
                .int(next_fire_at.is_none().into())
                .opt_int(awaited_run.map(RunId::get))
                .int(stuck_job.job.get())
                .int(stuck_job.version);
            tx.execute_all(update, 1).await?;
            Ok(true)
        })
    }

    async fn free_homeless(&self, limit: u32) -> Result<u64> {
        let mut remaining_limit = limit.min(u32::try_from(CHUNK_MAX).unwrap_or(u32::MAX));
        let mut home = 0;
        let mut freed_count = 0;
        while remaining_limit > 0
            && let Some(row) = self.row(Query::new(&FIND_NEXT_HOME).int(home)).await?
        {
            home = Reader::new(&row, "job_due").int("home")?;
            // This check comes after the home was read. Ids are never assigned twice, so a node that is missing here will not return.
            if self.row(Query::new(&FIND_NODE).int(home)).await?.is_some() {
                continue;
            }
            let count = self.free_home(home, remaining_limit).await?;
            remaining_limit = remaining_limit.saturating_sub(count);
            freed_count += u64::from(count);
        }
        Ok(freed_count)
    }
}

impl SqlStore {
    pub(super) async fn read_stuck_jobs(&self, limit: u32) -> Result<Vec<StuckJob>> {
        let mut stuck_jobs = Vec::new();
        for row in self.rows(Query::new(&READ_STUCK_JOBS).int(limit.into())).await? {
            let mut columns = Reader::new(&row, "job_due");
            let (job, version) = (JobId::new(columns.int("job_id")?), columns.int("version")?);
            stuck_jobs.push(StuckJob { job, version, awaited_run: columns.opt_int("id")?.map(RunId::new) });
        }
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        for _ in 0..PAGE_COUNT_MAX {
            if stuck_jobs.len() >= limit {
                break;
            }
            let is_last = self.add_jobs_with_ended_awaited_run(&mut stuck_jobs).await?;
            if is_last {
                break;
            }
        }
        // Both queries may find the same job.
        let mut seen_jobs = HashSet::new();
        stuck_jobs.retain(|stuck_job| seen_jobs.insert(stuck_job.job));
        stuck_jobs.truncate(limit);
        Ok(stuck_jobs)
    }

    /// Reads one page of the jobs that wait for the end of a run, and adds a job to `stuck_jobs` if its run has ended or was removed.
    /// Returns whether it was the last page.
    async fn add_jobs_with_ended_awaited_run(&self, stuck_jobs: &mut Vec<StuckJob>) -> Result<bool> {
        let after_id = self.heal_cursor.load(Ordering::Relaxed);
        let page_len = i64::try_from(CHUNK_MAX).unwrap_or(i64::MAX);
        let mut jobs_by_awaited_run = HashMap::new();
        let mut last_id = 0;
        for row in self.rows(Query::new(&READ_AWAITED_RUNS).int(after_id).int(page_len)).await? {
            let mut columns = Reader::new(&row, "job_due");
            let (job, version) = (JobId::new(columns.int("job_id")?), columns.int("version")?);
            last_id = columns.int("follows_run_id")?;
            jobs_by_awaited_run.insert(last_id, StuckJob { job, version, awaited_run: None });
        }
        let is_last = jobs_by_awaited_run.len() < CHUNK_MAX;
        self.heal_cursor.store(if is_last { 0 } else { last_id }, Ordering::Relaxed);
        if jobs_by_awaited_run.is_empty() {
            return Ok(true);
        }
        for row in self.rows(Query::new(&FIND_OPEN_RUNS).list(jobs_by_awaited_run.keys().copied())).await? {
            jobs_by_awaited_run.remove(&Reader::new(&row, "run").int("id")?);
        }
        let mut new_stuck_jobs: Vec<StuckJob> = jobs_by_awaited_run.into_values().collect();
        new_stuck_jobs.sort_by_key(|stuck_job| stuck_job.job);
        stuck_jobs.append(&mut new_stuck_jobs);
        Ok(is_last)
    }

    async fn free_home(&self, home: i64, limit: u32) -> Result<u32> {
        let job_ids = read_ids(
            &self.rows(Query::new(&READ_HOMELESS_JOBS).int(home).int(limit.into())).await?,
            "job_due",
            "job_id",
        )?;
        if job_ids.is_empty() {
            return Ok(0);
        }
        transact!(self, "free_homeless", |tx| {
            let lock = Query::new(&LOCK_HOMELESS_JOBS).list(job_ids.iter().copied()).int(home);
            let locked_ids = read_ids(&tx.rows(lock).await?, "job_due", "job_id")?;
            if locked_ids.is_empty() {
                return Ok(0);
            }
            let count = locked_ids.len();
            tx.execute_all(Query::new(&FREE_JOBS).list(locked_ids.into_iter()).int(home), count).await?;
            Ok(u32::try_from(count).unwrap_or(u32::MAX))
        })
    }
}

impl Tx<'_> {
    /// Locks a job. Returns whether it is still stuck and unchanged.
    async fn lock_if_stuck(&mut self, stuck_job: StuckJob) -> Result<bool> {
        let Some(row) = self.row(Query::new(&LOCK_STUCK_JOB).int(stuck_job.job.get())).await? else { return Ok(false) };
        let mut columns = Reader::new(&row, "job_due");
        columns.int("job_id")?;
        let (version, is_over) = (columns.int("version")?, columns.int("is_over")? == 1);
        let awaited_run = columns.opt_int("follows_run_id")?.map(RunId::new);
        let open_run = match awaited_run {
            Some(run) => self.is_open(run).await?.then_some(run),
            None => None,
        };
        let awaited_run_has_ended = awaited_run.is_some() && open_run.is_none();
        Ok(version == stuck_job.version && open_run == stuck_job.awaited_run && (!is_over || awaited_run_has_ended))
    }
}
