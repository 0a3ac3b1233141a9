//! What a calendar does to a fire that it does not let be: removed, or moved to another day.

use chrono::NaiveDate;

use crate::local;
use crate::schedule::Schedule;
use crate::spec::CalendarRule;
use crate::time::Timestamp;
use crate::timetable::Applied;

/// How many days are looked at for one that a fire moves to.
const SHIFT_DAYS_MAX: usize = 366;

/// What becomes of an instant at which a schedule alone would fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// What the calendar calls its day.
    pub(crate) day: Option<String>,
    /// Where it moves to; `None` where it is removed.
    pub(crate) moved_to: Option<Timestamp>,
}

/// What the calendar does to a fire of this schedule that it takes away from its instant.
pub(crate) fn taken(schedule: &Schedule, Applied { calendar, rule }: &Applied, at: Timestamp) -> Taken {
    let local = local::shown(schedule.zone, at);
    let day = calendar.day_name(local.date()).map(str::to_owned);
    let step = |day: &NaiveDate| match rule {
        CalendarRule::Next => day.succ_opt(),
        CalendarRule::Previous => day.pred_opt(),
        CalendarRule::Only | CalendarRule::Except => None,
    };
    let open = std::iter::successors(step(&local.date()), step).take(SHIFT_DAYS_MAX).find(|day| calendar.has_day(*day));
    let moved_to = open.map(|day| local::instant(schedule.zone, day.and_time(local.time())));
    Taken { day, moved_to: moved_to.filter(|at| schedule.end.is_none_or(|end| *at <= end)) }
}
