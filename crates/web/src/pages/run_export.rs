//! Runs as a file: CSV for spreadsheets, or a JSON document per line.

use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use rondel_core::Run;
use rondel_core::filter::{Filter, Scope};
use rondel_store::ledger::RunOrder;

use super::shell::Page;
use super::zones;
use crate::api::run_json;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::run_filter;
use crate::shown_runs::named;

/// Maximum number of runs in a file.
const EXPORT_COUNT_MAX: usize = 10_000;
/// How many are read at once.
const READ_COUNT: u32 = 500;

/// The filter of the exported runs.
#[derive(Debug)]
pub(crate) struct ExportQuery(String);

impl FromQuery for ExportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.one("q").unwrap_or_default())
    }
}

pub(super) async fn csv(page: Page<ExportQuery>) -> Result<Response, Problem> {
    // With the byte order mark, spreadsheets read the file as UTF-8.
    let head = "\u{feff}id,job,status,planned,due,started,finished,duration_ms,late_ms,attempt,shard,trigger,executor,reason,message\r\n";
    let mut text = head.to_owned();
    let mut search = search(&page).await?;
    while let Some(runs) = next(&page, &mut search).await? {
        for (job, run) in named(&page.call, runs).await? {
            text.push_str(&line(&job, &run));
        }
    }
    Ok(file(text, "text/csv; charset=utf-8", "runs.csv"))
}

pub(super) async fn json_lines(page: Page<ExportQuery>) -> Result<Response, Problem> {
    let mut text = String::new();
    let mut search = search(&page).await?;
    while let Some(runs) = next(&page, &mut search).await? {
        for item in run_json::items(&page.call, runs.into_iter().map(Run::for_reader).collect()).await? {
            let line = serde_json::to_string(&item).map_err(|error| {
                Problem::new(Code::Internal, "the log of the server has the cause under this request id")
                    .with_cause(format!("a run cannot be written as JSON: {error}"))
            })?;
            text.push_str(&line);
            text.push('\n');
        }
    }
    Ok(file(text, "application/x-ndjson", "runs.jsonl"))
}

/// A search under way, and how many more runs it may find.
struct Export {
    search: rondel_store::ledger::RunSearch,
    left: usize,
}

async fn search(page: &Page<ExportQuery>) -> Result<Export, Problem> {
    let filter = Filter::parse(&page.query().0, Scope::Runs).map_err(|error| run_filter::refused(&error))?;
    let search = run_filter::build_search(&page.call, &filter, RunOrder::Newest, zones::clock_and_zone().1).await?;
    Ok(Export { search, left: EXPORT_COUNT_MAX })
}

/// The next runs; `None` at the end.
async fn next(page: &Page<ExportQuery>, export: &mut Export) -> Result<Option<Vec<Run>>, Problem> {
    if export.left == 0 {
        return Ok(None);
    }
    export.search.limit = READ_COUNT.min(u32::try_from(export.left).unwrap_or(READ_COUNT));
    let found = page.engine().store().search_runs(page.call.namespace.id, &export.search).await?.runs;
    let is_last = found.len() < usize::try_from(export.search.limit).unwrap_or(usize::MAX);
    export.left = if is_last { 0 } else { export.left - found.len() };
    export.search.from = found.last().map(|run| export.search.place(run)).or(export.search.from);
    Ok((!found.is_empty()).then_some(found))
}

fn file(text: String, kind: &'static str, name: &str) -> Response {
    let headers = [(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\""))];
    (headers, text).into_response()
}

fn line(job: &str, run: &Run) -> String {
    let at = |at: Option<rondel_core::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let took = run.started_at.zip(run.finished_at).map(|(start, end)| end.since(start).as_millis().to_string());
    let late =
        run.started_at.filter(|_| run.attempt == 1).map(|start| start.since(run.fire_at).as_millis().to_string());
    let cells = [
        run.id.to_string(),
        cell(job),
        run.shown_status().to_string(),
        run.fire_at.to_string(),
        run.due_at.to_string(),
        at(run.started_at),
        at(run.finished_at),
        took.unwrap_or_default(),
        late.unwrap_or_default(),
        run.attempt.to_string(),
        run.shard_index.to_string(),
        run.trigger.to_string(),
        cell(run.executor.as_deref().unwrap_or_default()),
        run.reason.map(|reason| reason.to_string()).unwrap_or_default(),
        cell(run.message.as_deref().unwrap_or_default()),
    ];
    format!("{}\r\n", cells.join(","))
}

/// A text as a cell. A text that begins with one of these signs gets an apostrophe: spreadsheets would take it for a formula.
fn cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_text_and_no_formulas() {
        for (text, expected) in [
            ("a", "a"),
            ("a,b", "\"a,b\""),
            ("write \"hi\"", "\"write \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("支付", "支付"),
        ] {
            assert_eq!(cell(text), expected);
        }
    }
}
