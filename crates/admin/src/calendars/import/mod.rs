//! Days out of other programs' files: iCalendar (`.ics`) and CSV, as the rule of a calendar. Pure: text in, rule out.

mod csv;
mod ics;
mod recurrence;

use std::collections::BTreeMap;

use chrono::NaiveDate;
use rondel_core::calendar::{DAY_COUNT_MAX, Day, Rule, Weekday};

/// The longest file.
pub const IMPORT_LEN_MAX: usize = 1024 * 1024;
const NAME_LEN_MAX: usize = 200;

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFormat {
    /// iCalendar, RFC 5545: all-day events.
    Ics,
    /// `date[,name[,kind]]` with a header; `kind` is `holiday` or `workday`.
    Csv,
}

/// What its days become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportAs {
    /// A calendar of these days.
    Days,
    /// A calendar of working days: Monday to Friday without the holidays, and the make-up days.
    Workdays,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// One line of it.
    #[error("line {line}: {message}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong, and what would be right.
        message: String,
    },
    /// The whole of it.
    #[error("{0}")]
    File(String),
}

/// The rule that a file comes to. `years`, the first and the last, bound what repeats each year for ever.
///
/// # Errors
/// What is wrong with the file, and where.
pub fn import(
    format: ImportFormat,
    text: &[u8],
    wanted: ImportAs,
    years: Option<(i32, i32)>,
) -> Result<Rule, ImportError> {
    if text.len() > IMPORT_LEN_MAX {
        return Err(ImportError::File(format!("{} bytes; a file has at most {IMPORT_LEN_MAX}", text.len())));
    }
    let text = std::str::from_utf8(text).map_err(|error| {
        ImportError::File(format!("is not UTF-8 text: the byte at {} is none", error.valid_up_to()))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let days = match format {
        ImportFormat::Ics => ics::read(text, years)?,
        ImportFormat::Csv => csv::read(text)?,
    };
    days.rule(wanted)
}

/// The days of a file.
#[derive(Debug, Default)]
struct Days {
    holidays: BTreeMap<NaiveDate, Option<String>>,
    workdays: BTreeMap<NaiveDate, Option<String>>,
    /// How many were put in, whether or not they were there.
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Holiday,
    Workday,
}

impl Days {
    /// Puts in the days from `first` to `last`.
    fn put(&mut self, kind: Kind, (first, last): (NaiveDate, NaiveDate), name: Option<&str>) -> Result<(), String> {
        if last < first {
            return Err(format!("the last day, {last}, is before the first, {first}"));
        }
        let name = name.map(str::trim).filter(|name| !name.is_empty()).map(|name| cut(name).to_owned());
        let days = match kind {
            Kind::Holiday => &mut self.holidays,
            Kind::Workday => &mut self.workdays,
        };
        for day in first.iter_days().take_while(|day| *day <= last) {
            self.count += 1;
            if self.count > DAY_COUNT_MAX {
                return Err(format!("more than {DAY_COUNT_MAX} days are listed"));
            }
            days.entry(day).and_modify(|known| *known = known.take().or_else(|| name.clone())).or_insert(name.clone());
        }
        Ok(())
    }

    fn rule(self, wanted: ImportAs) -> Result<Rule, ImportError> {
        if self.holidays.is_empty() && self.workdays.is_empty() {
            return Err(ImportError::File("has no days".to_owned()));
        }
        if let Some(day) = self.holidays.keys().find(|day| self.workdays.contains_key(day)) {
            return Err(ImportError::File(format!("{day} is both a holiday and a workday")));
        }
        match wanted {
            ImportAs::Days if !self.workdays.is_empty() => {
                let message = "has days of the kind workday, which a list of days cannot say: import it as workdays";
                Err(ImportError::File(message.to_owned()))
            }
            ImportAs::Days => Ok(Rule::Days(spans(&self.holidays))),
            ImportAs::Workdays => {
                let week = vec![Weekday::Mon, Weekday::Tue, Weekday::Wed, Weekday::Thu, Weekday::Fri];
                let holidays = Rule::Not(Box::new(Rule::Days(spans(&self.holidays))));
                let usual = Rule::All(vec![Rule::Weekdays(week), holidays]);
                Ok(Rule::Any(vec![Rule::Days(spans(&self.workdays)), usual]))
            }
        }
    }
}

/// Days one after another with one name are one span.
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

/// The beginning of a name that is too long, in whole characters.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_LEN_MAX)]
}

/// `2026-10-01` or `20261001`, in the years that a calendar can list.
fn date(text: &str) -> Option<NaiveDate> {
    use chrono::Datelike as _;
    let text = text.trim();
    let digits: String = if text.len() == 10 { text.split('-').collect() } else { text.to_owned() };
    if digits.len() != 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let date = NaiveDate::parse_from_str(&digits, "%Y%m%d").ok()?;
    (1970..=2199).contains(&date.year()).then_some(date)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rondel_core::calendar::Calendar;

    use super::*;

    fn calendar(format: ImportFormat, text: &str, wanted: ImportAs) -> Calendar {
        let rule = import(format, text.as_bytes(), wanted, None).unwrap();
        Calendar::of_rule("c", &rule).unwrap()
    }

    fn day(text: &str) -> NaiveDate {
        text.parse().unwrap()
    }

    #[test]
    fn a_csv_file_of_holidays_and_make_up_days_is_a_calendar_of_working_days() {
        let text = "date,name,kind\n2026-10-01..2026-10-07,国庆节,holiday\n2026-10-10,国庆节补班,workday\n";
        let work = calendar(ImportFormat::Csv, text, ImportAs::Workdays);
        assert!(work.has_day(day("2026-09-30")) && work.has_day(day("2026-10-08")) && work.has_day(day("2026-10-10")));
        assert!(!work.has_day(day("2026-10-02")) && !work.has_day(day("2026-10-11")));
        assert_eq!(work.day_name(day("2026-10-05")), Some("国庆节"));
        let error = import(ImportFormat::Csv, text.as_bytes(), ImportAs::Days, None).unwrap_err();
        assert!(error.to_string().contains("workdays"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (format, text, part) in [
            (ImportFormat::Csv, "day\n2026-10-01\n", "date"),
            (ImportFormat::Csv, "date,color\n2026-10-01,red\n", "color"),
            (ImportFormat::Csv, "date\n2026-10-01\n2026-13-01\n", "line 3"),
            (ImportFormat::Csv, "date,name,kind\n2026-10-01,a,feast\n", "feast"),
            (ImportFormat::Csv, "date\n", "no days"),
            (ImportFormat::Csv, "date,name,kind\n2026-10-01,a,holiday\n2026-10-01,b,workday\n", "both"),
            (ImportFormat::Csv, "date\n1970-01-01..2199-12-31\n", "20000"),
            (ImportFormat::Ics, "hello", "BEGIN:VCALENDAR"),
        ] {
            let error = import(format, text.as_bytes(), ImportAs::Days, None).unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
        let latin = import(ImportFormat::Csv, b"date\n2026-10-01,\xff", ImportAs::Days, None).unwrap_err();
        assert!(latin.to_string().contains("UTF-8"), "{latin}");
    }

    #[test]
    fn spans_say_what_belongs_together() {
        let text = "date,name\n2026-12-25,Christmas\n2026-12-26,Christmas\n2026-12-27,\n2026-12-31,Eve\n";
        let rule = import(ImportFormat::Csv, text.as_bytes(), ImportAs::Days, None).unwrap();
        let named = |date: &str, name: &str| Day::Named { date: date.to_owned(), name: name.to_owned() };
        let expected = vec![
            named("2026-12-25..2026-12-26", "Christmas"),
            Day::Date("2026-12-27".to_owned()),
            named("2026-12-31", "Eve"),
        ];
        assert_eq!(rule, Rule::Days(expected));
    }

    fn line() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("BEGIN:VCALENDAR".to_owned()),
            Just("BEGIN:VEVENT".to_owned()),
            Just("END:VEVENT".to_owned()),
            Just("BEGIN:VALARM".to_owned()),
            Just("END:VCALENDAR".to_owned()),
            "DTSTART(;VALUE=DATE)?:[0-9]{6,9}(T0{6}Z?)?",
            "DTEND;[A-Z]{1,4}=\"?[a-z:;]{0,4}\"?:2026[0-9]{4}",
            "DURATION:P[0-9]{0,12}[DWT]",
            "RRULE:(FREQ=YEARLY)?(;COUNT=[0-9]{1,12})?(;INTERVAL=[0-9]{1,12})?(;BYDAY=-?[0-9]{1,3}[MTWFS][OUEHRA])?",
            "EXDATE:[0-9,T]{0,40}",
            "[ -~]{0,40}",
            "\\PC{0,20}",
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for format in [ImportFormat::Ics, ImportFormat::Csv] {
                drop(import(format, &bytes, ImportAs::Workdays, Some((2026, 2028))));
            }
        }

        #[test]
        fn any_lines_are_an_answer(lines in prop::collection::vec(line(), 0..20), years in prop::option::of((0..3000, 0..3000))) {
            let text = format!("BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n{}\r\n", lines.join("\r\n"));
            for format in [ImportFormat::Ics, ImportFormat::Csv] {
                if let Ok(rule) = import(format, text.as_bytes(), ImportAs::Days, years) {
                    prop_assert!(Calendar::of_rule("c", &rule).is_ok());
                }
            }
        }
    }
}
