//! Tests of the reasons for which definitions are refused, at the bounds of their fields.

use serde_json::{Value, json};

use super::*;

fn spec(change: Value) -> JobSpec {
    let mut base = json!({"name": "a", "app": "b", "handler": "c"});
    let (Value::Object(base_map), Value::Object(change)) = (&mut base, change) else { unreachable!() };
    base_map.extend(change);
    serde_json::from_value(base).unwrap()
}

#[track_caller]
fn check_refused(change: Value, pointer: &str, part: &str) {
    let errors = spec(change).compile().unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].pointer, pointer);
    assert!(errors[0].message.contains(part), "{}", errors[0].message);
}

#[test]
fn a_bad_field_is_named() {
    check_refused(json!({"name": "A"}), "/name", "\"A\"");
    check_refused(json!({"app": ""}), "/app", "\"\"");
    check_refused(json!({"handler": "a b"}), "/handler", "\"a b\"");
    check_refused(json!({"schedule": {"cron": "99 * * * * ?"}}), "/schedule/cron", "99");
    check_refused(json!({"schedule": [{"every": "1s"}, {"every": "0s"}]}), "/schedule/1/every", "0s");
    check_refused(json!({"schedule": {"cron": "0 * * * * ?", "time_zone": "X/Y"}}), "/schedule/time_zone", "X/Y");
    check_refused(json!({"route": "broadcast", "shards": 3}), "/shards", "3 shards");
    check_refused(json!({"shards": 0}), "/shards", "0 shards");
    check_refused(json!({"shards": []}), "/shards", "0 shards");
    check_refused(json!({"shards": {"count": 1_001}}), "/shards", "1001 shards");
    check_refused(json!({"shards": [{"name": "eu"}, {"name": "eu"}]}), "/shards/1/name", "the name of shard 0 too");
    check_refused(json!({"shards": [{"name": " "}]}), "/shards/0/name", "name");
    let long = json!({"text": "x".repeat(5_000)});
    check_refused(json!({"shards": [{"name": "a", "params": long}]}), "/shards/0/params", "at most 4096");
    check_refused(json!({"timeout": "0s"}), "/timeout", "\"0s\" is outside 1ms");
    check_refused(json!({"rate": {"max": 1, "per": "1ms"}}), "/rate/per", "\"1ms\" is outside 1s");
    let two = json!({"cron": "0 * * * * ?", "every": "1s"});
    check_refused(json!({"schedule": two}), "/schedule", "has cron, every together");
    check_refused(json!({"overrides": ["/a", "b"]}), "/overrides/1", "\"b\" is not a JSON pointer");
    check_refused(json!({"retry": {"max": 1, "backoff": "soon"}}), "/retry/backoff", "\"soon\" is not");
    check_refused(json!({"retry": {"max": 1, "backoff": "5m..1s"}}), "/retry/backoff", "\"5m..1s\" begins at 5m");
    check_refused(json!({"misfire": {"policy": "all", "max": 0}}), "/misfire/max", "0");
}

#[track_caller]
fn check_bounds(change: impl Fn(u64) -> Value, (first, last): (u64, u64), pointer: &str) {
    for good in [first, last] {
        assert_eq!(spec(change(good)).compile().err(), None, "{good} is good for {pointer}");
    }
    for bad in [first.checked_sub(1), Some(last + 1)].into_iter().flatten() {
        let errors = spec(change(bad)).compile().unwrap_err();
        assert_eq!(errors.iter().map(|error| error.pointer.as_str()).collect::<Vec<_>>(), [pointer], "{bad}");
    }
}

#[test]
fn numbers_and_lengths_have_bounds() {
    check_bounds(|n| json!({"priority": n}), (0, PRIORITY_MAX.into()), "/priority");
    check_bounds(|n| json!({"shards": n}), (1, SHARD_COUNT_MAX.into()), "/shards");
    check_bounds(|n| json!({"retry": {"max": n}}), (0, RETRY_MAX.into()), "/retry/max");
    let misfire = |n| json!({"misfire": {"policy": "all", "max": n}});
    check_bounds(misfire, (1, MISFIRE_MAX.into()), "/misfire/max");
    assert!(spec(json!({"misfire": {"policy": "once", "max": 0}})).compile().is_ok());
    let rate = |n| json!({"rate": {"max": n, "per": "1m"}});
    check_bounds(rate, (1, RATE_STARTS_MAX.into()), "/rate/max");
    let per = |ms| json!({"rate": {"max": 1, "per": format!("{ms}ms")}});
    check_bounds(per, (1_000, 86_400_000), "/rate/per");
    let year = 366 * 86_400_000;
    for field in ["timeout", "queue_timeout"] {
        check_bounds(|ms| json!({field: format!("{ms}ms")}), (1, year), &format!("/{field}"));
    }
    for wait in ["", "0s.."] {
        check_bounds(|ms| json!({"retry": {"backoff": format!("{wait}{ms}ms")}}), (0, year), "/retry/backoff");
    }
    let described = |n: u64| json!({"description": "d".repeat(usize::try_from(n).unwrap())});
    check_bounds(described, (0, DESCRIPTION_LEN_MAX as u64), "/description");
    let scheduled = |n: u64| json!({"schedule": vec![json!({"every": "1s"}); usize::try_from(n).unwrap()]});
    check_bounds(scheduled, (1, SCHEDULE_COUNT_MAX as u64), "/schedule");
    let limited = |n| json!({"concurrency": {"key": "k", "max": n}});
    assert!(spec(limited(1)).compile().is_ok());
    check_refused(limited(0), "/concurrency/max", "1 or more");
}

