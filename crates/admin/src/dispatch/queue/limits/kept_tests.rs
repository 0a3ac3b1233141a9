//! Tests which counts the limits keep, and for how long.

use std::time::Duration;

use rondel_core::Run;
use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, ready};

const HOUR: Duration = Duration::from_secs(3_600);
const START: Timestamp = Timestamp::from_secs(1_000);

fn rated_run(second: i64, per: &str) -> ReadyRun {
    ready(second, &definition(&json!({"rate": {"max": 1, "per": per}})))
}

fn keyed_run(second: i64) -> ReadyRun {
    ready(second, &definition(&json!({"concurrency": {"key": "db", "max": 1}})))
}

/// A limit looks back for a day at most.
#[test]
fn a_start_is_remembered_for_a_day() {
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    limits.count_start(&rated_run(1, "24h"), START);
    for (after, is_kept) in [(HOUR, true), (24 * HOUR - Duration::from_millis(1), true), (24 * HOUR, false)] {
        assert_eq!(limits.take_expired(START + after, &mut runs).len(), 0);
        assert_eq!(limits.limit_holding_back(&rated_run(2, "24h"), START + after).is_some(), is_kept, "{after:?}");
        assert_eq!(limits.limits.len(), usize::from(is_kept));
    }
}

/// A rate limit admits the next run exactly at the end of its period.
#[test]
fn a_rate_limit_is_free_when_its_period_is_over() {
    let (mut limits, job) = (Limits::default(), rated_run(2, "10s"));
    limits.count_start(&rated_run(1, "10s"), START);
    let is_free = |millis| limits.limit_holding_back(&job, START + Duration::from_millis(millis)).is_none();
    assert_eq!([9_999, 10_000].map(is_free), [false, true]);
}

#[test]
fn a_limit_that_nothing_uses_is_forgotten() {
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    limits.count_start(&keyed_run(1), START);
    limits.take_expired(START, &mut runs);
    assert_eq!(limits.limits.len(), 1, "it counts a run");
    limits.enqueue(LimitKey::JobRate(JobId::new(1)), WaitingRun::new(rated_run(2, "10s"), START), START, &mut runs);
    limits.release(RunId::new(1_000));
    limits.take_expired(START - HOUR, &mut runs);
    assert_eq!(limits.limits.len(), 1, "a run waits for the other one");
    assert!(limits.remove(RunId::new(2_000), &mut runs).is_some());
    limits.take_expired(START, &mut runs);
    assert!(limits.limits.is_empty());
}

/// A run counts once, even if its limit is checked several times. Of a broadcast only the shards count.
#[test]
fn a_counted_run_is_not_held_back_by_itself() {
    let mut limits = Limits::default();
    limits.count_open(&keyed_run(1));
    assert_eq!(limits.limit_holding_back(&keyed_run(1), START), None);
    assert!(limits.limit_holding_back(&keyed_run(2), START).is_some());
    let sharded = definition(&json!({"shards": 2, "concurrency": {"key": "disk", "max": 1}}));
    let whole = ready(3, &sharded);
    limits.count_open(&ReadyRun { run: whole.run.clone().for_all_shards(), ..whole.clone() });
    assert_eq!(limits.limit_holding_back(&whole, START), None);
    assert_eq!(limits.release(whole.run.id), None);
}

/// Which limits jobs share: those with a key.
#[test]
fn only_a_limit_with_a_key_is_shared() {
    for (job, expected) in [
        (json!({}), false),
        (json!({"rate": {"max": 1, "per": "10s"}}), false),
        (json!({"rate": {"max": 1, "per": "10s", "key": "db"}}), true),
        (json!({"concurrency": {"key": "db", "max": 1}}), true),
    ] {
        assert_eq!(shares_limit(&ready(1, &definition(&job))), expected, "{job}");
    }
}

/// When a node loses its lease, a limit still counts the runs that executors have, and only these.
#[test]
fn a_run_that_is_not_kept_does_not_count() {
    let kept: Run = keyed_run(1).run;
    for (is_kept, expected) in [(true, true), (false, false)] {
        let mut limits = Limits::default();
        limits.count_open(&keyed_run(1));
        limits.retain(|run| is_kept && run == kept.id);
        assert_eq!(limits.limit_holding_back(&keyed_run(2), START).is_some(), expected);
    }
}

/// After a step back of the clock, a start counts from the step on, not from an instant that the clock has yet to reach again.
#[test]
fn a_start_is_never_in_the_future() {
    let (mut limits, job, back) = (Limits::default(), rated_run(2, "10s"), START - HOUR);
    limits.count_start(&rated_run(1, "10s"), START);
    limits.step_back(back);
    let is_free = |seconds| limits.limit_holding_back(&job, back + Duration::from_secs(seconds)).is_none();
    assert_eq!([9, 10].map(is_free), [false, true]);
}
