//! How an edit changes the rows of a job that are not sent yet, so that no fire runs under a definition that was replaced.
//!
//! If the new definition also fires at the instant of a row, the row moves to the new version; otherwise it is settled as
//! skipped. If a later definition fires at that instant again, and the instant has not passed, the settled row is reopened. No
//! second row is inserted, because the key exists. The next fire is the first one without a row. Past fires without a row share
//! one skipped row, unless the scan still runs them.

use std::time::Duration;

use crate::id::{JobId, RunId};
use crate::job::Job;
use crate::misfire::MissedSpan;
use crate::plan::all_between;
use crate::reason::Reason;
use crate::schedule::just_before;
use crate::status::RunStatus;
use crate::time::Timestamp;

/// The tick reads rows this long before they may start. An edit therefore leaves a row that may start within this time
/// as it is: the tick may already have read it, and the ledger could then show `skipped` for a run that began. Fires
/// that are due more than this long after an edit follow the edit. No server sends a trigger earlier than this before
/// its instant.
pub const EDIT_CUTOFF: Duration = Duration::from_secs(1);

/// Maximum number of past fires without a row that are compared with the fires of a new calendar.
const COMPARED_MAX: usize = 10_000;

/// An unsent row that the job's own schedule planned (cause 0). Its planned instant or, with jitter, its start is in the
/// future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutureRow {
    /// The run.
    pub id: RunId,
    /// Its instant.
    pub fire_at: Timestamp,
    /// When it may start: its instant, or later by jitter.
    pub due_at: Timestamp,
    /// `pending` or `waiting` if it is open, `skipped` if an earlier edit settled it.
    pub status: RunStatus,
}

/// The state of a job when it is edited.
#[derive(Clone, Copy, Debug)]
pub struct EditContext<'a> {
    /// The job.
    pub job: JobId,
    /// The instant that its fixed rates count from.
    pub anchor: Timestamp,
    /// The instant of the edit, by the clock of the server that received it.
    pub now: Timestamp,
    /// When the new definition was checked. A schedule `at` with a later instant was in the future at the check, so it fires even if
    /// its instant has passed by now.
    pub checked_at: Timestamp,
    /// The latest known time of the clock when the rows were read. It is later than `now` if the edit was slow to arrive, or the clock
    /// stepped back. Rows due by then may have been sent.
    pub read_at: Timestamp,
    /// Its future rows, in any order.
    pub rows: &'a [FutureRow],
    /// The definition before the edit; `None` if it can no longer be read.
    pub before: Option<&'a Job>,
    /// The first fire of the definition before the edit for which no row exists.
    pub next_fire_at: Option<Timestamp>,
    /// The open run whose end sets the next fire; only for a job with a fixed delay.
    pub awaited_run: Option<RunId>,
}

/// A row that runs under the new definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedRow {
    /// The run.
    pub id: RunId,
    /// When it may start, by the new definition.
    pub due_at: Timestamp,
}

/// What an edit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditPlan {
    /// Open rows that move to the new version.
    pub keep: Vec<MovedRow>,
    /// Open rows that end as skipped.
    pub settle: Vec<RunId>,
    /// Why they are skipped.
    pub reason: Reason,
    /// Past fires of the previous definition that have no row and will not run; they are skipped for the same reason.
    pub skipped_span: Option<MissedSpan>,
    /// Settled rows that are open again under the new version.
    pub reopen: Vec<MovedRow>,
    /// The first fire without a row.
    pub next_fire_at: Option<Timestamp>,
    /// The open run whose end sets the next fire.
    pub awaited_run: Option<RunId>,
}

/// Plans an edit. `job` is the new definition, `None` for a deleted one.
#[must_use]
pub fn plan_edit(job: Option<&Job>, context: EditContext<'_>) -> EditPlan {
    let reason = match job {
        None => Reason::Deleted,
        Some(job) if !job.enabled => Reason::Paused,
        Some(_) => Reason::Changed,
    };
    let mut plan = EditPlan {
        keep: Vec::new(),
        settle: Vec::new(),
        reason,
        skipped_span: None,
        reopen: Vec::new(),
        next_fire_at: None,
        awaited_run: context.awaited_run,
    };
    match job.filter(|job| job.enabled) {
        Some(job) if job.timetable.delay().is_some() => plan_delay(&mut plan, job, context),
        enabled => plan_clock(&mut plan, enabled, context),
    }
    let overdue = context.next_fire_at.filter(|at| *at <= context.now && plan.next_fire_at != Some(*at));
    if let (Some(overdue), Some(before)) = (overdue, context.before.filter(|before| before.enabled)) {
        plan.skipped_span = all_between(before, context.anchor, overdue, context.now);
    }
    plan
}

