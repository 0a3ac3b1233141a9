//! Checks of nodes, leases and sessions.

use std::time::Duration;

use rondel_core::{AppId, ExecutorId, NodeId, Timestamp};

use super::records::executor;
use super::{DEFAULT, LEASE, app, join, name, next_id, stream_end};
use crate::cluster::{ExecutorRecord, HostProcess, Join, JoinRequest, Renewal, StreamEnd};
use crate::{LeaseToken, Store};

pub(super) fn request(name: &str) -> JoinRequest {
    JoinRequest {
        name: name.to_owned(),
        lease: LEASE,
        advertise_url: Some("http://node:8080".to_owned()),
        server_version: "0.2.0".to_owned(),
        may_take_over: false,
        held: None,
        waited_for_takeover: Duration::ZERO,
    }
}

#[track_caller]
fn expect_joined(join: Join) -> (LeaseToken, i64) {
    match join {
        Join::Joined { token, ordinal } => (token, ordinal),
        refused @ (Join::Living { .. } | Join::BeingTakenOver) => unreachable!("{refused:?}"),
    }
}

/// The clock moves forward, in milliseconds, and shows a plausible time.
pub async fn the_clock_moves_forward(store: &dyn Store) {
    let before = store.now().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let after = store.now().await.unwrap();
    let passed = after.since(before);
    assert!(passed >= Duration::from_millis(15) && passed < Duration::from_secs(10), "{passed:?}");
    assert!(before > Timestamp::from_secs(1_700_000_000) && after < Timestamp::from_secs(10_000_000_000));
}

/// A living lease is not taken. A lease that has ended is taken under the next epoch, and the old epoch is no longer valid.
pub async fn a_lease_is_held_by_one(store: &dyn Store) {
    let request = request(&name("node"));
    let (first, ordinal) = expect_joined(store.join(&request).await.unwrap());
    assert_eq!(first.epoch, 1);
    let Join::Living { lease_until, epoch } = store.join(&request).await.unwrap() else { unreachable!() };
    assert_eq!(epoch, 1);
    let Renewal { now, previous_until: before, until } = store.renew(first, LEASE * 2).await.unwrap().unwrap();
    assert_eq!((before, until), (lease_until, now + LEASE * 2));
    let node = store.nodes().await.unwrap().into_iter().find(|node| node.id == first.node).unwrap();
    assert_eq!((node.token(), node.name.as_str()), (first, request.name.as_str()));
    assert_eq!(node.advertise_url.as_deref(), Some("http://node:8080"));
    assert!(node.lease_until > lease_until && node.is_living(now));

    // A renewal that would move the end of the lease back, as after a step back of the clock, is refused: runs due until the old end may
    // have been sent, and the row would no longer show that. The node takes its next lease instead, and the store keeps the old end.
    assert_eq!(store.renew(first, LEASE / 2).await.unwrap(), None);
    let other = LeaseToken { epoch: 7, ..first };
    let again = |held| JoinRequest { held: Some(held), ..request.clone() };
    assert!(matches!(store.join(&again(other)).await.unwrap(), Join::Living { .. }), "it is another's");
    let (next, other) = expect_joined(store.join(&again(first)).await.unwrap());
    assert_eq!(next, LeaseToken { epoch: 2, ..first });
    assert_ne!(other, ordinal, "ids that were made with the old ordinal may be ahead of the clock");
    assert_eq!(store.renew(first, LEASE * 4).await.unwrap(), None);
    let first = next;

    // The database lost its last transactions. The node keeps the id that executors know, and continues above the epoch that they know.
    let later = LeaseToken { epoch: 9, ..first };
    let lost = JoinRequest { name: name("lost"), held: Some(later), ..request.clone() };
    let (elsewhere, _) = expect_joined(store.join(&lost).await.unwrap());
    assert!(elsewhere.node != first.node && elsewhere.epoch == 1, "another node has that id: {elsewhere:?}");
    let unknown = LeaseToken { node: NodeId::new(elsewhere.node.get() + 1_000), epoch: 9 };
    let lost = JoinRequest { name: name("lost"), held: Some(unknown), ..request.clone() };
    assert_eq!(expect_joined(store.join(&lost).await.unwrap()).0, LeaseToken { epoch: 10, ..unknown });

    let taking = JoinRequest { may_take_over: true, ..request.clone() };
    let (second, third) = expect_joined(store.join(&taking).await.unwrap());
    assert_eq!(second, LeaseToken { epoch: 3, ..first });
    assert!(![ordinal, other].contains(&third));
    assert_eq!(store.renew(first, LEASE).await.unwrap(), None);
    store.release(first, Timestamp::EPOCH).await.unwrap();
    assert!(matches!(store.join(&request).await.unwrap(), Join::Living { epoch: 3, .. }), "another's lease");

    store.release(second, Timestamp::EPOCH).await.unwrap();
    let (third, _) =
        expect_joined(store.join(&JoinRequest { lease: Duration::from_millis(30), ..request.clone() }).await.unwrap());
    assert_eq!(third.epoch, 4);
    tokio::time::sleep(Duration::from_millis(60)).await;
    let (a, b) = tokio::join!(store.join(&request), store.join(&request));
    let (a, b) = (a.unwrap(), b.unwrap());
    let winners = [a, b].into_iter().filter(|join| matches!(join, Join::Joined { token, .. } if token.epoch == 5));
    assert_eq!(winners.count(), 1, "{a:?} {b:?}");
}

