//! Due jobs: reading them, claiming them, and requested runs.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rondel_core::dense::DenseInstant;
use rondel_core::outcome::CancelRequest;
use rondel_core::request::IfOpen;
use rondel_core::{JobId, NodeId, Run, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::cancel::ask_to_cancel;
use crate::ledger::{
    ClaimJob, ClaimResult, DueJob, DueRange, KeyedRun, RequestedShards, UnsentPlace, merge_by_instant,
};
use crate::mem::{DueRow, MemStore, State, StoredNode, key, to_usize};
use crate::{Claim, LeaseToken, Result};

#[async_trait]
impl Claim for MemStore {
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>> {
        let state = self.state();
        let mut due_jobs: Vec<DueJob> = state.due.keys().filter_map(|job| state.due_job(*job)).collect();
        due_jobs.retain(|job| homes.contains(&job.home) && (range.from..=range.to).contains(&job.next_fire_at));
        due_jobs.sort_by_key(|job| (job.next_fire_at, job.job));
        due_jobs.truncate(to_usize(range.limit));
        Ok(due_jobs)
    }

    async fn dense_instants(&self, homes: &[NodeId], range: DueRange, count_min: u32) -> Result<Vec<DenseInstant>> {
        let due_jobs = self.due_jobs(homes, DueRange { limit: u32::MAX, ..range }).await?;
        let mut counts: BTreeMap<(Timestamp, NodeId), u64> = BTreeMap::new();
        for job in due_jobs {
            *counts.entry((job.next_fire_at, job.home)).or_default() += 1;
        }
        counts.retain(|_, count| *count >= u64::from(count_min));
        Ok(merge_by_instant(counts.into_iter().map(|((at, _), job_count)| DenseInstant { at, job_count }), range.limit))
    }

    async fn unsent_runs_of_job(
        &self,
        token: LeaseToken,
        job: JobId,
        after: UnsentPlace,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let mut unsent_runs = self.state().open_runs_where(|run| {
            (run.node, run.node_epoch, run.job) == (token.node, token.epoch, job)
                && run.status == RunStatus::Pending
                && UnsentPlace::of(run) > after
        });
        unsent_runs.sort_by_key(UnsentPlace::of);
        unsent_runs.truncate(to_usize(limit));
        Ok(unsent_runs)
    }

    async fn jobs_with_rows_from(&self, jobs: &[(JobId, Timestamp)]) -> Result<Vec<JobId>> {
        let state = self.state();
        let has_row =
            |(job, from): &&(JobId, Timestamp)| state.runs.values().any(|run| run.job == *job && run.fire_at >= *from);
        Ok(jobs.iter().filter(has_row).map(|(job, _)| *job).collect())
    }

    async fn fires_with_rows(
        &self,
        job: JobId,
        range: (Timestamp, Timestamp),
        limit: u32,
    ) -> Result<Vec<(Timestamp, Timestamp)>> {
        let mut fires = self.state().fires_with_rows(job, range);
        fires.truncate(to_usize(limit));
        Ok(fires)
    }

    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<ClaimResult> {
        let now = self.now();
        let mut state = self.state();
        let mut result = ClaimResult::default();
        if !state.holds(token, now) && !mutant::on(Mutant::ClaimWithoutLease) {
            return Ok(ClaimResult { is_refused: true, ..result });
        }
        for job in jobs {
            if state.due_job(job.expected_row.job) != Some(job.expected_row) && !mutant::on(Mutant::NoUniqueKey) {
                continue;
            }
            let home = state.nodes.get(&job.expected_row.home).filter(|stored_node| stored_node.node.id != token.node);
            // A dead home keeps the job until it is fenced, because its node can still renew the lease. After that, its open runs must be
            // adopted first.
            let is_run_of_home = |run: &Run, home: LeaseToken| {
                run.job == job.expected_row.job && run.node == home.node && run.node_epoch <= home.epoch
            };
            let keeps_jobs = |stored_node: &StoredNode| {
                !stored_node.node.is_fenced
                    || !state.open_runs_where(|run| is_run_of_home(run, stored_node.lease_of_home())).is_empty()
            };
            if home.is_some_and(keeps_jobs) && !mutant::on(Mutant::NoUniqueKey) {
                continue;
            }
            let Some(due) = state.due.get_mut(&job.expected_row.job) else { continue };
            (due.next_fire_at, due.is_over, due.awaited_run) =
                (job.next_fire_at, job.next_fire_at.is_none(), job.awaited_run);
            (due.held_from, due.recent_fires) = (job.held_from, job.recent_fires);
            due.term += i64::from(due.home != token.node);
            due.home = token.node;
            result.jobs.push((job.expected_row.job, due.term));
            for run in job.runs.iter().filter(|_| !mutant::on(Mutant::ClaimWithoutRows)) {
                match state.insert(run.clone()) {
                    true => state.add_message(run.id, now),
                    false => result.existing.push(run.id),
                }
            }
        }
        Ok(result)
    }

    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run> {
        let mut state = self.state();
        let owner = state.owner_of_new_run(token, &run);
        let run = Run { node: owner.node, node_epoch: owner.epoch, ..run };
        if state.insert(run.clone()) {
            return Ok(run);
        }
        let existing_run = state.keys.get(&key(&run)).and_then(|id| state.runs.get(id)).cloned();
        Ok(existing_run.unwrap_or(run))
    }

    async fn request_keyed_run(
        &self,
        token: LeaseToken,
        run: Run,
        if_open: IfOpen,
        _now: Timestamp,
    ) -> Result<KeyedRun> {
        let mut state = self.state();
        let owner = state.owner_of_new_run(token, &run);
        let run = Run { node: owner.node, node_epoch: owner.epoch, ..run };
        let job_and_key = (run.job, run.trigger_key.clone().unwrap_or_default());
        let holder = state.key_holder(&job_and_key).cloned();
        let mut replaced_run = None;
        match holder {
            Some(stored_run) if stored_run.id == run.id => return Ok(KeyedRun::Created(stored_run)),
            Some(open_run) if !open_run.status.is_terminal() => {
                if if_open != IfOpen::Replace {
                    return Ok(KeyedRun::Open(open_run));
                }
                if let Some(stored_run) = state.runs.get_mut(&open_run.id) {
                    ask_to_cancel(stored_run, CancelRequest::LATER_RUN);
                }
                state.cancels.insert(open_run.id);
                replaced_run = Some(open_run.id);
            }
            Some(_) | None => {}
        }
        state.insert(run.clone());
        state.trigger_keys.insert(job_and_key, run.id);
        Ok(match replaced_run {
            Some(replaced_run) => KeyedRun::Replaced(run, replaced_run),
            None => KeyedRun::Created(run),
        })
    }

    async fn request_shards(&self, token: LeaseToken, root: Run, shards: Vec<Run>) -> Result<RequestedShards> {
        let mut state = self.state();
        let owner = state.owner_of_new_run(token, &root);
        if let Some(name) = root.trigger_key.clone() {
            let job_and_key = (root.job, name);
            let holder = state.key_holder(&job_and_key);
            if let Some(open_run) = holder.filter(|holder| holder.id != root.id && !holder.status.is_terminal()) {
                return Ok(RequestedShards::KeyInUse(Box::new(open_run.clone())));
            }
            state.trigger_keys.insert(job_and_key, root.id);
        }
        let rows = std::iter::once(root).chain(shards);
        let rows: Vec<Run> = rows.map(|run| Run { node: owner.node, node_epoch: owner.epoch, ..run }).collect();
        for row in &rows {
            state.insert(row.clone());
        }
        Ok(RequestedShards::Created(rows))
    }
}

impl State {
    fn due_job(&self, job: JobId) -> Option<DueJob> {
        let due = self.due.get(&job)?;
        let next_fire_at = due.next_fire_at?;
        let DueRow { held_from, version, home, term, recent_fires, .. } = *due;
        Some(DueJob { job, next_fire_at, held_from, version, home, term, recent_fires })
    }

    /// The first and the last fire of each row of a job's own schedules whose planned instant is in this range, sorted.
    pub(in crate::mem) fn fires_with_rows(
        &self,
        job: JobId,
        (from, through): (Timestamp, Timestamp),
    ) -> Vec<(Timestamp, Timestamp)> {
        let is_planned = |run: &&Run| run.job == job && run.cause == 0 && run.parent.is_none();
        let is_in_range = |run: &&Run| (from..=through).contains(&run.fire_at);
        let rows = self.runs.values().filter(is_planned).filter(is_in_range);
        let mut fires: Vec<_> = rows.map(|run| (run.fire_at, run.span_end_at.unwrap_or(run.fire_at))).collect();
        fires.sort_unstable();
        fires
    }

    /// The run that has this trigger key of the job, or that had it last.
    fn key_holder(&self, job_and_key: &(JobId, String)) -> Option<&Run> {
        self.trigger_keys.get(job_and_key).and_then(|id| self.runs.get(id))
    }

    fn owner_of_new_run(&mut self, token: LeaseToken, run: &Run) -> LeaseToken {
        let Some(due) = self.due.get_mut(&run.job) else { return token };
        if due.home == token.node {
            return token;
        }
        if let Some(home) = self.nodes.get(&due.home) {
            return home.lease_of_home();
        }
        (due.home, due.term) = (token.node, due.term + 1);
        token
    }
}
