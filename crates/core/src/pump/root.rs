//! When a root run of a pump job begins and ends. A root run is the row that stands for all groups of a fire; its
//! window lasts from its planned start to the end that [`Until`] sets.

use std::time::Duration;

use super::{Pump, Until};
use crate::job::Job;
use crate::reason::Reason;
use crate::status::{RunStatus, Trigger};
use crate::time::Timestamp;

/// Wait between a root run that failed, or was skipped, and the next one.
const WAIT_AFTER_FAILURE: Duration = Duration::from_secs(60);
/// For this long after a planned start, only the schedule may begin the run. After that, this module begins it.
const SCHEDULE_BEGINS_WITHIN: Duration = Duration::from_secs(10);
/// The reasons after which no other run begins in the same window.
const FINAL_REASONS: [Reason; 6] =
    [Reason::Requested, Reason::Covered, Reason::WindowOver, Reason::Dry, Reason::Shadow, Reason::Maintenance];

/// The newest root run of a pump job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its planned instant.
    pub fire_at: Timestamp,
    /// The version of the definition that it runs under.
    pub version: i64,
    /// Why it exists.
    pub trigger: Trigger,
    pub status: RunStatus,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Whether it was asked to end.
    pub is_asked_to_end: bool,
}

impl Root {
    /// Whether the schedule or this module began it, rather than a caller.
    const fn is_by_schedule(self) -> bool {
        !matches!(self.trigger, Trigger::Manual | Trigger::Api | Trigger::Parent | Trigger::Backfill)
    }

    /// The trigger for a run that continues this run outside of the windows of the schedule; `None` if the schedule began this
    /// run. The trigger keeps the fact that a caller asked for the run, because a later edit or pause depends on it.
    const fn continued_trigger(self) -> Option<Trigger> {
        match self.trigger {
            Trigger::Manual | Trigger::Api => Some(self.trigger),
            // Only a run with a cause of its own can have one of these triggers.
            Trigger::Parent | Trigger::Backfill => Some(Trigger::Api),
            Trigger::Cron | Trigger::Interval | Trigger::Once | Trigger::Misfire => None,
        }
    }

    /// Whether an edit or a pause ended it.
    const fn was_ended_by_edit(self) -> bool {
        matches!(self.reason, Some(Reason::Paused | Reason::Changed))
    }
}

/// Facts about a pump job that its definition does not contain.
#[derive(Clone, Copy, Debug)]
pub struct PumpJobState {
    /// The version of its newest definition.
    pub version: i64,
    /// When that definition was saved.
    pub saved_at: Timestamp,
    /// The instant from which the periods of its schedule are counted.
    pub anchor: Timestamp,
    /// Whether a maintenance window is under way, in which no root run begins.
    pub is_in_maintenance: bool,
}

/// What happens to the root run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootStep {
    /// It stays as it is.
    Stay,
    /// A new root run begins, planned for this instant.
    Begin(Timestamp),
    /// A new root run, planned for this instant, continues the newest one, which an edit, a pause or a failure interrupted.
    Continue(Timestamp),
    /// The run ends, for this reason.
    End(Reason),
}

/// Decides what happens to the root run of a pump job. `newest_root` is the newest root run whose planned instant is not in the
/// future; `is_dry` is whether every item is dry at its current epoch.
#[must_use]
pub fn next_step(
    (job, pump): (&Job, &Pump),
    state: PumpJobState,
    newest_root: Option<Root>,
    is_dry: bool,
    now: Timestamp,
) -> RootStep {
    match newest_root {
        Some(root) if !root.status.is_terminal() => decide_end(job, pump, state.version, root, is_dry, now),
        newest_root if job.enabled && !state.is_in_maintenance => begin_root(job, pump, state, newest_root, now),
        _ => RootStep::Stay,
    }
}

/// The trigger of the run that continues the newest of these root runs, which are sorted with the newest first; `None` if the
/// schedule counts as its trigger. The schedule counts if it began one of the interrupted runs whose windows are still open:
/// the new run continues all of these, so a pause must end it.
#[must_use]
pub fn trigger_of_continued(pump: &Pump, roots: &[Root], now: Timestamp) -> Option<Trigger> {
    let is_open = |root: &&Root| pump.until.end_of(root.fire_at).is_none_or(|end| now < end);
    let mut interrupted_roots = roots.iter().take_while(|root| root.was_ended_by_edit()).filter(is_open);
    if interrupted_roots.any(|root| root.is_by_schedule()) {
        return None;
    }
    roots.first().and_then(|root| root.continued_trigger())
}

