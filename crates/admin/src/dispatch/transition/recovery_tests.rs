//! Scenarios with lost executors, and with rows that show more than this server knows. As in [`tests`](super::tests), times are seconds, and
//! runs are named by the second at which they are due.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use rondel_core::{ExecutorId, NodeId, Run, RunId, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::LeaseToken;
use rondel_store::ledger::{EndOutcome, FenceRequest, RelayedAnswer, RunCheck};
use serde_json::json;

use super::tests::{DEAD, NOTHING, answer, plain, roll_call_run, run, session_of, world_with_executors};
use super::world::{World, describe, retry_outcome, verdict};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::{FenceAnswer, Reply, Report, Responder, SettledAttempt, Shards};
use crate::dispatch::tests_support::{definition, ready};

const ONE: ExecutorId = ExecutorId::new(1);

fn serial(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": "60s"})))
}

fn set_time(world: &mut World, seconds: f64) {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
}

/// Performs a round. Returns which executors it asks other nodes about, and its other effects.
fn round(world: &mut World, seconds: f64) -> Vec<String> {
    set_time(world, seconds);
    let effects = world.on(Event::Round(Vec::new()));
    let words = effects.iter().filter_map(|effect| match effect {
        Effect::Store(Step::LastHeard(executors)) => Some(format!("who heard {executors:?}")),
        Effect::Store(Step::CheckRows(_)) => describe(effect),
        Effect::Finish(_) => describe(effect),
        _ => None,
    });
    words.collect()
}

fn leave(world: &mut World, executor: i64) {
    world.on(Event::StreamEnded(ExecutorId::new(executor), executor.unsigned_abs(), Responder::new(|()| {})));
}

fn row(second: i64, status: RunStatus, attempt: i32, owner: LeaseToken) -> RunCheck {
    RunCheck {
        id: run(second),
        status,
        attempt,
        job_version: 1,
        has_recorded_start: true,
        owner,
        cancel_by: None,
        drop_for: None,
        term: 1,
    }
}

#[test]
fn other_nodes_are_asked_once_about_executors_silent_for_too_long() {
    let mut world = world_with_executors(1);
    set_time(&mut world, 10.0);
    leave(&mut world, 1);
    assert_eq!(round(&mut world, 40.0), NOTHING);
    world.around.rows_may_be_old = true;
    assert_eq!(round(&mut world, 40.001), NOTHING, "the rows show it as silent for too long");
    world.around.rows_may_be_old = false;
    let asked = format!("who heard {:?}", [ONE]);
    assert_eq!(round(&mut world, 40.001), std::slice::from_ref(&asked));
    assert_eq!(round(&mut world, 41.0), NOTHING, "the answer is on its way");
    world.on(Event::StepRefused(Step::LastHeard(vec![ONE])));
    assert_eq!(round(&mut world, 42.0), [asked], "the question was not asked");
    world.on(Event::Heard(vec![ONE], BTreeMap::from([(ONE, Timestamp::from_secs(20))])));
    assert!(!world.state.executors.is_lost(ONE), "another node hears it");
    assert_eq!(round(&mut world, 50.0), NOTHING);
}

#[test]
fn an_executor_that_another_node_heard_within_the_time_is_not_lost() {
    for (heard_at, is_lost) in [(10_001, false), (10_000, true)] {
        let mut world = world_with_executors(1);
        world.arrive([plain(1)]);
        world.at(1.0);
        leave(&mut world, 1);
        set_time(&mut world, 40.0);
        let heard = BTreeMap::from([(ONE, Timestamp::from_millis(heard_at))]);
        let expected = if is_lost { vec!["end of 1/1: Lost(ExecutorLost)"] } else { Vec::new() };
        assert_eq!(world.described(Event::Heard(vec![ONE], heard)), expected, "{heard_at}");
        assert_eq!(world.state.executors.is_lost(ONE), is_lost);
    }
}

