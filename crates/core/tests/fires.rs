//! Whatever happens to a job, each of its fires has a row of the ledger: its own, or one of a span that was skipped.
//!
//! A model of one job, its rows and the maintenance windows takes scans, edits, windows and stalls of all servers in any order. The model
//! decides nothing: it applies the plans of this crate, without the fires that already have a row, as a server does.

use std::time::Duration;

use proptest::prelude::*;
use rondel_core::edit::{EditContext, FutureRow, MovedRow, plan_edit};
use rondel_core::maintenance::{Cursor, FiresInside, MaintenanceWindow, SKIPPED_AHEAD_MAX, plan_within};
use rondel_core::misfire::MissedSpan;
use rondel_core::plan::{LookAhead, join_all_spans, spans_without_rows};
use rondel_core::{Job, JobId, JobSpec, MaintenanceId, NamespaceId, Reason, RunId, RunStatus, Timestamp};
use serde_json::{Value, json};

const ID: JobId = JobId::new(1);
const ANCHOR: Timestamp = Timestamp::EPOCH;
const LOOK_AHEAD: Duration = Duration::from_secs(5);
/// New maintenance windows begin no earlier than this after their creation.
const WINDOW_LEAD: Duration = Duration::from_secs(7);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Servers scan each second for this many seconds.
    Scans(u8),
    /// All servers stand still for this many seconds.
    Stall(u16),
    Pause,
    Resume,
    /// The job gets another schedule.
    Change,
    /// A window is planned. The numbers are its start, in seconds after the earliest allowed start, and its length in seconds.
    Window(FiresInside, u8, u16),
    /// Ends all windows that are open.
    EndWindows,
    /// This many milliseconds pass without a scan.
    Wait(u16),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let fires_inside = prop_oneof![Just(FiresInside::Skip), Just(FiresInside::Hold)];
    let step = prop_oneof![
        4 => (1_u8..6).prop_map(Step::Scans),
        2 => prop_oneof![4 => 1_u16..20, 1 => 100_u16..400].prop_map(Step::Stall),
        2 => Just(Step::Pause),
        3 => Just(Step::Resume),
        1 => Just(Step::Change),
        2 => (fires_inside, 0_u8..6, prop_oneof![4 => 1_u16..12, 1 => 200_u16..600]).prop_map(|(fires, after, length)| Step::Window(fires, after, length)),
        1 => Just(Step::EndWindows),
        1 => (1_u16..999).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..24)
}

fn misfires() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"policy": "skip", "tolerance": "2s"})),
        Just(json!({"policy": "once", "tolerance": "2s"})),
        Just(json!({"policy": "all", "max": 2, "tolerance": "1s"})),
        Just(json!({"policy": "all", "max": 2, "keep": "oldest", "tolerance": "3s"})),
    ]
}

#[derive(Clone, Debug)]
struct Row {
    id: RunId,
    first: Timestamp,
    /// The last fire that the row stands for.
    last: Timestamp,
    due_at: Timestamp,
    status: RunStatus,
    reason: Option<Reason>,
    /// Whether an edit inserted it for past fires.
    is_span: bool,
}

struct Model {
    schedules: [Value; 2],
    misfire: Value,
    /// The index of the job's schedule.
    schedule: usize,
    job: Job,
    now: Timestamp,
    caught_up_at: Timestamp,
    next_fire_at: Option<Timestamp>,
    held_from: Option<Timestamp>,
    rows: Vec<Row>,
    windows: Vec<MaintenanceWindow>,
    changed_at: Timestamp,
}

#[expect(clippy::unwrap_used, reason = "the definitions are right")]
fn compile(schedule: &Value, misfire: &Value, enabled: bool) -> Job {
    let spec =
        json!({"name": "a", "app": "b", "handler": "c", "schedule": schedule, "misfire": misfire, "enabled": enabled});
    serde_json::from_value::<JobSpec>(spec).unwrap().compile().unwrap()
}

