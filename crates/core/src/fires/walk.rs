//! Walks through a range of time. The range is cut where something changes, and each stretch between two cuts is described as a
//! whole.

use super::fold::{HistoryFold, VerdictStretch};
use super::history::{Definition, ENTRY_COUNT_MAX, FireHistory, FireInput, FireVerdict, RANGE_MAX, Range};
use crate::calendar_effect::{CalendarEffect, calendar_effect};
use crate::local;
use crate::maintenance::FiresInside;
use crate::run::Run;
use crate::schedule::{Schedule, just_before};
use crate::spec::CalendarRule;
use crate::time::Timestamp;
use crate::timetable::AppliedCalendar;

/// Maximum number of steps of one history; the next history covers the rest. A step is one count of the fires of a stretch or a day
/// (`add_counted_fires`), or one search of a schedule for its next instant (`add_fires_one_by_one`). A few more searches are not counted:
/// at most two for each step, and three for each stretch.
const STEP_COUNT_MAX: usize = 50_000;

/// The history of a range.
///
/// ```
/// use rondel_core::Timestamp;
/// use rondel_core::fires::{Definition, FireInput, Range, fire_history};
///
/// let spec: rondel_core::JobSpec = serde_json::from_str(
///     r#"{"name": "a", "app": "b", "handler": "c", "schedule": {"every": "1s"}, "enabled": false}"#,
/// )?;
/// let definitions = [Definition { from: Timestamp::EPOCH, job: spec.compile().expect("a valid definition") }];
/// let now = Timestamp::from_secs(90_000);
/// let facts = FireInput {
///     definitions: &definitions,
///     anchor: Timestamp::EPOCH,
///     deleted_at: None,
///     rows: &[],
///     attempts: &[],
///     context: None,
///     next_fire_at: None,
///     windows: &[],
///     now,
///     kept_from: Timestamp::EPOCH,
/// };
/// let day = fire_history(&facts, Range { from: Timestamp::from_secs(1), to: Timestamp::from_secs(86_400), limit: 100 });
/// assert_eq!((day.entries[0].verdict.code(), day.entries[0].count), ("paused", 86_400));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn fire_history(facts: &FireInput<'_>, range: Range) -> FireHistory {
    Walk::new(facts, range).run()
}

pub(super) struct Walk<'a> {
    facts: &'a FireInput<'a>,
    /// One row for each instant, sorted by instant.
    rows: Vec<&'a Run>,
    from: Timestamp,
    to: Timestamp,
    fold: HistoryFold,
    /// The steps taken so far.
    steps: usize,
    steps_max: usize,
    /// Whether the walk ends at the first fire.
    stops_at_first_fire: bool,
    has_fire: bool,
    /// The instant at which the walk stopped early; everything before it is described.
    stopped_at: Option<Timestamp>,
}

/// The fires after the first instant and up to the second.
#[derive(Clone, Copy)]
struct Stretch(Timestamp, Timestamp);

impl<'a> Walk<'a> {
    pub(super) fn new(facts: &'a FireInput<'a>, range: Range) -> Self {
        let to = range.to.min(range.from.saturating_add(RANGE_MAX));
        Self {
            facts,
            rows: planned_rows(facts.rows),
            from: range.from,
            to,
            fold: HistoryFold::new(range.limit.min(ENTRY_COUNT_MAX)),
            steps: 0,
            steps_max: STEP_COUNT_MAX,
            stops_at_first_fire: false,
            has_fire: false,
            stopped_at: (to < range.to).then(|| next_millisecond(to)),
        }
    }

    /// Limits the walk to at most this many steps.
    pub(super) fn with_steps_max(self, steps: &usize) -> Self {
        Self { steps_max: (*steps).min(STEP_COUNT_MAX), ..self }
    }

    /// Ends the walk at the first fire.
    pub(super) fn until_first_fire(self) -> Self {
        Self { stops_at_first_fire: true, ..self }
    }

    pub(super) fn run(mut self) -> FireHistory {
        self.build_history()
    }

