//! Scenarios in which jobs move to another server: to one that hears a fit executor, or to the one that counts their limit. As in
//! [`tests`](super::tests), times are seconds, and runs are named by the second at which they are due.

use std::collections::BTreeSet;
use std::time::Duration;

use rondel_core::{ExecutorId, JobId, NamespaceId, NodeId, RunId, RunStatus, Timestamp};
use rondel_store::ledger::{EndOutcome, LimitName};
use serde_json::{Value, json};

use super::tests::{DEAD, NOTHING, answer, plain, roll_call_run, run, session_of, world_with_executors};
use super::world::{World, describe, retry_outcome, verdict};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::{Report, RollCallRun, SettledAttempt};
use crate::dispatch::queue::limits::Limits;
use crate::dispatch::tests_support::{definition, ready};

const HOME: NodeId = NodeId::new(9);

fn run_of_job(job: i64, second: i64, overrides: &Value) -> ReadyRun {
    let mut all = json!({"overlap": {"policy": "allow"}, "queue_timeout": "60s"});
    for (key, value) in overrides.as_object().expect("an object") {
        all[key] = value.clone();
    }
    let mut ready = ready(second, &definition(&all));
    ready.run.job = JobId::new(job);
    ready
}

/// A run for executor e9, which is connected to another server.
fn run_for_e9(job: i64, second: i64) -> ReadyRun {
    let mut ready = run_of_job(job, second, &json!({}));
    ready.run.only_executor = Some("e9".to_owned());
    ready
}

fn world_beside_others(count: i64) -> World {
    let mut world = world_with_executors(count);
    world.around.settings.is_single_server = false;
    world.state.limits = Limits::new(true);
    world
}

/// At second 2, this server takes over run 1, which a dead server may have sent to executor 1.
fn call_roll(world: &mut World) {
    world.around.now = Timestamp::from_secs(2);
    let call = roll_call_run(1);
    world.around.in_memory.admit(vec![call.ready.run.clone()]);
    world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
}

/// The runs for which a round at this time seeks executors at other servers.
fn sought_runs(world: &mut World, seconds: f64) -> Vec<RunId> {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
    let effects = world.on(Event::Round(Vec::new())).into_iter();
    let stranded = effects.filter_map(|effect| match effect {
        Effect::Store(Step::Seek(stranded)) => Some(stranded),
        _ => None,
    });
    stranded.flatten().map(|ready| ready.run.id).collect()
}

#[test]
fn executors_are_sought_elsewhere_after_two_seconds_and_every_two_seconds() {
    let mut world = world_beside_others(0);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), NOTHING);
    assert_eq!(sought_runs(&mut world, 0.999), []);
    assert_eq!(sought_runs(&mut world, 2.999), [], "it may connect here");
    assert_eq!(sought_runs(&mut world, 4.998), [], "the next look is not due");
    assert_eq!(sought_runs(&mut world, 4.999), [run(1)]);
    let mut earlier = world_beside_others(0);
    earlier.arrive([plain(1)]);
    earlier.at(1.0);
    assert_eq!(sought_runs(&mut earlier, 3.0), [run(1)], "after exactly two seconds");
    assert_eq!(sought_runs(&mut world, 7.0), [], "the answer is on its way");
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), NOTHING, "its job may be another server's by now");
    world.on(Event::HandoverEnded([JobId::new(1)].into()));
    assert_eq!(sought_runs(&mut world, 9.0), []);
    // A mark takes back the noted wait before the run is sent.
    assert_eq!(world.flush(), ["mark 1"]);
}

#[test]
fn no_executor_is_sought_where_none_can_be_found() {
    type Change = fn(&mut World);
    let single: Change = |world| world.around.settings.is_single_server = true;
    let no_lease: Change = |world| world.around.lease_holds = false;
    let unknown: Change = |world| world.state.recovery.begun_lease = None;
    let served: Change = |world| {
        world.join(1, 1, Report::default());
    };
    let changes: [(Change, bool); 5] =
        [(|_| {}, true), (single, false), (no_lease, false), (unknown, false), (served, false)];
    for (number, (change, is_sought)) in changes.into_iter().enumerate() {
        let mut world = world_beside_others(0);
        world.arrive([plain(1)]);
        world.at(1.0);
        change(&mut world);
        assert_eq!(!sought_runs(&mut world, 5.0).is_empty(), is_sought, "{number}");
    }
}

