//! Maintenance windows: times in which jobs do not fire, and how the fires inside are handled.
//!
//! The decision is made where fires are planned. Fires inside a window are skipped or held. While they are held, the job's
//! cursor advances without rows and remembers the first held fire. When the job is next planned outside of windows, the misfire
//! policy decides about the held fires. A job inside a window is planned again every minute, so that it fires again within a
//! minute if the window ends early.

use std::time::Duration;

use crate::id::{AppId, JobId, MaintenanceId, NamespaceId};
use crate::job::Job;
use crate::misfire::{catch_up_limit, limit_late_fires, skip_missed};
use crate::plan::{LookAhead, Plan, PlannedFire, missed_before, plan_before};
use crate::schedule::just_before;
use crate::spec::MisfireKeep;
use crate::status::Trigger;
use crate::time::Timestamp;
use crate::word_enum::word_enum;

/// The longest window.
pub const LENGTH_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// A job inside a window is planned again after at most this long, so that it notices if the window ends early.
pub const REPLAN_WITHIN: Duration = Duration::from_secs(60);

/// A row of skipped fires reaches at most this long beyond the instant of its first fire, unless all its fires had passed: if some are
/// ahead, the first is at most [`REPLAN_WITHIN`] old, and the last is at most as far ahead of the present or of the first.
pub const SKIPPED_AHEAD_MAX: Duration = Duration::from_secs(120);

word_enum! {
    /// What happens to the fires inside a maintenance window.
    FiresInside {
        /// They are skipped.
        Skip = "skip",
        /// At the end of the window the misfire policy of the job decides which of them run then; the others are skipped.
        Hold = "hold",
    }
}

/// A time in which the jobs of a namespace, or of an app, do not fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    pub id: MaintenanceId,
    pub namespace: NamespaceId,
    /// The app; `None` for all jobs of the namespace.
    pub app: Option<AppId>,
    /// Its first instant.
    pub starts_at: Timestamp,
    /// The first instant after it.
    pub ends_at: Timestamp,
    /// What happens to the fires inside.
    pub fires: FiresInside,
}

impl MaintenanceWindow {
    /// Whether it applies to the jobs of an app.
    #[must_use]
    pub fn covers(&self, namespace: NamespaceId, app: AppId) -> bool {
        self.namespace == namespace && self.app.is_none_or(|own_app| own_app == app)
    }

    /// Whether an instant is inside.
    #[must_use]
    pub fn has(&self, at: Timestamp) -> bool {
        self.starts_at <= at && at < self.ends_at
    }
}

/// Where the next plan of a job starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The first fire that is not planned yet or, while a window holds fires back, the instant at which the job is planned
    /// again.
    pub next_fire_at: Timestamp,
    /// The first fire that is held back; `None` if none is.
    pub held_from: Option<Timestamp>,
}

/// Plans a job under the windows that apply to it. Windows that skip fires count even after their end: a server that was down may find
/// fires that were inside such a window.
#[must_use]
pub fn plan_within(
    job: &Job,
    (id, anchor): (JobId, Timestamp),
    cursor: Cursor,
    look_ahead: LookAhead,
    windows: &[MaintenanceWindow],
) -> Plan {
    let all_windows = windows;
    // A hold window that has ended does not count: the misfire policy decides about its fires anyway.
    let is_counted = |window: &&MaintenanceWindow| window.fires == FiresInside::Skip || window.ends_at > look_ahead.now;
    let windows_in_effect: Vec<&MaintenanceWindow> = all_windows.iter().filter(is_counted).collect();
    let windows_at = |at: Timestamp| windows_in_effect.iter().filter(move |window| window.has(at));
    let next_fire_at = cursor.next_fire_at;
    if let Some(end) = windows_at(next_fire_at).map(|window| window.ends_at).max() {
        let end = end.min(look_ahead.now.max(next_fire_at) + REPLAN_WITHIN);
        if job.timetable.delay().is_some() {
            // A fixed delay waits until the window ends.
            return Plan { next: Some(end), ..Plan::default() };
        }
        if cursor.held_from.is_some() || windows_at(next_fire_at).any(|window| window.fires == FiresInside::Hold) {
            return hold_until(cursor, end);
        }
        let hold_starts =
            windows_in_effect.iter().filter(|window| window.fires == FiresInside::Hold).map(|window| window.starts_at);
        let end = hold_starts.filter(|starts_at| *starts_at > next_fire_at).fold(end, std::cmp::min);
        return skip_until(job, anchor, (next_fire_at, row_end((next_fire_at, end), look_ahead.now)));
    }
    if let Some(held_from) = cursor.held_from {
        return decide_held_fires(job, (anchor, look_ahead.now), (held_from, next_fire_at), all_windows);
    }
    let present_end = windows_at(look_ahead.now).map(|window| window.ends_at).max();
    if let Some(end) = present_end.filter(|_| next_fire_at < missed_before(job, id, look_ahead)) {
        // The fire was missed before the window began; a server finds it only now, inside the window.
        let end = end.min(look_ahead.now + REPLAN_WITHIN);
        return match job.timetable.delay() {
            Some(_) => Plan { next: Some(end), ..Plan::default() },
            None => hold_until(cursor, end),
        };
    }
    let next_window_start =
        windows_in_effect.iter().map(|window| window.starts_at).filter(|starts_at| *starts_at > next_fire_at).min();
    plan_before(job, (id, anchor), next_fire_at, look_ahead, next_window_start)
}

