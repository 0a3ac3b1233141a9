use std::sync::Arc;

use rondel_core::misfire::LateBecause;
use serde_json::json;

use super::*;
use crate::dispatch::tests_support::{definition, ready};

const AT: fn(i64) -> Timestamp = Timestamp::from_millis;

/// A run of this job that is due at second 10.
fn due(overrides: &serde_json::Value, change: impl FnOnce(&mut Run)) -> ReadyRun {
    let mut ready = ready(10, &definition(overrides));
    change(&mut ready.run);
    ready
}

fn waiting_for(waits_for: WaitFor) -> Arc<ReasonDetail> {
    Arc::new(ReasonDetail { waits_for: Some(waits_for), ..ReasonDetail::default() })
}

#[test]
fn queue_time_counts_from_the_instant_unless_the_server_is_late() {
    for (now, queued_at, is_late) in [(9_800, 10_000, false), (11_000, 10_000, false), (11_001, 11_001, true)] {
        let taken = due(&json!({}), |_| {}).with_queue_start(AT(now));
        assert_eq!((taken.queued_at, taken.lateness.is_some()), (Some(AT(queued_at)), is_late), "{now}");
    }
    let noted = |waits_for| move |run: &mut Run| run.detail = Some(waiting_for(waits_for));
    for (waits_for, queued_at) in [(WaitFor::Slot, 10_000), (WaitFor::RollCall, 20_000)] {
        let taken = due(&json!({"queue_timeout": "60s"}), noted(waits_for)).with_queue_start(AT(20_000));
        assert_eq!(taken.queued_at, Some(AT(queued_at)), "{waits_for:?}");
    }
    let before = ReadyRun { queued_at: Some(AT(7_000)), ..due(&json!({}), |_| {}) };
    assert_eq!(before.with_queue_start(AT(20_000)).queued_at, Some(AT(7_000)), "it has been queued before");
}

/// Only the first attempt of a fire is late; its shards and retries have other reasons to come later.
#[test]
fn a_fire_is_late_once() {
    let late = |taken_up_at, change: &dyn Fn(&mut Run)| {
        let ready = ReadyRun { taken_up_at, ..due(&json!({}), |run| change(run)) };
        ready.with_queue_start(AT(20_000)).lateness.map(|late| (late.because, late.by.as_secs()))
    };
    assert_eq!(late(None, &|_| {}), Some((LateBecause::Outage, 10)));
    assert_eq!(late(Some(AT(10_000)), &|_| {}), Some((LateBecause::Overload, 10)));
    assert_eq!(late(None, &|run| run.attempt = 2), None);
    assert_eq!(late(None, &|run| run.parent = Some(RunId::new(1))), None);
}

/// An attempt continues the queue time of the attempts before it that no executor received.
#[test]
fn the_queue_time_of_an_attempt_that_no_executor_received_continues() {
    for (attempt, reason, waited_ms, expected) in [
        (2, Some(Reason::NotReceived), Some(4_000), 6_000),
        (2, Some(Reason::NotReceived), None, 10_000),
        (2, Some(Reason::ExecutorLost), Some(4_000), 10_000),
        (2, None, Some(4_000), 10_000),
        (1, Some(Reason::NotReceived), Some(4_000), 10_000),
    ] {
        let again = due(&json!({}), |run| {
            (run.attempt, run.reason) = (attempt, reason);
            run.detail = Some(Arc::new(ReasonDetail { waited_ms, ..ReasonDetail::default() }));
        });
        assert_eq!(
            again.with_queue_start(AT(10_000)).queued_at,
            Some(AT(expected)),
            "{attempt} {reason:?} {waited_ms:?}"
        );
    }
}

#[test]
fn a_run_expires_with_its_queue_timeout() {
    let ready = due(&json!({"queue_timeout": "5s"}), |_| {});
    assert_eq!((ready.is_expired(AT(14_999)), ready.is_expired(AT(15_000))), (false, true));
    let later = ReadyRun { queued_at: Some(AT(12_000)), ..ready };
    assert_eq!((later.is_expired(AT(16_999)), later.is_expired(AT(17_000))), (false, true));
    assert_eq!(waited_ms(&later, AT(16_500)), 4_500);
}

