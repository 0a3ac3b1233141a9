//! Whether this node's lease holds, and until when, by the node's own boot-time clock. A lease counts from the moment before its renewal was sent.
//! Also the list of nodes, and which ended leases this node takes over.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rondel_core::homes::{NodeShare, Switch};
use rondel_core::{IdGen, NodeId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};
use rondel_store::LeaseToken;
use rondel_store::cluster::{Node, NodeReport};
use tokio::sync::{Mutex, MutexGuard};

use crate::clock::BootClock;

/// Executors that connect within this time after the end of a node's lease still receive the fence of that lease. Later, no trigger that was sent
/// under the lease can be in flight any more.
const FENCED_FOR: Duration = Duration::from_secs(3600);
/// Maximum number of fences in one welcome.
const FENCE_COUNT_MAX: usize = 1_000;

/// A lease of this node, with the generator of ids for it.
#[derive(Clone, Debug)]
pub(crate) struct HeldLease {
    pub(crate) token: LeaseToken,
    pub(crate) ids: Arc<IdGen>,
}

#[derive(Debug)]
pub(crate) struct Membership {
    boot: BootClock,
    current_lease: RwLock<HeldLease>,
    /// The end of the lease, by the boot-time clock, in microseconds; 0 once this node has ended the lease itself.
    lease_until: AtomicI64,
    /// Whether the node has given its lease back: the answer to a renewal in flight must not revive it.
    is_given_back: AtomicBool,
    /// Held by the renewal in progress.
    renewal_lock: Mutex<()>,
    nodes: RwLock<Arc<Vec<Node>>>,
    /// Whether the database's clock has stepped back since `nodes` was read.
    is_list_outdated: AtomicBool,
    /// When this node first saw each of the current fences, by the boot-time clock in microseconds.
    fences_seen: RwLock<HashMap<Fence, i64>>,
    /// Ended leases of which this node has taken over all open runs.
    adopted_leases: RwLock<Vec<EndedLease>>,
    /// Since when the lease holds without a gap, by the boot-time clock in microseconds.
    held_since: AtomicI64,
    /// Whether the lease has had a gap since the node's start.
    had_gap: AtomicBool,
    /// How long this node may be without an answer before it counts as cut off, in microseconds.
    cut_off_after: i64,
    /// When the last successful renewal was sent, by the boot-time clock in microseconds.
    renewed_at: AtomicI64,
    /// When the lease was last renewed after the node had been [cut off](Self::was_cut_off_within), by the boot-time clock in microseconds; 0 if
    /// the node never was.
    cut_off_until: AtomicI64,
    /// The instant since which the set of nodes that take jobs has been the same, and that set.
    takers: RwLock<(Timestamp, Vec<NodeId>)>,
}

/// An ended lease: its node, and when it ended. If the node renews the lease after all, or takes another lease, the node's new lease has a later
/// end.
pub(crate) type EndedLease = (NodeId, Timestamp);

/// An ended lease whose runs this node takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseToAdopt {
    pub(crate) lease: EndedLease,
    /// Whether this node has seen the lease as fenced for two leases, during which its own lease had no gap. It then takes over runs that are
    /// still open under the lease, whichever node has fenced it. The flag does not show whether there are such runs.
    pub(crate) is_late: bool,
}

/// An ended lease and the node that fenced it.
type Fence = (EndedLease, NodeId);

/// For this long after a change of the nodes that take jobs, jobs and runs may be in transfer between nodes.
const UNSETTLED_FOR: Duration = Duration::from_secs(30);

impl Membership {
    pub(crate) fn new(token: LeaseToken, ordinal: i64, sent_at: i64, lease: Duration, boot: BootClock) -> Self {
        let membership = Self {
            boot,
            current_lease: RwLock::new(HeldLease { token, ids: Arc::new(IdGen::new(ordinal)) }),
            lease_until: AtomicI64::new(0),
            is_given_back: AtomicBool::new(false),
            renewal_lock: Mutex::default(),
            nodes: RwLock::default(),
            is_list_outdated: AtomicBool::new(false),
            fences_seen: RwLock::default(),
            adopted_leases: RwLock::default(),
            held_since: AtomicI64::new(sent_at),
            had_gap: AtomicBool::new(false),
            cut_off_after: micros(lease / 2),
            renewed_at: AtomicI64::new(sent_at),
            cut_off_until: AtomicI64::new(0),
            takers: RwLock::new((Timestamp::EPOCH, Vec::new())),
        };
        membership.record_renewal(sent_at, lease);
        membership
    }