/// The database took long to answer who heard the executor. It has connected in the meantime, got a run, and left again.
#[test]
fn an_executor_that_has_connected_since_the_question_is_not_lost() {
    let mut world = world_with_executors(1);
    leave(&mut world, 1);
    assert_eq!(round(&mut world, 31.0), [format!("who heard {:?}", [ONE])]);
    world.join(1, 2, Report::default());
    world.arrive([plain(32)]);
    assert_eq!(world.at(32.0), ["sent to 1: 32"]);
    world.on(Event::StreamEnded(ONE, 2, Responder::new(|()| {})));
    assert_eq!(world.described(Event::Heard(vec![ONE], BTreeMap::new())), NOTHING);
    assert!(!world.state.executors.is_lost(ONE));
}

/// A run that continues in silence keeps its place until its executor must have stopped it. Then other nodes are asked first, because another
/// node may have heard the executor since.
#[test]
fn a_run_that_continues_in_silence_is_lost_later_than_its_executor() {
    let mut world = world_with_executors(1);
    let continues = definition(&json!({"on_silence": "continue", "queue_timeout": "60s"}));
    world.arrive([ready(1, &continues), plain(2)]);
    assert_eq!(world.at(2.0), ["sent to 1: 1 2"]);
    leave(&mut world, 1);
    set_time(&mut world, 40.0);
    assert_eq!(
        world.described(Event::Heard(vec![ONE], BTreeMap::new())),
        ["end of 2/1: Lost(ExecutorLost)"],
        "the other one ends with its executor"
    );
    assert!(world.state.executors.is_lost(ONE) && !world.state.executors.has_stopped_all(ONE));
    assert_eq!(round(&mut world, 122.0), NOTHING);
    world.around.rows_may_be_old = true;
    assert_eq!(round(&mut world, 200.0), NOTHING, "no executor is known to have stopped it");
    world.around.rows_may_be_old = false;
    assert_eq!(round(&mut world, 200.0), [format!("who heard {:?}", [ONE])]);
    assert_eq!(world.described(Event::Heard(vec![ONE], BTreeMap::new())), ["end of 1/1: Lost(ExecutorLost)"]);
}

/// No server waits for an executor whose run has ended, whatever its job's `on_silence` is.
#[test]
fn an_executor_that_is_lost_without_runs_is_not_looked_at_again() {
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &definition(&json!({"on_silence": "continue", "queue_timeout": "60s"})))]);
    world.at(1.0);
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"]);
    leave(&mut world, 1);
    set_time(&mut world, 40.0);
    assert_eq!(world.described(Event::Heard(vec![ONE], BTreeMap::new())), NOTHING);
    assert!(world.state.executors.is_lost(ONE));
    assert_eq!(round(&mut world, 200.0), NOTHING);
}

/// A run that this server still waits for is its own under the next lease. A run that it had given up under the previous lease takes part in
/// the roll call, because the store refuses that end.
#[test]
fn a_run_in_hand_joins_the_roll_call_only_if_its_end_is_refused() {
    for (epoch, is_given_up, is_called) in [(1, false, false), (2, false, false), (1, true, false), (2, true, true)] {
        let mut world = world_with_executors(1);
        world.arrive([serial(1)]);
        assert_eq!(world.at(1.0), ["sent to 1: 1"]);
        if is_given_up {
            leave(&mut world, 1);
            assert_eq!(world.described(Event::Died(ONE)), ["end of 1/1: Lost(ExecutorLost)"]);
        }
        world.around.token.epoch = epoch;
        let mut call = roll_call_run(1);
        call.ready.run.node_epoch = epoch;
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        world.on(Event::RollCall(vec![call], vec![session_of(2)], vec![DEAD]));
        let (here, called) = (world.state.runs.active(run(1)), world.state.runs.in_roll_call(run(1)));
        assert_eq!((here.is_some(), called.is_some()), (!is_called, is_called), "{epoch} {is_given_up}");
        assert!(here.is_none_or(|active| active.ready.run.node_epoch == epoch), "{epoch} {is_given_up}");
    }
}

