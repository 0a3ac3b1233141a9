//! Scenarios with runs that are sent ahead of their instants. As in [`tests`](super::tests), times are seconds, and runs are named by the
//! second at which they are due.

use std::time::Duration;

use rondel_core::homes::Switch;
use rondel_core::{AppId, JobId, RunId, Timestamp};
use rondel_proto::v1::RefusedWhy;
use rondel_store::cluster::Switches;
use serde_json::json;

use super::tests::{NOTHING, plain, run};
use super::world::{World, retry_outcome, verdict};
use super::*;
use crate::dispatch::ReadyRun;
use crate::dispatch::event::{Reply, Report, Responder};
use crate::dispatch::tests_support::{definition, ready, run_due_at};

const AHEAD: Duration = Duration::from_secs(1);

/// A world with an executor of four slots that starts runs on time.
fn world_with_punctual_executor() -> World {
    let mut world = World::new();
    world.join_with(1, 1, AHEAD, Report::default());
    world
}

fn job(overrides: &serde_json::Value) -> ReadyRun {
    ready(2, &definition(overrides))
}

#[test]
fn a_run_that_nothing_can_change_leaves_half_a_second_ahead() {
    let mut world = world_with_punctual_executor();
    let mut serial = job(&json!({})).due(2_400);
    serial.run.job = JobId::new(9);
    world.arrive([plain(2), serial]);
    assert_eq!(world.at(1.499), NOTHING);
    assert_eq!(world.at(1.5), ["sent to 1: 2"]);
    assert_eq!(world.at(1.899), NOTHING);
    assert_eq!(world.at(1.9), ["sent to 1: 2"], "of a serial job");
    assert_eq!(world.state.next_instant(Some(world.around.token)), Timestamp::MAX);
}

/// A run is not sent ahead if the decision about it may change until its instant, or if it may run at most once.
#[test]
fn a_run_that_may_change_is_sent_at_its_instant() {
    for overrides in [
        json!({"overlap": {"policy": "discard"}}),
        json!({"overlap": {"policy": "cover"}}),
        json!({"overlap": {"policy": "serial", "scope": "executor"}}),
        json!({"rate": {"max": 9, "per": "10s"}}),
        json!({"concurrency": {"key": "k", "max": 9}}),
    ] {
        let mut world = world_with_punctual_executor();
        world.arrive([job(&overrides)]);
        assert_eq!(world.at(1.5), NOTHING, "{overrides}");
        assert_eq!(world.at(1.999), NOTHING, "{overrides}");
        assert_eq!(world.at(2.0), ["sent to 1: 2"], "{overrides}");
    }
    let mut world = world_with_punctual_executor();
    world.arrive([job(&json!({"delivery": "at_most_once"}))]);
    assert_eq!(world.at(1.5), NOTHING);
    assert_eq!(world.at(1.8), ["mark 2"]);
    world.on(Event::Marked(vec![(run(2), 1)], vec![run(2)]));
    assert_eq!(world.at(1.9), NOTHING, "it is sent at its instant");
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
}

/// The router may choose any executor that is fit for the run.
#[test]
fn every_executor_that_may_get_it_starts_it_on_time() {
    let mut world = world_with_punctual_executor();
    world.join_with(2, 2, Duration::ZERO, Report::default());
    world.arrive([plain(2)]);
    assert_eq!(world.at(1.5), NOTHING);
    assert_eq!(world.at(2.0).len(), 1);
    let mut world = World::new();
    world.join_with(1, 1, Duration::from_millis(300), Report::default());
    world.arrive([plain(2)]);
    assert_eq!(world.at(1.5), NOTHING, "it takes no trigger that early");
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
}

/// Rows that are due after the end of a lease count as never sent under it.
#[test]
fn the_lease_holds_at_the_instant() {
    for (lease_until, is_ahead) in [(2_000, false), (2_001, true)] {
        let mut world = world_with_punctual_executor();
        world.around.lease_until = Timestamp::from_millis(lease_until);
        world.arrive([plain(2)]);
        assert_eq!(!world.at(1.5).is_empty(), is_ahead, "{lease_until}");
        world.around.lease_until = Timestamp::MAX;
        assert_eq!(world.at(2.0).is_empty(), is_ahead, "{lease_until}");
    }
}

