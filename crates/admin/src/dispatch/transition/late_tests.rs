//! Scenarios with runs whose queue time ends, and with stored waits. As in [`tests`](super::tests), times are seconds, and runs are named
//! by the second at which they are due.

use std::sync::Arc;
use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::reason::{ObstacleKind, ReasonDetail, WaitFor};
use rondel_core::{AppId, ExecutorId, JobId, Reason, RunId, Timestamp, Trigger};
use rondel_store::cluster::{ExecutorSwitch, Switches};
use rondel_store::ledger::NotedWait;
use serde_json::json;

use super::tests::{DEAD, NOTHING, plain, roll_call_run, run, session_of, world_with_executors};
use super::world::{World, describe, verdict};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::{Report, Responder, SessionHandle};
use crate::dispatch::tests_support::{definition, executor, ready};

fn run_with_queue_timeout(second: i64, queue_timeout: &str) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": queue_timeout, "overlap": {"policy": "allow"}})))
}

fn serial(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": "5s"})))
}

fn round(world: &mut World, seconds: f64) -> Vec<Effect> {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
    world.on(Event::Round(Vec::new()))
}

fn descriptions(effects: &[Effect]) -> Vec<String> {
    effects.iter().filter_map(describe).collect()
}

/// The waits that a round at this time stores.
fn noted_waits(world: &mut World, seconds: f64) -> Vec<NotedWait> {
    let effects = round(world, seconds).into_iter();
    let notes = effects.filter_map(|effect| match effect {
        Effect::Store(Step::NoteWaits(notes)) => Some(notes),
        _ => None,
    });
    notes.flatten().collect()
}

fn switch_app(world: &World, switch: Switch) {
    world.around.switches.set(Switches { apps: vec![(AppId::new(1), switch)], executors: Vec::new() });
}

fn switch_executor(world: &World, name: &str, switch: Switch) {
    let switched = ExecutorSwitch { app: AppId::new(1), name: name.to_owned(), switch, set_at: Timestamp::EPOCH };
    world.around.switches.set(Switches { apps: Vec::new(), executors: vec![switched] });
}

/// An executor that connects after the end of a run's queue time does not get the run, whether or not a round took place in between.
#[test]
fn a_run_past_its_queue_timeout_is_not_sent() {
    for (seconds, expected) in [(5.999, Vec::new()), (6.0, vec!["end of 1/1: Skipped(Expired)"])] {
        let mut world = World::new();
        world.arrive([run_with_queue_timeout(1, "5s")]);
        assert_eq!(world.at(1.0), NOTHING);
        world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
        assert_eq!(world.join(1, 1, Report::default()), expected, "{seconds}");
        assert_eq!(world.flush().len(), usize::from(expected.is_empty()));
    }
}

