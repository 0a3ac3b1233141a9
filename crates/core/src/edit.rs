//! How an edit changes the unsent rows of a job, so that no fire runs under a definition that was replaced.
//!
//! If the new definition also fires at the instant of a row, the row moves to the new version; otherwise it is settled as skipped. If a
//! later definition fires at that instant again, and the instant has not passed, the settled row is reopened. No second row is inserted,
//! because the row's key already exists. The next fire is the first one without a row. Past fires without a row are recorded in one skipped
//! row, unless the scan still runs them.

use std::time::Duration;

use crate::id::{JobId, RunId};
use crate::job::Job;
use crate::maintenance::REPLAN_WITHIN;
use crate::misfire::MissedSpan;
use crate::plan::span_between;
use crate::reason::Reason;
use crate::schedule::just_before;
use crate::status::RunStatus;
use crate::time::Timestamp;

/// The tick reads rows this long before they may start. An edit therefore leaves a row that may start within this time
/// as it is: the tick may already have read it, and the ledger could then show `skipped` for a run that began. Fires
/// that are due more than this long after an edit follow the edit. A server sends a trigger at most this long before the
/// trigger's instant.
pub const EDIT_CUTOFF: Duration = Duration::from_secs(1);

/// If a span has this many fires or more, definitions with different calendars count as having different fires in it.
const COMPARED_MAX: usize = 10_000;

/// An unsent row that the job's own schedule planned (cause 0). Its planned instant or, with jitter, its start is in the
/// future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutureRow {
    pub id: RunId,
    /// The planned instant.
    pub fire_at: Timestamp,
    /// When it may start: its planned instant, or later by jitter.
    pub due_at: Timestamp,
    /// `pending` or `waiting` if it is open, `skipped` if an earlier edit settled it.
    pub status: RunStatus,
    /// Whether an earlier edit inserted it for past fires that it skipped (see [`EditPlan::skipped_span`]). Such a row is in the future only
    /// if the clock has stepped back, and stays settled: it may stand for several fires, and a maintenance window may have held them back.
    pub is_span: bool,
}

/// The state of a job when it is edited.
#[derive(Clone, Copy, Debug)]
pub struct EditContext<'a> {
    pub job: JobId,
    /// The instant from which its `every` schedules count.
    pub anchor: Timestamp,
    /// The instant of the edit, by the clock of the server that received it.
    pub now: Timestamp,
    /// When the new definition was checked. A one-time fire (schedule `at`) with a later instant was in the future at the check, so
    /// it still happens if its instant has passed by now.
    pub checked_at: Timestamp,
    /// The greatest time that the clock had shown when the rows were read. It is later than `now` if the edit was slow to arrive, or
    /// if the clock stepped back. Rows due by then may have been sent.
    pub read_at: Timestamp,
    /// Its future rows, in any order.
    pub rows: &'a [FutureRow],
    /// The definition before the edit; `None` if it can no longer be read.
    pub before: Option<&'a Job>,
    /// The first fire without a row, by the definition before the edit; `None` if no fire follows, or an open run sets it.
    pub next_fire_at: Option<Timestamp>,
    /// The open run whose end sets the next fire; only for a job with a fixed delay.
    pub awaited_run: Option<RunId>,
}

/// A row that runs under the new definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedRow {
    pub id: RunId,
    /// When it may start, by the new definition.
    pub due_at: Timestamp,
}

/// The changes that an edit makes to a job's rows and its next fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditPlan {
    /// Open rows that move to the new version.
    pub kept_rows: Vec<MovedRow>,
    /// Open rows that end as skipped.
    pub skipped_rows: Vec<RunId>,
    /// Why they are skipped.
    pub reason: Reason,
    /// Past fires of the previous definition that have no row and will not run; they are skipped for the same reason.
    pub skipped_span: Option<MissedSpan>,
    /// Settled rows that are open again under the new version.
    pub reopened_rows: Vec<MovedRow>,
    /// The first fire without a row.
    pub next_fire_at: Option<Timestamp>,
    /// The open run whose end sets the next fire.
    pub awaited_run: Option<RunId>,
}

/// Plans an edit. `job` is the new definition; `None` if the job is deleted.
#[must_use]
pub fn plan_edit(job: Option<&Job>, context: EditContext<'_>) -> EditPlan {
    let reason = match job {
        None => Reason::Deleted,
        Some(job) if !job.enabled => Reason::Paused,
        Some(_) => Reason::Changed,
    };
    let mut plan = EditPlan {
        kept_rows: Vec::new(),
        skipped_rows: Vec::new(),
        reason,
        skipped_span: None,
        reopened_rows: Vec::new(),
        next_fire_at: None,
        awaited_run: context.awaited_run,
    };
    match job.filter(|job| job.enabled) {
        Some(job) if job.timetable.delay().is_some() => plan_delay(&mut plan, job, context),
        enabled_job => plan_clock(&mut plan, enabled_job, context),
    }
    let overdue_at = context.next_fire_at.filter(|at| *at <= context.now && plan.next_fire_at != Some(*at));
    if let (Some(overdue_at), Some(before)) = (overdue_at, context.before.filter(|before| before.enabled)) {
        plan.skipped_span = span_between(before, context.anchor, overdue_at, context.now);
    }
    plan
}

/// How far a row's planned instant can lie in the past while its start is still ahead: the larger jitter of the definitions before and
/// after an edit.
#[must_use]
pub fn look_back_period(before: Option<&Job>, after: Option<&Job>) -> Duration {
    before.into_iter().chain(after).map(|job| job.timetable.jitter_max()).max().unwrap_or_default()
}

