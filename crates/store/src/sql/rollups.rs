//! Counts with distributions, and the reads of the ledger for overviews.

use std::cmp::Reverse;
use std::collections::HashMap;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rondel_core::sketch::Step;
use rondel_core::time::millis;
use rondel_core::{AppId, JobId, NamespaceId, RunId, RunStatus, Timestamp};
use sqlx::any::AnyRow;

use super::rollup_rows::{chart_run, coming_job, point, pulse, unsuccessful_runs, verdicts};
use crate::rollups::{
    ChartRun, ComingJob, Gain, Gains, JobActivity, NewestOutcomes, OpenJob, OpenQuery, PointDetail, PointKey,
    PointKind, PointQuery, StatPoint, UnsuccessfulCounts, Verdicts,
};
use crate::sql::query::{CHUNK_MAX, Query, Reader, Statement};
use crate::sql::{SqlStore, Tx};
use crate::{Result, Rollups};

/// Number of jobs whose runs are read concurrently.
const CONCURRENT_READ_COUNT: usize = 4;

macro_rules! verdict_columns {
    () => {
        "stat_point.owner_id, stat_point.at_ms, stat_point.succeeded_count, stat_point.failed_count, \
         stat_point.timed_out_count, stat_point.cancelled_count, stat_point.unknown_count, stat_point.skipped_count"
    };
}
macro_rules! point_columns {
    () => {
        concat!(verdict_columns!(), ", stat_point.durations, stat_point.lateness")
    };
}
macro_rules! of_owners {
    () => {
        " FROM stat_point WHERE stat_point.owner_id {in_list} AND stat_point.kind = ? AND stat_point.step_ms = ? \
         AND stat_point.at_ms >= ? AND stat_point.at_ms < ? ORDER BY stat_point.owner_id, stat_point.at_ms LIMIT ?"
    };
}
macro_rules! chart_run_columns {
    () => {
        "run.id, run.job_id, run.app_id, run.fire_at_ms, run.status, run.started_at_ms, run.finished_at_ms, run.executor, \
         run.span_count, run.span_end_at_ms, run.parent_id"
    };
}

const READ_KEYED_POINTS: Statement = Statement {
    name: "read_keyed_points",
    text: concat!(
        "SELECT ",
        point_columns!(),
        ", stat_point.kind, stat_point.step_ms FROM {rows:itii} JOIN stat_point ON stat_point.owner_id = v.column1 \
         AND stat_point.kind = v.column2 AND stat_point.step_ms = v.column3 AND stat_point.at_ms = v.column4"
    ),
};
const SAVE_POINTS: Statement = Statement {
    name: "save_points",
    text: "INSERT INTO stat_point (owner_id, kind, step_ms, at_ms, succeeded_count, failed_count, timed_out_count, \
           cancelled_count, unknown_count, skipped_count, durations, lateness) {values:itiiiiiiiitt} \
           {or_update:owner_id, kind, step_ms, at_ms} succeeded_count = {new:succeeded_count}, failed_count = {new:failed_count}, \
           timed_out_count = {new:timed_out_count}, cancelled_count = {new:cancelled_count}, \
           unknown_count = {new:unknown_count}, skipped_count = {new:skipped_count}, durations = {new:durations}, \
           lateness = {new:lateness}",
};
pub(super) const READ_POINTS: Statement =
    Statement { name: "read_points", text: concat!("SELECT ", point_columns!(), of_owners!()) };
pub(super) const READ_VERDICTS: Statement =
    Statement { name: "read_verdicts", text: concat!("SELECT ", verdict_columns!(), of_owners!()) };
