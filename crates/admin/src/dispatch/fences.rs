//! Leases that are over, told to executors: each fence goes out on every stream, and again to whoever does not answer.

use std::collections::BTreeMap;

use rondel_core::{ExecutorId, NodeId, Timestamp};
use rondel_proto::v1::server_message::Body;
use rondel_store::LeaseToken;

use super::FenceAnswer;
use super::messages::fence;
use super::run_loop::DispatchLoop;

/// The newest lease of each node that is over, as far as executors have been told.
pub(super) type Told = BTreeMap<NodeId, i64>;

impl DispatchLoop {
    /// Tells everyone of the leases that are over since the last time. Who comes later hears of them in its welcome.
    pub(super) fn tell_fences(&mut self, now: Timestamp) {
        for lease in self.shared.membership.fences(now) {
            self.tell_fence(lease);
        }
    }

    pub(super) fn tell_fence(&mut self, lease: LeaseToken) {
        if self.fences_told.get(&lease.node).is_some_and(|told| *told >= lease.epoch) {
            return;
        }
        self.fences_told.insert(lease.node, lease.epoch);
        for online in self.executors.all() {
            online.session.send(Body::Fence(fence(lease)));
        }
    }

    /// Asks those for whose answer the roll call waits. A question that got lost is asked again in the next round.
    pub(super) fn ask_witnesses(&self) {
        for (executor, leases) in self.rollcall.unanswered(&self.executors) {
            let Some(online) = self.executors.get(executor) else { continue };
            for lease in leases {
                online.session.send(Body::Fence(fence(lease)));
            }
        }
    }

    pub(super) fn fence_answered(&mut self, executor: ExecutorId, number: u64, answer: FenceAnswer, now: Timestamp) {
        self.executors.heard(executor, now);
        // Each answer is kept for its node: only questions that were asked have one.
        let is_told = self.fences_told.get(&answer.lease.node).is_some_and(|epoch| answer.lease.epoch <= *epoch);
        if !is_told && !self.rollcall.asks_about(answer.lease) {
            return;
        }
        if self.executors.fenced(executor, number, answer) {
            self.resolve_rollcall(now);
        }
    }
}