    /// Runs the walk and subtracts its steps from `steps`, the budget that is left.
    pub(super) fn run_within(mut self, steps: &mut usize) -> FireHistory {
        let history = self.build_history();
        *steps = steps.saturating_sub(self.steps.max(1));
        history
    }

    fn build_history(&mut self) -> FireHistory {
        let stopped_by_range = self.stopped_at.take();
        let mut cursor = just_before(self.from);
        for cut in self.change_instants() {
            if self.fold.is_full() || self.stopped_at.is_some() || self.has_enough() {
                break;
            }
            self.add_stretch(Stretch(cursor, cut));
            cursor = cut;
        }
        let stopped_at = self.stopped_at.or(stopped_by_range);
        std::mem::replace(&mut self.fold, HistoryFold::new(0)).finish(stopped_at)
    }

    /// The instants at which something changes, in order; each belongs to the stretch before it. The last one is the range's end.
    fn change_instants(&self) -> Vec<Timestamp> {
        let FireInput { definitions, deleted_at, next_fire_at, windows, now, kept_from, .. } = self.facts;
        let mut change_instants: Vec<Timestamp> = definitions.iter().map(|definition| definition.from).collect();
        change_instants.extend(deleted_at);
        change_instants.extend(next_fire_at.map(just_before));
        change_instants
            .extend(windows.iter().flat_map(|window| [just_before(window.starts_at), just_before(window.ends_at)]));
        change_instants.extend([*now, just_before(*kept_from), self.to]);
        change_instants.extend(self.rows.iter().flat_map(|row| [just_before(row.fire_at), row.fire_at]));
        change_instants.extend(self.rows.iter().filter_map(|row| row.span_end_at));
        change_instants.retain(|cut| (self.from..=self.to).contains(cut));
        change_instants.sort_unstable();
        change_instants.dedup();
        change_instants
    }

    /// Adds the verdicts of the fires in a stretch in which nothing changes.
    fn add_stretch(&mut self, stretch: Stretch) {
        let Stretch(_, until) = stretch;
        let definition = self.definition_at(until);
        let row = self.rows.binary_search_by_key(&until, |row| row.fire_at).ok().and_then(|index| self.rows.get(index));
        if let Some(row) = row.copied() {
            let verdict =
                FireVerdict::of_run(row, definition.is_some_and(|definition| self.plans_row(definition, row)));
            return self.push(Stretch(until, until), 1, verdict, std::iter::once(until));
        }
        let Some(definition) = definition else { return };
        let verdict = self.verdict_without_row(definition, until);
        let table = &definition.job.timetable;
        match (table.schedules.as_slice(), &table.calendar) {
            _ if table.delay().is_some() => self.add_delayed_fire(stretch, verdict),
            ([schedule], None) => self.add_counted_fires(schedule, stretch, verdict),
            ([schedule], Some(applied)) if matches!(applied.rule, CalendarRule::Only | CalendarRule::Except) => {
                self.add_fires_under_calendar(definition, (schedule, applied), stretch, &verdict);
            }
            _ => self.add_fires_one_by_one(definition, stretch, &verdict),
        }
    }

