use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::calendar::Calendar;
use crate::misfire::{UnsentFire, runs_late};

fn job(schedule: &serde_json::Value, enabled: bool) -> Job {
    let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "enabled": enabled});
    serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
}

fn row(id: i64, second: i64, status: RunStatus) -> FutureRow {
    let at = Timestamp::from_secs(second);
    FutureRow { id: RunId::new(id), fire_at: at, due_at: at, status, is_span: false }
}

fn context(rows: &[FutureRow]) -> EditContext<'_> {
    let now = Timestamp::from_secs(100);
    let job = JobId::new(1);
    EditContext {
        job,
        anchor: Timestamp::EPOCH,
        now,
        checked_at: now,
        read_at: now,
        rows,
        before: None,
        next_fire_at: None,
        awaited_run: None,
    }
}

fn ids(runs: &[RunId]) -> Vec<i64> {
    runs.iter().map(|run| run.get()).collect()
}

fn moved(rows: &[MovedRow]) -> Vec<i64> {
    rows.iter().map(|row| row.id.get()).collect()
}

const ROWS: fn() -> Vec<FutureRow> = || {
    vec![
        row(1, 101, RunStatus::Pending),
        row(2, 102, RunStatus::Pending),
        row(3, 103, RunStatus::Skipped),
        row(4, 104, RunStatus::Skipped),
    ]
};

#[test]
fn rows_follow_the_new_definition() {
    let every_two = job(&json!({"every": "2s"}), true);
    let plan = plan_edit(Some(&every_two), context(&ROWS()));
    assert_eq!(
        (moved(&plan.kept_rows), ids(&plan.skipped_rows), moved(&plan.reopened_rows)),
        (vec![2], vec![1], vec![4])
    );
    assert_eq!((plan.reason, plan.next_fire_at), (Reason::Changed, Some(Timestamp::from_secs(106))));
}

#[test]
fn an_instant_that_was_ahead_at_the_check_fires() {
    let once = job(&json!({"at": "1970-01-01T00:01:39.9Z"}), true);
    let next = |job: &Job, checked_ms| {
        let checked_at = Timestamp::from_millis(checked_ms);
        plan_edit(Some(job), EditContext { checked_at, ..context(&[]) }).next_fire_at
    };
    assert_eq!(next(&once, 99_899), Some(Timestamp::from_millis(99_900)));
    assert_eq!(next(&once, 99_900), None, "it was over at the check");
    let both = job(&json!([{"every": "1s"}, {"at": "1970-01-01T00:01:39.9Z"}]), true);
    assert_eq!(next(&both, 99_000), Some(Timestamp::from_millis(99_900)));
    assert_eq!(next(&both, 99_950), Some(Timestamp::from_secs(101)));
    assert_eq!(next(&job(&json!({"at": "1970-01-01T00:01:39.9Z"}), false), 99_000), None);
}

#[test]
fn a_paused_or_deleted_job_keeps_nothing() {
    let paused = job(&json!({"every": "1s"}), false);
    for (job, reason) in [(Some(&paused), Reason::Paused), (None, Reason::Deleted)] {
        let plan = plan_edit(job, context(&ROWS()));
        assert_eq!((ids(&plan.skipped_rows), plan.reason, plan.next_fire_at), (vec![1, 2], reason, None));
    }
}

