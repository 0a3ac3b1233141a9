//! The list of jobs, with the newest outcomes, the next fire and the problems of each job.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission;
use rondel_core::filter::{Filter, FilterError, JobState, Scope};
use rondel_core::folded_state::FoldedState;
use rondel_core::run::ROOT_SHARD;
use rondel_core::spec::Mode;
use rondel_core::{JobId, Run, RunId, RunStatus, Timestamp};
use rondel_store::catalog::{JobRecord, ListedJob, UnreadableJob};
use rondel_store::ledger::RunQuery;
use rondel_store::rollups::ChartRun;
use rondel_store::saved_filters::FilteredList;

use super::filter_bar::{FilterBar, Preset, list_url};
use super::moment::{Moment, length_text};
use super::outcomes::{OUTCOME_COUNT, Outcomes};
use super::saved_filters::SavedBar;
use super::schedule_text;
use super::shell::{MissingRoles, Nav, PAGE_ITEM_COUNT, Page, Shell, html};
use super::texts::Texts;
use super::view::{BAR_COUNT, StateWord};
use crate::call::Call;
use crate::cursor::Listing;
use crate::job_board::{Board, BoardEntry, JobOrder, OfferedHandlers};
use crate::job_bulk::BULK_JOB_COUNT_MAX;
use crate::job_states;
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};

/// How many runs of a job are read. The list shows fewer: some of these runs are claimed ahead of their instants, and others are shards.
const READ_RUN_COUNT: u32 = 64;

/// The query parameters for the list of jobs.
#[derive(Debug)]
pub(crate) struct JobListQuery {
    text: String,
    sort: &'static str,
    order: JobOrder,
    cursor: Option<String>,
}

impl FromQuery for JobListQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let order = |text: &str| match text {
            "" | "name" => Ok(("", JobOrder::Name)),
            "app" => Ok(("app", JobOrder::App)),
            "trouble" => Ok(("trouble", JobOrder::Trouble)),
            "next" => Ok(("next", JobOrder::NextFire)),
            "p95" => Ok(("p95", JobOrder::Longest)),
            _ => Err(format!("{text:?} is none of name, app, trouble, next, p95")),
        };
        let (sort, order) = reader.parsed("sort", order).unwrap_or_default();
        let text = reader.single("q").unwrap_or_default().trim().to_owned();
        Self { text, sort, order, cursor: reader.single("cursor") }
    }
}

impl JobListQuery {
    fn other_parameters(&self) -> Vec<(&'static str, String)> {
        if self.sort.is_empty() { Vec::new() } else { vec![("sort", self.sort.to_owned())] }
    }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    shell: Shell,
    t: &'static Texts,
    bar: FilterBar,
    /// Presets for all jobs, and for each state that some of them have.
    presets: Vec<Preset>,
    saved_filters: SavedBar,
    sorts: [Preset; 5],
    /// The URL of this page of the list, from which the script reloads the rows.
    page_url: String,
    rows: Vec<JobRow>,
    /// How many jobs match the filter.
    total: usize,
    previous_url: Option<String>,
    next_url: Option<String>,
    /// The URL of the first page.
    first_url: String,
    is_first: bool,
    /// Why the caller may not create a job; `None` if the caller may.
    missing_new_job_role: Option<&'static str>,
    missing_operator_role: Option<&'static str>,
    missing_editor_role: Option<&'static str>,
    /// Maximum number of jobs that one request may change.
    bulk_max: usize,
}

/// The header of a group of jobs.
struct AppHeader {
    app: String,
    count: usize,
    /// How many of its jobs are paused.
    paused_count: usize,
    /// The filter that selects the jobs of this app.
    filter: String,
}