/// The first instant at or after `from` at which a window skips fires instead of holding them. When held fires are decided, those inside a
/// skipping window must still be skipped.
fn first_skipped(windows: &[MaintenanceWindow], from: Timestamp) -> Option<Timestamp> {
    let (skipping_windows, holding_windows): (Vec<_>, Vec<_>) =
        windows.iter().partition(|window| window.fires == FiresInside::Skip);
    let end_of_holds = |mut at: Timestamp| {
        while let Some(holding_window) = holding_windows.iter().find(|window| window.has(at)) {
            at = holding_window.ends_at;
        }
        at
    };
    let first_instant_inside =
        |window: &&MaintenanceWindow| Some(end_of_holds(window.starts_at.max(from))).filter(|at| window.has(*at));
    skipping_windows.iter().filter_map(first_instant_inside).min()
}

/// The instant until which fires are skipped by the window in effect at `at`: a skipping window ends, or a holding one begins.
fn skipped_until(windows: &[MaintenanceWindow], at: Timestamp) -> Timestamp {
    let skip_ends = windows
        .iter()
        .filter(|window| window.fires == FiresInside::Skip && window.has(at))
        .map(|window| window.ends_at);
    let hold_starts = windows.iter().filter(|window| window.fires == FiresInside::Hold).map(|window| window.starts_at);
    skip_ends.chain(hold_starts.filter(|starts_at| *starts_at > at)).min().unwrap_or(at + REPLAN_WITHIN)
}

/// Holds back the fires from the cursor to `end`; the misfire policy decides about them later.
fn hold_until(cursor: Cursor, end: Timestamp) -> Plan {
    Plan { next: Some(end), held_from: cursor.held_from.or(Some(cursor.next_fire_at)), ..Plan::default() }
}

/// The end of a row of skipped fires from `from` to `end`. After a long stall, fires that have passed and fires that are ahead get separate
/// rows (see [`SKIPPED_AHEAD_MAX`]).
fn row_end((from, end): (Timestamp, Timestamp), now: Timestamp) -> Timestamp {
    if from + REPLAN_WITHIN < now { end.min(now) } else { end }
}

/// Skips every fire from `from` to just before `end`.
fn skip_until(job: &Job, anchor: Timestamp, (from, end): (Timestamp, Timestamp)) -> Plan {
    let skipped_plan = skip_missed(&job.timetable, anchor, from, end, (0, MisfireKeep::Newest));
    let next = skipped_plan.next_missed.or_else(|| job.timetable.next_scan_after(anchor, just_before(end)));
    Plan { skipped_in_window: skipped_plan.span.into_iter().collect(), next, ..Plan::default() }
}

/// Applies the misfire policy to the fires held back until `end`. The fires that the policy keeps run from `end` on, in order. Fires inside
/// a skipping window are skipped whatever the policy.
fn decide_held_fires(
    job: &Job,
    (anchor, now): (Timestamp, Timestamp),
    (from, end): (Timestamp, Timestamp),
    windows: &[MaintenanceWindow],
) -> Plan {
    let policy = catch_up_limit(job);
    let (mut missed_plans, mut from, mut next_unskipped, mut has_more_held_fires) = (Vec::new(), from, None, false);
    while from < end && next_unskipped.is_none() {
        let (to, catch_up_limit) = match first_skipped(windows, from) {
            Some(at) if at == from => (skipped_until(windows, from).min(end), (0, MisfireKeep::Newest)),
            next => (next.map_or(end, |at| at.min(end)), policy),
        };
        let to = row_end((from, to), now);
        let missed_plan = skip_missed(&job.timetable, anchor, from, to, catch_up_limit);
        (from, next_unskipped, has_more_held_fires) =
            (to, missed_plan.next_missed, missed_plan.next_missed.is_some() && catch_up_limit == policy);
        missed_plans.push(missed_plan);
    }
    // The policy is applied to all held fires together, even if a skipping window lies between them. If more held fires are
    // left to the next plan and the policy keeps the newest, no fire of this plan is among the newest.
    let (count, keep) = policy;
    let count = if has_more_held_fires && keep == MisfireKeep::Newest { 0 } else { count };
    limit_late_fires(&mut missed_plans, (count, keep));
    let next = next_unskipped.or_else(|| job.timetable.next_scan_after(anchor, just_before(end)));
    let mut plan = Plan { next, ..Plan::default() };
    for missed_plan in missed_plans {
        for fire in missed_plan.catch_up {
            let due_at = plan.fires.last().map_or(end, |last| last.due_at + Duration::from_millis(1));
            plan.fires.push(PlannedFire { fire_at: fire.at, due_at, trigger: Trigger::Misfire });
        }
        plan.skipped_in_window.extend(missed_plan.span);
    }
    plan
}

#[cfg(test)]
mod tests;
