//! Scenarios with runs that wait, and with executors that leave triggers unanswered. As in [`tests`](super::tests), times are seconds, and
//! runs are named by the second at which they are due.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::outcome::Outcome;
use rondel_core::reason::{ObstacleKind, ReasonDetail, WaitFor};
use rondel_core::{ExecutorId, JobId, Reason, RunId, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::ledger::EndOutcome;
use serde_json::json;

use super::tests::{DEAD, NOTHING, answer, plain, run, session_of, world_with_executors};
use super::world::{World, retry_outcome, verdict};
use super::*;
use crate::dispatch::event::{Reply, Report, Responder, RollCallRun};
use crate::dispatch::tests_support::{definition, ready};

/// A row with a recorded wait proves that no executor has the run. The run is marked before it is sent, because the mark withdraws that proof.
#[test]
fn a_run_with_a_noted_wait_is_marked_before_it_is_sent() {
    let mut world = World::new();
    world.arrive([plain(1), plain(4)]);
    assert_eq!(world.at(1.0), NOTHING, "no executor is there");
    world.around.now = Timestamp::from_secs(4);
    let effects = world.on(Event::Round(Vec::new()));
    let notes = effects.iter().filter_map(|effect| match effect {
        Effect::Store(Step::NoteWaits(notes)) => Some(notes.iter().map(|note| note.run).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(notes.collect::<Vec<_>>(), [vec![run(1)]]);
    world.at(4.0);
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), ["mark 1", "sent to 1: 4"]);
    world.described(Event::Marked(vec![(run(1), 1)], vec![run(1)]));
    assert_eq!(world.flush(), ["sent to 1: 1"]);
    assert_eq!(world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Full, None)), ["unmark 1"]);
    // The next server reads from the row that the run waits.
    let mut adopted = plain(5);
    adopted.run.detail = Some(Arc::new(ReasonDetail { waits_for: Some(WaitFor::Run), ..ReasonDetail::default() }));
    world.arrive([adopted]);
    world.around.now = Timestamp::from_secs(5);
    world.on(Event::Round(Vec::new()));
    assert!(world.at(5.0).contains(&"mark 1 5".to_owned()));
}

/// Each step has only the memory of its own waits: thousands of steps may wait for the database at the same time.
#[test]
fn the_waits_of_many_runs_take_no_memory_twice() {
    let mut world = World::new();
    world.arrive((1..=1_000).map(plain));
    world.at(1_001.0);
    let effects = world.on(Event::Drain(Responder::new(|()| {}), Duration::from_secs(1)));
    let noted = effects.iter().filter_map(|effect| match effect {
        Effect::Store(Step::NoteWaits(notes)) => Some((notes.len(), notes.capacity())),
        _ => None,
    });
    let (lengths, capacities): (Vec<usize>, Vec<usize>) = noted.unzip();
    assert_eq!(lengths.iter().sum::<usize>(), 1_000);
    assert!(capacities.iter().sum::<usize>() <= 1_000, "{capacities:?}");
}

/// The step that stores the waits at this second.
fn noted_at(world: &mut World, second: i64) -> Option<Step> {
    world.around.now = Timestamp::from_secs(second);
    world.on(Event::Round(Vec::new())).into_iter().find_map(|effect| match effect {
        Effect::Store(step @ Step::NoteWaits(_)) => Some(step),
        _ => None,
    })
}

/// A wait that could not be stored is stored by the next look, although it has not changed.
#[test]
fn a_wait_that_was_not_stored_is_noted_again() {
    let mut world = World::new();
    world.arrive([plain(1)]);
    world.at(1.0);
    let refused = noted_at(&mut world, 4).expect("the wait is noted");
    world.on(Event::StepRefused(refused));
    assert!(noted_at(&mut world, 5).is_some(), "it was not stored");
    assert!(noted_at(&mut world, 20).is_none(), "it is stored, and has not changed");
}

/// Lets executor 1 send heartbeats but no answers until this second. Returns the effects of the round at that second.
fn leave_unanswered(world: &mut World, second: i64) -> Vec<String> {
    (0..3).for_each(|_| world.beat(1));
    world.around.now = Timestamp::from_secs(second);
    world.described(Event::Round(Vec::new()))
}

