//! The trait `Runs` for the store in memory: reads runs by id, for the tick, in pages, with their attempts.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::run::{Attempt, ROOT_SHARD};
use rondel_core::{AppId, JobId, NamespaceId, Run, RunId, RunStatus, Timestamp};

use crate::ledger::{ATTEMPT_COUNT_MAX, ExecutorRunCount, OpenPage, RunCheck, RunQuery};
use crate::mem::{MemStore, State, key, to_usize};
use crate::{LeaseToken, Result, Runs};

#[async_trait]
impl Runs for MemStore {
    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
        let state = self.state();
        Ok(ids.iter().filter_map(|id| state.runs.get(id)).cloned().collect())
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        let state = self.state();
        let check = |run: &Run| RunCheck {
            id: run.id,
            status: run.status,
            attempt: run.attempt,
            job_version: run.job_version,
            has_recorded_start: run.started_at.is_some(),
            owner: LeaseToken { node: run.node, epoch: run.node_epoch },
            cancel_by: run.cancel_by.clone(),
            drop_for: run.cancel_reason.filter(|reason| reason.applies_only_to_queued()),
            term: state.due.get(&run.job).map_or(0, |due| due.term),
        };
        Ok(ids.iter().filter_map(|id| state.runs.get(id)).map(check).collect())
    }

    async fn open_keys(&self, token: LeaseToken, page: OpenPage) -> Result<Vec<(Timestamp, RunId)>> {
        let open_runs = self.state().open_runs_where(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == page.status
                && run.due_at < page.before
                && (run.due_at, run.id) > page.after
        });
        Ok(open_runs.into_iter().map(|run| (run.due_at, run.id)).take(to_usize(page.limit)).collect())
    }

    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        Ok(self.state().page(namespace, query))
    }

    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>> {
        let is_child = |run: &&Run| run.parent.is_some_and(|parent| parents.contains(&parent));
        Ok(self.state().runs.values().filter(is_child).take(to_usize(limit)).cloned().collect())
    }

    async fn count_running_by_executor(&self, namespace: NamespaceId) -> Result<Vec<ExecutorRunCount>> {
        let state = self.state();
        let mut counts: BTreeMap<(AppId, String), u64> = BTreeMap::new();
        let is_held = |run: &&Run| run.namespace == namespace && run.status == RunStatus::Running;
        for run in state.runs.values().filter(is_held) {
            if let Some(executor) = &run.executor {
                *counts.entry((run.app, executor.clone())).or_default() += 1;
            }
        }
        let held_counts = counts.into_iter().map(|((app, executor), count)| ExecutorRunCount { app, executor, count });
        Ok(held_counts.collect())
    }

    async fn running_runs_of_executor(
        &self,
        namespace: NamespaceId,
        app: AppId,
        executor: &str,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let state = self.state();
        let is_held = |run: &&Run| {
            (run.namespace, run.app, run.status) == (namespace, app, RunStatus::Running)
                && run.executor.as_deref() == Some(executor)
        };
        Ok(state.runs.values().filter(is_held).take(to_usize(limit)).cloned().collect())
    }

    async fn next_fire_after(&self, run: &Run) -> Result<Option<Run>> {
        let state = self.state();
        let key = |run: &Run| (run.fire_at, run.cause);
        let later_runs = state.runs.values().filter(|other| other.job == run.job && key(other) > key(run));
        Ok(later_runs.min_by_key(|later_run| (later_run.fire_at, later_run.cause, later_run.shard_index)).cloned())
    }

    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let state = self.state();
        let is_planned = |run: &&Run| run.job == job && run.cause == 0 && run.parent.is_none() && run.fire_at <= to;
        let mut planned_runs: Vec<Run> = state.runs.values().filter(is_planned).cloned().collect();
        planned_runs.sort_by_key(|run| (run.fire_at, run.shard_index));
        let first_index = planned_runs.iter().position(|run| run.fire_at >= from).unwrap_or(planned_runs.len());
        let reaches_range = |run: &Run| run.span_end_at.is_some_and(|end| end >= from);
        let index_before =
            first_index.checked_sub(1).filter(|index_before| reaches_range(&planned_runs[*index_before]));
        planned_runs.drain(..index_before.unwrap_or(first_index));
        planned_runs.truncate(to_usize(limit));
        Ok(planned_runs)
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        let state = self.state();
        let newest_attempts =
            state.attempts.range((run, i32::MIN)..=(run, i32::MAX)).rev().take(to_usize(ATTEMPT_COUNT_MAX));
        let mut attempts: Vec<Attempt> = newest_attempts.map(|(_, attempt)| attempt.clone()).collect();
        attempts.reverse();
        Ok(attempts)
    }
}

impl State {
    /// Open runs that match, the earliest first.
    pub(super) fn open_runs_where(&self, matches: impl Fn(&Run) -> bool) -> Vec<Run> {
        let open_runs = self.runs.values().filter(|run| !run.status.is_terminal() && matches(run));
        let mut open_runs: Vec<Run> = open_runs.cloned().collect();
        open_runs.sort_by_key(|run| (run.due_at, run.id));
        open_runs
    }

    fn page(&self, namespace: NamespaceId, query: &RunQuery) -> Vec<Run> {
        let after = query.after.and_then(|id| self.runs.get(&id));
        let is_page_of_job = query.job.is_some() && query.parent.is_none();
        if is_page_of_job && query.after.is_some() && after.is_none() {
            return Vec::new();
        }
        let is_after = |run: &Run| match (query.after, after) {
            (Some(_), Some(after)) if is_page_of_job => key(run) < key(after),
            (Some(after), _) => run.id < after,
            (None, _) => true,
        };
        let parent = query.parent.and_then(|id| self.runs.get(&id));
        let is_shard = |run: &Run, parent: &Run| {
            run.parent == Some(parent.id)
                && run.shard_index != ROOT_SHARD
                && (run.job, run.fire_at, run.cause) == (parent.job, parent.fire_at, parent.cause)
        };
        let mut page: Vec<&Run> = self.runs.values().collect();
        page.retain(|run| {
            run.namespace == namespace
                && query.job.is_none_or(|job| run.job == job)
                && (!is_page_of_job || query.until.is_none_or(|until| run.fire_at <= until))
                && (query.parent.is_some() || query.within.as_ref().is_none_or(|within| within.contains(&run.app)))
                && (query.statuses.is_empty() || query.statuses.contains(&run.status))
                && (query.parent.is_none() || parent.is_some_and(|parent| is_shard(run, parent)))
                && is_after(run)
        });
        match is_page_of_job {
            true => page.sort_by_key(|run| std::cmp::Reverse(key(run))),
            false => page.sort_by_key(|run| std::cmp::Reverse(run.id)),
        }
        page.into_iter().take(to_usize(query.limit)).cloned().collect()
    }
}