/// A job does not move while an executor has one of its runs, or is asked about one.
#[test]
fn a_job_under_way_does_not_move() {
    let mut world = world_beside_others(1);
    world.arrive([run_of_job(1, 1, &json!({})), run_for_e9(1, 2), run_for_e9(2, 3)]);
    assert_eq!(world.at(3.0), ["sent to 1: 1"]);
    assert_eq!(sought_runs(&mut world, 6.0), [run(3)]);
    world.result(1, 1, 1);
    world.settled(1, 1, verdict());
    assert_eq!(sought_runs(&mut world, 9.0), [run(2)]);

    let mut world = world_beside_others(1);
    world.arrive([run_for_e9(1, 2), run_for_e9(2, 3), run_of_job(1, 6, &json!({"route": "busyover"}))]);
    assert_eq!(world.at(3.0), NOTHING);
    world.at(6.0);
    assert!(world.state.probes.has(JobId::new(1)));
    assert_eq!(sought_runs(&mut world, 6.0), [run(3)]);
}

/// A run that came due while its job was about to move does not wait for the next round if the job stays.
#[test]
fn a_job_that_stays_goes_on_at_once() {
    let mut world = world_beside_others(1);
    world.arrive([run_for_e9(1, 1), run_of_job(1, 4, &json!({}))]);
    assert_eq!(world.at(1.0), NOTHING);
    assert_eq!(sought_runs(&mut world, 3.0), [run(1)]);
    assert_eq!(world.at(4.0), NOTHING, "its job may be another server's by now");
    world.on(Event::HandoverEnded([JobId::new(1)].into()));
    assert_eq!(world.flush(), ["sent to 1: 4"]);
}

/// A run whose turn comes at an executor is not sent there while its job may be on its way to another server, which would send it too.
#[test]
fn a_run_whose_turn_comes_is_not_sent_while_its_job_moves() {
    let on_each = json!({"overlap": {"policy": "serial", "scope": "executor"}});
    let mut world = world_beside_others(0);
    world.around.now = Timestamp::from_secs(2);
    let mut called = run_of_job(1, 1, &on_each);
    (called.run.status, called.run.executor_id) = (RunStatus::Running, Some(ExecutorId::new(1)));
    world.around.in_memory.admit(vec![called.run.clone()]);
    world.on(Event::RollCall(
        vec![RollCallRun { ready: called, sent_under: Some(DEAD) }],
        vec![session_of(1)],
        vec![DEAD],
    ));
    world.join(1, 1, Report::default());
    let mut stranded = run_of_job(1, 3, &on_each);
    stranded.run.only_executor = Some("e9".to_owned());
    world.arrive([run_of_job(1, 2, &on_each), stranded]);
    assert_eq!(world.at(3.0), NOTHING, "the executor may have the first run");
    assert_eq!(sought_runs(&mut world, 5.0), [run(3)]);
    let end = world.described(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[])));
    assert_eq!(end, ["end of 1/1: Lost(NotReceived)"]);
    world.settled(1, 1, retry_outcome());
    assert_eq!(world.flush(), NOTHING, "its job may be another server's by now");
    world.on(Event::HandoverEnded([JobId::new(1)].into()));
    assert_eq!(sought_runs(&mut world, 5.5), []);
    assert_eq!(world.flush(), ["mark 2"]);
}

/// Runs that were handed over are forgotten. Runs that may have been handed over keep their places until their rows are read.
#[test]
fn handed_over_runs_are_forgotten() {
    let serial = |second| ready(second, &definition(&json!({"queue_timeout": "60s"})));
    for is_certain in [true, false] {
        let mut world = world_beside_others(0);
        world.arrive([serial(1), serial(2)]);
        assert_eq!(world.at(2.0), NOTHING);
        let event = if is_certain { Event::HandedOver(vec![run(1)]) } else { Event::MaybeHandedOver(vec![run(1)]) };
        let expected = if is_certain { NOTHING.to_vec() } else { vec!["look at 1"] };
        assert_eq!(world.described(event), expected);
        assert_eq!(world.around.in_memory.missing_runs([run(1), run(2)]), [run(1)]);
        world.join(1, 1, Report::default());
        assert_eq!(world.flush(), if is_certain { vec!["sent to 1: 2"] } else { Vec::new() });
    }
}

