//! Scenarios with routers that ask executors first. As in [`tests`](super::tests), times are seconds, and executor 1 is called `e1`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rondel_core::{ExecutorId, JobId, Reason, RunId, Timestamp};
use serde_json::{Value, json};

use super::tests::{NOTHING, world_with_executors};
use super::world::World;
use super::*;
use crate::definitions::CompiledDefinition;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::Reply;
use crate::dispatch::tests_support::{definition, run_due_at};

const JOB: JobId = JobId::new(1);

fn job(route: &str) -> Arc<CompiledDefinition> {
    definition(&json!({"route": route, "overlap": {"policy": "allow"}, "queue_timeout": "60s"}))
}

fn due_at(millis: i64, job: &Arc<CompiledDefinition>) -> ReadyRun {
    ReadyRun::new(run_due_at(Timestamp::from_millis(millis)), Arc::clone(job))
}

/// Sets the time; returns which executors are asked which question, and what is sent.
fn act_at(world: &mut World, seconds: f64) -> Vec<String> {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
    world.on(Event::Wake);
    let mut done = Vec::new();
    for effect in world.on(Event::Flush) {
        match effect {
            Effect::Send(session, Body::Probes(asked)) => {
                done.push(format!("question {} to {}", asked.probe_id, session.executor));
            }
            Effect::SendTriggers(executor, runs) => done.extend(world.write(executor, &runs, true)),
            _ => {}
        }
    }
    done
}

/// An executor answers a question about the job.
fn answer(world: &mut World, executor: i64, number: i64, is_free: bool) -> Vec<String> {
    let free = if is_free { BTreeSet::from([JOB]) } else { BTreeSet::new() };
    world.on(Event::Probed(ExecutorId::new(executor), number, free));
    world.flush()
}

fn trace_of(world: &World, run: RunId) -> Value {
    let active = world.state.runs.active(run).expect("an executor has it");
    serde_json::from_str(active.ready.run.trace.as_deref().unwrap_or_default()).expect("a trace")
}

/// An executor that was heard within the last second is known to be there, but is not known to be free.
#[test]
fn an_executor_heard_within_a_second_is_not_asked_whether_it_is_online() {
    for (route, seconds, expected) in [
        ("failover", 10.999, "sent to 1: 10"),
        ("failover", 11.0, "question 1 to 1"),
        ("busyover", 10.1, "question 1 to 1"),
    ] {
        let mut world = world_with_executors(1);
        world.around.now = Timestamp::from_secs(10);
        world.beat(1);
        world.arrive([due_at(10_000, &job(route))]);
        assert_eq!(act_at(&mut world, seconds), [expected], "{route} at {seconds}");
    }
}

#[test]
fn only_executors_that_may_get_the_run_are_asked() {
    let mut world = world_with_executors(3);
    world.on(Event::Draining(ExecutorId::new(1)));
    world.arrive([due_at(2_000, &job("busyover"))]);
    assert_eq!(act_at(&mut world, 2.0), ["question 1 to 2", "question 2 to 3"]);
}

/// The deadline of an earlier run ends no question about a later one.
#[test]
fn each_question_has_a_deadline_of_its_own() {
    let mut world = world_with_executors(1);
    let job = job("busyover");
    world.arrive([due_at(2_000, &job), due_at(2_100, &job)]);
    assert_eq!(act_at(&mut world, 2.0), ["question 1 to 1"]);
    assert_eq!(act_at(&mut world, 2.1), ["question 2 to 1"]);
    assert_eq!(act_at(&mut world, 2.2), NOTHING, "the deadline of the first is over");
    assert_eq!(answer(&mut world, 1, 1, true), NOTHING, "too late");
    assert!(world.state.runs.active(RunId::new(2_100)).is_none());
    assert_eq!(answer(&mut world, 1, 2, true).len(), 1);
    assert!(world.state.runs.active(RunId::new(2_100)).is_some(), "the answer was about this one");
    assert!(world.state.runs.active(RunId::new(2_000)).is_none(), "it waits for an executor");
}

/// A run ends when it is cancelled, also while executors are asked about it.
#[test]
fn a_run_is_cancelled_while_executors_are_asked_about_it() {
    let mut world = world_with_executors(1);
    world.arrive([due_at(2_000, &job("busyover"))]);
    assert_eq!(act_at(&mut world, 2.0), ["question 1 to 1"]);
    let cancel = Event::Cancels(vec![(RunId::new(2_000), "operator".to_owned())]);
    assert_eq!(world.described(cancel), ["end of 2/1: Cancelled"]);
    assert_eq!(answer(&mut world, 1, 1, true), NOTHING);
}

/// If all executors are busy, they are not asked again immediately.
#[test]
fn a_job_pauses_after_no_executor_was_free() {
    for (millis, expected) in [(2_099, NOTHING.to_vec()), (2_100, vec!["question 2 to 1"])] {
        let (mut world, job) = (world_with_executors(1), job("busyover"));
        world.arrive([due_at(2_000, &job), due_at(millis, &job)]);
        assert_eq!(act_at(&mut world, 2.0), ["question 1 to 1"]);
        assert_eq!(answer(&mut world, 1, 1, false), NOTHING);
        let seconds = Duration::from_millis(millis.unsigned_abs()).as_secs_f64();
        assert_eq!(act_at(&mut world, seconds), expected, "{millis}");
    }
}