fn decide_end(job: &Job, pump: &Pump, version: i64, root: Root, is_dry: bool, now: Timestamp) -> RootStep {
    let reason = if root.is_asked_to_end {
        None
    } else if !job.enabled && root.is_by_schedule() {
        Some(Reason::Paused)
    } else if job.enabled && root.version != version {
        // A run that was triggered by hand keeps running while the job is paused, although the pause makes a new version.
        Some(Reason::Changed)
    } else if pump.until.end_of(root.fire_at).is_some_and(|end| end <= now) {
        Some(Reason::WindowOver)
    } else if pump.until == Until::Empty && is_dry {
        Some(Reason::Dry)
    } else {
        None
    };
    reason.map_or(RootStep::Stay, RootStep::End)
}

/// Begins the root runs that the schedule does not begin itself: in a pump without a schedule, in a window that was already open when a
/// server started or a definition was saved, and after an edit or a failure that interrupted a run.
fn begin_root(job: &Job, pump: &Pump, state: PumpJobState, newest_root: Option<Root>, now: Timestamp) -> RootStep {
    let start = window_start(job, pump, state, now).or_else(|| interrupted_window_start(job, pump, newest_root?, now));
    let Some(start) = start else { return RootStep::Stay };
    let Some(root) = newest_root else { return RootStep::Begin(start) };
    if root.fire_at < start {
        // Without a schedule, the edit that interrupted the run also opened a new window.
        let is_same_window = job.timetable.schedules.is_empty() && root.was_ended_by_edit();
        return if is_same_window { RootStep::Continue(start) } else { RootStep::Begin(start) };
    }
    let has_rested =
        root.was_ended_by_edit() || root.finished_at.is_none_or(|finished_at| now >= finished_at + WAIT_AFTER_FAILURE);
    if was_interrupted(root) && has_rested {
        RootStep::Continue(now.max(root.fire_at + Duration::from_millis(1)))
    } else {
        RootStep::Stay
    }
}

/// Whether a run ended although its window was open and no user wanted it to end.
fn was_interrupted(root: Root) -> bool {
    let is_final = root.reason.is_some_and(|reason| FINAL_REASONS.contains(&reason));
    !is_final && (root.status != RunStatus::Succeeded || root.was_ended_by_edit())
}

/// The start of a window that an edit or a pause interrupted, and that is still open although the schedule does not open it again. This
/// applies to a pump that ends when it is empty, and to a run that was triggered by hand.
fn interrupted_window_start(job: &Job, pump: &Pump, newest_root: Root, now: Timestamp) -> Option<Timestamp> {
    let ends_empty = !job.timetable.schedules.is_empty() && pump.until == Until::Empty;
    let is_by_hand =
        !newest_root.is_by_schedule() && pump.until.end_of(newest_root.fire_at).is_some_and(|end| now < end);
    (newest_root.was_ended_by_edit() && (ends_empty || is_by_hand)).then_some(newest_root.fire_at)
}