struct JobRow {
    /// The header before the first job of an app, if the list is grouped by app.
    group: Option<AppHeader>,
    missing_roles: MissingRoles,
    /// A hint for the user if this server cannot read the definition; the row then shows only the name of the job.
    unreadable: Option<String>,
    name: String,
    app: String,
    handler: String,
    is_enabled: bool,
    is_shadow: bool,
    labels: Vec<(String, String)>,
    /// The schedules in words, in one line. `code` has their expressions.
    words: Option<String>,
    code: String,
    next_fire: Option<Moment>,
    outcomes: Outcomes,
    /// The 95th percentile of the durations of its newest successful runs.
    p95: Option<String>,
    state: StateWord,
    /// Further problems of the job.
    marks: Vec<(&'static str, &'static str)>,
}

/// The jobs of one page of the list.
struct JobSlice {
    entries: Vec<Arc<BoardEntry>>,
    /// The job after which the previous page begins; `None` if the previous page is the first one, or if there is no previous page.
    previous_entry: Option<Arc<BoardEntry>>,
    has_more: bool,
}

pub(super) async fn list(page: Page<JobListQuery>) -> Result<Response, Problem> {
    let (query, t) = (page.query(), page.t);
    let namespace = page.call.namespace.id;
    let filter = Filter::parse(&query.text, Scope::Jobs);
    let bar = FilterBar::new(("/jobs", "/suggest/jobs"), (&query.text, &filter), query.other_parameters(), t);
    let status = if filter.is_err() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let text = filter.as_ref().map(ToString::to_string).unwrap_or_default();
    let listing = Listing::new("jobs page", (namespace, &text, query.order));
    let after_name = listing.name_after(query.cursor.as_deref(), rondel_core::name::check)?;
    let board_filter = filter.clone().unwrap_or_default();
    let board = page.call.web.boards.board_for(page.engine(), namespace, &board_filter).await?;
    let mut offers = OfferedHandlers::new(page.engine(), namespace);
    let visible_apps = page.call.visible_apps();
    let mut entries = match &filter {
        Ok(filter) => board.matching(filter, visible_apps.as_deref(), query.order, &mut offers),
        Err(_) => Vec::new(),
    };
    page.call.web.ranks.sort(page.engine(), (namespace, &board), query.order, &mut entries).await?;
    let total = entries.len();
    let presets = state_presets(&page, (&*board, &filter, visible_apps.as_deref()), &mut offers);
    let slice = page_slice(&entries, after_name.as_deref());
    let url_from = |entry: &Arc<BoardEntry>| {
        let cursor = vec![("cursor", listing.cursor(&entry.name))];
        list_url("/jobs", &text, &[query.other_parameters(), cursor].concat())
    };
    let next_url = slice.entries.last().filter(|_| slice.has_more).map(url_from);
    let is_first = after_name.is_none();
    let first_url = list_url("/jobs", &text, &query.other_parameters());
    let previous_url = match (&slice.previous_entry, is_first) {
        (_, true) => None,
        (Some(entry), false) => Some(url_from(entry)),
        (None, false) => Some(first_url.clone()),
    };
    let rows = job_rows(&page, (&*board, &entries[..]), slice.entries, &mut offers).await?;
    let preset = |word: &'static str, name: &'static str| Preset {
        name: name.to_owned(),
        href: list_url("/jobs", &text, &if word.is_empty() { Vec::new() } else { vec![("sort", word.to_owned())] }),
        is_current: query.sort == word,
    };
    let has_permission = |permission| page.call.apps_with(permission).is_none_or(|apps| !apps.is_empty());
    let template = JobsPage {
        shell: page.shell(Nav::Jobs),
        t,
        bar,
        presets,
        saved_filters: SavedBar::read(&page, FilteredList::Jobs, &text).await?,
        sorts: [
            preset("", t.sort_name),
            preset("app", t.sort_app),
            preset("trouble", t.sort_trouble),
            preset("next", t.sort_next),
            preset("p95", t.sort_p95),
        ],
        page_url: page.page_url().to_owned(),
        rows,
        total,
        previous_url,
        next_url,
        first_url,
        is_first,
        missing_new_job_role: page.missing_new_job_role(),
        missing_operator_role: (!has_permission(Permission::Operate)).then_some(t.needs_operator),
        missing_editor_role: (!has_permission(Permission::Edit)).then_some(t.needs_editor),
        bulk_max: BULK_JOB_COUNT_MAX,
    };
    html(status, &template)
}

