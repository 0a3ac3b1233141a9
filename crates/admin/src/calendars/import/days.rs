//! The days of an imported file, and the calendar rule made of them.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use rondel_core::calendar::{DAY_COUNT_MAX, Day, Rule, Weekday};

/// Maximum length of a day's name, in bytes.
const NAME_LEN_MAX: usize = 200;

/// Which rule to make of the imported days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportAs {
    /// A calendar of these days.
    Days,
    /// A calendar of working days: Monday to Friday except the holidays, plus the make-up days.
    Workdays,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    #[error("line {line}: {message}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// An error of the file as a whole.
    #[error("{0}")]
    File(String),
}

/// The days of a file.
#[derive(Debug, Default)]
pub(super) struct Days {
    holidays: BTreeMap<NaiveDate, Option<String>>,
    workdays: BTreeMap<NaiveDate, Option<String>>,
    /// The number of days added, including repeated ones.
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DayKind {
    Holiday,
    Workday,
}

impl Days {
    /// Adds the days from `first_day` to `last_day`. A day that is added again keeps its first name. Fails if `last_day` is before `first_day`,
    /// or if more than [`DAY_COUNT_MAX`] days have been added.
    pub(super) fn add_span(
        &mut self,
        kind: DayKind,
        (first_day, last_day): (NaiveDate, NaiveDate),
        name: Option<&str>,
    ) -> Result<(), String> {
        if last_day < first_day {
            return Err(format!("the last day, {last_day}, is before the first, {first_day}"));
        }
        let name = name.map(str::trim).filter(|name| !name.is_empty()).map(|name| truncate_name(name).to_owned());
        let days = match kind {
            DayKind::Holiday => &mut self.holidays,
            DayKind::Workday => &mut self.workdays,
        };
        for day in first_day.iter_days().take_while(|day| *day <= last_day) {
            self.count += 1;
            if self.count > DAY_COUNT_MAX {
                return Err(format!("more than {DAY_COUNT_MAX} days are listed"));
            }
            days.entry(day).and_modify(|known| *known = known.take().or_else(|| name.clone())).or_insert(name.clone());
        }
        Ok(())
    }

    pub(super) fn into_rule(self, import_as: ImportAs) -> Result<Rule, ImportError> {
        if self.holidays.is_empty() && self.workdays.is_empty() {
            return Err(ImportError::File("has no days".to_owned()));
        }
        if let Some(day) = self.holidays.keys().find(|day| self.workdays.contains_key(day)) {
            return Err(ImportError::File(format!("{day} is both a holiday and a workday")));
        }
        match import_as {
            ImportAs::Days if !self.workdays.is_empty() => {
                let message = "has days of the kind workday, which a list of days cannot hold: import it as workdays";
                Err(ImportError::File(message.to_owned()))
            }
            ImportAs::Days => Ok(Rule::Days(spans(&self.holidays))),
            ImportAs::Workdays => {
                let working_weekdays = vec![Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri];
                let holidays = Rule::Not(Box::new(Rule::Days(spans(&self.holidays))));
                let workday_rule = Rule::All(vec![Rule::Weekdays(working_weekdays), holidays]);
                Ok(Rule::Any(vec![Rule::Days(spans(&self.workdays)), workday_rule]))
            }
        }
    }
}

/// Joins consecutive days with the same name into one span.
fn spans(days: &BTreeMap<NaiveDate, Option<String>>) -> Vec<Day> {
    let mut spans: Vec<(NaiveDate, NaiveDate, &Option<String>)> = Vec::new();
    for (day, name) in days {
        match spans.last_mut() {
            Some((_, last, known)) if last.succ_opt() == Some(*day) && *known == name => *last = *day,
            _ => spans.push((*day, *day, name)),
        }
    }
    let day = |(first, last, name): (NaiveDate, NaiveDate, &Option<String>)| {
        let date = if first == last { first.to_string() } else { format!("{first}..{last}") };
        match name {
            Some(name) => Day::Named { date, name: name.clone() },
            None => Day::Date(date),
        }
    };
    spans.into_iter().map(day).collect()
}

/// Cuts a name that is too long, at a character boundary.
fn truncate_name(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_LEN_MAX)]
}

/// Parses `2026-10-01` or `20261001`; `None` for other text, and for a date outside the years that a calendar can list.
pub(super) fn parse_date(text: &str) -> Option<NaiveDate> {
    use chrono::Datelike as _;
    let text = text.trim();
    let digits: String = if text.len() == 10 { text.split('-').collect() } else { text.to_owned() };
    if digits.len() != 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let date = NaiveDate::parse_from_str(&digits, "%Y%m%d").ok()?;
    (1970..=2199).contains(&date.year()).then_some(date)
}
