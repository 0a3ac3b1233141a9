//! The log of a run: shows a part of it, searches it, and downloads it.
//!
//! A page shows the last lines, or the lines around the one in its URL. The script loads earlier and later lines, and polls the fragment
//! `window` of this page for new ones. Without the script, links lead to the other lines. API clients follow a stream instead
//! (`api/follow.rs`).

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::header::CONTENT_DISPOSITION;
use http::{HeaderValue, StatusCode};
use rondel_core::cron::Tz;
use rondel_core::log_line::{LineSeverity, translate};
use rondel_core::reason::Reason;
use rondel_core::run::Attempt;
use rondel_core::{Run, RunStatus};

use super::ansi;
use super::run::RunPageQuery;
use super::shell::{Page, html};
use super::texts::Texts;
use super::zones::{self, Clock};
use crate::answer::json_response;
use crate::api::lines::{self, Line, LineFilter, LogRange, Position};
use crate::api::log_search;
use crate::api::log_seek::{Extent, PageWindow, Seek, check_start};
use crate::api::logs::{self, chosen_attempt};
use crate::api::runs::find;
use crate::cursor::{Listing, invalid_cursor_problem, invalid_cursor_problem_in};
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;
use crate::shown_runs::read_attempts;

/// How many lines a page shows at first; further ones are loaded on demand.
const FIRST_LINE_COUNT: usize = 200;
/// How many lines are shown around the line in the URL, or as the result of a search.
const LINE_COUNT_AROUND: usize = 400;
/// How many lines the script requests at a time.
const FURTHER_LINE_COUNT: u32 = 500;

/// An executor that has sent no heartbeat for this long counts as offline.
const EXECUTOR_SILENCE_MAX: Duration = Duration::from_secs(30);

/// The query parameters for a part of the log: where the part begins.
#[derive(Debug)]
pub(crate) struct LogWindowQuery {
    attempt: Option<i32>,
    after: Option<String>,
    seek: Option<Seek>,
    limit: u32,
}

impl FromQuery for LogWindowQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            attempt: logs::attempt_parameter(reader),
            after: reader.single("after"),
            seek: Seek::from_query(reader),
            limit: reader.limit(FURTHER_LINE_COUNT, FURTHER_LINE_COUNT),
        }
    }
}

/// The query parameters for a search in the log.
#[derive(Debug)]
pub(crate) struct LogFindQuery {
    attempt: Option<i32>,
    line_filter: LineFilter,
}

impl FromQuery for LogFindQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { attempt: logs::attempt_parameter(reader), line_filter: LineFilter::from_query(reader) }
    }
}

/// The text that lines must contain to be shown, ignoring case; empty for all lines.
#[derive(Debug, Default)]
pub(crate) struct Search {
    text: String,
    line_filter: LineFilter,
}

impl Search {
    pub(super) fn from_query(reader: &mut Reader) -> Self {
        let parse_search = |text: &str| match text.trim() {
            "" => Ok(Self::default()),
            text => {
                let contains = Some(LineFilter::parse_contains(text)?);
                Ok(Self { text: text.to_owned(), line_filter: LineFilter { contains, ..LineFilter::default() } })
            }
        };
        reader.parsed("contains", parse_search).unwrap_or_default()
    }
}

/// Some lines of a log, and their position in it.
#[derive(Debug, Template)]
#[template(path = "log_part.html")]
pub(super) struct LogPart {
    lines: Vec<LogLine>,
    /// The URL that leads from a found line to its place in the log; empty if the page already shows the lines around it.
    line_url: String,
    /// The number of the first line in this part.
    pub(super) first_seq: u64,
    /// The number of the last line in this part.
    pub(super) last_seq: u64,
    /// How many lines the log has.
    pub(super) total: u64,
    /// The position from which to poll for new lines; `None` if the log is complete.
    pub(super) poll_cursor: Option<String>,
    /// Where the search continues, and the last line that it has read; `None` if it has read the whole log, or if there is no search.
    search_rest: Option<(String, u64)>,
}

#[derive(Debug)]
struct LogLine {
    seq: u64,
    time: String,
    iso: String,
    class: &'static str,
    /// The text as HTML, with its markup escaped.
    html: String,
}

