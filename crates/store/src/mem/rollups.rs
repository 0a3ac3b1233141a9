//! Counts with distributions, and the reads of the ledger for overviews.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::sketch::{Sketch, Step};
use rondel_core::{AppId, JobId, NamespaceId, Reason, Run, RunId, RunStatus, Timestamp, Trigger};

use crate::mem::{MemStore, State, StoredJob, to_usize};
use crate::rollups::{
    ChartRun, ComingJob, Gains, JobActivity, NewestOutcomes, OpenJob, OpenQuery, PointDetail, PointKind, PointQuery,
    StatPoint, UnsuccessfulCounts, UnsuccessfulRuns, Verdicts, decides_failing,
};
use crate::{Result, Rollups};

#[async_trait]
impl Rollups for MemStore {
    async fn points(&self, query: &PointQuery<'_>) -> Result<Vec<StatPoint>> {
        let state = self.state();
        let is_selected = |(owner, kind, step, at): &(i64, PointKind, Step, Timestamp)| {
            query.owners.contains(owner)
                && *kind == query.kind
                && *step == query.step
                && (query.from..query.to).contains(at)
        };
        let mut points: Vec<StatPoint> =
            state.points.iter().filter(|(key, _)| is_selected(key)).map(|(_, point)| point.clone()).collect();
        points.sort_by_key(|point| (point.owner, point.at));
        if query.detail != PointDetail::Whole {
            points.iter_mut().for_each(|point| (point.durations, point.lateness) = Default::default());
        }
        if let PointDetail::VerdictsPer(length) = query.detail {
            points.iter_mut().for_each(|point| point.at = point.at.floor(length));
            points.dedup_by(|point, sum| {
                let is_same_point = (point.owner, point.at) == (sum.owner, sum.at);
                if is_same_point {
                    sum.verdicts = sum.verdicts.plus(point.verdicts);
                }
                is_same_point
            });
        }
        points.truncate(to_usize(query.limit));
        Ok(points)
    }

    async fn forget_points(&self, kind: PointKind, step: Step, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let is_old = |key: &&(i64, PointKind, Step, Timestamp)| key.1 == kind && key.2 == step && key.3 < before;
        let mut old_keys: Vec<(i64, PointKind, Step, Timestamp)> =
            state.points.keys().filter(is_old).copied().collect();
        old_keys.sort_by_key(|key| key.3);
        old_keys.truncate(to_usize(limit));
        for key in &old_keys {
            state.points.remove(key);
        }
        Ok(u64::try_from(old_keys.len()).unwrap_or(u64::MAX))
    }

    async fn failing_jobs(
        &self,
        namespace: NamespaceId,
        within: Option<&[AppId]>,
        limit: u32,
    ) -> Result<Vec<NewestOutcomes>> {
        let state = self.state();
        let failing_pulses =
            state.newest_outcomes.values().filter(|pulse| pulse.namespace == namespace && pulse.streak > 0);
        let mut failing_jobs: Vec<NewestOutcomes> = failing_pulses
            .filter_map(|pulse| {
                let stored_job = state.jobs.get(&pulse.job).filter(|job| !job.is_deleted)?;
                let app = stored_job.record.app;
                within.is_none_or(|apps| apps.contains(&app)).then_some(NewestOutcomes { app, ..*pulse })
            })
            .collect();
        failing_jobs.sort_by_key(|pulse| Reverse(pulse.streak));
        failing_jobs.truncate(to_usize(limit));
        Ok(failing_jobs)
    }

    async fn unsuccessful_runs(
        &self,
        namespace: NamespaceId,
        since: RunId,
        row_count: u32,
    ) -> Result<UnsuccessfulCounts> {
        let state = self.state();
        let mut found = state.count_unsuccessful(namespace, since, row_count);
        if let Some(row_count) = found.greater_row_count(row_count) {
            found = state.count_unsuccessful(namespace, since, row_count);
        }
        Ok(found.without_cancelled())
    }

