//! Reads days from iCalendar: all-day events, events of several days, and events that repeat each year.
//!
//! A file is read line by line and without recursion, so that deep nesting cannot exhaust the stack.

use std::collections::BTreeSet;

use chrono::{Datelike as _, Days as DayCount, NaiveDate};
use rondel_core::calendar::DAY_COUNT_MAX;

use super::days::{DayKind, Days, ImportError, parse_date};
use super::recurrence::Recurrence;

/// One logical line, unfolded.
struct Line {
    /// The number of its first physical line, from 1.
    number: u64,
    text: String,
}

#[derive(Default)]
struct Event {
    /// The number of the line on which the event begins.
    begin_line: u64,
    start: Option<NaiveDate>,
    /// The first day after the event.
    end: Option<NaiveDate>,
    /// Length in days.
    duration: Option<u64>,
    summary: String,
    recurrence: Option<Recurrence>,
    /// The days on which the repeated event does not take place.
    excluded_days: BTreeSet<NaiveDate>,
    is_cancelled: bool,
}

pub(super) fn read(text: &str, years: Option<(i32, i32)>) -> Result<Days, ImportError> {
    let mut days = Days::default();
    let mut event: Option<Event> = None;
    // Nesting depth of components inside the event, such as alarms.
    let mut depth = 0_usize;
    let lines = unfold(text);
    if !lines.first().is_some_and(|line| line.text.trim().eq_ignore_ascii_case("BEGIN:VCALENDAR")) {
        return Err(ImportError::File("does not begin with BEGIN:VCALENDAR".to_owned()));
    }
    for line in &lines {
        let line_error = |message: String| ImportError::Line { line: line.number, message };
        let (name, value) = split_property(&line.text)
            .ok_or_else(|| line_error("is not NAME:VALUE, as each line of iCalendar is".to_owned()))?;
        match (name.as_str(), &mut event) {
            ("BEGIN", None) if value.eq_ignore_ascii_case("VEVENT") => {
                event = Some(Event { begin_line: line.number, ..Event::default() });
            }
            ("BEGIN", Some(_)) => depth += 1,
            ("END", Some(_)) if depth > 0 => depth -= 1,
            ("END", Some(_)) => {
                if let Some(event) = event.take() {
                    let begin_line = event.begin_line;
                    event
                        .add_to(&mut days, years)
                        .map_err(|message| ImportError::Line { line: begin_line, message })?;
                }
            }
            (_, Some(event)) if depth == 0 => event.read_property(&name, value).map_err(line_error)?,
            _ => {}
        }
    }
    match event {
        Some(event) => Err(ImportError::Line {
            line: event.begin_line,
            message: "the event that begins here has no end".to_owned(),
        }),
        None => Ok(days),
    }
}

/// Joins folded lines: a line that begins with a space or a tab continues the line before. Empty lines are left out.
fn unfold(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (number, raw_line) in (1..).zip(text.split('\n')) {
        let content = raw_line.strip_suffix('\r').unwrap_or(raw_line);
        match (content.strip_prefix([' ', '\t']), lines.last_mut()) {
            (Some(rest), Some(line)) => line.text.push_str(rest),
            _ if content.trim().is_empty() => {}
            _ => lines.push(Line { number, text: content.to_owned() }),
        }
    }
    lines
}

/// Splits a line such as `DTSTART;VALUE=DATE:20261001`, at its first colon outside quotes, into its name, in capitals, and its value. Returns
/// `None` if there is no such colon, or no valid name before it. The parameters of a date (`VALUE`, `TZID`) are ignored: the value's form shows
/// whether it is a date.
fn split_property(line: &str) -> Option<(String, &str)> {
    let mut is_in_quotes = false;
    let colon = line.char_indices().find(|(_, c)| {
        is_in_quotes ^= *c == '"';
        *c == ':' && !is_in_quotes
    });
    let (name_and_params, value) = line.split_at(colon?.0);
    let name = name_and_params.split_once(';').map_or(name_and_params, |(name, _)| name);
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    is_name.then(|| (name.to_ascii_uppercase(), value[1..].trim()))
}

