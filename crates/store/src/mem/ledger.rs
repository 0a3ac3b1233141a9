//! Due jobs and runs.

use std::collections::{BTreeSet, HashSet};

use async_trait::async_trait;
use rondel_core::outcome::CancelRequest;
use rondel_core::reason::Detail;
use rondel_core::run::{Attempt, BROADCAST};
use rondel_core::{AppId, JobId, NamespaceId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::{Due, MemStore, State, StoredNode, key, size};
use crate::cluster::HomeMove;
use crate::ledger::{
    ATTEMPT_COUNT_MAX, Adoption, AttemptEnd, CancelAsked, CancelElsewhere, ClaimJob, Claimed, DueJob, DueRange, Ends,
    Finisher, InHand, LimitName, MovedJobs, NotedWait, RunCheck, RunQuery, UnsentRun,
};
use crate::settle::clean_name;
use crate::{LeaseToken, Ledger, Result};

#[async_trait]
impl Ledger for MemStore {
    async fn due_jobs(&self, homes: &[NodeId], range: DueRange) -> Result<Vec<DueJob>> {
        let state = self.state();
        let mut due: Vec<DueJob> = state.due.keys().filter_map(|job| state.due_job(*job)).collect();
        due.retain(|job| homes.contains(&job.home) && (range.from..=range.to).contains(&job.next_fire_at));
        due.sort_by_key(|job| (job.next_fire_at, job.job));
        due.truncate(size(range.limit));
        Ok(due)
    }

    async fn claim(&self, token: LeaseToken, jobs: &[ClaimJob]) -> Result<Claimed> {
        let now = self.now();
        let mut state = self.state();
        let mut claimed = Claimed::default();
        if !state.holds(token, now) && !mutant::on(Mutant::ClaimWithoutLease) {
            return Ok(Claimed { is_refused: true, ..claimed });
        }
        for job in jobs {
            if state.due_job(job.seen.job) != Some(job.seen) && !mutant::on(Mutant::NoUniqueKey) {
                continue;
            }
            let home = state.nodes.get(&job.seen.home).filter(|held| held.node.id != token.node);
            // One whose lease ran out may renew it until somebody has fenced it; and what came in its name since is adopted first.
            let is_in_its_name = |run: &Run, home: LeaseToken| {
                run.job == job.seen.job && (run.node, run.node_epoch) == (home.node, home.epoch)
            };
            let stays = |held: &StoredNode| {
                held.node.is_living(now)
                    || !held.is_fenced()
                    || !state.open_of(|run| is_in_its_name(run, held.lease_of_home())).is_empty()
            };
            if home.is_some_and(stays) && !mutant::on(Mutant::NoUniqueKey) {
                continue;
            }
            let Some(due) = state.due.get_mut(&job.seen.job) else { continue };
            (due.next_fire_at, due.is_over, due.follows) = (job.next_fire_at, job.next_fire_at.is_none(), job.follows);
            due.term += i64::from(due.home != token.node);
            due.home = token.node;
            claimed.jobs.push((job.seen.job, due.term));
            for run in job.runs.iter().filter(|_| !mutant::on(Mutant::ClaimWithoutRows)) {
                match state.insert(run.clone()) {
                    true => state.add_message(run.id, now),
                    false => claimed.existing.push(run.id),
                }
            }
        }
        Ok(claimed)
    }

    async fn request_run(&self, token: LeaseToken, run: Run) -> Result<Run> {
        let mut state = self.state();
        let owner = state.home_of(token, &run);
        let run = Run { node: owner.node, node_epoch: owner.epoch, ..run };
        if state.insert(run.clone()) {
            return Ok(run);
        }
        let existing = state.keys.get(&key(&run)).and_then(|id| state.runs.get(id)).cloned();
        Ok(existing.unwrap_or(run))
    }

    async fn take_waiting(&self, token: LeaseToken, until: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let mut state = self.state();
        let mut waiting = state.open_of(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == RunStatus::Waiting
                && run.due_at <= until
        });
        waiting.truncate(size(limit));
        for run in &mut waiting {
            run.status = RunStatus::Pending;
            state.runs.insert(run.id, run.clone());
        }
        Ok(waiting)
    }

    async fn overdue(&self, token: LeaseToken, before: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let mut overdue = self.state().open_of(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == RunStatus::Pending
                && run.due_at < before
        });
        overdue.truncate(size(limit));
        Ok(overdue)
    }

    async fn running(&self, token: LeaseToken, limit: u32) -> Result<Vec<Run>> {
        let mut running = self
            .state()
            .open_of(|run| run.status == RunStatus::Running && (run.node, run.node_epoch) == (token.node, token.epoch));
        running.truncate(size(limit));
        Ok(running)
    }

    async fn adopt(&self, token: LeaseToken, dead: &[NodeId], enough: u32) -> Result<Adoption> {
        let now = self.now();
        let mut state = self.state();
        if !state.holds(token, now) {
            return Ok(Adoption { is_refused: true, ..Adoption::default() });
        }
        Ok(state.adopt(token, dead, enough, now))
    }

    async fn check_runs(&self, ids: &[RunId]) -> Result<Vec<RunCheck>> {
        let state = self.state();
        let check = |run: &Run| RunCheck {
            id: run.id,
            status: run.status,
            attempt: run.attempt,
            job_version: run.job_version,
            owner: LeaseToken { node: run.node, epoch: run.node_epoch },
            cancel_by: run.cancel_by.clone(),
            term: state.due.get(&run.job).map_or(0, |due| due.term),
        };
        Ok(ids.iter().filter_map(|id| state.runs.get(id)).map(check).collect())
    }

    async fn runs(&self, ids: &[RunId]) -> Result<Vec<Run>> {
        let state = self.state();
        Ok(ids.iter().filter_map(|id| state.runs.get(id)).cloned().collect())
    }

    async fn mark(&self, token: LeaseToken, runs: &[InHand]) -> Result<Vec<RunId>> {
        let mut state = self.state();
        let mut won = Vec::new();
        for hand in runs {
            if let Some(run) = state.pending(token, hand.run, hand.attempt).filter(|run| run.marked_at.is_none()) {
                won.push(hand.run);
                if mutant::on(Mutant::NoMark) {
                    continue;
                }
                run.executor = Some(clean_name(&hand.executor).into_owned());
                (run.executor_id, run.marked_at) = (Some(hand.executor_id), Some(hand.at));
            }
        }
        Ok(won)
    }

    async fn unmark(&self, token: LeaseToken, runs: &[(RunId, i32)]) -> Result<()> {
        let mut state = self.state();
        for (id, attempt) in runs {
            let is_held = |run: &&mut Run| matches!(run.status, RunStatus::Pending | RunStatus::Running);
            let is_this = |run: &&mut Run| run.attempt == *attempt && run.executor_id.is_some();
            if let Some(run) = state.own(token, *id).filter(is_held).filter(is_this) {
                (run.executor, run.executor_id, run.marked_at) = (None, None, None);
                (run.status, run.started_at) = (RunStatus::Pending, None);
            }
        }
        Ok(())
    }

    async fn shelve(&self, token: LeaseToken, in_hand: &[RunId]) -> Result<u64> {
        let mut state = self.state();
        let is_unsent = |run: &Run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status == RunStatus::Pending
                && !in_hand.contains(&run.id)
        };
        let unsent = state.open_of(is_unsent);
        let count = unsent.len();
        for mut run in unsent {
            if run.marked_at.take().is_some() {
                (run.executor, run.executor_id) = (None, None);
            }
            run.status = RunStatus::Waiting;
            state.runs.insert(run.id, run);
        }
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    async fn note_running(&self, token: LeaseToken, runs: &[InHand]) -> Result<()> {
        let mut state = self.state();
        for hand in runs {
            if let Some(run) = state.pending(token, hand.run, hand.attempt) {
                run.status = RunStatus::Running;
                run.executor = Some(clean_name(&hand.executor).into_owned());
                (run.executor_id, run.started_at) = (Some(hand.executor_id), Some(hand.at));
            }
        }
        Ok(())
    }

    async fn note_waits(&self, token: LeaseToken, waits: &[NotedWait]) -> Result<()> {
        let mut state = self.state();
        for wait in waits {
            if let Some(run) = state.pending(token, wait.run, wait.attempt) {
                run.detail = wait.detail.to_json().map(|text| Box::new(Detail::from_json(&text)));
            }
        }
        Ok(())
    }

    async fn expand(&self, token: LeaseToken, run: RunId, shards: &[Run]) -> Result<bool> {
        let now = self.now();
        let mut state = self.state();
        let total = i32::try_from(shards.len()).unwrap_or(i32::MAX);
        let Some(broadcast) = state.own(token, run) else { return Ok(false) };
        let is_whole = broadcast.shard_index == BROADCAST && broadcast.shard_total.is_none();
        let may_be = is_whole && broadcast.status == RunStatus::Pending || mutant::on(Mutant::ExpandTwice);
        if !may_be || total == 0 {
            return Ok(false);
        }
        (broadcast.shard_total, broadcast.open_shards) = (Some(total), Some(total));
        (broadcast.status, broadcast.started_at) = (RunStatus::Running, Some(now));
        for shard in shards {
            state.insert(shard.clone());
        }
        Ok(true)
    }

    async fn finish(&self, finisher: Finisher<'_>, batch: &[AttemptEnd]) -> Result<Ends> {
        let now = self.now();
        let mut state = self.state();
        let answers = batch.iter().map(|finish| state.finish(finish, now)).collect();
        let mut is_due = false;
        for finish in batch.iter().filter(|finish| finish.policy.delays) {
            is_due |= state.delay(finish.job, now);
        }
        let mut ends = Ends { answers, is_due, ..Ends::default() };
        if !mutant::on(Mutant::NoFollowers) {
            state.follow(finisher, &mut ends, now);
        }
        Ok(ends)
    }

    async fn ask_cancel(&self, run: RunId, request: CancelRequest<'_>, _now: Timestamp) -> Result<CancelAsked> {
        let mut state = self.state();
        let Some(found) = state.runs.get_mut(&run) else { return Ok(CancelAsked::NotFound) };
        if found.status.is_terminal() {
            return Ok(CancelAsked::Over(found.status));
        }
        ask_to_cancel(found, request);
        let found = found.clone();
        state.cancels.insert(run);
        Ok(CancelAsked::Noted(Box::new(found)))
    }

    async fn ask_cancels(&self, runs: &[RunId], request: CancelRequest<'_>, _now: Timestamp) -> Result<u64> {
        let mut state = self.state();
        let mut asked_count = 0;
        for id in runs {
            if let Some(run) = state.runs.get_mut(id).filter(|run| !run.status.is_terminal()) {
                ask_to_cancel(run, request);
                state.cancels.insert(*id);
                asked_count += 1;
            }
        }
        Ok(asked_count)
    }

    async fn open_runs(
        &self,
        job: JobId,
        fire_at: Option<Timestamp>,
        app: Option<AppId>,
        limit: u32,
    ) -> Result<Vec<Run>> {
        let is_asked_for = |run: &Run| {
            run.job == job && fire_at.is_none_or(|at| run.fire_at == at) && app.is_none_or(|app| run.app == app)
        };
        let mut open = self.state().open_of(|run| is_asked_for(run) && run.cancel_by.is_none());
        open.sort_by_key(|run| run.id);
        open.truncate(size(limit));
        Ok(open)
    }

    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        let mut state = self.state();
        Ok(limits.iter().map(|limit| *state.limit_homes.entry(limit.clone()).or_insert(token.node)).collect())
    }

    async fn hand_over(&self, token: LeaseToken, runs: &[RunId], to: NodeId) -> Result<Vec<RunId>> {
        let now = self.now();
        let mut state = self.state();
        let Some(to) = state.nodes.get(&to).filter(|held| held.node.takes_jobs(now)).map(|held| held.node.token())
        else {
            return Ok(Vec::new());
        };
        let jobs: BTreeSet<JobId> = runs.iter().filter_map(|id| Some(state.runs.get(id)?.job)).collect();
        let mut given = Vec::new();
        for job in jobs {
            given.extend(state.give_job(token, job, runs, to));
        }
        given.sort_unstable();
        Ok(given)
    }

    async fn move_jobs(&self, token: LeaseToken, moves: &[HomeMove], not_before: Timestamp) -> Result<MovedJobs> {
        let now = self.now();
        let mut state = self.state();
        let mut moved = MovedJobs::default();
        if !state.holds(token, now) {
            return Ok(moved);
        }
        for one in moves {
            if let Some(runs) = state.move_job(token, one, not_before, now) {
                moved.jobs.push(one.job);
                moved.runs.extend(runs);
            }
        }
        moved.jobs.sort_unstable();
        moved.runs.sort_unstable();
        Ok(moved)
    }

    async fn unsent(&self, token: LeaseToken, after: RunId, limit: u32) -> Result<Vec<UnsentRun>> {
        let mut unsent = self.state().open_of(|run| {
            (run.node, run.node_epoch) == (token.node, token.epoch)
                && run.status != RunStatus::Running
                && run.marked_at.is_none()
                && run.id > after
        });
        unsent.sort_by_key(|run| run.id);
        unsent.truncate(size(limit));
        Ok(unsent.iter().map(|run| UnsentRun { run: run.id, job: run.job, due_at: run.due_at }).collect())
    }

    async fn jobs_at(&self, home: NodeId, after: JobId, limit: u32) -> Result<Vec<JobId>> {
        let state = self.state();
        let mut jobs: Vec<JobId> =
            state.due.iter().filter(|(job, due)| **job > after && due.home == home).map(|(job, _)| *job).collect();
        jobs.sort_unstable();
        jobs.truncate(size(limit));
        Ok(jobs)
    }

    async fn count_jobs_at(&self, home: NodeId) -> Result<u64> {
        let state = self.state();
        let count = state.due.values().filter(|due| due.home == home && due.next_fire_at.is_some()).count();
        Ok(u64::try_from(count).unwrap_or(u64::MAX))
    }

    async fn free_jobs(&self, token: LeaseToken, dead: NodeId, limit: u32) -> Result<u64> {
        let now = self.now();
        let mut state = self.state();
        let is_dead = state.nodes.get(&dead).is_some_and(|held| !held.node.is_living(now));
        if !is_dead || !state.holds(token, now) {
            return Ok(0);
        }
        let busy: HashSet<JobId> = state.open_of(|run| run.node == dead).iter().map(|run| run.job).collect();
        let is_idle =
            |(job, due): &(&JobId, &mut Due)| due.home == dead && due.next_fire_at.is_some() && !busy.contains(*job);
        let mut count = 0;
        for (_, due) in state.due.iter_mut().filter(is_idle).take(size(limit)) {
            (due.home, due.term) = (NodeId::new(0), due.term + 1);
            count += 1;
        }
        Ok(count)
    }

    async fn cancels(&self, token: LeaseToken) -> Result<Vec<(RunId, String)>> {
        let mut state = self.state();
        let asked: Vec<RunId> = state.cancels.iter().copied().collect();
        let who = |id: RunId| state.own(token, id)?.cancel_by.clone().map(|by| (id, by));
        Ok(asked.into_iter().filter_map(who).collect())
    }

    async fn cancels_elsewhere(&self, token: LeaseToken, limit: u32) -> Result<Vec<CancelElsewhere>> {
        let state = self.state();
        let is_elsewhere =
            |run: &&Run| run.status == RunStatus::Running && (run.node, run.node_epoch) != (token.node, token.epoch);
        let cancel = |run: &Run| {
            let (executor, by) = (run.executor_id?, run.cancel_by.clone()?);
            Some(CancelElsewhere { run: run.id, attempt: run.attempt, executor, by })
        };
        let asked = state.cancels.iter().filter_map(|id| state.runs.get(id)).filter(is_elsewhere);
        Ok(asked.filter_map(cancel).take(size(limit)).collect())
    }

    async fn list_runs(&self, namespace: NamespaceId, query: &RunQuery) -> Result<Vec<Run>> {
        Ok(self.state().page(namespace, query))
    }

    async fn runs_below(&self, parents: &[RunId], limit: u32) -> Result<Vec<Run>> {
        let follows = |run: &&Run| run.parent.is_some_and(|parent| parents.contains(&parent));
        Ok(self.state().runs.values().filter(follows).take(size(limit)).cloned().collect())
    }

    async fn planned_rows(&self, job: JobId, from: Timestamp, to: Timestamp, limit: u32) -> Result<Vec<Run>> {
        let state = self.state();
        let is_planned = |run: &&Run| run.job == job && run.cause == 0 && run.parent.is_none() && run.fire_at <= to;
        let mut planned: Vec<Run> = state.runs.values().filter(is_planned).cloned().collect();
        planned.sort_by_key(|run| (run.fire_at, run.shard_index));
        let first = planned.iter().position(|run| run.fire_at >= from).unwrap_or(planned.len());
        let reaches = |run: &Run| run.span_end_at.is_some_and(|end| end >= from);
        let before = first.checked_sub(1).filter(|before| reaches(&planned[*before]));
        planned.drain(..before.unwrap_or(first));
        planned.truncate(size(limit));
        Ok(planned)
    }

    async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>> {
        let state = self.state();
        let newest = state.attempts.range((run, i32::MIN)..=(run, i32::MAX)).rev().take(size(ATTEMPT_COUNT_MAX));
        let mut attempts: Vec<Attempt> = newest.map(|(_, attempt)| attempt.clone()).collect();
        attempts.reverse();
        Ok(attempts)
    }
}

