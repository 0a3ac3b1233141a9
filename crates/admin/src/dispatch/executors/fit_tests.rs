//! Tests: which executors are fit for a run, which have room, and how lost executors are treated.

use serde_json::{Value, json};

use super::*;
use crate::dispatch::tests_support::{definition, executor, ready};

const AT: fn(i64) -> Timestamp = Timestamp::from_secs;
const ONE: ExecutorId = ExecutorId::new(1);

/// Executors 1 to `count`, each with four slots and the label `zone=a`.
fn connected_executors(count: i64) -> Executors {
    let mut executors = Executors::default();
    for id in 1..=count {
        let (session, mut online, _stream) = executor(id, 1);
        online.labels = [("zone".to_owned(), "a".to_owned())].into();
        executors.join(session, &online, Report::default());
    }
    executors
}

fn online(executors: &mut Executors, id: i64) -> &mut ConnectedExecutor {
    executors.get_mut(ExecutorId::new(id)).expect("it is online")
}

/// Why executor 1 takes no run of this job.
fn first_obstacle(executors: &Executors, overrides: &Value) -> Option<ObstacleKind> {
    let obstacles = executors.obstacles(&ready(1, &definition(overrides)), AT(100));
    obstacles.first().map(|obstacle| obstacle.kind)
}

#[test]
fn each_executor_that_takes_no_run_has_its_reason() {
    type Change = fn(&mut ConnectedExecutor);
    let changes: [(Change, Value, Option<ObstacleKind>); 13] = [
        (|_| {}, json!({}), None),
        (|_| {}, json!({"handler": "other"}), Some(ObstacleKind::Handler)),
        (|_| {}, json!({"select": {"executors": ["e2"]}}), Some(ObstacleKind::NotSelected)),
        (|_| {}, json!({"select": {"labels": ["zone=b"]}}), Some(ObstacleKind::Label)),
        (|_| {}, json!({"select": {"labels": ["zone=a"]}}), None),
        (ConnectedExecutor::set_draining, json!({}), Some(ObstacleKind::Draining)),
        (|one| one.switch = Switch::Draining, json!({}), Some(ObstacleKind::Drained)),
        (|one| one.switch = Switch::Stopped, json!({}), Some(ObstacleKind::Stopped)),
        (|one| one.in_flight = 8, json!({}), Some(ObstacleKind::Full)),
        (|one| one.full_until = Some(AT(101)), json!({}), Some(ObstacleKind::Full)),
        (|one| one.full_until = Some(AT(100)), json!({}), None),
        (|_| {}, json!({"route": "failover"}), Some(ObstacleKind::Silent)),
        (|_| {}, json!({"route": "busyover"}), Some(ObstacleKind::Busy)),
    ];
    for (number, (change, job, expected)) in changes.into_iter().enumerate() {
        let mut executors = connected_executors(1);
        change(online(&mut executors, 1));
        assert_eq!(first_obstacle(&executors, &job), expected, "{number}: {job}");
    }
}

/// An executor that leaves triggers unanswered is named as silent only if it could take the run otherwise.
#[test]
fn an_executor_that_leaves_triggers_unanswered_is_named_as_silent() {
    let silent = || {
        let mut executors = connected_executors(2);
        executors.silences.record_unanswered(ONE, AT(1), AT(2));
        executors
    };
    assert_eq!(first_obstacle(&silent(), &json!({})), Some(ObstacleKind::Silent));
    let select = json!({"select": {"labels": ["zone=b"]}});
    assert_eq!(first_obstacle(&silent(), &select), Some(ObstacleKind::Label));
    let mut executors = silent();
    online(&mut executors, 1).set_draining();
    assert_eq!(first_obstacle(&executors, &json!({})), Some(ObstacleKind::Draining));
    assert!(executors.is_silent(executors.get(ONE).unwrap()));
    let two = executors.get(ExecutorId::new(2)).unwrap();
    assert!(!executors.is_silent(two));
    // Executors that are fit for the run come first.
    let mut executors = connected_executors(2);
    online(&mut executors, 1).set_draining();
    online(&mut executors, 2).in_flight = 8;
    let obstacles = executors.obstacles(&ready(1, &definition(&json!({}))), AT(100));
    let kinds: Vec<ObstacleKind> = obstacles.iter().map(|obstacle| obstacle.kind).collect();
    assert_eq!(kinds, [ObstacleKind::Full, ObstacleKind::Draining]);
}

#[test]
fn an_app_has_room_while_one_of_its_executors_has() {
    let mut executors = connected_executors(2);
    let app = AppId::new(1);
    assert!(executors.has_room_in(app, AT(1)) && !executors.has_room_in(AppId::new(2), AT(1)));
    online(&mut executors, 1).in_flight = 7;
    online(&mut executors, 2).in_flight = 8;
    assert!(executors.has_room_in(app, AT(1)), "a little more than its four slots");
    online(&mut executors, 1).in_flight = 8;
    assert!(!executors.has_room_in(app, AT(1)));
    online(&mut executors, 2).set_draining();
    online(&mut executors, 2).in_flight = 0;
    assert!(!executors.has_room_in(app, AT(1)), "it takes no new runs");
}

#[test]
fn only_those_that_stay_are_the_targets_of_a_broadcast() {
    let mut executors = connected_executors(3);
    online(&mut executors, 1).set_draining();
    online(&mut executors, 2).switch = Switch::Stopped;
    let names = |executors: &Executors, job: &Value| {
        let staying = executors.eligible_executors(&ready(1, &definition(job)));
        staying.iter().map(|online| online.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&executors, &json!({})), ["e3"]);
    assert_eq!(names(&executors, &json!({"handler": "other"})), [] as [&str; 0]);
    assert_eq!(executors.fit_executors(&ready(1, &definition(&json!({})))).len(), 3, "a router knows all of them");
}