/// Like [`READ_VERDICTS`], summed over intervals of time.
pub(super) const READ_SUMMED_VERDICTS: Statement = Statement {
    name: "read_summed_verdicts",
    text: "SELECT stat_point.owner_id, stat_point.at_ms - stat_point.at_ms % ? AS stretch_at_ms, \
           CAST(SUM(stat_point.succeeded_count) AS {bigint}) AS succeeded_count, \
           CAST(SUM(stat_point.failed_count) AS {bigint}) AS failed_count, \
           CAST(SUM(stat_point.timed_out_count) AS {bigint}) AS timed_out_count, \
           CAST(SUM(stat_point.cancelled_count) AS {bigint}) AS cancelled_count, \
           CAST(SUM(stat_point.unknown_count) AS {bigint}) AS unknown_count, \
           CAST(SUM(stat_point.skipped_count) AS {bigint}) AS skipped_count FROM stat_point \
           WHERE stat_point.owner_id {in_list} AND stat_point.kind = ? AND stat_point.step_ms = ? \
           AND stat_point.at_ms >= ? AND stat_point.at_ms < ? GROUP BY 1, 2 ORDER BY 1, 2 LIMIT ?",
};
pub(super) const READ_OLD_POINTS: Statement = Statement {
    name: "read_old_points",
    text: "SELECT at_ms, owner_id FROM stat_point WHERE kind = ? AND step_ms = ? AND at_ms < ? ORDER BY at_ms LIMIT ?",
};
const DELETE_POINTS: Statement =
    Statement { name: "delete_points", text: "DELETE FROM stat_point WHERE kind = ? AND step_ms = ? AND at_ms < ?" };
