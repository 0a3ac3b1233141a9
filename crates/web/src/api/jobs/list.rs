//! Lists jobs.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use rondel_admin::jobs;
use rondel_core::access::Permission::View;
use rondel_core::filter::{Filter, Scope};
use rondel_core::{AppId, name};
use rondel_store::catalog::{JobQuery, ListedJob, UnreadableJob};
use schemars::JsonSchema;
use serde::Serialize;

use super::find::find_app;
use super::job_json::JobJson;
use crate::answer::json_response;
use crate::api::page::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::api::page_builder::PageBuilder;
use crate::call::Call;
use crate::cursor::{Listing, cut_to_page};
use crate::job_board::{BoardEntry, JobOrder, OfferedHandlers};
use crate::job_states;
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;

/// No further batch is read for a page once the page has this many jobs that cannot be read.
const UNREADABLE_COUNT_MAX: usize = 200;

/// One page of jobs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "JobPage")]
struct JobPage<T> {
    items: Vec<T>,
    /// For `?cursor=`; null on the last page.
    next_cursor: Option<String>,
    /// Jobs of this page whose definitions this server cannot read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableJson>,
}

/// A job whose definition this server cannot read: a newer server saved it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UnreadableJob")]
struct UnreadableJson {
    name: String,
    app: String,
    handler: String,
    version: i64,
    /// What to do.
    message: String,
}

impl From<UnreadableJob> for UnreadableJson {
    fn from(job: UnreadableJob) -> Self {
        let message = unreadable_message(&job);
        Self { name: job.name, app: job.app_name, handler: job.handler, version: job.version, message }
    }
}

/// What to do about a job whose definition this server cannot read.
pub(super) fn unreadable_message(job: &UnreadableJob) -> String {
    let version = job.version;
    format!(
        "this server cannot read version {version} of the definition, which a newer server saved; upgrade this server"
    )
}

/// The query parameters for the list of jobs.
#[derive(Debug)]
pub(crate) struct JobListQuery {
    app: Option<String>,
    filter: Filter,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for JobListQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let about = "A filter, such as `app:orders is:failing label:team=pay`. Keys of jobs: `is` (`failing`, `never_succeeded`, \
                     `no_executor`, `paused`, `late`, `shadow`, `error`, `running`, `complete`, `waiting`), `app`, `job`, `label`. Other words are searched in the names of jobs and handlers.";
        let filter = |text: &str| Filter::parse(text, Scope::Jobs).map_err(|error| error.to_string());
        Self {
            app: reader.single(Parameter::name("app").about("Only jobs of this app.")),
            filter: reader.parsed(Parameter::text("q").about(about), filter).unwrap_or_default(),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/jobs",
        View,
        list,
        Doc::new("List jobs", "By name, each with its whole definition, its state and its next fire.")
            .json::<JobPage<JobJson<'static>>>(200, "A page of jobs.")
            .refuses(&[Code::AppNotFound]),
    )
}

async fn list(call: Call<JobListQuery>) -> Result<Response, Problem> {
    let query = &call.query;
    let listing = Listing::new("jobs", (call.namespace.id, &query.app, &query.filter));
    let after_name = listing.name_after(query.cursor.as_deref(), name::check)?;
    let app = match &query.app {
        None => None,
        Some(app) => Some(find_app(&call, app).await?),
    };
    let mut matching_jobs = match query.filter.is_empty() {
        true => None,
        false => Some(matching_jobs_after(&call, app, after_name.as_deref()).await?.into_iter()),
    };
    let mut last_name = after_name;
    let mut page = PageBuilder::new(query.limit);
    let mut unreadable: Vec<UnreadableJson> = Vec::new();
    let cursor = |last_name: &Option<String>| last_name.as_ref().map(|name| listing.cursor(name));
    while let Some(count) = page.next_row_count().filter(|_| unreadable.len() < UNREADABLE_COUNT_MAX) {
        let (jobs, is_last) = match &mut matching_jobs {
            Some(matching_jobs) => next_matching(&call, matching_jobs, count).await?,
            None => next_visible_jobs(&call, (app, last_name.clone()), count).await?,
        };
        let last_name_read = jobs.last().map(|job| job.name().to_owned());
        let (records, unreadable_jobs) = ListedJob::split(jobs);
        unreadable.extend(unreadable_jobs.into_iter().map(UnreadableJson::from));
        let fires = jobs::next_fires(call.engine(), &records).await?;
        let states = job_states::job_states(call.engine(), &records).await?;
        for ((record, next_fire), state) in records.iter().zip(fires).zip(states) {
            if !page.add(&JobJson::new(record, &call.namespace.name, (state, next_fire)))? {
                // The next page begins with this job.
                unreadable.retain(|job| last_name.as_ref().is_some_and(|last_name| job.name <= *last_name));
                return answer(page, cursor(&last_name), unreadable);
            }
            last_name = Some(record.spec.name.clone());
        }
        last_name = last_name_read.or(last_name);
        if is_last {
            return answer(page, None, unreadable);
        }
    }
    answer(page, cursor(&last_name), unreadable)
}

fn answer(
    page: PageBuilder,
    next_cursor: Option<String>,
    unreadable: Vec<UnreadableJson>,
) -> Result<Response, Problem> {
    json_response(StatusCode::OK, &JobPage { items: page.into_items(), next_cursor, unreadable })
}

/// The next `count` jobs after a name, and whether they are the last. They are read from the store, because the job board of a large
/// namespace does not hold all jobs.
async fn next_visible_jobs(
    call: &Call<JobListQuery>,
    (app, after_name): (Option<AppId>, Option<String>),
    count: u32,
) -> Result<(Vec<ListedJob>, bool), Problem> {
    // Reads one job more than wanted, to detect whether there are more.
    let limit = count.saturating_add(1);
    let query = JobQuery { app, within: call.visible_apps(), after_name, limit, ..JobQuery::default() };
    let mut jobs = call.engine().store().listed_jobs(call.namespace.id, &query).await?;
    let is_last = cut_to_page(&mut jobs, count).is_none();
    Ok((jobs, is_last))
}

/// The next `count` of the jobs in `entries`, and whether they are the last.
async fn next_matching(
    call: &Call<JobListQuery>,
    entries: &mut std::vec::IntoIter<Arc<BoardEntry>>,
    count: u32,
) -> Result<(Vec<ListedJob>, bool), Problem> {
    let selected_entries: Vec<Arc<BoardEntry>> =
        entries.by_ref().take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
    let names: Vec<&str> = selected_entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut jobs = call.engine().store().listed_jobs_named(call.namespace.id, &names).await?;
    jobs.retain(|job| call.may_view(job.app()));
    Ok((jobs, entries.as_slice().is_empty()))
}

/// The jobs that match the filter, in order of their names, after the name `after_name`.
async fn matching_jobs_after(
    call: &Call<JobListQuery>,
    app: Option<AppId>,
    after_name: Option<&str>,
) -> Result<Vec<Arc<BoardEntry>>, Problem> {
    let board = call.web.boards.board_for(call.engine(), call.namespace.id, &call.query.filter).await?;
    let mut offers = OfferedHandlers::new(call.engine(), call.namespace.id);
    let visible_apps = call.visible_apps();
    let mut entries = board.matching(&call.query.filter, visible_apps.as_deref(), JobOrder::Name, &mut offers);
    entries.retain(|entry| app.is_none_or(|app| entry.app == app));
    entries.retain(|entry| after_name.is_none_or(|after_name| entry.name.as_str() > after_name));
    Ok(entries)
}
