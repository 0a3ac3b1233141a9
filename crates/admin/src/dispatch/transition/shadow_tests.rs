//! Scenarios with jobs in shadow mode. As in [`tests`](super::tests), times are seconds, and runs are named by the second at which they
//! are due.

use rondel_core::outcome::Outcome;
use rondel_core::reason::ReasonDetail;
use rondel_core::{Reason, Timestamp};
use serde_json::{Value, json};

use super::tests::{NOTHING, plain, world_with_executors};
use super::world::World;
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::tests_support::{definition, ready};

fn shadow_run(second: i64, mut more: Value) -> ReadyRun {
    more["mode"] = json!("shadow");
    ready(second, &definition(&more))
}

/// The ends of the runs that are due by this second, with their seconds, outcomes and details. Panics if anything is sent.
fn run_ends(world: &mut World, second: i64) -> Vec<(i64, Outcome, ReasonDetail)> {
    world.around.now = Timestamp::from_secs(second);
    let effects = world.on(Event::Wake);
    assert_eq!(world.flush(), NOTHING, "nothing of a shadow is sent");
    let end = |effect: &Effect| match effect {
        Effect::Finish(end) => {
            let detail = end.attempt_end.detail.as_deref().cloned().unwrap_or_default();
            Some((end.attempt_end.run.get() / 1_000, end.attempt_end.outcome, detail))
        }
        _ => None,
    };
    effects.iter().filter_map(end).collect()
}

#[test]
fn a_shadow_is_routed_and_not_sent() {
    for route in ["first", "round", "failover", "busyover", "consistent_hash", "least_active"] {
        for delivery in ["at_least_once", "at_most_once"] {
            let mut world = world_with_executors(2);
            world.arrive([shadow_run(1, json!({"route": route, "delivery": delivery}))]);
            let ended = run_ends(&mut world, 1);
            assert_eq!(ended.len(), 1, "{route} {delivery}");
            assert_eq!((ended[0].0, ended[0].1), (1, Outcome::Skipped(Reason::Shadow)), "{route}");
            let executor = ended[0].2.executor.clone().expect("an executor is named");
            assert!(["e1", "e2"].contains(&executor.as_str()), "{executor}");
            assert!(route != "first" || executor == "e1", "{executor}");
        }
    }
}

#[test]
fn a_shadow_without_an_executor_names_the_app_and_does_not_wait() {
    let mut world = world_with_executors(0);
    world.arrive([shadow_run(1, json!({"queue_timeout": "1h"}))]);
    let ended = run_ends(&mut world, 1);
    assert_eq!(ended[0].1, Outcome::Skipped(Reason::Shadow));
    assert_eq!((ended[0].2.executor.as_deref(), ended[0].2.app.as_deref()), (None, Some("a")));
}

#[test]
fn a_shadow_of_a_broadcast_names_all_its_executors() {
    let mut world = world_with_executors(2);
    let mut root = shadow_run(1, json!({"route": "broadcast"}));
    root.run = root.run.for_all_shards();
    world.arrive([root]);
    let ended = run_ends(&mut world, 1);
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].2.executor.as_deref(), Some("e1, e2"));
}

/// A run that began before `mode_from`, the seam, continues. No shadow run of its job waits for it or replaces it.
#[test]
fn shadows_neither_wait_for_runs_nor_replace_them() {
    for policy in ["serial", "discard", "cover"] {
        let change = json!({"overlap": {"policy": policy}, "mode": "shadow", "mode_from": "1970-01-01T00:00:02Z"});
        let demoted = definition(&change);
        let mut world = world_with_executors(1);
        world.arrive([ready(1, &demoted), ready(2, &demoted)]);
        assert_eq!(world.at(1.0), ["sent to 1: 1"], "{policy}: before the seam it is active");
        let ended = run_ends(&mut world, 2);
        assert_eq!(ended.iter().map(|end| end.0).collect::<Vec<_>>(), [2], "{policy}");
        assert_eq!(ended[0].1, Outcome::Skipped(Reason::Shadow), "{policy}");
        assert_eq!(world.result(1, 1, 1), ["end of 1/1: Succeeded"], "{policy}: it was not asked to end");
    }
}

/// A promoted job is active from `mode_from`, the seam. Its shadow runs from before the seam hold no places.
#[test]
fn a_promoted_job_runs_from_its_seam_on() {
    let promoted = definition(&json!({"mode": "active", "mode_from": "1970-01-01T00:00:02Z"}));
    let mut world = world_with_executors(1);
    world.arrive([ready(1, &promoted), ready(2, &promoted), plain(3)]);
    let ended = run_ends(&mut world, 1);
    assert_eq!(ended[0].1, Outcome::Skipped(Reason::Shadow));
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
}

/// The next lease holder judges the shadows of a lease that has ended.
#[test]
fn a_shadow_is_not_judged_without_the_lease() {
    let mut world = world_with_executors(1);
    world.arrive([shadow_run(1, json!({}))]);
    world.around.lease_holds = false;
    assert_eq!(run_ends(&mut world, 1), []);
}