/// Start of the window that is open now; `None` if none is.
fn window_start(job: &Job, pump: &Pump, state: PumpJobState, now: Timestamp) -> Option<Timestamp> {
    let schedules = &job.timetable.schedules;
    let start = if schedules.is_empty() {
        state.saved_at
    } else {
        // Only a window with an end instant can be entered after its start.
        if !matches!(pump.until, Until::At(_)) {
            return None;
        }
        let latest_begin = now.saturating_sub(SCHEDULE_BEGINS_WITHIN) + Duration::from_millis(1);
        let window_start =
            schedules.iter().filter_map(|schedule| schedule.prev_before(state.anchor, latest_begin)).max()?;
        job.timetable.fire_at(state.anchor, window_start)?.at
    };
    let is_open = start <= now && pump.until.end_of(start).is_none_or(|end| now < end);
    is_open.then_some(start)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::spec::JobSpec;

    fn job(schedule: &Value, until: &Value, enabled: bool) -> Job {
        let mut pump = json!({"items": {"count": 4}, "groups": 2});
        if !until.is_null() {
            pump["until"] = until.clone();
        }
        let spec =
            json!({"name": "p", "app": "a", "handler": "h", "schedule": schedule, "pump": pump, "enabled": enabled});
        serde_json::from_value::<JobSpec>(spec).unwrap().compile().unwrap()
    }

    fn nightly(enabled: bool) -> Job {
        let from = json!({"cron": "0 0 22 * * ?", "time_zone": "Asia/Shanghai"});
        job(&from, &json!({"cron": "0 0 6 * * ?"}), enabled)
    }

    fn at(text: &str) -> Timestamp {
        format!("2026-11-{text}:00+08:00").parse().unwrap()
    }

    fn root(fire_at: Timestamp) -> Root {
        let (version, trigger, status) = (1, Trigger::Cron, RunStatus::Running);
        Root { fire_at, version, trigger, status, reason: None, finished_at: None, is_asked_to_end: false }
    }

    fn ended(fire_at: Timestamp, status: RunStatus, reason: Option<Reason>) -> Root {
        Root { status, reason, finished_at: Some(fire_at), ..root(fire_at) }
    }

    fn state(saved_at: Timestamp) -> PumpJobState {
        PumpJobState { version: 1, saved_at, anchor: saved_at, is_in_maintenance: false }
    }

    #[track_caller]
    fn check(job: &Job, newest: Option<Root>, now: &str, expected: RootStep) {
        check_in(job, state(at("20T12:00")), newest, now, expected);
    }

    #[track_caller]
    fn check_in(job: &Job, state: PumpJobState, newest: Option<Root>, now: &str, expected: RootStep) {
        let pump = job.pump.clone().unwrap();
        assert_eq!(next_step((job, &pump), state, newest, false, at(now)), expected, "at {now}");
    }

    #[test]
    fn a_window_is_open_from_its_start_to_its_end() {
        let job = nightly(true);
        check(&job, None, "25T21:59", RootStep::Stay);
        check(&job, None, "25T22:00", RootStep::Stay);
        check(&job, None, "25T22:01", RootStep::Begin(at("25T22:00")));
        check(&job, None, "26T05:59", RootStep::Begin(at("25T22:00")));
        check(&job, None, "26T06:00", RootStep::Stay);
        let before = ended(at("24T22:00"), RunStatus::Succeeded, Some(Reason::WindowOver));
        check(&job, Some(before), "25T23:00", RootStep::Begin(at("25T22:00")));
    }

    #[test]
    fn a_root_run_ends_with_its_window() {
        let (job, open) = (nightly(true), Some(root(at("25T22:00"))));
        check(&job, open, "26T05:59", RootStep::Stay);
        check(&job, open, "26T06:00", RootStep::End(Reason::WindowOver));
        check(&job, open.map(|root| Root { is_asked_to_end: true, ..root }), "26T06:00", RootStep::Stay);
        check(&nightly(false), open, "25T23:00", RootStep::End(Reason::Paused));
        check(&job, open.map(|root| Root { version: 0, ..root }), "25T23:00", RootStep::End(Reason::Changed));
    }

    /// The run continues until its own end, under the definition from before the pause. If the job is resumed earlier, it
    /// continues the run outside of its schedule too.
    #[test]
    fn a_run_by_hand_goes_on_while_its_job_is_paused() {
        let by_hand = Root { trigger: Trigger::Api, ..root(at("25T12:00")) };
        let of_before = Root { version: 0, ..by_hand };
        check(&nightly(false), Some(of_before), "25T13:00", RootStep::Stay);
        check(&nightly(false), Some(of_before), "26T06:00", RootStep::End(Reason::WindowOver));
        check(&nightly(true), Some(of_before), "25T13:00", RootStep::End(Reason::Changed));
        let ended =
            Root { trigger: Trigger::Api, ..ended(by_hand.fire_at, RunStatus::Succeeded, Some(Reason::Changed)) };
        check(&nightly(true), Some(ended), "25T13:00", RootStep::Continue(at("25T13:00")));
        check(&nightly(true), Some(ended), "26T07:00", RootStep::Stay);
        check(&nightly(true), Some(Root { trigger: Trigger::Cron, ..ended }), "25T13:00", RootStep::Stay);
    }

    #[test]
    fn a_run_that_continues_one_by_hand_counts_as_one_by_hand() {
        for (trigger, expected) in [
            (Trigger::Manual, Some(Trigger::Manual)),
            (Trigger::Api, Some(Trigger::Api)),
            (Trigger::Parent, Some(Trigger::Api)),
            (Trigger::Backfill, Some(Trigger::Api)),
            (Trigger::Cron, None),
            (Trigger::Misfire, None),
        ] {
            let root = Root { trigger, ..root(at("25T12:00")) };
            assert_eq!(root.continued_trigger(), expected, "{trigger}");
            assert_eq!(root.is_by_schedule(), expected.is_none());
        }
    }

    #[test]
    fn a_run_that_continues_one_by_hand_and_one_of_the_schedule_counts_as_the_schedules() {
        let pump = nightly(true).pump.unwrap();
        let changed = |fire_at| ended(fire_at, RunStatus::Skipped, Some(Reason::Changed));
        let by_hand = |text: &str| Root { trigger: Trigger::Manual, ..changed(at(text)) };
        let trigger = |roots: &[Root]| trigger_of_continued(&pump, roots, at("25T23:30"));
        assert_eq!(trigger(&[by_hand("25T23:00"), changed(at("25T22:00"))]), None, "it waited behind the schedule's");
        assert_eq!(trigger(&[by_hand("25T23:00"), by_hand("25T22:30"), changed(at("25T22:00"))]), None);
        assert_eq!(trigger(&[by_hand("25T23:00"), changed(at("24T22:00"))]), Some(Trigger::Manual), "another night");
        let cancelled = ended(at("25T22:00"), RunStatus::Cancelled, Some(Reason::Requested));
        assert_eq!(trigger(&[by_hand("25T23:00"), cancelled]), Some(Trigger::Manual));
        assert_eq!((trigger(&[changed(at("25T22:00"))]), trigger(&[])), (None, None));
    }

    #[test]
    fn no_run_begins_in_a_maintenance_window_and_skipped_runs_stay_skipped() {
        let job = nightly(true);
        let closed = PumpJobState { is_in_maintenance: true, ..state(at("20T12:00")) };
        check_in(&job, closed, None, "25T22:01", RootStep::Stay);
        check_in(&job, closed, Some(root(at("25T22:00"))), "25T23:00", RootStep::Stay);
        check_in(&job, closed, Some(root(at("25T22:00"))), "26T06:00", RootStep::End(Reason::WindowOver));
        let changed = ended(at("25T22:00"), RunStatus::Succeeded, Some(Reason::Changed));
        check_in(&job, closed, Some(changed), "25T23:00", RootStep::Stay);
        let skipped = ended(at("25T22:00"), RunStatus::Skipped, Some(Reason::Maintenance));
        check(&job, Some(skipped), "25T23:00", RootStep::Stay);
    }

    #[test]
    fn the_periods_of_a_window_are_counted_from_the_anchor_of_the_job() {
        let job = job(&json!({"every": "7h"}), &json!({"cron": "0 0 6 * * ?", "time_zone": "Asia/Shanghai"}), true);
        let state = PumpJobState { anchor: at("20T01:00"), ..state(at("20T12:00")) };
        check_in(&job, state, None, "20T16:00", RootStep::Begin(at("20T15:00")));
    }

    #[test]
    fn a_run_that_ended_within_its_window_is_continued_unless_its_end_was_requested() {
        let job = nightly(true);
        let again = RootStep::Continue(at("25T23:00"));
        for (status, reason, expected) in [
            (RunStatus::Cancelled, Some(Reason::Requested), RootStep::Stay),
            (RunStatus::Succeeded, Some(Reason::Dry), RootStep::Stay),
            (RunStatus::Failed, Some(Reason::WindowOver), RootStep::Stay),
            (RunStatus::Succeeded, None, RootStep::Stay),
            (RunStatus::Succeeded, Some(Reason::Paused), again),
            (RunStatus::Skipped, Some(Reason::Paused), again),
            (RunStatus::Succeeded, Some(Reason::Changed), again),
            (RunStatus::Skipped, Some(Reason::Misfire), again),
            (RunStatus::Failed, None, again),
        ] {
            check(&job, Some(ended(at("25T22:00"), status, reason)), "25T23:00", expected);
        }
        check(&nightly(false), None, "25T23:00", RootStep::Stay);
    }

    #[test]
    fn a_pump_without_a_schedule_runs_from_when_it_was_saved() {
        let job = job(&Value::Null, &Value::Null, true);
        check(&job, None, "25T21:59", RootStep::Begin(at("20T12:00")));
        check(&job, Some(root(at("20T12:00"))), "25T21:59", RootStep::Stay);
        let stopped = ended(at("20T12:00"), RunStatus::Cancelled, Some(Reason::Requested));
        check(&job, Some(stopped), "25T21:59", RootStep::Stay);
        let older = ended(at("19T12:00"), RunStatus::Cancelled, Some(Reason::Requested));
        check(&job, Some(older), "25T21:59", RootStep::Begin(at("20T12:00")));
        let edited = ended(at("19T12:00"), RunStatus::Succeeded, Some(Reason::Changed));
        check(&job, Some(edited), "25T21:59", RootStep::Continue(at("20T12:00")));
    }

    #[test]
    fn a_window_follows_its_zone_over_a_clock_change() {
        let from = json!({"cron": "0 0 22 * * ?", "time_zone": "Europe/Berlin"});
        let job = job(&from, &json!({"cron": "0 30 2 * * ?"}), true);
        let pump = job.pump.clone().unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        for (start, end) in [
            // Clocks go back at 3:00, to 2:00: half past two comes first in summer time.
            ("2026-10-24T22:00:00+02:00", "2026-10-25T02:30:00+02:00"),
            // Clocks go forward at 2:00, to 3:00: there is no half past two.
            ("2026-03-28T22:00:00+01:00", "2026-03-29T03:00:00+02:00"),
            ("2026-06-01T22:00:00+02:00", "2026-06-02T02:30:00+02:00"),
        ] {
            assert_eq!(pump.until.end_of(at(start)), Some(at(end)), "{start}");
            let step = |now| next_step((&job, &pump), state(at("2026-01-01T00:00:00Z")), None, false, now);
            let just_before = Timestamp::from_millis(at(end).as_millis() - 1);
            assert_eq!((step(just_before), step(at(end))), (RootStep::Begin(at(start)), RootStep::Stay), "{start}");
        }
    }

    #[test]
    fn a_pump_until_empty_ends_when_every_item_is_dry() {
        let job = job(&json!({"cron": "0 0 22 * * ?"}), &json!("empty"), true);
        let pump = job.pump.clone().unwrap();
        let (state, open) = (state(at("20T12:00")), Some(root(at("25T22:00"))));
        let step = |is_dry| next_step((&job, &pump), state, open, is_dry, at("25T23:00"));
        assert_eq!((step(false), step(true)), (RootStep::Stay, RootStep::End(Reason::Dry)));
        check(&job, None, "26T08:00", RootStep::Stay);
        // An edit or a pause ends the run, but the pump is not empty then.
        for (status, reason, expected) in [
            (RunStatus::Succeeded, Reason::Changed, RootStep::Continue(at("25T23:00"))),
            (RunStatus::Succeeded, Reason::Paused, RootStep::Continue(at("25T23:00"))),
            (RunStatus::Skipped, Reason::Paused, RootStep::Continue(at("25T23:00"))),
            (RunStatus::Succeeded, Reason::Dry, RootStep::Stay),
            (RunStatus::Failed, Reason::Dry, RootStep::Stay),
            (RunStatus::Cancelled, Reason::Requested, RootStep::Stay),
            (RunStatus::Skipped, Reason::Misfire, RootStep::Stay),
        ] {
            check(&job, Some(ended(at("25T22:00"), status, Some(reason))), "25T23:00", expected);
        }
        let paused = Some(ended(at("25T22:00"), RunStatus::Succeeded, Some(Reason::Paused)));
        let off = self::job(&json!({"cron": "0 0 22 * * ?"}), &json!("empty"), false);
        check(&off, paused, "25T23:00", RootStep::Stay);
    }
}
