//! Searches a whole log: counts its lines by severity, and finds the lines that a filter matches.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::log_line::{LineSeverity, missing_lines};
use rondel_core::{Run, Timestamp};
use rondel_store::logs::is_gap_before;
use rondel_store::{Store, StoreError};
use schemars::JsonSchema;
use serde::Serialize;

use super::lines::{self, LEVELS, LineFilter};
use super::logs::chosen_attempt;
use super::runs;
use crate::answer::json_response;
use crate::call::Call;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// Maximum number of line numbers in an answer.
const HIT_COUNT_MAX: usize = 10_000;
/// Maximum bytes of text that one search reads, far more than a log can have.
const SEARCHED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The query parameters for a search in a log.
#[derive(Debug)]
pub(crate) struct LogSearchQuery {
    attempt: Option<i32>,
    line_filter: LineFilter,
}

impl FromQuery for LogSearchQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self { attempt: super::logs::attempt_parameter(reader), line_filter: LineFilter::from_query(reader) }
    }
}

/// How many lines have each severity.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct SeverityCounts {
    error: u64,
    warn: u64,
    info: u64,
    debug: u64,
}

/// The result of a search in a log.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct LogSearch {
    /// How many lines the attempt has.
    line_count: u64,
    /// How many of them have each severity.
    severities: SeverityCounts,
    /// How many lines match; 0 without a filter.
    hit_count: u64,
    /// The numbers of the lines that match, the first 10,000.
    hits: Vec<u64>,
    /// Whether lines are missing from the log: it was too long, or written too fast.
    has_gaps: bool,
    /// Whether no more lines will follow.
    complete: bool,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/runs/{id}/logs/search",
        View,
        get,
        Doc::new(
            "Search a run's log",
            "Searches the whole log of an attempt: how many lines it has of each severity, and the numbers of the lines that a filter \
             matches. `GET /api/v1/runs/{id}/logs?around=` reads the lines around one of them.",
        )
        .json::<LogSearch>(200, "Counts, and the numbers of the lines found."),
    )
}

async fn get(call: Call<LogSearchQuery>, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = runs::find(&call, &path).await?;
    let attempt = chosen_attempt(call.query.attempt, &run)?;
    let result = search(call.engine().store(), &run, attempt, &call.query.line_filter, call.engine().now()).await?;
    json_response(StatusCode::OK, &result)
}

/// Searches the log of an attempt.
pub(crate) async fn search(
    store: &dyn Store,
    run: &Run,
    attempt: i32,
    line_filter: &LineFilter,
    now: Timestamp,
) -> Result<LogSearch, StoreError> {
    let is_settled = lines::is_settled(run, attempt, now);
    let mut result = LogSearch { complete: is_settled, ..LogSearch::default() };
    let (mut last_sequence, mut chunk_count, mut bytes) = (-1_i64, 1, 0);
    loop {
        let chunks = store.log_chunks(run.id, attempt, last_sequence, chunk_count).await?;
        if chunks.is_empty() {
            return Ok(result);
        }
        chunk_count = lines::next_count(&chunks, lines::TEXT_BYTES_MAX);
        for chunk in chunks {
            if is_gap_before(chunk.sequence, last_sequence, result.line_count)
                && !is_settled
                && lines::is_fresh(&chunk, now)
            {
                return Ok(result);
            }
            last_sequence = chunk.sequence;
            for line in &chunk.lines {
                bytes += line.text.len();
                result.count_line(line, line_filter);
            }
        }
        if bytes >= SEARCHED_BYTES_MAX {
            result.complete = false;
            return Ok(result);
        }
    }
}

impl LogSearch {
    fn count_line(&mut self, line: &rondel_store::logs::LogLine, line_filter: &LineFilter) {
        self.line_count += 1;
        let count = match LineSeverity::of(&line.level, &line.text) {
            LineSeverity::Error => &mut self.severities.error,
            LineSeverity::Warn => &mut self.severities.warn,
            LineSeverity::Info => &mut self.severities.info,
            LineSeverity::Debug => &mut self.severities.debug,
        };
        *count += 1;
        self.has_gaps |= missing_lines(&line.level, &line.text).is_some();
        if line_filter.matches_all() || !line_filter.matches(line) {
            return;
        }
        self.hit_count += 1;
        if self.hits.len() < HIT_COUNT_MAX {
            self.hits.push(self.line_count);
        }
    }
}

impl LineFilter {
    /// Reads the filter of a query for lines.
    pub(crate) fn from_query(reader: &mut Reader) -> Self {
        Self {
            levels: reader.words(Parameter::words("level", &LEVELS).about("Only lines of these levels.")),
            contains: reader.parsed(
                Parameter::text("contains").about("Only lines with this text of up to 256 bytes; case is ignored."),
                Self::parse_contains,
            ),
            severities: reader.words(Parameter::words("severity", &LineSeverity::WORDS).about(
                "Only lines of these severities. The severity of a logged line is given by its level, that of a printed line by \
                 its text.",
            )),
        }
    }
}