#[test]
fn a_row_that_may_be_on_its_way_is_left_alone() {
    let soon = |millis, status| FutureRow { due_at: Timestamp::from_millis(millis), ..row(1, 101, status) };
    let paused = job(&json!({"every": "1s"}), false);
    for (row, settled) in [
        (soon(100_999, RunStatus::Pending), vec![]),
        (soon(101_000, RunStatus::Pending), vec![1]),
        (soon(100_999, RunStatus::Waiting), vec![1]),
    ] {
        let plan = plan_edit(Some(&paused), context(&[row]));
        assert_eq!((ids(&plan.skipped_rows), moved(&plan.kept_rows)), (settled, vec![]), "{row:?}");
    }
    // The edit took long, and the tick may have read more rows since `now`.
    let row = soon(101_500, RunStatus::Pending);
    let slow = EditContext { read_at: Timestamp::from_millis(100_600), ..context(std::slice::from_ref(&row)) };
    assert_eq!(ids(&plan_edit(Some(&paused), slow).skipped_rows), Vec::<i64>::new());
    // A new definition that fires at the instant of a row takes the row over, unless the row may have been sent.
    let jittered = job(&json!({"every": "1s", "jitter": {"max": "30s"}}), true);
    for (row, is_kept) in [
        (soon(100_999, RunStatus::Pending), false),
        (soon(101_000, RunStatus::Pending), true),
        (soon(100_999, RunStatus::Waiting), true),
    ] {
        let plan = plan_edit(Some(&jittered), context(&[row]));
        assert_eq!((plan.kept_rows.len(), plan.skipped_rows.len()), (usize::from(is_kept), 0), "{row:?}");
    }
    let delayed = EditContext { awaited_run: Some(RunId::new(1)), ..context(&[]) };
    let rows = [soon(100_500, RunStatus::Pending)];
    let plan = plan_edit(Some(&job(&json!({"delay": "3s"}), true)), EditContext { rows: &rows, ..delayed });
    assert_eq!((ids(&plan.skipped_rows), plan.next_fire_at, plan.awaited_run), (vec![], None, Some(RunId::new(1))));
    let same = job(&json!({"delay": "3s"}), true);
    let plan = plan_edit(Some(&same), EditContext { before: Some(&same), rows: &rows, ..delayed });
    assert_eq!((moved(&plan.kept_rows), plan.next_fire_at, plan.awaited_run), (vec![], None, Some(RunId::new(1))));
}

#[test]
fn a_hole_between_rows_is_the_next_fire() {
    let every_second = job(&json!({"every": "1s"}), true);
    let rows = [row(1, 101, RunStatus::Pending), row(2, 103, RunStatus::Pending)];
    let plan = plan_edit(Some(&every_second), context(&rows));
    assert_eq!(plan.next_fire_at, Some(Timestamp::from_secs(102)));
}

#[test]
fn fires_that_are_over_without_a_row_are_not_forgotten() {
    let [before, other] = [job(&json!({"every": "1s"}), true), job(&json!({"every": "2s"}), true)];
    let paused = job(&json!({"every": "1s"}), false);
    for (after, was, expected) in [
        (&before, Some(97), Some(97)),
        (&before, Some(100), Some(100)),
        (&before, Some(101), Some(101)),
        (&before, None, Some(101)),
        (&other, Some(97), Some(102)),
        (&paused, Some(97), None),
    ] {
        let next_fire_at = was.map(Timestamp::from_secs);
        let plan = plan_edit(Some(after), EditContext { before: Some(&before), next_fire_at, ..context(&[]) });
        assert_eq!(plan.next_fire_at, expected.map(Timestamp::from_secs), "{was:?}");
    }
}

/// A maintenance window has skipped the fires up to the next one. Their row, which stands for all of them, is not among the rows.
#[test]
fn fires_that_were_skipped_ahead_of_their_instants_are_not_planned_again() {
    let [before, other] = [job(&json!({"every": "1s"}), true), job(&json!({"every": "2s"}), true)];
    let paused = job(&json!({"every": "1s"}), false);
    for (old, new, was, expected) in [
        (&before, &before, 160, 160),
        (&before, &other, 160, 102),
        (&paused, &before, 160, 101),
        (&before, &before, 1_000, 101),
    ] {
        let next_fire_at = Some(Timestamp::from_secs(was));
        let plan = plan_edit(Some(new), EditContext { before: Some(old), next_fire_at, ..context(&[]) });
        assert_eq!(plan.next_fire_at, Some(Timestamp::from_secs(expected)), "{was}");
    }
}

