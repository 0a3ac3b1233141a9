use rondel_store::cluster::NodeReport;

use crate::clock::boot_micros;

use super::*;

fn node(id: i64, lease_until: i64) -> Node {
    Node {
        id: NodeId::new(id),
        name: format!("n{id}"),
        epoch: 1,
        lease_until: Timestamp::from_secs(lease_until),
        is_fenced: false,
        fenced_by: None,
        advertise_url: None,
        server_version: String::new(),
        started_at: Timestamp::EPOCH,
        switch: Switch::Active,
        report: NodeReport::default(),
    }
}

fn fenced(id: i64, lease_until: i64) -> Node {
    Node { is_fenced: true, ..node(id, lease_until) }
}

fn nodes_adopted_by(nodes: &[Node], now: i64, this: i64) -> Vec<i64> {
    let lease = Duration::from_secs(5);
    let over = dead_nodes_to_adopt((nodes, &[]), NodeId::new(this), Timestamp::from_secs(now), lease);
    over.iter().map(|to_adopt| to_adopt.lease.0.get()).collect()
}

fn ended_leases(membership: &Membership, now: Timestamp, lease: Duration) -> Vec<EndedLease> {
    membership.leases_to_adopt(now, lease).iter().map(|to_adopt| to_adopt.lease).collect()
}

fn fenced_by(fencer: i64, dead: Node) -> Node {
    Node { is_fenced: true, fenced_by: Some(NodeId::new(fencer)), ..dead }
}

/// The fence moves the limits of the dead node to its fencer. Only the node that has the runs under a limit can count them.
#[test]
fn the_runs_of_a_fenced_lease_go_to_the_node_that_got_its_limits() {
    let adopters = |nodes: &[Node], now| -> Vec<(i64, Vec<i64>)> {
        nodes
            .iter()
            .map(|node| (node.id.get(), nodes_adopted_by(nodes, now, node.id.get())))
            .filter(|(_, dead)| !dead.is_empty())
            .collect()
    };
    // Node 3 came back after node 1 had fenced node 2.
    let mut nodes = [node(1, 100), fenced_by(1, node(2, 10)), node(3, 100), node(4, 100)];
    assert_eq!(adopters(&nodes, 12), [(1, vec![2])]);
    nodes[0].report.is_leaving = true;
    assert_eq!(adopters(&nodes, 12), [(1, vec![2])], "it has fenced node 2, and lives");
    assert_eq!(adopters(&nodes, 50), [(1, vec![2])], "by the clock, which may have stepped ahead");
    // Node 1 has died too: its heir gets its limits, and with them those of node 2.
    nodes[0].lease_until = Timestamp::from_secs(11);
    nodes[1] = fenced_by(1, node(2, 11));
    nodes[2].lease_until = Timestamp::from_secs(11);
    assert_eq!(adopters(&nodes, 12), [(4, vec![1, 2, 3])]);
    let chain = [node(1, 11), fenced_by(4, node(2, 11)), node(3, 100), fenced_by(1, node(4, 11)), node(5, 100)];
    assert_eq!(adopters(&chain, 12), [(3, vec![1, 2, 4])], "the last fencer is node 1");
    let circle = [fenced_by(2, node(1, 11)), fenced_by(1, node(2, 11)), node(3, 100)];
    assert_eq!(adopters(&circle, 12), [(3, vec![1, 2])]);
    let unknown = [node(1, 100), fenced_by(9, node(2, 11)), node(3, 100), fenced(4, 11)];
    assert_eq!(adopters(&unknown, 12), [(1, vec![4]), (3, vec![2])]);
}

