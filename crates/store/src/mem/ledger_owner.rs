//! Which node owns jobs and their runs: homes, adoption, hand-over and moves.

use rondel_core::{JobId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use super::{State, size};
use crate::LeaseToken;
use crate::cluster::HomeMove;
use crate::ledger::{Adopted, Adoption, may_have_been_sent, whole_jobs};

impl State {
    pub(super) fn home_of(&mut self, token: LeaseToken, run: &Run) -> LeaseToken {
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

    pub(super) fn adopt(&mut self, token: LeaseToken, dead: &[NodeId], mut enough: u32, now: Timestamp) -> Adoption {
        let mut over = Vec::new();
        for node in dead.iter().filter(|node| **node != token.node) {
            let Some(held) = self
                .nodes
                .get_mut(node)
                .filter(|held| !held.node.is_living(now) || mutant::on(Mutant::AdoptWithoutEpoch))
            else {
                continue;
            };
            if mutant::on(Mutant::NoFenceRow) {
                over.push((*node, held.node.epoch + 1, held.node.lease_until));
                continue;
            }
            let ended_at = held.node.lease_until.max(held.prior_lease_until);
            if held.prior_lease_until > held.node.lease_until {
                // The fence leaves no word of the later end: what is judged by it is all taken over at once.
                enough = u32::MAX;
            }
            let lease = held.node.token();
            if !held.is_fenced() {
                held.node.epoch += 1;
                held.prior_lease_until = held.node.lease_until;
            }
            over.push((*node, held.node.epoch, ended_at));
            self.end_sessions(lease, ended_at);
            self.limit_homes.values_mut().filter(|home| **home == *node).for_each(|home| *home = token.node);
        }
        if let Some(own) = self.nodes.get(&token.node) {
            over.push((token.node, token.epoch, own.prior_lease_until));
        }
        let lease_of = |run: &Run| over.iter().find(|(node, epoch, _)| *node == run.node && run.node_epoch < *epoch);
        let mut orphans = self.open_of(|run| lease_of(run).is_some());
        if mutant::on(Mutant::AdoptInParts) {
            orphans.truncate(size(enough));
        }
        let orphans = whole_jobs(orphans, |run| run.job, enough);
        let mut adopted = Vec::with_capacity(orphans.len());
        for run in orphans {
            let Some((_, _, ended_at)) = lease_of(&run) else { continue };
            let from = LeaseToken { node: run.node, epoch: run.node_epoch };
            if let Some(due) = self.due.get_mut(&run.job)
                && due.home != token.node
                && over.iter().any(|(node, ..)| *node == due.home)
            {
                (due.home, due.term) = (token.node, due.term + 1);
            }
            let status = if may_have_been_sent(&run, *ended_at) && !mutant::on(Mutant::DueMeansUnsent) {
                RunStatus::Running
            } else {
                run.status
            };
            let run = Run { status, node: token.node, node_epoch: token.epoch, ..run };
            self.runs.insert(run.id, run.clone());
            adopted.push(Adopted { run, from, from_ended_at: *ended_at });
        }
        let fenced = over.into_iter().map(|(node, ..)| node).filter(|node| *node != token.node).collect();
        Adoption { runs: adopted, fenced, is_refused: false }
    }

    /// The runs that went.
    pub(super) fn give_job(&mut self, token: LeaseToken, job: JobId, named: &[RunId], to: LeaseToken) -> Vec<RunId> {
        let home = self.due.get(&job).map(|due| due.home);
        let open = self.open_of(|run| run.node == token.node && run.job == job);
        let is_unsent =
            |run: &Run| run.status != RunStatus::Running && run.marked_at.is_none() && run.node_epoch == token.epoch;
        let is_named = |run: &Run| named.contains(&run.id);
        let going: Vec<RunId> = if home == Some(token.node) {
            let may_go = |run: &Run| is_named(run) && is_unsent(run) && run.shard_total.is_none_or(|total| total <= 1);
            if !open.iter().all(may_go) {
                return Vec::new();
            }
            if let Some(due) = self.due.get_mut(&job) {
                (due.home, due.term) = (to.node, due.term + 1);
            }
            open.iter().map(|run| run.id).collect()
        } else if home == Some(to.node) {
            let may_go = |run: &&Run| is_named(run) && is_unsent(run) && run.status == RunStatus::Pending;
            open.iter().filter(may_go).map(|run| run.id).collect()
        } else {
            return Vec::new();
        };
        for id in &going {
            if let Some(run) = self.runs.get_mut(id) {
                (run.node, run.node_epoch, run.status) = (to.node, to.epoch, RunStatus::Waiting);
            }
        }
        going
    }

    /// The runs that go with the job; `None` where it stays.
    pub(super) fn move_job(
        &mut self,
        token: LeaseToken,
        one: &HomeMove,
        not_before: Timestamp,
        now: Timestamp,
    ) -> Option<Vec<RunId>> {
        let to = self.nodes.get(&one.to).filter(|held| held.node.takes_jobs(now))?.node.token();
        self.due.get(&one.job).filter(|due| due.home == token.node)?;
        let open = self.open_of(|run| run.node == token.node && run.job == one.job);
        let may_go = |run: &Run| {
            one.runs.contains(&run.id)
                && run.status != RunStatus::Running
                && run.marked_at.is_none()
                && run.attempt == 1
                && run.shard_total.is_none_or(|total| total <= 1)
                && run.node_epoch == token.epoch
                && run.due_at >= not_before
        };
        if !open.iter().all(may_go) {
            return None;
        }
        for run in &open {
            let run = self.runs.get_mut(&run.id)?;
            (run.node, run.node_epoch, run.status) = (to.node, to.epoch, RunStatus::Waiting);
        }
        let due = self.due.get_mut(&one.job)?;
        (due.home, due.term) = (to.node, due.term + 1);
        Some(open.iter().map(|run| run.id).collect())
    }
}