impl Model {
    fn new(schedules: [Value; 2], misfire: Value) -> Self {
        let now = Timestamp::from_secs(1_000);
        let job = compile(&schedules[0], &misfire, true);
        let next_fire_at = job.timetable.next_scan_after(ANCHOR, now);
        let (rows, windows) = (Vec::new(), Vec::new());
        let (caught_up_at, changed_at) = (now, now);
        Self {
            schedules,
            misfire,
            schedule: 0,
            job,
            now,
            caught_up_at,
            next_fire_at,
            held_from: None,
            rows,
            windows,
            changed_at,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Scans(seconds) => (0..seconds).for_each(|_| self.scan_after(Duration::from_secs(1))),
            Step::Stall(seconds) => self.scan_after(Duration::from_secs(seconds.into())),
            Step::Wait(millis) => self.now = self.now + Duration::from_millis(millis.into()),
            Step::Pause => self.edit(self.schedule, false),
            Step::Resume => self.edit(self.schedule, true),
            Step::Change => self.edit(1 - self.schedule, self.job.enabled),
            Step::Window(fires, after, length) => {
                let starts_at = self.now + WINDOW_LEAD + Duration::from_secs(after.into());
                let ends_at = starts_at + Duration::from_secs(length.into());
                let (id, namespace) = (MaintenanceId::new(1), NamespaceId::new(1));
                self.windows.push(MaintenanceWindow { id, namespace, app: None, starts_at, ends_at, fires });
            }
            Step::EndWindows => {
                let now = self.now;
                self.windows.iter_mut().filter(|window| window.has(now)).for_each(|window| window.ends_at = now);
            }
        }
    }

    /// Lets time pass, and then scans until nothing is due. Runs that are due by then succeed.
    fn scan_after(&mut self, time: Duration) {
        (self.caught_up_at, self.now) = (self.now, self.now + time);
        let look_ahead = LookAhead { now: self.now, caught_up_at: self.caught_up_at, end: self.now + LOOK_AHEAD };
        for _ in 0..100 {
            let Some(next_fire_at) = self.next_fire_at.filter(|at| *at <= look_ahead.end) else { break };
            let cursor = Cursor { next_fire_at, held_from: self.held_from };
            let plan = plan_within(&self.job, (ID, ANCHOR), cursor, look_ahead, &self.windows);
            let closed_spans = plan.skipped_in_window.iter().map(|span| (*span, Reason::Maintenance));
            for (span, reason) in plan.missed.map(|span| (span, Reason::Misfire)).into_iter().chain(closed_spans) {
                for span in spans_without_rows(&self.job, ANCHOR, span, &self.stored(span)) {
                    self.insert_span(span, reason, false);
                }
            }
            for fire in &plan.fires {
                if self.rows.iter().all(|row| row.first != fire.fire_at) {
                    self.insert((fire.fire_at, fire.fire_at), fire.due_at, RunStatus::Pending, None, false);
                }
            }
            assert!(
                plan.next.is_none_or(|at| at > next_fire_at || plan.held_from.is_none() && at >= next_fire_at),
                "{plan:?}"
            );
            (self.next_fire_at, self.held_from) = (plan.next, plan.held_from);
        }
        assert!(self.next_fire_at.is_none_or(|at| at > look_ahead.end), "the scan does not come to an end");
        let now = self.now;
        for row in self.rows.iter_mut().filter(|row| row.status == RunStatus::Pending && row.due_at <= now) {
            row.status = RunStatus::Succeeded;
        }
    }

    fn has_row(&self, at: Timestamp) -> bool {
        self.rows.iter().any(|row| row.first <= at && at <= row.last)
    }

    /// The first and the last fire of each row that the scan and an edit compare with a span, sorted.
    fn stored(&self, span: MissedSpan) -> Vec<(Timestamp, Timestamp)> {
        let keys = span.first - SKIPPED_AHEAD_MAX..=span.last;
        let compared_rows = self.rows.iter().filter(|row| keys.contains(&row.first));
        let mut stored: Vec<_> = compared_rows.map(|row| (row.first, row.last)).collect();
        stored.sort_unstable();
        stored
    }

    fn insert_span(&mut self, span: MissedSpan, reason: Reason, is_of_edit: bool) {
        self.insert((span.first, span.last), span.first, RunStatus::Skipped, Some(reason), is_of_edit);
    }

