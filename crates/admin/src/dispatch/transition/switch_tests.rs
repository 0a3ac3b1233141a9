//! Scenarios with executors that users switch off. As in [`tests`](super::tests), times are seconds, and runs are named by the second at
//! which they are due; executor 1 is called `e1`.

use rondel_core::homes::Switch;
use rondel_core::reason::ObstacleKind;
use rondel_core::{AppId, ExecutorId, Reason, Timestamp};
use rondel_store::cluster::{ExecutorSwitch, Switches};
use serde_json::json;

use super::tests::{NOTHING, plain, world_with_executors};
use super::world::{World, verdict};
use super::*;
use crate::cluster::SwitchBoard;
use crate::dispatch::event::{Report, Responder};
use crate::dispatch::tests_support::{definition, ready};

/// Sets the switches, as a beat does that reads them.
fn set_switches(world: &World, switches: &[(&str, Switch)]) {
    let switch = |(name, switch): &(&str, Switch)| ExecutorSwitch {
        app: AppId::new(1),
        name: (*name).to_owned(),
        switch: *switch,
        set_at: Timestamp::EPOCH,
    };
    let executors = switches.iter().map(switch).collect();
    world.around.switches.set(Switches { apps: Vec::new(), executors });
}

fn round(world: &mut World, second: i64) -> Vec<Effect> {
    world.around.now = Timestamp::from_secs(second);
    world.on(Event::Round(Vec::new()))
}

#[test]
fn an_executor_that_is_switched_off_gets_no_new_runs_and_finishes_those_it_has() {
    let mut world = world_with_executors(2);
    set_switches(&world, &[("e2", Switch::Draining)]);
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    set_switches(&world, &[("e1", Switch::Draining)]);
    world.arrive([plain(2), plain(3)]);
    assert_eq!(world.at(3.0), ["sent to 2: 2 3"], "only the other one gets new runs");
    assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"], "what it had goes on");
    // The traces of the first run, whose end is not stored yet, and of the two runs that followed.
    let traces: Vec<String> =
        world.state.runs.active_runs().filter_map(|active| active.ready.run.trace.clone()).collect();
    let traces_refusing_e1 = traces.iter().filter(|trace| trace.contains(r#""refused":{"e1":"draining"}"#));
    assert_eq!(traces_refusing_e1.count(), 2, "{traces:?}");
    // A stopped executor is named as stopped.
    set_switches(&world, &[("e1", Switch::Stopped)]);
    world.arrive([plain(4)]);
    assert_eq!(world.at(4.0), ["sent to 2: 4"]);
    let traces: Vec<String> =
        world.state.runs.active_runs().filter_map(|active| active.ready.run.trace.clone()).collect();
    assert!(traces.iter().any(|trace| trace.contains(r#""e1":"stopped""#)), "{traces:?}");
    // Once the executor is active again, both get runs.
    set_switches(&world, &[]);
    world.arrive([plain(5), plain(6)]);
    assert_eq!(world.at(6.0).len(), 2);
}

#[test]
fn without_another_executor_runs_wait_until_it_is_active_and_name_the_switch() {
    let mut world = world_with_executors(1);
    set_switches(&world, &[("e1", Switch::Draining)]);
    world.arrive([ready(1, &definition(&json!({"queue_timeout": "60s", "overlap": {"policy": "allow"}})))]);
    world.arrive([ready(2, &definition(&json!({"queue_timeout": "5s", "overlap": {"policy": "allow"}})))]);
    assert_eq!(world.at(2.0), NOTHING);
    // The queue time of run 2 has passed.
    let effects = round(&mut world, 10);
    let end = effects.iter().find_map(|effect| match effect {
        Effect::Finish(end) => Some(&end.attempt_end),
        _ => None,
    });
    let detail = end.and_then(|end| end.detail.clone()).expect("the run of 2 is skipped");
    assert_eq!(detail.obstacles.iter().map(|one| one.kind).collect::<Vec<_>>(), [ObstacleKind::Drained]);
    assert!(format!("{:?}", end.map(|end| end.outcome)).contains(&format!("{:?}", Reason::NoExecutor)));
    set_switches(&world, &[]);
    round(&mut world, 11);
    // The row of run 1 records what it waited for, so the run is marked before it is sent.
    assert_eq!(world.flush(), ["mark 1"]);
}

/// The switch belongs to the name. The next incarnation has it from its start, and every executor that shares the name has it.
#[test]
fn the_switch_holds_for_the_next_start_of_the_executor() {
    let mut world = World::new();
    set_switches(&world, &[("e1", Switch::Draining)]);
    world.join(1, 1, Report::default());
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), NOTHING);
    world.join(1, 2, Report::default());
    round(&mut world, 2);
    assert_eq!(world.flush(), NOTHING);
}

/// A server that has just started sends nothing until it has read the switches.
#[test]
fn nothing_is_sent_before_the_switches_are_known() {
    let mut world = world_with_executors(1);
    world.around.switches = SwitchBoard::default();
    world.arrive([plain(1)]);
    assert_eq!(world.at(1.0), NOTHING);
    set_switches(&world, &[]);
    assert_eq!(world.at(1.1), ["sent to 1: 1"]);
}

#[test]
fn the_runs_of_a_stopped_executor_are_asked_to_end() {
    let mut world = world_with_executors(2);
    world.arrive([plain(1), plain(2)]);
    world.at(2.0);
    set_switches(&world, &[("e1", Switch::Stopped)]);
    let stopped = |effects: Vec<Effect>| -> Vec<_> {
        let stops = effects.iter().filter_map(|effect| match effect {
            Effect::Store(Step::Stop(runs, request)) => Some((runs.len(), request.reason)),
            _ => None,
        });
        stops.collect()
    };
    assert_eq!(stopped(round(&mut world, 3)), [(1, Reason::Requested)]);
    world.on(Event::StreamEnded(ExecutorId::new(1), 1, Responder::new(|()| {})));
    assert_eq!(stopped(round(&mut world, 4)), [(1, Reason::Requested)], "only another node may hear it");
}

/// A run whose turn comes at an executor is not sent while its app drains, and is skipped if its app is stopped.
#[test]
fn the_switch_of_an_app_holds_for_runs_that_wait_for_their_turn_at_an_executor() {
    let on_each = definition(&json!({"overlap": {"policy": "serial", "scope": "executor"}, "queue_timeout": "60s"}));
    for (switch, expected) in [(Switch::Draining, Vec::new()), (Switch::Stopped, vec!["end of 2/1: Skipped(Stopped)"])]
    {
        let mut world = world_with_executors(1);
        world.arrive([ready(1, &on_each), ready(2, &on_each)]);
        assert_eq!(world.at(2.0), ["sent to 1: 1"]);
        world.around.switches.set(Switches { apps: vec![(AppId::new(1), switch)], executors: Vec::new() });
        world.result(1, 1, 1);
        assert_eq!(world.settled(1, 1, verdict()), expected, "{switch:?}");
        assert_eq!(world.flush(), NOTHING, "{switch:?}");
        world.around.switches.set(Switches::default());
        round(&mut world, 2);
        assert_eq!(world.flush().len(), usize::from(switch == Switch::Draining), "{switch:?}");
    }
}