impl Event {
    /// Stores one property of the event. Ignores a property that does not affect the event's days.
    fn read_property(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "DTSTART" => self.start = Some(parse_day(name, value)?),
            "DTEND" => self.end = Some(parse_day(name, value)?),
            "DURATION" => self.duration = Some(parse_day_count(value)?),
            "SUMMARY" => self.summary = unescape(value),
            "RRULE" if self.recurrence.is_some() => return Err("a second RRULE is not understood".to_owned()),
            "RRULE" => self.recurrence = Some(Recurrence::parse(value)?),
            "EXDATE" => {
                for text in value.split(',').take(DAY_COUNT_MAX) {
                    self.excluded_days.insert(parse_day(name, text)?);
                }
            }
            "RDATE" | "RECURRENCE-ID" | "EXRULE" => return Err(format!("{name} is not understood")),
            "STATUS" => self.is_cancelled = value.eq_ignore_ascii_case("CANCELLED"),
            _ => {}
        }
        Ok(())
    }

    fn add_to(self, days: &mut Days, years: Option<(i32, i32)>) -> Result<(), String> {
        if self.is_cancelled {
            return Ok(());
        }
        let title: String = self.summary.chars().take(60).collect();
        let event_error = |message: String| format!("the event {title:?} {message}");
        let start = self.start.ok_or_else(|| event_error("has no DTSTART".to_owned()))?;
        let length = match (self.end, self.duration) {
            (Some(end), _) if end < start => {
                return Err(event_error(format!("ends on {end}, before it begins on {start}")));
            }
            // DTEND is exclusive. Some programs write the last day itself, which would give 0 days, so the length is at least 1.
            (Some(end), _) => u64::try_from((end - start).num_days()).unwrap_or(0).max(1),
            (None, Some(duration)) => duration.max(1),
            (None, None) => 1,
        };
        let start_days = match &self.recurrence {
            None => vec![start],
            Some(recurrence) => recurrence.start_days(start, years).map_err(event_error)?,
        };
        for start in start_days.into_iter().filter(|start| !self.excluded_days.contains(start)) {
            let last_day = start.checked_add_days(DayCount::new(length - 1));
            let last_day = last_day.filter(|last| last.year() <= 2199);
            let last_day = last_day.ok_or_else(|| event_error("goes beyond the year 2199".to_owned()))?;
            days.add_span(DayKind::Holiday, (start, last_day), Some(&self.summary)).map_err(event_error)?;
        }
        Ok(())
    }
}

/// Parses a date, or midnight of a date. Any other time of day is an error.
fn parse_day(name: &str, value: &str) -> Result<NaiveDate, String> {
    let excerpt: String = value.chars().take(40).collect();
    let (text, time) = value.trim().split_once('T').unwrap_or((value, "000000"));
    if time.trim_end_matches('Z') != "000000" {
        return Err(format!("{name} {excerpt:?} has a time of day; only all-day events are days"));
    }
    parse_date(text).ok_or_else(|| format!("{name} {excerpt:?} is no date such as 20261001 from 1970 to 2199"))
}

/// Parses a duration in whole days, at most [`DAY_COUNT_MAX`]: `P3D`, `P2W`.
fn parse_day_count(value: &str) -> Result<u64, String> {
    let length_text = value.trim().strip_prefix('P');
    let day_count = length_text.and_then(|text| {
        let (digits, factor) = match (text.strip_suffix('D'), text.strip_suffix('W')) {
            (Some(digits), _) => (digits, 1),
            (None, Some(digits)) => (digits, 7),
            (None, None) => return None,
        };
        digits.parse::<u64>().ok()?.checked_mul(factor).filter(|days| *days <= DAY_COUNT_MAX as u64)
    });
    let excerpt: String = value.chars().take(40).collect();
    day_count.ok_or_else(|| format!("DURATION {excerpt:?} is no number of days such as P3D or P1W"))
}