/// No two concurrent joins get the same id or ordinal.
pub async fn concurrent_joins_get_distinct_ids_and_ordinals(store: &dyn Store) {
    let requests = [request(&name("node")), request(&name("node")), request(&name("node"))];
    let (a, b, c) = tokio::join!(store.join(&requests[0]), store.join(&requests[1]), store.join(&requests[2]));
    let mut all = [expect_joined(a.unwrap()), expect_joined(b.unwrap()), expect_joined(c.unwrap())];
    all.sort_by_key(|(token, _)| token.node);
    assert!(all[0].0.node < all[1].0.node && all[1].0.node < all[2].0.node);
    assert!(all[0].1 != all[1].1 && all[1].1 != all[2].1 && all[0].1 != all[2].1, "{all:?}");
}

/// Runs that were due before the clock stepped back may have been sent. A lease that is released afterwards therefore ends no earlier than
/// these runs were due.
pub async fn a_lease_given_back_ends_where_the_clock_was(store: &dyn Store) {
    let token = join(store).await;
    let end = async || super::homes::node(store, token.node).await.lease_until;
    let reached = store.now().await.unwrap() + LEASE / 2;
    store.release(token, reached).await.unwrap();
    assert_eq!(end().await, reached);
    store.release(token, Timestamp::EPOCH).await.unwrap();
    assert!(end().await < reached);
    a_lease_that_ends_with_the_one_before_is_fenced(store).await;
}