    async fn chart_runs(&self, jobs: &[JobId], from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<ChartRun>> {
        let state = self.state();
        let newest_runs = |job: &JobId| {
            let runs_in_range = state.runs.values().filter(|run| run.job == *job && (from..to).contains(&run.fire_at));
            let mut runs: Vec<ChartRun> = runs_in_range.filter(|run| is_not_shard(run)).map(ChartRun::from).collect();
            runs.sort_by_key(|run| Reverse(run.fire_at));
            runs.truncate(to_usize(limit));
            runs
        };
        Ok(jobs.iter().flat_map(newest_runs).collect())
    }

    async fn chart_runs_of_namespace(
        &self,
        namespace: NamespaceId,
        (from, to): (RunId, RunId),
        limit: u32,
    ) -> Result<Vec<ChartRun>> {
        let state = self.state();
        let runs = state.runs.range(from..to).rev().map(|(_, run)| run).filter(|run| run.namespace == namespace);
        Ok(runs.map(ChartRun::from).take(to_usize(limit)).collect())
    }

    async fn open_chart_runs(&self, namespace: NamespaceId, status: RunStatus, limit: u32) -> Result<Vec<ChartRun>> {
        let state = self.state();
        let runs = state.runs.values().filter(|run| run.namespace == namespace && run.status == status);
        Ok(runs.filter(|run| is_not_shard(run)).map(ChartRun::from).take(to_usize(limit)).collect())
    }

    async fn open_jobs(&self, query: OpenQuery) -> Result<Vec<OpenJob>> {
        let state = self.state();
        let has_own_plan = |run: &Run| !matches!(run.trigger, Trigger::Parent | Trigger::Backfill | Trigger::Misfire);
        let planned_at = |run: &Run| if has_own_plan(run) { run.fire_at } else { run.due_at };
        let is_selected = |run: &&Run| {
            run.namespace == query.namespace
                && run.status == query.status
                && run.due_at <= query.due_by
                && planned_at(run) <= query.begun_by
                && run.started_at.is_none_or(|at| at <= query.begun_by)
                && (!query.first_attempts_only || run.attempt == 1)
                && is_not_shard(run)
        };
        let mut jobs: BTreeMap<JobId, OpenJob> = BTreeMap::new();
        for run in state.runs.values().filter(is_selected) {
            let Run { job, id, started_at, .. } = *run;
            let fire_at = planned_at(run);
            let open_job = jobs.entry(job).or_insert(OpenJob { job, run: id, fire_at, started_at });
            (open_job.run, open_job.fire_at) = (open_job.run.min(id), open_job.fire_at.min(fire_at));
            open_job.started_at = open_job.started_at.into_iter().chain(started_at).min();
        }
        let mut jobs: Vec<OpenJob> = jobs.into_values().collect();
        jobs.sort_by_key(|open_job| (open_job.fire_at, open_job.job));
        jobs.truncate(to_usize(query.limit));
        Ok(jobs)
    }

    async fn job_activity(&self, jobs: &[JobId], since: Timestamp) -> Result<Vec<JobActivity>> {
        let state = self.state();
        let activity = |job: &JobId| {
            let due = state.due.get(job)?;
            let runs: Vec<&Run> = state.runs.values().filter(|run| run.job == *job).collect();
            let decides = |run: &&&Run| decides_failing(run.status).is_some() || run.fire_at < since;
            let newest_run = runs.iter().filter(|run| is_not_shard(run)).filter(decides).max_by_key(|run| run.fire_at);
            let is_failing_now = newest_run.and_then(|run| decides_failing(run.status));
            let was_failing = || state.newest_outcomes.get(job).is_some_and(|pulse| pulse.streak > 0);
            Some(JobActivity {
                job: *job,
                is_failing: is_failing_now.unwrap_or_else(was_failing),
                is_running: runs.iter().any(|run| run.status == RunStatus::Running),
                is_over: due.next_fire_at.is_none() && due.is_over && runs.iter().all(|run| run.status.is_terminal()),
            })
        };
        Ok(jobs.iter().filter_map(activity).collect())
    }

    async fn coming_jobs(&self, namespace: NamespaceId, to: Timestamp, limit: u32) -> Result<Vec<ComingJob>> {
        let state = self.state();
        let living_jobs = state.jobs.values().filter(|job| !job.is_deleted && job.record.namespace == namespace);
        let mut coming_jobs: Vec<ComingJob> = living_jobs
            .filter_map(|job| {
                let next_fire_at = state.due.get(&job.record.id)?.next_fire_at.filter(|at| *at < to)?;
                let (job, version, app) = (job.record.id, job.record.version, job.record.app);
                Some(ComingJob { job, version, app, next_fire_at })
            })
            .collect();
        coming_jobs.sort_by_key(|job| (job.next_fire_at, job.job));
        coming_jobs.truncate(to_usize(limit));
        Ok(coming_jobs)
    }

    async fn idle_jobs(
        &self,
        namespace: NamespaceId,
        before: Timestamp,
        limit: u32,
    ) -> Result<Vec<(JobId, i64, Timestamp)>> {
        let state = self.state();
        let is_idle = |job: &&StoredJob| {
            let is_over = state.due.get(&job.record.id).is_some_and(|due| due.next_fire_at.is_none() && due.is_over);
            !job.is_deleted && job.record.namespace == namespace && job.record.updated_at < before && is_over
        };
        let idle_jobs = state.jobs.values().filter(is_idle).map(|job| &job.record);
        let mut idle_jobs: Vec<_> = idle_jobs.map(|job| (job.id, job.version, job.updated_at)).collect();
        idle_jobs.sort_by_key(|(job, _, at)| (Reverse(*at), *job));
        idle_jobs.truncate(to_usize(limit));
        Ok(idle_jobs)
    }
}

impl State {
    /// Counts the newest rows of runs that ended without success, also those of cancelled runs.
    fn count_unsuccessful(&self, namespace: NamespaceId, since: RunId, limit: u32) -> UnsuccessfulCounts {
        let is_unsuccessful = |run: &&Run| {
            let is_success_or_open = run.status == RunStatus::Succeeded || !run.status.is_terminal();
            run.namespace == namespace && !is_success_or_open
        };
        let runs = self.runs.range(since..).rev().map(|(_, run)| run).filter(is_unsuccessful);
        let runs: Vec<&Run> = runs.take(to_usize(limit)).collect();
        let is_cut = runs.len() >= to_usize(limit);
        let mut counts_by_key: BTreeMap<(JobId, RunStatus, bool), (u64, RunId)> = BTreeMap::new();
        for run in runs {
            let had_no_executor = run.status == RunStatus::Skipped && run.reason == Some(Reason::NoExecutor);
            let (count, newest_run) =
                counts_by_key.entry((run.job, run.status, had_no_executor)).or_insert((0, run.id));
            (*count, *newest_run) = (*count + 1, run.id.max(*newest_run));
        }
        let unsuccessful_runs = |((job, status, had_no_executor), (count, newest))| UnsuccessfulRuns {
            job,
            status,
            had_no_executor,
            count,
            newest,
        };
        let mut counts: Vec<UnsuccessfulRuns> = counts_by_key.into_iter().map(unsuccessful_runs).collect();
        counts.sort_by_key(|runs| (Reverse(runs.count), runs.job));
        UnsuccessfulCounts { counts, is_cut }
    }