/// A node counts two lease lengths from when it first saw the fence, by its own clock. The end of the fenced lease would
/// not do: after an outage, all leases ended long ago.
#[test]
fn a_takeover_that_takes_two_leases_is_helped() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let lease = Duration::from_secs(5);
    let micros = Arc::new(AtomicI64::new(60_000_000));
    let given = Arc::clone(&micros);
    let boot = BootClock::Given(Arc::new(move || given.load(Ordering::Relaxed)));
    let membership = Membership::new(token, 1, 60_000_000, lease, boot);
    let now = Timestamp::from_secs(500);
    let at = |seconds: i64, dead: Node| {
        micros.store(seconds * 1_000_000, Ordering::Relaxed);
        membership.set_nodes(vec![node(1, 1_000), dead, node(3, 1_000)], now);
        membership.leases_to_adopt(now, lease)
    };
    assert_eq!(at(60, fenced_by(3, node(2, 10))), []);
    assert_eq!(at(70, fenced_by(3, node(2, 10))), []);
    let late = [LeaseToAdopt { lease: (NodeId::new(2), Timestamp::from_secs(10)), is_late: true }];
    assert_eq!(at(71, fenced_by(3, node(2, 10))), late);
    assert_eq!(at(72, fenced_by(3, node(2, 20))), [], "it had another lease");
    membership.end_lease();
    membership.record_new_lease(LeaseToken { epoch: 2, ..token }, 1, 80_000_000, lease);
    assert_eq!(at(86, fenced_by(3, node(2, 20))), [], "the fencer may have been without the database, too");
    assert_eq!(at(91, fenced_by(3, node(2, 20))).len(), 1);
    assert_eq!(
        at(92, fenced_by(1, node(2, 20))),
        [LeaseToAdopt { lease: (NodeId::new(2), Timestamp::from_secs(20)), is_late: false }]
    );
}

#[test]
fn a_fence_without_an_answer_is_tried_again_while_its_lease_has_ended() {
    let lease = Duration::from_secs(5);
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let membership = Membership::new(token, 1, boot_micros(), lease, BootClock::Host);
    let now = Timestamp::from_secs(12);
    let tried =
        [2, 3, 4, 5].map(|id| LeaseToAdopt { lease: (NodeId::new(id), Timestamp::from_secs(10)), is_late: false });
    let nodes = vec![node(1, 100), node(2, 10), node(3, 100), node(4, 11)];
    membership.set_nodes(nodes, now);
    assert_eq!(
        membership.still_ended(tried.to_vec(), now, lease),
        tried[..1],
        "3 lives, 4 had another lease, 5 is gone"
    );
    membership.end_lease();
    membership.record_new_lease(LeaseToken { epoch: 2, ..token }, 1, boot_micros(), lease);
    assert_eq!(membership.still_ended(tried.to_vec(), now, lease), [], "node 2 gets time to come back");
}

#[test]
fn each_dead_node_has_one_heir_until_two_leases_are_over() {
    let nodes = [node(1, 100), node(2, 10), node(3, 100), node(4, 10)];
    assert_eq!((nodes_adopted_by(&nodes, 12, 3), nodes_adopted_by(&nodes, 12, 1)), (vec![2], vec![4]));
    assert_eq!(nodes_adopted_by(&nodes, 21, 1), [2, 4]);
    assert!(nodes_adopted_by(&nodes, 5, 1).is_empty());
}

/// The clock has stepped back to before the ends of leases that were fenced.
#[test]
fn a_fenced_lease_has_ended_whatever_the_clock_shows() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let lease = Duration::from_secs(5);
    let (now, end) = (Timestamp::from_secs(50), Timestamp::from_secs(600));
    let membership = Membership::new(token, 1, boot_micros(), lease, BootClock::Host);
    membership.set_nodes(vec![node(1, 1_000), node(2, 600)], end + lease);
    membership.note_step_back();
    assert!(!membership.knows_fenced_leases(now, lease), "node 2 may be fenced since");
    membership.set_nodes(vec![node(1, 1_000), fenced(2, 600)], now);
    assert_eq!(ended_leases(&membership, now, lease), [(NodeId::new(2), end)]);
    assert!(membership.knows_fenced_leases(now, lease));
    let later = now + UNSETTLED_FOR;
    assert!(!membership.is_unsettled(later), "node 2 does not leave, it is dead");
    assert_eq!(membership.claimable_homes(now), [NodeId::new(0)], "its open runs are not known yet");
    membership.note_adopted(&[(NodeId::new(2), end)]);
    assert_eq!(membership.claimable_homes(now), [NodeId::new(0), NodeId::new(2)]);

    // After a gap in its own lease, this node does not wait for node 2 to come back.
    membership.note_adopted(&[]);
    membership.record_new_lease(LeaseToken { epoch: 2, ..token }, 1, boot_micros(), lease);
    assert_eq!(ended_leases(&membership, now, lease), [(NodeId::new(2), end)]);

    // It is no heir either: all other nodes are leaving, and node 1 takes over the runs of node 4 at once.
    let mut leaving = node(1, 100);
    leaving.report.is_leaving = true;
    assert_eq!(nodes_adopted_by(&[leaving, node(4, 49), fenced(5, 600)], 50, 1), [4, 5]);
}

