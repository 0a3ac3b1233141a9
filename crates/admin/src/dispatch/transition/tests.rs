//! The hardest scenarios of the engine's rules, for the dispatcher alone: events, and the expected effects. Times are seconds; runs are named
//! by the second at which they are due. The simulation has the same scenarios with all parts of the engine.

use std::collections::{BTreeMap, HashSet};

use rondel_core::outcome::Outcome;
use rondel_core::run::ROOT_SHARD;
use rondel_core::{ExecutorId, Reason, Run, RunId, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::LeaseToken;
use rondel_store::cluster::Session;
use rondel_store::ledger::{EndOutcome, RunCheck};
use serde_json::json;

use super::world::{World, retry_outcome, verdict};
use super::*;
use crate::dispatch::active::Phase;
use crate::dispatch::event::{
    FenceAnswer, Reply, Report, Responder, RollCallRun, SessionHandle, SettledAttempt, Shards,
};
use crate::dispatch::starts::StartReports;
use crate::dispatch::tests_support::{definition, ready};
use crate::dispatch::{ReadyRun, end_of_unsent};

pub(super) const NOTHING: [&str; 0] = [];

pub(super) fn run(second: i64) -> RunId {
    RunId::new(second * 1_000)
}

pub(super) fn plain(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"overlap": {"policy": "allow"}})))
}

fn serial(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"queue_timeout": "60s"})))
}

fn at_most_once(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"overlap": {"policy": "allow"}, "delivery": "at_most_once"})))
}

/// A world in which executors 1 to `count` are connected.
pub(super) fn world_with_executors(count: i64) -> World {
    let mut world = World::new();
    for id in 1..=count {
        world.join(id, id.unsigned_abs(), Report::default());
    }
    world
}

/// Two fires of a serial job, then a retry of the first: the second fire never passes the run that has the place before it.
#[test]
fn a_serial_job_continues_only_once_the_previous_verdict_is_durable() {
    let mut world = world_with_executors(1);
    world.arrive([serial(1), serial(2)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert_eq!(world.at(2.0), NOTHING);
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"]);
    assert_eq!(world.at(3.0), NOTHING, "it is not durable yet");
    assert_eq!(world.settled(1, 1, retry_outcome()), NOTHING);
    assert_eq!(world.at(4.0), NOTHING, "its next attempt has its place");
    let mut second = serial(1);
    second.run.attempt = 2;
    world.arrive([second]);
    assert_eq!(world.at(5.0), ["sent to 1: 1"]);
    world.result(1, 1, 2);
    world.settled(1, 2, verdict());
    assert_eq!(world.flush(), ["sent to 1: 2"]);
}

/// Nothing is sent under a lease that does not hold; runs that were sent under it stay, and runs that were not sent are dropped with it.
#[test]
fn nothing_is_sent_without_the_lease() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2), plain(3)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.around.now = Timestamp::from_secs(2);
    world.on(Event::Wake);
    world.around.lease_holds = false;
    assert_eq!(world.flush(), NOTHING, "it was placed while the lease held");
    assert_eq!(world.at(3.0), NOTHING);
    world.around.lease_holds = true;
    assert_eq!(world.at(3.5), ["sent to 1: 2 3"]);
    world.arrive([plain(4)]);
    world.on(Event::LeaseLost);
    world.around.token.epoch = 2;
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(world.at(5.0), NOTHING, "the next lease finds it in the store");
    assert!(!world.around.in_memory.missing_runs([run(4)]).is_empty());
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"], "who has it may report it");
}

/// No new run of a serial job starts before all of its open runs are known.
#[test]
fn nothing_starts_before_all_open_runs_are_known() {
    let mut world = world_with_executors(1);
    world.around.token.epoch = 2;
    let of_lease = |second| {
        let mut ready = serial(second);
        ready.run.node_epoch = 2;
        ready
    };
    world.arrive([of_lease(2)]);
    assert_eq!(world.at(2.0), NOTHING);
    let mut open = of_lease(1);
    open.run.attempt = 2;
    world.on(Event::Restored(vec![open.clone()]));
    world.on(Event::AllAdopted(world.around.token));
    assert_eq!(world.at(2.5), NOTHING, "the run before it waits for its second attempt");
    world.arrive([open]);
    assert_eq!(world.at(3.0), ["sent to 1: 1"]);
}

pub(super) const DEAD: LeaseToken = LeaseToken { node: rondel_core::NodeId::new(9), epoch: 4 };