/// If there are other servers, the rows of runs at executors are read every five seconds, except for new runs and runs that have ended.
#[test]
fn the_rows_of_runs_that_executors_have_for_long_are_read() {
    let mut world = world_with_executors(1);
    world.around.settings.is_single_server = false;
    world.arrive([plain(1), plain(2), plain(3)]);
    assert_eq!(world.at(2.0), ["sent to 1: 1 2"]);
    assert_eq!(round(&mut world, 2.0), NOTHING);
    assert_eq!(world.at(3.0), ["sent to 1: 3"]);
    world.result(1, 2, 1);
    assert_eq!(round(&mut world, 6.999), NOTHING);
    assert_eq!(round(&mut world, 7.0), ["look at 1"]);
    assert_eq!(round(&mut world, 11.0), NOTHING);
    assert_eq!(round(&mut world, 12.0), ["look at 3 1"], "what was not read for the longest time comes first");
    world.around.settings.is_single_server = true;
    assert_eq!(round(&mut world, 20.0), NOTHING, "no other server can have changed a row");
}

/// The row of a run decides whether an executor still counts as having the run.
#[test]
fn the_row_of_a_run_that_is_here_may_have_gone_on() {
    let own = LeaseToken { node: NodeId::new(1), epoch: 1 };
    for (row, is_active, follows) in [
        (Some(row(1, RunStatus::Running, 1, own)), true, NOTHING.to_vec()),
        (None, false, vec!["sent to 1: 2"]),
        (Some(row(1, RunStatus::Failed, 1, own)), false, vec!["sent to 1: 2"]),
        (Some(row(1, RunStatus::Waiting, 2, own)), false, NOTHING.to_vec()),
    ] {
        let mut world = world_with_executors(1);
        world.arrive([serial(1), serial(2)]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        let checks: Vec<RunCheck> = row.clone().into_iter().collect();
        assert_eq!(world.described(Event::RowsChecked(vec![run(1)], checks)), NOTHING, "{row:?}");
        assert_eq!(world.state.runs.active(run(1)).is_some(), is_active, "{row:?}");
        assert_eq!(world.flush(), follows, "{row:?}");
        let in_flight = world.state.executors.get(ONE).map(|online| online.in_flight);
        assert_eq!(in_flight, Some(if is_active || !follows.is_empty() { 1 } else { 0 }), "{row:?}");
    }
}

/// A run whose attempt ended without an event here is forgotten, so that the periodic queries find its next attempt.
#[test]
fn a_run_whose_next_attempt_waits_in_the_store_is_forgotten() {
    let own = LeaseToken { node: NodeId::new(1), epoch: 1 };
    for (row, is_here) in [(row(1, RunStatus::Running, 1, own), true), (row(1, RunStatus::Waiting, 2, own), false)] {
        let mut world = world_with_executors(1);
        world.arrive([plain(1)]);
        world.at(1.0);
        world.on(Event::RowsChecked(vec![run(1)], vec![row]));
        assert_eq!(world.around.in_memory.missing_runs([run(1)]).is_empty(), is_here);
    }
}

/// If a run is not in memory, its row decides whether it keeps its place at the gate.
#[test]
fn a_place_without_a_run_is_kept_by_its_row() {
    let own = LeaseToken { node: NodeId::new(1), epoch: 1 };
    for (row, expected) in [
        (Some(row(1, RunStatus::Running, 1, own)), NOTHING.to_vec()),
        (Some(row(1, RunStatus::Waiting, 2, own)), NOTHING.to_vec()),
        (Some(row(1, RunStatus::Running, 1, DEAD)), vec!["mark 2"]),
        (None, vec!["mark 2"]),
    ] {
        let mut world = world_with_executors(1);
        let mut open = serial(1);
        open.run.attempt = 2;
        world.on(Event::Restored(vec![open]));
        world.arrive([serial(2)]);
        assert_eq!(world.at(2.0), NOTHING);
        assert_eq!(round(&mut world, 5.0), ["look at 1"], "it holds up another one");
        world.on(Event::RowsChecked(vec![run(1)], row.clone().into_iter().collect()));
        assert_eq!(world.flush(), expected, "{row:?}");
    }
}

/// The next attempt of a run is here already, although as far as this server knows an executor still has the earlier one.
#[test]
fn a_row_that_has_gone_on_forgets_no_later_attempt() {
    let own = LeaseToken { node: NodeId::new(1), epoch: 1 };
    let mut world = world_with_executors(1);
    world.arrive([serial(1)]);
    world.at(1.0);
    let mut second = serial(1);
    second.run.attempt = 2;
    // Another server has stored the end of the first attempt.
    world.around.in_memory.forget([run(1)]);
    world.arrive([second]);
    assert_eq!(world.described(Event::RowsChecked(vec![run(1)], vec![row(1, RunStatus::Pending, 2, own)])), NOTHING);
    assert!(world.state.runs.active(run(1)).is_none() && world.around.in_memory.missing_runs([run(1)]).is_empty());
    assert_eq!(world.at(2.0), ["sent to 1: 1"]);
    let active = world.state.runs.active(run(1)).map(|active| active.ready.run.attempt);
    assert_eq!(active, Some(2));
}

/// A result is taken only from the executor that has the run, and refused if the run was not sent yet.
#[test]
fn a_result_is_taken_from_the_executor_that_has_the_run() {
    let mut world = world_with_executors(2);
    world.arrive([plain(1)]);
    set_time(&mut world, 1.0);
    world.on(Event::Wake);
    let executor = world.state.runs.active(run(1)).map(|active| active.executor.get()).expect("it is placed");
    let other = 3 - executor;
    assert_eq!(world.result(executor, 1, 1), ["refused 1/1"], "it is not sent yet");
    assert_eq!(world.flush(), [format!("sent to {executor}: 1")]);
    assert_eq!(world.result(other, 1, 1), ["unexpected 1"]);
    assert_eq!(world.result(executor, 1, 2), ["foreign 1"], "another attempt");
    assert_eq!(world.result(executor, 1, 1), ["end of 1/1: Succeeded"]);
    assert_eq!(world.result(executor, 1, 1), NOTHING, "it is being stored");
    // The result of a run of another app is not taken, even from the executor that has the run.
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    let mut active = world.state.runs.take_active(run(1)).unwrap();
    active.ready.run.app = rondel_core::AppId::new(2);
    world.state.runs.put_active(active);
    assert_eq!(world.result(1, 1, 1), ["unexpected 1"]);
}

/// The end of an attempt ends that attempt and earlier ones, and no later one, here or in a roll call.
#[test]
fn the_end_of_an_attempt_ends_that_attempt_and_those_before() {
    for (attempt, settled, is_called) in [(1, 1, false), (1, 2, false), (2, 1, true)] {
        let mut world = world_with_executors(1);
        set_time(&mut world, 2.0);
        let mut call = roll_call_run(1);
        call.ready.run.attempt = attempt;
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
        assert!(world.state.runs.in_roll_call(run(1)).is_some());
        world.settled(1, settled, verdict());
        assert_eq!(world.state.runs.in_roll_call(run(1)).is_some(), is_called, "{attempt} {settled}");
        assert_eq!(world.state.recovery.rollcall.len(), usize::from(is_called));
    }
    // An end that was decided under an earlier lease than the roll call ends nothing.
    let mut world = world_with_executors(1);
    set_time(&mut world, 2.0);
    let before = world.around.token;
    world.around.token.epoch = 2;
    let mut call = roll_call_run(1);
    call.ready.run.node_epoch = 2;
    world.around.in_memory.admit(vec![call.ready.run.clone()]);
    world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
    for owner in [before, world.around.token] {
        let settled = SettledAttempt { run: run(1), attempt: 1, owner: Some(owner), end_outcome: verdict() };
        world.on(Event::Settled(vec![settled]));
        assert_eq!(world.state.runs.in_roll_call(run(1)).is_some(), owner == before);
        assert_eq!(world.around.in_memory.missing_runs([run(1)]).is_empty(), owner == before);
    }
}

/// At the end of an attempt this node does not forget the next one, which waits here by now.
#[test]
fn the_end_of_an_attempt_does_not_forget_the_next() {
    let mut world = World::new();
    let mut second = plain(1);
    second.run.attempt = 2;
    world.arrive([second]);
    assert_eq!(world.at(1.0), NOTHING);
    assert_eq!(world.settled(1, 1, verdict()), NOTHING);
    assert!(world.around.in_memory.missing_runs([run(1)]).is_empty());
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), ["sent to 1: 1"]);
}

