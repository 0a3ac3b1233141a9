//! The log of a run: as a page, as text, or as a live stream.

use axum::response::Response;
use http::header::ACCEPT;
use http::{HeaderMap, StatusCode};
use rondel_core::Run;
use rondel_core::access::Permission::View;
use rondel_core::words::counted;
use schemars::JsonSchema;
use serde::Serialize;

use super::follow::{self, FollowRequest, Format};
use super::lines::{self, Line, LineFilter, LogRange, Position};
use super::log_seek::{Extent, Seek, check_start};
use super::runs;
use crate::answer::json_response;
use crate::call::Call;
use crate::cursor::{Listing, invalid_cursor_problem_in};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Complaint, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

const LIMIT_DEFAULT: u32 = 1000;
const LIMIT_MAX: u32 = 5000;

/// The query parameters for reading a log.
#[derive(Debug)]
pub(crate) struct LogQuery {
    after: Option<String>,
    limit: u32,
    attempt: Option<i32>,
    follow: bool,
    seek: Option<Seek>,
    line_filter: LineFilter,
}

impl FromQuery for LogQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            after: reader.single(Parameter::cursor_in("after").about("`next_cursor` of the previous page.")),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            attempt: attempt_parameter(reader),
            follow: reader.flag("follow", "Continues until the run has ended and its log is complete."),
            seek: Seek::from_query(reader),
            line_filter: LineFilter::from_query(reader),
        }
    }
}

/// The attempt that a query names.
pub(crate) fn attempt_parameter(reader: &mut Reader) -> Option<i32> {
    let parse = |text: &str| match text.parse::<i32>() {
        Ok(attempt) if attempt >= 1 => Ok(attempt),
        _ => Err(format!("{text:?} is not the number of an attempt")),
    };
    let parameter = Parameter::number("attempt", 1..=i32::MAX.unsigned_abs()).about("The newest if left out.");
    reader.parsed(parameter, parse)
}

/// A page of a log.
#[derive(Serialize, JsonSchema)]
pub(super) struct LogPage {
    items: Vec<Line>,
    /// The cursor of the lines that follow; null if the log is complete.
    next_cursor: Option<String>,
    /// Whether no more lines will follow.
    complete: bool,
    /// The number of the last line that was read or searched, whether it matches or not; 0 before the first.
    end_line: u64,
    /// How many lines the attempt has now, if the query names a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    line_count: Option<u64>,
}

const LAST_EVENT_PARAMETER: Parameter =
    Parameter::cursor_in("Last-Event-ID").about("For an event stream: the last event that was received.");

pub(super) fn routes() -> Routes {
    Routes::new()
        .get(
            "/api/v1/runs/{id}/logs",
            View,
            get,
            Doc::new(
                "Read a run's log",
                "A page of lines. With `Accept: text/plain` only the lines, as they were written. With `follow=true` the answer \
                 continues until the run has ended and its log is complete: a JSON object in each line, or with `Accept: \
                 text/event-stream` events `line` and `end`. `tail`, `from_line`, `before` and `around` begin at a line without \
                 reading those before it.",
            )
            .json::<LogPage>(200, "A page of lines. While the log is not complete, `next_cursor` leads to the lines that follow.")
            .text("application/x-ndjson")
            .text("text/event-stream")
            .text("text/plain")
            .reads(LAST_EVENT_PARAMETER)
            .refuses(&[Code::InvalidCursor]),
        )
}

async fn get(call: Call<LogQuery>, path: Named<path::Run>, headers: HeaderMap) -> Result<Response, Problem> {
    let run = runs::find(&call, &path).await?;
    let listing = Listing::new("logs", run.id);
    let last_event = headers.get("last-event-id").and_then(|id| id.to_str().ok()).filter(|id| !id.is_empty());
    let mut position = start_position(&call.query, &run, &listing, last_event)?;
    let format = requested_format(&headers);
    let is_streamed = call.query.follow || format == Format::Text;
    check_start(call.query.seek, call.query.after.is_some(), is_streamed)?;
    // A browser that reconnects repeats the original URL, including its seek parameter, and adds `Last-Event-ID`; the latter wins.
    let seek = call.query.seek.filter(|_| last_event.is_none());
    if !is_streamed {
        return log_page(&call, &run, &listing, position, seek).await;
    }
    if let Some(seek) = seek {
        let (store, now) = (call.engine().store(), call.engine().now());
        let extent = Extent::read(store, &run, position.attempt, now).await?;
        position = extent.window(store, seek, usize::MAX).await?.from;
    }
    let (waits_for_lines, ends_with_attempt) = (call.query.follow, call.query.attempt.is_some());
    let line_filter = call.query.line_filter;
    follow::log_response(
        &call.web,
        call.caller,
        FollowRequest { run, listing, position, line_filter, format, waits_for_lines, ends_with_attempt },
    )
}

