//! Scenarios with runs at executors: which of them have begun, and which wait there.

use std::time::Duration;

use rondel_core::reason::words::waits_for;
use rondel_core::words::Lang;
use rondel_core::{ExecutorId, RunStatus, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::ledger::{RunAtExecutor, RunCheck, WaitPlace};
use serde_json::json;

use super::tests::{DEAD, NOTHING, answer, plain, roll_call_run, run, session_of, world_with_executors};
use super::world::World;
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::{FenceAnswer, Reply, Report, Responder};
use crate::dispatch::starts::{Start, StartReports};
use crate::dispatch::tests_support::definition;

/// The notes that a round at this time stores about runs at executors.
fn noted_waits(world: &mut World, seconds: f64) -> Vec<String> {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
    world.on(Event::Round(Vec::new())).iter().flat_map(noted_as).collect()
}

fn noted_as(effect: &Effect) -> Vec<String> {
    match effect {
        Effect::Store(Step::NoteRunning(hands)) => {
            let began = |hand: &RunAtExecutor| format!("{} began at {}", hand.run.get() / 1_000, hand.at.as_millis());
            hands.iter().map(began).collect()
        }
        Effect::Store(Step::NoteWaits(waits)) => {
            let waits = waits.iter().map(|wait| {
                let what = waits_for(&wait.detail, Lang::En).unwrap_or_default();
                let is_named = matches!(wait.place, WaitPlace::Executor(Some(_)));
                format!("{} waits {what}{}", wait.run.get() / 1_000, if is_named { ", named" } else { "" })
            });
            let mut waits: Vec<String> = waits.collect();
            waits.sort_unstable();
            waits
        }
        _ => Vec::new(),
    }
}

fn started(at_ms: i64) -> Reply {
    Reply::Started(Start { started_at: Some(Timestamp::from_millis(at_ms)), start_delay: Duration::ZERO })
}

/// After a server has lost its lease and taken a new one, the row of a run shows more than the memory from the earlier lease.
#[test]
fn no_wait_is_noted_of_a_run_of_an_earlier_lease() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2)]);
    assert_eq!(world.at(2.0), ["sent to 1: 1 2"]);
    let now = noted_waits(&mut world, 6.0);
    assert!(now.iter().any(|note| note.starts_with("1 waits")), "{now:?}");
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2)]);
    world.at(2.0);
    world.around.token.epoch += 1;
    assert_eq!(noted_waits(&mut world, 6.0), NOTHING);
}

/// An executor accepts more runs than it begins. A run that it has not begun waits for a slot there, and is running only from its start on.
#[test]
fn a_run_in_an_executors_queue_is_not_running() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2), plain(3)]);
    assert_eq!(world.at(3.0), ["sent to 1: 1 2 3"]);
    for second in [1, 2, 3] {
        world.reply(1, second, 1, Reply::Accepted);
    }
    world.reply(1, 1, 1, started(2_900));
    world.reply(1, 2, 1, started(1));
    assert_eq!(noted_waits(&mut world, 4.0), ["1 began at 2900", "2 began at 2000"], "none begins before it is due");
    assert_eq!(noted_waits(&mut world, 5.0), ["3 waits for a free slot on e1, named"]);
    assert_eq!(noted_waits(&mut world, 20.0), NOTHING);
    world.reply(1, 3, 1, started(19_400));
    world.reply(1, 3, 1, started(9_000));
    assert_eq!(noted_waits(&mut world, 21.0), ["3 began at 19400"], "the first report counts");
}

/// The run belonged to another node when its start was noted, so the store refused the note. Then the run came back by an adoption whose
/// answer was lost.
#[test]
fn a_start_whose_note_was_refused_is_noted_again() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    world.at(1.0);
    world.reply(1, 1, 1, started(1_000));
    assert_eq!(noted_waits(&mut world, 3.0), ["1 began at 1000"]);
    let token = world.around.token;
    let row = |has_recorded_start| RunCheck {
        id: run(1),
        status: RunStatus::Running,
        attempt: 1,
        job_version: 1,
        has_recorded_start,
        owner: token,
        cancel_by: None,
        drop_for: None,
        term: 1,
    };
    world.on(Event::RowsChecked(vec![run(1)], vec![row(true)]));
    assert_eq!(noted_waits(&mut world, 4.0), NOTHING);
    world.on(Event::RowsChecked(vec![run(1)], vec![row(false)]));
    assert_eq!(noted_waits(&mut world, 5.0), ["1 began at 1000"]);
}

/// The groups of a pump get no items before their rows state that they run.
#[test]
fn a_start_that_the_store_did_not_take_is_noted_again() {
    let mut world = world_with_executors(1);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.reply(1, 1, 1, Reply::Accepted);
    world.reply(1, 1, 1, started(1_000));
    world.around.now = Timestamp::from_secs(4);
    let effects = world.on(Event::Round(Vec::new()));
    let refused = effects.into_iter().find_map(|effect| match effect {
        Effect::Store(step @ Step::NoteRunning(_)) => Some(step),
        _ => None,
    });
    assert_eq!(noted_waits(&mut world, 5.0), NOTHING, "it is under way");
    world.on(Event::StepRefused(refused.unwrap()));
    assert_eq!(noted_waits(&mut world, 6.0), ["1 began at 1000"]);
    assert_eq!(noted_waits(&mut world, 7.0), NOTHING);
}

