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
        let stored_node = state.nodes.values().find(|held| held.node.name == name);
        let is_being_taken_over = stored_node.is_some_and(|held| state.is_being_taken_over(held, request, now));
        let ends = stored_node.map(|held| (held.node.lease_until, held.prior_lease_until.max(held.ended_at)));
        let fenced_until = stored_node.map_or(Timestamp::EPOCH, |held| held.ended_at);
        let stored_node = stored_node.map(|held| held.node.clone());
        let newest = state.nodes.keys().last().map_or(0, |node| node.get());
        let new = request.new_id(newest, |id| state.nodes.contains_key(&id));
        let (id, epoch, prior) = match stored_node.as_ref().zip(ends) {
            None => (new, request.epoch_after(LeaseToken { node: new, epoch: 0 }), Timestamp::EPOCH),
            Some((node, ends)) => match request.latest_end(node.token(), ends, now) {
                Some(_) if is_being_taken_over => return Ok(Join::BeingTakenOver),
                Some(ended_at) => (node.id, request.epoch_after(node.token()), ended_at),
                None => return Ok(Join::Living { lease_until: node.lease_until, epoch: node.epoch }),
            },
        };
        let others = state.nodes.values().filter(|held| held.node.id != id);
        let is_taken = |ordinal| others.clone().any(|held| held.ordinal == ordinal && held.node.is_living(now));
        let ordinal = next_ordinal(lease_count(state.nodes.values().map(|held| held.node.token())), is_taken);
        let node = Node {
            id,
            name: name.into_owned(),
            epoch,
            lease_until: request.lease_until(now, prior),
            advertise_url: request.advertise_url.clone(),
            server_version: request.server_version.clone(),
            started_at: now,
            switch: stored_node.as_ref().map_or(Switch::Active, |node| node.switch),
            report: stored_node
                .map_or_else(NodeReport::default, |node| NodeReport { is_leaving: false, ..node.report }),
        };
        state.nodes.insert(id, StoredNode { node, ordinal, prior_lease_until: prior, ended_at: fenced_until });
        state.end_sessions(LeaseToken { node: id, epoch: epoch - 1 }, prior);
        Ok(Join::Joined { token: LeaseToken { node: id, epoch }, ordinal })
    }

    async fn renew(&self, token: LeaseToken, lease: Duration) -> Result<Option<Renewal>> {
        let now = self.now();
        let mut state = self.state();
        // A renewal may move the end of the lease back by a tenth of its length at most, as in SQL.
        let is_held = |node: &Node| node.epoch == token.epoch && node.lease_until <= now + lease + lease / 10;
        let held = state.nodes.get_mut(&token.node).filter(|held| is_held(&held.node));
        Ok(held.map(|held| {
            let until = distinct_end(now + lease, held.prior_lease_until);
            let before = std::mem::replace(&mut held.node.lease_until, until);
            Renewal { now, previous_until: before, until }
        }))
    }

    async fn release(&self, token: LeaseToken, reached: Timestamp) -> Result<()> {
        let until = self.now().max(reached);
        let mut state = self.state();
        if let Some(held) = state.nodes.get_mut(&token.node).filter(|held| held.node.epoch == token.epoch) {
            held.node.lease_until = held.node.lease_until.min(distinct_end(until, held.prior_lease_until));
        }
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(self.state().nodes.values().map(|held| held.node.clone()).collect())
    }

    async fn report_node(&self, token: LeaseToken, report: &NodeReport) -> Result<()> {
        let mut state = self.state();
        if let Some(held) = state.nodes.get_mut(&token.node).filter(|held| held.node.epoch == token.epoch) {
            held.node.report = report.clone();
        }
        Ok(())
    }

    async fn set_node_switch(&self, name: &str, switch: Switch) -> Result<bool> {
        let mut state = self.state();
        let node = state.nodes.values_mut().find(|held| held.node.name == name);
        Ok(node.map(|held| held.node.switch = switch).is_some())
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
            Switch::Draining | Switch::Stopped if switches.get(&key).is_some_and(|(known, _)| *known == switch) => {}
            Switch::Draining | Switch::Stopped => drop(switches.insert(key, (switch, at))),
        }
        Ok(())
    }

    async fn switches(&self) -> Result<Switches> {
        let state = self.state();
        let executor = |((app, name), (switch, set_at)): (&(AppId, String), &(Switch, Timestamp))| ExecutorSwitch {
            app: *app,
            name: name.clone(),
            switch: *switch,
            set_at: *set_at,
        };
        Ok(Switches {
            apps: state.app_switches.iter().map(|(app, switch)| (*app, *switch)).collect(),
            executors: state.executor_switches.iter().map(executor).collect(),
        })
    }

    async fn forget_nodes(&self, dead_since: Timestamp, limit: u32) -> Result<u64> {
        let mut state = self.state();
        let newest = state.nodes.keys().last().copied();
        let owns = |node: NodeId| {
            state.runs.values().any(|run| run.node == node && !run.status.is_terminal())
                || state.due.values().any(|due| due.home == node && due.next_fire_at.is_some())
                || state.limit_homes.values().any(|home| *home == node)
        };
        let is_gone = |held: &&StoredNode| held.node.lease_until < dead_since && Some(held.node.id) != newest;
        let gone = state.nodes.values().filter(is_gone).map(|held| held.node.id).filter(|node| !owns(*node));
        let gone: Vec<NodeId> = gone.take(to_usize(limit)).collect();
        gone.iter().for_each(|node| drop(state.nodes.remove(node)));
        Ok(u64::try_from(gone.len()).unwrap_or(u64::MAX))
    }
}