#[test]
fn the_takers_count_as_unchanged_from_a_step_back_of_the_clock_on() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let membership = Membership::new(token, 1, boot_micros(), Duration::from_secs(5), BootClock::Host);
    let at = Timestamp::from_secs;
    for now in [100, 50, 60] {
        membership.set_nodes(vec![node(1, 1_000), node(2, 1_000)], at(now));
    }
    assert_eq!(membership.takers_unchanged_for(at(90)), Duration::from_secs(40));
}

#[test]
fn a_node_that_takes_no_jobs_adopts_only_if_no_other_node_can() {
    let mut nodes = [node(1, 100), node(2, 10), node(3, 100)];
    nodes[2].switch = Switch::Draining;
    assert_eq!(
        (nodes_adopted_by(&nodes, 12, 1), nodes_adopted_by(&nodes, 12, 3), nodes_adopted_by(&nodes, 30, 3)),
        (vec![2], vec![], vec![])
    );
    nodes[0].report.is_leaving = true;
    assert_eq!((nodes_adopted_by(&nodes, 12, 1), nodes_adopted_by(&nodes, 12, 3)), (vec![], vec![2]));
}

#[test]
fn after_a_gap_of_its_own_a_node_gives_the_others_time() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let lease = Duration::from_secs(5);
    let long_ago = boot_micros() - 60_000_000;
    let membership = Membership::new(token, 1, long_ago, lease, BootClock::Host);
    let now = Timestamp::from_secs(50);
    assert!(!membership.knows_fenced_leases(now, lease), "no node is known yet");
    membership.set_nodes(vec![node(1, 100), node(2, 10)], now);
    let over = [(NodeId::new(2), Timestamp::from_secs(10))];
    assert_eq!(ended_leases(&membership, now, lease), over);
    assert!(membership.knows_fenced_leases(now, lease));
    membership.record_renewal(boot_micros(), lease);
    assert_eq!(ended_leases(&membership, now, lease), []);
    assert!(!membership.knows_fenced_leases(now, lease), "it may have fenced node 2");
    let mut left = node(2, 10);
    left.report.is_leaving = true;
    membership.set_nodes(vec![node(1, 100), left], now);
    assert_eq!(ended_leases(&membership, now, lease), over);

    let membership = Membership::new(token, 1, long_ago, lease, BootClock::Host);
    membership.set_nodes(vec![node(1, 100), node(2, 10)], now);
    membership.end_lease();
    membership.record_new_lease(LeaseToken { epoch: 2, ..token }, 1, boot_micros(), lease);
    assert_eq!(ended_leases(&membership, now, lease), [], "it has another lease");
    assert!(membership.has_adopted(&[]) && !membership.has_adopted(&over));
    membership.note_adopted(&over);
    assert!(membership.has_adopted(&over));
    assert_eq!(
        ended_leases(&membership, now, lease),
        over,
        "node 2 cannot come back under a lease that was taken over"
    );
}