/// When a result that was judged by its run's row is stored, the run leaves its executor here, and its slot is freed once.
#[test]
fn a_result_that_was_judged_by_its_row_frees_the_slot() {
    let mut world = world_with_executors(1);
    world.arrive([serial(1), serial(2)]);
    world.at(2.0);
    world.settled(1, 2, verdict());
    assert!(world.state.runs.active(run(1)).is_some(), "that was of another attempt");
    world.settled(1, 1, verdict());
    assert!(world.state.runs.active(run(1)).is_none());
    assert_eq!(world.state.executors.get(ONE).map(|online| online.in_flight), Some(1), "the next one has it");
    assert_eq!(world.flush(), ["sent to 1: 2"]);
    // A superseded end keeps the place until the row is read.
    assert_eq!(world.settled(2, 1, EndOutcome::Superseded), ["look at 2"]);
    world.arrive([serial(3)]);
    assert_eq!(world.at(3.0), NOTHING);
}

/// If the row of a run names its executor, the name is removed when the executor hands the run back. Else there is nothing to remove.
#[test]
fn an_adopted_run_is_named_as_in_its_row() {
    for (executor, expected) in [(Some(ONE), vec!["unmark 1"]), (None, Vec::new())] {
        let mut world = world_with_executors(1);
        set_time(&mut world, 2.0);
        let mut call = roll_call_run(1);
        call.ready.run.executor_id = executor;
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
        world.on(Event::FenceAnswered(ONE, 1, answer(&[(1, 1)])));
        assert!(world.state.runs.active(run(1)).is_some());
        assert_eq!(world.state.executors.get(ONE).map(|online| online.in_flight), Some(1));
        assert_eq!(world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Full, None)), expected, "{executor:?}");
        // If the row named executor 1, the next executor gets the run only once the row names the next one.
        world.join(2, 2, Report::default());
        assert_eq!(world.flush(), [if executor.is_some() { "mark 1" } else { "sent to 2: 1" }]);
    }
}