#[test]
fn parameters_have_a_size_and_a_depth() {
    let text = |len: usize| json!("x".repeat(len - 2));
    assert!(check_params_size(&text(PARAMS_LEN_MAX)).is_ok() && check_params_size(&text(PARAMS_LEN_MAX + 1)).is_err());
    for wrap in [|value: Value| json!([value]), |value: Value| json!({"a": value})] {
        let nested = |depth: usize| (0..depth).fold(json!(1), |value, _| wrap(value));
        assert!(check_params_size(&nested(PARAMS_DEPTH_MAX)).is_ok());
        assert!(check_params_size(&nested(PARAMS_DEPTH_MAX + 1)).is_err());
    }
}

#[test]
fn expectations_have_bounds_and_pointers() {
    let expect = |change: Value| json!({"expect": change});
    check_refused(expect(json!({})), "/expect", "expects nothing");
    check_refused(expect(json!({"late": "0s"})), "/expect/late", "0s is not from 1s");
    check_refused(expect(json!({"no_success_for": "10000h"})), "/expect/no_success_for", "is not from 1s");
    check_refused(expect(json!({"late": "1m", "channels": ["a", "a"]})), "/expect/channels/1", "twice");
    check_refused(expect(json!({"late": "1m", "channels": ["A"]})), "/expect/channels/0", "is not a name");
    let by = |change: Value| expect(json!({"success_by": change}));
    check_refused(by(json!({"time": "25:00"})), "/expect/success_by/time", "\"25:00\"");
    check_refused(by(json!({"time": "6:00"})), "/expect/success_by/time", "expected HH:MM");
    check_refused(by(json!({"time": "06:00", "zone": "Mars"})), "/expect/success_by/zone", "Mars");
    let both = json!({"time": "06:00", "weekdays": ["mon"], "calendar": "c"});
    check_refused(by(both), "/expect/success_by/calendar", "either weekdays or a calendar");
    let unknown = json!({"name": "a", "app": "b", "handler": "c", "expect": {"succes_by": {}}});
    assert!(serde_json::from_value::<JobSpec>(unknown).unwrap_err().to_string().contains("succes_by"));
    assert!(spec(expect(json!({"longer_than": "2h"}))).compile().unwrap().expect.is_some());
}

#[test]
fn a_schedule_that_follows_runs_stands_alone_and_has_no_calendar() {
    for follows in [json!({"delay": "5s"}), json!({"after": ["p"]})] {
        assert!(spec(json!({"schedule": follows})).compile().is_ok());
        check_refused(json!({"schedule": [{"every": "1s"}, follows]}), "/schedule/1", "cannot be combined");
        let with_calendar = json!({"schedule": follows, "calendar": {"name": "c"}});
        check_refused(with_calendar, "/calendar", "applies only to a job with cron");
    }
    check_refused(json!({"calendar": {"name": "c"}}), "/calendar", "applies only to a job with cron");
}

#[test]
fn days_only_move_fires_and_times_do_not() {
    let calendar = |rule: &str| {
        let rule = serde_json::from_str(rule).unwrap();
        Some(Arc::new(Calendar::of_rule("c", &rule).unwrap()))
    };
    let used = |rule: &str| spec(json!({"schedule": {"every": "1s"}, "calendar": {"name": "c", "rule": rule}}));
    for rule in ["only", "except", "next", "previous"] {
        assert!(Job::compile(&used(rule), calendar(r#"{"days": []}"#)).is_ok(), "{rule}");
        let timed = Job::compile(&used(rule), calendar(r#"{"times": ["01:00-02:00"]}"#));
        assert_eq!(timed.is_err(), matches!(rule, "next" | "previous"), "{rule}");
    }
}

#[test]
fn the_policy_for_ends_is_that_of_the_definition() {
    let after = |change| spec(change).compile().unwrap().next_step_policy;
    let plain = after(json!({}));
    assert!(plain.at_least_once && !plain.awaits_children && !plain.has_fixed_delay);
    assert!(!after(json!({"delivery": "at_most_once"})).at_least_once);
    assert!(after(json!({"over": "children"})).awaits_children);
    assert!(after(json!({"schedule": {"delay": "5s"}})).has_fixed_delay);
}

#[test]
fn so_many_runs_go_on_at_the_same_time() {
    let max = |change| spec(json!({"overlap": change})).compile().unwrap().concurrency_max();
    for policy in ["serial", "discard", "cover"] {
        assert_eq!(max(json!({"policy": policy})), Some(1));
    }
    let allow = |n| max(json!({"policy": "allow", "max": n}));
    assert_eq!((allow(0), allow(1), allow(7)), (None, Some(1), Some(7)));
}

#[test]
fn a_bad_wait_is_named_once() {
    for backoff in ["soon", "1s..soon"] {
        let errors = spec(json!({"retry": {"max": 1, "backoff": backoff}})).compile().unwrap_err();
        let expected = "\"soon\" is not a duration such as 30s, 5m or 1h30m; write \"10s\" or \"10s..5m\"";
        assert_eq!(errors[0].message, expected, "{backoff}");
    }
}

#[test]
fn every_complaint_is_listed() {
    let errors = spec(json!({"name": "", "app": "", "timeout": "0s"})).compile().unwrap_err();
    assert!(errors.iter().map(|error| error.pointer.as_str()).eq(["/name", "/app", "/timeout"]), "{errors:?}");
}
