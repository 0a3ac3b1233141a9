//! Checks of homes that move, of switches, and of the reports of nodes.

use std::time::Duration;

use rondel_core::homes::{ClaimStrategy, DECAY_WHOLE, RecentFires, Switch};
use rondel_core::outcome::Outcome;
use rondel_core::{AppId, JobId, NodeId, Run, RunId, RunStatus, Timestamp};

use super::{
    DEFAULT, FAILED, POLICY, app, claim, due_job, finish, finish_all, finish_one, job, join, next_id, pending_run,
    read_run, run,
};
use crate::cluster::{HomeMove, LoopReport, Node, NodeReport};
use crate::ledger::{AttemptEnd, ClaimJob, JobAtHome, LimitName, MovedJobs};
use crate::{LeaseToken, Store};

pub(super) async fn node(store: &dyn Store, id: NodeId) -> Node {
    store.nodes().await.unwrap().into_iter().find(|node| node.id == id).unwrap()
}

/// The report of a node is read as it was written. A report under an outdated epoch is ignored.
pub async fn nodes_report_their_state(store: &dyn Store) {
    let token = join(store).await;
    let now = store.now().await.unwrap();
    let first = node(store, token.node).await;
    assert_eq!((first.switch, &first.report), (Switch::Active, &NodeReport::default()));
    assert!(first.takes_jobs(now) && !first.takes_jobs(Timestamp::MAX));
    let report = NodeReport {
        is_leaving: true,
        claim_strategy: ClaimStrategy::LeastCount,
        weight: 7,
        job_count: 1_000_000,
        recent_fires: 12_345_678,
        skew_ms: -1_500,
        claims_tried: u64::MAX >> 1,
        claims_lost: 3,
        refused_count: 4,
        lateness_p99_ms: Some(25),
        loops: vec![LoopReport {
            name: "adopt".to_owned(),
            ticked_at: Some(now),
            tick_count: 12,
            failed_count: 2,
            failing_since: Some(now),
            error: Some("no route \u{1f642} to \"host\"".to_owned()),
            ..LoopReport::default()
        }],
    };
    store.report_node(token, &report).await.unwrap();
    store.report_node(LeaseToken { epoch: 9, ..token }, &NodeReport::default()).await.unwrap();
    let reported = node(store, token.node).await;
    assert_eq!(reported.report, report);
    assert!(!reported.takes_jobs(now), "it leaves");
}

/// A switch is set by name, and stays when the node restarts.
pub async fn switches_stay_as_they_are_set(store: &dyn Store) {
    let token = join(store).await;
    let name = node(store, token.node).await.name;
    for switch in [Switch::Draining, Switch::Draining, Switch::Stopped, Switch::Active] {
        assert!(store.set_node_switch(&name, switch).await.unwrap());
        let node = node(store, token.node).await;
        assert_eq!((node.switch, node.takes_jobs(store.now().await.unwrap())), (switch, switch == Switch::Active));
    }
    assert!(!store.set_node_switch("no node has this name", Switch::Stopped).await.unwrap());

    // Another node that asks gets the limits of a node that is switched off and has no open run.
    let other = join(store).await;
    let limit = [LimitName { namespace: DEFAULT, key: super::name("limit") }];
    let home = async |asks: LeaseToken| store.limit_homes(asks, &limit).await.unwrap()[0];
    let open = pending_run(store, token).await;
    assert_eq!((home(token).await, home(other).await), (token.node, token.node));
    store.set_node_switch(&name, Switch::Draining).await.unwrap();
    assert_eq!(home(other).await, token.node, "it has an open run");
    finish_one(store, finish(&open, Outcome::Succeeded)).await;
    store.set_node_switch(&name, Switch::Active).await.unwrap();
    assert_eq!(home(other).await, token.node, "it takes jobs");
    store.set_node_switch(&name, Switch::Draining).await.unwrap();
    assert_eq!((home(other).await, home(token).await), (other.node, other.node));
    assert_eq!(store.give_limits(other, &limit, Some(token.node)).await.unwrap(), limit, "it takes no jobs");
    assert_eq!(home(token).await, other.node);
    store.set_node_switch(&name, Switch::Active).await.unwrap();

    let app = app(store).await;
    for switch in [Switch::Draining, Switch::Stopped, Switch::Stopped, Switch::Active] {
        assert!(store.set_app_switch(app, switch).await.unwrap());
        let listed = store.switches().await.unwrap().apps.into_iter().find(|(id, _)| *id == app);
        assert_eq!(listed.map(|(_, switch)| switch), (switch != Switch::Active).then_some(switch));
    }
    assert!(!store.set_app_switch(AppId::new(next_id()), Switch::Stopped).await.unwrap());
}