/// A run that expires ends for the reason that keeps it from starting at that time: an earlier run, no executor, or a switch.
#[test]
fn a_run_that_waits_too_long_for_its_turn_ends_with_the_reason_of_its_wait() {
    type Happens = fn(&mut World);
    let leaves: Happens = |world| {
        world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    };
    let drains: Happens = |world| switch_app(world, Switch::Draining);
    let nothing: Happens = |_| {};
    let causes: [(Happens, &str); 3] = [
        (nothing, "end of 2/1: Skipped(Overlap)"),
        (leaves, "end of 2/1: Skipped(NoExecutor)"),
        (drains, "end of 2/1: Skipped(Stopped)"),
    ];
    for (happens, expected) in causes {
        let mut world = world_with_executors(1);
        world.arrive([serial(1), serial(2)]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        happens(&mut world);
        assert_eq!(descriptions(&round(&mut world, 6.9)), NOTHING);
        assert_eq!(descriptions(&round(&mut world, 7.0)), [expected]);
    }
}

/// A missed fire that runs late waits for its turn without a limit while an executor is there.
#[test]
fn a_catch_up_fire_waits_for_its_turn_while_it_is_served() {
    for is_served in [true, false] {
        let mut world = world_with_executors(1);
        let mut late = serial(2);
        late.run.trigger = Trigger::Misfire;
        world.arrive([serial(1), late]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        if !is_served {
            world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
        }
        let expected = if is_served { Vec::new() } else { vec!["end of 2/1: Skipped(NoExecutor)"] };
        assert_eq!(descriptions(&round(&mut world, 8.0)), expected);
    }
}

/// The shard of a broadcast waits for its executor; a later attempt, and the only shard of a fire, wait as any run does.
#[test]
fn the_first_attempt_of_a_shard_names_the_executor_that_it_is_meant_for() {
    let offline = vec![("e9".to_owned(), ObstacleKind::Offline)];
    let drained = vec![("e1".to_owned(), ObstacleKind::Drained)];
    for (attempt, parent, total, expected) in [
        (1, Some(run(90)), 2, &offline),
        (2, Some(run(90)), 2, &drained),
        (1, None, 2, &drained),
        (1, Some(run(90)), 1, &drained),
    ] {
        let mut world = World::new();
        switch_executor(&world, "e1", Switch::Draining);
        world.join(1, 1, Report::default());
        let mut shard = ready(1, &definition(&json!({"shards": 2, "queue_timeout": "60s"})));
        (shard.run.attempt, shard.run.parent, shard.run.executor) = (attempt, parent, Some("e9".to_owned()));
        (shard.run.shard_index, shard.run.shard_total) = (0, Some(total));
        world.arrive([shard]);
        assert_eq!(world.at(1.0), NOTHING);
        let notes = noted_waits(&mut world, 3.0);
        let [note] = &notes[..] else { unreachable!("{attempt} {total}: {notes:?}") };
        let obstacles: Vec<_> = note.detail.obstacles.iter().map(|one| (one.executor.clone(), one.kind)).collect();
        assert_eq!((note.detail.waits_for, &obstacles), (Some(WaitFor::Executor), expected), "{attempt} {total}");
    }
}

/// A shard waits only for the executor that it is meant for, even if another one has room.
#[test]
fn a_shard_waits_for_its_own_executor_whichever_other_has_room() {
    let mut world = world_with_executors(1);
    let mut shard = ready(1, &definition(&json!({"route": "broadcast", "queue_timeout": "5s"})));
    (shard.run.parent, shard.run.executor) = (Some(run(90)), Some("e9".to_owned()));
    (shard.run.shard_index, shard.run.shard_total) = (1, Some(2));
    world.arrive([shard]);
    assert_eq!(world.at(1.0), NOTHING);
    assert_eq!(descriptions(&round(&mut world, 6.0)), ["end of 1/1: Skipped(NoExecutor)"]);
}

/// A stored wait is left alone for five seconds, and stored again if it has changed by then.
#[test]
fn a_wait_that_changes_is_noted_again_after_a_while() {
    let mut world = World::new();
    world.arrive([run_with_queue_timeout(1, "60s")]);
    world.at(1.0);
    assert_eq!(noted_waits(&mut world, 1.999).len(), 0, "it may be over in a moment");
    assert_eq!(noted_waits(&mut world, 2.0).len(), 1);
    switch_executor(&world, "e1", Switch::Draining);
    world.join(1, 1, Report::default());
    assert_eq!(noted_waits(&mut world, 6.999).len(), 0);
    let notes = noted_waits(&mut world, 7.0);
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].detail.obstacles.len(), 1, "the executor that drains");
    assert_eq!(noted_waits(&mut world, 12.0).len(), 0, "nothing has changed");
}

/// Waits that are stored already are not stored again.
#[test]
fn all_waits_are_noted_before_the_server_leaves() {
    let mut world = World::new();
    world.arrive([run_with_queue_timeout(1, "60s"), run_with_queue_timeout(3, "60s")]);
    world.at(1.0);
    world.at(3.0);
    assert_eq!(noted_waits(&mut world, 3.0).len(), 1);
    let effects = world.on(Event::Drain(Responder::new(|()| {}), Duration::from_secs(1)));
    let noted = effects.iter().filter_map(|effect| match effect {
        Effect::Store(Step::NoteWaits(notes)) => Some(notes.iter().map(|note| note.run).collect::<Vec<_>>()),
        _ => None,
    });
    assert_eq!(noted.collect::<Vec<_>>(), [vec![run(3)]]);
    world.arrive([plain(4)]);
    world.join(1, 1, Report::default());
    assert_eq!(world.at(4.0), NOTHING, "a server that leaves starts nothing");
}