fn unescape(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            (_, Some('n' | 'N')) => text.push(' '),
            (_, Some(escaped)) => text.push(escaped),
            (plain, None) => text.push(plain),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use rondel_core::calendar::{Day, Rule};

    use super::super::{ImportAs, ImportFormat, import};

    fn days(events: &str, years: Option<(i32, i32)>) -> Result<Vec<String>, String> {
        let text = format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n{events}\r\nEND:VCALENDAR\r\n");
        let rule = import(ImportFormat::Ics, text.as_bytes(), ImportAs::Days, years).map_err(|e| e.to_string())?;
        let Rule::Days(days) = rule else { unreachable!("days were asked for") };
        let show = |day: Day| match day {
            Day::Date(date) => date,
            Day::Named { date, name } => format!("{date} {name}"),
        };
        Ok(days.into_iter().map(show).collect())
    }

    fn event(lines: &[&str]) -> String {
        format!("BEGIN:VEVENT\r\n{}\r\nEND:VEVENT", lines.join("\r\n"))
    }

    #[test]
    fn all_day_events_and_spans_are_days() {
        let events = [
            event(&["DTSTART;VALUE=DATE:20261001", "DTEND;VALUE=DATE:20261008", "SUMMARY:National Day\\, China"]),
            event(&[
                "DTSTART;VALUE=DATE:20261225",
                "SUMMARY:Christ",
                " mas",
                "BEGIN:VALARM",
                "SUMMARY:x",
                "END:VALARM",
            ]),
            event(&["DTSTART;TZID=\"Europe/Berlin:x\":20261231T000000", "DURATION:P1D"]),
            event(&["DTSTART;VALUE=DATE:20260101", "STATUS:CANCELLED"]),
        ];
        let found = days(&events.join("\r\n"), None).unwrap();
        assert_eq!(found, ["2026-10-01..2026-10-07 National Day, China", "2026-12-25 Christmas", "2026-12-31"]);
    }

    #[test]
    fn yearly_events_are_expanded() {
        for (rule, years, expected) in [
            ("FREQ=YEARLY;COUNT=3", None, vec!["2026-05-01", "2027-05-01", "2028-05-01"]),
            ("FREQ=YEARLY;UNTIL=20270501T000000Z", None, vec!["2026-05-01", "2027-05-01"]),
            ("FREQ=YEARLY", Some((2027, 2028)), vec!["2027-05-01", "2028-05-01"]),
            ("FREQ=YEARLY;INTERVAL=2", Some((2026, 2029)), vec!["2026-05-01", "2028-05-01"]),
            ("FREQ=YEARLY;BYMONTH=5;BYMONTHDAY=1", Some((2026, 2026)), vec!["2026-05-01"]),
            ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", Some((2026, 2027)), vec!["2026-11-26", "2027-11-25"]),
            ("FREQ=YEARLY;BYMONTH=5;BYDAY=-1MO", Some((2026, 2026)), vec!["2026-05-25"]),
        ] {
            let events = event(&["DTSTART;VALUE=DATE:20260501", &format!("RRULE:{rule}")]);
            assert_eq!(days(&events, years).unwrap(), expected, "{rule}");
        }
        let leap = event(&["DTSTART;VALUE=DATE:20240229", "RRULE:FREQ=YEARLY", "EXDATE;VALUE=DATE:20240229"]);
        assert_eq!(days(&leap, Some((2024, 2028))).unwrap(), ["2028-02-29"]);
    }

    #[test]
    fn unsupported_parts_are_refused_by_name() {
        for (lines, part) in [
            (&["DTSTART:20261001T083000Z", "SUMMARY:meeting"][..], "time of day"),
            (&["DTSTART:2026-10-1"], "no date"),
            (&["DTSTART;VALUE=DATE:20261001", "SUMMARY:a", "RRULE:FREQ=WEEKLY"], "WEEKLY"),
            (&["DTSTART;VALUE=DATE:20261001", "SUMMARY:for ever", "RRULE:FREQ=YEARLY"], "years"),
            (&["DTSTART;VALUE=DATE:20261001", "RRULE:FREQ=YEARLY;BYSETPOS=1"], "BYSETPOS"),
            (&["DTSTART;VALUE=DATE:20261001", "RRULE:FREQ=YEARLY;COUNT=9;BYMONTHDAY=1"], "add BYMONTH"),
            (&["DTSTART;VALUE=DATE:20261001", "DTEND;VALUE=DATE:20260901"], "before it begins"),
            (&["SUMMARY:x"], "DTSTART"),
            (&["DTSTART;VALUE=DATE:20261001", "RDATE:20261002"], "RDATE"),
            (&["DTSTART;VALUE=DATE:20261001", "DURATION:PT1H"], "DURATION"),
            (&["nonsense"], "NAME:VALUE"),
        ] {
            let error = days(&event(lines), None).unwrap_err();
            assert!(error.contains(part), "{lines:?}: {error}");
        }
        let open = days("BEGIN:VEVENT\r\nBEGIN:VALARM", None).unwrap_err();
        assert!(open.contains("line 3") && open.contains("no end"), "{open}");
    }

    #[test]
    fn however_deep_it_is_nested_the_stack_holds() {
        let error = days(&"BEGIN:VEVENT\r\n".repeat(70_000), None).unwrap_err();
        assert!(error.contains("no end"), "{error}");
    }
}
