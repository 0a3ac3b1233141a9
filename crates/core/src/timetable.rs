//! All of a job's schedules together, with the calendar that removes or moves their fires: when the job is due.

use std::sync::Arc;
use std::time::Duration;

use chrono::NaiveDateTime;

use crate::calendar::Calendar;
use crate::id::JobId;
use crate::local;
use crate::schedule::{After, Jitter, Kind, Schedule, just_before};
use crate::spec::CalendarRule;
use crate::status::Trigger;
use crate::time::Timestamp;

mod search;

use search::{Search, SearchResult};

/// When a job is due.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timetable {
    /// Empty for a job that is only triggered.
    pub schedules: Vec<Schedule>,
    /// The calendar that removes or moves their fires.
    pub calendar: Option<AppliedCalendar>,
}

/// A calendar, and what it does to fires.
#[derive(Clone, Debug, PartialEq)]
pub struct AppliedCalendar {
    pub calendar: Arc<Calendar>,
    /// What it does to fires.
    pub rule: CalendarRule,
}

impl AppliedCalendar {
    /// Whether it leaves a fire at this local time as it is.
    pub(crate) fn keeps(&self, local: NaiveDateTime) -> bool {
        match self.rule {
            CalendarRule::Only => self.calendar.has(local),
            CalendarRule::Except => !self.calendar.has(local),
            CalendarRule::Next | CalendarRule::Previous => self.calendar.has_day(local.date()),
        }
    }

    /// The first instant after `after` and up to `until` at which it removes or moves a fire of this schedule. A stretch in which it keeps
    /// the fires is skipped as a whole.
    fn next_taken(
        &self,
        schedule: &Schedule,
        anchor: Timestamp,
        (after, until): (Timestamp, Timestamp),
    ) -> Option<Timestamp> {
        let mut cursor = after;
        loop {
            let at = schedule.next_after(anchor, cursor).filter(|at| *at <= until)?;
            let local = local::time_at(schedule.zone, at);
            if !self.keeps(local) {
                return Some(at);
            }
            cursor = local::last_before(schedule.zone, at, self.calendar.next_edge(local));
        }
    }
}

/// A planned fire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fire {
    /// The planned instant.
    pub at: Timestamp,
    /// Why it exists.
    pub trigger: Trigger,
    /// How much later its run may start.
    pub jitter: Option<Jitter>,
}

impl Fire {
    /// When the run of this fire of a job may start: its planned instant plus its jitter.
    #[must_use]
    pub fn due_at(self, job: JobId) -> Timestamp {
        self.at + self.jitter.map(|jitter| jitter.of(job, self.at)).unwrap_or_default()
    }
}

impl Timetable {
    /// The first fire after `after`: the earliest of all schedules; at the same instant the first schedule of the list wins. `None` if the
    /// job never fires again, or if a calendar makes the search longer than one call may take.
    #[must_use]
    pub fn next_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Fire> {
        self.next_until(anchor, after, Timestamp::MAX)
    }

    /// As [`next_after`](Self::next_after), but searches only up to `to_inclusive`.
    #[must_use]
    pub fn next_until(&self, anchor: Timestamp, after: Timestamp, to_inclusive: Timestamp) -> Option<Fire> {
        match Search::new(self, anchor).next(after, to_inclusive) {
            SearchResult::Fire(fire) => Some(fire),
            SearchResult::Nothing | SearchResult::NothingBefore(_) => None,
        }
    }

    /// When a scan must plan the job again: at its first fire after `after` or, if a calendar makes the search longer than one call may
    /// take, at the instant up to which no fire was found. `None` if the job never fires again.
    #[must_use]
    pub fn next_scan_after(&self, anchor: Timestamp, after: Timestamp) -> Option<Timestamp> {
        match Search::new(self, anchor).next(after, Timestamp::MAX) {
            SearchResult::Fire(fire) => Some(fire.at),
            SearchResult::NothingBefore(at) => Some(at),
            SearchResult::Nothing => None,
        }
    }

    /// The fire at exactly this instant.
    #[must_use]
    pub fn fire_at(&self, anchor: Timestamp, at: Timestamp) -> Option<Fire> {
        self.next_until(anchor, just_before(at), at)
    }