/// A row that records a wait proves that no executor has the run. A mark takes that proof back before the run is sent. The row of a shard
/// of a broadcast names the executor that the shard is meant for, and a mark would overwrite it.
#[test]
fn runs_that_are_marked_before_they_are_sent() {
    let shards = json!({"shards": 2});
    let shard = |total: i32| move |run: &mut Run| (run.shard_index, run.shard_total) = (0, Some(total));
    let noted = |ready: ReadyRun| ReadyRun { has_noted_wait: true, ..ready };
    let in_row = |run: &mut Run| run.detail = Some(waiting_for(WaitFor::Executor));
    for (name, ready, expected) in [
        ("at least once", due(&json!({}), |_| {}), false),
        ("at most once", due(&json!({"delivery": "at_most_once"}), |_| {}), true),
        ("noted here", noted(due(&json!({}), |_| {})), true),
        ("noted here, of unknown total", noted(due(&json!({}), |run| run.shard_total = None)), true),
        ("noted in its row", due(&json!({}), in_row), true),
        ("a shard", noted(due(&shards, shard(2))), false),
        ("the only shard", noted(due(&shards, shard(1))), true),
        ("the only shard of a broadcast", noted(due(&json!({"route": "broadcast"}), shard(1))), false),
    ] {
        assert_eq!(ready.is_marked_first(), expected, "{name}");
    }
}

#[test]
fn which_runs_catch_up_and_which_go_to_one_executor() {
    for (trigger, attempt, expected) in [
        (Trigger::Misfire, 1, true),
        (Trigger::Backfill, 1, true),
        (Trigger::Misfire, 2, false),
        (Trigger::Cron, 1, false),
    ] {
        let ready = due(&json!({}), |run| (run.trigger, run.attempt) = (trigger, attempt));
        assert_eq!(ready.is_catch_up(), expected, "{trigger:?} {attempt}");
    }
    for (job, expected) in [(json!({}), false), (json!({"shards": 2}), false), (json!({"route": "broadcast"}), true)] {
        assert_eq!(due(&job, |_| {}).is_for_one_executor(), expected, "{job}");
    }
}

/// The misfire policy judges the first attempt of a schedule's fire once, by the instant at which the servers had caught up with it.
#[test]
fn which_runs_the_misfire_policy_skips() {
    type Change = fn(&mut Run);
    let job = json!({"schedule": {"every": "1h"}, "misfire": {"policy": "skip", "tolerance": "5s"}});
    let missed = |now: i64, taken_up_at: Option<i64>, change: &dyn Fn(&mut Run)| {
        let ready = ReadyRun { taken_up_at: taken_up_at.map(AT), ..due(&job, |run| change(run)) };
        ready.is_missed(AT(now))
    };
    assert!(!missed(15_000, None, &|_| {}), "within the tolerance");
    assert!(missed(15_001, None, &|_| {}));
    assert!(!missed(60_000, Some(15_000), &|_| {}), "a server had it in time");
    assert!(missed(60_000, Some(15_001), &|_| {}));
    assert!(!missed(15_000, Some(60_000), &|_| {}), "what is to come does not count");
    let unplanned: [(&str, Change); 6] = [
        ("another run caused it", |run| run.cause = 7),
        ("it catches up", |run| run.trigger = Trigger::Misfire),
        ("it continues a pump's run by hand", |run| run.trigger = Trigger::Manual),
        ("a shard", |run| run.parent = Some(RunId::new(1))),
        ("a retry", |run| run.attempt = 2),
        ("it may have been sent", |run| run.marked_at = Some(AT(10_000))),
    ];
    for (why, change) in unplanned {
        assert!(!missed(60_000, None, &change), "{why}");
    }
}

#[test]
fn the_end_of_a_run_that_no_executor_has() {
    let ready = due(&json!({}), |run| run.attempt = 3);
    let end = end_of_unsent(&ready.run, &ready.definition, Outcome::Cancelled, AT(12_000), None);
    assert_eq!((end.run, end.attempt, end.finished_at), (ready.run.id, 3, AT(12_000)));
    assert_eq!((end.executor, end.started_at, end.owner), (None, None, Some(ready.token())));
    assert!(!end.is_unfinished, "it has left no rows behind");
    assert!((0.0..=1.0).contains(&end.jitter) && end.jitter.to_bits() != jitter(ready.run.id, 4).to_bits());
    let named = |name: Option<&str>| lost_detail(name).executor;
    assert_eq!((named(None), named(Some("")), named(Some("e1"))), (None, None, Some("e1".to_owned())));
}