/// The log on the page of its run.
pub(super) struct LogCard {
    /// The severities with their names.
    pub(super) severities: [(&'static str, &'static str); 4],
    pub(super) part: LogPart,
    pub(super) attempt: i32,
    /// The text that was searched for; empty if none. Only a browser without the script submits the search to this page.
    pub(super) search: String,
    /// Why no lines are shown.
    pub(super) note: Option<String>,
    /// The last line that the search has read, and the URL at which it continues; `None` if it has read the whole log.
    pub(super) search_rest: Option<(u64, String)>,
    /// The line to which the link to earlier lines leads; `None` if there are none.
    pub(super) earlier_line: Option<u64>,
    /// The line to which the link to later lines leads; `None` if there are none.
    pub(super) later_line: Option<u64>,
}

/// The card of an attempt's log, before the script loads more: the lines that match the search, else the lines around the chosen line, else the
/// last lines.
pub(super) async fn log_card(page: &Page<RunPageQuery>, run: &Run, attempt: i32) -> Result<LogCard, Problem> {
    let query = page.query();
    let line_url = format!("/runs/{}?attempt={attempt}", run.id);
    let is_search = !query.search.text.is_empty();
    let log_part = if is_search {
        let from = search_start(query, run, attempt)?;
        let window = PageWindow { from, limit: LINE_COUNT_AROUND };
        let log_part = read_part(page, run, LinesToRead::Found(window), &query.search.line_filter).await?;
        LogPart { line_url: line_url.clone(), ..log_part }
    } else {
        let extent = Extent::read(page.engine().store(), run, attempt, page.engine().now()).await?;
        let (seek, limit) = match query.line {
            Some(line) => (Seek::Around(line), LINE_COUNT_AROUND),
            None => (Seek::END, FIRST_LINE_COUNT),
        };
        let log_part = read_part(page, run, LinesToRead::At(&extent, seek, limit), &LineFilter::default()).await?;
        LogPart { total: extent.line_count().max(log_part.last_seq), ..log_part }
    };
    let half_page = LINE_COUNT_AROUND as u64 / 2;
    // A page of long lines has fewer lines, and the next one must not skip any.
    let half_shown = (log_part.lines.len() as u64 / 2).clamp(1, half_page);
    let search_rest = log_part.search_rest.as_ref().map(|(cursor, line)| {
        let search_pairs = [query_pair("contains", &query.search.text), query_pair("after", cursor)];
        (*line, format!("{line_url}&{}#log-title", search_pairs.join("&")))
    });
    let t = page.t;
    Ok(LogCard {
        severities: [("error", t.log_error), ("warn", t.log_warn), ("info", t.log_info), ("debug", t.log_debug)],
        attempt,
        note: empty_log_note(page, run, attempt, &log_part, is_search).await?,
        search_rest,
        earlier_line: (!is_search && log_part.first_seq > 1)
            .then(|| log_part.first_seq.saturating_sub(half_page).max(1)),
        later_line: (!is_search && log_part.last_seq < log_part.total)
            .then(|| (log_part.last_seq + half_shown).min(log_part.total)),
        search: query.search.text.clone(),
        part: log_part,
    })
}

/// The position at which a search begins: where the page before it has ended, else before the first line.
fn search_start(query: &RunPageQuery, run: &Run, attempt: i32) -> Result<Position, Problem> {
    let Some(cursor) = &query.search_after else { return Ok(Position::before_first_line(attempt)) };
    let position = log_listing(run).position_in::<Position>("after", cursor)?;
    let is_valid = position.attempt == attempt && position.is_plausible(run.attempt);
    if is_valid { Ok(position) } else { Err(invalid_cursor_problem_in("after", "belongs to another attempt")) }
}

/// Shows the instants of the answer in the zone of the run's job, if the user chose the job's clock.
pub(super) async fn show_zone_of_job<Q>(page: &Page<Q>, run: &Run) -> Result<(), Problem> {
    if let Some(definition) = page.engine().store().definitions(&[(run.job, run.job_version)]).await?.first() {
        zones::set_job(&definition.spec);
    }
    Ok(())
}

