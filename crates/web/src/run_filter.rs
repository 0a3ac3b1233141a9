//! Converts a filter of runs into a search of the store: names become ids, and times become instants.

use std::sync::Arc;

use rondel_core::cron::Tz;
use rondel_core::filter::{Filter, FilterError, Pattern, RunState, Scope};
use rondel_core::{AppId, JobId, Run, RunId, Timestamp, name};
use rondel_store::ledger::{FoundRuns, RunOrder, RunPlace, RunSearch, RunText};
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::job_board::{Board, BoardEntry};
use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};

pub(crate) const FILTER_PARAMETER: Parameter = Parameter::text("q").about(
    "A filter, such as `status:failed app:orders since:8h duration:>5m \"refused\"`. Keys of runs: `status`, `app`, `job`, `since`, \
     `until`, `executor`, `trigger`, `duration`, `late`, `label`, `is` (`dead`). Days and times without a zone are in UTC. Other words are searched in \
     messages and in the names of jobs.",
);

/// The words for the orders of runs.
pub(crate) const ORDER_WORDS: &[&str] = &["newest", "longest", "latest"];

pub(crate) fn parse_order(word: &str) -> Result<RunOrder, String> {
    match word {
        "" | "newest" => Ok(RunOrder::Newest),
        "longest" => Ok(RunOrder::Longest),
        "latest" => Ok(RunOrder::Latest),
        _ => Err(format!("{word:?} is none of {}", ORDER_WORDS.join(", "))),
    }
}

/// The problem for a filter that cannot be parsed.
pub(crate) fn filter_problem(error: &FilterError) -> Problem {
    Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("q", "invalid_value", error.to_string())])
}

/// Parses the filter of an API request.
pub(crate) fn parse_filter(text: &str, scope: Scope) -> Result<Filter, Problem> {
    Filter::parse(text, scope).map_err(|error| filter_problem(&error))
}

/// A position in a list of runs, as it is stored in a cursor.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RunPosition {
    /// The value by which the list is ordered.
    #[serde(rename = "v")]
    value: i64,
    #[serde(rename = "r")]
    run_id: i64,
    /// The instant of the first page. The durations of open runs are measured up to it, so that the order stays the same on later pages.
    #[serde(rename = "n")]
    now_ms: i64,
    /// Whether the page ends at this position instead of beginning there.
    #[serde(rename = "b", default, skip_serializing_if = "std::ops::Not::not")]
    is_backward: bool,
}

impl RunPosition {
    pub(crate) fn of_run(search: &RunSearch, run: &Run) -> Self {
        Self::at_place(search, search.place(run))
    }

    /// The position for the page that ends before this run.
    pub(crate) fn before(search: &RunSearch, run: &Run) -> Self {
        Self { is_backward: true, ..Self::of_run(search, run) }
    }

    /// The position from which a search that stopped early continues.
    pub(crate) fn at(search: &RunSearch, id: RunId) -> Self {
        Self::at_place(search, RunPlace { value: 0, id })
    }

    fn at_place(search: &RunSearch, run_place: RunPlace) -> Self {
        Self { value: run_place.value, run_id: run_place.id.get(), now_ms: search.now.as_millis(), is_backward: false }
    }

    pub(crate) const fn is_backward(self) -> bool {
        self.is_backward
    }

    pub(crate) fn apply(self, search: &mut RunSearch) {
        search.from = Some(RunPlace { value: self.value, id: RunId::new(self.run_id) });
        search.now = Timestamp::from_millis(self.now_ms);
        search.is_backward = self.is_backward;
    }
}

#[derive(Debug)]
pub(crate) struct SearchedPage {
    pub(crate) runs: Vec<Run>,
    pub(crate) previous_position: Option<RunPosition>,
    pub(crate) next_position: Option<RunPosition>,
    /// When the oldest searched run was created; `None` if no older runs were left out.
    pub(crate) searched_to: Option<Timestamp>,
}