/// A quarter of the slots stays free for runs that arrive before the instant.
#[test]
fn a_quarter_of_the_slots_is_not_given_away_ahead() {
    let mut world = world_with_punctual_executor();
    world.arrive((0..4).map(|ms| plain(2).due(2_000 + ms)));
    assert_eq!(world.at(1.6), ["sent to 1: 2 2 2"]);
    assert_eq!(world.at(1.9), NOTHING);
    assert_eq!(world.at(2.01), ["sent to 1: 2"]);
}

/// The turn of a run does not come while an earlier run of its job is open or waits for its next attempt.
#[test]
fn a_serial_job_sends_ahead_when_the_verdict_before_is_durable() {
    let mut world = world_with_punctual_executor();
    let serial = |second| ready(second, &definition(&json!({"queue_timeout": "60s"})));
    world.arrive([serial(1), serial(2), serial(3), serial(4)]);
    assert_eq!(world.at(0.5), ["sent to 1: 1"]);
    assert_eq!(world.at(1.5), NOTHING);
    world.result(1, 1, 1);
    world.settled(1, 1, verdict());
    assert_eq!(world.at(1.9), NOTHING, "it was looked at once, and is at its instant again");
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
    world.result(1, 2, 1);
    world.settled(2, 1, retry_outcome());
    assert_eq!(world.at(2.5), NOTHING, "the next attempt has its place");
    assert_eq!(world.at(3.0), NOTHING);
    let mut second = serial(2);
    second.run.attempt = 2;
    world.arrive([second]);
    assert_eq!(world.at(3.1), ["sent to 1: 2"]);
}

/// A run that came back is sent again, and never begins before its instant, because its trigger states the time until then.
#[test]
fn a_refusal_ahead_of_the_instant_brings_it_back() {
    let mut world = world_with_punctual_executor();
    world.arrive([plain(2)]);
    assert_eq!(world.at(1.5), ["sent to 1: 2"]);
    world.reply(1, 2, 1, Reply::Refused(RefusedWhy::Full, None));
    assert_eq!(world.at(1.6), NOTHING, "the executor is full for a moment");
    assert_eq!(world.at(2.5), NOTHING);
    world.on(Event::Round(Vec::new()));
    assert_eq!(world.flush(), ["sent to 1: 2"]);
}

#[test]
fn a_trigger_that_was_lost_with_its_stream_is_known_as_lost() {
    let mut world = world_with_punctual_executor();
    world.arrive([plain(2)]);
    assert_eq!(world.at(1.5), ["sent to 1: 2"]);
    let after = world.join_with(1, 2, AHEAD, Report::default());
    assert!(after.contains(&"end of 2/1: Lost(NotReceived)".to_owned()), "{after:?}");
}

/// A server that stops waits for the runs that it has sent ahead, as for every run that an executor has.
#[test]
fn a_server_that_stops_sends_nothing_more_ahead() {
    let mut world = world_with_punctual_executor();
    world.arrive([plain(2), plain(3)]);
    assert_eq!(world.at(1.5), ["sent to 1: 2"]);
    world.on(Event::Drain(Responder::new(|()| {}), Duration::from_secs(9)));
    assert_eq!(world.at(2.5), NOTHING);
    assert!(!world.state.is_drained());
    world.result(1, 2, 1);
    world.settled(2, 1, verdict());
    assert!(world.state.is_drained());
}

#[test]
fn nothing_leaves_ahead_for_an_app_that_is_switched_off() {
    let mut world = world_with_punctual_executor();
    let apps = [(AppId::new(1), Switch::Draining)].into();
    world.around.switches.set(Switches { apps, ..Switches::default() });
    world.arrive([plain(2)]);
    assert_eq!(world.at(1.5), NOTHING);
    assert!(world.state.runs.active(RunId::new(2_000)).is_none() && world.state.parked.len() == 0);
    world.around.switches.set(Switches::default());
    assert_eq!(world.at(2.0), ["sent to 1: 2"]);
}

trait Due {
    fn due(self, millis: i64) -> Self;
}

impl Due for ReadyRun {
    fn due(self, millis: i64) -> Self {
        Self { run: run_due_at(Timestamp::from_millis(millis)), ..self }
    }
}