/// An executor that takes any handler takes no groups of pump jobs.
#[test]
fn an_executor_for_any_handler_takes_no_groups() {
    let (session, mut any, _stream) = executor(1, 1);
    any.handlers = vec![ANY_HANDLER.to_owned()];
    let mut executors = Executors::default();
    executors.join(session, &any, Report::default());
    let pump = json!({"pump": {"items": [{"name": "eu"}], "groups": 1}});
    assert_eq!(executors.fit_executors(&ready(1, &definition(&json!({})))).len(), 1);
    assert_eq!(executors.fit_executors(&ready(1, &definition(&pump))).len(), 0);
}

/// A heartbeat counts the runs of all nodes.
#[test]
fn the_runs_of_other_nodes_count() {
    let mut executors = connected_executors(1);
    online(&mut executors, 1).in_flight = 2;
    executors.record_beat(ONE, 5, AT(7));
    let one = executors.get(ONE).unwrap();
    assert_eq!((one.candidate(Answer::Missing, AT(7)).active, one.heard_at, one.beat_count), (5, AT(7), 1));
    executors.record_beat(ONE, 1, AT(8));
    assert_eq!(executors.get(ONE).unwrap().candidate(Answer::Missing, AT(8)).active, 2, "it is behind");
    executors.record_heard(ONE, AT(9));
    let one = executors.get(ONE).unwrap();
    assert_eq!((one.heard_at, one.beat_count), (AT(9), 2));
}

/// Executors whose streams have ended.
fn disconnected_executors(count: i64) -> Executors {
    let mut executors = connected_executors(count);
    for id in 1..=count {
        assert!(executors.leave(ExecutorId::new(id), 1, AT(10)).is_some());
    }
    executors
}

#[test]
fn lost_executors_are_remembered_for_an_hour() {
    let mut executors = disconnected_executors(3);
    let ids = [1, 2, 3].map(ExecutorId::new);
    assert!(executors.record_loss(ids[0], AT(100), AT(0)) && executors.record_loss(ids[1], AT(3_699), AT(0)));
    assert!(executors.is_lost(ids[0]) && executors.is_lost(ids[1]));
    assert!(executors.record_loss(ids[2], AT(3_700), AT(0)));
    assert_eq!(ids.map(|id| executors.is_lost(id)), [false, true, true]);
}

/// A lost executor may still run something until its process is known to have ended, or must have stopped everything.
#[test]
fn a_lost_executor_has_stopped_all_once_it_can_run_nothing() {
    for (stopped_before, has_stopped_all) in [(10, false), (11, true)] {
        let mut executors = disconnected_executors(1);
        executors.record_loss(ONE, AT(100), AT(stopped_before));
        assert_eq!(
            (executors.is_lost(ONE), executors.has_stopped_all(ONE)),
            (true, has_stopped_all),
            "{stopped_before}"
        );
        assert_eq!(executors.record_process_end(ONE, AT(101)), !has_stopped_all, "it is news once");
        assert!(executors.has_stopped_all(ONE) && !executors.record_process_end(ONE, AT(102)));
    }
    let mut executors = disconnected_executors(1);
    assert!(executors.record_process_end(ONE, AT(20)) && executors.has_stopped_all(ONE));
    let mut executors = connected_executors(1);
    assert!(!executors.record_process_end(ONE, AT(20)) && !executors.has_stopped_all(ONE), "it is connected");
}

#[test]
fn an_executor_that_must_have_stopped_is_watched_again() {
    for (before, has_stopped_all, is_watched) in [(10, false, false), (11, false, true), (11, true, false)] {
        let mut executors = disconnected_executors(1);
        executors.record_loss(ONE, AT(100), AT(0));
        if has_stopped_all {
            executors.record_process_end(ONE, AT(101));
        }
        executors.suspect_again(ONE, AT(before));
        assert_eq!(executors.is_lost(ONE), !is_watched, "{before}");
        assert_eq!(executors.suspects(AT(1_000)), if is_watched { vec![ONE] } else { vec![] });
    }
}

/// An answer about a later lease of a node also counts for the earlier leases, in whatever order the answers come.
#[test]
fn an_answer_about_a_later_lease_counts_for_earlier_ones() {
    let answer = |epoch| FenceAnswer {
        lease: LeaseToken { node: NodeId::new(2), epoch },
        held_runs: [(RunId::new(7), 1)].into(),
        finished_runs: [(RunId::new(8), 2)].into(),
        starts: StartReports::default(),
    };
    let mut executors = connected_executors(1);
    assert!(!executors.record_fence_answer(ONE, 2, answer(4)), "not on its newest stream");
    assert!(executors.record_fence_answer(ONE, 1, answer(4)) && executors.record_fence_answer(ONE, 1, answer(3)));
    let one = executors.get(ONE).unwrap();
    let fenced = [3, 4, 5].map(|epoch| one.has_fenced(answer(epoch).lease));
    assert_eq!((fenced, one.runs_at_last_fence().count()), ([true, true, false], 2));
    executors.discard_fence_answers(&[NodeId::new(3)].into());
    assert!(executors.get(ONE).unwrap().has_fenced(answer(4).lease));
    executors.discard_fence_answers(&[NodeId::new(2)].into());
    assert!(!executors.get(ONE).unwrap().has_fenced(answer(3).lease));
}