/// Runs whose triggers an executor leaves unanswered were not received. For a while, runs go to another executor. The next attempts have only
/// the queue time that is left.
#[test]
fn an_executor_that_answers_no_trigger_is_passed_by_until_it_answers() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert_eq!(leave_unanswered(&mut world, 12), ["end of stream 1"]);
    let effects = world.join_all(1, 2, Report::default());
    let end = effects.iter().find_map(|effect| match effect {
        Effect::Finish(end) => Some(&end.attempt_end),
        _ => None,
    });
    let end = end.expect("its run is not on the list of its hello");
    assert_eq!(
        (end.outcome, end.detail.as_ref().and_then(|of| of.waited_ms)),
        (Outcome::Lost(Reason::NotReceived), Some(11_000))
    );
    let mut again = plain(1);
    (again.run.attempt, again.run.reason, again.run.due_at) = (2, Some(Reason::NotReceived), Timestamp::from_secs(12));
    again.run.detail.clone_from(&end.detail);
    let next = again.with_queue_start(Timestamp::from_secs(12));
    assert_eq!(next.queued_at, Some(Timestamp::from_secs(1)), "queue time counts from the fire");

    world.join(2, 3, Report::default());
    world.arrive([plain(13), plain(14), plain(15)]);
    assert_eq!(world.at(15.0), ["sent to 2: 13 14 15"], "round robin passes it by");
    world.arrive([plain(50)]);
    assert_eq!(world.at(50.0).len(), 1);
    world.arrive([plain(51)]);
    world.at(51.0);
    let is_there = |world: &World| world.state.runs.active_runs().any(|active| active.executor == ExecutorId::new(1));
    assert!(is_there(&world), "it is tried again after its pause");
    assert!(world.state.executors.silences.of(ExecutorId::new(1)).is_some());
    for second in [50, 51] {
        world.reply(1, second, 1, Reply::Accepted);
    }
    assert_eq!(world.state.executors.silences.of(ExecutorId::new(1)), None, "it answers");
}

/// If there is no other executor, the silent one still gets the runs.
#[test]
fn an_executor_that_answers_no_trigger_is_not_passed_by_where_it_is_the_only_one() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    leave_unanswered(&mut world, 12);
    world.join(1, 2, Report::default());
    world.arrive([plain(13)]);
    assert_eq!(world.at(13.0), ["sent to 1: 13"]);
}

/// A group waits if every executor has as many groups of its job as one executor may have. The group's row names these executors.
#[test]
fn groups_that_wait_do_not_hide_those_of_another_job() {
    let pump = definition(&json!({"pump": {"items": 9, "groups": 3, "per_executor": 1}, "queue_timeout": "60s"}));
    let group = |second: i64, job: i64, index: i32| {
        let mut group = ready(second, &pump);
        let run = &mut group.run;
        (run.job, run.fire_at, run.parent) = (JobId::new(job), Timestamp::from_secs(1), Some(RunId::new(job)));
        (run.shard_index, run.shard_total) = (index, Some(3));
        group
    };
    let mut world = World::new();
    world.arrive([group(1, 1, 0), group(2, 1, 1), group(3, 2, 0)]);
    assert_eq!(world.at(3.0), NOTHING, "no executor is there");
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), ["sent to 1: 1 3"]);
    let Some(Step::NoteWaits(notes)) = noted_at(&mut world, 5) else { unreachable!("run 2 waits") };
    let of_it = notes.iter().filter(|note| note.run == run(2));
    let waits: Vec<_> = of_it.map(|note| (note.detail.waits_for, note.detail.obstacles[0].kind)).collect();
    assert_eq!(waits, [(Some(WaitFor::Slot), ObstacleKind::Busy)]);
}

/// However often the end of a run is stored, the run keeps its place until its children have ended, and no longer.
#[test]
fn a_run_that_awaits_its_children_keeps_its_place_though_its_end_comes_twice() {
    let serial = definition(&json!({"queue_timeout": "60s"}));
    for ends in [0, 1, 2] {
        let mut world = world_with_executors(1);
        world.arrive([ready(1, &serial), ready(2, &serial)]);
        world.at(1.0);
        assert_eq!(world.at(2.0), NOTHING, "the second waits for the first");
        world.report(1, run(1), 1);
        world.on(Event::Awaiting(vec![(JobId::new(1), run(1))]));
        for finished in [verdict(), EndOutcome::Duplicate].into_iter().take(ends) {
            world.on(Event::Awaiting(vec![(JobId::new(1), run(1))]));
            world.settled(1, 1, finished);
            assert_eq!(world.flush(), NOTHING);
        }
        world.on(Event::AwaitingEnded(vec![(JobId::new(1), run(1))]));
        assert_eq!(world.flush(), ["sent to 1: 2"], "after {ends} ends");
    }
}

