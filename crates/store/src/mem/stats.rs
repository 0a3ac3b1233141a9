//! The trait `Stats` for the store in memory.

use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;
use rondel_core::{IdGen, JobId, Run, RunId, RunStatus, Timestamp};

use crate::mem::{MemStore, State, to_usize};
use crate::reports::is_new_failure;
use crate::rollups::Gains;
use crate::upkeep::{CountedRun, JobStat, RECOUNT_AGE_MAX};
use crate::{Result, Stats};

#[async_trait]
impl Stats for MemStore {
    async fn roll_up(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let ended_runs: Vec<Run> = state.ended_since_counted().into_iter().take(to_usize(limit)).collect();
        let (mut gains, mut failed_runs) = (Gains::default(), Vec::new());
        for run in &ended_runs {
            let counted_as = state.stat_open.remove(&run.id).flatten();
            let counted_run = state.counted_run(run);
            gains.add(&counted_run, counted_as);
            failed_runs.extend(Some(counted_run).filter(|run| is_new_failure(run, counted_as)));
            if let (Some(status), Some(stat)) = (counted_as, counted_run.job_stat()) {
                state.add_to_stats(run.job, JobStat { status, duration: Duration::ZERO, ..stat }, -1);
            }
            if let Some(stat) = counted_run.job_stat() {
                state.add_to_stats(run.job, stat, 1);
            }
            if counted_run.may_change() {
                state.stat_open.insert(run.id, Some(run.status));
            }
        }
        let next_runs =
            state.runs.range((state.stat_cursor.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let is_old = |run: &&Run| run.id.get() < IdGen::first_at(before);
        let next_runs: Vec<Run> =
            next_runs.map(|(_, run)| run).take_while(is_old).take(to_usize(limit)).cloned().collect();
        for run in &next_runs {
            state.stat_cursor = Some(run.id);
            let counted_run = state.counted_run(run);
            gains.add(&counted_run, None);
            failed_runs.extend(Some(counted_run).filter(|run| is_new_failure(run, None)));
            if let Some(stat) = counted_run.job_stat() {
                state.add_to_stats(run.job, stat, 1);
            }
            if !run.status.is_terminal() {
                state.stat_open.insert(run.id, None);
            } else if counted_run.may_change() {
                state.stat_open.insert(run.id, Some(run.status));
            }
        }
        state.add_gains(&gains);
        state.add_failures(&failed_runs);
        let first_recounted_id = IdGen::first_at(before - RECOUNT_AGE_MAX);
        let State { stat_open, runs, .. } = &mut *state;
        let must_be_counted =
            |run: &Run, counted_status: Option<RunStatus>| counted_status.is_none() || !run.status.is_terminal();
        stat_open.retain(|id, counted_status| {
            id.get() >= first_recounted_id || runs.get(id).is_some_and(|run| must_be_counted(run, *counted_status))
        });
        Ok(u64::try_from(ended_runs.len() + next_runs.len()).unwrap_or(u64::MAX))
    }

    async fn job_stats(&self, job: JobId, from: Timestamp, to: Timestamp) -> Result<Vec<JobStat>> {
        let state = self.state();
        let stats_of_job =
            state.stats.iter().filter(|((counted_job, hour, _), _)| *counted_job == job && (from..to).contains(hour));
        let to_job_stat =
            |((_, hour, status), (count, duration_ms)): (&(JobId, Timestamp, RunStatus), &(i64, i64))| JobStat {
                hour: *hour,
                status: *status,
                run_count: u64::try_from(*count).unwrap_or(0),
                duration: Duration::from_millis(u64::try_from(*duration_ms).unwrap_or(0)),
            };
        let mut stats: Vec<JobStat> = stats_of_job.map(to_job_stat).filter(|stat| stat.run_count > 0).collect();
        stats.sort_by_key(|stat| (stat.hour, stat.status.as_str()));
        Ok(stats)
    }

    async fn forget_stats(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let mut old_keys: Vec<(JobId, Timestamp, RunStatus)> =
            state.stats.keys().filter(|(_, hour, _)| *hour < before).copied().collect();
        old_keys.sort_by_key(|(_, hour, _)| *hour);
        old_keys.truncate(to_usize(limit));
        for key in &old_keys {
            state.stats.remove(key);
        }
        Ok(u64::try_from(old_keys.len()).unwrap_or(u64::MAX))
    }
}

impl State {
    /// Runs that were open when the cursor passed them, or whose verdict has changed since.
    fn ended_since_counted(&self) -> Vec<Run> {
        let has_ended = |(id, counted_status): (&RunId, &Option<RunStatus>)| {
            let run =
                self.runs.get(id).filter(|run| run.status.is_terminal() && Some(run.status) != *counted_status)?;
            Some(run.clone())
        };
        self.stat_open.iter().filter_map(has_ended).collect()
    }

    fn counted_run(&self, run: &Run) -> CountedRun {
        CountedRun { is_shard: self.broadcast_of(run).is_some(), ..CountedRun::from(run) }
    }

    fn add_to_stats(&mut self, job: JobId, stat: JobStat, sign: i64) {
        let sum = self.stats.entry((job, stat.hour, stat.status)).or_default();
        sum.0 += sign * i64::try_from(stat.run_count).unwrap_or(i64::MAX);
        sum.1 += sign * rondel_core::time::millis(stat.duration);
    }
}