/// The answer to a handover may come after this node has taken the run over again. Then an executor may have it.
#[test]
fn a_handed_over_run_that_has_come_back_stays() {
    for is_certain in [true, false] {
        for is_held in [true, false] {
            let mut world = world_with_executors(1);
            call_roll(&mut world);
            if is_held {
                world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[(1, 1)])));
            }
            let event = if is_certain { Event::HandedOver(vec![run(1)]) } else { Event::MaybeHandedOver(vec![run(1)]) };
            world.on(event);
            assert_eq!(world.around.in_memory.missing_runs([run(1)]), [], "{is_certain} {is_held}");
            assert_eq!(world.state.runs.active(run(1)).is_some(), is_held, "{is_certain}");
            assert_eq!(world.state.runs.in_roll_call(run(1)).is_some(), !is_held, "{is_certain}");
        }
    }
}

/// A run expires here while its job is being handed over. By the time its end reaches the store, another server has sent it, and this server
/// has taken it over again.
#[test]
fn the_end_of_a_run_that_is_under_way_by_now_is_no_end() {
    let serial = |second| ready(second, &definition(&json!({"queue_timeout": "5s"})));
    let mut world = world_beside_others(0);
    world.arrive([serial(1), serial(2)]);
    assert_eq!(world.at(2.0), NOTHING);
    world.around.now = Timestamp::from_secs(6);
    assert_eq!(world.described(Event::Round(Vec::new())), ["end of 1/1: Skipped(NoExecutor)"]);
    let owner = Some(world.around.token);
    let settled = || SettledAttempt { run: run(1), attempt: 1, owner, end_outcome: EndOutcome::UnderWay };
    assert_eq!(world.described(Event::Settled(vec![settled()])), ["look at 1"]);
    assert_eq!(world.around.in_memory.missing_runs([run(1)]), [run(1)], "the periodic queries find it");
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), NOTHING, "it keeps its place");

    let mut world = world_with_executors(1);
    call_roll(&mut world);
    assert_eq!(world.described(Event::Settled(vec![settled()])), NOTHING);
    assert!(world.state.runs.in_roll_call(run(1)).is_some(), "executors are asked for it already");
    assert_eq!(world.around.in_memory.missing_runs([run(1)]), []);

    let mut world = world_beside_others(0);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), NOTHING);
    assert_eq!(world.described(Event::Settled(vec![settled()])), NOTHING);
    assert_eq!(world.around.in_memory.missing_runs([run(1)]), [], "it has been found, and waits here again");
}

/// This server takes over a run from its own earlier lease while an executor has it. The row is `running` from then on, so the run in memory must
/// have that status too: the store refuses an end that was decided from a row of another status.
#[test]
fn the_end_of_an_own_run_that_was_taken_over_does_not_count_as_decided_without_its_executor() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.around.token.epoch += 1;
    let mut call = roll_call_run(1);
    (call.ready.run.node_epoch, call.ready.run.status) = (world.around.token.epoch, RunStatus::Running);
    world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
    let status = world.state.runs.active(run(1)).map(|active| active.ready.run.status);
    assert_eq!(status, Some(RunStatus::Running));
}

/// The adoption of other runs may take longer than a handover is remembered.
#[test]
fn handed_over_runs_that_are_held_back_do_not_start() {
    for (is_certain, was_read) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut world = world_beside_others(1);
        world.arrive([run_of_job(1, 1, &json!({}))]);
        world.on(Event::Adopting(vec![JobId::new(1)]));
        assert_eq!(world.at(1.0), NOTHING, "it is held back");
        world.around.departing.begin_final_handover([(run(1), Timestamp::from_secs(1))]);
        world.on(if is_certain { Event::HandedOver(vec![run(1)]) } else { Event::MaybeHandedOver(vec![run(1)]) });
        if was_read {
            // The tick had read it again before it was handed over.
            world.arrive([run_of_job(1, 1, &json!({}))]);
            assert_eq!(world.at(1.1), NOTHING);
        }
        world.around.departing.forget_old(Timestamp::from_secs(8));
        world.on(Event::AllAdopted(world.around.token));
        assert_eq!(world.at(8.0), NOTHING, "another server may have it: {is_certain} {was_read}");
        assert_eq!(world.around.in_memory.missing_runs([run(1)]), [run(1)]);
    }
}