/// The trace names the executors that come before the chosen one, and why they were not chosen.
#[test]
fn the_trace_names_busy_and_silent_executors() {
    let run = RunId::new(2_000);
    for (route, answers, refused) in [
        ("failover", vec![(2, 2, true)], json!({"e1": "silent"})),
        ("busyover", vec![(1, 1, false), (2, 2, true)], json!({"e1": "busy"})),
        ("busyover", vec![(3, 3, true), (2, 2, false)], json!({"e1": "silent", "e2": "busy"})),
    ] {
        let mut world = world_with_executors(3);
        world.arrive([due_at(2_000, &job(route))]);
        assert_eq!(act_at(&mut world, 2.0).len(), 3, "{route}");
        for (executor, number, is_free) in answers {
            answer(&mut world, executor, number, is_free);
        }
        act_at(&mut world, 2.2);
        assert_eq!(trace_of(&world, run)["refused"], refused, "{route}");
    }
}

/// The trace shows why the second attempt of a run went to another executor. A broadcast, and a run whose caller names an executor, avoid no
/// executor.
#[test]
fn the_trace_names_the_executor_of_the_attempt_before() {
    let run = RunId::new(2_000);
    let refused = |attempt, change: &dyn Fn(&mut ReadyRun)| {
        let mut world = world_with_executors(2);
        let mut ready = due_at(2_000, &job("first"));
        (ready.run.attempt, ready.run.executor) = (attempt, Some("e2".to_owned()));
        change(&mut ready);
        world.arrive([ready]);
        assert_eq!(act_at(&mut world, 2.0).len(), 1);
        trace_of(&world, run)["refused"].clone()
    };
    assert_eq!(refused(1, &|_| {}), Value::Null);
    assert_eq!(refused(2, &|_| {}), json!({"e2": "had_it_before"}));
    assert_eq!(refused(2, &|ready| ready.run.executor = Some("e9".to_owned())), Value::Null);
    let broadcast = job("broadcast");
    let shard = |ready: &mut ReadyRun| {
        ready.definition = Arc::clone(&broadcast);
        (ready.run.shard_index, ready.run.shard_total, ready.run.parent) = (1, Some(2), Some(RunId::new(1)));
    };
    assert_eq!(refused(2, &shard), Value::Null);
}

/// Of the executors that have room, a group of a pump job goes to the one with the fewest groups of that job.
#[test]
fn groups_of_a_pump_job_are_spread_evenly() {
    let pump = definition(&json!({"pump": {"items": 9, "groups": 9}}));
    let group = |job: i64, index: i32| {
        let mut group = due_at(2_000 + 10 * job + i64::from(index), &pump);
        let run = &mut group.run;
        (run.job, run.fire_at, run.parent) = (JobId::new(job), Timestamp::from_secs(2), Some(RunId::new(job)));
        (run.shard_index, run.shard_total) = (index, Some(9));
        group
    };
    let mut world = world_with_executors(3);
    world.on(Event::Draining(ExecutorId::new(1)));
    world.arrive([group(1, 0), group(1, 1), group(1, 2), group(2, 0), group(2, 1)]);
    act_at(&mut world, 3.0);
    let of = |world: &World, executor, job| {
        let its = world.state.runs.of_executor(ExecutorId::new(executor));
        its.filter(|active| active.ready.run.job == JobId::new(job)).count()
    };
    assert_eq!([1, 2, 3].map(|executor| of(&world, executor, 1)), [0, 2, 1]);
    assert_eq!([1, 2, 3].map(|executor| of(&world, executor, 2)), [0, 1, 1], "those of another job do not count");
}

/// Lets `count` groups of a pump job arrive, whose attempts have this reason. Returns how many of them executors 1 and 2 get.
fn groups_of_two(world: &mut World, count: i32, reason: Option<Reason>) -> [usize; 2] {
    let pump = definition(&json!({"pump": {"items": 9, "groups": 9}}));
    let group = |index: i32| {
        let mut group = due_at(2_000 + i64::from(index), &pump);
        let run = &mut group.run;
        run.reason = reason;
        (run.job, run.fire_at, run.parent) = (JobId::new(1), Timestamp::from_secs(2), Some(RunId::new(1)));
        (run.shard_index, run.shard_total) = (index, Some(9));
        group
    };
    world.arrive((0..count).map(group));
    act_at(world, 3.0);
    [1, 2].map(|executor| world.state.runs.of_executor(ExecutorId::new(executor)).count())
}

/// An executor that left a trigger unanswered has the fewest groups, but gets none while another one takes them.
#[test]
fn groups_of_a_pump_job_avoid_silent_executors() {
    let mut world = world_with_executors(2);
    world.state.executors.silences.record_unanswered(ExecutorId::new(1), Timestamp::EPOCH, Timestamp::from_secs(2));
    assert_eq!(groups_of_two(&mut world, 3, None), [0, 3]);
}

