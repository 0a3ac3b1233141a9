//! Scenarios of sending runs to executors: marks, terms, timers, and the drain of a server. As in [`tests`](super::tests), times are seconds,
//! and runs are named by the second at which they are due.

use std::time::Duration;

use rondel_core::{ExecutorId, Run, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::LeaseToken;
use rondel_store::ledger::{EndOutcome, RunCheck};
use serde_json::json;

use super::tests::{DEAD, NOTHING, plain, run, world_with_executors};
use super::world::{World, describe};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::active::Phase;
use crate::dispatch::effect::Measure;
use crate::dispatch::event::{Reply, Report, Responder};
use crate::dispatch::tests_support::{definition, ready};

fn at_most_once(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"overlap": {"policy": "allow"}, "delivery": "at_most_once"})))
}

fn serial(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": "60s"})))
}

fn set_time(world: &mut World, seconds: f64) {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
}

fn mark_won(second: i64) -> Event {
    Event::Marked(vec![(run(second), 1)], vec![run(second)])
}

/// Other nodes may already treat a run whose mark is older than a second as one that died with this node.
#[test]
fn a_marked_run_is_sent_immediately_within_a_second() {
    for (seconds, expected) in [(1.0, "sent to 1: 1"), (1.999, "sent to 1: 1"), (2.0, "unmark 1")] {
        let mut world = world_with_executors(1);
        world.arrive([at_most_once(1)]);
        assert_eq!(world.at(1.0), ["mark 1"]);
        set_time(&mut world, seconds);
        assert_eq!(world.described(mark_won(1)), NOTHING);
        assert_eq!(world.flush(), [expected], "{seconds}");
    }
}

/// An answer about one attempt does not count for another, and a mark that no run waits for is removed.
#[test]
fn a_mark_without_a_waiting_run_is_removed() {
    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1)]);
    assert_eq!(world.at(1.0), ["mark 1"]);
    assert_eq!(world.described(Event::Marked(vec![(run(1), 2)], Vec::new())), NOTHING);
    assert_eq!(world.described(Event::Marked(vec![(run(1), 2)], vec![run(1)])), ["unmark 1"]);
    assert_eq!(world.flush(), NOTHING, "its own mark is not answered");
    assert_eq!(world.described(mark_won(1)), NOTHING);
    assert_eq!(world.flush(), ["sent to 1: 1"]);
    assert_eq!(world.described(mark_won(1)), ["unmark 1"], "it is sent already");
}

/// When the lease is lost, the marks of runs that were not sent are removed. A run without a mark needs nothing.
#[test]
fn the_marks_of_unsent_runs_go_with_the_lease() {
    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1), at_most_once(2), plain(3)]);
    assert_eq!(world.at(0.8), ["mark 1"]);
    world.described(mark_won(1));
    assert_eq!(world.at(0.9), NOTHING);
    set_time(&mut world, 2.0);
    world.around.lease_holds = false;
    assert_eq!(world.described(Event::LeaseLost), ["unmark 1"]);
    assert!(
        world.state.runs.active(run(1)).is_none()
            && world.state.executors.get(ExecutorId::new(1)).unwrap().in_flight == 0
    );
    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1), plain(2)]);
    assert_eq!(world.at(1.0), ["mark 1"]);
    set_time(&mut world, 2.0);
    world.on(Event::Wake);
    assert_eq!(world.described(Event::LeaseLost), NOTHING, "neither is marked");
    assert!(world.state.runs.active(run(2)).is_none());
}

/// A run that waited here does not carry an older term than a run of its job that was sent before it.
#[test]
fn each_run_carries_the_newest_term_of_its_job() {
    let mut world = world_with_executors(1);
    let of_term = |second, term| ReadyRun { term, ..plain(second) };
    world.arrive([of_term(1, 3), of_term(2, 2), of_term(3, 4)]);
    world.at(3.0);
    let terms = [1, 2, 3].map(|second| world.state.runs.active(run(second)).map(|active| active.ready.term));
    assert_eq!(terms, [Some(3), Some(3), Some(4)]);
}