/// The place of a run is at the executor that has it, even if the hello of another one lists it from before.
#[test]
fn a_run_in_a_roll_call_has_its_place_at_the_executor_that_has_it() {
    let job = definition(&json!({"overlap": {"policy": "serial", "scope": "executor"}, "queue_timeout": "60s"}));
    let mut world = World::new();
    world.around.now = Timestamp::from_secs(2);
    let mut called = ready(1, &job);
    called.run.status = RunStatus::Running;
    world.around.in_memory.admit(vec![called.run.clone()]);
    world.join(1, 1, Report { held_runs: HashSet::from([(run(1), 1)]), ..Report::default() });
    world.join(2, 2, Report::default());
    let called = vec![RollCallRun { ready: called, sent_under: Some(DEAD) }];
    world.on(Event::RollCall(called, vec![session_of(1), session_of(2)], vec![DEAD]));
    let named = |second: i64, name: &str| {
        let mut ready = ready(second, &job);
        ready.run.only_executor = Some(name.to_owned());
        ready
    };
    world.arrive([named(3, "e1"), named(4, "e2")]);
    assert_eq!(world.at(3.0), NOTHING, "its hello lists the first run");
    world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[])));
    world.on(Event::FenceAnswered(ExecutorId::new(2), 2, answer(&[(1, 1)])));
    assert_eq!(world.at(4.0), ["sent to 1: 3"], "the other one has it");
    world.result(2, 1, 1);
    world.settled(1, 1, verdict());
    assert_eq!(world.flush(), ["sent to 2: 4"]);
}

/// A job that had no gate gets one by an edit: the first run after the edit waits for the runs that executors have from before.
#[test]
fn a_run_of_an_edited_job_waits_for_the_runs_from_before() {
    for scope in ["cluster", "executor"] {
        let serial = definition(&json!({"overlap": {"policy": "serial", "scope": scope}, "queue_timeout": "60s"}));
        let mut world = world_with_executors(1);
        world.arrive([plain(1), plain(2)]);
        assert_eq!(world.at(1.0), ["sent to 1: 1"]);
        assert_eq!(world.at(2.0), ["sent to 1: 2"]);
        let mut next = ready(3, &serial);
        next.run.job_version = 2;
        world.arrive([next]);
        assert_eq!(world.at(3.0), NOTHING, "{scope}");
        world.result(1, 1, 1);
        world.settled(1, 1, verdict());
        assert_eq!(world.flush(), NOTHING, "{scope}");
        world.result(1, 2, 1);
        world.settled(2, 1, verdict());
        assert_eq!(world.flush(), ["sent to 1: 3"], "{scope}");
    }
}

/// The next attempt of a run from before the edit goes before the run that waits for it, although no gate guards the attempt itself.
#[test]
fn a_retry_from_before_an_edit_keeps_its_place() {
    let serial = definition(&json!({"queue_timeout": "60s"}));
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    let mut next = ready(2, &serial);
    next.run.job_version = 2;
    world.arrive([next]);
    assert_eq!(world.at(2.0), NOTHING);
    world.result(1, 1, 1);
    world.settled(1, 1, retry_outcome());
    assert_eq!(world.flush(), NOTHING, "the run before it waits for its next attempt");
    let mut second = plain(1);
    second.run.attempt = 2;
    world.arrive([second]);
    assert_eq!(world.at(3.0), ["sent to 1: 1"]);
    world.result(1, 1, 2);
    world.settled(1, 2, verdict());
    assert_eq!(world.flush(), ["sent to 1: 2"]);
}

/// After a restart, the first run after the edit waits for runs from before that an executor may have.
#[test]
fn a_run_of_an_edited_job_waits_for_runs_that_an_executor_may_have() {
    for scope in ["cluster", "executor"] {
        let serial = definition(&json!({"overlap": {"policy": "serial", "scope": scope}, "queue_timeout": "60s"}));
        let mut world = world_with_executors(1);
        world.around.now = Timestamp::from_secs(2);
        let mut before = plain(1);
        (before.run.status, before.run.executor_id) = (RunStatus::Running, Some(ExecutorId::new(1)));
        world.around.in_memory.admit(vec![before.run.clone()]);
        let called = vec![RollCallRun { ready: before, sent_under: Some(DEAD) }];
        world.on(Event::RollCall(called, vec![session_of(1)], vec![DEAD]));
        let mut next = ready(3, &serial);
        next.run.job_version = 2;
        world.arrive([next]);
        assert_eq!(world.at(3.0), NOTHING, "{scope}");
        world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[(1, 1)])));
        assert_eq!(world.flush(), NOTHING, "{scope}");
        world.result(1, 1, 1);
        world.settled(1, 1, verdict());
        assert_eq!(world.flush(), ["sent to 1: 3"], "{scope}");
    }
}

