//! Downloads runs as a file: as CSV for spreadsheets, or as JSON with one document per line.

use axum::response::{IntoResponse as _, Response};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use rondel_core::filter::{Filter, Scope};
use rondel_core::{Run, RunId};
use rondel_store::ledger::{FoundRuns, RunOrder, RunPlace, RunSearch, lateness};
use serde_json::json;

use super::shell::Page;
use super::texts::Texts;
use super::zones;
use crate::api::run_json;
use crate::permits::HeavyWork;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::run_filter::{self, can_continue};
use crate::shares::{self, HeavyWorkShare};
use crate::shown_runs::with_job_names;

/// Maximum number of runs in a file.
const EXPORTED_RUN_COUNT_MAX: usize = 10_000;
/// How many runs are read at a time.
const RUN_BATCH_COUNT: u32 = 500;
/// Maximum number of continuations of one export: a search stops after a maximum number of rows, and the export then continues it.
const CONTINUATION_COUNT_MAX: u32 = 100;

/// The filter of the runs to export.
#[derive(Debug)]
pub(crate) struct ExportQuery(String);

impl FromQuery for ExportQuery {
    fn from_query(reader: &mut Reader) -> Self {
        Self(reader.single("q").unwrap_or_default())
    }
}

pub(super) async fn csv(page: Page<ExportQuery>) -> Result<Response, Problem> {
    // With the byte order mark, spreadsheets read the file as UTF-8.
    let header_line = "\u{feff}id,job,status,planned,due,started,finished,duration_ms,late_ms,attempt,shard,trigger,executor,reason,message\r\n";
    let mut text = header_line.to_owned();
    let (mut export, _share) = begin_export(&page).await?;
    while let Some(runs) = next_runs(&page, &mut export).await? {
        for (job, run) in with_job_names(&page.call, runs).await? {
            text.push_str(&csv_line(&job, &run));
        }
    }
    text.extend(export.cut_note(page.t).map(|note| format!("{}\r\n", csv_cell(&note))));
    Ok(file_response(text, "text/csv; charset=utf-8", "runs.csv"))
}

pub(super) async fn json_lines(page: Page<ExportQuery>) -> Result<Response, Problem> {
    let mut text = String::new();
    let (mut export, _share) = begin_export(&page).await?;
    while let Some(runs) = next_runs(&page, &mut export).await? {
        for item in run_json::run_items(&page.call, runs.into_iter().map(Run::for_reader).collect()).await? {
            let line = serde_json::to_string(&item)
                .map_err(|error| Problem::internal(format!("a run cannot be written as JSON: {error}")))?;
            text.push_str(&line);
            text.push('\n');
        }
    }
    text.extend(export.cut_note(page.t).map(|note| format!("{}\n", json!({ "ended": { "message": note } }))));
    Ok(file_response(text, "application/x-ndjson", "runs.jsonl"))
}

/// A running export: its search, and how many more runs the file can take.
struct RunExport {
    search: RunSearch,
    /// How many more runs the file can take.
    remaining_count: usize,
    /// How many more times the search may be continued.
    remaining_continuations: u32,
    end: Option<ExportEnd>,
}

/// Why an export ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExportEnd {
    /// The file has all runs that match.
    Complete,
    /// The file is full, and more runs match.
    Full,
    /// The search stopped at this run. Older runs were not searched.
    StoppedAt(RunId),
}

impl RunExport {
    const fn new(search: RunSearch) -> Self {
        Self {
            search,
            remaining_count: EXPORTED_RUN_COUNT_MAX,
            remaining_continuations: CONTINUATION_COUNT_MAX,
            end: None,
        }
    }

    /// How many runs to search for. One more than the file can take shows whether more runs match.
    fn limit(&self) -> u32 {
        u32::try_from(self.remaining_count + 1).map_or(RUN_BATCH_COUNT, |count| count.min(RUN_BATCH_COUNT))
    }

    /// Selects the runs for the file from those that a search found. Records where the next search begins, or why the export ends.
    fn take_runs(&mut self, found_runs: FoundRuns) -> Vec<Run> {
        let FoundRuns { mut runs, stopped_at } = found_runs;
        let is_full = runs.len() >= usize::try_from(self.limit()).unwrap_or(usize::MAX);
        if runs.len() > self.remaining_count {
            runs.truncate(self.remaining_count);
            self.end = Some(ExportEnd::Full);
        } else if is_full {
            self.search.from = runs.last().map(|run| self.search.place(run));
        } else {
            match stopped_at {
                Some(id) if self.remaining_continuations > 0 && can_continue(&self.search) => {
                    self.remaining_continuations -= 1;
                    self.search.from = Some(RunPlace { value: 0, id });
                }
                stopped_at => self.end = Some(stopped_at.map_or(ExportEnd::Complete, ExportEnd::StoppedAt)),
            }
        }
        self.remaining_count -= runs.len();
        runs
    }