/// While an executor has no stream, it is not known whether its runs have begun. The next hello reports that; if an executor does not
/// report starts, all runs that it holds count as begun.
#[test]
fn a_hello_reports_which_runs_have_begun() {
    let held = |second: i64| v1::RunRef { run_id: second * 1_000, attempt: 1, ..v1::RunRef::default() };
    let refs = [v1::RunRef { not_begun: true, ..held(1) }, v1::RunRef { started_at_ms: 4_500, ..held(2) }, held(3)];
    let mut world = world_with_executors(1);
    world.arrive([plain(1), plain(2), plain(3)]);
    world.at(3.0);
    world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    let unknown = "for executor e1 to connect again (sent, not known to have begun), named";
    assert_eq!(noted_waits(&mut world, 4.0), [1, 2, 3].map(|second| format!("{second} waits {unknown}")));
    world.around.now = Timestamp::from_secs(5);
    let report = Report {
        held_runs: [1, 2, 3].map(|second| (run(second), 1)).into(),
        starts: StartReports::of(&refs, world.around.clocks()),
        ..Report::default()
    };
    assert_eq!(world.join(1, 2, report), NOTHING);
    assert_eq!(
        noted_waits(&mut world, 10.0),
        ["2 began at 4500", "3 began at 3000", "1 waits for a free slot on e1, named"]
    );
}

/// An adopted run continues as its executor reports it. When the executor hands it back, its row names no executor.
#[test]
fn an_adopted_run_that_has_not_begun_is_not_running() {
    let held = v1::RunRef { run_id: 1_000, attempt: 1, ..v1::RunRef::default() };
    for (held, expected) in [
        (v1::RunRef { not_begun: true, ..held }, vec!["1 waits for a free slot on e1, named"]),
        (v1::RunRef { started_at_ms: 1_700, ..held }, vec!["1 began at 1700"]),
        (held, vec!["1 began at 1000"]),
    ] {
        let mut world = world_with_executors(1);
        world.around.now = Timestamp::from_secs(2);
        let call = roll_call_run(1);
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
        let answer = FenceAnswer { starts: StartReports::of(&[held], world.around.clocks()), ..answer(&[(1, 1)]) };
        world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer));
        assert_eq!(noted_waits(&mut world, 10.0), expected);
        let is_queued = held.not_begun;
        let handed_back = world.reply(1, 1, 1, Reply::Refused(RefusedWhy::Full, None));
        let is_named = is_queued || !expected.is_empty();
        assert_eq!(handed_back, if is_named { vec!["unmark 1"] } else { vec![] });
    }
}

/// The database's clock has stepped ahead since a run began, and another server takes the run over: the run's timeout counts from how long the
/// executor has been running it. If that is not known, it counts from the takeover, never from the start by that clock.
#[test]
fn the_timeout_of_an_adopted_run_counts_from_how_long_it_has_been_running() {
    let held = |running_ms: Option<i64>| v1::RunRef {
        run_id: 1_000,
        attempt: 1,
        not_begun: running_ms.is_none(),
        started_at_ms: if running_ms.is_some() { 1_000 } else { 0 },
        running_ms: running_ms.unwrap_or_default(),
    };
    let given_up = vec!["end of 1/1: TimedOut"];
    // The timeout and the time for an answer to the request to stop are 90 s together.
    for (running_ms, is_noted, seconds, expected) in [
        (Some(0), false, 1_089.0, NOTHING.to_vec()),
        (Some(0), false, 1_090.0, given_up.clone()),
        (Some(0), true, 1_089.0, NOTHING.to_vec()),
        (Some(0), true, 1_090.0, given_up.clone()),
        (Some(500), true, 1_089.0, NOTHING.to_vec()),
        (Some(20_000), true, 1_069.0, NOTHING.to_vec()),
        (Some(20_000), true, 1_070.0, given_up.clone()),
        // It waits for a slot, whatever its row shows.
        (None, true, 2_000.0, NOTHING.to_vec()),
    ] {
        let mut world = world_with_executors(1);
        world.around.now = Timestamp::from_secs(1_000);
        let mut call = roll_call_run(1);
        let definition = definition(&json!({"timeout": "30s"}));
        call.ready = ReadyRun { definition, ..call.ready };
        call.ready.run.started_at = is_noted.then(|| Timestamp::from_secs(1));
        world.around.in_memory.admit(vec![call.ready.run.clone()]);
        world.on(Event::RollCall(vec![call], vec![session_of(1)], vec![DEAD]));
        let answer =
            FenceAnswer { starts: StartReports::of(&[held(running_ms)], world.around.clocks()), ..answer(&[(1, 1)]) };
        world.on(Event::FenceAnswered(ExecutorId::new(1), 1, answer));
        assert_eq!(ends_at(&mut world, 1_000.0), NOTHING);
        assert_eq!(ends_at(&mut world, seconds), expected, "{running_ms:?} {is_noted} {seconds}");
    }
}

/// The ends that a round at this time decides.
fn ends_at(world: &mut World, seconds: f64) -> Vec<String> {
    world.around.now = Timestamp::EPOCH + Duration::from_secs_f64(seconds);
    let described = world.described(Event::Round(Vec::new()));
    described.into_iter().filter(|effect| effect.starts_with("end of")).collect()
}
