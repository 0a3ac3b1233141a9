//! The trait `Stats` in SQL: counts runs by job, hour and verdict.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::time::millis;
use rondel_core::{AppId, IdGen, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use crate::reports::is_new_failure;
use crate::rollups::Gains;
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{SqlStore, Tx, transact};
use crate::upkeep::{CountedRun, JobStat, RECOUNT_AGE_MAX};
use crate::{Result, Stats};

/// Number of entries that one transaction examines. An entry is a row of `run_stat_open`, for a run without a final verdict. There may be
/// millions, too many for one transaction.
const ENTRY_COUNT_MAX: usize = 4 * CHUNK_MAX;

const INSERT_CURSOR: Statement = Statement {
    name: "insert_stat_cursor",
    text: "INSERT {ignore} INTO run_stat_cursor (id, run_id) VALUES (1, 0) {or_ignore}",
};
/// Each counting transaction locks the cursor, so that no two transactions count the same runs.
const LOCK_CURSOR: Statement =
    Statement { name: "lock_stat_cursor", text: "SELECT run_id FROM run_stat_cursor WHERE id = 1 {for_update}" };
const MOVE_CURSOR: Statement =
    Statement { name: "move_stat_cursor", text: "UPDATE run_stat_cursor SET run_id = ? WHERE id = 1" };
const READ_NEXT_RUNS: Statement = Statement {
    name: "read_next_to_count",
    text: "SELECT id, job_id, fire_at_ms, status, reason, shard_index, shard_total, started_at_ms, finished_at_ms, span_count, \
           namespace_id, app_id, cause, attempt, due_at_ms, parent_id FROM run WHERE id > ? AND id < ? ORDER BY id LIMIT ?",
};
const READ_OPEN_ENTRIES: Statement = Statement {
    name: "read_stat_open",
    text: "SELECT run_id, counted_as FROM run_stat_open WHERE run_id > ? ORDER BY run_id LIMIT ?",
};
const READ_COUNTED_RUNS: Statement = Statement {
    name: "read_runs_to_count",
    text: "SELECT id, job_id, fire_at_ms, status, reason, shard_index, shard_total, started_at_ms, finished_at_ms, span_count, \
           namespace_id, app_id, cause, attempt, due_at_ms, parent_id FROM run WHERE id {in_list}",
};
const READ_ROOTS: Statement = Statement {
    name: "read_wholes_to_count",
    text: "SELECT id, job_id, fire_at_ms, cause FROM run WHERE id {in_list} AND shard_index = -1",
};
const INSERT_OPEN_ENTRIES: Statement = Statement {
    name: "insert_stat_open",
    text: "INSERT {ignore} INTO run_stat_open (run_id, counted_as) {values:it} {or_ignore}",
};
const DELETE_OPEN_ENTRIES: Statement =
    Statement { name: "delete_stat_open", text: "DELETE FROM run_stat_open WHERE run_id {in_list}" };
const ADD_STATS: Statement = Statement {
    name: "add_stats",
    text: "INSERT INTO run_stat (job_id, hour_at_ms, status, run_count, duration_ms) {values:iitii} \
           {or_update:job_id, hour_at_ms, status} run_count = run_stat.run_count + {new:run_count}, \
           duration_ms = run_stat.duration_ms + {new:duration_ms}",
};
const READ_STATS: Statement = Statement {
    name: "read_stats",
    text: "SELECT job_id, hour_at_ms, status, run_count, duration_ms FROM run_stat \
           WHERE job_id = ? AND hour_at_ms >= ? AND hour_at_ms < ? AND run_count > 0 ORDER BY hour_at_ms, status",
};
pub(super) const READ_OLD_STATS: Statement = Statement {
    name: "read_old_stats",
    text: "SELECT hour_at_ms, job_id FROM run_stat WHERE hour_at_ms < ? ORDER BY hour_at_ms LIMIT ?",
};
const DELETE_STATS: Statement = Statement { name: "delete_stats", text: "DELETE FROM run_stat WHERE hour_at_ms < ?" };
pub(super) const DELETE_STATS_AT: Statement =
    Statement { name: "delete_stats_at", text: "DELETE FROM run_stat WHERE job_id {in_list} AND hour_at_ms = ?" };

#[async_trait]
impl Stats for SqlStore {
    async fn roll_up(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let limit = limit.max(1);
        let after_entry = self.recount_cursor.load(Ordering::Relaxed);
        let (count, last_entry, overtaking_jobs) = transact!(self, "roll_up", |tx| {
            tx.execute(Query::new(&INSERT_CURSOR)).await?;
            let cursor = match tx.row(Query::new(&LOCK_CURSOR)).await? {
                Some(row) => Reader::new(&row, "run_stat_cursor").int("run_id")?,
                None => 0,
            };
            let mut tally = Tally::default();
            let (ended_count, last_entry) =
                tx.count_ended(&mut tally, after_entry, IdGen::first_at(before - RECOUNT_AGE_MAX)).await?;
            let query = Query::new(&READ_NEXT_RUNS).int(cursor).int(IdGen::first_at(before)).int(limit.into());
            let rows = tx.rows(query).await?;
            let runs = tx.counted_runs(rows).await?;
            tx.count_next_runs(&mut tally, &runs).await?;
            tx.add_stats(&tally).await?;
            let mut overtaking_jobs: BTreeSet<JobId> = tx.add_gains(&tally.gains).await?.into_iter().collect();
            // A failure that arrived late may be older than a success that was counted before.
            overtaking_jobs.extend(tally.failed_runs.iter().map(|run| run.job));
            tx.add_failures(&tally.failed_runs).await?;
            if let Some(last_run) = runs.last() {
                tx.execute_all(Query::new(&MOVE_CURSOR).int(last_run.id.get()), 1).await?;
            }
            Ok((u64::try_from(runs.len() + ended_count).unwrap_or(u64::MAX), last_entry, overtaking_jobs))
        })?;
        self.recount_cursor.store(last_entry.unwrap_or(0), Ordering::Relaxed);
        self.remove_overtaken_dead_letters(&overtaking_jobs.into_iter().collect::<Vec<JobId>>()).await?;
        Ok(count + u64::from(last_entry.is_some()))
    }

    async fn job_stats(&self, job: JobId, from: Timestamp, to: Timestamp) -> Result<Vec<JobStat>> {
        let mut stats = Vec::new();
        for row in self.rows(Query::new(&READ_STATS).int(job.get()).at(from).at(to)).await? {
            let mut columns = Reader::new(&row, "run_stat");
            columns.int("job_id")?;
            let (hour, status) = (columns.at("hour_at_ms")?, columns.word("status")?);
            let (count, duration_ms) = (columns.int("run_count")?, columns.int("duration_ms")?);
            let duration = Duration::from_millis(u64::try_from(duration_ms).unwrap_or(0));
            stats.push(JobStat { hour, status, run_count: u64::try_from(count).unwrap_or(0), duration });
        }
        Ok(stats)
    }

    async fn forget_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let statements = [&READ_OLD_STATS, &DELETE_STATS, &DELETE_STATS_AT];
        self.remove_oldest(statements, |query| query, (before, limit)).await
    }
}