/// Until the name is removed, another server that takes the run over asks only the executor that the row names.
#[test]
fn a_run_that_a_named_executor_hands_back_is_marked_before_another_one_gets_it() {
    let mut world = world_with_executors(1);
    set_time(&mut world, 2.0);
    let mut call = roll_call_run(1);
    call.ready.run.executor_id = Some(ONE);
    world.around.in_memory.admit(vec![call.ready.run.clone()]);
    world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
    world.on(Event::FenceAnswered(ONE, 1, answer(&[(1, 1)])));
    assert_eq!(world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Draining, None)), ["unmark 1"]);
    world.join(2, 2, Report::default());
    assert_eq!(world.flush(), ["mark 1"]);
    world.on(Event::Marked(vec![(run(1), 1)], vec![run(1)]));
    assert_eq!(world.flush(), ["sent to 2: 1"]);
}

/// The answer to another server's question lists all attempts that the executor has, and all whose results it still has.
#[test]
fn the_answer_of_an_executor_is_passed_on_to_the_server_that_asks() {
    let request = |asker| FenceRequest {
        asker: NodeId::new(asker),
        executor: ONE,
        asked_at: Timestamp::from_secs(1),
        leases: vec![DEAD],
    };
    let passed_on = |world: &mut World, held: &[(i64, i32)], finished: &[(RunId, i32)]| {
        let finished: HashSet<(RunId, i32)> = finished.iter().copied().collect();
        let effects = world.on(Event::FenceAnswered(ONE, 1, FenceAnswer { finished_runs: finished, ..answer(held) }));
        let answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Store(Step::AnswerFences(answers)) => Some(answers),
            _ => None,
        });
        let words = |one: RelayedAnswer| (one.asker.get(), one.name, one.held);
        answers.flatten().map(words).collect::<Vec<_>>()
    };
    let mut world = world_with_executors(1);
    assert_eq!(passed_on(&mut world, &[], &[]), [], "no server asks");
    world.on(Event::FencesAsked(vec![request(7), request(8)]));
    let both = vec![(run(1), 1), (run(2), 1), (run(3), 2)];
    let finished = [(run(2), 1), (run(3), 2)];
    let expected = [7, 8].map(|asker| (asker, "e1".to_owned(), both.clone()));
    assert_eq!(passed_on(&mut world, &[(1, 1), (2, 1)], &finished), expected);
    assert_eq!(passed_on(&mut world, &[(1, 1)], &[]), [], "they have their answers");
    world.on(Event::FencesAsked(vec![request(9)]));
    assert_eq!(passed_on(&mut world, &[], &finished), [(9, "e1".to_owned(), finished.to_vec())]);
}

