//! Jobs that move from one home to another, with their unsent open runs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use async_trait::async_trait;
use rondel_core::homes::DECAY_WHOLE;
use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};

use crate::cluster::HomeMove;
use crate::ledger::{HomeLoad, JobAtHome, MovedJobs, UnsentRun};
use crate::mem::{DueRow, MemStore, State, to_usize};
use crate::settle::note_unsent;
use crate::{LeaseToken, Move, Result};

#[async_trait]
impl Move for MemStore {
    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>> {
        let now = self.now();
        let mut state = self.state();
        let Some(to) = state
            .nodes
            .get(&to)
            .filter(|stored_node| stored_node.node.takes_jobs(now))
            .map(|stored_node| stored_node.node.token())
        else {
            return Ok(Vec::new());
        };
        let jobs: BTreeSet<JobId> = runs.iter().filter_map(|id| Some(state.runs.get(id)?.job)).collect();
        let mut handed_over = Vec::new();
        for job in jobs {
            handed_over.extend(state.hand_over_job(token, (job, runs), to, now));
        }
        handed_over.sort_unstable();
        Ok(handed_over)
    }

    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs> {
        let now = self.now();
        let mut state = self.state();
        let mut result = MovedJobs::default();
        if !state.holds(token, now) {
            return Ok(result);
        }
        for job_move in moves {
            if let Some(runs) = state.move_job(token, job_move, not_before, now) {
                result.jobs.push(job_move.job);
                result.runs.extend(runs);
            }
        }
        result.jobs.sort_unstable();
        result.runs.sort_unstable();
        Ok(result)
    }