/// The loop wakes for a scheduled run only while it has the lease under which runs may start.
#[test]
fn the_next_instant_is_that_of_the_first_run_under_the_lease() {
    let mut world = world_with_executors(1);
    let token = Some(world.around.token);
    let earlier = token.map(|token| LeaseToken { epoch: 0, ..token });
    assert_eq!(world.state.next_instant(token), Timestamp::MAX);
    world.arrive([plain(5), at_most_once(8)]);
    let next = |world: &World| [token, None, earlier].map(|lease| world.state.next_instant(lease).as_millis());
    let never = Timestamp::MAX.as_millis();
    assert_eq!(next(&world), [5_000, never, never]);
    world.at(5.0);
    assert_eq!(next(&world), [7_800, never, never], "it is marked first");
    assert_eq!(world.at(7.8), ["mark 8"]);
    world.described(mark_won(8));
    assert_eq!(next(&world), [8_000, never, never], "its mark is durable");
    assert_eq!(world.at(8.0), ["sent to 1: 8"]);
    assert_eq!(next(&world), [never; 3]);
}

/// The deadlines of questions hold with or without the lease.
#[test]
fn the_next_instant_is_that_of_the_first_question_or_limit() {
    let mut world = world_with_executors(1);
    world.arrive([ready(2, &definition(&json!({"route": "busyover", "overlap": {"policy": "allow"}})))]);
    world.at(2.0);
    assert_eq!(world.state.next_instant(None), Timestamp::from_millis(2_200));
    let mut world = world_with_executors(1);
    let limited = definition(&json!({"overlap": {"policy": "allow"}, "rate": {"max": 1, "per": "10s"}}));
    world.arrive([ready(2, &limited), ready(3, &limited)]);
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
    assert_eq!(world.at(3.0), NOTHING);
    assert_eq!(world.state.next_instant(None), Timestamp::from_secs(12));
    assert_eq!(world.at(11.999), NOTHING);
    assert_eq!(world.at(12.0), ["sent to 1: 3"]);
}

/// A server that ends waits for the runs of executors and for the marks that it removes, but not for the groups of pump jobs.
#[test]
fn a_server_is_drained_once_it_waits_for_nothing() {
    let mut world = world_with_executors(1);
    assert!(world.state.is_drained());
    let group = definition(&json!({"pump": {"items": [{"name": "eu"}], "groups": 1}}));
    world.arrive([ready(1, &group)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert!(world.state.is_drained(), "the next server takes it over");
    world.arrive([at_most_once(2)]);
    assert_eq!(world.at(2.0), ["mark 2"]);
    world.described(mark_won(2));
    assert_eq!(world.flush(), ["sent to 1: 2"]);
    assert!(!world.state.is_drained());
    assert_eq!(world.reply(1, 2, 1, Reply::Refused(RefusedWhy::Draining, None)), ["unmark 2"]);
    assert!(!world.state.is_drained(), "its mark is being removed");
    world.on(Event::Unmarked);
    assert!(world.state.is_drained());
}

/// The row of a broadcast's shard names the executor that the shard is meant for, also after its mark has been removed: else the next server
/// would send it to any executor. A shard of a fixed number is meant for none. A server that ends waits for the marks of broadcasts' shards.
#[test]
fn the_shard_of_a_broadcast_stays_with_its_executor_when_its_mark_is_removed() {
    for (key, value, is_broadcast) in [("route", json!("broadcast"), true), ("shards", json!(2), false)] {
        let mut overrides = json!({"overlap": {"policy": "allow"}, "delivery": "at_most_once"});
        overrides[key] = value;
        let mut shard = ready(1, &definition(&overrides));
        (shard.run.parent, shard.run.shard_total) = (Some(run(9)), Some(2));
        shard.run.executor = is_broadcast.then(|| "e1".to_owned());
        let expected = if is_broadcast { "unmark 1, still for its executor" } else { "unmark 1" };
        let mut world = world_with_executors(1);
        world.arrive([shard.clone()]);
        assert_eq!(world.at(1.0), ["mark 1"]);
        world.on(mark_won(1));
        assert_eq!(world.flush(), ["sent to 1: 1"]);
        assert_eq!(world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Full, None)), [expected]);

        // The server ends before the database has answered about the mark, and has forgotten the shard by then.
        let mut world = world_with_executors(1);
        world.arrive([shard]);
        assert_eq!(world.at(1.0), ["mark 1"]);
        world.on(Event::Drain(Responder::new(|()| {}), Duration::from_secs(9)));
        assert_eq!(world.state.is_drained(), !is_broadcast);
        assert_eq!(world.described(mark_won(1)), [expected]);
        world.on(Event::Unmarked);
        assert!(world.state.is_drained());
    }
}