/// The switch of an executor is stored by app and name until it is set to active.
pub async fn executors_are_switched_by_name(store: &dyn Store) {
    let (one, other) = (AppId::new(next_id()), AppId::new(next_id()));
    let at = Timestamp::from_secs;
    let switch_of = async |app: AppId, name: &str| {
        let found = store.switches().await.unwrap().of_executor(app, name).cloned();
        found.map(|found| (found.switch, found.set_at))
    };
    for (switch, set_at, expected) in [
        (Switch::Active, 1, None),
        (Switch::Draining, 2, Some((Switch::Draining, at(2)))),
        (Switch::Draining, 3, Some((Switch::Draining, at(2)))),
        (Switch::Stopped, 4, Some((Switch::Stopped, at(4)))),
    ] {
        store.set_executor_switch(one, "läufer", switch, at(set_at)).await.unwrap();
        assert_eq!(switch_of(one, "läufer").await, expected);
    }
    store.set_executor_switch(other, "Läufer", Switch::Draining, at(5)).await.unwrap();
    store.set_executor_switch(other, "läufer", Switch::Draining, at(6)).await.unwrap();
    store.set_executor_switch(one, "läufer", Switch::Active, at(7)).await.unwrap();
    assert_eq!(switch_of(one, "läufer").await, None);
    let names: Vec<(AppId, String)> =
        store.switches().await.unwrap().executors.into_iter().map(|switch| (switch.app, switch.name)).collect();
    assert!(names.is_sorted(), "{names:?}");
    let its: Vec<&str> = names.iter().filter(|(app, _)| *app == other).map(|(_, name)| name.as_str()).collect();
    assert_eq!(its, ["Läufer", "läufer"]);
    for name in its {
        store.set_executor_switch(other, name, Switch::Active, at(8)).await.unwrap();
    }
}

