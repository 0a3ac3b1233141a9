//! Lists runs: filtered, in three orders, forwards and backwards.

use axum::response::Response;
use http::StatusCode;
use rondel_core::access::Permission::View;
use rondel_core::cron::Tz;
use rondel_core::filter::{Filter, Scope};
use rondel_core::{Run, RunId, RunStatus, Timestamp};
use rondel_store::ledger::{RunOrder, RunQuery, RunSearch};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use super::jobs::find_for_runs;
use super::page::{LIMIT_DEFAULT, LIMIT_MAX};
use super::page_builder::PageBuilder;
use super::run_json;
use crate::answer::json_response;
use crate::call::Call;
use crate::cursor::{Listing, cut_to_page};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;
use crate::run_filter::{self, FILTER_PARAMETER, ORDER_WORDS, RunPosition};

/// The query parameters for the list of runs.
#[derive(Debug)]
pub(crate) struct RunListQuery {
    job: Option<String>,
    statuses: Vec<RunStatus>,
    filter: Filter,
    order: Option<RunOrder>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for RunListQuery {
    fn from_query(reader: &mut Reader) -> Self {
        let sort = Parameter::word("sort", ORDER_WORDS).about(
            "The order: the newest first, the longest first, or the latest first (runs that began the longest after their \
             planned instants). The last two consider only the newest 10,000 runs of the period.",
        );
        let order = reader.parsed(sort, run_filter::parse_order);
        let filter =
            reader.parsed(FILTER_PARAMETER, |text| Filter::parse(text, Scope::Runs).map_err(|error| error.to_string()));
        Self {
            job: reader.single(Parameter::name("job").about("Only runs of this job, which may have been deleted.")),
            statuses: reader
                .words(Parameter::words("status", RunStatus::WORDS).about("Only runs with one of these statuses.")),
            filter: filter.unwrap_or_default(),
            order,
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.single(Parameter::cursor()),
        }
    }
}

/// One page of runs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RunPage")]
struct RunPage {
    #[schemars(with = "Vec<run_json::RunItem>")]
    items: Vec<Box<RawValue>>,
    /// For `?cursor=`; null on the last page.
    next_cursor: Option<String>,
    /// For `?cursor=`: the previous page; null on the first page.
    prev_cursor: Option<String>,
    /// If older runs were not searched: when the oldest run that was searched was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    searched_to: Option<Timestamp>,
}

pub(super) fn routes() -> Routes {
    Routes::new().get(
        "/api/v1/runs",
        View,
        list,
        Doc::new(
            "List runs",
            "The newest first, or in the order of `sort`. Conditions without an index, such as a text in messages, are checked \
             only for the newest 10,000 runs of the period; `searched_to` then states how far back the search went, and \
             `next_cursor` continues from there.",
        )
        .json::<RunPage>(200, "A page of runs.")
        .refuses(&[Code::JobNotFound]),
    )
}

async fn list(call: Call<RunListQuery>) -> Result<Response, Problem> {
    let query = &call.query;
    if let Some(job) = query.job.as_deref().filter(|_| query.filter.is_empty() && query.order.is_none()) {
        return runs_of_job(&call, job).await;
    }
    let order = query.order.unwrap_or_default();
    let listing = Listing::new("run search", (call.namespace.id, &query.job, &query.statuses, &query.filter, order));
    let mut search = run_filter::build_search(&call, &query.filter, order, Tz::UTC).await?;
    if !query.statuses.is_empty() {
        search.statuses = match search.statuses.is_empty() {
            true => query.statuses.clone(),
            false => search.statuses.into_iter().filter(|status| query.statuses.contains(status)).collect(),
        };
        if search.statuses.is_empty() {
            search.apps = Some(Vec::new());
        }
    }
    let mut deleted_at = None;
    if let Some(name) = &query.job {
        let job = find_for_runs(&call, name).await?;
        deleted_at = job.deleted_at;
        let is_selected = search.jobs.as_ref().is_none_or(|jobs| jobs.contains(&job.id));
        search.jobs = Some(is_selected.then_some(job.id).into_iter().collect());
    }
    let position = query.cursor.as_deref().map(|cursor| listing.position::<RunPosition>(cursor)).transpose()?;
    if let Some(position) = position {
        position.apply(&mut search);
    }
    let page = run_filter::read_page(&call, search.clone(), query.limit).await?;
    let ids: Vec<RunId> = page.runs.iter().map(|run| run.id).collect();
    let run_copies = page.runs.clone();
    let items = run_json::run_items(&call, page.runs.into_iter().map(Run::for_reader).collect()).await?;
    let mut builder = PageBuilder::new(query.limit);
    // A page that has too many bytes drops runs at its end. If the list is read backwards, it drops them at its beginning.
    let is_backward = position.is_some_and(RunPosition::is_backward);
    let mut indexes: Vec<usize> = (0..ids.len()).collect();
    if is_backward {
        indexes.reverse();
    }
    let mut items: Vec<Option<run_json::RunItem>> = items.into_iter().map(Some).collect();
    let mut kept_indexes = Vec::new();
    for index in indexes {
        let Some(item) = items.get_mut(index).and_then(Option::take) else { continue };
        if !builder.add(&item.with_job_deleted_at(deleted_at))? {
            break;
        }
        kept_indexes.push(index);
    }
    let is_cut = kept_indexes.len() < ids.len();
    let run_at = |index: Option<&usize>| index.and_then(|index| run_copies.get(*index));
    let (mut previous_position, mut next_position) = (page.previous_position, page.next_position);
    if is_cut && is_backward {
        previous_position = run_at(kept_indexes.last()).map(|run| RunPosition::before(&search, run));
    } else if is_cut {
        next_position = run_at(kept_indexes.last()).map(|run| RunPosition::of_run(&search, run));
    }
    let mut items = builder.into_items();
    if is_backward {
        items.reverse();
    }
    let run_page = RunPage {
        items,
        next_cursor: next_position.map(|position| listing.cursor(position)),
        prev_cursor: previous_position.map(|position| listing.cursor(position)),
        searched_to: page.searched_to.filter(|_| !is_cut),
    };
    json_response(StatusCode::OK, &run_page)
}

/// The runs of one job, in the order of its fires.
async fn runs_of_job(call: &Call<RunListQuery>, job: &str) -> Result<Response, Problem> {
    let query = &call.query;
    let listing = Listing::new("runs", (call.namespace.id, job, &query.statuses));
    let after_id = listing.id_after(query.cursor.as_deref(), RunId::get)?;
    let job = find_for_runs(call, job).await?;
    let (visible_apps, statuses) = (call.visible_apps(), query.statuses.clone());
    let mut run_query =
        RunQuery { job: Some(job.id), within: visible_apps, statuses, after: after_id, ..RunQuery::default() };
    let mut page = PageBuilder::new(query.limit);
    let respond = |page: PageBuilder, next_cursor| {
        let page = RunPage { items: page.into_items(), next_cursor, prev_cursor: None, searched_to: None };
        json_response(StatusCode::OK, &page)
    };
    while let Some(count) = page.next_row_count() {
        // Reads one run more than the page needs, to detect whether there are more.
        run_query.limit = count + 1;
        let mut runs = call.engine().store().list_runs(call.namespace.id, &run_query).await?;
        let has_more = cut_to_page(&mut runs, count).is_some();
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        let items = run_json::run_items(call, runs.into_iter().map(Run::for_reader).collect()).await?;
        for (id, item) in ids.into_iter().zip(items) {
            if !page.add(&item.with_job_deleted_at(job.deleted_at))? {
                return respond(page, run_query.after.map(|last| listing.cursor(last)));
            }
            run_query.after = Some(id);
        }
        if !has_more {
            return respond(page, None);
        }
    }
    respond(page, run_query.after.map(|last| listing.cursor(last)))
}

/// The search for the runs that match the filter of a bulk request.
pub(crate) async fn parse_search<Q>(call: &Call<Q>, text: &str) -> Result<RunSearch, Problem> {
    let filter = run_filter::parse_filter(text, Scope::Runs)?;
    run_filter::build_search(call, &filter, RunOrder::Newest, Tz::UTC).await
}

#[cfg(test)]
mod tests {
    #[test]
    fn documents_name_the_bound_of_searches() {
        assert_eq!(rondel_store::ledger::SEARCHED_COUNT_MAX, 10_000, "it stands in texts, too");
        for text in [include_str!("run_list.rs"), include_str!("../../../../docs/API.md")] {
            assert!(text.contains("10,000 runs of the"));
        }
    }
}