/// If the clock has stepped back, a lease can end at the same instant as the lease before it. The node must not count as fenced already,
/// because then no other node would adopt its runs.
async fn a_lease_that_ends_with_the_one_before_is_fenced(store: &dyn Store) {
    let request = JoinRequest { may_take_over: true, ..request(&name("node")) };
    let (first, _) = expect_joined(store.join(&request).await.unwrap());
    let soon = store.now().await.unwrap() + Duration::from_millis(300);
    store.release(first, soon).await.unwrap();
    let (second, _) = expect_joined(store.join(&request).await.unwrap());
    store.release(second, soon).await.unwrap();
    let node = async || super::homes::node(store, first.node).await;
    while node().await.is_living(store.now().await.unwrap()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let other = join(store).await;
    let orphaned = store.orphaned_jobs(other, &[first.node.into()], 10).await.unwrap();
    assert_eq!((orphaned.fenced, node().await.epoch), (vec![first.node], second.epoch + 1));
}

/// An open session counts as heard until its lease ends, whichever beat was recorded last. This also holds after the lease was fenced and
/// after the node has taken further leases.
pub async fn open_sessions_are_witnesses(store: &dyn Store) {
    let (request, other) = (request(&name("node")), join(store).await);
    let joined = async || match store.join(&request).await.unwrap() {
        Join::Joined { token, .. } => token,
        refused @ (Join::Living { .. } | Join::BeingTakenOver) => unreachable!("{refused:?}"),
    };
    let dead = joined().await;
    let start = store.now().await.unwrap();
    let record = executor(app(store).await, start);
    let sessions_of_executor = |sessions: Vec<crate::cluster::Session>| -> Vec<_> {
        sessions.into_iter().filter(|session| session.executor == record.id).collect()
    };
    let opened_at = store.open_session(dead, &record, None).await.unwrap().unwrap();
    let later = start + LEASE / 2;
    assert_eq!(sessions_of_executor(store.sessions(later).await.unwrap()), []);
    let [open] = sessions_of_executor(store.sessions_that_may_have_carried(later).await.unwrap())[..] else {
        unreachable!("one")
    };
    assert!(open.is_open() && open.token == dead && open.last_seen_at > later);
    assert_eq!(
        sessions_of_executor(store.sessions_that_may_have_carried(start).await.unwrap()),
        [open],
        "once, as heard last"
    );
    assert_eq!(sessions_of_executor(store.sessions_that_may_have_carried(start + LEASE * 2).await.unwrap()), []);
    store.close_session(dead, record.id, stream_end(opened_at)).await.unwrap();
    assert_eq!(sessions_of_executor(store.sessions_that_may_have_carried(later).await.unwrap()), [], "it is closed");
    assert_eq!(sessions_of_executor(store.sessions_that_may_have_carried(start).await.unwrap()).len(), 1);

    assert!(store.open_session(dead, &record, None).await.unwrap().is_some());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let middle = store.now().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    assert_eq!(super::orphans::adopt_all(store, other, &[dead.node]).await.0.fenced, [dead.node]);
    assert_eq!(
        sessions_of_executor(store.sessions_that_may_have_carried(middle).await.unwrap()).len(),
        1,
        "until the end of the lease that was fenced"
    );
    assert_eq!(sessions_of_executor(store.sessions_that_may_have_carried(later + LEASE).await.unwrap()), []);
    let next = joined().await;
    assert_eq!(
        sessions_of_executor(store.sessions_that_may_have_carried(middle).await.unwrap()).len(),
        1,
        "its epoch is not the fenced one's"
    );
    assert!(store.open_session(next, &record, None).await.unwrap().is_some());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let middle = store.now().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    store.release(next, Timestamp::EPOCH).await.unwrap();
    for _ in 0..2 {
        let next = joined().await;
        assert_eq!(
            sessions_of_executor(store.sessions_that_may_have_carried(middle).await.unwrap()).len(),
            1,
            "{next:?}"
        );
        assert_eq!(
            sessions_of_executor(store.sessions_that_may_have_carried(later + LEASE).await.unwrap()),
            [],
            "no longer for {next:?}"
        );
        store.release(next, Timestamp::EPOCH).await.unwrap();
    }
    let process = HostProcess { boot_id: u128::MAX, pid_namespace: u64::MAX, pid: i32::MAX, started_ticks: u64::MAX };
    let opened_at = store.open_session(other, &record, Some(process)).await.unwrap().unwrap();
    let with_process = |sessions| {
        sessions_of_executor(sessions).into_iter().filter(|session| session.process == Some(process)).count()
    };
    assert_eq!(with_process(store.sessions_that_may_have_carried(Timestamp::EPOCH).await.unwrap()), 1);
    assert_eq!(with_process(store.sessions(Timestamp::EPOCH).await.unwrap()), 1);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let closing = store.now().await.unwrap();
    store.close_session(other, record.id, stream_end(opened_at)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let after = store.now().await.unwrap();
    store.release(other, Timestamp::EPOCH).await.unwrap();
    let third = join(store).await;
    assert_eq!(super::orphans::adopt_all(store, third, &[other.node]).await.0.fenced, [other.node]);
    assert_eq!(
        sessions_of_executor(store.sessions_that_may_have_carried(closing).await.unwrap()).len(),
        1,
        "until the stream ended"
    );
    assert_eq!(
        sessions_of_executor(store.sessions_that_may_have_carried(after).await.unwrap()),
        [],
        "not until the lease did"
    );
    assert_eq!(sessions_of_executor(store.sessions(closing).await.unwrap()), [], "heard last when it was noted");
}

/// The end of an older stream does not end a newer stream of the same executor. A session ends no earlier than the time that its node's
/// clock has reached.
pub async fn a_session_ends_with_its_last_stream(store: &dyn Store) {
    let (token, start) = (join(store).await, store.now().await.unwrap());
    let record = executor(app(store).await, start);
    let session = async || {
        let sessions = store.sessions_that_may_have_carried(Timestamp::EPOCH).await.unwrap();
        sessions.into_iter().find(|session| session.executor == record.id).unwrap()
    };
    let older = store.open_session(token, &record, None).await.unwrap().unwrap();
    // The newer stream gets a later instant even if both are opened in the same millisecond.
    let newer = store.open_session(token, &record, None).await.unwrap().unwrap();
    assert!(newer > older);
    store.close_session(token, record.id, stream_end(older)).await.unwrap();
    assert!(session().await.is_open() && session().await.may_have_carried(start + LEASE * 9));
    let reached = newer + LEASE / 2;
    store.close_session(token, record.id, StreamEnd { opened_at: newer, reached }).await.unwrap();
    assert_eq!(session().await.ended_at, Some(reached));
    assert!(session().await.may_have_carried(reached) && !session().await.may_have_carried(reached + LEASE));
    let again = store.open_session(token, &record, None).await.unwrap().unwrap();
    store.close_session(token, record.id, stream_end(again)).await.unwrap();
    assert!(session().await.ended_at.is_some_and(|ended_at| ended_at >= start && ended_at < reached));
}

/// An incarnation belongs to the executor that first presented a secret with it.
pub async fn an_incarnation_with_a_secret_cannot_be_taken(store: &dyn Store) {
    let (token, start) = (join(store).await, store.now().await.unwrap());
    let record = executor(app(store).await, start);
    let with = |secret: Option<&str>| ExecutorRecord { secret_hash: secret.map(str::to_owned), ..record.clone() };
    assert_eq!(store.executor_proof(record.id).await.unwrap(), None);
    for (secret, is_let_in, known) in [
        (None, true, None),
        (Some("a"), true, Some("a")),
        (Some("a"), true, Some("a")),
        (Some("b"), false, Some("a")),
        (None, false, Some("a")),
    ] {
        assert_eq!(store.open_session(token, &with(secret), None).await.unwrap().is_some(), is_let_in, "{secret:?}");
        let proof = store.executor_proof(record.id).await.unwrap().unwrap();
        assert_eq!((proof.app, proof.secret_hash.as_deref()), (record.app, known));
    }
    let other = ExecutorRecord { id: ExecutorId::new(next_id()), ..with(Some("a")) };
    assert!(store.open_session(token, &other, None).await.unwrap().is_some());
    let successor = ExecutorRecord { id: ExecutorId::new(next_id()), predecessor: Some(record.id), ..other };
    assert!(store.open_session(token, &successor, None).await.unwrap().is_some());
    assert_eq!(store.executor_proof(successor.id).await.unwrap().unwrap().predecessor, Some(record.id));
    let second = ExecutorRecord { id: ExecutorId::new(next_id()), ..successor.clone() };
    assert!(store.open_session(token, &second, None).await.unwrap().is_some());
    assert_eq!(store.executor_successors(record.id, 9).await.unwrap(), [second.id, successor.id]);
    assert_eq!(store.executor_successors(record.id, 1).await.unwrap(), [second.id]);
    assert_eq!(store.executor_successors(second.id, 9).await.unwrap(), []);
}

/// Sessions are opened, kept alive and closed. Executors are read as they introduced themselves.
pub async fn sessions_record_which_node_hears_which_executor(store: &dyn Store) {
    let (a, b) = (join(store).await, join(store).await);
    let start = store.now().await.unwrap();
    let record = ExecutorRecord {
        name: "executor-ü".to_owned(),
        predecessor: Some(ExecutorId::new(5)),
        labels: r#"{"zone":"a"}"#.to_owned(),
        slots: u32::MAX,
        handlers: r#"["h"]"#.to_owned(),
        ..executor(app(store).await, start)
    };
    assert!(store.open_session(a, &record, None).await.unwrap().is_some());
    let with_slots = ExecutorRecord { slots: 9, ..record.clone() };
    let at_a = store.open_session(a, &with_slots, None).await.unwrap().unwrap();
    let at_b = store.open_session(b, &with_slots, None).await.unwrap().unwrap();
    // An executor cannot take the id of an executor of another app.
    let stranger = store.ensure_app(AppId::new(next_id()), DEFAULT, "stranger", start).await.unwrap();
    let of_stranger = ExecutorRecord { app: stranger.id, ..record.clone() };
    assert_eq!(store.open_session(b, &of_stranger, None).await.unwrap(), None);
    tokio::time::sleep(Duration::from_millis(10)).await;
    let middle = store.now().await.unwrap();
    store.beat_sessions(b, &[record.id]).await.unwrap();
    store.beat_sessions(b, &[]).await.unwrap();
    store.beat_sessions(LeaseToken { epoch: 0, ..a }, &[record.id]).await.unwrap();
    store.close_session(a, record.id, stream_end(at_a)).await.unwrap();
    store.close_session(LeaseToken { epoch: 9, ..b }, record.id, stream_end(at_b)).await.unwrap();

    let sessions_of_executor = |sessions: Vec<crate::cluster::Session>| -> Vec<_> {
        sessions.into_iter().filter(|session| session.executor == record.id).collect()
    };
    let all = sessions_of_executor(store.sessions(start).await.unwrap());
    assert_eq!(
        all.iter().map(|session| (session.token, session.is_open())).collect::<Vec<_>>(),
        [(a, false), (b, true)]
    );
    assert_eq!(all[1].app, record.app);
    let heard = sessions_of_executor(store.sessions(middle).await.unwrap());
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].token, b);

    let executors = store.executors(DEFAULT, middle).await.unwrap();
    let found = executors.iter().find(|executor| executor.id == record.id).unwrap();
    assert!(found.last_seen_at >= middle);
    assert_eq!(*found, ExecutorRecord { slots: 9, last_seen_at: found.last_seen_at, ..record.clone() });
    let seen = store.seen_executors(DEFAULT, middle).await.unwrap();
    let names = |all: &[ExecutorRecord]| all.iter().map(|one| (one.id, one.app, one.name.clone())).collect::<Vec<_>>();
    assert_eq!(seen.iter().map(|one| (one.id, one.app, one.name.clone())).collect::<Vec<_>>(), names(&executors));
    let by_id = store.executors_by_id(&[record.id, ExecutorId::new(1)], middle).await.unwrap();
    assert_eq!((by_id.len(), by_id.first()), (1, Some(found)));
    assert!(store.executors_by_id(&[], middle).await.unwrap().is_empty());
    let later = store.now().await.unwrap() + Duration::from_secs(1);
    assert!(store.seen_executors(DEFAULT, later).await.unwrap().is_empty());
    assert!(store.executors_by_id(&[record.id], later).await.unwrap().is_empty());
    assert!(store.executors(DEFAULT, later).await.unwrap().is_empty());

    // The node took its next lease, and the stream is still open.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let (next, end) = (LeaseToken { epoch: b.epoch + 1, ..b }, store.now().await.unwrap());
    store.beat_sessions(next, &[record.id]).await.unwrap();
    store.beat_sessions(b, &[record.id]).await.unwrap();
    let heard = sessions_of_executor(store.sessions(end).await.unwrap());
    assert_eq!(heard.iter().map(|session| (session.token, session.is_open())).collect::<Vec<_>>(), [(next, true)]);
}

/// An executor that shut down cleanly has left all nodes, until it connects again.
pub async fn an_executor_that_ended_in_order_has_left(store: &dyn Store) {
    let (a, b) = (join(store).await, join(store).await);
    let start = store.now().await.unwrap();
    let record = executor(app(store).await, start);
    let left = async || -> Vec<bool> {
        let sessions = store.sessions_that_may_have_carried(start).await.unwrap().into_iter();
        sessions.filter(|session| session.executor == record.id).map(|session| session.has_left).collect()
    };
    let opened_at = store.open_session(a, &record, None).await.unwrap().unwrap();
    assert!(store.open_session(b, &record, None).await.unwrap().is_some());
    assert_eq!(left().await, [false, false]);
    store.close_session(a, record.id, stream_end(opened_at)).await.unwrap();
    store.leave_sessions(record.id).await.unwrap();
    assert_eq!(left().await, [true, true]);
    store.beat_sessions(b, &[record.id]).await.unwrap();
    assert_eq!(left().await, [true, true], "a stream that is just closing");
    assert!(store.open_session(a, &record, None).await.unwrap().is_some());
    assert_eq!(left().await, [false, true]);
}