    /// Sets how long the node may be without an answer before it counts as cut off from the database: `length`, or half a lease if that is longer.
    pub(crate) fn with_cut_off_after(self, length: Duration) -> Self {
        Self { cut_off_after: micros(length).max(self.cut_off_after), ..self }
    }

    /// Records that the lease was renewed by a call that was sent at `sent_at`. The last tenth of the lease is a safety margin.
    pub(crate) fn record_renewal(&self, sent_at: i64, lease: Duration) {
        let held_until = self.lease_until.load(Ordering::Acquire);
        if held_until > 0 && sent_at > held_until {
            self.held_since.store(sent_at, Ordering::Release);
            self.had_gap.store(true, Ordering::Release);
        }
        if sent_at > self.renewed_at.swap(sent_at, Ordering::AcqRel) + self.cut_off_after {
            self.cut_off_until.store(sent_at, Ordering::Release);
        }
        let usable_micros = i64::try_from(lease.as_micros() * 9 / 10).unwrap_or(0);
        self.lease_until.store(sent_at.saturating_add(usable_micros), Ordering::SeqCst);
        // If [`give_back`](Self::give_back) runs concurrently, either this call sees the flag, or `give_back` overwrites the end that is stored
        // here.
        if self.is_given_back.load(Ordering::SeqCst) {
            self.end_lease();
        }
    }

    /// Records that a new lease was taken. The lease before it has ended, perhaps long ago, so this counts as a gap.
    pub(crate) fn record_new_lease(&self, token: LeaseToken, ordinal: i64, sent_at: i64, lease: Duration) {
        let mut current_lease = self.current_lease.write().unwrap_or_else(PoisonError::into_inner);
        let ids = Arc::new(current_lease.ids.continued_as(ordinal));
        *current_lease = HeldLease { token, ids };
        drop(current_lease);
        self.held_since.store(sent_at, Ordering::Release);
        self.had_gap.store(true, Ordering::Release);
        self.record_renewal(sent_at, lease);
    }

    /// Whether this is the newest lease of the node, and the node has not noticed its end.
    pub(crate) fn is_current_lease(&self, token: LeaseToken) -> bool {
        // The order of these reads matters: a new lease stores its token before it sets `lease_until` again.
        let has_ended = self.lease_until.load(Ordering::SeqCst) == 0;
        !has_ended && self.token() == token
    }

    /// Ends the lease in this process; the stored lease does not change.
    pub(crate) fn end_lease(&self) {
        self.lease_until.store(0, Ordering::SeqCst);
    }