pub(super) const DELETE_POINTS_AT: Statement = Statement {
    name: "delete_points_at",
    text: "DELETE FROM stat_point WHERE owner_id {in_list} AND kind = ? AND step_ms = ? AND at_ms = ?",
};
const READ_PULSES: Statement = Statement {
    name: "read_pulses",
    text: "SELECT job_id, namespace_id, app_id, succeeded_at_ms, failed_at_ms, failing_since_ms, streak_count \
           FROM job_pulse WHERE job_id {in_list}",
};
const SAVE_PULSES: Statement = Statement {
    name: "save_pulses",
    text: "INSERT INTO job_pulse (job_id, namespace_id, app_id, succeeded_at_ms, failed_at_ms, failing_since_ms, streak_count) \
           {values:iiiiiii} {or_update:job_id} namespace_id = {new:namespace_id}, app_id = {new:app_id}, \
           succeeded_at_ms = {new:succeeded_at_ms}, failed_at_ms = {new:failed_at_ms}, \
           failing_since_ms = {new:failing_since_ms}, streak_count = {new:streak_count}",
};
pub(super) const READ_FAILING_JOBS: Statement = Statement {
    name: "read_failing",
    text: "SELECT job_pulse.job_id, job_pulse.namespace_id, job.app_id, job_pulse.succeeded_at_ms, job_pulse.failed_at_ms, \
           job_pulse.failing_since_ms, job_pulse.streak_count FROM job_pulse JOIN job ON job.id = job_pulse.job_id \
           WHERE job_pulse.namespace_id = ? AND job_pulse.streak_count > 0 AND job.retired = 0 \
           ORDER BY job_pulse.streak_count DESC LIMIT ?",
};
const READ_FAILING_JOBS_OF_APPS: Statement = Statement {
    name: "read_failing_of_apps",
    text: "SELECT job_pulse.job_id, job_pulse.namespace_id, job.app_id, job_pulse.succeeded_at_ms, job_pulse.failed_at_ms, \
           job_pulse.failing_since_ms, job_pulse.streak_count FROM job_pulse JOIN job ON job.id = job_pulse.job_id \
           WHERE job_pulse.namespace_id = ? AND job_pulse.streak_count > 0 AND job.retired = 0 AND +job.app_id {in_list} \
           ORDER BY job_pulse.streak_count DESC LIMIT ?",
};
/// A condition on the status in the inner statement would make `PostgreSQL` expect so few rows that it reads and sorts the whole day.
pub(super) const READ_UNSUCCESSFUL_RUNS: Statement = Statement {
    name: "read_troubled",
    text: "SELECT t.job_id, t.status, t.had_none, CAST(COUNT(*) AS {bigint}) AS row_count, MAX(t.id) AS newest FROM \
           (SELECT id, job_id, status, CASE WHEN status = 'skipped' AND reason = 'no_executor' THEN 1 ELSE 0 END AS had_none \
           FROM unsuccessful_run WHERE namespace_id = ? AND id >= ? ORDER BY id DESC LIMIT ?) AS t \
           GROUP BY t.job_id, t.status, t.had_none ORDER BY row_count DESC, t.job_id",
};
pub(super) const READ_CHART_RUNS: Statement = Statement {
    name: "read_marks",
    text: concat!(
        "SELECT ",
        chart_run_columns!(),
        " FROM run WHERE run.job_id = ? AND run.fire_at_ms >= ? AND run.fire_at_ms < ? \
         AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) ORDER BY run.fire_at_ms DESC LIMIT ?"
    ),
};
/// Like [`READ_CHART_RUNS`], for many jobs in one statement. Used only on a database that can read the index once for each job.
const READ_CHART_RUNS_OF_EACH: Statement = Statement {
    name: "read_marks_of_each",
    text: concat!(
        "SELECT run.* FROM {rows:i} CROSS JOIN {lateral} (SELECT ",
        chart_run_columns!(),
        " FROM run WHERE run.job_id = v.column1 AND run.fire_at_ms >= ? AND run.fire_at_ms < ? \
         AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) ORDER BY run.fire_at_ms DESC LIMIT ?) AS run"
    ),
};
pub(super) const READ_CHART_RUNS_OF_ALL: Statement = Statement {
    name: "read_marks_of_all",
    text: concat!(
        "SELECT ",
        chart_run_columns!(),
        " FROM run WHERE run.namespace_id = ? AND run.id >= ? AND run.id < ? ORDER BY run.id DESC LIMIT ?"
    ),
};
pub(super) const READ_IDLE_JOBS: Statement = Statement {
    name: "read_idle",
    text: "SELECT job.id, job.version, job.updated_at_ms FROM job_due JOIN job ON job.id = job_due.job_id \
           WHERE {is_idle} AND +job.namespace_id = ? AND +job.retired = 0 AND +job.updated_at_ms < ? \
           ORDER BY job.updated_at_ms DESC LIMIT ?",
};
/// The instant from which a run that has not begun counts as late: its planned instant. For child runs, backfills and runs that make up for
/// missed fires it is the due instant, because their planned instant can be hours ago although they are on time.
macro_rules! late_from {
    () => {
        "CASE WHEN run.trigger_kind IN ('parent', 'backfill', 'misfire') THEN run.due_at_ms ELSE run.fire_at_ms END"
    };
}
macro_rules! open_jobs {
    ($of_lease:literal) => {
        concat!(
            "SELECT run.job_id, MIN(run.id) AS first_id, MIN(",
            late_from!(),
            ") AS planned_ms, MIN(run.started_at_ms) AS begun_ms FROM open_run CROSS JOIN run \
             WHERE run.id = open_run.id AND open_run.node_id = ? AND ",
            $of_lease,
            " AND open_run.status = ? AND open_run.due_at_ms <= ? AND +open_run.namespace_id = ? AND ",
            late_from!(),
            " <= ? AND COALESCE(run.started_at_ms, 0) <= ? AND run.attempt <= ? \
             AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) GROUP BY run.job_id \
             ORDER BY planned_ms, run.job_id LIMIT ?"
        )
    };
}

/// Finds open runs that are late or take long. Reads them by the instants at which they were due, so that the number of other open runs
/// does not matter.
pub(super) const READ_OPEN_JOBS: Statement =
    Statement { name: "read_open_jobs", text: open_jobs!("open_run.node_epoch = ?") };
/// Like [`READ_OPEN_JOBS`], for runs of earlier leases that are not adopted yet.
pub(super) const READ_LEFT_OPEN_JOBS: Statement =
    Statement { name: "read_left_open_jobs", text: open_jobs!("open_run.node_epoch < ?") };
const READ_LEASES: Statement =
    Statement { name: "read_leases_of_nodes", text: "SELECT id, epoch FROM node ORDER BY id" };
