//! The trait `Limits` for the store in memory: which node counts the runs of a limit that jobs share.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rondel_core::homes::Switch;
use rondel_core::{JobId, NodeId, Run};

use crate::cluster::Node;
use crate::ledger::LimitName;
use crate::mem::{MemStore, State};
use crate::{Catalog, LeaseToken, Limits, Result};

#[async_trait]
impl Limits for MemStore {
    async fn limit_homes(&self, token: LeaseToken, limits: &[LimitName]) -> Result<Vec<NodeId>> {
        let mut state = self.state();
        let mut homes = Vec::with_capacity(limits.len());
        for limit in limits {
            let stored_home = state.limit_homes.get(limit).copied();
            let home =
                stored_home.filter(|home| *home == token.node || !state.is_idle_and_off(*home)).unwrap_or(token.node);
            state.limit_homes.insert(limit.clone(), home);
            homes.push(home);
        }
        Ok(homes)
    }

    async fn give_limits(&self, token: LeaseToken, limits: &[LimitName], to: Option<NodeId>) -> Result<Vec<LimitName>> {
        let now = self.now();
        let is_off =
            |to: NodeId| self.state().nodes.get(&to).is_none_or(|stored_node| !stored_node.node.takes_jobs(now));
        if to.is_some_and(is_off) {
            return Ok(limits.to_vec());
        }
        let is_shard =
            |run: &Run| run.node == token.node && (run.is_root() || run.shard_total.is_some_and(|total| total > 1));
        let open_shards = self.state().open_runs_where(is_shard);
        let keys: Vec<(JobId, i64)> = open_shards.iter().map(|run| (run.job, run.job_version)).collect();
        let definitions = self.definitions(&keys).await?;
        let used_limits: BTreeSet<LimitName> =
            definitions.iter().flat_map(|definition| LimitName::of(definition.namespace, &definition.spec)).collect();
        let mut state = self.state();
        for limit in limits.iter().filter(|limit| !used_limits.contains(*limit)) {
            if state.limit_homes.get(limit) != Some(&token.node) {
                continue;
            }
            match to {
                Some(to) => state.limit_homes.insert(limit.clone(), to),
                None => state.limit_homes.remove(limit),
            };
        }
        Ok(limits.iter().filter(|limit| used_limits.contains(*limit)).cloned().collect())
    }
}

impl State {
    /// Whether a node is switched off or shuts down, and has no open run. Open runs of the nodes that it has fenced count as its own, because
    /// it takes them over.
    fn is_idle_and_off(&self, node: NodeId) -> bool {
        let is_off = |node: &Node| node.switch != Switch::Active || node.report.is_leaving;
        self.nodes.get(&node).is_some_and(|stored_node| is_off(&stored_node.node))
            && self.open_runs_where(|run| run.node == node || self.is_orphan_of_fencer(run, node)).is_empty()
    }

    /// Whether a lease that `fencer` has fenced owns the run.
    fn is_orphan_of_fencer(&self, run: &Run, fencer: NodeId) -> bool {
        self.nodes.get(&run.node).is_some_and(|stored_node| {
            stored_node.node.fenced_by == Some(fencer) && run.node_epoch < stored_node.node.epoch
        })
    }
}
