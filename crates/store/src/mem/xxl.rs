//! The trait `XxlExecutors` for the store in memory.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use rondel_core::{AppId, ExecutorId, RunId, Timestamp};

use super::xxl_rows::LAST_UNASSIGNED_NUMBER;
use super::{MemStore, to_usize};
use crate::xxl::{
    NewXxlRun, XXL_REGISTERED_FOR, XxlExecutor, XxlReport, XxlReportResults, XxlRun, XxlRunState, XxlSettlement,
    apply_reports, is_assumed,
};
use crate::{LeaseToken, Result, XxlExecutors};

#[async_trait]
impl XxlExecutors for MemStore {
    async fn register_xxl(&self, executor: &XxlExecutor) -> Result<ExecutorId> {
        let mut state = self.state();
        let key = (executor.app, executor.address.clone());
        let stored_executor = state.xxl.executors.entry(key).or_insert_with(|| executor.clone());
        (stored_executor.token, stored_executor.last_seen_at, stored_executor.left_at) =
            (executor.token.clone(), executor.last_seen_at, None);
        Ok(stored_executor.id)
    }

    async fn unregister_xxl(&self, app: AppId, address: &str, now: Timestamp) -> Result<bool> {
        let mut state = self.state();
        let executor =
            state.xxl.executors.get_mut(&(app, address.to_owned())).filter(|executor| executor.left_at.is_none());
        Ok(executor.map(|executor| executor.left_at = Some(now)).is_some())
    }

    async fn register_xxl_by_hand(&self, executor: &XxlExecutor, now: Timestamp) -> Result<ExecutorId> {
        let mut state = self.state();
        let key = (executor.app, executor.address.clone());
        let unseen_executor = || XxlExecutor { last_seen_at: Timestamp::EPOCH, ..executor.clone() };
        let stored_executor = state.xxl.executors.entry(key).or_insert_with(unseen_executor);
        (stored_executor.token, stored_executor.by_hand_at) = (executor.token.clone(), Some(now));
        Ok(stored_executor.id)
    }

    async fn unregister_xxl_by_hand(&self, app: AppId, address: &str) -> Result<bool> {
        let now = self.now();
        let mut state = self.state();
        let Some(executor) = state.xxl.executors.get_mut(&(app, address.to_owned())) else { return Ok(false) };
        let was_by_hand = executor.by_hand_at.take().is_some();
        if was_by_hand && executor.last_seen_at + XXL_REGISTERED_FOR <= now {
            executor.left_at = Some(now);
        }
        Ok(was_by_hand)
    }

    async fn xxl_registered_by_hand(&self, app: Option<AppId>, limit: u32) -> Result<Vec<XxlExecutor>> {
        let state = self.state();
        let is_wanted =
            |executor: &&XxlExecutor| executor.by_hand_at.is_some() && app.is_none_or(|app| executor.app == app);
        let mut executors: Vec<XxlExecutor> = state.xxl.executors.values().filter(is_wanted).cloned().collect();
        if app.is_none() {
            executors.sort_by_key(|executor| executor.by_hand_at);
        }
        executors.truncate(to_usize(limit));
        Ok(executors)
    }