/// How far a row's planned instant can lie in the past while its start is still ahead: the larger jitter of the definitions before and
/// after an edit.
#[must_use]
pub fn look_back(before: Option<&Job>, after: Option<&Job>) -> Duration {
    before.into_iter().chain(after).map(|job| job.timetable.jitter_max()).max().unwrap_or_default()
}

fn plan_clock(plan: &mut EditPlan, job: Option<&Job>, context: EditContext<'_>) {
    let EditContext { anchor, now, checked_at, rows, .. } = context;
    for row in rows {
        let moved = due_at_under(job, row, context)
            .map(|due_at| MovedRow { id: row.id, due_at: due_at.max(earliest_start(row, context)) });
        match (row.status.is_terminal(), moved) {
            (false, Some(moved)) => plan.keep.push(moved),
            (false, None) if is_on_its_way(row, context) => {}
            (false, None) => plan.settle.push(row.id),
            // The jitter of the new definition may put the start of the row into the past. Then the row stays settled.
            (true, Some(moved)) if moved.due_at > now => plan.reopen.push(moved),
            (true, _) => {}
        }
    }
    let next_after = |at| job.and_then(|job| job.timetable.next_look_after(anchor, at));
    plan.next_fire_at = next_after(now);
    while let Some(at) = plan.next_fire_at.filter(|at| rows.iter().any(|row| row.fire_at == *at)) {
        plan.next_fire_at = next_after(at);
    }
    // The scan still runs a schedule `at` whose instant passed after the check. If that fire has a row already, the scan
    // inserts no other, because the key exists.
    let once = job.and_then(|job| job.timetable.once_within(checked_at, now));
    plan.next_fire_at = once.or(plan.next_fire_at);
    // If the schedule stays the same, past fires without a row (their home node has just died, or a maintenance window holds them
    // back) are left to the scan: it runs them or records why not.
    let overdue = context.next_fire_at.filter(|at| *at <= now);
    if let (Some(overdue), Some((old, new))) = (overdue, context.before.zip(job))
        && old.enabled
        && fires_as_before(old, new, anchor, (overdue, now))
    {
        plan.next_fire_at = Some(overdue);
    }
    // A run that is settled here triggers nothing when it ends, so the next fire must not wait for it.
    plan.awaited_run = plan.awaited_run.filter(|run| !plan.settle.contains(run));
}

/// Whether the new definition fires at the same instants of this span, both ends included, as the old one: it has the same
/// schedules, and its version of their calendar moves or removes no other fires.
fn fires_as_before(old: &Job, new: &Job, anchor: Timestamp, (from, through): (Timestamp, Timestamp)) -> bool {
    let fires = |job: &Job| -> Vec<Timestamp> {
        let fires = job.timetable.fires(anchor, just_before(from), through);
        fires.map(|fire| fire.at).take(COMPARED_MAX).collect()
    };
    if old.timetable == new.timetable {
        return true;
    }
    let is_alike = || {
        let before = fires(old);
        before.len() < COMPARED_MAX && before == fires(new)
    };
    old.timetable.schedules == new.timetable.schedules && is_alike()
}

/// When a row may start under a definition; `None` if that definition does not fire at the row's instant.
fn due_at_under(job: Option<&Job>, row: &FutureRow, context: EditContext<'_>) -> Option<Timestamp> {
    let fire = job?.timetable.fire_at(context.anchor, row.fire_at)?;
    Some(fire.due_at(context.job))
}

/// The earliest start that an edit may give to a row. If the row starts later than the jitter of the previous definition
/// explains, a maintenance window holds its fire back, and an edit must not move the row into that window.
fn earliest_start(row: &FutureRow, context: EditContext<'_>) -> Timestamp {
    let is_explained = due_at_under(context.before, row, context) == Some(row.due_at);
    if is_explained { row.fire_at } else { row.due_at }
}

fn is_on_its_way(row: &FutureRow, context: EditContext<'_>) -> bool {
    row.status == RunStatus::Pending && row.due_at < context.now.max(context.read_at) + EDIT_CUTOFF
}