    /// The definition that was in force just before `until`, and so plans a fire at `until`. `None` if there was none, or if the job was
    /// deleted before `until`.
    fn definition_at(&self, until: Timestamp) -> Option<&'a Definition> {
        let job_exists = self.facts.deleted_at.is_none_or(|deleted_at| until <= deleted_at);
        self.facts.definitions.iter().rfind(|definition| job_exists && definition.from < until)
    }

    fn plans_row(&self, definition: &Definition, row: &Run) -> bool {
        let table = &definition.job.timetable;
        // A pump begins when it is saved, and again after an edit or a failure, at instants that no schedule has.
        let begins_by_itself = definition.job.pump.is_some();
        begins_by_itself || table.delay().is_some() || table.fire_at(self.facts.anchor, row.fire_at).is_some()
    }

    fn verdict_without_row(&self, definition: &Definition, at: Timestamp) -> FireVerdict {
        let rows_before = self.rows.partition_point(|row| row.fire_at <= at);
        let reaches = |row: &&&Run| row.span_end_at.is_some_and(|end| end >= at);
        if let Some(row) = rows_before.checked_sub(1).and_then(|index| self.rows.get(index)).filter(reaches) {
            return FireVerdict::Span { run: row.id, reason: row.reason, detail: row.detail.clone() };
        }
        let is_claimed = self.facts.next_fire_at.is_none_or(|next| at < next);
        let is_ahead = at > self.facts.now || !is_claimed;
        let open_windows = self.facts.windows.iter().filter(|window| window.has(at) && window.ends_at > self.facts.now);
        let window =
            open_windows.max_by_key(|window| (window.fires == FiresInside::Hold, window.ends_at)).filter(|_| is_ahead);
        match (window, &definition.job) {
            (_, job) if !job.enabled => FireVerdict::Paused,
            (Some(window), _) => FireVerdict::Maintenance { ends_at: window.ends_at, fires: window.fires },
            _ if at > self.facts.now => FireVerdict::Planned,
            _ if !is_claimed => FireVerdict::Undecided,
            _ if at < self.facts.kept_from => FireVerdict::Removed,
            _ => FireVerdict::Missing,
        }
    }

    /// Adds the next fire of a job with a fixed delay: the only one that is known without a row.
    fn add_delayed_fire(&mut self, Stretch(from, until): Stretch, verdict: FireVerdict) {
        if let Some(at) = self.facts.next_fire_at.filter(|at| from < *at && *at <= until) {
            self.push(Stretch(at, at), 1, verdict, std::iter::once(at));
        }
    }

    /// Counts the fires of one schedule without visiting each of them.
    fn add_counted_fires(&mut self, schedule: &Schedule, Stretch(from, until): Stretch, verdict: FireVerdict) {
        self.steps += 1;
        let anchor = self.facts.anchor;
        let Some(first_fire) = schedule.next_after(anchor, from).filter(|at| *at <= until) else { return };
        let last_fire = schedule.prev_before(anchor, next_millisecond(until)).unwrap_or(first_fire).max(first_fire);
        let count = schedule.count_between(anchor, first_fire, last_fire);
        let next_fire = |at: &Timestamp| schedule.next_after(anchor, *at).filter(|at| *at <= last_fire);
        self.push(Stretch(first_fire, last_fire), count, verdict, std::iter::successors(Some(first_fire), next_fire));
    }

    /// Adds the fires of a schedule under a calendar. Goes from one instant at which the calendar's answer can change
    /// to the next, and counts the fires in between.
    fn add_fires_under_calendar(
        &mut self,
        definition: &Definition,
        (schedule, applied): (&Schedule, &AppliedCalendar),
        Stretch(from, until): Stretch,
        verdict: &FireVerdict,
    ) {
        let mut cursor = from;
        loop {
            let fire = definition.job.timetable.next_until(self.facts.anchor, cursor, until).map(|fire| fire.at);
            self.add_fires_taken_by_calendar((schedule, applied), Stretch(cursor, fire.map_or(until, just_before)));
            let Some(fire) = fire.filter(|_| self.stopped_at.is_none() && !self.fold.is_full()) else { return };
            let local = local::time_at(schedule.zone, fire);
            let edge =
                just_before(local::instant(schedule.zone, applied.calendar.next_edge(local))).min(until).max(fire);
            // If the clock changes before the edge, it may repeat local times from before the fire.
            let is_steady = local::time_at(schedule.zone, edge) - local == chrono_length(fire, edge);
            cursor = if is_steady { edge } else { fire };
            self.add_counted_fires(schedule, Stretch(just_before(fire), cursor), verdict.clone());
            if self.should_stop(cursor) {
                return;
            }
        }
    }

    /// Adds all instants that the calendar removes or moves, day by day.
    fn add_fires_taken_by_calendar(
        &mut self,
        (schedule, applied): (&Schedule, &AppliedCalendar),
        Stretch(from, until): Stretch,
    ) {
        let mut cursor = from;
        while let Some(at) = schedule.next_after(self.facts.anchor, cursor).filter(|at| *at <= until) {
            let next_midnight =
                local::time_at(schedule.zone, at).date().succ_opt().map(|day| day.and_time(chrono::NaiveTime::MIN));
            let day_end = next_midnight.map_or(until, |midnight| just_before(local::instant(schedule.zone, midnight)));
            cursor = day_end.min(until).max(at);
            let verdict = verdict_of_effect(applied, calendar_effect(schedule, applied, at));
            self.add_counted_fires(schedule, Stretch(just_before(at), cursor), verdict);
            if self.should_stop(cursor) {
                return;
            }
        }
    }

    /// Walks through all instants: those of the timetable, and those that its calendar removes or moves.
    fn add_fires_one_by_one(&mut self, definition: &Definition, Stretch(from, until): Stretch, verdict: &FireVerdict) {
        let (table, anchor) = (&definition.job.timetable, self.facts.anchor);
        let next_fire = |after| table.next_until(anchor, after, until).map(|fire| fire.at);
        let next_without_calendar = |after| table.next_without_calendar(anchor, after).filter(|(at, _)| *at <= until);
        let mut fire = next_fire(from);
        let mut fire_without_calendar = table.calendar.as_ref().and_then(|_| next_without_calendar(from));
        // Each step asks every schedule for its next instant, and with a calendar also for the next one without the calendar.
        let steps_per_fire = table.schedules.len().max(1) * (1 + usize::from(table.calendar.is_some()));
        while let Some(at) = fire.into_iter().chain(fire_without_calendar.map(|(at, _)| at)).min() {
            self.steps += steps_per_fire;
            let verdict_at = match (&table.calendar, fire_without_calendar) {
                _ if fire == Some(at) => verdict.clone(),
                (Some(applied), Some((_, schedule))) => {
                    verdict_of_effect(applied, calendar_effect(schedule, applied, at))
                }
                _ => return,
            };
            self.push(Stretch(at, at), 1, verdict_at, std::iter::once(at));
            if fire == Some(at) {
                fire = next_fire(at);
            }
            if fire_without_calendar.is_some_and(|(uncalendared_at, _)| uncalendared_at == at) {
                fire_without_calendar = next_without_calendar(at);
            }
            if self.should_stop(at) {
                return;
            }
        }
    }

    /// Whether to stop now that everything up to `described_to` is described. If the steps are used up, this records where the walk stopped.
    fn should_stop(&mut self, described_to: Timestamp) -> bool {
        if self.steps >= self.steps_max && described_to < self.to {
            self.stopped_at.get_or_insert(next_millisecond(described_to));
        }
        self.stopped_at.is_some() || self.fold.is_full() || self.has_enough()
    }

    fn has_enough(&self) -> bool {
        self.stops_at_first_fire && self.has_fire
    }

    fn push(
        &mut self,
        Stretch(first, last): Stretch,
        count: u64,
        verdict: FireVerdict,
        instants: impl Iterator<Item = Timestamp>,
    ) {
        self.has_fire |= verdict.is_fire();
        self.fold.push(VerdictStretch { first, last, count, verdict }, instants);
    }
}

/// The rows that the schedule planned, one for each instant: for a fire with shards, the row that stands for all shards.
fn planned_rows(rows: &[Run]) -> Vec<&Run> {
    let mut rows: Vec<&Run> = rows.iter().filter(|row| row.cause == 0).collect();
    rows.sort_by_key(|row| (row.fire_at, row.shard_index));
    rows.dedup_by_key(|row| row.fire_at);
    rows
}

fn verdict_of_effect(applied: &AppliedCalendar, CalendarEffect { day, moved_to }: CalendarEffect) -> FireVerdict {
    FireVerdict::Calendar { calendar: applied.calendar.name().to_owned(), day, moved_to }
}

pub(super) fn next_millisecond(at: Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis().saturating_add(1))
}

fn chrono_length(from: Timestamp, to: Timestamp) -> chrono::TimeDelta {
    chrono::TimeDelta::milliseconds(to.as_millis().saturating_sub(from.as_millis()))
}