/// Reads a page of at most `limit` runs, and the positions for the previous and the next page.
pub(crate) async fn read_page<Q>(call: &Call<Q>, mut search: RunSearch, limit: u32) -> Result<SearchedPage, Problem> {
    // Reads one run more than the page needs, to detect whether there are more.
    search.limit = limit + 1;
    let FoundRuns { mut runs, stopped_at } = call.engine().store().search_runs(call.namespace.id, &search).await?;
    let has_more = runs.len() > usize::try_from(limit).unwrap_or(usize::MAX);
    if has_more && search.is_backward {
        runs.remove(0);
    } else if has_more {
        runs.pop();
    }
    // A page that continues a stopped search within one job begins at the id `i64::MAX` (`RunSearch::place_below`). It has no previous
    // page.
    let is_later_page = search.from.is_some_and(|from| from.id.get() < i64::MAX);
    let (has_previous, has_next) = if search.is_backward { (has_more, true) } else { (is_later_page, has_more) };
    let mut previous_position = runs.first().filter(|_| has_previous).map(|run| RunPosition::before(&search, run));
    let mut next_position = runs.last().filter(|_| has_next).map(|run| RunPosition::of_run(&search, run));
    let stop_position = match stopped_at {
        Some(id) if can_continue(&search) => Some(RunPosition::at(&search, id)),
        Some(id) if search.is_in_one_job() && next_position.is_none() => {
            let stop_run = call.engine().store().runs(&[id]).await?.pop();
            stop_run.map(|stop_run| RunPosition::at_place(&search, RunSearch::place_below(&stop_run)))
        }
        _ => None,
    };
    let mut searched_to = stopped_at.map(RunId::created_at);
    if search.is_backward && can_continue(&search) {
        // In a backward search, the runs that were not searched are newer ones.
        searched_to = None;
        previous_position =
            previous_position.or(stop_position.map(|position| RunPosition { is_backward: true, ..position }));
        next_position = next_position
            .or(search.from.map(|from| RunPosition::at(&search, RunId::new(from.id.get().saturating_add(1)))));
    } else if !search.is_backward {
        next_position = next_position.or(stop_position);
    }
    Ok(SearchedPage { runs, previous_position, next_position, searched_to })
}

/// Whether a search that stopped at a run can continue after that run by its id. Only a search for the newest runs can, and not within a
/// single job, whose index has another order.
pub(crate) fn can_continue(search: &RunSearch) -> bool {
    search.order == RunOrder::Newest && search.job_by_fires().is_none()
}

/// The search for the runs that match a filter.
pub(crate) async fn build_search<Q>(
    call: &Call<Q>,
    filter: &Filter,
    order: RunOrder,
    zone: Tz,
) -> Result<RunSearch, Problem> {
    let now = call.engine().now();
    let mut search = RunSearch::new(now, 0);
    search.order = order;
    let statuses = filter.statuses.of(rondel_core::RunStatus::ALL);
    let triggers = filter.triggers.of(rondel_core::Trigger::ALL);
    search.is_dead = filter.run_states.contains(&RunState::Dead);
    search.apps = matching_apps(call, filter).await?;
    // For the store, an empty list stands for all values. A filter that excludes every value must match nothing.
    if statuses.as_ref().is_some_and(Vec::is_empty) || triggers.as_ref().is_some_and(Vec::is_empty) {
        search.apps = Some(Vec::new());
    }
    (search.statuses, search.triggers) = (statuses.unwrap_or_default(), triggers.unwrap_or_default());
    let jobs_of_terms = matching_jobs(call, &filter.jobs.any, false).await?;
    let jobs_of_labels = labelled_jobs(call, filter).await?;
    search.jobs = match (jobs_of_terms, jobs_of_labels) {
        (Some(mut jobs_of_terms), Some(jobs_of_labels)) => {
            jobs_of_terms.retain(|job| jobs_of_labels.binary_search(job).is_ok());
            Some(jobs_of_terms)
        }
        (jobs, None) | (None, jobs) => jobs,
    };
    search.excluded_jobs = matching_jobs(call, &filter.jobs.none, true).await?.unwrap_or_default();
    search.executors = filter.executors.clone();
    search.since = filter.since.map(|since| since.first_instant(now, zone));
    search.until = filter.until.map(|until| until.last_instant(now, zone));
    search.duration = filter.duration;
    search.late = filter.late;
    for text in &filter.texts {
        let lower_text = text.text.to_lowercase();
        let jobs = if is_name_part(&lower_text) { jobs_containing(call, &lower_text).await? } else { Vec::new() };
        let mut jobs: Vec<JobId> = jobs.into_iter().map(|job| job.id).collect();
        jobs.sort_unstable();
        search.texts.push(RunText { text: lower_text, is_not: text.is_not, jobs });
    }
    if let Some(visible_apps) = call.visible_apps().filter(|_| !search.texts.is_empty()) {
        search.visible_jobs = Some(Arc::new(read_board(call).await?.visible_jobs(&visible_apps)));
    }
    Ok(search)
}