/// A run that another node is about to get is not started here.
#[test]
fn a_run_that_is_being_handed_over_is_not_started() {
    let mut world = world_with_executors(1);
    world.around.departing.begin_handover([(run(1), Timestamp::from_secs(1))]);
    world.arrive([plain(1), plain(2)]);
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
    assert_eq!(world.around.in_memory.missing_runs([run(1), run(2)]), [run(1)]);
}

/// The runs of a stopped app that executors have are asked to end; runs of other apps, and runs whose ends are being stored, are not.
#[test]
fn the_runs_of_a_stopped_app_are_asked_to_end() {
    let mut world = world_with_executors(1);
    let stopped = |world: &mut World, app| {
        let effects = world.on(Event::StopApps(vec![AppId::new(app)]));
        let stops = effects.into_iter().filter_map(|effect| match effect {
            Effect::Store(Step::Stop(runs, request)) => Some((runs, request.reason)),
            _ => None,
        });
        stops.collect::<Vec<_>>()
    };
    assert_eq!(stopped(&mut world, 1), [], "none is there");
    world.arrive([plain(1), plain(2), plain(3), plain(4)]);
    world.at(3.0);
    world.result(1, 2, 1);
    assert_eq!(stopped(&mut world, 2), []);
    assert_eq!(stopped(&mut world, 1), [(vec![run(1), run(3)], Reason::Stopped)]);
}

/// The wait of an earlier attempt is not the reason for the end of a later one.
#[test]
fn the_wait_of_a_run_is_reported_although_an_executor_has_room_by_now() {
    for (attempt, expected) in [(1, "end of 1/1: Skipped(NoExecutor)"), (2, "end of 1/2: Skipped(Expired)")] {
        let mut world = World::new();
        world.arrive([run_with_queue_timeout(1, "10s")]);
        world.at(1.0);
        let notes = noted_waits(&mut world, 3.0);
        assert_eq!(notes.len(), 1);
        if attempt == 2 {
            let mut again = run_with_queue_timeout(1, "10s");
            again.run.attempt = 2;
            world.arrive([again]);
            world.at(3.5);
        }
        world.around.now = Timestamp::from_secs(60);
        assert_eq!(world.join(1, 1, Report::default()), [expected]);
    }
}

/// While open runs of ended leases are being taken over, this node does not ask for the home of a limit. Later it asks until the home is
/// known.
#[test]
fn the_home_of_a_limit_is_asked_for_once_all_open_runs_are_known() {
    let mut world = world_with_executors(1);
    world.state.limits = crate::dispatch::queue::limits::Limits::new(true);
    let limited = definition(&json!({"overlap": {"policy": "allow"}, "concurrency": {"key": "db", "max": 1}}));
    let asks = |world: &mut World| {
        let effects = world.on(Event::Wake);
        effects.iter().filter(|effect| matches!(effect, Effect::Store(Step::LimitHomes(_)))).count()
    };
    world.arrive([ready(1, &limited)]);
    world.around.now = Timestamp::from_secs(1);
    assert_eq!((asks(&mut world), asks(&mut world)), (1, 0));
    world.on(Event::Adopting(vec![JobId::new(7)]));
    round(&mut world, 2.0);
    assert_eq!(asks(&mut world), 0);
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(asks(&mut world), 1, "it was not answered");
    let name = rondel_store::ledger::LimitName { namespace: rondel_core::NamespaceId::new(1), key: "db".to_owned() };
    world.on(Event::LimitHomes(world.around.token, vec![(name, world.around.token.node)]));
    assert_eq!(world.flush(), ["mark 1"], "its noted wait is taken back first");
}