/// A part of the log, for the script. Its lines have the clock of the page to which they are added.
pub(super) async fn window(page: Page<LogWindowQuery>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let query = page.query();
    let attempt = chosen_attempt(query.attempt, &run)?;
    check_start(query.seek, query.after.is_some(), false)?;
    if zones::clock_and_zone().0 == Clock::Job {
        show_zone_of_job(&page, &run).await?;
    }
    let limit = usize::try_from(query.limit).unwrap_or(usize::MAX);
    let extent;
    let (lines_to_read, total) = match &query.after {
        Some(cursor) => {
            let position = log_listing(&run).position::<Position>(cursor)?;
            if !position.is_plausible(run.attempt) {
                return Err(invalid_cursor_problem("belongs to another attempt"));
            }
            (LinesToRead::New(PageWindow { from: position, limit }), 0)
        }
        None => {
            extent = Extent::read(page.engine().store(), &run, attempt, page.engine().now()).await?;
            let (seek, limit) = match query.seek.unwrap_or(Seek::From(1)) {
                // The script shows the end of the log.
                Seek::Tail(count) => (Seek::END, limit.min(usize::try_from(count).unwrap_or(usize::MAX))),
                seek => (seek, limit),
            };
            (LinesToRead::At(&extent, seek, limit), extent.line_count())
        }
    };
    let log_part = read_part(&page, &run, lines_to_read, &LineFilter::default()).await?;
    html(StatusCode::OK, &LogPart { total: total.max(log_part.last_seq), ..log_part })
}

/// Counts and searches lines, for the script.
pub(super) async fn search(page: Page<LogFindQuery>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let attempt = chosen_attempt(page.query().attempt, &run)?;
    let (store, now) = (page.engine().store(), page.engine().now());
    json_response(StatusCode::OK, &log_search::search(store, &run, attempt, &page.query().line_filter, now).await?)
}

/// Downloads the log of an attempt.
pub(super) async fn text(page: Page<RunPageQuery>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&page.call, &path).await?;
    let attempt = chosen_attempt(page.query().attempt, &run)?;
    let content_disposition = format!("attachment; filename=\"run-{}-attempt-{attempt}.log\"", run.id);
    let mut response = logs::text_response(&page.call, run, attempt)?;
    if let Ok(content_disposition) = HeaderValue::from_str(&content_disposition) {
        response.headers_mut().insert(CONTENT_DISPOSITION, content_disposition);
    }
    Ok(response)
}

#[derive(Clone, Copy, Debug)]
enum LinesToRead<'e> {
    /// At most this many lines at a place in the log.
    At(&'e Extent, Seek, usize),
    /// The lines that a search finds after a position.
    Found(PageWindow),
    /// The lines that were written after those that the reader already has.
    New(PageWindow),
}

fn log_listing(run: &Run) -> Listing {
    Listing::new("log page", run.id)
}

async fn read_part<Q>(
    page: &Page<Q>,
    run: &Run,
    lines_to_read: LinesToRead<'_>,
    line_filter: &LineFilter,
) -> Result<LogPart, Problem> {
    let (store, now) = (page.engine().store(), page.engine().now());
    let (from, log_page) = match lines_to_read {
        LinesToRead::At(extent, seek, limit) => extent.read_page(store, run, (seek, limit), line_filter, now).await?,
        LinesToRead::Found(PageWindow { from, limit }) | LinesToRead::New(PageWindow { from, limit }) => {
            let range = LogRange { from, before_line: None, line_filter, limit, bytes_max: lines::TEXT_BYTES_MAX };
            (from, lines::read(store, run, range, now).await?)
        }
    };
    // Whether the log was settled before the lines were read. Lines that arrived in between are part of the next poll.
    let is_settled = lines::is_settled(run, from.attempt, now);
    let is_new = matches!(lines_to_read, LinesToRead::New(_));
    // A run that has ended can have more last lines than fit into one part.
    let poll_cursor =
        (!is_settled || (is_new && !log_page.is_drained)).then(|| log_listing(run).cursor(log_page.position));
    let is_cut_search = matches!(lines_to_read, LinesToRead::Found(_)) && !log_page.is_drained;
    let search_rest =
        is_cut_search.then(|| (log_listing(run).cursor(log_page.position), log_page.position.line_count()));
    let first_seq = log_page.lines.first().map_or(from.line_count() + 1, |line| line.seq);
    let last_seq = log_page.lines.last().map_or(from.line_count(), |line| line.seq);
    let (_, zone) = zones::clock_and_zone();
    let lines = log_page.lines.into_iter().map(|line| LogLine::new(&line, zone, page.t)).collect();
    Ok(LogPart { lines, line_url: String::new(), first_seq, last_seq, total: last_seq, poll_cursor, search_rest })
}