const READ_NODE_IDS: Statement = Statement { name: "read_node_ids", text: "SELECT id FROM node ORDER BY id" };
/// Reads by node, because the index begins with the node and continues with the status, so that a backlog of waiting runs is not scanned
/// for running ones.
pub(super) const READ_OPEN_CHART_RUNS: Statement = Statement {
    name: "read_open_marks",
    text: concat!(
        "SELECT ",
        chart_run_columns!(),
        " FROM node CROSS JOIN open_run CROSS JOIN run WHERE open_run.node_id = node.id AND run.id = open_run.id \
         AND open_run.status = ? AND +open_run.namespace_id = ? AND (run.shard_index < 0 OR COALESCE(run.shard_total, 1) <= 1) LIMIT ?"
    ),
};
/// Reads by home, because the index begins with the home: one statement for each node, and one for jobs without a home.
pub(super) const READ_COMING_JOBS: Statement = Statement {
    name: "read_coming",
    text: "SELECT job.id, job.version, job.app_id, job_due.next_fire_at_ms FROM job_due JOIN job ON job.id = job_due.job_id \
           WHERE job_due.home = ? AND job_due.next_fire_at_ms < ? AND job.namespace_id = ? AND job.retired = 0 \
           ORDER BY job_due.next_fire_at_ms LIMIT ?",
};
/// Reads the coming jobs of all homes in one statement, on a database that can read the index once for each home. The inner `LIMIT` makes
/// PostgreSQL use the index and its order. If its statistics know of only one home, it expects all jobs at each home, and would otherwise
/// read and sort all jobs of the namespace for each home.
const READ_COMING_JOBS_OF_EACH_HOME: Statement = Statement {
    name: "read_coming_of_each",
    text: "SELECT coming.* FROM (SELECT 0 AS id UNION ALL SELECT node.id FROM node) AS home CROSS JOIN {lateral} \
           (SELECT job.id, job.version, job.app_id, due.next_fire_at_ms FROM \
           (SELECT job_due.job_id, job_due.next_fire_at_ms FROM job_due WHERE job_due.home = home.id \
           AND job_due.next_fire_at_ms < ? ORDER BY job_due.next_fire_at_ms LIMIT 9223372036854775807) AS due \
           JOIN job ON job.id = due.job_id WHERE job.namespace_id = ? AND job.retired = 0 \
           ORDER BY due.next_fire_at_ms LIMIT ?) AS coming",
};