    fn insert(
        &mut self,
        (first, last): (Timestamp, Timestamp),
        due_at: Timestamp,
        status: RunStatus,
        reason: Option<Reason>,
        is_span: bool,
    ) {
        // Two overlaps are allowed: a row may lie inside the span of an edit, whose count excludes it, and an edit may let a fire run that
        // lies inside a skipped span.
        let overlaps = |row: &&Row| row.first <= last && first <= row.last;
        let is_allowed =
            |row: &Row| is_span && first < row.first || reason.is_none() && row.reason.is_some() && row.first != first;
        assert!(
            !self.rows.iter().filter(overlaps).any(|row| !is_allowed(row)),
            "{first} to {last} has two rows: {:#?}",
            self.rows
        );
        let id = RunId::new(i64::try_from(self.rows.len()).unwrap_or(0) + 1);
        self.rows.push(Row { id, first, last, due_at, status, reason, is_span });
    }

    fn edit(&mut self, schedule: usize, enabled: bool) {
        let job = compile(&self.schedules[schedule], &self.misfire, enabled);
        let now = self.now;
        let is_unsent = |row: &&Row| match row.status {
            RunStatus::Pending => true,
            _ => matches!(row.reason, Some(Reason::Changed | Reason::Paused)),
        };
        let future_rows = self.rows.iter().filter(|row| row.first > now || row.due_at > now).filter(is_unsent);
        let future_row = |row: &Row| FutureRow {
            id: row.id,
            fire_at: row.first,
            due_at: row.due_at,
            status: row.status,
            is_span: row.is_span,
        };
        let rows: Vec<FutureRow> = future_rows.map(future_row).collect();
        let context = EditContext {
            job: ID,
            anchor: ANCHOR,
            now,
            checked_at: now,
            read_at: now,
            rows: &rows,
            before: Some(&self.job),
            next_fire_at: self.held_from.or(self.next_fire_at),
            awaited_run: None,
        };
        let plan = plan_edit(Some(&job), context);
        if let Some(span) = plan.skipped_span {
            let spans = spans_without_rows(&self.job, ANCHOR, span, &self.stored(span));
            join_all_spans(spans).into_iter().for_each(|span| self.insert_span(span, plan.reason, true));
        }
        self.check_fires(plan.next_fire_at);
        for row in &mut self.rows {
            let moved_row = |rows: &[MovedRow]| rows.iter().find(|moved_row| moved_row.id == row.id).copied();
            if plan.skipped_rows.contains(&row.id) {
                (row.status, row.reason) = (RunStatus::Skipped, Some(plan.reason));
            } else if let Some(moved_row) = moved_row(&plan.kept_rows).or_else(|| moved_row(&plan.reopened_rows)) {
                (row.status, row.reason, row.due_at) = (RunStatus::Pending, None, moved_row.due_at);
            }
        }
        (self.job, self.schedule, self.next_fire_at, self.held_from) = (job, schedule, plan.next_fire_at, None);
        self.changed_at = now;
    }

    /// Each fire since the last edit has a row, or the scan still has to plan it because it is not before `cursor`.
    fn check_fires(&self, cursor: Option<Timestamp>) {
        if !self.job.enabled {
            return;
        }
        for fire in self.job.timetable.fires(ANCHOR, self.changed_at, self.now) {
            let is_ahead = cursor.is_some_and(|cursor| cursor <= fire.at);
            assert!(self.has_row(fire.at) || is_ahead, "the fire at {} has no row: {:#?}", fire.at, self.rows);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_fire_has_a_row(
        steps in steps(),
        misfire in misfires(),
        schedules in prop_oneof![
            Just([json!({"every": "1s"}), json!({"every": "2s"})]),
            Just([json!([{"every": "2s"}, {"every": "3s"}]), json!({"every": "1s"})]),
        ],
    ) {
        let mut model = Model::new(schedules, misfire);
        for step in steps {
            model.take(step);
            model.check_fires(model.held_from.or(model.next_fire_at));
        }
        let now = model.now;
        model.windows.iter_mut().for_each(|window| window.ends_at = window.ends_at.min(now));
        (0..90).for_each(|_| model.scan_after(Duration::from_secs(1)));
        prop_assert!(model.next_fire_at.is_some() == model.job.enabled);
        model.check_fires(model.held_from.or(model.next_fire_at));
        let fires = model.job.timetable.fires(ANCHOR, model.changed_at, model.now);
        let missing: Vec<Timestamp> = fires.map(|fire| fire.at).filter(|at| model.job.enabled && !model.has_row(*at)).collect();
        prop_assert!(missing.is_empty(), "no row for {missing:?}");
    }
}
