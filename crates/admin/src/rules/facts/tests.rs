//! Tests of how runs and deadlines are evaluated.

use chrono::{Datelike as _, NaiveDate, Weekday};
use rondel_core::Reason;
use serde_json::json;

use super::*;

const JOB: JobId = JobId::new(7);

fn at(second: i64) -> Timestamp {
    Timestamp::from_millis(second * 1_000)
}

fn ended(id: i64, status: RunStatus) -> EndedRun {
    EndedRun { run: RunId::new(id), job: JOB, fire_at: at(id), status }
}

fn failed_event(id: i64) -> AlertEvent {
    AlertEvent {
        run: RunId::new(id),
        app: AppId::new(1),
        job: JOB,
        status: RunStatus::Failed,
        reason: None,
        fire_at: at(id),
    }
}

#[test]
fn intended_skips_count_only_for_rules_that_name_them() {
    let skipped = |reason| AlertEvent { status: RunStatus::Skipped, reason: Some(reason), ..failed_event(1) };
    let any = Condition::Skipped { reasons: Vec::new() };
    for (reason, is_for_all) in [
        (Reason::Misfire, true),
        (Reason::NoExecutor, true),
        (Reason::Maintenance, false),
        (Reason::Shadow, false),
        (Reason::WindowOver, false),
        (Reason::Paused, false),
        (Reason::Changed, false),
        (Reason::Deleted, false),
    ] {
        assert_eq!(is_wanted(&any, &skipped(reason)), is_for_all, "{reason}");
        assert!(is_wanted(&Condition::Skipped { reasons: vec![reason] }, &skipped(reason)), "{reason}");
    }
}

fn state(newest: &[EndedRun], events: &[AlertEvent]) -> ConditionState {
    let events: Vec<&AlertEvent> = events.iter().collect();
    let runs: Vec<RunId> = events.iter().map(|event| event.run).collect();
    judge_runs(&Condition::Failed {}, &with_older(newest, &events), &runs)
}

#[test]
fn each_failure_of_a_flood_counts() {
    let newest: Vec<EndedRun> = (401..=550).rev().map(|id| ended(id, RunStatus::Failed)).collect();
    let events: Vec<AlertEvent> = (1..=500).map(failed_event).collect();
    assert_eq!(state(&newest, &events), ConditionState::Holds { since: at(1), new_count: 500 });
    // None of these events is among the newest runs.
    assert_eq!(state(&newest, &events[..300]), ConditionState::Holds { since: at(1), new_count: 300 });
}

#[test]
fn a_flood_that_a_success_has_ended_is_over() {
    let newest: Vec<EndedRun> = (501..=650).rev().map(|id| ended(id, RunStatus::Succeeded)).collect();
    let events: Vec<AlertEvent> = (1..=500).map(failed_event).collect();
    assert_eq!(state(&newest, &events), ConditionState::HasEnded { since: at(1), new_count: 500 });
}

#[test]
fn a_run_that_succeeded_later_is_no_failure() {
    assert_eq!(state(&[ended(1, RunStatus::Succeeded)], &[failed_event(1)]), ConditionState::Clear);
}

#[test]
fn a_check_on_a_day_that_the_calendar_excludes_judges_nothing_and_comes_again() {
    let condition = json!({"not_succeeded_by": {"time": "06:00", "zone": "UTC", "calendar": "work"}});
    let spec: RuleSpec = serde_json::from_value(json!({"name": "rule", "condition": condition})).unwrap();
    let instant = |text: &str| text.parse::<Timestamp>().unwrap();
    let (monday, tuesday) = (instant("2026-01-05T06:00:00Z"), instant("2026-01-06T06:00:00Z"));
    let passed = |now, is_day: fn(NaiveDate) -> bool| last_deadline(&spec, monday, now, &is_day);
    assert_eq!(passed(monday, |_| true), Some(monday));
    assert_eq!(passed(monday, |_| false), None);
    assert_eq!(next_check(&spec, monday, None), Some(tuesday), "its days may be others by then");
    // No server ran for three days: the last deadline on a day of the calendar counts.
    let thursday = instant("2026-01-08T12:00:00Z");
    assert_eq!(passed(thursday, |day| day.weekday() == Weekday::Tue), Some(tuesday));
}

#[test]
fn runs_that_wait_in_front_of_all_that_ended_show_no_end() {
    let shows = |has_older, statuses: &[RunStatus], condition: Condition| {
        let runs = statuses.iter().map(|status| ended(1, *status)).collect();
        NewestEnds { runs, has_older }.suffice_to_clear(&condition)
    };
    let (failed, skipped) = (|| Condition::Failed {}, || Condition::Skipped { reasons: Vec::new() });
    assert!(shows(false, &[], failed()) && shows(false, &[], skipped()), "the job has no other runs");
    assert!(!shows(true, &[], failed()) && !shows(true, &[], skipped()));
    assert!(!shows(true, &[RunStatus::Failed, RunStatus::Cancelled], failed()));
    assert!(shows(true, &[RunStatus::Failed, RunStatus::Succeeded], failed()));
    assert!(shows(true, &[RunStatus::Failed], skipped()), "a later run than the skipped fire");
}

#[test]
fn an_end_that_is_no_longer_kept_is_no_recovery() {
    let has = |statuses: &[RunStatus], condition: Condition| {
        let runs = statuses.iter().map(|status| ended(1, *status)).collect();
        NewestEnds { runs, has_older: false }.has_end(&condition)
    };
    let (failed, skipped) = (|| Condition::Failed {}, || Condition::Skipped { reasons: Vec::new() });
    assert!(!has(&[], failed()) && !has(&[], skipped()));
    assert!(!has(&[RunStatus::Failed], failed()) && !has(&[RunStatus::Skipped], skipped()));
    assert!(has(&[RunStatus::Failed, RunStatus::Succeeded], failed()) && has(&[RunStatus::Failed], skipped()));
}

#[test]
fn a_broadcast_to_one_executor_fails_once() {
    let mark = |id, parent: Option<i64>, status, second| ChartRun {
        id: RunId::new(id),
        job: JOB,
        app: AppId::new(1),
        fire_at: at(second),
        status,
        started_at: None,
        finished_at: None,
        executor: None,
        span_count: 1,
        span_end_at: None,
        parent: parent.map(RunId::new),
    };
    let failed = RunStatus::Failed;
    let runs = |marks: &[ChartRun]| ended_runs(marks).iter().map(|run| run.run.get()).collect::<Vec<_>>();
    assert_eq!(runs(&[mark(2, Some(1), failed, 60), mark(1, None, failed, 60)]), [1]);
    assert_eq!(
        runs(&[mark(3, Some(1), failed, 90), mark(1, None, failed, 60)]),
        [3, 1],
        "a run that follows another one"
    );
    let waits = [mark(2, Some(1), RunStatus::Succeeded, 60), mark(1, None, RunStatus::Running, 60)];
    assert_eq!(runs(&waits), [0; 0], "the runs that follow from the fire are open");
}