/// A run that its executor refuses goes to another one at once.
#[test]
fn a_refused_run_does_not_wait_for_the_next_round() {
    let mut world = world_with_executors(2);
    world.arrive([plain(1)]);
    let first = if world.at(1.0) == ["sent to 1: 1"] { 1 } else { 2 };
    for why in [RefusedWhy::Full, RefusedWhy::Draining] {
        let executor = if why == RefusedWhy::Full { first } else { 3 - first };
        assert_eq!(world.reply(executor, 1, 1, Reply::Refused(why, None)), NOTHING);
        let sent = if why == RefusedWhy::Full { vec![format!("sent to {}: 1", 3 - first)] } else { Vec::new() };
        assert_eq!(world.flush(), sent, "{why:?}");
    }
}

/// The place that a refused run had under a limit goes to the next run at once. That run does not go to the executor that has just refused the
/// first one: otherwise that executor would be sent the two runs in turn, and refuse them, for ever.
#[test]
fn an_executor_that_refuses_a_run_does_not_get_the_next_one_of_its_limit() {
    let limited = definition(&json!({
        "route": "first", "concurrency": {"key": "db", "max": 1}, "overlap": {"policy": "allow"}, "queue_timeout": "60s",
    }));
    for why in [RefusedWhy::Full, RefusedWhy::Draining, RefusedWhy::NoHandler] {
        let mut world = world_with_executors(2);
        world.arrive([ready(1, &limited), ready(2, &limited)]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        assert_eq!(world.reply(1, 1, 1, Reply::Refused(why, None)), NOTHING, "{why:?}");
        assert_eq!(world.flush(), ["sent to 2: 2"], "{why:?}");
        world.result(2, 2, 1);
        world.settled(2, 1, verdict());
        assert_eq!(world.flush(), ["sent to 2: 1"], "{why:?}");
    }
}

/// A run in a roll call has its place at an executor before the executor has answered, if the run's row names that executor or the executor's
/// hello lists the run. The hello may come before or after the roll call.
#[test]
fn no_run_begins_at_an_executor_that_may_have_an_earlier_one() {
    let job = definition(&json!({"overlap": {"policy": "serial", "scope": "executor"}, "queue_timeout": "60s"}));
    for (is_named, joins_first) in [(true, false), (false, false), (false, true)] {
        let mut world = World::new();
        world.around.now = Timestamp::from_secs(2);
        let mut called = ready(1, &job);
        (called.run.status, called.run.executor_id) = (RunStatus::Running, is_named.then_some(ExecutorId::new(1)));
        world.around.in_memory.admit(vec![called.run.clone()]);
        let called = vec![RollCallRun { ready: called, sent_under: Some(DEAD) }];
        let held = if is_named { HashSet::new() } else { HashSet::from([(run(1), 1)]) };
        let mut report = Some(Report { held_runs: held, ..Report::default() });
        if let Some(report) = report.take_if(|_| joins_first) {
            world.join(1, 1, report);
        }
        world.on(Event::RollCall(called, vec![session_of(1)], vec![DEAD]));
        world.arrive([ready(2, &job)]);
        assert_eq!(world.at(2.0), NOTHING);
        if let Some(report) = report {
            world.join(1, 1, report);
        }
        assert_eq!(world.flush(), NOTHING, "{is_named} {joins_first}");
        world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[(1, 1)])));
        assert_eq!(world.flush(), NOTHING, "it has the earlier one");
        world.result(1, 1, 1);
        world.settled(1, 1, verdict());
        assert_eq!(world.flush(), ["sent to 1: 2"], "{is_named} {joins_first}");
    }
}

/// A run that awaits its children counts as known here as long as it has its place: the next lease restores the place only of runs that are
/// not known.
#[test]
fn a_run_that_awaits_its_children_is_forgotten_with_its_place() {
    let mut world = world_with_executors(1);
    let serial = definition(&json!({"queue_timeout": "60s"}));
    let effects = world.on(Event::AdoptedAwaiting(vec![ready(1, &serial)]));
    let is_known = |effect: &Effect| matches!(effect, Effect::Await(runs) if runs.iter().any(|(_, id)| *id == run(1)));
    assert!(effects.iter().any(is_known), "{effects:?}");
    world.arrive([ready(2, &serial)]);
    assert_eq!(world.at(2.0), NOTHING);
    let effects = world.on(Event::LeaseLost);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ForgetAwaiting)), "{effects:?}");
}