#[test]
fn overdue_fires_that_an_edit_skips_are_one_row() {
    let before = job(&json!({"every": "1s"}), true);
    let [other, paused] = [job(&json!({"every": "2s"}), true), job(&json!({"every": "1s"}), false)];
    let delay = job(&json!({"delay": "5s"}), true);
    let passed = |after: Option<&Job>, before: &Job, overdue| {
        let next_fire_at = Some(Timestamp::from_secs(overdue));
        let plan = plan_edit(after, EditContext { before: Some(before), next_fire_at, ..context(&[]) });
        plan.skipped_span.map(|span| (span.first.second(), span.last.second(), span.count))
    };
    for after in [Some(&other), Some(&paused), Some(&delay), None] {
        assert_eq!(passed(after, &before, 97), Some((97, 100, 4)));
        assert_eq!(passed(after, &before, 100), Some((100, 100, 1)));
        assert_eq!(passed(after, &before, 101), None, "not over yet");
        assert_eq!(passed(after, &paused, 97), None, "it did not fire");
    }
    assert_eq!(passed(Some(&before), &before, 97), None, "the scan still runs them");
    assert_eq!(passed(Some(&paused), &delay, 98), Some((98, 98, 1)));
    assert_eq!(passed(Some(&delay), &delay, 98), None);
    let weekdays = job(&json!([{"every": "1s"}, {"every": "3s"}]), true);
    assert_eq!(passed(None, &weekdays, 90), Some((90, 100, 11)));
}

/// Fires that a maintenance window holds back stay planned when their calendar is saved, unless the new calendar changes
/// these fires.
#[test]
fn past_fires_stay_under_a_new_calendar_that_leaves_them_alone() {
    let with = |days: &str| {
        let rule = serde_json::from_value(json!({"days": [days]})).unwrap();
        let calendar = Calendar::of_rule("c", &rule).unwrap();
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": {"every": "10s"},
            "calendar": {"name": "c", "rule": "except"}});
        serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile_with(Some(Arc::new(calendar))).unwrap()
    };
    let before = with("2026-12-25");
    let next_fire_at = Some(Timestamp::from_secs(90));
    for (days, kept, skipped_count) in [("2026-12-26", true, 0), ("1970-01-01", false, 2)] {
        let plan = plan_edit(Some(&with(days)), EditContext { before: Some(&before), next_fire_at, ..context(&[]) });
        assert_eq!(plan.next_fire_at == next_fire_at, kept, "{days}");
        assert_eq!(plan.skipped_span.map_or(0, |span| span.count), skipped_count, "{days}");
    }
}

#[test]
fn a_delay_is_left_alone_by_an_edit_that_leaves_it_as_it_was() {
    let two = job(&json!({"delay": "2s"}), true);
    let three = job(&json!({"delay": "3s"}), true);
    let run = RunId::new(9);
    let next = Some(Timestamp::from_millis(101_020));
    let waits = EditContext { before: Some(&two), next_fire_at: next, ..context(&[]) };
    let runs = EditContext { before: Some(&two), awaited_run: Some(run), ..context(&[]) };
    assert_eq!(plan_edit(Some(&two), waits).next_fire_at, next);
    assert_eq!(plan_edit(Some(&three), waits).next_fire_at, Some(Timestamp::from_secs(103)));
    for job in [&two, &three] {
        let plan = plan_edit(Some(job), runs);
        assert_eq!((plan.next_fire_at, plan.awaited_run), (None, Some(run)));
    }
    let ahead = [row(9, 101, RunStatus::Pending)];
    let claimed = EditContext { rows: &ahead, ..runs };
    let plan = plan_edit(Some(&three), claimed);
    assert_eq!((ids(&plan.skipped_rows), plan.awaited_run), (vec![9], None));
    assert_eq!(plan.next_fire_at, Some(Timestamp::from_secs(103)));
}

#[test]
fn a_row_that_jitter_puts_off_belongs_to_the_edit_until_it_starts() {
    let jitter = |seconds: u64| job(&json!({"every": "10s", "jitter": {"max": format!("{seconds}s")}}), true);
    let (before, after) = (jitter(60), jitter(30));
    assert_eq!(look_back_period(Some(&before), Some(&after)), Duration::from_secs(60));
    assert_eq!(look_back_period(Some(&after), None), Duration::from_secs(30));
    let due_at = |job: &Job, second| {
        let fire = job.timetable.fire_at(Timestamp::EPOCH, Timestamp::from_secs(second)).unwrap();
        fire.due_at(JobId::new(1))
    };
    // The open row gets the start of the new jitter. The settled row is reopened only if its new start is still ahead.
    let open = FutureRow { due_at: due_at(&before, 90), ..row(1, 90, RunStatus::Waiting) };
    let settled = FutureRow { due_at: due_at(&before, 80), ..row(2, 80, RunStatus::Skipped) };
    let rows = [open, settled];
    let context = |rows| EditContext { before: Some(&before), ..context(rows) };
    let plan = plan_edit(Some(&after), context(&rows));
    assert_eq!(plan.kept_rows, [MovedRow { id: open.id, due_at: due_at(&after, 90) }]);
    assert_eq!(plan.reopened_rows.len(), usize::from(due_at(&after, 80) > Timestamp::from_secs(100)));
    let plan = plan_edit(Some(&job(&json!({"every": "10s"}), true)), context(&rows));
    assert_eq!(plan.kept_rows, [MovedRow { id: open.id, due_at: Timestamp::from_secs(100) }], "at the edit");
    assert_eq!(plan.reopened_rows, [], "its start is over");
    let plan = plan_edit(Some(&job(&json!({"every": "7s"}), true)), context(&rows));
    assert_eq!((ids(&plan.skipped_rows), plan.reopened_rows.len()), (vec![1], 0));
}

