//! Runs: asked for, listed, cancelled, repeated.

use axum::response::Response;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use rondel_admin::jobs::{self, RunRequest};
use rondel_core::access::Permission::{Operate, View};
use rondel_core::run::BROADCAST;
use rondel_core::{Run, RunId, RunStatus, Trigger};
use rondel_store::catalog::JobRecord;
use rondel_store::ledger::RunQuery;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::filling::Filling;
use super::jobs::{find as find_job, find_for_runs};
use super::page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
use super::run_json;
use crate::answer::json;
use crate::body::OptionalJsonBody;
use crate::call::{Call, quoted};
use crate::cursor::{Listing, invalid};
use crate::openapi::Doc;
use crate::parameter::Parameter;
use crate::path::{self, Named};
use crate::problem::{Code, Problem};
use crate::query::{FromQuery, Reader};
use crate::routes::Routes;
use crate::trace;

/// By which our own clients mark a request that a user made.
const CLIENT_HEADER: &str = "rondel-client";
/// The same in the API's document.
const CLIENT: Parameter = Parameter::word("Rondel-Client", &["cli", "console"])
    .about("Marks a request made by a user: the run's `trigger` is then `manual`, and `api` otherwise.");

/// The query of the list.
#[derive(Debug)]
pub(crate) struct ListRuns {
    job: Option<String>,
    statuses: Vec<RunStatus>,
    limit: u32,
    cursor: Option<String>,
}

impl FromQuery for ListRuns {
    fn from_query(reader: &mut Reader) -> Self {
        Self {
            job: reader.one(Parameter::name("job").about("Only runs of this job, which may have been deleted.")),
            statuses: reader.words(Parameter::words("status", RunStatus::WORDS).about("Only runs that stand so.")),
            limit: reader.limit(LIMIT_DEFAULT, LIMIT_MAX),
            cursor: reader.one(Parameter::cursor()),
        }
    }
}

/// The body of a trigger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerBody {
    /// Parameters of this run alone; left out or null for the job's. Only what the job's `overrides` allow may differ from
    /// them; what may not be replaced can be left out.
    #[serde(default)]
    params: Option<Value>,
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .post(
            "/api/v1/jobs/{name}/runs",
            Operate,
            trigger,
            Doc::new("Trigger a job", "Makes a run of it now, with its own parameters or those of the body. It need not be on.")
                .json::<run_json::RunJson>(201, "The run.")
                .with("Location")
                .reads(CLIENT)
                .example(json!({"params": {"day": "2026-03-08"}})),
        )
        .get(
            "/api/v1/runs",
            View,
            list,
            Doc::new("List runs", "Newest first.")
                .json::<Page<run_json::RunItem>>(200, "A page of runs.")
                .refuses(&[Code::JobNotFound]),
        )
        .get(
            "/api/v1/runs/{id}",
            View,
            get,
            Doc::new("Get a run", "With its attempts, its shards, and what follows from it.").json::<run_json::RunJson>(200, "The run."),
        )
        .post(
            "/api/v1/runs/{id}/retry",
            Operate,
            retry,
            Doc::new(
                "Run it again",
                "A new run with the parameters of this one, which is its `parent`. Refused with `invalid_body` where a caller replaced parameters \
                 that the job's `overrides` do not allow any more.",
            )
                .json::<run_json::RunJson>(201, "The new run.")
                .with("Location")
                .reads(CLIENT)
                .refuses(&[Code::RunNotFinished, Code::ShardOfBroadcast, Code::JobDeleted, Code::InvalidBody]),
        )
}

async fn trigger(
    call: Call,
    Named(name, ..): Named<path::Job>,
    headers: HeaderMap,
    body: OptionalJsonBody<TriggerBody>,
) -> Result<Response, Problem> {
    let body = body.read()?;
    let record = find_job(&call, &name).await?;
    let params = match &body.params {
        Some(given) => jobs::run_params(call.engine(), &record, given)?,
        None => None,
    };
    request(&call, &record, RunRequest { params, trigger: trigger_of(&headers), parent: None, trace: call.trace }).await
}

async fn list(call: Call<ListRuns>) -> Result<Response, Problem> {
    let query = &call.query;
    let listing = Listing::new("runs", (call.namespace.id, &query.job, &query.statuses));
    let after = match &query.cursor {
        None => None,
        Some(cursor) => Some(listing.position::<RunId>(cursor)?),
    };
    if after.is_some_and(|after| after.get() <= 0) {
        return Err(invalid("does not hold an id"));
    }
    let job = match &query.job {
        None => None,
        Some(name) => Some(find_for_runs(&call, name).await?),
    };
    let (job, deleted_at) = (job.map(|job| job.id), job.and_then(|job| job.deleted_at));
    let mut wanted =
        RunQuery { job, within: call.seen_apps(), statuses: query.statuses.clone(), after, ..RunQuery::default() };
    let mut page = Filling::new(query.limit);
    while let Some(count) = page.wanted() {
        // One more shows whether there are more.
        wanted.limit = count + 1;
        let mut runs = call.engine().store().list_runs(call.namespace.id, &wanted).await?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let has_more = runs.len() > count;
        runs.truncate(count);
        let ids: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        for (id, item) in
            ids.into_iter().zip(run_json::items(&call, runs.into_iter().map(Run::for_reader).collect()).await?)
        {
            if !page.add(&item.of_job_deleted_at(deleted_at))? {
                return page.answer(wanted.after.map(|last| listing.cursor(last)));
            }
            wanted.after = Some(id);
        }
        if !has_more {
            return page.answer(None);
        }
    }
    page.answer(wanted.after.map(|last| listing.cursor(last)))
}

