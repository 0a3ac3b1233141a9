//! The list of runs: a filter in its URL, three orders, and pages in both directions.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission;
use rondel_core::filter::{Filter, FilterError, Scope};
use rondel_core::{RunStatus, Timestamp, words};
use rondel_store::ledger::RunOrder;
use rondel_store::saved_filters::FilteredList;

use super::filter_bar::{FilterBar, Preset, list_url, presets};
use super::run_line::RunLine;
use super::saved_filters::SavedBar;
use super::shell::{Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use super::zones;
use crate::cursor::Listing;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::query_pair;
use crate::run_bulk::BULK_RUN_COUNT_MAX;
use crate::run_filter::{self, RunPosition, SearchedPage};
use crate::shown_runs::{Parts, with_job_names};

/// The filter for failures that are not acknowledged.
const DEAD_FILTER: &str = "is:dead";
/// Maximum number of failures that are counted for this filter.
const DEAD_RUN_COUNT_MAX: u32 = 1_000;

/// The query parameters for the list of runs. `job` and `status` are parameters of old links, which are still supported.
#[derive(Debug)]
pub(crate) struct RunListQuery {
    text: String,
    sort: String,
    order: RunOrder,
    cursor: Option<String>,
}

impl FromQuery for RunListQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let statuses = |text: &str| {
            let words = text.split(',').filter(|word| !word.is_empty());
            words.map(str::parse).collect::<Result<Vec<RunStatus>, String>>()
        };
        let statuses = reader.parsed("status", statuses).unwrap_or_default();
        let job = reader.single("job").map(|job| job.trim().to_owned()).filter(|job| !job.is_empty());
        let sort = reader.parsed("sort", |word| run_filter::parse_order(word).map(|order| (word.to_owned(), order)));
        let (sort, order) = sort.unwrap_or_default();
        let mut terms: Vec<String> = reader.single("q").map(|text| text.trim().to_owned()).into_iter().collect();
        terms.extend(statuses.iter().map(|status| format!("status:{status}")));
        terms.extend(job.map(|job| format!("job:\"{}\"", job.replace(['"', '\\'], ""))));
        terms.retain(|term| !term.is_empty());
        Self { text: terms.join(" "), sort, order, cursor: reader.single("cursor") }
    }
}

impl RunListQuery {
    fn filter(&self) -> Result<Filter, FilterError> {
        Filter::parse(&self.text, Scope::Runs)
    }

    /// The parameters that a URL has in addition to the filter.
    fn other_parameters(&self) -> Vec<(&'static str, String)> {
        if self.order == RunOrder::Newest { Vec::new() } else { vec![("sort", self.sort.clone())] }
    }
}