/// A server judges by the start of a row whether its fire was missed. The fire of a row whose jitter an edit shortens was not.
#[test]
fn a_row_whose_new_start_has_passed_starts_at_the_edit_and_is_not_missed() {
    let jittered = job(&json!({"every": "10s", "jitter": {"max": "60s"}}), true);
    let plain = job(&json!({"every": "10s"}), true);
    let fire = jittered.timetable.fire_at(Timestamp::EPOCH, Timestamp::from_secs(80)).unwrap();
    let waiting = FutureRow { due_at: fire.due_at(JobId::new(1)), ..row(1, 80, RunStatus::Waiting) };
    let rows = [waiting];
    let context = EditContext { before: Some(&jittered), ..context(&rows) };
    assert!(waiting.due_at > context.now, "it waits for its jitter");
    let plan = plan_edit(Some(&plain), context);
    assert_eq!(plan.kept_rows, [MovedRow { id: waiting.id, due_at: context.now }]);
    let moved = UnsentFire { fire_at: waiting.fire_at, due_at: plan.kept_rows[0].due_at };
    assert!(runs_late(&plain, (context.job, Timestamp::EPOCH), moved, context.now + Duration::from_secs(2)));
}

#[test]
fn a_row_that_a_window_holds_does_not_move_into_the_window() {
    let [every_second, every_two] = [job(&json!({"every": "1s"}), true), job(&json!({"every": "2s"}), true)];
    let paused = job(&json!({"every": "1s"}), false);
    let end = Timestamp::from_millis(105_300);
    let held = |id, status| FutureRow { due_at: end, ..row(id, 104, status) };
    // An edit of another field, an edit of the schedule, a resumption, and an edit after a definition that can no longer be
    // read.
    for before in [Some(&every_second), Some(&every_two), Some(&paused), None] {
        for after in [&every_second, &every_two] {
            let rows = [held(1, RunStatus::Pending), held(2, RunStatus::Skipped)];
            let plan = plan_edit(Some(after), EditContext { before, ..context(&rows) });
            let moved = |id| vec![MovedRow { id: RunId::new(id), due_at: end }];
            assert_eq!((plan.kept_rows, plan.reopened_rows), (moved(1), moved(2)), "{before:?}");
        }
    }
}

#[test]
fn a_delay_whose_next_instant_has_a_settled_row_opens_that_row_again() {
    let start = json!({"delay": "2s", "start_at": "1970-01-01T00:02:00Z"});
    let settled = row(7, 120, RunStatus::Skipped);
    let plan = plan_edit(Some(&job(&start, true)), context(&[settled]));
    assert_eq!((moved(&plan.reopened_rows), plan.next_fire_at, plan.awaited_run), (vec![7], None, Some(settled.id)));
}

#[test]
fn a_row_that_stands_for_past_fires_stays_settled_after_a_step_back() {
    let span = |schedule, second| {
        let rows = [FutureRow { is_span: true, ..row(7, second, RunStatus::Skipped) }];
        let plan = plan_edit(Some(&job(&schedule, true)), context(&rows));
        (moved(&plan.reopened_rows), plan.next_fire_at)
    };
    assert_eq!(span(json!({"every": "1s"}), 101), (vec![], Some(Timestamp::from_secs(102))), "it has that fire");
    let delay = json!({"delay": "2s", "start_at": "1970-01-01T00:02:00Z"});
    assert_eq!(span(delay, 120), (vec![], Some(Timestamp::from_secs(120))));
}