    async fn unsent_runs(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>> {
        let mut unsent_runs = self.state().unsent_runs(token, |run| run.id > after);
        unsent_runs.truncate(to_usize(limit));
        Ok(unsent_runs)
    }

    async fn unsent_runs_of_jobs(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<UnsentRun>> {
        Ok(self.state().unsent_runs(token, |run| jobs.contains(&run.job)))
    }

    async fn jobs_of_home(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobAtHome>> {
        let state = self.state();
        let at_home = state.due.iter().filter(|(job, due)| **job > after && due.home == home);
        let mut jobs: Vec<JobAtHome> =
            at_home.map(|(job, due)| JobAtHome { job: *job, recent_fires: due.recent_fires }).collect();
        jobs.sort_unstable_by_key(|job| job.job);
        jobs.truncate(to_usize(limit));
        Ok(jobs)
    }

    async fn homes_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<(JobId, NodeId)>> {
        let state = self.state();
        let mut homes: Vec<(JobId, NodeId)> =
            jobs.iter().filter_map(|job| Some((*job, state.due.get(job)?.home))).collect();
        homes.sort_unstable();
        Ok(homes)
    }

    async fn home_loads(&self, homes: &[NodeId], now: Timestamp) -> Result<Vec<HomeLoad>> {
        let state = self.state();
        let mut loads: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
        for due in state.due.values().filter(|due| homes.contains(&due.home) && due.next_fire_at.is_some()) {
            let load = loads.entry(due.home).or_default();
            *load = (load.0 + 1, load.1 + due.recent_fires.stepped_at(now));
        }
        let load = |(node, (job_count, stepped))| HomeLoad { node, job_count, recent_fires: stepped / DECAY_WHOLE };
        Ok(loads.into_iter().map(load).collect())
    }

    async fn free_jobs(&self, token: LeaseToken, dead_node: NodeId, limit: u32) -> Result<u64> {
        let now = self.now();
        let mut state = self.state();
        let is_dead = state.nodes.get(&dead_node).is_some_and(|stored_node| !stored_node.node.is_living(now));
        if !is_dead || !state.holds(token, now) {
            return Ok(0);
        }
        let busy_jobs: HashSet<JobId> =
            state.open_runs_where(|run| run.node == dead_node).iter().map(|run| run.job).collect();
        let is_idle = |(job, due): &(&JobId, &mut DueRow)| {
            due.home == dead_node && due.next_fire_at.is_some() && !busy_jobs.contains(*job)
        };
        let mut count = 0;
        for (_, due) in state.due.iter_mut().filter(is_idle).take(to_usize(limit)) {
            (due.home, due.term) = (NodeId::new(0), due.term + 1);
            count += 1;
        }
        Ok(count)
    }
}

impl State {
    /// The open unsent runs of a lease for which `is_wanted` is true, sorted by id.
    fn unsent_runs(&self, token: LeaseToken, is_wanted: impl Fn(&Run) -> bool) -> Vec<UnsentRun> {
        let mut unsent_runs = self.open_runs_where(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status != RunStatus::Running
                && run.marked_at.is_none()
                && is_wanted(run)
        });
        unsent_runs.sort_by_key(|run| run.id);
        unsent_runs.iter().map(|run| UnsentRun { run: run.id, job: run.job, due_at: run.due_at }).collect()
    }

    /// Hands over these runs of a job. Returns those that moved.
    fn hand_over_job(
        &mut self,
        token: LeaseToken,
        (job, named_runs): (JobId, &[RunId]),
        to: LeaseToken,
        now: Timestamp,
    ) -> Vec<RunId> {
        let home = self.due.get(&job).map(|due| due.home);
        let open_runs = self.open_runs_where(|run| run.node == token.node && run.job == job);
        let is_unsent =
            |run: &Run| run.status != RunStatus::Running && run.marked_at.is_none() && run.node_epoch == token.epoch;
        let is_named = |run: &Run| named_runs.contains(&run.id);
        let moving_runs: Vec<RunId> = if home == Some(token.node) {
            let may_move =
                |run: &Run| is_named(run) && is_unsent(run) && run.shard_total.is_none_or(|total| total <= 1);
            if !open_runs.iter().all(may_move) {
                return Vec::new();
            }
            if let Some(due) = self.due.get_mut(&job) {
                (due.home, due.term) = (to.node, due.term + 1);
            }
            open_runs.iter().map(|run| run.id).collect()
        } else if home == Some(to.node) {
            let may_move = |run: &&Run| is_named(run) && is_unsent(run) && run.status == RunStatus::Pending;
            open_runs.iter().filter(may_move).map(|run| run.id).collect()
        } else {
            return Vec::new();
        };
        for id in &moving_runs {
            if let Some(run) = self.runs.get_mut(id) {
                (run.node, run.node_epoch, run.status) = (to.node, to.epoch, RunStatus::Waiting);
                note_unsent(run, now);
            }
        }
        moving_runs
    }

    /// The runs that move with the job; `None` if the job stays.
    fn move_job(
        &mut self,
        token: LeaseToken,
        job_move: &HomeMove,
        not_before: Timestamp,
        now: Timestamp,
    ) -> Option<Vec<RunId>> {
        let to = self.nodes.get(&job_move.to).filter(|stored_node| stored_node.node.takes_jobs(now))?.node.token();
        self.due.get(&job_move.job).filter(|due| due.home == token.node)?;
        let open_runs = self.open_runs_where(|run| run.node == token.node && run.job == job_move.job);
        let may_move = |run: &Run| {
            job_move.runs.contains(&run.id)
                && run.status != RunStatus::Running
                && run.marked_at.is_none()
                && run.attempt == 1
                && run.shard_total.is_none_or(|total| total <= 1)
                && run.node_epoch == token.epoch
                && run.due_at >= not_before
        };
        if !open_runs.iter().all(may_move) {
            return None;
        }
        for run in &open_runs {
            let run = self.runs.get_mut(&run.id)?;
            (run.node, run.node_epoch, run.status) = (to.node, to.epoch, RunStatus::Waiting);
            note_unsent(run, now);
        }
        let due = self.due.get_mut(&job_move.job)?;
        (due.home, due.term) = (to.node, due.term + 1);
        Some(open_runs.iter().map(|run| run.id).collect())
    }
}
