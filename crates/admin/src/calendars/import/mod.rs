//! Converts calendar files of other programs, iCalendar (`.ics`) and CSV, to the rule of a calendar. Pure functions: text in, rule out.

mod csv;
mod days;
mod ics;
mod recurrence;

use rondel_core::calendar::Rule;

pub use days::{ImportAs, ImportError};

/// Maximum size of a file, in bytes.
pub const IMPORT_LEN_MAX: usize = 1024 * 1024;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFormat {
    /// iCalendar, RFC 5545: all-day events.
    Ics,
    /// `date[,name[,kind]]` with a header; `kind` is `holiday` or `workday`.
    Csv,
}

/// Converts a file to a calendar rule. `years` (first and last) limits the events that repeat. Without `years`, an event that repeats without
/// end is an error.
///
/// # Errors
/// What is wrong with the file, and in which line.
pub fn import(
    format: ImportFormat,
    text: &[u8],
    import_as: ImportAs,
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
    days.into_rule(import_as)
}

#[cfg(test)]
mod tests {
    use chrono::NaiveDate;
    use proptest::prelude::*;
    use rondel_core::calendar::{Calendar, Day};

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
    fn errors_are_named_with_their_line() {
        for (format, text, part) in [
            (ImportFormat::Csv, "day\n2026-10-01\n", "date"),
            (ImportFormat::Csv, "date,color\n2026-10-01,red\n", "color"),
            (ImportFormat::Csv, "date\n2026-10-01\n2026-13-01\n", "line 3"),
            (ImportFormat::Csv, "date\r\n2026-10-01\r\n2026-13-01\r\n", "line 3"),
            (ImportFormat::Csv, "date\n\n2026-10-01\n\n2026-13-01", "line 5"),
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
    fn spans_group_the_days_that_belong_together() {
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