fn plan_clock(plan: &mut EditPlan, job: Option<&Job>, context: EditContext<'_>) {
    let EditContext { anchor, now, checked_at, rows, .. } = context;
    for row in rows {
        let moved_row = due_at_under(job, row, context)
            .map(|due_at| MovedRow { id: row.id, due_at: due_at.max(earliest_start(row, context)) });
        match (row.status.is_terminal(), moved_row) {
            // A server may have read the row under the previous definition: the row must not show another version, start or number of shards.
            (false, _) if may_be_sent(row, context) => {}
            // If the jitter of the new definition puts the start of the row into the past, the row starts now: a server that takes it up
            // judges by its start whether it was missed.
            (false, Some(moved_row)) => {
                plan.kept_rows.push(MovedRow { due_at: moved_row.due_at.max(now), ..moved_row });
            }
            (false, None) => plan.skipped_rows.push(row.id),
            // The jitter of the new definition may put the start of the row into the past. Then the row stays settled.
            (true, Some(moved_row)) if moved_row.due_at > now && !row.is_span => plan.reopened_rows.push(moved_row),
            (true, _) => {}
        }
    }
    let next_after = |at| job.and_then(|job| job.timetable.next_scan_after(anchor, at));
    plan.next_fire_at = next_after(now);
    while let Some(at) = plan.next_fire_at.filter(|at| rows.iter().any(|row| row.fire_at == *at)) {
        plan.next_fire_at = next_after(at);
    }
    // If the schedule stays the same, the fires before the stored next fire already have verdicts, and must not be planned again: a
    // maintenance window skips fires up to `REPLAN_WITHIN` ahead, with one row for all of them. If the stored next fire is much further
    // ahead, the clock stepped back.
    let soon_at = context.next_fire_at.filter(|at| *at > now && *at <= now + REPLAN_WITHIN * 2);
    if let (Some(next), Some((old_job, new_job))) = (soon_at, context.before.zip(job))
        && old_job.enabled
        && has_same_fires(old_job, new_job, anchor, (now, next))
    {
        plan.next_fire_at = plan.next_fire_at.map(|at| at.max(next));
    }
    // A one-time fire whose instant passed between the check and now still fires: it becomes the next fire, and the scan finds it. If
    // that fire has a row already, the scan inserts no second row, because rows of one fire have the same unique key.
    let once_fire = job.and_then(|job| job.timetable.once_within(checked_at, now));
    plan.next_fire_at = once_fire.or(plan.next_fire_at);
    // If the schedule stays the same, past fires without a row (their home node has just died, or a maintenance window holds them
    // back) are left to the scan: it runs them or records why not.
    let overdue_at = context.next_fire_at.filter(|at| *at <= now);
    if let (Some(overdue_at), Some((old_job, new_job))) = (overdue_at, context.before.zip(job))
        && old_job.enabled
        && has_same_fires(old_job, new_job, anchor, (overdue_at, now))
    {
        plan.next_fire_at = Some(overdue_at);
    }
    // A run that is settled here triggers nothing when it ends, so the next fire must not wait for it.
    plan.awaited_run = plan.awaited_run.filter(|run| !plan.skipped_rows.contains(run));
}

/// Whether the new definition fires at the same instants of this span, both ends included, as the old one: it has the same
/// schedules, and its calendar moves and removes the same fires.
fn has_same_fires(old_job: &Job, new_job: &Job, anchor: Timestamp, (from, through): (Timestamp, Timestamp)) -> bool {
    let fires = |job: &Job| -> Vec<Timestamp> {
        let fires = job.timetable.fires(anchor, just_before(from), through);
        fires.map(|fire| fire.at).take(COMPARED_MAX).collect()
    };
    if old_job.timetable == new_job.timetable {
        return true;
    }
    let has_equal_fires = || {
        let old_fires = fires(old_job);
        old_fires.len() < COMPARED_MAX && old_fires == fires(new_job)
    };
    old_job.timetable.schedules == new_job.timetable.schedules && has_equal_fires()
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

fn may_be_sent(row: &FutureRow, context: EditContext<'_>) -> bool {
    row.status == RunStatus::Pending && row.due_at < context.now.max(context.read_at) + EDIT_CUTOFF
}

/// Plans an edit of a job with a fixed delay, which has at most one future fire. If the delay is unchanged, that fire stays as
/// it is.
fn plan_delay(plan: &mut EditPlan, job: &Job, context: EditContext<'_>) {
    let is_same_schedule =
        context.before.is_some_and(|before| before.enabled && before.timetable.schedules == job.timetable.schedules);
    for row in context.rows.iter().filter(|row| !row.status.is_terminal()) {
        if may_be_sent(row, context) {
            continue;
        }
        if is_same_schedule {
            plan.kept_rows.push(MovedRow { id: row.id, due_at: row.due_at });
        } else {
            plan.skipped_rows.push(row.id);
        }
    }
    plan.awaited_run = plan.awaited_run.filter(|run| !plan.skipped_rows.contains(run));
    plan.next_fire_at = match (plan.awaited_run, context.next_fire_at) {
        (Some(_), _) => None,
        (None, Some(next)) if is_same_schedule => Some(next),
        (None, _) => job.timetable.first_delayed(context.now),
    };
    // If an earlier edit ended the row of that instant as skipped, the row is opened again.
    let is_next = |row: &&FutureRow| row.status.is_terminal() && !row.is_span && Some(row.fire_at) == plan.next_fire_at;
    if let Some(row) = context.rows.iter().find(is_next) {
        plan.reopened_rows.push(MovedRow { id: row.id, due_at: row.due_at });
        (plan.next_fire_at, plan.awaited_run) = (None, Some(row.id));
    }
}

#[cfg(test)]
mod tests;
