//! Random expressions: their text, and their meaning in the simplest terms.

use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike, Weekday};
use proptest::prelude::*;

/// A part of a field, from which both its text and its meaning are derived.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    All,
    Value(u32),
    Range(u32, u32, u32),
    From(u32, u32),
    Every(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) parts: Vec<Part>,
    pub(crate) low: u32,
    pub(crate) high: u32,
}

impl Field {
    pub(crate) fn text(&self) -> String {
        let part = |part: &Part| match *part {
            Part::All => "*".to_owned(),
            Part::Value(value) => value.to_string(),
            Part::Range(from, to, 1) => format!("{from}-{to}"),
            Part::Range(from, to, step) => format!("{from}-{to}/{step}"),
            Part::From(from, step) => format!("{from}/{step}"),
            Part::Every(step) => format!("*/{step}"),
        };
        self.parts.iter().map(part).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn has(&self, value: u32) -> bool {
        let count = self.high - self.low + 1;
        self.parts.iter().any(|part| match *part {
            Part::All => true,
            Part::Value(one) => one == value,
            Part::Range(from, to, step) => {
                let into = (value + count - from) % count;
                into <= (to + count - from) % count && into.is_multiple_of(step)
            }
            Part::From(from, step) => value >= from && (value - from).is_multiple_of(step),
            Part::Every(step) => (value - self.low).is_multiple_of(step),
        })
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Value(_)))
    }

    pub(crate) fn starts_with_star(&self) -> bool {
        matches!(self.parts.first(), Some(Part::All | Part::Every(_)))
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Days {
    OfMonth(Field),
    OfWeek(Field),
    Unix(Field, Field),
    Last(u32),
    LastNearest(u32),
    Nearest(u32),
    LastOf(u32),
    NthOf(u32, u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) second: Field,
    pub(crate) minute: Field,
    pub(crate) hour: Field,
    pub(crate) days: Days,
    pub(crate) month: Field,
    pub(crate) year: Option<Field>,
}

/// The day of the week; Sunday is 1.
pub(crate) fn weekday(date: NaiveDate) -> u32 {
    date.weekday().number_from_sunday()
}

pub(crate) fn month_of(date: NaiveDate) -> Vec<NaiveDate> {
    let days = date.with_day(1).unwrap().iter_days();
    days.take_while(|day| day.month() == date.month()).collect()
}

/// The day from Monday to Friday nearest to a day of the month, within that month.
pub(crate) fn nearest(date: NaiveDate, day: u32) -> Option<NaiveDate> {
    let target = date.with_day(day)?;
    let is_weekday = |day: &NaiveDate| !matches!(day.weekday(), Weekday::Sat | Weekday::Sun);
    month_of(date).into_iter().filter(is_weekday).min_by_key(|day| (*day - target).num_days().abs())
}

impl Days {
    pub(crate) fn has(&self, date: NaiveDate) -> bool {
        let length = u32::try_from(month_of(date).len()).unwrap();
        let same: Vec<NaiveDate> = month_of(date).into_iter().filter(|day| day.weekday() == date.weekday()).collect();
        match self {
            Self::OfMonth(field) => field.has(date.day()),
            Self::OfWeek(field) => field.has(weekday(date)),
            Self::Unix(days, weekdays) => {
                let (one, two) = (days.has(date.day()), weekdays.has(weekday(date) - 1));
                if days.starts_with_star() || weekdays.starts_with_star() { one && two } else { one || two }
            }
            Self::Last(back) => date.day() + back == length,
            Self::LastNearest(back) => length > *back && nearest(date, length - back) == Some(date),
            Self::Nearest(day) => nearest(date, *day) == Some(date),
            Self::LastOf(day) => weekday(date) == *day && same.last() == Some(&date),
            Self::NthOf(day, nth) => {
                weekday(date) == *day && same.get(usize::try_from(nth - 1).unwrap()) == Some(&date)
            }
        }
    }

    pub(crate) fn texts(&self) -> (String, String) {
        let of_month = |text: String| (text, "?".to_owned());
        let of_week = |text: String| ("?".to_owned(), text);
        match self {
            Self::OfMonth(field) => of_month(field.text()),
            Self::OfWeek(field) => of_week(field.text()),
            Self::Unix(days, weekdays) => (days.text(), weekdays.text()),
            Self::Last(0) => of_month("L".to_owned()),
            Self::Last(back) => of_month(format!("L-{back}")),
            Self::LastNearest(0) => of_month("LW".to_owned()),
            Self::LastNearest(back) => of_month(format!("L-{back}W")),
            Self::Nearest(day) => of_month(format!("{day}W")),
            Self::LastOf(day) => of_week(format!("{day}L")),
            Self::NthOf(day, nth) => of_week(format!("{day}#{nth}")),
        }
    }
}

impl Spec {
    pub(crate) fn text(&self) -> String {
        let (days, weekdays) = self.days.texts();
        let fields = [self.minute.text(), self.hour.text(), days, self.month.text(), weekdays];
        if let Days::Unix(..) = self.days {
            return fields.join(" ");
        }
        let year = self.year.as_ref().map(|year| format!(" {}", year.text())).unwrap_or_default();
        format!("{} {}{year}", self.second.text(), fields.join(" "))
    }

    pub(crate) fn has_date(&self, date: NaiveDate) -> bool {
        let year = u32::try_from(date.year()).unwrap();
        self.month.has(date.month()) && self.year.as_ref().is_none_or(|years| years.has(year)) && self.days.has(date)
    }

    pub(crate) fn has(&self, at: NaiveDateTime) -> bool {
        let second = if let Days::Unix(..) = self.days { at.second() == 0 } else { self.second.has(at.second()) };
        second && self.minute.has(at.minute()) && self.hour.has(at.hour()) && self.has_date(at.date())
    }
}

pub(crate) fn list(low: u32, high: u32) -> impl Strategy<Value = Field> {
    let value = low..=high;
    let part = prop_oneof![
        3 => Just(Part::All),
        4 => value.clone().prop_map(Part::Value),
        2 => (value.clone(), value.clone(), 1_u32..=7).prop_map(|(from, to, step)| Part::Range(from, to, step)),
        1 => (value, 1..=7_u32).prop_map(|(from, step)| Part::From(from, step)),
        1 => (1..=7_u32).prop_map(Part::Every),
    ];
    prop::collection::vec(part, 1..=3).prop_map(move |parts| Field { parts, low, high })
}

pub(crate) fn all(low: u32, high: u32) -> impl Strategy<Value = Field> {
    Just(Field { parts: vec![Part::All], low, high })
}

pub(crate) fn any_days() -> impl Strategy<Value = Days> {
    prop_oneof![
        4 => list(1, 31).prop_map(Days::OfMonth),
        3 => list(1, 7).prop_map(Days::OfWeek),
        3 => (list(1, 31), list(0, 6)).prop_map(|(days, weekdays)| Days::Unix(days, weekdays)),
        1 => (0..=30_u32).prop_map(Days::Last),
        1 => (0..=30_u32).prop_map(Days::LastNearest),
        2 => (1..=31_u32).prop_map(Days::Nearest),
        1 => (1..=7_u32).prop_map(Days::LastOf),
        1 => (1..=7_u32, 1..=5_u32).prop_map(|(day, nth)| Days::NthOf(day, nth)),
    ]
}

pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    let second = prop_oneof![Just(Field { parts: vec![Part::Value(0)], low: 0, high: 59 }), list(0, 59)];
    let days = prop_oneof![3 => all(1, 31).prop_map(Days::OfMonth), 2 => any_days()];
    let month = prop_oneof![3 => all(1, 12), 1 => list(1, 12)];
    (second, list(0, 59), list(0, 23), days, month).prop_map(|(second, minute, hour, days, month)| Spec {
        second,
        minute,
        hour,
        days,
        month,
        year: None,
    })
}