pub(super) fn session_of(executor: i64) -> Session {
    Session {
        token: DEAD,
        executor: ExecutorId::new(executor),
        app: rondel_core::AppId::new(1),
        last_seen_at: Timestamp::from_secs(1),
        ended_at: None,
        has_left: false,
        process: None,
    }
}

pub(super) fn roll_call_run(second: i64) -> RollCallRun {
    let mut ready = serial(second);
    ready.run.status = RunStatus::Running;
    RollCallRun { ready, sent_under: Some(DEAD) }
}

pub(super) fn answer(held: &[(i64, i32)]) -> FenceAnswer {
    let held = held.iter().map(|(second, attempt)| (run(*second), *attempt)).collect();
    FenceAnswer { lease: DEAD, held_runs: held, finished_runs: HashSet::new(), starts: StartReports::default() }
}

/// A dead node may have sent a run to either of two executors. An executor that has not reported yet may have the run.
#[test]
fn a_roll_call_waits_for_every_executor_that_may_have_the_run() {
    for (held_by_second, expected) in [(true, Vec::new()), (false, vec!["end of 1/1: Lost(NotReceived)"])] {
        let mut world = world_with_executors(2);
        world.around.now = Timestamp::from_secs(2);
        let call = roll_call_run(1);
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        let sessions = vec![session_of(1), session_of(2)];
        assert_eq!(world.described(Event::RollCall(vec![call], sessions, vec![DEAD])), NOTHING);
        world.arrive([serial(2)]);
        assert_eq!(world.described(Event::FenceAnswered(ExecutorId::new(1), 1, answer(&[]))), NOTHING);
        assert_eq!(world.at(2.5), NOTHING, "the next fire waits as well");
        let held: &[(i64, i32)] = if held_by_second { &[(1, 1)] } else { &[] };
        assert_eq!(world.described(Event::FenceAnswered(ExecutorId::new(2), 2, answer(held))), expected);
        assert_eq!(world.state.runs.active(run(1)).is_some(), held_by_second);
        if held_by_second {
            assert_eq!(
                world.result(1, 1, 1),
                ["unexpected 1"],
                "the other executor cannot have it, unless the row names it"
            );
            assert_eq!(world.result(2, 1, 1), ["end of 1/1: Succeeded"]);
        }
    }
}

/// The row of a run that this node sent names another node: this node is wrong about its lease.
#[test]
fn a_run_that_another_node_has_ends_this_lease() {
    let mut world = world_with_executors(1);
    world.arrive([serial(1), serial(2)]);
    world.at(1.0);
    assert_eq!(world.at(2.0), NOTHING);
    let check = RunCheck {
        id: run(1),
        status: RunStatus::Running,
        attempt: 1,
        job_version: 1,
        has_recorded_start: false,
        owner: DEAD,
        cancel_by: None,
        drop_for: None,
        term: 1,
    };
    assert_eq!(world.described(Event::RowsChecked(vec![run(1)], vec![check])), ["end of the lease"]);
    assert_eq!(world.at(3.0), NOTHING, "what waits behind it is not sent either");
}

/// An at-most-once run is marked before it is sent, sent at its instant and never long after its mark, and unmarked if it was not received.
#[test]
fn an_at_most_once_run_is_marked_before_it_is_sent() {
    let won = |won: &[i64]| Event::Marked(vec![(run(1), 1)], won.iter().map(|second| run(*second)).collect());
    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1)]);
    assert_eq!(world.at(0.7), NOTHING);
    assert_eq!(world.at(0.8), ["mark 1"]);
    assert_eq!(world.described(won(&[1])), NOTHING);
    assert_eq!(world.at(0.9), NOTHING, "it is not due");
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    let refused = Reply::Refused(RefusedWhy::Full, None);
    assert_eq!(world.reply(1, 1, 1, refused), ["unmark 1"]);
    assert_eq!(world.at(1.1), NOTHING, "the executor is full");
    world.around.now = Timestamp::from_secs(2);
    world.on(Event::Round(Vec::new()));
    assert_eq!(world.flush(), ["mark 1"]);
    assert_eq!(world.described(won(&[])), ["look at 1"], "another node's, settled, or not answered");
    assert_eq!(world.flush(), NOTHING);

    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1)]);
    assert_eq!(world.at(1.0), ["mark 1"]);
    world.around.now = Timestamp::from_millis(2_100);
    world.on(won(&[1]));
    assert_eq!(world.flush(), ["unmark 1"], "its mark may count as a run that died with the node");
}