/// The apps that match the filter and that the caller may see; `None` for all apps.
pub(crate) async fn matching_apps<Q>(call: &Call<Q>, filter: &Filter) -> Result<Option<Vec<AppId>>, Problem> {
    let visible_apps = call.visible_apps();
    if filter.apps.admits_all() {
        return Ok(visible_apps);
    }
    let mut apps = call.engine().store().apps(call.namespace.id).await?;
    apps.retain(|app| filter.apps.admits(|wanted| wanted.matches(&app.name)));
    let ids = apps.into_iter().map(|app| app.id);
    Ok(Some(ids.filter(|id| visible_apps.as_ref().is_none_or(|visible_apps| visible_apps.contains(id))).collect()))
}

/// The jobs to which these patterns refer, in the order of their ids; `None` without patterns. A pattern refers to the job with this name
/// or, without such a job, to all jobs whose names contain it. With `is_exclusion` the jobs are to be excluded: a pattern is refused if the
/// namespace has too many jobs to find all of them.
async fn matching_jobs<Q>(
    call: &Call<Q>,
    patterns: &[Pattern],
    is_exclusion: bool,
) -> Result<Option<Vec<JobId>>, Problem> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let store = call.engine().store();
    let mut job_ids = Vec::new();
    for pattern in patterns {
        let job_of_name = match pattern.is_name() && name::check(&pattern.0).is_ok() {
            true => match store.job(call.namespace.id, &pattern.0).await? {
                Some(job) => Some(job.id).filter(|_| call.may_view(job.app)),
                None => {
                    let deleted_job = store.deleted_job(call.namespace.id, &pattern.0).await?;
                    deleted_job.filter(|job| call.may_view(job.app)).map(|job| job.id)
                }
            },
            false => None,
        };
        if let Some(job) = job_of_name {
            job_ids.push(job);
            continue;
        }
        let part = pattern.longest_part().to_ascii_lowercase();
        if is_name_part(&part) {
            if is_exclusion && !read_board(call).await?.has_all_jobs() {
                return Err(too_many_jobs_problem(pattern));
            }
            let mut jobs = jobs_containing(call, &part).await?;
            jobs.retain(|job| pattern.is_name() || pattern.matches(&job.name));
            job_ids.extend(jobs.into_iter().map(|job| job.id));
        }
    }
    job_ids.sort_unstable();
    job_ids.dedup();
    Ok(Some(job_ids))
}

fn too_many_jobs_problem(pattern: &Pattern) -> Problem {
    let term = &pattern.0;
    let message = format!("-job:{term}: the namespace has too many jobs to find all that match; give the name of each");
    Problem::of_complaints(Code::InvalidQuery, vec![Complaint::query("q", "invalid_value", message)])
}

/// Whether a text can be a part of a name.
fn is_name_part(text: &str) -> bool {
    let is_name_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    text.len() <= name::NAME_LEN_MAX && text.chars().all(is_name_char)
}

async fn jobs_containing<Q>(call: &Call<Q>, name_part: &str) -> Result<Vec<Arc<BoardEntry>>, Problem> {
    Ok(read_board(call).await?.entries_named(|name| name.contains(name_part), call.visible_apps().as_deref()))
}

async fn read_board<Q>(call: &Call<Q>) -> Result<Arc<Board>, Problem> {
    Ok(call.web.boards.board(call.engine(), call.namespace.id).await?)
}

/// The jobs whose labels match, in the order of their ids; `None` if the filter has no labels.
async fn labelled_jobs<Q>(call: &Call<Q>, filter: &Filter) -> Result<Option<Vec<JobId>>, Problem> {
    if filter.labels.is_empty() {
        return Ok(None);
    }
    let mut labelled_jobs = read_board(call).await?.ids_with_matching_labels(filter, call.visible_apps().as_deref());
    labelled_jobs.sort_unstable();
    Ok(Some(labelled_jobs))
}