#[async_trait]
impl Rollups for SqlStore {
    async fn points(&self, query: &PointQuery<'_>) -> Result<Vec<StatPoint>> {
        let mut points = Vec::new();
        for chunk in query.owners.chunks(CHUNK_MAX) {
            let read_verdicts = verdicts as fn(&mut Reader<'_>) -> Result<StatPoint>;
            let (read, read_point) = match query.detail {
                PointDetail::Whole => (Query::new(&READ_POINTS), point as fn(&mut Reader<'_>) -> Result<StatPoint>),
                PointDetail::Verdicts => (Query::new(&READ_VERDICTS), read_verdicts),
                PointDetail::VerdictsPer(length) => {
                    (Query::new(&READ_SUMMED_VERDICTS).int(millis(length).max(1)), read_verdicts)
                }
            };
            let read = read.list(chunk.iter().copied()).text(query.kind.as_str());
            let read = read.int(millis(query.step.length())).at(query.from).at(query.to).int(query.limit.into());
            for row in self.rows(read).await? {
                points.push(read_point(&mut Reader::new(&row, "stat_point"))?);
            }
        }
        points.sort_by_key(|point| (point.owner, point.at));
        points.dedup_by_key(|point| (point.owner, point.at));
        Ok(points)
    }

    async fn forget_points(&self, kind: PointKind, step: Step, before: Timestamp, limit: u32) -> Result<u64> {
        let step = millis(step.length());
        let statements = [&READ_OLD_POINTS, &DELETE_POINTS, &DELETE_POINTS_AT];
        self.remove_oldest(statements, |query| query.text(kind.as_str()).int(step), (before, limit)).await
    }

    async fn failing_jobs(
        &self,
        namespace: NamespaceId,
        within: Option<&[AppId]>,
        limit: u32,
    ) -> Result<Vec<NewestOutcomes>> {
        let query = match within {
            None => Query::new(&READ_FAILING_JOBS).int(namespace.get()),
            Some([]) => return Ok(Vec::new()),
            Some(apps) => {
                let apps = &apps[..apps.len().min(CHUNK_MAX)];
                Query::new(&READ_FAILING_JOBS_OF_APPS).int(namespace.get()).list(apps.iter().map(|app| app.get()))
            }
        };
        self.rows(query.int(limit.into())).await?.iter().map(pulse).collect()
    }

    async fn unsuccessful_runs(
        &self,
        namespace: NamespaceId,
        since: RunId,
        row_count: u32,
    ) -> Result<UnsuccessfulCounts> {
        let mut found = self.count_unsuccessful(namespace, since, row_count).await?;
        if let Some(row_count) = found.greater_row_count(row_count) {
            found = self.count_unsuccessful(namespace, since, row_count).await?;
        }
        Ok(found.without_cancelled())
    }

    async fn chart_runs(&self, jobs: &[JobId], from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<ChartRun>> {
        if jobs.len() > 1 && self.statements.dialect().has_lateral() {
            return self.chart_runs_of_each_job(jobs, from, to, limit).await;
        }
        let read =
            |job: &JobId| self.rows(Query::new(&READ_CHART_RUNS).int(job.get()).at(from).at(to).int(limit.into()));
        let reads: Vec<_> = jobs.iter().map(read).collect();
        let mut results = stream::iter(reads).buffered(CONCURRENT_READ_COUNT);
        let mut runs = Vec::new();
        while let Some(rows) = results.try_next().await? {
            rows.iter().try_for_each(|row| chart_run(row).map(|run| runs.push(run)))?;
        }
        Ok(runs)
    }

    async fn chart_runs_of_namespace(
        &self,
        namespace: NamespaceId,
        (from, to): (RunId, RunId),
        limit: u32,
    ) -> Result<Vec<ChartRun>> {
        let query = Query::new(&READ_CHART_RUNS_OF_ALL).int(namespace.get()).int(from.get()).int(to.get());
        self.rows(query.int(limit.into())).await?.iter().map(chart_run).collect()
    }

    async fn open_chart_runs(&self, namespace: NamespaceId, status: RunStatus, limit: u32) -> Result<Vec<ChartRun>> {
        let query = Query::new(&READ_OPEN_CHART_RUNS).text(status.as_str()).int(namespace.get()).int(limit.into());
        self.rows(query).await?.iter().map(chart_run).collect()
    }

    async fn open_jobs(&self, query: OpenQuery) -> Result<Vec<OpenJob>> {
        let attempt_max = if query.first_attempts_only { 1 } else { i32::MAX };
        let mut jobs: HashMap<JobId, OpenJob> = HashMap::new();
        for lease_row in self.rows(Query::new(&READ_LEASES)).await? {
            let mut columns = Reader::new(&lease_row, "node");
            let (node, epoch) = (columns.int("id")?, columns.int("epoch")?);
            for statement in [&READ_OPEN_JOBS, &READ_LEFT_OPEN_JOBS] {
                let read = Query::new(statement).int(node).int(epoch).text(query.status.as_str()).at(query.due_by);
                let read =
                    read.int(query.namespace.get()).at(query.begun_by).at(query.begun_by).int(attempt_max.into());
                for row in self.rows(read.int(query.limit.into())).await? {
                    let mut columns = Reader::new(&row, "run");
                    let job = JobId::new(columns.int("job_id")?);
                    let (run, fire_at) = (RunId::new(columns.int("first_id")?), columns.at("planned_ms")?);
                    let started_at = columns.opt_at("begun_ms")?;
                    let open_job = jobs.entry(job).or_insert(OpenJob { job, run, fire_at, started_at });
                    (open_job.run, open_job.fire_at) = (open_job.run.min(run), open_job.fire_at.min(fire_at));
                    open_job.started_at = open_job.started_at.into_iter().chain(started_at).min();
                }
            }
        }
        let mut jobs: Vec<OpenJob> = jobs.into_values().collect();
        jobs.sort_by_key(|open_job| (open_job.fire_at, open_job.job));
        Ok(jobs)
    }

    async fn job_activity(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<JobActivity>> {
        self.read_activity(jobs, since).await
    }

    async fn coming_jobs(&self, namespace: NamespaceId, to: Timestamp, limit: u32) -> Result<Vec<ComingJob>> {
        let add_arguments = |query: Query| query.at(to).int(namespace.get()).int(limit.into());
        let mut rows = Vec::new();
        if self.statements.dialect().has_lateral() {
            rows = self.rows(add_arguments(Query::new(&READ_COMING_JOBS_OF_EACH_HOME))).await?;
        } else {
            for home in std::iter::once(0).chain(self.node_ids().await?) {
                rows.append(&mut self.rows(add_arguments(Query::new(&READ_COMING_JOBS).int(home))).await?);
            }
        }
        let mut coming_jobs: Vec<ComingJob> = rows.iter().map(coming_job).collect::<Result<_>>()?;
        coming_jobs.sort_by_key(|job| (job.next_fire_at, job.job));
        coming_jobs.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(coming_jobs)
    }

    async fn idle_jobs(
        &self,
        namespace: NamespaceId,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<(JobId, i64, Timestamp)>> {
        let query = Query::new(&READ_IDLE_JOBS).int(namespace.get()).at(before).int(limit.into());
        let idle_job = |row: &AnyRow| {
            let mut columns = Reader::new(row, "job");
            let (job, version) = (JobId::new(columns.int("id")?), columns.int("version")?);
            Ok((job, version, columns.at("updated_at_ms")?))
        };
        self.rows(query).await?.iter().map(idle_job).collect()
    }
}

impl SqlStore {
    async fn chart_runs_of_each_job(
        &self,
        jobs: &[JobId],
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<ChartRun>> {
        let mut runs = Vec::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            let query = Query::new(&READ_CHART_RUNS_OF_EACH).rows(chunk, |query, job| query.int(job.get()));
            for row in self.rows(query.at(from).at(to).int(limit.into())).await? {
                runs.push(chart_run(&row)?);
            }
        }
        let indexes: HashMap<JobId, usize> = jobs.iter().enumerate().map(|(index, job)| (*job, index)).collect();
        runs.sort_by_key(|run| (indexes.get(&run.job).copied(), Reverse(run.fire_at)));
        Ok(runs)
    }

    /// Counts the newest rows of runs that ended without success, also those of cancelled runs.
    async fn count_unsuccessful(&self, namespace: NamespaceId, since: RunId, limit: u32) -> Result<UnsuccessfulCounts> {
        let query = Query::new(&READ_UNSUCCESSFUL_RUNS).int(namespace.get()).int(since.get()).int(limit.into());
        let rows = self.rows(query).await?;
        let counts = rows.iter().map(unsuccessful_runs).collect::<Result<Vec<_>>>()?;
        let is_cut = counts.iter().map(|runs| runs.count).sum::<u64>() >= u64::from(limit);
        Ok(UnsuccessfulCounts { counts, is_cut })
    }

    pub(super) async fn node_ids(&self) -> Result<Vec<i64>> {
        let rows = self.rows(Query::new(&READ_NODE_IDS)).await?;
        rows.iter().map(|row| Reader::new(row, "node").int("id")).collect()
    }
}

impl Tx<'_> {
    /// Adds the gains of a batch of runs. The caller has locked the cursor, so no other transaction changes these rows until the commit.
    /// Returns the jobs with a newer success than before.
    pub(super) async fn add_gains(&mut self, gains: &Gains) -> Result<Vec<JobId>> {
        let points: Vec<(&PointKey, &Gain)> = gains.points.iter().collect();
        for chunk in points.chunks(CHUNK_MAX) {
            self.add_points(chunk).await?;
        }
        let jobs: Vec<JobId> = gains.pulses.keys().copied().collect();
        let mut succeeded_jobs = Vec::new();
        for chunk in jobs.chunks(CHUNK_MAX) {
            self.add_pulses(gains, chunk, &mut succeeded_jobs).await?;
        }
        Ok(succeeded_jobs)
    }

    async fn add_points(&mut self, chunk: &[(&PointKey, &Gain)]) -> Result<()> {
        let add_key = |query: Query, (owner, kind, step, at): &PointKey| {
            query.int(*owner).text(kind.as_str()).int(millis(step.length())).at(*at)
        };
        let read = Query::new(&READ_KEYED_POINTS).rows(chunk, |query, (point_key, _)| add_key(query, point_key));
        let mut known_points = HashMap::new();
        for row in self.rows(read).await? {
            let mut columns = Reader::new(&row, "stat_point");
            let point = point(&mut columns)?;
            known_points.insert((point.owner, columns.text("kind")?, columns.int("step_ms")?, point.at), point);
        }
        let mut points = Vec::with_capacity(chunk.len());
        for (point_key, gain) in chunk {
            let (owner, kind, step, at) = point_key;
            let old_point = known_points.remove(&(*owner, kind.as_str().to_owned(), millis(step.length()), *at));
            let (verdicts, mut durations, mut lateness) =
                old_point.map(|point| (point.verdicts, point.durations, point.lateness)).unwrap_or_default();
            durations.merge(&gain.durations);
            lateness.merge(&gain.lateness);
            points.push((**point_key, gain.added_to(verdicts), durations, lateness));
        }
        let size = self.size;
        let queries = size.queries(&SAVE_POINTS, &points, |query, (point_key, verdicts, durations, lateness)| {
            add_counts(add_key(query, point_key), verdicts).text(&durations.to_string()).text(&lateness.to_string())
        });
        for (save, _) in queries {
            self.execute(save).await?;
        }
        Ok(())
    }

    async fn add_pulses(&mut self, gains: &Gains, jobs: &[JobId], succeeded_jobs: &mut Vec<JobId>) -> Result<()> {
        let mut pulses: HashMap<JobId, NewestOutcomes> = HashMap::new();
        for row in self.rows(Query::new(&READ_PULSES).list(jobs.iter().map(|job| job.get()))).await? {
            let pulse = pulse(&row)?;
            pulses.insert(pulse.job, pulse);
        }
        let (mut saved_pulses, mut outdated_failures) = (Vec::with_capacity(jobs.len()), Vec::new());
        for job in jobs {
            let runs = gains.pulses.get(job).map(Vec::as_slice).unwrap_or_default();
            let Some((first_run, _)) = runs.first() else { continue };
            let mut pulse = pulses.remove(job).unwrap_or(NewestOutcomes::of(first_run));
            let succeeded_before = pulse.succeeded_at;
            runs.iter().for_each(|(run, before)| pulse.note(run, *before));
            succeeded_jobs.extend((pulse.succeeded_at > succeeded_before).then_some(*job));
            outdated_failures
                .extend(runs.iter().filter(|(run, _)| pulse.is_outdated_failure(run)).map(|(run, _)| run.id));
            saved_pulses.push(pulse);
        }
        if saved_pulses.is_empty() {
            return Ok(());
        }
        let query = Query::new(&SAVE_PULSES).rows(&saved_pulses, |query, pulse| {
            let query = query.int(pulse.job.get()).int(pulse.namespace.get()).int(pulse.app.get());
            let query = query.opt_at(pulse.succeeded_at).opt_at(pulse.failed_at);
            query.opt_at(pulse.failing_since).int(to_i64(pulse.streak))
        });
        self.execute(query).await?;
        self.delete_dead_letters(&outdated_failures).await
    }
}

fn add_counts(query: Query, verdicts: &Verdicts) -> Query {
    let Verdicts { succeeded, failed, timed_out, cancelled, unknown, skipped } = *verdicts;
    [succeeded, failed, timed_out, cancelled, unknown, skipped].into_iter().map(to_i64).fold(query, Query::int)
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
