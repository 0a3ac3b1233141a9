//! The search for the next fire of a timetable, with a bound on its work.
//!
//! A calendar can remove all fires of a schedule for years. A search takes the candidates of all schedules in the order of their instants,
//! so that a schedule without fires is never searched beyond the next fire of another schedule. After a fixed amount of work it stops and
//! returns the instant from which to continue, so that one job does not delay the scan of all jobs.

use std::time::Duration;

use chrono::{NaiveDate, NaiveDateTime, NaiveTime};

use super::{AppliedCalendar, Fire, Timetable, fire};
use crate::calendar::Calendar;
use crate::local;
use crate::schedule::{Schedule, just_before};
use crate::spec::CalendarRule;
use crate::time::Timestamp;

/// How far a search looks ahead while the calendar allows no fire: from its start or, if the schedules have no instant in that time, from
/// their first instant.
const HORIZON: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
/// Maximum number of days by which a fire is shifted.
const SHIFT_DAYS_MAX: usize = 366;
/// A little more than the longest shift.
const SHIFT_MAX: Duration = Duration::from_secs(368 * 24 * 3600);
/// Maximum work of one search, counted in checks of a calendar's rule: some tens of milliseconds.
const WORK_MAX: u64 = 4_000_000;
/// Cost of one step of a schedule, in checks of a calendar's rule.
const STEP_WORK: u64 = 100;
/// Work that each found fire adds to the budget of a search that continues after it.
const WORK_PER_FIRE: u64 = 2_000;

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SearchResult {
    Fire(Fire),
    /// There is no fire up to the end of the search.
    Nothing,
    /// The budget of work is used up: there is no fire before this instant.
    NothingBefore(Timestamp),
}

pub(super) struct Search<'a> {
    table: &'a Timetable,
    anchor: Timestamp,
    /// What is left of the budget of work.
    work_left: u64,
}

impl<'a> Search<'a> {
    pub(super) const fn new(table: &'a Timetable, anchor: Timestamp) -> Self {
        Self { table, anchor, work_left: WORK_MAX }
    }

    #[cfg(test)]
    pub(super) const fn work_left(&self) -> u64 {
        self.work_left
    }

    /// The first fire after `after` and up to `until`.
    pub(super) fn next(&mut self, after: Timestamp, until: Timestamp) -> SearchResult {
        let next_at = match &self.table.calendar {
            None => self.next_plain(after, until),
            Some(applied) => self.next_in_calendar(after, until, applied),
        };
        if matches!(next_at, SearchResult::Fire(_)) {
            self.work_left = self.work_left.saturating_add(WORK_PER_FIRE).min(WORK_MAX);
        }
        next_at
    }

    fn next_plain(&self, after: Timestamp, until: Timestamp) -> SearchResult {
        let next = |schedule: &Schedule| schedule.next_after(self.anchor, after).map(|at| fire(schedule, at));
        let first_fire = self.table.schedules.iter().filter_map(next).min_by_key(|fire| fire.at);
        first_fire.filter(|fire| fire.at <= until).map_or(SearchResult::Nothing, SearchResult::Fire)
    }

    /// The first fire that the calendar keeps or moves, up to the horizon.
    fn next_in_calendar(&mut self, after: Timestamp, until: Timestamp, applied: &AppliedCalendar) -> SearchResult {
        let (calendar, horizon) = (&applied.calendar, after.saturating_add(HORIZON));
        let to = until.min(horizon);
        let result = match applied.rule {
            CalendarRule::Only | CalendarRule::Except => self.next_filtered(after, to, applied),
            CalendarRule::Next => self.next_shifted(after, to, calendar, Direction::Later),
            CalendarRule::Previous => self.next_shifted(after, to, calendar, Direction::Earlier),
        };
        if result != SearchResult::Nothing || until <= horizon {
            return result;
        }
        match self.table.next_without_calendar(self.anchor, after) {
            // Nothing was searched yet, because all fires are beyond the horizon.
            Some((first, _)) if first > horizon => self.next_in_calendar(first - SHIFT_MAX, until, applied),
            _ => result,
        }
    }

    /// The first fire that the calendar keeps. A stretch in which the calendar allows no fires is skipped as a whole.
    fn next_filtered(&mut self, after: Timestamp, until: Timestamp, applied: &AppliedCalendar) -> SearchResult {
        let first = |(index, schedule): (usize, &Schedule)| Some((schedule.next_after(self.anchor, after)?, index));
        // The next candidate of each schedule. At the same instant the first schedule of the list wins.
        let mut candidates: Vec<(Timestamp, usize)> =
            self.table.schedules.iter().enumerate().filter_map(first).collect();
        loop {
            let Some(position) = (0..candidates.len()).min_by_key(|position| candidates[*position]) else {
                return SearchResult::Nothing;
            };
            let (at, index) = candidates[position];
            if at > until {
                return SearchResult::Nothing;
            }
            if self.work_left == 0 {
                return SearchResult::NothingBefore(at);
            }
            self.spend(STEP_WORK + applied.calendar.lookup_cost());
            let schedule = &self.table.schedules[index];
            let local = local::time_at(schedule.zone, at);
            if applied.keeps(local) {
                return SearchResult::Fire(fire(schedule, at));
            }
            let last = local::last_before(schedule.zone, at, applied.calendar.next_edge(local));
            match schedule.next_after(self.anchor, last) {
                Some(next) => candidates[position].0 = next,
                None => {
                    candidates.swap_remove(position);
                }
            }
        }
    }