    /// Begins a renewal, which lasts as long as the guard; `None` once the lease was given back.
    pub(crate) async fn begin_renewal(&self) -> Option<MutexGuard<'_, ()>> {
        let renewal = self.renewal_lock.lock().await;
        (!self.is_given_back.load(Ordering::SeqCst)).then_some(renewal)
    }

    /// Gives the lease back for good. Waits for the renewal in progress first: if that renewal were stored later, it would extend the stored lease.
    pub(crate) async fn give_back(&self) {
        let _renewal = self.renewal_lock.lock().await;
        self.is_given_back.store(true, Ordering::SeqCst);
        self.end_lease();
    }

    pub(crate) fn holds_lease(&self) -> bool {
        if mutant::on(Mutant::LeaseWithoutEnd) {
            return true;
        }
        self.boot.micros() < self.lease_until.load(Ordering::Acquire)
    }

    /// How long the lease still holds if it is not renewed.
    pub(crate) fn remaining_lease(&self) -> Duration {
        let micros = self.lease_until.load(Ordering::Acquire).saturating_sub(self.boot.micros());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Since when the lease holds without a gap, by the boot-time clock in microseconds.
    pub(crate) fn held_since(&self) -> i64 {
        self.held_since.load(Ordering::Acquire)
    }

    /// Whether this node is [cut off](Self::with_cut_off_after) from the database, or was within the last `length`. If so, other nodes may have been cut
    /// off too. They could not store which executors they heard, so the rows show executors as silent for longer than the executors were. Always
    /// false for a node that is alone, because it knows which executors it heard.
    pub(crate) fn was_cut_off_within(&self, length: Duration) -> bool {
        if self.nodes().len() < 2 || mutant::on(Mutant::OldRowsCount) {
            return false;
        }
        let now = self.boot.micros();
        let cut_off_until = self.cut_off_until.load(Ordering::Acquire);
        now > self.renewed_at.load(Ordering::Acquire) + self.cut_off_after
            || (cut_off_until > 0 && now.saturating_sub(cut_off_until) < micros(length))
    }

    /// The lease under which this node may act now; `None` if the lease has ended.
    pub(crate) fn held_lease(&self) -> Option<HeldLease> {
        self.holds_lease().then(|| self.latest_lease())
    }

    /// The newest lease, whether or not it still holds.
    pub(crate) fn latest_lease(&self) -> HeldLease {
        self.current_lease.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn token(&self) -> LeaseToken {
        self.latest_lease().token
    }

    pub(crate) fn nodes(&self) -> Arc<Vec<Node>> {
        Arc::clone(&self.nodes.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that this node has fenced these leases and takes over their open runs: the jobs of their nodes may be claimed. Leases that were
    /// recorded before are forgotten.
    pub(crate) fn note_adopted(&self, ended_leases: &[EndedLease]) {
        let mut adopted_leases = self.adopted_leases.write().unwrap_or_else(PoisonError::into_inner);
        ended_leases.clone_into(&mut adopted_leases);
    }

    /// Whether all of these leases are among the [adopted](Self::note_adopted) ones.
    pub(crate) fn has_adopted(&self, ended_leases: &[EndedLease]) -> bool {
        let adopted_leases = self.adopted_leases.read().unwrap_or_else(PoisonError::into_inner);
        ended_leases.iter().all(|ended| adopted_leases.contains(ended))
    }

    /// Stores the list of nodes, and records a change of the nodes that take jobs. After a step back of the clock, the instant of the last change
    /// may lie ahead; the set then counts as unchanged since `now`.
    pub(crate) fn set_nodes(&self, nodes: Vec<Node>, now: Timestamp) {
        let takers: Vec<NodeId> = nodes.iter().filter(|node| node.takes_jobs(now)).map(|node| node.id).collect();
        let mut recorded_takers = self.takers.write().unwrap_or_else(PoisonError::into_inner);
        if recorded_takers.1 != takers || recorded_takers.0 > now {
            *recorded_takers = (now, takers);
        }
        drop(recorded_takers);
        let seen_at = self.boot.micros();
        let mut fences_seen = self.fences_seen.write().unwrap_or_else(PoisonError::into_inner);
        let fences = nodes.iter().filter_map(|node| Some(((node.id, node.lease_until), node.fenced_by?)));
        *fences_seen = fences.map(|fence| (fence, fences_seen.get(&fence).copied().unwrap_or(seen_at))).collect();
        drop(fences_seen);
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(nodes);
        self.is_list_outdated.store(false, Ordering::Release);
    }

    /// Records that the database's clock has stepped back. The list of nodes may show a lease as living that was fenced since the list was read.
    pub(crate) fn note_step_back(&self) {
        self.is_list_outdated.store(true, Ordering::Release);
    }

    /// The other homes whose jobs this node may claim if the strategy assigns the jobs to it: the empty home, and dead nodes whose lease is
    /// [adopted](Self::note_adopted). If a job were claimed before the adoption, it could run twice at the same time.
    pub(crate) fn claimable_homes(&self, now: Timestamp) -> Vec<NodeId> {
        let (own_node, nodes) = (self.token().node, self.nodes());
        if !nodes.iter().any(|node| node.id == own_node && node.takes_jobs(now)) {
            return Vec::new();
        }
        let adopted_leases = self.adopted_leases.read().unwrap_or_else(PoisonError::into_inner);
        let is_adopted = |node: &&Node| {
            node.id != own_node && !node.is_living(now) && adopted_leases.contains(&(node.id, node.lease_until))
        };
        let dead_nodes = nodes.iter().filter(is_adopted).map(|node| node.id);
        std::iter::once(NodeId::new(0)).chain(dead_nodes).collect()
    }

    /// The earliest end of another node's lease that holds at `now`, as far as is known here; `None` if no such lease is known.
    pub(crate) fn next_lease_end(&self, now: Timestamp) -> Option<Timestamp> {
        let own_node = self.token().node;
        self.nodes().iter().filter(|node| node.id != own_node && node.is_living(now)).map(|node| node.lease_until).min()
    }

    /// The nodes among which jobs are distributed, with their weights and loads.
    pub(crate) fn node_shares(&self, now: Timestamp) -> Vec<NodeShare> {
        let node_share = |node: &Node| {
            let NodeReport { weight, job_count, recent_fires, .. } = node.report;
            NodeShare { node: node.id, weight, job_count, recent_fires }
        };
        self.nodes().iter().filter(|node| node.takes_jobs(now)).map(node_share).collect()
    }

    /// How long the set of nodes that take jobs has been the same.
    pub(crate) fn takers_unchanged_for(&self, now: Timestamp) -> Duration {
        now.since(self.takers.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Whether jobs or runs may be in transfer to this node.
    pub(crate) fn is_unsettled(&self, now: Timestamp) -> bool {
        let nodes = self.nodes();
        let leaves = |node: &Node| node.is_living(now) && !node.takes_jobs(now);
        nodes.len() > 1 && (self.takers_unchanged_for(now) < UNSETTLED_FOR || nodes.iter().any(leaves))
    }

    /// This node's switch, as the last beat saw it.
    pub(crate) fn switch(&self) -> Switch {
        let own_node = self.token().node;
        self.nodes().iter().find(|node| node.id == own_node).map_or(Switch::Active, |node| node.switch)
    }

    /// The ended leases whose runs this node takes over now. A lease goes to its last fencer while that node lives. Otherwise, it goes to the
    /// next node by id after the last fencer, or after its own node if no fencer is known. If this node may take runs over, it also takes over
    /// leases without a known fencer that ended two leases ago, and leases that it has seen as fenced for two leases without a gap in its own.
    ///
    /// After a gap in this node's own lease (the database was away, or the node slept), the other nodes first get the time of a lease to come
    /// back, because they may have been cut off too. Until then, only leases that do not come back are returned: those that are fenced, those
    /// of servers that have left, and those that this node has adopted already.
    pub(crate) fn leases_to_adopt(&self, now: Timestamp, lease: Duration) -> Vec<LeaseToAdopt> {
        let nodes = self.nodes();
        if self.gives_others_time(lease) {
            let ended_nodes =
                nodes.iter().filter(|node| node.is_fenced || node.report.is_leaving && !node.is_living(now));
            let ended_nodes: Vec<NodeId> = ended_nodes.map(|node| node.id).collect();
            let adopted_leases = self.adopted_leases.read().unwrap_or_else(PoisonError::into_inner);
            return self
                .dead_nodes_to_adopt(&nodes, now, lease)
                .into_iter()
                .filter(|to_adopt| ended_nodes.contains(&to_adopt.lease.0) || adopted_leases.contains(&to_adopt.lease))
                .collect();
        }
        self.dead_nodes_to_adopt(&nodes, now, lease)
    }

    /// Whether this node's own lease had a gap that ended less than a lease ago, so that the other nodes get time to come back.
    fn gives_others_time(&self, lease: Duration) -> bool {
        let held_for = self.boot.micros().saturating_sub(self.held_since.load(Ordering::Acquire));
        self.had_gap.load(Ordering::Acquire) && held_for < micros(lease)
    }

    fn dead_nodes_to_adopt(&self, nodes: &[Node], now: Timestamp, lease: Duration) -> Vec<LeaseToAdopt> {
        let late_fences: Vec<Fence> = {
            let fences_seen = self.fences_seen.read().unwrap_or_else(PoisonError::into_inner);
            let late_since = self.boot.micros().saturating_sub(micros(lease.saturating_mul(2)));
            // During an outage of the database, the fencer can take nothing over.
            let held_since = self.held_since.load(Ordering::Acquire);
            let is_late = |(_, seen_at): &(&Fence, &i64)| held_since.max(**seen_at) < late_since;
            fences_seen.iter().filter(is_late).map(|(fence, _)| *fence).collect()
        };
        dead_nodes_to_adopt((nodes, &late_fences), self.token().node, now, lease)
    }

    /// Keeps those of `leases` that still count as ended: the list of nodes shows no renewal, and no other lease of their nodes. For one lease
    /// length after a gap in this node's own lease, it keeps none: calls from before the gap have ended, and the list shows which leases they
    /// fenced.
    pub(crate) fn still_ended(&self, leases: Vec<LeaseToAdopt>, now: Timestamp, lease: Duration) -> Vec<LeaseToAdopt> {
        if self.gives_others_time(lease) {
            return Vec::new();
        }
        let nodes = self.nodes();
        let has_ended = |to_adopt: &LeaseToAdopt| {
            !mutant::on(Mutant::HeirBesideFencer)
                && nodes.iter().any(|node| (node.id, node.lease_until) == to_adopt.lease && !node.is_living(now))
        };
        leases.into_iter().filter(has_ended).collect()
    }

    /// Whether [`leases_to_adopt`](Self::leases_to_adopt) returns all leases that this node may have fenced. That function returns none before the
    /// first beat, although this node may have fenced a lease before it restarted. After a gap in this node's lease it leaves out some leases, and
    /// the answer to a fence may have been lost. After a step back of the clock, an older list of nodes may show a fenced lease as one that still
    /// holds.
    pub(crate) fn knows_fenced_leases(&self, now: Timestamp, lease: Duration) -> bool {
        let nodes = self.nodes();
        let dead_nodes = self.dead_nodes_to_adopt(&nodes, now, lease);
        let is_outdated = self.is_list_outdated.load(Ordering::Acquire);
        !nodes.is_empty() && !is_outdated && self.leases_to_adopt(now, lease).len() == dead_nodes.len()
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// The newest ended lease of each node that was alive recently, for at most [`FENCE_COUNT_MAX`] nodes. Executors refuse the triggers of these
/// leases.
pub(crate) fn fences(nodes: &[Node], now: Timestamp) -> Vec<LeaseToken> {
    let recent_nodes: Vec<Node> =
        nodes.iter().filter(|node| node.lease_until + FENCED_FOR > now).take(FENCE_COUNT_MAX).cloned().collect();
    ended_leases(&recent_nodes)
}

/// For each node, the newest lease that has ended for good: the node has taken another lease since, or an adopter of its runs has fenced it. Nodes
/// without such a lease are left out.
pub(crate) fn ended_leases(nodes: &[Node]) -> Vec<LeaseToken> {
    let has_earlier_lease = |node: &&Node| node.epoch > 1;
    nodes.iter().filter(has_earlier_lease).map(|node| LeaseToken { node: node.id, epoch: node.epoch - 1 }).collect()
}

/// The ended leases whose runs `own_node` takes over. A node that is leaving or switched off takes over runs only if no other node can, or if
/// it has fenced their lease: the limits of the dead node are at the node that has fenced it, which must know the runs under them. Other nodes
/// take these runs over if the fence is late.
fn dead_nodes_to_adopt(
    (nodes, late_fences): (&[Node], &[Fence]),
    own_node: NodeId,
    now: Timestamp,
    lease: Duration,
) -> Vec<LeaseToAdopt> {
    let ids = |may: &dyn Fn(&Node) -> bool| -> Vec<NodeId> {
        nodes.iter().filter(|node| may(node)).map(|node| node.id).collect()
    };
    let takers = ids(&|node| node.takes_jobs(now));
    let adopters = if takers.is_empty() { ids(&|node| node.is_living(now)) } else { takers };
    let next_adopter = |dead: NodeId| adopters.iter().copied().find(|id| *id > dead).or(adopters.first().copied());
    let to_adopt = |dead: &Node| {
        let last_fencer = last_fencer(nodes, dead);
        let adopter = if last_fencer.is_living(now) { Some(last_fencer.id) } else { next_adopter(last_fencer.id) };
        let ended_lease = (dead.id, dead.lease_until);
        let (is_own, is_adopter) = (adopter == Some(own_node), adopters.contains(&own_node));
        let is_late = is_adopter && dead.fenced_by.is_some_and(|fencer| late_fences.contains(&(ended_lease, fencer)));
        let is_overdue = is_adopter && dead.fenced_by.is_none() && now > dead.lease_until + lease.saturating_mul(2);
        (is_own || is_late || is_overdue).then_some(LeaseToAdopt { lease: ended_lease, is_late })
    };
    nodes.iter().filter(|dead| dead.id != own_node && !dead.is_living(now)).filter_map(to_adopt).collect()
}

/// The node that has the limits of this dead node: the last node in the chain of its fencer, the fencer of that node, and so on. The dead node
/// itself if no node has fenced it.
fn last_fencer<'a>(nodes: &'a [Node], dead: &'a Node) -> &'a Node {
    let mut node = dead;
    // A chain of fencers is at most as long as the list, and has no cycle unless servers of an earlier version wrote it.
    for _ in 0..nodes.len() {
        let fenced_by = node.fenced_by.filter(|_| !mutant::on(Mutant::HeirBesideFencer));
        let Some(fencer) = fenced_by.and_then(|id| nodes.iter().find(|other| other.id == id)) else { break };
        node = fencer;
    }
    node
}

#[cfg(test)]
mod tests;