/// The page of jobs after the job `after_name`, in the order of the list, and where the previous page begins. If `after_name` no longer exists, the
/// page begins with the next job by name.
fn page_slice(entries: &[Arc<BoardEntry>], after_name: Option<&str>) -> JobSlice {
    let limit = usize::try_from(PAGE_ITEM_COUNT).unwrap_or(usize::MAX);
    let start = after_name.map_or(0, |after_name| {
        let index = entries.iter().position(|entry| entry.name == after_name).map(|index| index + 1);
        index.unwrap_or_else(|| {
            entries.iter().position(|entry| entry.name.as_str() > after_name).unwrap_or(entries.len())
        })
    });
    let end = (start + limit).min(entries.len());
    let previous_entry = start.checked_sub(limit + 1).and_then(|index| entries.get(index)).cloned();
    JobSlice { entries: entries[start..end].to_vec(), previous_entry, has_more: end < entries.len() }
}

/// Presets for all jobs, and for each state that some of them have. Each shows how many jobs it finds together with the rest of the filter.
fn state_presets(
    page: &Page<JobListQuery>,
    (board, filter, visible_apps): (&Board, &Result<Filter, FilterError>, Option<&[rondel_core::AppId]>),
    offers: &mut OfferedHandlers<'_>,
) -> Vec<Preset> {
    let t = page.t;
    let chosen_states = filter.as_ref().map(|filter| filter.states.clone()).unwrap_or_default();
    let mut other_conditions = filter.clone().unwrap_or_default();
    other_conditions.states = Default::default();
    let matching_entries = board.matching(&other_conditions, visible_apps, JobOrder::Name, offers);
    let parameters = page.query().other_parameters();
    let mut presets = vec![Preset {
        name: format!("{} {}", t.jobs_all, matching_entries.len()),
        href: list_url("/jobs", &other_conditions.to_string(), &parameters),
        is_current: chosen_states.admits_all(),
    }];
    for (state, count) in board.count_by_state(&matching_entries, offers).into_iter().filter(|(_, count)| *count > 0) {
        let mut filter_with_state = other_conditions.clone();
        filter_with_state.states.any = vec![state];
        presets.push(Preset {
            name: format!("{} {count}", state_name(state, t)),
            href: list_url("/jobs", &filter_with_state.to_string(), &parameters),
            is_current: chosen_states.any == [state],
        });
    }
    presets
}

const fn state_name(state: JobState, t: &Texts) -> &'static str {
    match state {
        JobState::Failing => t.state_failing,
        JobState::NeverSucceeded => t.state_never_succeeded,
        JobState::NoExecutor => t.state_no_executor,
        JobState::Paused => t.state_paused,
        JobState::Late => t.state_late,
        JobState::Shadow => t.shadow,
        JobState::Error => t.state_error,
        JobState::Running => t.state_running,
        JobState::Complete => t.state_complete,
        JobState::Waiting => t.state_waiting,
    }
}