/// A draining server does not resend a run that it gets back.
#[test]
fn a_server_that_leaves_releases_runs_that_it_gets_back() {
    let mut world = world_with_executors(2);
    world.arrive([plain(1), plain(2)]);
    assert_eq!(world.at(2.0).len(), 2);
    let of_one = |world: &World| {
        let its = world.state.runs.of_executor(ExecutorId::new(1)).next();
        its.map(|active| active.ready.run.id).expect("one of both")
    };
    let first = of_one(&world);
    world.on(Event::Drain(Responder::new(|()| {}), Duration::from_secs(1)));
    let refused = vec![(first, 1, Reply::Refused(RefusedWhy::Full, None))];
    let looked = format!("look at {}", first.get() / 1_000);
    assert_eq!(world.described(Event::Replies(ExecutorId::new(1), refused)), [looked]);
    assert_eq!(world.around.in_memory.missing_runs([first]), [first]);
}

/// How many runs executors have and how many wait, and where.
#[test]
fn each_round_measures_how_many_runs_wait_and_where() {
    let mut world = world_with_executors(1);
    let limited = definition(&json!({"overlap": {"policy": "allow"}, "concurrency": {"key": "db", "max": 1}}));
    let unserved = definition(&json!({"overlap": {"policy": "allow"}, "handler": "gone"}));
    world.arrive([serial(1), serial(2), serial(3)]);
    let limited = [4, 5].map(|second| {
        let mut ready = ready(second, &limited);
        ready.run.job = rondel_core::JobId::new(2);
        ready
    });
    world.arrive(limited);
    world.arrive((6..=8).map(|second| {
        let mut ready = ready(second, &unserved);
        ready.run.job = rondel_core::JobId::new(3);
        ready
    }));
    assert_eq!(world.at(8.0), ["sent to 1: 1 4"]);
    let effects = world.on(Event::Round(Vec::new()));
    let counts = effects.iter().find_map(|effect| match effect {
        Effect::Measure(Measure::Runs { active, queued }) => Some((*active, *queued)),
        _ => None,
    });
    assert_eq!(counts, Some((2, 6)));
    let held = effects.iter().find_map(|effect| match effect {
        Effect::Measure(Measure::WaitingRuns { gates, limits, parked, roll_call }) => {
            Some([*gates, *limits, *parked, *roll_call])
        }
        _ => None,
    });
    assert_eq!(held, Some([2, 1, 3, 0]));
}

/// The lateness of a release is measured only for the first attempt of a fire, and not for a run that another run caused.
#[test]
fn the_lateness_of_fires_is_measured_once() {
    let measured = |change: &dyn Fn(&mut ReadyRun)| {
        let mut world = world_with_executors(1);
        let mut ready = plain(1);
        change(&mut ready);
        world.arrive([ready]);
        set_time(&mut world, 1.5);
        let effects = world.on(Event::Wake);
        effects.into_iter().find_map(|effect| match effect {
            Effect::Measure(Measure::FireLateness(late)) => Some(late.as_millis()),
            _ => None,
        })
    };
    assert_eq!(measured(&|_| {}), Some(500));
    assert_eq!(measured(&|ready| ready.run.attempt = 2), None);
    assert_eq!(measured(&|ready| ready.run.cause = 7), None);
}