/// A request that finds no room has no lasting effect.
#[test]
fn steps_without_room_leave_the_state_as_it_was() {
    let mut world = world_with_executors(1);
    world.arrive([at_most_once(1)]);
    let effects = {
        world.around.now = Timestamp::from_secs(1);
        world.on(Event::Wake);
        world.on(Event::Flush)
    };
    let mark = effects.into_iter().find_map(|effect| match effect {
        Effect::Store(step @ Step::Mark(_)) => Some(step),
        _ => None,
    });
    assert_eq!(world.described(Event::StepRefused(mark.unwrap())), ["look at 1"]);
    assert_eq!(world.flush(), NOTHING, "unmarked, it is not sent");

    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"]);
    assert_eq!(world.result(1, 1, 1), NOTHING, "it is being stored");
    world.on(Event::EndRefused(run(1), 1, Phase::Sent));
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"], "the executor reports it again");
    let in_flight = world.state.executors.get(ExecutorId::new(1)).map(|online| online.in_flight);
    assert_eq!(in_flight, Some(0), "its slot is counted once");

    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.around.now = Timestamp::from_secs(1);
    world.on(Event::Wake);
    assert_eq!(world.write(ExecutorId::new(1), &[run(1)], false), NOTHING);
    assert_eq!(world.at(1.1), NOTHING, "it waits for an executor");
    world.on(Event::Round(Vec::new()));
    assert_eq!(world.flush(), ["sent to 1: 1"]);
}

/// A refusal that comes a second time does not concern a later trigger of the same run.
#[test]
fn a_late_refusal_does_not_concern_a_later_trigger() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    let first = Reply::Refused(RefusedWhy::Full, Some(1));
    assert_eq!(world.reply(1, 1, 1, first), NOTHING);
    world.around.now = Timestamp::from_secs(2);
    world.on(Event::Round(Vec::new()));
    assert_eq!(world.flush(), ["sent to 1: 1"]);
    assert_eq!(world.reply(1, 1, 1, first), NOTHING);
    assert!(world.state.runs.active(run(1)).is_some_and(|active| active.phase == Phase::Sent));
    assert_eq!(world.reply(1, 1, 1, Reply::Accepted), NOTHING);
}

/// A restarted executor proves its predecessor: the journaled results follow, and the other runs are lost at once.
#[test]
fn a_restart_settles_its_journal_before_the_rest_is_lost() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2)]);
    assert_eq!(world.at(2.0), ["sent to 1: 1 2"]);
    let report = Report {
        finished_runs: [(run(1), 1)].into(),
        predecessor: Some(ExecutorId::new(1)),
        lineage: [ExecutorId::new(1)].into(),
        ..Report::default()
    };
    assert_eq!(world.join(2, 2, report.clone()), ["end of 2/1: Lost(ExecutorLost)"]);
    // Executor 2 died before a server had answered it, so the next process names the same predecessor and has the same journal.
    world.join(3, 3, report);
    assert_eq!(world.result(3, 1, 1), ["unexpected 1"], "its row names the predecessor of both");
    // A later look at the store's rows finds that both are successors of executor 1.
    let (executor_3, lineage) = (world.sessions[&ExecutorId::new(3)].clone(), [1, 2].map(ExecutorId::new));
    let other_stream = SessionHandle { number: 2, ..executor_3.clone() };
    world.on(Event::LineageGrew(other_stream, lineage.into()));
    assert_eq!(world.result(3, 1, 1), ["unexpected 1"], "the lineage was that of another stream");
    world.on(Event::LineageGrew(executor_3, lineage.into()));
    assert_eq!(world.result(3, 1, 1), ["end of 1/1: Succeeded"]);
    // The same process connects again and does not report the run: its trigger was lost in the network.
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    assert_eq!(world.join(1, 2, Report::default()), ["end of stream 1", "end of 1/1: Lost(NotReceived)"]);
}

fn broadcast(second: i64) -> ReadyRun {
    let mut ready = ready(second, &definition(&json!({"route": "broadcast", "queue_timeout": "60s"})));
    (ready.run.shard_index, ready.run.shard_total) = (ROOT_SHARD, None);
    ready
}

fn shards_of(root: &Run, count: i32) -> Vec<Run> {
    let shard = |index: i32| Run {
        id: RunId::new(root.id.get() + 10_000 * i64::from(1 + index)),
        shard_index: index,
        shard_total: Some(count),
        parent: Some(root.id),
        executor: Some(format!("e{}", index + 1)),
        ..root.clone()
    };
    (0..count).map(shard).collect()
}

