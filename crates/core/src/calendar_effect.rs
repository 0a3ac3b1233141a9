//! How a calendar changes a fire: it removes the fire, or moves it to another day.

use chrono::NaiveDate;

use crate::local;
use crate::schedule::Schedule;
use crate::spec::CalendarRule;
use crate::time::Timestamp;
use crate::timetable::AppliedCalendar;

/// Maximum number of days that are searched for the day to which a fire moves.
const SHIFT_DAYS_MAX: usize = 366;

/// How a calendar changes an instant at which a schedule alone would fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CalendarEffect {
    /// The calendar's name for the day of the instant, if it has one.
    pub(crate) day: Option<String>,
    /// The instant that the fire moves to; `None` if the fire is removed.
    pub(crate) moved_to: Option<Timestamp>,
}

/// How the calendar changes the fire of this schedule at `at`, which must be a fire that the calendar removes or moves.
pub(crate) fn calendar_effect(
    schedule: &Schedule,
    AppliedCalendar { calendar, rule }: &AppliedCalendar,
    at: Timestamp,
) -> CalendarEffect {
    let local = local::time_at(schedule.zone, at);
    let day = calendar.day_name(local.date()).map(str::to_owned);
    let step = |day: &NaiveDate| match rule {
        CalendarRule::Next => day.succ_opt(),
        CalendarRule::Previous => day.pred_opt(),
        CalendarRule::Only | CalendarRule::Except => None,
    };
    let open_day =
        std::iter::successors(step(&local.date()), step).take(SHIFT_DAYS_MAX).find(|day| calendar.has_day(*day));
    let moved_to = open_day.map(|day| local::instant(schedule.zone, day.and_time(local.time())));
    let is_within =
        |at: &Timestamp| schedule.start.is_none_or(|start| start <= *at) && schedule.end.is_none_or(|end| *at <= end);
    CalendarEffect { day, moved_to: moved_to.filter(is_within) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::Calendar;
    use crate::cron::Tz;
    use crate::schedule::Kind;

    #[test]
    fn a_fire_moves_to_the_nearest_day_that_is_in_between_start_and_end() {
        let rule = serde_json::from_str(r#"{"not": {"days": ["1970-01-02..1970-01-03"]}}"#).unwrap();
        let calendar = std::sync::Arc::new(Calendar::of_rule("c", &rule).unwrap());
        let day = |day: i64| Timestamp::from_secs(day * 86_400);
        let moved = |rule, start, end| {
            let kind = Kind::Every(std::time::Duration::from_secs(86_400));
            let schedule = Schedule { kind, zone: Tz::UTC, start, end, jitter: None };
            calendar_effect(&schedule, &AppliedCalendar { calendar: std::sync::Arc::clone(&calendar), rule }, day(1))
                .moved_to
        };
        assert_eq!(moved(CalendarRule::Next, None, None), Some(day(3)));
        assert_eq!(moved(CalendarRule::Next, None, Some(day(3))), Some(day(3)));
        assert_eq!(moved(CalendarRule::Next, None, Some(day(2))), None);
        assert_eq!(moved(CalendarRule::Previous, None, None), Some(day(0)));
        assert_eq!(moved(CalendarRule::Previous, Some(day(0)), None), Some(day(0)));
        assert_eq!(moved(CalendarRule::Previous, Some(day(1)), None), None);
        assert_eq!((moved(CalendarRule::Only, None, None), moved(CalendarRule::Except, None, None)), (None, None));
    }
}
