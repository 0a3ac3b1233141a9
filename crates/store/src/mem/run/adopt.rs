//! Adoption of the open runs of leases that have ended.

use async_trait::async_trait;
use rondel_core::{NodeId, Run, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

use crate::cluster::{LastStreams, Session};
use crate::ledger::{self, Adopted, Adoption, whole_jobs};
use crate::mem::{MemStore, State, size};
use crate::{Adopt, LeaseToken, Result};

#[async_trait]
impl Adopt for MemStore {
    async fn adopt(&self, token: LeaseToken, dead: &[NodeId], enough: u32) -> Result<Adoption> {
        let now = self.now();
        let mut state = self.state();
        if !state.holds(token, now) {
            return Ok(Adoption { is_refused: true, ..Adoption::default() });
        }
        Ok(state.adopt(token, dead, enough, now))
    }
}

impl State {
    fn adopt(&mut self, token: LeaseToken, dead: &[NodeId], mut enough: u32, now: Timestamp) -> Adoption {
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
        let since = LastStreams::since(orphans.first().map_or(Timestamp::MAX, |run| run.due_at));
        let may_be_open =
            |session: &Session| self.nodes.get(&session.token.node).is_some_and(|held| held.node.lease_until >= since);
        let sessions = self.sessions.values().filter(|session| !session.is_open() || may_be_open(session));
        let streams = LastStreams::of(sessions.copied());
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
            let run = if mutant::on(Mutant::DueMeansUnsent) { run } else { ledger::adopted(run, *ended_at, &streams) };
            let run = Run { node: token.node, node_epoch: token.epoch, ..run };
            self.runs.insert(run.id, run.clone());
            adopted.push(Adopted { run, from, from_ended_at: *ended_at });
        }
        let fenced = over.into_iter().map(|(node, ..)| node).filter(|node| *node != token.node).collect();
        Adoption { runs: adopted, fenced, is_refused: false }
    }
}
