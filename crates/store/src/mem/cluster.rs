//! The database's clock, nodes with their leases and reports, and the switches of nodes, apps and executors.

use std::time::Duration;

use async_trait::async_trait;
use rondel_core::homes::Switch;
use rondel_core::{AppId, NodeId, Timestamp};

use crate::cluster::{
    ExecutorSwitch, Join, JoinRequest, Node, NodeReport, Renewal, Switches, distinct_end, lease_count, next_ordinal,
};
use crate::mem::{MemStore, StoredNode, to_usize};
use crate::settle::clean_name;
use crate::{Cluster, LeaseToken, Result};

#[async_trait]
impl Cluster for MemStore {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.now())
    }

    fn is_single_server(&self) -> bool {
        self.is_single_server
    }

    async fn join(&self, request: &JoinRequest) -> Result<Join> {
        let now = self.now();
        let mut state = self.state();
        let name = clean_name(&request.name);
        let stored_node = state.nodes.values().find(|stored_node| stored_node.node.name == name);
        let is_being_taken_over =
            stored_node.is_some_and(|stored_node| state.is_being_taken_over(stored_node, request, now));
        let lease_ends = stored_node
            .map(|stored_node| (stored_node.node.lease_until, stored_node.prior_lease_until.max(stored_node.ended_at)));
        let fenced_until = stored_node.map_or(Timestamp::EPOCH, |stored_node| stored_node.ended_at);
        let stored_node = stored_node.map(|stored_node| stored_node.node.clone());
        let newest_id = state.nodes.keys().last().map_or(0, |node| node.get());
        let new_id = request.new_id(newest_id, |id| state.nodes.contains_key(&id));
        let (id, epoch, prior_lease_until) = match stored_node.as_ref().zip(lease_ends) {
            None => (new_id, request.epoch_after(LeaseToken { node: new_id, epoch: 0 }), Timestamp::EPOCH),
            Some((node, lease_ends)) => match request.latest_end(node.token(), node.is_fenced, lease_ends, now) {
                Some(_) if is_being_taken_over => return Ok(Join::BeingTakenOver),
                Some(ended_at) => (node.id, request.epoch_after(node.token()), ended_at),
                None => return Ok(Join::Living { lease_until: node.lease_until, epoch: node.epoch }),
            },
        };
        let other_nodes = state.nodes.values().filter(|stored_node| stored_node.node.id != id);
        // A fenced lease keeps its ordinal until its end, as in SQL.
        let is_taken = |ordinal| {
            other_nodes.clone().any(|stored_node| stored_node.ordinal == ordinal && stored_node.node.lease_until > now)
        };
        let ordinal =
            next_ordinal(lease_count(state.nodes.values().map(|stored_node| stored_node.node.token())), is_taken);
        let node = Node {
            id,
            name: name.into_owned(),
            epoch,
            lease_until: request.lease_until(now, prior_lease_until),
            is_fenced: false,
            fenced_by: None,
            advertise_url: request.advertise_url.clone(),
            server_version: request.server_version.clone(),
            started_at: now,
            switch: stored_node.as_ref().map_or(Switch::Active, |node| node.switch),
            report: stored_node
                .map_or_else(NodeReport::default, |node| NodeReport { is_leaving: false, ..node.report }),
        };
        state.nodes.insert(id, StoredNode { node, ordinal, prior_lease_until, ended_at: fenced_until });
        state.end_sessions(LeaseToken { node: id, epoch: epoch - 1 }, prior_lease_until);
        Ok(Join::Joined { token: LeaseToken { node: id, epoch }, ordinal })
    }

    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Renewal>> {
        let now = self.now();
        let mut state = self.state();
        // A renewal may move the end of the lease back by a tenth of its length at most, as in SQL.
        let is_held = |node: &Node| node.epoch == token.epoch && node.lease_until <= now + lease + lease / 10;
        let stored_node = state.nodes.get_mut(&token.node).filter(|stored_node| is_held(&stored_node.node));
        Ok(stored_node.map(|stored_node| {
            let until = distinct_end(now + lease, stored_node.prior_lease_until);
            let previous_until = std::mem::replace(&mut stored_node.node.lease_until, until);
            Renewal { now, previous_until, until }
        }))
    }

    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()> {
        let until = self.now().max(reached);
        let mut state = self.state();
        if let Some(stored_node) =
            state.nodes.get_mut(&token.node).filter(|stored_node| stored_node.node.epoch == token.epoch)
        {
            stored_node.node.lease_until =
                stored_node.node.lease_until.min(distinct_end(until, stored_node.prior_lease_until));
        }
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(self.state().nodes.values().map(|stored_node| stored_node.node.clone()).collect())
    }

    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()> {
        let mut state = self.state();
        if let Some(stored_node) =
            state.nodes.get_mut(&token.node).filter(|stored_node| stored_node.node.epoch == token.epoch)
        {
            stored_node.node.report = report.clone();
        }
        Ok(())
    }

    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool> {
        let mut state = self.state();
        let node = state.nodes.values_mut().find(|stored_node| stored_node.node.name == name);
        Ok(node.map(|stored_node| stored_node.node.switch = switch).is_some())
    }

    async fn set_app_switch(&self, app: AppId, switch: Switch) -> Result<bool> {
        let mut state = self.state();
        if !state.apps.contains_key(&app) {
            return Ok(false);
        }
        match switch {
            Switch::Active => state.app_switches.remove(&app),
            Switch::Draining | Switch::Stopped => state.app_switches.insert(app, switch),
        };
        Ok(true)
    }

    async fn set_executor_switch(&self, app: AppId, name: &str, switch: Switch, at: Timestamp) -> Result<()> {
        let switches = &mut self.state().executor_switches;
        let key = (app, clean_name(name).into_owned());
        match switch {
            Switch::Active => drop(switches.remove(&key)),
            Switch::Draining | Switch::Stopped
                if switches.get(&key).is_some_and(|(stored_switch, _)| *stored_switch == switch) => {}
            Switch::Draining | Switch::Stopped => drop(switches.insert(key, (switch, at))),
        }
        Ok(())
    }

    async fn switches(&self) -> Result<Switches> {
        let state = self.state();
        let to_executor_switch = |((app, name), (switch, set_at)): (&(AppId, String), &(Switch, Timestamp))| {
            ExecutorSwitch { app: *app, name: name.clone(), switch: *switch, set_at: *set_at }
        };
        Ok(Switches {
            apps: state.app_switches.iter().map(|(app, switch)| (*app, *switch)).collect(),
            executors: state.executor_switches.iter().map(to_executor_switch).collect(),
        })
    }

    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let newest_id = state.nodes.keys().last().copied();
        let owns_anything = |node: NodeId| {
            state.runs.values().any(|run| run.node == node && !run.status.is_terminal())
                || state.due.values().any(|due| due.home == node && due.next_fire_at.is_some())
                || state.limit_homes.values().any(|home| *home == node)
        };
        let is_gone = |stored_node: &&StoredNode| {
            stored_node.node.lease_until < dead_since && Some(stored_node.node.id) != newest_id
        };
        let gone_nodes = state
            .nodes
            .values()
            .filter(is_gone)
            .map(|stored_node| stored_node.node.id)
            .filter(|node| !owns_anything(*node));
        let gone_nodes: Vec<NodeId> = gone_nodes.take(to_usize(limit)).collect();
        gone_nodes.iter().for_each(|node| drop(state.nodes.remove(node)));
        Ok(u64::try_from(gone_nodes.len()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use crate::Adopt as _;

    use super::*;

    #[tokio::test]
    async fn a_fenced_lease_has_ended_even_if_the_clock_steps_back_to_before_its_end() {
        let seconds = Arc::new(AtomicI64::new(100));
        let given = Arc::clone(&seconds);
        let store = MemStore::new(Arc::new(move || Timestamp::from_secs(given.load(Ordering::Relaxed))));
        let joined = async |name: &str, lease: u64| {
            let request = JoinRequest {
                name: name.to_owned(),
                lease: Duration::from_secs(lease),
                advertise_url: None,
                server_version: String::new(),
                may_take_over: false,
                held: None,
                waited_for_takeover: Duration::ZERO,
            };
            let Join::Joined { token, ordinal } = store.join(&request).await.unwrap() else { unreachable!() };
            (token, ordinal)
        };
        let ((dead, _), (other, ordinal)) = (joined("dead", 5).await, joined("other", 60).await);
        seconds.store(106, Ordering::Relaxed);
        assert_eq!(store.orphaned_jobs(other, &[dead.node.into()], 9).await.unwrap().fenced, [dead.node]);
        seconds.store(102, Ordering::Relaxed);
        assert_eq!(store.orphaned_jobs(other, &[dead.node.into()], 9).await.unwrap().fenced, [dead.node]);
        let (again, next) = joined("dead", 5).await;
        assert_eq!(again, LeaseToken { epoch: dead.epoch + 2, ..dead });
        assert_ne!(next, ordinal);
        let prior = |node: NodeId| store.state().nodes.get(&node).map(|stored_node| stored_node.prior_lease_until);
        assert_eq!(prior(dead.node), Some(Timestamp::from_secs(105)), "runs that were due by then may have been sent");
        assert_eq!(store.orphaned_jobs(other, &[dead.node.into()], 9).await.unwrap().fenced, [], "it lives again");
    }
}
