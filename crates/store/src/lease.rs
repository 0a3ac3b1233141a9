//! The leases that nodes act under: requests for a lease with their answers, renewals, and the ends of earlier leases.

use std::time::Duration;

use rondel_core::edit::EDIT_CUTOFF;
use rondel_core::{IdGen, NodeId, Timestamp};
use rondel_failpoint::mutant::{self, Mutant};

/// The lease that a node acts under. The node has lost the lease if its epoch is no longer the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseToken {
    pub node: NodeId,
    /// Rises each time the node takes a new lease.
    pub epoch: i64,
}

/// A request for a node's lease.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The node's name, which stays the same across restarts.
    pub name: String,
    /// How long a lease lasts.
    pub lease: Duration,
    /// Where executors reach the node, if that is configured.
    pub advertise_url: Option<String>,
    pub server_version: String,
    /// Whether to take the lease even from a node that seems alive: the caller holds SQLite's file lock, so no other server runs.
    pub may_take_over: bool,
    /// The lease of this name that the caller has held until now. The caller may take the next lease before this one has ended.
    pub held: Option<LeaseToken>,
    /// How long the answer has been [`Join::BeingTakenOver`], by the caller's own clock, because the database's clock may step.
    pub waited_for_takeover: Duration,
}

/// A renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The database's clock at the renewal.
    pub now: Timestamp,
    /// The stored end of the lease before the renewal.
    pub previous_until: Timestamp,
    /// The new end of the lease.
    pub until: Timestamp,
}

impl JoinRequest {
    /// The next epoch: higher than the stored epoch and than the one that the caller has held. If the database lost its last transactions,
    /// the caller's epoch is no longer stored, but executors still know it.
    pub(crate) fn epoch_after(&self, stored_lease: LeaseToken) -> i64 {
        let own_epoch =
            self.held.filter(|own_lease| own_lease.node == stored_lease.node).map_or(0, |own_lease| own_lease.epoch);
        stored_lease.epoch.max(own_epoch) + 1
    }

    /// The id for a node without a row: the id of the lease that the caller has held, unless another node has that id; otherwise the next
    /// id.
    pub(crate) fn new_id(&self, newest_id: i64, is_taken: impl Fn(NodeId) -> bool) -> NodeId {
        let own_id = self.held.map(|own_lease| own_lease.node).filter(|node| !is_taken(*node));
        own_id.unwrap_or_else(|| NodeId::new(newest_id + 1))
    }

    /// The latest end of the lease `before` and of all leases before it. `last` is the end of `before`. `prior` is the latest end of the
    /// earlier leases; it may be later than `last` if the clock has stepped back. `None` if the lease `before` is alive, is not the
    /// caller's own, and may not be taken over. A fenced lease has ended, even if the clock has stepped back to before its end; runs that
    /// were due by that end may have been sent.
    ///
    /// A lease that is taken over counts as ended a second after `now` at the latest, although no server acts under it any more: triggers
    /// are sent ahead of their instants, so runs that are due within that second may have been sent. The server that takes the lease over
    /// asks the executors for these runs. No edit settles them, because an edit does not change runs that are due within a second. If the clock
    /// has stepped back, runs that are due later may have been sent, too.
    pub(crate) fn latest_end(
        &self,
        before: LeaseToken,
        is_fenced: bool,
        (last, prior): (Timestamp, Timestamp),
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_own = self.held == Some(before);
        let sent_ahead = if mutant::on(Mutant::TakenOverEndsAtOnce) { Duration::ZERO } else { EDIT_CUTOFF };
        // The lease was renewed one lease length before `last`. If the clock shows an earlier instant, it has stepped back since.
        let has_stepped_back = now < last - self.lease;
        let ended_at = if is_own || is_fenced || has_stepped_back { last } else { last.min(now + sent_ahead) };
        (is_own || is_fenced || last <= now || self.may_take_over).then(|| ended_at.max(prior))
    }

    /// Whether the caller still waits until the node that has fenced its last lease has taken over the open runs of that lease. It waits
    /// for at most twice the length of a lease. A caller that may take over leases does not wait, because no other server runs, even if the
    /// lease of another name has not ended.
    pub(crate) fn waits_for_takeover(&self) -> bool {
        !self.may_take_over && self.waited_for_takeover < self.lease * 2 && !mutant::on(Mutant::JoinsDuringTakeover)
    }

    /// The end of the lease that is taken at `now`, after leases that ended at `ended_at`.
    pub(crate) fn lease_until(&self, now: Timestamp, ended_at: Timestamp) -> Timestamp {
        distinct_end(now + self.lease, ended_at)
    }
}

/// The end to store for a lease: `until`, or a millisecond earlier if `until` equals `prior`, the end of the earlier leases. Equal ends in
/// a node's row mean that the node is fenced. Without this difference they could also be equal because the clock has stepped back. No
/// run counts as unsent because of the earlier end: the later of the two ends decides that, and it is `prior`.
pub(crate) fn distinct_end(until: Timestamp, prior: Timestamp) -> Timestamp {
    if until == prior { until - Duration::from_millis(1) } else { until }
}

