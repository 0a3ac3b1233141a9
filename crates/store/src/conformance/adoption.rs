//! Checks of adoption.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::outcome::Outcome;
use rondel_core::reason::{ReasonDetail, WaitFor};
use rondel_core::{AppId, Run, RunStatus, Timestamp};

use super::dispatch::open_keys;
use super::{DEFAULT, LEASE, claim, due_job, finish, finish_all, job, join, read_run, run};
use crate::cluster::{Join, JoinRequest};
use crate::ledger::{Adoption, DeadNode, LimitName, NotedWait, OrphanedJob, OrphanedJobs, RunAtExecutor, WaitPlace};
use crate::{LeaseToken, Store};

/// Of two nodes that adopt concurrently, one gets the dead node's open runs of a job, and the job with them. A living node's runs stay.
pub async fn orphans_are_adopted_by_one(store: &dyn Store) {
    let (dead, living) = (join(store).await, join(store).await);
    let (a, b) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let row = |token, offset: u64| run(&job, token, at + Duration::from_secs(offset));
    let mut rows: Vec<Run> = (0..4).map(|offset| row(dead, offset)).collect();
    rows[2].status = RunStatus::Waiting;
    claim(store, dead, &job, rows.clone()).await;
    finish_all(store, &[finish(&rows[3], Outcome::Succeeded)]).await;
    let other = super::pending_run(store, living).await;
    super::open_stream(store, dead).await;

    let nodes = [dead.node.into(), living.node.into()];
    let orphaned = async |token| store.orphaned_jobs(token, &nodes, 10).await.unwrap();
    assert_eq!(orphaned(a).await, OrphanedJobs::default(), "no node is dead");
    assert_eq!(store.adopt(a, &nodes, &[job.id]).await.unwrap(), Adoption::default(), "no node is dead");
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let ended_at = store.nodes().await.unwrap().into_iter().find(|node| node.id == dead.node).unwrap().lease_until;
    let none = LeaseToken { epoch: 9, ..a };
    let refused = Adoption { is_refused: true, ..Adoption::default() };
    assert_eq!(store.adopt(none, &nodes, &[job.id]).await.unwrap(), refused, "no lease of its own");
    assert!(orphaned(none).await.is_refused);
    let expected = OrphanedJobs {
        jobs: vec![OrphanedJob { id: job.id, run_count: 3 }],
        fenced: vec![dead.node],
        is_refused: false,
    };
    assert_eq!(orphaned(a).await, expected);
    // Open runs of the dead lease are found before adoption, so a pause, a deletion or a cancel of the job still reaches them.
    let open = store.open_runs(job.id, None, None, 10).await.unwrap();
    assert_eq!(open.iter().map(|run| run.id).collect::<Vec<_>>(), [rows[0].id, rows[1].id, rows[2].id]);
    // Many dead nodes, most of them without open runs.
    let mut many = nodes.to_vec();
    for _ in 0..5 {
        let other = join(store).await;
        store.release(other, Timestamp::EPOCH).await.unwrap();
        many.push(other.node.into());
    }
    let found = store.orphaned_jobs(a, &many, 10).await.unwrap();
    assert_eq!((&found.jobs, found.fenced.len()), (&expected.jobs, 6));
    let jobs = [job.id];
    let (of_a, of_b) = tokio::join!(store.adopt(a, &nodes, &jobs), store.adopt(b, &nodes, &jobs));
    let mut adopted = [of_a.unwrap().runs, of_b.unwrap().runs].concat();
    adopted.sort_by_key(|adopted| adopted.run.id);
    assert_eq!(adopted.iter().map(|adopted| adopted.run.id).collect::<Vec<_>>(), [rows[0].id, rows[1].id, rows[2].id]);
    let home = due_job(store, &job, &[a.node, b.node]).await.unwrap();
    for (adopted, row) in adopted.iter().zip(&rows) {
        assert_eq!((adopted.from, adopted.lease_ended_at), (dead, ended_at));
        let owner = LeaseToken { node: adopted.run.node, epoch: adopted.run.node_epoch };
        assert!(owner == a || owner == b);
        assert_eq!(adopted.run.node, home.home, "of a job everything goes to one node");
        let may_have_been_sent = row.status == RunStatus::Pending && row.due_at <= ended_at;
        let status = if may_have_been_sent { RunStatus::Running } else { row.status };
        let detail = may_have_been_sent.then(|| Arc::new(waits_for(WaitFor::RollCall)));
        assert_eq!(adopted.run, Run { status, detail, node: owner.node, node_epoch: owner.epoch, ..row.clone() });
        let running = open_keys(store, owner, RunStatus::Running).await;
        assert_eq!(running.contains(&adopted.run.id), status == RunStatus::Running);
        assert_eq!(read_run(store, row.id).await, adopted.run);
    }
    assert_eq!(read_run(store, rows[3].id).await.node, dead.node, "over");
    assert_eq!(read_run(store, other.id).await, other);
    assert_eq!(home.term, 2);
    let nothing_left = OrphanedJobs { fenced: found.fenced, ..OrphanedJobs::default() };
    assert_eq!(
        orphaned(a).await,
        nothing_left,
        "one of both nodes lives; it finds the others because it has fenced them"
    );
}