/// Plans an edit of a job with a fixed delay, which has at most one future fire. If the delay is unchanged, that fire stays as
/// it is.
fn plan_delay(plan: &mut EditPlan, job: &Job, context: EditContext<'_>) {
    let is_same =
        context.before.is_some_and(|before| before.enabled && before.timetable.schedules == job.timetable.schedules);
    for row in context.rows.iter().filter(|row| !row.status.is_terminal()) {
        if is_same {
            plan.keep.push(MovedRow { id: row.id, due_at: row.due_at });
        } else if !is_on_its_way(row, context) {
            plan.settle.push(row.id);
        }
    }
    plan.awaited_run = plan.awaited_run.filter(|run| !plan.settle.contains(run));
    plan.next_fire_at = match (plan.awaited_run, context.next_fire_at) {
        (Some(_), _) => None,
        (None, Some(next)) if is_same => Some(next),
        (None, _) => job.timetable.first_delayed(context.now),
    };
    // If an earlier edit ended the row of that instant as skipped, the row is opened again.
    let is_next = |row: &&FutureRow| row.status.is_terminal() && Some(row.fire_at) == plan.next_fire_at;
    if let Some(row) = context.rows.iter().find(is_next) {
        plan.reopen.push(MovedRow { id: row.id, due_at: row.due_at });
        (plan.next_fire_at, plan.awaited_run) = (None, Some(row.id));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::calendar::Calendar;

    fn job(schedule: &serde_json::Value, enabled: bool) -> Job {
        let spec = json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "enabled": enabled});
        serde_json::from_value::<crate::JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn row(id: i64, second: i64, status: RunStatus) -> FutureRow {
        let at = Timestamp::from_secs(second);
        FutureRow { id: RunId::new(id), fire_at: at, due_at: at, status }
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
        assert_eq!((moved(&plan.keep), ids(&plan.settle), moved(&plan.reopen)), (vec![2], vec![1], vec![4]));
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
            assert_eq!((ids(&plan.settle), plan.reason, plan.next_fire_at), (vec![1, 2], reason, None));
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
            assert_eq!((ids(&plan.settle), moved(&plan.keep)), (settled, vec![]), "{row:?}");
        }
        // The edit took long, and the tick may have read more rows since `now`.
        let row = soon(101_500, RunStatus::Pending);
        let slow = EditContext { read_at: Timestamp::from_millis(100_600), ..context(std::slice::from_ref(&row)) };
        assert_eq!(ids(&plan_edit(Some(&paused), slow).settle), Vec::<i64>::new());
        let delayed = EditContext { awaited_run: Some(RunId::new(1)), ..context(&[]) };
        let rows = [soon(100_500, RunStatus::Pending)];
        let plan = plan_edit(Some(&job(&json!({"delay": "3s"}), true)), EditContext { rows: &rows, ..delayed });
        assert_eq!((ids(&plan.settle), plan.next_fire_at, plan.awaited_run), (vec![], None, Some(RunId::new(1))));
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
            let plan =
                plan_edit(Some(&with(days)), EditContext { before: Some(&before), next_fire_at, ..context(&[]) });
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
        assert_eq!((ids(&plan.settle), plan.awaited_run), (vec![9], None));
        assert_eq!(plan.next_fire_at, Some(Timestamp::from_secs(103)));
    }

    #[test]
    fn a_row_that_jitter_puts_off_belongs_to_the_edit_until_it_starts() {
        let jitter = |seconds: u64| job(&json!({"every": "10s", "jitter": {"max": format!("{seconds}s")}}), true);
        let (before, after) = (jitter(60), jitter(30));
        assert_eq!(look_back(Some(&before), Some(&after)), Duration::from_secs(60));
        assert_eq!(look_back(Some(&after), None), Duration::from_secs(30));
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
        assert_eq!(plan.keep, [MovedRow { id: open.id, due_at: due_at(&after, 90) }]);
        assert_eq!(plan.reopen.len(), usize::from(due_at(&after, 80) > Timestamp::from_secs(100)));
        let plan = plan_edit(Some(&job(&json!({"every": "10s"}), true)), context(&rows));
        assert_eq!(plan.keep, [MovedRow { id: open.id, due_at: open.fire_at }]);
        assert_eq!(plan.reopen, [], "its start is over");
        let plan = plan_edit(Some(&job(&json!({"every": "7s"}), true)), context(&rows));
        assert_eq!((ids(&plan.settle), plan.reopen.len()), (vec![1], 0));
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
                assert_eq!((plan.keep, plan.reopen), (moved(1), moved(2)), "{before:?}");
            }
        }
    }

    #[test]
    fn a_delay_whose_next_instant_has_a_settled_row_opens_that_row_again() {
        let start = json!({"delay": "2s", "start_at": "1970-01-01T00:02:00Z"});
        let settled = row(7, 120, RunStatus::Skipped);
        let plan = plan_edit(Some(&job(&start, true)), context(&[settled]));
        assert_eq!((moved(&plan.reopen), plan.next_fire_at, plan.awaited_run), (vec![7], None, Some(settled.id)));
    }
}