    /// A note about the runs that are missing in the file; `None` if it has all.
    fn cut_note(&self, t: &Texts) -> Option<String> {
        match self.end? {
            ExportEnd::Complete => None,
            ExportEnd::Full => Some(t.export_full(EXPORTED_RUN_COUNT_MAX)),
            ExportEnd::StoppedAt(id) => Some(t.export_stopped(id.created_at())),
        }
    }
}

/// Begins an export. The share must live until the file is complete.
async fn begin_export(page: &Page<ExportQuery>) -> Result<(RunExport, HeavyWorkShare), Problem> {
    let share = shares::take_heavy_work_share(&page.call.web, HeavyWork::Export, page.call.caller.key())?;
    let filter = Filter::parse(&page.query().0, Scope::Runs).map_err(|error| run_filter::filter_problem(&error))?;
    let search = run_filter::build_search(&page.call, &filter, RunOrder::Newest, zones::clock_and_zone().1).await?;
    Ok((RunExport::new(search), share))
}

/// The next runs; `None` at the end.
async fn next_runs(page: &Page<ExportQuery>, export: &mut RunExport) -> Result<Option<Vec<Run>>, Problem> {
    while export.end.is_none() {
        export.search.limit = export.limit();
        let found_runs = page.engine().store().search_runs(page.call.namespace.id, &export.search).await?;
        let runs = export.take_runs(found_runs);
        if !runs.is_empty() {
            return Ok(Some(runs));
        }
    }
    Ok(None)
}

fn file_response(text: String, content_type: &'static str, name: &str) -> Response {
    let headers =
        [(CONTENT_TYPE, content_type.to_owned()), (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\""))];
    (headers, text).into_response()
}

fn csv_line(job: &str, run: &Run) -> String {
    let instant_text = |at: Option<rondel_core::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let duration_ms = run.started_at.zip(run.finished_at).map(|(start, end)| end.since(start).as_millis().to_string());
    let lateness_ms = lateness(run).map(|lateness| lateness.as_millis().to_string());
    let cells = [
        run.id.to_string(),
        csv_cell(job),
        run.shown_status().to_string(),
        run.fire_at.to_string(),
        run.due_at.to_string(),
        instant_text(run.started_at),
        instant_text(run.finished_at),
        duration_ms.unwrap_or_default(),
        lateness_ms.unwrap_or_default(),
        run.attempt.to_string(),
        run.shard_index.to_string(),
        run.trigger.to_string(),
        csv_cell(run.executor.as_deref().unwrap_or_default()),
        run.reason.map(|reason| reason.to_string()).unwrap_or_default(),
        csv_cell(run.message.as_deref().unwrap_or_default()),
    ];
    format!("{}\r\n", cells.join(","))
}

/// A text as a cell of a CSV file. A text that begins like a formula gets an apostrophe, since spreadsheets would run it.
fn csv_cell(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use rondel_core::{JobId, Timestamp};

    use super::super::texts::Lang;
    use super::*;

    /// An export whose search found nothing before it stopped.
    fn stopped(jobs: Option<Vec<JobId>>, at: Option<RunId>) -> RunExport {
        let search = RunSearch { jobs, ..RunSearch::new(Timestamp::from_secs(1_900_000_000), 0) };
        let mut export = RunExport::new(search);
        assert_eq!(export.take_runs(FoundRuns { runs: Vec::new(), stopped_at: at }), []);
        export
    }

    #[test]
    fn a_search_continues_where_it_stopped_or_the_file_names_the_gap() {
        let (t, id) = (Lang::En.texts(), RunId::new(7));
        let mut goes_on = stopped(None, Some(id));
        assert_eq!((goes_on.end, goes_on.search.from), (None, Some(RunPlace { value: 0, id })));
        assert_eq!(goes_on.take_runs(FoundRuns::default()), []);
        assert_eq!((goes_on.end, goes_on.cut_note(t)), (Some(ExportEnd::Complete), None));
        let one_job = stopped(Some(vec![JobId::new(1)]), Some(id));
        assert_eq!(one_job.end, Some(ExportEnd::StoppedAt(id)));
        let words = one_job.cut_note(t).unwrap();
        assert!(words.contains(&id.created_at().to_string()), "{words}");
        let many = stopped(Some(vec![JobId::new(1), JobId::new(2)]), Some(id));
        assert_eq!(many.end, None);
        assert_eq!(stopped(None, None).end, Some(ExportEnd::Complete));
        let mut endless =
            RunExport { remaining_continuations: 0, ..RunExport::new(RunSearch::new(Timestamp::EPOCH, 0)) };
        assert_eq!(endless.take_runs(FoundRuns { runs: Vec::new(), stopped_at: Some(id) }), []);
        assert_eq!(endless.end, Some(ExportEnd::StoppedAt(id)));
    }

    #[test]
    fn cells_are_text_and_no_formulas() {
        for (text, expected) in [
            ("a", "a"),
            ("a,b", "\"a,b\""),
            ("write \"hi\"", "\"write \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("支付", "支付"),
        ] {
            assert_eq!(csv_cell(text), expected);
        }
    }
}