/// The jobs that move to the home of this limit, once the home is known.
fn handed_over_jobs(world: &mut World, home: NodeId) -> Option<(BTreeSet<JobId>, NodeId)> {
    let name = LimitName { namespace: NamespaceId::new(1), key: "db".to_owned() };
    world.on(Event::LimitHomes(world.around.token, vec![(name, home)])).into_iter().find_map(|effect| match effect {
        Effect::Store(Step::HandOver(jobs, to)) => Some((jobs, to)),
        _ => None,
    })
}

/// The runs under a limit go to the server that counts it.
#[test]
fn jobs_go_to_the_server_that_counts_their_limit() {
    let limited = json!({"concurrency": {"key": "db", "max": 1}});
    let due = || [run_of_job(1, 1, &limited), run_of_job(2, 2, &limited)];
    let mut world = world_beside_others(1);
    world.arrive(due());
    assert_eq!(world.at(2.0), NOTHING);
    assert_eq!(handed_over_jobs(&mut world, HOME), Some(([1, 2].map(JobId::new).into(), HOME)));
    assert_eq!(handed_over_jobs(&mut world, HOME), None, "they are on their way");
    assert_eq!(world.flush(), NOTHING);

    let mut world = world_beside_others(1);
    world.arrive(due());
    world.at(2.0);
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None);
    assert_eq!(world.flush(), ["sent to 1: 1"], "it counts them itself");
}

fn limit(key: &str) -> LimitName {
    LimitName { namespace: NamespaceId::new(1), key: key.to_owned() }
}

/// The limits that this server gives away, and to which one.
fn given_limits(world: &mut World, event: Event) -> Option<(Vec<LimitName>, Option<NodeId>)> {
    world.on(event).into_iter().find_map(|effect| match effect {
        Effect::Store(Step::GiveLimits(limits, to)) => Some((limits, to)),
        _ => None,
    })
}

/// A server that is to keep no jobs leaves a limit to the others once executors have none of its runs.
#[test]
fn a_drained_server_gives_its_limits_away() {
    let limited = json!({"concurrency": {"key": "db", "max": 1}});
    let mut world = world_beside_others(1);
    world.arrive([run_of_job(1, 1, &limited)]);
    world.at(1.0);
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None);
    assert_eq!(world.flush(), ["sent to 1: 1"]);
    assert_eq!(given_limits(&mut world, Event::GiveLimits), None, "an executor has a run under it");
    world.result(1, 1, 1);
    world.settled(1, 1, verdict());
    world.on(Event::Adopting(Vec::new()));
    assert_eq!(given_limits(&mut world, Event::GiveLimits), None, "a run that it takes over may be under it");
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(given_limits(&mut world, Event::GiveLimits), Some((vec![limit("db")], None)));
    assert_eq!(given_limits(&mut world, Event::GiveLimits), None, "it counts none any more");
    world.arrive([run_of_job(2, 2, &limited)]);
    assert_eq!(world.at(2.0), NOTHING, "it asks who counts the limit now");
    world.on(Event::StepRefused(Step::GiveLimits(vec![limit("db")], None)));
    assert_eq!(given_limits(&mut world, Event::GiveLimits), Some((vec![limit("db")], None)), "the store was not asked");
}

/// If two servers counted the two limits of a job, they would hand the job to each other for ever.
#[test]
fn one_server_comes_to_count_all_limits_of_a_job() {
    let both = json!({"concurrency": {"key": "db", "max": 1}, "rate": {"key": "api", "max": 9, "per": "1s"}});
    let mut world = world_beside_others(1);
    world.arrive([run_of_job(1, 1, &both)]);
    world.at(1.0);
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None, "it counts the first limit itself");
    let second = Event::LimitHomes(world.around.token, vec![(limit("api"), HOME)]);
    assert_eq!(given_limits(&mut world, second), Some((vec![limit("db")], Some(HOME))));
}

