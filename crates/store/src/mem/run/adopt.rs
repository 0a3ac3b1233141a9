//! Adoption of the open runs of leases that have ended.

use async_trait::async_trait;
use rondel_core::{JobId, NodeId, Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::ledger::{self, Adopted, Adoption, DeadNode, OrphanedJobs, fewest_first};
use crate::mem::{MemStore, State};
use crate::streams::LastSessions;
use crate::{Adopt, LeaseToken, Result};

/// Leases of a node that have ended: the node, the epoch below which all its leases have ended, and when the last of them ended.
type EndedLeases = (NodeId, i64, Timestamp);

#[async_trait]
impl Adopt for MemStore {
    async fn orphaned_jobs(&self, token: LeaseToken, dead_nodes: &[DeadNode], limit: u32) -> Result<OrphanedJobs> {
        let now = self.now();
        let mut state = self.state();
        if !state.holds(token, now) {
            return Ok(OrphanedJobs { is_refused: true, ..OrphanedJobs::default() });
        }
        let ended_leases = state.fence_nodes(token, dead_nodes, now);
        let jobs = fewest_first(state.orphans(&ended_leases, |_| true).iter().map(|run| (run.job, 1)), limit);
        let fenced_nodes = ended_leases.into_iter().map(|(node, ..)| node).filter(|node| *node != token.node).collect();
        Ok(OrphanedJobs { jobs, fenced: fenced_nodes, is_refused: false })
    }

    async fn jobs_open_under_earlier_leases(&self, token: LeaseToken, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let is_of_earlier_lease =
            |run: &Run| run.node == token.node && run.node_epoch < token.epoch && jobs.contains(&run.job);
        let mut jobs: Vec<JobId> =
            self.state().open_runs_where(is_of_earlier_lease).iter().map(|run| run.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        Ok(jobs)
    }

    async fn adopt(&self, token: LeaseToken, dead_nodes: &[DeadNode], jobs: &[JobId]) -> Result<Adoption> {
        let now = self.now();
        let mut state = self.state();
        if !state.holds(token, now) {
            return Ok(Adoption { is_refused: true, ..Adoption::default() });
        }
        let ended_leases = state.fence_nodes(token, dead_nodes, now);
        Ok(Adoption { runs: state.adopt(token, &ended_leases, jobs), is_refused: false })
    }
}

impl State {
    /// Fences the dead nodes, except nodes that are left to another fencer, and takes over the limits of the fenced nodes. Returns the
    /// leases that have ended: earlier leases of this node, and all leases of the fenced nodes.
    fn fence_nodes(&mut self, token: LeaseToken, dead_nodes: &[DeadNode], now: Timestamp) -> Vec<EndedLeases> {
        let mut ended_leases = Vec::new();
        let is_left_to_fencer = |dead_node: &DeadNode| {
            let fenced_by = self.nodes.get(&dead_node.id).and_then(|stored_node| stored_node.node.fenced_by);
            let is_living = |id| {
                let stored_node = self.nodes.get(&id);
                dead_nodes.iter().any(|node| node.id == id)
                    && stored_node.is_some_and(|stored_node| stored_node.node.is_living(now))
            };
            dead_node.is_left_to_fencer(token.node, fenced_by, is_living)
        };
        let ids: Vec<NodeId> = dead_nodes.iter().filter(|node| !is_left_to_fencer(node)).map(|node| node.id).collect();
        for node in ids.iter().filter(|id| **id != token.node) {
            let Some(dead_node) = self
                .nodes
                .get_mut(node)
                .filter(|stored_node| !stored_node.node.is_living(now) || mutant::on(Mutant::AdoptWithoutEpoch))
            else {
                continue;
            };
            if mutant::on(Mutant::NoFenceRow) {
                ended_leases.push((*node, dead_node.node.epoch + 1, dead_node.node.lease_until));
                continue;
            }
            let lease = dead_node.node.token();
            if !dead_node.node.is_fenced {
                dead_node.node.epoch += 1;
                dead_node.node.is_fenced = true;
                dead_node.node.fenced_by = Some(token.node);
                dead_node.ended_at =
                    dead_node.node.lease_until.max(dead_node.prior_lease_until).max(dead_node.ended_at);
                dead_node.prior_lease_until = dead_node.node.lease_until;
            }
            let ended_at = dead_node.node.lease_until.max(dead_node.ended_at);
            ended_leases.push((*node, dead_node.node.epoch, ended_at));
            self.end_sessions(lease, ended_at);
            self.limit_homes.values_mut().filter(|home| **home == *node).for_each(|home| *home = token.node);
        }
        if let Some(own_node) = self.nodes.get(&token.node) {
            ended_leases.push((token.node, token.epoch, own_node.prior_lease_until.max(own_node.ended_at)));
        }
        ended_leases
    }

    fn orphans(&self, ended_leases: &[EndedLeases], is_wanted: impl Fn(&Run) -> bool) -> Vec<Run> {
        self.open_runs_where(|run| lease_of(run, ended_leases).is_some() && is_wanted(run))
    }

    fn adopt(&mut self, token: LeaseToken, ended_leases: &[EndedLeases], jobs: &[JobId]) -> Vec<Adopted> {
        let mut orphans = self.orphans(ended_leases, |run| jobs.contains(&run.job));
        if mutant::on(Mutant::AdoptInParts) {
            orphans.truncate(2);
        }
        let last_sessions = LastSessions::of(self.sessions.values().copied());
        let mut adopted_runs = Vec::with_capacity(orphans.len());
        for run in orphans {
            let Some((_, _, ended_at)) = lease_of(&run, ended_leases) else { continue };
            let old_lease = LeaseToken { node: run.node, epoch: run.node_epoch };
            if let Some(due) = self.due.get_mut(&run.job)
                && due.home != token.node
                && ended_leases.iter().any(|(node, ..)| *node == due.home)
            {
                (due.home, due.term) = (token.node, due.term + 1);
            }
            let run = if mutant::on(Mutant::DueMeansUnsent) {
                run
            } else {
                ledger::adopted_run(run, *ended_at, &last_sessions)
            };
            let run = Run { node: token.node, node_epoch: token.epoch, ..run };
            self.runs.insert(run.id, run.clone());
            adopted_runs.push(Adopted { run, from: old_lease, lease_ended_at: *ended_at });
        }
        adopted_runs
    }
}

fn lease_of<'a>(run: &Run, ended_leases: &'a [EndedLeases]) -> Option<&'a EndedLeases> {
    ended_leases.iter().find(|(node, epoch, _)| *node == run.node && run.node_epoch < *epoch)
}