/// The wait of an adopted run is added to the detail that its row already has.
#[test]
fn a_noted_wait_keeps_the_rest_of_the_row() {
    let mut world = World::new();
    let mut adopted = run_with_queue_timeout(1, "60s");
    adopted.run.detail = Some(Arc::new(ReasonDetail { executor: Some("e7".to_owned()), ..ReasonDetail::default() }));
    world.arrive([adopted]);
    world.at(1.0);
    let notes = noted_waits(&mut world, 3.0);
    assert_eq!(notes.iter().map(|note| note.run).collect::<Vec<RunId>>(), [run(1)]);
    assert_eq!(notes[0].detail.waits_for, Some(WaitFor::Executor));
}

/// If the queue time of a run has passed when its turn comes, the run ends, unless it is a catch-up fire and an executor is online.
#[test]
fn a_run_whose_turn_comes_after_its_queue_timeout_ends_unless_it_catches_up() {
    let leave = |world: &mut World| {
        world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    };
    for (trigger, is_served, expected) in [
        (Trigger::Cron, true, "end of 2/1: Skipped(Overlap)"),
        (Trigger::Cron, false, "end of 2/1: Skipped(NoExecutor)"),
        (Trigger::Misfire, true, "sent to 1: 2"),
        (Trigger::Misfire, false, "end of 2/1: Skipped(NoExecutor)"),
    ] {
        let mut world = world_with_executors(1);
        let mut second = serial(2);
        second.run.trigger = trigger;
        world.arrive([serial(1), second]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        world.result(1, 1, 1);
        if !is_served {
            leave(&mut world);
        }
        world.around.now = Timestamp::from_secs(20);
        let mut done = world.settled(1, 1, verdict());
        done.extend(world.flush());
        assert_eq!(done, [expected], "{trigger:?} {is_served}");
    }
}

/// A run waits for a slot if fit executors have no room, unless all of them leave their triggers unanswered.
#[test]
fn a_run_waits_for_a_slot_while_one_executor_answers() {
    for (silent, expected) in [(vec![], WaitFor::Slot), (vec![1], WaitFor::Slot), (vec![1, 2], WaitFor::Executor)] {
        let mut world = world_with_executors(2);
        for id in [1, 2].map(ExecutorId::new) {
            world.state.executors.get_mut(id).expect("it is online").in_flight = 8;
        }
        for id in silent.iter().copied().map(ExecutorId::new) {
            world.state.executors.silences.record_unanswered(id, Timestamp::EPOCH, Timestamp::from_secs(1));
        }
        world.arrive([run_with_queue_timeout(1, "60s")]);
        assert_eq!(world.at(1.0), NOTHING);
        let notes = noted_waits(&mut world, 3.0);
        assert_eq!(notes.iter().map(|note| note.detail.waits_for).collect::<Vec<_>>(), [Some(expected)], "{silent:?}");
    }
}

/// Only the runs of the stopped executor are asked to end. Groups of pump jobs are not: the loop of the pumps orders them to leave.
#[test]
fn only_the_runs_of_the_stopped_executor_are_asked_to_end() {
    let mut world = world_with_executors(2);
    switch_executor(&world, "e2", Switch::Draining);
    let group = ready(2, &definition(&json!({"pump": {"items": [{"name": "eu"}], "groups": 1}})));
    world.arrive([plain(1), group]);
    assert_eq!(world.at(2.0), ["sent to 1: 1 2"]);
    switch_executor(&world, "e1", Switch::Draining);
    world.arrive([plain(3)]);
    assert_eq!(world.at(3.0), ["sent to 2: 3"]);
    switch_executor(&world, "e1", Switch::Stopped);
    let stops = round(&mut world, 4.0).into_iter().filter_map(|effect| match effect {
        Effect::Store(Step::Stop(runs, _)) => Some(runs),
        _ => None,
    });
    assert_eq!(stops.collect::<Vec<_>>(), [[run(1)]]);
}

/// When a job is paused, its waiting runs are skipped. Runs that executors have, or may have, continue. A fire that is still ahead is left
/// alone, because an edit may reopen it.
#[test]
fn waiting_runs_are_dropped_and_runs_under_way_or_ahead_continue() {
    let mut world = world_with_executors(1);
    let unserved = definition(&json!({"handler": "gone", "overlap": {"policy": "allow"}}));
    let mut planned = plain(9);
    planned.run.cause = 7;
    world.arrive([plain(1), ready(2, &unserved), plain(8), planned]);
    assert_eq!(world.at(2.0), ["sent to 1: 1"]);
    let mut call = roll_call_run(3);
    call.ready.run.status = rondel_core::RunStatus::Running;
    world.around.in_memory.admit(vec![call.ready.run.clone()]);
    world.on(Event::RollCall(vec![call], vec![session_of(2)], vec![DEAD]));
    assert!(world.state.runs.in_roll_call(run(3)).is_some());
    let drops = [1, 2, 3, 8, 9, 20].map(|second| (run(second), Reason::Paused)).to_vec();
    let effects = world.on(Event::Drops(drops));
    assert_eq!(descriptions(&effects), ["end of 2/1: Skipped(Paused)", "end of 9/1: Skipped(Paused)"]);
    let elsewhere = effects.into_iter().find_map(|effect| match effect {
        Effect::Store(Step::DropStray(runs)) => Some(runs),
        _ => None,
    });
    assert_eq!(elsewhere, Some(vec![(run(20), Reason::Paused)]));
    assert!(world.state.runs.in_roll_call(run(3)).is_some());
    assert_eq!(world.at(8.0), ["sent to 1: 8"]);
}

/// The clock has stepped back to before the instant of a queued run. No edit settles its row, because it may have been sent.
#[test]
fn a_queued_run_that_lies_ahead_again_after_a_step_back_is_dropped() {
    let at = Timestamp::from_secs;
    for (ahead_after, expected) in [(106, vec!["end of 100/1: Skipped(Paused)"]), (50, Vec::new())] {
        let mut world = world_with_executors(1);
        (world.around.now, world.around.fires_ahead_after) = (at(50), at(ahead_after));
        world.arrive([plain(100)]);
        assert_eq!(world.described(Event::Drops(vec![(run(100), Reason::Paused)])), expected, "{ahead_after}");
    }
}

/// A run that waits for the adoption of other runs ends like any other that no executor has.
#[test]
fn runs_that_are_held_back_end_without_a_start() {
    let mut world = world_with_executors(1);
    world.on(Event::Adopting(vec![JobId::new(1)]));
    world.arrive([plain(1), plain(2), plain(3)]);
    assert_eq!(world.at(3.0), NOTHING, "they are held back");
    assert_eq!(world.described(Event::Cancels(vec![(run(1), "operator".to_owned())])), ["end of 1/1: Cancelled"]);
    assert_eq!(world.described(Event::Drops(vec![(run(2), Reason::Paused)])), ["end of 2/1: Skipped(Paused)"]);
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(world.at(3.1), ["sent to 1: 3"]);
}

/// A retry that waits for its turn does not count as a full queue.
#[test]
fn a_retry_that_waits_fills_no_queue() {
    let job = definition(&json!({"overlap": {"policy": "discard"}, "queue_timeout": "60s"}));
    let mut world = world_with_executors(1);
    let mut again = ready(2, &job);
    again.run.attempt = 2;
    world.on(Event::Restored(vec![again.clone()]));
    world.arrive([ready(1, &job), again, ready(3, &job)]);
    world.around.now = Timestamp::from_secs(3);
    let ends = world.on(Event::Wake).into_iter().filter_map(|effect| match effect {
        Effect::Finish(end) => Some((end.attempt_end.run, end.attempt_end.detail.and_then(|detail| detail.queue_max))),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [(run(3), None)]);
    assert_eq!(world.state.gates.queued_count(), 1);
}

/// A run that is skipped for lack of room names the number of queued runs only if the queue is full.
#[test]
fn a_run_without_a_place_shows_whether_the_queue_is_full() {
    for (policy, max, queue_max) in [("serial", 1, Some(1)), ("serial", 2, Some(2)), ("discard", 0, None)] {
        let job = definition(&json!({"overlap": {"policy": policy, "max": max}, "queue_timeout": "60s"}));
        let mut world = world_with_executors(1);
        world.arrive((1..=9).map(|second| ready(second, &job)));
        world.around.now = Timestamp::from_secs(9);
        let effects = world.on(Event::Wake);
        let skipped = effects.iter().filter_map(|effect| match effect {
            Effect::Finish(end) => end.attempt_end.detail.as_deref(),
            _ => None,
        });
        let skipped: Vec<_> = skipped.map(|detail| (detail.run, detail.queue_max)).collect();
        assert_eq!(skipped.len(), 8 - usize::try_from(queue_max.unwrap_or(0)).unwrap(), "{policy} {max}");
        assert!(skipped.iter().all(|one| *one == (Some(run(1)), queue_max)), "{policy} {max}: {skipped:?}");
    }
}

/// A server that was suspended reads an old hello after it has sent runs on a newer stream: the hello cannot list these runs, whether or not
/// the newer stream is still open.
#[test]
fn an_outdated_hello_loses_no_run() {
    let mut world = World::new();
    world.join_with_hello(1, (1, 3), Report::default());
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert_eq!(world.join_with_hello(1, (2, 2), Report::default()), ["end of stream 2"]);
    world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    assert_eq!(world.join_with_hello(1, (3, 1), Report::default()), ["end of stream 3"]);
    let report = Report { held_runs: [(run(1), 1)].into(), ..Report::default() };
    assert_eq!(world.join_with_hello(1, (4, 4), report), NOTHING);
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"]);
}

/// The hello has put the executor among the online ones. If the executor has no other stream, nothing else removes it.
#[test]
fn an_executor_without_a_stream_is_not_online_because_of_an_outdated_hello() {
    let mut world = World::new();
    world.join_with_hello(1, (1, 3), Report::default());
    let is_shown_offline = |world: &mut World, number: u64| {
        let (session, online, _stream) = executor(1, number);
        let session = SessionHandle { hello_number: 2, ..session };
        let effects = world.on(Event::Joined(session, online, Report::default()));
        effects.iter().any(|effect| matches!(effect, Effect::ShowOffline(id) if *id == ExecutorId::new(1)))
    };
    assert!(!is_shown_offline(&mut world, 2), "its newer stream is open");
    world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    assert!(is_shown_offline(&mut world, 3));
}

/// An executor that was heard before a step back of the clock is lost after the usual time.
#[test]
fn a_step_back_of_the_clock_delays_the_loss_of_no_executor() {
    let mut world = world_with_executors(1);
    world.around.now = Timestamp::from_secs(105);
    world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    let asks = |world: &mut World, seconds: f64| {
        round(world, seconds).iter().any(|effect| matches!(effect, Effect::Store(Step::LastHeard(_))))
    };
    assert_eq!([45.0, 75.0, 75.001].map(|seconds| asks(&mut world, seconds)), [false, false, true]);
}

/// The rows of runs that were sent before a step back of the clock are read before the clock has caught up: another server may have stored a
/// result.
#[test]
fn rows_are_read_again_after_a_step_back_of_the_clock() {
    let mut world = world_with_executors(1);
    world.around.settings.is_single_server = false;
    world.arrive([plain(100)]);
    assert_eq!(world.at(100.0), ["sent to 1: 100"]);
    round(&mut world, 60.0);
    assert_eq!(descriptions(&round(&mut world, 65.0)), ["look at 100"]);
}

/// An executor can shut down immediately after its hello. It is shown as online first, and as draining afterwards.
#[test]
fn an_executor_is_shown_as_draining_by_the_dispatcher() {
    let mut world = World::new();
    let is_shown = |effects: &[Effect]| {
        effects.iter().any(|effect| matches!(effect, Effect::ShowDraining(id) if *id == ExecutorId::new(1)))
    };
    assert!(!is_shown(&world.on(Event::Draining(ExecutorId::new(1)))), "it has no stream here");
    world.join_with_hello(1, (1, 1), Report::default());
    assert!(is_shown(&world.on(Event::Draining(ExecutorId::new(1)))));
}
