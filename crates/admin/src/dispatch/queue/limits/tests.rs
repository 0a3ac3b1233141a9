use std::sync::Arc;
use std::time::Duration;

use rondel_core::Reason;
use rondel_core::reason::words::reason_text;
use rondel_core::words::Lang;
use serde_json::json;

use super::*;
use crate::definitions::CompiledDefinition;
use crate::dispatch::tests_support::{definition, ready};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

/// Sends the run or queues it, as the dispatcher does.
fn send(limits: &mut Limits, ready: &ReadyRun, now: Timestamp, runs: &mut OpenRuns) -> bool {
    match limits.limit_holding_back(ready, now) {
        None => {
            limits.count_start(ready, now);
            true
        }
        Some(key) => {
            limits.enqueue(key, WaitingRun::new(ready.clone(), now), now, runs);
            false
        }
    }
}

fn send_next(limits: &mut Limits, key: &LimitKey, now: Timestamp, runs: &mut OpenRuns) -> Option<i64> {
    let waiting = limits.take_next(key, now, runs)?;
    assert!(send(limits, &waiting.ready, now, runs));
    Some(waiting.ready.run.id.get() / 1_000)
}

#[test]
fn runs_of_a_key_share_its_limit() {
    let two = definition(&json!({"concurrency": {"key": "db", "max": 2}}));
    let three = definition(&json!({"concurrency": {"key": "db", "max": 3}}));
    let other = definition(&json!({"concurrency": {"key": "disk", "max": 1}}));
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    let now = at(0);
    for (second, definition, goes) in
        [(1, &two, true), (2, &three, true), (3, &two, false), (4, &three, true), (5, &other, true), (6, &two, false)]
    {
        assert_eq!(send(&mut limits, &ready(second, definition), now, &mut runs), goes, "{second}");
    }
    let key = limits.release(RunId::new(1_000)).unwrap();
    assert_eq!(send_next(&mut limits, &key, now, &mut runs), None, "two are still open, and its own limit is two");
    limits.release(RunId::new(2_000));
    assert_eq!(send_next(&mut limits, &key, now, &mut runs), Some(3));
    assert_eq!(send_next(&mut limits, &key, now, &mut runs), None);
    assert_eq!(limits.release(RunId::new(99_000)), None);
}

#[test]
fn no_span_has_more_starts_than_the_rate_allows() {
    let job = definition(&json!({"rate": {"max": 3, "per": "10s"}}));
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    let key = LimitKey::JobRate(JobId::new(1));
    let mut starts: Vec<i64> = Vec::new();
    // A run is due every 700 ms; the loop wakes at the requested instants.
    let mut now = at(0);
    let mut due = 0;
    while starts.len() < 40 {
        if now.as_millis() >= due * 700 {
            due += 1;
            if send(&mut limits, &ready(due, &job), now, &mut runs) {
                starts.push(now.as_millis());
            }
        }
        for key in limits.limits_to_wake(now) {
            while send_next(&mut limits, &key, now, &mut runs).is_some() {
                starts.push(now.as_millis());
            }
            limits.schedule_wake(&key, now, &runs);
        }
        now = limits.wake_at().min(at(due * 700));
    }
    assert!(starts.windows(4).all(|four| four[3] - four[0] >= 10_000), "{starts:?}");
    assert_eq!(starts[..6], [0, 700, 1_400, 10_000, 10_700, 11_400], "and no later than need be");
    assert!(limits.limits[&key].start_instants.len() <= 3);
}

#[test]
fn a_run_that_never_started_does_not_count() {
    let job = definition(&json!({"rate": {"max": 1, "per": "10s"}, "concurrency": {"key": "k", "max": 1}}));
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    assert!(send(&mut limits, &ready(1, &job), at(0), &mut runs));
    assert!(limits.uncount_start(&ready(1, &job)).is_some());
    assert!(send(&mut limits, &ready(2, &job), at(1), &mut runs));
    limits.release(RunId::new(2_000));
    assert!(!send(&mut limits, &ready(3, &job), at(2), &mut runs), "its start counts after its end");
}

