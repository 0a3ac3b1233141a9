//! Scenarios with runs whose callers named an executor. As in [`tests`](super::tests), times are seconds, and runs are named by the
//! second at which they are due; executor 1 is called `e1`.

use rondel_core::Timestamp;
use rondel_core::reason::ObstacleKind;
use rondel_core::reason::words::reason_text;
use rondel_core::words::Lang;
use rondel_failpoint::mutant::{self, Mutant};
use serde_json::{Value, json};

use super::tests::{NOTHING, plain, world_with_executors};
use super::world::retry_outcome;
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::Report;
use crate::dispatch::tests_support::{definition, ready};

/// A run of this definition for one executor.
fn run_for_executor(second: i64, executor: &str, overrides: &Value) -> ReadyRun {
    let mut ready = ready(second, &definition(overrides));
    ready.run.only_executor = Some(executor.to_owned());
    ready
}

fn allowed() -> Value {
    json!({"overlap": {"policy": "allow"}, "queue_timeout": "60s"})
}

#[test]
fn a_run_goes_to_the_executor_that_its_caller_named_with_any_router() {
    for route in ["first", "round", "least_active", "failover", "busyover", "consistent_hash"] {
        let mut world = world_with_executors(3);
        let mut overrides = allowed();
        overrides["route"] = json!(route);
        world.arrive([
            run_for_executor(1, "e2", &overrides),
            run_for_executor(2, "e2", &overrides),
            run_for_executor(3, "e3", &overrides),
        ]);
        let mut done = world.at(3.0);
        done.sort_unstable();
        assert_eq!(done, ["sent to 2: 1 2", "sent to 3: 3"], "{route}: no executor is asked first");
        let traces: Vec<String> =
            world.state.runs.active_runs().filter_map(|one| one.ready.run.trace.clone()).collect();
        assert!(traces.iter().all(|trace| trace.starts_with(r#"{"route":"chosen","of":["e"#)), "{traces:?}");
    }
}

#[test]
fn a_choice_that_is_ignored_is_noticed() {
    mutant::set(Some(Mutant::ChosenIsIgnored));
    let mut world = world_with_executors(3);
    world.arrive([run_for_executor(1, "e2", &allowed())]);
    let done = world.at(3.0);
    mutant::set(None);
    assert_ne!(done, ["sent to 2: 1"]);
}

#[test]
fn the_next_attempt_goes_to_the_same_executor() {
    let mut world = world_with_executors(2);
    world.arrive([run_for_executor(1, "e1", &allowed())]);
    assert_eq!(world.at(1.0), ["sent to 1: 1"]);
    world.result(1, 1, 1);
    world.settled(1, 1, retry_outcome());
    let mut second = run_for_executor(1, "e1", &allowed());
    (second.run.attempt, second.run.executor) = (2, Some("e1".to_owned()));
    world.arrive([second]);
    assert_eq!(world.at(2.0), ["sent to 1: 1"], "a router would take the other one");
}

#[test]
fn a_run_waits_for_the_named_executor_and_other_runs_pass_it() {
    let mut world = world_with_executors(1);
    world.arrive([run_for_executor(1, "e2", &allowed()), plain(2)]);
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
    world.around.now = Timestamp::from_secs(70);
    let effects = world.on(Event::Round(Vec::new()));
    let end = effects.iter().find_map(|effect| match effect {
        Effect::Finish(end) => Some(&end.attempt_end),
        _ => None,
    });
    let detail = end.and_then(|end| end.detail.clone()).expect("it is skipped");
    let obstacles: Vec<_> = detail.obstacles.iter().map(|one| (one.executor.as_str(), one.kind)).collect();
    assert_eq!(obstacles, [("e2", ObstacleKind::Offline)]);
    let words = reason_text(rondel_core::Reason::NoExecutor, &detail, Lang::En);
    assert!(words.contains("executor e2, for which alone it was triggered, could not take it"), "{words}");

    let mut world = world_with_executors(1);
    world.arrive([run_for_executor(1, "e2", &allowed())]);
    assert_eq!(world.at(1.0), NOTHING);
    world.join(2, 2, Report::default());
    assert_eq!(world.at(1.5), ["sent to 2: 1"]);
}

#[test]
fn its_capacity_holds() {
    let mut world = world_with_executors(2);
    world.arrive((1..=20).map(|second| run_for_executor(second, "e1", &allowed())));
    let sent = world.at(20.0);
    // Four slots, and four more that wait there.
    assert_eq!(sent, ["sent to 1: 1 2 3 4 5 6 7 8"]);
}

#[test]
fn all_shards_go_to_the_named_executor_and_a_broadcast_has_one_shard() {
    let mut world = world_with_executors(3);
    let mut overrides = allowed();
    overrides["route"] = json!("broadcast");
    let mut root = run_for_executor(1, "e2", &overrides);
    root.run = root.run.for_all_shards();
    world.arrive([root]);
    assert_eq!(world.at(1.0), ["expand 1 to 1"]);
    let mut world = world_with_executors(3);
    let mut overrides = allowed();
    overrides["shards"] = json!(2);
    let shard = |second, index| {
        let mut shard = run_for_executor(second, "e3", &overrides);
        (shard.run.shard_index, shard.run.shard_total) = (index, Some(2));
        shard
    };
    world.arrive([shard(1, 0), shard(2, 1)]);
    assert_eq!(world.at(2.0), ["sent to 3: 1 2"]);
}