/// A job moves with all of its open runs. It stays if one of them was sent, may have been sent, has begun, or is not named in the move.
pub async fn jobs_move_with_their_unsent_runs(store: &dyn Store) {
    let (token, to) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second() + Duration::from_secs(60);
    let claimed = async |count: u64| {
        let job = job(store, Some(at)).await;
        let rows: Vec<Run> = (0..count).map(|offset| run(&job, token, at + Duration::from_secs(offset))).collect();
        claim(store, token, &job, rows.clone()).await;
        (job, rows)
    };
    let (idle, no_rows) = claimed(0).await;
    let (goes, going) = claimed(3).await;
    let (sent, sent_rows) = claimed(2).await;
    let (marked, marked_rows) = claimed(1).await;
    let (unnamed, unnamed_rows) = claimed(2).await;
    let (early, early_rows) = claimed(1).await;
    let (retried, retried_rows) = claimed(1).await;
    finish_all(store, &[finish(&going[0], Outcome::Succeeded)]).await;
    store.note_running(token, &[super::dispatch::at_executor(&sent_rows[0], "one")]).await.unwrap();
    store.mark(token, &[super::dispatch::at_executor(&marked_rows[0], "one")]).await.unwrap();
    let again = AttemptEnd {
        policy: rondel_core::outcome::NextStepPolicy { retry_max: 1, ..POLICY },
        ..finish(&retried_rows[0], FAILED)
    };
    finish_all(store, &[again]).await;

    let listed = |from: RunId| store.unsent_runs(token, from, 100);
    let unsent: Vec<RunId> = listed(RunId::new(0)).await.unwrap().iter().map(|unsent| unsent.run).collect();
    let mut expected: Vec<RunId> = going[1..].iter().chain(&sent_rows[1..]).map(|run| run.id).collect();
    expected.extend(unnamed_rows.iter().chain(&early_rows).chain(&retried_rows).map(|run| run.id));
    expected.sort_unstable();
    assert_eq!(unsent, expected);
    assert_eq!(listed(unsent[1]).await.unwrap().len(), unsent.len() - 2);
    assert_eq!(listed(RunId::new(0)).await.unwrap()[0].job, goes.id);
    let of_jobs = store.unsent_runs_of_jobs(token, &[sent.id, marked.id, goes.id]).await.unwrap();
    let mut expected: Vec<RunId> = going[1..].iter().chain(&sent_rows[1..]).map(|run| run.id).collect();
    expected.sort_unstable();
    assert_eq!(of_jobs.iter().map(|unsent| unsent.run).collect::<Vec<_>>(), expected);
    assert_eq!(store.unsent_runs_of_jobs(to, &[goes.id]).await.unwrap(), []);
    assert_eq!(store.unsent_runs_of_jobs(token, &[]).await.unwrap(), []);

    let name = |rows: &[Run]| rows.iter().map(|run| run.id).collect::<Vec<_>>();
    let one = |job: &crate::catalog::JobRecord, rows: &[Run]| HomeMove { job: job.id, runs: name(rows), to: to.node };
    let moves = [
        one(&idle, &no_rows),
        one(&goes, &going),
        one(&sent, &sent_rows),
        one(&marked, &marked_rows),
        one(&unnamed, &unnamed_rows[..1]),
        one(&retried, &retried_rows),
    ];
    let late = [one(&early, &early_rows)];
    assert_eq!(store.move_jobs(LeaseToken { epoch: 9, ..token }, &moves, at).await.unwrap(), MovedJobs::default());
    assert_eq!(store.move_jobs(to, &moves, at).await.unwrap(), MovedJobs::default(), "it is not their home");
    let after = at + Duration::from_millis(1);
    assert_eq!(store.move_jobs(token, &late, after).await.unwrap(), MovedJobs::default(), "it may be sent by now");
    let name_of_taker = node(store, to.node).await.name;
    store.set_node_switch(&name_of_taker, Switch::Draining).await.unwrap();
    assert_eq!(store.move_jobs(token, &moves, at).await.unwrap(), MovedJobs::default(), "it takes nothing");
    store.set_node_switch(&name_of_taker, Switch::Active).await.unwrap();

    let moved = store.move_jobs(token, &moves, at).await.unwrap();
    let mut jobs = vec![idle.id, goes.id];
    jobs.sort_unstable();
    assert_eq!(moved, MovedJobs { jobs: jobs.clone(), runs: name(&going[1..]) });
    for run in &going[1..] {
        let expected = Run { node: to.node, node_epoch: to.epoch, status: RunStatus::Waiting, ..run.clone() };
        assert_eq!(read_run(store, run.id).await, expected);
    }
    let home = due_job(store, &goes, &[to.node]).await.unwrap();
    assert_eq!((home.home, home.term), (to.node, 2));
    let listed = async |after: JobId| {
        let listed = store.jobs_of_home(to.node, after, 10).await.unwrap();
        listed.into_iter().map(|one| one.job).collect::<Vec<_>>()
    };
    assert_eq!(listed(JobId::new(0)).await, jobs);
    assert_eq!(listed(jobs[0]).await, jobs[1..]);
    let loads = store.home_loads(&[token.node, to.node], at).await.unwrap();
    assert_eq!(
        loads.iter().map(|load| (load.node, load.job_count)).collect::<Vec<_>>(),
        [(token.node, 5), (to.node, 2)]
    );
    let woken = store.take_waiting(to, at + Duration::from_secs(9), 10).await.unwrap();
    assert_eq!(woken.iter().map(|run| run.id).collect::<Vec<_>>(), name(&going[1..]));
}

