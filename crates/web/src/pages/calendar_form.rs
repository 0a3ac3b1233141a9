//! The form of a calendar: its fields, the calendar that they describe, and the preview of its year.

use rondel_admin::calendars::{self, CalendarError, ImportAs, ImportFormat, import};
use rondel_core::calendar::{Calendar, CalendarSpec};
use rondel_core::year::{DayPart, year};
use rondel_core::{Timestamp, name};
use serde_json::Value;

use super::calendar_days::CalendarDays;
use super::form::Fields;
use super::job::pretty_json;
use super::sentences::localized;
use super::shell::Page;
use crate::api::calendars::{parse_named, parse_years};
use crate::body::refuse_value;
use crate::problem::Problem;
use rondel_core::words::Lang;

/// The fields of the form as the user typed them.
#[derive(Clone, Debug)]
pub(super) struct CalendarForm {
    pub(super) name: String,
    /// `days`, `json`, `ics` or `csv`.
    pub(super) format: String,
    pub(super) text: String,
    /// For a file: `days` or `workdays`.
    pub(super) import_as: String,
    pub(super) years: String,
    pub(super) is_trial: bool,
    pub(super) days: CalendarDays,
}

impl CalendarForm {
    pub(super) fn new(name: &str, spec: Option<&CalendarSpec>) -> Self {
        let text = spec.map(|spec| pretty_json(&serde_json::to_value(spec).unwrap_or_default())).unwrap_or_default();
        let text_of = str::to_owned;
        // The form of a new calendar begins with the fields for days, which are empty.
        let days = spec.map_or_else(|| Some(CalendarDays::default()), |spec| CalendarDays::from_rule(&spec.rule));
        Self {
            name: text_of(name),
            format: text_of(if days.is_some() { "days" } else { "json" }),
            text,
            import_as: text_of("days"),
            years: String::new(),
            is_trial: false,
            days: days.unwrap_or_default(),
        }
    }

    pub(super) fn from_fields(name: &str, fields: &Fields) -> Self {
        let text = |field| fields.get(field).to_owned();
        Self {
            name: name.to_owned(),
            format: text("format"),
            text: text("text"),
            import_as: text("as"),
            years: text("years"),
            is_trial: fields.get("do") == "try",
            days: CalendarDays::from_fields(fields),
        }
    }

    /// The calendar that the form describes. JSON has its own description; with fields and files, the calendar keeps `description`.
    pub(super) fn spec(&self, description: &str) -> Result<CalendarSpec, Problem> {
        name::check(&self.name).map_err(|message| refuse_value("/name", message))?;
        let format = match self.format.as_str() {
            "days" => {
                let (name, description) = (self.name.clone(), description.to_owned());
                return Ok(CalendarSpec { name, description, rule: self.days.rule() });
            }
            "ics" => ImportFormat::Ics,
            "csv" => ImportFormat::Csv,
            _ => return parse_named(self.text.as_bytes(), &self.name),
        };
        let import_as = if self.import_as == "workdays" { ImportAs::Workdays } else { ImportAs::Days };
        let years = match self.years.as_str() {
            "" => None,
            text => Some(parse_years(text).map_err(|message| refuse_value("/years", message))?),
        };
        let rule = import(format, self.text.as_bytes(), import_as, years);
        let rule = rule.map_err(|error| refuse_value("", error.to_string()))?;
        Ok(CalendarSpec { name: self.name.clone(), description: description.to_owned(), rule })
    }
}

/// The errors of a problem as lines, each with its pointer.
pub(super) fn error_lines(problem: &Problem, lang: Lang) -> Vec<String> {
    let line = |pointer: Option<&str>, message: &str| match pointer {
        None | Some("") => localized(lang, message).into_owned(),
        Some(pointer) => format!("{pointer}: {}", localized(lang, message)),
    };
    let complaints = problem.complaints().iter();
    let messages: Vec<String> =
        complaints.map(|complaint| line(complaint.pointer.as_deref(), &complaint.message)).collect();
    if messages.is_empty() { vec![localized(lang, problem.detail()).into_owned()] } else { messages }
}

/// The current year in UTC.
pub(super) fn this_year(now: Timestamp) -> i32 {
    now.to_string().get(..4).and_then(|year| year.parse().ok()).unwrap_or(1970)
}

/// The result of a trial: the calendar as JSON, and a preview of its year.
pub(super) struct CalendarTrial {
    pub(super) text: String,
    pub(super) months: Vec<Month>,
}

/// Checks a calendar like a save does, and returns its preview.
pub(super) async fn try_calendar<Q>(page: &Page<Q>, spec: &CalendarSpec, year: i32) -> Result<CalendarTrial, Problem> {
    let namespace = page.call.namespace.id;
    calendars::check(page.engine(), namespace, spec).await?;
    let mut used_calendars = Vec::new();
    for calendar_name in spec.named_calendars() {
        if let Some(record) =
            calendars::find(page.engine(), namespace, calendar_name).await.map_err(CalendarError::from)?
        {
            used_calendars.push(CalendarSpec { rule: record.expanded_rule, ..record.spec });
        }
    }
    let find_calendar = |name: &str| used_calendars.iter().find(|used_calendar| used_calendar.name == name).cloned();
    let calendar = Calendar::compile(spec, find_calendar).map_err(CalendarError::Invalid)?;
    let text = pretty_json(&serde_json::to_value(spec).unwrap_or(Value::Null));
    Ok(CalendarTrial { text, months: month_tables(&calendar, year) })
}

pub(super) struct Month {
    pub(super) name: String,
    /// The weeks, from Monday on. The cells before the first day of the month are `None`.
    pub(super) weeks: Vec<Vec<Option<DayCell>>>,
}

#[derive(Clone)]
pub(super) struct DayCell {
    pub(super) day: u32,
    pub(super) class: &'static str,
    pub(super) name: Option<String>,
}

pub(super) fn month_tables(calendar: &Calendar, shown_year: i32) -> Vec<Month> {
    let days = year(calendar, shown_year);
    let month = |month: u32| {
        let mut day_cells: Vec<Option<DayCell>> = Vec::new();
        for day in days.iter().filter(|day| day.month == month) {
            if day_cells.is_empty() {
                day_cells.extend((0..day.weekday).map(|_| None));
            }
            let class = match day.part {
                DayPart::Whole => "in",
                DayPart::Some => "part",
                DayPart::Nothing => "out",
            };
            day_cells.push(Some(DayCell { day: day.day, class, name: day.name.clone() }));
        }
        Month { name: format!("{shown_year}-{month:02}"), weeks: day_cells.chunks(7).map(<[_]>::to_vec).collect() }
    };
    (1..=12).map(month).collect()
}