/// The ordinal of the next lease, after `lease_count` leases: the next in turn that is not taken, or 0 if all are taken. A restarted node
/// does not keep its ordinal: if the database's clock has stepped back since, the node would make ids that exist already.
pub(crate) fn next_ordinal(lease_count: i64, is_taken: impl Fn(i64) -> bool) -> i64 {
    let ordinal_in_turn = |step: i64| lease_count.wrapping_add(step).rem_euclid(IdGen::ORDINAL_COUNT);
    (0..IdGen::ORDINAL_COUNT).map(ordinal_in_turn).find(|ordinal| !is_taken(*ordinal)).unwrap_or_default()
}

/// Number of leases that these nodes have taken, plus one for each removed node. Ids are consecutive and the newest node is never removed,
/// so the highest id is the number of all nodes that ever existed.
pub(crate) fn lease_count(nodes: impl Iterator<Item = LeaseToken>) -> i64 {
    let (newest_id, repeated_count) = nodes.fold((0, 0), |(newest_id, repeated_count), token| {
        (token.node.get().max(newest_id), repeated_count + token.epoch - 1)
    });
    newest_id + repeated_count
}

/// The answer to a [`JoinRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The lease is taken under a new epoch.
    Joined {
        /// The lease to act under.
        token: LeaseToken,
        /// Part of the ids that the node makes (the worker number of a Snowflake id). No other living node has it. Ordinals are assigned in
        /// turn, so the most recent leases had different ones.
        ordinal: i64,
    },
    /// A living node has this name.
    Living {
        /// The end of its lease, by the database's clock. If it is later at the next request, the node really is alive.
        lease_until: Timestamp,
        /// The epoch of that lease.
        epoch: i64,
    },
    /// The last lease of this name is fenced, another node is alive, and not all open runs of that lease have been taken over. The caller
    /// should repeat the request soon. The node that has fenced the lease takes over the rest at once, and after twice the length of a
    /// lease the request succeeds in any case.
    ///
    /// If the caller took back its remaining runs itself, two nodes would have runs under one limit that jobs share, and neither node would
    /// know all of these runs.
    BeingTakenOver,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_lease_never_looks_fenced() {
        let lease = Duration::from_secs(5);
        let request = JoinRequest {
            name: "a".to_owned(),
            lease,
            advertise_url: None,
            server_version: String::new(),
            may_take_over: true,
            held: None,
            waited_for_takeover: Duration::ZERO,
        };
        let now = Timestamp::from_millis(1_000);
        let before = LeaseToken { node: NodeId::new(1), epoch: 1 };
        let latest_end =
            |last| request.latest_end(before, false, (last, Timestamp::EPOCH), now).expect("it is taken over");
        assert_eq!(latest_end(now + lease), now + EDIT_CUTOFF, "what is due until then may have been sent");
        let soon = now + Duration::from_millis(300);
        assert_eq!([latest_end(soon), latest_end(now)], [soon, now], "nothing is sent that is due after the lease");
        let stepped_back = now + lease + Duration::from_millis(1);
        assert_eq!(latest_end(stepped_back), stepped_back, "the clock was later when the lease was renewed");
        assert_eq!(request.lease_until(now, now + lease), now + lease - Duration::from_millis(1));
        assert_eq!(request.lease_until(now, now), now + lease);
        assert!(!request.waits_for_takeover(), "no other server runs");
        let beside_others = JoinRequest { may_take_over: false, ..request };
        let ahead = now + lease;
        assert_eq!(beside_others.latest_end(before, false, (ahead, now), now), None);
        assert_eq!(beside_others.latest_end(before, true, (ahead, ahead), now), Some(ahead), "the clock stepped back");
        let waits =
            |waited_for_takeover| JoinRequest { waited_for_takeover, ..beside_others.clone() }.waits_for_takeover();
        assert_eq!([lease, lease * 2].map(waits), [true, false]);
    }

    #[test]
    fn no_lease_has_an_ordinal_of_one_before() {
        let token = |node, epoch| LeaseToken { node: NodeId::new(node), epoch };
        let next = |leases: &[LeaseToken]| next_ordinal(lease_count(leases.iter().copied()), |_| false);
        assert_eq!([next(&[]), next(&[token(1, 1)])], [0, 1]);
        // Nodes 1 and 2 were removed. Node 3 starts again, and then node 4 joins.
        assert_eq!([next(&[token(3, 1)]), next(&[token(3, 2)]), next(&[token(3, 2), token(4, 1)])], [3, 4, 5]);
        assert_eq!(next_ordinal(IdGen::ORDINAL_COUNT + 2, |ordinal| ordinal == 2), 3, "ordinal 2 is in use");
    }
}