    /// The first fire of an `at` schedule after `from_exclusive` and up to `to_inclusive`.
    #[must_use]
    pub fn once_within(&self, from_exclusive: Timestamp, to_inclusive: Timestamp) -> Option<Timestamp> {
        let is_once = |schedule: &&Schedule| matches!(schedule.kind, Kind::At(_));
        let schedules = self.schedules.iter().filter(is_once).cloned().collect();
        let once_table = Self { schedules, calendar: self.calendar.clone() };
        once_table.next_until(from_exclusive, from_exclusive, to_inclusive).map(|fire| fire.at)
    }

    /// The fires after `from_exclusive` and up to `to_inclusive`, oldest first. The iterator ends early if a calendar makes the
    /// search longer than one call may take.
    pub fn fires(
        &self,
        anchor: Timestamp,
        from_exclusive: Timestamp,
        to_inclusive: Timestamp,
    ) -> impl Iterator<Item = Fire> + '_ {
        let mut search = Search::new(self, anchor);
        let mut cursor = from_exclusive;
        std::iter::from_fn(move || match search.next(cursor, to_inclusive) {
            SearchResult::Fire(fire) => {
                cursor = fire.at;
                Some(fire)
            }
            SearchResult::Nothing | SearchResult::NothingBefore(_) => None,
        })
    }

    /// The instants after `from_exclusive` and up to `to_inclusive` at which the schedules alone would fire, but the calendar removes or
    /// moves the fire, oldest first.
    pub fn removed_fires(
        &self,
        anchor: Timestamp,
        from_exclusive: Timestamp,
        to_inclusive: Timestamp,
    ) -> impl Iterator<Item = Fire> + '_ {
        let next_taken = move |after| {
            let applied = self.calendar.as_ref()?;
            let next_of = |schedule: &Schedule| {
                applied.next_taken(schedule, anchor, (after, to_inclusive)).map(|at| fire(schedule, at))
            };
            self.schedules.iter().filter_map(next_of).min_by_key(|fire| fire.at)
        };
        // Another schedule may fire at an instant that the calendar takes from this one.
        std::iter::successors(next_taken(from_exclusive), move |fire| next_taken(fire.at))
            .filter(move |fire| self.fire_at(anchor, fire.at).is_none())
    }

    /// The first instant after `after` at which the schedules alone would fire, with the schedule that does.
    pub(crate) fn next_without_calendar(&self, anchor: Timestamp, after: Timestamp) -> Option<(Timestamp, &Schedule)> {
        let next_fire = |schedule| Schedule::next_after(schedule, anchor, after).map(|at| (at, schedule));
        self.schedules.iter().filter_map(next_fire).min_by_key(|(at, _)| *at)
    }

    /// The delay of a job that fires a fixed time after the end of its previous run. Such a job has no other schedule.
    #[must_use]
    pub fn delay(&self) -> Option<Duration> {
        self.schedules.iter().find_map(|schedule| match schedule.kind {
            Kind::Delay(delay) => Some(delay),
            Kind::Cron { .. } | Kind::Every(_) | Kind::At(_) | Kind::After(_) => None,
        })
    }

    /// The first fire of a fixed delay, counted from `now`, and not before the schedule's start; `None` if that instant is after the
    /// schedule's end, or the job has no fixed delay.
    #[must_use]
    pub fn first_delayed(&self, now: Timestamp) -> Option<Timestamp> {
        let schedule = self.schedules.iter().find(|schedule| matches!(schedule.kind, Kind::Delay(_)))?;
        let first_fire_at = (now + self.delay()?).max(schedule.start.unwrap_or(now));
        schedule.end.is_none_or(|end| first_fire_at <= end).then_some(first_fire_at)
    }

    /// The parents that the schedules name: the job runs when they have ended.
    pub fn parents(&self) -> impl Iterator<Item = &After> {
        self.schedules.iter().filter_map(|schedule| match &schedule.kind {
            Kind::After(after) => Some(after),
            Kind::Cron { .. } | Kind::Every(_) | Kind::At(_) | Kind::Delay(_) => None,
        })
    }

    /// The longest jitter of its schedules.
    #[must_use]
    pub fn jitter_max(&self) -> Duration {
        let max = self.schedules.iter().filter_map(|schedule| schedule.jitter).map(Jitter::max).max();
        max.unwrap_or_default()
    }

    /// The longest jitter of its schedules for the fires of this job.
    #[must_use]
    pub fn jitter_max_of(&self, job: JobId) -> Duration {
        let jitters = self.schedules.iter().filter_map(|schedule| schedule.jitter);
        jitters.map(|jitter| jitter.max_of(job)).max().unwrap_or_default()
    }

    /// How many fires lie after `from_exclusive` and up to `to_inclusive`, if they can be counted without walking through them; `None` with
    /// a calendar or a second schedule.
    #[must_use]
    pub fn count_between(&self, anchor: Timestamp, from_exclusive: Timestamp, to_inclusive: Timestamp) -> Option<u64> {
        let schedule = self.only_schedule()?;
        let to_exclusive = Timestamp::from_millis(to_inclusive.as_millis().saturating_add(1));
        let first_fire = schedule.next_after(anchor, from_exclusive).filter(|first_fire| *first_fire <= to_inclusive);
        let last_fire = schedule.prev_before(anchor, to_exclusive).filter(|last_fire| *last_fire > from_exclusive);
        Some(first_fire.zip(last_fire).map_or(0, |(first, last)| schedule.count_between(anchor, first, last)))
    }

    /// The only schedule of a job without a calendar: its fires can be counted without walking.
    pub(crate) fn only_schedule(&self) -> Option<&Schedule> {
        match self.schedules.as_slice() {
            [schedule] if self.calendar.is_none() => Some(schedule),
            _ => None,
        }
    }
}