/// The page for a seek parameter or, without one, after this position.
async fn log_page(
    call: &Call<LogQuery>,
    run: &Run,
    listing: &Listing,
    from: Position,
    seek: Option<Seek>,
) -> Result<Response, Problem> {
    let (store, now, line_filter) = (call.engine().store(), call.engine().now(), &call.query.line_filter);
    let limit = usize::try_from(call.query.limit).unwrap_or(usize::MAX);
    let (page, line_count) = match seek {
        Some(seek) => {
            let extent = Extent::read(store, run, from.attempt, now).await?;
            let (_, page) = extent.read_page(store, run, (seek, limit), line_filter, now).await?;
            (page, Some(extent.line_count()))
        }
        None => {
            let range = LogRange { from, before_line: None, line_filter, limit, bytes_max: lines::TEXT_BYTES_MAX };
            (lines::read(store, run, range, now).await?, None)
        }
    };
    let complete = page.is_drained && lines::is_settled(run, from.attempt, now);
    let next_cursor = (!complete).then(|| listing.cursor(page.position));
    let end_line = page.position.line_count();
    json_response(StatusCode::OK, &LogPage { items: page.lines, next_cursor, complete, end_line, line_count })
}

/// The attempt that the caller names, or else the newest.
pub(crate) fn chosen_attempt(attempt: Option<i32>, run: &Run) -> Result<i32, Problem> {
    match attempt {
        Some(attempt) if attempt > run.attempt => {
            let message = format!("the run has {}", counted(run.attempt, "attempt"));
            let complaint = Complaint::query("attempt", "invalid_value", message);
            Err(Problem::of_complaints(Code::InvalidQuery, vec![complaint]))
        }
        attempt => Ok(attempt.unwrap_or(run.attempt)),
    }
}

/// The position to begin at: that of `Last-Event-ID` or of the cursor. Without either, the start of the attempt that the caller names, or
/// of the newest attempt.
fn start_position(
    query: &LogQuery,
    run: &Run,
    listing: &Listing,
    last_event: Option<&str>,
) -> Result<Position, Problem> {
    let attempt = chosen_attempt(query.attempt, run)?;
    let (name, cursor) = match (last_event, query.after.as_deref()) {
        (Some(cursor), _) => (LAST_EVENT_PARAMETER.name, cursor),
        (None, Some(cursor)) => ("after", cursor),
        (None, None) => return Ok(Position::before_first_line(attempt)),
    };
    let position = listing.position_in::<Position>(name, cursor)?;
    let is_of_attempt = query.attempt.is_none_or(|attempt| attempt == position.attempt);
    let is_valid = is_of_attempt && position.is_plausible(run.attempt);
    if is_valid { Ok(position) } else { Err(invalid_cursor_problem_in(name, "belongs to another attempt")) }
}

/// The whole log of an attempt as text.
pub(crate) fn text_response<Q>(call: &Call<Q>, run: Run, attempt: i32) -> Result<Response, Problem> {
    let (listing, position) = (Listing::new("logs", run.id), Position::before_first_line(attempt));
    follow::log_response(
        &call.web,
        call.caller.clone(),
        FollowRequest {
            run,
            listing,
            position,
            line_filter: LineFilter::default(),
            format: Format::Text,
            waits_for_lines: false,
            ends_with_attempt: true,
        },
    )
}

/// The format that the `Accept` header asks for; JSON if it has no known format.
fn requested_format(headers: &HeaderMap) -> Format {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let media_types = accept.split(',').map(|media_type| media_type.split(';').next().unwrap_or_default().trim());
    let format_of = |media_type: &str| match media_type {
        "text/plain" => Some(Format::Text),
        "text/event-stream" => Some(Format::Events),
        "application/json" | "application/x-ndjson" => Some(Format::Lines),
        _ => None,
    };
    media_types.filter_map(format_of).next().unwrap_or(Format::Lines)
}