#[test]
fn rows_may_be_old_after_half_a_lease_without_the_database() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let lease = Duration::from_secs(4);
    let micros = Arc::new(AtomicI64::new(60_000_000));
    let given = Arc::clone(&micros);
    let boot = BootClock::Given(Arc::new(move || given.load(Ordering::Relaxed)));
    let membership = Membership::new(token, 1, 60_000_000, lease, boot).with_cut_off_after(Duration::from_secs(1));
    membership.set_nodes(vec![node(1, 1_000), node(2, 1_000)], Timestamp::EPOCH);
    let cut_off = |at: i64| {
        micros.store(at * 1_000_000, Ordering::Relaxed);
        membership.was_cut_off_within(Duration::from_secs(30))
    };
    assert!(!cut_off(62), "the next answer may be under way");
    membership.record_renewal(62_000_000, lease);
    assert!(!cut_off(64));
    assert!(cut_off(65), "as long as no answer comes");
    membership.record_renewal(70_000_000, lease);
    assert!(cut_off(71), "no server has had the time to store whom it hears");
    membership.set_nodes(vec![node(1, 1_000)], Timestamp::EPOCH);
    assert!(!cut_off(71), "no other node hears executors");
    membership.set_nodes(vec![node(1, 1_000), node(2, 1_000)], Timestamp::EPOCH);
    for renewed in 36..50 {
        membership.record_renewal(renewed * 2_000_000, lease);
    }
    assert!(cut_off(99));
    membership.record_renewal(100_000_000, lease);
    assert!(!cut_off(100));
}

#[test]
fn only_nodes_that_take_jobs_may_claim_jobs_of_others() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let membership = Membership::new(token, 1, boot_micros(), Duration::from_secs(5), BootClock::Host);
    let now = Timestamp::from_secs(50);
    membership.note_adopted(&[(NodeId::new(2), Timestamp::from_secs(10))]);
    membership.set_nodes(vec![node(1, 100), node(2, 10), node(3, 10)], now);
    assert_eq!(membership.claimable_homes(now), [NodeId::new(0), NodeId::new(2)]);
    // Node 2 came back, and its lease ended again: the runs that it opened since were not taken over.
    membership.set_nodes(vec![node(1, 100), node(2, 20), node(3, 10)], now);
    assert_eq!(membership.claimable_homes(now), [NodeId::new(0)]);
    let mut switched = node(1, 100);
    switched.switch = Switch::Stopped;
    membership.set_nodes(vec![switched, node(2, 10), node(3, 100)], now);
    assert_eq!(membership.claimable_homes(now), []);
    assert_eq!(membership.switch(), Switch::Stopped);
    assert_eq!(
        membership.node_shares(now).iter().map(|node_share| node_share.node).collect::<Vec<_>>(),
        [NodeId::new(3)]
    );
    assert!(membership.is_unsettled(now) && membership.is_unsettled(now + Duration::from_secs(40)));
}

#[test]
fn the_next_end_is_that_of_another_living_node() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let membership = Membership::new(token, 1, boot_micros(), Duration::from_secs(5), BootClock::Host);
    let now = Timestamp::from_secs(50);
    membership.set_nodes(vec![node(1, 51), node(2, 50), fenced(3, 60)], now);
    assert_eq!(membership.next_lease_end(now), None);
    membership.set_nodes(vec![node(1, 51), node(2, 50), node(3, 60), node(4, 53)], now);
    assert_eq!(membership.next_lease_end(now), Some(Timestamp::from_secs(53)));
}

#[tokio::test]
async fn a_renewal_that_is_answered_late_does_not_bring_back_a_lease_that_was_given_back() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let lease = Duration::from_secs(5);
    let membership = Membership::new(token, 1, boot_micros(), lease, BootClock::Host);
    membership.end_lease();
    membership.record_renewal(boot_micros(), lease);
    assert!(membership.holds_lease());
    membership.give_back().await;
    assert!(membership.begin_renewal().await.is_none());
    membership.record_renewal(boot_micros(), lease);
    membership.record_new_lease(LeaseToken { epoch: 2, ..token }, 1, boot_micros(), lease);
    assert!(!membership.holds_lease());
}

#[test]
fn a_lease_ends_by_itself() {
    let token = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let long_ago = BootClock::Host.micros() - 4_600_000;
    assert!(!Membership::new(token, 1, long_ago, Duration::from_secs(5), BootClock::Host).holds_lease());
    assert!(Membership::new(token, 1, BootClock::Host.micros(), Duration::from_secs(5), BootClock::Host).holds_lease());
}
