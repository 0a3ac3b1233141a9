//! The list of jobs: when each fires next, and how it went lately.

use askama::Template;
use axum::response::Response;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use rondel_core::run::BROADCAST;
use rondel_core::{Run, RunStatus, Timestamp, name};
use rondel_store::catalog::{JobQuery, JobRecord};
use rondel_store::ledger::RunQuery;

use super::moment::Moment;
use super::schedule_text::{self, ScheduleText};
use super::shell::{LIMIT, Missing, Nav, Page, Shell, html};
use super::texts::Texts;
use super::view::{BAR_COUNT, Bar, RunRow, bars};
use crate::call::Call;
use crate::cursor::{Listing, invalid};
use crate::problem::Problem;
use crate::query::{FromQuery, Reader};
use crate::redirect::pair;

/// How many rows of a job are read for its bars: some are claimed and not due yet, some are shards.
const ROW_COUNT: u32 = 60;
/// How many jobs' rows are read at the same time.
const READ_COUNT: usize = 4;

/// The query of the list.
#[derive(Debug)]
pub(crate) struct ListJobs {
    contains: String,
    cursor: Option<String>,
}

impl FromQuery for ListJobs {
    fn from_query(reader: &mut Reader) -> Self {
        let part = |text: &str| {
            let text = text.trim().to_ascii_lowercase();
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
            if text.len() <= name::NAME_LEN_MAX && text.chars().all(plain) {
                Ok(text)
            } else {
                Err(format!("{text:?} is no part of a name: a-z, 0-9, '.', '_' and '-'"))
            }
        };
        Self { contains: reader.parsed("q", part).unwrap_or_default(), cursor: reader.one("cursor") }
    }
}

#[derive(Template)]
#[template(path = "jobs.html")]
struct JobsPage {
    shell: Shell,
    t: &'static Texts,
    contains: String,
    here: String,
    rows: Vec<JobRow>,
    next: Option<String>,
    is_first: bool,
    /// Why the caller can make no job.
    no_new: Option<&'static str>,
}

struct JobRow {
    missing: Missing,
    name: String,
    app: String,
    handler: String,
    enabled: bool,
    schedules: Vec<ScheduleText>,
    next_fire: Option<Moment>,
    last: Option<RunRow>,
    bars: Vec<Bar>,
}

pub(super) async fn list(page: Page<ListJobs>) -> Result<Response, Problem> {
    let query = page.query();
    let namespace = page.call.namespace.id;
    let listing = Listing::new("jobs page", (namespace, &query.contains));
    let after_name = query.cursor.as_deref().map(|cursor| listing.position::<String>(cursor)).transpose()?;
    if after_name.as_deref().is_some_and(|after| name::check(after).is_err()) {
        return Err(invalid("does not hold a name"));
    }
    let is_first = after_name.is_none();
    let name_contains = Some(query.contains.clone()).filter(|text| !text.is_empty());
    let wanted = JobQuery { app: None, within: page.call.seen_apps(), name_contains, after_name, limit: LIMIT + 1 };
    let mut records = page.engine().store().jobs(namespace, &wanted).await?;
    let has_more = records.len() > LIMIT as usize;
    records.truncate(LIMIT as usize);
    let next = records.last().filter(|_| has_more).map(|record| {
        format!("/jobs?{}&{}", pair("q", &query.contains), pair("cursor", &listing.cursor(&record.spec.name)))
    });
    let (call, now, t) = (&page.call, page.engine().now(), page.t);
    let missing = |record: &JobRecord| page.missing(Some(record.app));
    let reads: Vec<_> = records.iter().map(|record| row(call, (record, missing(record)), now, t)).collect();
    let rows = stream::iter(reads).buffered(READ_COUNT).try_collect().await?;
    let template = JobsPage {
        shell: page.shell(Nav::Jobs),
        t,
        contains: query.contains.clone(),
        here: page.here().to_owned(),
        rows,
        next,
        is_first,
        no_new: page.missing_for_new_job(),
    };
    html(StatusCode::OK, &template)
}

async fn row<Q: Sync>(
    call: &Call<Q>,
    (record, missing): (&JobRecord, Missing),
    now: Timestamp,
    t: &'static Texts,
) -> Result<JobRow, Problem> {
    let lately = Lately::read(call, record, now).await?;
    Ok(JobRow {
        missing,
        name: record.spec.name.clone(),
        app: record.spec.app.clone(),
        handler: record.spec.handler.clone(),
        enabled: record.spec.enabled,
        schedules: schedule_text::of_job(&record.spec, t),
        next_fire: lately.next_fire_at.map(|at| Moment::new(at, now, t)),
        last: lately.past.first().map(|run| RunRow::new(run, String::new(), now, t)),
        bars: bars(&lately.past, now, t),
    })
}

/// What a job did last and does next.
#[derive(Debug)]
pub(super) struct Lately {
    /// Its runs that are due, newest first; for a broadcast the rows that stand for all shards.
    pub(super) past: Vec<Run>,
    /// Its next fire, claimed or not.
    pub(super) next_fire_at: Option<Timestamp>,
}

impl Lately {
    pub(super) async fn read<Q: Sync>(call: &Call<Q>, record: &JobRecord, now: Timestamp) -> Result<Self, Problem> {
        let within = call.seen_apps();
        let query = RunQuery { job: Some(record.id), within, limit: ROW_COUNT, ..RunQuery::default() };
        let mut runs = call.engine().store().list_runs(record.namespace, &query).await?;
        if record.spec.is_sharded() {
            runs.retain(|run| run.shard_index == BROADCAST);
        }
        let is_ahead = |run: &Run| run.fire_at > now;
        let is_open = |run: &&Run| matches!(run.status, RunStatus::Pending | RunStatus::Waiting);
        let claimed = runs.iter().filter(|run| is_ahead(run)).filter(is_open).map(|run| run.fire_at).min();
        let next_fire_at = claimed.into_iter().chain(record.next_fire_at).min();
        runs.retain(|run| !is_ahead(run));
        runs.truncate(BAR_COUNT);
        call.conceal(&mut runs).await?;
        Ok(Self { past: runs, next_fire_at })
    }
}