/// The rows of a page. Definitions and runs are read from the store.
async fn job_rows(
    page: &Page<JobListQuery>,
    (board, all_entries): (&Board, &[Arc<BoardEntry>]),
    entries: Vec<Arc<BoardEntry>>,
    offers: &mut OfferedHandlers<'_>,
) -> Result<Vec<JobRow>, Problem> {
    let (call, now, t) = (&page.call, page.engine().now(), page.t);
    let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut jobs = page.engine().store().listed_jobs_named(call.namespace.id, &names).await?;
    jobs.retain(|job| call.may_view(job.app()));
    let (records, unreadable_jobs) = ListedJob::split(jobs);
    let ids: Vec<JobId> = records.iter().map(|record| record.id).collect();
    let chart_runs = page.engine().store().chart_runs(&ids, Timestamp::EPOCH, Timestamp::MAX, READ_RUN_COUNT).await?;
    let mut runs_by_job: HashMap<JobId, Vec<ChartRun>> = HashMap::new();
    chart_runs
        .into_iter()
        .filter(|run| call.may_view(run.app))
        .for_each(|run| runs_by_job.entry(run.job).or_default().push(run));
    let row = |(record, state): (&JobRecord, FoldedState)| {
        let chart_runs = runs_by_job.remove(&record.id).unwrap_or_default();
        job_row((record, state), page.missing_roles(Some(record.app)), chart_runs, (now, t))
    };
    let states = job_states::job_states(page.engine(), &records).await?;
    let mut rows: Vec<JobRow> = records.iter().zip(states).map(row).collect();
    rows.extend(unreadable_jobs.into_iter().map(|job| unreadable_row(page.missing_roles(Some(job.app)), job, t)));
    rows.sort_by_key(|row| names.iter().position(|name| *name == row.name));
    let mut app = String::new();
    for row in &mut rows {
        let Some(entry) = entries.iter().find(|entry| entry.name == row.name) else { continue };
        // These three states are shown elsewhere in the row: by its state, by its switch, and by a tag for shadow mode.
        let is_shown_already =
            |state: &&JobState| matches!(state, JobState::Failing | JobState::Paused | JobState::Shadow);
        let state_marks = JobState::MARKS.iter().filter(|state| !is_shown_already(state));
        let state_marks = state_marks.filter(|state| board.is_in_state(**state, entry, offers));
        row.marks = state_marks.map(|state| (state.as_str(), state_name(*state, t))).collect();
        if page.query().order == JobOrder::App && row.app != app {
            app.clone_from(&row.app);
            let entries_of_app = || all_entries.iter().filter(|entry| entry.app_name == app);
            let mut filter = Filter::parse(&page.query().text, Scope::Jobs).unwrap_or_default();
            filter.apps.any = vec![rondel_core::filter::Pattern(app.clone())];
            row.group = Some(AppHeader {
                app: app.clone(),
                count: entries_of_app().count(),
                paused_count: entries_of_app().filter(|entry| !entry.is_enabled).count(),
                filter: filter.to_string(),
            });
        }
    }
    Ok(rows)
}