/// A broadcast has one shard for each executor that was online when it was expanded, even if the request to store the shards is repeated.
/// The next fire waits for all of them.
#[test]
fn the_expansion_of_a_broadcast_is_decided_once() {
    let mut world = world_with_executors(2);
    let root = broadcast(1);
    let shards = shards_of(&root.run, 2);
    world.arrive([root.clone(), broadcast(2)]);
    assert_eq!(world.at(1.0), ["expand 1 to 2"]);
    world.around.in_memory.admit(shards.clone());
    let answer = |open| {
        Event::Expanded(Box::new(root.run.clone()), Shards { requested_shards: shards.clone(), open_shards: open })
    };
    world.join(3, 3, Report::default());
    assert_eq!(world.described(answer(None)), NOTHING, "the database did not answer");
    assert_eq!(world.described(Event::Round(Vec::new())), ["expand 1 again to 2"]);
    assert_eq!(world.at(2.0), NOTHING);
    assert_eq!(world.described(answer(Some(shards.clone()))), NOTHING);
    assert_eq!(world.at(2.1), ["sent to 1: 11", "sent to 2: 21"]);
    world.result(1, 11, 1);
    assert_eq!(world.settled(11, 1, verdict()), NOTHING);
    world.result(2, 21, 1);
    assert_eq!(world.settled(21, 1, verdict()), ["expand 2 to 3"]);
}

/// A lease that runs out and is renewed while the shards of a broadcast are being stored: the next fire still waits for them.
#[test]
fn a_broadcast_keeps_its_place_while_its_shards_are_stored() {
    for next_epoch in [1, 2] {
        let mut world = world_with_executors(1);
        let root = broadcast(1);
        let shards = shards_of(&root.run, 1);
        world.arrive([root.clone()]);
        assert_eq!(world.at(1.0), ["expand 1 to 1"]);
        world.around.in_memory.admit(shards.clone());
        world.on(Event::LeaseLost);
        world.around.token.epoch = next_epoch;
        world.on(Event::AllAdopted(world.around.token));
        let mut next = broadcast(2);
        next.run.node_epoch = next_epoch;
        world.arrive([next]);
        assert_eq!(world.at(2.0), NOTHING);
        let answer = Shards { requested_shards: shards.clone(), open_shards: Some(shards.clone()) };
        let done = world.described(Event::Expanded(Box::new(root.run.clone()), answer));
        // Under a later lease the shards no longer belong to this node.
        assert_eq!(done, if next_epoch == 1 { Vec::new() } else { vec!["expand 2 to 1"] });
        assert_eq!(world.at(2.1), if next_epoch == 1 { vec!["sent to 1: 11"] } else { Vec::new() });
    }
}

/// A late run is not a missed run. A run that a server had in time may wait until its queue timeout. The misfire policy judges only a run
/// that the server took up late.
#[test]
fn late_is_not_missed() {
    let job = definition(
        &json!({"overlap": {"policy": "allow"}, "misfire": {"policy": "skip", "tolerance": "5s"}, "queue_timeout": "60s"}),
    );
    for (came_at, expected) in [(1, "sent to 1: 1"), (20, "end of 1/1: Skipped(Misfire)")] {
        let mut world = World::new();
        let ready = ready(1, &job);
        world.arrive([ReadyRun::from_ring(ready.run, ready.definition, Timestamp::from_secs(came_at))]);
        assert_eq!(world.at(20.0), if came_at == 1 { Vec::new() } else { vec![expected] });
        world.join(1, 1, Report::default());
        assert_eq!(world.flush(), if came_at == 1 { vec![expected] } else { Vec::new() });
    }
    // Without an executor it waits for the job's queue time.
    let mut world = World::new();
    world.arrive([ready(1, &job)]);
    assert_eq!(world.at(1.0), NOTHING);
    world.around.now = Timestamp::from_secs(61);
    assert_eq!(world.described(Event::Round(Vec::new())), ["end of 1/1: Skipped(NoExecutor)"]);
}

/// A later run takes the place of all others: runs that were not sent are skipped, the others are asked to end, and the later run waits for
/// their ends.
#[test]
fn a_covering_run_waits_for_the_ends_that_it_asks_for() {
    let covers = definition(&json!({"overlap": {"policy": "cover"}, "queue_timeout": "60s"}));
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &covers), ready(2, &covers), ready(3, &covers)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    assert_eq!(world.at(2.0), ["ask to end 1"]);
    assert_eq!(world.at(3.0), ["end of 2/1: Skipped(Covered)", "ask to end 1"]);
    let asked = Event::Covered(vec![run(1)], vec![(run(1), "a later run".to_owned())]);
    assert_eq!(world.described(asked), ["cancel 1"]);
    assert_eq!(world.described(Event::Round(Vec::new())), NOTHING, "that is durable");
    world.result(1, 1, 1);
    world.settled(1, 1, verdict());
    assert_eq!(world.flush(), ["sent to 1: 3"]);
}

