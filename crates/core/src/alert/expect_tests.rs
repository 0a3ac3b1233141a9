//! Expectations: their rules, when they are checked, and the results of the checks.

use serde_json::json;

use super::expect::{ExpectKind, Expectations, SuccessFacts, is_expectation, rule_id};
use super::{Condition, ConditionState};
use crate::{JobSpec, NamespaceId, Timestamp};

fn expected(expect: &serde_json::Value, schedule: &serde_json::Value) -> Expectations {
    let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "expect": expect});
    let spec: JobSpec = serde_json::from_value(spec).unwrap();
    assert!(spec.compile().is_ok());
    spec.expectations().unwrap()
}

fn instant(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn by(expect: &serde_json::Value) -> Expectations {
    expected(&json!({"success_by": expect}), &json!(null))
}

fn success_facts(newest: Option<&str>) -> SuccessFacts {
    SuccessFacts { newest: newest.map(instant), created_at: instant("2026-01-01T00:00:00Z") }
}

#[track_caller]
fn check_next(expected: &Expectations, kind: ExpectKind, newest: Option<&str>, now: &str, next: &str) {
    let found = expected.next_check_at(kind, success_facts(newest), instant(now));
    assert_eq!(found.map(|at| at.to_string()).as_deref(), Some(next), "{newest:?} at {now}");
}

#[test]
fn a_success_moves_the_look_to_the_first_deadline_that_it_does_not_count_for() {
    let berlin = by(&json!({"time": "06:00", "zone": "Europe/Berlin"}));
    let next = |newest, now, next| check_next(&berlin, ExpectKind::SuccessBy, newest, now, next);
    next(None, "2026-01-05T04:00:00Z", "2026-01-05T05:00:00Z");
    next(Some("2026-01-05T04:30:00Z"), "2026-01-05T04:40:00Z", "2026-01-06T05:00:00Z");
    next(Some("2026-01-04T05:00:00Z"), "2026-01-05T04:40:00Z", "2026-01-06T05:00:00Z");
    next(Some("2026-01-04T04:59:59Z"), "2026-01-05T04:40:00Z", "2026-01-05T05:00:00Z");
    // The clock goes forward on 29 March, and back on 25 October: 23 and 25 hours lie between two deadlines.
    next(Some("2026-03-28T05:00:00Z"), "2026-03-29T03:30:00Z", "2026-03-30T04:00:00Z");
    next(Some("2026-03-28T04:59:59Z"), "2026-03-29T03:30:00Z", "2026-03-29T04:00:00Z");
    next(Some("2026-10-24T04:00:00Z"), "2026-10-25T04:30:00Z", "2026-10-26T05:00:00Z");
    next(Some("2026-10-24T03:59:59Z"), "2026-10-25T04:30:00Z", "2026-10-25T05:00:00Z");
    let skipped = by(&json!({"time": "02:30", "zone": "Europe/Berlin"}));
    check_next(&skipped, ExpectKind::SuccessBy, None, "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z");
    check_next(&skipped, ExpectKind::SuccessBy, None, "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z");
    let workdays = by(&json!({"time": "06:00", "weekdays": ["mon", "tue", "wed", "thu", "fri"]}));
    // A run planned on Friday morning counts for Friday's deadline only, a run planned on Saturday for none.
    check_next(
        &workdays,
        ExpectKind::SuccessBy,
        Some("2026-01-02T05:00:00Z"),
        "2026-01-02T05:30:00Z",
        "2026-01-05T06:00:00Z",
    );
    check_next(
        &workdays,
        ExpectKind::SuccessBy,
        Some("2026-01-03T05:00:00Z"),
        "2026-01-03T05:30:00Z",
        "2026-01-05T06:00:00Z",
    );
}

#[test]
fn a_deadline_that_passed_without_a_success_is_missed() {
    let berlin = by(&json!({"time": "06:00", "zone": "Europe/Berlin"}));
    let check = |newest, look_at: &str, now: &str| {
        berlin.judge(ExpectKind::SuccessBy, success_facts(newest), (instant(look_at), instant(now)), |_| true)
    };
    let missed = |at: &str| ConditionState::Holds { since: instant(at), new_count: 1 };
    let six = "2026-01-05T05:00:00Z";
    assert_eq!(check(None, six, six), missed(six));
    assert_eq!(check(Some("2026-01-05T04:59:00Z"), six, six), ConditionState::Clear);
    assert_eq!(check(Some("2026-01-04T04:59:00Z"), six, six), missed(six));
    assert_eq!(
        check(None, "2026-01-05T05:00:01Z", "2026-01-05T06:00:00Z"),
        ConditionState::Clear,
        "a look that was early"
    );
    // No server ran for three days: the last deadline counts.
    assert_eq!(check(None, six, "2026-01-07T12:00:00Z"), missed("2026-01-07T05:00:00Z"));
    assert_eq!(check(Some("2026-01-07T03:00:00Z"), six, "2026-01-07T12:00:00Z"), ConditionState::Clear);
    let never = |_| false;
    let now = instant(six);
    assert_eq!(
        berlin.judge(ExpectKind::SuccessBy, success_facts(None), (now, now), never),
        ConditionState::Clear,
        "its calendar"
    );
}

#[test]
fn a_job_is_expected_to_succeed_so_often() {
    let often = expected(&json!({"no_success_for": "26h"}), &json!(null));
    let kind = ExpectKind::NoSuccessFor;
    check_next(&often, kind, Some("2026-01-05T04:00:00Z"), "2026-01-05T05:00:00Z", "2026-01-06T06:00:00Z");
    check_next(&often, kind, None, "2026-01-01T05:00:00Z", "2026-01-02T02:00:00Z");
    // The job is overdue already. The next check may be late, because its open incident is checked more often.
    check_next(&often, kind, None, "2026-01-05T05:00:00Z", "2026-01-06T07:00:00Z");
    let check = |newest, now: &str| {
        let now = instant(now);
        often.judge(kind, success_facts(newest), (now, now), |_| true)
    };
    assert_eq!(check(Some("2026-01-05T04:00:00Z"), "2026-01-06T05:59:59Z"), ConditionState::Clear);
    let since = instant("2026-01-06T06:00:00Z");
    assert_eq!(
        check(Some("2026-01-05T04:00:00Z"), "2026-01-06T06:00:00Z"),
        ConditionState::Holds { since, new_count: 0 }
    );
    let now = instant("2026-01-05T00:00:00Z");
    assert_eq!(often.first_check_at(kind, now, true), Some(instant("2026-01-06T02:00:00Z")), "it was made now");
    assert_eq!(often.first_check_at(kind, now, false), Some(now), "it may be overdue already");
}

#[test]
fn a_success_postpones_a_check_that_it_counts_for_and_that_is_not_due() {
    let six = by(&json!({"time": "06:00"}));
    let (today, tomorrow) = ("2026-01-05T06:00:00Z", Some("2026-01-06T06:00:00Z"));
    let check = |expected: &Expectations, kind, newest, (look_at, now): (&str, &str), next: Option<&str>| {
        let found = expected.postponed_check_at(kind, success_facts(Some(newest)), (instant(look_at), instant(now)));
        assert_eq!(found, next.map(instant), "{newest} at {now}");
    };
    let deadline = |newest, now, next| check(&six, ExpectKind::SuccessBy, newest, (today, now), next);
    deadline("2026-01-05T04:00:00Z", "2026-01-05T04:01:00Z", tomorrow);
    deadline("2025-12-01T04:00:00Z", "2026-01-05T04:01:00Z", None);
    deadline("2025-12-01T04:00:00Z", "2026-01-05T06:00:01Z", None);
    deadline("2026-01-05T04:00:00Z", "2026-01-05T06:00:00Z", None);
    let often = expected(&json!({"no_success_for": "1h"}), &json!(null));
    let length = |newest, now, next| check(&often, ExpectKind::NoSuccessFor, newest, (today, now), next);
    length("2026-01-05T05:40:00Z", "2026-01-05T05:40:00Z", Some("2026-01-05T06:40:00Z"));
    length("2026-01-05T05:29:00Z", "2026-01-05T05:29:00Z", None);
    length("2025-12-01T05:59:00Z", "2026-01-05T05:59:00Z", None);
    length("2025-12-01T05:59:00Z", "2026-01-05T06:00:01Z", None);
}

#[test]
fn each_expectation_is_a_rule_that_jobs_with_the_same_one_share() {
    let all = json!({"success_by": {"time": "06:00"}, "no_success_for": "1d", "longer_than": "2h", "late": "5m"});
    let cron = json!({"cron": "0 0 3 * * ?", "time_zone": "Asia/Shanghai"});
    let found = expected(&all, &cron);
    assert_eq!(found.kinds().collect::<Vec<_>>(), ExpectKind::ALL);
    let rule = found.rule(ExpectKind::SuccessBy).unwrap();
    let Condition::NotSucceededBy { zone, .. } = &rule.condition else { unreachable!("another condition") };
    assert_eq!(zone, "Asia/Shanghai", "that of the schedule");
    assert_eq!(rule.channels, ["default"]);
    assert!(crate::name::check(&rule.name).is_err(), "no rule of a user has this name");
    let ids: Vec<_> = found.kinds().map(|kind| rule_id(NamespaceId::new(1), &found.rule(kind).unwrap())).collect();
    assert!(ids.iter().all(|id| is_expectation(*id)), "{ids:?}");
    let again = expected(&all, &cron).rule(ExpectKind::SuccessBy).unwrap();
    assert_eq!(rule_id(NamespaceId::new(1), &again), ids[0]);
    assert_ne!(rule_id(NamespaceId::new(2), &again), ids[0]);
    assert_ne!(ids[0], ids[1]);
}