/// The sums of a batch of runs, to be added to the tables.
#[derive(Default)]
struct Tally {
    /// The number of runs and the sum of their durations in milliseconds, by job, hour and verdict.
    sums: BTreeMap<(JobId, Timestamp, RunStatus), (i64, i64)>,
    gains: Gains,
    /// Runs whose messages are counted.
    failed_runs: Vec<CountedRun>,
}

impl Tally {
    fn add(&mut self, job: JobId, stat: JobStat, sign: i64) {
        let sum = self.sums.entry((job, stat.hour, stat.status)).or_default();
        sum.0 += sign * i64::try_from(stat.run_count).unwrap_or(i64::MAX);
        sum.1 += sign * millis(stat.duration);
    }

    /// Adds a run that now has a verdict. `counted_as` is the verdict under which it was counted earlier; `None` if it was not counted.
    fn recount(&mut self, run: &CountedRun, counted_as: Option<RunStatus>) {
        let Some(stat) = run.job_stat() else { return };
        if let Some(old_status) = counted_as {
            self.add(run.job, JobStat { status: old_status, duration: Duration::ZERO, ..stat }, -1);
        }
        self.add(run.job, stat, 1);
        self.gains.add(run, counted_as);
        self.failed_runs.extend(Some(*run).filter(|run| is_new_failure(run, counted_as)));
    }
}

