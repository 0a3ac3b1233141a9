//! The parts of an expression, independent of the language of a sentence.

use super::shape::{Shape, members};
use crate::cron::{ALL_DAYS, ALL_WEEKDAYS, DayRule, FIRST_YEAR, Fields, LAST_YEAR};

/// Maximum number of times of day that are listed.
const TIMES_MAX: u64 = 6;

pub(super) struct Parts {
    pub(super) time: TimeOfDay,
    pub(super) days: Days,
    /// January is 1.
    pub(super) months: Shape,
    pub(super) years: Shape,
}

pub(super) enum TimeOfDay {
    /// At these times: hour, minute, second.
    Clock(Vec<(u32, u32, u32)>),
    /// At too many times to list: described as patterns of seconds, minutes and hours ("every 5 minutes").
    Pace { seconds: Shape, minutes: Shape, hours: Shape },
}

/// The days of a month; weekdays count from Monday, 0.
pub(super) enum Days {
    Every,
    OfMonth(Shape),
    OfWeek(Shape),
    /// The days of the month that are also one of the weekdays.
    Both(Shape, Shape),
    /// The days of the month, and in addition the weekdays.
    Either(Shape, Shape),
    Last {
        days_before_last: u32,
    },
    LastNearest {
        days_before_last: u32,
    },
    Nearest {
        day: u32,
    },
    LastOf {
        weekday: u32,
    },
    NthOf {
        weekday: u32,
        nth: u32,
    },
}

impl Parts {
    pub(super) fn of(fields: &Fields) -> Self {
        let years = (FIRST_YEAR.unsigned_abs()..=LAST_YEAR.unsigned_abs())
            .filter(|year| fields.years.contains(year - FIRST_YEAR.unsigned_abs()));
        Self {
            time: TimeOfDay::of(fields),
            days: Days::of(&fields.days),
            months: match Shape::of_cycle(&members(fields.months), 1, 12) {
                Shape::Step { .. } => {
                    Shape::Ranges(members(fields.months).into_iter().map(|month| (month, month)).collect())
                }
                other => other,
            },
            years: Shape::of(&years.collect::<Vec<_>>(), FIRST_YEAR.unsigned_abs(), LAST_YEAR.unsigned_abs()),
        }
    }
}

impl TimeOfDay {
    fn of(fields: &Fields) -> Self {
        let (seconds, minutes, hours) = (members(fields.seconds), members(fields.minutes), members(fields.hours));
        if fields.times_per_day() <= TIMES_MAX {
            let times = hours.iter().flat_map(|hour| minutes.iter().map(move |minute| (*hour, *minute)));
            let times = times.flat_map(|(hour, minute)| seconds.iter().map(move |second| (hour, minute, *second)));
            return Self::Clock(times.collect());
        }
        Self::Pace {
            seconds: Shape::of(&seconds, 0, 59),
            minutes: Shape::of(&minutes, 0, 59),
            hours: Shape::of_cycle(&hours, 0, 23),
        }
    }
}

impl Days {
    fn of(rule: &DayRule) -> Self {
        let from_monday = |weekday: u32| (weekday + 6) % 7;
        let month_days_shape = |days: u64| Shape::of(&members(days & ALL_DAYS), 1, 31);
        let weekdays_shape = |weekdays: u64| {
            let mut days: Vec<u32> = members(weekdays & ALL_WEEKDAYS).into_iter().map(from_monday).collect();
            days.sort_unstable();
            match Shape::of_cycle(&days, 0, 6) {
                Shape::Step { .. } => Shape::Ranges(days.into_iter().map(|day| (day, day)).collect()),
                other => other,
            }
        };
        match *rule {
            DayRule::Both { days, weekdays } => match (month_days_shape(days), weekdays_shape(weekdays)) {
                (Shape::All, Shape::All) => Self::Every,
                (Shape::All, weekdays) => Self::OfWeek(weekdays),
                (days, Shape::All) => Self::OfMonth(days),
                (days, weekdays) => Self::Both(days, weekdays),
            },
            DayRule::Either { days, weekdays } => match (month_days_shape(days), weekdays_shape(weekdays)) {
                (Shape::All, _) | (_, Shape::All) => Self::Every,
                (days, weekdays) => Self::Either(days, weekdays),
            },
            DayRule::Last { days_before_last } => Self::Last { days_before_last },
            DayRule::LastNearest { days_before_last } => Self::LastNearest { days_before_last },
            DayRule::Nearest { day } => Self::Nearest { day },
            DayRule::LastOf { weekday } => Self::LastOf { weekday: from_monday(weekday) },
            DayRule::NthOf { weekday, nth } => Self::NthOf { weekday: from_monday(weekday), nth },
        }
    }
}

/// A time of day, with its seconds if they are not 0: `09:00`, or `09:00:30`.
pub(super) fn time_text(hour: u32, minute: u32, second: u32) -> String {
    if second == 0 { format!("{hour:02}:{minute:02}") } else { format!("{hour:02}:{minute:02}:{second:02}") }
}