const fn fire(schedule: &Schedule, at: Timestamp) -> Fire {
    Fire { at, trigger: schedule.trigger(), jitter: schedule.jitter }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::calendar::CalendarSpec;
    use crate::spec::JobSpec;

    #[test]
    fn fires_are_counted_as_they_are_walked_through() {
        let at = Timestamp::from_secs(1_800_000_007);
        for schedule in [
            json!({"cron": "0/10 * * * * ?"}),
            json!({"cron": "0 0 0 * * ?", "time_zone": "Europe/Berlin"}),
            json!({"every": "7s"}),
            json!({"at": "2027-01-15T08:05:00Z"}),
        ] {
            let spec: JobSpec =
                serde_json::from_value(json!({"name": "a", "app": "a", "handler": "a", "schedule": schedule})).unwrap();
            let table = spec.compile().unwrap().timetable;
            for (from, to) in [(0, 900), (3, 10), (13, 14), (86_000, 90_000)] {
                let (from, to) = (at + Duration::from_secs(from), at + Duration::from_secs(to));
                let walked = u64::try_from(table.fires(at, from, to).count()).unwrap();
                assert_eq!(table.count_between(at, from, to), Some(walked), "{schedule} {from} {to}");
            }
        }
    }

    /// The working days of autumn 2026 in China: without the holidays, but with the Saturday and the Sunday that
    /// replace two of them.
    fn workdays() -> Value {
        json!({"any": [
            {"days": ["2026-09-20", "2026-10-10"]},
            {"all": [{"weekdays": ["mon", "tue", "wed", "thu", "fri"]}, {"not": {"days": ["2026-10-01..2026-10-07"]}}]},
        ]})
    }

    fn timetable(schedule: &Value, rule: &str, calendar: &Value) -> Timetable {
        let spec: CalendarSpec = serde_json::from_value(json!({"name": "c", "rule": calendar})).unwrap();
        let calendar = Arc::new(Calendar::compile(&spec, |_| None).unwrap());
        let job: JobSpec = serde_json::from_value(json!({
            "name": "a", "app": "b", "handler": "c", "schedule": schedule, "calendar": {"name": "c", "rule": rule},
        }))
        .unwrap();
        job.compile_with(Some(calendar)).unwrap().timetable
    }

    fn local_fires(timetable: &Timetable, from: &str, count: usize) -> Vec<String> {
        let from: Timestamp = from.parse().unwrap();
        let zone = timetable.schedules[0].zone;
        timetable
            .fires(Timestamp::EPOCH, from, Timestamp::MAX)
            .take(count)
            .map(|fire| local::time_at(zone, fire.at).format("%a %m-%d %H:%M").to_string())
            .collect()
    }

    #[test]
    fn each_working_day_shifted_to_the_next() {
        let daily = json!({"cron": "0 0 9 * * ?", "time_zone": "Asia/Shanghai"});
        for rule in ["next", "only"] {
            let fires = local_fires(&timetable(&daily, rule, &workdays()), "2026-09-29T12:00:00Z", 5);
            let expected =
                ["Wed 09-30 09:00", "Thu 10-08 09:00", "Fri 10-09 09:00", "Sat 10-10 09:00", "Mon 10-12 09:00"];
            assert_eq!(fires, expected, "{rule}");
        }
        let monthly = json!({"cron": "0 0 9 1 * ?", "time_zone": "Asia/Shanghai"});
        let next = local_fires(&timetable(&monthly, "next", &workdays()), "2026-09-15T00:00:00Z", 2);
        assert_eq!(next, ["Thu 10-08 09:00", "Mon 11-02 09:00"]);
        let previous = local_fires(&timetable(&monthly, "previous", &workdays()), "2026-09-15T00:00:00Z", 2);
        assert_eq!(previous, ["Wed 09-30 09:00", "Fri 10-30 09:00"]);
        let started = json!({"cron": "0 0 9 1 * ?", "time_zone": "Asia/Shanghai", "start_at": "2026-10-31T00:00:00Z"});
        let previous = local_fires(&timetable(&started, "previous", &workdays()), "2026-09-15T00:00:00Z", 2);
        assert_eq!(
            previous,
            ["Tue 12-01 09:00", "Fri 01-01 09:00"],
            "the fire of 11-01 would move to before the start"
        );
    }

    #[test]
    fn times_of_several_days_are_put_in_order_on_the_day_that_they_move_to() {
        let twice = json!([{"cron": "0 0 9,18 ? * SAT"}, {"cron": "0 0 12 ? * SUN"}]);
        let table = timetable(&twice, "next", &json!({"weekdays": ["mon", "tue", "wed", "thu", "fri"]}));
        let fires = local_fires(&table, "2026-11-20T23:00:00Z", 4);
        assert_eq!(fires, ["Mon 11-23 09:00", "Mon 11-23 12:00", "Mon 11-23 18:00", "Mon 11-30 09:00"]);
    }

    #[test]
    fn a_blackout_removes_the_fires_within_it() {
        let table = timetable(&json!({"cron": "0 0/30 * * * ?"}), "except", &json!({"times": ["22:00-06:00"]}));
        let fires = local_fires(&table, "2026-11-20T20:45:00Z", 4);
        assert_eq!(fires, ["Fri 11-20 21:00", "Fri 11-20 21:30", "Sat 11-21 06:00", "Sat 11-21 06:30"]);
        let (from, to) = ("2026-11-20T21:45:00Z".parse().unwrap(), "2026-11-20T23:00:00Z".parse().unwrap());
        let removed: Vec<String> =
            table.removed_fires(Timestamp::EPOCH, from, to).map(|fire| fire.at.to_string()).collect();
        assert_eq!(removed, ["2026-11-20T22:00:00Z", "2026-11-20T22:30:00Z", "2026-11-20T23:00:00Z"]);
    }

    /// Without skipping the days on which the calendar keeps all fires, this would walk through 300 million of them.
    #[test]
    fn removed_fires_are_found_without_a_walk_through_the_others() {
        let schedules = json!([{"cron": "* * * * * ?"}, {"cron": "0 0 0 * * ?", "time_zone": "Asia/Shanghai"}]);
        let table = timetable(&schedules, "except", &json!({"days": ["2035-12-31"]}));
        let (from, to) = ("2026-01-01T00:00:00Z".parse().unwrap(), "2035-12-31T00:00:02Z".parse().unwrap());
        let removed: Vec<String> =
            table.removed_fires(Timestamp::EPOCH, from, to).map(|fire| fire.at.to_string()).collect();
        // In Shanghai the day begins at 16:00 UTC, when the first schedule still fires.
        assert_eq!(removed, ["2035-12-31T00:00:00Z", "2035-12-31T00:00:01Z", "2035-12-31T00:00:02Z"]);
    }

    #[test]
    fn a_blackout_that_ends_in_a_repeated_hour_removes_nothing_before_it() {
        let every = json!({"every": "10m", "time_zone": "Europe/Berlin"});
        let table = timetable(&every, "except", &json!({"times": ["02:30-03:00"]}));
        let fires = local_fires(&table, "2026-10-25T00:15:00Z", 6);
        let expected = [
            "Sun 10-25 02:20",
            "Sun 10-25 02:00",
            "Sun 10-25 02:10",
            "Sun 10-25 02:20",
            "Sun 10-25 03:00",
            "Sun 10-25 03:10",
        ];
        assert_eq!(fires, expected);
    }

    #[test]
    fn a_calendar_that_lets_nothing_through_ends_the_search() {
        for rule in ["only", "next", "previous"] {
            let table = timetable(&json!({"every": "1s"}), rule, &json!({"any": []}));
            let after = Timestamp::from_secs(1_800_000_000);
            assert_eq!(table.next_after(Timestamp::EPOCH, after), None, "{rule}");
            assert_eq!(table.next_scan_after(Timestamp::EPOCH, after), None, "{rule}");
        }
    }

    #[test]
    fn a_first_fire_of_many_years_ahead_is_found_in_a_calendar() {
        let after: Timestamp = "2026-11-20T00:00:00Z".parse().unwrap();
        let weekly = json!({"cron": "0 0 9 ? * SAT", "start_at": "2044-01-01T00:00:00Z"});
        let once = json!({"at": "2044-01-02T09:00:00Z"});
        for (schedule, rule, expected) in [
            (&weekly, "next", Some("2044-01-04T09:00:00Z")),
            (&weekly, "previous", Some("2044-01-01T09:00:00Z")),
            (&weekly, "except", Some("2044-01-02T09:00:00Z")),
            (&once, "except", Some("2044-01-02T09:00:00Z")),
            (&once, "next", Some("2044-01-04T09:00:00Z")),
            (&once, "previous", Some("2044-01-01T09:00:00Z")),
            (&once, "only", None),
        ] {
            let table = timetable(schedule, rule, &json!({"weekdays": ["mon", "tue", "wed", "thu", "fri"]}));
            let expected: Option<Timestamp> = expected.map(|at| at.parse().unwrap());
            assert_eq!(table.next_after(Timestamp::EPOCH, after).map(|fire| fire.at), expected, "{schedule} {rule}");
            assert_eq!(table.next_scan_after(Timestamp::EPOCH, after), expected, "{schedule} {rule}");
        }
    }

    /// A calendar of hundreds of rules that lets one day through.
    fn heavy(day: &str) -> Value {
        json!({"any": [{"any": vec![json!({"weekdays": []}); 480]}, {"days": [day]}]})
    }

    #[test]
    fn a_search_that_takes_too_long_names_where_to_continue() {
        let after: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let wanted: Timestamp = "2035-01-01T00:00:00Z".parse().unwrap();
        for rule in ["only", "next"] {
            let table = timetable(&json!(vec![json!({"cron": "* * * * * ?"}); 6]), rule, &heavy("2035-01-01"));
            assert_eq!(table.next_after(Timestamp::EPOCH, after), None, "{rule}");
            let mut look = table.next_scan_after(Timestamp::EPOCH, after).unwrap();
            let mut looks = 1;
            while look < wanted {
                let next = table.next_scan_after(Timestamp::EPOCH, just_before(look)).unwrap();
                assert!(next > look, "{rule}: no progress at {look}");
                (look, looks) = (next, looks + 1);
            }
            assert_eq!(look, wanted, "{rule}");
            assert!((2..1_000).contains(&looks), "{rule}: {looks}");
        }
    }

    #[test]
    fn schedules_that_a_calendar_silences_cost_the_others_nothing() {
        let mut schedules = vec![json!({"cron": "0 0 3 * * ?"}); 19];
        schedules.push(json!({"every": "1s"}));
        // The bound on the work shows that each silent schedule was searched for one instant only, and none to its end.
        let table = timetable(&Value::Array(schedules), "except", &json!({"times": ["03:00-03:01"]}));
        let after: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let mut search = Search::new(&table, Timestamp::EPOCH);
        let before = search.work_left();
        let found = search.next(after, Timestamp::MAX);
        assert!(matches!(found, SearchResult::Fire(fire) if fire.at == after + Duration::from_secs(1)), "{found:?}");
        assert!(before - search.work_left() < 5_000, "{}", before - search.work_left());
    }
}