impl Tx<'_> {
    /// Examines one page of the entries after `after_entry`. Counts the runs that were open when the cursor passed them, or whose verdict has
    /// changed since. Deletes the entries of runs that were removed or cannot change any more; a run that is counted with a verdict that
    /// may change keeps its entry. Verdicts of ended runs with ids below `recount_from` no longer change. Returns how many runs were
    /// counted, and the last entry of the page unless it was the last page.
    async fn count_ended(
        &mut self,
        tally: &mut Tally,
        after_entry: i64,
        recount_from: i64,
    ) -> Result<(usize, Option<i64>)> {
        let limit = i64::try_from(ENTRY_COUNT_MAX).unwrap_or(i64::MAX);
        let mut entries: Vec<(i64, Option<RunStatus>)> = Vec::new();
        for row in self.rows(Query::new(&READ_OPEN_ENTRIES).int(after_entry).int(limit)).await? {
            let mut columns = Reader::new(&row, "run_stat_open");
            entries.push((columns.int("run_id")?, columns.opt_word("counted_as")?));
        }
        let last_entry = entries.last().filter(|_| entries.len() == ENTRY_COUNT_MAX).map(|(run, _)| *run);
        let (mut count, mut deleted_ids, mut changeable_entries) = (0, Vec::new(), Vec::new());
        for chunk in entries.chunks(CHUNK_MAX) {
            let rows = self.rows(Query::new(&READ_COUNTED_RUNS).list(chunk.iter().map(|(run, _)| *run))).await?;
            let runs = self.counted_runs(rows).await?;
            let mut runs: HashMap<i64, CountedRun> = runs.into_iter().map(|run| (run.id.get(), run)).collect();
            for (id, counted_as) in chunk {
                let run = runs.remove(id);
                match run.filter(|run| run.status.is_terminal() && *counted_as != Some(run.status)) {
                    Some(run) => {
                        tally.recount(&run, *counted_as);
                        count += 1;
                        deleted_ids.push(*id);
                        changeable_entries.extend(run.may_change().then_some((*id, Some(run.status))));
                    }
                    None if run.is_none_or(|run| run.status.is_terminal() && *id < recount_from) => {
                        deleted_ids.push(*id)
                    }
                    None => {}
                }
            }
        }
        for chunk in deleted_ids.chunks(CHUNK_MAX) {
            self.execute(Query::new(&DELETE_OPEN_ENTRIES).list(chunk.iter().copied())).await?;
        }
        self.insert_open_entries(&changeable_entries).await?;
        Ok((count, last_entry))
    }

    /// Adds an entry for each of these runs, with the verdict under which the run is counted, or none if it is not counted yet.
    async fn insert_open_entries(&mut self, entries: &[(i64, Option<RunStatus>)]) -> Result<()> {
        for chunk in entries.chunks(CHUNK_MAX) {
            let insert = Query::new(&INSERT_OPEN_ENTRIES)
                .rows(chunk, |query, (run, status)| query.int(*run).opt_text(status.map(RunStatus::as_str)));
            self.execute(insert).await?;
        }
        Ok(())
    }

    /// The runs in rows of [`READ_NEXT_RUNS`] or [`READ_COUNTED_RUNS`], in order. The only shard of a broadcast looks like a run without shards,
    /// except that its parent is the broadcast's row.
    async fn counted_runs(&mut self, rows: Vec<AnyRow>) -> Result<Vec<CountedRun>> {
        let runs = rows.into_iter().map(|row| counted_run(&row)).collect::<Result<Vec<_>>>()?;
        let parent_ids: BTreeSet<i64> = runs.iter().filter_map(|(_, parent)| *parent).collect();
        let parent_ids: Vec<i64> = parent_ids.into_iter().collect();
        let mut roots = BTreeSet::new();
        for chunk in parent_ids.chunks(CHUNK_MAX) {
            for row in self.rows(Query::new(&READ_ROOTS).list(chunk.iter().copied())).await? {
                let mut columns = Reader::new(&row, "run");
                let (id, job) = (columns.int("id")?, JobId::new(columns.int("job_id")?));
                roots.insert((id, job, columns.at("fire_at_ms")?, columns.int("cause")?));
            }
        }
        let with_is_shard = |(run, parent): (CountedRun, Option<i64>)| {
            let root = parent.map(|parent| (parent, run.job, run.fire_at, run.cause));
            CountedRun { is_shard: run.is_shard || root.is_some_and(|root| roots.contains(&root)), ..run }
        };
        Ok(runs.into_iter().map(with_is_shard).collect())
    }

    async fn count_next_runs(&mut self, tally: &mut Tally, runs: &[CountedRun]) -> Result<()> {
        let mut open_entries: Vec<(i64, Option<RunStatus>)> = Vec::new();
        for run in runs {
            if let Some(stat) = run.job_stat() {
                tally.add(run.job, stat, 1);
                tally.gains.add(run, None);
                tally.failed_runs.extend(Some(*run).filter(|run| is_new_failure(run, None)));
            }
            if !run.status.is_terminal() {
                open_entries.push((run.id.get(), None));
            } else if run.may_change() {
                open_entries.push((run.id.get(), Some(run.status)));
            }
        }
        self.insert_open_entries(&open_entries).await
    }

    async fn add_stats(&mut self, tally: &Tally) -> Result<()> {
        let sums: Vec<_> = tally.sums.iter().collect();
        for chunk in sums.chunks(CHUNK_MAX) {
            let add = Query::new(&ADD_STATS).rows(chunk, |query, ((job, hour, status), (count, duration_ms))| {
                query.int(job.get()).at(*hour).text(status.as_str()).int(*count).int(*duration_ms)
            });
            self.execute(add).await?;
        }
        Ok(())
    }
}