/// The count of a job's fires is written with its claim, is kept when the job moves, and decays with time.
pub async fn jobs_carry_the_count_of_their_fires(store: &dyn Store) {
    let (token, to) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second() + Duration::from_secs(60);
    let (busy, idle) = (job(store, Some(at)).await, job(store, Some(at)).await);
    let recent_fires = RecentFires { thousandths: 866_001, counted_at: at };
    for (job, recent_fires) in [(&busy, recent_fires), (&idle, RecentFires::default())] {
        let seen_row = due_job(store, job, &[NodeId::new(0)]).await.unwrap();
        assert_eq!(seen_row.recent_fires, RecentFires::default(), "a new job has fired never");
        let next_fire_at = Some(at + Duration::from_secs(1));
        let claim = ClaimJob {
            expected_row: seen_row,
            held_from: None,
            recent_fires,
            next_fire_at,
            runs: Vec::new(),
            awaited_run: None,
        };
        assert_eq!(store.claim(token, &[claim]).await.unwrap().jobs.len(), 1);
    }
    let loads = async |now: Timestamp| {
        let loads = store.home_loads(&[token.node, to.node], now).await.unwrap();
        loads.iter().map(|load| (load.node, load.job_count, load.recent_fires)).collect::<Vec<_>>()
    };
    assert_eq!(due_job(store, &busy, &[token.node]).await.unwrap().recent_fires, recent_fires);
    for age in [0, 39, 40, 299, 300, 1_000, 3_599, 3_600].map(Duration::from_secs) {
        let expected = recent_fires.stepped_at(at + age) / DECAY_WHOLE;
        assert_eq!(loads(at + age).await, [(token.node, 2, expected)], "after {age:?}");
    }
    let moves = [HomeMove { job: busy.id, runs: Vec::new(), to: to.node }];
    assert_eq!(store.move_jobs(token, &moves, at).await.unwrap().jobs, [busy.id]);
    assert_eq!(loads(at).await, [(token.node, 1, 0), (to.node, 1, 866_001)]);
    let fresh = job(store, Some(at)).await;
    let mut homes = [(busy.id, to.node), (idle.id, token.node), (fresh.id, NodeId::new(0))];
    homes.sort_unstable();
    let unknown = JobId::new(next_id());
    assert_eq!(store.homes_of_jobs(&[fresh.id, unknown, idle.id, busy.id]).await.unwrap(), homes);
    assert_eq!(
        store.jobs_of_home(to.node, JobId::new(0), 10).await.unwrap(),
        [JobAtHome { job: busy.id, recent_fires }]
    );
    assert_eq!(store.home_loads(&[NodeId::new(next_id())], at).await.unwrap(), []);
}

/// A dead node's jobs without open runs are freed for all nodes. Its other jobs move with their runs when these are adopted.
pub async fn jobs_of_the_dead_are_freed(store: &dyn Store) {
    let (dead, token) = (join(store).await, join(store).await);
    let at = store.now().await.unwrap().ceil_second() + Duration::from_secs(60);
    let (idle, busy) = (job(store, Some(at)).await, job(store, Some(at)).await);
    claim(store, dead, &idle, vec![]).await;
    let row = run(&busy, dead, at);
    claim(store, dead, &busy, vec![row.clone()]).await;
    assert_eq!(store.free_jobs(token, dead.node, 10).await.unwrap(), 0, "it lives");
    store.release(dead, Timestamp::EPOCH).await.unwrap();
    assert_eq!(store.free_jobs(LeaseToken { epoch: 9, ..token }, dead.node, 10).await.unwrap(), 0);
    assert_eq!(store.free_jobs(token, dead.node, 10).await.unwrap(), 1);
    let no_home = NodeId::new(0);
    assert_eq!(due_job(store, &idle, &[no_home]).await.unwrap().term, 2);
    assert_eq!(due_job(store, &busy, &[no_home]).await, None);
    super::orphans::adopt_all(store, token, &[dead.node]).await;
    assert_eq!(due_job(store, &busy, &[token.node]).await.unwrap().term, 2);
    assert_eq!(store.free_jobs(token, dead.node, 10).await.unwrap(), 0);
    let fenced = node(store, dead.node).await;
    let before_its_end = fenced.lease_until - Duration::from_millis(1);
    assert!(fenced.is_fenced && !fenced.is_living(before_its_end), "also if the clock steps back to then");
    assert!(!node(store, token.node).await.is_fenced);
}

/// A node that died long ago and owns nothing is removed. The node with the newest id is kept, so that its id is not assigned again.
pub async fn nodes_are_forgotten(store: &dyn Store) {
    let (gone, owner, home, newest) = (join(store).await, join(store).await, join(store).await, join(store).await);
    let row = pending_run(store, owner).await;
    let at = store.now().await.unwrap().ceil_second() + Duration::from_secs(60);
    claim(store, home, &job(store, Some(at)).await, vec![]).await;
    for token in [gone, owner, home, newest] {
        store.release(token, Timestamp::EPOCH).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let now = store.now().await.unwrap();
    let is_there = async |token: LeaseToken| store.nodes().await.unwrap().iter().any(|node| node.id == token.node);
    assert_eq!(store.forget_nodes(Timestamp::from_secs(1), 100).await.unwrap(), 0);
    assert!(is_there(gone).await);
    while store.forget_nodes(now, 100).await.unwrap() > 0 {}
    let remaining = [is_there(gone).await, is_there(owner).await, is_there(home).await, is_there(newest).await];
    assert_eq!(remaining, [false, true, true, true]);
    finish_all(store, &[finish(&row, Outcome::Succeeded)]).await;
    let next = join(store).await;
    assert!(next.node > newest.node);
}
