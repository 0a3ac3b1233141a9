//! Reads days from CSV with a header. The columns are `date` and optionally `name` and `kind`, in any order.

use csv::{ReaderBuilder, StringRecord, Trim};

use super::days::{DayKind, Days, ImportError, parse_date};

/// Indexes of the columns.
struct Columns {
    date: usize,
    name: Option<usize>,
    kind: Option<usize>,
}

pub(super) fn read(text: &str) -> Result<Days, ImportError> {
    let mut reader = ReaderBuilder::new().trim(Trim::All).flexible(true).from_reader(text.as_bytes());
    let columns = columns(reader.headers().map_err(|error| csv_error(&error))?)?;
    let mut days = Days::default();
    for record in reader.records() {
        let record = record.map_err(|error| csv_error(&error))?;
        let line = record.position().map_or(0, |position| line_of(text, position));
        add_record(&mut days, &columns, &record).map_err(|message| ImportError::Line { line, message })?;
    }
    Ok(days)
}

/// The line on which a record begins, counted from 1. The reader's own count is the line on which the record before it ended, which is too small
/// after `\r\n` and after empty lines.
fn line_of(text: &str, position: &csv::Position) -> u64 {
    let text_after =
        usize::try_from(position.byte()).ok().and_then(|byte| text.as_bytes().get(byte..)).unwrap_or_default();
    let line_break_bytes = text_after.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    let line_ends = line_break_bytes.filter(|byte| **byte == b'\n').count();
    position.line().saturating_add(u64::try_from(line_ends).unwrap_or_default())
}

fn columns(header: &StringRecord) -> Result<Columns, ImportError> {
    let header_error = |message: String| ImportError::Line { line: 1, message };
    let known_columns = ["date", "name", "kind"];
    if let Some(unknown_column) =
        header.iter().find(|column| !known_columns.contains(&column.to_ascii_lowercase().as_str()))
    {
        let unknown_column: String = unknown_column.chars().take(60).collect();
        return Err(header_error(format!("{unknown_column:?} is not one of the columns date, name and kind")));
    }
    let position = |wanted: &str| header.iter().position(|column| column.eq_ignore_ascii_case(wanted));
    let date = position("date").ok_or_else(|| header_error("the header has no column date".to_owned()))?;
    Ok(Columns { date, name: position("name"), kind: position("kind") })
}

fn add_record(days: &mut Days, columns: &Columns, record: &StringRecord) -> Result<(), String> {
    let cell = |index: Option<usize>| index.and_then(|index| record.get(index)).unwrap_or_default();
    let text = cell(Some(columns.date));
    let (first_text, last_text) = text.split_once("..").unwrap_or((text, text));
    let span = parse_date(first_text).zip(parse_date(last_text));
    let kind = match cell(columns.kind).to_ascii_lowercase().as_str() {
        "" | "holiday" => DayKind::Holiday,
        "workday" => DayKind::Workday,
        other => {
            return Err(format!("{:?} is neither holiday nor workday", other.chars().take(60).collect::<String>()));
        }
    };
    let excerpt: String = text.chars().take(60).collect();
    let span = span.ok_or_else(|| format!("{excerpt:?} is neither a date such as 2026-10-01 nor a span of two"))?;
    days.add_span(kind, span, Some(cell(columns.name)))
}

fn csv_error(error: &csv::Error) -> ImportError {
    let message = "cannot be read as CSV".to_owned();
    match error.position() {
        Some(position) => ImportError::Line { line: position.line(), message },
        None => ImportError::File(message),
    }
}