    /// The first fire under a calendar that moves each fire on a day outside of it to the nearest day inside, in this direction and
    /// at the same time of day.
    fn next_shifted(
        &mut self,
        after: Timestamp,
        until: Timestamp,
        calendar: &Calendar,
        direction: Direction,
    ) -> SearchResult {
        let mut first_fire: Option<Fire> = None;
        let mut unsearched_from: Option<Timestamp> = None;
        let count = u64::try_from(self.table.schedules.len()).unwrap_or(1).max(1);
        // Each schedule has an equal share of the work, so that every search makes progress with all of them.
        let share = self.work_left / count;
        for schedule in &self.table.schedules {
            // A later schedule of the list wins only with an earlier instant.
            let until = first_fire.map_or(until, |first_fire| just_before(first_fire.at));
            // A fire of the schedule may move to a day before the schedule's start.
            let after = schedule.start.map_or(after, |start| after.max(just_before(start)));
            let mut shift = Shift { schedule, anchor: self.anchor, after, calendar, direction, work_left: share };
            match shift.next(until) {
                ShiftResult::At(at) => first_fire = Some(fire(schedule, at)),
                ShiftResult::NothingBefore(at) => {
                    unsearched_from = Some(unsearched_from.map_or(at, |unsearched_from| unsearched_from.min(at)))
                }
                ShiftResult::Nothing => {}
            }
            self.spend(share - shift.work_left);
        }
        match (first_fire, unsearched_from) {
            (Some(first_fire), Some(unsearched_from)) if unsearched_from <= first_fire.at => {
                SearchResult::NothingBefore(unsearched_from)
            }
            (Some(first_fire), _) => SearchResult::Fire(first_fire),
            (None, Some(unsearched_from)) => SearchResult::NothingBefore(unsearched_from),
            (None, None) => SearchResult::Nothing,
        }
    }

    const fn spend(&mut self, work: u64) {
        self.work_left = self.work_left.saturating_sub(work);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Later,
    Earlier,
}

enum ShiftResult {
    At(Timestamp),
    Nothing,
    NothingBefore(Timestamp),
}

/// The search for the next fire of one schedule whose fires a calendar moves; it goes day by day.
struct Shift<'a> {
    schedule: &'a Schedule,
    anchor: Timestamp,
    /// Only fires after this instant are wanted.
    after: Timestamp,
    calendar: &'a Calendar,
    direction: Direction,
    work_left: u64,
}

impl Shift<'_> {
    fn next(&mut self, until: Timestamp) -> ShiftResult {
        let midnight = |day: NaiveDate| local::instant(self.schedule.zone, day.and_time(NaiveTime::MIN));
        let mut day = local::time_at(self.schedule.zone, self.after).date();
        loop {
            if let Some(at) = self.first_on(day) {
                let is_last = at > until || self.schedule.end.is_some_and(|end| at > end);
                return if is_last { ShiftResult::Nothing } else { ShiftResult::At(at) };
            }
            let Some(next) = day.succ_opt() else { return ShiftResult::Nothing };
            day = next;
            if midnight(day) > until || self.is_beyond_all_fires(day) {
                return ShiftResult::Nothing;
            }
            if self.work_left == 0 {
                return ShiftResult::NothingBefore(midnight(day));
            }
        }
    }

    /// The first fire on this day, among the day's own fires and those moved to it; `None` if there is none, as on a day outside the
    /// calendar.
    fn first_on(&mut self, day: NaiveDate) -> Option<Timestamp> {
        if !self.has_day(day) {
            return None;
        }
        let direction = self.direction;
        let step = |day: NaiveDate| match direction {
            Direction::Later => day.pred_opt(),
            Direction::Earlier => day.succ_opt(),
        };
        let mut first_fire = self.first_moved(day, day);
        let mut from = step(day);
        for _ in 0..SHIFT_DAYS_MAX {
            let Some(closed) = from.filter(|from| !self.calendar.has_day(*from)) else { break };
            self.spend(self.calendar.lookup_cost());
            first_fire = first_fire.into_iter().chain(self.first_moved(closed, day)).min();
            from = step(closed);
        }
        first_fire
    }

    /// The first fire of the day `from` that is after the beginning of the search once it is moved to the day `to`.
    fn first_moved(&mut self, from: NaiveDate, to: NaiveDate) -> Option<Timestamp> {
        let local_after = local::time_at(self.schedule.zone, self.after);
        let start = if local_after.date() < to { NaiveTime::MIN } else { local_after.time() };
        let at = |local: NaiveDateTime| local::instant(self.schedule.zone, local);
        let mut cursor = just_before(at(from.and_time(start)));
        loop {
            self.spend(STEP_WORK);
            let fire_at = self.schedule.next_after(self.anchor, cursor)?;
            let local = local::time_at(self.schedule.zone, fire_at);
            if local.date() != from {
                return None;
            }
            let moved_fire = if from == to { fire_at } else { at(to.and_time(local.time())) };
            if moved_fire > self.after {
                return Some(moved_fire);
            }
            cursor = fire_at;
        }
    }

    /// Whether no fire of the schedule could be shifted to this day or a later one.
    fn is_beyond_all_fires(&mut self, day: NaiveDate) -> bool {
        self.spend(STEP_WORK);
        let days_max = chrono::Days::new(u64::try_from(SHIFT_DAYS_MAX).unwrap_or(0));
        let from = day.checked_sub_days(days_max).unwrap_or(NaiveDate::MIN).and_time(NaiveTime::MIN);
        self.schedule.next_after(self.anchor, just_before(local::instant(self.schedule.zone, from))).is_none()
    }

    fn has_day(&mut self, day: NaiveDate) -> bool {
        self.spend(self.calendar.lookup_cost());
        self.calendar.has_day(day)
    }

    const fn spend(&mut self, work: u64) {
        self.work_left = self.work_left.saturating_sub(work);
    }
}
