//! The list of runs, with its filters in the address.

use askama::Template;
use axum::response::Response;
use http::StatusCode;
use rondel_core::cron::Tz;
use rondel_core::{RunId, RunStatus, words};
use rondel_store::ledger::RunQuery;

use super::shell::{LIMIT, Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::{RunRow, Status};
use crate::api::jobs::find_for_runs;
use crate::cursor::{Listing, invalid};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::pair;
use crate::shown_runs::named;

/// The query of the list; an empty filter is ignored.
#[derive(Debug)]
pub(crate) struct ListRuns {
    job: String,
    status: Option<RunStatus>,
    cursor: Option<String>,
}

impl FromQuery for ListRuns {
    fn from_query(reader: &mut Reader) -> Self {
        let status = |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some) };
        Self {
            job: reader.one("job").map(|job| job.trim().to_owned()).unwrap_or_default(),
            status: reader.parsed("status", status).flatten(),
            cursor: reader.one("cursor"),
        }
    }
}

impl ListRuns {
    /// The address of the list with the status exchanged.
    fn href(&self, status: Option<RunStatus>) -> String {
        format!("/runs?{}&{}", pair("status", status.map_or("", RunStatus::as_str)), pair("job", &self.job))
    }
}

#[derive(Template)]
#[template(path = "runs.html")]
struct RunsPage {
    shell: Shell,
    t: &'static Texts,
    job: String,
    status: &'static str,
    /// The statuses to choose from, with their addresses.
    filters: Vec<(Status, String)>,
    all_href: String,
    here: String,
    rows: Vec<RunRow>,
    next: Option<String>,
    is_first: bool,
    /// For the runs of a deleted job.
    deleted: Option<String>,
}

pub(super) async fn list(page: Page<ListRuns>) -> Result<Response, Problem> {
    let query = page.query();
    let namespace = page.call.namespace.id;
    let listing = Listing::new("runs page", (namespace, &query.job, query.status));
    let after = query.cursor.as_deref().map(|cursor| listing.position::<RunId>(cursor)).transpose()?;
    if after.is_some_and(|after| after.get() <= 0) {
        return Err(invalid("does not hold an id"));
    }
    let job = match query.job.as_str() {
        "" => None,
        name => Some(find_for_runs(&page.call, name).await?),
    };
    let (job, deleted_at) = (job.map(|job| job.id), job.and_then(|job| job.deleted_at));
    let statuses = query.status.into_iter().collect();
    let wanted =
        RunQuery { job, within: page.call.seen_apps(), statuses, after, limit: LIMIT + 1, ..RunQuery::default() };
    let mut runs = page.engine().store().list_runs(namespace, &wanted).await?;
    let has_more = runs.len() > LIMIT as usize;
    runs.truncate(LIMIT as usize);
    let next = runs
        .last()
        .filter(|_| has_more)
        .map(|run| format!("{}&{}", query.href(query.status), pair("cursor", &listing.cursor(run.id))));
    let (now, t) = (page.engine().now(), page.t);
    let rows = named(&page.call, runs).await?.into_iter().map(|(job, run)| RunRow::new(&run, job, now, t)).collect();
    let filters = RunStatus::ALL.iter().map(|status| (Status::new(*status, t), query.href(Some(*status)))).collect();
    let template = RunsPage {
        shell: page.shell(Nav::Runs),
        t,
        job: query.job.clone(),
        status: query.status.map_or("", RunStatus::as_str),
        filters,
        all_href: query.href(None),
        here: page.here().to_owned(),
        rows,
        next,
        is_first: after.is_none(),
        deleted: deleted_at.map(|at| t.runs_job_deleted(&query.job, words::moment(Tz::UTC, at))),
    };
    html(StatusCode::OK, &template)
}