/// A trigger is unanswered when it is ten seconds old and three heartbeats have come since; the stream is ended once.
#[test]
fn a_stream_is_ended_after_three_heartbeats_without_an_answer() {
    for (beats, seconds, expected) in
        [(3, 10.999, Vec::new()), (2, 11.0, Vec::new()), (3, 11.0, vec!["end of stream 1"])]
    {
        let mut world = world_with_executors(1);
        world.arrive([plain(1)]);
        assert_eq!(world.at(1.0), ["sent to 1: 1"]);
        (0..beats).for_each(|_| world.beat(1));
        set_time(&mut world, seconds);
        assert_eq!(world.described(Event::Round(Vec::new())), expected, "{beats} at {seconds}");
    }
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    (0..3).for_each(|_| world.beat(1));
    world.state.executors.get(ExecutorId::new(1)).unwrap().session.stream.end();
    set_time(&mut world, 12.0);
    assert_eq!(world.described(Event::Round(Vec::new())), NOTHING, "the stream is ended already");
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    (0..3).for_each(|_| world.beat(1));
    world.reply(1, 1, 1, Reply::Accepted);
    set_time(&mut world, 12.0);
    assert_eq!(world.described(Event::Round(Vec::new())), NOTHING, "it has answered");
}

/// The silence of an executor counts from its oldest unanswered trigger.
#[test]
fn the_oldest_unanswered_trigger_counts() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(3)]);
    world.at(1.0);
    world.at(3.0);
    (0..3).for_each(|_| world.beat(1));
    set_time(&mut world, 20.0);
    let effects = world.on(Event::Round(Vec::new()));
    assert_eq!(effects.iter().filter_map(describe).collect::<Vec<_>>(), ["end of stream 1"]);
    let silence = world.state.executors.silences.of(ExecutorId::new(1));
    assert_eq!(silence.map(|silence| (silence.count, silence.since)), Some((1, Timestamp::from_secs(1))));
}

/// Only a run that nothing holds back is marked ahead of its instant.
#[test]
fn a_run_that_must_wait_for_its_turn_is_not_marked_ahead() {
    let marked = definition(&json!({"queue_timeout": "60s", "delivery": "at_most_once"}));
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &marked), ready(3, &marked)]);
    assert_eq!(world.at(0.8), ["mark 1"]);
    world.described(mark_won(1));
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert_eq!(world.at(2.8), NOTHING, "it is looked at when it is due");
    assert_eq!(world.state.gates.queued_count(), 0);
    assert_eq!(world.at(3.0), NOTHING);
    assert_eq!(world.state.gates.queued_count(), 1);
    let queued = world.state.gates.first_queued_runs(|_| true, 9, &world.state.runs);
    assert_eq!(queued.iter().map(|(ready, _)| ready.run.id).collect::<Vec<_>>(), [run(3)]);
    world.join(2, 2, Report::default());
    assert_eq!(world.flush(), NOTHING, "no executor helps it");
}

/// An executor connects again, and its hello does not list a run. Its refusal of that run was on the earlier stream, and is read after the hello.
/// The attempt has been given up by then, so it is not sent again.
#[test]
fn a_refusal_does_not_bring_back_a_run_that_was_given_up() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert!(world.join(1, 2, Report::default()).contains(&"end of 1/1: Lost(NotReceived)".to_owned()));
    assert_eq!(world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Full, Some(1))), NOTHING);
    assert!(world.state.runs.active(run(1)).is_some_and(|active| active.phase == Phase::Ending));
    set_time(&mut world, 2.0);
    world.on(Event::Round(Vec::new()));
    assert_eq!(world.flush(), NOTHING);
    world.on(Event::EndRefused(run(1), 1, Phase::Sent));
    assert_eq!(world.described(Event::Round(Vec::new())), ["end of 1/1: Lost(NotReceived)"]);
}

#[test]
fn a_run_whose_loss_found_no_room_is_given_up_again_unless_its_executor_has_it() {
    for is_held in [false, true] {
        let mut world = world_with_executors(1);
        world.arrive([plain(1)]);
        assert_eq!(world.at(1.0), ["sent to 1: 1"]);
        world.join(1, 2, Report::default());
        let held = is_held.then_some((run(1), 1)).into_iter().collect();
        world.join(1, 3, Report { held_runs: held, ..Report::default() });
        world.on(Event::EndRefused(run(1), 1, Phase::Sent));
        set_time(&mut world, 2.0);
        let expected = if is_held { Vec::new() } else { vec!["end of 1/1: Lost(NotReceived)"] };
        assert_eq!(world.described(Event::Round(Vec::new())), expected, "{is_held}");
    }
}

