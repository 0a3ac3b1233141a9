//! What this node may do, and until when: judged by its own boot-time clock, from before the renewal was sent.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rondel_core::{IdGen, NodeId, Timestamp};
use rondel_store::LeaseToken;
use rondel_store::cluster::Node;

use crate::clock::Boot;

/// How long executors that come are told of a lease after its node was last alive. A trigger that is older than that is
/// nowhere any more.
const FENCED_FOR: Duration = Duration::from_secs(3600);
/// Fences in one welcome.
const FENCE_MAX: usize = 1_000;

/// A lease that holds right now.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) token: LeaseToken,
    pub(crate) ids: Arc<IdGen>,
}

#[derive(Debug)]
pub(crate) struct Membership {
    boot: Boot,
    current: RwLock<Held>,
    /// By the boot-time clock, in microseconds.
    until: AtomicI64,
    nodes: RwLock<Arc<Vec<Node>>>,
    /// Homes whose due jobs this node may claim.
    claimable: RwLock<Arc<Vec<NodeId>>>,
    /// Dead nodes whose open runs this node has taken over: all of them.
    adopted: RwLock<Vec<NodeId>>,
}

impl Membership {
    pub(crate) fn new(token: LeaseToken, ordinal: i64, sent_at: i64, lease: Duration, boot: Boot) -> Self {
        let membership = Self {
            boot,
            current: RwLock::new(Held { token, ids: Arc::new(IdGen::new(ordinal)) }),
            until: AtomicI64::new(0),
            nodes: RwLock::default(),
            claimable: RwLock::new(Arc::new(vec![token.node, NodeId::new(0)])),
            adopted: RwLock::default(),
        };
        membership.renewed(sent_at, lease);
        membership
    }

    /// The lease was renewed by a call that was sent at `sent_at`; a tenth is left as a margin.
    pub(crate) fn renewed(&self, sent_at: i64, lease: Duration) {
        let margin = i64::try_from(lease.as_micros() * 9 / 10).unwrap_or(0);
        self.until.store(sent_at.saturating_add(margin), Ordering::Release);
    }

    /// The lease is taken anew.
    pub(crate) fn rejoined(&self, token: LeaseToken, ordinal: i64, sent_at: i64, lease: Duration) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) =
            Held { token, ids: Arc::new(IdGen::new(ordinal)) };
        self.renewed(sent_at, lease);
    }

    /// The lease is gone, or given back.
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    pub(crate) fn holds(&self) -> bool {
        self.boot.micros() < self.until.load(Ordering::Acquire)
    }

    /// What to act under, where the lease holds.
    pub(crate) fn held(&self) -> Option<Held> {
        self.holds().then(|| self.latest())
    }

    /// What was last acted under, whether or not it still holds.
    pub(crate) fn latest(&self) -> Held {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.latest().token
    }

    /// The newest lease that is over of each node that took one of late: executors refuse their triggers.
    pub(crate) fn fences(&self, now: Timestamp) -> Vec<LeaseToken> {
        let nodes = self.nodes();
        let recent: Vec<Node> =
            nodes.iter().filter(|node| node.lease_until + FENCED_FOR > now).take(FENCE_MAX).cloned().collect();
        leases_over(&recent)
    }

    pub(crate) fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The open runs of these dead nodes are known here: their jobs may be claimed.
    pub(crate) fn adopted(&self, dead: &[NodeId]) {
        let mut adopted = self.adopted.write().unwrap_or_else(PoisonError::into_inner);
        dead.clone_into(&mut adopted);
    }

    /// Takes in the list of nodes: jobs of this node, of nobody, and of dead nodes that it stands in for may be claimed.
    /// A job whose open runs are still to be taken over, by whomever, would run beside itself.
    pub(crate) fn saw_nodes(&self, nodes: Vec<Node>, now: Timestamp) {
        let this = self.token().node;
        let mut claimable = vec![this, NodeId::new(0)];
        let adopted = self.adopted.read().unwrap_or_else(PoisonError::into_inner).clone();
        let is_adopted = |node: &&Node| node.id != this && !node.is_living(now) && adopted.contains(&node.id);
        claimable.extend(nodes.iter().filter(is_adopted).map(|node| node.id));
        *self.claimable.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(claimable);
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(nodes);
    }

    pub(crate) fn claimable_homes(&self) -> Arc<Vec<NodeId>> {
        Arc::clone(&self.claimable.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Dead nodes whose runs this node takes over now: those for which it is the next living node by id, and after two
    /// more leases anybody's.
    pub(crate) fn adoptable(&self, now: Timestamp, lease: Duration) -> Vec<NodeId> {
        let nodes = self.nodes();
        adoptable(&nodes, self.token().node, now, lease)
    }
}

/// The newest lease of each node that is over, whether it was taken anew or fenced by whoever adopted its runs.
pub(crate) fn leases_over(nodes: &[Node]) -> Vec<LeaseToken> {
    let is_second = |node: &&Node| node.epoch > 1;
    nodes.iter().filter(is_second).map(|node| LeaseToken { node: node.id, epoch: node.epoch - 1 }).collect()
}

fn adoptable(nodes: &[Node], this: NodeId, now: Timestamp, lease: Duration) -> Vec<NodeId> {
    let living: Vec<NodeId> = nodes.iter().filter(|node| node.is_living(now)).map(|node| node.id).collect();
    let heir = |dead: NodeId| living.iter().copied().find(|id| *id > dead).or(living.first().copied());
    let is_mine = |node: &&Node| {
        node.id != this
            && !node.is_living(now)
            && (heir(node.id) == Some(this) || now > node.lease_until + lease.saturating_mul(2))
    };
    nodes.iter().filter(is_mine).map(|node| node.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: i64, lease_until: i64) -> Node {
        Node {
            id: NodeId::new(id),
            name: format!("n{id}"),
            epoch: 1,
            lease_until: Timestamp::from_secs(lease_until),
            advertise_url: None,
            server_version: String::new(),
            started_at: Timestamp::EPOCH,
        }
    }

    #[test]
    fn each_dead_node_has_one_heir_until_two_leases_are_over() {
        let nodes = [node(1, 100), node(2, 10), node(3, 100), node(4, 10)];
        let heirs = |now: i64, this: i64| -> Vec<i64> {
            let lease = Duration::from_secs(5);
            adoptable(&nodes, NodeId::new(this), Timestamp::from_secs(now), lease).iter().map(|id| id.get()).collect()
        };
        assert_eq!((heirs(12, 3), heirs(12, 1)), (vec![2], vec![4]));
        assert_eq!(heirs(21, 1), [2, 4]);
        assert!(heirs(5, 1).is_empty());
    }

    #[test]
    fn a_lease_ends_by_itself() {
        let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
        let long_ago = Boot::Host.micros() - 4_600_000;
        assert!(!Membership::new(token, 1, long_ago, Duration::from_secs(5), Boot::Host).holds());
        assert!(Membership::new(token, 1, Boot::Host.micros(), Duration::from_secs(5), Boot::Host).holds());
    }
}