impl LogLine {
    fn new(line: &Line, zone: Tz, t: &Texts) -> Self {
        let (_, time, millis) = zones::time_parts(line.at, zone);
        let translation = translate(&line.level, &line.line, t.lang());
        let text = translation.as_deref().unwrap_or_else(|| line.line.strip_suffix('\r').unwrap_or(&line.line));
        Self {
            seq: line.seq,
            time: format!("{time}{millis}"),
            iso: line.at.to_string(),
            class: line_classes(line),
            html: ansi::html(text),
        }
    }
}

/// The CSS classes of a line, which show its severity and whether it was printed to stderr.
fn line_classes(line: &Line) -> &'static str {
    let is_stderr = line.level == "stderr";
    match line.severity.parse() {
        Ok(LineSeverity::Error) if is_stderr => "error stderr",
        Ok(LineSeverity::Warn) if is_stderr => "warn stderr",
        Ok(LineSeverity::Error) => "error",
        Ok(LineSeverity::Warn) => "warn",
        Ok(LineSeverity::Debug) => "faint",
        _ if is_stderr => "plain stderr",
        _ => "plain",
    }
}

/// Why no lines are shown; `None` if there are some.
async fn empty_log_note(
    page: &Page<RunPageQuery>,
    run: &Run,
    attempt: i32,
    part: &LogPart,
    is_search: bool,
) -> Result<Option<String>, Problem> {
    let t = page.t;
    if is_search && part.lines.is_empty() && part.search_rest.is_none() {
        return Ok(Some(match part.last_seq {
            0 => t.log_none.to_owned(),
            line => t.log_none_after(line),
        }));
    }
    if is_search || part.total > 0 {
        return Ok(None);
    }
    if attempt < run.attempt || run.status.is_terminal() {
        let attempts = read_attempts(&page.call, run).await?;
        let text = match attempts.iter().find(|attempt_row| attempt_row.attempt == attempt) {
            Some(attempt_row) if is_unconfirmed(attempt_row) => t.log_unconfirmed,
            Some(attempt_row) if attempt_row.started_at.is_none() => t.log_never_began,
            _ => t.log_silent,
        };
        return Ok(Some(text.to_owned()));
    }
    let Some((id, name)) = run.executor_id.zip(run.executor.as_deref()).filter(|_| run.started_at.is_some()) else {
        return Ok(Some(t.log_not_begun.to_owned()));
    };
    let heard_since = page.engine().now() - EXECUTOR_SILENCE_MAX;
    let is_online = page.engine().online_executor(id).is_some()
        || !page.engine().store().executors_by_id(&[id], heard_since).await?.is_empty();
    Ok(Some(if is_online { t.log_nothing_yet.to_owned() } else { t.log_offline(name) }))
}

/// Whether no executor reported how the attempt went. Its handler may have started, and lines of its log may be lost.
fn is_unconfirmed(attempt: &Attempt) -> bool {
    attempt.status == RunStatus::Unknown || attempt.reason == Some(Reason::ExecutorLost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_attempt_may_have_started() {
        let attempt = |status, reason| Attempt {
            attempt: 1,
            status,
            reason,
            detail: None,
            executor: Some("w1".to_owned()),
            executor_id: None,
            started_at: None,
            finished_at: None,
            message: None,
        };
        for (status, reason, expected) in [
            (RunStatus::Unknown, Some(Reason::ExecutorLost), true),
            (RunStatus::Unknown, None, true),
            (RunStatus::Failed, Some(Reason::ExecutorLost), true),
            (RunStatus::Failed, Some(Reason::NoExecutor), false),
            (RunStatus::Skipped, Some(Reason::Overlap), false),
        ] {
            assert_eq!(is_unconfirmed(&attempt(status, reason)), expected, "{status:?} {reason:?}");
        }
    }
}