/// An answer about a lease that no server asked about is ignored, because only the newest epoch of each node is stored.
#[test]
fn an_answer_about_a_lease_that_was_not_asked_about_is_ignored() {
    for (asks, is_taken) in [(vec![], false), (vec![DEAD], true), (vec![LeaseToken { epoch: 3, ..DEAD }], false)] {
        let mut world = world_with_executors(1);
        world.on(Event::Round(asks.clone()));
        world.on(Event::FenceAnswered(ONE, 1, answer(&[])));
        let has_fenced = world.state.executors.get(ONE).map(|online| online.has_fenced(DEAD));
        assert_eq!(has_fenced, Some(is_taken), "{asks:?}");
    }
}

/// A fence goes out once for each lease, and again for a later lease of the node.
#[test]
fn each_ended_lease_is_announced_once() {
    let announced = |world: &mut World, epoch| {
        let effects = world.on(Event::Round(vec![LeaseToken { epoch, ..DEAD }]));
        effects.iter().filter(|effect| matches!(effect, Effect::Send(_, Body::Fence(_)))).count()
    };
    let mut world = world_with_executors(2);
    assert_eq!([4, 4, 3, 5].map(|epoch| announced(&mut world, epoch)), [2, 0, 0, 2]);
}

/// An executor that shut down without runs is not waited for, but one that has runs is.
#[test]
fn an_executor_that_shut_down_is_not_waited_for_unless_it_has_runs() {
    let gone = |world: &mut World| {
        leave(world, 1);
        let effects = world.on(Event::ExecutorShutDown(ONE));
        effects.iter().filter(|effect| matches!(effect, Effect::Store(Step::NoteLeft(_)))).count()
    };
    let mut world = world_with_executors(1);
    assert_eq!((gone(&mut world), gone(&mut world)), (1, 0));
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    assert_eq!((gone(&mut world), world.state.executors.is_lost(ONE)), (0, false));
    world.result(1, 1, 1);
}

/// The slot and the limit of an attempt are free once its end is durable, wherever the next attempt is.
#[test]
fn the_place_of_a_retry_is_kept_and_its_limit_is_free() {
    let limited = definition(&json!({"overlap": {"policy": "allow"}, "concurrency": {"key": "db", "max": 1}}));
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &limited), ready(2, &limited)]);
    assert_eq!(world.at(2.0), ["sent to 1: 1"]);
    world.result(1, 1, 1);
    assert_eq!(world.flush(), NOTHING, "its end is not durable");
    world.settled(1, 1, retry_outcome());
    assert_eq!(world.flush(), ["sent to 1: 2"]);
}

/// This server starts a stored shard only if it wrote the shard and still has to send it under its lease.
#[test]
fn a_broadcast_starts_the_shards_that_are_its_own() {
    let mut root = ready(1, &definition(&json!({"route": "broadcast", "queue_timeout": "60s"})));
    root.run = root.run.for_all_shards();
    let shard = |index: i32| Run {
        id: RunId::new(root.run.id.get() + 10_000 * i64::from(1 + index)),
        shard_index: index,
        shard_total: Some(4),
        parent: Some(root.run.id),
        executor: Some("e1".to_owned()),
        ..root.run.clone()
    };
    let [own, begun, moved, other] = [0, 1, 2, 3].map(shard);
    let begun = Run { status: RunStatus::Running, ..begun };
    let moved = Run { node: NodeId::new(9), ..moved };
    let requested_shards = vec![own.clone(), begun.clone(), moved.clone()];
    let mut world = world_with_executors(1);
    world.arrive([root.clone()]);
    assert_eq!(world.at(1.0), ["expand 1 to 1"]);
    world.around.in_memory.admit(requested_shards.clone());
    let shards = Shards { requested_shards, open_shards: Some(vec![own.clone(), begun.clone(), moved.clone(), other]) };
    assert_eq!(world.described(Event::Expanded(Box::new(root.run.clone()), shards)), NOTHING);
    assert_eq!(world.at(1.1), ["sent to 1: 11"]);
    let gone = [begun.id, moved.id, root.run.id];
    assert_eq!(world.around.in_memory.missing_runs([own.id].into_iter().chain(gone)), gone);
}