impl State {
    fn due_job(&self, job: JobId) -> Option<DueJob> {
        let due = self.due.get(&job)?;
        let next_fire_at = due.next_fire_at?;
        Some(DueJob { job, next_fire_at, version: due.version, home: due.home, term: due.term })
    }

    /// Open runs that match, the earliest first.
    pub(super) fn open_of(&self, matches: impl Fn(&Run) -> bool) -> Vec<Run> {
        let open = self.runs.values().filter(|run| !run.status.is_terminal() && matches(run));
        let mut open: Vec<Run> = open.cloned().collect();
        open.sort_by_key(|run| (run.due_at, run.id));
        open
    }

    fn pending(&mut self, token: LeaseToken, id: RunId, attempt: i32) -> Option<&mut Run> {
        self.own(token, id).filter(|run| run.status == RunStatus::Pending && run.attempt == attempt)
    }

    fn page(&self, namespace: NamespaceId, query: &RunQuery) -> Vec<Run> {
        let after = query.after.and_then(|id| self.runs.get(&id));
        let of_job = query.job.is_some() && query.parent.is_none();
        if of_job && query.after.is_some() && after.is_none() {
            return Vec::new();
        }
        let is_after = |run: &Run| match (query.after, after) {
            (Some(_), Some(after)) if of_job => key(run) < key(after),
            (Some(after), _) => run.id < after,
            (None, _) => true,
        };
        let parent = query.parent.and_then(|id| self.runs.get(&id));
        let is_shard = |run: &Run, parent: &Run| {
            run.parent == Some(parent.id)
                && run.shard_index != BROADCAST
                && (run.job, run.fire_at, run.cause) == (parent.job, parent.fire_at, parent.cause)
        };
        let mut page: Vec<&Run> = self.runs.values().collect();
        page.retain(|run| {
            run.namespace == namespace
                && query.job.is_none_or(|job| run.job == job)
                && (query.parent.is_some() || query.within.as_ref().is_none_or(|within| within.contains(&run.app)))
                && (query.statuses.is_empty() || query.statuses.contains(&run.status))
                && (query.parent.is_none() || parent.is_some_and(|parent| is_shard(run, parent)))
                && is_after(run)
        });
        match of_job {
            true => page.sort_by_key(|run| std::cmp::Reverse(key(run))),
            false => page.sort_by_key(|run| std::cmp::Reverse(run.id)),
        }
        page.into_iter().take(size(query.limit)).cloned().collect()
    }
}

/// Who asks first gives the reason.
fn ask_to_cancel(run: &mut Run, request: CancelRequest<'_>) {
    if run.cancel_by.is_none() {
        (run.cancel_by, run.cancel_reason) = (Some(clean_name(request.by).into_owned()), Some(request.reason));
    }
}