#[test]
fn in_a_cluster_one_node_counts_a_shared_limit() {
    let job = definition(&json!({"concurrency": {"key": "db", "max": 1}, "rate": {"max": 9, "per": "1s"}}));
    let (mut limits, mut runs) = (Limits::new(true), OpenRuns::default());
    let name = LimitName { namespace: NamespaceId::new(1), key: "db".to_owned() };
    assert!(!send(&mut limits, &ready(1, &job), at(0), &mut runs));
    assert!(!send(&mut limits, &ready(2, &job), at(0), &mut runs));
    assert_eq!(limits.take_homes_to_ask(), std::slice::from_ref(&name));
    assert_eq!(limits.take_homes_to_ask(), []);
    limits.ask_for_homes_again();
    assert_eq!(limits.take_homes_to_ask(), std::slice::from_ref(&name), "no answer came");
    assert_eq!(limits.jobs_awaiting_home(&name, 1, &runs), BTreeSet::from([JobId::new(1)]));
    assert!(limits.remove(RunId::new(1_000), &mut runs).is_some(), "it went to the home");
    limits.count_here(name.clone());
    assert_eq!(send_next(&mut limits, &LimitKey::Home(name), at(0), &mut runs), Some(2));
    assert!(send(&mut limits, &ready(3, &definition(&json!({"rate": {"max": 9, "per": "1s"}}))), at(0), &mut runs));
    // Another node took over: this node asks again for the limit's home.
    limits.retain(|_| false);
    assert_eq!(runs.drain_waiting().len(), 0);
    assert!(!send(&mut limits, &ready(4, &job), at(0), &mut runs));
    let broadcast = definition(&json!({"route": "broadcast", "concurrency": {"key": "other", "max": 1}}));
    let whole = ready(5, &broadcast);
    let root = ReadyRun { run: whole.run.clone().for_all_shards(), ..whole };
    let other = LimitName { namespace: NamespaceId::new(1), key: "other".to_owned() };
    assert_eq!(
        limits.limit_holding_back(&root, at(0)),
        Some(LimitKey::Home(other.clone())),
        "it is cut where they count"
    );
    limits.count_here(other);
    assert_eq!(limits.limit_holding_back(&root, at(0)), None, "it counts by its shards");
}

#[test]
fn runs_wait_for_a_limit_by_priority_and_instant_until_their_queue_timeout() {
    let with = |priority: u8, per_key: &str| {
        definition(&json!({"priority": priority, "queue_timeout": "5s", "concurrency": {"key": per_key, "max": 1}}))
    };
    let (low, high) = (with(1, "db"), with(9, "db"));
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    let entered: [(i64, &Arc<CompiledDefinition>); 5] = [(1, &low), (2, &low), (4, &high), (3, &high), (5, &low)];
    for (second, definition) in entered {
        send(&mut limits, &ready(second, definition), at(0), &mut runs);
    }
    let mut order = Vec::new();
    let mut open = 1;
    while let Some(key) = limits.release(RunId::new(open * 1_000)) {
        let Some(second) = send_next(&mut limits, &key, at(1), &mut runs) else { break };
        order.push(second);
        open = second;
    }
    assert_eq!(order, [3, 4, 2, 5]);

    send(&mut limits, &ready(6, &low), at(0), &mut runs);
    send(&mut limits, &ready(7, &low), at(0), &mut runs);
    assert!(limits.take_expired(at(11_999), &mut runs).is_empty());
    let expired = limits.take_expired(at(12_000), &mut runs);
    assert_eq!(
        reason_text(Reason::Expired, &expired[0].1, Lang::En),
        "it waited 5 s for concurrency limit \"db\" (1 at a time)"
    );
    assert_eq!(expired.len(), 1);
    assert_eq!(limits.take_expired(at(12_000) + Duration::from_secs(100_000), &mut runs).len(), 0);
    assert_eq!(limits.limits.len(), 1, "one is open still");
}

#[test]
fn a_limit_with_many_waiting_runs_hides_no_other() {
    let of_key = |key: &str| definition(&json!({"concurrency": {"key": key, "max": 1}}));
    let (long, short) = (of_key("a"), of_key("b"));
    let (mut limits, mut runs) = (Limits::default(), OpenRuns::default());
    for (second, job) in [(1, &long), (2, &long), (3, &long), (4, &long), (5, &short), (6, &short)] {
        send(&mut limits, &ready(second, job), at(0), &mut runs);
    }
    let seconds = |is_chosen: fn(&ReadyRun) -> bool, count| {
        let some = limits.first_waiting_runs(is_chosen, count, &runs);
        some.iter().map(|(_, ready)| ready.run.due_at.second()).collect::<Vec<_>>()
    };
    assert_eq!(seconds(|_| true, 3), [2, 6, 3]);
    assert_eq!(seconds(|ready| ready.run.due_at.second() == 3, 1), [3], "those that are not chosen do not count");
}