    pub(in crate::mem) fn add_gains(&mut self, gains: &Gains) {
        for (key, gain) in &gains.points {
            let (owner, _, _, at) = *key;
            let point = self.points.entry(*key).or_insert_with(|| StatPoint {
                owner,
                at,
                verdicts: Verdicts::default(),
                durations: Sketch::default(),
                lateness: Sketch::default(),
            });
            point.verdicts = gain.added_to(point.verdicts);
            point.durations.merge(&gain.durations);
            point.lateness.merge(&gain.lateness);
        }
        for (job, runs) in &gains.pulses {
            let Some((first_run, _)) = runs.first() else { continue };
            let pulse = self.newest_outcomes.entry(*job).or_insert(NewestOutcomes::of(first_run));
            runs.iter().for_each(|(run, before)| pulse.note(run, *before));
        }
        let pulses = &self.newest_outcomes;
        self.dead_letters.retain(|_, (_, job, fire_at)| {
            let succeeded_at = pulses.get(job).and_then(|pulse| pulse.succeeded_at);
            succeeded_at.is_none_or(|succeeded_at| *fire_at >= succeeded_at)
        });
    }
}

/// Whether a run stands for a whole fire: it is no shard, or the only one.
pub(super) fn is_not_shard(run: &Run) -> bool {
    run.is_root() || run.shard_total.is_none_or(|total| total <= 1)
}