/// Reads the columns of [`READ_NEXT_RUNS`] and [`READ_COUNTED_RUNS`]. Returns the parent only of a run that may be the only shard of its fire.
fn counted_run(row: &AnyRow) -> Result<(CountedRun, Option<i64>)> {
    let mut columns = Reader::new(row, "run");
    let (id, job) = (RunId::new(columns.int("id")?), JobId::new(columns.int("job_id")?));
    let (fire_at, status) = (columns.at("fire_at_ms")?, columns.word("status")?);
    let reason = columns.opt_word("reason")?;
    let (shard_index, shard_total) = (columns.int("shard_index")?, columns.opt_int("shard_total")?);
    let (started_at, finished_at) = (columns.opt_at("started_at_ms")?, columns.opt_at("finished_at_ms")?);
    let span_count = columns.int("span_count")?;
    let run = CountedRun {
        id,
        job,
        namespace: NamespaceId::new(columns.int("namespace_id")?),
        app: AppId::new(columns.int("app_id")?),
        cause: columns.int("cause")?,
        attempt: columns.int32("attempt")?,
        due_at: columns.at("due_at_ms")?,
        fire_at,
        status,
        reason,
        is_shard: shard_index >= 0 && shard_total.is_some_and(|total| total > 1),
        started_at,
        finished_at,
        span_count,
    };
    let parent = columns.opt_int("parent_id")?;
    Ok((run, parent.filter(|_| shard_index >= 0 && !run.is_shard)))
}