/// The header of a column by which the list can be sorted.
struct SortHeader {
    href: String,
    is_current: bool,
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    shell: Shell,
    t: &'static Texts,
    bar: FilterBar,
    presets: Vec<Preset>,
    saved_filters: SavedBar,
    /// The headers of the columns that sort the list: by time, by duration, and by lateness.
    sorts: [SortHeader; 3],
    /// The URL of this page of the list, from which the script reloads the rows.
    page_url: String,
    rows: Vec<RunLine>,
    previous_url: Option<String>,
    next_url: Option<String>,
    /// The URL of the first page.
    first_url: String,
    is_first: bool,
    /// Whether the list begins with the newest runs; the page can then show how many new runs there are.
    is_live: bool,
    /// Notes about a deleted job, and about where the search ended.
    notes: Vec<String>,
    /// Why the caller may not cancel or repeat runs; `None` if the caller may.
    missing_bulk_role: Option<&'static str>,
    bulk_max: usize,
    /// The downloads: the name of the format, and the URL.
    exports: [(&'static str, String); 2],
}

pub(super) async fn list(page: Page<RunListQuery>) -> Result<Response, Problem> {
    let (query, t) = (page.query(), page.t);
    let filter = query.filter();
    let bar = FilterBar::new(("/runs", "/suggest/runs"), (&query.text, &filter), query.other_parameters(), t);
    let status = if filter.is_err() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let filter = filter.ok();
    let text = filter.as_ref().map(ToString::to_string).unwrap_or_default();
    let namespace = page.call.namespace.id;
    let listing = Listing::new("runs page", (namespace, &text, query.order));
    let position = query.cursor.as_deref().map(|cursor| listing.position::<RunPosition>(cursor)).transpose()?;
    let searched_page = match &filter {
        Some(filter) => {
            let mut search =
                run_filter::build_search(&page.call, filter, query.order, zones::clock_and_zone().1).await?;
            if let Some(position) = position {
                position.apply(&mut search);
            }
            run_filter::read_page(&page.call, search, PAGE_ITEM_COUNT).await?
        }
        None => SearchedPage { runs: Vec::new(), previous_position: None, next_position: None, searched_to: None },
    };
    let now = page.engine().now();
    let other_parameters = query.other_parameters();
    let url_from = |position: RunPosition| {
        let cursor = listing.cursor(position);
        list_url("/runs", &text, &[other_parameters.clone(), vec![("cursor", cursor)]].concat())
    };
    let (previous_url, next_url) =
        (searched_page.previous_position.map(url_from), searched_page.next_position.map(url_from));
    let parts = Parts::read(&page.call, searched_page.runs.iter()).await?;
    let rows = with_job_names(&page.call, searched_page.runs).await?;
    let rows = rows.into_iter().map(|(job, run)| RunLine::new(&run, job, parts.part_of(&run), now, t)).collect();
    let sort = |order: RunOrder, word: &str| SortHeader {
        href: list_url("/runs", &text, &if word.is_empty() { Vec::new() } else { vec![("sort", word.to_owned())] }),
        is_current: query.order == order,
    };
    let template = RunsPage {
        shell: page.shell(Nav::Runs),
        t,
        bar,
        presets: with_dead_preset(&page, presets("/runs", &text, &run_presets(t)), &text).await?,
        saved_filters: SavedBar::read(&page, FilteredList::Runs, &text).await?,
        sorts: [sort(RunOrder::Newest, ""), sort(RunOrder::Longest, "longest"), sort(RunOrder::Latest, "latest")],
        page_url: page.page_url().to_owned(),
        rows,
        is_live: position.is_none() && query.order == RunOrder::Newest && status == StatusCode::OK,
        previous_url,
        next_url,
        first_url: list_url("/runs", &text, &other_parameters),
        is_first: position.is_none(),
        notes: list_notes(&page, filter.as_ref(), searched_page.searched_to).await?,
        missing_bulk_role: page
            .call
            .apps_with(Permission::Operate)
            .is_some_and(|apps| apps.is_empty())
            .then_some(t.needs_operator),
        bulk_max: BULK_RUN_COUNT_MAX,
        exports: [("CSV", "csv"), ("JSON", "jsonl")]
            .map(|(name, kind)| (name, format!("/export/runs.{kind}?{}", query_pair("q", &text)))),
    };
    html(status, &template)
}

const fn run_presets(t: &Texts) -> [(&'static str, &'static str); 6] {
    [
        (t.runs_all, ""),
        (t.preset_failed, "status:failed,timed_out,unknown since:1d"),
        (t.preset_running, "status:running"),
        (t.preset_waiting, "status:pending,waiting"),
        (t.preset_late, "since:1d late:>1s"),
        (t.preset_long, "since:1d duration:>10m"),
    ]
}

/// Adds a preset for failures that are not acknowledged, with their number. The number includes all apps, so it is not shown to callers
/// who may see only some apps.
async fn with_dead_preset(
    page: &Page<RunListQuery>,
    mut presets: Vec<Preset>,
    text: &str,
) -> Result<Vec<Preset>, Problem> {
    let count = match page.call.visible_apps() {
        Some(_) => 0,
        None => page.engine().store().dead_letter_count(page.call.namespace.id, DEAD_RUN_COUNT_MAX).await?,
    };
    let name = match (count, count >= u64::from(DEAD_RUN_COUNT_MAX)) {
        (0, _) => page.t.preset_dead.to_owned(),
        (_, true) => page.t.preset_dead_count(format!("{DEAD_RUN_COUNT_MAX}+")),
        (count, false) => page.t.preset_dead_count(count),
    };
    presets.push(Preset { name, href: list_url("/runs", DEAD_FILTER, &[]), is_current: text == DEAD_FILTER });
    Ok(presets)
}

/// Notes about the list: that its job was deleted, and that the search ended early.
async fn list_notes(
    page: &Page<RunListQuery>,
    filter: Option<&Filter>,
    searched_to: Option<Timestamp>,
) -> Result<Vec<String>, Problem> {
    let (t, store, namespace) = (page.t, page.engine().store(), page.call.namespace.id);
    let mut notes = Vec::new();
    if let Some([name]) = filter.map(|filter| &filter.jobs.any[..]).filter(|names| names.len() == 1)
        && rondel_core::name::check(&name.0).is_ok()
        && store.job(namespace, &name.0).await?.is_none()
    {
        let deleted_job = store.deleted_job(namespace, &name.0).await?.filter(|job| page.call.may_view(job.app));
        notes
            .extend(deleted_job.map(|job| {
                t.runs_job_deleted(&name.0, words::instant_text(zones::clock_and_zone().1, job.deleted_at))
            }));
    }
    let instant_text = |at: Timestamp| words::instant_text(zones::clock_and_zone().1, at);
    notes.extend(searched_to.map(|to| t.runs_searched_to(rondel_store::ledger::SEARCHED_COUNT_MAX, instant_text(to))));
    Ok(notes)
}