/// A group begins where a slot is free. If none is, it waits at the executor with the fewest groups. A group that moves does not come back.
#[test]
fn groups_of_a_pump_job_take_free_slots_first() {
    for (reason, expected) in [(None, [1, 4]), (Some(Reason::ExecutorLost), [1, 4]), (Some(Reason::Moved), [3, 2])] {
        let mut world = world_with_executors(2);
        world.on(Event::Beat(ExecutorId::new(1), 4));
        assert_eq!(groups_of_two(&mut world, 5, reason), expected, "{reason:?}");
    }
}

/// A group that leaves an executor which takes no groups any more cannot come back: it begins where a slot is free.
#[test]
fn a_group_of_a_drained_executor_takes_a_free_slot() {
    let pump = definition(&json!({"pump": {"items": 9, "groups": 9}}));
    let group = |index: i32, reason: Option<Reason>| {
        let mut group = due_at(2_000 + i64::from(index), &pump);
        let run = &mut group.run;
        (run.reason, run.executor) = (reason, Some("e1".to_owned()));
        (run.job, run.fire_at, run.parent) = (JobId::new(1), Timestamp::from_secs(2), Some(RunId::new(1)));
        (run.shard_index, run.shard_total) = (index, Some(9));
        group
    };
    let mut world = world_with_executors(3);
    world.on(Event::Draining(ExecutorId::new(1)));
    world.on(Event::Beat(ExecutorId::new(2), 4));
    world.arrive([group(0, None), group(1, Some(Reason::Moved))]);
    act_at(&mut world, 3.0);
    assert_eq!([1, 2, 3].map(|executor| world.state.runs.of_executor(ExecutorId::new(executor)).count()), [0, 0, 2]);
}

/// The runs that an executor has from other servers count as well: its heartbeats report them.
#[test]
fn the_least_active_executor_is_found_by_all_that_it_has() {
    let mut world = world_with_executors(2);
    world.on(Event::Beat(ExecutorId::new(1), 3));
    let job = job("least_active");
    world.arrive([2_000, 2_001, 2_002].map(|millis| due_at(millis, &job)));
    assert_eq!(act_at(&mut world, 3.0), ["sent to 2: 2 2 2"]);
    // Its runs from this server are not counted twice.
    for millis in [2_000, 2_001] {
        let accepted = vec![(RunId::new(millis), 1, Reply::Accepted)];
        world.on(Event::Replies(ExecutorId::new(2), accepted));
    }
    world.on(Event::Beat(ExecutorId::new(2), 3));
    world.on(Event::Beat(ExecutorId::new(1), 4));
    world.arrive([due_at(4_000, &job)]);
    assert_eq!(act_at(&mut world, 4.0), ["sent to 2: 4"]);
}

/// An executor that left a trigger unanswered is skipped while another one has room, and is named as silent.
#[test]
fn the_trace_names_executors_that_are_skipped_as_silent() {
    let mut world = world_with_executors(2);
    world.state.executors.silences.record_unanswered(ExecutorId::new(1), Timestamp::EPOCH, Timestamp::from_secs(2));
    world.arrive([due_at(2_000, &job("first"))]);
    assert_eq!(act_at(&mut world, 2.0), ["sent to 2: 2"]);
    assert_eq!(trace_of(&world, RunId::new(2_000))["refused"], json!({"e1": "silent"}));
    // It is not skipped if the other executor takes no runs.
    world.on(Event::Draining(ExecutorId::new(2)));
    world.arrive([due_at(3_000, &job("first"))]);
    assert_eq!(act_at(&mut world, 3.0), ["sent to 1: 3"]);
}

/// Executors are asked about a run when the run is due, not when it would be marked.
#[test]
fn no_executor_is_asked_ahead_of_the_instant() {
    let mut world = world_with_executors(1);
    let marked = json!({"route": "busyover", "overlap": {"policy": "allow"}, "delivery": "at_most_once"});
    world.arrive([due_at(2_000, &definition(&marked))]);
    assert_eq!(act_at(&mut world, 1.9), NOTHING);
    assert_eq!(act_at(&mut world, 2.0), ["question 1 to 1"]);
    assert_eq!(answer(&mut world, 1, 1, true), ["mark 2"]);
}

/// After a step back of the clock, no pause lasts until the clock has caught up.
#[test]
fn executors_are_asked_again_after_a_step_back_of_the_clock() {
    let mut world = world_with_executors(1);
    world.arrive([due_at(60_000, &job("busyover"))]);
    assert_eq!(act_at(&mut world, 100.0), ["question 1 to 1"]);
    assert_eq!(answer(&mut world, 1, 1, false), NOTHING);
    world.around.now = Timestamp::from_secs(70);
    world.on(Event::Round(Vec::new()));
    assert_eq!(act_at(&mut world, 70.0), ["question 2 to 1"]);
}