/// When a lease has ended, another server may have taken over its limits: a home that was read under that lease does not count.
#[test]
fn the_home_of_a_limit_is_read_again_under_the_next_lease() {
    let limited = json!({"concurrency": {"key": "db", "max": 1}});
    let mut world = world_beside_others(1);
    let before = world.around.token;
    world.around.lease_holds = false;
    world.on(Event::LeaseLost);
    let read = || Event::LimitHomes(before, vec![(limit("db"), NodeId::new(1))]);
    world.on(read());
    world.around.token.epoch += 1;
    world.around.lease_holds = true;
    world.on(Event::AllAdopted(world.around.token));
    world.on(read());
    let mut due = run_of_job(1, 1, &limited);
    due.run.node_epoch = world.around.token.epoch;
    world.arrive([due]);
    assert_eq!(world.at(1.0), NOTHING, "it asks who counts the limit now");
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None);
    assert_eq!(world.flush(), ["sent to 1: 1"]);
}

/// This server asks who counts a limit, and becomes its home by taking over the runs of another server: some of these may hold places under it.
#[test]
fn the_home_of_a_limit_is_read_again_once_all_open_runs_are_known() {
    let limited = json!({"concurrency": {"key": "db", "max": 1}});
    let mut world = world_beside_others(1);
    world.arrive([run_of_job(1, 1, &limited)]);
    assert_eq!(world.at(1.0), NOTHING, "it asks who counts the limit");
    world.on(Event::Adopting(vec![JobId::new(7)]));
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None);
    assert_eq!(world.flush(), NOTHING, "others may have places under it");
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(handed_over_jobs(&mut world, NodeId::new(1)), None);
    assert_eq!(world.flush(), ["sent to 1: 1"]);
}

/// While open runs are being taken over, runs of other jobs may hold places under a limit that jobs share.
#[test]
fn runs_under_a_shared_limit_wait_until_all_open_runs_are_known() {
    let mut world = world_with_executors(1);
    world.on(Event::Adopting(vec![JobId::new(7)]));
    let limited = json!({"concurrency": {"key": "db", "max": 1}});
    world.arrive([run_of_job(1, 1, &limited), run_of_job(2, 2, &json!({})), run_of_job(7, 3, &json!({}))]);
    assert_eq!(world.at(3.0), ["sent to 1: 2"]);
    world.on(Event::AdoptedJobs(vec![JobId::new(7)]));
    assert_eq!(world.at(3.1), ["sent to 1: 3"], "its job is known, and not what others hold");
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(world.at(3.2), ["sent to 1: 1"]);
}

/// Servers ask each other for the answers of executors that they do not hear.
#[test]
fn the_answers_of_executors_that_are_elsewhere_are_asked_of_other_servers() {
    for (is_single_server, lease_holds, is_called, expected) in
        [(false, true, true, 1), (true, true, true, 0), (false, false, true, 0), (false, true, false, 0)]
    {
        let mut world = world_beside_others(0);
        world.around.now = Timestamp::from_secs(2);
        if is_called {
            call_roll(&mut world);
        }
        (world.around.settings.is_single_server, world.around.lease_holds) = (is_single_server, lease_holds);
        world.around.now = Timestamp::from_secs(4);
        let effects = world.on(Event::Round(Vec::new()));
        let asked = effects.iter().filter(|effect| matches!(effect, Effect::Store(Step::AskFences(_)))).count();
        assert_eq!(asked, expected, "{is_single_server} {lease_holds} {is_called}");
    }
}

/// An executor that is shutting down hands back a queued run of an ended lease by a result, because the run may belong to any server by then.
/// This server may still be asking the executors for the run, or may have learnt from another server which of them has it.
#[test]
fn a_run_that_an_executor_hands_back_ends_its_attempt() {
    for is_held in [false, true] {
        let mut world = world_with_executors(1);
        call_roll(&mut world);
        if is_held {
            world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[(1, 1)])));
        }
        assert_eq!(world.state.runs.in_roll_call(run(1)).is_some(), !is_held);
        let effects = world.hand_back(1, run(1), 1);
        let ends: Vec<String> = effects.iter().filter_map(describe).collect();
        assert_eq!(ends, ["end of 1/1: Silenced { has_begun: false }"], "{is_held}");
        let detail = effects.iter().find_map(|effect| match effect {
            Effect::Finish(end) => end.attempt_end.detail.as_deref(),
            _ => None,
        });
        assert_eq!(detail.map(|detail| (detail.executor.as_deref(), detail.shutting_down)), Some((Some("e1"), true)));
        assert!(world.state.runs.in_roll_call(run(1)).is_none());
        let answered = Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[]));
        assert_eq!(world.described(answered), NOTHING, "the attempt ends once");
    }
}