async fn get(call: Call, path: Named<path::Run>) -> Result<Response, Problem> {
    let run = find(&call, &path).await?;
    json(StatusCode::OK, &run_json::whole(&call, run).await?)
}

async fn retry(call: Call, path: Named<path::Run>, headers: HeaderMap) -> Result<Response, Problem> {
    let run = find(&call, &path).await?;
    let (record, again) = repetition(&call, &run, trigger_of(&headers)).await?;
    request(&call, &record, again).await
}

/// What repeats a run: its job, and the request for it.
pub(crate) async fn repetition<Q>(
    call: &Call<Q>,
    run: &Run,
    trigger: Trigger,
) -> Result<(JobRecord, RunRequest), Problem> {
    if !run.status.is_terminal() {
        return Err(Problem::new(Code::RunNotFinished, format!("the run is {}; cancel it first", run.status)));
    }
    if let Some(whole) = whole_of(call, run).await? {
        return Err(Problem::new(Code::ShardOfBroadcast, format!("retry the whole broadcast, run {whole}")));
    }
    let record = job_of(call, run).await?;
    // An edit since then does not change what is repeated.
    let params = jobs::params_again(call.engine(), &record, run).await?;
    Ok((record, RunRequest { params, trigger, parent: Some(run.id), trace: call.trace }))
}

async fn request(call: &Call, record: &JobRecord, request: RunRequest) -> Result<Response, Problem> {
    let run = jobs::request_run(call.engine(), record, request).await?;
    trace::about(run.id);
    call.note.changed_to(&serde_json::json!({"run": run.id}));
    let location = call.link(&format!("/api/v1/runs/{}", run.id));
    let mut response = json(StatusCode::CREATED, &run_json::whole(call, run).await?)?;
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

/// The run with this id, if it is in the namespace of the call.
pub(crate) async fn find<Q>(call: &Call<Q>, path: &Named<path::Run>) -> Result<Run, Problem> {
    let id = path.0.parse::<RunId>().ok().filter(|id| id.get() > 0);
    let found = match id {
        Some(id) => call.engine().store().runs(&[id]).await?.pop(),
        None => None,
    };
    let mut found = found.filter(|run| run.namespace == call.namespace.id).ok_or_else(|| missing(call, path))?;
    call.check(Some(found.app), || missing(call, path))?;
    trace::about(found.id);
    call.conceal(std::slice::from_mut(&mut found)).await?;
    Ok(found.for_reader())
}

pub(super) fn missing<Q>(call: &Call<Q>, path: &Named<path::Run>) -> Problem {
    let detail = format!("there is no run {} in namespace {}", quoted(&path.0), call.namespace.name);
    Problem::new(Code::RunNotFound, detail)
}

/// The broadcast of which this run is one shard.
async fn whole_of<Q>(call: &Call<Q>, run: &Run) -> Result<Option<RunId>, Problem> {
    let Some(parent) = run.parent.filter(|_| run.shard_index != BROADCAST) else { return Ok(None) };
    let parents = call.engine().store().runs(&[parent]).await?;
    let whole = parents.first().filter(|whole| whole.shard_index == BROADCAST && whole.fire_at == run.fire_at);
    Ok(whole.map(|whole| whole.id))
}

/// The job of a run, as it is defined now.
pub(crate) async fn job_of<Q>(call: &Call<Q>, run: &Run) -> Result<JobRecord, Problem> {
    let store = call.engine().store();
    let name = store.job_names(&[run.job]).await?.pop().map(|(_, name)| name);
    let record = match name {
        Some(name) => store.job(run.namespace, &name).await?,
        None => None,
    };
    // Another job may have the name by now.
    let record = record.filter(|record| record.id == run.job);
    let gone = || Problem::new(Code::JobDeleted, "the job of this run was deleted, it cannot run again");
    let record = record.ok_or_else(gone)?;
    // It may belong to another app by now.
    call.check(Some(record.app), gone)?;
    Ok(record)
}

fn trigger_of(headers: &HeaderMap) -> Trigger {
    match headers.get(CLIENT_HEADER).map(HeaderValue::as_bytes) {
        Some(b"cli" | b"console") => Trigger::Manual,
        _ => Trigger::Api,
    }
}