/// A row of the list, with the newest runs of the job.
fn job_row(
    (record, state): (&JobRecord, FoldedState),
    missing_roles: MissingRoles,
    mut runs: Vec<ChartRun>,
    (now, t): (Timestamp, &'static Texts),
) -> JobRow {
    let is_claimed =
        |run: &&ChartRun| run.fire_at > now && matches!(run.status, RunStatus::Pending | RunStatus::Waiting);
    let claimed_fire_at = runs.iter().filter(is_claimed).map(|run| run.fire_at).min();
    let next_fire_at = claimed_fire_at.into_iter().chain(record.next_fire_at).min();
    runs.retain(|run| run.fire_at <= now);
    runs.truncate(OUTCOME_COUNT);
    let schedules = schedule_text::schedule_texts(&record.spec, t);
    let texts: Vec<&str> = schedules.iter().map(|schedule| schedule.words.as_str()).collect();
    let code: Vec<&str> = schedules.iter().filter_map(|schedule| schedule.code.as_deref()).collect();
    JobRow {
        group: None,
        missing_roles,
        unreadable: None,
        name: record.spec.name.clone(),
        app: record.spec.app.clone(),
        handler: record.spec.handler.clone(),
        is_enabled: record.spec.enabled,
        is_shadow: record.spec.mode == Mode::Shadow,
        labels: record.spec.labels.clone().into_iter().collect(),
        words: (!texts.is_empty()).then(|| texts.join(" · ")),
        code: code.join("\n"),
        next_fire: next_fire_at.map(|at| Moment::of_job(at, now, t, &record.spec)),
        p95: p95(&runs).map(|duration| length_text(duration, t)),
        outcomes: Outcomes::new(&runs, t),
        state: StateWord::new(state, t),
        marks: Vec::new(),
    }
}

/// The row of a job whose definition this server cannot read.
fn unreadable_row(missing_roles: MissingRoles, job: UnreadableJob, t: &'static Texts) -> JobRow {
    JobRow {
        group: None,
        missing_roles,
        unreadable: Some(t.job_unreadable(job.version)),
        name: job.name,
        app: job.app_name,
        handler: job.handler,
        is_enabled: true,
        is_shadow: false,
        labels: Vec::new(),
        words: None,
        code: String::new(),
        next_fire: None,
        p95: None,
        outcomes: Outcomes::new(&[], t),
        state: StateWord::new(FoldedState::Waiting, t),
        marks: Vec::new(),
    }
}

/// The 95th percentile of the durations of the successful runs among these.
fn p95(runs: &[ChartRun]) -> Option<Duration> {
    let succeeded_runs = runs.iter().filter(|run| run.status == RunStatus::Succeeded);
    let mut durations: Vec<Duration> =
        succeeded_runs.filter_map(|run| Some(run.finished_at?.since(run.started_at?))).collect();
    durations.sort_unstable();
    durations.get((durations.len() * 95).div_ceil(100).saturating_sub(1)).copied()
}

/// The newest runs of a job, and its next fire.
#[derive(Debug)]
pub(super) struct RecentRuns {
    /// Its due runs, the newest first. For a job with shards, these are its broadcasts without the shards.
    pub(super) past_runs: Vec<Run>,
    /// Its next fire, which may already be claimed.
    pub(super) next_fire_at: Option<Timestamp>,
}

impl RecentRuns {
    pub(super) async fn read<Q: Sync>(call: &Call<Q>, record: &JobRecord, now: Timestamp) -> Result<Self, Problem> {
        let mut runs = if record.spec.is_sharded() {
            broadcasts(call, record).await?
        } else {
            let visible_apps = call.visible_apps();
            let query =
                RunQuery { job: Some(record.id), within: visible_apps, limit: READ_RUN_COUNT, ..RunQuery::default() };
            call.engine().store().list_runs(record.namespace, &query).await?
        };
        let is_ahead = |run: &Run| run.fire_at > now;
        let is_open = |run: &&Run| matches!(run.status, RunStatus::Pending | RunStatus::Waiting);
        let claimed_fire_at = runs.iter().filter(|run| is_ahead(run)).filter(is_open).map(|run| run.fire_at).min();
        let next_fire_at = claimed_fire_at.into_iter().chain(record.next_fire_at).min();
        runs.retain(|run| !is_ahead(run));
        runs.truncate(OUTCOME_COUNT.max(BAR_COUNT));
        call.conceal(&mut runs).await?;
        Ok(Self { past_runs: runs, next_fire_at })
    }
}

/// The newest broadcasts of a job, without their shards. A page of all its runs could consist of the shards of the last broadcast only.
async fn broadcasts<Q: Sync>(call: &Call<Q>, record: &JobRecord) -> Result<Vec<Run>, Problem> {
    let store = call.engine().store();
    // For a broadcast with a single shard, this also returns the shard.
    let chart_runs = store.chart_runs(&[record.id], Timestamp::EPOCH, Timestamp::MAX, 2 * READ_RUN_COUNT).await?;
    let ids: Vec<RunId> = chart_runs.iter().filter(|run| call.may_view(run.app)).map(|run| run.id).collect();
    let mut runs = store.runs(&ids).await?;
    runs.retain(|run| run.shard_index == ROOT_SHARD);
    runs.sort_by_key(|run| Reverse((run.fire_at, run.cause)));
    Ok(runs)
}