/// The next attempt comes with the next lease. As far as this server knows, an executor still has the attempt before; that attempt gives its
/// slot back.
#[test]
fn an_attempt_that_has_ended_elsewhere_gives_its_slot_back() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.on(Event::LeaseLost);
    world.around.token.epoch = 2;
    world.on(Event::AllAdopted(world.around.token));
    let mut next = plain(1);
    (next.run.attempt, next.run.node_epoch) = (2, 2);
    world.arrive([next]);
    assert_eq!(world.at(2.0), ["sent to 1: 1"]);
    assert_eq!(world.state.executors.get(ExecutorId::new(1)).map(|online| online.in_flight), Some(1));
}

/// The end of an attempt frees its limit, although the next one is here already and waits for its executor.
#[test]
fn an_attempt_that_waits_takes_no_place_under_a_limit() {
    let limited = definition(&json!({"overlap": {"policy": "allow"}, "concurrency": {"key": "db", "max": 1}}));
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &limited)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.on(Event::LeaseLost);
    world.around.token.epoch = 2;
    world.on(Event::AllAdopted(world.around.token));
    let (mut next, mut other) = (ready(1, &limited), ready(2, &limited));
    (next.run.attempt, next.run.only_executor) = (2, Some("gone".to_owned()));
    (next.run.node_epoch, other.run.node_epoch) = (2, 2);
    world.arrive([next, other]);
    assert_eq!(world.at(2.0), NOTHING);
    world.settled(1, 1, EndOutcome::Duplicate);
    assert_eq!(world.flush(), ["sent to 1: 2"]);
}

/// After the end of the lease another server may have taken the run over and sent it. Its row shows who may report a result.
#[test]
fn a_result_of_a_run_that_was_not_sent_is_refused_only_under_a_lease() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.around.now = Timestamp::from_secs(1);
    world.on(Event::Wake);
    assert_eq!(world.result(1, 1, 1), ["refused 1/1"]);
    world.around.lease_holds = false;
    assert_eq!(world.result(1, 1, 1), ["foreign 1"]);
    world.join(2, 2, Report::default());
    assert_eq!(world.result(2, 1, 1), ["foreign 1"], "the other server may have chosen another executor");
    // This server takes its next lease before it has dropped the runs that it had not sent under the previous lease.
    world.around.lease_holds = true;
    world.around.token.epoch = 2;
    assert_eq!(world.result(1, 1, 1), ["foreign 1"]);
    assert_eq!(world.result(2, 1, 1), ["foreign 1"]);
}

/// A lease may end before the roll call for its runs begins. A run that an executor has had since the previous lease stays in memory: if it
/// counted as missing, it could be taken for a run that was never sent.
#[test]
fn a_dropped_roll_call_forgets_only_runs_that_no_executor_has() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.on(Event::LeaseLost);
    let adopted = [plain(1), plain(2)].map(|ready| Run { node_epoch: 2, ..ready.run });
    world.around.in_memory.admit(adopted.to_vec());
    world.on(Event::LeaseLost);
    let lease = LeaseToken { epoch: 2, ..world.around.token };
    world.around.token.epoch = 3;
    world.on(Event::RollCallDropped(lease, vec![run(1), run(2)]));
    assert_eq!(world.around.in_memory.missing_runs([run(1), run(2)]), [run(2)]);
}

/// Another server has taken over a run that this one had sent under an earlier lease. The present lease holds nevertheless.
#[test]
fn a_run_of_an_earlier_lease_that_another_node_has_ends_no_lease() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.on(Event::LeaseLost);
    world.around.token.epoch = 2;
    world.on(Event::AllAdopted(world.around.token));
    let row = RunCheck {
        id: run(1),
        status: RunStatus::Running,
        attempt: 1,
        job_version: 1,
        has_recorded_start: true,
        owner: DEAD,
        cancel_by: None,
        drop_for: None,
        term: 1,
    };
    assert_eq!(world.described(Event::RowsChecked(vec![run(1)], vec![row])), NOTHING);
    assert!(world.state.runs.active(run(1)).is_none() && world.around.lease_holds);
}