fn waits_for(what: WaitFor) -> ReasonDetail {
    ReasonDetail { waits_for: Some(what), ..ReasonDetail::default() }
}

/// A row that states what its run waits for, and has no mark, proves that the run was not sent. A run that is later found at an executor is
/// recorded as running.
pub async fn an_unmarked_run_with_a_recorded_wait_was_not_sent(store: &dyn Store) {
    let (dead, heir) = (join(store).await, join(store).await);
    super::open_stream(store, dead).await;
    let at = store.now().await.unwrap().ceil_second() - Duration::from_secs(60);
    let job = job(store, Some(at)).await;
    let row = |offset: u64| run(&job, dead, at + Duration::from_secs(offset));
    let mut rows: Vec<Run> = (0..6).map(row).collect();
    (rows[5].shard_index, rows[5].shard_total) = (1, Some(4));
    claim(store, dead, &job, rows.clone()).await;
    let noted = |row: &Run, what| NotedWait {
        run: row.id,
        attempt: 1,
        detail: Arc::new(waits_for(what)),
        place: WaitPlace::Server,
    };
    let kinds = [WaitFor::Run, WaitFor::Slot, WaitFor::Executor, WaitFor::Answer];
    let mut waits: Vec<NotedWait> = rows.iter().zip(kinds).map(|(row, what)| noted(row, what)).collect();
    waits.push(noted(&rows[5], WaitFor::Slot));
    store.note_waits(dead, &waits).await.unwrap();
    store.mark(dead, &[super::dispatch::at_executor(&rows[2], "one")]).await.unwrap();
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let adopted = super::orphans::adopt_all(store, heir, &[dead.node]).await.1;
    let found =
        adopted.iter().map(|adopted| (adopted.run.status, adopted.run.waits_for(), adopted.run.awaits_roll_call()));
    let (unsent, called) = (RunStatus::Pending, (RunStatus::Running, Some(WaitFor::RollCall), true));
    let expected = [
        (unsent, Some(WaitFor::Run), false),
        (unsent, Some(WaitFor::Slot), false),
        called, // it is marked
        called, // it was sent, and its executor has not answered
        called, // its row records no wait, so it may have been sent
        called, // a shard is sent without a mark, so its recorded wait proves nothing
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    for adopted in &adopted {
        assert_eq!(read_run(store, adopted.run.id).await, adopted.run);
    }
    let runs_at_executors = [super::dispatch::at_executor(&rows[4], "one")];
    store.note_running(heir, &runs_at_executors).await.unwrap();
    let held = read_run(store, rows[4].id).await;
    assert_eq!((held.executor.as_deref(), held.awaits_roll_call()), (Some("one"), false));
    store
        .note_running(heir, &[RunAtExecutor { at: at + Duration::from_secs(999), ..runs_at_executors[0].clone() }])
        .await
        .unwrap();
    assert_eq!(read_run(store, rows[4].id).await, held, "it is noted once");
}

/// A run that was due after the last stream of its app ended was not sent, even if the lease ended later.
pub async fn a_run_that_no_executor_could_receive_was_not_sent(store: &dyn Store) {
    let (dead, heir) = (join(store).await, join(store).await);
    let start = store.now().await.unwrap();
    let app = store.ensure_app(AppId::new(super::next_id()), DEFAULT, &super::name("app"), start).await.unwrap().id;
    let second = Duration::from_secs(1);
    let at = start.ceil_second() - second * 20;
    let job = job(store, Some(at)).await;
    let mut rows: Vec<Run> = (0..3).map(|offset| Run { app, ..run(&job, dead, at + second * offset) }).collect();
    claim(store, dead, &job, rows.clone()).await;
    store.mark(dead, &[super::dispatch::at_executor(&rows[2], "one")]).await.unwrap();
    let executor = super::executor(app, start);
    let opened_at = store.open_session(dead, &executor, None).await.unwrap().unwrap();
    // The stream ends now. A run due before now may have been sent; a run due a second later was not.
    store.close_session(dead, executor.id, super::stream_end(opened_at)).await.unwrap();
    rows.push(Run { app, cause: 1, ..run(&job, dead, store.now().await.unwrap() + second) });
    assert!(store.request_run(dead, rows[3].clone()).await.is_ok());
    let reached = rows[3].due_at + second;
    store.release(dead, reached).await.unwrap();
    loop {
        let adopted = super::orphans::adopt_all(store, heir, &[dead.node]).await.1;
        if !adopted.is_empty() {
            let found: Vec<_> = adopted.iter().map(|adopted| adopted.run.status).collect();
            let called = RunStatus::Running;
            assert_eq!(found, [called, called, called, RunStatus::Pending]);
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Triggers are sent ahead of their instants. A killed server may therefore have sent runs that are due soon after the next server has
/// taken over its lease.
pub async fn runs_due_soon_after_a_takeover_may_have_been_sent_ahead(store: &dyn Store) {
    let request = super::cluster::request(&super::name("node"));
    let Join::Joined { token: dead, .. } = store.join(&request).await.unwrap() else { unreachable!() };
    super::open_stream(store, dead).await;
    let at = store.now().await.unwrap().ceil_second();
    let job = job(store, Some(at)).await;
    let rows = [Duration::ZERO, LEASE / 2].map(|ahead| run(&job, dead, at + ahead));
    claim(store, dead, &job, rows.to_vec()).await;
    let taking = JoinRequest { may_take_over: true, ..request };
    let Join::Joined { token: next, .. } = store.join(&taking).await.unwrap() else { unreachable!() };
    let adopted = super::orphans::adopt_all(store, next, &[]).await.1;
    let found: Vec<_> = adopted.iter().map(|adopted| (adopted.run.due_at, adopted.run.status)).collect();
    assert_eq!(found, [(rows[0].due_at, RunStatus::Running), (rows[1].due_at, RunStatus::Pending)]);
}

/// A job is adopted with all of its runs. It then has a single home even if the dead node comes back before the other jobs are adopted. The
/// job with the fewest runs comes first.
pub async fn jobs_are_adopted_whole(store: &dyn Store) {
    let request = super::cluster::request(&super::name("node"));
    let Join::Joined { token: dead, .. } = store.join(&request).await.unwrap() else { unreachable!() };
    let other = join(store).await;
    let at = store.now().await.unwrap().ceil_second();
    let (mut rows, mut jobs) = (Vec::new(), Vec::new());
    for offset in [0, 1] {
        let job = job(store, Some(at)).await;
        jobs.push(job.id);
        let of_job: Vec<Run> =
            (offset..4).map(|later| run(&job, dead, at + Duration::from_secs(offset + 2 * later))).collect();
        claim(store, dead, &job, of_job.clone()).await;
        rows.push(of_job.iter().map(|run| run.id).collect::<Vec<_>>());
    }
    // The second job has fewer runs.
    jobs.reverse();
    rows.reverse();
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let ids = |adoption: Adoption| adoption.runs.iter().map(|adopted| adopted.run.id).collect::<Vec<_>>();
    let found = async |token, limit| {
        let found = store.orphaned_jobs(token, &[dead.node.into()], limit).await.unwrap().jobs;
        found.into_iter().map(|job| (job.id, job.run_count)).collect::<Vec<_>>()
    };
    let counts = [(jobs[0], 3), (jobs[1], 4)];
    assert_eq!((found(other, 1).await, found(other, 2).await), (counts[..1].to_vec(), counts.to_vec()));
    assert_eq!(ids(store.adopt(other, &[dead.node.into()], &jobs[..1]).await.unwrap()), rows[0]);
    let back = join_after_wait(store, &request).await;
    assert_eq!(ids(store.adopt(other, &[dead.node.into()], &jobs).await.unwrap()), []);
    assert_eq!(store.jobs_open_under_earlier_leases(back, &jobs).await.unwrap(), jobs[1..]);
    assert_eq!(store.jobs_open_under_earlier_leases(back, &jobs[..1]).await.unwrap(), []);
    assert_eq!(found(back, 2).await, counts[1..]);
    assert_eq!(ids(store.adopt(back, &[], &jobs).await.unwrap()), rows[1]);
    assert_eq!(store.jobs_open_under_earlier_leases(back, &jobs).await.unwrap(), []);
}

/// The node of this name waits while another node may still take over its runs, and joins once it has waited for two leases.
async fn join_after_wait(store: &dyn Store, request: &JoinRequest) -> LeaseToken {
    assert_eq!(store.join(request).await.unwrap(), Join::BeingTakenOver);
    let last_time = JoinRequest { waited_for_takeover: request.lease * 2, ..request.clone() };
    let Join::Joined { token, .. } = store.join(&last_time).await.unwrap() else { unreachable!() };
    token
}

/// Runs that were due before the latest end of any earlier lease may have been sent, even if the clock has stepped back since.
pub async fn the_latest_end_of_a_lease_counts(store: &dyn Store) {
    let request = super::cluster::request(&super::name("node"));
    let joined = async |request: &JoinRequest| match store.join(request).await.unwrap() {
        Join::Joined { token, .. } => token,
        refused @ (Join::Living { .. } | Join::BeingTakenOver) => unreachable!("{refused:?}"),
    };
    let first = joined(&request).await;
    super::open_stream(store, first).await;
    let at = store.now().await.unwrap().ceil_second() + LEASE * 3 / 4;
    let job = job(store, Some(at)).await;
    let (sent, ahead) = (run(&job, first, at), run(&job, first, at + LEASE));
    claim(store, first, &job, vec![sent.clone(), ahead.clone()]).await;
    // The next lease ends sooner than the one before it, as after a step back of the clock.
    let shorter = JoinRequest { lease: LEASE / 4, held: Some(first), ..request.clone() };
    let second = joined(&shorter).await;
    store.release(second, Timestamp::EPOCH).await.unwrap();
    let third = joined(&request).await;
    let mut adopted = super::orphans::adopt_all(store, third, &[]).await.1;
    adopted.sort_by_key(|adopted| adopted.run.due_at);
    let found: Vec<_> = adopted.iter().map(|adopted| (adopted.run.id, adopted.run.status)).collect();
    assert_eq!(found, [(sent.id, RunStatus::Running), (ahead.id, RunStatus::Pending)]);
}

/// The fence moves the limits of the dead node to the fencer, and its runs go to the same node. Another node takes them over only if they are
/// late, or together with the fencer.
pub async fn a_fenced_lease_is_left_to_its_fencer(store: &dyn Store) {
    let (dead, fencer, heir, other) = (join(store).await, join(store).await, join(store).await, join(store).await);
    let limit = [LimitName { namespace: DEFAULT, key: super::name("limit") }];
    assert_eq!(store.limit_homes(dead, &limit).await.unwrap(), [dead.node]);
    let row = super::pending_run(store, dead).await;
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    let [dead_node, fencer_node] = [dead.node.into(), fencer.node.into()];
    assert_eq!(store.orphaned_jobs(fencer, &[dead_node], 10).await.unwrap().fenced, [dead.node]);
    let node = async |token: LeaseToken| super::homes::node(store, token.node).await;
    let (fenced, living) = (node(dead).await, node(fencer).await);
    assert_eq!((fenced.is_fenced, fenced.fenced_by, living.fenced_by), (true, Some(fencer.node), None));

    let is_left = async |to: LeaseToken, seen: &[DeadNode]| {
        assert_eq!(store.orphaned_jobs(to, seen, 10).await.unwrap(), OrphanedJobs::default());
        assert_eq!(store.adopt(to, seen, &[row.job]).await.unwrap(), Adoption::default());
    };
    is_left(heir, &[dead_node]).await;
    is_left(heir, &[dead_node, fencer_node]).await;
    let late = [DeadNode { id: dead.node, is_late: true }];
    assert_eq!(store.orphaned_jobs(heir, &late, 10).await.unwrap().fenced, [dead.node]);
    assert_eq!(node(dead).await.fenced_by, Some(fencer.node), "the limits are still there");
    // The fencer itself finds the nodes that it has fenced, even if it does not name them.
    let found = store.orphaned_jobs(fencer, &[], 10).await.unwrap();
    assert_eq!((found.fenced, found.jobs.len()), (vec![dead.node], 1));

    store.set_node_switch(&living.name, Switch::Draining).await.unwrap();
    let home = async |asks: LeaseToken| store.limit_homes(asks, &limit).await.unwrap()[0];
    assert_eq!((home(fencer).await, home(heir).await), (fencer.node, fencer.node), "it will take over the run");

    // The fencer dies, too.
    store.release(fencer, Timestamp::EPOCH).await.unwrap();
    is_left(heir, &[dead_node]).await;
    let found = store.orphaned_jobs(heir, &[fencer_node], 10).await.unwrap();
    let mut expected = vec![dead.node, fencer.node];
    expected.sort_unstable();
    assert_eq!((found.fenced, found.jobs.len(), home(heir).await), (expected, 1, heir.node));
    assert_eq!((node(dead).await.fenced_by, node(fencer).await.fenced_by), (Some(heir.node), Some(heir.node)));
    is_left(other, &[dead_node, fencer_node]).await;
    let adopted = store.adopt(heir, &[fencer_node], &[row.job]).await.unwrap().runs;
    assert_eq!(adopted.iter().map(|adopted| adopted.run.id).collect::<Vec<_>>(), [row.id]);
}

/// Adoption fences the dead lease first. The old owner finds its epoch outdated, and adopts its remaining rows after it has joined again.
pub async fn a_fenced_node_cannot_renew(store: &dyn Store) {
    let request = super::cluster::request(&super::name("node"));
    let Join::Joined { token: sleeper, .. } = store.join(&request).await.unwrap() else { unreachable!() };
    let other = join(store).await;
    let row = super::pending_run(store, sleeper).await;
    // This run ends before the adoption, so its job has no open run and keeps its home.
    let ended_run = super::pending_run(store, sleeper).await;
    finish_all(store, &[finish(&ended_run, Outcome::Succeeded)]).await;
    store.release(sleeper, Timestamp::EPOCH).await.unwrap();
    assert!(store.renew(sleeper, LEASE).await.unwrap().is_some(), "it is not fenced");
    store.release(sleeper, Timestamp::EPOCH).await.unwrap();
    let adopted = super::orphans::adopt_all(store, other, &[sleeper.node]).await.1;
    assert_eq!(adopted.iter().map(|adopted| adopted.run.id).collect::<Vec<_>>(), [row.id]);
    assert_eq!(store.renew(sleeper, LEASE).await.unwrap(), None);
    assert_eq!(super::orphans::adopt_all(store, other, &[sleeper.node]).await.1, []);

    // A run is inserted for the dead epoch after the adoption. The next search for orphans finds it.
    let late = Run { id: rondel_core::RunId::new(super::next_id()), cause: 7, ..ended_run.clone() };
    let late = store.request_run(other, late).await.unwrap();
    assert_eq!((late.node, late.node_epoch), (sleeper.node, sleeper.epoch));
    let back = join_after_wait(store, &request).await;
    assert!(back.epoch > sleeper.epoch);
    let own = super::orphans::adopt_all(store, back, &[]).await.1;
    assert_eq!(own.iter().map(|adopted| adopted.from).collect::<Vec<_>>(), [sleeper]);
    assert!(own[0].lease_ended_at < store.now().await.unwrap() + Duration::from_millis(1));
}