/// If an attempt was given up and its result arrives later, only one of these ends counts, and neither concerns the next attempt.
#[test]
fn a_message_about_an_earlier_attempt_does_not_concern_the_next() {
    let mut world = world_with_executors(2);
    world.arrive([serial(1), serial(2)]);
    world.at(1.0);
    world.described(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    assert_eq!(world.described(Event::Died(ExecutorId::new(1))), ["end of 1/1: Lost(ExecutorLost)"]);
    let mut second = serial(1);
    second.run.attempt = 2;
    world.settled(1, 1, retry_outcome());
    world.arrive([second]);
    assert_eq!(world.at(2.0), ["sent to 2: 1"]);
    world.join(1, 3, Report::default());
    assert_eq!(world.result(1, 1, 1), ["foreign 1"], "judged by its row");
    assert_eq!(world.settled(1, 1, EndOutcome::Superseded), NOTHING);
    assert!(world.state.runs.active(run(1)).is_some(), "the second attempt is in hand");
    assert_eq!(world.at(3.0), NOTHING, "and has its place");
    world.result(2, 1, 2);
    world.settled(1, 2, verdict());
    assert_eq!(world.flush(), ["sent to 2: 2"]);
}

/// A thousand runs that no executor takes do not hide one that an executor takes.
#[test]
fn a_run_that_waits_in_vain_hides_nothing() {
    let mut world = World::new();
    let patient =
        definition(&json!({"handler": "gone", "priority": 9, "overlap": {"policy": "allow"}, "queue_timeout": "1h"}));
    world.arrive((1..=1_001).map(|second| ready(second, &patient)));
    world.arrive([plain(2_000)]);
    assert_eq!(world.at(2_000.0), NOTHING);
    world.join(1, 1, Report::default());
    assert_eq!(world.flush(), ["sent to 1: 2000"]);
}

/// A run is given up, the lease ends, and the roll call of the next lease finds that an executor has the run after all. The store refuses
/// the end from the previous lease, and this refusal does not concern the run any more.
#[test]
fn an_end_under_the_previous_lease_does_not_concern_the_current_one() {
    let mut world = world_with_executors(1);
    world.arrive([serial(1)]);
    world.at(1.0);
    assert_eq!(world.join(1, 2, Report::default()), ["end of stream 1", "end of 1/1: Lost(NotReceived)"]);
    let before = world.around.token;
    world.on(Event::LeaseLost);
    world.around.token.epoch = 2;
    let mut call = roll_call_run(1);
    call.ready.run.node_epoch = 2;
    world.around.in_memory.admit(vec![call.ready.run.clone()]);
    world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
    world.on(Event::FenceAnswered(ExecutorId::new(1), 2, answer(&[(1, 1)])));
    assert!(world.state.runs.active(run(1)).is_some(), "the executor has it");
    let refused = SettledAttempt { run: run(1), attempt: 1, owner: Some(before), end_outcome: EndOutcome::NotOwner };
    assert_eq!(world.described(Event::Settled(vec![refused])), NOTHING);
    assert!(world.state.runs.active(run(1)).is_some(), "it still has it");
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"]);
}

/// An end that finds no room leaves its run to the periodic queries.
#[test]
fn a_run_that_is_skipped_is_not_in_the_table() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    let cancel = Event::Cancels(vec![(run(1), "operator".to_owned()), (run(7), "operator".to_owned())]);
    assert_eq!(world.described(cancel), ["end of 1/1: Cancelled", "cancel elsewhere 7"]);
    assert!(world.state.runs.get(run(1)).is_none() && world.at(1.0).is_empty());
    let ready = plain(1);
    let attempt_end =
        end_of_unsent(&ready.run, &ready.definition, Outcome::Skipped(Reason::Overlap), world.around.now, None);
    assert_eq!(attempt_end.owner, Some(world.around.token), "it is refused where another lease has the run");
}

/// The database was away: no server could store whom it heard, so rows may show an executor as silent although another server hears it.
#[test]
fn no_executor_is_lost_by_rows_that_may_be_old() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    let one = ExecutorId::new(1);
    world.described(Event::StreamEnded(one, 1, Responder::new(|()| {})));
    let heard_by_none = || Event::Heard(vec![one], BTreeMap::new());
    world.around.now = Timestamp::from_secs(40);
    world.around.rows_may_be_old = true;
    assert_eq!(world.described(heard_by_none()), NOTHING);
    world.around.rows_may_be_old = false;
    assert_eq!(world.described(heard_by_none()), ["end of 1/1: Lost(ExecutorLost)"]);
}