    async fn xxl_executors(&self, since: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>> {
        let state = self.state();
        let mut executors: Vec<XxlExecutor> =
            state.xxl.executors.values().filter(|executor| executor.last_seen_at >= since).cloned().collect();
        executors.sort_by_key(|executor| std::cmp::Reverse(executor.last_seen_at));
        executors.truncate(to_usize(limit));
        Ok(executors)
    }

    async fn xxl_executors_with_unsettled_ends(&self, before: Timestamp, limit: u32) -> Result<Vec<XxlExecutor>> {
        let state = self.state();
        let reported_runs = state.xxl.runs.values().filter(|run| run.state == XxlRunState::Reported);
        let reporting_executors: BTreeSet<ExecutorId> = reported_runs.map(|run| run.executor).collect();
        let is_wanted =
            |executor: &&XxlExecutor| executor.last_seen_at < before && reporting_executors.contains(&executor.id);
        let mut executors: Vec<XxlExecutor> = state.xxl.executors.values().filter(is_wanted).cloned().collect();
        executors.sort_by_key(|executor| std::cmp::Reverse(executor.last_seen_at));
        executors.truncate(to_usize(limit));
        Ok(executors)
    }

    async fn send_xxl(&self, token: LeaseToken, runs: &[NewXxlRun], now: Timestamp) -> Result<Option<Vec<XxlRun>>> {
        let store_now = self.now();
        let mut state = self.state();
        if !state.holds(token, store_now) {
            return Ok(None);
        }
        let mut numbered_runs = Vec::with_capacity(runs.len());
        for run in runs {
            let job_number = state.xxl.job_number(run.job);
            state.xxl.last_log_id = state.xxl.last_log_id.max(LAST_UNASSIGNED_NUMBER) + 1;
            let row = XxlRun {
                log_id: state.xxl.last_log_id,
                run: run.run,
                attempt: run.attempt,
                job: run.job,
                number: job_number,
                executor: run.executor,
                app: run.app,
                node: token.node,
                sent_at: now,
                state: XxlRunState::Open,
                code: None,
                message: None,
                reported_at: None,
                log_line: 1,
            };
            state.xxl.runs.insert(row.log_id, row.clone());
            numbered_runs.push(row);
        }
        Ok(Some(numbered_runs))
    }

    async fn unsettled_xxl(&self, executor: ExecutorId, limit: u32) -> Result<Vec<XxlRun>> {
        let state = self.state();
        let is_unsettled = |run: &&XxlRun| run.executor == executor && run.state != XxlRunState::Settled;
        Ok(state.xxl.runs.values().filter(is_unsettled).take(to_usize(limit)).cloned().collect())
    }

    async fn report_xxl(&self, app: AppId, reports: &[XxlReport], now: Timestamp) -> Result<XxlReportResults> {
        let mut state = self.state();
        let ids: BTreeSet<i64> = reports.iter().map(|report| report.log_id).collect();
        let known_runs = ids.iter().filter_map(|id| Some((*id, state.xxl.runs.get(id)?.clone())));
        let mut runs: BTreeMap<i64, XxlRun> = known_runs.collect();
        let outcomes = apply_reports(app, reports, &mut runs, now);
        runs.retain(|_, run| run.app == app);
        state.xxl.runs.extend(runs.iter().map(|(id, run)| (*id, run.clone())));
        Ok(XxlReportResults { runs: runs.into_values().collect(), outcomes })
    }

    async fn settle_xxl(&self, settlements: &[XxlSettlement], now: Timestamp) -> Result<()> {
        let mut state = self.state();
        for settlement in settlements {
            let run = state.xxl.runs.get_mut(&settlement.log_id);
            if let Some(run) = run.filter(|run| !settlement.is_assumed() || is_assumed(run.code)) {
                run.state = XxlRunState::Settled;
                run.reported_at.get_or_insert(now);
            }
        }
        Ok(())
    }

    async fn note_xxl_log(&self, log_id: i64, next_line: i64) -> Result<()> {
        if let Some(run) = self.state().xxl.runs.get_mut(&log_id) {
            run.log_line = run.log_line.max(next_line);
        }
        Ok(())
    }

    async fn forget_xxl(&self, before: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let runs = &state.xxl.runs;
        let is_old = |run: &&XxlRun| run.state == XxlRunState::Settled && run.reported_at.is_some_and(|at| at < before);
        let is_over = |id: RunId| state.runs.get(&id).is_none_or(|run| run.status.is_terminal());
        let is_left_over =
            |run: &&XxlRun| run.state != XxlRunState::Settled && run.sent_at < before && is_over(run.run);
        let left_runs = runs.values().filter(is_left_over).take(to_usize(limit));
        let old_runs = runs.values().filter(is_old).take(to_usize(limit)).chain(left_runs);
        let old_runs: Vec<i64> = old_runs.map(|run| run.log_id).collect();
        for log_id in &old_runs {
            state.xxl.runs.remove(log_id);
        }
        let unsettled_runs = state.xxl.runs.values().filter(|run| run.state != XxlRunState::Settled);
        let unsettled_executors: BTreeSet<ExecutorId> = unsettled_runs.map(|run| run.executor).collect();
        let is_gone = |executor: &XxlExecutor| {
            let last_at = executor.left_at.map_or(executor.last_seen_at, |left_at| left_at.max(executor.last_seen_at));
            last_at < before && executor.by_hand_at.is_none() && !unsettled_executors.contains(&executor.id)
        };
        let gone_executors = state.xxl.executors.iter().filter(|(_, executor)| is_gone(executor)).take(to_usize(limit));
        let gone_keys: Vec<(AppId, String)> = gone_executors.map(|(key, _)| key.clone()).collect();
        for key in &gone_keys {
            state.xxl.executors.remove(key);
        }
        Ok(u64::try_from(old_runs.len() + gone_keys.len()).unwrap_or(u64::MAX))
    }
}
