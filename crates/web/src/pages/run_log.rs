//! The log of a run: part by part while it grows, and as a file.

use askama::Template;
use axum::response::Response;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, StatusCode};
use rondel_core::Run;

use super::ansi;
use super::run::ShownLog;
use super::shell::{Page, html};
use super::texts::Texts;
use crate::api::lines::{self, Part, Position, Wanted};
use crate::api::logs;
use crate::api::runs::find;
use crate::cursor::{Listing, invalid};
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::pair;

/// How many lines a part has.
const LINE_COUNT: usize = 500;

/// The query of a part: after which place it begins, and what is searched for.
#[derive(Debug)]
pub(crate) struct LogAfter {
    after: Option<String>,
    search: Search,
}

impl FromQuery for LogAfter {
    fn from_query(reader: &mut Reader) -> Self {
        Self { after: reader.one("after"), search: Search::from_query(reader) }
    }
}

/// A text that the shown lines contain, whatever its case; empty for all lines.
#[derive(Debug, Default)]
pub(crate) struct Search {
    text: String,
    wanted: Wanted,
}

impl Search {
    pub(super) fn from_query(reader: &mut Reader) -> Self {
        let read = |text: &str| match text.trim() {
            "" => Ok(Self::default()),
            text => {
                let contains = Some(Wanted::parse_contains(text)?);
                Ok(Self { text: text.to_owned(), wanted: Wanted { contains, ..Wanted::default() } })
            }
        };
        reader.parsed("contains", read).unwrap_or_default()
    }

    /// As it was typed.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

/// Some lines, and where the next ones are asked for.
#[derive(Debug, Template)]
#[template(path = "log_part.html")]
pub(super) struct LogPart {
    t: &'static Texts,
    lines: Vec<LogLine>,
    /// The address of the next part; none after the last.
    next: Option<String>,
    /// Whether more is there already.
    is_more: bool,
    is_empty: bool,
    is_search: bool,
}

#[derive(Debug)]
struct LogLine {
    seq: u64,
    time: String,
    class: &'static str,
    /// Text whose markup is escaped.
    html: String,
}

/// The first part of an attempt's log.
pub(super) async fn first_part(page: &Page<ShownLog>, run: &Run, attempt: i32) -> Result<LogPart, Problem> {
    part(page, run, Position::start(attempt), &page.query().search).await
}

/// The part after a place.
pub(super) async fn tail(page: Page<LogAfter>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let position = match &page.query().after {
        None => Position::start(run.attempt),
        Some(cursor) => listing(&run).position::<Position>(cursor)?,
    };
    if !position.is_plausible(run.attempt) {
        return Err(invalid("belongs to another attempt"));
    }
    html(StatusCode::OK, &part(&page, &run, position, &page.query().search).await?)
}

/// The log of an attempt as a file.
pub(super) async fn text(page: Page<ShownLog>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let attempt = page.query().attempt.unwrap_or(run.attempt).min(run.attempt);
    let name = format!("attachment; filename=\"run-{}-attempt-{attempt}.log\"", run.id);
    let mut response = logs::text(&page.call, run, attempt)?;
    if let Ok(name) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

fn listing(run: &Run) -> Listing {
    Listing::new("log page", run.id)
}

async fn part<Q>(page: &Page<Q>, run: &Run, from: Position, search: &Search) -> Result<LogPart, Problem> {
    let now = page.engine().now();
    // Asked before the lines are read: what comes in between is in the next part.
    let is_settled = lines::is_settled(run, from.attempt, now);
    let wanted = Part { from, wanted: &search.wanted, limit: LINE_COUNT, bytes_max: lines::TEXT_BYTES_MAX };
    let found = lines::read(page.engine().store(), run, wanted, now).await?;
    let is_over = is_settled && found.is_drained;
    let searched = if search.text.is_empty() { String::new() } else { format!("&{}", pair("contains", &search.text)) };
    let next = format!("/runs/{}/log?after={}{searched}", run.id, listing(run).cursor(found.position));
    let is_empty = is_over && found.lines.is_empty() && from == Position::start(from.attempt);
    let lines = found.lines.into_iter().map(|line| LogLine {
        seq: line.seq,
        time: line.at.to_utc().map(|at| at.format("%H:%M:%S%.3f").to_string()).unwrap_or_default(),
        class: class(&line.level),
        html: ansi::html(line.line.strip_suffix('\r').unwrap_or(&line.line)),
    });
    Ok(LogPart {
        t: page.t,
        lines: lines.collect(),
        next: (!is_over).then_some(next),
        is_more: !found.is_drained,
        is_empty,
        is_search: !search.text.is_empty(),
    })
}

/// The look of a level; unknown ones look like none.
fn class(level: &str) -> &'static str {
    match level {
        "trace" | "debug" => "faint",
        "warn" => "warn",
        "error" | "stderr" => "error",
        _ => "plain",
    }
}
